"""C51: projected targets by hand, on the grid and beyond its ends, the loss, priorities, and what is chosen."""

from math import ceil, floor, log
from typing import Any

import pytest
import torch
from replay_blocks import SGD, assert_same_weights, learn, reweighted, transitions
from torch import Tensor
from value_blocks import allowing, build, context, plain_values, telling, told

from whorl.algorithms.c51 import C51
from whorl.core import registry
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.data.batch import Batch
from whorl.settings.merge import configure

NONE: dict[str, Any] = {"online": {}, "select": {}, "target": {}}
"""noise of nets without noisy layers"""
GRID: dict[str, Any] = {"n_atoms": 5, "v_min": -2.0, "v_max": 2.0}
PROB = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])


def logits(prob: Tensor) -> Tensor:
    """Of a distribution; 1e-30 stands for nothing."""
    return prob.clamp(min=1e-30).log()


def at(atom: int, atoms: int = 5) -> Tensor:
    """A distribution with all its mass at one atom."""
    return torch.eye(atoms)[atom]


def test_the_atoms_are_even_from_end_to_end() -> None:
    assert build(C51, **GRID).grid.atoms.tolist() == [-2.0, -1.0, 0.0, 1.0, 2.0]
    torch.testing.assert_close(build(C51).grid.atoms, torch.arange(51) * 0.4 - 10)


@pytest.mark.parametrize(
    ("reward", "discount", "wanted"),
    [
        (0.3, 0.9, (0.05, 0.17, 0.36, 0.28, 0.14)),
        # every atom lands on the grid: none of its mass may be lost
        (1.0, 1.0, (0, 0.1, 0.2, 0.4, 0.3)),
        (0.0, 1.0, (0.1, 0.2, 0.4, 0.2, 0.1)),
        (-2.0, 1.0, (0.7, 0.2, 0.1, 0, 0)),
        # beyond the ends, where all mass gathers
        (5.0, 1.0, (0, 0, 0, 0, 1)),
        (-5.0, 1.0, (1, 0, 0, 0, 0)),
        # a terminal state: the reward alone, between atoms, on one, and beyond the end
        (0.7, 0.0, (0, 0, 0.3, 0.7, 0)),
        (1.0, 0.0, (0, 0, 0, 1, 0)),
        (3.0, 0.0, (0, 0, 0, 0, 1)),
        # three steps folded: atoms at .5 + .729 z = -.958, -.229, .5, 1.229, 1.958
        (0.5, 0.729, (0, 0.1 * 0.958 + 0.2 * 0.229, 0.1 * 0.042 + 0.2 * 0.771 + 0.2, 0.2 + 0.2 * 0.771 + 0.1 * 0.042,
                      0.2 * 0.229 + 0.1 * 0.958)),
    ],
)  # fmt: skip
def test_targets_are_projected_onto_the_atoms(
    reward: float, discount: float, wanted: tuple[float, ...]
) -> None:
    agent = telling(C51, 2, 5, **GRID)
    after = torch.stack((logits(at(0)), logits(PROB)))  # the second choice is better
    batch = told(torch.zeros(1, 2, 5), after.unsqueeze(0), [0], [reward], [discount])
    found = agent.target(batch, NONE)[0][0, 0]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float32), atol=1e-6, rtol=0)
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("reward", "discount", "wanted"),
    [
        (0.0, 1.0, 0.0),  # mass at the edges is not outside
        (1.0, 1.0, 0.1),  # the highest of the five atoms, with 0.1 of the mass, lands at 3
        (-2.0, 1.0, 0.3),
        (0.2, 0.9, 0.0),  # 0.2 + 0.9 * 2 is the edge itself, up to rounding
        (3.0, 0.0, 1.0),
    ],
)
def test_the_mass_that_targets_have_outside_the_atoms_is_told(
    reward: float, discount: float, wanted: float
) -> None:
    agent = telling(C51, 1, 5, **GRID)
    after = logits(PROB)[None, None]
    batch = told(torch.zeros(1, 1, 5), after, [0], [reward], [discount])
    assert float(agent.critic_loss(batch, NONE)[3]["q/clipped"]) == pytest.approx(wanted, abs=1e-6)


