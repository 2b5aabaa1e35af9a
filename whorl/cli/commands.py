"""The commands of `whorl`: each reads its flags and calls the API."""

import json
import os
import shlex
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml

from whorl.cli.command import (
    NoFlags,
    command,
    commands,
    env_options_of,
    first_line,
    leading,
    no_flag,
    one_name,
    own_flags,
    parser_of,
    wants_help,
)
from whorl.cli.flags import FlagParser, is_dashed
from whorl.cli.groups import ESSENTIAL, GROUPS, group_of
from whorl.cli.report import show_columns, show_runs, show_table
from whorl.core.errors import ConfigError, EnvError
from whorl.core.registry import registered
from whorl.settings.merge import Settings, config_of, configure, settings_of
from whorl.settings.presets import algorithm_class, algorithms, preset_names, read_file, read_files, same_name
from whorl.settings.run import MAY_CHANGE, RunConfig
from whorl.settings.schema import Device, Range, build, fields_of

if TYPE_CHECKING:
    from whorl.box.names import Named


@dataclass(frozen=True)
class ConfigFlags:
    """Flags of `whorl config` besides the settings."""

    config: tuple[str, ...] = ()
    """YAML files of settings, which override the tuned preset; later files override earlier ones, flags all of them"""
    components: tuple[str, ...] = ()
    """components to train besides the policy; their settings are flags too: --rnd.lr 1e-4"""


@dataclass(frozen=True)
class TrainFlags(ConfigFlags):
    """Flags of `whorl train` besides the settings."""

    seeds: tuple[int, ...] = ()
    """train once for each seed: 1 2 3, or 1..8"""
    parallel: Annotated[Literal["gpu"] | int, Range(1, 1000)] = 1
    """seeds that are trained at the same time, each in a process with its share of the cores; gpu: all of them in one
    process on one GPU, where their work overlaps"""


@dataclass(frozen=True)
class ResumeFlags:
    """Flags of `whorl resume` besides the settings that may change."""

    env: str = ""
    """the run's environment where its id does not find it, such as my_envs:Corridor"""
    trust: tuple[str, ...] = ()
    """your own code that may be loaded: an import path, a module, a file (my_env.py), or the hash of code saved with
    the run (code:HASH)"""


@dataclass(frozen=True)
class EvalFlags:
    """Flags of `whorl eval`."""

    episodes: int = 20
    """episodes to play"""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 12_345
    """seed of the episodes"""
    max_steps: Annotated[int, Range(0, 10**12)] = 0
    """truncate episodes after this many steps, counting the return so far; 0: eval_max_steps of the run"""
    stochastic: bool = False
    """sample actions instead of taking the mean or most likely one"""
    best: bool = False
    """use the policy with the best evaluation instead of the newest"""
    video: bool | str = False
    """record the first episode of each run, into this .gif or .mp4 file or into the run's folder"""
    screenshots: bool = False
    """save a picture of the last state of each episode, in the size that the environment renders"""
    log: bool = False
    """add the episodes to evaluations.csv in the run's folder, and their means and pictures to its TensorBoard"""
    render: bool = False
    """show the episodes while they are played, in a window or, without a display, on a page of this machine"""
    json: bool = False
    """print one JSON object per run, a line each, and nothing else"""
    device: Device = "cpu"
    """device of the policy"""
    env: str = ""
    """play in this environment instead of the run's"""
    trust: tuple[str, ...] = ()
    """your own code that may be loaded: an import path, a module, a file (my_env.py), or the hash of code saved with
    the run (code:HASH)"""


@dataclass(frozen=True)
class PlotFlags:
    """Flags of `whorl plot`."""

    output: str = ""
    """.png, .svg or .pdf file to write; default: plot.png, map.png or arms.png, in the folder of a single run"""
    map: bool = False
    """draw where the agents of one run have been, and its intrinsic rewards there, instead of curves"""
    arms: bool = False
    """draw which policies the bandit of one Agent57 run chose over time, instead of curves"""
    metric: tuple[str, ...] = ("episode/return",)
    """metrics to plot, one row of panels each"""
    x: Literal["steps", "time", "episodes"] = "steps"
    """environment steps, training time or finished episodes"""
    group_by: tuple[str, ...] = ()
    """settings that distinguish curves, runs that agree in them count as seeds of one curve; default: every setting in
    which runs differ, except the seed and what concerns only reports"""
    statistic: Literal["mean", "iqm", "median"] = "mean"
    """what is drawn of several seeds; iqm: the interquartile mean"""
    band: Literal["ci", "std", "none"] = "ci"
    """band around it: a bootstrapped 95% confidence interval, or the standard deviation"""
    smooth: Annotated[int, Range(-1, 10**6)] = -1
    """smooth over about this many rows of metrics; 0: not at all; -1: automatic, little"""
    attention: bool = False
    """play one episode of one run and draw what its memory by attention looks at instead (attention.png)"""
    trust: tuple[str, ...] = ()
    """--attention: your own code that may be loaded: an import path, a module, a file (my_env.py), or the hash of code
    saved with the run (code:HASH)"""


