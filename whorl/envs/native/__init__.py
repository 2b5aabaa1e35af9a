"""Native environments: batched tensor code, registered under the same id with `whorl.make` and `gymnasium.make`."""

from functools import partialmethod
from typing import Any

import gymnasium

from whorl.core.errors import EnvError
from whorl.envs.native.bit_flip import BitFlip
from whorl.envs.native.bump_top import BumpTop
from whorl.envs.native.bumps import Bumps
from whorl.envs.native.car import CarHeavenHell, CarHeavenHellTop, CarHeavenHellTopRelative
from whorl.envs.native.cart_pole import CartPoleContinuous
from whorl.envs.native.deep_sea import DeepSea
from whorl.envs.native.disco_maze import DiscoMaze
from whorl.envs.native.goal import Goal
from whorl.envs.native.mountain_car import SparseMountainCar
from whorl.envs.native.moving import Moving
from whorl.envs.native.noisy_tv import NoisyTVMaze
from whorl.envs.native.pendulum import Pendulum, PendulumVariableLength
from whorl.envs.native.platform import Platform
from whorl.envs.native.point_goal import PointGoal
from whorl.envs.native.point_mass import CatchPoint, HardMove
from whorl.envs.native.quad_pendulum import QuadInvPendulum
from whorl.envs.native.quadrotor import Quadrotor
from whorl.envs.native.recall import Recall
from whorl.envs.native.repeat import RepeatFirst, RepeatPrevious
from whorl.envs.native.sparse_swing_up import SparseCartPoleSwingUp
from whorl.envs.native.swing_up import CartPoleSwingUpVariableLength
from whorl.envs.native.t_maze import TMaze
from whorl.envs.native.teleport import AntReacherTop, UR5Top
from whorl.envs.native.water_maze import WaterMaze, WaterMazeSimple
from whorl.envs.native.world import World

WORLDS: dict[str, type[World]] = {}
"""the class of every registered native environment by id"""

TASKS: dict[str, tuple[type[World], dict[str, Any], str]] = {
    "Quadrotor": (Quadrotor, {}, "-"),
    "QuadInvPendulum": (QuadInvPendulum, {}, "-"),
    "CartPoleContinuous": (CartPoleContinuous, {}, "- P V PConcat5 VConcat10"),
    "CartPoleContinuousLong": (CartPoleContinuous, {"max_steps": 1000}, "- P V PConcat5 VConcat10"),
    "CartPoleSwingUpVariableLength": (CartPoleSwingUpVariableLength, {}, "- PVL PV PA PAConcat5"),
    "Pendulum": (Pendulum, {}, "Full P V VA PConcat5 VConcat10 VAConcat10"),
    "PendulumVariableLength": (PendulumVariableLength, {}, "- PVL PV PL PA PAConcat5"),
    "WaterMaze": (WaterMaze, {}, "- Hidden"),
    "WaterMazeDense": (WaterMaze, {"dense": True, "radius": 0.2}, "-"),
    "WaterMazeSimple": (WaterMazeSimple, {}, "- Hidden HiddenConcat10"),
    "CarHeavenHell": (CarHeavenHell, {}, "- Priest PriestConcat20"),
    "CarHeavenHellEpisodic": (CarHeavenHell, {"episodic": True}, "- Priest PriestConcat20"),
    "CarHeavenHellTop": (CarHeavenHellTop, {}, "- Priest"),
    "CarHeavenHellTopQuiet": (CarHeavenHellTop, {"hearing": 0.05}, "Priest"),
    "CarHeavenHellTopRelative": (CarHeavenHellTopRelative, {}, "- Priest"),
    "TMaze": (TMaze, {}, "-"),
    "TMazeLong": (TMaze, {"length": 50}, "-"),
    "DeepSea": (DeepSea, {}, "-"),
    "DeepSeaStochastic": (DeepSea, {"stochastic": True}, "-"),
    "DiscoMaze": (DiscoMaze, {}, "-"),
    "NoisyTVMaze": (NoisyTVMaze, {}, "-"),
    "SparseMountainCar": (SparseMountainCar, {}, "-"),
    "SparseMountainCarContinuous": (SparseMountainCar, {"continuous": True, "max_steps": 999}, "-"),
    "SparseCartPoleSwingUp": (SparseCartPoleSwingUp, {}, "-"),
    "RepeatPrevious": (RepeatPrevious, {}, "-"),
    "RepeatFirst": (RepeatFirst, {}, "-"),
    "Hallway": (Recall, {"items": 8, "depth": 1, "gaps": (3, 10)}, "-"),
    "Queue": (Recall, {}, "-"),
    "Stack": (Recall, {"order": "stack"}, "-"),
    "Bumps": (Bumps, {}, "-"),
    "BumpTop": (BumpTop, {}, "- Full"),
    "BoxTop": (BumpTop, {"widths": (10.0, 0.0), "margin": 5.0}, "- Full"),
    "BumpVelocity": (BumpTop, {"velocity": True, "max_steps": 200}, "- Full"),
    "AntReacherTop": (AntReacherTop, {}, "- Priest"),
    "UR5Top": (UR5Top, {}, "-"),
    "UR5TopSwitch": (UR5Top, {"max_steps": 200, "observe": "switch"}, "-"),
    "Platform": (Platform, {}, "-"),
    "Goal": (Goal, {}, "-"),
    "CatchPoint": (CatchPoint, {}, "-"),
    "HardMove": (HardMove, {}, "-"),
    "Moving": (Moving, {}, "-"),
    "Sliding": (Moving, {"sliding": True}, "-"),
    "BitFlip": (BitFlip, {}, "-"),
    "PointReach": (PointGoal, {}, "-"),
    "PointPush": (PointGoal, {"push": True}, "-"),
}
"""by the prefix of the ids: class, options, and suffixes, which select what is observed (- for none)"""


