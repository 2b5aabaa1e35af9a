"""Privileged observations: critics read them, policies never do, and a deployed policy does not need them."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import whorl
from whorl.agents.agent import Context
from whorl.conformance import CHECKS, NUM_ENVS, Subject, subject
from whorl.core.errors import ConfigError, EnvError, WhorlError
from whorl.core.spec import Array, Discrete, Spec, split_observation
from whorl.data.batch import Batch
from whorl.state.policy import SavedPolicy, export, load_policy

CASES = {
    "ppo": ("none", "discrete", {}),
    "sac": ("none", "continuous", {}),
    "td3": ("none", "continuous", {}),
    "tqc": ("none", "continuous", {}),
    "ppo lstm": ("lstm", "discrete", {}),
    "sac shared gru": ("gru", "continuous", {"share_memory": True}),
    "sac lstm": ("lstm", "continuous", {}),
}


def case(name: str) -> Subject:
    """The observation is an image, a position and a privileged speed."""
    memory, action, settings = CASES[name]
    return subject(name.split()[0], "dict", memory, action, privileged_obs=["speed"], **settings)


def changed(obs: Any) -> Any:
    return {**obs, "speed": obs["speed"] + 100.0}


def public(obs: Any) -> Any:
    return {key: value for key, value in obs.items() if key != "speed"}


@pytest.mark.parametrize("name", CASES)
def test_actions_do_not_depend_on_privileged_observations(name: str) -> None:
    found = case(name)
    agent: Any = found.agent()
    rollout = found.rollouts(agent, 1)[0]
    obs, reset = {key: value[0] for key, value in rollout.obs.items()}, rollout.reset[0]
    for greedy in (True, False):
        actions = []
        for seen in (obs, changed(obs), public(obs)):
            memory = agent.initial_memory(NUM_ENVS)
            for _ in range(2):
                acted = agent.act(seen, memory, Context(reset, torch.Generator().manual_seed(0), greedy))
                memory = acted.memory
            actions.append(acted.action)
        assert torch.equal(actions[0], actions[1]) and torch.equal(actions[0], actions[2])


@pytest.mark.parametrize("name", CASES)
def test_critics_read_privileged_observations(name: str) -> None:
    found = case(name)
    agent: Any = found.agent()
    rollout = agent.discounting().apply(found.rollouts(agent, 1)[0])

    def values(batch: Batch) -> torch.Tensor:
        seen = batch.replace(obs=agent.observations(batch.obs)).now
        return agent.critic(seen) if name.startswith("ppo") else agent.critic(seen, batch.action)

    with torch.no_grad():
        moved = values(rollout.replace(obs=changed(rollout.obs))) - values(rollout)
    assert moved[..., 0, 0].abs().min() > 1e-6


@pytest.mark.parametrize("name", ["ppo", "sac", "sac shared gru", "ppo lstm"])
def test_a_deployed_policy_needs_no_privileged_observations(name: str) -> None:
    found = case(name)
    agent: Any = found.agent()
    rollout = found.rollouts(agent, 1)[0]
    policies = [load_policy(export(agent, found.configured())) for _ in range(3)]
    for row in range(3):
        obs = {key: value[row].numpy() for key, value in rollout.obs.items()}
        given = ({} if "none" in CASES[name][0] else {"reward": 0.5}) if row else {}
        first, *others = (
            policy.act(seen, **given)
            for policy, seen in zip(policies, (public(obs), obs, {**obs, "speed": obs["speed"] + 9}))
        )
        assert all((action == first).all() for action in others)
    with pytest.raises(WhorlError, match=r"has no value; it has act, predict"):
        SavedPolicy(agent, found.configured()).value(obs)


class Sensed(gymnasium.Env):
    """Episodes of three steps, with a position and in training its speed, too."""

    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, keys: tuple[str, ...] = ("position", "speed"), size: int = 1) -> None:
        box = gymnasium.spaces.Box(-1, 1, (size,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(dict.fromkeys(keys, box))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observation_space.sample(), float(action[0]), self.t == 3, False, {}


def test_a_policy_is_evaluated_where_there_are_no_privileged_observations(tmp_path: Path) -> None:
    settings = {"total_timesteps": 32, "num_envs": 2, "num_steps": 8, "batch_size": 16, "hidden_sizes": [4]}
    settings |= {"privileged_obs": ["speed"], "runs": str(tmp_path), "quiet": True, "eval": False}
    run = whorl.train(Sensed, "ppo", {**settings, "tensorboard": False, "workers": 0}).run_dir
    for keys in (("position",), ("position", "speed")):
        assert whorl.evaluate(run, 2, env=partial(Sensed, keys)).lengths == [3, 3]
    for keys, size in ((("speed",), 1), (("position", "speed", "force"), 1), (("position",), 2)):
        with pytest.raises(EnvError, match="has other spaces than the environment of the run"):
            whorl.evaluate(run, 2, env=partial(Sensed, keys, size))


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "keeps_its_settings"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in ("ppo", "sac shared gru") else pytest.mark.full) for n in CASES],
)
def test_agents_with_privileged_observations_keep_the_contracts(name: str, check: str) -> None:
    CHECKS[check](case(name))


def test_names_that_do_not_fit_are_told() -> None:
    both = {"image": Array((4, 4, 1), "uint8"), "state": Array((3,))}
    with pytest.raises(
        ConfigError, match=r"names 'sate', which the observation does not have; did you mean 'state'"
    ):
        split_observation(both, ["sate"])
    with pytest.raises(
        ConfigError, match=r"which the observation does not have; it needs an observation with keys"
    ):
        split_observation(Array((3,)), ["state"])
    with pytest.raises(ConfigError, match="names all keys of the observation"):
        split_observation(both, ["state", "image"])
    assert split_observation(both, ["state"]) == ({"image": both["image"]}, {"state": both["state"]})


def test_extra_obs_is_an_alias() -> None:
    found = Subject("ppo", Spec({"a": Array((1,)), "b": Array((2,))}, Discrete(2), 4), {"extra_obs": ["b"]})
    agent: Any = found.agent()
    assert agent.privileged == ("b",) and agent.actor.backbone.encoder.size == 1