@dataclass(frozen=True)
class ListFlags:
    """Flags of `whorl list`."""

    envs: bool = False
    """list the native environments instead of the algorithms"""
    runs: bool = False
    """list the run folders instead"""
    agents: bool = False
    """list the trained agents that come with Whorl instead; `whorl play NAME` shows one"""
    folder: str = "runs"
    """folder of the run folders"""


PATIENCE = 30.0
"""seconds after which `check` says where an environment is, and says so again"""
LIMIT = RunConfig.env_timeout
"""seconds after which a call that has not returned is a finding of `check`: the time limit of a step in training"""
NAME_FLAGS = {
    **dict.fromkeys(("--algo", "--algorithm"), "algorithm"),
    **dict.fromkeys(("--env", "--env-id", "--env-name", "--environment-name"), "environment"),
}
"""flags for what the first two words of `train` and `config` name, as other libraries have them"""


@command(
    "train ALGORITHM ENV [--config FILE] [--seeds 1..3 [--parallel 3]] [--SETTING VALUE ...]", TrainFlags
)
def train(words: list[str]) -> int:
    """train an algorithm on an environment"""
    return _with_settings("train", words, _train)


@command("config ALGORITHM ENV [--config FILE] [--SETTING VALUE ...]", ConfigFlags)
def config(words: list[str]) -> int:
    """print the settings that training would have, as YAML for --config"""
    return _with_settings("config", words, _print_config)


def _with_settings(command: str, words: list[str], act: Callable[..., int]) -> int:
    """Read algorithm, environment and settings, then act on them or print the help."""
    whole = "--help-all" in words
    asked, words = wants_help(words)
    names, rest = _names_in(*leading(words))
    _check_names(command, names, rest, asked)
    algorithm, env = [*names, *("ppo", "ENV")[len(names) :]]
    name, cls, _ = algorithm_class(algorithm)
    parser = _settings_parser(name)
    for flags in (TrainFlags(), RunConfig(), config_of(cls)()):
        parser.add_config(flags)
    stray, settings = parser.read(rest)
    if stray:
        raise no_flag(stray[0])
    chosen = settings.get("components")
    own = own_flags(TrainFlags, settings)
    settings |= {} if chosen is None else {"components": chosen}
    if not asked:
        return act(algorithm, env, settings, own)
    found = _resolved(algorithm, env, settings, own, len(names) == 2)
    title = f"{command} {' '.join(names) or 'ALGORITHM ENV'}"
    shown = commands()[command].flags
    print(
        _settings_help(title, shown(**{name: getattr(own, name) for name in fields_of(shown)}), found, whole)
    )
    return 0


def _check_names(command: str, names: list[str], rest: list[str], asked: bool) -> None:
    if word := next((name for name in names if is_dashed(name) or "=" in name), None):
        raise no_flag(word)
    known = {same_name(name) for name in (*preset_names(), *registered("algorithm"))}
    if len(names) == 2 and same_name(names[1]) in known and same_name(names[0]) not in known:
        right = shlex.join(["whorl", command, names[1], names[0], *rest])
        raise ConfigError(f"the algorithm comes before the environment: {right}")
    if len(names) < 2 and not asked:
        raise ConfigError(
            f"give the algorithm and the environment first: whorl {command} ppo CartPole-v1 --num-envs 8"
        )
    if len(names) > 2:
        raise no_flag(names[2])


