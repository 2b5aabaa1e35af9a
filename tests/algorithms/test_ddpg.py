"""DDPG: targets worked by hand, an update against the rule written out plainly, and both versions of the critic."""

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

from whorl.agents.agent import Context
from whorl.algorithms.ddpg import DDPG
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Spec
from whorl.settings.merge import configure


def test_targets_bootstrap_through_truncation_and_n_steps_but_not_through_termination() -> None:
    agent = build(DDPG, ONE, Array((1,)))
    says(agent.target_actor, lambda obs: obs / 10)  # mu'(2) = .2
    says(agent.target_critic, lambda obs, action: (3 * obs + 10 * action)[None, ..., 0])  # Q'(2, .2) = 8
    says(agent.critic, lambda obs, action: (obs + action)[None, ..., 0])  # Q(1, .5) = 1.5
    obs = torch.tensor([[1.0] * 3, [2.0] * 3]).unsqueeze(-1)
    # terminal, truncated (as any other step), three steps folded
    batch = batch_of(obs, torch.full((1, 3, 1), 0.5), [1.0, 1.0, 1.0], [0.0, 0.9, 0.729])
    loss, error, q = agent.critic_loss(batch, agent.draw(batch))
    # y = 1, 1 + .9 * 8 = 8.2, 1 + .729 * 8 = 6.832
    torch.testing.assert_close(error, torch.tensor([[0.5, 6.7, 5.332]]))
    assert float(loss) == pytest.approx((0.25 + 44.89 + 28.430224) / 3)
    assert float(q) == 1.5


def test_the_actor_loss_is_minus_the_value_of_its_own_action() -> None:
    agent = build(DDPG, ONE, Array((1,)))
    says(agent.actor, lambda obs: obs / 10)
    says(agent.critic, lambda obs, action: (3 * obs + 10 * action)[None, ..., 0])
    obs = torch.tensor([[1.0, 2.0], [7.0, 7.0]]).unsqueeze(-1)
    batch = batch_of(obs, torch.zeros(1, 2, 1), [0.0, 0.0], [0.9, 0.9])
    # Q(1, .1) = 4, Q(2, .2) = 8; the successors and the stored actions do not matter
    assert float(agent.actor_loss(batch, agent.draw(batch))) == pytest.approx(-6.0)


def test_the_first_published_version_decays_the_weights_of_its_critic_alone() -> None:
    cfg = configure("ddpg_lillicrap", "Untuned-v0", {}).algo
    agent = DDPG(Spec(Array((3,)), ONE, 2), cfg)
    decay = {name: agent._optimizers[name].param_groups[0]["weight_decay"] for name in ("critic", "actor")}
    assert decay == {"critic": 0.01, "actor": 0.0}


def test_both_weight_decays_of_the_critic_add_up() -> None:
    agent = build(DDPG, weight_decay=0.25, critic_weight_decay=0.5)
    decay = {name: agent._optimizers[name].param_groups[0]["weight_decay"] for name in ("critic", "actor")}
    assert decay == {"critic": 0.75, "actor": 0.25}


@pytest.mark.parametrize("joins", ["first", "second"])
def test_updates_are_the_rule_written_out(joins: str) -> None:
    settings: dict[str, Any] = {
        "tau": 0.1,
        "critic_lr": 0.05,
        "actor_lr": 0.2,
        "target_update_interval": 2,
        "optimizer": SGD,
    }
    agent = build(DDPG, action_joins=joins, **settings)
    critic, actor = plain_critics(agent.critic)[0], plain_actor(agent.actor)
    target_critic, target_actor = critic.copy(), actor.copy()

    def value(net: Plain, obs: Tensor, action: Tensor) -> Tensor:
        if joins == "first":
            return net(torch.cat((obs, action), -1))[..., 0]
        w1, b1, w2, b2, w3, b3 = net.leaves
        seen = (obs @ w1.T + b1).relu()
        return ((torch.cat((seen, action), -1) @ w2.T + b2).relu() @ w3.T + b3)[..., 0]

    for number in (1, 2, 3):
        batch = transitions(agent, seed=number)
        obs, action, reward, discount = (
            t.double() for t in (batch.obs, batch.action[0], batch.reward[0], batch.discount[0])
        )
        learn(agent, batch)
        with torch.no_grad():
            target = reward + discount * value(target_critic, obs[1], target_actor(obs[1]).tanh())
        critic.descend((value(critic, obs[0], action) - target).square().mean(), 0.05)
        # The actor climbs the critic as it is after its step.
        actor.descend(-value(critic, obs[0], actor(obs[0]).tanh()).mean(), 0.2)
        if number == 2:
            target_critic.follow(critic, 0.1)
            target_actor.follow(actor, 0.1)
    assert_same_weights(plain_critics(agent.critic), [critic])
    assert_same_weights([plain_actor(agent.actor)], [actor])
    assert_same_weights(plain_critics(agent.target_critic), [target_critic])
    assert_same_weights([plain_actor(agent.target_actor)], [target_actor])


def test_lillicraps_critic_sees_the_action_in_its_second_layer_only() -> None:
    agent = build(DDPG, action_joins="second")
    first, second, _ = agent.critic.nets.weights
    assert first.shape == (1, 3, 8)  # 3 observations
    assert second.shape == (1, 8 + 2, 8)  # and 2 actions
    assert build(DDPG).critic.nets.weights[0].shape == (1, 3 + 2, 8)


def test_lillicraps_critic_needs_a_hidden_layer_for_the_action_to_join_after() -> None:
    with pytest.raises(
        ConfigError, match="the action is concatenated after hidden layer 1, but critic_hidden_sizes has 0"
    ):
        build(DDPG, action_joins="second", critic_hidden_sizes=())


def test_both_targets_start_equal_and_take_no_gradient() -> None:
    agent = build(DDPG)
    assert same(weights(agent.target_critic), weights(agent.critic))
    assert same(weights(agent.target_actor), weights(agent.actor))
    assert not any(p.requires_grad for t in (agent.target_critic, agent.target_actor) for p in t.parameters())


def test_the_process_that_explores_travels_in_the_memory() -> None:
    agent = build(DDPG, noise="ou", noise_scale=0.5, noise_theta=0.25)
    memory, generator = agent.initial_memory(2), torch.Generator().manual_seed(3)
    drawn = torch.Generator().manual_seed(3)
    obs, started = torch.randn(2, 3), torch.tensor([True, True])
    env_index = torch.arange(2)
    with torch.no_grad():
        greedy = agent.act(obs, memory, Context(started, generator, greedy=True)).action
        first = agent.act(obs, memory, Context(started, generator, env_index=env_index))
        second = agent.act(obs, first.memory, Context(~started, generator, env_index=env_index))
    one, two = (torch.randn(2, 2, generator=drawn) for _ in range(2))
    x1 = 0.5 * one
    x2 = 0.75 * x1 + 0.5 * two
    torch.testing.assert_close(first.action, (greedy + x1).clamp(-1, 1))
    torch.testing.assert_close(second.action, (greedy + x2).clamp(-1, 1))
