"""TQC: pooled and truncated targets by hand, and a loss that is the one over all pairs."""

from math import log
from typing import Any

import pytest
import torch
from replay_blocks import (
    ONE,
    SGD,
    Plain,
    assert_same_weights,
    batch_of,
    build,
    learn,
    plain_actor,
    plain_critics,
    same,
    says,
    transitions,
    weights,
)
from torch import Tensor

from whorl.algorithms.tqc import TQC, truncated
from whorl.core.errors import ConfigError
from whorl.core.spec import Array
from whorl.ops.distributions import TanhNormal
from whorl.settings.merge import configure

FACTS = torch.tensor([[1.0, 4, 9], [2, 3, 8]])[:, None, None]
"""two critics' quantiles of one row [critics, T, B, quantiles]"""


def test_quantiles_of_all_critics_are_pooled_and_the_largest_of_the_pool_dropped() -> None:
    assert truncated(FACTS, 1).tolist() == [[[1, 2, 3, 4]]]
    # The two largest of the pool, 8 and 9, not the largest of each critic, 9 and 3
    apart = torch.tensor([[7.0, 8, 9], [2, 1, 3]])[:, None, None]
    assert truncated(apart, 1).tolist() == [[[1, 2, 3, 7]]]
    assert truncated(apart, 2).tolist() == [[[1, 2]]]


def test_nothing_is_dropped_where_no_atoms_are_to_be() -> None:
    assert truncated(FACTS, 0).tolist() == [[[1, 2, 3, 4, 8, 9]]]


def test_the_quantiles_sit_at_the_middle_of_their_shares_in_every_critic() -> None:
    tau = build(TQC, n_critics=2, n_quantiles=4).tau
    assert tau.tolist() == [0.125, 0.375, 0.625, 0.875] * 2


