"""Frames of an episode in a terminal: two pixels per character, in 24-bit colour."""

import shutil
import sys
from typing import TextIO

import numpy as np
from PIL import Image

from whorl.log.video import Frame

HOME, CLEAR, HIDE, SHOW, PLAIN = "\x1b[H", "\x1b[2J", "\x1b[?25l", "\x1b[?25h", "\x1b[0m"
HALF = "▀"
"""its upper half has the colour of the text, its lower half that of the background"""


def blocks(frame: Frame, columns: int, rows: int) -> str:
    """A frame as lines of half blocks, scaled to fit into this many characters with its proportions kept."""
    height, width = frame.shape[:2]
    scale = min(columns / width, 2 * rows / height)
    size = max(1, round(width * scale)), max(2, round(height * scale) // 2 * 2)
    # Nearest keeps the pixels of small worlds sharp; larger frames are averaged.
    method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    pixels = np.asarray(Image.fromarray(frame).resize(size, method))
    return "\n".join(_line(upper, lower) for upper, lower in zip(pixels[::2], pixels[1::2]))


def _line(upper: Frame, lower: Frame) -> str:
    """One line; colours are named only where they change."""
    parts, before = [], None
    for top, bottom in zip(upper.tolist(), lower.tolist()):
        if (top, bottom) != before:
            parts.append(f"\x1b[38;2;{top[0]};{top[1]};{top[2]};48;2;{bottom[0]};{bottom[1]};{bottom[2]}m")
            before = (top, bottom)
        parts.append(HALF)
    return "".join((*parts, PLAIN))


class Terminal:
    """A screen (see `whorl.log.live.Screen`) that draws each frame over the last one."""

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self.title, self.stream = title, stream or sys.stdout
        self._started = False

    def show(self, frame: Frame) -> bool:
        columns, rows = shutil.get_terminal_size((80, 24))
        start = HOME if self._started else HIDE + CLEAR + HOME
        self._started = True
        self._write(f"{start}{self.title}\x1b[K\n{blocks(frame, columns, rows - 2)}\n")
        return True

    def close(self) -> None:
        if self._started:
            self._started = False
            self._write(PLAIN + SHOW)

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
