"""PyBullet's locomotion, Reacher and pendulum environments (pybullet-envs-gymnasium), with snapshots.

Ids such as HalfCheetahBulletP-v0 and HalfCheetahBulletV-v0 are robots without the velocities, or the positions, of
their joints.

PyBullet's saved states stay in the process, and its files lose some contacts. So a snapshot is the random stream at the
start of the episode and the actions since: the engine is deterministic, so replaying them in a new environment gives
bit for bit the same state. That takes as long as the episode did, at most a second.
"""

import copy
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from whorl.envs.adapter import RegisteredAdapter, make_registered, registry_entry

LOCOMOTION = "pybullet_envs_gymnasium.gym_locomotion_envs"
JOINTS = {
    "HalfCheetah": (6, 6, 3000.0),
    "Ant": (8, 4, 2500.0),
    "Hopper": (3, 1, 2500.0),
    "Walker2D": (6, 2, 2500.0),
}
"""robots of which a P id hides the velocities of the joints, and a V id their positions: number of joints and of feet,
reward threshold"""
BODY = 8
"""numbers of the body, which come before position and velocity of each joint in turn; the feet come last"""
UNREPEATABLE = {"HumanoidFlagrunHarderBulletEnv-v0", "ThrowerBulletEnv-v0"}
"""environments whose replayed episodes differed in some trials, so they have no snapshots"""


class PyBulletAdapter(RegisteredAdapter):
    """Ids of the package, such as AntBulletEnv-v0; environments get snapshots where their episodes can be replayed."""

    extra = "pybullet"
    packages = ("pybullet_envs_gymnasium", "pybullet")
    modules = ("pybullet_envs_gymnasium.",)

    def owns(self, id: str) -> bool:
        return any(part in id for part in ("BulletEnv", "BulletP", "BulletV"))

    def entry(self, id: str) -> EnvSpec:
        return registry_entry(id, "pybullet_envs_gymnasium")

    @staticmethod
    def make(entry: EnvSpec, options: dict[str, Any]) -> gymnasium.Env:
        env = make_registered(entry, options)
        if env.render_mode != "human":
            _connect(env.unwrapped)
        return env if entry.id in UNREPEATABLE else Replayable(env)


ADAPTERS = (PyBulletAdapter(),)


def _connect(base: Any) -> None:
    """Give the environment its own physics engine.

    By default it would first connect to any physics server on this machine, which all environments would then share.
    """
    import pybullet
    from pybullet_utils.bullet_client import BulletClient

    client = BulletClient(connection_mode=pybullet.DIRECT)
    client.resetSimulation()
    client.setPhysicsEngineParameter(deterministicOverlappingPairs=1)
    base._p, base.physicsClientId, base.ownsPhysicsClient = client, client._client, True


class Replayable(gymnasium.Wrapper):
    """An environment whose snapshot is the start of the episode and the actions since."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._base: Any = env.unwrapped
        # Robots of the package hold their own reference to the environment's random stream.
        robot = getattr(self._base, "robot", None)
        self._drawing = [self._base] if robot is None else [self._base, robot]
        self._loaded = False
        self._start: np.random.Generator = self._base.np_random
        self._actions: list[np.ndarray] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._load()
        if seed is not None:
            self._draw_from(gymnasium.utils.seeding.np_random(seed)[0])
        self._start = copy.deepcopy(self._base.np_random)
        self._actions = []
        return self.env.reset(options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        self._actions.append(np.array(action))
        return self.env.step(action)

    def get_snapshot(self) -> dict[str, Any]:
        return {"random": self._start, "actions": np.array(self._actions)}

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        self._load()
        self._draw_from(snapshot["random"])
        self.reset()
        for action in snapshot["actions"]:
            self.step(action)

    def _load(self) -> None:
        """Reset once in advance: the first reset loads the robot, and its rewards differ from those of later ones."""
        if self._loaded:
            return
        random = self._base.np_random
        self.env.reset(seed=0)
        self._draw_from(random)
        self._loaded = True

    def _draw_from(self, random: np.random.Generator) -> None:
        for drawing in self._drawing:
            drawing.np_random = random


for _robot, (_joints, _feet, _good) in JOINTS.items():
    for _kind, _first in (("P", BODY), ("V", BODY + 1)):
        _end = BODY + 2 * _joints
        _keep = (*range(BODY), *range(_first, _end, 2), *range(_end, _end + _feet))
        gymnasium.register(
            f"{_robot}Bullet{_kind}-v0",
            entry_point=f"{LOCOMOTION}:{_robot}BulletEnv",
            max_episode_steps=1000,
            reward_threshold=_good,
            additional_wrappers=(
                WrapperSpec("SelectObservation", "whorl.envs.wrappers:SelectObservation", {"keep": _keep}),
            ),
        )