def _names_in(names: list[str], words: list[str]) -> tuple[list[str], list[str]]:
    """Algorithm and environment, also out of flags as in `--algo ppo --env CartPole-v1`, and the other words."""
    found: dict[str, str] = {}
    rest: list[str] = []
    given = iter(words)
    for word in given:
        flag, equals, value = word.partition("=")
        kind = NAME_FLAGS.get(flag.replace("_", "-"))
        if kind is None:
            rest.append(word)
            continue
        if kind in found or len(names) == 2:
            raise ConfigError(f"{flag} names the {kind} a second time; leave it out")
        found[kind] = value if equals else next(given, "")
    if not found:
        return names, rest
    first = found.get("algorithm") or next(iter(names), "")
    second = found.get("environment") or next(iter(names), "")
    if not first or not second or len(names) + len(found) > 2:
        raise ConfigError("name both algorithm and environment, as in --algo ppo --env CartPole-v1")
    return [first, second], rest


def _settings_parser(name: str, usage: str = "") -> FlagParser:
    about = (
        "Options of nested settings are flags too: --optimizer.weight_decay 0.01, "
        "--actor_network.layers.0.out_features 64, --env_options.NAME VALUE."
    )
    parser = FlagParser(name, usage or name, about, all_settings, nested=True)
    parser.hints["env_options"] = dict
    return parser


def _settings_help(title: str, own: ConfigFlags, found: Settings, whole: bool) -> str:
    """The help page, with the values that settings have as defaults: the essential ones, or all in groups."""
    parser = _settings_parser(title, f"{title} [flags]")
    configs: tuple[Any, ...] = (own, found.run, found.algo)
    if whole:
        for group in GROUPS:
            parser.group(group)
        for one in configs:
            parser.add_config(one, partial(group_of, type(one)))
        parser.group("environment").add_argument(
            "--env_options.NAME", metavar="VALUE", help="an option of the environment"
        )
    else:
        for name in ESSENTIAL:
            for one in configs:
                if name in _fields(one):
                    parser.add_config(one, "settings", only=(name,))
    for component, options in found.components.items():
        parser.add_config(options, f"component {component}", f"{component}.")
    count = sum(len(_fields(one)) for one in configs)
    return parser.format_help() + ("" if whole else f"\n--help-all shows all {count} settings, in groups.")


def _fields(config: Any) -> list[str]:
    kind: Any = type(config)
    return [name for name in fields_of(kind) if name not in getattr(kind, "unused", ())]


@cache
def all_settings() -> dict[str, Any]:
    """The settings of all algorithms with their types; None where two algorithms have different types."""
    found: dict[str, Any] = {"env_options": dict}
    for name in algorithms():
        for key, hint in fields_of(config_of(algorithm_class(name)[1])).items():
            found[key] = hint if found.get(key, hint) == hint else None
    return found


def _resolved(
    algorithm: str, env: str, settings: Mapping[str, Any], own: TrainFlags, named: bool
) -> Settings:
    """The settings that training would have; those for any environment where it is not named, or unknown."""
    from whorl.run.prepare import prepare_all

    try:
        if named:
            found = prepare_all(env, algorithm, settings, own.config, None, {})[1]
            return found if isinstance(found, Settings) else next(iter(found.behaviors.values()))
    except EnvError:
        pass
    from whorl.settings.draws import take_random

    read = read_files(own.config)
    hints = settings_of(algorithm_class(algorithm)[1])
    *files, asked = take_random([*read, settings], hints)[1]  # the help shows what is not drawn
    return configure(algorithm, env, asked, files)


def _train(algorithm: str, env: str, settings: dict[str, Any], own: TrainFlags) -> int:
    if own.seeds and "seed" in settings:
        raise ConfigError("--seed and --seeds were both given; use --seeds alone")
    if own.parallel != 1 and not own.seeds:
        raise ConfigError("--parallel needs --seeds, as in --seeds 1 2 3 --parallel 3")
    for seed in own.seeds:
        build(RunConfig, {"seed": seed})  # a wrong seed is an error before anything is loaded
    from whorl.cli.seeds import Job, run_trainer, train_seeds

    job = Job(algorithm, env, settings, own.config)
    return train_seeds(job, own.seeds, own.parallel) if own.seeds else run_trainer(job.load())


def _print_config(algorithm: str, env: str, settings: dict[str, Any], own: TrainFlags) -> int:
    if own.seeds or own.parallel != 1:
        raise ConfigError(
            "config prints the settings of one run; use --seed instead of --seeds and --parallel"
        )
    from whorl.run.prepare import prepare_all

    found = prepare_all(env, algorithm, settings, own.config, None, {})[1]
    print(yaml.safe_dump(found.plain(), sort_keys=False), end="")
    return 0


