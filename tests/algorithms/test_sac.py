"""SAC: soft targets and losses by hand, the direction of the temperature, random subsets, choices without sampling."""

from itertools import combinations
from math import log, pi, tanh
from typing import Any

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
from torch import Tensor

from whorl.agents.agent import Context
from whorl.agents.estimates import q_values
from whorl.algorithms.sac import SAC
from whorl.algorithms.td3 import TD3
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, Array, Discrete
from whorl.data.batch import Batch
from whorl.nets.actor import SquashedHead
from whorl.ops.distributions import Categorical, TanhNormal
from whorl.ops.drawn import Drawn
from whorl.ops.transforms import categorical_projection

SCALAR = Array((1,))
MASKED = {"state": Array((3,)), MASK_KEY: Array((3,), "int8", 0.0, 1.0)}
PROBS = torch.tensor([0.5, 0.3, 0.2])
NEGENTROPY = -1.0296530  # .5 log .5 + .3 log .3 + .2 log .2


def known(**settings: Any) -> Any:
    """A policy tanh N(0, 1), and critics that add .5 per critic: Q'_i(s, a) = s + a + i / 2, Q_i(s, a) = s + i / 2."""
    agent = build(SAC, ONE, SCALAR, **{"alpha": 0.2, **settings})
    offset = torch.arange(agent.cfg.ensemble_q_num).reshape(-1, 1, 1) / 2
    says(agent.actor, lambda obs: TanhNormal(torch.zeros_like(obs), torch.zeros_like(obs)))
    says(agent.target_critic, lambda obs, action: (obs + action)[..., 0] + offset)
    says(agent.critic, lambda obs, action: obs[..., 0] + offset)
    return agent


def two_rows() -> Batch:
    obs = torch.tensor([[3.0, 3.0, 3.0], [2.0, 2.0, 2.0]]).unsqueeze(-1)
    return batch_of(obs, torch.zeros(1, 3, 1), [1.0, 1.0, 1.0], [0.0, 0.9, 0.729])


def with_noise(agent: Any, batch: Batch, value: float, **more: Tensor) -> dict[str, Any]:
    noise = torch.full_like(batch.action, value)
    return {**agent.draw(batch), "action": noise, "next_action": noise, **more}


def test_targets_hold_the_entropy_of_the_next_action_unless_the_state_is_terminal() -> None:
    agent, batch = known(), two_rows()
    loss, error, q = agent.critic_loss(batch, with_noise(agent, batch, 0.5))
    # a' = tanh .5 = .462117, log pi = -.803710: min Q' - .2 log pi = 2.462117 + .160742 = 2.622859
    target = torch.tensor([1.0, 1 + 0.9 * 2.622859, 1 + 0.729 * 2.622859])
    both = torch.stack((3 - target, 3.5 - target))
    torch.testing.assert_close(error[0], both.abs().mean(0), atol=2e-6, rtol=0)
    assert float(loss) == pytest.approx(float(both.square().sum(0).mean()), rel=1e-6)
    assert float(q) == pytest.approx(3.25)


@pytest.mark.parametrize(
    ("mean", "std", "before", "action", "log_prob"),
    [
        (0.0, 1.0, 0.5, 0.462117, -0.803710),
        (0.3, 0.5, -1.2, -0.833655, -3.538413),
        (0.0, 1.0, 5.0, tanh(5), -4.805142),
        # -50 - log(2 pi) / 2 + 2 * (10 - log 2), where the tanh has rounded to 1
        (0.0, 1.0, 10.0, 1.0, -50 - log(2 * pi) / 2 + 2 * (10 - log(2))),
    ],
)
def test_the_density_of_the_policys_actions(
    mean: float, std: float, before: float, action: float, log_prob: float
) -> None:
    head = SquashedHead(1, 1, (-20.0, 2.0))
    with torch.no_grad():
        head.both.weight.zero_()
        head.both.bias.copy_(torch.tensor([mean, log(std)]))
    noise = torch.tensor([[(before - mean) / std]])
    found, density = head(torch.zeros(1, 1), None).sample_with_log_prob(noise)
    assert found.item() == pytest.approx(action, abs=1e-6)
    assert density.item() == pytest.approx(log_prob, abs=4e-6)


