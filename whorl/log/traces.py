"""Numbers of one episode over time, drawn beside its picture: position, attitude, actions, reward."""

from collections.abc import Mapping
from functools import cache
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from whorl.log.video import Frame

HEIGHT, WIDTH, SCALE = 360, 380, 2
"""size of the picture's height and of the panels, and the factor by which lines are drawn larger for antialiasing"""
COLOURS = ((33, 118, 202), (245, 124, 0), (46, 160, 90), (214, 40, 40), (126, 87, 194), (0, 151, 167))
PAPER, GRID, INK, FAINT = (250, 251, 252), (226, 231, 234), (38, 50, 56), (96, 112, 120)
MOST_LINES = len(COLOURS)
MOST_POINTS = 300
LEFT, TOP, BOTTOM, RIGHT = 44, 20, 8, 10
LEAST = 0.1
"""smallest range of an axis, so that noise around a constant does not fill a panel"""


class Traces:
    """The lines of one episode, in panels: `{"position": {"x": 0.1, "y": 2.0}, "action": {...}}` at each step."""

    def __init__(self) -> None:
        self.panels: dict[str, dict[str, list[float]]] = {}

    def clear(self) -> None:
        self.panels = {}

    def add(self, values: Mapping[str, Mapping[str, float]]) -> None:
        for panel, lines in values.items():
            for name, value in list(lines.items())[:MOST_LINES]:
                self.panels.setdefault(panel, {}).setdefault(name, []).append(value)

    def beside(self, picture: Frame) -> Frame:
        """The picture at a height of 360, and the panels at its right."""
        image = Image.fromarray(picture)
        if image.height != HEIGHT:
            method = Image.Resampling.NEAREST if image.height < HEIGHT else Image.Resampling.LANCZOS
            image = image.resize((max(1, round(image.width * HEIGHT / image.height)), HEIGHT), method)
        if not self.panels:
            return np.asarray(image)
        whole = Image.new("RGB", (image.width + WIDTH, HEIGHT), PAPER)
        whole.paste(image, (0, 0))
        high = HEIGHT // len(self.panels)
        for number, (name, lines) in enumerate(self.panels.items()):
            whole.paste(_panel(name, lines, high), (image.width, number * high))
        return np.asarray(whole)


def _panel(title: str, lines: Mapping[str, list[float]], high: int) -> Image.Image:
    """One set of axes with its lines; the newest values are in its legend."""
    image = Image.new("RGB", (WIDTH * SCALE, high * SCALE), PAPER)
    pen = ImageDraw.Draw(image)
    numbers = np.array([value for line in lines.values() for value in line], dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    low, top = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    middle, half = (low + top) / 2, max(top - low, LEAST) / 2
    low, top = middle - half, middle + half
    jump = 180.0 if title.endswith("degrees") else np.inf  # from 179° to -179° there is no line
    steps = max(max(map(len, lines.values())) - 1, 1)

    def at(step: int, value: float) -> tuple[float, float]:
        share = (value - low) / (top - low)
        across = LEFT + (WIDTH - LEFT - RIGHT) * step / steps
        return across * SCALE, (high - BOTTOM - (high - TOP - BOTTOM) * share) * SCALE

    for share in (0.0, 0.5, 1.0):
        value = low + share * (top - low)
        pen.line([at(0, value), at(steps, value)], fill=GRID, width=SCALE)
    for colour, line in zip(COLOURS, lines.values()):
        points = list(enumerate(line))
        shown = points[:: max(1, len(points) // MOST_POINTS)]  # an episode may have many thousand steps
        for (step, before), (after, value) in pairwise(
            shown if shown[-1] == points[-1] else [*shown, points[-1]]
        ):
            if np.isfinite(before) and np.isfinite(value) and abs(value - before) < jump:
                pen.line([at(step, before), at(after, value)], fill=colour, width=SCALE + 1)
    image = image.resize((WIDTH, high), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(image)
    font = _font()
    for value in (low, top):
        pen.text((LEFT - 4, at(0, value)[1] / SCALE), f"{value:.3g}", fill=FAINT, font=font, anchor="rm")
    pen.text((LEFT, 4), title, fill=INK, font=font)
    right = WIDTH - RIGHT
    for colour, (name, line) in reversed(list(zip(COLOURS, lines.items()))):
        text = f"{name} {line[-1]:+.3g}"
        pen.text((right, 4), text, fill=colour, font=font, anchor="ra")
        right -= round(pen.textlength(text, font=font)) + 8
    return image


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(10)
