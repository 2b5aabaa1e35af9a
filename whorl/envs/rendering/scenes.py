"""Frames of the two-dimensional environments, each drawn from the numbers given."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw

from whorl.envs.rendering import quadrotor as render
from whorl.envs.rendering.quadrotor import Colour, Point

WATER, DEEP, GOLD, PAPER = (176, 214, 234), (120, 178, 214), (232, 176, 32), (255, 255, 255)
GRASS = (104, 170, 108)
SYMBOLS = (render.FULL, render.NOSE, render.GOAL, render.FAILED)


def cart_scene(
    x: float, rail: float, angles: Sequence[float], lengths: Sequence[float], shown: Mapping[str, str]
) -> np.ndarray:
    """A cart on a rail of half length `rail`, and a chain of links by their clockwise angles from upright."""
    reach = sum(lengths)
    scene = Scene(min(0.42 * render.WIDTH / rail, 0.42 * render.HEIGHT / reach), 0.5, 0.56)
    scene.line([(-rail, 0), (rail, 0)], render.FAINT, 3)
    for tick in np.linspace(-rail, rail, 13):
        scene.line([(tick, 0), (tick, -scene.pixels(6))], render.FAINT, 1)
    for end in (-rail, rail):
        scene.line([(end, -scene.pixels(10)), (end, scene.pixels(10))], render.FRAME, 5)
    scene.dashes((x, 0), (x, reach), render.GOAL)
    half, high = scene.pixels(26), scene.pixels(9)
    scene.box((x - half, high), (x + half, -high), render.FRAME)
    joints: list[Point] = [(x, 0.0)]
    for angle, length in zip(angles, lengths):
        foot = joints[-1]
        joints.append((foot[0] + length * math.sin(angle), foot[1] + length * math.cos(angle)))
    for i, link in enumerate(pairwise(joints)):
        scene.line(link, render.blend(render.FULL, render.CALM, i / 3), 8)
    for joint in joints:
        scene.disc(joint, 5.5, render.INK)
        scene.disc(joint, 2.5, PAPER)
    return scene.finished(shown)


def pendulum_scene(angle: float, length: float, torque: float, shown: Mapping[str, str]) -> np.ndarray:
    """A pendulum by its anticlockwise angle from upright, and the torque relative to its limit, as an arc."""
    scene = Scene(150, 0.62, 0.5)
    tip = (-length * math.sin(angle), length * math.cos(angle))
    for radius in (length, 1.0):
        scene.ring((0, 0), radius, render.GRID)
    scene.dashes((0, 0), (0, length), render.GOAL)
    scene.line([(0, 0), tip], render.FULL, 11)
    scene.disc(tip, 10, render.FULL)
    sweep = [math.pi / 2 + torque * math.pi * share for share in np.linspace(0, 1, 25)]
    radius = scene.pixels(22)
    arc = [(radius * math.cos(a), radius * math.sin(a)) for a in sweep]
    scene.line(arc, render.NOSE, 4)
    scene.disc(arc[-1], 5 if abs(torque) > 0.02 else 0, render.NOSE)
    scene.disc((0, 0), 8, render.INK)
    scene.disc((0, 0), 3, PAPER)
    return scene.finished(shown)


def maze_scene(
    place: Sequence[float],
    drift: Sequence[float],
    platform: Sequence[float],
    radius: float,
    shown: Mapping[str, str],
) -> np.ndarray:
    """The pool from above: the platform, the swimmer, and its velocity."""
    scene = Scene(162, 0.6, 0.5)
    for share in np.linspace(1, 0, 40):
        scene.disc((0, 0), scene.unit * (0.35 + 0.65 * share), render.blend(WATER, DEEP, share))
    scene.ring((0, 0), 1, render.FRAME, 4)
    scene.disc(_pair(platform), scene.unit * radius, (*render.GOAL, 120))
    scene.ring(_pair(platform), radius, render.GOAL, 2)
    x, y = _pair(place)
    ahead = (x + 3 * drift[0], y + 3 * drift[1])
    scene.line([(x, y), ahead], render.NOSE, 4)
    scene.disc((x, y), 9, render.INK)
    scene.disc((x, y), 6.5, render.NOSE)
    return scene.finished(shown)


def car_scene(x: float, side: float, priest: float, hearing: float, shown: Mapping[str, str]) -> np.ndarray:
    """A road between heaven and hell, with the priest, the range where he is heard, and the car."""
    scene = Scene(180, 0.5, 0.62)
    scene.box((-1.4, 0), (1.4, -0.12), render.FRAME)
    for dash in np.linspace(-1.25, 1.25, 21):
        scene.line([(dash - 0.03, -0.06), (dash + 0.03, -0.06)], PAPER, 2)
    scene.box((priest - hearing, 0.5), (priest + hearing, 0), (*render.GOAL, 60))
    for where, name, colour in ((side, "heaven", GOLD), (-side, "hell", render.FAILED)):
        scene.line([(where, 0), (where, 0.62)], colour, 4)
        scene.box((where, 0.62), (where + 0.22 * math.copysign(1, where), 0.5), colour)
        scene.text((where, 0.68), name, colour)
    scene.line([(priest, 0), (priest, 0.2)], render.GOAL, 12)
    scene.disc((priest, 0.26), 8, render.GOAL)
    scene.text((priest, 0.36), "priest", render.GOAL)
    scene.box((x - 0.12, 0.11), (x + 0.12, 0.03), render.FULL)
    scene.box((x - 0.07, 0.18), (x + 0.06, 0.08), render.CALM)
    for wheel in (x - 0.07, x + 0.07):
        scene.disc((wheel, 0.03), 6, render.INK)
        scene.disc((wheel, 0.03), 2, PAPER)
    return scene.finished(shown)


def t_maze_scene(place: int, length: int, cue: int, lit: bool, shown: Mapping[str, str]) -> np.ndarray:
    """The corridor and its two arms, the cue, highlighted while it is shown, and the agent."""
    scene = Scene(min(0.88 * render.WIDTH / (length + 1), 60), 0.5, 0.6)
    left, end, arm = -length / 2, length / 2, scene.pixels(70)
    half = max(0.5, scene.pixels(9))
    scene.box((left - half, half), (end + half, -half), PAPER)
    scene.box((end - half, arm), (end + half, -arm), PAPER)
    for cell in range(length + 1):
        scene.disc((left + cell, 0), 1.5, render.GRID)
    for way in (1, -1):
        right = way == cue
        scene.disc((end, way * (arm - half)), 7, render.GOAL if right else render.FAILED)
    arrow = render.NOSE if lit else render.GRID
    tip = (left, cue * scene.pixels(48))
    scene.line([(left, cue * scene.pixels(20)), tip], arrow, 5)
    for turn in (-8, 8):
        scene.line([tip, (left + scene.pixels(turn), cue * scene.pixels(38))], arrow, 5)
    scene.disc((left + place, 0), 8, render.INK)
    scene.disc((left + place, 0), 5.5, render.FULL)
    return scene.finished(shown)


def grid_scene(
    image: np.ndarray, trail: Sequence[tuple[int, int]], place: int, shown: Mapping[str, str]
) -> np.ndarray:
    """A maze as its pixels [rows, columns, 3], a dot in each cell visited, and a ring around the agent's."""
    rows, columns = image.shape[:2]
    scene = Scene(min(0.94 * render.HEIGHT / rows, 0.62 * render.WIDTH / columns), 0.64, 0.5)
    left, top = -columns / 2, rows / 2
    for row in range(rows):
        for column in range(columns):
            scene.tile((left + column, top - row), image[row, column].tolist())
    for row, column in trail:
        scene.disc((left + column + 0.5, top - row - 0.5), 0.12 * scene.unit, GOLD)
    row, column = divmod(place, columns)
    scene.disc((left + column + 0.5, top - row - 0.5), 0.5 * scene.unit, PAPER)
    scene.disc((left + column + 0.5, top - row - 0.5), 0.38 * scene.unit, render.NOSE)
    return scene.finished(shown)