@command("resume RUN [--total-timesteps N] [--SETTING VALUE ...]", ResumeFlags)
def resume(words: list[str]) -> int:
    """continue a run from its newest checkpoint"""
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in MAY_CHANGE)
    about = (
        f"Continue a run from its newest checkpoint. These settings may change: {flags}; "
        "see whorl train ALGORITHM ENV --help-all."
    )
    parser = parser_of("resume", about, elsewhere=_resume_settings, nested=True)
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    run, own, changes = one_name(parser, words, ResumeFlags)
    from whorl.box.names import find_folder
    from whorl.cli.seeds import run_trainer
    from whorl.population.evolver import is_population
    from whorl.population.load import resume_population
    from whorl.run.resume import load_run

    folder = find_folder(run)
    if is_population(folder):
        return run_trainer(resume_population(folder, changes, own.env or None, own.trust))
    return run_trainer(load_run(folder, changes, env=own.env or None, trust=own.trust), own.env)


def _resume_settings() -> dict[str, Any]:
    from whorl.population.config import EvolveConfig

    return {**all_settings(), **fields_of(RunConfig), **fields_of(EvolveConfig)}


@command("evolve CONFIG [--rule cem|pbt] [--population N] [--SETTING VALUE ...]")
def evolve(words: list[str]) -> int:
    """train a population of learners: the best are selected, the others continue from them"""
    from whorl.population.config import EvolveConfig

    whole = "--help-all" in words
    asked, words = wants_help(words)
    names, rest = leading(words)
    if len(names) != 1 and not (asked and not names):
        got = f", but got {' and '.join(map(repr, names))}" if names else ""
        raise ConfigError(f"evolve takes one settings file{got}: whorl {commands()['evolve'].usage}")
    layers = read_file(names[0]) if names else []
    algorithm = next((layer["algorithm"] for layer in reversed(layers) if layer.get("algorithm")), "ppo")
    _, cls, _ = algorithm_class(str(algorithm))
    about = (
        "Settings of the population; those of its learners (whorl train ALGORITHM ENV --help) are flags too."
    )
    parser = FlagParser("evolve", commands()["evolve"].usage, about, all_settings, nested=True)
    parser.hints["env_options"] = dict
    for config in (EvolveConfig(), *((RunConfig(), config_of(cls)()) if whole or not asked else ())):
        parser.add_config(config, "population" if isinstance(config, EvolveConfig) else "learners")
    if asked:
        print(parser.format_help())
        return 0
    stray, settings = parser.read(rest)
    if stray:
        raise no_flag(stray[0])
    from whorl.cli.seeds import run_trainer
    from whorl.population.load import load_population

    return run_trainer(load_population(names[0], settings=settings))


@command(
    "eval RUN [RUN ...] [--episodes N] [--video [FILE]] [--render] [--json] [--best] "
    "[--env_options.NAME VALUE]",
    EvalFlags,
)
def evaluate(words: list[str]) -> int:
    """play episodes with trained policies"""
    parser = parser_of("eval", env_options=True)
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    runs, values = parser.read(words)
    own = own_flags(EvalFlags, values)
    if not runs:
        raise ConfigError(f"eval needs the name of a run: whorl {commands()['eval'].usage}")
    if len(runs) > 1 and isinstance(own.video, str):
        raise ConfigError(
            f"--video {own.video} is one file for {len(runs)} runs; leave the name out, so that each has its own"
        )
    from whorl.box.names import find_policy

    for run in runs[1:]:
        find_policy(run)  # raises before the first is played
    for number, run in enumerate(runs):
        if number and not own.json:
            print()
        _play(run, own, values)
    return 0


