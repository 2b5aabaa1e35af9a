"""A benchmark in its folder: what is trained, skipped and continued, and what is written down."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from inline import InlineBackend

from whorl import cli
from whorl.bench import bench as loop
from whorl.bench import cell, figures, results
from whorl.bench.bench import Bench, Benched, Choice, load_bench
from whorl.bench.cell import RESULT, Cell, CellResult, CellWorker, read_result
from whorl.bench.figures import draw_aggregates, draw_all, draw_improvement, draw_profiles
from whorl.bench.results import Estimate, aggregates, markdown, scores_of
from whorl.bench.suite import find_suite, read_suite, suites
from whorl.core.errors import CheckpointError, ConfigError, DivergedError, WhorlError
from whorl.log.statistics import stratified_interval
from whorl.run.trainer import Trainer
from whorl.state.runlock import RunLock

SMALL: dict[str, Any] = {
    "about": "a test",
    "seeds": 2,
    "algorithms": ["ppo", {"name": "small", "algorithm": "ppo", "hidden_sizes": [4]}],
    "environments": {"CartPoleContinuous-v0": {"random": 0, "reference": 10, "total_timesteps": 128}},
    "settings": {
        "num_envs": 4,
        "num_steps": 16,
        "n_epochs": 1,
        "n_eval_episodes": 1,
        "eval_freq": 64,
        "eval_max_steps": 5,
    },
}
Make = Callable[..., Bench]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a benchmark in a folder of the test, whose runs train in this process."""
    monkeypatch.setattr(loop, "make_backend", lambda *_: InlineBackend())
    monkeypatch.setattr(cell, "prepare_process", lambda *_: None)

    def make(choice: Choice = Choice(), **changes: Any) -> Bench:  # noqa: B008  # it is frozen
        file = tmp_path / "mine.yaml"
        file.write_text(yaml.safe_dump({**SMALL, **changes}))
        found = load_bench(str(file), choice, str(tmp_path / "bench"))
        found.say = lambda text: None
        return found

    return make


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals of few draws, where a test is not about them."""

    def interval(scores: Any, statistic: Any, samples: int = 0) -> Any:
        return stratified_interval(scores, statistic, samples=20)

    for module in (results, figures):
        monkeypatch.setattr(module, "stratified_interval", interval)


def benched(returns: Mapping[str, list[list[float | None]]], tmp_path: Path) -> Benched:
    """Results as if they had been trained: of each algorithm, [seeds][environments]."""
    count = len(next(iter(returns.values()))[0])
    content = {
        **SMALL,
        "seeds": len(next(iter(returns.values()))),
        "algorithms": [{"name": name, "algorithm": "ppo"} for name in returns],
        "environments": {f"E{n}": {"random": 0, "reference": 10} for n in range(count)},
    }
    results = {
        (name, f"E{n}", seed + 1): CellResult(value, 1, 1.0)
        for name, rows in returns.items()
        for seed, row in enumerate(rows)
        for n, value in enumerate(row)
    }
    return Benched(tmp_path, read_suite("mine", content), results)


def test_every_algorithm_is_trained_with_every_seed_and_what_has_ended_is_skipped(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = made(seeds=1)
    found = bench.run()
    assert set(found.results) == {(name, "CartPoleContinuous-v0", 1) for name in ("ppo", "small")}
    config = yaml.safe_load(
        (bench.folder_of("small", "CartPoleContinuous-v0", 1) / "config.yaml").read_text()
    )
    assert (config["actor_hidden_sizes"], config["seed"], config["num_envs"]) == ([4], 1, 4)
    trained = list[Cell]()
    monkeypatch.setattr(
        CellWorker, "train", lambda self, cell: trained.append(cell) or CellResult(1.0, 1, 1.0)
    )
    made(seeds=[1, 3]).run()
    assert {(one.name, one.seed) for one in trained} == {("ppo", 3), ("small", 3)}


class Killed(BaseException):
    pass


def kill_in_second_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    step, count = Trainer.step, [0]

    def killed(self: Trainer) -> Any:
        count[0] += 1
        if count[0] == 2:
            raise Killed
        return step(self)

    with pytest.raises(Killed), monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", killed)
        bench.run()


def test_a_run_that_was_killed_goes_on_from_its_checkpoint(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = Choice(algorithms=("ppo",), seeds=(1,))
    settings = {**SMALL["settings"], "checkpoint_freq": 32}
    kill_in_second_step(made(choice, settings=settings), monkeypatch)
    step, begun = Trainer.step, list[int]()

    def counted(self: Trainer) -> Any:
        begun.append(self.steps)
        return step(self)

    monkeypatch.setattr(Trainer, "step", counted)
    found = made(choice, settings=settings).run()
    assert begun[0] > 0
    assert next(iter(found.results.values())).steps >= 128


def test_a_killed_run_of_an_environment_of_ones_own_goes_on_without_being_asked_for_trust(
    made: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "my_tasks.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:PendulumEnv', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    choice = Choice(algorithms=("ppo",), seeds=(1,))
    changes = {
        "settings": {**SMALL["settings"], "checkpoint_freq": 32},
        "environments": {"my_tasks:Mine-v0": {"random": -9, "reference": 0, "total_timesteps": 192}},
    }
    kill_in_second_step(made(choice, **changes), monkeypatch)
    assert next(iter(made(choice, **changes).run().results.values())).steps >= 192


def test_a_folder_without_settings_is_begun_again(made: Make) -> None:
    choice = Choice(algorithms=("ppo",), seeds=(1,))
    bench = made(choice)
    folder = bench.folder_of("ppo", "CartPoleContinuous-v0", 1)
    folder.mkdir(parents=True)
    assert len(bench.run().results) == 1
    assert [path.name for path in bench.folder.glob("ppo*")] == [folder.name]
    (folder / RESULT).write_text('{"mean_return": 1')  # half of a file is none
    assert read_result(folder) is None


def test_a_run_has_the_folder_of_its_name_however_long_or_odd_that_is(made: Make) -> None:
    names = ["." + "x" * 90 + tail for tail in "ab"]
    algorithms = ["ppo", *({"name": name, "algorithm": "ppo"} for name in (*names, "-{time} é/ß"))]
    bench = made(seeds=1, algorithms=algorithms)
    found = bench.run()
    assert len(found.results) == 4
    folders = {bench.folder_of(*key) for key in found.results}
    assert {path for path in bench.folder.iterdir() if path.is_dir()} == folders and len(folders) == 4
    assert bench.folder / "time-é-ß_CartPoleContinuous-v0_seed_1" in folders


def test_a_run_that_max_seconds_end_before_its_first_evaluation_is_evaluated(made: Make) -> None:
    bench = made(
        seeds=1, algorithms=["ppo"], settings={**SMALL["settings"], "max_seconds": 1e-6, "eval_freq": 128}
    )
    (result,) = bench.run().results.values()
    assert result.mean_return == 5.0, "each of the five steps of an episode earns 1"
    assert (0 < result.steps < 128) and result.share == 1.0


@pytest.mark.parametrize("limit", ["steps", "seconds"])
def test_the_result_of_a_run_that_diverged_says_how_much_of_its_budget_was_spent(
    made: Make, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(self: Trainer) -> Any:
        self.counters.steps, self.wall_time = 32, 45.0
        raise DivergedError("a loss is not finite; lower the learning rate")

    monkeypatch.setattr(Trainer, "step", diverges)
    seconds = {"max_seconds": 60} if limit == "seconds" else {}
    bench = made(seeds=1, algorithms=["ppo"], settings={**SMALL["settings"], **seconds})
    (result,) = bench.run().results.values()
    share = 45 / 60 if seconds else 32 / 128
    assert result == CellResult(None, 32, 45.0, "a loss is not finite", share)


def test_other_settings_of_runs_that_are_there_are_refused(made: Make) -> None:
    choice = Choice(algorithms=("ppo",), seeds=(1,))
    bench = made(choice)
    lock = RunLock(_there(bench.folder))
    with pytest.raises(CheckpointError, match="is being trained by another trainer of this process"):
        bench.run()
    lock.release()
    bench.run()
    with pytest.raises(
        ConfigError, match="holds runs with another num_envs of settings; use another --folder"
    ):
        made(choice, settings={**SMALL["settings"], "num_envs": 8}).run()


def _there(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_process_that_dies_again_and_again_ends_the_benchmark(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: CellWorker, cell: Cell) -> Any:
        raise WhorlError("the environment is out of order")

    monkeypatch.setattr(CellWorker, "train", fails)
    with pytest.raises(WhorlError, match=r"seed 1 failed 3 times in a row; last error: .* is out of order"):
        made().run()


def test_scores_are_normalised_and_a_run_that_diverged_counts_as_a_random_policy(
    tmp_path: Path, few_draws: None
) -> None:
    found = benched({"a": [[10.0, 5.0], [None, 15.0]], "b": [[1.0, 1.0], [1.0, 1.0]]}, tmp_path)
    np.testing.assert_allclose(scores_of(found)["a"], [[1.0, 0.5], [0.0, 1.5]])
    del found.results["b", "E0", 1]
    assert list(scores_of(found)) == ["a"]
    text = markdown(found)
    assert "| E0 | 10.0 (1 seed, 1 diverged) | 1 (1 seed) |" in text
    assert "not yet: b" in text
    assert "| mean | 0.75 [" in text


def test_learning_curves_are_shares_of_the_budget_and_end_with_the_result(
    made: Make, monkeypatch: pytest.MonkeyPatch, few_draws: None
) -> None:
    """Scores are a tenth of returns. One run diverged at half of its budget, one before its first evaluation."""
    bench = made(algorithms=["ppo", "a2c"], seeds=2)
    env = "CartPoleContinuous-v0"
    evaluations = {
        ("ppo", 1): {32: 2.0, 64: 4.0, 128: 6.0},
        ("ppo", 2): {16: 2.0, 32: 4.0},
        ("a2c", 1): {},
        ("a2c", 2): {32: 3.0},
    }
    ended = {
        ("ppo", 1): CellResult(6.0, 128, 1.0),
        ("ppo", 2): CellResult(None, 64, 1.0, "why", 0.5),
        ("a2c", 1): CellResult(None, 8, 1.0, "why", 0.0625),
        ("a2c", 2): CellResult(7.0, 64, 1.0),  # by max_seconds, and evaluated once more
    }
    for (name, seed), values in evaluations.items():
        folder = bench.folder_of(name, env, seed)
        folder.mkdir(parents=True)
        rows = [{"steps": 8, "episode/return": 1.0}]
        rows += [{"steps": steps, "evaluation/return": value} for steps, value in values.items()]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = Benched(
        bench.folder, bench.suite, {(name, env, seed): one for (name, seed), one in ended.items()}
    )
    monkeypatch.setattr(figures, "POINTS", 5)
    share, curves = figures.curves_of(bench, found, ["ppo", "a2c"])
    np.testing.assert_allclose(
        share, [0.5, 0.625, 0.75, 0.875, 1.0]
    )  # a2c's seed 2 was evaluated at 32 of 64
    np.testing.assert_allclose(curves["ppo"][0, 0], [0.4, 0.45, 0.5, 0.55, 0.6])
    np.testing.assert_allclose(curves["ppo"][1, 0], 0.0)
    np.testing.assert_allclose(curves["a2c"][0, 0], 0.0)
    np.testing.assert_allclose(curves["a2c"][1, 0], [0.3, 0.4, 0.5, 0.6, 0.7])
    del found.results["a2c", env, 2]
    share, curves = figures.curves_of(bench, found, ["ppo"])
    np.testing.assert_allclose(share, [0.25, 0.4375, 0.625, 0.8125, 1.0])
    np.testing.assert_allclose(curves["ppo"][1, 0], [0.4, 0.4, 0.0, 0.0, 0.0])
    assert all(path.is_file() for path in draw_all(bench, found))


def test_figures_are_drawn_of_whatever_has_ended(tmp_path: Path, few_draws: None) -> None:
    scores = scores_of(benched({"a": [[10.0, 5.0], [3.0, 15.0]], "b": [[1.0, 1.0], [1.0, 1.0]]}, tmp_path))
    paths = [
        draw_aggregates(aggregates(scores), tmp_path / "a.png", "title"),
        draw_profiles(scores, tmp_path / "b.png", "title"),
        draw_improvement(
            {("a", "b"): Estimate(0.9, 0.8, 1.0), ("b", "a"): Estimate(0.1, 0.0, 0.2)},
            tmp_path / "c.png",
            "title",
        ),
    ]
    assert all(path.stat().st_size > 1000 for path in paths)


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"algorithms": ["ppoo"]}, "no algorithm is called 'ppoo'; did you mean 'ppo'?"),
        ({"algorithms": ["ppo", "ppo"]}, "has two algorithms called 'ppo'"),
        ({"algorithms": []}, "names no algorithms"),
        (
            {"algorithms": [{"name": name, "algorithm": "ppo"} for name in ("a b", "a/b")]},
            "'a b' on 'CartPoleContinuous-v0' and 'a/b' on 'CartPoleContinuous-v0' of suite",
        ),
        (
            {"algorithms": [{"name": "checkpoint_of", "algorithm": "ppo"}]},
            "would have the run folder checkpoint_of_CartPoleContinuous-v0_seed_1, a name that only checkpoints have",
        ),
        ({"seeds": [1, 1]}, "give different ones, none below 0, or in a file their number"),
        ({"environments": {"E": {"random": 1}}}, "has no reference return"),
        ({"environments": {"E": {"random": 1, "reference": 0}}}, "must be above that of a random policy"),
        ({"envs": {}}, "has a key 'envs'; choose one of"),
        ({"settings": {"seed": 3}}, "sets seed, which a benchmark decides itself"),
        (
            {"settings": {"gama": 0.9}},
            "ppo can't be trained on CartPoleContinuous-v0: ppo has no setting 'gama'",
        ),
        ({"algorithms": ["dqn"]}, "dqn can't be trained on CartPoleContinuous-v0"),
        (
            {"environments": {"CartPol-v1": {"random": 0, "reference": 1}}},
            "ppo can't be trained on CartPol-v1",
        ),
    ],
)
def test_a_mistake_in_a_suite_is_named_before_anything_is_trained(
    made: Make, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(WhorlError) as error:
        made(**changes).run()
    assert sentence in error.value.message
    assert not (tmp_path / "bench").exists()


@pytest.mark.parametrize(
    "choice, sentence",
    [
        (Choice(seeds=(1, 1)), "seeds of suite 'mine' are (1, 1); give different ones, none below 0"),
        (Choice(seeds=(1, -1)), "seeds of suite 'mine' are (1, -1); give different ones, none below 0"),
        (Choice(algorithms=("ppo", "ppo")), "--algorithms names 'ppo' twice"),
        (Choice(environments=("CartPoleContinuous-v0",) * 2), "--environments names 'CartPoleContinuous-v0'"),
    ],
    ids=["seed twice", "negative seed", "algorithm twice", "environment twice"],
)
def test_a_mistake_in_the_choice_is_named_before_anything_is_trained(
    made: Make, choice: Choice, sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        made(choice)
    assert sentence in error.value.message


def test_the_suites_of_the_package_are_whole() -> None:
    assert set(suites()) == {"classic", "mujoco", "minatar", "memory", "exploration", "atari-mini"}
    for name in suites():
        suite = read_suite(*find_suite(name))
        assert len(suite.contestants) >= 3 and len(suite.tasks) >= 3 and len(suite.seeds) >= 3
        assert all("total_timesteps" in task.settings for task in suite.tasks)
    with pytest.raises(ConfigError, match="no such file; did you mean 'classic'"):
        find_suite("clasic")


def test_the_command_writes_tables_and_figures(
    made: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], few_draws: None
) -> None:
    folder = made(algorithms=["ppo"]).run().folder
    assert cli.main(["bench", str(folder), "--report", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["returns"]["ppo"]["CartPoleContinuous-v0"]) == {"1", "2"}
    assert np.array(found["scores"]["ppo"]).shape == (2, 1)
    assert (folder / "efficiency.png").is_file() and (folder / "table.md").is_file()
    assert cli.main(["bench"]) == 0
    assert "atari-mini" in capsys.readouterr().out


def test_a_benchmark_is_found_by_its_name_in_the_folder_of_runs(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made().run().folder
    (tmp_path / "runs").mkdir()
    folder.rename(tmp_path / "runs" / "bench_mine")
    monkeypatch.chdir(tmp_path)
    assert load_bench("bench_mine", Choice()).folder == Path("runs/bench_mine")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_bench("classic", Choice(), "~/mine").folder == tmp_path / "mine"


def test_a_figure_of_more_algorithms_does_not_stay(made: Make, few_draws: None) -> None:
    both = made()
    draw_all(both, both.run())
    assert (both.folder / "improvement.png").is_file()
    one = made(Choice(("ppo",)))
    draw_all(one, one.results())
    assert not (one.folder / "improvement.png").exists()


@pytest.mark.full
def test_a_benchmark_killed_with_9_goes_on_with_the_same_command(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    env = {"CartPoleContinuous-v0": {"random": 0, "reference": 10, "total_timesteps": 6400}}
    file.write_text(yaml.safe_dump({**SMALL, "environments": env}))
    command = [
        sys.executable,
        "-m",
        "whorl",
        "bench",
        str(file),
        "--parallel",
        "2",
        "--folder",
        str(tmp_path / "bench"),
    ]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob("bench/*/checkpoint_1")):
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "4 runs" in done.stdout
    assert len(list(tmp_path.glob(f"bench/*/{RESULT}"))) == 4
