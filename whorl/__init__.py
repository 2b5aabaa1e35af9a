"""Whorl: deep reinforcement learning, every algorithm in one readable file, resumable bit for bit.

The public names below are loaded on first use, so that worker processes start without torch.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from whorl.api import algorithms, check, evaluate, load, make, register, restore, resume, train
    from whorl.run.callbacks import BestCheckpoint, Callback, Screenshots, StopAtReturn, WarmStart

_CALLBACKS = ("BestCheckpoint", "Callback", "Screenshots", "StopAtReturn", "WarmStart")
__all__ = [
    "BestCheckpoint",
    "Callback",
    "Screenshots",
    "StopAtReturn",
    "WarmStart",
    "algorithms",
    "check",
    "evaluate",
    "load",
    "make",
    "register",
    "restore",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'whorl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("whorl.run.callbacks" if name in _CALLBACKS else "whorl.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
