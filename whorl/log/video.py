"""Episodes as files: GIF, MP4, or one PNG with frames side by side."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from whorl.core.errors import WhorlError, missing_extra

Frame: TypeAlias = NDArray[np.uint8]
"""[H, W, 3]"""


def save_video(frames: Sequence[Frame], path: Path, fps: float) -> None:
    """Write frames in the format that the ending of `path` names: .gif or .mp4."""
    savers = {".gif": save_gif, ".mp4": _save_mp4}
    if path.suffix.lower() not in savers:
        raise WhorlError(f"can't write video as {path.suffix or path.name!r}; end the name in .gif or .mp4")
    savers[path.suffix.lower()](frames, path, fps)


def save_gif(frames: Sequence[Frame], path: Path, fps: float) -> None:
    """Write a looping GIF that plays at the right speed."""
    _check(frames, fps)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Browsers slow frames shorter than 20 ms down to 100 ms, so a faster episode is thinned out instead.
    stride = ceil(fps / 50)
    # GIF counts in hundredths of a second: round the moments, not the durations, so that errors can't add up.
    moments = [round(i * 100 / fps) for i in (*range(0, len(frames), stride), len(frames))]
    durations = [10 * (after - before) for before, after in pairwise(moments)]
    # One palette for all and no dithering: still pixels stay identical, and only what moves costs bytes.
    frames = frames[::stride]
    palette = _palette(frames)
    images = [Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    images[0].save(
        path,
        save_all=True,
        append_images=images[1:],
        duration=durations,
        loop=0,
        optimize=True,
        palette=bytes(palette.getpalette() or []),  # said once for the file; otherwise every frame repeats it
    )


def save_sheet(
    frames: Sequence[Frame], path: Path, columns: int = 6, rows: int = 4, tile_width: int = 240
) -> None:
    """Write one PNG with up to `columns` × `rows` evenly spaced frames, numbered: an episode at a glance."""
    _check(frames)
    path.parent.mkdir(parents=True, exist_ok=True)
    chosen = np.unique(np.linspace(0, len(frames) - 1, min(columns * rows, len(frames))).round().astype(int))
    height, width = frames[0].shape[:2]
    size = (tile_width, max(1, round(height * tile_width / width)))
    # Small frames (Atari, grids) are pixel art: enlarge them without blur.
    filter = Image.Resampling.NEAREST if width < tile_width else Image.Resampling.LANCZOS
    gap = 4
    across, down = min(columns, len(chosen)), ceil(len(chosen) / columns)
    sheet = Image.new("RGB", (across * (size[0] + gap) + gap, down * (size[1] + gap) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for place, index in enumerate(chosen):
        corner = (gap + place % columns * (size[0] + gap), gap + place // columns * (size[1] + gap))
        sheet.paste(Image.fromarray(frames[index]).resize(size, filter), corner)
        label = (corner[0] + 5, corner[1] + 4)
        draw.text(label, str(index), fill="white", stroke_width=2, stroke_fill="black")
    sheet.save(path, optimize=True)


def _save_mp4(frames: Sequence[Frame], path: Path, fps: float) -> None:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise missing_extra("imageio-ffmpeg", "video") from None
    _check(frames, fps)
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = frames[0].shape[:2]
    # H.264 stores colour at half resolution, so odd sizes get one more row or column.
    padding = ((0, height % 2), (0, width % 2), (0, 0))
    size = (width + width % 2, height + height % 2)
    try:
        writer = imageio_ffmpeg.write_frames(str(path), size, fps=fps, macro_block_size=1, quality=7)
        writer.send(None)
        for frame in frames:
            writer.send(np.ascontiguousarray(np.pad(frame, padding, mode="edge")))
        writer.close()
    except (OSError, RuntimeError) as error:
        raise WhorlError(f"ffmpeg could not write {path} ({error}); save a .gif instead") from error


def _palette(frames: Sequence[Frame]) -> Image.Image:
    """The colours that serve a sample of the frames best: 255, as GIF spends one to say "unchanged"."""
    chosen = np.linspace(0, len(frames) - 1, min(12, len(frames))).round().astype(int)
    sample = np.concatenate([frames[index][::2, ::2] for index in chosen])
    return Image.fromarray(sample).quantize(255, method=Image.Quantize.MEDIANCUT)


def _check(frames: Sequence[Frame], fps: float = 1.0) -> None:
    if not len(frames):
        raise WhorlError(
            "there are no frames to write; does the environment render (render_mode='rgb_array')?"
        )
    if fps <= 0:
        raise WhorlError(f"fps {fps} must be above 0")
    first = frames[0]
    for index, frame in enumerate(frames):
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.shape != first.shape:
            raise WhorlError(
                f"frame {index} is {frame.dtype} {list(frame.shape)}, "
                f"but frames must be uint8 [H, W, 3] like the first, {list(first.shape)}"
            )