def test_advice_is_given_where_much_of_the_targets_is_clipped() -> None:
    agent = build(C51)
    assert agent.advice({"q/clipped": 0.05}) is None
    assert agent.advice({}) is None
    sentence = agent.advice({"q/clipped": 0.42})
    assert sentence is not None and sentence.startswith("42% of the probability of the targets is outside")
    assert "[v_min, v_max] = [-10, 10]" in sentence and "set v_min and v_max" in sentence


def test_rescaled_atoms_go_through_the_inverse() -> None:
    # Atoms 1.003 apart, the mass at 1.003 = h(3): h(7 + 3) = 2.326625 is .319666 of the way from the third to the
    # fourth. After a terminal state h(3) is the second atom itself.
    agent = telling(C51, 1, 5, n_atoms=5, v_min=0.0, v_max=4.012, rescale_values=True)
    batch = told(torch.zeros(2, 1, 5), logits(at(1)).expand(2, 1, 5), [0, 0], [7.0, 3.0], [1.0, 0.0])
    wanted = torch.tensor([[0, 0, 0.680334, 0.319666, 0], [0, 1, 0, 0, 0]])
    torch.testing.assert_close(agent.target(batch, NONE)[0][0], wanted, atol=2e-6, rtol=0)


def published() -> Batch:
    now = [[0, 9, 0], [9, 0, 9], [0, 9, 0], [9, 9, 0], [9, 0, 9]]
    after = [[0, 0, 9], [1, 1, 1], [0, 0, 9], [1, 1, 1], [0, 9, 9]]
    reward, discount = [0.5, 0.0, 0.5, 0.8, -0.1], [0.8, 1.0, 0.8, 0.0, 1.0]
    return told(torch.tensor(now).unsqueeze(1), torch.tensor(after).unsqueeze(1), [0] * 5, reward, discount)


def test_the_loss_matches_the_published_case() -> None:
    agent = telling(C51, 1, 3, n_atoms=3, v_min=0.5, v_max=1.5)
    wanted = [8.998915, 3.693209, 8.998915, 0.693209, 5.192931]
    assert float(agent.critic_loss(published(), NONE)[0]) == pytest.approx(sum(wanted) / 5, abs=1e-5)
    for row, loss in enumerate(wanted):
        weight = 5 * torch.eye(5)[row]
        assert float(agent.critic_loss(reweighted(published(), weight), NONE)[0]) == pytest.approx(
            loss, abs=1e-5
        )


def test_another_loss_takes_the_place_of_the_cross_entropy_but_priorities_stay_divergences() -> None:
    def brier(log_prob: Tensor, target: Tensor) -> Tensor:
        return (log_prob.exp() - target).square().sum(-1)

    agent = telling(C51, 1, 5, **GRID)
    agent.loss = brier
    even = torch.zeros(1, 1, 5)
    loss, error = agent.critic_loss(told(even, even, [0], [0.7], [0.0]), NONE)[:2]
    # the target is (0, 0, .3, .7, 0), the prediction even
    assert float(loss) == pytest.approx(3 * 0.2**2 + 0.1**2 + 0.5**2, abs=1e-6)
    assert error.item() == pytest.approx(0.3 * log(0.3) + 0.7 * log(0.7) + log(5), abs=1e-6)


def test_a_loss_between_distributions_has_one_value_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    known = registry._registered["distribution_loss"]
    monkeypatch.setitem(known, "each atom", lambda log_prob, target: log_prob * target)
    build(C51, loss=Part("cross_entropy"))
    with pytest.raises(ConfigError, match="loss 'each atom' must return one value per row"):
        build(C51, loss=Part("each atom"))
    with pytest.raises(ConfigError, match="loss is 'huber'; choose one of: cross_entropy, each atom"):
        configure("c51", "CartPole-v1", {"loss": "huber"})


