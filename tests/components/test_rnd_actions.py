"""Action selection by novelty: the most novel of several samples, only while exploring, for any sampling policy."""

from typing import Any

import pytest
import torch
from blocks import build, feed, rollouts

from whorl.agents.agent import Context
from whorl.components.rnd_actions import RNDActionsConfig
from whorl.conformance import NUM_ENVS, Run, same, subject
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.explore.acting import sample

SMALL = RNDActionsConfig(candidates=4, features=8, hidden_sizes=(16,))


def context(seed: int = 0, greedy: bool = False, collecting: bool = True) -> Context:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.arange(NUM_ENVS) if collecting else None
    return Context(torch.zeros(NUM_ENVS, dtype=torch.bool), generator, greedy, env_index=numbers)


@pytest.mark.parametrize(
    ("algorithm", "action", "settings"),
    [
        ("sac", "continuous", {}),
        ("sac", "discrete", {}),
        ("sac", "masked-mixed", {}),
        ("sac", "mixed", {"action_coupling": "conditioned"}),
        ("tqc", "continuous", {}),
    ],
)
def test_the_most_novel_of_the_samples_is_taken(
    algorithm: str, action: str, settings: dict[str, Any]
) -> None:
    cell = subject(
        *(algorithm, "vector", "none", action),
        components=["rnd_actions"],
        rnd_actions={"candidates": 5},
        **settings,
    )
    agent: Any = cell.agent()
    (rollout,) = cell.rollouts(agent, 1)
    obs = tree.index(rollout.obs, 0)
    taken = agent.act(obs, {}, context()).action
    policy, _ = agent.actor.step(agent.observations(obs), {}, context().reset)
    again = context()
    actions = tree.stack([sample(policy, again) for _ in range(5)])
    novelty = agent.components["rnd_actions"].score(obs, actions)
    for env_index in range(NUM_ENVS):
        best = tree.index(actions, (novelty[:, env_index].argmax(), env_index))
        assert same(tree.index(taken, env_index), best)
    assert same(agent.act(obs, {}, context(greedy=True)).action, policy.mode())
    alone = agent.act(obs, {}, context(collecting=False)).action
    assert same(alone, tree.index(actions, 0)), "an evaluation with random actions samples the policy"


def test_what_was_done_often_is_less_novel() -> None:
    agent: Any = build("sac", rnd_actions=RNDActionsConfig(candidates=3, lr=3e-3))
    given = [rollout.replace(action=torch.zeros_like(rollout.action)) for rollout in rollouts(agent, 4)]
    feed(agent, agent.experience(torch.Generator().manual_seed(0)), given * 4)
    novelty = agent.components["rnd_actions"].score(
        given[0].obs[0], torch.arange(3).unsqueeze(1).expand(3, 4)
    )
    assert (novelty[0] < novelty[1:]).float().mean() > 0.8


def test_rewards_stay_as_they_are() -> None:
    cell = subject("sac", "vector", "none", "continuous", components=["rnd_actions"])
    run = Run(cell)
    (rollout,) = cell.rollouts(run.agent, 1)
    assert torch.equal(run.agent.receive(rollout).reward, rollout.reward) and not run.agent.spec.streams


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_agents_without_a_sampling_policy_and_replay_are_refused(algorithm: str) -> None:
    with pytest.raises(ConfigError, match="rnd_actions chooses among samples of a stochastic policy"):
        build(algorithm, rnd_actions=SMALL)


def test_without_replay_there_is_nothing_to_learn_novelty_from() -> None:
    with pytest.raises(ConfigError, match="learns from replay, but use_replay_buffer is false; leave one"):
        subject(
            "sac", "vector", "none", "mixed", components=["rnd_actions"], use_replay_buffer=False, n_step=3
        ).agent()
