"""DQN and its switches: targets and losses by hand, double, Munchausen, noise, masks, replay, and when targets move."""

from typing import Any

import pytest
import torch
from replay_blocks import (
    SGD,
    assert_same_weights,
    batch_of,
    learn,
    reweighted,
    same,
    says,
    transitions,
    weights,
)
from torch import Tensor, nn
from value_blocks import (
    MASKED,
    allowing,
    build,
    context,
    masked_obs,
    plain_values,
    scripted,
    telling,
    told,
)

from whorl.agents.by_hand import q_loss_by_hand
from whorl.algorithms.dqn import DQN
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, register
from whorl.core.spec import Array, Continuous, MultiDiscrete, Spec
from whorl.data.batch import Batch
from whorl.ops.by_hand import huber_loss
from whorl.settings.merge import configure

NONE: dict[str, Any] = {"online": {}, "select": {}, "target": {}}
"""noise of nets without noisy layers"""


def target(agent: Any, batch: Batch) -> list[float]:
    return agent.target(batch, NONE)[0].tolist()


# Targets


def test_a_target_bootstraps_through_truncation_and_not_through_termination() -> None:
    agent = telling(DQN, 2)
    same_row = {"now": [[0.0, 0.0]] * 3, "after": [[5.0, 7.0]] * 3, "action": [0] * 3, "reward": [1.0] * 3}
    # terminal, truncated (the discount is whole), folded over three steps
    batch = told(**same_row, discount=[0.0, 0.9, 0.729])
    assert target(agent, batch) == pytest.approx([1.0, 1 + 0.9 * 7, 1 + 0.729 * 7])


def test_double_takes_the_online_nets_choice_at_the_target_nets_value() -> None:
    # the published case: errors 0 and 1 with double; the plain maximum gives 1 + 91 - 2 = 90 for the second
    batch = told(
        now=[[1.0, 9.0, 9.0], [9.0, 2.0, 9.0]],
        after=[[99.0, 1.0, 98.0], [91.0, 2.0, 66.0]],
        judged=[[2.0, 10.0, 1.0], [11.0, 20.0, 1.0]],
        action=[0, 1],
        reward=[1.0, 1.0],
        discount=[0.0, 1.0],
    )
    double, plain = telling(DQN, 3, double=True), telling(DQN, 3)
    assert double.critic_loss(batch, NONE)[1].tolist() == [[0.0, 1.0]]
    assert plain.critic_loss(batch, NONE)[1].tolist() == [[0.0, 90.0]]


def test_double_is_plain_where_both_nets_agree() -> None:
    double, plain = build(DQN, double=True), build(DQN)
    batch = transitions(plain)
    assert double.critic_loss(batch, NONE)[0].equal(plain.critic_loss(batch, NONE)[0])
    with torch.no_grad():
        double.critic.advantage.last.weight.neg_()
        plain.critic.advantage.last.weight.neg_()
    assert not double.critic_loss(batch, NONE)[0].equal(plain.critic_loss(batch, NONE)[0])


def test_double_has_no_bias_where_the_maximum_has() -> None:
    # ten choices of value 0, seen through unit noise: their maximum is 1.5388 on average, with deviation .587
    rows = 20_000
    noise = torch.randn(2, rows, 10, generator=torch.Generator().manual_seed(0))
    zeros, one = [0.0] * rows, [1.0] * rows
    batch = told(torch.zeros(rows, 10), noise[0], [0] * rows, zeros, one, judged=noise[1])
    plain = torch.tensor(target(telling(DQN, 10), batch)).mean()
    double = torch.tensor(target(telling(DQN, 10, double=True), batch)).mean()
    assert float(plain) == pytest.approx(1.5388, abs=4 * 0.587 / rows**0.5)
    assert float(double) == pytest.approx(0.0, abs=4 / rows**0.5)


def test_rescaled_targets_go_through_the_inverse() -> None:
    # r 1, gamma .99, Q' = h(50): h(50.5) = 6.226850; after a terminal state h(3) = 1.003
    value = 51**0.5 - 1 + 0.05
    batch = told([[0.0, 0.0]] * 2, [[value, 0.0]] * 2, [0, 0], [1.0, 3.0], [0.99, 0.0])
    assert target(telling(DQN, 2, rescale_values=True), batch) == pytest.approx([6.226850, 1.003], abs=2e-6)


