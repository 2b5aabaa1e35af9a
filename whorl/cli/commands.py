"""The commands of `whorl`: each reads its flags and calls the API."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from whorl.cli.flags import FlagParser
from whorl.core.errors import ConfigError, WhorlError
from whorl.settings.merge import Settings, config_of, configure
from whorl.settings.presets import algorithm_class, algorithms
from whorl.settings.run import MAY_CHANGE, RunConfig
from whorl.settings.schema import Device, Range, build, fields_of

INTERRUPTED = 130
"""exit status of a run that Ctrl-C ended, as shells expect it"""


@dataclass(frozen=True)
class TrainFlags:
    """Flags of `whorl train` besides the settings."""

    config: tuple[str, ...] = ()
    """YAML files of settings, which override the tuned preset; later files override earlier ones, flags all of them"""
    seeds: tuple[int, ...] = ()
    """train once for each seed, one after the other"""
    components: tuple[str, ...] = ()
    """components to train besides the policy; their settings are flags too: --rnd.lr 1e-4"""


@dataclass(frozen=True)
class ResumeFlags:
    """Flags of `whorl resume` besides the settings that may change."""

    trust: tuple[str, ...] = ()
    """import paths of your own code, named in the saved config, that may be loaded"""


@dataclass(frozen=True)
class EvalFlags:
    """Flags of `whorl eval`."""

    episodes: int = 20
    """episodes to play"""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 12_345
    """seed of the episodes"""
    stochastic: bool = False
    """sample actions instead of taking the mean or most likely one"""
    best: bool = False
    """use the policy with the best evaluation instead of the newest"""
    video: bool | str = False
    """record the first episode, into this .gif or .mp4 file or into the run's folder"""
    render: bool = False
    """show the episodes in a window"""
    json: bool = False
    """print one JSON object and nothing else"""
    device: Device = "cpu"
    """device of the policy"""
    trust: tuple[str, ...] = ()
    """import paths of your own code, named in the saved config, that may be loaded"""


@dataclass(frozen=True)
class PlotFlags:
    """Flags of `whorl plot`."""

    output: str = ""
    """PNG file to write; default: plot.png, in the run's folder if there is one run"""
    metric: tuple[str, ...] = ("episode/return",)
    """metrics to plot, one row of panels each"""
    x: Literal["steps", "time"] = "steps"
    """environment steps or training time"""
    group_by: tuple[str, ...] = ("algorithm",)
    """settings that distinguish curves; runs that agree in them count as seeds of one curve"""


@dataclass(frozen=True)
class ListFlags:
    """Flags of `whorl list`."""

    envs: bool = False
    """list the native environments instead of the algorithms"""
    runs: bool = False
    """list the run folders instead"""
    folder: str = "runs"
    """folder of the run folders"""


@dataclass(frozen=True)
class CheckFlags:
    """Flags of `whorl check`: none."""


def train(words: list[str]) -> int:
    """train an algorithm on an environment"""
    asked, words = _wants_help(words)
    names, rest = _leading(words)
    if len(names) < 2 and not asked:
        raise ConfigError(
            "give the algorithm and the environment first: whorl train ppo CartPole-v1 --num-envs 8"
        )
    if len(names) > 2:
        raise _stray(names[2])
    algorithm, env = [*names, *("ppo", "ENV")[len(names) :]]
    name, cls, _ = algorithm_class(algorithm)
    parser = _train_parser(name, TrainFlags(), RunConfig(), config_of(cls)())
    stray, settings = parser.read(rest)
    if stray:
        raise _stray(stray[0])
    chosen = settings.get("components")
    own = _own(TrainFlags, settings)
    settings |= {} if chosen is None else {"components": chosen}
    if not asked:
        return _train_seeds(algorithm, env, settings, own)
    found = configure(algorithm, _full_id(env), settings, own.config)
    parser = _train_parser(" ".join(names) or "ALGORITHM ENV", own, found.run, found.algo, found.components)
    print(parser.format_help())
    return 0


