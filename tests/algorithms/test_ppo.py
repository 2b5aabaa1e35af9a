"""PPO: a first pass that is the plain policy gradient, targets worked by hand, gates and rates on the device."""

from typing import Any

import numpy as np
import pytest
import torch
from on_policy_blocks import (
    ACTIONS,
    ENTROPY_STEP,
    TREE,
    VECTOR,
    Chain,
    Walk,
    build,
    entropy_step,
    learned_values,
    poison,
    rollout,
    same,
    weights,
)
from torch import Tensor

from whorl.agents.agent import Context
from whorl.algorithms.ppo import PPO
from whorl.core.registry import Part
from whorl.core.spec import MASK_KEY, Array, Discrete
from whorl.data.batch import Batch, Rows
from whorl.data.rollouts import minibatches
from whorl.ops.by_hand import PolicyRows, categorical_surrogate
from whorl.ops.losses import row_weight

ONE_PASS = {"n_epochs": 1, "batch_size": 16}
V = torch.tensor([[0.5, 1.0, -0.5, 0.2, 0.7]]).T  # [T+1, B]
R = torch.tensor([[1.0, 0.0, -1.0, 2.0]]).T


@pytest.mark.parametrize("memory", ["none", "lstm", "gru"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_the_first_minibatch_has_ratio_one_and_the_policy_gradient(kind: str, memory: str) -> None:
    agent = build(PPO, ACTIONS[kind], TREE, memory=memory, chunk_length=4, **ONE_PASS)
    batch = rollout(agent)
    advantage, _, _ = agent.estimate(batch)
    columns = {
        "action": batch.action,
        "log_prob": batch.extras["log_prob"],
        "advantage": advantage,
        "weight": row_weight(batch.mask),
    }
    rows, data = next(iter(minibatches(batch, columns, 16, torch.Generator().manual_seed(0))))
    loss, log_ratio, entropy = agent.actor_loss(agent.actor(rows), data, measure=True)
    _, kl, clipped = agent.distance(log_ratio, entropy, data)
    torch.testing.assert_close(log_ratio, torch.zeros_like(log_ratio), atol=1e-6, rtol=0)
    assert float(kl) == pytest.approx(0, abs=1e-6)
    assert float(clipped) == 0
    log_prob = agent.actor(rows).log_prob(data["action"])
    policy_gradient = -(log_prob * data["advantage"] * data["weight"]).mean()
    parameters = list(agent.actor.parameters())
    for ours, plain in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(policy_gradient, parameters)
    ):
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-4)


def test_rows_of_an_older_policy_count_by_the_ratio_of_the_two_at_most_one() -> None:
    agent = build(PPO, ACTIONS["discrete"], TREE, overlap_rollouts=True, **ONE_PASS)
    batch = rollout(agent)
    now = agent.actor(batch.now).log_prob(batch.action).detach()
    older = torch.where(torch.arange(now.numel()).reshape(now.shape) % 2 == 0, now + 0.5, now - 0.5)
    batch = batch.replace(extras={**batch.extras, "log_prob": older})
    columns, _ = agent.columns_of(batch, torch.full_like(now, 2.0), now, now)
    expected = torch.where(
        older > now, 2 * torch.tensor(-0.5).exp(), torch.tensor(2.0)
    )  # e^-0.5, and 1 for e^0.5
    valid = batch.mask > 0
    torch.testing.assert_close(columns["advantage"][valid], expected[valid])
    torch.testing.assert_close(columns["log_prob"][valid], now[valid])


