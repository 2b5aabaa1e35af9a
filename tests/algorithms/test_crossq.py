"""CrossQ: one pass over both halves, a target that is a constant, statistics that move by rule, a policy that waits."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from replay_blocks import (
    IMAGE,
    ONE,
    VECTOR,
    batch_of,
    build,
    learn,
    reweighted,
    same,
    transitions,
    weights,
)
from torch import Tensor

from whorl.agents.agent import Context
from whorl.algorithms.crossq import CrossQ, CrossQConfig
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Discrete
from whorl.nets.renorm import Moments, RenormMLP
from whorl.settings.merge import configure

NO_ENTROPY = {"alpha": 0.0, "tune_alpha": False}


def context(num_envs: int) -> Context:
    return Context(torch.zeros(num_envs, dtype=torch.bool), torch.Generator(), greedy=True)


def buffers(net: RenormMLP) -> list[Tensor]:
    return [buffer.clone() for buffer in net.buffers()]


def follow(net: RenormMLP, moments: list[Moments]) -> None:
    """Let running statistics be those of a batch."""
    for norm, (mean, var) in zip(net.norms, moments, strict=True):
        norm.mean.copy_(mean)
        norm.var.copy_(var)


def says(net: RenormMLP, values: Tensor) -> None:
    """Let learning answer by these values, whatever is asked."""
    net.learn = lambda _: (values, [])


# The critics' loss


def test_one_pass_over_both_halves_is_two_passes_with_the_statistics_of_both() -> None:
    agent = build(CrossQ)
    both, _ = agent.joined(transitions(agent), agent.draw(transitions(agent)))  # [2, 6, 5]
    run_parallel, moments = agent.critic.learn(both)
    follow(agent.critic, moments)
    now, after = agent.critic(both[:1]), agent.critic(both[1:])
    torch.testing.assert_close(run_parallel, torch.cat((now, after), 1))
    assert not torch.allclose(run_parallel[:, :1], agent.critic.learn(both[:1])[0], atol=1e-3)


def test_the_halves_are_what_was_done_and_what_the_policy_would_do_next_by_running_statistics() -> None:
    agent = build(CrossQ)
    batch = transitions(agent)
    noise = agent.draw(batch)
    both, log_prob = agent.joined(batch, noise)
    policy = agent.policy(agent.actor(batch.obs[1:]))
    action, expected = policy.sample_with_log_prob(noise["next_action"])
    assert both[0].equal(torch.cat((batch.obs[0], batch.action[0]), -1))
    assert both[1].equal(torch.cat((batch.obs[1], action[0]), -1))
    assert log_prob.equal(expected)


def test_the_target_takes_the_least_critic_and_stops_at_a_terminal_state() -> None:
    agent = build(CrossQ, ONE, **NO_ENTROPY)
    batch = batch_of(torch.zeros(2, 2, 3), torch.zeros(1, 2, 1), [1.0, 5.0], [0.9, 0.0])
    now, after = (
        torch.tensor([[2.0, 4.0], [3.0, 7.0]]),
        torch.tensor([[3.0, 9.0], [2.0, 8.0]]),
    )  # [critics, B]
    says(agent.critic, torch.stack((now, after), 1).unsqueeze(-1))
    loss, error, q, _ = agent.critic_loss(batch, agent.draw(batch))
    # y is 1 + 0.9 * min(3, 2) = 2.8, and 5. Errors: -0.8 and -1 of the first critic, 0.2 and 2 of the second.
    assert loss.item() == pytest.approx((0.64 + 0.04 + 1 + 4) / 2)
    assert error.flatten().tolist() == pytest.approx([(0.8 + 0.2) / 2, (1 + 2) / 2])
    assert q.item() == 4


def test_the_target_is_paid_for_the_entropy_of_the_next_action() -> None:
    agent = build(CrossQ, ONE, alpha=0.5, tune_alpha=False)
    batch = batch_of(torch.randn(2, 2, 3), torch.zeros(1, 2, 1), [0.0, 0.0], [1.0, 1.0])
    says(agent.critic, torch.zeros(2, 2, 2, 1))
    noise = agent.draw(batch)
    _, log_prob = agent.joined(batch, noise)
    _, error, _, _ = agent.critic_loss(batch, noise)
    torch.testing.assert_close(error, (0.5 * log_prob).abs())


def test_no_gradient_goes_into_the_half_that_makes_the_target() -> None:
    agent = build(CrossQ, **NO_ENTROPY)
    batch = transitions(agent)
    values = torch.randn(2, 2, 6, 1, requires_grad=True)
    says(agent.critic, values)
    (gradient,) = torch.autograd.grad(agent.critic_loss(batch, agent.draw(batch))[0], values)
    assert not gradient[:, 1].any()
    q, target = values[:, 0, :, 0], batch.reward[0] + batch.discount[0] * values[:, 1, :, 0].amin(0)
    torch.testing.assert_close(gradient[:, 0, :, 0], 2 * (q - target).detach() / 6)


def test_the_gradient_of_the_critics_is_that_of_plain_batch_normalised_nets() -> None:
    agent = build(CrossQ).double()
    batch = transitions(agent)
    batch = batch.replace(
        obs=batch.obs.double(),
        action=batch.action.double(),
        reward=batch.reward.double(),
        discount=batch.discount.double(),
    )
    noise = {name: value.double() for name, value in agent.draw(batch).items()}
    parameters = list(agent.critic.parameters())
    ours = torch.autograd.grad(agent.critic_loss(batch, noise)[0], parameters)
    both, log_prob = agent.joined(batch, noise)
    values = torch.stack(
        [by_hand(agent.critic, member, both.flatten(0, 1)) for member in (0, 1)]
    )  # [critics, 12]
    target = batch.reward[0] + batch.discount[0] * (values[:, 6:].amin(0) - log_prob[0])  # alpha is 1
    plain = torch.autograd.grad((values[:, :6] - target.detach()).square().sum(0).mean(), parameters)
    for one, other in zip(ours, plain):
        torch.testing.assert_close(one, other)


def by_hand(net: RenormMLP, member: int, value: Tensor) -> Tensor:
    """What a member says of rows in its warm-up: batch norm before each linear layer, relu after all but the last."""
    for number, (norm, weight, bias) in enumerate(zip(net.norms, net.weights, net.biases)):
        value = value.relu() if number else value
        scale, shift = norm.scale[member, 0], norm.shift[member, 0]
        value = (
            F.batch_norm(value, None, None, scale, shift, training=True, eps=1e-3) @ weight[member]
            + bias[member]
        )
    return value[:, 0]


def test_a_row_counts_by_its_weight_in_the_critics_loss() -> None:
    agent = build(CrossQ, ONE, **NO_ENTROPY)
    batch = batch_of(torch.zeros(2, 2, 3), torch.zeros(1, 2, 1), [0.0, 0.0], [0.0, 0.0])
    says(agent.critic, torch.tensor([[[1.0, 2.0], [0.0, 0.0]]] * 2).unsqueeze(-1))
    loss = agent.critic_loss(reweighted(batch, torch.tensor([3.0, 0.5])), agent.draw(batch))[0]
    assert loss.item() == pytest.approx((3 * 2 * 1 + 0.5 * 2 * 4) / 2)


# The actor's loss


def test_the_actor_learns_by_batch_statistics_and_climbs_critics_that_go_by_running_ones() -> None:
    agent = build(CrossQ)
    for _ in range(3):
        learn(agent, transitions(agent))
    batch = transitions(agent, seed=1)
    noise = agent.draw(batch)
    said, statistics = agent.actor.learn(batch.obs[:1])
    action, log_prob = agent.policy(said).sample_with_log_prob(noise["action"])
    q = agent.critic(torch.cat((batch.obs[:1], action), -1))[..., 0].amin(0)
    loss, mean, moments = agent.actor_loss(batch, noise)
    torch.testing.assert_close(loss, (agent.temperature() * log_prob - q).mean())
    torch.testing.assert_close(mean, log_prob.mean())
    assert all(a.equal(b) for one, other in zip(moments, statistics) for a, b in zip(one, other))


def test_the_policy_waits_for_every_third_update_with_its_statistics_and_the_temperature() -> None:
    agent = build(CrossQ)
    before = weights(agent.actor), buffers(agent.actor), weights(agent.temperature)
    for _ in range(2):
        assert "loss/actor" not in learn(agent, transitions(agent)).metrics
    assert same(weights(agent.actor), before[0])
    assert same(buffers(agent.actor), before[1])
    assert same(weights(agent.temperature), before[2])
    assert "loss/actor" in learn(agent, transitions(agent)).metrics
    assert not same(weights(agent.actor), before[0])
    assert not same(weights(agent.temperature), before[2])
    assert [int(norm.count) for norm in agent.critic.norms] == [3, 3, 3]
    assert [int(norm.count) for norm in agent.actor.norms] == [1, 1]


# Running statistics


def test_the_critics_statistics_move_by_a_hundredth_of_those_of_both_halves() -> None:
    agent = build(CrossQ)
    batch = transitions(agent)
    agent.critic.norms[0].mean.fill_(2.0)
    learn(agent, batch)
    mean, var = agent.critic.norms[0].mean[:, 0, :3], agent.critic.norms[0].var[:, 0, :3]
    seen = batch.obs.flatten(0, 1)  # both halves
    torch.testing.assert_close(mean, (0.99 * 2 + 0.01 * seen.mean(0)).expand(2, 3))
    torch.testing.assert_close(var, (0.99 + 0.01 * seen.var(0, correction=0)).expand(2, 3))


def test_the_actors_statistics_move_by_a_hundredth_of_those_of_the_first_half() -> None:
    agent = build(CrossQ, policy_delay=1)
    batch = transitions(agent)
    learn(agent, batch)
    torch.testing.assert_close(agent.actor.norms[0].mean[0, 0], 0.01 * batch.obs[0].mean(0))


def test_both_nets_keep_and_warm_up_as_settings_say() -> None:
    agent = build(CrossQ, renorm_momentum=0.5, renorm_warmup=7)
    norms = [*agent.critic.norms, *agent.actor.norms]
    assert [(norm.momentum, norm.warmup) for norm in norms] == [(0.5, 7)] * 5


# Acting


def test_an_action_depends_on_no_other_env() -> None:
    agent = build(CrossQ, policy_delay=1)
    learn(agent, transitions(agent))
    obs = torch.randn(2, 3)
    run_parallel = agent.act(obs, {}, context(2)).action
    alone = agent.act(obs[:1], {}, context(1)).action
    torch.testing.assert_close(run_parallel[:1], alone)


@pytest.mark.parametrize("observation", [VECTOR, IMAGE], ids=["vector", "image"])
def test_acting_reads_acting_tensors_alone(observation: Any) -> None:
    one, other = (build(CrossQ, observation=observation, seed=seed, policy_delay=1) for seed in (1, 2))
    batch = transitions(one)
    learn(one, batch)
    with torch.no_grad():
        for mine, given in zip(other.acting_tensors(), one.acting_tensors(), strict=True):
            mine.copy_(given)
    obs = batch.obs[0, :2]
    assert other.act(obs, {}, context(2)).action.equal(one.act(obs, {}, context(2)).action)
    critics = {tensor.data_ptr() for tensor in one.critic.state_dict().values()}
    assert not critics & {tensor.data_ptr() for tensor in one.acting_tensors()}


def test_first_priorities_of_rows_depend_on_no_other_row() -> None:
    agent, twin = build(CrossQ), build(CrossQ)
    batch = transitions(agent)
    clean = agent.errors(batch)
    batch.action[0, 5] = torch.nan
    dirty = twin.errors(batch)
    assert dirty[0, :5].equal(clean[0, :5]) and dirty[0, 5].isnan()


# Settings


def test_defaults_are_the_papers() -> None:
    cfg = CrossQConfig()
    assert (cfg.critic_hidden_sizes, cfg.actor_hidden_sizes) == ((2048, 2048), (256, 256))
    assert (cfg.critic_lr, cfg.actor_lr, cfg.alpha_lr) == (1e-3, 1e-3, 1e-3)
    assert (cfg.policy_delay, cfg.updates_per_step, cfg.batch_size, cfg.ensemble_q_num) == (3, 1, 256, 2)
    assert (cfg.renorm_momentum, cfg.renorm_warmup, cfg.random_steps) == (0.99, 100_000, 5_000)
    agent = build(CrossQ)
    betas = {name: tuple(optimizer.param_groups[0]["betas"]) for name, optimizer in agent._optimizers.items()}
    assert betas == {"critic": (0.5, 0.999), "actor": (0.5, 0.999), "alpha": (0.9, 0.999)}
    assert agent.target_entropy == -2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"critic_network": Part("residual")},
            "critic_network is {'class': 'residual'}, but crossq always uses batch-renormalised MLPs",
        ),
        ({"actor_network": Part("layers", {"layers": []})}, "actor_network is .* set actor_hidden_sizes"),
        ({"critic_network": Part("mlp", {"layer_norm": True})}, "critic_network is"),
        ({"noisy": True}, "crossq has no noisy layers; leave it out, or use sac"),
        ({"batch_size": 1}, "batch_size is 1, but batch statistics need at least 2 rows"),
    ],
)
def test_settings_that_do_not_fit_are_declined(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build(CrossQ, **settings)


def test_discrete_actions_are_declined() -> None:
    with pytest.raises(ConfigError, match="crossq needs continuous actions"):
        build(CrossQ, Discrete(3))


@pytest.mark.parametrize(
    "given", [{"memory": "lstm"}, {"sequence_length": 8}, {"last_action": True}, {"share_memory": True}]
)
def test_memory_is_none_of_its_settings(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"crossq does not use {next(iter(given))}; leave it out"):
        configure("crossq", "Pendulum-v1", given)