def _train_parser(
    name: str, own: TrainFlags, run: RunConfig, algo: Any, components: Mapping[str, Any] | None = None
) -> FlagParser:
    """The flags of training, with the values that settings have as defaults."""
    about = (
        "Train an algorithm on an environment. Options of nested settings are flags too: "
        "--optimizer.weight_decay 0.01, --actor_network.layers.0.out_features 64, --env_options.NAME VALUE."
    )
    parser = FlagParser(name, f"train {name} [flags]", about, _all_settings, nested=True)
    for title, config in (("flags", own), ("training loop", run), ("algorithm", algo)):
        parser.add_config(title, config)
    for component, config in (components or {}).items():
        parser.add_config(f"component {component}", config, f"{component}.")
    parser.hints["env_options"] = dict
    return parser


@cache
def _all_settings() -> dict[str, Any]:
    """The settings of all algorithms with their types; None where two algorithms have different types."""
    found: dict[str, Any] = {"env_options": dict}
    for name in algorithms():
        for key, hint in fields_of(config_of(algorithm_class(name)[1])).items():
            found[key] = hint if found.get(key, hint) == hint else None
    return found


def _full_id(env: str) -> str:
    """The id under which tuned settings are stored; the name as given, for an unknown environment."""
    from whorl.envs.adapter import full_id

    try:
        return env if ":" in env else full_id(env)
    except WhorlError:
        return env


def _train_seeds(algorithm: str, env: str, settings: dict[str, Any], own: TrainFlags) -> int:
    from whorl.api import load

    if own.seeds and "seed" in settings:
        raise ConfigError("--seed and --seeds were both given; use --seeds alone")
    for seed in own.seeds:
        build(RunConfig, {"seed": seed})  # a wrong seed is an error now, not after the other runs
    results = []
    for number in own.seeds or (None,):
        tag = [settings["tag"]] if settings.get("tag") else []
        extra = {} if number is None else {"seed": number, "tag": "_".join([*tag, f"seed{number}"])}
        trainer = load(env, algorithm, {**settings, **extra}, files=own.config)
        result = trainer.train()
        results.append((number, result))
        _show_result(result, trainer.settings)
        if result.interrupted:
            return INTERRUPTED
    if own.seeds:
        _show_seeds(results)
    return 0


def resume(words: list[str]) -> int:
    """continue a run from its newest checkpoint"""
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in MAY_CHANGE)
    about = f"Continue a run from its newest checkpoint. These settings may change: {flags}; see whorl train --help."
    parser = _parser("resume", ResumeFlags(), about, elsewhere=_resume_settings, nested=True)
    asked, words = _wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    run, own, changes = _one(parser, words, ResumeFlags)
    from whorl.api import load_run

    trainer = load_run(run, changes, trust=own.trust)
    result = trainer.train()
    _show_result(result, trainer.settings)
    return INTERRUPTED if result.interrupted else 0


def _resume_settings() -> dict[str, Any]:
    return {**_all_settings(), **fields_of(RunConfig)}


def evaluate(words: list[str]) -> int:
    """play episodes with a trained policy"""
    parser = _parser("eval", EvalFlags())
    asked, words = _wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    run, own, _ = _one(parser, words, EvalFlags)
    from whorl import api

    policy = api.restore(run, best=own.best, trust=own.trust, device=own.device)
    video = _video_path(run, own) if own.video else None
    found = api.evaluate(
        policy,
        own.episodes,
        seed=own.seed,
        deterministic=not own.stochastic,
        video=video,
        render=own.render,
        trust=own.trust,
    )
    report: dict[str, Any] = {
        "run": str(run),
        "algorithm": policy.settings.algorithm,
        "env": policy.settings.env,
        "episodes": len(found.returns),
        "mean_return": found.mean_return,
        "std": found.std,
        "min": min(found.returns),
        "max": max(found.returns),
        "mean_length": found.mean_length,
    }
    if own.json:
        details = {"seed": own.seed, "returns": found.returns, "lengths": found.lengths}
        print(json.dumps({**report, **details, "video": None if video is None else str(video)}))
        return 0
    _table(report)
    if video is not None:
        print(f"video: {video}")
    return 0