def test_priorities_are_divergences_from_the_target() -> None:
    agent = telling(C51, 1, 5, **GRID)
    # the target is (0, 0, .3, .7, 0), the prediction even: .3 log .3 + .7 log .7 + log 5
    even, terminal = torch.zeros(1, 1, 5), [0.0]
    error = agent.critic_loss(told(even, even, [0], [0.7], terminal), NONE)[1]
    assert error.item() == pytest.approx(0.3 * log(0.3) + 0.7 * log(0.7) + log(5), abs=1e-6)
    # a prediction that is the target: nothing, and never less
    for prob in (torch.tensor([0, 0, 0.3, 0.7, 0]), at(4)):
        reward = float((prob * agent.grid.atoms).sum())
        error = agent.critic_loss(told(logits(prob)[None, None], even, [0], [reward], terminal), NONE)[1]
        assert 0 <= error.item() < 1e-6


def test_rounding_makes_no_priority_negative() -> None:
    # predictions that are their targets, up to the last bits of a sum
    agent = telling(C51, 1, 5, **GRID)
    said = torch.randn(500, 1, 5, generator=torch.Generator().manual_seed(0)) * 3
    error = agent.critic_loss(told(said, said, [0] * 500, [0.0] * 500, [1.0] * 500), NONE)[1]
    assert error.min() == 0 and error.max() < 1e-5


def test_the_mean_that_is_reported_is_that_of_the_choice_taken() -> None:
    agent = telling(C51, 2, 5, **GRID)
    now = torch.stack((logits(at(4)), logits(PROB + torch.tensor([0, 0, -0.1, 0.1, 0])))).unsqueeze(0)
    assert float(agent.critic_loss(told(now, now, [1], [0.0], [0.0]), NONE)[2]) == pytest.approx(
        0.1, abs=1e-6
    )


# Which choice


RISKY = torch.tensor([0.45, 0, 0, 0, 0.55])
"""mean .2; by its likeliest atom the best"""
SAFE = torch.tensor([0.0, 0, 0.3, 0.7, 0])
"""mean .7"""


def test_the_choice_is_that_of_the_highest_mean() -> None:
    agent = telling(C51, 2, 5, **GRID)
    after = torch.stack((logits(RISKY), logits(SAFE))).unsqueeze(0)
    found = agent.target(told(torch.zeros(1, 2, 5), after, [0], [0.0], [1.0]), NONE)[0][0, 0]
    torch.testing.assert_close(found, SAFE, atol=1e-6, rtol=0)


def test_an_agent_does_what_has_the_highest_mean() -> None:
    agent = build(C51, 2, **GRID)
    with torch.no_grad():
        agent.critic.advantage.last.weight.zero_()
        agent.critic.advantage.last.bias.copy_(torch.cat((logits(RISKY), logits(SAFE))))
        assert agent.act(torch.zeros(3, 3), {}, context(3, greedy=True)).action.tolist() == [1, 1, 1]
        # what is added to all logits of a choice does not count
        agent.critic.advantage.last.bias[:5] += 100
        assert agent.act(torch.zeros(3, 3), {}, context(3, greedy=True)).action.tolist() == [1, 1, 1]


