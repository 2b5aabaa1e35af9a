"""From the layers of a population's settings to checked ones: which belong to the population, which to its learners."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whorl.core.errors import CheckpointError, ConfigError, misspelt
from whorl.core.spec import Spec
from whorl.data.config import ReplayConfig
from whorl.population.config import MAY_CHANGE, EvolveConfig
from whorl.population.evolver import CONFIG, LEARNERS, POPULATION
from whorl.settings.aliases import canonical, is_expansion
from whorl.settings.draws import RANDOM, Draw, configured, meant, read_draws, saying_random, take_random
from whorl.settings.merge import Settings, merge, settings_of
from whorl.settings.presets import algorithm_class, read_yaml
from whorl.settings.run import RunConfig
from whorl.settings.schema import build, fields_of
from whorl.settings.secrets import hidden
from whorl.state.policy import build_agent

DEFAULTS: dict[str, Any] = {"tensorboard": False, "keep_checkpoints": 2}
"""default settings of learners: many short trainings"""
FIXED = {
    **dict.fromkeys(
        ("total_timesteps", "max_iterations", "total_episodes", "max_seconds"),
        "learners train for generations times generation_steps; set these",
    ),
    **dict.fromkeys(
        ("eval", "eval_freq"),
        "every learner is evaluated once at the end of each generation; set n_eval_episodes",
    ),
    **dict.fromkeys(
        ("save_model", "checkpoint_freq"),
        "every learner is saved once at the end of each generation; leave it out",
    ),
    "render": "learners are evaluated in their own processes; show the best one with whorl eval RUN --render",
    **dict.fromkeys(
        ("load_model", "load_checkpoint_dir", "load_strict"), "learners start from new weights; leave it out"
    ),
}
"""settings that a population decides, with what to do instead"""
ENABLED = "evolver_enabled"
"""Advanced-SAC's switch, which is on in a population"""
SAFE_REPLAY = (
    "gamma",
    "batch_size",
    "learning_starts",
    "updates_per_step",
    "priority_beta",
    "priority_beta_steps",
)
"""settings of the replay buffer that may differ between learners and change in a run"""
RUN_MAY_CHANGE = ("quiet", "ray", "device", "env_device", "threads", "actor_restarts", "restarts_per_hour")


def split(
    layers: Sequence[Mapping[str, Any]], algorithm: str
) -> tuple[dict[str, Any], Any, list[dict[str, Any]]]:
    """Settings of the population, `random_params`, and the layers of the learners' settings."""
    hints = fields_of(EvolveConfig)
    own: dict[str, Any] = {}
    drawn, layers = take_random(layers, settings_of(algorithm_class(algorithm)[1]))
    for layer in layers:
        own |= {canonical(str(key), hints): value for key, value in layer.items()}
    own = {name: value for name, value in own.items() if name in hints}
    rest = [
        {
            k: v
            for k, v in layer.items()
            if canonical(str(k), hints) not in hints and (k, v) != (ENABLED, True)
        }
        for layer in layers
    ]
    return own, drawn, rest


def named(layers: Sequence[Mapping[str, Any]], key: str, example: str) -> Any:
    """The algorithm or environment that layers name; the last one decides."""
    found = [layer[key] for layer in layers if layer.get(key) is not None]
    if not found:
        raise ConfigError(f"the settings of a population must name its {key}, as in {key}: {example}")
    return found[-1]


def check_layers(layers: Iterable[Mapping[str, Any]], algorithm: str) -> None:
    """Raise for settings of learners that a population decides, and for misspelt ones of the population."""
    hints = settings_of(algorithm_class(algorithm)[1])
    keys = list(dict.fromkeys(str(key) for layer in layers for key in layer))
    fixed = [(key, FIXED[name]) for key in keys if (name := canonical(key, hints)) in FIXED]
    if problems := [f"{key} can't be set for a population: {why}" for key, why in fixed]:
        raise ConfigError(problems[0], "\n".join(problems[1:]))
    for key in keys:
        name = canonical(key, hints)
        word = misspelt(name, fields_of(EvolveConfig))
        if word and name not in hints and not is_expansion(name, hints):
            raise ConfigError(
                f"neither a population nor {algorithm} has a setting {key!r}; did you mean {word!r}?"
            )


def budget(config: EvolveConfig) -> dict[str, Any]:
    """The settings of learners that follow from those of the population."""
    steps = config.generations * config.generation_steps
    return {"total_timesteps": steps, "checkpoint_freq": steps, "eval": False}


