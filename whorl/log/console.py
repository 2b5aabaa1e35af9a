"""Progress: a live display in a terminal or notebook, plain lines in a file or pipe, nothing with `quiet`."""

import html
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TextIO

import rich.console
from rich import box
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from whorl.settings.merge import Settings

LIVE_SECONDS = 0.2
PLAIN_SECONDS = 10.0
RATE_SAMPLES = 100
"""samples over which the rate is averaged, about 20 s of a live display"""


class Console:
    """Progress of one run: `with Console(total) as console`, then `update` once per rollout, `tick` within one.

    Both draw at most five times a second; there is no thread, so forking stays safe. If the terminal is lost
    (closed pipe, lost connection), the display stops and training continues.

    Args:
        done: progress at the start of a resumed run; the rate and the remaining time are measured from there.
        seconds: time limit of training; 0: none.
        file: written to instead of standard output.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        total: float,
        unit: str = "steps",
        title: str = "",
        quiet: bool = False,
        *,
        done: float = 0,
        seconds: float = 0,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self.unit = unit
        self.title = title
        self._clock, self._seconds = clock, seconds or float("inf")
        self._done = self._count = done
        self._doing = ""
        self._drawing = threading.Lock()
        self._waiting: list[str] = []
        """messages that came while something was drawn"""
        self._row: dict[str, float | int | str] = {}
        self._began = self._drawn = clock()
        self._samples: deque[tuple[float, float]] = deque([(self._began, done)], maxlen=RATE_SAMPLES)
        self._stale = False
        self._terminal = _Terminal(file=file, quiet=quiet, **PLAIN)
        self._unicode = self._terminal.encoding.lower().startswith("utf")
        self._live: Live | _Notebook | None = None

    def __enter__(self) -> "Console":
        self._began = self._drawn = self._clock()
        self._samples[0] = (self._began, self._done)
        if self._terminal.is_jupyter and not self._terminal.quiet:
            self._live = _Notebook(self._cell)
            self._live.start()
        # A dumb terminal (in an editor or some CI) can't move its cursor and gets plain lines.
        elif self._terminal.is_terminal and not self._terminal.is_dumb_terminal and not self._terminal.quiet:
            self._live = Live(console=self._terminal, auto_refresh=False, get_renderable=self._picture)
            with self._surviving():
                self._live.start(refresh=True)
        elif self.title:
            self._print(self.title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stale:
            self._draw()
        if self._live:
            with self._surviving():
                self._live.stop()
            self._live = None

    def update(self, done: float, row: Mapping[str, float | int | str] | None = None) -> None:
        """Report progress and the metrics of a row that the display shows."""
        if self._terminal.quiet:
            return
        self._row.update({key: row[key] for key in row if key.endswith(_SHOWN)} if row else {})
        self._stale = True
        self._advance(done, done, "")

    def tick(self, done: float, count: float, doing: str = "") -> None:
        """Report progress within an iteration.

        Args:
            done: what the bar shows, which may include what is under way.
            count: the number beside it.
            doing: a word for what takes the time.
        """
        if not self._terminal.quiet:
            self._advance(done, count, doing)

    def _advance(self, done: float, count: float, doing: str) -> None:
        self._done, self._count, self._doing = done, count, doing
        now = self._clock()
        if now - self._samples[-1][0] >= LIVE_SECONDS:
            self._samples.append((now, done))
        if now - self._drawn >= self._period():
            self._draw()

    def message(self, text: str) -> None:
        """Print a message above the bar; where something is being drawn, as soon as that is done.

        So it may be called by a signal handler.
        """
        self._waiting.append(text)
        if self._drawing.acquire(blocking=False):
            try:
                self._print_waiting()
            finally:
                self._drawing.release()

    def _print_waiting(self) -> None:
        while self._waiting:
            self._print(self._waiting.pop(0))

    def summary(self, values: Mapping[str, float | int | str], title: str = "") -> None:
        """Print a table of results."""
        table = Table(title=title or None, box=box.ROUNDED, show_header=False, title_justify="left")
        table.add_column(style="bold", overflow="fold")
        table.add_column(justify="right", overflow="fold")
        for key, value in values.items():
            table.add_row(Text(self._legible(key)), Text(self._legible(amount(value))))
        with self._surviving():
            self._terminal.print(table)

    def _draw(self) -> None:
        # Two threads may update a network at the same time: one of them draws.
        if not self._drawing.acquire(blocking=False):
            return
        try:
            self._drawn = self._clock()
            self._stale = False
            self._paint()
            self._print_waiting()
        finally:
            self._drawing.release()

    def _paint(self) -> None:
        if self._live:
            with self._surviving():
                self._live.refresh()
        else:
            self._print(self._line())

    def _period(self) -> float:
        """Seconds between two pictures."""
        return LIVE_SECONDS if self._live else PLAIN_SECONDS

    def _line(self) -> str:
        """Progress as one plain line."""
        return self._joined([f"{self._share():.0%} {self._progress()}", *self._numbers(), self._left()])

    def _picture(self) -> Group:
        """The live display: bar and remaining time, then as many numbers as fit the width."""
        width = self._terminal.width
        share, left = f" {self._share():>4.0%}", self._left()
        ending = f"{share}  {left}" if left and width >= 30 else share
        head = Table.grid()
        bar_width = max(1, min(60, width - len(ending)))
        bar = ProgressBar(total=1.0, completed=self._share(), width=bar_width)
        head.add_row(bar, Text(ending, style="bold", no_wrap=True, overflow="crop"))
        parts = [self._progress()]
        for part in (*self._numbers(), self._elapsed(), self._doing):
            if len(self._joined([*parts, part])) <= width:
                parts.append(part)
        numbers = Text(self._joined(parts), no_wrap=True, overflow="crop")
        return Group(*heading(self._legible(self.title)), head, numbers)

    def _cell(self) -> tuple[str, str]:
        """What a notebook shows, as HTML and as text."""
        ending = self._joined([f"{self._share():.0%}", self._left()])
        parts = [self._progress(), *self._numbers(), self._elapsed(), self._doing]
        numbers = self._joined(parts)
        bar = f'<progress max="1" value="{self._share():.4f}" style="width: 30em"></progress>'
        title = f"<b>{html.escape(self.title)}</b><br>".replace("\n", "<br>") if self.title else ""
        return f"{title}{bar} {html.escape(ending)}<br>{html.escape(numbers)}", f"{ending} {numbers}"

    def _elapsed(self) -> str:
        return f"{_duration(self._clock() - self._began)} elapsed"

    def _share(self) -> float:
        return min(1.0, self._done / self.total) if self.total > 0 else 1.0

    def _progress(self) -> str:
        return f"{compact(self._count)}/{compact(self.total)} {self.unit}"

    def _rate(self) -> float:
        """Recent units per second, 0 if unknown."""
        (before, from_), (now, to) = self._samples[0], self._samples[-1]
        return (to - from_) / (now - before) if now > before else 0.0

    def _numbers(self) -> list[str]:
        row = self._row
        rate = row.get("time/steps_per_second", self._rate() if self.unit == "steps" else 0.0)
        parts = [f"{rate:,.0f} steps/s"] if isinstance(rate, int | float) and rate > 0 else []
        for name, word in (("episode/return", "return"), ("evaluation/return", "evaluation")):
            for key in (key for key in row if key.endswith(name)):
                behaviour = key.removesuffix(name).replace("/", " ")  # empty where there is one
                parts.append(f"{behaviour}{word} {amount(row[key])}")
        return parts

    def _left(self) -> str:
        rate = self._rate()
        if rate <= 0 or self._share() >= 1:
            return ""
        until_stop = max(self._seconds - (self._clock() - self._began), 0.0)
        return f"{_duration(min((self.total - self._done) / rate, until_stop))} left"

    def _joined(self, parts: list[str]) -> str:
        return (" · " if self._unicode else " | ").join(part for part in parts if part)

    def _print(self, text: str) -> None:
        with self._surviving():
            self._terminal.print(self._legible(text), soft_wrap=self._live is None)

    def _legible(self, text: str) -> str:
        """The text with characters replaced that the terminal's encoding lacks."""
        return text.encode(self._terminal.encoding, "replace").decode(self._terminal.encoding)

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # ValueError: the file object was closed
            self._terminal.quiet = True


