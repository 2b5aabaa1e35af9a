"""Acting for a whole rollout gives what acting row by row gives."""

from typing import Any

import gymnasium
import pytest
import torch

from whorl.algorithms.a2c import A2C
from whorl.algorithms.ppo import PPO
from whorl.collect.collector import LocalCollector
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.adapters.vectorized import LEAST, BatchedVector
from whorl.envs.make import find
from whorl.explore.acting import act_by_policy
from whorl.explore.rollout_actor import RolloutActor

torch.set_num_threads(1)


def collector(
    id: str, cls: Any = PPO, batched: bool = False, quick: bool = True, **settings: Any
) -> LocalCollector:
    source = find(id)
    num_envs = LEAST if batched else 4
    env = source.vector(num_envs, "cpu", False) if batched else GymnasiumVector(source.factory, num_envs, id)
    assert isinstance(env, BatchedVector) is batched
    torch.manual_seed(0)
    agent = cls(env.spec, cls.Config(**settings))
    agent.prepare("cpu", lambda name: torch.Generator().manual_seed(0))
    found = LocalCollector(env, agent, 32, torch.Generator().manual_seed(1))
    assert isinstance(found._actor, RolloutActor)
    if not quick:
        found._actor, found._bound = None, [None] * 32
    found.reset(3)
    return found


@pytest.mark.parametrize("batched", [False, True])
def test_discrete_rollouts_are_those_of_acting_row_by_row(batched: bool) -> None:
    quick, plain = (collector("CartPole-v1", batched=batched, quick=quick) for quick in (True, False))
    for _ in range(2):
        one, two = quick.collect(), plain.collect()
        assert bool(one.reset[1:].any()), "no episode ended"
        for name in ("obs", "reset", "action", "reward", "keep", "mask"):
            assert torch.equal(getattr(one, name), getattr(two, name)), name
        assert torch.allclose(one.extras["log_prob"], two.extras["log_prob"], atol=1e-6)


def test_continuous_actions_have_the_policys_noise_and_log_probabilities() -> None:
    found = collector("Pendulum-v1", normalize_obs=True)
    found.agent.observations.merge_(torch.randn(64, 4, 3) * 3 + 1, torch.ones(64, 4))
    torch.nn.init.constant_(found.agent.actor.head.log_std, -1.5)
    noise = torch.randn(32, 4, 1, generator=torch.Generator().manual_seed(1))
    batch = found.collect()
    with torch.no_grad():
        policy = found.agent.actor(batch.replace(obs=found.agent.observations(batch.obs)).now)
        assert torch.allclose(batch.action, policy.sample(noise), atol=1e-5)
        assert torch.allclose(batch.extras["log_prob"], policy.log_prob(batch.action), atol=1e-5)


def test_an_agent_without_log_probabilities_stores_none() -> None:
    assert not collector("CartPole-v1", A2C).collect().extras


def test_an_agent_that_acts_in_its_own_way_is_asked_row_by_row() -> None:
    class Other(PPO):
        def act(self, obs: Any, memory: Any, context: Any) -> Any:
            return act_by_policy(self, obs, memory, context, log_prob=True)

    env = GymnasiumVector(lambda: gymnasium.make("CartPole-v1"), 2, "CartPole-v1")
    agent = Other(env.spec, Other.Config()).prepare("cpu", lambda name: torch.Generator())
    assert LocalCollector(env, agent, 4, torch.Generator())._actor is None


def test_a_snapshot_has_the_observations_of_the_last_step() -> None:
    found = collector("CartPole-v1")
    batch = found.collect()
    assert torch.equal(found.env.snapshot()["obs"], batch.obs[-1])


def test_a_reset_renews_a_held_policy_before_its_memories_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = collector("CartPole-v1")
    calls: list[str] = []
    held = LocalCollector(plain.env, plain.agent, 32, torch.Generator(), renew=lambda: calls.append("renew"))
    begin = plain.agent.begin
    monkeypatch.setattr(plain.agent, "begin", lambda obs: calls.append("begin") or begin(obs))
    held.reset(3)
    assert calls == ["renew", "begin"]
