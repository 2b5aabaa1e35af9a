"""The console: what people see in a terminal, a narrow terminal, a pipe, and no terminal at all."""

import io
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import rich.console

from whorl.log.console import Console, Consoles, compact, summary
from whorl.settings.merge import configure


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Terminal]:
    def make(columns: int) -> Terminal:
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", "20")
        monkeypatch.delenv("NO_COLOR", raising=False)
        return Terminal()

    return make


def test_a_pipe_gets_one_plain_line_every_ten_seconds() -> None:
    out, clock = io.StringIO(), Clock()
    with Console(10_000_000, file=out, clock=clock) as console:
        for second in range(1, 26):
            clock.now = second
            console.update(second * 48_000, {"steps": second * 48_000, "episode/return": 123.4})
    assert out.getvalue().splitlines() == [
        "5% 480k/10M steps · 48,000 steps/s · return 123.4 · 3:18 left",
        "10% 960k/10M steps · 48,000 steps/s · return 123.4 · 3:08 left",
        "12% 1.2M/10M steps · 48,000 steps/s · return 123.4 · 3:03 left",
    ]


def test_a_resumed_run_counts_its_rate_from_where_it_resumed() -> None:
    out, clock = io.StringIO(), Clock()
    with Console(1000, done=500, file=out, clock=clock) as console:
        clock.now = 10.0
        console.update(600, {})
    assert out.getvalue() == "60% 600/1k steps · 10 steps/s · 0:40 left\n"


def test_the_time_left_ends_where_training_is_stopped_by_time() -> None:
    out, clock = io.StringIO(), Clock()
    with Console(1000, seconds=25, file=out, clock=clock) as console:
        for clock.now in (10.0, 20.0):
            console.update(clock.now * 10, {})
    assert [line.split(" · ")[-1] for line in out.getvalue().splitlines()] == ["0:15 left", "0:05 left"]


def test_metrics_stay_on_display_until_newer_ones_come() -> None:
    out, clock = io.StringIO(), Clock()
    with Console(100, file=out, clock=clock) as console:
        console.update(10, {"evaluation/return": 7.5})
        clock.now = 10.0
        console.update(50, {"episode/return": -3.0})
    assert "return -3 · evaluation 7.5" in out.getvalue()


def test_a_budget_in_seconds_shows_the_speed_that_the_row_reports() -> None:
    out, clock = io.StringIO(), Clock()
    with Console(100, unit="s", file=out, clock=clock) as console:
        clock.now = 10.0
        console.update(10, {"time/steps_per_second": 1234.5})
    assert out.getvalue() == "10% 10/100 s · 1,234 steps/s · 1:30 left\n"


def test_a_terminal_is_redrawn_at_most_five_times_a_second(terminal: Callable[[int], Terminal]) -> None:
    out, clock = terminal(100), Clock()
    with Console(1000, title="ppo · CartPole-v1", file=out, clock=clock) as console:
        for i in range(1000):
            clock.now = i / 1000
            console.update(i)
    # The start, one per 0.2 s, the last state, and the closing frame.
    assert 5 <= out.getvalue().count("/1k steps") <= 8


@pytest.mark.parametrize("columns", [1, 5, 12, 30, 80, 200])
def test_no_line_is_wider_than_the_terminal(terminal: Callable[[int], Terminal], columns: int) -> None:
    out, clock = terminal(columns), Clock()
    console = Console(10_000_000, title="a title that may be too long", file=out, clock=clock)
    clock.now = 5.0
    with console:
        clock.now = 8.0
        console.update(1_200_000, {"episode/return": 123.4, "evaluation/return": 150.0})
        lines = console._terminal.render_lines(console._picture(), pad=False)
        console.summary({"return": 150.0, "a rather long name for a value": "x" * 40})
    assert max(sum(segment.cell_length for segment in line) for line in lines) <= columns


def test_a_message_appears_above_the_bar(terminal: Callable[[int], Terminal]) -> None:
    out = terminal(80)
    with Console(10, file=out, clock=Clock()) as console:
        console.message("saved [a checkpoint]")
    assert "saved [a checkpoint]" in out.getvalue()


