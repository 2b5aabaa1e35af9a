"""TRPO: conjugate gradients, Fisher products, line search and natural gradient step, each against exact results."""

from typing import Any

import pytest
import torch
from on_policy_blocks import ACTIONS, Chain, Walk, build, learned_values, poison, rollout, same, weights
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from whorl.algorithms.trpo import TRPO, conjugate_gradient, flat, hessian_product, line_search
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, register
from whorl.data.batch import Batch
from whorl.distributed.actor import GradientsPayload


def positive_definite(size: int, seed: int = 0) -> Tensor:
    base = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return base @ base.T + 0.5 * torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_conjugate_gradients_solve_as_a_direct_solver_does(size: int) -> None:
    matrix = positive_definite(size)
    target = torch.arange(1.0, size + 1, dtype=torch.float64)
    found = conjugate_gradient(lambda vector: matrix @ vector, target, size, tolerance=0.0)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, target), atol=1e-8, rtol=1e-8)


def test_conjugate_gradients_stand_still_once_they_have_the_answer() -> None:
    matrix, target = positive_definite(3), torch.ones(3, dtype=torch.float64)
    few, many = (conjugate_gradient(lambda v: matrix @ v, target, count) for count in (4, 200))
    torch.testing.assert_close(few, many, atol=0, rtol=0)
    assert conjugate_gradient(lambda v: matrix @ v, torch.zeros_like(target), 5).equal(
        torch.zeros_like(target)
    )


def hessian_of_the_divergence(agent: Any, batch: Batch) -> Tensor:
    """Every entry by itself: the gradient of each entry of the gradient."""
    parameters = list(agent.actor.parameters())
    with torch.no_grad():
        old = agent.actor(batch.now)
    kl = agent.divergence(old, agent.actor(batch.now), batch)
    slope = flat(torch.autograd.grad(kl, parameters, create_graph=True))
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    return torch.stack([flat(torch.autograd.grad(entry, parameters, **options)) for entry in slope])


def fisher_matrix(agent: Any, batch: Batch) -> Tensor:
    """E_s E_a[score score^T] of a policy over three choices: what the Hessian at the old policy has to be."""
    parameters = list(agent.actor.parameters())
    policy = agent.actor(batch.now)
    total, size = 0.0, sum(p.numel() for p in parameters)
    matrix = torch.zeros(size, size)
    for row in (batch.mask > 0).nonzero().tolist():
        for choice in range(3):
            log_prob = policy.log_probs[row[0], row[1], choice]
            score = flat(torch.autograd.grad(log_prob, parameters, retain_graph=True))
            matrix += log_prob.detach().exp() * torch.outer(score, score)
        total += 1
    return matrix / total


def tiny(action: str = "discrete", **settings: Any) -> Any:
    return build(TRPO, ACTIONS[action], **{"actor_hidden_sizes": (3,), "batch_size": 16, **settings})


@pytest.mark.parametrize("action", ACTIONS)
def test_products_are_those_of_the_explicit_hessian(action: str) -> None:
    agent = tiny(action)
    batch = rollout(agent)
    matrix = hessian_of_the_divergence(agent, batch)
    parameters = list(agent.actor.parameters())
    with torch.no_grad():
        old = agent.actor(batch.now)
    kl = agent.divergence(old, agent.actor(batch.now), batch)
    slope = flat(torch.autograd.grad(kl, parameters, create_graph=True))
    torch.testing.assert_close(slope.detach(), torch.zeros_like(slope), atol=1e-6, rtol=0)
    for seed in range(3):
        vector = torch.randn(len(matrix), generator=torch.Generator().manual_seed(seed))
        found = hessian_product(slope, parameters, vector)
        torch.testing.assert_close(found, matrix @ vector, atol=1e-5, rtol=1e-4)
    assert torch.linalg.eigvalsh(matrix)[0] > -1e-5


def test_the_hessian_is_the_fisher_information() -> None:
    agent = tiny()
    batch = rollout(agent)
    torch.testing.assert_close(
        hessian_of_the_divergence(agent, batch), fisher_matrix(agent, batch), atol=1e-5, rtol=1e-3
    )


def test_a_step_is_the_natural_gradient_scaled_to_the_bound() -> None:
    """theta + sqrt(2 max_kl / g F^-1 g) F^-1 g, with F and its inverse written out."""
    agent = tiny(max_kl=1e-3, cg_iterations=60, cg_damping=0.1, normalize_advantage=False)
    batch = rollout(agent)
    parameters = list(agent.actor.parameters())
    advantage, _, _ = agent.estimate(batch)
    log_prob = agent.actor(batch.now).log_prob(batch.action)
    gain = ((log_prob - log_prob.detach()).exp() * advantage * batch.mask).sum() / batch.mask.sum()
    gradient = flat(torch.autograd.grad(gain, parameters)).double()
    matrix = fisher_matrix(agent, batch).double()
    matrix = matrix + 0.1 * torch.eye(len(matrix), dtype=torch.float64)
    direction = torch.linalg.solve(matrix, gradient)
    wanted = (2e-3 / gradient.dot(direction)).sqrt() * direction
    before = flat(parameters).detach().clone()
    updated = agent.update(batch)
    assert float(updated.metrics["policy/step_fraction"]) == 1.0
    torch.testing.assert_close((flat(parameters) - before).double(), wanted, atol=1e-4, rtol=1e-2)


