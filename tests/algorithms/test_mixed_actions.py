"""Soft actor-critics on trees of discrete and continuous actions: losses by hand, masks, greedy choices."""

from math import log
from typing import Any

import pytest
import torch
from replay_blocks import SGD, batch_of, build, learn, says
from torch import Tensor

from whorl.agents.agent import Context
from whorl.algorithms.sac import SAC
from whorl.algorithms.tqc import TQC
from whorl.core.action_parts import ActionParts
from whorl.core.errors import ConfigError
from whorl.core.spec import (
    MASK_KEY,
    Array,
    Continuous,
    Discrete,
    MultiDiscrete,
    Spec,
    TupleSpec,
    empty_action,
)
from whorl.data.batch import Batch
from whorl.explore.noise import random_action
from whorl.ops.distributions import MultiCategorical, TanhNormal
from whorl.ops.drawn import Drawn
from whorl.ops.mixed import Mixed

ONE = Continuous((1,), (-1.0,), (1.0,))
PAIR = TupleSpec({"0": Discrete(2), "1": ONE})
TREE = {
    "arm": TupleSpec({"0": Continuous((2,), (-1.0, 0.0), (1.0, 5.0)), "1": Discrete(3)}),
    "tools": MultiDiscrete((2, 3)),
    "lift": ONE,
}
PARTS = ActionParts.of(TREE)
PROBS = torch.tensor([0.25, 0.75])
DENSITY = -0.803710
"""log-density of tanh .5 under tanh N(0, 1)"""
NEGENTROPY = 0.25 * log(0.25) + 0.75 * log(0.75)
SCALAR = Array((1,))


def pair(conditioned: bool = False, cls: Any = SAC, rows: int = 1, **settings: Any) -> tuple[Any, Batch]:
    """pi(d) is .25 and .75, pi(c) is tanh N(0, 1), or with d = 1 tanh N(0, 2).

    The critics say (i + 1) * (1, 3)_d + c and their targets 10 more; quantiles 0 and 1 more.
    """
    coupling = "conditioned" if conditioned else "independent"
    given = {"alpha": 0.2, "alpha_discrete": 0.5, "action_coupling": coupling, **settings}
    agent = build(cls, PAIR, SCALAR, **given)
    spread = torch.tensor([[0.0], [log(2)]]) if conditioned else torch.zeros(1)
    table = agent.actor.head.table

    def policy(obs: Tensor) -> Mixed:
        shape = obs.shape[:-1]
        continuous = TanhNormal(torch.zeros(*shape, *spread.shape), spread.expand(*shape, *spread.shape))
        choices = MultiCategorical(PROBS.log().expand(*shape, 2), (2,))
        return Mixed(ActionParts.of(PAIR), choices, continuous, True, table)

    def critics(more: float) -> Any:
        def values(obs: Tensor, reads: Tensor) -> Tensor:
            if conditioned:
                each = (reads[..., :2] * torch.tensor([1.0, 3.0])).sum(-1) + reads[..., 2]
            else:
                each = torch.tensor([1.0, 3.0]) + reads
            found = torch.stack((each + more, 2 * each + more))
            return found if cls is SAC else torch.stack((found, found + 1), -1)

        return values

    says(agent.actor, policy)
    says(agent.critic, critics(0.0))
    says(agent.target_critic, critics(10.0))
    action: Any = {"0": torch.ones(1, rows, dtype=torch.int64), "1": torch.full((1, rows, 1), 0.3)}
    return agent, batch_of(torch.zeros(2, rows, 1), action, [1.0] * rows, [0.9] * rows)


def with_noise(agent: Any, batch: Batch) -> Any:
    half = torch.full((*batch.shape, 1), 0.5)
    return {**agent.draw(batch), "action": half, "next_action": half}


@pytest.mark.parametrize("conditioned", [False, True])
def test_targets_and_losses_of_a_choice_and_a_push_by_hand(conditioned: bool) -> None:
    agent, batch = pair(conditioned)
    loss, error, q = agent.critic_loss(batch, with_noise(agent, batch))
    # c = tanh .5, with d = 1 where it depends on d tanh 1; the least of 10 + x and 10 + 2 x is the first
    push = [0.462117, 0.761594 if conditioned else 0.462117]
    density = [DENSITY, -0.5 * 0.25 - 0.918939 - log(2) - log(1 - 0.761594**2) if conditioned else DENSITY]
    value = 0.25 * (11 + push[0]) + 0.75 * (13 + push[1])
    mean_density = 0.25 * density[0] + 0.75 * density[1]
    target = 1 + 0.9 * (value - 0.5 * NEGENTROPY - 0.2 * mean_density)
    # taken: d = 1, c = .3
    said = torch.tensor([3.3, 6.6])
    assert float(error) == pytest.approx(float((said - target).abs().mean()), abs=1e-5)
    assert float(loss) == pytest.approx(float((said - target).square().sum()), rel=1e-5)
    assert float(q) == pytest.approx(4.95)
    actor_loss, log_prob, _ = agent.actor_loss(batch, with_noise(agent, batch))
    assert log_prob.tolist() == pytest.approx([NEGENTROPY, mean_density], abs=1e-5)
    assert float(actor_loss) == pytest.approx(0.5 * NEGENTROPY + 0.2 * mean_density - (value - 10), abs=1e-5)


