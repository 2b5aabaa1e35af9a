"""One generation of each rule by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from whorl.population.config import EvolveConfig
from whorl.population.rules import LineageRow, Plan, Population, drawn, moments, removed_learners, select
from whorl.settings.draws import Choices, Draw, Interval

DRAWS: dict[str, Draw] = {"gamma": Choices((0.9, 0.99)), "lr": Interval(1e-4, 1e-2, log=True)}
SEED = 7


def lineage_row(slot: int, score: float, gamma: float = 0.9, lr: float = 1e-3, **other: Any) -> LineageRow:
    values = {"learner": slot, "age": 1, "origin": "new", "generation": 1, **other}
    return LineageRow(slot=slot, score=score, params={"gamma": gamma, "lr": lr}, **values)


def cem(scores: list[float], **settings: Any) -> Population:
    config = EvolveConfig(**settings)
    rows = [
        lineage_row(slot, score, (0.9, 0.99)[slot % 2], 1e-3 * (slot + 1))
        for slot, score in enumerate(scores)
    ]
    chosen = select(scores, config.elite)
    return Population(config, DRAWS, SEED, [replace(row, selected=one) for row, one in zip(rows, chosen)])


def test_the_best_share_is_selected_rounded_up_and_two_at_least() -> None:
    scores = [3.0, 9.0, 1.0, 7.0, 8.0, 2.0, 5.0, 4.0]
    # 30 % of 8 learners is 2.4: the three with 9, 8 and 7.
    assert [slot for slot, one in enumerate(select(scores, 0.3)) if one] == [1, 3, 4]
    assert [slot for slot, one in enumerate(select(scores, 0.01)) if one] == [1, 4]
    assert sum(select([1.0] * 10, 0.3)) == 3
    assert select([2.0, -math.inf, 1.0, -math.inf], 1.0) == [True, False, True, False]


def test_mean_and_deviation_of_the_selected_weights_by_hand() -> None:
    weights = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 8.0])}]
    mean, std = moments(weights)
    assert mean["w"].tolist() == [2.0, 5.0]
    assert std["w"].tolist() == [1.0, 3.0]  # |3 - 1| / 2, |8 - 2| / 2


def test_drawn_weights_are_mean_and_bounded_deviation_times_noise() -> None:
    mean = {"b": torch.zeros(2), "a": torch.tensor([2.0, 5.0, 1.0])}
    std = {"b": torch.full((2,), 0.5), "a": torch.tensor([0.25, 3.0, 0.0])}
    found = drawn(mean, std, EvolveConfig(min_std=0.1), seed=11)
    noise = torch.Generator().manual_seed(11)
    # By name, a before b; deviations within [0.1, 1].
    a = torch.tensor([2.0, 5.0, 1.0]) + torch.tensor([0.25, 1.0, 0.1]) * torch.randn(3, generator=noise)
    assert torch.equal(found["a"], a)
    assert torch.equal(found["b"], 0.5 * torch.randn(2, generator=noise))
    assert not torch.equal(drawn(mean, std, EvolveConfig(), seed=12)["a"], a)


def test_the_first_generation_draws_settings_for_each_place() -> None:
    population = Population(EvolveConfig(population=3), DRAWS, SEED)
    for slot, plan in enumerate(population.next()):
        rng = np.random.default_rng([SEED, 1, slot])
        gamma = (0.9, 0.99)[int(rng.integers(2))]
        lr = 1e-4 * 100 ** rng.random()
        assert (plan.slot, plan.learner, plan.age, plan.origin) == (slot, slot, 0, "new")
        assert plan.params == {"gamma": gamma, "lr": pytest.approx(lr)}


def test_a_generation_of_the_cross_entropy_method_by_hand() -> None:
    population = cem([1.0, 4.0, 3.0, 2.0], population=4, elite=0.5)
    plans = {plan.slot: plan for plan in population.next()}
    kept = plans.pop(1)
    assert kept == Plan(1, 1, 1, {"gamma": 0.99, "lr": 2e-3}, "own")
    # Selected: places 1 (0.99, 2e-3) and 2 (0.9, 3e-3). Each gamma has the count 1 + 1: equal probabilities.
    logs = np.log([2e-3, 3e-3])
    for slot, plan in plans.items():
        rng = np.random.default_rng([SEED, 2, slot])
        gamma = 0.9 if rng.random() < 0.5 else 0.99
        lr = math.exp(logs.mean() + logs.std() * rng.standard_normal())
        assert (plan.learner, plan.age, plan.origin, plan.note) == (slot, 1, "drawn", "")
        assert plan.params == {"gamma": gamma, "lr": pytest.approx(lr)}
        # Ranked 1, 2; optimizer state is that of the first one here, which alternates.
        assert [parent.learner for parent in plan.parents] == ([1, 2] if slot % 2 == 0 else [2, 1])


def test_counts_of_selected_values_are_those_of_all_generations() -> None:
    first = cem([1.0, 4.0, 3.0, 2.0], population=4, elite=0.5)
    again = [replace(row, generation=2, age=2) for row in first.history]
    again[2] = replace(again[2], params={"gamma": 0.99, "lr": 1e-3})
    population = replace(first, history=[*first.history, *again])
    # 0.99 was selected three times, 0.9 once: counts 4 and 2.
    for seed in range(20):
        for plan in (plan for plan in replace(population, seed=seed).next() if plan.origin == "drawn"):
            rng = np.random.default_rng([seed, 3, plan.slot])
            assert plan.params["gamma"] == (0.9 if rng.random() < 2 / 6 else 0.99)


def test_without_keep_best_all_weights_are_drawn() -> None:
    assert {plan.origin for plan in cem([1.0, 4.0, 3.0], population=3, keep_best=0).next()} == {"drawn"}


def test_a_learner_that_diverged_is_replaced_by_a_new_one_that_draws_from_the_best() -> None:
    population = cem([-math.inf, 4.0, 3.0, 2.0], population=4, elite=0.5)
    history = [replace(row, note="a loss is nan") if row.slot == 0 else row for row in population.history]
    plan = replace(population, history=history).next()[0]
    assert (plan.slot, plan.learner, plan.age, plan.origin) == (0, 4, 0, "drawn")
    assert plan.note == "a loss is nan"


def test_a_learner_that_is_selected_four_times_less_than_the_average_is_removed() -> None:
    def row(slot: int, generation: int, selected: bool) -> LineageRow:
        return lineage_row(slot, 1.0, generation=generation, age=generation, selected=selected)

    # Of three learners two are selected in each generation: learner 0 always, 1 from the third on, 2 twice.
    history = [
        row(slot, generation, chosen)
        for generation in range(1, 9)
        for slot, chosen in ((0, True), (1, generation > 2), (2, generation <= 2))
    ]
    # After 8 generations 16 selections: 5.33 on average. 2 * 4 = 8 is above it, 1 * 4 below.
    assert removed_learners(history, 4.0) == {}
    history = [
        replace(one, selected=one.slot == 0 or (one.slot == 1) == (one.generation > 1)) for one in history
    ]
    found = removed_learners(history, 4.0)
    assert list(found) == [2]
    assert found[2] == "learner 2 was selected 1 times, the average is 5.3"
    # Nobody before the average is 4, and nobody where it is off.
    assert removed_learners([one for one in history if one.generation < 6], 4.0) == {}
    assert removed_learners(history, 0.0) == {}


def test_a_generation_of_population_based_training_by_hand() -> None:
    config = EvolveConfig(rule="pbt", population=4, exploit=0.25, resample=0.5)
    rows = [lineage_row(0, 2.0), lineage_row(1, 9.0, 0.99, 5e-3), lineage_row(2, 1.0), lineage_row(3, 4.0)]
    plans = Population(config, DRAWS, SEED, rows).next()
    for slot in (0, 1, 3):
        assert plans[slot] == Plan(slot, slot, 1, rows[slot].params, "own")
    # A quarter of four is one: the worst, place 2, copies the best, place 1.
    plan = plans[2]
    assert (plan.learner, plan.age, plan.origin) == (2, 1, "copied")
    assert plan.parents == (rows[1],)
    rng = np.random.default_rng([SEED, 2, 2])
    rng.integers(1)  # which of the best: there is one
    gamma = (0.9, 0.99)[int(rng.integers(2))] if rng.random() < 0.5 else 0.9  # the only neighbour of 0.99
    if rng.random() < 0.5:
        lr = 1e-4 * 100 ** rng.random()
    else:
        lr = 5e-3 * (0.8, 1.2)[int(rng.integers(2))]
    assert plan.params == {"gamma": gamma, "lr": pytest.approx(lr)}


@pytest.mark.parametrize(("exploit", "copies"), [(0.0, 0), (0.25, 1), (0.5, 2)])
def test_in_a_small_population_at_least_one_copies(exploit: float, copies: int) -> None:
    rows = [lineage_row(slot, float(slot)) for slot in range(5)]
    plans = Population(EvolveConfig(rule="pbt", population=5, exploit=exploit), DRAWS, SEED, rows).next()
    assert [plan.slot for plan in plans if plan.origin == "copied"] == list(range(copies))
    plans = Population(EvolveConfig(rule="pbt", population=2, exploit=exploit), DRAWS, SEED, rows[:2]).next()
    assert sum(plan.origin == "copied" for plan in plans) == min(copies, 1)


def test_what_is_drawn_again_and_what_is_perturbed() -> None:
    rows = [lineage_row(0, 2.0), lineage_row(1, 9.0, 0.99, 5e-3)]
    perturbed, redrawn = set(), set()
    for seed in range(30):
        for resample, found in ((0.0, perturbed), (1.0, redrawn)):
            config = EvolveConfig(rule="pbt", population=2, exploit=0.5, resample=resample)
            found.add(round(Population(config, DRAWS, seed, rows).next()[0].params["lr"], 12))
    assert perturbed == {4e-3, 6e-3}
    assert len(redrawn) == 30


def test_a_diverged_learner_of_population_based_training_is_replaced_even_above_the_worst_share() -> None:
    config = EvolveConfig(rule="pbt", population=4, exploit=0.25)
    rows = [lineage_row(slot, -math.inf if slot < 2 else float(slot), note="nan") for slot in range(4)]
    plans = Population(config, DRAWS, SEED, rows).next()
    assert [(plan.learner, plan.age, plan.origin) for plan in plans] == [
        (4, 0, "copied"),
        (5, 0, "copied"),
        (2, 1, "own"),
        (3, 1, "own"),
    ]


def test_equal_scores_are_ranked_by_place_so_that_plans_are_repeatable() -> None:
    population = cem([1.0] * 4, population=4, elite=0.5)
    assert [row.slot for row in population.history if row.selected] == [0, 1]
    assert population.next() == population.next()