def test_no_gradient_runs_into_a_target() -> None:
    for settings in ({}, {"double": True}, {"munchausen": 0.9}):
        agent = build(DQN, **settings)
        batch = transitions(agent)
        found = agent.soft_target(batch, NONE) if "munchausen" in settings else agent.target(batch, NONE)
        assert not found.requires_grad
        agent.critic_loss(batch, NONE)[0].backward()
        assert all(p.grad is None for p in agent.target_critic.parameters())


# Losses


@pytest.mark.parametrize(
    ("kind", "losses"),
    # errors .5, -1, 3
    [("huber", [0.125, 0.5, 2.5]), ("squared", [0.125, 0.5, 4.5])],
)
def test_losses_by_hand(kind: Any, losses: list[float]) -> None:
    agent = telling(DQN, 2, loss=kind)
    batch = told([[1.5, 9], [9, 0], [4, 9]], [[0.0, 0.0]] * 3, [0, 1, 0], [1.0, 1.0, 1.0], [0.0] * 3)
    loss, error, q = agent.critic_loss(batch, NONE)
    assert float(loss) == pytest.approx(sum(losses) / 3)
    assert error.tolist() == [[0.5, 1.0, 3.0]]
    assert float(q) == pytest.approx(5.5 / 3)
    # weights of a prioritized draw enter the loss alone
    weight = torch.tensor([2.0, 0.0, 0.5])
    weighted, same_error, _ = agent.critic_loss(reweighted(batch, weight), NONE)
    assert float(weighted) == pytest.approx((2 * losses[0] + 0.5 * losses[2]) / 3)
    assert same_error.equal(error)


@pytest.mark.parametrize("loss", ["huber", "squared"])
@pytest.mark.parametrize("double", [False, True])
def test_updates_are_the_rule_written_out(double: bool, loss: Any) -> None:
    agent = build(
        DQN,
        optimizer=SGD,
        learning_rate=0.1,
        max_grad_norm=0.0,
        target_update_interval=2,
        double=double,
        loss=loss,
    )
    net = plain_values(agent.critic)
    follower = net.copy()
    for number in (1, 2, 3):
        batch = transitions(agent, seed=number)
        batch.reward.mul_(2)  # some errors beyond 1
        obs, reward, discount = batch.obs.double(), batch.reward[0].double(), batch.discount[0].double()
        rows = torch.arange(6)
        learn(agent, batch)
        with torch.no_grad():
            choice = (net if double else follower)(obs[1]).argmax(-1)
            goal = reward + discount * follower(obs[1])[rows, choice]
        error = net(obs[0])[rows, batch.action[0]] - goal
        linear = (error.abs() > 1) & (loss == "huber")
        net.descend(torch.where(linear, error.abs() - 0.5, 0.5 * error**2).mean(), 0.1)
        if number == 2:
            follower.follow(net, 1.0)
    assert_same_weights([plain_values(agent.critic)], [net])
    assert_same_weights([plain_values(agent.target_critic)], [follower])


def test_a_row_of_weight_zero_changes_no_bit() -> None:
    def after(other: bool) -> list[Tensor]:
        agent = build(DQN, double=True, dueling=True)
        batch = reweighted(transitions(agent), torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0, 1.0]))
        if other:
            batch.reward[0, 2] = 1e3
            batch.obs[:, 2] += 1
        learn(agent, batch)
        return weights(agent)

    assert same(after(False), after(True))


# Munchausen


def munchausen(**settings: Any) -> Any:
    given = {"munchausen": 0.9, "munchausen_temperature": 0.5, "munchausen_low": -1.0, **settings}
    return telling(DQN, 2, **given)


def test_munchausen_targets_by_hand() -> None:
    # The target net says (1, 0) of the rows: .5 log pi = (-.063464, -1.063464), the second cut off at -1; and (2, 1)
    # of what follows: .5 * log(e^4 + e^2) = 2.063464. What the online net says is of no account.
    rows = {
        "now": [[8.0, 9.0]] * 3,
        "known": [[1.0, 0.0]] * 3,
        "after": [[2.0, 1.0]] * 3,
        "judged": [[7.0, 8.0]] * 3,
    }
    batch = told(**rows, action=[0, 1, 0], reward=[1.0] * 3, discount=[0.5, 0.5, 0.0])
    found = munchausen().soft_target(batch, NONE)[0].tolist()
    bonus, following = 0.9 * -0.063464, 0.5 * 2.063464
    assert found == pytest.approx([1 + bonus + following, 1 - 0.9 + following, 1 + bonus], abs=1e-6)
    error = munchausen().critic_loss(batch, NONE)[1][0]
    assert error.tolist() == pytest.approx([8 - found[0], 9 - found[1], 8 - found[2]], abs=1e-5)