def _play(run: str, own: EvalFlags, rest: Mapping[str, Any]) -> None:
    """Play episodes with the policy of one run, and print what it got."""
    from whorl import api
    from whorl.box.names import find_policy
    from whorl.run.evaluate import Evaluations
    from whorl.run.evaluation_log import log_evaluation

    named, several = find_policy(run), api.is_several(run)
    if own.log and (several or named.run is None):
        what = f"{named.name} is {named.kind}" if named.run is None else "the run has several behaviours"
        raise ConfigError(
            f"--log writes the episodes of one policy into its run's folder, but {what}; leave it out"
        )
    saved: Any = run if several else api.restore(run, best=own.best, trust=own.trust, device=own.device)
    video = _video_path(named, own) if own.video else None
    pictures = named.output("screenshots") / _evaluated(own) if own.screenshots else None
    if pictures is not None:
        for old in pictures.glob(
            "episode_*.png"
        ):  # of an earlier evaluation, which may have had more episodes
            old.unlink(missing_ok=True)
    found = api.evaluate(
        saved,
        own.episodes,
        env=own.env or None,
        env_options=env_options_of(rest),
        seed=own.seed,
        deterministic=not own.stochastic,
        max_steps=own.max_steps,
        best=own.best and several,
        video=video,
        screenshots=pictures,
        render=own.render,
        trust=own.trust,
        device=own.device,
    )
    if isinstance(found, Evaluations):
        _show_behaviors(run, own, found, video, pictures)
        return
    if own.log and named.run is not None:
        log_evaluation(named.run, found, saved.steps, {"policy": _evaluated(own), "seed": own.seed}, pictures)
    report: dict[str, Any] = {
        "run": str(run),
        "algorithm": saved.settings.algorithm,
        "env": own.env or saved.settings.env,
        **_report(found),
    }
    if own.json:
        details = {"seed": own.seed, "returns": found.returns, "lengths": found.lengths}
        print(json.dumps({**report, **details, "video": None if video is None else str(video)}))
        return
    show_table(report)
    _name_files(video, pictures)


def _name_files(video: Path | None, pictures: Path | None) -> None:
    """Print where the files of an evaluation are."""
    if video is not None:
        print(f"video: {video}")
    if pictures is not None:
        print(f"screenshots: {pictures}")


def _report(found: Any) -> dict[str, Any]:
    """The numbers of an evaluation."""
    return {
        "episodes": found.episodes,
        **({"players": found.players} if found.players > 1 else {}),
        "mean_return": found.mean_return,
        "std": found.std,
        "min": min(found.returns),
        "max": max(found.returns),
        "mean_length": found.mean_length,
        **({} if found.success_rate is None else {"success_rate": found.success_rate}),
        **found.measures,
        **({"cut": found.cut} if found.cut else {}),
    }


def _show_behaviors(run: str, own: EvalFlags, found: Any, video: Path | None, pictures: Path | None) -> None:
    """The evaluation of each behaviour."""
    reports = {name: _report(one) for name, one in found.behaviors.items()}
    if own.json:
        for name, one in found.behaviors.items():
            reports[name] |= {"returns": one.returns, "lengths": one.lengths}
        saved = None if video is None else str(video)
        print(json.dumps({"run": str(run), "seed": own.seed, "behaviours": reports, "video": saved}))
        return
    for name, report in reports.items():
        show_table(report, name)
    _name_files(video, pictures)


@command(
    "plot RUN [RUN ...] [--output FILE.pdf] [--metric NAME ...] [--x steps|time|episodes] [--map | --arms]",
    PlotFlags,
)
def plot(words: list[str]) -> int:
    """plot learning curves of runs"""
    parser = parser_of("plot")
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    names, values = parser.read(words)
    own = build(PlotFlags, values)
    if not names:
        raise ConfigError("name at least one run: whorl plot RUN [RUN ...]")
    from whorl.box.names import find_policy, find_runs
    from whorl.log.plot import Style, plot_arms, plot_map, plot_runs

    kind = next((name for name in ("map", "arms", "attention") if getattr(own, name)), "plot")
    if kind != "plot" and len(names) > 1:
        raise ConfigError(f"--{kind} draws one run, but {len(names)} were named; leave out all but one")
    # Only runs have curves; attention is drawn of any policy.
    folders = [] if kind == "attention" else find_runs(names)
    if kind != "plot" and len(folders) > 1:
        raise ConfigError(
            f"--{kind} draws one run, but there are {len(folders)} in {names[0]}; name one of them"
        )
    default = find_policy(names[0]).output(f"{kind}.png") if len(names) == 1 else Path(f"{kind}.png")
    output = Path(own.output) if own.output else default
    if kind == "attention":
        print(_plot_attention(names[0], output, own.trust))
        return 0
    if kind != "plot":
        print((plot_map if kind == "map" else plot_arms)(folders[0], output))
        return 0
    style = Style(own.x, own.statistic, own.band, own.smooth)
    print(plot_runs(folders, output, own.metric, own.group_by, style))
    return 0


def _plot_attention(run: str, output: Path, trust: tuple[str, ...]) -> Path:
    from whorl.api import evaluate, restore
    from whorl.log.attention import plot_attention
    from whorl.run.attention import attention_weights

    policy = restore(run, trust=trust)
    weights = attention_weights(policy.agent, lambda: evaluate(policy, 1, trust=trust).lengths[0])
    title = f"{policy.settings.algorithm} on {policy.settings.env}: attention in one episode"
    return plot_attention(weights, output, title)


