"""What this machine has: a GPU, processor cores, a display, a compiler."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_as_on_gpu = False


def has_gpu() -> bool:
    """Whether torch can use a GPU here."""
    import torch

    return torch.cuda.is_available()


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Inside this context, code that has a way of its own for a CPU takes that of a GPU on any device; for tests."""
    global _as_on_gpu
    _as_on_gpu = True
    try:
        yield
    finally:
        _as_on_gpu = False


def acts_as_on_gpu() -> bool:
    """Whether `as_on_gpu` applies."""
    return _as_on_gpu


def cores() -> int:
    """Processor cores that this process may use."""
    return len(usable_cores())


def usable_cores() -> list[int]:
    """The cores that this process may use."""
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return sorted(affinity)


def shares(cores: Sequence[int], count: int) -> list[list[int]]:
    """The cores of each of `count` processes: disjoint, or one that others use too where there are too few."""
    if count >= len(cores):
        return [[cores[i % len(cores)]] for i in range(count)]
    return [list(cores[i * len(cores) // count : (i + 1) * len(cores) // count]) for i in range(count)]


def has_display() -> bool:
    """Whether a window can be opened."""
    if os.environ.get("SDL_VIDEODRIVER") in ("dummy", "offscreen"):
        return False
    if not sys.platform.startswith("linux"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def is_amd() -> bool:
    """Whether the processor is AMD's."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        text = platform.processor()
    return "AuthenticAMD" in text


def has_compiler() -> bool:
    """Whether there is a C++ compiler, which torch.compile needs."""
    return any(map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++")))