def test_each_kind_has_its_temperature_and_its_target_entropy() -> None:
    agent, batch = pair(optimizer=SGD, alpha_lr=0.1, entropy_ratio=0.3, entropy_per_dimension=-0.5)
    agent.minimize = _only_alpha(agent)
    updated = agent.improve_actor(batch, with_noise(agent, batch))
    # log alpha <- log alpha + .1 * (log pi + target): targets .3 log 2 and -.5
    wanted = [log(0.5) + 0.1 * (NEGENTROPY + 0.3 * log(2)), log(0.2) + 0.1 * (DENSITY - 0.5)]
    assert agent.temperature.log_alpha.tolist() == pytest.approx(wanted, abs=1e-5)
    assert float(updated["policy/entropy_discrete"]) == pytest.approx(-NEGENTROPY, abs=1e-5)
    assert float(updated["policy/entropy_continuous"]) == pytest.approx(-DENSITY, abs=1e-5)
    assert float(updated["policy/entropy"]) == pytest.approx(-DENSITY - NEGENTROPY, abs=1e-5)


def _only_alpha(agent: Any) -> Any:
    """The actor is a known function here: only the temperature can learn."""
    minimize = agent.minimize
    return lambda name, loss, *more: minimize(name, loss, *more) if name == "alpha" else None


def test_quantiles_are_truncated_for_each_choice_and_averaged_by_its_probability() -> None:
    agent, batch = pair(cls=TQC, n_critics=2, n_quantiles=2, top_quantiles_to_drop=1)
    loss, error, _ = agent.critic_loss(batch, with_noise(agent, batch))
    push, total, mean = 0.462117, 0.0, 0.0
    said = [3.3, 4.3, 6.6, 7.6]
    for probability, value in zip(PROBS.tolist(), (1 + push, 3 + push)):
        kept = sorted([10 + value, 11 + value, 10 + 2 * value, 11 + 2 * value])[:2]
        soft = [z - 0.5 * log(probability) - 0.2 * DENSITY for z in kept]
        goals = [1 + 0.9 * z for z in soft]
        mean += probability * sum(goals) / 2
        for theta, tau in zip(said, (0.25, 0.75, 0.25, 0.75)):
            for goal in goals:
                distance = goal - theta
                size = 0.5 * distance**2 if abs(distance) <= 1 else abs(distance) - 0.5
                total += probability * abs(tau - float(distance < 0)) * size / 8
    assert float(loss) == pytest.approx(total, rel=1e-5)
    assert float(error) == pytest.approx(abs(sum(said) / 4 - mean), rel=1e-5)


def test_beyond_joint_choices_a_value_is_a_sum_over_the_choices_and_the_least_sum_counts() -> None:
    agent = build(SAC, MultiDiscrete((2, 3)), SCALAR, joint_choices=5, alpha=0.5)
    assert agent.actions.outputs == (5,)
    values = torch.tensor([[1.0, 2, 0, 0, 6], [2, 1, 3, 3, 3]])[
        :, None, None
    ]  # critics' values of 2 + 3 options
    probs = torch.tensor([0.5, 0.5, 0.25, 0.25, 0.5])
    policy = MultiCategorical(probs.log().expand(1, 1, 5), (2, 3))
    says(agent.actor, lambda obs: Mixed(agent.actions.parts, policy, None, False))
    says(agent.target_critic, lambda obs: values)
    says(agent.critic, lambda obs: values)
    batch = batch_of(torch.zeros(2, 1, 1), torch.tensor([[[1, 2]]]), [1.0], [0.9])
    loss, error, _ = agent.critic_loss(batch, agent.draw(batch))
    # means: 1.5 + 3 and 1.5 + 3; least per option first would give 1 + 1.5
    negentropy = log(0.5) + 0.5 * log(0.25) + 0.5 * log(0.5)
    target = 1 + 0.9 * (4.5 - 0.5 * negentropy)
    # taken 1 and 2: 2 + 6 and 1 + 3
    assert float(error) == pytest.approx((abs(8 - target) + abs(4 - target)) / 2, rel=1e-6)
    assert float(loss) == pytest.approx((8 - target) ** 2 + (4 - target) ** 2, rel=1e-6)


