"""The command `whorl`: train, resume, eval, plot, list, check. It reads flags and calls the API; nothing else is here.

Flags are the settings themselves, read into a mapping that `whorl.settings.merge` checks as it checks files and Python's dicts:
there is one set of rules and one set of errors. tyro draws the help pages from the same dataclasses.
"""

import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from whorl import __version__
from whorl.core.errors import ConfigError, WhorlError, nearest
from whorl.core.registry import Part
from whorl.settings.aliases import ALIASES
from whorl.settings.limits import coerce, describe
from whorl.settings.merge import Settings, build, canonical, configure, fields_of, settings_of
from whorl.settings.presets import algorithm_class, algorithms, read_yaml
from whorl.settings.run import MAY_CHANGE, RunConfig

INTERRUPTED = 130
"""the exit status of a run that Ctrl-C ended, by the shells' custom"""


@dataclass(frozen=True)
class TrainFlags:
    """Flags of `whorl train` beside the settings."""

    config: tuple[str, ...] = ()
    """YAML files of settings, over the tuned preset and under the other flags; later ones win"""
    seeds: tuple[int, ...] = ()
    """train once for each seed, one after the other"""


@dataclass(frozen=True)
class ResumeFlags:
    """Flags of `whorl resume` beside the settings that may change."""

    trust: tuple[str, ...] = ()
    """import paths of your own, named in the saved config, that may be loaded"""


@dataclass(frozen=True)
class EvalFlags:
    """Flags of `whorl eval`."""

    episodes: int = 20
    """whole episodes to play"""
    seed: int = 12_345
    """seed of the episodes"""
    stochastic: bool = False
    """sample actions instead of taking the mean or most likely one"""
    best: bool = False
    """the policy with the best evaluation instead of the newest"""
    video: bool | str = False
    """record the first episode, into this .gif or .mp4, or into the run's folder"""
    render: bool = False
    """show the episodes in a window"""
    json: bool = False
    """print one JSON object and nothing else"""
    device: str = "cpu"
    """where the policy acts"""
    trust: tuple[str, ...] = ()
    """import paths of your own, named in the saved config, that may be loaded"""


@dataclass(frozen=True)
class PlotFlags:
    """Flags of `whorl plot`."""

    output: str = ""
    """the picture to write, a .png; by default plot.png, in the run's folder if there is one run"""
    metric: tuple[str, ...] = ("episode/return",)
    """what to draw, one row of panels each"""
    x: Literal["steps", "time"] = "steps"
    """over environment steps or over training time"""
    group_by: tuple[str, ...] = ("algorithm",)
    """settings that tell one line from another; runs that agree in them are seeds of one setting"""


@dataclass(frozen=True)
class ListFlags:
    """Flags of `whorl list`."""

    envs: bool = False
    """our own worlds instead of the algorithms"""
    runs: bool = False
    """the run folders instead"""
    folder: str = "runs"
    """where run folders are looked for"""