class _Notebook:
    """One output of a notebook cell that is shown again and again; unlike rich's it needs no widgets."""

    def __init__(self, content: Callable[[], tuple[str, str]]) -> None:
        self._content = content
        self._handle: Any = None

    def start(self) -> None:
        from IPython.display import display  # there is one where there are notebooks

        self._handle = display(self._bundle(), display_id=True, raw=True)

    def refresh(self) -> None:
        self._handle.update(self._bundle(), raw=True)

    def stop(self) -> None:
        self.refresh()

    def _bundle(self) -> dict[str, str]:
        markup, text = self._content()
        return {"text/html": markup, "text/plain": text}


class Consoles(Console):
    """Progress of several runs at once: a bar for each in a terminal, else plain lines that begin with the run's name.

    Args:
        names: one for each run, in the order of the bars.
    """

    def __init__(self, names: Sequence[str], title: str = "", quiet: bool = False, **options: Any) -> None:
        super().__init__(0, title=title, quiet=quiet, **options)
        self._bars = {name: _Bar(name, self) for name in names}
        self._states = dict.fromkeys(names, "waiting")

    def begin(self, name: str, total: float, unit: str, done: float, seconds: float = 0) -> None:
        """A run starts at `done` of `total`; it is stopped after `seconds` unless they are 0."""
        self._bars[name] = _Bar(name, self, total, unit, done, seconds)
        self._states[name] = ""
        self._stale = True

    def report(self, name: str, done: float, count: float, row: Mapping[str, float | int | str]) -> None:
        """A run's progress, the number beside its bar, and the metrics that the display shows."""
        bar = self._bars[name]
        bar._row.update(row)
        bar._advance(done, count, "")

    def end(self, name: str, state: str) -> None:
        """A run is over: show this word instead of the remaining time."""
        self._states[name] = state
        if self._live is None:
            if self._bars[name].total:
                self._bars[name]._draw()
            self.message(f"{name}: {state}")
        self._draw()

    def _paint(self) -> None:
        if self._live:
            super()._paint()

    def _picture(self) -> Group:
        label = max(map(len, self._bars)) + 1
        size = max(8, min(30, self._terminal.width - label - 66))
        table = Table.grid()
        for name, bar in self._bars.items():
            parts = [bar._progress()] if bar.total else []
            for part in (self._states[name] or bar._left(), *bar._numbers()):
                if label + size + 7 + len(self._joined([*parts, part])) <= self._terminal.width:
                    parts.append(part)
            picture = ProgressBar(total=1.0, completed=bar._share(), width=size)
            text = Text(f" {bar._share():>4.0%}  {self._joined(parts)}", no_wrap=True, overflow="crop")
            table.add_row(Text(f"{name:<{label}}", style="bold"), picture, text)
        return Group(*heading(self._legible(self.title)), table)


