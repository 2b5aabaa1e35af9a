"""Our own worlds as batched tensor code, known to `whorl.make` and to `gymnasium.make` by the same id."""

from functools import partialmethod
from typing import Any

import gymnasium

from whorl.core.errors import EnvError
from whorl.envs.native.bumps import Bumps
from whorl.envs.native.car import CarHeavenHell, CarHeavenHellTop, CarHeavenHellTopRelative
from whorl.envs.native.cart_pole import CartPoleContinuous
from whorl.envs.native.pendulum import Pendulum, PendulumVariableLength
from whorl.envs.native.quad_pendulum import QuadInvPendulum
from whorl.envs.native.quadrotor import Quadrotor
from whorl.envs.native.repeat import RepeatFirst, RepeatPrevious
from whorl.envs.native.swing_up import CartPoleSwingUpVariableLength
from whorl.envs.native.t_maze import TMaze
from whorl.envs.native.water_maze import WaterMaze, WaterMazeSimple
from whorl.envs.native.world import World

WORLDS: dict[str, type[World]] = {}
"""every known world by its id"""

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
    "RepeatPrevious": (RepeatPrevious, {}, "-"),
    "RepeatFirst": (RepeatFirst, {}, "-"),
    "Bumps": (Bumps, {}, "-"),
}
"""by the name that ids start with: class, options, and the endings, which name what is seen (- is no ending)"""


def register_world(id: str, cls: type[World], **options: Any) -> None:
    """Make `cls(num_envs, device, **options)` known under `id`, here and in Gymnasium; who makes it may add options."""
    if id in WORLDS or id in gymnasium.registry:
        raise EnvError(
            f"the environment id {id!r} is taken; register {cls.__name__} under another name or version"
        )
    WORLDS[id] = _variant(id, cls, options) if options else cls
    gymnasium.register(id, entry_point="whorl.envs.native.gym:WorldEnv", kwargs={"world_id": id})


def _variant(id: str, cls: type[World], options: dict[str, Any]) -> type[World]:
    """`cls` with other defaults, as a class that carries `id`."""
    members = {"id": id, "__init__": partialmethod(cls.__init__, **options)}
    return type(cls.__name__, (cls,), {**members, "__module__": cls.__module__, "__doc__": cls.__doc__})


def _seen(ending: str) -> dict[str, Any]:
    """PConcat5: observe p, five of them at once."""
    observe, _, concat = ending.partition("Concat")
    return {"observe": observe.lower()} | ({"concat": int(concat)} if concat else {})


for _name, (_cls, _options, _endings) in TASKS.items():
    for _ending in _endings.split():
        if _ending == "-":
            register_world(f"{_name}-v0", _cls, **_options)
        else:
            register_world(f"{_name}{_ending}-v0", _cls, **_options, **_seen(_ending))

__all__ = [
    "WORLDS",
    "Bumps",
    "CarHeavenHell",
    "CarHeavenHellTop",
    "CarHeavenHellTopRelative",
    "CartPoleContinuous",
    "CartPoleSwingUpVariableLength",
    "Pendulum",
    "PendulumVariableLength",
    "QuadInvPendulum",
    "Quadrotor",
    "RepeatFirst",
    "RepeatPrevious",
    "TMaze",
    "WaterMaze",
    "WaterMazeSimple",
    "World",
    "register_world",
]