def test_up_to_joint_choices_there_is_a_value_for_each_combination() -> None:
    agent = build(SAC, MultiDiscrete((2, 3)), SCALAR)
    assert agent.actions.outputs == (6,)
    values = torch.arange(6.0)[None, None, None].expand(2, 1, 1, 6)
    found = agent.actions.pick(values, torch.tensor([[[1, 2]]]))
    assert found[:, 0, 0].tolist() == [5.0, 5.0]
    policy = agent.actor(batch_of(torch.zeros(2, 1, 1), torch.zeros(1, 1, 2), [0.0], [0.0]).now)
    first, second = (part.exp() for part in policy.each)
    expected = (first[..., :, None] * second[..., None, :]).flatten(-2)
    torch.testing.assert_close(policy.drawn().probs, expected)


def test_parts_and_combinations_come_back() -> None:
    assert PARTS.options == (3, 2, 3) and PARTS.size == 3
    every = PARTS.every_combination()
    assert len(every) == 18 and PARTS.combination(every).tolist() == list(range(18))
    choices, push = torch.tensor([[2, 0, 1]]), torch.tensor([[0.1, 0.2, 0.3]])
    action = PARTS.action(choices, push)
    assert action["arm"]["1"].tolist() == [2] and action["tools"].tolist() == [[0, 1]]
    assert action["lift"].tolist() == [[pytest.approx(0.3)]]
    assert PARTS.choices(action).equal(choices) and PARTS.continuous(action).equal(push)
    assert PARTS.code(choices).tolist() == [[0, 0, 1, 1, 0, 0, 1, 0]]


@pytest.mark.parametrize("conditioned", [False, True])
def test_a_samples_log_probability_is_that_of_its_choices_and_of_its_push_given_them(
    conditioned: bool,
) -> None:
    agent = build(SAC, TREE, action_coupling="conditioned" if conditioned else "independent")
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1), std=0.3)
    policy = agent.actor.step(torch.randn(50, 3), {}, torch.zeros(50, dtype=torch.bool))[0]
    noise = policy.noise(torch.Generator().manual_seed(2))
    action = policy.sample(noise)
    choices, number = PARTS.choices(action), PARTS.combination(PARTS.choices(action))
    drawn = policy.drawn(noise["continuous"])
    density, reads = drawn.log_density, drawn.reads
    if conditioned:
        assert reads[0, number[0]][:8].equal(PARTS.code(choices)[0])
        density = density.gather(-1, number[:, None])[:, 0]
        reads = reads[torch.arange(50), number][:, 8:]
    torch.testing.assert_close(PARTS.continuous(action), reads)
    expected = drawn.log_probs.gather(-1, number[:, None])[:, 0] + density
    torch.testing.assert_close(policy.log_prob(action), expected, rtol=1e-4, atol=1e-4)
    assert policy.kl(policy).abs().max() < 1e-6
    # E[-log pi] over choices, for this noise
    torch.testing.assert_close(policy.entropy(noise), -drawn.log_prob.sum(0))


MASK = torch.tensor([1, 0, 1, 0, 1, 1, 1, 0], dtype=torch.int8)
"""of 3, 2 and 3 options"""


@pytest.mark.parametrize("how", [{"random": True}, {"greedy": True}, {}])
@pytest.mark.parametrize(
    "settings", [{}, {"action_coupling": "conditioned"}, {"joint_choices": 2}, {"discrete_dqn_like": True}]
)
def test_a_masked_choice_of_a_tree_is_never_taken(settings: dict[str, Any], how: dict[str, Any]) -> None:
    observation = {"state": Array((3,)), MASK_KEY: Array((8,), "int8", 0.0, 1.0)}
    agent, count = build(SAC, TREE, observation, **settings), 200
    obs = {"state": torch.randn(count, 3), MASK_KEY: MASK.expand(count, 8)}
    context = Context(torch.ones(count, dtype=torch.bool), torch.Generator().manual_seed(0), **how)
    with torch.no_grad():
        action = agent.act(obs, {}, context).action
    taken = PARTS.code(PARTS.choices(action))
    assert not (taken * (1 - MASK)).any()
    if how != {"greedy": True}:
        assert (taken.sum(0) > 0).equal(MASK > 0), "what is allowed is taken sometimes"