def plot(words: list[str]) -> int:
    """plot learning curves of runs"""
    parser = _parser("plot", PlotFlags())
    asked, words = _wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    names, values = parser.read(words)
    own = build(PlotFlags, values)
    if not names:
        raise ConfigError("name at least one run: whorl plot RUN [RUN ...]")
    from whorl.log.plot import plot_runs
    from whorl.state.runfolder import resolve_run

    folders = [_run_folder(resolve_run(name)) for name in names]
    output = Path(own.output) if own.output else (folders[0] if len(folders) == 1 else Path()) / "plot.png"
    if output.suffix.lower() != ".png":
        raise ConfigError(f"--output is {own.output!r}; its name must end in .png")
    print(plot_runs(folders, output, x=own.x, metrics=own.metric, group_by=own.group_by))
    return 0


def show_list(words: list[str]) -> int:
    """list the algorithms, the native environments, or the runs"""
    parser = _parser("list", ListFlags())
    asked, words = _wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    names, values = parser.read(words)
    own = build(ListFlags, values)
    if names:
        raise ConfigError(f"list takes no name, but got {names[0]!r}; use --envs or --runs")
    if own.runs:
        _show_runs(Path(own.folder))
    elif own.envs:
        from whorl.envs.native import WORLDS

        abouts = {id: _first_line(sys.modules[world.__module__]) for id, world in WORLDS.items()}
        _columns({id: about.removeprefix(f"{id}: ") for id, about in abouts.items()})
    else:
        _columns(algorithms())
    return 0


def check(words: list[str]) -> int:
    """look for mistakes in an environment"""
    parser = _parser("check", CheckFlags())
    asked, words = _wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    env, _, _ = _one(parser, words, CheckFlags)
    from whorl.api import check as findings_of

    findings = findings_of(env)
    for finding in findings:
        print(f"- {finding}")
    if not findings:
        print(f"{env}: nothing found")
    return 1 if findings else 0


@dataclass(frozen=True)
class Command:
    run: Callable[[list[str]], int]
    usage: str


COMMANDS = {
    "train": Command(train, "train ALGORITHM ENV [--config FILE] [--seeds 1 2 3] [--SETTING VALUE ...]"),
    "resume": Command(resume, "resume RUN [--total-timesteps N] [--SETTING VALUE ...]"),
    "eval": Command(evaluate, "eval RUN [--episodes N] [--video [PATH]] [--json] [--best]"),
    "plot": Command(plot, "plot RUN [RUN ...] [--output FILE.png] [--metric NAME ...] [--x steps|time]"),
    "list": Command(show_list, "list [--envs | --runs]"),
    "check": Command(check, "check ENV"),
}


def overview() -> str:
    """All commands with one line each."""
    lines = [f"  whorl {command.usage}\n      {_first_line(command.run)}" for command in COMMANDS.values()]
    return "\n".join(
        ["usage: whorl COMMAND ...", "", *lines, "", "whorl COMMAND --help shows its flags; whorl --version"]
    )


# Arguments


def _parser(command: str, flags: Any, about: str = "", **options: Any) -> FlagParser:
    about = about or f"{_first_line(COMMANDS[command].run).capitalize()}."
    parser = FlagParser(command, COMMANDS[command].usage, about, **options)
    parser.add_config("flags", flags)
    return parser


def _one(parser: FlagParser, words: list[str], own: type) -> Any:
    """The one name that a command takes, its own flags, and settings."""
    names, values = parser.read(words)
    if len(names) != 1:
        got = f", but got {' and '.join(map(repr, names))}" if names else ""
        raise ConfigError(f"{parser.command} takes one name{got}: whorl {COMMANDS[parser.command].usage}")
    return names[0], _own(own, values), values


