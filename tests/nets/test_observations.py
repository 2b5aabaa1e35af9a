"""Normalised observations: clipped at 10 by default, one-hots and flags left as they are."""

from dataclasses import replace

import gymnasium
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import whorl
from whorl.core import tree
from whorl.core.errors import CheckpointError
from whorl.core.spec import Array, Continuous, Discrete, Spec
from whorl.envs.adapters.gymnasium import to_spec
from whorl.envs.spaces import make_layout
from whorl.nets.normalize import Observations
from whorl.settings.merge import configure
from whorl.state.policy import build_agent, export, load_policy

STEPS = 16_384
CHOICES = Discrete(2)
TORQUE = Continuous((1,), (-1.0,), (1.0,))


def seen(found: Observations, value: Tensor) -> Tensor:
    """How the networks see `value` after so many rows of zeros."""
    zeros = tree.map(lambda leaf: torch.zeros(STEPS, 1, *leaf.shape), value)
    found.merge_(zeros, torch.ones(STEPS, 1))
    return found(value)


ALGORITHMS = {"ppo": TORQUE, "a2c": TORQUE, "pqn": CHOICES, "sac": TORQUE, "dqn": CHOICES, "impala": CHOICES}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_number_first_seen_after_many_zeros_is_clipped_at_ten(name: str) -> None:
    settings = configure(name, "none", {"normalize_obs": True}, presets=False)
    agent = build_agent(settings, Spec(Array((2,)), ALGORITHMS[name], 1))
    assert seen(agent.observations, torch.tensor([1.0, -1.0])).tolist() == [10.0, -10.0]


def test_another_bound_and_none_at_all_can_be_asked_for() -> None:
    for given, expected in (({"obs_clip_range": 5.0}, 5.0), ({"clip_obs": False}, 1000.0)):
        settings = configure("ppo", "none", given, presets=False)
        agent = build_agent(settings, Spec(Array((1,)), TORQUE, 1))
        assert seen(agent.observations, torch.ones(1)).item() == pytest.approx(expected)


TREE = spaces.Dict(
    cell=spaces.Discrete(4, start=1), flags=spaces.MultiBinary(3), speed=spaces.Box(-9, 9, (2,))
)


@pytest.mark.parametrize("stack", [1, 2])
def test_one_hots_and_flags_reach_the_networks_as_they_are(stack: int) -> None:
    spec = to_spec(make_layout(TREE, spaces.Discrete(2), "none", stack, snapshots=False), 1)
    found = Observations(spec.observation, True, 10.0)
    value = tree.map(lambda leaf: torch.ones(leaf.shape), spec.observation)
    after = seen(found, value)
    assert torch.equal(after["cell"], value["cell"]) and torch.equal(after["flags"], value["flags"])
    assert after["speed"].tolist() == [10.0] * (2 * stack)
    assert list(found.values()) == ["speed"], "no statistics of what is not normalised"


class Flags(gymnasium.Env):
    """A Discrete observation alone."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return int(self.np_random.integers(3)), 1.0, False, bool(self.np_random.random() < 0.1), {}


def test_a_run_and_its_exported_policy_leave_one_hots_alone() -> None:
    trainer = whorl.load(Flags, "ppo", num_envs=2, num_steps=8, batch_size=16, eval=False, save_model=False)
    try:
        trainer.step()
        agent = trainer.agent
        policy = load_policy(export(agent, trainer.settings))
    finally:
        trainer.close()
    rows = torch.eye(3)
    assert torch.equal(agent.observations(rows), rows)
    assert torch.equal(policy.agent.observations(rows), rows)


def saved_before() -> dict:
    """A policy as it was exported when one-hots were normalised, nothing was clipped, and specs did not mark them."""
    settings = configure("ppo", "none", {"clip_obs": False}, presets=False)
    leaf = Array((3,), "float32", 0.0, 1.0, start=0)
    agent = build_agent(settings, Spec(leaf, CHOICES, 1))
    seen(agent.observations, torch.ones(3))
    saved = export(agent, settings)
    del saved["spec"]["observation"]["binary"]
    return saved


def test_an_older_policy_still_sees_what_it_was_trained_on() -> None:
    found = load_policy(saved_before()).agent.observations(torch.ones(3))
    assert found.tolist() == pytest.approx([1000.0] * 3)


def test_an_older_checkpoint_of_normalised_one_hots_is_not_continued_with_raw_ones() -> None:
    old = saved_before()
    leaf = Array((3,), "float32", 0.0, 1.0, start=0)
    settings = configure("ppo", "none", {"clip_obs": False}, presets=False)
    agent = build_agent(settings, Spec(replace(leaf, binary=True), CHOICES, 1))
    with pytest.raises(
        CheckpointError, match="this checkpoint normalises the observation, which is one-hot or"
    ):
        agent.load_state_dict(old["module"])
