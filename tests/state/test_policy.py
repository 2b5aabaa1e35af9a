"""A saved policy takes an environment's own observations, whatever their form."""

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import whorl
from whorl import conformance
from whorl.agents.agent import Acted
from whorl.core.errors import WhorlError
from whorl.core.spec import to_env
from whorl.run.evaluate import run_episodes
from whorl.state.policy import SavedPolicy

TINY = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "num_envs": 2,
    "num_steps": 8,
    "batch_size": 16,
    "max_iterations": 1,
    "workers": 0,
}


class Senses(gymnasium.Env):
    """Two senses whose dict is not in the order of its space, and a mask told apart."""

    observation_space = gymnasium.spaces.Dict(
        vector=gymnasium.spaces.Box(-1, 1, (4,)), image=gymnasium.spaces.Box(0, 255, (3, 4, 4), np.uint8)
    )
    action_space = gymnasium.spaces.Discrete(3)

    def _look(self) -> dict[str, np.ndarray]:
        return {"vector": np.zeros(4, np.float32), "image": np.zeros((3, 4, 4), np.uint8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._look(), {"action_mask": np.array([True, False, True])}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action != 1, "a forbidden action"
        return self._look(), 1.0, False, True, {"action_mask": np.array([True, False, True])}


class Floors(gymnasium.Env):
    """A lift with floors 3, 4, 5."""

    observation_space = gymnasium.spaces.Discrete(3, start=3)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 3, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 4, 1.0, False, True, {}


def test_integer_observations_are_understood_one_by_one_and_in_batches(tmp_path: Path) -> None:
    run = whorl.load(Floors, "ppo", {**TINY, "runs": str(tmp_path)}).train().run_dir
    policy = whorl.restore(run)
    assert policy.act(4) in (0, 1)
    # the number of the column that is one; floor 3 is the first of three
    policy.agent.act = lambda obs, memory, context: Acted(obs.argmax(-1), memory)
    assert [int(policy.act(floor)) for floor in (3, 4, 5)] == [0, 1, 2]
    assert policy.act(np.array([3, 4, 5])).tolist() == [0, 1, 2]
    assert policy.act(np.array([5, 3])).tolist() == [2, 0]
    found = policy.act(torch.tensor([4, 4, 5, 3]))
    assert isinstance(found, torch.Tensor) and found.tolist() == [1, 1, 2, 0]
    assert policy.act(np.eye(3, dtype=np.float32)).tolist() == [0, 1, 2]
    with pytest.raises(WhorlError, match="the observation is 6; this policy was trained on 3 to 5"):
        policy.act(6)


def test_a_wrong_width_is_one_sentence(tmp_path: Path) -> None:
    run = whorl.load("CartPole-v1", "ppo", {**TINY, "runs": str(tmp_path)}).train().run_dir
    policy = whorl.restore(run)
    for shape in ((3,), (5, 3), (2, 5, 4)):
        told = f"the observation has shape {shape}; this policy takes (4,) or a batch of them"
        with pytest.raises(WhorlError, match=re.escape(told)):
            policy.act(np.zeros(shape, np.float32))


def test_dicts_in_any_order_and_masks_beside_them_are_understood(tmp_path: Path) -> None:
    run = whorl.load(Senses, "ppo", {**TINY, "runs": str(tmp_path)}).train().run_dir
    policy = whorl.restore(run)
    mask = np.array([False, False, True])
    assert policy.act(Senses()._look(), action_mask=mask) == 2
    batch = {key: np.stack([value] * 5) for key, value in Senses()._look().items()}
    assert policy.act(batch, action_mask=np.stack([mask] * 5)).tolist() == [2] * 5
    with pytest.raises(WhorlError, match="action_mask=mask"):
        policy.act(Senses()._look())
    with pytest.raises(WhorlError, match=r"the observation 'vector' has shape \(3,\)"):
        policy.act({**Senses()._look(), "vector": np.zeros(3)}, action_mask=mask)
    with pytest.raises(WhorlError, match="different batch sizes"):
        policy.act(batch, action_mask=mask)
    with pytest.raises(WhorlError, match="lacks 'image'"):
        policy.act({"vector": np.zeros(4, np.float32)}, action_mask=mask)


# Policies with a memory


def remembering(name: str, memory: str, action: str, **given: Any) -> SavedPolicy:
    """A policy with weights drawn at random, whose every action depends on what it remembers."""
    cell = conformance.subject(name, "vector", memory, action, **given)
    agent = cell.agent()
    torch.manual_seed(0)
    for parameter in agent.parameters():
        nn.init.normal_(parameter, std=0.7)
    return SavedPolicy(agent, cell.configured())


class Evaluated:
    """What was seen, done and earned in an evaluation: [rows, environments, ...] each."""

    def __init__(self, policy: SavedPolicy, num_envs: int) -> None:
        agent: Any = policy.agent
        self.rows: list[tuple[Any, Any, Any]] = []
        self.steps: list[Any] = []
        act = agent.act

        def watched(obs: Any, memory: Any, context: Any) -> Acted:
            acted = act(obs, memory, context)
            self.rows.append((obs.clone(), context.reset.clone(), to_env(agent.spec.action, acted.action)))
            return acted

        agent.act = watched
        world: Any = conformance.RandomWorld(agent.spec.with_num_envs(num_envs))
        run_episodes(
            agent, world, 4 * num_envs, seed=3, watch=lambda env, step, action: self.steps.append(step)
        )
        agent.act = act


CELLS = [
    ("dqn", "lstm", "discrete"),
    ("sac", "gru", "continuous"),
    ("td3", "attention", "continuous"),
    ("ppo", "lstm", "multi-discrete"),
]


@pytest.mark.parametrize(("name", "memory", "action"), CELLS)
def test_a_policy_with_memory_acts_as_in_evaluation(name: str, memory: str, action: str) -> None:
    policy = remembering(name, memory, action)
    seen = Evaluated(policy, 3)
    reward = torch.zeros(3)
    for (obs, reset, done), step in zip(seen.rows, seen.steps):
        policy.reset(reset)
        torch.testing.assert_close(policy.act(obs, reward=reward), done, atol=1e-5, rtol=0)
        reward = step.reward
    assert len(seen.rows) > 10 and sum(int(reset.sum()) for _, reset, _ in seen.rows) > 6


def test_episode_by_episode_with_arrays_is_the_same() -> None:
    """As one plays: no call for a final observation, `reset` before a first one, the reward from the second on."""
    policy = remembering("dqn", "lstm", "discrete")
    seen = Evaluated(policy, 1)
    over = False
    for number, ((obs, reset, done), step) in enumerate(zip(seen.rows, seen.steps)):
        if over:
            over = False
            continue
        if reset[0]:
            policy.reset()
            found = policy.act(obs[0].numpy())
        else:
            found = policy.act(obs[0].numpy(), reward=float(seen.steps[number - 1].reward[0]))
        assert found == done[0]
        over = bool(step.terminated[0] | step.truncated[0])
    assert len({int(done[0]) for _, _, done in seen.rows}) > 1


def test_a_missing_reward_is_one_sentence() -> None:
    policy = remembering("dqn", "lstm", "discrete")
    policy.act(np.zeros(3, np.float32))
    with pytest.raises(
        WhorlError, match=r"this policy reads the reward of the previous step; call act\(obs, reward=reward\)"
    ):
        policy.act(np.zeros(3, np.float32))
    policy.reset()
    policy.act(np.zeros(3, np.float32))
    without = remembering("dqn", "lstm", "discrete", last_reward=False)
    for _ in range(2):
        without.act(np.zeros(3, np.float32))
