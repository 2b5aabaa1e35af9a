"""Which choice is taken: schedules and ladders of epsilon, softmax frequencies, masks, and nothing new when greedy."""

from typing import Any

import pytest
import torch
from torch import Tensor

from whorl.agents.agent import Context
from whorl.core.spec import MASK_KEY, Array, Discrete, Spec
from whorl.explore.epsilon_greedy import Exploration, ExplorationConfig

VECTOR = Array((2,))
START = torch.zeros(())
MASKED = {"state": VECTOR, MASK_KEY: Array((4,), "int8", 0.0, 1.0)}
MANY = 40_000


def explore(num_envs: int = 4, observation: Any = VECTOR, **settings: Any) -> Exploration:
    return Exploration(Spec(observation, Discrete(4), num_envs), ExplorationConfig(**settings))


def context(num_envs: int, seed: int = 0, **given: Any) -> Context:
    return Context(torch.zeros(num_envs, dtype=torch.bool), torch.Generator().manual_seed(seed), **given)


def shares(choice: Tensor, choices: int = 4) -> Tensor:
    return torch.bincount(choice, minlength=choices) / len(choice)


def close(found: Tensor, wanted: Tensor, draws: int) -> None:
    """Within four deviations of a share of so many draws."""
    assert ((found - wanted).abs() <= 4 * (wanted * (1 - wanted) / draws).sqrt() + 1e-12).all(), found


def values(num_envs: int = MANY) -> Tensor:
    """The third of four choices is the best."""
    return torch.tensor([0.5, -1.0, 1.0, 0.0]).expand(num_envs, 4)


# Schedules


@pytest.mark.parametrize(
    ("progress", "epsilon"), [(0.0, 1.0), (0.125, 0.775), (0.25, 0.55), (0.5, 0.1), (1.0, 0.1)]
)
def test_epsilon_falls_linearly_over_its_share_of_the_budget(progress: float, epsilon: float) -> None:
    found = explore(exploration_initial_eps=1.0, exploration_final_eps=0.1, exploration_fraction=0.5)
    assert float(found.epsilon(None, torch.tensor(progress))) == pytest.approx(epsilon)


def test_without_a_share_epsilon_is_at_its_end_from_the_start() -> None:
    found = explore(exploration_initial_eps=1.0, exploration_final_eps=0.1, exploration_fraction=0.0)
    assert float(found.epsilon(None, START)) == pytest.approx(0.1)


def test_the_ladder_is_that_of_ape_x() -> None:
    # epsilon^(1 + 7 i / (N - 1)) with epsilon .4 and eight environments: .4, .4^2, ..., .4^8
    found = explore(8, exploration_initial_eps=0.4, exploration_final_eps=0.4, epsilon_alpha=7.0)
    ladder = found.epsilon(torch.arange(8), START)
    assert ladder.tolist() == pytest.approx([0.4**power for power in range(1, 9)])
    # a worker that has environments 2 and 5 only
    assert found.epsilon(torch.tensor([2, 5]), START).tolist() == pytest.approx([0.4**3, 0.4**6])
    # a environment of which nothing is known stands in the middle
    assert float(found.epsilon(None, START)) == pytest.approx(0.4**4.5)


def test_the_ladder_moves_with_the_schedule_and_one_env_alone_stands_on_its_foot() -> None:
    settings = {
        "exploration_initial_eps": 1.0,
        "exploration_final_eps": 0.2,
        "exploration_fraction": 0.5,
        "epsilon_alpha": 1.0,
    }
    found = explore(3, **settings)
    assert found.epsilon(torch.arange(3), START).tolist() == [1.0, 1.0, 1.0]
    halfway = found.epsilon(torch.arange(3), torch.tensor(0.25))
    assert halfway.tolist() == pytest.approx([0.6, 0.6**1.5, 0.6**2])
    assert float(explore(1, **settings).epsilon(torch.zeros(1, dtype=torch.int64), torch.tensor(1.0))) == (
        pytest.approx(0.2)
    )


def test_envs_are_not_saved() -> None:
    assert explore(8, epsilon_alpha=7.0).state_dict() == {}


# Frequencies


def test_with_epsilon_every_choice_is_tried_and_the_best_most_often() -> None:
    found = explore(exploration_initial_eps=0.2, exploration_final_eps=0.2)(
        values(), {}, context(MANY), START
    )
    # .2 shared by four, and the best has the other .8
    close(shares(found), torch.tensor([0.05, 0.05, 0.85, 0.05]), MANY)