def test_munchausens_lowest_log_probability_is_a_setting() -> None:
    batch = told([[1.0, 0.0]], [[0.0, 0.0]], [1], [1.0], [0.0])
    assert munchausen(munchausen_low=-2.0).soft_target(batch, NONE).item() == pytest.approx(
        1 - 0.9 * 1.063464
    )
    assert munchausen(munchausen_low=0.0).soft_target(batch, NONE).item() == 1.0


def test_munchausen_without_temperature_is_plain_where_the_best_was_done() -> None:
    # pi is all at the best: log pi = 0 there, and the soft value is the maximum
    batch = told([[3.0, 1.0]], [[5.0, 9.0]], [0], [1.0], [0.9])
    cold = munchausen(munchausen_temperature=1e-4)
    assert cold.soft_target(batch, NONE).item() == pytest.approx(1 + 0.9 * 9)
    assert target(telling(DQN, 2), batch) == pytest.approx([1 + 0.9 * 9])


def test_munchausen_with_double_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="munchausen and double are both set") as e:
        configure("dqn", "CartPole-v1", {"munchausen": 0.9, "double": True})
    assert "\n" not in str(e.value)


# Masks


def masked_rows(discount: float) -> Batch:
    """The best of the rows is not allowed in them, nor the best of their successors there."""
    return told(
        [[4.0, 0.0, 0.0]], [[5.0, 100.0, 7.0]], [0], [1.0], [discount], [[2.0, 50.0, 1.0]], [[1.0, 0.0, 80.0]]
    )


SOFT = {"munchausen": 0.9, "munchausen_temperature": 0.5}


@pytest.mark.parametrize(
    ("settings", "value", "bonus"),
    [
        ({}, 7.0, 0.0),
        ({"double": True}, 5.0, 0.0),
        # .5 * log(e^10 + e^14) = 7 + .5 * log(1 + e^-4), and .5 log pi of 1 against 0
        (SOFT, 7.009075, 0.9 * -0.063464),
    ],
)
def test_what_is_not_allowed_is_not_in_a_target(settings: dict[str, Any], value: float, bonus: float) -> None:
    agent = telling(DQN, 3, masked=True, **settings)
    batch = allowing(masked_rows(0.9), now=(1, 1, 0), after=(1, 0, 1))
    error = agent.critic_loss(batch, NONE)[1].item()
    assert error == pytest.approx(abs(4.0 - (1 + bonus + 0.9 * value)), abs=1e-5)


@pytest.mark.parametrize(("settings", "bonus"), [({}, 0.0), ({"double": True}, 0.0), (SOFT, 0.9 * -0.063464)])
def test_a_final_observation_that_allows_nothing_does_no_harm(settings: dict[str, Any], bonus: float) -> None:
    agent = telling(DQN, 3, masked=True, **settings)
    batch = allowing(masked_rows(0.0), now=(1, 1, 0), after=(0, 0, 0))
    assert agent.critic_loss(batch, NONE)[1].item() == pytest.approx(4.0 - (1 + bonus), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({"exploration_initial_eps": 1.0}, {}),
        ({"exploration_initial_eps": 0.5}, {}),
        ({"exploration": "boltzmann"}, {}),
        ({"exploration": "none"}, {}),
        ({}, {"greedy": True}),
        ({"eval_epsilon": 0.5}, {"greedy": True}),
        ({}, {"random": True}),
    ],
)
def test_what_is_not_allowed_is_never_done(settings: dict[str, Any], given: dict[str, bool]) -> None:
    agent = build(DQN, observation=MASKED, **settings)
    with torch.no_grad():
        agent.critic.advantage.last.bias[1] = 1e3  # by far the best
        taken = agent.act(masked_obs(2000, (0, 2)), {}, context(2000, **given)).action
    assert set(taken.tolist()) == {0, 2}


