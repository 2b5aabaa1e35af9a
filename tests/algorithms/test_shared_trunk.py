"""Actor and critic with one trunk: its gradient is the weighted sum of both losses' gradients."""

from typing import Any

import pytest
import torch
from on_policy_blocks import TREE, build, poison, rollout, same, weights
from torch import Tensor

from whorl.algorithms.a2c import A2C
from whorl.algorithms.impala import IMPALA
from whorl.algorithms.ppo import PPO
from whorl.conformance import CHECKS, subject
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Array, Discrete, Spec
from whorl.data.batch import Batch
from whorl.ops.losses import masked_mean, masked_normalize
from whorl.ops.returns import gae

PLAIN: dict[str, Any] = {
    "shared_trunk": True,
    "optimizer": Part("SGD"),
    "actor_lr": 1.0,
    "max_grad_norm": 0.0,
    "gae_lambda": 1.0,
    "ent_coef": 0.1,
    "value_coef": 0.3,
}
ONE_PASS = {"n_epochs": 1, "batch_size": 16}
RULES: list[Any] = [(A2C, {}), (IMPALA, {}), (PPO, ONE_PASS)]


def expected(agent: Any, batch: Batch) -> list[Tensor]:
    """Gradient of actor's loss + .3 * gradient of critic's loss, written out; a fresh rollout has ratio one."""
    value = agent.critic(batch.all)
    advantage = gae(batch.reward, batch.discount, value.detach(), batch.keep, 1.0) * batch.mask
    target = advantage + value[:-1].detach()
    if isinstance(agent, PPO):
        advantage = masked_normalize(advantage, batch.mask)
    policy = agent.actor(batch.now)
    actor = -masked_mean(policy.log_prob(batch.action) * advantage, batch.mask)
    actor = actor - 0.1 * masked_mean(policy.entropy(), batch.mask)
    critic = masked_mean(0.5 * (value[:-1] - target).square(), batch.mask)
    parameters = [*agent.actor.parameters(), *agent.critic.parameters()]
    of_actor = torch.autograd.grad(actor, parameters, materialize_grads=True, allow_unused=True)
    of_critic = torch.autograd.grad(critic, parameters, materialize_grads=True, allow_unused=True)
    return [one + 0.3 * other for one, other in zip(of_actor, of_critic)]


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize(("rule", "settings"), RULES)
def test_the_gradient_of_the_trunk_is_the_sum(rule: type, settings: dict[str, Any], memory: str) -> None:
    agent = build(rule, observation=TREE, memory=memory, chunk_length=8, **{**PLAIN, **settings})
    batch = rollout(agent)
    gradient = expected(agent, batch)
    before = weights(agent)
    agent.update(batch)
    moves = [old - new for old, new in zip(before, weights(agent), strict=True)]
    for move, wanted in zip(moves, gradient, strict=True):
        torch.testing.assert_close(move, wanted, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("rule", [A2C, IMPALA, PPO])
def test_the_trunk_belongs_to_the_actor_alone(rule: type) -> None:
    agent = build(rule, shared_trunk=True, memory="gru")
    assert agent.critic.backbone is agent.actor.backbone
    assert {name for name, _ in agent.critic.named_parameters()} == {"head.weight", "head.bias"}
    assert not [name for name in agent.state_dict() if name.startswith("critic.backbone")]
    assert list(agent.parameters_of()) == ["actor"]
    assert len(agent.parameters_of()["actor"]) == len(list(agent.parameters()))
    assert set(agent.initial_memory(2)) == {"actor"}


@pytest.mark.parametrize(("rule", "settings"), RULES)
def test_masked_rows_have_exactly_no_influence(rule: type, settings: dict[str, Any]) -> None:
    def after(poisoned: bool) -> list[Tensor]:
        agent = build(rule, **{**PLAIN, **settings})
        batch = rollout(agent)
        if poisoned:
            poison(batch)
        agent.update(batch)
        return weights(agent)

    assert same(after(False), after(True))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("rule", ["a2c", "impala", "ppo"])
def test_conformance(rule: str, check: str) -> None:
    kind = ("vector", "gru", "multi-discrete") if rule == "a2c" else ("image", "none", "masked")
    CHECKS[check](subject(rule, *kind, shared_trunk=True))


def test_the_kl_cut_stops_the_critic_of_a_shared_trunk_too() -> None:
    settings = {**PLAIN, "optimizer": Part("SGD"), "batch_size": 16, "kl_cut": 1e-9}
    one, three = (build(PPO, n_epochs=epochs, **settings) for epochs in (1, 3))
    for agent in (one, three):
        agent.update(rollout(agent))
    # The divergence of the first pass is 0, so a second pass is made; after it all stand still.
    two = build(PPO, n_epochs=2, **settings)
    two.update(rollout(two))
    assert same(weights(two), weights(three)) and not same(weights(one), weights(two))


def test_observations_for_the_critic_alone_are_refused() -> None:
    spec = Spec({"seen": Array((2,)), "hidden": Array((2,))}, Discrete(2), 2)
    config = A2C.Config(shared_trunk=True, privileged_obs=("hidden",))
    with pytest.raises(ConfigError, match=r"shared_trunk is true, but the critic alone reads hidden"):
        A2C(spec, config)
