"""Frames of the quadrotor, drawn with Pillow, and the colours, panel and helpers that `scenes` shares."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
Point = tuple[float, float]

WIDTH, HEIGHT, SCALE = 480, 360, 2
"""size of the frame, and the factor by which it is drawn larger for antialiasing"""
SKY_TOP, SKY_LOW, GROUND_FAR, GROUND_NEAR = (174, 205, 232), (236, 243, 248), (226, 232, 230), (188, 200, 196)
GRID, INK, FAINT, FRAME = (160, 174, 172), (38, 50, 56), (96, 112, 120), (55, 64, 72)
NOSE, GOAL, TRAIL, FAILED = (245, 124, 0), (46, 160, 90), (33, 118, 202), (214, 40, 40)
CALM, FULL = (128, 186, 232), (10, 62, 150)
FLOOR = 5.0
"""z of the ground; an episode terminates there"""
TRAIL_LENGTH = 100


class QuadrotorView:
    """Follows one environment: the vehicle, its goal and path, and a panel of numbers; the camera never turns."""

    def __init__(self, goal: Sequence[float], faults: Sequence[int]) -> None:
        self.goal = np.asarray(goal, dtype=np.float64)
        self.faults = tuple(faults)
        self.trail: deque[np.ndarray] = deque(maxlen=TRAIL_LENGTH)
        self.step = 0

    def draw(
        self,
        position: Sequence[float],
        angles: Sequence[float],
        thrust: Sequence[float],
        step: int,
        total: float,
    ) -> np.ndarray:
        """One RGB frame [360, 480, 3]; `thrust` is normalised, `step` counts from the episode's start."""
        at = np.asarray(position, dtype=np.float64)
        if step < self.step:
            self.trail.clear()
        if step != self.step or not self.trail:
            self.trail.append(at)
        self.step = step

        image = _backdrop().copy()
        pen = ImageDraw.Draw(image, "RGBA")
        camera = _Camera(self.goal, at)
        _ground(pen, camera, self.goal, at)
        self._goal(pen, camera)
        self._path(pen, camera)
        self._vehicle(pen, camera, at, rotation(*angles), thrust)
        image = image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
        self._panel(image, at, angles, thrust, total)
        return np.asarray(image)

    def _goal(self, pen: ImageDraw.ImageDraw, camera: "_Camera") -> None:
        x, y, size = camera.project(self.goal)
        for radius, alpha in ((0.22, 60), (0.13, 110), (0.05, 255)):
            disc(pen, x, y, radius * size, (*GOAL, alpha))
        for a, b in ((-0.36, -0.2), (0.2, 0.36)):
            pen.line([(x + a * size, y), (x + b * size, y)], fill=(*GOAL, 230), width=3)
            pen.line([(x, y + a * size), (x, y + b * size)], fill=(*GOAL, 230), width=3)

    def _path(self, pen: ImageDraw.ImageDraw, camera: "_Camera") -> None:
        points = [camera.project(point)[:2] for point in self.trail]
        for i, pair in enumerate(pairwise(points)):
            share = (i + 1 + TRAIL_LENGTH - len(points)) / TRAIL_LENGTH
            pen.line(pair, fill=(*TRAIL, round(200 * share)), width=2 + round(3 * share))

    def _vehicle(
        self,
        pen: ImageDraw.ImageDraw,
        camera: "_Camera",
        at: np.ndarray,
        turn: np.ndarray,
        thrust: Sequence[float],
    ) -> None:
        # Drawn at three times its true size, else it would be a dot.
        rotors = [at + turn @ (3 * arm) for arm in ARMS]
        centre = camera.project(at)
        nose = camera.project(at + turn @ np.array([0.36, 0.0, 0.0]))
        pieces = []
        for rotor, force, sound in zip(rotors, thrust, self.faults):
            pieces.append((camera.depth(rotor), rotor, force, sound))
        for _, rotor, force, sound in sorted(pieces, key=lambda piece: -piece[0]):
            x, y, size = camera.project(rotor)
            pen.line([centre[:2], (x, y)], fill=FRAME, width=max(3, round(0.05 * size)))
            colour = blend(CALM, FULL, force) if sound else FAILED
            rim = [camera.project(rotor + turn @ (0.22 * edge))[:2] for edge in CIRCLE]
            pen.polygon(rim, fill=(*colour, 150), outline=(*colour, 255), width=3)
            if sound and force > 0.005:
                blast = camera.project(rotor + turn @ np.array([0.0, 0.0, 0.9 * force]))
                pen.line([(x, y), blast[:2]], fill=(*colour, 170), width=max(3, round(0.045 * size)))
            if not sound:
                cross = 0.09 * size
                pen.line([(x - cross, y - cross), (x + cross, y + cross)], fill=FAILED, width=4)
                pen.line([(x - cross, y + cross), (x + cross, y - cross)], fill=FAILED, width=4)
            disc(pen, x, y, 0.035 * size, (*FRAME, 255))
        pen.line([centre[:2], nose[:2]], fill=NOSE, width=max(4, round(0.06 * centre[2])))
        disc(pen, nose[0], nose[1], 0.05 * nose[2], (*NOSE, 255))
        disc(pen, centre[0], centre[1], 0.09 * centre[2], (*FRAME, 255))

    def _panel(
        self,
        image: Image.Image,
        at: np.ndarray,
        angles: Sequence[float],
        thrust: Sequence[float],
        total: float,
    ) -> None:
        pen = ImageDraw.Draw(image, "RGBA")
        roll, pitch, yaw = (math.degrees(math.remainder(angle, 2 * math.pi)) for angle in angles)
        error = float(np.linalg.norm(self.goal - at))
        shown = {
            "time": f"{self.step * 0.01:.2f} s",
            "return": f"{total:.1f}",
            "error": f"{error:.2f} m",
            "roll": f"{roll:+.0f}°",
            "pitch": f"{pitch:+.0f}°",
            "yaw": f"{yaw:+.0f}°",
        }
        panel(pen, shown)
        pen.rounded_rectangle([WIDTH - 92, 8, WIDTH - 8, 84], 6, fill=(255, 255, 255, 185))
        for i, (force, sound) in enumerate(zip(thrust, self.faults)):
            left = WIDTH - 84 + 19 * i
            pen.rectangle([left, 14, left + 11, 64], fill=(*GRID, 90))
            colour = blend(CALM, FULL, force) if sound else FAILED
            pen.rectangle([left, 64 - (50 * force if sound else 0), left + 11, 64], fill=colour)
            pen.text((left + 6, 67), str(i + 1), fill=INK if sound else FAILED, font=font(), anchor="ma")