def pairwise(quantile: Tensor, tau: Tensor, target: Tensor) -> Tensor:
    """The loss of one row as the paper writes it: a mean over every pair of a quantile [N] and a target [K]."""
    total = torch.zeros((), dtype=quantile.dtype)
    for theta, level in zip(quantile, tau.repeat(len(quantile) // len(tau))):
        for goal in target:
            error = goal - theta
            size = 0.5 * error**2 if error.abs() <= 1 else error.abs() - 0.5
            total = total + (level - float(error < 0)).abs() * size
    return total / (len(quantile) * len(target))


@pytest.mark.parametrize(
    ("discount", "target"),
    [
        # log pi = -.803710, alpha .2: 1 + .9 * (z + .160742)
        (0.9, [2.0446678, 2.9446678, 3.8446678, 4.7446678]),
        (0.729, [1.8461809, 2.5751809, 3.3041809, 4.0331809]),
        (0.0, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_targets_are_what_is_kept_with_the_entropy_and_the_loss_runs_over_all_pairs(
    discount: float, target: list[float]
) -> None:
    agent = build(TQC, ONE, Array((1,)), n_critics=2, n_quantiles=3, top_quantiles_to_drop=1, alpha=0.2)
    said = torch.tensor([[0.0, 3, 2], [5, 1, 7]])[:, None, None]
    says(agent.actor, lambda obs: TanhNormal(torch.zeros_like(obs), torch.zeros_like(obs)))
    says(agent.target_critic, lambda obs, action: FACTS)
    says(agent.critic, lambda obs, action: said)
    batch = batch_of(torch.zeros(2, 1, 1), torch.zeros(1, 1, 1), [1.0], [discount])
    noise = {**agent.draw(batch), "next_action": torch.full((1, 1, 1), 0.5)}
    loss, error, q = agent.critic_loss(batch, noise)
    levels, wanted = torch.tensor([1 / 6, 0.5, 5 / 6]), torch.tensor(target)
    torch.testing.assert_close(loss, pairwise(said.flatten(), levels, wanted))
    assert float(q) == 3.0
    assert float(error) == pytest.approx(abs(3.0 - float(wanted.mean())), abs=1e-6)


def test_the_actor_climbs_the_mean_of_all_quantiles() -> None:
    agent = build(TQC, ONE, Array((1,)), n_critics=2, n_quantiles=3, alpha=0.2)
    says(agent.actor, lambda obs: TanhNormal(torch.zeros_like(obs), torch.zeros_like(obs)))
    says(agent.critic, lambda obs, action: FACTS)
    batch = batch_of(torch.zeros(2, 1, 1), torch.zeros(1, 1, 1), [1.0], [0.9])
    loss, log_prob, _ = agent.actor_loss(batch, {**agent.draw(batch), "action": torch.full((1, 1, 1), 0.5)})
    assert float(log_prob) == pytest.approx(-0.803710, abs=1e-6)
    assert float(loss) == pytest.approx(0.2 * -0.803710 - 27 / 6, abs=1e-6)


@pytest.mark.parametrize("drop", [0, 2])
def test_updates_are_the_rule_written_out(drop: int) -> None:
    rates: dict[str, Any] = {"critic_lr": 0.05, "actor_lr": 0.2, "alpha_lr": 0.3}
    shape = {"n_critics": 3, "n_quantiles": 5, "top_quantiles_to_drop": drop}
    agent = build(TQC, alpha=0.4, tau=0.1, optimizer=SGD, **rates, **shape)
    critics, actor = plain_critics(agent.critic), plain_actor(agent.actor)
    targets, log_alpha = [net.copy() for net in critics], torch.tensor(log(0.4), dtype=torch.float64)
    tau = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)

    def sample(obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(obs).chunk(2, -1)
        before = mean + log_std.exp() * noise
        density = torch.distributions.Normal(mean, log_std.exp()).log_prob(before)
        return before.tanh(), (density - (1 - before.tanh().square()).log()).sum(-1)

    def loss_of(net: Plain, rows: Tensor, target: Tensor) -> Tensor:
        return torch.stack([pairwise(q, tau, y) for q, y in zip(net(rows), target)]).mean()

    for number in (1, 2):
        batch = transitions(agent, seed=number)
        raw = {"action": torch.randn(1, 6, 2), "next_action": torch.randn(1, 6, 2)}
        layers: Any = {
            key: {} for key in ("layers", "next_layers", "critic", "target_critic", "actor_critic")
        }
        agent.draw = lambda _, found={**raw, **layers}: found
        obs, action, reward, discount, noise, next_noise = (
            t.double()
            for t in (
                batch.obs,
                batch.action[0],
                batch.reward[0],
                batch.discount[0],
                *(n[0] for n in raw.values()),
            )
        )
        learn(agent, batch)
        with torch.no_grad():
            following, log_prob = sample(obs[1], next_noise)
            pool = torch.cat([net(torch.cat((obs[1], following), -1)) for net in targets], -1)
            kept = pool.sort(-1).values[:, : 15 - 3 * drop]
            soft = kept - log_alpha.exp() * log_prob[:, None]
            target = reward[:, None] + discount[:, None] * soft
        now = torch.cat((obs[0], action), -1)
        for net in critics:
            # a mean over all 15 quantiles: a third of the mean over the five of this critic
            net.descend(loss_of(net, now, target) / 3, 0.05)
        ours, log_prob = sample(obs[0], noise)
        value = sum(net(torch.cat((obs[0], ours), -1)).mean(-1) for net in critics) / 3
        actor.descend((log_alpha.exp() * log_prob - value).mean(), 0.2)
        log_alpha += 0.3 * (log_prob.detach().mean() - 2)
        for follower, online in zip(targets, critics):
            follower.follow(online, 0.1)
    assert_same_weights(plain_critics(agent.critic), critics)
    assert_same_weights([plain_actor(agent.actor)], [actor])
    assert_same_weights(plain_critics(agent.target_critic), targets)
    assert agent.temperature.log_alpha.item() == pytest.approx(log_alpha.item(), abs=1e-5)


@pytest.mark.parametrize(("log_std", "rises"), [(-5.0, True), (0.0, False)])
def test_entropy_below_the_target_raises_the_temperature(log_std: float, rises: bool) -> None:
    agent = build(TQC, alpha_lr=0.1)
    with torch.no_grad():
        agent.actor.head.both.bias[2:] = log_std
    learn(agent, transitions(agent))
    assert (agent.temperature.log_alpha.item() > 0) == rises


def test_a_fixed_temperature_stays() -> None:
    agent = build(TQC, alpha=0.3, tune_alpha=False)
    learn(agent, transitions(agent))
    assert agent.temperature().item() == pytest.approx(0.3)


def test_the_order_in_which_a_critic_says_its_quantiles_matters_to_its_loss_but_not_to_targets() -> None:
    agent = build(TQC, n_critics=2, n_quantiles=3, top_quantiles_to_drop=1)
    batch = transitions(agent)
    noise = agent.draw(batch)
    before = agent.critic_loss(batch, noise)[0]
    with torch.no_grad():
        for part in (agent.target_critic.nets.weights[-1], agent.target_critic.nets.biases[-1]):
            part.copy_(part.flip(-1))
    assert agent.critic_loss(batch, noise)[0].equal(before)
    with torch.no_grad():
        for part in (agent.critic.nets.weights[-1], agent.critic.nets.biases[-1]):
            part.copy_(part.flip(-1))
    assert not agent.critic_loss(batch, noise)[0].isclose(before)


def test_the_critics_move_and_their_targets_follow() -> None:
    agent = build(TQC, tau=0.25)
    before, target = weights(agent.critic), weights(agent.target_critic)
    learn(agent, transitions(agent))
    after = weights(agent.critic)
    assert not any(a.equal(b) for a, b in zip(before, after))
    assert same(weights(agent.target_critic), [torch.lerp(a, b, 0.25) for a, b in zip(target, after)])


@pytest.mark.parametrize("drop", [3, 4])
def test_a_critic_must_keep_a_quantile(drop: int) -> None:
    settings: dict[str, Any] = {"n_quantiles": 3, "top_quantiles_to_drop": drop}
    with pytest.raises(
        ConfigError, match=f"top_quantiles_to_drop is {drop}, but a critic has 3 quantiles; use at most 2"
    ):
        build(TQC, **settings)


@pytest.mark.parametrize(
    ("env", "drop"),
    [("HalfCheetah-v5", 0), ("Hopper-v5", 5), ("Walker2d-v5", 2), ("Ant-v5", 2), ("Humanoid-v5", 2)],
)
def test_the_presets_have_the_authors_quantiles_and_critics(env: str, drop: int) -> None:
    """Kuznetsov et al. 2020 and SamsungLabs/tqc_pytorch."""
    found = configure("tqc", env, {})
    assert (found.n_critics, found.n_quantiles, found.top_quantiles_to_drop) == (5, 25, drop)
    assert found.critic_hidden_sizes == (512, 512, 512)
    assert found.actor_hidden_sizes == (256, 256)
