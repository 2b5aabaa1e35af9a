"""`whorl sweep`: search for settings."""

import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whorl.cli.command import command, commands, leading, no_flag, own_flags, wants_help
from whorl.cli.flags import FlagParser
from whorl.cli.status import INTERRUPTED, TERMINATED
from whorl.core.errors import ConfigError
from whorl.settings.merge import config_of
from whorl.settings.presets import algorithm_class, read_file
from whorl.settings.run import RunConfig
from whorl.state.runfolder import RUNS


@dataclass(frozen=True)
class SweepFlags:
    """Flags of `whorl sweep`."""

    folder: str = ""
    """folder of the sweep; default: sweep_FILE in the folder runs"""
    apply: bool | str = False
    """write the settings of the best trial to this file, or to preset.yaml in the sweep's folder"""


@command("sweep CONFIG|FOLDER [--trials N] [--parallel N] [--apply [FILE]] [--SETTING VALUE ...]", SweepFlags)
def sweep(words: list[str]) -> int:
    """search for settings that train best; the same command continues a stopped sweep"""
    from whorl.cli.commands import all_settings
    from whorl.sweep.config import SweepConfig

    whole = "--help-all" in words
    asked, words = wants_help(words)
    names, rest = leading(words)
    usage = commands()["sweep"].usage
    if len(names) != 1 and not (asked and not names):
        got = f", but got {' and '.join(map(repr, names))}" if names else ""
        raise ConfigError(f"sweep takes one settings file or one sweep's folder{got}: whorl {usage}")
    if names and not Path(names[0]).exists() and (RUNS / names[0]).is_dir():
        names = [str(RUNS / names[0])]
    layers = read_file(names[0]) if names and not Path(names[0]).is_dir() else []
    algorithm = next((layer["algorithm"] for layer in reversed(layers) if layer.get("algorithm")), "ppo")
    about = "Settings of the sweep; those of its trials (whorl train ALGORITHM ENV --help) are flags too."
    parser = FlagParser("sweep", usage, about, all_settings, nested=True)
    parser.hints |= {"env_options": dict, "search": dict}
    parser.add_config(SweepFlags())
    parser.add_config(SweepConfig(), "sweep")
    if whole or not asked:
        for config in (RunConfig(), config_of(algorithm_class(str(algorithm))[1])()):
            parser.add_config(config, "trials")
    if asked:
        print(parser.format_help())
        return 0
    stray, settings = parser.read(rest)
    if stray:
        raise no_flag(stray[0])
    own = own_flags(SweepFlags, settings)
    return _run(names[0], settings, own)


def _run(config: str, settings: dict[str, Any], own: SweepFlags) -> int:
    from whorl.core.process import CTRL_C
    from whorl.sweep.figures import draw_all
    from whorl.sweep.report import APPLIED, check_output, show_best, write_preset
    from whorl.sweep.sweep import load_sweep

    found = load_sweep(config, settings, own.folder)
    sweeping = found.sweeping
    path = Path(own.apply) if isinstance(own.apply, str) else found.folder / APPLIED
    if own.apply:
        check_output(path)
    print(f"sweep of {sweeping.algorithm} on {sweeping.env}: {found.folder}", flush=True)
    # Results so far can be read without continuing the sweep.
    swept = found.found() if own.apply and Path(config).is_dir() and not settings else found.run()
    with ExitStack() as stack:
        found.open(stack)
        title = f"sweep of {sweeping.algorithm} on {sweeping.env}"
        pictures = draw_all(found.folder, swept.rows, sweeping.spaces, found.study, title)
    show_best(swept, sweeping)
    if pictures:
        print(f"pictures: {' '.join(map(str, pictures))}")
    if own.apply:
        write_preset(swept, sweeping, path)
        print(
            f"train: {shlex.join(['whorl', 'train', sweeping.algorithm, sweeping.env, '--config', str(path)])}"
        )
    elif swept.best(1):
        print(f"write its settings: {shlex.join(['whorl', 'sweep', str(found.folder), '--apply'])}")
    if swept.signal:
        print(f"continue: {shlex.join(['whorl', 'sweep', str(found.folder)])}")
        return INTERRUPTED if swept.signal == CTRL_C else TERMINATED
    return 0
