"""One resolver finds what a name stands for, for every command that takes a trained policy."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from whorl import api, cli
from whorl.box.cards import FOLDER
from whorl.box.names import find_policy
from whorl.core.errors import CheckpointError, ConfigError
from whorl.state import checkpoint

TINY = {
    "num_envs": 2,
    "num_steps": 8,
    "max_iterations": 1,
    "quiet": True,
    "n_eval_episodes": 1,
    "tensorboard": False,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a best policy, in a folder `runs`."""
    folder = tmp_path_factory.mktemp("place") / "runs"
    settings = {**TINY, "eval_freq": 8, "eval_max_steps": 20, "runs": str(folder), "name": "mine"}
    return Path(api.train("CartPole-v1", "ppo", settings).run_dir)


@pytest.fixture
def here(run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with `runs`, as the current one."""
    monkeypatch.chdir(run.parent.parent)
    return run.parent.parent


def test_a_name_is_a_run_a_checkpoint_an_agent_or_a_file(run: Path, here: Path, tmp_path: Path) -> None:
    api.restore(run).export(tmp_path / "policy.safetensors")
    assert find_policy("mine").path == find_policy(run).run == run
    assert find_policy("mine/best").run == run and find_policy("mine/best").path == run / "best"
    assert find_policy(run / "best" / "policy.pt").path == run / "best"
    found = find_policy("cartpole")
    assert found.card is not None and found.run is None and found.output("a.png") == Path("cartpole_a.png")
    assert find_policy(tmp_path / "policy.safetensors").kind == "a file"
    assert find_policy(FOLDER / "cartpole.pt").path == FOLDER / "cartpole.pt"


def test_a_run_comes_before_an_agent_and_a_folder_that_is_none_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cartpole").mkdir()
    assert find_policy("cartpole").card is not None
    (tmp_path / "runs" / "cartpole").mkdir(parents=True)
    (tmp_path / "cartpole").rmdir()
    assert find_policy("cartpole").path == tmp_path / "runs" / "cartpole"


def test_names_that_stand_for_nothing_get_at_most_eight_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(30):
        (tmp_path / "runs" / f"PPO_{number:02}").mkdir(parents=True)
    with pytest.raises(
        CheckpointError, match="no run 'cartpol', and no agent of that name; did you mean 'cartpole'"
    ):
        find_policy("cartpol")
    with pytest.raises(CheckpointError, match=r"choose one of: PPO_00, .*PPO_07 and ") as error:
        find_policy("something else")
    assert str(error.value).count("PPO_") == 8


@pytest.mark.parametrize("name", ["policy.onnx", "policy.ts"])
def test_files_without_settings_are_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match="holds no settings, so Whorl can't read it; name a run"):
        api.restore(tmp_path / name)


def test_a_torch_file_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, tmp_path / "model.pt")
    (tmp_path / "broken.pt").write_bytes(b"no zip file")
    for name in ("model.pt", "broken.pt"):
        with pytest.raises(CheckpointError, match=rf"{name} holds no policy of Whorl; name a run"):
            api.restore(tmp_path / name)
    with pytest.raises(CheckpointError, match=r"there is no file .*none\.pt"):
        api.restore(tmp_path / "none.pt")
    with pytest.raises(CheckpointError, match="the name of the run is empty"):
        api.restore("")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 99}, "holds no policy"),
        ({"config": []}, "holds no policy"),
        ({"config": {}}, "holds no policy"),
        ({"spec": []}, "holds no policy"),
        ({"module": {}}, "lacks '.*', which its actions depend on"),
        ({"module": "progress"}, "lacks '.*', which its actions depend on"),
    ],
)
def test_a_policy_that_was_changed_is_refused_in_one_sentence(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    saved = torch.load(FOLDER / "cartpole.pt", weights_only=True)
    torch.save({**saved, **changes}, tmp_path / "changed.pt")
    with pytest.raises(CheckpointError, match=message):
        api.restore(tmp_path / "changed.pt")


def test_agents_and_files_hold_one_policy(here: Path) -> None:
    with pytest.raises(
        ConfigError, match="'cartpole' is an agent in the box, which holds one policy; leave best out"
    ):
        api.restore("cartpole", best=True)


@pytest.mark.parametrize("command", ["plot", "report", "resume", "push"])
def test_what_needs_a_run_says_so_of_an_agent(
    command: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, "cartpole", *(["me/cartpole"] if command == "push" else [])]
    assert cli.main(words) == 2
    assert "'cartpole' is an agent in the box, which has a policy and no metrics" in capsys.readouterr().err


def test_eval_takes_agents_and_files(here: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", "cartpole", "--format", "safetensors"]) == 0
    assert (here / "cartpole_policy.safetensors").is_file()
    capsys.readouterr()
    found = []
    for name in ("cartpole", "cartpole_policy.safetensors", str(FOLDER / "cartpole.pt")):
        assert cli.main(["eval", name, "--episodes", "2", "--max-steps", "30", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
        assert (found[-1]["lengths"], found[-1]["algorithm"]) == ([30, 30], "ppo")
    assert cli.main(["eval", "cartpole", "--episodes", "1", "--log"]) == 2
    assert "but cartpole is an agent in the box; leave it out" in capsys.readouterr().err


def test_an_agent_for_acting_alone_stays_one_in_a_file(tmp_path: Path) -> None:
    agent = api.restore("cartpole")
    agent.export(tmp_path / "agent.safetensors")
    again = api.restore(tmp_path / "agent.safetensors")
    obs = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    np.testing.assert_array_equal(again.act(obs), agent.act(obs))
    assert again.acts_only


def test_a_copy_of_a_best_policy_outside_of_its_run_is_used_as_it_is(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("best", "pong_best"):
        shutil.copytree(run / "best", tmp_path / name / name)
        for best in (False, True):
            assert api.restore(tmp_path / name / name, best=best).steps == api.restore(run, best=True).steps
    assert cli.main(["eval", str(tmp_path / "pong_best" / "pong_best"), "--best", "--episodes", "1"]) == 0


def test_a_run_with_a_best_policy_alone_names_the_flag(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "best", tmp_path / "run" / "best")
    with pytest.raises(
        CheckpointError, match="no checkpoint yet, but best has its best policy; use best=True"
    ):
        api.restore(tmp_path / "run")
    assert checkpoint.best_folder(tmp_path / "run") == tmp_path / "run" / "best"


def test_a_video_of_an_agent_is_written_here(here: Path) -> None:
    pytest.importorskip("pygame")
    media = api.video("cartpole", max_steps=4)
    assert media.path == Path("cartpole_video.gif")
    with Image.open(here / "cartpole_video.gif") as picture:
        assert picture.size[0] > 0