@pytest.mark.parametrize(("climbs", "q"), [("min", 3.0), ("mean", (3 + 3.5 + 4 + 4.5) / 4), ("sample", 3.5)])
def test_the_actor_loss_by_hand(climbs: str, q: float) -> None:
    agent, batch = known(actor_q=climbs, ensemble_q_num=4, ensemble_q_sample=2), two_rows()
    # the subset of the actor is critics 1 and 3, that of the target 2 and 3
    subsets = {
        "actor_subset": torch.tensor([0.1, 0.9, 0.2, 0.8]),
        "target_subset": torch.tensor([0.1, 0.2, 0.9, 0.8]),
    }
    loss, log_prob, _ = agent.actor_loss(batch, with_noise(agent, batch, 0.5, **subsets))
    assert float(log_prob) == pytest.approx(-0.803710, abs=1e-6)
    assert float(loss) == pytest.approx(0.2 * -0.803710 - q, abs=1e-6)
    # of critics 2 and 3 the second adds 1 to s' + a'
    error = agent.critic_loss(batch, with_noise(agent, batch, 0.5, **subsets))[1]
    target = 1 + 0.9 * (2.462117 + 1 + 0.2 * 0.803710)
    assert float(error[0, 1]) == pytest.approx(sum(abs(x - target) for x in (3, 3.5, 4, 4.5)) / 4, abs=2e-6)


