"""QR-DQN: a loss over all pairs of quantiles, targets by hand, and what is chosen."""

from typing import Any

import pytest
import torch
from replay_blocks import SGD, assert_same_weights, learn, reweighted, transitions
from torch import Tensor
from value_blocks import allowing, build, context, plain_values, telling, told

from whorl.algorithms.qr_dqn import QRDQN
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.settings.merge import configure

NONE: dict[str, Any] = {"online": {}, "select": {}, "target": {}}
"""noise of nets without noisy layers"""


def pairwise(quantile: Tensor, tau: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """The loss of one row as the paper writes it: over quantiles a sum, over targets a mean."""
    total = torch.zeros((), dtype=quantile.dtype)
    for theta, level in zip(quantile, tau):
        for goal in target:
            error = goal - theta
            size = 0.5 * error**2 if error.abs() <= kappa else kappa * (error.abs() - kappa / 2)
            total = total + (level - float(error < 0)).abs() * size / len(target)
    return total


def test_the_quantiles_sit_at_the_middle_of_their_shares() -> None:
    assert build(QRDQN, n_quantiles=4).tau.tolist() == [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize(("kappa", "wanted"), [(1.0, 1.583333), (2.0, 2.5)])
def test_the_loss_matches_the_published_case(kappa: float, wanted: float) -> None:
    agent = telling(QRDQN, 1, 3, n_quantiles=3, kappa=kappa)
    # Quantiles -1 and 3 at .2 and .7, and a third whose fraction of 0 and place below all targets make it count nothing
    agent.tau.copy_(torch.tensor([0.2, 0.7, 0.0]))
    batch = told([[[-1.0, 3.0, -99.0]]], [[[-3.0, 4.0, 2.0]]], [0], [0.0], [1.0])
    assert float(agent.critic_loss(batch, NONE)[0]) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("kappa", [0.5, 1.0])
def test_the_loss_is_that_over_all_pairs_and_so_is_its_gradient(kappa: float) -> None:
    agent = build(QRDQN, n_quantiles=5, kappa=kappa)
    batch = transitions(agent)
    weight = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0, 1.0])
    loss = agent.critic_loss(reweighted(batch, weight), NONE)[0]
    said = agent.critic(batch.now)[0, torch.arange(6), batch.action[0]]  # [6, quantiles]
    target = agent.target(batch, NONE)[0]
    wanted = torch.stack(
        [w * pairwise(q, agent.tau, y, kappa) for w, q, y in zip(weight, said, target)]
    ).mean()
    torch.testing.assert_close(loss, wanted)
    parameters = list(agent.critic.parameters())
    for ours, theirs in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(wanted, parameters)):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_another_loss_takes_the_place_of_the_huber_loss() -> None:
    agent = build(QRDQN, n_quantiles=5, loss=Part("squared"))
    batch = transitions(agent)
    said = agent.critic(batch.now)[0, torch.arange(6), batch.action[0]]  # [6, quantiles]
    target = agent.target(batch, NONE)[0]
    # The Huber loss is half the square up to its threshold.
    wanted = torch.stack([pairwise(q, agent.tau, y, 1e9) for q, y in zip(said, target)]).mean()
    torch.testing.assert_close(agent.critic_loss(batch, NONE)[0], wanted)


def test_a_loss_may_depend_on_the_sign_of_the_error() -> None:
    """A loss is called with (quantile, target), in this order."""

    def only_too_high(quantile: Tensor, target: Tensor) -> Tensor:
        return (quantile - target).clamp(min=0)

    agent = telling(QRDQN, 1, 2, n_quantiles=2)
    agent.loss = only_too_high
    batch = told([[[0.0, 4.0]]], [[[1.0, 2.0]]], [0], [0.0], [1.0])
    # Fractions .25 and .75; only the second quantile is too high, by 3 and 2, each weighted by |.75 - 1|.
    assert float(agent.critic_loss(batch, NONE)[0]) == pytest.approx(0.25 * (3 + 2) / 2, abs=1e-6)


def test_the_order_of_the_target_nets_quantiles_does_not_matter_but_that_of_the_online_nets_does() -> None:
    agent = telling(QRDQN, 1, 3, n_quantiles=3)
    now, after = [1.0, 2.0, 5.0], [0.0, 3.0, 4.0]

    def loss(now: list[float], after: list[float]) -> Tensor:
        return agent.critic_loss(told([[now]], [[after]], [0], [0.5], [0.9]), NONE)[0]

    assert loss(now, after).equal(loss(now, [4.0, 0.0, 3.0]))
    assert not loss(now, after).isclose(loss([5.0, 1.0, 2.0], after))