def test_overlap_changes_nothing_where_the_newest_policy_acted() -> None:
    found = []
    for overlap in (False, True):
        agent = build(PPO, overlap_rollouts=overlap, **ONE_PASS)
        agent.update(rollout(agent))
        found.append(weights(agent))
    for plain, overlapped in zip(*(each.values() if isinstance(each, dict) else each for each in found)):
        torch.testing.assert_close(overlapped, plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("target", "keep", "discount", "expected"),
    [
        ("gae", [1, 1, 1, 1], [0.9] * 4, [1.5971, 0.57931, 0.9296, 2.63]),
        ("gae", [1, 0, 1, 1], [0.9, 0, 0.9, 0.9], [1.18, 0.0, 0.9296, 2.63]),
        # r + .9 * (...) up to the end of the episode or of the segment, there .9 * V
        ("return", [1, 1, 1, 1], [0.9] * 4, [2.10727, 1.2303, 1.367, 2.63]),
        ("return", [1, 0, 1, 1], [0.9, 0, 0.9, 0.9], [1.0, 0.0, 1.367, 2.63]),
        # truncated after row 1: the return goes on with the value of the final observation, -.5
        ("return", [1, 0, 1, 1], [0.9] * 4, [0.595, -0.45, 1.367, 2.63]),
    ],
)
def test_value_targets(target: str, keep: list[float], discount: list[float], expected: list[float]) -> None:
    agent = build(PPO, value_target=target, gae_lambda=0.8)
    agent.critic.forward = lambda rows: V
    ones = torch.ones(4, 1)
    batch = Batch({}, ones > 1, {}, R, torch.tensor([discount]).T, torch.tensor([keep]).T, ones)
    found = agent.estimate(batch)[1]
    torch.testing.assert_close(found[:, 0], torch.tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ACTIONS)
def test_masked_rows_have_exactly_no_influence(kind: str) -> None:
    def after(poisoned: bool) -> list[Tensor]:
        agent = build(PPO, ACTIONS[kind], n_epochs=2, batch_size=8)
        batch = rollout(agent)
        if poisoned:
            poison(batch)
        agent.update(batch)
        return weights(agent)

    assert same(after(False), after(True))