def test_updates_are_the_rule_written_out() -> None:
    rates: dict[str, Any] = {"critic_lr": 0.05, "actor_lr": 0.2, "alpha_lr": 0.3}
    agent = build(SAC, alpha=0.4, tau=0.1, target_update_interval=2, optimizer=SGD, **rates)
    critics, actor = plain_critics(agent.critic), plain_actor(agent.actor)
    targets, log_alpha = [net.copy() for net in critics], torch.tensor(log(0.4), dtype=torch.float64)

    def sample(obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(obs).chunk(2, -1)
        before = mean + log_std.clamp(-20, 2).exp() * noise
        density = torch.distributions.Normal(mean, log_std.exp()).log_prob(before)
        # the textbook form of the correction; our own never takes the log of a difference
        return before.tanh(), (density - (1 - before.tanh().square()).log()).sum(-1)

    def least(nets: list[Any], obs: Tensor, action: Tensor) -> Tensor:
        return torch.minimum(*(net(torch.cat((obs, action), -1))[:, 0] for net in nets))

    for number in (1, 2, 3):
        batch = transitions(agent, seed=number)
        raw = {"action": torch.randn(1, 6, 2), "next_action": torch.randn(1, 6, 2)}
        layers: Any = {
            key: {} for key in ("layers", "next_layers", "critic", "target_critic", "actor_critic")
        }
        agent.draw = lambda _, found={**raw, **layers}: found
        obs, action, reward, discount, noise, next_noise = (
            t.double()
            for t in (
                batch.obs,
                batch.action[0],
                batch.reward[0],
                batch.discount[0],
                *(n[0] for n in raw.values()),
            )
        )
        learn(agent, batch)
        with torch.no_grad():
            following, log_prob = sample(obs[1], next_noise)
            soft = least(targets, obs[1], following) - log_alpha.exp() * log_prob
            target = reward + discount * soft
        for net in critics:
            net.descend((net(torch.cat((obs[0], action), -1))[:, 0] - target).square().mean(), 0.05)
        ours, log_prob = sample(obs[0], noise)
        actor.descend((log_alpha.exp() * log_prob - least(critics, obs[0], ours)).mean(), 0.2)
        log_alpha += 0.3 * (log_prob.detach().mean() - 2)  # the target entropy of two dimensions is -2
        if number == 2:
            for follower, online in zip(targets, critics):
                follower.follow(online, 0.1)
    assert_same_weights(plain_critics(agent.critic), critics)
    assert_same_weights([plain_actor(agent.actor)], [actor])
    assert_same_weights(plain_critics(agent.target_critic), targets)
    assert agent.temperature.log_alpha.item() == pytest.approx(log_alpha.item(), abs=1e-5)


@pytest.mark.parametrize(("log_std", "rises"), [(-5.0, True), (0.0, False)])
def test_entropy_below_the_target_raises_the_temperature_and_above_lowers_it(
    log_std: float, rises: bool
) -> None:
    agent = build(SAC, optimizer=SGD, alpha_lr=0.1)
    with torch.no_grad():
        agent.actor.head.both.bias[2:] = log_std  # an entropy of about -7, or of 1.3, against the target -2
    updated = learn(agent, transitions(agent))
    found = agent.temperature.log_alpha.item()
    assert (found > 0) == rises
    # log alpha <- log alpha + .1 * (target entropy - entropy)
    assert found == pytest.approx(0.1 * (-2 - float(updated.metrics["policy/entropy"])), rel=1e-5)


def test_a_fixed_temperature_stays_and_may_be_zero() -> None:
    for alpha in (0.0, 0.3):
        agent = build(SAC, alpha=alpha, tune_alpha=False)
        before = agent.temperature.log_alpha.clone()
        for number in range(3):
            updated = learn(agent, transitions(agent, seed=number))
        assert agent.temperature.log_alpha.equal(before)
        assert agent.temperature().item() == pytest.approx(alpha)
        assert all(torch.isfinite(value) for value in updated.metrics.values())
        assert all(torch.isfinite(w).all() for w in weights(agent.actor) + weights(agent.critic))


def test_without_temperature_targets_hold_no_entropy() -> None:
    agent, batch = known(alpha=0.0, tune_alpha=False), two_rows()
    error = agent.critic_loss(batch, with_noise(agent, batch, 0.5))[1]
    target = 1 + 0.9 * 2.462117
    assert float(error[0, 1]) == pytest.approx((abs(3 - target) + abs(3.5 - target)) / 2, abs=1e-6)


def test_without_backup_entropy_targets_hold_none_and_the_actor_is_rewarded_for_it_all_the_same() -> None:
    agent, batch = known(backup_entropy=False), two_rows()
    error = agent.critic_loss(batch, with_noise(agent, batch, 0.5))[1]
    target = 1 + 0.9 * 2.462117
    assert float(error[0, 1]) == pytest.approx((abs(3 - target) + abs(3.5 - target)) / 2, abs=1e-6)
    loss = agent.actor_loss(batch, with_noise(agent, batch, 0.5))[0]
    assert float(loss) == pytest.approx(0.2 * -0.803710 - 3, abs=1e-6)


def test_v_trace_without_backup_entropy_is_declined() -> None:
    with pytest.raises(ConfigError, match="V-trace adds the entropy of every step to the targets, but"):
        build(SAC, backup_entropy=False, use_n_step_is=True, n_step=3)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, -2.0),
        ({"target_entropy": -0.5}, -0.5),
        ({"entropy_per_dimension": -0.25}, -0.5),
        ({"entropy_ratio": 0.1}, -2.0),
    ],
)
def test_the_target_entropy_is_minus_the_number_of_dimensions(
    settings: dict[str, Any], expected: float
) -> None:
    assert build(SAC, **settings).actions.targets[0] == expected


def test_a_narrow_policy_without_temperature_has_the_targets_of_td3_without_smoothing() -> None:
    ours = build(SAC, alpha=0.0, tune_alpha=False)
    other = build(TD3, target_noise=0.0)
    other.target_critic.load_state_dict(ours.target_critic.state_dict())
    other.critic.load_state_dict(ours.critic.state_dict())
    with torch.no_grad():
        ours.actor.head.both.weight[:2] *= 50  # actions that differ from state to state
        ours.actor.head.both.weight[2:] = 0
        ours.actor.head.both.bias[2:] = -20  # a deviation of 2e-9
        other.target_actor.backbone.load_state_dict(ours.actor.backbone.state_dict())
        other.target_actor.head.action.weight.copy_(ours.actor.head.both.weight[:2])
        other.target_actor.head.action.bias.copy_(ours.actor.head.both.bias[:2])
    batch = transitions(ours)
    torch.testing.assert_close(
        ours.critic_loss(batch, ours.draw(batch)), other.critic_loss(batch, other.draw(batch))
    )


