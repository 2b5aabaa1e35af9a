"""The table of defaults: what is trained, with which settings, and how the two libraries compare."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import whorl
from whorl.envs.make import find
from whorl.run.build import kind_of
from whorl.settings.merge import configure

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import defaults
import presets
from defaults import OURS, THEIRS


def record(library: str, value: float, steps: int = 1000, seconds: float = 1.0, seed: int = 1) -> Any:
    job = {"algorithm": "ppo", "env": "CartPole-v1", "seed": seed, "library": library, "steps": 1000}
    where = {"machine": "a machine", "commit": "abc", "date": "2026-01-31"}
    return {"job": job, "return": value, "steps": steps, "wall_time": seconds, "total_time": seconds, **where}


def test_a_seed_of_everything_comes_first_and_the_libraries_alternate() -> None:
    jobs = defaults.all_jobs(list(defaults.STEPS), list(defaults.ON_POLICY), (1, 2, 3), 1.0)
    pairs = sum(map(len, defaults.STEPS.values()))
    assert len(jobs) == pairs * 2 * 3
    assert [job["seed"] for job in jobs] == [1] * pairs * 2 + [2] * pairs * 2 + [3] * pairs * 2
    assert [job["library"] for job in jobs] == [OURS, THEIRS] * pairs * 3
    for ours, theirs in zip(jobs[::2], jobs[1::2]):
        assert {**ours, "library": ""} == {**theirs, "library": ""}


def test_the_main_algorithms_come_before_the_others() -> None:
    names = [
        job["algorithm"] for job in defaults.all_jobs(list(defaults.STEPS), list(defaults.ON_POLICY), (1,), 1)
    ]
    main, others = defaults.TIERS
    assert max(names.index(name) for name in main) < min(names.index(name) for name in others)
    assert set(main) | set(others) == set(defaults.STEPS)


@pytest.mark.parametrize(
    ("algorithm", "env"), [("ppo", "CartPole-v1"), ("dqn", "MinAtar/Breakout-v1"), ("sac", "Pendulum-v1")]
)
def test_nothing_that_is_tuned_for_the_environment_is_used(algorithm: str, env: str) -> None:
    job = {"steps": 1000, "seed": 1}
    world = partial(defaults.our_environment, env)
    found = whorl.load(world, algorithm, defaults.settings(job)).settings
    kind = kind_of(find(world))  # of settings for images, for instance, whatever the environment is called
    general = configure(algorithm, "Unknown-v0", defaults.settings(job), kind=lambda options: kind)
    assert {**found.plain(), "env": ""} == {**general.plain(), "env": ""}
    assert presets.tuned(algorithm, env)  # so that the case says something


def test_a_small_difference_within_the_noise_is_not_below() -> None:
    # Means 90 and 100, standard deviations 10: the standard error of the difference of two seeds each is 10.
    def low(ours: list[float]) -> bool:
        return defaults.lower(ours, [100 - 50**0.5, 100 + 50**0.5])

    assert not low([91 - 50**0.5, 91 + 50**0.5])
    assert low([92 - 50**0.5 - 4, 92 + 50**0.5 - 4])
    assert defaults.lower([99.0], [100.0])  # one seed each says nothing about noise


def test_the_verdict_names_what_is_below() -> None:
    theirs = [record(THEIRS, 100, seconds=2)]
    assert defaults.verdict([record(OURS, 101, seconds=1)], theirs) == ""
    assert defaults.verdict([record(OURS, 99, seconds=1)], theirs) == "return"
    assert defaults.verdict([record(OURS, 101, seconds=3)], theirs) == "speed"
    assert defaults.verdict([record(OURS, 99, seconds=3)], theirs) == "**both**"


def test_a_row_shows_means_over_seeds_and_the_ratio_of_speeds() -> None:
    records = [
        *(record(OURS, value, seconds=1, seed=seed) for seed, value in ((1, 200.0), (2, 400.0))),
        *(record(THEIRS, value, seconds=4, seed=seed) for seed, value in ((1, 150.0), (2, 150.0))),
    ]
    line = defaults.table(records).splitlines()[-1]
    assert line == "| ppo | CartPole-v1 | 1,000 | 2 | 300 ± 141 | 150 ± 0.00 | 1 | 4 | 4.0x |  |"


def test_seconds_are_processor_time_where_it_was_measured() -> None:
    busy = {**record(OURS, 1, seconds=9), "processor_time": 2.0}
    line = defaults.table([busy, record(THEIRS, 1, seconds=4)]).splitlines()[-1]
    assert "| 2 | 4 | 2.0x |" in line


def test_runs_that_were_cut_show_the_steps_of_both() -> None:
    line = defaults.table([record(OURS, 1), record(THEIRS, 1, steps=600)]).splitlines()[-1]
    assert "| 1,000 / 600 |" in line


def test_the_page_names_what_is_below_in_both() -> None:
    text = defaults.page([record(OURS, 99, seconds=3), record(THEIRS, 100, seconds=2)])
    assert "Below in both: ppo on CartPole-v1." in text
    assert "a machine" in text and "abc" in text