def test_warm_up_choices_are_even() -> None:
    agent = build(DQN, exploration_initial_eps=0.0, exploration_final_eps=0.0)
    taken = agent.act(torch.zeros(30_000, 3), {}, context(30_000, random=True)).action
    # within four deviations of sqrt(30000 * 2/9)
    assert (torch.bincount(taken, minlength=3) - 10_000).abs().max() < 4 * (30_000 * 2 / 9) ** 0.5


# Exploration


def test_epsilon_follows_the_budget_of_the_run() -> None:
    agent, obs = build(DQN, exploration_final_eps=0.0, exploration_fraction=0.5), torch.zeros(20_000, 3)
    with torch.no_grad():
        agent.critic.advantage.last.bias[1] = 10.0
        for progress, epsilon in ((0.0, 1.0), (0.25, 0.5), (0.5, 0.0), (1.0, 0.0)):
            agent.progress.fill_(progress)
            other = (agent.act(obs, {}, context(20_000)).action != 1).float().mean()
            share = epsilon * 2 / 3
            assert float(other) == pytest.approx(share, abs=4 * (share * (1 - share) / 20_000) ** 0.5 + 1e-9)


# Noise


def noises(net: Any) -> list[Any]:
    """What a net is given as noise from now on."""
    seen: list[Any] = []
    tell = net.outputs
    net.outputs = lambda features, noise: (seen.append(noise), tell(features, noise))[1]
    return seen


def test_noise_is_drawn_again_for_acting_and_for_every_pass_of_every_update() -> None:
    agent = build(DQN, noisy=True, double=True, exploration="none")
    online, target_net = noises(agent.critic), noises(agent.target_critic)
    given = context(2)
    for _ in range(2):
        agent.act(torch.zeros(2, 3), {}, given)
    for number in range(2):
        learn(agent, transitions(agent, seed=number))
    # two actions, and in each update the rows and the choice among their successors; their values are the target's
    assert len(online) == 2 + 2 * 2 and len(target_net) == 2
    last = [noise["advantage"]["last"] for noise in (*online, *target_net)]
    assert all(not a.equal(b) for number, a in enumerate(last) for b in last[:number])


def test_acting_draws_from_its_own_stream_and_learning_from_the_learners() -> None:
    agent = build(DQN, noisy=True)
    before, given = agent.random("critic").get_state(), context(2)
    position = given.generator.get_state()
    agent.act(torch.zeros(2, 3), {}, given)
    assert agent.random("critic").get_state().equal(before)
    assert not given.generator.get_state().equal(position)


def test_a_greedy_agent_is_quiet_and_draws_nothing() -> None:
    agent = build(DQN, noisy=True)
    seen, given = noises(agent.critic), context(2, greedy=True)
    position = given.generator.get_state()
    agent.act(torch.zeros(2, 3), {}, given)
    assert seen == [{}]
    assert given.generator.get_state().equal(position)


def test_noisy_layers_explore_alone_in_their_preset() -> None:
    algo = configure("noisy_dqn", "CartPole-v1", {}).algo
    assert (algo.noisy, algo.exploration.name, algo.eval_epsilon) == (True, "none", 0.0)
    agent = build(DQN, noisy=True, exploration="none", hidden_sizes=(16,))
    obs = torch.randn(1, 3, generator=torch.Generator().manual_seed(0))
    given = context(1)
    with torch.no_grad():
        taken = {int(agent.act(obs, {}, given).action) for _ in range(300)}
    assert len(taken) > 1


def test_learning_moves_the_size_of_the_noise() -> None:
    agent = build(DQN, noisy=True, dueling=True)
    scales = [p for name, p in agent.critic.named_parameters() if "scale" in name]
    before = [p.detach().clone() for p in scales]
    learn(agent, transitions(agent))
    assert len(scales) == 8 and not any(a.equal(b) for a, b in zip(before, scales))


# Target nets


def test_a_hard_target_is_the_online_net_after_every_so_many_updates_and_constant_in_between() -> None:
    agent = build(DQN, target_update_interval=3)
    for number in range(1, 8):
        before = weights(agent.target_critic)
        learn(agent, transitions(agent, seed=number))
        wanted = weights(agent.critic) if number % 3 == 0 else before
        assert same(weights(agent.target_critic), wanted)
        assert not same(before, weights(agent.critic))


