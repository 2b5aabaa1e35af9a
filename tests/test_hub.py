"""Policies to and from a stand-in for the Hugging Face hub."""

import hashlib
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from hub_server import TOKEN, Hub

import whorl
from whorl import cli
from whorl.core.errors import CheckpointError, ConfigError, WhorlError

constants = pytest.importorskip("huggingface_hub.constants")
REPO = "me/ppo-cartpole"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = {"num_envs": 4, "num_steps": 16, "batch_size": 64, "max_iterations": 2, "eval_freq": 1}
    runs = tmp_path_factory.mktemp("home-of-mine")
    return whorl.train("CartPole-v1", "ppo", small, runs=str(runs), tag="mine", quiet=True).run_dir


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    found = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", found.url)
    template = f"{found.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield found
    found.close()


@pytest.fixture
def pushed(hub: Hub, run: Path) -> Hub:
    """The hub with the run, evaluated shortly."""
    assert cli.main(["push", str(run), REPO, "--episodes", "2"]) == 0
    return hub


def test_a_pushed_policy_is_pulled_and_acts_the_same(
    pushed: Hub,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = pushed.repos[REPO]
    assert {"README.md", "config.yaml", "metrics.jsonl", "replay.gif", "checkpoint_1/policy.pt"} <= set(files)
    assert files["replay.gif"].startswith(b"GIF8")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["pull", REPO]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    assert folder == Path("runs/me_ppo-cartpole")
    obs = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    assert (whorl.restore(folder).act(obs) == whorl.restore(run).act(obs)).all()
    assert whorl.restore(folder).steps == whorl.restore(run).steps
    assert whorl.pull(REPO, tmp_path / "runs").name == "me_ppo-cartpole_2"
    assert not list(tmp_path.glob("runs/.*"))


def test_the_model_card_has_the_score_where_the_hub_looks_for_it(pushed: Hub) -> None:
    _, front, text = pushed.repos[REPO]["README.md"].decode().split("---\n", 2)
    card = yaml.safe_load(front)
    numbers = json.loads(pushed.repos[REPO]["results.json"])
    assert card["library_name"] == "whorl" and card["pipeline_tag"] == "reinforcement-learning"
    assert {"CartPole-v1", "ppo"} <= set(card["tags"])
    (result,) = card["model-index"][0]["results"]
    score = f"{numbers['mean_reward']:.2f} +/- {numbers['std_reward']:.2f}"
    assert result["metrics"][0] == {
        "type": "mean_reward",
        "value": score,
        "name": "mean_reward",
        "verified": False,
    }
    assert "![An episode](replay.gif)" in text and f"whorl pull {REPO}" in text


def test_neither_the_token_nor_folders_of_the_user_are_uploaded(pushed: Hub) -> None:
    everything = b"".join(pushed.repos[REPO].values())
    assert TOKEN.encode() not in everything
    assert b"home-of-mine" not in everything


def test_what_is_pulled_runs_no_code(pushed: Hub, tmp_path: Path) -> None:
    """A policy that is a pickle of its own is refused, and files that are no part of a policy stay on the hub."""
    files = pushed.repos[REPO]

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "was-here",))

    files["setup.py"] = b"raise SystemExit"
    files["checkpoint_1/../../outside.py"] = b""
    folder = whorl.pull(REPO, tmp_path / "runs")
    assert {path.name for path in folder.rglob("*.py")} == set()

    files["checkpoint_1/policy.pt"] = evil = pickle.dumps(Evil())
    document = yaml.safe_load(files["checkpoint_1/metadata.yaml"])
    document["files"]["policy.pt"] = {"size": len(evil), "sha256": hashlib.sha256(evil).hexdigest()}
    del document["checksum"]
    text = yaml.safe_dump(document).encode()
    seal = f"checksum: {hashlib.sha256(text).hexdigest()}\n".encode()
    files["checkpoint_1/metadata.yaml"] = text + seal
    with pytest.raises(CheckpointError, match=f"{REPO} can't be used: checkpoint_1"):
        whorl.pull(REPO, tmp_path / "runs")
    assert not (tmp_path / "was-here").exists()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]


def test_mistakes_are_one_sentence(
    hub: Hub, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="OWNER/NAME"):
        whorl.push(run, "ppo cartpole")
    with pytest.raises(WhorlError, match="there is no me/nothing on the hub"):
        whorl.pull("me/nothing", tmp_path)
    hub.repos["me/other"] = {"model.bin": b"1"}
    with pytest.raises(CheckpointError, match="holds no policy of Whorl"):
        whorl.pull("me/other", tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(WhorlError, match="does not let you write") as refused:
        whorl.push(run, REPO, episodes=1, video=False)
    assert "hf_wrong" not in str(refused.value)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(WhorlError, match="hf auth login"):
        whorl.push(run, REPO, episodes=1, video=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(WhorlError, match="can't be reached"):
        whorl.pull(REPO, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_names_its_extra(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(WhorlError, match="hub"):
        whorl.push(run, REPO)
