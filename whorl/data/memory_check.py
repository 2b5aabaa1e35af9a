"""Checks that the replay buffer fits into memory, before it is allocated."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from whorl.core.errors import ConfigError


def require_memory(size: int, device: torch.device, buffer_size: int) -> None:
    """Raise if a replay buffer of `size` bytes exceeds the free memory of `device`."""
    free = free_on(device)
    if size > free:
        raise ConfigError(
            f"replay of {buffer_size:,} rows takes {size:,} bytes, but {free:,} are free on {device.type}; "
            f"use a buffer_size of at most {int(buffer_size * 0.9 * free / size):,}"
        )


@contextmanager
def allocating(size: int, device: torch.device, buffer_size: int) -> Iterator[None]:
    """Convert out-of-memory errors in this block to ConfigError: `require_memory` only estimates what is free."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "allocate" not in str(error):
            raise
        raise ConfigError(
            f"replay of {buffer_size:,} rows takes {size:,} bytes, more than {device.type} could allocate; "
            "use a smaller buffer_size"
        ) from error


def free_on(device: torch.device) -> int:
    """Free memory of a device in bytes."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


def free_memory(root: Path = Path("/")) -> int:
    """Free host memory in bytes, within the limits of the system and of the container."""
    return min([_of_machine(root), *_of_groups(root)])


def _of_machine(root: Path) -> int:
    available = _entry(root / "proc/meminfo", "MemAvailable:")
    if available is not None:
        return available * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 62  # unknown on this system


def _of_groups(root: Path) -> Iterator[int]:
    """Memory left below each limit of this process's control groups and their parents."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, used, cache = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, limit, used = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        # In a container the path may be the host's, of which only the top folder is visible.
        group = Path(path.lstrip("/"))
        for folder in (root / top / part for part in (group, *group.parents)):
            most, now = _number(folder / limit), _number(folder / used)
            if most is not None and now is not None:
                # Inactive pages of cached files count as used, but the kernel frees them on demand.
                yield max(0, most - now + (_entry(folder / "memory.stat", cache) or 0))


def _entry(path: Path, name: str) -> int | None:
    """The number after a word at the start of a line."""
    found = (line.split() for line in _text(path).splitlines() if line.startswith(name))
    return next((int(words[1]) for words in found if words[0] == name), None)


def _number(path: Path) -> int | None:
    """The number in a file; None if the file is missing or contains the word max."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
