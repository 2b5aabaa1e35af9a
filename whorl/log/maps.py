"""Maps of a run: saved in its folder, and drawn as heat maps for TensorBoard."""

import io
from pathlib import Path

import numpy as np

from whorl.core import files
from whorl.core.errors import WhorlError

FILE = "map.npz"
SIDE = 320
"""pixels of the longer side of a picture, at most"""
COLOURS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], np.float64)
"""from the smallest to the largest value"""
UNKNOWN = (200, 200, 200)
"""colour of cells without a value"""


def save_maps(folder: Path, maps: dict[str, np.ndarray]) -> None:
    """Write maps [rows, columns] by name into a run folder."""
    data = io.BytesIO()
    np.savez_compressed(data, **maps)  # type: ignore[arg-type]  # numpy's stubs take the names for options
    files.write_atomic(folder / FILE, data.getvalue())


def read_maps(folder: Path) -> dict[str, np.ndarray]:
    """The maps of a run by name."""
    path = folder / FILE
    if not path.is_file():
        raise WhorlError(
            f"{folder} has no map; maps are saved with checkpoints, of worlds on a grid and games with rooms"
        )
    with np.load(path) as found:
        return dict(found)


def shades(name: str, values: np.ndarray) -> np.ndarray:
    """What is drawn of a map: visits as log10(1 + n), nan where there were none; other values as they are."""
    if name != "visits":
        return values
    return np.where(values > 0, np.log10(1.0 + values), np.nan)


def heat_map(values: np.ndarray) -> np.ndarray:
    """A picture [height, width, 3] uint8 of values [rows, columns], several pixels for each; nan is grey."""
    known = np.isfinite(values)
    low, high = (values[known].min(), values[known].max()) if known.any() else (0.0, 0.0)
    place = np.where(known, (values - low) / (high - low if high > low else 1.0), 0.0) * (len(COLOURS) - 1)
    below = np.minimum(place.astype(np.int64), len(COLOURS) - 2)
    share = (place - below)[..., None]
    colour = COLOURS[below] * (1 - share) + COLOURS[below + 1] * share
    pixels = np.where(known[..., None], colour, UNKNOWN).round().astype(np.uint8)
    side = max(1, SIDE // max(values.shape))
    return pixels.repeat(side, 0).repeat(side, 1)
