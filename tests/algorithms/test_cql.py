"""CQL: the log-sum-exp over discrete actions exactly, over continuous ones by importance sampling, and its weight."""

from math import exp, log

import pytest
import torch
from replay_blocks import ONE, SGD, TWO, batch_of, build, learn, says, transitions

from whorl.algorithms.sac import SAC
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, Array, Discrete, MultiDiscrete, TupleSpec

FIXED = {"tune_alpha": False, "alpha": 0.0}


def gap(agent: SAC, batch: object, noise: object = None) -> float:
    return float(agent.critic_loss(batch, noise or agent.draw(batch))[3]["q/conservative_gap"])  # type: ignore[arg-type]


def test_discrete_actions_have_the_exact_sum_and_the_term_its_weight() -> None:
    batch = batch_of(torch.zeros(2, 1, 1), torch.tensor([[1]]), [1.0], [0.0])
    plain, found = (build(SAC, Discrete(3), Array((1,)), cql_weight=weight, **FIXED) for weight in (0.0, 5.0))
    values = torch.tensor([[[[1.0, 2.0, 3.0]]], [[[0.0, 0.0, 0.0]]]])
    for agent in (plain, found):
        says(agent.critic, lambda obs: values)
    wanted = log(exp(1) + exp(2) + exp(3)) - 2 + log(3)  # both critics
    assert gap(found, batch) == pytest.approx(wanted)
    one, other = (agent.critic_loss(batch, agent.draw(batch))[0] for agent in (plain, found))
    assert float(other - one) == pytest.approx(5 * wanted, rel=1e-5)


def test_forbidden_actions_are_not_in_the_sum() -> None:
    observation = {"obs": Array((1,)), MASK_KEY: Array((3,), "int8", 0.0, 1.0)}
    agent = build(SAC, Discrete(3), observation, cql_weight=1.0, **FIXED)
    says(agent.critic, lambda obs: torch.tensor([1.0, 2.0, 30.0]).expand(2, 1, 1, 3))
    obs = {"obs": torch.zeros(2, 1, 1), MASK_KEY: torch.tensor([[[1, 1, 0]], [[1, 1, 1]]], dtype=torch.int8)}
    batch = batch_of(obs, torch.tensor([[1]]), [1.0], [0.0])
    assert gap(agent, batch) == pytest.approx(2 * (log(exp(1) + exp(2)) - 2), rel=1e-5)


def test_a_final_observation_that_allows_no_action_does_not_count() -> None:
    observation = {"obs": Array((1,)), MASK_KEY: Array((3,), "int8", 0.0, 1.0)}
    agent = build(SAC, Discrete(3), observation, cql_weight=1.0, cql_target_gap=1.0, **FIXED)
    allowed = torch.tensor([[[1, 1, 0], [0, 0, 0]], [[1, 1, 1], [1, 1, 1]]], dtype=torch.int8)
    batch = batch_of(
        {"obs": torch.zeros(2, 2, 1), MASK_KEY: allowed}, torch.tensor([[1, 0]]), [1.0, 0.0], [0.0, 0.0]
    )
    # the second row is no transition, so the first has the share of both
    batch = batch.replace(mask=torch.tensor([[1.0, 0.0]]))
    batch.extras.update(share=torch.tensor([[2.0, 0.0]]), weight=torch.tensor([[2.0, 0.0]]))
    learn(agent, batch)
    learned = [*agent.critic.parameters(), *agent.cql_multiplier.parameters()]
    assert all(bool(tensor.isfinite().all()) for tensor in learned)
    says(agent.critic, lambda obs: torch.tensor([1.0, 2.0, 30.0]).expand(2, 1, 2, 3))
    assert gap(agent, batch) == pytest.approx(2 * (log(exp(1) + exp(2)) - 2), rel=1e-5)


def test_continuous_actions_are_weighed_by_their_densities() -> None:
    agent = build(SAC, ONE, Array((1,)), cql_weight=1.0, cql_actions=1, **FIXED)
    # Q = a and 2 a; the policy is tanh of a standard normal, at noise 0: a = 0 with density 1 / sqrt(2 pi)
    says(agent.critic, lambda obs, a: torch.stack((a[..., 0], 2 * a[..., 0])))
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.zero_()
    batch = batch_of(torch.zeros(2, 1, 1), torch.tensor([[[0.25]]]), [0.0], [0.0])
    noise = {
        **agent.draw(batch),
        "cql_uniform": torch.full((1, 1, 1, 1), 0.5),
        "cql_policy": torch.zeros(1, 1, 1, 1),
    }
    policy = (2 * torch.pi) ** 0.5
    wanted = sum(log((exp(k * 0.5) / 0.5 + exp(0) * policy) / 2) - k * 0.25 for k in (1, 2))
    assert gap(agent, batch, noise) == pytest.approx(wanted, rel=1e-5)