def _own(own: type, values: dict[str, Any]) -> Any:
    """A command's own flags, taken out of `values`; the settings are left."""
    return build(own, {name: values.pop(name) for name in fields_of(own) if name in values})


def _stray(word: str) -> ConfigError:
    return ConfigError(f"{word!r} belongs to no flag; flags start with --, as in --num-envs 8")


def _leading(words: list[str]) -> tuple[list[str], list[str]]:
    count = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return words[:count], words[count:]


def _wants_help(words: list[str]) -> tuple[bool, list[str]]:
    rest = [word for word in words if word not in ("-h", "--help")]
    return len(rest) < len(words), rest


# Results


def _show_result(result: Any, settings: Settings) -> None:
    _table(
        {
            "stopped because": result.reason,
            "steps": result.steps,
            "episodes": result.episodes,
            "mean return": result.mean_return,
            "wall time": f"{result.wall_time:.1f} s",
            "run folder": str(result.run_dir),
        }
    )
    if settings.run.save_model:
        print(f"evaluate: whorl eval {result.run_dir}")
        print(f"continue: whorl resume {result.run_dir}{_more(result)}")


def _more(result: Any) -> str:
    """The flag that doubles the limit that was reached."""
    spent = {
        "steps": f" --total-timesteps {2 * result.steps}",
        "episodes": f" --total-episodes {2 * result.episodes}",
        "iterations": f" --max-iterations {2 * result.iterations}",
    }
    return spent.get(result.reason.removeprefix("the budget of ").partition(" ")[0], "")


def _show_seeds(results: list[tuple[int | None, Any]]) -> None:
    from statistics import fmean, pstdev

    returns = [result.mean_return for _, result in results]
    rows = {f"seed {number}": result.mean_return for number, result in results}
    _table({**rows, "mean ± std": f"{fmean(returns):.1f} ± {pstdev(returns):.1f}"}, "mean return")
    print("compare:  whorl plot " + " ".join(str(result.run_dir) for _, result in results))


def _table(values: dict[str, Any], title: str = "") -> None:
    from whorl.log.console import Console

    Console(0).summary(values, title)


def _columns(values: Mapping[str, str]) -> None:
    width = max((len(name) for name in values), default=0)
    for name, about in values.items():
        print(f"{name:<{width}}  {about}")


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


def _run_folder(folder: Path) -> Path:
    """The run folder of a run or checkpoint folder."""
    return folder.parent if folder.name == "best" or folder.name.startswith("checkpoint_") else folder


def _video_path(run: str, own: EvalFlags) -> Path:
    from whorl.state.runfolder import resolve_run

    if isinstance(own.video, str):
        return Path(own.video)
    ending = "mp4" if find_spec("imageio_ffmpeg") and find_spec("imageio") else "gif"
    which = "best" if own.best else "newest"
    return _run_folder(resolve_run(run)) / "videos" / f"{which}_seed{own.seed}.{ending}"


def _show_runs(folder: Path) -> None:
    from whorl.log.writers import read_rows

    rows = []
    for run in sorted(folder.iterdir()) if folder.is_dir() else []:
        config, metrics = run / "config.yaml", run / "metrics.jsonl"
        if not config.is_file():
            continue
        last: dict[str, Any] = {}
        for row in read_rows(metrics) if metrics.is_file() else ():
            last.update(row)
        found = last.get("evaluation/return", last.get("episode/return"))
        when = datetime.fromtimestamp((metrics if metrics.is_file() else config).stat().st_mtime)
        shown = "" if found is None else f"{float(found):.1f}"
        rows.append((run.name, f"{int(last.get('steps', 0)):,}", shown, f"{when:%Y-%m-%d %H:%M}"))
    if not rows:
        print(f"there are no runs in {folder}")
        return
    titles = ("run", "steps", "return", "written")
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(4)]
    for name, *numbers in [titles, *rows]:
        columns = [f"{text:>{width}}" for text, width in zip(numbers, widths[1:])]
        print("  ".join([f"{name:<{widths[0]}}", *columns]))