def test_double_takes_the_online_nets_choice_and_the_target_nets_distribution() -> None:
    after = torch.stack((logits(PROB), logits(at(4)))).unsqueeze(0)  # the target net prefers the second
    judged = torch.stack((logits(SAFE), logits(RISKY))).unsqueeze(0)  # the online net the first
    batch = told(torch.zeros(1, 2, 5), after, [0], [0.0], [1.0], judged=judged)
    for double, wanted in ((False, at(4)), (True, PROB)):
        found = telling(C51, 2, 5, double=double, **GRID).target(batch, NONE)[0][0, 0]
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("double", [False, True])
def test_what_is_not_allowed_is_not_in_a_target(double: bool) -> None:
    agent = telling(C51, 3, 5, masked=True, double=double, **GRID)
    after = torch.stack((logits(PROB), logits(at(4)), logits(at(0)))).unsqueeze(0)
    batch = told(torch.zeros(1, 3, 5), after, [0], [0.0], [1.0])
    found = agent.target(allowing(batch, now=(1, 1, 1), after=(1, 0, 1)), NONE)[0][0, 0]
    torch.testing.assert_close(found, PROB, atol=1e-6, rtol=0)


# Updates


def algorithm_one(prob: list[float], reward: float, discount: float, atoms: list[float]) -> list[float]:
    """The projection as the paper writes it, with both neighbours the same where an atom is hit."""
    found, gap = [0.0] * len(atoms), atoms[1] - atoms[0]
    for p, z in zip(prob, atoms):
        place = (min(max(reward + discount * z, atoms[0]), atoms[-1]) - atoms[0]) / gap
        place = min(max(place, 0.0), len(atoms) - 1.0)
        low, high = floor(place), ceil(place)
        if low == high:
            found[low] += p
        else:
            found[low] += p * (high - place)
            found[high] += p * (place - low)
    return found


@pytest.mark.parametrize("double", [False, True])
def test_updates_are_the_rule_written_out(double: bool) -> None:
    settings = {
        "optimizer": SGD,
        "learning_rate": 0.1,
        "max_grad_norm": 0.0,
        "target_update_interval": 2,
        "double": double,
        **GRID,
    }
    agent = build(C51, **settings)
    atoms = agent.grid.atoms.double()
    net = plain_values(agent.critic)
    follower, rows = net.copy(), torch.arange(6)

    def told_by(which: Any, obs: Tensor) -> Tensor:
        return which(obs).reshape(6, 3, 5)

    for number in (1, 2, 3):
        batch = transitions(agent, seed=number)
        batch.reward[0, 2:4] = torch.tensor([1.0, -3.0])
        obs = batch.obs.double()
        learn(agent, batch)
        with torch.no_grad():
            prob = told_by(follower, obs[1]).softmax(-1)
            judged = told_by(net, obs[1]).softmax(-1) if double else prob
            chosen = prob[rows, (judged * atoms).sum(-1).argmax(-1)]
            goals = [
                algorithm_one(p.tolist(), r, d, atoms.tolist())
                for p, r, d in zip(chosen, batch.reward[0].tolist(), batch.discount[0].tolist())
            ]
        log_prob = told_by(net, obs[0])[rows, batch.action[0]].log_softmax(-1)
        net.descend(-(torch.tensor(goals, dtype=torch.float64) * log_prob).sum(-1).mean(), 0.1)
        if number == 2:
            follower.follow(net, 1.0)
    assert_same_weights([plain_values(agent.critic)], [net])
    assert_same_weights([plain_values(agent.target_critic)], [follower])


# Wrong settings


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, -2.0)])
def test_a_grid_without_width_is_one_sentence(low: float, high: float) -> None:
    words = f"v_min is {low:g} and v_max {high:g}; v_min must be less than v_max"
    with pytest.raises(ConfigError, match=words) as e:
        build(C51, v_min=low, v_max=high)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("name", ["c51", "rainbow"])
def test_a_single_atom_is_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match="n_atoms is 1; it must be from 2 to 100,000") as e:
        configure(name, "CartPole-v1", {"n_atoms": 1})
    assert "\n" not in str(e.value)


def test_munchausen_is_none_of_its_settings() -> None:
    with pytest.raises(ConfigError, match="c51 has no setting 'munchausen'"):
        configure("c51", "CartPole-v1", {"munchausen": 0.9})