def test_a_quadratic_by_hand() -> None:
    """Gain g . d - 0 and divergence d F d / 2 with F = diag(1, 4), g = (3, 4): F^-1 g = (3, 1), g F^-1 g = 13."""
    theta = torch.zeros(2)
    fisher, gradient = torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([3.0, 4.0])
    direction = conjugate_gradient(lambda vector: fisher @ vector, gradient, 2)
    torch.testing.assert_close(direction, torch.tensor([3.0, 1.0]))
    step = (2 * 0.13 / direction.dot(fisher @ direction)).sqrt() * direction
    measure = lambda: (gradient.dot(theta), 0.5 * theta.dot(fisher @ theta))  # noqa: E731
    # sqrt(.26 / 13) = .141421: the divergence of the whole step is .13
    taken, gain, kl = line_search([theta], step, [1.0, 0.5], measure, 0.1300001)
    assert (float(taken), float(kl)) == pytest.approx((1.0, 0.13))
    assert theta.tolist() == pytest.approx([0.424264, 0.141421], abs=1e-5)
    theta.zero_()
    taken, gain, kl = line_search([theta], step, [1.0, 0.5, 0.25], measure, 0.05)
    assert (float(taken), float(kl)) == pytest.approx((0.5, 0.0325))
    assert float(gain) == pytest.approx(0.5 * (3 * 0.424264 + 4 * 0.141421), abs=1e-5)


@pytest.mark.parametrize("gain", [-1.0, 0.0, float("nan")])
def test_without_a_length_that_gains_nothing_moves(gain: float) -> None:
    theta = torch.tensor([1.0, 2.0])
    taken, found, kl = line_search(
        [theta], torch.ones(2), [1.0, 0.5], lambda: (torch.tensor(gain), torch.tensor(0.0)), 1.0
    )
    assert theta.tolist() == [1.0, 2.0]
    assert (float(taken), float(found), float(kl)) == (0, 0, 0)


@pytest.mark.parametrize("action", ACTIONS)
def test_no_update_leaves_the_trust_region(action: str) -> None:
    for seed in range(6):
        agent = tiny(action, max_kl=0.05, cg_damping=1e-4)
        batch = rollout(agent, seed=seed)
        with torch.no_grad():
            old = agent.actor(batch.now)
        found = agent.update(batch).metrics
        with torch.no_grad():
            kl = float(agent.divergence(old, agent.actor(batch.now), batch))
        assert kl <= 0.05 + 1e-7
        assert kl == pytest.approx(float(found["policy/kl"]), abs=1e-7)


@pytest.mark.parametrize("kind", ACTIONS)
def test_masked_rows_have_exactly_no_influence(kind: str) -> None:
    def after(poisoned: bool) -> list[Tensor]:
        agent = tiny(kind)
        batch = rollout(agent)
        if poisoned:
            poison(batch)
        agent.update(batch)
        return weights(agent)

    assert same(after(False), after(True))


def test_the_critic_tells_truncation_from_termination() -> None:
    settings = {"batch_size": 27, "critic_epochs": 5}
    value = learned_values(TRPO, Walk, 200, **settings)
    assert value[5] == pytest.approx(10.0, abs=0.1)
    assert value[0] == pytest.approx(5.905, abs=0.1)
    chain = learned_values(TRPO, Chain, 100, **settings)
    assert chain[:3] == pytest.approx([0.81, 0.9, 1.0], abs=0.02)


def test_the_objective_is_the_mean_of_ratios_times_advantages() -> None:
    agent = tiny()
    batch = rollout(agent)
    batch.extras["log_prob"].sub_(torch.tensor(2.0).log())  # as if actions had been half as likely
    with torch.no_grad():
        found = agent.surrogate(agent.actor(batch.now), batch, batch.reward)
    assert float(found) == pytest.approx(2 * float(batch.reward[batch.mask > 0].mean()), rel=1e-4)


def test_advantages_are_normalised_over_the_rollout_if_asked() -> None:
    plain, normalised = tiny(normalize_advantage=False), tiny(normalize_advantage=True)
    batch = rollout(plain)
    rows = batch.mask > 0
    found, raw = (agent.estimate(batch)[0][rows] for agent in (normalised, plain))
    assert float(found.mean()) == pytest.approx(0, abs=1e-5)
    assert float(raw.mean()) != pytest.approx(0, abs=1e-3)


@register("network", "attending")
class Attending(nn.Module):
    """Attention among the four pairs of a layer's outputs, and a layer that nothing reads."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.into, self.spare = nn.Linear(inputs, 8), nn.Linear(2, 2)

    def forward(self, value: Tensor) -> Tensor:
        pairs = self.into(value).reshape(-1, 1, 4, 2)
        return scaled_dot_product_attention(pairs, pairs, pairs).reshape(*value.shape[:-1], 8)


def test_networks_with_attention_and_with_spare_weights_learn() -> None:
    agent = tiny(actor_network=Part("attending"))
    before = {name: value.clone() for name, value in agent.actor.named_parameters()}
    found = agent.update(rollout(agent))
    assert found.metrics["policy/step_fraction"] > 0
    moved = {name for name, value in agent.actor.named_parameters() if not value.equal(before[name])}
    assert moved == {name for name in before if "spare" not in name}


def test_actors_cannot_send_steps_that_no_optimizer_takes() -> None:
    agent = tiny(critic_epochs=1)
    with pytest.raises(ConfigError, match="TRPO moves some weights without one; leave actor_gradients out"):
        GradientsPayload(agent, rollout(agent), 0)