def test_a_soft_target_takes_its_share() -> None:
    agent = build(DQN, target_update_interval=2, tau=0.25)
    for number in range(1, 6):
        before = weights(agent.target_critic)
        learn(agent, transitions(agent, seed=number))
        online = weights(agent.critic)
        wanted = [torch.lerp(a, b, 0.25) for a, b in zip(before, online)] if number % 2 == 0 else before
        assert same(weights(agent.target_critic), wanted)


# Replay


def by_row(store: Any, agent: Any) -> dict[int, float]:
    """Targets of an agent by the number of the row that a drawn transition starts at."""
    batch = store.sample()
    found = agent.target(batch, NONE)[0]
    return {int(row): float(y) for row, y in zip(batch.obs[0, :, 0], found)}


def recorded(rows: int = 12, **settings: Any) -> tuple[Any, Any, dict[str, float]]:
    """An agent that values every row by its number, its replay with so many rows of the script, and the tally."""
    agent = build(DQN, 2, Array((1,)), num_envs=1, gamma=0.9, batch_size=500, buffer_size=64, **settings)
    says(agent.target_critic, lambda obs: torch.stack((obs, torch.zeros_like(obs)), -2))
    rollout, episode_statistics = scripted(agent, rows)
    store = agent.experience(torch.Generator().manual_seed(0))
    store.add(rollout)
    return agent, store, episode_statistics


def test_folded_returns_stop_at_terminal_states_and_bootstrap_at_truncations() -> None:
    agent, store, _ = recorded(n_step=3)
    # Rows 0-2 earn 1, 2, 3 and end; row 3 is final. Rows 4, 5 earn 4, 5 and are cut; row 6 is final. Then 6, 7, ...
    wanted = {
        0: 1 + 0.9 * 2 + 0.81 * 3,
        1: 2 + 0.9 * 3,
        2: 3.0,
        4: 4 + 0.9 * 5 + 0.81 * 6,  # bootstraps from the final row, which is worth 6
        5: 5 + 0.9 * 6,
        7: 6 + 0.9 * 7 + 0.81 * 8 + 0.729 * 10,
        8: 7 + 0.9 * 8 + 0.81 * 9 + 0.729 * 11,
    }
    assert by_row(store, agent) == pytest.approx(wanted)


def test_clipped_rewards_are_stored_and_folded_while_the_reported_return_is_whole() -> None:
    agent, store, episode_statistics = recorded(n_step=2, clip_reward=True, reward_clip_range=2.5)
    assert (episode_statistics["return"], episode_statistics["episodes"]) == (15.0, 2.0)
    assert store.ring.columns["reward"][:3, 0].tolist() == [1.0, 2.0, 2.5]
    found = by_row(store, agent)
    wanted = {
        0: 1 + 0.9 * 2 + 0.81 * 2,
        1: 2 + 0.9 * 2.5,
        2: 2.5,
        4: 2.5 + 0.9 * 2.5 + 0.81 * 6,
        5: 2.5 + 0.9 * 6,
    }
    assert {row: found[row] for row in wanted} == pytest.approx(wanted)


def priorities(alpha: float, beta: float) -> tuple[Any, Any, dict[int, Tensor], Tensor]:
    """An agent, its prioritized replay of five learned rows, their errors, and their probabilities."""
    settings = {
        "prioritized": True,
        "priority_alpha": alpha,
        "priority_beta": beta,
        "priority_beta_steps": 10**9,
        "n_step": 1,
    }
    agent = build(
        DQN,
        2,
        Array((1,)),
        num_envs=1,
        gamma=0.9,
        batch_size=64,
        buffer_size=16,
        learning_rate=0.0,
        **settings,
    )
    agent.by_hand.clear()  # which does not ask the network that is replaced here
    says(agent.target_critic, lambda obs: torch.zeros(*obs.shape[:-1], 2, 1))
    # With a learning rate of 0 errors stay what they are.
    rollout, _ = scripted(agent, 7)
    store = agent.experience(torch.Generator().manual_seed(0))
    store.add(rollout)
    for _ in range(3):
        batch = store.sample()
        store.settle(batch, learn(agent, batch))
    batch = store.sample()
    error = agent.critic_loss(batch, NONE)[1][0]
    mass = store.sampler.state_dict()["leaves"]
    return agent, store, dict(zip(batch.extras["index"].tolist(), error)), mass / mass.sum()


