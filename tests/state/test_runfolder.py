"""Run folders have telling, portable names and are never shared."""

import re
from concurrent.futures import ThreadPoolExecutor
from errno import EROFS
from pathlib import Path
from typing import Any

import pytest

from whorl.core.errors import ConfigError, WhorlError
from whorl.state.runfolder import new_run_folder, resolve_run

DATE = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"


def test_the_name_says_algorithm_environment_date_and_time(tmp_path: Path) -> None:
    folder = new_run_folder(tmp_path, "ppo", "Quadrotor-v0")
    assert folder.is_dir() and folder.parent == tmp_path
    assert re.fullmatch(f"PPO_Quadrotor-v0_{DATE}", folder.name)


def test_a_tag_is_appended(tmp_path: Path) -> None:
    folder = new_run_folder(tmp_path, "sac", "Ant-v5", tag="wide nets")
    assert re.fullmatch(f"SAC_Ant-v5_{DATE}_wide-nets", folder.name)


@pytest.mark.parametrize(
    ("env_id", "safe"),
    [
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("my.module:Env-v0", "my.module-Env-v0"),
        ("..\\..\\x<>|?*\"'\n", "x"),
        ("../../etc", "etc"),
    ],
)
def test_characters_that_some_system_refuses_are_replaced(tmp_path: Path, env_id: str, safe: str) -> None:
    folder = new_run_folder(tmp_path, "dqn", env_id, tag="end. ")
    assert re.fullmatch(f"DQN_{re.escape(safe)}_{DATE}_end", folder.name)
    assert folder.parent == tmp_path


def test_a_very_long_id_and_tag_still_make_a_folder(tmp_path: Path) -> None:
    assert new_run_folder(tmp_path, "dqn", "E" * 500, tag="t" * 500).is_dir()


def test_runs_that_start_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: new_run_folder(tmp_path, "ppo", "CartPole-v1"), range(40)))
    assert len(set(folders)) == 40
    assert any(folder.name.endswith("_2") for folder in folders)


def test_a_name_taken_between_the_look_and_the_call_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, calls = Path.mkdir, []

    def late(self: Path, *args: Any, **kwargs: Any) -> None:
        calls.append(self)
        if len(calls) == 2:  # the first call makes the folder of all runs
            mkdir(self)
        mkdir(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", late)
    assert new_run_folder(tmp_path, "ppo", "CartPole-v1").name.endswith("_2")


def test_an_absent_folder_of_runs_is_made(tmp_path: Path) -> None:
    assert new_run_folder(tmp_path / "deep" / "absent", "ppo", "CartPole-v1").is_dir()


def test_a_file_as_root_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WhorlError, match="a file with the name of the folder exists"):
        new_run_folder(tmp_path / "file", "ppo", "CartPole-v1")


def test_a_read_only_root_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(WhorlError, match="read-only; choose another folder"):
        new_run_folder(tmp_path, "ppo", "CartPole-v1")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = new_run_folder(tmp_path / "runs", "ppo", "CartPole-v1")
    (folder / "checkpoint_3").mkdir()
    return folder


def test_a_run_is_found_by_its_path(run: Path) -> None:
    assert resolve_run(run).samefile(run)
    assert resolve_run(str(run)).samefile(run)


def test_a_checkpoint_inside_a_run_is_found_by_its_path(run: Path) -> None:
    assert resolve_run(run / "checkpoint_3").samefile(run / "checkpoint_3")


def test_a_run_is_found_by_its_bare_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent.parent)
    assert resolve_run(run.name).samefile(run)
    assert resolve_run(f"{run.name}/checkpoint_3").samefile(run / "checkpoint_3")


def test_a_bare_name_is_looked_up_in_the_folder_given(run: Path) -> None:
    assert resolve_run(run.name, run.parent).samefile(run)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_a_tilde_is_the_home_folder(home: Path) -> None:
    folder = new_run_folder(Path("~/mine"), "ppo", "CartPole-v1", name="one")
    assert folder == home / "mine" / "one"
    assert resolve_run("~/mine/one") == resolve_run("one", Path("~/mine")) == folder
    with pytest.raises(WhorlError, match="no run 'onne'; did you mean 'one'"):
        resolve_run("onne", Path("~/mine"))


def test_the_home_folder_of_nobody_is_a_folder_like_others(home: Path) -> None:
    with pytest.raises(WhorlError, match="no run '~nobody-of-that-name/x'; there are no runs in runs yet"):
        resolve_run("~nobody-of-that-name/x")


@pytest.mark.parametrize("name", ["best", "checkpoint_7", "/best/", "checkpoint_{seed}"])
def test_a_run_can_not_be_called_as_a_checkpoint(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        new_run_folder(tmp_path / "runs", "ppo", "CartPole-v1", name=name)
    assert str(error.value) == f"name is {name!r}, a name that only checkpoints have; choose another"
    assert not (tmp_path / "runs").exists()


def test_a_name_of_which_nothing_is_left_is_that_of_a_run_without_one(tmp_path: Path) -> None:
    folder = new_run_folder(tmp_path, "ppo", "CartPole-v1", name="../")
    assert re.fullmatch(f"PPO_CartPole-v1_{DATE}", folder.name) and folder.parent == tmp_path


def test_a_misspelt_run_names_the_nearest_one(run: Path) -> None:
    with pytest.raises(WhorlError, match=f"did you mean '{run.name}'"):
        resolve_run(run.name.replace("PPO_Cart", "ppo_cat"), run.parent)


def test_a_missing_checkpoint_of_a_run_names_those_that_are_there(run: Path) -> None:
    with pytest.raises(WhorlError, match=f"{run.name} has no checkpoint_9; it has .*checkpoint_3"):
        resolve_run(f"{run.name}/checkpoint_9", run.parent)


def test_a_missing_run_where_there_are_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(WhorlError, match=r"no run 'x'; there are no runs in .*runs yet"):
        resolve_run("x", tmp_path / "runs")
