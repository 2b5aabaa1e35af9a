"""What one array of an observation looks like. Imports no torch, because worker processes start without it."""

from dataclasses import dataclass, replace
from math import prod

MASK_KEY = "action_mask"
"""key of the action mask in observation dicts: true where a discrete action is allowed"""
SUCCESS = "success_rate"
"""the measure of an episode that is read from `SUCCESS_KEYS`, its mean over episodes the metric of that name"""
SUCCESS_KEYS = ("is_success", "success")
"""keys of the last `info` of an episode that say whether it reached its goal, where an environment tells"""


@dataclass(frozen=True)
class Array:
    """One observation leaf of one environment."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = float("-inf")
    high: float = float("inf")
    stack: int = 1
    """number of consecutive frames in `shape`, oldest first; the environment returns one at a time"""
    axis: int = 0
    """axis of `shape` along which frames are stacked"""
    start: int | None = None
    """for a discrete observation, which is stored as one-hot: the environment's smallest value"""
    nvec: tuple[int, ...] = ()
    """for a multi-discrete observation, which is stored as one-hots end to end: the number of choices of each entry"""
    starts: tuple[int, ...] = ()
    """with `nvec`: the environment's smallest value of each entry"""
    entries: tuple[int, ...] = ()
    """with `nvec`: the shape in which the environment returns the entries"""
    binary: bool = False
    """whether every number is 0 or 1 (one-hots, MultiBinary); such observations are never normalised"""
    plane: bool = False
    """whether the environment returns [H, W], without the channel axis that `shape` has"""
    lows: tuple[float, ...] = ()
    """the lowest value of each number of a vector (of one frame), where they differ; empty: `low` for all"""
    highs: tuple[float, ...] = ()
    """the highest value of each, as `lows`"""

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def frame(self) -> "Array":
        """One frame of the stack, which is all that replay stores of it."""
        width = self.shape[self.axis] // self.stack
        shape = tuple(width if number == self.axis else n for number, n in enumerate(self.shape))
        return replace(self, shape=shape, stack=1)


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether an image of shape [a, b, c] is [C, H, W] rather than [H, W, C].

    Two equal neighbouring axes are height and width of a square image; otherwise the shorter end is the channel axis.
    Ambiguous shapes such as [10, 10, 10] are [H, W, C].
    """
    start, middle, end = shape
    if (start == middle) != (middle == end):
        return middle == end
    return start < end