def test_rows_are_drawn_in_proportion_to_the_agents_own_errors() -> None:
    _, _, error, probability = priorities(alpha=0.7, beta=0.4)
    assert sorted(error) == [0, 1, 2, 4, 5]  # rows 3 and 6 are final
    mass = torch.zeros(16)
    for row, size in error.items():
        mass[row] = (size + 1e-6) ** 0.7
    torch.testing.assert_close(probability, mass / mass.sum(), atol=1e-6, rtol=1e-5)
    assert probability.max() > 1.2 * probability[probability > 0].min()


def test_weights_take_back_the_bias_of_a_prioritized_draw() -> None:
    agent, store, _, probability = priorities(alpha=0.7, beta=1.0)
    batch = store.sample()
    index, weight = batch.extras["index"], batch.weight[0]
    parameters = list(agent.critic.parameters())

    def gradient(row: int, factor: float) -> Tensor:
        place = int((index == row).nonzero()[0])
        one = batch_of(
            batch.obs[:, place : place + 1],
            batch.action[:, place : place + 1],
            batch.reward[0, place : place + 1],
            batch.discount[0, place : place + 1],
        )
        loss = agent.critic_loss(reweighted(one, torch.tensor([factor])), NONE)[0]
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]).double()

    rows = [0, 1, 2, 4, 5]
    even = sum(gradient(row, 1.0) for row in rows) / len(rows)
    drawn = sum(float(probability[row]) * gradient(row, 1.0) for row in rows)
    given = {row: float(weight[index == row][0]) for row in rows}
    weighted = sum(float(probability[row]) * gradient(row, given[row]) for row in rows)
    # The largest weight is 1, of the rarest row: all are that much too small, and even among themselves.
    size = len(rows) * float(probability[rows].min())
    assert max(given.values()) == 1.0
    torch.testing.assert_close(weighted, size * even, atol=1e-6, rtol=1e-5)
    assert float(torch.cosine_similarity(weighted, even, 0)) == pytest.approx(1.0, abs=1e-9)
    assert float(torch.cosine_similarity(drawn, even, 0)) < 1 - 1e-5


# Wrong settings


# Gradients without autograd


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"double": True, "hidden_sizes": (16, 8), "activation": "tanh", "rescale_values": True},
        {"loss": Part("huber", {"delta": 0.1}), "hidden_sizes": (8, 8), "max_grad_norm": 0.1},
        {"loss": Part("squared"), "activation": "elu", "n_step": 3},
    ],
)
def test_gradients_written_by_hand_are_those_of_autograd(settings: dict[str, Any]) -> None:
    settings = {"learning_rate": 0.01, "target_update_interval": 2, **settings}
    by_hand, plain = (build(DQN, **settings) for _ in range(2))
    assert set(by_hand.by_hand) == {"critic"}
    plain.by_hand.clear()
    for seed in range(4):
        weight = torch.rand(6, generator=torch.Generator().manual_seed(seed))
        one, two = (
            learn(agent, reweighted(transitions(agent, seed=seed), weight)) for agent in (by_hand, plain)
        )
        assert one.metrics.keys() == two.metrics.keys()
        for name, value in two.metrics.items():
            torch.testing.assert_close(one.metrics[name], value, msg=name)
        torch.testing.assert_close(one.priority, two.priority)
    for (name, found), expected in zip(by_hand.named_parameters(), plain.parameters()):
        torch.testing.assert_close(found, expected, msg=name)


def test_a_huber_loss_and_its_derivative_by_hand() -> None:
    value, weight = torch.tensor([3.0, 0.5, -4.0, 1.0]), torch.tensor([1.0, 1.0, 2.0, 0.0])
    loss, slope = huber_loss(value, torch.zeros(4), weight, delta=2.0)
    # 2 * (3 - 1), 0.5^2 / 2, 2 * (4 - 1) twice, and one that does not count, of four rows
    assert float(loss) == pytest.approx((4 + 0.125 + 12) / 4)
    assert slope.tolist() == pytest.approx([2 / 4, 0.5 / 4, -4 / 4, 0.0])


