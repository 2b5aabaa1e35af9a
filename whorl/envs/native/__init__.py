"""Our own worlds as batched tensor code, known to `whorl.make` and to `gymnasium.make` by the same id."""

from functools import partialmethod
from typing import Any

import gymnasium

from whorl.envs.native.car import CarHeavenHell, CarHeavenHellTop
from whorl.envs.native.cart_pole import CartPoleContinuous
from whorl.envs.native.pendulum import PendulumVariableLength
from whorl.envs.native.quad_pendulum import QuadInvPendulum
from whorl.envs.native.quadrotor import Quadrotor
from whorl.envs.native.swing_up import CartPoleSwingUpVariableLength
from whorl.envs.native.water_maze import WaterMaze, WaterMazeSimple
from whorl.envs.native.world import World
from whorl.errors import EnvError

WORLDS: dict[str, type[World]] = {}
"""every known world by its id"""


def register_world(id: str, cls: type[World], **options: Any) -> None:
    """Make `cls(lanes, device, **options)` known under `id`, here and in Gymnasium; who makes it may add options."""
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


register_world(Quadrotor.id, Quadrotor)
register_world(QuadInvPendulum.id, QuadInvPendulum)
register_world(CartPoleContinuous.id, CartPoleContinuous)
register_world("CartPoleContinuousLong-v0", CartPoleContinuous, max_steps=1000)
register_world(CartPoleSwingUpVariableLength.id, CartPoleSwingUpVariableLength)
register_world(PendulumVariableLength.id, PendulumVariableLength)
register_world(WaterMaze.id, WaterMaze)
register_world("WaterMazeDense-v0", WaterMaze, dense=True, radius=0.2)
register_world(WaterMazeSimple.id, WaterMazeSimple)
register_world(CarHeavenHell.id, CarHeavenHell)
register_world("CarHeavenHellEpisodic-v0", CarHeavenHell, episodic=True)
register_world(CarHeavenHellTop.id, CarHeavenHellTop)

__all__ = [
    "WORLDS",
    "CarHeavenHell",
    "CarHeavenHellTop",
    "CartPoleContinuous",
    "CartPoleSwingUpVariableLength",
    "PendulumVariableLength",
    "QuadInvPendulum",
    "Quadrotor",
    "WaterMaze",
    "WaterMazeSimple",
    "World",
    "register_world",
]