def sea_scene(row: int, column: int, size: int, shown: Mapping[str, str]) -> np.ndarray:
    """The sea, deeper and darker row by row, its treasure in the lower right, and the diver."""
    scene = Scene(min(0.9 * render.HEIGHT, 0.62 * render.WIDTH) / (size + 1), 0.64, 0.5)
    left, top = -size / 2, (size + 1) / 2
    for i in range(size):
        colour = render.blend(WATER, DEEP, i / (size - 1))
        for j in range(size):
            # Only cells on and below the diagonal can be reached.
            scene.tile((left + j, top - i), colour if j <= i else render.blend(colour, PAPER, 0.6), 0.04)
    scene.tile((left + size - 1, top - size + 1), GOLD, 0.12)
    scene.disc((left + column + 0.5, top - row - 0.5), 0.36 * scene.unit, render.INK)
    scene.disc((left + column + 0.5, top - row - 0.5), 0.27 * scene.unit, render.NOSE)
    return scene.finished(shown)


def hill_scene(x: float, goal: float, left: float, right: float, shown: Mapping[str, str]) -> np.ndarray:
    """The two hills of the mountain car, the flag at the goal, and the car."""
    scene = Scene(0.84 * render.WIDTH / (right - left), 0.5 - 0.42 * (left + right) / (right - left), 0.72)

    def ground(at: float) -> Point:
        return at, 0.3 * math.sin(3 * at) + 0.25

    slope = [ground(float(at)) for at in np.linspace(left, right, 80)]
    scene.pen.polygon([scene.at(p) for p in (*slope, (right, -0.35), (left, -0.35))], fill=render.FAINT)
    scene.line(slope, render.FRAME, 4)
    foot = ground(goal)
    top = (foot[0], foot[1] + 0.22)
    scene.line([foot, top], render.INK, 3)
    scene.pen.polygon(
        [scene.at(p) for p in (top, (top[0] + 0.1, top[1] - 0.04), (top[0], top[1] - 0.08))], fill=GOLD
    )
    angle = math.atan(0.9 * math.cos(3 * x))
    along, up = (math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))

    def part(forward: float, above: float) -> Point:
        base = ground(x)
        return base[0] + forward * along[0] + above * up[0], base[1] + forward * along[1] + above * up[1]

    scene.line([part(-0.05, 0.055), part(0.05, 0.055)], render.FULL, 14)
    for wheel in (-0.045, 0.045):
        scene.disc(part(wheel, 0.025), 6, render.INK)
        scene.disc(part(wheel, 0.025), 2, PAPER)
    return scene.finished(shown)


