"""IQL: expectile, targets from V, and clipped advantage weights, each with numbers worked by hand."""

from math import exp, log, pi

import pytest
import torch
from replay_blocks import ONE, SGD, batch_of, build, learn, same, says, transitions, weights

from whorl import conformance
from whorl.algorithms.iql import IQL
from whorl.core.spec import Array, Discrete, MultiDiscrete, TupleSpec
from whorl.ops.distributions import Normal
from whorl.ops.losses import expectile_loss


def test_the_expectile_weighs_errors_above_and_below() -> None:
    found = expectile_loss(torch.tensor([2.0, -2.0, 0.0, -1.0]), 0.7)
    torch.testing.assert_close(found, torch.tensor([2.8, 1.2, 0.0, 0.3]))


def fixed(**settings: float) -> IQL:
    """V(s) = s; Q' = 3 a and 10 - a; Q = 0 and 1."""
    agent = build(IQL, ONE, Array((1,)), **settings)
    says(agent.state_value, lambda obs: obs[..., 0])
    says(agent.target_critic, lambda obs, a: torch.stack((3 * a[..., 0], 10 - a[..., 0])))
    says(agent.critic, lambda obs, a: torch.stack((0 * a[..., 0], 0 * a[..., 0] + 1)))
    return agent


def test_critics_learn_rewards_and_the_value_of_the_successor_and_v_an_expectile_of_the_targets() -> None:
    agent = fixed(expectile=0.8)
    obs = torch.tensor([[[1.0], [2.0]], [[4.0], [8.0]]])
    batch = batch_of(obs, torch.tensor([[[1.0], [0.5]]]), [1.0, 2.0], [0.5, 0.0])
    loss, error, q, metrics = agent.critic_loss(batch, agent.draw(batch))
    # targets: 1 + .5 * 4 = 3, and 2 at the end of the episode; Q = 0 and 1
    critics = ((9 + 4) + (4 + 1)) / 2
    # u = min Q' - V = 3 - 1 = 2 and 1.5 - 2 = -.5: .8 * 4 and .2 * .25
    value = (3.2 + 0.05) / 2
    assert float(loss) == pytest.approx(critics + value)
    assert float(metrics["loss/value"]) == pytest.approx(value)
    assert error.tolist() == [[2.5, 1.5]]
    assert float(q) == 0.5


def test_the_actor_imitates_by_clipped_exponential_advantages() -> None:
    agent = fixed(advantage_beta=2.0, advantage_clip=10.0)
    says(agent.actor, lambda obs: Normal(torch.zeros(1, 2, 1), torch.zeros(1)))
    obs = torch.tensor([[[1.0], [1.0]], [[0.0], [0.0]]])
    batch = batch_of(obs, torch.tensor([[[0.5], [1.0]]]), [0.0, 0.0], [0.9, 0.9])
    # advantages 1.5 - 1 and 3 - 1; weights e^1 and e^4, clipped to 10
    costs = [a**2 / 2 + log(2 * pi) / 2 for a in (0.5, 1.0)]
    loss, weight = agent.actor_loss(batch, agent.draw(batch))
    assert float(loss) == pytest.approx((exp(1) * costs[0] + 10 * costs[1]) / 2)
    assert float(weight) == pytest.approx((exp(1) + 10) / 2)


def test_an_update_moves_critics_value_and_actor_once_and_the_targets_after() -> None:
    agent = build(IQL, optimizer=SGD, critic_lr=0.1, actor_lr=0.2, tau=0.25)
    batch, nets = transitions(agent), (agent.critic, agent.state_value)
    noise = agent.draw(batch)
    before, target = [weights(net) for net in nets], weights(agent.target_critic)
    parameters = [parameter for net in nets for parameter in net.parameters()]
    slopes = torch.autograd.grad(agent.critic_loss(batch, noise)[0], parameters, allow_unused=True)
    learn(agent, batch)
    old = [weight for found in before for weight in found]
    new = [weight for net in nets for weight in weights(net)]
    for after, was, slope in zip(new, old, slopes, strict=True):
        torch.testing.assert_close(after, was - 0.1 * slope)
    moved = [torch.lerp(a, b, 0.25) for a, b in zip(target, weights(agent.critic))]
    assert same(weights(agent.target_critic), moved)


def test_the_value_does_not_learn_from_targets_nor_critics_from_the_value() -> None:
    agent = build(IQL)
    batch = transitions(agent)
    loss = agent.critic_loss(batch, agent.draw(batch))[0]
    assert all(p.grad is None for p in agent.target_critic.parameters())
    alone = batch.replace(discount=torch.zeros_like(batch.discount))
    critic = list(agent.critic.parameters())
    # Without successors the slope of V is the same: V(s') is a constant of the critics' targets.
    value = list(agent.state_value.parameters())
    one = torch.autograd.grad(loss, value, retain_graph=True)
    other = torch.autograd.grad(agent.critic_loss(alone, agent.draw(alone))[0], value)
    assert same(list(one), list(other))
    assert torch.autograd.grad(loss, critic)[0].abs().sum() > 0


@pytest.mark.parametrize(
    "action", [Discrete(3), MultiDiscrete((2, 3)), TupleSpec({"0": Discrete(2), "1": ONE})], ids=str
)
def test_other_actions_are_read_by_critics_as_one_vector(action: object) -> None:
    agent = build(IQL, action)
    taken = {
        "Discrete": torch.zeros(1, 6, dtype=torch.int64),
        "MultiDiscrete": torch.zeros(1, 6, 2, dtype=torch.int64),
        "TupleSpec": {"0": torch.zeros(1, 6, dtype=torch.int64), "1": torch.zeros(1, 6, 1)},
    }[type(action).__name__]
    batch = batch_of(torch.randn(2, 6, 3), taken, torch.randn(6), torch.full((6,), 0.9))
    assert learn(agent, batch).metrics["loss/actor"].isfinite()


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_values_are_those_of_the_sum_of_reward_streams(memory: str) -> None:
    def learned(**settings: object) -> conformance.Run:
        case = conformance.subject("iql", "vector", memory, "continuous", dataset="", **settings)
        run = conformance.Run(case)
        assert run.feed(case.rollouts(run.agent, 3))
        return run

    plain, unused, used = (
        learned(),
        *(learned(components=["count"], count={"weight": w}) for w in (0.0, 1.0)),
    )
    for name, value in plain.agent.state_dict().items():
        assert torch.equal(unused.agent.state_dict()[name], value)
    assert not conformance.same(weights(used.agent.state_value), weights(plain.agent.state_value))