def test_every_env_tries_by_its_own_epsilon() -> None:
    found = explore(2, exploration_initial_eps=0.8, exploration_final_eps=0.8, epsilon_alpha=3.0)
    env_index = torch.arange(2).repeat(MANY // 2)
    choice = found(values(), {}, context(MANY, env_index=env_index), START)
    for number, epsilon in ((0, 0.8), (1, 0.8**4)):
        rest = epsilon / 4
        close(shares(choice[env_index == number]), torch.tensor([rest, rest, 1 - 3 * rest, rest]), MANY // 2)


@pytest.mark.parametrize(("progress", "temperature"), [(0.0, 2.0), (0.25, 1.25), (0.5, 0.5), (0.9, 0.5)])
def test_boltzmann_draws_by_a_softmax_whose_temperature_falls(progress: float, temperature: float) -> None:
    found = explore(exploration="boltzmann", temperature=2.0, temperature_final=0.5, exploration_fraction=0.5)
    choice = found(values(), {}, context(MANY), torch.tensor(progress))
    close(shares(choice), (values(1)[0] / temperature).softmax(-1), MANY)


def test_boltzmann_does_not_overflow() -> None:
    found = explore(exploration="boltzmann", temperature=1e-6, temperature_final=1e-6)
    assert (found(values() * 1e6, {}, context(MANY), START) == 2).all()


def test_without_exploration_the_best_is_taken_and_nothing_drawn() -> None:
    given = context(100)
    before = given.generator.get_state()
    assert (explore(exploration="none")(values(100), {}, given, START) == 2).all()
    assert given.generator.get_state().equal(before)


@pytest.mark.parametrize("kind", ["epsilon", "boltzmann", "none"])
def test_greedy_is_the_best_whatever_explores(kind: Any) -> None:
    found = explore(exploration=kind, exploration_initial_eps=1.0, temperature=9.0)
    assert (found(values(1000), {}, context(1000, greedy=True), START) == 2).all()


def test_evaluation_may_have_an_epsilon_of_its_own() -> None:
    found = explore(exploration_initial_eps=1.0, eval_epsilon=0.4, epsilon_alpha=7.0)
    choice = found(values(), {}, context(MANY, greedy=True), START)
    close(shares(choice), torch.tensor([0.1, 0.1, 0.7, 0.1]), MANY)


# Masks


def masked(num_envs: int = MANY) -> dict[str, Tensor]:
    """The best choice is not allowed, nor is the second."""
    mask = torch.tensor([1, 0, 0, 1], dtype=torch.int8)
    return {"state": torch.zeros(num_envs, 2), MASK_KEY: mask.expand(num_envs, 4)}


@pytest.mark.parametrize(
    ("settings", "greedy", "wanted"),
    [
        ({"exploration_initial_eps": 1.0, "exploration_final_eps": 1.0}, False, [0.5, 0, 0, 0.5]),
        ({"exploration_initial_eps": 0.2, "exploration_final_eps": 0.2}, False, [0.9, 0, 0, 0.1]),
        # softmax of (.5, 0)
        ({"exploration": "boltzmann", "temperature_final": 1.0}, False, [0.622459, 0, 0, 0.377541]),
        ({"exploration": "none"}, False, [1.0, 0, 0, 0]),
        ({"exploration_initial_eps": 1.0}, True, [1.0, 0, 0, 0]),
        ({"eval_epsilon": 0.2}, True, [0.9, 0, 0, 0.1]),
    ],
)
def test_what_is_not_allowed_is_never_chosen(
    settings: dict[str, Any], greedy: bool, wanted: list[float]
) -> None:
    found = explore(observation=MASKED, **settings)
    choice = found(values(), masked(), context(MANY, greedy=greedy), START)
    close(shares(choice), torch.tensor(wanted), MANY)


def test_a_single_allowed_choice_is_taken_by_all() -> None:
    obs = masked(1000)
    obs[MASK_KEY] = torch.tensor([0, 1, 0, 0], dtype=torch.int8).expand(1000, 4)
    for kind in ("epsilon", "boltzmann", "none"):
        found = explore(observation=MASKED, exploration=kind, exploration_initial_eps=1.0)
        assert (found(values(1000), obs, context(1000), START) == 1).all()
