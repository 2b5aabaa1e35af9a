"""REINFORCE: returns that stop where they must, rows chosen by place, a baseline that stays out of the policy."""

import pytest
import torch
from on_policy_blocks import (
    ACTIONS,
    ENTROPY_STEP,
    TREE,
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

from whorl.algorithms.reinforce import Reinforce
from whorl.core.errors import ConfigError
from whorl.data.batch import Batch


def agent_for(kind: str = "discrete", **settings: object) -> Reinforce:
    return build(Reinforce, ACTIONS[kind], **{"lookahead": 0, **settings})


def test_returns_stop_at_episode_ends_and_at_the_end_of_the_rollout() -> None:
    agent = agent_for()
    batch = rollout(agent, steps=5)
    batch.reward.copy_(torch.tensor([[1.0, 1, 0, 1, 1], [1, 1, 1, 1, 1]]).T)
    returns, _ = agent.estimate(batch)
    # Environment 0: 1 + .9, 1 | no transition | 1 + .9, 1. Environment 1: open to the end.
    torch.testing.assert_close(returns[:, 0], torch.tensor([1.9, 1.0, 0.0, 1.9, 1.0]))
    torch.testing.assert_close(returns[:, 1], torch.tensor([4.0951, 3.439, 2.71, 1.9, 1.0]))


def test_without_a_baseline_a_truncated_return_stops_and_with_one_it_goes_on_with_the_value() -> None:
    for baseline in (False, True):
        agent = agent_for(baseline=baseline)
        batch = rollout(agent, steps=4)
        batch.keep[0, 1] = 0  # truncated: the discount stays
        batch.reward.fill_(1.0)
        returns, _ = agent.estimate(batch)
        expected = 1.0
        if baseline:
            with torch.no_grad():
                expected = 1 + 0.9 * float(agent.critic(batch.all)[1, 1])
        assert float(returns[0, 1]) == pytest.approx(expected, abs=1e-6)


def test_rows_are_left_out_by_place_and_never_by_outcome() -> None:
    agent = agent_for(lookahead=2)
    batch = rollout(agent)
    learned = agent.learned_rows(batch.mask)
    assert learned[:6].equal(batch.mask[:6])
    assert learned[6:].sum() == 0


def test_a_row_within_the_lookahead_has_no_influence_but_through_its_reward() -> None:
    def after(change: bool) -> list[Tensor]:
        agent = agent_for(lookahead=2)
        batch = rollout(agent)
        if change:
            batch.action[6:] = 2
        agent.update(batch)
        return weights(agent)

    assert same(after(False), after(True))


def test_the_gradient_is_the_mean_of_log_prob_gradients_times_returns() -> None:
    agent = agent_for(normalize_returns=False)
    batch = rollout(agent)
    returns, _ = agent.estimate(batch)
    loss, _ = agent.actor_loss(batch, returns, batch.mask)
    found = torch.autograd.grad(loss, list(agent.actor.parameters()))
    log_prob = agent.actor(batch.now).log_prob(batch.action)
    expected = [torch.zeros_like(p) for p in agent.actor.parameters()]
    rows = [(t, b) for t in range(8) for b in range(2) if batch.mask[t, b]]
    for t, b in rows:
        row = torch.autograd.grad(log_prob[t, b], list(agent.actor.parameters()), retain_graph=True)
        expected = [total - returns[t, b] * g / len(rows) for total, g in zip(expected, row)]
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_no_gradient_of_the_baseline_reaches_the_policy_and_none_of_the_policy_reaches_the_baseline() -> None:
    agent = agent_for(baseline=True)
    batch = rollout(agent)
    returns, value = agent.estimate(batch)
    assert not returns.requires_grad and not value.requires_grad
    loss, _ = agent.actor_loss(batch, returns - value, batch.mask)
    assert all(
        g is None for g in torch.autograd.grad(loss, list(agent.critic.parameters()), allow_unused=True)
    )
    policy = [p.clone() for p in agent.actor.parameters()]
    agent.fit_baseline(batch, returns, batch.mask)
    assert all(a.equal(b) for a, b in zip(policy, agent.actor.parameters()))


def test_a_baseline_lowers_the_variance_of_the_gradient_and_keeps_its_mean() -> None:
    """G = V(s) + noise with a large V(s): the exact value takes nearly all the variance away."""
    agent = agent_for(normalize_returns=False)
    torch.manual_seed(3)
    steps, num_envs, draws = 1, 2, 300
    observation = torch.randn(steps + 1, num_envs, 3)
    value = 20 + 10 * observation[:1, :, 0]
    mask = torch.ones(steps, num_envs)
    parameters = list(agent.actor.head.parameters())
    found: dict[bool, list[Tensor]] = {False: [], True: []}
    with torch.no_grad():
        policy = agent.actor(Batch(observation, mask > 1, {}, mask, mask, mask, mask).now)
    for _ in range(draws):
        action = policy.sample(policy.noise())
        batch = Batch(observation, torch.zeros(2, num_envs, dtype=torch.bool), action, mask, mask, mask, mask)
        returns = value + (action == 0) + torch.randn(steps, num_envs)
        for baseline in found:
            loss, _ = agent.actor_loss(batch, returns - value * baseline, mask)
            found[baseline].append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    plain, lowered = (torch.stack(found[baseline]) for baseline in (False, True))
    assert plain.var(0).sum() > 3 * lowered.var(0).sum()
    error = (plain.var(0) / draws).sqrt()
    assert ((plain.mean(0) - lowered.mean(0)).abs() < 4.5 * error + 1e-6).all()


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("memory", ["none", "lstm", "gru"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_every_parameter_moves_for_every_kind_of_action_and_memory(
    kind: str, memory: str, baseline: bool
) -> None:
    agent = build(
        Reinforce, ACTIONS[kind], TREE, lookahead=0, memory=memory, baseline=baseline, baseline_steps=2
    )
    batch = rollout(agent)
    before = weights(agent)
    updated = agent.update(batch)
    assert all(torch.isfinite(value) for value in updated.metrics.values())
    assert all(not a.equal(b) for a, b in zip(before, weights(agent)))


@pytest.mark.parametrize("kind", ACTIONS)
def test_masked_rows_have_exactly_no_influence(kind: str) -> None:
    def after(poisoned: bool) -> list[Tensor]:
        agent = agent_for(kind, baseline=True)
        batch = rollout(agent)
        if poisoned:
            poison(batch)
        agent.update(batch)
        return weights(agent)

    assert same(after(False), after(True))


def test_a_lookahead_that_leaves_no_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="lookahead is 8, which excludes all 8 rows"):
        agent_for(lookahead=8).check(16)


def test_the_baseline_learns_values_through_truncation_and_not_through_termination() -> None:
    value = learned_values(Reinforce, Walk, 100, baseline=True, lookahead=0)
    assert value[5] == pytest.approx(10.0, abs=0.1)
    assert value[0] == pytest.approx(5.905, abs=0.1)
    chain = learned_values(Reinforce, Chain, 40, baseline=True, lookahead=0)
    assert chain[:3] == pytest.approx([0.81, 0.9, 1.0], abs=0.01)


def test_the_entropy_bonus_makes_the_policy_more_even() -> None:
    assert entropy_step(Reinforce, lookahead=0) == ENTROPY_STEP


@pytest.mark.parametrize("normalize", [False, True])
def test_the_policy_learns_from_the_return_less_the_baseline(normalize: bool) -> None:
    agent = agent_for(baseline=True, normalize_returns=normalize)
    batch = rollout(agent)
    returns, value = agent.estimate(batch)
    seen: list[Tensor] = []
    improve = agent.improve_policy

    def noted(batch: Batch, advantage: Tensor, learned: Tensor) -> dict[str, Tensor]:
        seen.append(advantage)
        return improve(batch, advantage, learned)

    agent.improve_policy = noted
    with torch.no_grad():
        log_prob = agent.actor(batch.now).log_prob(batch.action)
    loss = agent.update(batch).metrics["loss/actor"]
    expected = returns - value
    torch.testing.assert_close(seen[0], expected)
    rows = batch.mask > 0
    factor = expected[rows]
    if normalize:
        factor = (factor - factor.mean()) / factor.std(correction=0)
    torch.testing.assert_close(loss, -(log_prob[rows] * factor).mean(), atol=1e-5, rtol=1e-4)