@pytest.mark.parametrize("memory", ["none", "lstm", "gru"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_every_parameter_moves_for_every_kind_of_action_and_memory(kind: str, memory: str) -> None:
    agent = build(PPO, ACTIONS[kind], TREE, memory=memory, chunk_length=4, n_epochs=2, batch_size=8)
    before = weights(agent)
    updated = agent.update(rollout(agent))
    assert all(torch.isfinite(value) for value in updated.metrics.values())
    assert all(not a.equal(b) for a, b in zip(before, weights(agent)))


@pytest.mark.parametrize(("lr", "factor"), [(1e-4, 1.2**3), (9e-3, 1 / 1.2)])
def test_the_rate_follows_the_divergence_pass_by_pass(lr: float, factor: float) -> None:
    agent = build(
        PPO,
        lr_schedule=Part("kl"),
        target_kl=1e-2 if lr < 1e-3 else 1e-7,
        n_epochs=3,
        batch_size=16,
        actor_lr=lr,
    )
    agent.update(rollout(agent))
    # Small steps: it grows after each of three passes. Large ones: the first pass sees ratio 1 and lets it grow (up to
    # its bound of 1e-2 at most), the two after it shrink it.
    expected = lr * factor if lr < 1e-3 else 1e-2 / 1.2**2
    assert float(agent.lr_actor) == pytest.approx(expected, rel=1e-5)


def test_past_the_cut_the_actor_stands_still_and_the_critic_goes_on() -> None:
    def after(**settings: float) -> tuple[list[Tensor], list[Tensor]]:
        agent = build(PPO, batch_size=16, actor_lr=5e-2, critic_lr=1e-2, **settings)
        agent.update(rollout(agent))
        return weights(agent.actor), weights(agent.critic)

    # The divergence is seen in the second pass, which still moves; from then on nothing does.
    cut_after_two, cut_critic = after(kl_cut=1e-6, n_epochs=5)
    two, _ = after(n_epochs=2)
    _, critic = after(n_epochs=5)
    assert same(cut_after_two, two)
    assert same(cut_critic, critic)


def test_actions_that_are_masked_out_are_never_chosen_and_learning_keeps_it_so() -> None:
    agent = build(
        PPO, Discrete(3), {"state": Array((2,)), MASK_KEY: Array((3,), "int8")}, n_epochs=2, batch_size=8
    )
    agent.update(rollout(agent))
    num_envs = 500
    obs = {
        "state": torch.randn(num_envs, 2),
        MASK_KEY: torch.tensor([1, 0, 1], dtype=torch.int8).expand(num_envs, 3),
    }
    fresh = torch.ones(num_envs, dtype=torch.bool)
    for greedy in (False, True):
        acted = agent.act(obs, {}, Context(fresh, torch.Generator().manual_seed(0), greedy))
        assert not (acted.action == 1).any()
        assert torch.isfinite(acted.extras["log_prob"]).all()


@pytest.mark.parametrize("target", ["gae", "return"])
def test_the_critic_bootstraps_through_truncation_but_not_through_termination(target: str) -> None:
    settings = {"value_target": target, "n_epochs": 4, "batch_size": 27}
    value = learned_values(PPO, Walk, 120, **settings)
    assert value[5] == pytest.approx(10.0, abs=0.1)
    assert value[0] == pytest.approx(5.905, abs=0.1)
    chain = learned_values(PPO, Chain, 60, **settings)
    assert chain[:3] == pytest.approx([0.81, 0.9, 1.0], abs=0.01)


def test_a_batch_size_that_does_not_divide_the_rollout_is_refused_with_one_that_does() -> None:
    with pytest.raises(ValueError, match="batch_size 24 does not divide the 64 rows of a rollout; use 16"):
        build(PPO, observation=VECTOR, batch_size=24).check(64)


def test_the_entropy_bonus_makes_the_policy_more_even() -> None:
    assert entropy_step(PPO, **ONE_PASS) == ENTROPY_STEP


def test_rewards_are_divided_by_the_deviation_of_returns_that_include_this_rollout() -> None:
    agent = build(PPO, normalize_reward=True, gamma=0.5, **ONE_PASS)
    batch = rollout(agent, steps=4)
    batch.keep.copy_(torch.tensor([[1.0, 0, 0, 1], [1, 1, 1, 1]]).T)
    batch.reward.copy_(torch.tensor([[2.0, 1, 0, 4], [0, 2, 0, 0]]).T)
    scaled = agent.begin_update(batch).reward
    # Returns so far: 2, 1 + 2 / 2, no transition, 4 after the end of the episode; 0, 2, 1, .5.
    seen = torch.tensor([2.0, 2, 4, 0, 2, 1, 0.5])
    assert float(agent.rewards.statistics.count) == 7
    torch.testing.assert_close(scaled, batch.reward / seen.std(correction=0))
    torch.testing.assert_close(agent.rewards.running, torch.tensor([4.0, 0.5]))
    agent.rewards.running[0] = torch.inf
    agent.forget(torch.tensor([True, False]))  # an actor was replaced
    torch.testing.assert_close(agent.rewards.running, torch.tensor([0.0, 0.5]))
    agent.forget()  # the environments are reset
    assert agent.rewards.running.tolist() == [0, 0]


def decided(agent: PPO) -> PPO:
    """The agent with the policy (.7, .2, .1) everywhere."""
    with torch.no_grad():
        agent.actor.head.logits.weight.zero_()
        agent.actor.head.logits.bias.copy_(torch.tensor([0.7, 0.2, 0.1]).log())
    return agent


def minibatch() -> tuple[Rows, dict[str, Tensor]]:
    """Four rows with ratios 1.4, 1, .5 and 1, of which the last is no transition."""
    four = torch.zeros(1, 4)
    rows = Batch(torch.zeros(2, 4, 3), torch.zeros(2, 4) > 1, {}, four, four, four, four).now
    data = {
        "action": torch.tensor([[0, 1, 2, 0]]),
        "log_prob": torch.tensor([[0.5, 0.2, 0.2, 0.7]]).log(),
        "advantage": torch.tensor([[1.0, 2.0, -1.0, 5.0]]),
        "weight": torch.tensor([[4 / 3, 4 / 3, 4 / 3, 0.0]]),
    }
    return rows, data


def test_the_loss_of_the_actor_and_its_distance_by_hand() -> None:
    agent = decided(build(PPO, clip_range=0.1, normalize_advantage="none"))
    rows, data = minibatch()
    with torch.no_grad():
        loss, log_ratio, entropy = agent.actor_loss(agent.actor(rows), data, measure=True)
        _, kl, clipped = agent.distance(log_ratio, entropy, data)
    # min(1.4, 1.1), 2, min(-.5, -.9)
    assert float(loss) == pytest.approx(-(1.1 + 2 - 0.9) / 3)
    # .4 - log 1.4, 0, -.5 - log .5
    assert float(kl) == pytest.approx((0.063528 + 0.193147) / 3, abs=1e-5)
    assert float(clipped) == pytest.approx(2 / 3)


def test_a_masked_row_whose_ratio_is_infinite_is_no_distance() -> None:
    """A narrow Gaussian of many dimensions: the density of an action that nobody took may be any number."""
    agent, (_, data) = build(PPO), minibatch()
    log_ratio = torch.tensor([[0.0, 0.0, 0.0, 100.0]])
    assert [float(value) for value in agent.distance(log_ratio, torch.zeros(1, 4), data)] == [0, 0, 0]


def test_advantages_are_normalised_over_the_unmasked_rows_of_a_minibatch() -> None:
    agent = decided(build(PPO, clip_range=10.0, normalize_advantage="minibatch"))
    rows, data = minibatch()
    with torch.no_grad():
        loss = agent.actor_loss(agent.actor(rows), data, measure=False)[0]
    # 1, 2, -1: mean 2/3, deviation sqrt(14) / 3
    normal = [(a - 2 / 3) / (14**0.5 / 3) for a in (1, 2, -1)]
    assert float(loss) == pytest.approx(-(1.4 * normal[0] + normal[1] + 0.5 * normal[2]) / 3)


@pytest.mark.parametrize(("kind", "mean", "deviation"), [("rollout", 0.0, 1.0), ("none", 1.134, 1.02292)])
def test_advantages_are_normalised_over_the_rollout_or_not_at_all(
    kind: str, mean: float, deviation: float
) -> None:
    agent = build(PPO, gae_lambda=0.8, normalize_advantage=kind)
    agent.critic.forward = lambda rows: V
    ones = torch.ones(4, 1)
    found = agent.estimate(Batch({}, ones > 1, {}, R, 0.9 * ones, ones, ones))[
        0
    ]  # 1.0971 -.42069 1.4296 2.43
    assert float(found.mean()) == pytest.approx(mean, abs=1e-5)
    assert float(found.std(correction=0)) == pytest.approx(deviation, abs=1e-5)


@pytest.mark.parametrize(("clip_value", "expected"), [(True, 6.125), (False, 2.0)])
def test_clip_value_clips_the_prediction_around_its_old_value(clip_value: bool, expected: float) -> None:
    agent = build(PPO, clip_value=clip_value, clip_range_vf=0.5)
    # V 3, old 1, target 5: 1/2 * max(2^2, 3.5^2). The second row is no transition.
    data = {"value": [[1.0, 1.0]], "target": [[5.0, 100.0]], "value_weight": [[2.0, 0.0]]}
    columns = {name: torch.tensor(value) for name, value in data.items()}
    found = agent.critic_loss(torch.tensor([[3.0, 3.0]]), columns)
    assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize(("progress", "factor"), [(0.0, 1.2**2), (1.0, 1.0)])
def test_the_target_divergence_falls_with_progress(progress: float, factor: float) -> None:
    settings = {"target_kl": 1e-2, "final_kl": 1e-6, "n_epochs": 2, "batch_size": 16, "actor_lr": 1e-3}
    agent = build(PPO, lr_schedule=Part("kl"), **settings)
    agent.progress.fill_(progress)
    agent.update(rollout(agent))
    # The first pass sees ratio 1 and lets the rate grow; the second sees a divergence between 2e-8 and 5e-3.
    assert float(agent.lr_actor) == pytest.approx(1e-3 * factor, rel=1e-5)


def test_rows_that_are_no_transitions_have_no_weight_in_either_loss() -> None:
    agent = build(PPO, **ONE_PASS)
    seen: list[Tensor] = []
    for name, column in (("actor_loss", "weight"), ("critic_loss", "value_weight")):
        plain = getattr(agent, name)

        def noted(
            output: Any, data: dict[str, Tensor], *rest: bool, plain: Any = plain, column: str = column
        ) -> Any:
            seen.append(data[column])
            return plain(output, data, *rest)

        setattr(agent, name, noted)
    agent.update(rollout(agent))
    # 15 of 16 rows are transitions: weights of 16/15, whose mean is 1
    for weight in seen:
        assert sorted(weight.flatten().tolist()) == pytest.approx([0.0] + [16 / 15] * 15)
    assert len(seen) == 2


def test_observations_are_learned_from_after_the_update() -> None:
    agent = build(PPO, normalize_obs=True, **ONE_PASS)
    batch = rollout(agent)
    agent.update(batch)
    rows = batch.obs[:-1].flatten(0, 1)
    statistics = agent.observations.statistics["observation"]
    torch.testing.assert_close(statistics.mean, rows.mean(0))
    torch.testing.assert_close(statistics.var, rows.var(0, correction=0))


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ent_coef": 0.1, "activation": "elu", "clip_range": 0.01},
        {"normalize_advantage": "minibatch", "activation": "relu", "log_std_init": 2.5},
    ],
)
def test_gradients_written_by_hand_are_those_of_autograd(kind: str, settings: dict[str, Any]) -> None:
    settings = {**settings, "n_epochs": 3, "batch_size": 8, "actor_lr": 0.01, "actor_hidden_sizes": (16, 8)}
    by_hand, plain = (build(PPO, ACTIONS[kind], **settings) for _ in range(2))
    assert set(by_hand.by_hand) == {"actor", "critic"}
    plain.by_hand.clear()
    found = [agent.update(rollout(agent)).metrics for agent in (by_hand, plain)]
    for name, value in found[1].items():
        assert found[0][name] == pytest.approx(float(value), rel=1e-3, abs=1e-5), name
    for (name, one), two in zip(by_hand.named_parameters(), plain.parameters()):
        assert torch.allclose(one, two, atol=1e-4), name