def test_the_target_entropy_of_several_choices_counts_what_each_row_allows() -> None:
    observation = {"state": Array((3,)), MASK_KEY: Array((8,), "int8", 0.0, 1.0)}
    agent = build(SAC, TREE, observation, entropy_ratio=0.5)
    action = empty_action(TREE, (1, 2))
    masks = torch.stack((MASK, torch.ones_like(MASK)))
    obs = {"state": torch.zeros(2, 2, 3), MASK_KEY: masks.expand(2, 2, 8)}
    batch = batch_of(obs, action, [0.0, 0.0], [0.9, 0.9])
    # .5 * (log 2 + log 1 + log 2 + log 3 + log 2 + log 3) / 2, and -1 for each of three dimensions
    wanted = [0.5 * (3 * log(2) + 2 * log(3)) / 2, -3.0]
    assert agent.actions.entropy_target(batch, Drawn(None)).tolist() == pytest.approx(wanted, abs=1e-6)


def test_random_actions_of_masked_several_choices_are_uniform_over_what_is_allowed() -> None:
    spec = Spec({"x": SCALAR, MASK_KEY: Array((8,), "int8", 0.0, 1.0)}, TREE, 4000)
    obs = {"x": torch.zeros(4000, 1), MASK_KEY: MASK.expand(4000, 8)}
    action = random_action(spec, obs, torch.Generator().manual_seed(0))
    share = PARTS.code(PARTS.choices(action)).mean(0)
    assert share.tolist() == pytest.approx([0.5, 0, 0.5, 0, 1, 0.5, 0.5, 0], abs=0.04)


@pytest.mark.parametrize("conditioned", [False, True])
def test_dqn_like_choices_are_greedy_in_targets_and_keep_no_entropy(conditioned: bool) -> None:
    agent, batch = pair(conditioned, discrete_dqn_like=True, discrete_dqn_epsilon=0.2)
    uniform = MultiCategorical(torch.zeros(1, 1, 2), (2,))
    spread = torch.tensor([[0.0], [log(2)]]) if conditioned else torch.zeros(1)
    continuous = TanhNormal(torch.zeros(1, 1, *spread.shape), spread.expand(1, 1, *spread.shape))
    says(
        agent.actor, lambda obs: Mixed(agent.actions.parts, uniform, continuous, True, agent.actor.head.table)
    )
    push, density = (
        (0.761594, -0.5 * 0.25 - 0.918939 - log(2) - log(1 - 0.761594**2))
        if conditioned
        else (0.462117, DENSITY)
    )
    error = agent.critic_loss(batch, with_noise(agent, batch))[1]
    target = 1 + 0.9 * (13 + push - 0.2 * density)
    assert float(error) == pytest.approx(((target - 3.3) + (target - 6.6)) / 2, rel=1e-5)
    # The actor's weights are epsilon-greedy, so that the push of every choice learns: .1 and .9
    loss, log_prob, _ = agent.actor_loss(batch, with_noise(agent, batch))
    mean_density = 0.1 * DENSITY + 0.9 * density
    assert float(log_prob) == pytest.approx(mean_density, abs=1e-5)
    assert float(loss) == pytest.approx(0.2 * mean_density - (0.1 * 1.462117 + 0.9 * (3 + push)), abs=1e-5)


def test_dqn_like_quantiles_rank_choices_by_the_mean_of_all_everywhere() -> None:
    """Choice 0 has the larger mean; 1 the larger minimum over critics, and the larger mean of what is not truncated."""
    settings = {"n_critics": 2, "n_quantiles": 2, "top_quantiles_to_drop": 1}
    agent = build(TQC, PAIR, SCALAR, discrete_dqn_like=True, discrete_dqn_epsilon=0.0, **settings)
    z = torch.tensor([[[0.0, 20.0], [2.0, 2.0]], [[1.0, 1.0], [2.0, 2.0]]])  # [critics, choices, quantiles]
    for critic in (agent.critic, agent.target_critic):
        says(critic, lambda obs, reads: z[:, None, None].expand(2, *obs.shape[:-1], 2, 2))
    obs = torch.zeros(1, 1)
    context = Context(torch.ones(1, dtype=torch.bool), torch.Generator().manual_seed(0), True)
    assert agent.act(obs, {}, context).action["0"].tolist() == [0]
    action: Any = {"0": torch.zeros(1, 1, dtype=torch.int64), "1": torch.zeros(1, 1, 1)}
    batch = batch_of(torch.zeros(2, 1, 1), action, [0.0], [1.0])
    assert agent.value(batch.now).item() == 5.5
    agent.temperature.log_alpha.data.fill_(-torch.inf)
    _, error, _ = agent.critic_loss(batch, agent.draw(batch))
    # of choice 0 the two lowest of 0, 1, 1 and 20; the mean of what was taken is 5.5
    assert float(error) == pytest.approx(5.5 - 0.5, abs=1e-5)