def field_scene(
    place: Sequence[float],
    target: Sequence[float],
    radius: float,
    arrows: Sequence[Point],
    shown: Mapping[str, str],
) -> np.ndarray:
    """A square field of half side 1 from above: the target, the agent, and arrows from it: motion, then direction."""
    scene = Scene(150, 0.62, 0.5)
    scene.box((-1, 1), (1, -1), PAPER)
    for line in np.linspace(-1, 1, 9):
        scene.line([(line, -1), (line, 1)], render.SKY_LOW, 1)
        scene.line([(-1, line), (1, line)], render.SKY_LOW, 1)
    scene.disc(_pair(target), scene.unit * radius, (*render.GOAL, 110))
    scene.ring(_pair(target), radius, render.GOAL, 2)
    x, y = _pair(place)
    for (across, up), colour in zip(arrows, (render.CALM, render.NOSE)):
        scene.line([(x, y), (x + across, y + up)], colour, 5)
    scene.disc((x, y), 8, render.INK)
    scene.disc((x, y), 5.5, render.FULL)
    return scene.finished(shown)


def table_scene(
    place: Sequence[float],
    puck: Sequence[float] | None,
    goal: Sequence[float],
    radii: tuple[float, float],
    shown: Mapping[str, str],
) -> np.ndarray:
    """A square table of half side 1 from above: the goal, the puck, if there is one, and the point."""
    scene = Scene(150, 0.62, 0.5)
    scene.box((-1, 1), (1, -1), PAPER)
    scene.disc(_pair(goal), scene.unit * radii[1], (*render.GOAL, 110))
    scene.ring(_pair(goal), radii[1], render.GOAL, 2)
    if puck is not None:
        scene.disc(_pair(puck), scene.unit * radii[0], (*GOLD, 200))
        scene.ring(_pair(puck), radii[0], render.INK, 1)
    scene.disc(_pair(place), 8, render.INK)
    scene.disc(_pair(place), 5.5, render.FULL)
    return scene.finished(shown)