def test_a_clamped_log_ratio_moves_nothing_by_hand_either() -> None:
    rows = PolicyRows(
        torch.zeros(2, dtype=torch.int64), -torch.ones(2), torch.ones(2), torch.tensor([-40.0, -1.0])
    )
    logits = torch.zeros(2, 2)
    found = categorical_surrogate(logits, rows, clip=0.2, ent_coef=0.0, measure=False)
    # log pi = -0.69: the first log ratio is above 30 and clamped; the second ratio, e^0.31, is free for a negative A.
    ratio = float(np.exp(1 - np.log(2)))
    assert found.slope.tolist() == [[0.0, 0.0], pytest.approx([0.25 * ratio, -0.25 * ratio])]


@pytest.mark.parametrize(
    "settings",
    [
        {"shared_trunk": True},
        {"memory": "lstm", "chunk_length": 4},
        {"activation": "gelu"},
        {"optimizer": Part("SGD")},
    ],
)
def test_other_networks_and_optimizers_use_autograd(settings: dict[str, Any]) -> None:
    assert not build(PPO, batch_size=16, **settings).by_hand


def test_what_losses_by_hand_return_may_be_changed_and_read_by_autograd() -> None:
    """A subclass may learn from the entropy, for instance."""
    agent = build(PPO, batch_size=16)
    batch = agent.begin_update(rollout(agent))
    actor, critic = agent.columns_of(batch, *agent.estimate(batch))
    ((rows, data),) = minibatches(batch, {**actor, **critic}, 16, agent.random("actor"))
    assert set(agent.by_hand) == {"actor", "critic"}
    factor = torch.ones((), requires_grad=True)
    for value in (*agent.actor_pass(rows, data, measure=True)[1:], *agent.critic_pass(rows, data)[1:]):
        before = value.mean().item()
        (gradient,) = torch.autograd.grad((factor * value).mean(), factor)
        assert gradient.item() == pytest.approx(before, abs=1e-6)
        value.zero_()


def test_losses_that_a_subclass_defines_are_used() -> None:
    class Other(PPO):
        def actor_loss(self, policy: Any, data: dict[str, Tensor], measure: bool) -> Any:
            return super().actor_loss(policy, data, measure)

    assert set(build(Other).by_hand) == {"critic"}
    assert set(build(PPO, clip_value=True).by_hand) == {"actor"}