@pytest.mark.parametrize(
    "settings",
    [
        {"dueling": True},
        {"noisy": True},
        {"layer_norm": True},
        {"munchausen": 0.9},
        {"memory": "lstm"},
        {"activation": "gelu"},
        {"optimizer": SGD},
        {"trunk_network": Part("residual")},
        {"loss": Part("torch.nn.SmoothL1Loss", {"reduction": "none"})},
    ],
)
def test_other_networks_losses_and_optimizers_use_autograd(settings: dict[str, Any]) -> None:
    assert not build(DQN, **settings).by_hand


@pytest.mark.parametrize("name", ["critic_loss", "target", "bellman_target"])
def test_what_a_subclass_defines_is_used(name: str) -> None:
    other = type("Other", (DQN,), {name: lambda self, *given: getattr(DQN, name)(self, *given)})
    assert not build(other).by_hand


class OwnLoss(DQN):
    """Keeps the rule, with another loss."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.loss = lambda value, target: (value - target).abs()


class OwnNetwork(DQN):
    """Keeps the rule, with another network."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.critic = nn.Identity()


@pytest.mark.parametrize("rule", [OwnLoss, OwnNetwork])
def test_the_loss_and_the_network_of_a_subclass_are_used(rule: Any) -> None:
    assert not build(rule).by_hand


def test_a_loss_registered_again_is_used(own_registry: None) -> None:
    register("loss", "huber", lambda value, target: (value - target).abs())
    assert not build(DQN).by_hand


def test_a_method_replaced_on_an_agent_is_used() -> None:
    agent = build(DQN)
    assert q_loss_by_hand(agent, DQN)
    agent.critic_loss = agent.critic_loss  # as a wrapper that logs would be
    assert not q_loss_by_hand(agent, DQN)


@pytest.mark.parametrize("name", ["critic_loss", "target", "bellman_target", "loss"])
def test_what_is_replaced_on_a_prepared_agent_is_used(name: str) -> None:
    agent = build(DQN)
    assert agent.by_hand
    plain, called = getattr(agent, name), []

    def noted(*given: Any) -> Any:
        called.append(name)
        return plain(*given)

    setattr(agent, name, noted)
    learn(agent, transitions(agent))
    assert called == [name]


def test_a_progress_display_leaves_the_losses_by_hand() -> None:
    agent = build(DQN)
    agent.on_optimizer_step = lambda: None
    assert set(agent.by_hand) == {"critic"}


def test_other_actions_than_one_choice_are_refused_in_one_sentence() -> None:
    for action, word in (
        (Continuous((1,), (-1.0,), (1.0,)), "continuous actions; use sac, td3 or ppo"),
        (MultiDiscrete((2, 3)), "multidiscrete actions; use sac, tqc, ppo"),
    ):
        with pytest.raises(ConfigError, match=f"dqn needs one discrete action, but .* has {word}") as e:
            DQN(Spec(Array((3,)), action, 2), DQN.Config())
        assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("settings", "told_so"),
    [
        ({"exploration_initial_eps": 1.5}, "exploration_initial_eps is 1.5; it must be from 0 to 1"),
        ({"exploration_final_eps": -0.1}, "exploration_final_eps is -0.1; it must be from 0 to 1"),
        ({"exploration_fraction": 2}, "exploration_fraction is 2.0; it must be from 0 to 1"),
        ({"epsilon_alpha": -1}, "epsilon_alpha is -1.0; it must be from 0 to 1,000,000"),
        ({"temperature": 0}, "temperature is 0.0; it must be from 1e-06 to 1,000,000"),
        ({"loss": "hubert"}, "loss is 'hubert'; did you mean 'huber'?"),
        ({"exploration": "bolzmann"}, "exploration is 'bolzmann'; did you mean 'boltzmann'?"),
        ({"target_update_interval": 0}, "target_update_interval is 0; it must be at least 1"),
        ({"munchausen_low": 1}, "munchausen_low is 1.0; it must be from -1,000,000 to 0"),
        ({"hidden_sizes": [0]}, "hidden_sizes is 0; it must be from 1 to 100,000"),
        ({"n_atoms": 51}, "dqn has no setting 'n_atoms'"),
    ],
)
def test_wrong_settings_are_one_sentence(settings: dict[str, Any], told_so: str) -> None:
    with pytest.raises(ConfigError) as e:
        configure("dqn", "CartPole-v1", settings)
    assert str(e.value).startswith(told_so) and "\n" not in str(e.value)
