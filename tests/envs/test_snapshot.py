"""Snapshots continue bit for bit in a fresh environment."""

import io
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from whorl.core.errors import EnvError
from whorl.envs.adapter import factory_from_id
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.snapshot import restore_env, snapshot_env

torch.set_num_threads(1)
warnings.filterwarnings("ignore", category=DeprecationWarning)

PLAIN = [
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "FrozenLake-v1",
]
MUJOCO = [
    "HalfCheetah-v5",
    "Humanoid-v4",
    "Ant-v4",
    "Hopper-v5",
    "InvertedPendulum-v5",
    "Reacher-v5",
    "Walker2d-v5",
]
ROBOTS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "Swimmer", "Walker2d")
OTHERS = ("InvertedPendulum", "InvertedDoublePendulum", "Reacher", "Pusher")
EVERY_MUJOCO = [f"{name}-v{version}" for name in (*ROBOTS, *OTHERS) for version in (4, 5)]
EVERY_MUJOCO.remove("Pusher-v4")  # for MuJoCo before 3 only
FAMILIES = [*PLAIN, *(pytest.param(id, marks=pytest.mark.filterwarnings("ignore")) for id in MUJOCO)]


def walk(env: gymnasium.Env, actions: list[Any], ended: bool = False) -> tuple[list[Any], bool]:
    """Everything that a walk returns; an episode's end is followed by a reset, as environments do."""
    seen: list[Any] = []
    for action in actions:
        if ended:
            obs, _ = env.reset()
            seen.append((np.array(obs),))
            ended = False
        else:
            obs, reward, terminated, truncated, _ = env.step(action)
            seen.append((np.array(obs), reward, terminated, truncated))
            ended = bool(terminated or truncated)
    return seen, ended


def draw(env: gymnasium.Env, count: int) -> list[Any]:
    env.action_space.seed(0)
    return [env.action_space.sample() for _ in range(count)]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        len(x) == len(y) and all(np.array_equal(p, q) for p, q in zip(x, y)) for x, y in zip(a, b)
    )


@pytest.mark.parametrize("id", FAMILIES)
@pytest.mark.parametrize("before", [0, 7, 60])
def test_a_fresh_environment_continues_exactly(id: str, before: int):
    if id in MUJOCO:
        pytest.importorskip("mujoco")
    factory = factory_from_id(id, max_episode_steps=90)
    env, fresh = factory(), factory()
    env.reset(seed=3)
    actions = draw(env, before + 300)
    _, ended = walk(env, actions[:before])
    snapshot = snapshot_env(env)
    assert snapshot is not None
    expected, _ = walk(env, actions[before:], ended)
    restore_env(fresh, snapshot)
    found, _ = walk(fresh, actions[before:], ended)
    assert same(found, expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("id", EVERY_MUJOCO)
def test_every_mujoco_environment_has_finite_bounds_and_continues_exactly(id: str):
    pytest.importorskip("mujoco")
    factory = factory_from_id(id)
    env, fresh = factory(), factory()
    assert np.isfinite(env.action_space.low).all() and np.isfinite(env.action_space.high).all()
    env.reset(seed=3)
    actions = draw(env, 50)
    _, ended = walk(env, actions[:20])
    snapshot = snapshot_env(env)
    assert snapshot is not None
    restore_env(fresh, snapshot)
    assert same(walk(fresh, actions[20:], ended)[0], walk(env, actions[20:], ended)[0])


def test_a_used_environment_can_be_taken_back():
    pytest.importorskip("mujoco")
    env = factory_from_id("Humanoid-v5")()
    env.reset(seed=0)
    actions = draw(env, 60)
    snapshot = snapshot_env(env)
    expected, _ = walk(env, actions)
    env.reset(seed=9)
    restore_env(env, snapshot)
    assert same(walk(env, actions)[0], expected)


def test_wrappers_with_plain_state_are_included():
    def make() -> gymnasium.Env:
        return gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))

    env, fresh = make(), make()
    env.reset(seed=0)
    actions = draw(env, 50)
    walk(env, actions)
    snapshot = snapshot_env(env)
    assert snapshot is not None
    restore_env(fresh, snapshot)
    assert same(walk(fresh, actions)[0], walk(env, actions)[0])


class Unknown(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count += 1
        return np.full(1, self.count / 100, np.float32), 0.0, False, False, {}


class Known(Unknown):
    def get_snapshot(self) -> dict[str, Any]:
        return {"count": self.count, "wide": 2**100}

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        assert snapshot["wide"] == 2**100
        self.count = snapshot["count"]


def test_an_unknown_environment_promises_nothing():
    env = GymnasiumVector(Unknown, 1, "Unknown")
    assert not env.snapshots
    env.reset(0)
    with pytest.raises(EnvError, match="get_snapshot"):
        env.snapshot()


def test_an_environment_may_bring_its_own_snapshot():
    env, fresh = Known(), Known()
    env.reset()
    env.step(0)
    snapshot = snapshot_env(env)
    assert snapshot is not None
    restore_env(fresh, snapshot)
    assert fresh.count == 1


@pytest.mark.parametrize("id", ["CartPole-v1", "HalfCheetah-v5"])
def test_a_vector_snapshot_survives_a_safe_file_and_continues_exactly(id: str):
    """The last of 33 steps ends an episode of 33, so that one case is a environment that waits for its reset."""
    if id in MUJOCO:
        pytest.importorskip("mujoco")
    factory = factory_from_id(id, max_episode_steps=33)
    env, fresh = GymnasiumVector(factory, 3, id), GymnasiumVector(factory, 3, id)
    generator = torch.Generator().manual_seed(0)

    def action() -> torch.Tensor:
        if id == "CartPole-v1":
            return torch.randint(0, 2, (3,), generator=generator)
        return torch.rand(3, 6, generator=generator) * 2 - 1

    env.reset(1)
    for _ in range(33):
        last = env.step(action()).obs.clone()
    file = io.BytesIO()
    torch.save(env.snapshot(), file)
    file.seek(0)
    obs = fresh.restore(torch.load(file, weights_only=True))
    assert torch.equal(obs, last)
    for _ in range(60):
        now = action()
        a, b = env.step(now), fresh.step(now)
        assert torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward) and torch.equal(a.reset, b.reset)


def test_an_environment_may_say_that_it_has_no_snapshot_after_all():
    class Shy(gymnasium.Env):
        def get_snapshot(self) -> None:
            return None

        def set_snapshot(self, snapshot: dict[str, Any]) -> None:
            raise AssertionError("nothing was saved")

    assert snapshot_env(Shy()) is None


def test_restoring_another_number_of_envs_is_refused():
    factory = factory_from_id("CartPole-v1")
    env = GymnasiumVector(factory, 2, "CartPole-v1")
    env.reset(0)
    with pytest.raises(EnvError, match="resume with 2 environments"):
        GymnasiumVector(factory, 3, "CartPole-v1").restore(env.snapshot())