def register_world(id: str, cls: type[World], **options: Any) -> None:
    """Register `cls(num_envs, device, **options)` under `id`, here and with Gymnasium; users may add options."""
    if id in WORLDS or id in gymnasium.registry:
        raise EnvError(
            f"the environment id {id!r} is already taken; register {cls.__name__} under another name or version"
        )
    WORLDS[id] = _variant(id, cls, options) if options else cls
    gymnasium.register(id, entry_point="whorl.envs.native.gym:WorldEnv", kwargs={"world_id": id})


def _variant(id: str, cls: type[World], options: dict[str, Any]) -> type[World]:
    """A subclass of `cls` with other defaults and its own `id`."""
    members = {"id": id, "__init__": partialmethod(cls.__init__, **options)}
    return type(cls.__name__, (cls,), {**members, "__module__": cls.__module__, "__doc__": cls.__doc__})


def _observed(suffix: str) -> dict[str, Any]:
    """PConcat5: observe p, five observations concatenated."""
    observe, _, concat = suffix.partition("Concat")
    return {"observe": observe.lower()} | ({"concat": int(concat)} if concat else {})


for _name, (_cls, _options, _suffixes) in TASKS.items():
    for _suffix in _suffixes.split():
        if _suffix == "-":
            register_world(f"{_name}-v0", _cls, **_options)
        else:
            register_world(f"{_name}{_suffix}-v0", _cls, **_options, **_observed(_suffix))

__all__ = [
    "WORLDS",
    "AntReacherTop",
    "BitFlip",
    "BumpTop",
    "Bumps",
    "CarHeavenHell",
    "CarHeavenHellTop",
    "CarHeavenHellTopRelative",
    "CartPoleContinuous",
    "CartPoleSwingUpVariableLength",
    "CatchPoint",
    "DeepSea",
    "DiscoMaze",
    "Goal",
    "HardMove",
    "Moving",
    "NoisyTVMaze",
    "Pendulum",
    "PendulumVariableLength",
    "Platform",
    "PointGoal",
    "QuadInvPendulum",
    "Quadrotor",
    "Recall",
    "RepeatFirst",
    "RepeatPrevious",
    "SparseCartPoleSwingUp",
    "SparseMountainCar",
    "TMaze",
    "UR5Top",
    "WaterMaze",
    "WaterMazeSimple",
    "World",
    "register_world",
]
