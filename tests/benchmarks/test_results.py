"""The record of an algorithm's page."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import results

import whorl


def test_the_commit_is_the_one_that_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another is made while the run goes on."""
    head, load = ["before"], whorl.load

    def moving(*given: Any, **settings: Any) -> Any:
        trainer = load(*given, **settings)
        head[0] = "after"
        return trainer

    monkeypatch.setattr(results, "commit", lambda: head[0])
    monkeypatch.setattr(whorl, "load", moving)
    run(["ppo", "CartPole-v1"], [], tmp_path, monkeypatch)
    record = json.loads((tmp_path / "ppo_CartPole-v1.json").read_text())
    assert record["commit"] == "before"


def test_a_twin_without_components_is_a_curve_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        results, "plot_runs", lambda runs, curve, group_by: drawn.append((len(runs), group_by))
    )
    run(["ppo_icm", "SparseMountainCar-v0"], ["--twin", "components=[]"], tmp_path, monkeypatch)
    record = json.loads((tmp_path / "ppo_icm_SparseMountainCar-v0.json").read_text())
    assert drawn == [(2, ("algorithm", "components"))]
    assert record["note"].startswith("the same agent without components: 0 after 64 steps")
    assert record["twin"]["components"] == [] and "memory" not in record["twin"]


def run(what: list[str], more: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["total_timesteps=64", "num_envs=2", "num_steps=32", "batch_size=32", "eval=false", "workers=0"]
    given = ["--seeds", "1", "--episodes", "1", "--to", str(folder), "--set", "quiet=true", *small]
    monkeypatch.setattr(sys, "argv", ["results.py", *what, *given, *more])
    results.main()
