"""Episodes as GIF or MP4 files."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from whorl.core.errors import WhorlError, missing_extra
from whorl.core.files import reason

Frame: TypeAlias = NDArray[np.uint8]
"""[H, W, 3]"""


def save_video(frames: Sequence[Frame], path: Path, fps: float) -> None:
    """Write frames as .gif or .mp4, by the suffix of `path`."""
    savers = {".gif": save_gif, ".mp4": _save_mp4}
    if path.suffix.lower() not in savers:
        raise WhorlError(f"can't write video as {path.suffix or path.name!r}; end the name in .gif or .mp4")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        savers[path.suffix.lower()](frames, path, fps)
    except OSError as error:
        raise WhorlError(f"{path} can't be written: {reason(error)}") from None


def save_gif(frames: Sequence[Frame], path: Path, fps: float) -> None:
    """Write a looping GIF that plays at the right speed."""
    _check(frames, fps)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Browsers show frames shorter than 20 ms for 100 ms, so frames of faster episodes are dropped instead.
    stride = ceil(fps / 50)
    # GIF counts in hundredths of a second: round the times, not the durations, so that errors do not add up.
    moments = [round(i * 100 / fps) for i in (*range(0, len(frames), stride), len(frames))]
    durations = [10 * (after - before) for before, after in pairwise(moments)]
    # One palette and no dithering: pixels that do not change stay identical and cost no bytes.
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
        palette=bytes(palette.getpalette() or []),  # once per file; otherwise every frame repeats it
    )


def _save_mp4(frames: Sequence[Frame], path: Path, fps: float) -> None:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise missing_extra("imageio-ffmpeg", "video") from None
    _check(frames, fps)
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
    """The 255 best colours for a sample of the frames; GIF needs one more for unchanged pixels."""
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
