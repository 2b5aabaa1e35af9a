"""What a command of `whorl` is, all of them by name, and how they read their arguments.

A command is a function of its words in a file of this package, marked `@command(usage, flags)`; `MODULES` names the
files.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from whorl.cli.flags import FlagParser, is_dashed, one_dash
from whorl.core.errors import ConfigError
from whorl.settings.merge import merge
from whorl.settings.schema import build, fields_of, wrong

MODULES = ("commands", "play", "record", "export", "sweep", "bench", "report_page", "serve", "hub")
"""files of this package that define commands, in the order of the overview"""

RLCYCLE_ENVS = {
    "atari": "PongNoFrameskip-v4",
    "lunarlander": "LunarLander-v3",
    "pybullet": "ReacherBulletEnv-v0",
}
RLCYCLE_ALGORITHMS = {"rainbow_dqn": "rainbow", "ddqn": "dueling_dqn", "qrdqn": "qr_dqn"}
"""those of RLcycle that have another name here"""
ELSEWHERE = {
    "enjoy": "eval RUN, or whorl play RUN to watch it",
    "test": "eval RUN",
    "evaluate": "eval RUN",
    **dict.fromkeys(
        ("learn", "launch.py", "run.py", "run_agent.py", "main.py", "main_ds.py"), "train ALGORITHM ENV"
    ),
    "tune": "sweep FILE",
    "optimize": "sweep FILE",
    "tensorboard": "serve",
    **dict.fromkeys(("algorithms", "algos", "ls"), "list"),
    **dict.fromkeys(("envs", "environments"), "list --envs"),
    "runs": "list --runs",
    "agents": "list --agents",
    "video": "eval RUN --video",
}
"""commands of other libraries, and those that do the same here"""


@dataclass(frozen=True)
class NoFlags:
    """Flags of commands that have none of their own."""


Run = Callable[[list[str]], int]


@dataclass(frozen=True)
class Command:
    """One command: what its words do, how it is written, and the class of its own flags."""

    run: Run
    usage: str
    flags: type


_COMMANDS: dict[str, Command] = {}


def command(usage: str, flags: type = NoFlags) -> Callable[[Run], Run]:
    """Make a function a command; the first word of `usage` is its name, the first line of its docstring its help."""

    def register(run: Run) -> Run:
        _COMMANDS[usage.split()[0]] = Command(run, usage, flags)
        return run

    return register


def commands() -> dict[str, Command]:
    """All commands by name."""
    for module in MODULES:
        import_module(f"whorl.cli.{module}")
    return _COMMANDS


def overview() -> str:
    """All commands with one line each."""
    lines = [f"  whorl {command.usage}\n      {first_line(command.run)}" for command in commands().values()]
    return "\n".join(
        ["usage: whorl COMMAND ...", "", *lines, "", "whorl COMMAND --help shows its flags; whorl --version"]
    )


def parser_of(name: str, about: str = "", env_options: bool = False, **options: Any) -> FlagParser:
    """A parser of a command's own flags."""
    found = commands()[name]
    text = first_line(found.run)
    about = about or f"{text[:1].upper()}{text[1:]}."
    if env_options:
        about += " Options of the environment are flags too: --env_options.NAME VALUE."
    parser = FlagParser(name, found.usage, about, **options)
    parser.add_config(found.flags())
    if env_options:
        parser.hints["env_options"] = dict
    return parser


def env_options_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an environment out of `--env_options.NAME VALUE` and `--env_options "{NAME: VALUE}"`."""
    found: dict[str, Any] = {}
    merge(found, values, {})
    options = found.get("env_options") or {}
    if not isinstance(options, dict):
        raise wrong("env_options", options, "a mapping of options to values")
    return options


def one_name(parser: FlagParser, words: list[str], own: type) -> Any:
    """The one name that a command takes, its own flags, and settings."""
    names, values = parser.read(words)
    if len(names) != 1:
        got = f", but got {' and '.join(map(repr, names))}" if names else ""
        raise ConfigError(f"{parser.command} takes one name{got}: whorl {commands()[parser.command].usage}")
    return names[0], own_flags(own, values), values


def own_flags(own: type, values: dict[str, Any]) -> Any:
    """A command's own flags, taken out of `values`; the settings are left."""
    return build(own, {name: values.pop(name) for name in fields_of(own) if name in values})


def no_flag(word: str) -> ConfigError:
    """The error for a word that belongs to no flag."""
    if is_dashed(word):
        return one_dash(word)
    key, equals, value = word.partition("=")
    if key in ("configs", "+configs"):  # RLcycle's and Hydra's overrides
        return ConfigError(
            f"{word!r} names a file of RLcycle; name algorithm and environment: whorl train {_of_rlcycle(value)}"
        )
    if word.endswith((".yaml", ".yml")):
        return ConfigError(f"{word!r} belongs to no flag; write --config {word}")
    if equals and value:
        flag = key.rpartition(".")[2].replace("_", "-")
        return ConfigError(f"{word!r} belongs to no flag; write --{flag} {value}")
    return ConfigError(f"{word!r} belongs to no flag; flags start with --, as in --num-envs 8")


def _of_rlcycle(name: str) -> str:
    """Algorithm and environment of one of RLcycle's files; those of its first example if there is no such file."""
    folder, _, algorithm = name.partition("/")
    env = RLCYCLE_ENVS.get(folder)
    if env is None or not algorithm:
        return "rainbow PongNoFrameskip-v4"
    continuous = folder == "lunarlander" and algorithm in ("ddpg", "sac")
    return (
        f"{RLCYCLE_ALGORITHMS.get(algorithm, algorithm)} {'LunarLanderContinuous-v3' if continuous else env}"
    )


def leading(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before the first flag, and the rest."""
    count = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return words[:count], words[count:]


def wants_help(words: list[str]) -> tuple[bool, list[str]]:
    """Whether help is asked for, and the other words."""
    rest = [word for word in words if word not in ("-h", "--help", "--help-all")]
    return len(rest) < len(words), rest


def first_line(thing: Any) -> str:
    """The first line of a docstring."""
    return (thing.__doc__ or "").strip().split("\n")[0]
