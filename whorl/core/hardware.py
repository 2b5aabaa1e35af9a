"""What this machine has: a GPU, processor cores, a compiler."""

import os
import shutil


def has_gpu() -> bool:
    """Whether torch can use a GPU here."""
    import torch

    return torch.cuda.is_available()


def cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_compiler() -> bool:
    """Whether there is a C++ compiler, which torch.compile needs."""
    return any(map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++")))
