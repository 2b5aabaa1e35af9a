"""Studies: what is trained, and the table of what came out."""

import json
import sys
from pathlib import Path

import pytest

import whorl

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import studies
from studies import Study

SMALL = {
    "total_timesteps": 600,
    "num_envs": 4,
    "num_steps": 32,
    "batch_size": 64,
    "eval": False,
    "workers": 0,
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = {"plain": ("ppo", {}), "counts": ("ppo", {"components": ["count"]})}
    study = Study(("CartPole-v1",), variants, {**SMALL, "log_freq": 1}, episodes=2)
    monkeypatch.setitem(studies.STUDIES, "tiny", study)


def test_one_seed_of_everything_comes_first() -> None:
    jobs = studies.all_jobs(["tiny"], (1, 2), ())
    assert [(job["seed"], job["variant"]) for job in jobs] == [
        (1, "plain"),
        (1, "counts"),
        (2, "plain"),
        (2, "counts"),
    ]
    assert [job["variant"] for job in studies.all_jobs(["tiny"], (1,), ["counts"])] == ["counts"]
    rooms = "MiniGrid-MultiRoom-N6-v0"
    assert {job["env"] for job in studies.all_jobs(["minigrid"], (1,), (), [rooms])} == {rooms}


def test_runs_are_recorded_and_drawn(tmp_path: Path) -> None:
    records = [
        {"job": job, **studies.one(job, limit=60), "total_time": 1.0, "cores": 1}
        for job in studies.all_jobs(["tiny"], (1,), ())
    ]
    assert "count" in records[1]["config"]["components"]
    text = studies.report(records, tmp_path)
    assert "| CartPole-v1 | counts |" in text and "| CartPole-v1 | plain |" in text
    assert (tmp_path / "study_tiny.png").stat().st_size > 1000
    kept = json.loads((tmp_path / "study_tiny.json").read_text())
    assert kept["metric"] == "episode/return" and [run["job"]["variant"] for run in kept["runs"]] == [
        "counts",
        "plain",
    ]


@pytest.mark.parametrize("name", studies.STUDIES)
def test_the_agents_of_a_study_can_be_built(name: str, tmp_path: Path) -> None:
    study = studies.STUDIES[name]
    here = {"workers": 0, "actors": 0, "eval": False, "quiet": True, "runs": str(tmp_path)}
    for env in study.envs:
        for algorithm, own in study.variants.values():
            with whorl.load(env, algorithm, {**study.settings, **own, **here}) as trainer:
                trainer.build()


def test_what_was_played_is_the_metric_where_the_environment_measures_it() -> None:
    job = {"study": "disco_maze_7", "env": "DiscoMaze-v0", "variant": "none", "seed": 1}
    run = {"job": job, "score": 0.25, "return": 0.0, "steps": 10, "wall_time": 1.0}
    measured = {**run, "measures": {"coverage": 0.5, "cells_visited": 8.5}}
    assert "| 0.25 (0.25 to 0.25) | 0.5 (0.5 to 0.5) |" in studies.table([measured])
    assert "| 0.25 (0.25 to 0.25) | 0 (0 to 0) |" in studies.table([run])


def test_the_steps_to_a_threshold_are_those_of_the_first_row_that_reaches_it() -> None:
    rows = [{"steps": 1}, {"steps": 2, "a": 3.0}, {"steps": 3, "a": 5.0}, {"steps": 4, "a": 4.0}]
    assert studies.reached(rows, "a", 4.0) == 3 and studies.reached(rows, "a", 6.0) is None
    job = {"study": "position_only", "env": "PendulumP-v0", "variant": "rsac"}
    run = {"score": -200.0, "return": -180.0, "steps": 9, "wall_time": 1.0}
    runs = [
        {**run, "job": {**job, "seed": 1}, "reached": 2_000},
        {**run, "job": {**job, "seed": 2}, "reached": None},
    ]
    assert studies.table(runs).endswith("| 2 | 2,000, never |")
