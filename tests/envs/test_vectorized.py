"""Gymnasium's own batched environments keep the contract of every other vector env."""

import torch

from whorl.envs.adapter import factory_from_id
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.adapters.vectorized import BatchedVector
from whorl.envs.make import find

NUM_ENVS = 5


def made() -> BatchedVector:
    env = find("CartPole-v1").vector(NUM_ENVS)
    assert isinstance(env, BatchedVector) and env.snapshots
    return env


def actions(count: int) -> torch.Tensor:
    return torch.randint(2, (count, NUM_ENVS), generator=torch.Generator().manual_seed(0))


def test_a_env_that_ended_is_reset_by_the_next_call_without_reward() -> None:
    env = made()
    env.reset(0)
    ended = torch.zeros(NUM_ENVS, dtype=torch.bool)
    seen = 0
    for action in actions(200):
        step = env.step(action)
        assert torch.equal(step.reset, ended)
        assert torch.equal(step.reward, (~ended).float())
        assert bool((step.obs[ended].abs() <= 0.05).all())
        ended = step.terminated | step.truncated
        assert not bool((ended & step.reset).any())
        seen += int(ended.sum())
    assert seen > NUM_ENVS


def test_the_dynamics_are_those_of_the_single_environment() -> None:
    """The batch computes in float64 as the single environment does: one step from the same state agrees."""
    batch, single = made(), GymnasiumVector(factory_from_id("CartPole-v1"), NUM_ENVS, "CartPole-v1")
    batch.reset(0)
    single.reset(0)
    for env_index, env in enumerate(single.stepper.envs):
        env.unwrapped.state = tuple(batch._env.state[:, env_index])  # type: ignore[attr-defined]
    for action in actions(8):
        one, other = batch.step(action), single.step(action)
        assert torch.allclose(one.obs, other.obs, atol=1e-6)
        assert torch.equal(one.terminated, other.terminated)


def test_a_snapshot_continues_bit_for_bit() -> None:
    env = made()
    env.reset(3)
    for action in actions(50):
        env.step(action)
    saved = env.snapshot()
    after = [env.step(action) for action in actions(100)]
    again = made()
    again.restore(saved)
    for action, expected in zip(actions(100), after):
        step = again.step(action)
        assert torch.equal(step.obs, expected.obs) and torch.equal(step.reset, expected.reset)