# Ensembles


def test_a_random_subset_of_all_critics_is_the_minimum_over_both_of_two() -> None:
    def after(**settings: Any) -> list[Tensor]:
        agent = build(SAC, **settings)
        for number in range(3):
            learn(agent, transitions(agent, seed=number))
        return weights(agent)

    assert same(after(), after(ensemble_q_num=2, ensemble_q_sample=2, actor_q="sample"))


def test_subsets_are_drawn_again_for_each_update_evenly_over_all_pairs() -> None:
    agent = build(SAC, ensemble_q_num=4, ensemble_q_sample=2, actor_q="sample")
    batch = transitions(agent, rows=2)
    # Of four columns, the minimum is 0 where the critic of that number is in the subset.
    values, draws = 1 - torch.eye(4), 1200
    pairs = list(combinations(range(4), 2))
    count = {who: dict.fromkeys(pairs, 0) for who in ("target", "actor")}
    both = dict.fromkeys([True, False], 0)
    for _ in range(draws):
        noise = agent.draw(batch)
        found = [
            tuple((agent.min_over_subset(values, noise, who) == 0).nonzero()[:, 0].tolist()) for who in count
        ]
        for who, pair in zip(count, found):
            count[who][pair] += 1
        both[found[0] == found[1]] += 1
    for who in count:
        # chi^2 with 5 degrees of freedom is above 20.5 once in a thousand times
        assert sum((n - draws / 6) ** 2 / (draws / 6) for n in count[who].values()) < 20.5
    # actor and target draw apart: they agree one time in six, give or take 5 deviations
    assert both[True] == pytest.approx(draws / 6, abs=5 * (draws * 5 / 36) ** 0.5)


@pytest.mark.parametrize("settings", [{}, {"n_atoms": 5, "v_min": -1.0, "v_max": 1.0}])
def test_only_the_target_critics_of_the_subset_are_evaluated(settings: dict[str, Any]) -> None:
    agent = build(SAC, ensemble_q_num=5, ensemble_q_sample=2, **settings)
    counts: list[int] = []
    agent.target_critic.register_forward_hook(lambda net, given, values: counts.append(len(values)))
    learn(agent, transitions(agent))
    assert counts == [2]


def test_the_policy_climbs_the_mean_of_all_critics_whatever_the_subset() -> None:
    agent = build(SAC, ensemble_q_num=5, ensemble_q_sample=2, actor_q="mean")
    batch = transitions(agent)
    noise = agent.draw(batch)
    policy = agent.actor(batch.now)
    action, log_prob = policy.sample_with_log_prob(noise["action"])
    value = sum(agent.critic(batch.now, action)[member] for member in range(5)) / 5
    loss = agent.actor_loss(batch, noise)[0]
    torch.testing.assert_close(loss, (log_prob - value).mean())  # alpha is 1


def test_more_critics_in_a_subset_than_there_are_is_one_sentence() -> None:
    with pytest.raises(
        ConfigError, match="ensemble_q_sample is 3, but there are 2 critics; use at most 2"
    ) as e:
        build(SAC, ensemble_q_sample=3)
    assert "\n" not in str(e.value)


# Choices


