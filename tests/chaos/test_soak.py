"""The soak of `make chaos` for less than a minute, and whether its checks would find what they look for."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
import soak
import trouble

from whorl.distributed.watch import FAREWELL

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="signals, /proc and mounts of Linux"
)


@pytest.mark.full
def test_a_minute_of_trouble_leaves_nothing_behind_and_everything_counted(tmp_path: Path) -> None:
    command = [sys.executable, soak.__file__, "--seconds", "50", "--to", str(tmp_path)]
    done = subprocess.run([*command, "--kinds", "actors", "workers"], capture_output=True, text=True)
    (line,) = (tmp_path / "soak.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found["problems"] == [] and done.returncode == 0
    assert found["trainings"].keys() == {"actors", "workers"}
    assert sum(found["events"].values()) >= 4 and (tmp_path / "memory.png").stat().st_size > 1000


@pytest.mark.parametrize(("rate", "leaks", "problems"), [(0.0, False, 0), (4.0, False, 1), (4.0, True, 0)])
def test_memory_that_grows_is_a_problem_unless_the_environment_leaks(
    rate: float, leaks: bool, problems: int, tmp_path: Path
) -> None:
    """Four megabytes a minute for five minutes; 6 + 5 are allowed, and a start of 100 does not count."""
    found = soak.Soak(tmp_path, tmp_path, False, 0)
    (tmp_path / "notes-actors").mkdir()
    if leaks:
        (tmp_path / "notes-actors" / "leak-7").touch()
    for second in range(330):
        megabytes = 100.0 + rate * second / 60 if second > 30 else 3.0 * second
        found.samples.append(soak.Sample(second, "actors", "learner", 7, megabytes, second > 30))
    soak.check_memory(found)
    assert len(found.problems) == problems
    soak.draw_memory(found, tmp_path / "memory.png")


class Nodes:
    """A cluster of Ray whose nodes start or do not."""

    def __init__(self, *starts: bool) -> None:
        self.starts = list(starts)

    def add_node(self, **options: object) -> None:
        if not self.starts.pop(0):
            raise Exception("The current node timed out during startup.")


@pytest.mark.parametrize(
    ("starts", "found"), [((True,), True), ((False, True), True), ((False, False), False)]
)
def test_a_node_that_does_not_start_in_time_is_no_end_of_the_soak(
    starts: tuple[bool, ...], found: bool
) -> None:
    pytest.importorskip("ray")
    assert soak.add_node(Nodes(*starts), 2) == found


def test_what_was_found_before_ray_could_not_start_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak.Training, "soak_for", lambda self, seconds: self.problem("first"))

    @contextmanager
    def busy() -> Iterator[None]:
        raise soak.NoNode("too busy")
        yield

    monkeypatch.setattr(soak, "ray_cluster", busy)
    found = soak.run(0.0, 1, ["workers", "ray"], tmp_path, False)
    assert [text.partition(": ")[2] for text in found.problems][:2] == ["first", "too busy"]


def checked(folder: Path, rows: list[dict[str, int]], steps: int, made: int) -> list[str]:
    """The problems of a run with these rows of metrics, steps in its checkpoint, and steps of its environments."""
    state = soak.Soak(folder, folder / "disk", False, 0)
    training = soak.Training(state, "actors")
    run = training.runs / "run"
    (run / "checkpoint_1").mkdir(parents=True)
    (run / "checkpoint_1" / "metadata.yaml").write_text(f"steps: {steps}\n")
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (training.notes / "steps-1-1").write_bytes(made.to_bytes(8, "little"))
    training.check_state = lambda run, steps: None  # type: ignore[method-assign]  # there is no such file
    training.check(run, 90, 0)
    return [text.partition(": ")[2] for text in state.problems]


def test_a_training_without_a_row_is_a_problem_and_no_traceback(tmp_path: Path) -> None:
    assert any("budget" in problem for problem in checked(tmp_path, [], 0, 0))


def rows(*steps: int) -> list[dict[str, int]]:
    return [{"iteration": number, "steps": each} for number, each in enumerate(steps, 1)]


def test_counters_that_do_not_add_up_are_problems(tmp_path: Path) -> None:
    good = rows(48, 96)
    assert checked(tmp_path / "a", good, 96, 100) == []
    assert checked(tmp_path / "b", good, 96, 95) == [
        "96 steps counted and 0 dropped, but environments made 95"
    ]
    assert checked(tmp_path / "c", good[1:], 96, 100) == [
        "iterations are missing in metrics.jsonl, or there twice"
    ]
    assert checked(tmp_path / "d", rows(10, 96), 96, 100) == ["iteration 2 counts 86 steps"]
    late = ["the budget of 90 steps was not reached: 48 steps, status 0"]
    assert checked(tmp_path / "e", rows(24, 48), 48, 100) == late


def test_steps_of_an_environment_are_counted_where_its_end_can_not_undo_them(tmp_path: Path) -> None:
    env = trouble.Trouble(str(tmp_path))
    env.reset(seed=0)
    for _ in range(7):
        env.step(0)
    assert trouble.steps_in(tmp_path) == 7
    with pytest.raises(OSError, match="lost its connection"):
        trouble.Trouble(str(tmp_path), raises=1.0).step(0)
    leaky = trouble.Trouble(str(tmp_path), leaks=1.0)
    leaky.reset(seed=0)
    with pytest.raises(MemoryError):
        for _ in range(100):
            leaky.step(0)
    assert list(tmp_path.glob("leak-*"))


class Shown:
    """A process as psutil shows it."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def cmdline(self) -> list[str]:
        return list(self.words)


def on_ray(folder: Path) -> soak.Training:
    return soak.Training(soak.Soak(folder, folder / "disk", False, 0), "ray", cluster=object())


def test_of_a_ray_node_only_the_actors_are_troubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node ends itself with any process of its own, and the head with it the cluster."""
    actor = Shown("ray::RayHost.call")
    all_of_them = [Shown("raylet"), Shown("ray::RuntimeEnvAgent"), Shown("ray::DashboardAgent"), actor]
    training = on_ray(tmp_path)
    training.process = subprocess.Popen(["true"])
    training.process.wait()
    monkeypatch.setattr(soak.psutil, "Process", lambda pid=0: Tree([] if pid else all_of_them))
    assert training.tree() == [actor]


class Tree:
    def __init__(self, below: list[Shown]) -> None:
        self.below = below

    def children(self, recursive: bool) -> list[Shown]:
        return self.below


@pytest.mark.parametrize(
    ("said", "status", "problems", "lost"),
    [
        (FAREWELL.format(pid=7), 1, 0, 1),
        ("Traceback (most recent call last):", 1, 1, 0),
        ("whorl: an environment raised", 2, 0, 0),
    ],
)
def test_a_learner_that_ray_ended_is_resumed_and_any_other_status_1_is_a_problem(
    said: str, status: int, problems: int, lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "wait_for", lambda what, seconds: what())
    training = on_ray(tmp_path)
    training.log.write_text(said + "\n")
    training.process = subprocess.Popen([sys.executable, "-Sc", f"raise SystemExit({status})"])
    assert training.settle() == status
    assert (len(training.soak.problems), training.soak.events["lost"]) == (problems, lost)