def bits_scene(bits: Sequence[float], goal: Sequence[float], shown: Mapping[str, str]) -> np.ndarray:
    """The bits above those of the goal, dark where they are 1; a ring marks those that are wrong."""
    scene = Scene(min(0.9 * render.WIDTH / len(bits), 70), 0.5, 0.58)
    for i, (bit, wanted) in enumerate(zip(bits, goal)):
        x = i - (len(bits) - 1) / 2
        scene.box((x - 0.42, 1.1), (x + 0.42, 0.26), render.CALM if bit else PAPER)
        scene.box((x - 0.42, -0.26), (x + 0.42, -1.1), render.GOAL if wanted else PAPER)
        if bit != wanted:
            scene.ring((x, 0.68), 0.3, render.FAILED, 2)
    scene.text((0, 1.5), "bits", render.INK)
    scene.text((0, -1.5), "goal", render.INK)
    return scene.finished(shown)


def platform_scene(
    player: Point,
    enemies: Sequence[float],
    platforms: Sequence[tuple[float, float]],
    height: float,
    size: Point,
    shown: Mapping[str, str],
) -> np.ndarray:
    """Platforms by their left ends and widths from the side, the two enemies, the player, and a flag at the end."""
    end = sum(platforms[-1])
    scene = Scene(0.92 * render.WIDTH / end, 0.04, 0.78)
    for left, width in platforms:
        scene.box((left, height), (left + width, 0), render.FRAME)
        scene.box((left, height), (left + width, height - 8), render.GOAL)
    scene.line([(end, height), (end, height + 90)], render.INK, 3)
    scene.pen.polygon(
        [scene.at(p) for p in ((end, height + 90), (end - 45, height + 75), (end, height + 60))], fill=GOLD
    )
    wide, tall = size
    for x in enemies:
        scene.box((x, height + tall), (x + wide, height), render.FAILED)
    x, y = player
    scene.box((x, y + tall), (x + wide, y), render.FULL)
    scene.disc((x + 0.7 * wide, y + 0.7 * tall), 1.5, PAPER)
    return scene.finished(shown)


def pitch_scene(
    player: Point,
    keeper: Point,
    ball: Point,
    facing: Sequence[float],
    size: tuple[float, float, float],
    reach: float,
    shown: Mapping[str, str],
) -> np.ndarray:
    """Half a pitch (length, width, width of the goal) from above; player and keeper with their directions."""
    length, width, goal = size
    scene = Scene(0.86 * render.HEIGHT / width, 0.36, 0.5)
    scene.box((0, width / 2), (length, -width / 2), GRASS)
    for side in (-1, 1):
        scene.line([(0, side * width / 2), (length, side * width / 2)], PAPER, 2)
    scene.line([(length, -width / 2), (length, width / 2)], PAPER, 2)
    scene.box((length, goal / 2), (length + 2.44, -goal / 2), (*PAPER, 150))
    scene.line([(length, -goal / 2), (length, goal / 2)], GOLD, 3)
    scene.disc(keeper, scene.unit * reach, (*render.FAILED, 60))
    for at, angle, colour in zip((player, keeper), facing, (render.FULL, render.FAILED)):
        scene.disc(at, 0.9 * scene.unit, colour)
        scene.line([at, (at[0] + 1.2 * math.cos(angle), at[1] + 1.2 * math.sin(angle))], render.INK, 2)
    scene.disc(ball, 0.5 * scene.unit, render.INK)
    scene.disc(ball, 0.4 * scene.unit, PAPER)
    return scene.finished(shown)