@dataclass(frozen=True)
class CheckFlags:
    """Flags of `whorl check`: none."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 for findings of `check`, 2 for a mistake, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]  # it takes what it is given
            return _dispatch(words)
    except WhorlError as error:
        print(f"whorl: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("whorl: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `whorl list | head`
        sys.stderr.close()
        return 1


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        print(f"whorl {__version__}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        raise ConfigError(f"no command is called {words[0]!r}; {nearest(words[0], COMMANDS)}")
    return command.run(words[1:])


def train(words: list[str]) -> int:
    """train an algorithm on an environment"""
    asked, words = _wants_help(words)
    names, rest = _leading(words)
    if len(names) < 2 and not asked:
        raise ConfigError(
            "give the algorithm and the environment first: whorl train ppo CartPole-v1 --num-envs 8"
        )
    if len(names) > 2:
        raise ConfigError(f"{names[2]!r} belongs to no flag; flags start with --, as in --num-envs 8")
    algorithm, env = [*names, *("ppo", "ENV")[len(names) :]]
    name, cls, _ = algorithm_class(algorithm)
    hints = {**settings_of(cls), "env_options": dict, **fields_of(TrainFlags)}
    stray, values = read_flags(rest, hints, name, _settings_anywhere)
    if stray:
        raise ConfigError(f"{stray[0]!r} belongs to no flag; flags start with --, as in --num-envs 8")
    own, settings = _own(TrainFlags, values)
    if asked:
        found = configure(algorithm, _whole(env), settings, own.config)
        about = (
            "Train an algorithm on an environment. Entries of nested settings are flags too: "
            "--optimizer.weight_decay 0.01, --actor_network.layers.0.out_features 64, --env_options.NAME VALUE."
        )
        return _help(f"train {' '.join(names) or 'ALGORITHM ENV'}", own, found.run, found.algo, about=about)
    return _train_seeds(algorithm, env, settings, own)


def _whole(env: str) -> str:
    """The id by which tuned settings know an environment; as it was written, where nobody knows it."""
    from whorl.envs.adapters.gymnasium import whole_id

    try:
        return env if ":" in env else whole_id(env)
    except WhorlError:
        return env


def _train_seeds(algorithm: str, env: str, settings: dict[str, Any], own: TrainFlags) -> int:
    from whorl.api import load

    if own.seeds and "seed" in settings:
        raise ConfigError("--seed and --seeds were both given; --seeds alone names all of them")
    for seed in own.seeds:
        build(RunConfig, {"seed": seed})  # a wrong one is told now, not after the runs before it
    results = []
    for number in own.seeds or (None,):
        tag = [settings["tag"]] if settings.get("tag") else []
        extra = {} if number is None else {"seed": number, "tag": "_".join([*tag, f"seed{number}"])}
        trainer = load(env, algorithm, {**settings, **extra}, files=own.config)
        result = trainer.train()
        results.append((number, result))
        _show_result(result, trainer.settings)
        if _interrupted(result):
            return INTERRUPTED
    if own.seeds:
        _show_seeds(results)
    return 0


def resume(words: list[str]) -> int:
    """go on with a run from its newest checkpoint"""
    asked, words = _wants_help(words)
    if asked:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in MAY_CHANGE)
        return _help(
            "resume RUN", ResumeFlags(), about=f"It may also change {flags}: see whorl train --help."
        )
    run, own, changes = _one(words, ResumeFlags, "resume", fields_of(RunConfig), _settings_anywhere)
    from whorl.api import load_run

    trainer = load_run(run, changes, trust=own.trust)
    result = trainer.train()
    _show_result(result, trainer.settings)
    return INTERRUPTED if _interrupted(result) else 0


def evaluate(words: list[str]) -> int:
    """play episodes with a trained policy"""
    asked, words = _wants_help(words)
    if asked:
        return _help("eval RUN", EvalFlags())
    run, own, _ = _one(words, EvalFlags, "eval")
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
    """draw learning curves of runs"""
    asked, words = _wants_help(words)
    if asked:
        return _help("plot RUN [RUN ...]", PlotFlags())
    names, values = read_flags(words, fields_of(PlotFlags), "plot")
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
    """list the algorithms, our worlds, or the runs"""
    asked, words = _wants_help(words)
    if asked:
        return _help("list", ListFlags())
    names, values = read_flags(words, fields_of(ListFlags), "list")
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
    asked, words = _wants_help(words)
    if asked:
        return _help("check ENV", CheckFlags())
    env, _, _ = _one(words, CheckFlags, "check")
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


# Reading flags


def read_flags(
    words: Sequence[str],
    hints: Mapping[str, Any],
    command: str,
    elsewhere: Callable[[], Mapping[str, Any]] = dict,
) -> tuple[list[str], dict[str, Any]]:
    """Names and settings out of words such as `RUN --num-envs 8 --optimizer.weight_decay 0.1 --no-eval`.

    Settings known only `elsewhere` are read as well: what comes of them is decided where files and dicts are checked.
    """
    names: list[str] = []
    values: dict[str, Any] = {}
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--") or word == "--":
            names.append(word)
            continue
        flag, equals, attached = word.partition("=")
        key, hint, off = (
            _meaning(flag, hints) or _meaning(flag, elsewhere()) or _unknown(flag, hints, command)
        )
        if equals:
            given = [attached]
        else:
            given = _values_after(words, index, hint, off)
            index += len(given)
        value = False if off else _typed(flag, given, hint)
        # A list of words can be given bit by bit: --config a.yaml --config b.yaml.
        values[key] = values.get(key, []) + value if get_args(hint) == (str, ...) else value
    return names, values


def _meaning(flag: str, hints: Mapping[str, Any]) -> tuple[str, Any, bool] | None:
    """The setting behind a flag, its type (None for an entry of a nested setting), and whether it is a --no-flag."""
    head, dot, path = flag[2:].replace("-", "_").partition(".")
    name = (
        head if head in hints else canonical(head)
    )  # a flag of a command may be called as an alias is: --device
    if dot:
        return (f"{name}.{path}", None, False) if path and hints.get(name) in (Part, dict) else None
    if name in hints:
        return name, hints[name], False
    positive = canonical(head.removeprefix("no_"))
    return (positive, bool, True) if hints.get(positive) is bool else None


def _unknown(flag: str, hints: Mapping[str, Any], command: str) -> NoReturn:
    head, dot, _ = flag[2:].partition(".")
    name = canonical(head)
    if dot and name in hints:
        raise ConfigError(f"{flag} names nothing: {head} has no parts")
    words = [*hints, *(alias for alias, ours in ALIASES.items() if ours in hints)]
    hint = nearest(f"--{name}", [f"--{word}" for word in words]).replace("_", "-")
    if not hint.startswith("did"):
        hint = "see --help for all of them"
    raise ConfigError(f"{command} has no flag {flag}; {hint}")


def _settings_anywhere() -> dict[str, Any]:
    """The settings of all algorithms with their types; None where two mean different things by a name."""
    found: dict[str, Any] = {"env_options": dict}
    for name in algorithms():
        for key, hint in fields_of(algorithm_class(name)[1].Config).items():  # type: ignore[attr-defined]
            found[key] = hint if found.get(key, hint) == hint else None
    return found


def _values_after(words: Sequence[str], index: int, hint: Any, off: bool) -> list[str]:
    """The values that belong to a flag: as many as its type takes, up to the next flag."""
    following = []
    for word in words[index:]:
        if word.startswith("--"):
            break
        following.append(word)
    if off:
        return []
    if hint is bool:
        return following[:1] if following and following[0].lower() in _BOOLEANS else []
    if bool in get_args(hint):  # a flag whose value may be left out
        return [] if following and Path(following[0]).is_dir() else following[:1]
    several = any(get_origin(option) in (tuple, list) for option in (hint, *get_args(hint)))
    if hint is None and following and all(_is_number(word) for word in following):
        return following  # an option whose type nobody knows: numbers are a list, but a word may be a name
    return following if several else following[:1]


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", word) is not None


_BOOLEANS = {
    "true": True,
    "false": False,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
    "1": True,
    "0": False,
}


def _typed(flag: str, given: list[str], hint: Any) -> Any:
    """The value of a flag, checked against its type so that the error can name the flag."""
    if not given:
        if hint is bool or bool in get_args(hint):
            return True
        raise ConfigError(f"{flag} needs a value: {describe(hint) if hint else 'what to set it to'}")
    text = given[0]
    if hint is None or hint is Part or hint is dict:
        read = [read_yaml(text, f"{flag} {text}") for text in given]
        return read if len(read) > 1 else read[0]
    if hint is bool:
        if text.lower() not in _BOOLEANS:
            raise ConfigError(f"{flag} is {text!r}; it must be true or false")
        return _BOOLEANS[text.lower()]
    if get_origin(hint) in (Union, type(int | str)):
        if str in get_args(hint) or bool in get_args(hint):
            return coerce(flag, text, str)
        listed = read_yaml(text, f"{flag} {text}") if text.startswith("[") else given
        return coerce(flag, listed[0] if len(listed) == 1 else listed, hint)
    if get_origin(hint) in (tuple, list):
        listed = read_yaml(text, f"{flag} {text}") if len(given) == 1 and text.startswith("[") else given
        return list(coerce(flag, listed, hint))
    return coerce(flag, text, hint)


def _one(
    words: list[str],
    own: type,
    command: str,
    settings: Mapping[str, Any] | None = None,
    elsewhere: Callable[[], Mapping[str, Any]] = dict,
) -> Any:
    """The one name that a command takes, its own flags, and settings."""
    names, values = read_flags(words, {**(settings or {}), **fields_of(own)}, command, elsewhere)
    if len(names) != 1:
        got = f", but got {' and '.join(map(repr, names))}" if names else ""
        raise ConfigError(f"{command} takes one name{got}: whorl {COMMANDS[command].usage}")
    flags, rest = _own(own, values)
    return names[0], flags, rest


def _own(own: type, values: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A command's own flags, and the settings that are left."""
    mine = {name: values.pop(name) for name in fields_of(own) if name in values}
    return build(own, mine), values


