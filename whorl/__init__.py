"""Whorl: deep reinforcement learning, every algorithm in one readable file, resumable bit for bit.

The public names below are loaded on first use, so that worker processes start without torch.
"""

import sys
from typing import TYPE_CHECKING, Any

from whorl.core.imports import imported
from whorl.core.version import __version__ as __version__

if TYPE_CHECKING:
    from whorl.algorithms.a2c import A2CConfig
    from whorl.algorithms.agent57 import Agent57Config
    from whorl.algorithms.bc import BCConfig
    from whorl.algorithms.c51 import C51Config
    from whorl.algorithms.crossq import CrossQConfig
    from whorl.algorithms.ddpg import DDPGConfig
    from whorl.algorithms.dqn import DQNConfig
    from whorl.algorithms.flash_sac import FlashSACConfig
    from whorl.algorithms.impala import IMPALAConfig
    from whorl.algorithms.iql import IQLConfig
    from whorl.algorithms.iqn import IQNConfig
    from whorl.algorithms.ngu import NGUConfig
    from whorl.algorithms.option_critic import OptionCriticConfig
    from whorl.algorithms.ppg import PPGConfig
    from whorl.algorithms.ppo import PPOConfig
    from whorl.algorithms.pqn import PQNConfig
    from whorl.algorithms.qr_dqn import QRDQNConfig
    from whorl.algorithms.reinforce import ReinforceConfig
    from whorl.algorithms.sac import SACConfig
    from whorl.algorithms.td3 import TD3Config
    from whorl.algorithms.tqc import TQCConfig
    from whorl.algorithms.trpo import TRPOConfig
    from whorl.api import (
        algorithms,
        check,
        evaluate,
        evolve,
        load,
        make,
        plot,
        record,
        register,
        restore,
        resume,
        train,
        video,
    )
    from whorl.core.process import configure_process
    from whorl.hub import pull, push
    from whorl.log.writers import Logger
    from whorl.population.config import EvolveConfig
    from whorl.run.callbacks import BestCheckpoint, Callback, Screenshots, StopAtReturn, WarmStart
    from whorl.settings.run import RunConfig

__all__ = [
    "A2CConfig",
    "Agent57Config",
    "BCConfig",
    "BestCheckpoint",
    "C51Config",
    "Callback",
    "CrossQConfig",
    "DDPGConfig",
    "DQNConfig",
    "EvolveConfig",
    "FlashSACConfig",
    "IMPALAConfig",
    "IQLConfig",
    "IQNConfig",
    "Logger",
    "NGUConfig",
    "OptionCriticConfig",
    "PPGConfig",
    "PPOConfig",
    "PQNConfig",
    "QRDQNConfig",
    "ReinforceConfig",
    "RunConfig",
    "SACConfig",
    "Screenshots",
    "StopAtReturn",
    "TD3Config",
    "TQCConfig",
    "TRPOConfig",
    "WarmStart",
    "algorithms",
    "check",
    "configure_process",
    "evaluate",
    "evolve",
    "load",
    "make",
    "plot",
    "pull",
    "push",
    "record",
    "register",
    "restore",
    "resume",
    "train",
    "video",
]

_MODULES = {
    "EvolveConfig": "whorl.population.config",
    "Logger": "whorl.log.writers",
    "RunConfig": "whorl.settings.run",
    "configure_process": "whorl.core.process",
    "pull": "whorl.hub",
    "push": "whorl.hub",
    **dict.fromkeys(
        ("BestCheckpoint", "Callback", "Screenshots", "StopAtReturn", "WarmStart"), "whorl.run.callbacks"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        text = f"module 'whorl' has no attribute {name!r}{_remedy(name)}"
        raise AttributeError(text, name=name, obj=sys.modules[__name__])
    return getattr(imported(_module_of(name)), name)


def _remedy(name: str) -> str:
    """The replacement for a name of Stable-Baselines3; empty for other names."""
    if name.startswith("_"):
        return ""
    from whorl.settings.elsewhere import instead_of

    found = instead_of(name)
    return f"; {found}" if found else ""


class _Explaining:
    """The last module finder: for `from whorl import PPO`, which looks for whorl.PPO, the error says what to write."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name.startswith("whorl.") and (remedy := _remedy(name.removeprefix("whorl."))):
            raise ImportError(f"whorl has no {name.removeprefix('whorl.')!r}{remedy}", name=name)


# Once, even where this module is imported again.
sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__module__", "") != __name__]
sys.meta_path.append(_Explaining)


def _module_of(name: str) -> str:
    """Where a public name is defined."""
    if name in _MODULES:
        return _MODULES[name]
    if not name.endswith("Config"):
        return "whorl.api"
    stem = name.removesuffix("Config").lower()
    files = {"qrdqn": "qr_dqn", "optioncritic": "option_critic", "flashsac": "flash_sac"}
    return f"whorl.algorithms.{files.get(stem, stem)}"


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
