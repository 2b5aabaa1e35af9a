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
    small = ["total_timesteps=64", "num_envs=2", "num_steps=32", "batch_size=32", "eval=false", "workers=0"]
    given = ["--seeds", "1", "--episodes", "1", "--to", str(tmp_path), "--set", "quiet=true", *small]
    monkeypatch.setattr(sys, "argv", ["results.py", "ppo", "CartPole-v1", *given])
    results.main()
    record = json.loads((tmp_path / "ppo_CartPole-v1.json").read_text())
    assert record["commit"] == "before"
