"""Gymnasium's own batched environments keep the contract of every other vector env."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from whorl.core.errors import EnvError
from whorl.envs.adapter import factory_from_id
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.adapters.vectorized import BatchedVector
from whorl.envs.make import find

NUM_ENVS = 8


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


def test_a_snapshot_of_the_batch_is_not_continued_one_by_one() -> None:
    few = find("CartPole-v1").vector(NUM_ENVS - 1)
    assert isinstance(few, GymnasiumVector)
    with pytest.raises(EnvError, match=r"whorl train \.\.\. --load-checkpoint-dir RUN"):
        few.restore(made().snapshot())


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


class Telling(gymnasium.Env):
    """Its `info` is what it was made with, except where an episode ends after three steps: there is no mask."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, space: spaces.Space, info: dict[str, Any]) -> None:
        self.action_space, self.info = space, info

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return np.zeros(1, np.float32), self.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.time += 1
        ends = self.time == 3
        info = {key: value for key, value in self.info.items() if key != "action_mask" or not ends}
        return np.zeros(1, np.float32), 1.0, ends, False, info


CHOICES = spaces.MultiDiscrete([2, 3])
NESTED = spaces.Dict(a=spaces.Discrete(2), b=CHOICES)


@pytest.mark.parametrize(
    ("space", "masks", "flat"),
    [
        (spaces.Discrete(3), ([1, 0, 1], [0, 1, 1]), ([1, 0, 1], [0, 1, 1])),
        (CHOICES, (([1, 0], [1, 1, 0]), ([0, 1], [1, 0, 0])), ([1, 0, 1, 1, 0], [0, 1, 1, 0, 0])),
        (
            NESTED,
            ({"a": np.array([0, 1])}, {"b": ([0, 1], [1, 0, 0])}),
            ([0, 1, *[1] * 5], [1, 1, 0, 1, 1, 0, 0]),
        ),
    ],
)
def test_masks_of_a_vector_env_may_be_lists_tuples_and_dicts(
    space: spaces.Space, masks: Any, flat: Any
) -> None:
    made = [partial(Telling, space, {"action_mask": mask}) for mask in masks]
    vector = find(partial(SyncVectorEnv, made)).vector(2)
    expected = torch.tensor(flat, dtype=torch.bool)
    assert torch.equal(vector.reset(0)["action_mask"], expected)
    action = vector._env.action_space  # type: ignore[attr-defined]
    seen = [vector.step(_first(action, expected)).obs["action_mask"] for _ in range(4)]
    assert torch.equal(seen[1], expected)
    assert bool(seen[2].all())  # the episodes end
    assert torch.equal(seen[3], expected)


def _first(space: spaces.Space, mask: torch.Tensor) -> Any:
    """Actions of 0."""
    if isinstance(space, spaces.Dict):
        return {key: _first(child, mask) for key, child in space.spaces.items()}
    return torch.zeros(space.shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("told", "rate"),
    [("yes", np.nan), ({"a": 1}, np.nan), (np.array([1.0, 2.0]), np.nan), (None, np.nan), (0.5, 0.5)],
)
def test_a_success_that_is_no_number_is_ignored(told: Any, rate: float) -> None:
    made = [partial(Telling, spaces.Discrete(2), {"success": value}) for value in (told, told)]
    vector = find(partial(SyncVectorEnv, made)).vector(2)
    vector.reset(0)
    measures = vector.step(torch.zeros(2, dtype=torch.int64)).measures
    assert measures is not None
    np.testing.assert_array_equal(measures.numpy(), np.full((2, 1), rate, np.float32))
