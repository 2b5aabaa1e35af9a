"""Behaviour cloning: the likelihood by hand, for all kinds of actions, and masked rows of sequences."""

from math import log, pi

import pytest
import torch
from replay_blocks import ONE, SGD, batch_of, build, learn, says, transitions, weights

from whorl.algorithms.bc import BC
from whorl.core.spec import Array, Continuous, Discrete, MultiDiscrete, TupleSpec
from whorl.ops.distributions import Categorical as OneOf
from whorl.ops.distributions import Joint, MultiCategorical, Normal


def bc(action: object, **settings: object) -> BC:
    return build(BC, action, Array((1,)), critic_hidden_sizes=(), **settings)


def test_continuous_actions_have_a_gaussian_likelihood() -> None:
    agent = bc(ONE)
    says(agent.actor, lambda obs: Normal(obs, torch.tensor([log(0.5)])))
    obs = torch.tensor([[[0.0], [0.5]], [[0.0], [0.0]]])
    batch = batch_of(obs, torch.tensor([[[1.0], [0.5]]]), [0.0, 0.0], [0.9, 0.9])
    # -log N(1; 0, .5) = 2^2 / 2 + log .5 + log(2 pi) / 2 and -log N(.5; .5, .5) without the first term
    one = log(0.5) + log(2 * pi) / 2
    assert float(agent.loss(batch)) == pytest.approx((2 + one + one) / 2)


def test_discrete_and_mixed_actions_add_their_log_probabilities() -> None:
    mixed = TupleSpec({"0": Discrete(2), "1": ONE, "2": MultiDiscrete((2, 2))})
    agent = bc(mixed)
    even = torch.zeros(1, 1, 4)
    says(
        agent.actor,
        lambda obs: Joint(
            {
                "0": OneOf(torch.tensor([[[log(0.25), log(0.75)]]])),
                "1": Normal(torch.zeros(1, 1, 1), torch.zeros(1)),
                "2": MultiCategorical(even, (2, 2)),
            }
        ),
    )
    action = {"0": torch.tensor([[1]]), "1": torch.tensor([[[1.0]]]), "2": torch.tensor([[[0, 1]]])}
    batch = batch_of(torch.zeros(2, 1, 1), action, [0.0], [0.9])
    expected = -log(0.75) + 0.5 + log(2 * pi) / 2 + 2 * log(2)
    assert float(agent.loss(batch)) == pytest.approx(expected, rel=1e-5)


def test_rows_without_share_have_no_influence() -> None:
    agent = bc(ONE)
    batch = batch_of(torch.randn(2, 2, 1), torch.tensor([[[0.3], [0.9]]]), [0.0, 0.0], [0.9, 0.9])
    batch.extras["share"] = torch.tensor([[2.0, 0.0]])
    alone = batch_of(batch.obs[:, :1], batch.action[:, :1], [0.0], [0.9])
    torch.testing.assert_close(agent.loss(batch), agent.loss(alone))


def test_an_update_is_one_step_along_the_likelihood() -> None:
    agent = build(BC, ONE, optimizer=SGD, actor_lr=0.1)
    batch = transitions(agent)
    before = weights(agent.actor)
    slopes = torch.autograd.grad(agent.loss(batch), list(agent.actor.parameters()))
    updated = learn(agent, batch)
    for new, old, slope in zip(weights(agent.actor), before, slopes):
        torch.testing.assert_close(new, old - 0.1 * slope)
    assert set(updated.metrics) == {"loss/actor"}


def test_actions_without_bounds_can_be_cloned() -> None:
    agent = build(BC, Continuous((2,), (-float("inf"),) * 2, (float("inf"),) * 2))
    assert learn(agent, transitions(agent)).metrics["loss/actor"].isfinite()
