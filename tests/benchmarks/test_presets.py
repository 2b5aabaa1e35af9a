"""Records of trained presets become the results and curves that the pages show."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
sys.path.append(str(Path(__file__).parents[2] / "docs"))

import generate
import presets


def record(seed: int, value: float, steps: int = 1000) -> Any:
    rows = [
        {"steps": at, "time/elapsed": at / 100, "episode/return": 1.0 * at, "evaluation/return": 2.0 * at}
        for at in (500, steps)
    ]
    return {
        "job": {"algorithm": "ppo", "env": "MinAtar/Breakout-v1", "seed": seed},
        "return": value,
        "steps": steps,
        "wall_time": steps / 100,
        "total_time": steps / 50,
        "cores": 1,
        "machine": "a machine",
        "commit": "abc",
        "date": "2026-01-31",
        "rows": rows,
        "config": {"algorithm": "ppo", "env": "MinAtar/Breakout-v1", "total_timesteps": 1000, "seed": seed},
    }


def test_a_result_and_a_curve_are_written_and_read_by_the_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = presets.report([record(2, 30), record(1, 10)], tmp_path)
    assert (
        text.splitlines()[-1]
        == "| ppo | MinAtar/Breakout-v1 | 20.0 (10.0 to 30.0) | 1,000 | 10 s | 2 | a machine |"
    )
    assert (tmp_path / "ppo_MinAtar-Breakout-v1.png").stat().st_size > 10_000
    found = json.loads((tmp_path / "ppo_MinAtar-Breakout-v1.json").read_text())
    assert [run["seed"] for run in found["seeds"]] == [1, 2]
    assert found["evaluations"][0] == [[500, 5.0, 1000.0], [1000, 10.0, 2000.0]]
    assert "note" not in found
    monkeypatch.setattr(generate, "RESULTS", tmp_path)
    shown = generate.list_results(generate.ROOT / "docs" / "algorithms" / "ppo.md", "ppo")
    assert "| MinAtar/Breakout-v1 | 20.0 ± 14.1 (2 seeds) | 1,000 | 10 s |" in shown


def test_runs_that_were_stopped_early_say_so() -> None:
    assert "before 1,000 steps" in presets.result("ppo", "x", "x", [record(1, 1, steps=900)])["note"]


def test_runs_beside_other_programs_are_recorded_with_their_processor_time() -> None:
    alone = {**record(1, 1), "wall_time": 100.0, "processor_time": 90.0}
    beside, on_gpu = {**alone, "processor_time": 60.0}, {"hardware": "gpu"}
    for run in (alone, beside):
        run["config"] = {**run["config"], "hardware": "cpu"}
    assert "note" not in presets.result("ppo", "x", "x", [alone])
    said = "beside other programs: 60 s of processor time"
    assert presets.result("ppo", "x", "x", [beside])["note"] == said
    assert "note" not in presets.result(
        "ppo", "x", "x", [{**beside, "config": {**beside["config"], **on_gpu}}]
    )


def test_thinning_keeps_every_evaluation_and_the_last_row() -> None:
    rows = [{"steps": number, "loss/critic": 0.0} for number in range(3001)]
    rows[7]["evaluation/return"] = 1.0
    found = presets.thinned(rows)
    assert len(found) <= presets.ROWS + 2
    assert {"steps": 7, "evaluation/return": 1.0} in found
    assert found[-1] == {"steps": 3000}


def test_only_environments_with_tuned_settings_are_presets() -> None:
    assert presets.tuned("ppo", "CartPole-v1")
    assert presets.tuned("dqn", "MinAtar/Asterix-v1")  # by its family
    assert not presets.tuned("ppo", "FrozenLake-v1")


def test_one_seed_of_every_preset_comes_first() -> None:
    jobs = presets.all_jobs(["classic"], ["ppo", "dqn"], [], [1, 2], False)
    assert {job["algorithm"] for job in jobs} == {"ppo", "dqn"}
    assert [job["seed"] for job in jobs] == sorted(job["seed"] for job in jobs)
    times = [presets.estimate(job, [], 10**6, False) for job in jobs if job["seed"] == 1]
    assert times == sorted(times, reverse=True)
