"""A sweep in its folder: what is tried, pruned, written down, and repeated after a kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import optuna
import pytest
import yaml
from inline import InlineBackend

from whorl import cli
from whorl.core.errors import CheckpointError, ConfigError, WhorlError
from whorl.distributed.task_pool import ProcessPool
from whorl.run.prepare import prepare_all
from whorl.settings.merge import Settings
from whorl.sweep import sweep as loop
from whorl.sweep import worker
from whorl.sweep.figures import _height, _ticks
from whorl.sweep.report import preset_of, show_best, write_preset
from whorl.sweep.space import Space
from whorl.sweep.sweep import Sweep, Swept, load_sweep
from whorl.sweep.worker import Progress, Task

SMALL: dict[str, Any] = {
    "algorithm": "ppo",
    "env": "CartPoleContinuous-v0",
    "total_timesteps": 128,
    "eval_freq": 64,
    "eval_max_steps": 5,
    "n_eval_episodes": 1,
    "num_envs": 4,
    "num_steps": 16,
    "n_epochs": 1,
    "hidden_sizes": [8],
    "trials": 2,
    "parallel": 1,
    "pruner": "none",
    "search": {"lr": "log 1e-5..1e-2", "gamma": [0.9, 0.99]},
}
Make = Callable[..., Sweep]


class Storage(optuna.storages.RDBStorage):
    """Does not look for an older version of its tables, which takes longer than a sweep."""

    def __init__(self, url: str) -> None:
        super().__init__(url, skip_compatibility_check=True)


class Stub:
    """A trial that trains nothing: two evaluations of 64 steps each, whose returns are those of its number."""

    values: ClassVar[dict[int, list[float]]] = {}

    def __init__(self, *arguments: Any) -> None: ...

    def train(self, task: Task) -> Progress:
        (Path(task.folder) / f"trial_{task.number}_seed_1").mkdir()
        return self._at(task, 1)

    def advance(self, task: Task) -> Progress:
        return self._at(task, 2)

    def prune(self, task: Task) -> bool:
        return True

    def _at(self, task: Task, rung: int) -> Progress:
        value = self.values.get(task.number, [1.0, float(task.number)])[rung - 1]
        return Progress(rung, (value,), 64 * rung, rung == 2)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a sweep in a folder of the test; its trials train nothing, unless they are to, and then in this process."""
    monkeypatch.setattr(loop, "make_backend", lambda *_: InlineBackend())
    monkeypatch.setattr(worker, "prepare_process", lambda *_: None)
    monkeypatch.setattr(optuna.storages, "RDBStorage", Storage)
    monkeypatch.setattr(Stub, "values", {})

    def make(
        trained: bool = False, values: Mapping[int, list[float]] = MappingProxyType({}), **changes: Any
    ) -> Sweep:
        if not trained:
            monkeypatch.setattr(loop, "TrialWorker", Stub)
        Stub.values.update(values)
        file = tmp_path / "mine.yaml"
        file.write_text(yaml.safe_dump({**SMALL, "runs": str(tmp_path / "runs"), **changes}))
        found = load_sweep(file, {})
        found.say = lambda text: None
        return found

    return make


def test_every_trial_trains_what_was_proposed_and_is_written_down(made: Make) -> None:
    sweep = made(trained=True, seeds=2)
    swept = sweep.run()
    assert [row.state for row in swept.rows] == ["complete", "complete"]
    for row in swept.rows:
        for seed in (1, 2):
            config = yaml.safe_load(
                (swept.folder / f"trial_{row.number}_seed_{seed}" / "config.yaml").read_text()
            )
            assert config["actor_lr"] == config["critic_lr"] == row.params["lr"]
            assert (config["gamma"], config["seed"]) == (row.params["gamma"], seed)
        assert len(row.returns) == 2 and row.value == pytest.approx(sum(row.returns) / 2)
        assert row.steps >= 128
    assert swept.rows[0].params != swept.rows[1].params
    assert swept.folder.name == "sweep_mine"