def rotation(roll: float, pitch: float, yaw: float) -> np.ndarray:
    """Body to world, by yaw, then pitch, then roll."""
    (sr, sp, sy), (cr, cp, cy) = np.sin([roll, pitch, yaw]), np.cos([roll, pitch, yaw])
    return np.array(
        [
            [cp * cy, sr * sp * cy - cr * sy, cr * sp * cy + sr * sy],
            [cp * sy, sr * sp * sy + cr * cy, cr * sp * sy - sr * cy],
            [-sp, sr * cp, cr * cp],
        ]
    )


# Rotor 1 lifting turns the vehicle towards -roll and so sits at +y; 3 lifting raises the nose and so sits at +x.
ARMS = 0.14 * np.array([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
CIRCLE = [np.array([math.cos(a), math.sin(a), 0.0]) for a in np.linspace(0, 2 * math.pi, 24, endpoint=False)]

FORWARD = np.array([0.86, 0.36, 0.36]) / np.linalg.norm([0.86, 0.36, 0.36])
RIGHT = np.cross([0.0, 0.0, 1.0], FORWARD) / np.linalg.norm(np.cross([0.0, 0.0, 1.0], FORWARD))
DOWN = np.cross(FORWARD, RIGHT)
"""the camera's axes in world coordinates, where z points down; they are constant, and so is the horizon"""
FOCAL = 1.15 * HEIGHT * SCALE
HORIZON = round((HEIGHT / 2) * SCALE - FOCAL * FORWARD[2] / math.hypot(FORWARD[0], FORWARD[1]))


class _Camera:
    """Looks at the middle between goal and vehicle, from a distance that grows with theirs."""

    def __init__(self, goal: np.ndarray, at: np.ndarray) -> None:
        middle = 0.5 * (goal + at)
        self.eye = middle - (3.6 + 0.9 * float(np.linalg.norm(at - goal))) * FORWARD

    def depth(self, point: np.ndarray) -> float:
        return float((point - self.eye) @ FORWARD)

    def project(self, point: np.ndarray) -> tuple[float, float, float]:
        """Pixel column and row of a point, and pixels per metre there."""
        size = FOCAL / max(self.depth(point), 0.1)
        x = WIDTH * SCALE / 2 + size * float((point - self.eye) @ RIGHT)
        y = HEIGHT * SCALE / 2 + size * float((point - self.eye) @ DOWN)
        return x, y, size


def _ground(pen: ImageDraw.ImageDraw, camera: _Camera, goal: np.ndarray, at: np.ndarray) -> None:
    """A metre grid on the floor, and the shadows of vehicle and goal, which show their depth."""
    reach = 10
    for i in range(-reach, reach + 1):
        for a, b in (((i, -reach), (i, reach)), ((-reach, i), (reach, i))):
            ends = _clip(camera, np.array([*a, FLOOR]), np.array([*b, FLOOR]))
            if ends is not None:
                pen.line(
                    [camera.project(end)[:2] for end in ends],
                    fill=(*GRID, 200 if i % 5 == 0 else 90),
                    width=2,
                )
    for point, colour, radius in ((goal, GOAL, 0.22), (at, INK, 0.32)):
        foot = np.array([point[0], point[1], FLOOR])
        rim = [camera.project(foot + radius * edge)[:2] for edge in CIRCLE]
        pen.polygon(rim, fill=(*colour, 70))
        top, bottom = camera.project(point), camera.project(foot)
        for k in range(0, 20, 2):
            piece = [
                (top[0] + (bottom[0] - top[0]) * s / 20, top[1] + (bottom[1] - top[1]) * s / 20)
                for s in (k, k + 1)
            ]
            pen.line(piece, fill=(*colour, 90), width=2)


def _clip(camera: _Camera, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The part of a segment in front of the camera."""
    near, da, db = 0.3, camera.depth(a), camera.depth(b)
    if da < near and db < near:
        return None
    if da < near:
        a = a + (b - a) * (near - da) / (db - da)
    elif db < near:
        b = b + (a - b) * (near - db) / (da - db)
    return a, b


def panel(pen: ImageDraw.ImageDraw, shown: Mapping[str, str]) -> None:
    """Names and values in the upper left corner of a frame at its final size."""
    pen.rounded_rectangle([8, 8, 150, 16 + 14 * len(shown)], 6, fill=(255, 255, 255, 185))
    for i, (name, value) in enumerate(shown.items()):
        pen.text((16, 12 + 14 * i), name, fill=FAINT, font=font())
        pen.text((142, 12 + 14 * i), value, fill=INK, font=font(), anchor="ra")


def disc(
    pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, colour: tuple[int, int, int, int]
) -> None:
    pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour)


def blend(low: Colour, high: Colour, share: float) -> Colour:
    r, g, b = (round(a + (z - a) * min(max(share, 0.0), 1.0)) for a, z in zip(low, high))
    return r, g, b


@cache
def _backdrop() -> Image.Image:
    """Sky and ground."""
    rows = np.empty((HEIGHT * SCALE, 1, 3))
    sky = np.linspace(0, 1, HORIZON)[:, None, None]
    ground = np.linspace(0, 1, HEIGHT * SCALE - HORIZON)[:, None, None]
    rows[:HORIZON] = np.array(SKY_TOP) * (1 - sky) + np.array(SKY_LOW) * sky
    rows[HORIZON:] = np.array(GROUND_FAR) * (1 - ground) + np.array(GROUND_NEAR) * ground
    return Image.fromarray(np.broadcast_to(rows, (HEIGHT * SCALE, WIDTH * SCALE, 3)).astype(np.uint8))


@cache
def font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(11)
