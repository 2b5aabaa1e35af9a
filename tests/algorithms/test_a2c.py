"""A2C: the policy-gradient step, advantages worked by hand, critics with known fixed points."""

from typing import Any

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

from whorl import conformance
from whorl.algorithms.a2c import A2C
from whorl.core.registry import Part
from whorl.data.batch import Batch
from whorl.settings.merge import configure

V = torch.tensor([[0.5, 1.0, -0.5, 0.2, 0.7]]).T  # [T+1, B]
R = torch.tensor([[1.0, 0.0, -1.0, 2.0]]).T


def block(keep: list[float], discount: list[float]) -> Batch:
    ones = torch.ones(4, 1)
    return Batch({}, ones > 1, {}, R, torch.tensor([discount]).T, torch.tensor([keep]).T, ones)


@pytest.mark.parametrize(
    ("lam", "keep", "discount", "advantage"),
    [
        (0.8, [1, 1, 1, 1], [0.9] * 4, [1.0971, -0.42069, 1.4296, 2.43]),
        (0.8, [1, 0, 1, 1], [0.9, 0, 0.9, 0.9], [0.68, -1.0, 1.4296, 2.43]),
        # lam 1: 1 + .9 * (0 + .9 * (-1 + .9 * (2 + .9 * .7))) - .5 = 1.60727, and so on
        (1.0, [1, 1, 1, 1], [0.9] * 4, [1.60727, 0.2303, 1.867, 2.43]),
        # lam 0: r + .9 * V' - V
        (0.0, [1, 1, 1, 1], [0.9] * 4, [1.4, -1.45, -0.32, 2.43]),
    ],
)
def test_advantages_and_targets(
    lam: float, keep: list[float], discount: list[float], advantage: list[float]
) -> None:
    agent = build(A2C, gae_lambda=lam)
    found, target = agent.estimate(block(keep, discount), V)
    torch.testing.assert_close(found[:, 0], torch.tensor(advantage), atol=1e-5, rtol=0)
    torch.testing.assert_close(target, found + V[:-1])


def test_the_actor_and_the_critic_share_no_gradient() -> None:
    agent = build(A2C)
    batch = rollout(agent)
    value = agent.critic(batch.all)
    advantage, target = agent.estimate(batch, value.detach())
    assert not advantage.requires_grad and not target.requires_grad
    loss, _ = agent.actor_loss(agent.actor(batch.now), batch, advantage)
    gradients = torch.autograd.grad(loss, list(agent.critic.parameters()), allow_unused=True)
    assert all(g is None for g in gradients)


def test_one_update_is_one_step_of_the_optimizer() -> None:
    agent = build(A2C)
    agent.update(rollout(agent))
    for optimizers in agent.state()["optimizers"].values():
        assert {float(entry["step"]) for entry in optimizers} == {1.0}


def test_the_defaults_are_those_of_the_paper() -> None:
    agent = build(A2C)
    optimizer = agent._optimizers["actor"]
    assert isinstance(optimizer, torch.optim.RMSprop)
    assert optimizer.param_groups[0]["alpha"] == 0.99
    assert optimizer.param_groups[0]["eps"] == 1e-5


def test_the_classic_actor_critic_is_this_rule_with_one_step_errors() -> None:
    settings = configure("actor_critic", "CartPole-v1", {})
    assert settings.algo.gae_lambda == 0.0
    assert isinstance(settings.algo, A2C.Config)