def test_hopeless_trials_are_pruned_at_an_evaluation_and_end_there(made: Make) -> None:
    values = {0: [5.0, 9.0], 1: [1.0, 1.0], 2: [7.0, 8.0]}
    sweep = made(values=values, trials=3, pruner={"class": "median", "n_startup_trials": 1})
    swept = sweep.run()
    assert [(row.state, row.value) for row in swept.rows] == [
        ("complete", 9.0),
        ("pruned", 1.0),
        ("complete", 8.0),
    ]
    assert swept.rows[1].steps < 128 <= swept.rows[2].steps
    assert [row.number for row in swept.best()] == [0, 2]


@pytest.mark.parametrize(
    "objective, score, value",
    [
        ("mean", "last", 5.0),
        ("worst", "last", 2.0),
        ("iqm", "last", 4.0),
        ("mean", "best", 5.5),
        ("worst", "average", 2.0),
    ],
)
def test_the_objective_joins_seeds_and_evaluations(
    made: Make, objective: str, score: str, value: float
) -> None:
    history = [(2.0, 6.0, 2.0, 6.0), (2.0, 4.0, 4.0, 10.0)]
    found = made(objective=objective, score=score).objective(history)
    assert found == pytest.approx(value)


def test_what_was_under_way_at_a_kill_is_tried_again_with_the_same_settings(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(self: ProcessPool, timeout: float) -> Any:
        raise Killed

    with pytest.raises(Killed), monkeypatch.context() as patch:
        patch.setattr(ProcessPool, "ready", killed)
        made().run()
    sweep = made()
    with ExitStack() as stack:
        sweep.open(stack)
        before = sweep.study.trials
        assert [trial.state.name for trial in before] == ["RUNNING"]
    swept = made().run()
    assert len(swept.rows) == 2
    assert swept.rows[0].params["lr"] == before[0].params["lr"]  # repeated
    assert swept.rows[1].params["lr"] != before[0].params["lr"]  # and the next one is another
    assert {path.name for path in swept.folder.glob("trial_*")} == {"trial_1_seed_1", "trial_2_seed_1"}
    again = made().run()
    assert again.reason == "all trials are finished" and len(again.rows) == 2


def test_a_process_that_fails_twice_is_replaced_and_settings_that_always_fail_are_given_up(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, lines = made(trials=1), list[str]()
    sweep.say = lines.append

    def fails(self: Any, task: Any) -> Any:
        raise WhorlError("the environment is out of order")

    monkeypatch.setattr(Stub, "train", fails)
    with pytest.raises(WhorlError, match="the environment is out of order"):
        sweep.run()
    assert [("tried again" in line, "given up" in line) for line in lines] == [
        (True, False),
        (True, False),
        (False, True),
    ]


def test_a_grid_ends_after_its_last_point(made: Make) -> None:
    swept = made(sampler="grid", trials=9, search={"gamma": [0.9, 0.99]}).run()
    assert swept.reason == "all trials are finished"
    assert [row.state for row in swept.rows] == ["complete", "complete"]
    assert {row.params["gamma"] for row in swept.rows} == {0.9, 0.99}


def test_a_point_of_a_grid_whose_process_failed_is_tried_again(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Stub.train

    def fails_once(self: Stub, task: Task) -> Progress:
        if task.number == 0:
            raise WhorlError("the environment is out of order")
        return train(self, task)

    monkeypatch.setattr(Stub, "train", fails_once)
    swept = made(sampler="grid", search={"gamma": [0.9, 0.99]}).run()
    assert [row.number for row in swept.rows] == [1, 2]
    assert {row.params["gamma"] for row in swept.rows} == {0.9, 0.99}


def test_a_pruned_trial_whose_process_fails_while_closing_stays_pruned(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Stub, task: Task) -> bool:
        raise WhorlError("the simulator does not close")

    monkeypatch.setattr(Stub, "prune", fails)
    values = {0: [5.0, 9.0], 1: [1.0, 1.0], 2: [7.0, 8.0]}
    swept = made(values=values, trials=3, pruner={"class": "median", "n_startup_trials": 1}).run()
    assert [(row.number, row.state) for row in swept.rows] == [
        (0, "complete"),
        (1, "pruned"),
        (2, "complete"),
    ]


def test_a_trial_that_max_seconds_end_before_its_first_evaluation_is_evaluated(made: Make) -> None:
    swept = made(trained=True, trials=1, total_timesteps=256, eval_freq=128, max_seconds=1e-6).run()
    (row,) = swept.rows
    assert row.state == "complete" and 0 < row.steps < 128 and row.value > 0


def test_a_target_ends_the_sweep_and_more_trials_go_on(made: Make) -> None:
    sweep = made(values={0: [1.0, 4.0], 1: [1.0, 2.0]}, trials=3, target_return=4.0)
    swept = sweep.run()
    assert (swept.reason, len(swept.rows)) == ("the target return is reached", 1)
    more = load_sweep(swept.folder, {"trials": 2, "target_return": 1000.0})
    more.say = lambda text: None
    assert len(more.run().rows) == 2


def test_a_second_process_and_other_settings_are_refused(made: Make) -> None:
    sweep = made()
    with ExitStack() as stack:
        sweep.open(stack)
        with pytest.raises(CheckpointError, match="is being trained by another trainer of this process"):
            made().run()
    with pytest.raises(ConfigError, match=r"holds a sweep with another search\.gamma; use another --folder"):
        made(search={"lr": "log 1e-5..1e-2", "gamma": [0.9, 0.999]}).run()
    with pytest.raises(ConfigError, match="holds a sweep with another num_envs"):
        made(num_envs=8).run()
    with pytest.raises(ConfigError, match="a continued sweep can't change 'gamma'; it can change trials"):
        load_sweep(sweep.folder, {"gamma": 0.5})


def test_the_preset_trains_with_the_settings_of_the_best_trial(made: Make, tmp_path: Path) -> None:
    sweep = made(trained=True, trials=1, gamma=0.5)
    swept = sweep.run()
    path = write_preset(swept, sweep.sweeping, tmp_path / "best.yaml")
    assert "gamma: 0.5" not in path.read_text()  # what was searched replaces what the file said
    settings = prepare_all(SMALL["env"], "ppo", {}, [path], None, {})[1]
    trial = yaml.safe_load((swept.folder / "trial_0_seed_1" / "config.yaml").read_text())
    assert isinstance(settings, Settings)
    learned = {
        key: value
        for key, value in settings.plain().items()
        if key in vars(settings.algo) or key == "num_steps"
    }
    assert learned == {key: trial[key] for key in learned}
    assert "eval_freq" not in preset_of(sweep.sweeping, swept.rows[0].params)


def test_a_setting_that_was_searched_replaces_its_other_names_in_the_preset(made: Make) -> None:
    preset = preset_of(made(discount_factor=0.5).sweeping, {"gamma": 0.9})
    assert (
        preset["gamma"] == 0.9 and preset["num_envs"] == SMALL["num_envs"] and "discount_factor" not in preset
    )


def test_settings_that_never_fit_end_the_sweep_with_a_sentence(made: Make) -> None:
    sweep = made(trained=True, trials=9, search={"batch_size": [48, 80], "num_steps": [16, 32]})
    with pytest.raises(ConfigError, match="the settings of the first 5 trials do not fit each other"):
        sweep.run()


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"search": {"seed": [1, 2]}}, "search.seed changes how a run is measured"),
        ({"search": {"total_timesteps": [1, 2]}}, "search.total_timesteps changes how a run is measured"),
        ({"eval": False}, "eval can't be set for a sweep"),
        ({"trails": 3}, "neither a sweep nor ppo has a setting 'trails'; did you mean 'trials'?"),
        ({"trials": 0}, "trials is 0"),
        ({"sampler": "tpp"}, "no sampler is called 'tpp'; did you mean 'tpe'?"),
        ({"search": None}, "the settings of a sweep must say what it searches"),
        ({"env": None}, "the settings of a sweep must name its env, as in env: CartPole-v1"),
    ],
)
def test_a_mistake_in_the_file_is_named_before_anything_is_trained(
    made: Make, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        made(**changes).run()
    assert sentence in error.value.message
    assert not (tmp_path / "runs").exists()


def test_the_command_shows_the_best_writes_pictures_and_a_preset(
    made: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(trials=4, sampler="random").run().folder
    monkeypatch.setattr(Sweep, "run", lambda sweep: pytest.fail("settings are written without more trials"))
    assert cli.main(["sweep", str(folder), "--apply"]) == 0
    monkeypatch.chdir(folder.parents[1])
    assert (folder.parent.name, cli.main(["sweep", folder.name, "--apply"])) == (
        "runs",
        0,
    )  # its own file is replaced
    (tmp_path / "mine.yaml").write_text("mine: true")
    assert cli.main(["sweep", str(folder), "--apply", str(tmp_path / "mine.yaml")]) == 2
    assert "exists and was not written by a sweep" in capsys.readouterr().err
    assert (tmp_path / "mine.yaml").read_text() == "mine: true"
    assert cli.main(["sweep", str(folder), "--apply"]) == 0
    text = capsys.readouterr().out
    assert "what it has found so far: 4 trials (4 complete)" in text
    assert f"train: whorl train ppo CartPoleContinuous-v0 --config {folder / 'preset.yaml'}" in text
    for name in ("history.png", "parallel.png", "sweep.html", "preset.yaml"):
        assert (folder / name).stat().st_size > 100
    page = (folder / "sweep.html").read_text()
    assert page.count('"modeBarButtonsToRemove": ["sendChartToCloud"') >= 4  # nothing uploads the plots
    assert cli.main(["sweep", str(tmp_path)]) == 2
    assert "is not the folder of a sweep" in capsys.readouterr().err


def test_a_tilde_is_the_home_folder(made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert made(runs="~/runs").folder == tmp_path / "runs" / "sweep_mine"
    assert load_sweep(tmp_path / "mine.yaml", {}, "~/other").folder == tmp_path / "other"


def test_the_table_is_empty_where_nothing_is_complete(made: Make, tmp_path: Path) -> None:
    sweep = made()
    swept = Swept(tmp_path, [], "it was interrupted")
    show_best(swept, sweep.sweeping)
    with pytest.raises(WhorlError, match=r"no trial of .* is complete yet"):
        write_preset(swept, sweep.sweeping, tmp_path / "best.yaml")


@pytest.mark.full
def test_a_sweep_killed_with_9_goes_on_with_the_same_command(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        yaml.safe_dump({**SMALL, "runs": str(tmp_path / "runs"), "trials": 3, "total_timesteps": 6400})
    )
    command = [sys.executable, "-m", "whorl", "sweep", str(file), "--parallel", "2"]
    folder = tmp_path / "runs" / "sweep_mine"
    first = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 600
    while not list(folder.glob("trial_*/metrics.jsonl")):  # a trial is under way
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "all trials are finished: 3 trials" in done.stdout
    runs = [path.name for path in folder.glob("trial_*")]
    assert len(runs) == 3


@pytest.mark.parametrize(
    "space, words",
    [
        (Space("lr", low=1e-5, high=1e-2, log=True), ["1e-05", "0.0001", "0.001", "0.01"]),
        (Space("eps", low=0.01, high=0.2, log=True), ["0.01", "0.03", "0.1", "0.2"]),
        (Space("n", low=1, high=20, whole=True, log=True), ["1", "3", "10", "20"]),
        (Space("drop", low=0, high=5, whole=True), ["0", "1", "2", "4", "5"]),
        (Space("lambda", low=0.8, high=1.0), ["0.8", "0.85", "0.9", "0.95", "1"]),
        (Space("gamma", (0.9, 0.99)), ["0.9", "0.99"]),
    ],
    ids=lambda given: given.name if isinstance(given, Space) else "",
)
def test_an_axis_has_round_numbers_where_they_belong(space: Space, words: list[str]) -> None:
    ticks = _ticks(space)
    assert [text for _, text in ticks] == words
    assert [height for height, _ in ticks] == pytest.approx([_height(space, float(text)) for text in words])