def choosing(mask: list[int] | None = None, **settings: Any) -> tuple[Any, Batch]:
    """Three choices, pi is .5, .3, .2; target critics say (1, 2, 3) and (2, 1, 3), critics (1, 5, 1) and (2, 4, 2)."""
    observation = SCALAR if mask is None else {"state": SCALAR, MASK_KEY: Array((3,), "int8", 0.0, 1.0)}
    agent = build(SAC, Discrete(3), observation, **{"alpha": 0.5, **settings})
    allowed = None if mask is None else torch.tensor(mask)
    says(agent.actor, lambda obs: Categorical(PROBS.log().expand(1, 2, 3), allowed))
    says(
        agent.target_critic,
        lambda obs: torch.tensor([[1.0, 2, 3], [2, 1, 3]])[:, None, None].expand(2, 1, 2, 3),
    )
    says(agent.critic, lambda obs: torch.tensor([[1.0, 5, 1], [2, 4, 2]])[:, None, None].expand(2, 1, 2, 3))
    return agent, batch_of(torch.zeros(2, 2, 1), torch.tensor([[1, 2]]), [1.0, 1.0], [0.9, 0.0])


def test_choices_are_averaged_by_their_probability_not_sampled() -> None:
    agent, batch = choosing()
    noise = agent.draw(batch)
    assert not {"action", "next_action"} & set(noise)
    loss, error, q = agent.critic_loss(batch, noise)
    # min over critics, choice by choice: (1, 1, 3); mean .5 + .3 + .6 = 1.4; plus .5 * 1.029653
    # (the smaller of the critics' means would be 1.7)
    target = 1 + 0.9 * (1.4 - 0.5 * NEGENTROPY)
    # The first row took choice 1, of which the critics say 5 and 4; the second took choice 2: 1 and 2, and ended.
    torch.testing.assert_close(error, torch.tensor([[(9 - 2 * target) / 2, (0 + 1) / 2]]))
    assert float(loss) == pytest.approx(((5 - target) ** 2 + (4 - target) ** 2 + 0 + 1) / 2, rel=1e-6)
    assert float(q) == 3.0  # (5 + 4 + 1 + 2) / 4
    actor_loss, log_prob, _ = agent.actor_loss(batch, noise)
    # min over critics (1, 4, 1): .5 + 1.2 + .2 = 1.9
    assert float(log_prob) == pytest.approx(NEGENTROPY, abs=1e-6)
    assert float(actor_loss) == pytest.approx(0.5 * NEGENTROPY - 1.9, abs=1e-6)


def test_updates_over_choices_use_no_random_numbers() -> None:
    def after(seed: int) -> list[Tensor]:
        agent = build(SAC, Discrete(3))
        for generator in agent.generators.values():
            generator.manual_seed(seed)
        for number in range(3):
            learn(agent, transitions(agent, seed=number))
        return weights(agent)

    assert same(after(1), after(2))


def test_the_target_entropy_over_choices_is_half_of_the_uniform_ones() -> None:
    assert build(SAC, Discrete(3)).actions.targets[0] == pytest.approx(0.5 * 1.0986123)
    assert build(SAC, Discrete(3), entropy_ratio=0.98).actions.targets[0] == pytest.approx(0.98 * 1.0986123)
    assert build(SAC, Discrete(3), target_entropy=0.7).actions.targets[0] == 0.7


def test_the_target_entropy_counts_the_choices_that_each_row_allows() -> None:
    agent = build(SAC, Discrete(3), MASKED, optimizer=SGD, alpha_lr=1.0, entropy_ratio=0.5)
    batch = transitions(agent, rows=3)
    batch.obs[MASK_KEY][0] = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    # .5 * (log 1 + log 2 + log 3) / 3
    assert float(agent.actions.entropy_target(batch, Drawn(None))) == pytest.approx(0.2986266, abs=1e-6)
    entropy = float(learn(agent, batch).metrics["policy/entropy"])
    assert agent.temperature.log_alpha.item() == pytest.approx(0.2986266 - entropy, abs=1e-6)
    batch.obs[MASK_KEY][0] = torch.tensor([0, 0, 1])
    before = agent.temperature.log_alpha.item()
    learn(agent, batch)
    assert agent.temperature.log_alpha.item() == before, "a single choice asks for no entropy"