@command("list [--envs | --runs | --agents]", ListFlags)
def show_list(words: list[str]) -> int:
    """list the algorithms, the native environments, the runs, or the agents in the box"""
    parser = parser_of("list")
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    names, values = parser.read(words)
    own = build(ListFlags, values)
    if names:
        remedy = f"--folder {shlex.quote(names[0])}" if own.runs else "--envs, --runs or --agents"
        raise ConfigError(f"list takes no name, but got {names[0]!r}; use {remedy}")
    if own.runs + own.agents + own.envs > 1:
        raise ConfigError("list shows one thing at a time; use --envs, --runs or --agents")
    if own.runs:
        show_runs(Path(own.folder))
    elif own.agents:
        from whorl.box.cards import agents

        show_columns(
            {
                name: f"{card.about}: return {card.mean_return:.1f} ± {card.std:.1f} over {card.episodes} episodes"
                for name, card in agents().items()
            }
        )
    elif own.envs:
        from whorl.envs.native import WORLDS

        abouts = {id: first_line(sys.modules[world.__module__]) for id, world in WORLDS.items()}
        show_columns({id: about.removeprefix(f"{id}: ") for id, about in abouts.items()})
    else:
        show_columns(algorithms())
    return 0


@command("check ENV [--env_options.NAME VALUE]")
def check(words: list[str]) -> int:
    """look for mistakes in an environment"""
    parser = parser_of("check", env_options=True)
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    env, _, rest = one_name(parser, words, NoFlags)
    from whorl.api import check as findings_of

    with _waiting(env):
        findings = findings_of(env, env_options_of(rest))
    for finding in findings:
        print(f"- {finding}")
    if not findings:
        print(f"{env}: no mistakes found")
    return 1 if findings else 0


@contextmanager
def _waiting(env: str) -> Iterator[None]:
    """Print from time to time which line of an environment is running, because it may never return."""
    from whorl.distributed.hang_timer import AwakeClock

    caller, over = threading.get_ident(), threading.Event()
    package = str(Path(__file__).parents[1])
    libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen")

    def frames() -> list[FrameType]:
        """The calls under way in code of the user, the innermost first."""
        frame = sys._current_frames().get(caller)
        found: list[FrameType] = []
        while frame and not (found and frame.f_code.co_filename.startswith(package)):
            if not frame.f_code.co_filename.startswith((package, *libraries)):
                found.append(frame)
            frame = frame.f_back
        return found

    def watch() -> None:
        pause = min(PATIENCE, LIMIT / 10)
        clock = AwakeClock(2 * pause)
        seen, since, told = None, clock(), clock()
        while not over.wait(pause):
            now, own = clock(), frames()
            if not own or own[-1] is not seen:
                seen, since = own[-1] if own else None, now
            elif now - since > LIMIT:
                name, at = own[-1].f_code.co_name, _place(own[0])
                print(f"- {name}() did not return within {LIMIT:g} seconds; it is{at}", flush=True)
                os._exit(1)  # the main thread can't be made to leave the user's code
            if now - told >= PATIENCE:
                told = now
                _say(f"{env}: still checking, now{_place(own[0]) if own else ''}; Ctrl-C ends it")

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _place(frame: FrameType) -> str:
    return f" in {frame.f_code.co_name}(), {frame.f_code.co_filename}, line {frame.f_lineno}"


def _say(text: str) -> None:
    print(f"whorl: {text}", file=sys.stderr, flush=True)


@command("completion bash|zsh|fish")
def completion(words: list[str]) -> int:
    """print a script that completes commands, algorithms, environments and flags in a shell"""
    parser = parser_of("completion")
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    shell, _, _ = one_name(parser, words, NoFlags)
    from whorl.cli.completion import script

    print(script(shell), end="")
    return 0


# Names and folders


def _video_path(named: "Named", own: EvalFlags) -> Path:
    if isinstance(own.video, str):
        return Path(own.video)
    ending = "mp4" if find_spec("imageio_ffmpeg") and find_spec("imageio") else "gif"
    return named.output("videos") / f"{_evaluated(own)}_seed{own.seed}.{ending}"


def _evaluated(own: EvalFlags) -> str:
    return "best" if own.best else "newest"