def test_dqn_like_acting_follows_the_critics_but_for_epsilon() -> None:
    agent, count = build(SAC, PAIR, SCALAR, discrete_dqn_like=True, discrete_dqn_epsilon=0.3), 4000
    says(agent.critic, lambda obs, reads: torch.stack((torch.tensor([0.0, 1.0]).expand(1, count, 2),) * 2))
    obs = torch.zeros(count, 1)
    shares = []
    for greedy in (True, False):
        context = Context(torch.ones(count, dtype=torch.bool), torch.Generator().manual_seed(0), greedy)
        with torch.no_grad():
            shares.append(float(agent.act(obs, {}, context).action["0"].float().mean()))
    assert shares[0] == 1.0
    assert shares[1] == pytest.approx(0.85, abs=0.025)


@pytest.mark.parametrize(
    "settings",
    [{}, {"action_coupling": "conditioned"}, {"joint_choices": 2}],
    ids=["joint", "coupled", "sums"],
)
def test_dqn_like_choices_need_no_random_numbers_where_they_are_greedy(settings: dict[str, Any]) -> None:
    """So an exported policy has none among its inputs."""
    agent = build(SAC, TREE, SCALAR, discrete_dqn_like=True, **settings)
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    agent.act(torch.randn(5, 1), {}, Context(torch.ones(5, dtype=torch.bool), generator, True))
    assert generator.get_state().equal(before)


def test_an_actor_elsewhere_is_sent_the_critics_if_they_choose() -> None:
    plain, greedy = (build(SAC, PAIR, discrete_dqn_like=like) for like in (False, True))
    assert not {id(p) for p in plain.critic.parameters()} & {id(t) for t in plain.acting_tensors()}
    assert {id(p) for p in greedy.critic.parameters()} <= {id(t) for t in greedy.acting_tensors()}


@pytest.mark.parametrize(
    ("cls", "action", "settings", "sentence"),
    [
        (
            SAC,
            {"x": Continuous((1,), (0.0,), (float("inf"),))},
            {},
            "but dimension 0 of 'x' ranges from 0 to inf",
        ),
        (
            SAC,
            TREE,
            {"action_coupling": "conditioned", "joint_choices": 17},
            "has 18; use action_coupling indep",
        ),
        (
            TQC,
            MultiDiscrete((9, 9)),
            {"joint_choices": 80},
            "tqc needs a value for every combination .* has 81; use sac",
        ),
        (SAC, Discrete(3), {"discrete_dqn_like": True}, "needs continuous actions besides .* alone use dqn"),
        (
            SAC,
            PAIR,
            {"discrete_dqn_like": True, "memory": "gru", "stored_memory": False},
            "discrete_dqn_like reads the critics while acting, but their memory is not kept",
        ),
        (SAC, PAIR, {"alpha_discrete": 0.0}, "alpha_discrete is 0, which cannot be tuned"),
        (SAC, PAIR, {"alpha": 0.0}, "alpha is 0, which cannot be tuned"),
    ],
)
def test_what_does_not_fit_is_one_sentence(cls: Any, action: Any, settings: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        build(cls, action, **settings)
    assert "\n" not in str(error.value)


def test_a_tree_of_boxes_has_one_temperature_as_one_box_has() -> None:
    boxes = {"a": Continuous((2,), (-1.0,) * 2, (1.0,) * 2), "b": ONE}
    agent = build(SAC, boxes)
    assert agent.actions.kinds == ("continuous",) and agent.actions.targets == [-3.0]
    action = {"a": torch.zeros(1, 6, 2), "b": torch.zeros(1, 6, 1)}
    batch = batch_of(torch.randn(2, 6, 3), action, torch.zeros(6), torch.full((6,), 0.9))
    assert set(learn(agent, batch).metrics) == {
        *("loss/critic", "loss/actor", "q/mean", "policy/entropy", "policy/alpha")
    }


def test_a_single_leaf_has_the_head_it_always_had() -> None:
    for action, names in (
        (Discrete(3), {"logits.weight", "logits.bias"}),
        (ONE, {"both.weight", "both.bias"}),
    ):
        agent = build(SAC, action)
        assert {name for name, _ in agent.actor.head.named_parameters()} == names