def test_a_target_entropy_given_as_a_number_holds_for_all_rows() -> None:
    agent = build(SAC, Discrete(3), MASKED, target_entropy=0.3)
    assert agent.actions.entropy_target(transitions(agent), Drawn(None)) == 0.3


@pytest.mark.parametrize("number", [-0.1, 1.2])
def test_a_target_entropy_that_no_policy_has_is_one_sentence(number: float) -> None:
    """The temperature would fall or rise for ever (Advanced-SAC: -n)."""
    with pytest.raises(
        ConfigError, match=rf"target_entropy is {number}, but the entropy of 3 actions lies"
    ) as e:
        build(SAC, Discrete(3), target_entropy=number)
    assert "\n" not in str(e.value)
    build(SAC, Discrete(3), target_entropy=number, tune_alpha=False)


def test_the_slope_of_the_actor_loss_over_choices_is_that_of_its_values() -> None:
    agent = build(SAC, Discrete(3), alpha=0.3).double()
    batch = transitions(agent)
    batch = batch.replace(obs=batch.obs.double())
    noise = agent.draw(batch)
    parameters = list(agent.actor.parameters())
    slopes = torch.autograd.grad(agent.actor_loss(batch, noise)[0], parameters)
    for parameter, slope in zip(parameters, slopes):
        for place in (0, parameter.numel() - 1):
            flat = parameter.data.view(-1)
            held, sides = flat[place].item(), []
            for step in (1e-6, -1e-6):
                flat[place] = held + step
                sides.append(agent.actor_loss(batch, noise)[0].item())
            flat[place] = held
            assert (sides[0] - sides[1]) / 2e-6 == pytest.approx(slope.view(-1)[place].item(), abs=1e-8)


def test_a_choice_that_is_masked_out_has_no_influence_and_no_probability() -> None:
    agent, batch = choosing([1, 0, 1])
    agent.actions.masked = False  # the observations here carry no mask: the policy knows it
    noise = agent.draw(batch)
    error = agent.critic_loss(batch, noise)[1]
    # pi is 5/7, 0, 2/7: 5/7 * 1 + 2/7 * 3 = 11/7, and 5/7 log 5/7 + 2/7 log 2/7 = -.5982696
    target = 1 + 0.9 * (11 / 7 + 0.5 * 0.5982696)
    assert float(error[0, 0]) == pytest.approx((9 - 2 * target) / 2, abs=1e-6)
    loss, log_prob, _ = agent.actor_loss(batch, noise)
    assert float(log_prob) == pytest.approx(-0.5982696, abs=1e-6)
    assert float(loss) == pytest.approx(0.5 * -0.5982696 - 1, abs=1e-6)  # min Q is 1 for both that are left


def test_what_the_critics_say_of_a_masked_choice_changes_no_bit_of_an_update() -> None:
    def after(poison: float) -> list[Tensor]:
        agent = build(SAC, Discrete(3), MASKED)
        with torch.no_grad():
            for critic in (agent.critic, agent.target_critic):
                critic.nets.biases[-1][..., 1] = poison
        batch = transitions(agent)
        batch.obs[MASK_KEY][..., 1] = 0
        batch.action.fill_(2)
        learn(agent, batch)
        agent.critic.nets.biases[-1].data[..., 1] = 0
        agent.target_critic.nets.biases[-1].data[..., 1] = 0
        return weights(agent)

    assert same(after(0.0), after(1e6))


@pytest.mark.parametrize("how", [{"random": True}, {"greedy": True}, {}])
def test_a_choice_that_is_masked_out_is_never_taken(how: dict[str, Any]) -> None:
    agent, num_envs = build(SAC, Discrete(3), MASKED), 300
    obs = {
        "state": torch.randn(num_envs, 3),
        MASK_KEY: torch.tensor([1, 0, 1], dtype=torch.int8).expand(num_envs, 3),
    }
    context = Context(torch.ones(num_envs, dtype=torch.bool), torch.Generator().manual_seed(0), **how)
    with torch.no_grad():
        taken = agent.act(obs, {}, context).action
    assert not (taken == 1).any()
    if "greedy" not in how:
        assert {0, 2} == set(taken.tolist())


