"""What a sweep shows at its end: a table of the best trials, and a settings file of the best one."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from whorl.core import files
from whorl.core.errors import WhorlError
from whorl.log.console import PLAIN, amount
from whorl.settings.aliases import translated
from whorl.settings.merge import settings_of
from whorl.settings.presets import algorithm_class
from whorl.sweep.setup import Sweeping
from whorl.sweep.sweep import Swept, shown

HEAD = "# found by whorl sweep: "
"""how a file of settings that a sweep wrote begins"""
APPLIED = "preset.yaml"
SHOWN, PIPED = 10, 160
"""trials of the table; its width where there is no terminal"""
ONLY_SWEEP = (
    "runs",
    "quiet",
    "seed",
    "eval_freq",
    "n_eval_episodes",
    "tensorboard",
    "save_model",
    "ray",
    "device",
)
"""settings of the sweep's runs that a later training does not share"""


def show_best(swept: Swept, sweeping: Sweeping, console: Console | None = None) -> None:
    """A table of the best trials."""
    counts = {
        state: sum(row.state == state for row in swept.rows)
        for state in ("complete", "pruned", "diverged", "invalid", "failed")
    }
    words = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    console = console or Console(width=None if sys.stdout.isatty() else PIPED, **PLAIN)
    found = f"{swept.reason}: {len(swept.rows)} trials ({words or 'none finished'}) in {swept.folder}"
    console.print(found, soft_wrap=True)
    best = swept.best(SHOWN)
    if not best:
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"best trials of {sweeping.algorithm} on {sweeping.env}",
        title_justify="left",
    )
    names = [space.name for space in sweeping.spaces]
    table.add_column("trial", justify="right")
    table.add_column(sweeping.config.objective if sweeping.config.seeds > 1 else "return", justify="right")
    if sweeping.config.seeds > 1:
        table.add_column("seeds", justify="right")
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for row in best:
        seeds = [" ".join(amount(value) for value in row.returns)] if sweeping.config.seeds > 1 else []
        params = [shown(row.params[name]) if name in row.params else "" for name in names]
        table.add_row(str(row.number), amount(row.value), *seeds, *params)
    console.print(table)


def write_preset(swept: Swept, sweeping: Sweeping, output: Path) -> Path:
    """A settings file with what the best trial was trained with, for `whorl train ALGORITHM ENV --config FILE`."""
    best = swept.best(1)
    if not best:
        raise WhorlError(
            f"no trial of {swept.folder} is complete yet; continue it before you write its settings"
        )
    row = best[0]
    about = f"trial {row.number} of {len(swept.rows)}, return {amount(row.value)}"
    use = f"whorl train {sweeping.algorithm} {sweeping.env} --config {output}"
    head = f"{HEAD}{sweeping.algorithm} on {sweeping.env}: {about}\n# {use}\n"
    text = head + yaml.safe_dump(preset_of(sweeping, row.params), sort_keys=False)
    check_output(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(output, text.encode())
    except OSError as error:
        raise WhorlError(f"{output} can't be written: {files.reason(error)}") from None
    return output


def check_output(output: Path) -> None:
    """Raise if there is another file that settings would replace."""
    try:
        with output.open(encoding="utf-8", errors="replace") as file:
            if file.read(len(HEAD)) == HEAD:
                return
    except FileNotFoundError:
        return
    except OSError as error:
        raise WhorlError(f"{output} can't be written: {files.reason(error)}") from None
    raise WhorlError(f"{output} exists and was not written by a sweep; name another file")


def preset_of(sweeping: Sweeping, params: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the sweep's file, those that were searched as they were found."""
    hints = settings_of(algorithm_class(sweeping.algorithm)[1])
    searched = {key for name in params for key in translated(name, 0, hints)}
    found: dict[str, Any] = {}
    for layer in sweeping.layers:
        for key, value in layer.items():
            means = set(translated(str(key), 0, hints))
            if means <= searched or means & set(ONLY_SWEEP):
                continue
            found[key] = value
    return {**found, **params}