@pytest.mark.parametrize("memory", ["none", "lstm", "gru"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_every_parameter_moves_for_every_kind_of_action_and_memory(kind: str, memory: str) -> None:
    agent = build(A2C, ACTIONS[kind], TREE, memory=memory)
    before = weights(agent)
    updated = agent.update(rollout(agent))
    assert all(torch.isfinite(value) for value in updated.metrics.values())
    assert all(not a.equal(b) for a, b in zip(before, weights(agent)))


@pytest.mark.parametrize("kind", ACTIONS)
def test_masked_rows_have_exactly_no_influence(kind: str) -> None:
    def after(poisoned: bool) -> list[Tensor]:
        agent = build(A2C, ACTIONS[kind], normalize_advantage=True)
        batch = rollout(agent)
        if poisoned:
            poison(batch)
        agent.update(batch)
        return weights(agent)

    assert same(after(False), after(True))


def test_the_critic_bootstraps_through_truncation_but_not_through_termination() -> None:
    value = learned_values(A2C, Walk, 500)
    assert value[5] == pytest.approx(10.0, abs=0.1)
    assert value[0] == pytest.approx(5.905, abs=0.1)


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_critic_never_looks_past_a_terminal_state(lam: float) -> None:
    chain = learned_values(A2C, Chain, 300, gae_lambda=lam)
    assert chain[:3] == pytest.approx([0.81, 0.9, 1.0], abs=0.02)


def test_the_entropy_bonus_makes_the_policy_more_even() -> None:
    assert entropy_step(A2C) == ENTROPY_STEP


@pytest.mark.parametrize("normalize", [False, True])
def test_advantages_are_normalised_if_asked_for_and_targets_never(normalize: bool) -> None:
    agent = build(A2C, gae_lambda=0.8, normalize_advantage=normalize)
    found, target = agent.estimate(block([1, 1, 1, 1], [0.9] * 4), V)
    plain = torch.tensor([1.0971, -0.42069, 1.4296, 2.43])
    expected = (plain - plain.mean()) / plain.std(correction=0) if normalize else plain
    torch.testing.assert_close(found[:, 0], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(target[:, 0], plain + V[:-1, 0], atol=1e-5, rtol=1e-5)


def test_the_critic_steps_towards_fixed_targets_of_its_own_rows() -> None:
    agent = build(A2C, optimizer=Part("SGD"), critic_lr=1.0, max_grad_norm=0.0, gae_lambda=0.0)
    batch = rollout(agent)
    with torch.no_grad():
        value = agent.critic(batch.all)
        target = batch.reward + batch.discount * value[1:]
        error = ((value[:-1] - target) * batch.mask).sum() / batch.mask.sum()
        before = agent.critic.head.bias.clone()
    agent.update(batch)
    torch.testing.assert_close(agent.critic.head.bias.detach() - before, -error.reshape(1))


def test_the_loss_is_minus_the_mean_of_log_probabilities_times_advantages() -> None:
    agent = build(A2C, ent_coef=0.0)
    batch = rollout(agent)
    with torch.no_grad():
        loss, _ = agent.actor_loss(agent.actor(batch.now), batch, batch.reward)
        log_prob = agent.actor(batch.now).log_prob(batch.action)
    rows = batch.mask > 0
    torch.testing.assert_close(loss, -(log_prob[rows] * batch.reward[rows]).mean())


# Gradients written by hand


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ent_coef": 0.1, "activation": "elu", "normalize_advantage": True},
        {"optimizer": Part("Adam"), "activation": "relu", "log_std_init": 2.5},
    ],
)
def test_gradients_written_by_hand_are_those_of_autograd(kind: str, settings: dict[str, Any]) -> None:
    settings = {**settings, "actor_lr": 0.01, "actor_hidden_sizes": (16, 8), "max_grad_norm": 0.1}
    by_hand, plain = (build(A2C, ACTIONS[kind], **settings) for _ in range(2))
    assert set(by_hand.by_hand) == {"actor", "critic"}
    plain.by_hand.clear()
    for _ in range(2):
        found = [agent.update(rollout(agent)).metrics for agent in (by_hand, plain)]
        for name, value in found[1].items():
            assert found[0][name] == pytest.approx(float(value), rel=1e-3, abs=1e-5), name
    for (name, one), two in zip(by_hand.named_parameters(), plain.parameters()):
        assert torch.allclose(one, two, atol=1e-4), name


def test_other_networks_losses_and_optimizers_use_autograd() -> None:
    class Other(A2C):
        def actor_loss(self, policy: Any, batch: Batch, advantage: Tensor) -> Any:
            return super().actor_loss(policy, batch, advantage)

    for settings in ({"shared_trunk": True}, {"memory": "lstm"}, {"optimizer": Part("SGD")}):
        assert not build(A2C, **settings).by_hand
    assert set(build(Other).by_hand) == {"critic"}
    assert set(build(A2C, critic_loss=Part("huber")).by_hand) == {"actor"}


def test_a_critic_whose_values_come_from_elsewhere_is_trained_by_autograd() -> None:
    class Other(A2C):
        def evaluate(self, batch: Batch) -> Any:
            features = self.critic.backbone(batch.all)
            return features, self.critic.of(features)

    agent = build(Other)
    before = weights(agent.critic)
    agent.update(rollout(agent))
    assert set(agent.by_hand) == {"actor"} and not same(before, weights(agent.critic))


def test_the_critic_steps_where_its_values_were_computed() -> None:
    # On a GPU the other step runs on another stream, and gradients made on this one are freed to this one.
    found = conformance.subject("a2c", "vector", "none", "discrete")
    run, order = conformance.Run(found), []
    minimize = run.agent.minimize
    run.agent.minimize = lambda name, *given, **more: order.append(name) or minimize(name, *given, **more)
    run.feed(found.rollouts(run.agent, 1))
    assert order == ["critic", "actor"]