# Distributions of the return


ATOMS = {"n_atoms": 7, "v_min": -3.0, "v_max": 3.0}


@pytest.mark.parametrize(("settings", "alpha"), [({}, 0.5), ({"backup_entropy": False}, 0.0)])
def test_with_atoms_the_target_is_the_lower_distribution_moved_by_reward_and_entropy(
    settings: dict[str, Any], alpha: float
) -> None:
    agent = build(SAC, alpha=0.5, tune_alpha=False, **ATOMS, **settings)
    batch = transitions(agent)
    noise = agent.draw(batch)
    loss, error, q, metrics = agent.critic_loss(batch, noise)
    with torch.no_grad():
        action, log_prob = agent.actor(batch.next).sample_with_log_prob(noise["next_action"])
        one, other = agent.target_critic(batch.next, action).softmax(-1)
        atoms = torch.linspace(-3, 3, 7)
        prob = torch.where((one @ atoms < other @ atoms).unsqueeze(-1), one, other)
        soft = atoms - alpha * log_prob.unsqueeze(-1)
        place = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * soft
        target = categorical_projection(prob, place, atoms)
    answers = agent.critic(batch.now, batch.action)
    cross = -(target * answers.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(loss, cross.sum(0).mean())
    torch.testing.assert_close(error, (cross + torch.special.xlogy(target, target).sum(-1)).mean(0))
    torch.testing.assert_close(q, (answers.softmax(-1) @ atoms).mean())
    outside = (prob * (place.abs() > 3 * (1 + 1e-4))).sum(-1).mean()
    torch.testing.assert_close(metrics["q/clipped"], outside)


def test_with_atoms_the_actor_climbs_the_lower_mean_and_saved_policies_know_it() -> None:
    agent = build(SAC, alpha=0.5, tune_alpha=False, **ATOMS)
    batch = transitions(agent)
    noise = agent.draw(batch)
    action, log_prob = agent.actor(batch.now).sample_with_log_prob(noise["action"])
    q = (agent.critic(batch.now, action).softmax(-1) @ torch.linspace(-3, 3, 7)).amin(0)
    torch.testing.assert_close(agent.actor_loss(batch, noise)[0], (0.5 * log_prob - q).mean())
    found = q_values(agent, batch.now, action[0].detach())
    torch.testing.assert_close(found, q[0])
    assert agent.value(batch.now).shape == (1, 6)


def test_with_atoms_the_lowest_of_a_random_subset_is_the_target() -> None:
    agent = build(SAC, ensemble_q_num=3, ensemble_q_sample=1, alpha=0.0, tune_alpha=False, **ATOMS)
    batch = transitions(agent)
    noise = {**agent.draw(batch), "target_subset": torch.tensor([0.1, 0.2, 0.9])}
    alone = agent.critic_loss(batch, noise)[0]
    with torch.no_grad():
        for weight in agent.target_critic.nets.parameters():
            weight[:2].add_(1.0)
    assert agent.critic_loss(batch, noise)[0].equal(alone)
    with torch.no_grad():
        agent.target_critic.nets.weights[-1][2].neg_()
    assert not agent.critic_loss(batch, noise)[0].equal(alone)


@pytest.mark.parametrize(
    ("action", "settings", "sentence"),
    [
        (Discrete(3), {}, "n_atoms needs continuous actions alone"),
        (TWO, {"use_n_step_is": True, "n_step": 3}, "n_atoms and use_n_step_is are both set"),
        (TWO, {"clip_epsilon": 0.2}, "n_atoms and clip_epsilon are both set"),
        (TWO, {"use_replay_buffer": False, "n_step": 3}, "n_atoms needs the replay buffer"),
    ],
)
def test_what_does_not_fit_a_distribution_is_declined(action: Any, settings: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build(SAC, action, **ATOMS, **settings)