# Targets


def test_targets_priorities_and_means_by_hand() -> None:
    agent = telling(QRDQN, 2, 3, n_quantiles=3)
    now, after = [[9.0, 9, 9], [2, 3, 7]], [[-1.0, 0, 1], [0, 2, 7]]  # means 9, 4 and 0, 3
    batch = told([now] * 3, [after] * 3, [1] * 3, [1.0] * 3, [0.0, 0.9, 0.729])
    target = agent.target(batch, NONE)[0]
    wanted = torch.tensor([[1.0, 1, 1], [1, 2.8, 7.3], [1, 2.458, 6.103]])
    torch.testing.assert_close(target, wanted)
    loss, error, q = agent.critic_loss(batch, NONE)
    assert error[0].tolist() == pytest.approx([3.0, abs(4 - 3.7), abs(4 - 3.187)], abs=1e-6)
    assert float(q) == 4.0
    rows = [pairwise(torch.tensor([2.0, 3.0, 7.0]), agent.tau, y) for y in wanted]
    torch.testing.assert_close(loss, torch.stack(rows).mean())
    more = told([now], [after], [1], [9.0], [0.0])
    assert agent.critic_loss(more, NONE)[1].tolist() == [
        [5.0]
    ]  # a return above what was expected counts as well


def test_the_choice_is_that_of_the_highest_mean() -> None:
    agent = build(QRDQN, 2, n_quantiles=3)
    with torch.no_grad():
        agent.critic.advantage.last.weight.zero_()
        agent.critic.advantage.last.bias.copy_(torch.tensor([0.0, 0, 10, 4, 4, 4]))
        assert agent.act(torch.zeros(3, 3), {}, context(3, greedy=True)).action.tolist() == [1, 1, 1]


def test_double_takes_the_online_nets_choice_and_the_target_nets_quantiles() -> None:
    after, judged = [[[0.0, 1.0], [5.0, 9.0]]], [[[3.0, 3.0], [0.0, 5.0]]]
    batch = told([[[0.0, 0.0]] * 2], after, [0], [0.0], [1.0], judged=judged)
    for double, wanted in ((False, [5.0, 9.0]), (True, [0.0, 1.0])):
        assert telling(QRDQN, 2, 2, n_quantiles=2, double=double).target(batch, NONE)[0, 0].tolist() == wanted


def test_rescaled_quantiles_go_through_the_inverse() -> None:
    # h(50) and h(3): h(1 + .99 * 50) = 6.226850, h(1 + .99 * 3) = sqrt(4.97) - 1 + .00397
    agent = telling(QRDQN, 1, 2, n_quantiles=2, rescale_values=True)
    after = [[[51**0.5 - 1 + 0.05, 1.003]]]
    found = agent.target(told([[[0.0, 0.0]]], after, [0], [1.0], [0.99]), NONE)[0, 0]
    assert found.tolist() == pytest.approx([6.226850, 4.97**0.5 - 1 + 0.00397], abs=2e-6)


SOFT: dict[str, Any] = {"munchausen": 0.9, "munchausen_temperature": 0.5}