def symbol_scene(symbols: Sequence[int], shown: Mapping[str, str]) -> np.ndarray:
    """Tiles from the symbol to repeat, with a ring, to the one shown now, large; -1 is an empty tile."""
    scene = Scene(min(0.8 * render.WIDTH / len(symbols), 70), 0.5, 0.58)
    for i, symbol in enumerate(symbols):
        x, last = i - (len(symbols) - 1) / 2, i == len(symbols) - 1
        half = 0.45 if last else 0.3
        colour = SYMBOLS[symbol % len(SYMBOLS)] if symbol >= 0 else render.GRID
        scene.box((x - half, half), (x + half, -half), colour)
        if symbol >= 0:
            scene.text((x, -0.7), str(symbol), render.INK)
        if i == 0:
            scene.ring((x, 0), 0.49, render.INK, 2)
            scene.text((x, 0.75), "asked", render.INK)
        if last:
            scene.text((x, 0.75), "shown", render.INK)
    return scene.finished(shown)


def recall_scene(
    symbol: int | None, kept: Sequence[int], asked: int | None, depth: int, shown: Mapping[str, str]
) -> np.ndarray:
    """The symbol shown, large, or a question mark; below it what is kept, with a ring around what is asked for."""
    scene = Scene(min(0.8 * render.WIDTH / depth, 70), 0.5, 0.5)
    colour = render.GRID if symbol is None else SYMBOLS[symbol % len(SYMBOLS)]
    scene.box((-0.6, 1.5), (0.6, 0.3), colour)
    words = "?" if asked is not None else "" if symbol is None else str(symbol)
    scene.text((0, 1.75), f"shown {words}".strip(), render.INK)
    for place in range(depth):
        x = place - (depth - 1) / 2
        scene.box((x - 0.35, -0.65), (x + 0.35, -1.35), PAPER)
        if place < len(kept):
            scene.box((x - 0.3, -0.7), (x + 0.3, -1.3), SYMBOLS[kept[place] % len(SYMBOLS)])
            scene.text((x, -1.55), str(kept[place]), render.INK)
        if place == asked:
            scene.ring((x, -1), 0.5, render.INK, 3)
    scene.text((0, -0.4), "kept, oldest first", render.INK)
    return scene.finished(shown)


def bumps_scene(
    place: float,
    angle: float,
    bumps: Sequence[float],
    put: Sequence[float],
    width: float,
    limit: float,
    finger: float,
    shown: Mapping[str, str],
) -> np.ndarray:
    """The line from the side: both bumps and their initial positions, the gripper, and its finger."""
    scene = Scene(0.45 * render.WIDTH / limit, 0.5, 0.72)
    scene.line([(-limit, 0), (limit, 0)], render.FRAME, 4)
    for end in (-limit, limit):
        scene.line([(end, 0), (end, scene.pixels(14))], render.FRAME, 4)
    for now, then, colour in zip(bumps, put, (render.FAILED, render.GOAL)):
        scene.dashes((then, 0), (then, width), colour)
        for share in np.linspace(0.5, 0.1, 9):
            scene.box((now - share * width, width * (1 - share)), (now + share * width, 0), colour)
    hand = (place, 1.3 * finger)
    scene.line([hand, (place - finger * math.sin(angle), hand[1] - finger * math.cos(angle))], render.NOSE, 6)
    scene.box((place - 0.025, hand[1] + 0.05), (place + 0.025, hand[1]), render.FULL)
    scene.disc(hand, 5, render.INK)
    return scene.finished(shown)