def test_no_color_is_honoured(terminal: Callable[[int], Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal(80)
    monkeypatch.setenv("NO_COLOR", "1")
    with Console(10, file=out, clock=Clock()) as console:
        console.update(5)
    assert "\x1b[38;" not in out.getvalue() and "\x1b[36m" not in out.getvalue()


def test_a_dumb_terminal_gets_plain_lines(
    terminal: Callable[[int], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = terminal(80)
    monkeypatch.setenv("TERM", "dumb")
    with Console(10, file=out, clock=Clock()) as console:
        console.update(5)
    assert out.getvalue() == "50% 5/10 steps\n"


def test_an_ascii_stream_gets_ascii() -> None:
    raw = io.BytesIO()
    with Console(
        10, title="é", file=io.TextIOWrapper(raw, "ascii", write_through=True), clock=Clock()
    ) as console:
        console.update(5, {"episode/return": 1.0})
        console.message("été")
        console.summary({"naïve": "ü"})
    assert b"50% 5/10 steps | return 1" in raw.getvalue()


def test_quiet_prints_nothing() -> None:
    out = io.StringIO()
    with Console(10, title="title", quiet=True, file=out) as console:
        console.update(10, {"episode/return": 1.0})
        console.message("text")
        console.summary({"return": 1.0})
    assert out.getvalue() == ""


class Gone(io.StringIO):
    """Standard output after `| head` has left."""

    def write(self, text: str) -> int:
        raise BrokenPipeError("gone")


def test_a_reader_that_goes_away_does_not_stop_training() -> None:
    with Console(10, title="title", file=Gone(), clock=Clock()) as console:
        console.update(5)
        console.message("text")
        console.summary({"return": 1.0})


def test_the_summary_lists_every_value() -> None:
    out = io.StringIO()
    Console(10, file=out).summary({"return": 1234.5, "steps": 1_000_000, "folder": "runs/ppo"})
    for text in ("1,234.5", "1,000,000", "runs/ppo"):
        assert text in out.getvalue()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7"),
        (0.25, "0.25"),
        (999, "999"),
        (1000, "1k"),
        (12_345, "12.3k"),
        (999_999, "1M"),
        (1.2e6, "1.2M"),
        (1e7, "10M"),
        (-2500, "-2.5k"),
        (3e9, "3G"),
    ],
)
def test_compact_numbers_have_three_digits_and_a_unit(number: float, text: str) -> None:
    assert compact(number) == text


# Within an iteration


def test_the_bar_and_the_clock_advance_within_an_iteration(terminal: Callable[[int], Terminal]) -> None:
    out, clock = terminal(100), Clock()
    with Console(1000, unit="iterations", file=out, clock=clock) as console:
        for second in range(1, 4):
            clock.now = float(second)
            before = len(out.getvalue())
            console.tick(0.2 * second, 0, "updating")
            drawn = out.getvalue()[before:]
            assert f"0:0{second} elapsed" in drawn and "updating" in drawn and "0/1k iterations" in drawn
        clock.now += 0.1
        before = len(out.getvalue())
        console.tick(0.7, 0)
        assert len(out.getvalue()) == before, "it was drawn a moment ago"


def test_a_pipe_gets_its_lines_during_a_long_iteration() -> None:
    out, clock = io.StringIO(), Clock()
    with Console(100_000, file=out, clock=clock) as console:
        for second in range(1, 25):
            clock.now = float(second)
            console.tick(second * 100.0, second * 80.0, "collecting")
    assert out.getvalue().splitlines() == [
        "1% 800/100k steps · 100 steps/s · 16:30 left",
        "2% 1.6k/100k steps · 100 steps/s · 16:20 left",
    ]


def test_a_message_that_comes_while_something_is_drawn_follows_it() -> None:
    """As from a signal handler, which runs between two instructions of the drawing thread."""

    class Interrupting(io.StringIO):
        def write(self, text: str) -> int:
            if "steps" in text and "Ctrl-C" not in self.getvalue():
                console.message("Ctrl-C: finishing")
            return super().write(text)

    out = Interrupting()
    with Console(10, file=out, clock=Clock()) as console:
        console.update(5)
    assert out.getvalue().splitlines() == ["50% 5/10 steps", "Ctrl-C: finishing"]


class Cell:
    """An output of a notebook, as IPython displays and updates it."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, bundle: dict[str, str], display_id: bool = False, raw: bool = False) -> "Cell":
        assert display_id and raw
        self.shown.append(bundle)
        return self

    def update(self, bundle: dict[str, str], raw: bool = False) -> None:
        self.shown.append(bundle)


def test_a_notebook_shows_one_live_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, clock = Cell(), Clock()
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    module = ModuleType("IPython.display")
    module.display = cell.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    with Console(100, title="ppo on <mine>", clock=clock) as console:
        clock.now = 1.0
        console.update(50, {"episode/return": 1.5})
        clock.now = 1.1
        console.update(51)
        assert len(cell.shown) == 2
    first, second, *_, last = cell.shown
    assert (
        '<progress max="1" value="0.5000"' in second["text/html"]
        and "ppo on &lt;mine&gt;" in second["text/html"]
    )
    assert second["text/plain"] == "50% · 0:01 left 50/100 steps · 50 steps/s · return 1.5 · 0:01 elapsed"
    assert 'value="0.5100"' in last["text/html"] and 'value="0.0000"' in first["text/html"]


# Several runs


def test_several_runs_are_plain_lines_that_begin_with_their_names() -> None:
    out, clock = io.StringIO(), Clock()
    with Consoles(["seed 1", "seed 2"], "two seeds", file=out, clock=clock) as consoles:
        consoles.begin("seed 1", 100, "steps", 0)
        consoles.begin("seed 2", 100, "steps", 0)
        clock.now = 10.0
        consoles.report("seed 1", 50, 50, {"episode/return": 3.0})
        consoles.report("seed 2", 20, 20, {})
        consoles.message("a message")
        consoles.end("seed 2", "failed")
    assert out.getvalue().splitlines() == [
        "two seeds",
        "seed 1: 50% 50/100 steps · 5 steps/s · return 3 · 0:10 left",
        "seed 2: 20% 20/100 steps · 2 steps/s · 0:40 left",
        "a message",
        "seed 2: 20% 20/100 steps · 2 steps/s · 0:40 left",
        "seed 2: failed",
    ]


def test_several_runs_have_a_bar_each_in_a_terminal(terminal: Callable[[int], Terminal]) -> None:
    out, clock = terminal(80), Clock()
    with Consoles(["seed 1", "seed 10"], "two seeds", file=out, clock=clock) as consoles:
        consoles.begin("seed 1", 100, "steps", 0)
        clock.now = 10.0
        consoles.report("seed 1", 50, 50, {"episode/return": 3.0, "evaluation/return": 1e9})
        consoles.end("seed 1", "finished, mean return 500.0")
    lines = [re.sub(r"\x1b\[[0-9;?]*\w", "", line) for line in out.getvalue().splitlines()]
    bar = next(line for line in reversed(lines) if line.startswith("seed 1 "))
    waiting = next(line for line in reversed(lines) if line.startswith("seed 10"))
    assert "50%" in bar and "finished, mean return 500.0" in bar and len(bar.rstrip()) <= 80
    assert "0%" in waiting and "waiting" in waiting
    assert "evaluation" not in bar, "what does not fit is left out, not cut"


def test_several_runs_are_silent_when_quiet() -> None:
    out = io.StringIO()
    with Consoles(["seed 1"], "title", quiet=True, file=out, clock=Clock()) as consoles:
        consoles.begin("seed 1", 100, "steps", 0)
        consoles.report("seed 1", 50, 50, {})
        consoles.end("seed 1", "finished")
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("algorithm", "settings", "text"),
    [
        (
            "ppo",
            {"num_envs": 8, "num_steps": 128, "batch_size": 256, "n_epochs": 1, "workers": 2},
            "8 environments x 128 steps, 1 epoch, batches of 256, 2 workers, cpu, 20k steps",
        ),
        (
            "impala",
            {"num_envs": 8, "num_steps": 20, "actors": 2, "workers": 4},
            "8 environments x 20 steps, 2 actors, 4 workers each, cpu, 20k steps",
        ),
        (
            "sac",
            {"num_envs": 1, "num_steps": 1, "batch_size": 64, "updates_per_step": 0.5, "hardware": "gpu"},
            "1 environment x 1 step, 0.5 updates per step, batches of 64, cpu with settings for a gpu, 20k steps",
        ),
    ],
)
def test_settings_in_short(algorithm: str, settings: dict[str, Any], text: str) -> None:
    found = configure(algorithm, "Pendulum-v1", {"total_timesteps": 20_000, "device": "cpu", **settings})
    assert summary(found, "cpu") == text
