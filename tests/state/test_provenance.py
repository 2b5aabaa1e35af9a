"""Where a run comes from is in every checkpoint."""

import subprocess
from pathlib import Path

import pytest
import torch

import whorl
from whorl.state import checkpoint, provenance

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]


def test_every_checkpoint_tells_where_it_comes_from(tmp_path: Path) -> None:
    settings = {"quiet": True, "tensorboard": False, "num_envs": 2, "num_steps": 8, "batch_size": 16}
    more = {"max_iterations": 1, "n_eval_episodes": 1, "seed": 7, "runs": str(tmp_path)}
    run = whorl.load("CartPole-v1", "ppo", {**settings, **more}).train().run_dir
    for folder in (run / "checkpoint_1", run / "best"):
        found = checkpoint.load(folder).metadata
        origin = found["provenance"]
        assert origin["seed"] == 7 and "py" in origin["command"] and origin["folder"] == str(Path.cwd())
        assert origin["versions"]["torch"] == torch.__version__ and origin["cores"] > 0 and origin["cpu"]
        assert {"python", "whorl", "numpy", "gymnasium"} <= origin["versions"].keys()
        assert origin["host"] and found["date"]


def test_a_repository_is_named_by_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    assert provenance._commit(str(tmp_path)) is None
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "one"]):
        subprocess.run([*GIT, *words], cwd=tmp_path, check=True)
    (tmp_path / "stray").write_text("files that git does not know do not count")
    clean = provenance._commit(str(tmp_path))
    assert clean is not None and len(clean["id"]) == 40 and clean["dirty"] is False
    (tmp_path / "file").write_text("2")
    assert provenance._commit(str(tmp_path)) == {"id": clean["id"], "dirty": True}


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    provenance._of_process.cache_clear()
    assert provenance.provenance(1)["commit"] is None
    provenance._of_process.cache_clear()
