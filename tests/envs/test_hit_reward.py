"""An episode is a success once one of its rewards reached `hit_reward`."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import whorl
from whorl.core.arrays import SUCCESS
from whorl.core.errors import EnvError
from whorl.envs.make import find
from whorl.envs.native import WORLDS
from whorl.envs.snapshot import restore_env, snapshot_env
from whorl.envs.wrappers import HitReward

SMALL: dict[str, Any] = {
    "quiet": True,
    "tensorboard": False,
    "num_envs": 2,
    "num_steps": 16,
    "batch_size": 32,
    "max_iterations": 1,
    "device": "cpu",
    "workers": 0,
}


class Scripted(gymnasium.Env):
    """Rewards 0, 1, 0 in each episode of three steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.at = 0

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        reward = float(self.at == 2)
        return np.zeros(2, np.float32), reward, self.at == 3, False, {"success": 0.25}


def test_success_lasts_from_the_hit_to_the_end_of_the_episode() -> None:
    env = HitReward(Scripted(), 1.0)
    for _ in range(2):
        env.reset()
        assert [env.step(0)[4]["is_success"] for _ in range(3)] == [False, True, True]
    env = HitReward(Scripted(), 1.5)
    env.reset()
    assert not any(env.step(0)[4]["is_success"] for _ in range(3))


def test_a_snapshot_knows_of_the_hit() -> None:
    env, other = (HitReward(gymnasium.make("CartPole-v1"), 1.0) for _ in range(2))
    env.reset(seed=0)
    env.step(0)
    saved = snapshot_env(env)
    assert saved is not None
    other.reset(seed=1)
    restore_env(other, saved)
    assert other._hit is True


@pytest.mark.parametrize(("least", "rate"), [(1.0, 1.0), (1.5, 0.0)])
def test_it_is_the_success_rate_of_training_and_evaluation(least: float, rate: float, tmp_path: Path) -> None:
    given = {**SMALL, "runs": str(tmp_path), "env_options": {"hit_reward": least}, "log_freq": 1}
    run = whorl.train("CartPole-v1", "ppo", {**given, "max_iterations": 8, "n_eval_episodes": 2}).run_dir
    assert whorl.evaluate(run, 2).success_rate == rate
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert any(f'"episode/{SUCCESS}": {rate}' in line for line in lines)
    assert f'"evaluation/{SUCCESS}": {rate}' in lines[-1]


def test_native_worlds_count_hits_too() -> None:
    world = WORLDS["PendulumFull-v0"](2, max_steps=3)
    world.count_hits(-1.0)
    assert world.spec.measures == (SUCCESS,)
    world.reset(0)
    world.state["body"].zero_()  # upright and at rest: no cost
    world.state["body"][0, 1] = torch.pi  # hanging: a cost of pi^2
    found = [world.step(torch.zeros(2, 1)) for _ in range(3)]
    assert [step.measures[:, 0].tolist() for step in found] == [[1.0, 0.0]] * 3  # type: ignore[index]
    fresh = world.step(torch.zeros(2, 1))
    assert bool(fresh.reset.all()) and not bool(world.hit.any())  # its reward of 0 is no step's


def test_a_worlds_own_success_is_replaced_and_its_other_measures_stay() -> None:
    world = WORLDS["Goal-v0"](1)
    own = world.spec.measures
    world.count_hits(1e9)
    assert world.spec.measures == (*(name for name in own if name != SUCCESS), SUCCESS)
    world.reset(0)
    from whorl.explore.noise import random_action

    step = world.step(random_action(world.spec, world.observe(world.state), torch.Generator().manual_seed(0)))
    assert step.measures is not None and step.measures.shape == (1, len(world.spec.measures))


def test_a_snapshot_of_a_world_knows_of_the_hit() -> None:
    one, other = (WORLDS["PendulumFull-v0"](1) for _ in range(2))
    for world in (one, other):
        world.count_hits(-100.0)
        world.reset(0)
    one.step(torch.zeros(1, 1))
    other.restore(one.snapshot())
    assert bool(other.hit.all())


def test_the_option_reaches_native_worlds(tmp_path: Path) -> None:
    given = {**SMALL, "runs": str(tmp_path), "env_options": {"hit_reward": -100, "max_steps": 4}}
    run = whorl.train("PendulumFull-v0", "ppo", {**given, "n_eval_episodes": 1}).run_dir
    assert whorl.evaluate(run, 3).success_rate == 1.0
    assert find("PendulumFull-v0", {"hit_reward": -100}).factory().reset(seed=0)


def test_a_wrong_value_is_one_sentence() -> None:
    for value in ("one", True, float("nan")):
        with pytest.raises(EnvError, match="it must be a number: the reward that makes an episode a success"):
            whorl.make("CartPole-v1", hit_reward=value)