def _leading(words: list[str]) -> tuple[list[str], list[str]]:
    count = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return words[:count], words[count:]


def _wants_help(words: list[str]) -> tuple[bool, list[str]]:
    rest = [word for word in words if word not in ("-h", "--help")]
    return len(rest) < len(words), rest


# Showing results


def _overview() -> str:
    lines = [f"  whorl {command.usage}\n      {_first_line(command.run)}" for command in COMMANDS.values()]
    return "\n".join(
        ["usage: whorl COMMAND ...", "", *lines, "", "whorl COMMAND --help says more; whorl --version"]
    )


def _help(usage: str, *groups: Any, about: str = "") -> int:
    """A page with every flag, its type, its default here and now, and the string under its field."""
    import tyro

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def parts_are_one_word(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type is not Part:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="NAME",
            instance_from_str=lambda words: Part(words[0]),
            is_instance=lambda value: isinstance(value, Part),
            str_from_instance=lambda part: [_part_text(part)],
        )

    names = ["flags", "loop", "algorithm"]
    page = make_dataclass(
        "Page", [(name, Annotated[type(group), tyro.conf.arg(name="")]) for name, group in zip(names, groups)]
    )
    command = usage.split()[0]
    text = about or f"{_first_line(COMMANDS[command].run).capitalize()}."
    try:
        with registry:
            tyro.cli(
                page,
                prog=f"whorl {usage}",
                description=text,
                default=page(*groups),
                args=["--help"],
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def _part_text(part: Part) -> str:
    return part.name if not part.options else json.dumps(part.plain())


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
        print(f"go on:    whorl resume {result.run_dir}{_more(result)}")


def _more(result: Any) -> str:
    """The flag that asks for as much again, of the limit that was reached."""
    spent = {
        "steps": f" --total-timesteps {2 * result.steps}",
        "episodes": f" --total-episodes {2 * result.episodes}",
        "iterations": f" --max-iterations {2 * result.iterations}",
    }
    return spent.get(result.reason.partition(" ")[0], "")


def _show_seeds(results: list[tuple[int | None, Any]]) -> None:
    from statistics import fmean, pstdev

    returns = [result.mean_return for _, result in results]
    rows = {f"seed {number}": result.mean_return for number, result in results}
    _table({**rows, "mean ± std": f"{fmean(returns):.1f} ± {pstdev(returns):.1f}"}, "mean return")
    print("compare:  whorl plot " + " ".join(str(result.run_dir) for _, result in results))


def _interrupted(result: Any) -> bool:
    return bool(result.interrupted)


def _table(values: dict[str, Any], title: str = "") -> None:
    from whorl.log.console import Console

    Console(0).summary(values, title)


def _columns(values: Mapping[str, str]) -> None:
    width = max((len(name) for name in values), default=0)
    for name, about in values.items():
        print(f"{name:<{width}}  {about}")


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _show_warning(message: Any, *details: Any) -> None:
    print(f"whorl: {_one_line(message)}", file=sys.stderr)


def _run_folder(folder: Path) -> Path:
    """The run that a folder belongs to: itself, or its parent where it is a checkpoint."""
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