def test_munchausen_targets_by_hand() -> None:
    # Means (1, 0) of the rows and (2, 1) of what follows, as in DQN: pi = (.880797, .119203), .5 log pi = (-.063464,
    # -1.063464), the second cut off at -1. Of what follows, sum pi (z - .5 log pi) for either quantile.
    agent = telling(QRDQN, 2, 2, n_quantiles=2, **SOFT)
    known, after = [[0.5, 1.5], [-2.0, 2.0]], [[1.0, 3.0], [1.0, 1.0]]
    batch = told(
        [[[8.0, 8.0]] * 2] * 3, [after] * 3, [0, 1, 0], [1.0] * 3, [0.5, 0.5, 0.0], known=[known] * 3
    )
    entropy = 0.880797 * 0.063464 + 0.119203 * 1.063464
    first, second = 1.0 + entropy, 0.880797 * 3 + 0.119203 * 1 + entropy
    bonus = 0.9 * -0.063464
    wanted = [
        [1 + bonus + 0.5 * first, 1 + bonus + 0.5 * second],
        [1 - 0.9 + 0.5 * first, 1 - 0.9 + 0.5 * second],
        [1 + bonus, 1 + bonus],
    ]
    torch.testing.assert_close(agent.soft_target(batch, NONE)[0], torch.tensor(wanted), atol=2e-6, rtol=0)
    # their mean is DQN's target
    assert (wanted[0][0] + wanted[0][1]) / 2 == pytest.approx(1 + bonus + 0.5 * 2.063464, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, [6.0, 8.0]),
        ({"double": True}, [4.0, 6.0]),
        # pi of 5 against 7 at .5: 1 / (1 + e^4) = .017986 of the first; .5 log pi = (-2.009075, -.009075)
        (
            SOFT,
            [
                x * 0.017986 + y * 0.982014 + 0.017986 * 2.009075 + 0.982014 * 0.009075
                for x, y in ((4, 6), (6, 8))
            ],
        ),
    ],
)
def test_what_is_not_allowed_is_not_in_a_target(settings: dict[str, Any], wanted: list[float]) -> None:
    agent = telling(QRDQN, 3, 2, n_quantiles=2, masked=True, **settings)
    after, judged = [[4.0, 6.0], [100, 100], [6, 8]], [[2.0, 2.0], [50, 50], [1, 1]]
    # one choice is allowed now, so its log-probability is 0
    batch = told([[[0.0, 0.0]] * 3], [after], [0], [0.0], [1.0], judged=[judged])
    batch = allowing(batch, now=(1, 0, 0), after=(1, 0, 1))
    found = agent.soft_target(batch, NONE) if settings is SOFT else agent.target(batch, NONE)
    assert found[0, 0].tolist() == pytest.approx(wanted, abs=1e-5)


# Updates


@pytest.mark.parametrize("double", [False, True])
def test_updates_are_the_rule_written_out(double: bool) -> None:
    settings = {
        "optimizer": SGD,
        "learning_rate": 0.1,
        "max_grad_norm": 0.0,
        "target_update_interval": 2,
        "double": double,
    }
    agent = build(QRDQN, n_quantiles=4, **settings)
    net = plain_values(agent.critic)
    follower, rows, tau = net.copy(), torch.arange(6), torch.tensor([0.125, 0.375, 0.625, 0.875]).double()
    for number in (1, 2, 3):
        batch = transitions(agent, seed=number)
        obs, reward, discount = batch.obs.double(), batch.reward[0].double(), batch.discount[0].double()
        learn(agent, batch)
        with torch.no_grad():
            following = follower(obs[1]).reshape(6, 3, 4)
            judged = net(obs[1]).reshape(6, 3, 4) if double else following
            chosen = following[rows, judged.mean(-1).argmax(-1)]
            goal = reward[:, None] + discount[:, None] * chosen
        said = net(obs[0]).reshape(6, 3, 4)[rows, batch.action[0]]
        net.descend(torch.stack([pairwise(q, tau, y) for q, y in zip(said, goal)]).mean(), 0.1)
        if number == 2:
            follower.follow(net, 1.0)
    assert_same_weights([plain_values(agent.critic)], [net])
    assert_same_weights([plain_values(agent.target_critic)], [follower])


@pytest.mark.parametrize(
    ("settings", "told_so"),
    [
        ({"n_quantiles": 0}, "n_quantiles is 0; it must be from 1 to 100,000"),
        ({"kappa": 0}, "kappa is 0.0; it must be from 1e-06 to 1,000,000"),
        ({"loss": "hubber"}, "loss is 'hubber'; did you mean 'huber'?"),
        ({"munchausen": 0.9, "double": True}, "munchausen and double are both set"),
    ],
)
def test_wrong_settings_are_one_sentence(settings: dict[str, Any], told_so: str) -> None:
    with pytest.raises(ConfigError) as e:
        configure("qr_dqn", "CartPole-v1", settings)
    assert str(e.value).startswith(told_so) and "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("settings", "told_so"),
    [
        (
            {"loss": Part("huber", {"delta": 2.0})},
            "the threshold of the Huber loss between quantiles is kappa",
        ),
        ({"loss": Part("squared"), "kappa": 2.0}, "kappa is 2, but loss 'squared' has no threshold"),
        ({"loss": Part("torch.nn.MSELoss")}, "loss 'torch.nn.MSELoss' must return one value per element"),
    ],
)
def test_losses_that_do_not_fit_are_one_sentence(settings: dict[str, Any], told_so: str) -> None:
    with pytest.raises(ConfigError) as e:
        build(QRDQN, **settings)
    assert str(e.value).startswith(told_so) and "\n" not in str(e.value)