def test_many_samples_find_the_integral() -> None:
    agent = build(SAC, TWO, Array((1,)), cql_weight=1.0, cql_actions=20_000, **FIXED)
    says(agent.critic, lambda obs, a: torch.stack((a.sum(-1), 0 * a[..., 0])))
    batch = batch_of(torch.zeros(2, 1, 1), torch.zeros(1, 1, 2), [0.0], [0.0])
    # the integral of e^x e^y over the square is (e - 1/e)^2, that of 1 is 4
    wanted = 2 * log(exp(1) - exp(-1)) + log(4)
    assert gap(agent, batch) == pytest.approx(wanted, abs=0.05)


def test_the_policy_learns_nothing_from_the_term() -> None:
    agent = build(SAC, cql_weight=5.0)
    batch = transitions(agent)
    loss = agent.critic_loss(batch, agent.draw(batch))[0]
    slopes = torch.autograd.grad(loss, list(agent.actor.parameters()), allow_unused=True)
    assert all(slope is None for slope in slopes)
    assert "q/conservative_gap" in learn(agent, batch).metrics


def test_actions_of_two_kinds_and_too_many_choices_are_refused() -> None:
    for action in (TupleSpec({"0": Discrete(2), "1": ONE}), MultiDiscrete((20, 20))):
        with pytest.raises(ConfigError, match="cql_weight needs actions that are continuous, or discrete"):
            build(SAC, action, cql_weight=1.0)
    build(SAC, MultiDiscrete((2, 3)), cql_weight=1.0)


def test_the_weight_rises_while_the_term_of_a_critic_is_above_its_target() -> None:
    agent = build(SAC, cql_weight=2.0, cql_target_gap=0.5, optimizer=SGD, critic_lr=0.1)
    # two critics with 3 together: an excess of 3/2 - 1/2, and d(w * 1) / d(log w) = w = 2
    found = agent.tune_weight({"q/conservative_gap": torch.tensor(3.0)})
    assert float(found["q/conservative_weight"]) == pytest.approx(2 * exp(0.1 * 2 * 1))
    agent = build(SAC, cql_weight=2.0, cql_target_gap=0.5, optimizer=SGD, critic_lr=0.1)
    found = agent.tune_weight({"q/conservative_gap": torch.tensor(-1.0)})
    assert float(found["q/conservative_weight"]) == pytest.approx(2 * exp(0.1 * 2 * -1))


def test_the_critics_loss_has_the_tuned_weight_and_each_update_tunes_it() -> None:
    batch = batch_of(torch.zeros(2, 1, 1), torch.tensor([[1]]), [1.0], [0.0])
    agents = {
        target: build(SAC, Discrete(3), Array((1,)), cql_weight=5.0, cql_target_gap=target, **FIXED)
        for target in (0.0, 0.5)
    }
    with torch.no_grad():
        agents[0.5].cql_multiplier.log_alpha.fill_(log(7))
    for agent in agents.values():
        says(agent.critic, lambda obs: torch.tensor([1.0, 2.0, 3.0]).expand(2, 1, 1, 3))
    one, other = (agent.critic_loss(batch, agent.draw(batch))[0] for agent in agents.values())
    term = 2 * (log(exp(1) + exp(2) + exp(3)) - 2)
    assert float(other - one) == pytest.approx((7 - 5) * term, rel=1e-5)
    agent = build(SAC, cql_weight=5.0, cql_target_gap=1e-3)
    before = agent.cql_multiplier().item()
    metrics = learn(agent, transitions(agent)).metrics
    above = float(metrics["q/conservative_gap"]) / 2 > 1e-3
    assert (agent.cql_multiplier().item() > before) == above
    assert float(metrics["q/conservative_weight"]) == agent.cql_multiplier().item()


def test_the_weight_is_at_most_a_million_and_may_fall_again() -> None:
    agent = build(SAC, cql_weight=1e6, cql_target_gap=1.0, optimizer=SGD, critic_lr=1e-8)
    for gap, falls in ((200.0, False), (0.0, True)):
        agent.tune_weight({"q/conservative_gap": torch.tensor(gap)})
        assert (agent.cql_multiplier().item() < 0.999e6) == falls


def test_a_target_without_a_weight_is_declined() -> None:
    with pytest.raises(ConfigError, match="cql_target_gap is 5, but cql_weight is 0; set cql_weight to"):
        build(SAC, cql_target_gap=5.0)
