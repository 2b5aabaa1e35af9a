"""TD3: smoothed and clipped targets by hand, a real policy delay, one target for both critics, and an actor on Q_1."""

import pytest
import torch
from replay_blocks import (
    ONE,
    SGD,
    TWO,
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

from whorl.agents.estimates import q_values
from whorl.algorithms.td3 import TD3
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Discrete
from whorl.ops.transforms import categorical_projection


def test_target_noise_is_clipped_before_it_is_added_and_then_the_action_is() -> None:
    agent = build(TD3, ONE, Array((1,)), target_noise=0.2, target_noise_clip=0.5)
    says(agent.target_actor, lambda obs: obs / 10)
    # Q'_1 = 10 a, Q'_2 = 8 - 2 a: the first is less below a = 2/3, the second above
    says(agent.target_critic, lambda obs, a: torch.stack((10 * a, 8 - 2 * a))[..., 0])
    says(agent.critic, lambda obs, a: torch.stack((obs, obs + 2))[..., 0])  # 0 and 2
    obs = torch.tensor([[0.0] * 4, [2.0, 8.0, 2.0, -9.0]]).unsqueeze(-1)
    batch = batch_of(obs, torch.zeros(1, 4, 1), [0.0, 0.0, 1.0, 0.0], [0.9, 1.0, 0.0, 0.729])
    smoothing = torch.tensor(
        [[[10.0], [10.0], [10.0], [-3.0]]]
    )  # .2 * 10 = 2 becomes .5; .2 * -3 = -.6 becomes -.5
    loss, error, q = agent.critic_loss(batch, {**agent.draw(batch), "smoothing": smoothing})
    # a' = .2 + .5 = .7: min(7, 6.6) * .9 = 5.94    (unclipped noise would give 1: 6)
    # a' = .8 + .5, clipped to 1: min(10, 6) = 6    (unclipped: min(13, 5.4) = 5.4)
    # terminal: the reward alone, 1
    # a' = -.9 - .5, clipped to -1: min(-10, 10) * .729 = -7.29
    target = torch.tensor([5.94, 6.0, 1.0, -7.29])
    # Both critics are drawn to the same target.
    both = torch.stack((0 - target, 2 - target))
    torch.testing.assert_close(error[0], both.abs().mean(0))
    assert float(loss) == pytest.approx(float(both.square().sum(0).mean()))
    assert float(q) == 1.0


def test_smoothing_has_the_deviation_of_its_setting_and_is_drawn_again() -> None:
    agent = build(TD3, ONE, Array((1,)), target_noise=0.3, target_noise_clip=10.0)
    says(agent.target_actor, lambda obs: 0 * obs)
    says(agent.target_critic, lambda obs, a: torch.stack((a, a))[..., 0])
    says(agent.critic, lambda obs, a: torch.zeros(2, *obs.shape[:-1]))
    rows = 20_000
    batch = batch_of(torch.zeros(2, rows, 1), torch.zeros(1, rows, 1), torch.zeros(rows), torch.ones(rows))
    first, second = (agent.critic_loss(batch, agent.draw(batch))[1][0] for _ in range(2))
    assert not first.equal(second)
    # the errors are |a'|: the root of their mean square is .3, within four of its deviations .3 / sqrt(2 rows)
    assert float(first.square().mean().sqrt()) == pytest.approx(0.3, abs=4 * 0.3 / (2 * rows) ** 0.5)


def test_the_actor_and_the_targets_move_with_every_second_update_and_stand_still_in_between() -> None:
    agent = build(TD3, tau=0.25)
    moved = []
    for number in range(1, 8):
        before = [weights(net) for net in (agent.actor, agent.target_actor, agent.target_critic)]
        critic = weights(agent.critic)
        updated = learn(agent, transitions(agent, seed=number))
        after = [weights(net) for net in (agent.actor, agent.target_actor, agent.target_critic)]
        assert not any(a.equal(b) for a, b in zip(critic, weights(agent.critic)))
        assert ("loss/actor" in updated.metrics) == (number % 2 == 0)
        stood = [same(a, b) for a, b in zip(before, after)]
        assert stood == [number % 2 == 1] * 3
        if not any(stood):
            moved.append(number)
            for old, online, new in zip(before[1:], (agent.actor, agent.critic), after[1:]):
                assert same(new, [torch.lerp(a, b, 0.25) for a, b in zip(old, weights(online))])
    assert moved == [2, 4, 6]


def test_the_actor_climbs_the_first_critic_only() -> None:
    agent = build(TD3)
    batch = transitions(agent)
    parameters = list(agent.actor.parameters())

    def slope() -> list[torch.Tensor]:
        return list(torch.autograd.grad(agent.actor_loss(batch, agent.draw(batch)), parameters))

    before = slope()
    with torch.no_grad():
        for weight in agent.critic.nets.parameters():
            weight[1].normal_()
    assert same(before, slope())
    with torch.no_grad():
        agent.critic.nets.weights[2][0].neg_()
    assert not same(before, slope())


def test_updates_are_the_rule_written_out() -> None:
    agent = build(TD3, tau=0.1, critic_lr=0.05, actor_lr=0.2, optimizer=SGD)
    critics, actor = plain_critics(agent.critic), plain_actor(agent.actor)
    targets, target_actor = [net.copy() for net in critics], actor.copy()
    for number in (1, 2, 3):
        batch = transitions(agent, seed=number)
        raw = torch.randn(1, 6, 2)
        agent.draw = lambda _, raw=raw: {
            "smoothing": raw,
            "actor": {},
            "target_actor": {},
            "critic": {},
            "target_critic": {},
        }
        obs, action, reward, discount = (
            t.double() for t in (batch.obs, batch.action[0], batch.reward[0], batch.discount[0])
        )
        learn(agent, batch)
        with torch.no_grad():
            smoothing = (raw[0].double() * 0.2).clamp(-0.5, 0.5)
            following = torch.cat((obs[1], (target_actor(obs[1]).tanh() + smoothing).clamp(-1, 1)), -1)
            target = reward + discount * torch.minimum(*(net(following)[:, 0] for net in targets))
        now = torch.cat((obs[0], action), -1)
        for net in critics:
            net.descend((net(now)[:, 0] - target).square().mean(), 0.05)
        if number == 2:
            actor.descend(-critics[0](torch.cat((obs[0], actor(obs[0]).tanh()), -1)).mean(), 0.2)
            for follower, online in zip([*targets, target_actor], [*critics, actor]):
                follower.follow(online, 0.1)
    assert_same_weights(plain_critics(agent.critic), critics)
    assert_same_weights([plain_actor(agent.actor)], [actor])
    assert_same_weights(plain_critics(agent.target_critic), targets)
    assert_same_weights([plain_actor(agent.target_actor)], [target_actor])


# Distributions of the return, and FastTD3


def test_with_atoms_both_critics_learn_the_moved_distribution_of_the_lower_one() -> None:
    agent = build(TD3, ONE, Array((1,)), n_atoms=3, v_min=0.0, v_max=2.0)
    says(agent.target_actor, lambda obs: 0 * obs)
    prob = torch.tensor(
        [[[0.0, 0.0, 1.0]] * 2, [[0.2, 0.3, 0.5]] * 2]
    )  # means 2 and 1.3: the second is lower
    answers = torch.tensor([[[0.5, 0.25, 0.25]] * 2, [[0.25, 0.5, 0.25]] * 2])  # [critics, B, atoms]
    says(agent.target_critic, lambda obs, a: prob.clamp(min=1e-30).log().unsqueeze(1))
    says(agent.critic, lambda obs, a: answers.log().unsqueeze(1))
    batch = batch_of(torch.zeros(2, 2, 1), torch.zeros(1, 2, 1), [0.5, 1.5], [0.5, 0.0])
    loss, error, q, metrics = agent.critic_loss(batch, agent.draw(batch))
    # 0.5 + 0.5 z puts .1, .65 and .25 on the atoms (see test_atoms); the terminal 1.5 puts 0, .5, .5.
    target = torch.tensor([[0.1, 0.65, 0.25], [0.0, 0.5, 0.5]])
    cross = -(target * answers.log()).sum(-1)  # [critics, B]
    assert float(loss) == pytest.approx(float(cross.sum(0).mean()))
    divergence = cross + torch.special.xlogy(target, target).sum(-1)
    torch.testing.assert_close(error[0], divergence.mean(0))
    assert float(q) == pytest.approx((0.75 + 1.0) / 2)
    assert metrics["q/clipped"].item() == 0


@pytest.mark.parametrize(("which", "expected"), [("first", 0.75), ("min", 0.5), ("mean", 0.625)])
def test_the_actor_climbs_the_mean_of_the_distribution_that_its_setting_names(
    which: str, expected: float
) -> None:
    agent = build(TD3, ONE, Array((1,)), n_atoms=3, v_min=0.0, v_max=2.0, actor_q=which)
    answers = torch.tensor([[0.5, 0.25, 0.25], [0.75, 0.0, 0.25]]).clamp(min=1e-30).log()  # means .75 and .5
    says(agent.critic, lambda obs, a: answers.reshape(2, 1, 1, 3) + 0 * a.sum())
    agent.critic.first = lambda rows, a: answers[0].reshape(1, 1, 3) + 0 * a.sum()
    batch = batch_of(torch.zeros(2, 1, 1), torch.zeros(1, 1, 1), [0.0], [0.0])
    assert agent.actor_loss(batch, agent.draw(batch)).item() == pytest.approx(-expected)


def test_without_a_target_actor_targets_follow_the_actor_itself() -> None:
    agent = build(TD3, target_actor=False, policy_delay=1, n_atoms=5)
    assert not any(name.startswith("target_actor") for name in agent.state_dict())
    batch = transitions(agent)
    noise = agent.draw(batch)
    before = agent.critic_loss(batch, noise)[1]
    with torch.no_grad():
        for weight in agent.actor.parameters():
            weight.add_(1.0)
    assert not agent.critic_loss(batch, noise)[1].equal(before)
    learn(agent, batch)


def test_values_of_a_saved_policy_are_means_of_the_distribution() -> None:
    agent = build(TD3, n_atoms=5, v_min=-1.0, v_max=1.0)
    batch = transitions(agent)
    found = q_values(agent, batch.now, batch.action[0])
    expected = (agent.critic(batch.now, batch.action).softmax(-1) * torch.linspace(-1, 1, 5)).sum(-1).amin(0)
    torch.testing.assert_close(found, expected[0])
    assert agent.value(batch.now).shape == (1, 6)


def test_updates_with_atoms_are_the_rule_written_out() -> None:
    settings = {"n_atoms": 7, "v_min": -3.0, "v_max": 3.0, "target_actor": False, "actor_q": "min"}
    agent = build(
        TD3, tau=0.1, critic_lr=0.05, actor_lr=0.2, optimizer=SGD, target_update_interval=1, **settings
    )
    critics, actor = plain_critics(agent.critic), plain_actor(agent.actor)
    targets, atoms = [net.copy() for net in critics], torch.linspace(-3, 3, 7, dtype=torch.float64)
    for number in (1, 2, 3):
        batch = transitions(agent, seed=number)
        raw = torch.randn(1, 6, 2)
        agent.draw = lambda _, raw=raw: {
            "smoothing": raw,
            "actor": {},
            "target_actor": {},
            "critic": {},
            "target_critic": {},
        }
        obs, action, reward, discount = (
            t.double() for t in (batch.obs, batch.action[0], batch.reward[0], batch.discount[0])
        )
        learn(agent, batch)
        with torch.no_grad():
            smoothing = (raw[0].double() * 0.2).clamp(-0.5, 0.5)
            following = torch.cat((obs[1], (actor(obs[1]).tanh() + smoothing).clamp(-1, 1)), -1)
            one, other = (net(following).softmax(-1) for net in targets)
            prob = torch.where((one @ atoms < other @ atoms).unsqueeze(-1), one, other)
            place = reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms
            target = categorical_projection(prob, place, atoms)
        now = torch.cat((obs[0], action), -1)
        for net in critics:
            net.descend(-(target * net(now).log_softmax(-1)).sum(-1).mean(), 0.05)
        if number == 2:
            own = torch.cat((obs[0], actor(obs[0]).tanh()), -1)
            actor.descend(-torch.minimum(*(net(own).softmax(-1) @ atoms for net in critics)).mean(), 0.2)
        for follower, online in zip(targets, critics):
            follower.follow(online, 0.1)
    assert_same_weights(plain_critics(agent.critic), critics)
    assert_same_weights([plain_actor(agent.actor)], [actor])
    assert_same_weights(plain_critics(agent.target_critic), targets)


def test_discrete_actions_are_refused_in_one_sentence() -> None:
    with pytest.raises(
        ConfigError, match="td3 needs continuous actions, but this environment has discrete"
    ) as e:
        build(TD3, Discrete(3))
    assert "\n" not in str(e.value) and "use sac" in str(e.value)
    with pytest.raises(
        ConfigError, match="discrete actions; use bc or iql"
    ):  # those that learn from data alone
        build(TD3, Discrete(3), bc_alpha=2.5)


def test_with_bc_alpha_the_actor_weighs_q_by_its_size_and_stays_close_to_the_data() -> None:
    agent = build(TD3, TWO, Array((1,)), bc_alpha=2.5)
    says(agent.actor, lambda obs: torch.cat((obs, -obs), -1))
    agent.critic.first = lambda rows, action: 4 * rows.selected[..., 0] + action[..., 1]
    obs = torch.tensor([[[0.5], [-1.0]], [[0.0], [0.0]]])
    batch = batch_of(obs, torch.tensor([[[0.5, 0.5], [0.0, 0.0]]]), [0.0, 0.0], [0.9, 0.9])
    # mu = (.5, -.5) and (-1, 1); Q = 2 - .5 = 1.5 and -4 + 1 = -3: lambda = 2.5 / 2.25
    # distances to the data: (0 + 1) / 2 and (1 + 1) / 2
    loss = agent.actor_loss(batch, agent.draw(batch))
    assert float(loss) == pytest.approx(-2.5 / 2.25 * (1.5 - 3) / 2 + (0.5 + 1.0) / 2)


def test_the_weight_of_q_is_no_part_of_the_slope() -> None:
    agent = build(TD3, bc_alpha=1.0)
    batch = transitions(agent)
    parameters = list(agent.actor.parameters())
    found = torch.autograd.grad(agent.actor_loss(batch, agent.draw(batch)), parameters)
    action = agent.actor(batch.now)
    q = agent.critic.first(batch.now, action)
    weight = 1.0 / float(q.abs().mean())
    wanted = torch.autograd.grad(-weight * q.mean() + (action - batch.action).square().mean(), parameters)
    for one, two in zip(found, wanted):
        torch.testing.assert_close(one, two)
