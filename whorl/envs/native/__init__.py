"""Our own worlds as batched tensor code, known to `whorl.make` and to `gymnasium.make` by the same id."""

import gymnasium

from whorl.envs.native.quadrotor import Quadrotor
from whorl.envs.native.world import World
from whorl.errors import EnvError

WORLDS: dict[str, type[World]] = {}
"""every known world by its id"""


def register_world(id: str, cls: type[World]) -> None:
    """Make `cls(lanes, device, **options)` known under `id`, here and in Gymnasium."""
    if id in WORLDS or id in gymnasium.registry:
        raise EnvError(
            f"the environment id {id!r} is taken; register {cls.__name__} under another name or version"
        )
    WORLDS[id] = cls
    gymnasium.register(id, entry_point="whorl.envs.native.gym:WorldEnv", kwargs={"world_id": id})


register_world(Quadrotor.id, Quadrotor)

__all__ = ["WORLDS", "Quadrotor", "World", "register_world"]
