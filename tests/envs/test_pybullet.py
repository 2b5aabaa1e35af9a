"""PyBullet's environments by id: what they offer, that they keep to themselves, and that they continue exactly."""

import importlib.util
import io
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from whorl.core.errors import EnvError, WhorlError
from whorl.envs.adapter import factory_from_id
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.snapshot import restore_env, snapshot_env

torch.set_num_threads(1)
installed = pytest.mark.skipif(
    importlib.util.find_spec("pybullet_envs_gymnasium") is None,
    reason="pybullet-envs-gymnasium is not installed: pip install -e '.[pybullet]'",
)


def make(name: str) -> gymnasium.Env:
    return factory_from_id(f"{name}BulletEnv-v0")()


def actions(env: gymnasium.Env, count: int) -> list[np.ndarray]:
    env.action_space.seed(0)
    return [env.action_space.sample() for _ in range(count)]


def play(env: gymnasium.Env, taken: list[np.ndarray]) -> list[Any]:
    """Everything that a walk returns; an episode's end is followed by a reset, in place of a step."""
    seen, ended = [], False
    for action in taken:
        if ended:
            seen.append((env.reset()[0], None, False))
            ended = False
        else:
            obs, reward, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            seen.append((obs, reward, ended))
    return seen


def same(a: list[Any], b: list[Any]) -> bool:
    return all(np.array_equal(x[0], y[0]) and x[1:] == y[1:] for x, y in zip(a, b, strict=True))


@installed
@pytest.mark.parametrize(
    ("name", "observed", "acted"),
    [
        ("HalfCheetah", 26, 6),
        ("Ant", 28, 8),
        ("Hopper", 15, 3),
        ("Walker2D", 22, 6),
        ("Humanoid", 44, 17),
        ("Reacher", 9, 2),
    ],
)
def test_an_id_finds_its_package(name: str, observed: int, acted: int):
    env = GymnasiumVector(factory_from_id(f"{name}BulletEnv-v0"), 1, name)
    assert env.spec.observation.shape == (observed,)
    assert env.spec.action.low == (-1.0,) * acted and env.spec.action.high == (1.0,) * acted
    assert env.snapshots
    assert env.reset(0).isfinite().all()
    env.close()


@installed
def test_an_id_without_a_version_means_the_newest():
    assert factory_from_id("ReacherBulletEnv")().spec.id == "ReacherBulletEnv-v0"


@installed
def test_an_unknown_id_names_the_nearest():
    with pytest.raises(EnvError, match="did you mean 'HopperBulletEnv-v0'"):
        factory_from_id("HoperBulletEnv-v0")


@installed
def test_a_time_limit_truncates_and_a_fall_terminates():
    reacher, hopper = make("Reacher"), make("Hopper")
    reacher.reset(seed=0)
    assert [reacher.step(np.zeros(2))[2:4] for _ in range(150)][-2:] == [(False, False), (False, True)]
    hopper.reset(seed=0)
    ends = [hopper.step(np.zeros(3))[2:4] for _ in range(40)]
    assert (True, False) in ends and (False, True) not in ends


@installed
@pytest.mark.parametrize("name", ["HalfCheetah", "Reacher"])
def test_an_episode_depends_on_its_seed_and_on_nothing_before(name: str):
    """PyBullet alone gives the first episode of an environment other rewards than the same one later."""
    env, used = make(name), make(name)
    taken = actions(env, 40)
    used.reset(seed=9)
    play(used, taken)
    assert np.array_equal(env.reset(seed=2)[0], used.reset(seed=2)[0])
    assert same(play(env, taken), play(used, taken))


@installed
def test_two_environments_do_not_disturb_each_other():
    alone, one, two = make("Ant"), make("Ant"), make("Ant")
    taken = actions(alone, 40)
    for env, seed in ((alone, 0), (one, 0), (two, 1)):
        env.reset(seed=seed)
    mixed = []
    for action in taken:
        mixed += play(one, [action])
        play(two, [-action])
    assert same(play(alone, taken), mixed)


@installed
@pytest.mark.parametrize("name", ["HalfCheetah", "Hopper", "Walker2D", "Reacher"])
@pytest.mark.parametrize("before", [0, 45])
def test_a_fresh_environment_continues_exactly(name: str, before: int):
    """A random hopper falls after about 20 steps, so that episodes end before the snapshot and after it."""
    env, fresh = make(name), make(name)
    env.reset(seed=3)
    taken = actions(env, before + 60)
    play(env, taken[:before])
    snapshot = snapshot_env(env)
    assert snapshot is not None
    restore_env(fresh, snapshot)
    assert same(play(env, taken[before:]), play(fresh, taken[before:]))


@installed
def test_envs_survive_a_safe_file_and_continue_exactly():
    factory = factory_from_id("HopperBulletEnv-v0")
    env, fresh = (GymnasiumVector(factory, 2, "Hopper") for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    env.reset(1)
    for _ in range(30):
        last = env.step(torch.rand(2, 3, generator=generator)).obs.clone()
    file = io.BytesIO()
    torch.save(env.snapshot(), file)
    file.seek(0)
    assert torch.equal(fresh.restore(torch.load(file, weights_only=True)), last)
    resets = 0
    for _ in range(60):
        action = torch.rand(2, 3, generator=generator)
        a, b = env.step(action), fresh.step(action)
        resets += int(a.reset.sum())
        assert torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward) and torch.equal(a.reset, b.reset)
    assert resets > 0


@installed
def test_what_does_not_repeat_promises_no_snapshot():
    env = GymnasiumVector(factory_from_id("HumanoidFlagrunHarderBulletEnv-v0"), 1, "harder")
    assert not env.snapshots


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pybullet_envs_gymnasium", None)
    with pytest.raises(WhorlError, match=r"pybullet-envs-gymnasium is not installed.*\[pybullet\]"):
        factory_from_id("AntBulletEnv-v0")


@installed
@pytest.mark.parametrize("kind", ["P", "V"])
@pytest.mark.parametrize(
    ("name", "joints", "seen"),
    [("HalfCheetah", 6, 20), ("Ant", 8, 20), ("Hopper", 3, 12), ("Walker2D", 6, 16)],
)
def test_an_id_hides_velocities_or_positions_of_the_joints_alone(
    name: str, joints: int, seen: int, kind: str
):
    """Eight numbers of the body, then position and velocity of each joint in turn, then the feet."""
    env, whole = factory_from_id(f"{name}Bullet{kind}-v0")(), make(name)
    hidden = range(9 if kind == "P" else 8, 8 + 2 * joints, 2)
    stay = [i for i in range(whole.observation_space.shape[0]) if i not in hidden]
    assert env.observation_space.shape == (seen,) == (len(stay),)
    assert np.array_equal(env.reset(seed=0)[0], whole.reset(seed=0)[0][stay])
    for action in actions(env, 10):
        (part, reward, *_), (all_of_it, its_reward, *_) = env.step(action), whole.step(action)
        assert np.array_equal(part, all_of_it[stay]) and reward == its_reward


@installed
def test_a_p_id_continues_exactly():
    env, fresh = (factory_from_id("HalfCheetahBulletP-v0", last_action=True)() for _ in range(2))
    env.reset(seed=0)
    taken = actions(env, 40)
    play(env, taken[:20])
    restore_env(fresh, snapshot_env(env))
    assert same(play(env, taken[20:]), play(fresh, taken[20:]))
