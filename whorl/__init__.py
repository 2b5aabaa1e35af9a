"""Whorl: deep reinforcement learning, every algorithm in one readable file, resumable bit for bit.

The public names below are loaded on first use, so that worker processes start without torch.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from whorl.api import algorithms, check, evaluate, load, make, register, restore, resume, train
    from whorl.core.process import configure_process
    from whorl.log.writers import Logger
    from whorl.run.callbacks import BestCheckpoint, Callback, Screenshots, StopAtReturn, WarmStart

_MODULES = {
    "configure_process": "whorl.core.process",
    "Logger": "whorl.log.writers",
    **dict.fromkeys(
        ("BestCheckpoint", "Callback", "Screenshots", "StopAtReturn", "WarmStart"), "whorl.run.callbacks"
    ),
}
__all__ = [
    "BestCheckpoint",
    "Callback",
    "Logger",
    "Screenshots",
    "StopAtReturn",
    "WarmStart",
    "algorithms",
    "check",
    "configure_process",
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

    return getattr(import_module(_MODULES.get(name, "whorl.api")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