def check(config: EvolveConfig, settings: Settings, draws: Mapping[str, Draw], spec: Spec) -> None:
    """Raise where settings of the population and of its learners do not fit each other."""
    run = settings.run
    rows = run.num_envs * run.num_steps
    if config.generation_steps < rows:
        raise ConfigError(
            f"generation_steps is {config.generation_steps}, but one rollout has {rows} steps ({run.num_envs} "
            f"environments x {run.num_steps}); use {rows} or more, or shorter rollouts"
        )
    if config.keep_best >= config.population:
        raise ConfigError(
            f"keep_best is {config.keep_best}, but there are {config.population} learners; use fewer, so that some "
            "draw new weights"
        )
    if config.min_std > config.max_std:
        raise ConfigError(
            f"min_std is {config.min_std} and max_std {config.max_std}; min_std must be the smaller"
        )
    if run.keep_checkpoints == 1:
        raise ConfigError(
            "keep_checkpoints is 1, but learners take over weights from the generation before; use 2 or more"
        )
    agent = build_agent(settings, spec)
    for name, draw in draws.items():
        for value in draw.extremes():
            other = build_agent(with_param(settings, name, value), spec)
            other.check(rows)
            if _shapes(other) != _shapes(agent):
                raise ConfigError(
                    f"{RANDOM}.{name} changes the shape of the networks, but learners take over each other's "
                    f"weights; draw settings of learning instead, and compare values of {name} with whorl train"
                )


def read_params(given: Any, settings: Settings) -> dict[str, Draw]:
    """`random_params`, checked against the settings that learners have."""

    def value_of(name: str) -> Any:
        _check_drawable(settings, name)
        return configured(settings, name)

    return read_draws(given, value_of)


def with_param(settings: Settings, name: str, value: Any) -> Settings:
    """Settings with one drawn value; an error says that it came from `random_params`."""
    try:
        return settings.replace(**{name: value})
    except ConfigError as error:
        raise saying_random(error) from None


def _check_drawable(settings: Settings, name: str) -> None:
    """Raise for a setting that learners can't draw."""
    kind: Any = type(settings.algo)
    for key in meant(settings, name):
        if any(key.startswith(f"{component}.") for component in settings.components):
            continue
        if key in fields_of(RunConfig):
            raise ConfigError(
                f"{RANDOM}.{name} is a setting of the training loop, which all learners share; draw settings of "
                f"{settings.algorithm}, such as gamma"
            )
        if key not in fields_of(kind):
            raise ConfigError(
                f"{RANDOM}.{name} can't be drawn by a population; draw settings of {settings.algorithm}, such as "
                "gamma, or of its components"
            )
        if (
            key in fields_of(ReplayConfig)
            and key not in SAFE_REPLAY
            and hasattr(settings.algo, "buffer_size")
        ):
            raise ConfigError(
                f"{RANDOM}.{name} decides what the replay buffer holds, which a learner keeps; of its settings "
                f"{', '.join(SAFE_REPLAY)} can be drawn"
            )


def _shapes(agent: Any) -> dict[str, Any]:
    return {name: tuple(value.shape) for name, value in agent.state_dict().items()}


def load(folder: Path, changes: Mapping[str, Any]) -> tuple[EvolveConfig, dict[str, Any], Any]:
    """Settings of the population, those of its learners and `random_params`, with some changed."""
    path = folder / CONFIG
    try:
        found = read_yaml(path.read_text("utf-8"), str(path))
        own, learners, drawn = dict(found[POPULATION]), dict(found[LEARNERS]), found[RANDOM]
    except (OSError, TypeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} can't be read: {error}") from None
    hints, run = fields_of(EvolveConfig), fields_of(RunConfig)
    before = learners.get("env_options")
    for key, value in changes.items():
        if key.partition(".")[0] == "env_options":
            merge(learners, {key: value}, {})
            if hidden(learners["env_options"]) != before:
                raise ConfigError(
                    f"a resumed population can't change 'env_options', which is {before!r}; only secrets, which are "
                    "not saved, are given again"
                )
            continue
        name = canonical(canonical(str(key), hints), run)
        if name not in (*MAY_CHANGE, *RUN_MAY_CHANGE):
            raise ConfigError(
                f"a resumed population can't change {key!r}; it can change "
                f"{', '.join((*MAY_CHANGE, *RUN_MAY_CHANGE))}"
            )
        (own if name in hints else learners)[name] = value
    config = build(EvolveConfig, own)
    return config, {**learners, **budget(config)}, drawn