class Scene:
    """A drawing in the environment's units, `unit` pixels each, y upwards; widths and radii of marks are pixels."""

    def __init__(self, unit: float, left: float, top: float) -> None:
        """The origin is at these fractions of the frame's width and height."""
        self.unit = unit
        self.origin = (left * render.WIDTH, top * render.HEIGHT)
        self.image = _backdrop().copy()
        self.pen = ImageDraw.Draw(self.image, "RGBA")
        self.labels: list[tuple[Point, str, Colour]] = []

    def pixels(self, count: float) -> float:
        """A number of pixels in the environment's units."""
        return count / self.unit

    def at(self, point: Point) -> Point:
        """The pixel of a point on the enlarged drawing."""
        x, y = self.origin[0] + self.unit * point[0], self.origin[1] - self.unit * point[1]
        return render.SCALE * x, render.SCALE * y

    def line(self, points: Sequence[Point], colour: tuple[int, ...], width: float) -> None:
        wide = round(render.SCALE * width)
        self.pen.line([self.at(point) for point in points], fill=colour, width=wide, joint="curve")
        for end in (points[0], points[-1]):
            self.disc(end, width / 2, colour)

    def dashes(self, start: Point, end: Point, colour: Colour) -> None:
        first, last = np.array(self.at(start)), np.array(self.at(end))
        pieces = max(round(float(np.linalg.norm(last - first)) / (5 * render.SCALE)), 1)
        marks = [tuple(first + (last - first) * k / pieces) for k in range(pieces + 1)]
        for pair in list(pairwise(marks))[::2]:
            self.pen.line(pair, fill=(*colour, 130), width=2 * render.SCALE)

    def disc(self, point: Point, radius: float, colour: tuple[int, ...]) -> None:
        x, y = self.at(point)
        r = render.SCALE * radius
        self.pen.ellipse([x - r, y - r, x + r, y + r], fill=colour)

    def ring(self, point: Point, radius: float, colour: Colour, width: int = 1) -> None:
        x, y = self.at(point)
        r = render.SCALE * self.unit * radius
        self.pen.ellipse([x - r, y - r, x + r, y + r], outline=colour, width=render.SCALE * width)

    def box(self, upper_left: Point, lower_right: Point, colour: tuple[int, ...]) -> None:
        (a, b), (c, d) = self.at(upper_left), self.at(lower_right)
        self.pen.rounded_rectangle([min(a, c), b, max(a, c), d], 3 * render.SCALE, fill=colour)

    def tile(self, upper_left: Point, colour: Sequence[int], gap: float = 0.0) -> None:
        """A square with sides of 1, less a gap on each side."""
        x, y = upper_left
        (a, b), (c, d) = self.at((x + gap, y - gap)), self.at((x + 1 - gap, y - 1 + gap))
        self.pen.rectangle([a, b, c, d], fill=tuple(colour))

    def text(self, point: Point, words: str, colour: Colour) -> None:
        """Text centred on a point, written when the drawing has its final size."""
        x, y = self.at(point)
        self.labels.append(((x / render.SCALE, y / render.SCALE), words, colour))

    def finished(self, shown: Mapping[str, str]) -> np.ndarray:
        """The frame [360, 480, 3], with a panel of names and values."""
        image = self.image.resize((render.WIDTH, render.HEIGHT), Image.Resampling.LANCZOS)
        pen = ImageDraw.Draw(image, "RGBA")
        for point, words, colour in self.labels:
            pen.text(
                point, words, fill=render.blend(colour, render.INK, 0.45), font=render.font(), anchor="mm"
            )
        render.panel(pen, shown)
        return np.asarray(image)


def _pair(values: Sequence[float]) -> Point:
    return values[0], values[1]


@cache
def _backdrop() -> Image.Image:
    shade = np.linspace(0, 1, render.HEIGHT * render.SCALE)[:, None, None]
    rows = np.array(render.SKY_LOW) * (1 - shade) + np.array(render.GROUND_FAR) * shade
    size = (render.HEIGHT * render.SCALE, render.WIDTH * render.SCALE, 3)
    return Image.fromarray(np.broadcast_to(rows, size).astype(np.uint8))