class _Bar(Console):
    """One run among several, which share a screen."""

    def __init__(
        self,
        name: str,
        screen: Consoles,
        total: float = 0,
        unit: str = "steps",
        done: float = 0,
        seconds: float = 0,
    ) -> None:
        quiet, clock = screen._terminal.quiet, screen._clock
        super().__init__(total, unit, quiet=quiet, done=done, seconds=seconds, clock=clock)
        self.name, self.screen = name, screen

    def _share(self) -> float:
        return super()._share() if self.total else 0.0

    def _period(self) -> float:
        return self.screen._period()

    def _paint(self) -> None:
        if self.screen._live is None:
            self.screen._print(f"{self.name}: {self._line()}")
        elif self._drawn - self.screen._drawn >= LIVE_SECONDS:
            self.screen._draw()


DISPLAY: ContextVar[Callable[..., Console]] = ContextVar("display", default=Console)
"""makes the progress display of a run; a process that trains one of several seeds reports to its parent instead"""


def summary(settings: Settings, device: str) -> str:
    """The settings that decide how long a run takes, in one line."""
    run, algo = settings.run, settings.algo
    envs = "1 environment" if run.num_envs == 1 else f"{run.num_envs:,} environments"
    parts = [f"{envs} x {run.num_steps:,} {'step' if run.num_steps == 1 else 'steps'}"]
    if hasattr(algo, "updates_per_step"):
        parts.append(f"{algo.updates_per_step:g} update{'' if algo.updates_per_step == 1 else 's'} per step")
    if hasattr(algo, "n_epochs"):
        parts.append("1 epoch" if algo.n_epochs == 1 else f"{algo.n_epochs} epochs")
    if hasattr(algo, "batch_size"):
        parts.append(f"batches of {algo.batch_size:,}")
    parts += [f"{run.actors} actors"] if run.actors else []
    parts += [f"{run.workers} workers{' each' if run.actors else ''}"] if run.workers > 0 else []
    usual = {"cpu": "cpu", "gpu": "cuda"}.get(run.hardware, device)
    parts.append(device if device.startswith(usual) else f"{device} with settings for a {run.hardware}")
    budget = {"steps": run.total_timesteps, "episodes": run.total_episodes, "iterations": run.max_iterations}
    parts += [f"{compact(limit)} {unit}" for unit, limit in budget.items() if limit][:1]
    parts += [f"at most {run.max_seconds:g} s"] if run.max_seconds else []
    return ", ".join(parts)


def heading(title: str) -> list[Text]:
    """The title, of which only the first line is emphasised."""
    styles = ["bold cyan", *["dim"] * title.count("\n")]
    lines = zip(title.split("\n"), styles) if title else ()
    return [Text(line, style=style, no_wrap=True, overflow="crop") for line, style in lines]


_SHOWN = ("episode/return", "evaluation/return", "time/steps_per_second")


PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
"""text is printed as it is: the environment my_env:Robot: would have a picture of a robot in its name, [tag] none"""


class _Terminal(rich.console.Console):
    def on_broken_pipe(self) -> None:
        # The base class exits the process here.
        raise BrokenPipeError("standard output was closed")


def compact(number: float) -> str:
    """1234567 -> '1.23M': three digits and a unit, for counts."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # 999,999 rounds to 1M, not to 1000k.
        if abs(number) >= size * 0.9995:
            return f"{_digits(number / size)}{suffix}"
    return _digits(number)


def _digits(number: float) -> str:
    text = f"{number:.{max(0, 3 - len(str(int(abs(number)))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def amount(value: float | int | str) -> str:
    """A readable number: about four digits, without an exponent if possible."""
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24}h"
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
