"""The public API: make, load, train, evolve, resume, restore, evaluate, record, plot, video, check and others."""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, overload

import gymnasium
import numpy as np
import torch
from gymnasium.error import DependencyNotInstalled

from whorl.box.cards import load as load_agent
from whorl.box.names import Named, find_folder, find_folders, find_policy, find_runs
from whorl.core.errors import CheckpointError, ConfigError, EnvError, WhorlError, misspelt, nearest
from whorl.core.hardware import cores, has_display
from whorl.core.process import configure_process
from whorl.core.registry import only_trusted, register, registered, require_part, require_trust
from whorl.core.spec import Spec, differences, without_keys
from whorl.core.tree import Tree
from whorl.datasets.minari import Writer, dataset_name, free_id
from whorl.distributed.pool import make_vector
from whorl.envs import checker
from whorl.envs import make as envs
from whorl.envs.adapter import adapter_of
from whorl.envs.adapters.imported import module_of
from whorl.envs.adapters.pettingzoo import OPTIONS as PARALLEL_OPTIONS
from whorl.envs.make import Made, Source, find, takes, without_training_options
from whorl.envs.vector import Step
from whorl.envs.wrappers import split
from whorl.log.media import Media
from whorl.log.video import save_video
from whorl.population import setup
from whorl.population.config import EvolveConfig
from whorl.population.evolver import Evolved, Evolver, is_population, read_lineage
from whorl.run.behaviors import BehaviorTrainer, check_behaviors, play
from whorl.run.build import choose_device, kind_of
from whorl.run.callbacks import Callback
from whorl.run.checkpointing import find_checkpoint, use_checkpoint
from whorl.run.evaluate import EVAL_ENVS, Evaluation, Evaluations, Watch, run_episodes, shares_of
from whorl.run.record import Behavior, Recording, check_recordable, record_episodes
from whorl.run.recording import Camera, Screenshots
from whorl.run.reporting import LoggerFactory, Result
from whorl.run.trainer import Trainer
from whorl.run.viewer import Viewer, frame_rate
from whorl.settings.behaviors import (
    BEHAVIORS,
    BehaviorSettings,
    check_sections,
    read_saved,
    take_behaviors,
    together,
)
from whorl.settings.draws import configured, draw_all, is_random, read_draws, saying_random, take_random
from whorl.settings.merge import Settings, chosen_fields, configure, merge, plain_fields, settings_of
from whorl.settings.presets import (
    algorithm_class,
    algorithm_of,
    algorithms,
    preset_names,
    read_file,
    read_yaml,
    same_name,
)
from whorl.settings.run import MAY_CHANGE, RunConfig
from whorl.settings.schema import build
from whorl.settings.secrets import HIDDEN, require_secrets
from whorl.settings.trust import import_paths, paths_in
from whorl.state import checkpoint, code
from whorl.state.policy import SavedPolicy, load_policy, read_policy, unpack_spec
from whorl.state.runfolder import new_run_folder

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from whorl.settings.keywords import Keywords

__all__ = [
    "algorithms",
    "check",
    "evaluate",
    "evolve",
    "load",
    "make",
    "plot",
    "record",
    "register",
    "restore",
    "resume",
    "train",
    "video",
]

MOST_EPISODES = 10**6
"""of one evaluation, whose returns are all kept"""


class AlgorithmConfig(Protocol):
    """A config object of an algorithm: a dataclass such as `PPOConfig`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


def make(env_id: Any, **options: Any) -> Made:
    """An environment from an id (native, Gymnasium's or registered), an object or a factory."""
    return envs.make(env_id, **options)


@overload
def load(
    env: Any,
    algorithm: AlgorithmConfig,
    config: Mapping[str, Any] | RunConfig | None = None,
    *,
    files: Sequence[str | Path | Mapping[str, Any]] = (),
    env_options: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    **settings: Any,
) -> Trainer: ...
@overload
def load(
    env: Any,
    algorithm: str = "ppo",
    config: Mapping[str, Any] | RunConfig | None = None,
    *,
    files: Sequence[str | Path | Mapping[str, Any]] = (),
    env_options: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    **settings: "Unpack[Keywords]",
) -> Trainer: ...
@overload
def load(
    env: Any,
    algorithm: str = "ppo",
    config: Mapping[str, Any] | RunConfig | None = None,
    *,
    files: Sequence[str | Path | Mapping[str, Any]] = (),
    env_options: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    **settings: Any,
) -> Trainer: ...
def load(
    env: Any,
    algorithm: Any = "ppo",
    config: Mapping[str, Any] | RunConfig | None = None,
    *,
    files: Sequence[str | Path | Mapping[str, Any]] = (),
    env_options: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    **settings: Any,
) -> Trainer:
    """A trainer for an algorithm on an environment; tuned preset < files < config < keyword settings.

    Args:
        env: an id, an environment, or a class or function that makes one.
        algorithm: a name, or a config object such as `PPOConfig(gamma=0.99)`, whose values are all used as they are.
        config: settings of the loop and the algorithm as a mapping, or a `RunConfig`, whose values are all used.
        files: YAML files with settings, or mappings like them.
        env_options: what the environment is made with.
        loggers: besides those that settings ask for: names of registered loggers, or functions that make one.
    """
    source, found = prepare_all(env, algorithm, config, files, env_options, settings)
    if isinstance(found, BehaviorSettings):
        return BehaviorTrainer(source, found, callbacks, loggers)  # type: ignore[arg-type]  # has what a run needs
    return Trainer(source, found, callbacks, loggers)


def _check_order(env: Any, algorithm: Any) -> None:
    """Raise where environment and algorithm are swapped, or where a policy of Stable-Baselines3 comes first."""
    if not isinstance(env, str) or env in registered("environment"):
        return
    if env in ("MlpPolicy", "CnnPolicy", "MultiInputPolicy"):
        raise ConfigError(
            f"{env!r} is a policy of Stable-Baselines3; here the environment comes first, and networks are settings: "
            "whorl.load(env, 'ppo')"
        )
    known = {same_name(name) for name in (*preset_names(), *registered("algorithm"))}
    if same_name(env) in known and not (isinstance(algorithm, str) and same_name(algorithm) in known):
        shown = repr(algorithm) if isinstance(algorithm, str) else "env"
        raise ConfigError(f"the environment comes before the algorithm: whorl.load({shown}, {env!r})")


def prepare_all(
    env: Any,
    algorithm: Any,
    config: Mapping[str, Any] | RunConfig | None,
    files: Sequence[str | Path | Mapping[str, Any]],
    env_options: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> tuple[Source, Settings | BehaviorSettings]:
    """The environment and all settings of a run, which may have several behaviours; see `load`."""
    _check_order(env, algorithm)
    read = [layer for path in files for layer in read_file(path)]
    objects = config if isinstance(config, RunConfig) else None
    sections, layers = take_behaviors([*read, _settings(config, {}) if objects is None else {}, settings])
    given = {} if env_options is None else {"env_options": dict(env_options)}
    source = find(env, _options_in(layers, [given], env))
    options = {**source.options, **_env_options([*layers, given])}
    several = source.adapter is not None and source.adapter.single is False
    names = source.with_options(options).behaviors if several else ()
    check_sections(sections, names, source.id)
    if len(names) < 2 and not sections:
        return prepare(source, algorithm, config, files, env_options, settings)
    source = source.with_options(options)
    found: dict[str, Settings] = {}
    for name in names:
        own = dict(sections.get(name, {}))
        rule, common = algorithm, layers
        if "algorithm" in own:
            rule, common = own.pop("algorithm"), [_without_algorithm(layer) for layer in layers]
        try:
            one, found[name] = prepare(source.behavior(name), rule, objects, common, env_options, own)
        except ConfigError as error:
            raise ConfigError(f"behaviour {name!r}: {error.message}") from None
        if found[name].run.num_envs != one.num_envs:
            raise ConfigError(
                f"num_envs of {name!r} is {found[name].run.num_envs}, but all copies together have {one.num_envs} of "
                "its agents; leave num_envs out, and set the number of copies in env_options"
            )
    return source, together(found, source.options)


def prepare(
    env: Any,
    algorithm: Any,
    config: Mapping[str, Any] | RunConfig | None,
    files: Sequence[str | Path | Mapping[str, Any]],
    env_options: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> tuple[Source, Settings]:
    """The environment and all settings of a run; see `load`. What `random_params` name is drawn with the run's seed."""
    objects: dict[str, Any] = {}
    given = {} if env_options is None else {"env_options": dict(env_options)}
    if dataclasses.is_dataclass(algorithm):
        algorithm, chosen = algorithm_of(algorithm), algorithm
        objects |= plain_fields(chosen)
        given |= chosen_fields(chosen)
    if isinstance(config, RunConfig):
        objects |= plain_fields(config)
    read = [layer for path in files for layer in read_file(path)]
    drawn, layers = take_random(
        [*read, objects, _settings(config, {}), settings], settings_of(algorithm_class(algorithm)[1])
    )
    layers, asked = layers[: len(read)], {**layers[-2], **layers[-1]}
    made = find(env, _options_in(layers, [given, asked], env))

    def made_with(options: Mapping[str, Any]) -> Source:
        return made.with_options({**made.options, **options})

    determined = _determined(made, layers, given, asked)

    def resolved(random: Mapping[str, Any]) -> Settings:
        return configure(
            algorithm,
            made.id,
            {**given, **determined, **asked, **random},
            layers,
            options=made.options if made.named else None,
            objects=objects,
            kind=lambda options: kind_of(made_with(options)),
        )

    found = resolved({})
    if drawn is not None:
        draws = read_draws(drawn, partial(configured, found))
        try:
            found = resolved(draw_all(draws, np.random.default_rng(found.run.seed)))
        except ConfigError as error:
            raise saying_random(error) from None
    source = made_with(found.env_options)
    source.check(found.run)
    return source, dataclasses.replace(found, env_options=dict(source.options))


def _without_algorithm(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in layer.items() if key != "algorithm"}


@overload
def train(
    env: Any,
    algorithm: str | AlgorithmConfig = "ppo",
    config: Mapping[str, Any] | RunConfig | None = None,
    *,
    files: Sequence[str | Path] = (),
    env_options: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    **settings: "Unpack[Keywords]",
) -> Result: ...
@overload
def train(
    env: Any,
    algorithm: str | AlgorithmConfig = "ppo",
    config: Mapping[str, Any] | RunConfig | None = None,
    *,
    files: Sequence[str | Path] = (),
    env_options: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    **settings: Any,
) -> Result: ...
def train(
    env: Any,
    algorithm: Any = "ppo",
    config: Mapping[str, Any] | RunConfig | None = None,
    *,
    files: Sequence[str | Path] = (),
    env_options: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    **settings: Any,
) -> Result:
    """Load and train in one call; see `load`."""
    trainer = load(
        env,
        algorithm,
        config,
        files=files,
        env_options=env_options,
        callbacks=callbacks,
        loggers=loggers,
        **settings,
    )
    return trainer.train()


def resume(
    run: str | Path,
    config: Mapping[str, Any] | RunConfig | None = None,
    *,
    files: Sequence[str | Path] = (),
    env: Any = None,
    env_options: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    trust: Sequence[str] = (),
    **settings: Any,
) -> Result:
    """Continue a run from its newest complete checkpoint, bit for bit; `total_timesteps=...` extends it.

    Args:
        config: settings that change; files, config and keyword settings come in this order, as in `load`.
        env: the run's environment, where it can't be found by its id.
    """
    changes = {key: value for path in files for layer in read_file(path) for key, value in layer.items()}
    changes |= _settings(config, settings)
    changes |= {} if env_options is None else {"env_options": dict(env_options)}
    folder = find_folder(run)
    if is_population(folder):
        if callbacks or loggers:
            name = "callbacks" if callbacks else "loggers"
            raise ConfigError(f"{folder} is a population, whose learners take no {name}; leave {name} out")
        return resume_population(folder, changes, env, trust).train()
    return load_run(run, changes, env=env, callbacks=callbacks, loggers=loggers, trust=trust).train()


def evolve(
    config: str | Path | Mapping[str, Any],
    *,
    env: Any = None,
    env_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Evolved:
    """Train a population of learners, in processes or on Ray; `resume` continues it.

    Args:
        config: a YAML file or a mapping with `algorithm`, `env`, settings of the population (`EvolveConfig`) and of its
            learners, and `random_params`.
        env: an environment that no id finds: a class or function that makes it.
        settings: come before those of `config`.
    """
    return load_population(config, env=env, env_options=env_options, settings=settings).train()


def load_population(
    config: str | Path | Mapping[str, Any],
    *,
    env: Any = None,
    env_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Evolver:
    """The population that `evolve` runs, in a new folder."""
    read = [*read_file(config), settings]
    algorithm = setup.named(read, "algorithm", "sac")
    own, drawn, layers = setup.split(read, algorithm)
    setup.check_layers(layers, algorithm)
    given = setup.named(layers, "env", "Pendulum-v1") if env is None else env
    layers = [
        {key: value for key, value in layer.items() if key not in ("algorithm", "env")} for layer in layers
    ]
    chosen = build(EvolveConfig, own)
    _require_copies(given, _env_options([*layers, {"env_options": dict(env_options or {})}]))
    source, base = prepare(given, algorithm, setup.budget(chosen), [setup.DEFAULTS, *layers], env_options, {})
    draws = setup.read_params(drawn, base)
    setup.check(chosen, base, draws, source.spec(base.run.num_envs))
    run = base.run
    folder = new_run_folder(
        Path(run.runs), f"evolve_{base.algorithm}", source.id, run.tag, run.name, run.seed
    )
    return Evolver(folder, source, base, chosen, draws)


def resume_population(
    folder: Path, changes: Mapping[str, Any], env: Any = None, trust: Sequence[str] = ()
) -> Evolver:
    """A population as it was after its last complete generation."""
    chosen, learners, drawn = setup.load(folder, changes)
    with only_trusted(code.expanded(trust)):
        base = configure(learners["algorithm"], learners["env"], learners, presets=False)
        # Learners are built in processes of their own, which import what their settings name.
        drawn_before = [row.params for row in read_lineage(folder)]
        for name in (*import_paths(base), *paths_in([drawn, drawn_before])):
            require_part(name)
        source = _source(env, base, training=True)
    return Evolver(folder, source, base, chosen, setup.read_params(drawn, base))


def load_run(
    run: str | Path,
    changes: Mapping[str, Any],
    *,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    trust: Sequence[str] = (),
) -> Trainer:
    """The trainer of a saved run with its state restored."""
    if any(map(is_random, changes)):
        raise ConfigError(
            "random_params are drawn once, when a run starts: the values of a saved run are in its config.yaml; leave "
            "random_params out to resume it"
        )
    folder = find_folder(run)

    def trainer(config: Mapping[str, Any], where: Path) -> Trainer:
        if BEHAVIORS in config:
            return _several(config, where, changes, env, callbacks, loggers)
        with checkpoint.reading(where, checkpoint.CONFIG):
            saved = configure(config["algorithm"], config["env"], config, presets=False)
        settings = configure(saved.algorithm, saved.env, saved.plain(), presets=False, changes=changes)
        _check_changes(saved, settings)
        # Networks and loggers are made later, in training. What the caller asks for now is trusted.
        for name in import_paths(settings):
            if name in import_paths(saved):
                require_part(name)
        return Trainer(_source(env, settings, training=True), settings, callbacks, loggers)

    def resumed(found: checkpoint.Loaded) -> Trainer:
        with only_trusted(code.admit(found.code, trust), code.hint(found.folder, found.code)):
            return attached(found)

    def attached(found: checkpoint.Loaded) -> Trainer:
        if not found.state:
            raise CheckpointError(
                f"{found.folder} holds only a policy, not the state that training needs; resume "
                f"{found.folder.parent}, or start a new run with load_model and load_checkpoint_dir"
            )
        checkpoint.number(found.folder)  # raises for a renamed one, which a run could not go on from
        made = trainer(found.config, found.folder)
        steps, asked = int(found.metadata["steps"]), made.settings.run.total_timesteps
        if asked != found.config.get("total_timesteps") and 0 < asked <= steps:
            warnings.warn(
                f"the run has {steps:,} steps and total_timesteps counts from its start, so {asked:,} adds none; give "
                f"more than {steps:,}",
                stacklevel=2,
            )
        with checkpoint.reading(found.folder, checkpoint.POLICY):
            policies = found.policy.get(BEHAVIORS, {"": found.policy})
            specs = {name: unpack_spec(policy["spec"]) for name, policy in policies.items()}
        for name, saved in specs.items():
            source = made.source.behavior(name) if name else made.source
            _check_spaces(saved, source.spec(saved.num_envs), source.id)
        return made.attach(found.folder.parent, found)

    unsaved = checkpoint.run_config(folder)
    if unsaved is not None:
        with only_trusted(code.expanded(trust)):
            return trainer(unsaved, folder).attach_new(folder)
    return use_checkpoint(folder, resumed)


def _several(
    config: Mapping[str, Any],
    where: Path,
    changes: Mapping[str, Any],
    env: Any,
    callbacks: Sequence[Callback],
    loggers: Sequence[str | LoggerFactory],
) -> BehaviorTrainer:
    """The trainer of a saved run with several behaviours."""
    with checkpoint.reading(where, checkpoint.CONFIG):
        saved = read_saved(config)
    settings = read_saved(saved.plain(), changes)
    for name, one in settings.behaviors.items():
        _check_changes(saved.behaviors[name], one)
        for path in import_paths(one):
            if path in import_paths(saved.behaviors[name]):
                require_part(path)
    return BehaviorTrainer(_source(env, settings, training=True), settings, callbacks, loggers)  # type: ignore[arg-type]


def restore(
    run: str | Path,
    *,
    best: bool = False,
    behavior: str = "",
    trust: Sequence[str] = (),
    device: str = "cpu",
    **unknown: Any,
) -> SavedPolicy:
    """A trained policy, with its normalisers, memory and action scaling.

    Args:
        run: a run's folder or its name in runs/, a checkpoint, an agent in the box by name, or a .safetensors file that
            `policy.export` wrote.
        behavior: which policy, where the run has several behaviours.
    """
    _refuse(restore, unknown)
    found = find_policy(run)
    if found.path.is_dir():
        return _policy(_saved(found.path, best), behavior, trust, device)
    if best or behavior:
        raise ConfigError(
            f"{str(run)!r} is {found.kind}, which holds one policy; leave {'best' if best else 'behavior'} out"
        )
    return _from_file(found, code.expanded(trust), str(choose_device(device)))


def _from_file(found: Named, trust: tuple[str, ...], device: str) -> SavedPolicy:
    """The policy of an agent in the box, or in a file."""
    if found.card is not None:
        return load_agent(found.card.name, found.path.parent, device)[0]
    if found.path.suffix == ".pt":
        return read_policy(found.path, trust, device)
    from whorl.state.formats import read_safetensors

    return read_safetensors(found.path, trust, device)


def _policy(found: checkpoint.Loaded, behavior: str, trust: Sequence[str], device: str) -> SavedPolicy:
    """The policy of a checkpoint, or of one of its behaviours."""
    names = found.policy.get(BEHAVIORS, {})
    if behavior not in (names or ("",)):
        if not behavior:
            raise ConfigError(
                f"{found.folder} has the behaviours {', '.join(names)}; name the one to restore, "
                f"behavior={next(iter(names))!r}"
            )
        raise ConfigError(
            f"{found.folder} has no behaviour {behavior!r}; {nearest(behavior, names) if names else 'leave it out'}"
        )
    policy = names[behavior] if behavior else found.policy
    chosen = str(choose_device(device))
    known = code.admit(found.code, trust)
    with checkpoint.reading(found.folder, checkpoint.POLICY):
        loaded = load_policy(policy, known, chosen, code.hint(found.folder, found.code))
        loaded.steps = int(found.metadata["steps"])
        loaded.origin = dict(found.metadata.get("provenance") or {})
        return loaded


def _saved(folder: Path, best: bool) -> checkpoint.Loaded:
    """The checkpoint that a policy is taken from."""
    return find_checkpoint(checkpoint.best_folder(folder) if best or is_population(folder) else folder)


def is_several(run: str | Path | SavedPolicy) -> bool:
    """Whether a saved run has several behaviours."""
    if isinstance(run, SavedPolicy):
        return False
    folder = find_policy(run).path
    if not folder.is_dir():
        return False
    path = (folder if (folder / checkpoint.CONFIG).is_file() else folder.parent) / checkpoint.CONFIG
    if not path.is_file():
        return False
    try:
        config = read_yaml(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError, ConfigError):  # damaged; checkpoints have their own
        return BEHAVIORS in _saved(folder, best=False).policy
    return isinstance(config, Mapping) and BEHAVIORS in config


def _evaluate_behaviors(
    run: str | Path,
    episodes: int,
    env: Any,
    env_options: Mapping[str, Any] | None,
    seed: int,
    max_steps: int,
    deterministic: bool,
    best: bool,
    trust: Sequence[str],
    device: str,
    show: "Show",
) -> Evaluations:
    """Play episodes with the trained policies of all behaviours of a run; arguments as those of `evaluate`."""
    found = _saved(find_folder(run), best)
    with only_trusted(code.admit(found.code, trust), code.hint(found.folder, found.code)):
        with checkpoint.reading(found.folder, checkpoint.CONFIG):
            settings = read_saved(found.config)
        source = _source(env, settings, env_options, show.mode)
    policies = {name: _policy(found, name, trust, device) for name in settings.behaviors}
    assert source.adapter is not None
    with _explaining(source.id, show.mode):
        playing = source.adapter.behavior_env(source, 1 if show.render else min(episodes, EVAL_ENVS))
        try:
            for name, policy in policies.items():
                if name not in playing.specs:
                    raise EnvError(f"{source.id} has no behaviour {name!r}; {nearest(name, playing.specs)}")
                _check_spaces(policy.spec, playing.specs[name], source.id)
            limit = max_steps or settings.run.eval_max_steps
            agents = {name: policy.agent for name, policy in policies.items()}
            fewest = playing.copies
            if not playing.together:
                fewest = min(spec.num_envs for spec in playing.specs.values())
            quota = [-(-episodes // fewest)] * playing.copies
            with torch.no_grad(), show.watch(source, quota) as watch:
                return play(
                    *(agents, playing, episodes, seed, deterministic, watch, limit), warn=not max_steps
                )
        finally:
            playing.close()


@dataclasses.dataclass(frozen=True)
class Show:
    """Rendering options of an evaluation; see `evaluate`."""

    video: str | Path | None
    screenshots: str | Path | None
    render: bool | Callable[[str, float], Viewer]

    @property
    def mode(self) -> str | None:
        """How environments are to be made."""
        return "rgb_array" if self.render or self.saves else None

    @property
    def saves(self) -> bool:
        return self.video is not None or self.screenshots is not None

    @contextmanager
    def watch(self, source: Source, quota: list[int]) -> Iterator[Watch | None]:
        """What watches the episodes, each environment's `quota` of them; files are complete afterwards."""
        camera = None if self.video is None else Camera(source.id, frame_rate(source))
        ends = None if self.screenshots is None else Screenshots(source.id, Path(self.screenshots), quota)
        make_viewer = Viewer if self.render is True else self.render
        viewer = make_viewer(source.id, frame_rate(source)) if make_viewer else None
        watching = [one for one in (camera, viewer, ends) if one is not None]

        def watch(env: Any, step: Step, action: Tree) -> None:
            for one in watching:
                one(env, step, action)

        try:
            yield watch if watching else None
        finally:
            if viewer is not None:
                viewer.close()
        if camera is not None and self.video is not None:
            save_video(camera.frames, Path(self.video), camera.fps)


def _check_evaluation(episodes: int, seed: int, max_steps: int) -> None:
    if not 1 <= episodes <= MOST_EPISODES:
        raise ConfigError(f"episodes is {episodes}; it must lie between 1 and {MOST_EPISODES:,}")
    build(RunConfig, {"seed": seed, **({"eval_max_steps": max_steps} if max_steps else {})})


def evaluate(
    run: str | Path | SavedPolicy,
    episodes: int = 20,
    *,
    env: Any = None,
    env_options: Mapping[str, Any] | None = None,
    seed: int = 12_345,
    max_steps: int = 0,
    deterministic: bool = True,
    best: bool = False,
    video: str | Path | None = None,
    screenshots: str | Path | None = None,
    render: bool | Callable[[str, float], Viewer] = False,
    trust: Sequence[str] = (),
    device: str = "cpu",
    **unknown: Any,
) -> Evaluation:
    """Play episodes with a trained policy, or with those of all behaviours: then each has its own in `behaviors`.

    Args:
        env: another environment than in training, with the same spaces; by default that of the run.
        env_options: options of the environment; those that are not named are as in training.
        max_steps: cut an episode after so many steps and count its return so far; 0: `eval_max_steps` of the run.
        video: a file to record the first episode to.
        screenshots: a folder for pictures of the last state of each episode, in the size that the environment renders.
        render: show the episodes while they are played: in a window, or where there is no display on a page of this
            machine, whose address is printed. Or a function of the environment's id and steps per second that makes a
            `Viewer` of its own.
    """
    _refuse(evaluate, unknown)
    _check_evaluation(episodes, seed, max_steps)
    show = Show(video, screenshots, render)
    if is_several(run):
        assert not isinstance(run, SavedPolicy)
        return _evaluate_behaviors(
            *(run, episodes, env, env_options, seed, max_steps, deterministic, best, trust, device, show)
        )
    policy = run if isinstance(run, SavedPolicy) else restore(run, best=best, trust=trust, device=device)
    mode = show.mode
    with only_trusted(code.expanded(trust)):
        source = _source(env, policy.settings, env_options, mode)
        if render is True and not show.saves and source.world is None and has_display():
            mode = "human"  # a window of its own
            source = _source(env, policy.settings, env_options, mode)
            show = Show(None, None, False)
    num_envs = source.num_envs or (1 if render else min(episodes, EVAL_ENVS))
    settings = policy.settings.run
    # Threads and processes as in training: torch's default of a thread per core slows small batches on a busy machine.
    workers = min(settings.workers, cores(), num_envs)
    if mode is not None or env is not None or not source.named or workers == 1:
        workers = 0
    with _explaining(source.id, mode), configure_process(settings.threads, settings.tf32):
        vector = make_vector(source, num_envs, policy.agent.device, workers, timeout=settings.env_timeout)
        try:
            # What trackers read has to be there; a policy alone needs no privileged observations.
            privileged = () if policy.agent.tracks else policy.agent.privileged
            _check_spaces(policy.spec, vector.spec, source.id, privileged)
            limit = max_steps or settings.eval_max_steps
            shares = enumerate(shares_of(episodes, vector))
            quota = [0 if row % vector.players else share for row, share in shares]  # a picture of each game
            with torch.no_grad(), show.watch(source, quota) as watch:
                return run_episodes(
                    *(policy.agent, vector, episodes, seed, deterministic, watch, limit), warn=not max_steps
                )
        finally:
            vector.close()


def record(
    run: str | Path | SavedPolicy,
    episodes: int = 100,
    *,
    output: str | Path | None = None,
    env: Any = None,
    env_options: Mapping[str, Any] | None = None,
    seed: int = 12_345,
    max_steps: int = 0,
    deterministic: bool = True,
    epsilon: float = 0.0,
    noise: float = 0.0,
    best: bool = False,
    trust: Sequence[str] = (),
    device: str = "cpu",
    **unknown: Any,
) -> Recording:
    """Play episodes with a trained policy and write them as a dataset in Minari's format.

    Args:
        output: folder of the dataset; default: where Minari keeps datasets, under the id `whorl/ENV/ALGORITHM-vN`.
        env: another environment than in training, with the same spaces; by default that of the run.
        env_options: options of the environment; those that are not named are as in training.
        max_steps: truncate an episode after so many steps; 0: `eval_max_steps` of the run.
        epsilon: probability of a random action.
        noise: standard deviation of Gaussian noise on continuous actions, for actions scaled to [-1, 1].
    """
    _refuse(record, unknown)
    _check_evaluation(episodes, seed, max_steps)
    if is_several(run):
        raise WhorlError("a run of several behaviours can't be recorded; a dataset is that of one policy")
    policy = run if isinstance(run, SavedPolicy) else restore(run, best=best, trust=trust, device=device)
    behavior = Behavior(deterministic, epsilon, noise)
    with only_trusted(code.expanded(trust)):
        source = _source(env, policy.settings, env_options)
    check_recordable(source, behavior)
    privileged = () if policy.agent.tracks else policy.agent.privileged
    _check_spaces(policy.spec, source.spec(1), source.id, privileged)
    folder = None if output is None else Path(output).expanduser()
    algorithm = policy.settings.algorithm
    id = free_id(f"whorl/{source.id}/{algorithm}") if folder is None else dataset_name(folder)
    one = envs.make_env(source.factory)
    about = {"algorithm_name": algorithm, "description": f"{episodes} episodes, {behavior}, seed {seed}"}
    writer = Writer(id, folder, one.observation_space, one.action_space, one.spec, about)
    one.close()
    limit = max_steps or policy.settings.run.eval_max_steps
    try:
        return record_episodes(policy, source, writer, episodes, seed, behavior, limit)
    finally:
        writer.discard()


def plot(*runs: str | Path, metrics: Sequence[str] = (), output: str | Path | None = None) -> Media:
    """Learning curves of runs, those that differ in their seed as one with a band; a notebook shows them.

    Args:
        metrics: what to draw, one row of panels each; by default the return.
        output: a .png, .svg or .pdf file; by default plot.png, in the folder of a single run.
    """
    from whorl.log.plot import RETURN, plot_runs

    folders = find_folders(runs)
    path = (folders[0] if len(folders) == 1 else Path()) / "plot.png" if output is None else Path(output)
    return Media(plot_runs(find_runs(runs), path, metrics or (RETURN,)))


def video(run: str | Path, output: str | Path | None = None, **options: Any) -> Media:
    """An episode with a trained policy as a video, which a notebook shows.

    Args:
        output: a .gif or .mp4 file; by default video.gif in the folder of the run.
        options: those of `evaluate`, such as `best`, `seed`, `max_steps` and `env_options`.
    """
    path = find_policy(run).output("video.gif") if output is None else Path(output)
    evaluate(run, **{"episodes": 1, **options, "video": path})
    return Media(path)


Result.make_video = staticmethod(video)


def check(env: Any, env_options: Mapping[str, Any] | None = None, **unknown: Any) -> list[str]:
    """Mistakes found in an environment (an id, an object, or a class or function), each with its remedy.

    Args:
        env_options: what the environment is made with.
    """
    _refuse(check, unknown)
    options = dict(env_options or {})
    try:
        source = find(env, options)
    except WhorlError:
        if isinstance(env, str) or options:
            raise
        return checker.check(env)
    if source.adapter is not None and source.adapter.behaviors(source.id, source.options):
        return check_behaviors(source)
    return checker.check(source.factory if isinstance(env, str) or options else env)


def _settings(config: Mapping[str, Any] | RunConfig | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Settings given as a mapping or config object and as keywords, which come first."""
    values = chosen_fields(config) if isinstance(config, RunConfig) else dict(config or {})
    return {**values, **keywords}


def _options_in(
    files: Sequence[str | Path | Mapping[str, Any]], given: Sequence[Mapping[str, Any]], env: Any
) -> dict[str, Any]:
    """The options among settings that a class or function needs to make its first environment."""
    if isinstance(env, str | gymnasium.Env) or not callable(env):
        return {}
    found: dict[str, Any] = {}
    for layer in [*(layer for path in files for layer in read_file(path)), *given]:
        if isinstance(layer.get("env_options"), Mapping):
            found |= layer["env_options"]
    return found


def _determined(
    made: Source, layers: Sequence[Mapping[str, Any]], given: Mapping[str, Any], asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings that a batched environment determines, unless they were asked for."""
    if made.adapter is None or made.adapter.single:
        return made.settings(asked)
    # The number of environments depends on options, which are among the settings.
    source = made.with_options({**made.options, **_env_options([*layers, given, asked])})
    return source.settings({key: value for layer in layers for key, value in layer.items()} | dict(asked))


def _env_options(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The options of the environment that layers of settings name."""
    found: dict[str, Any] = {}
    for layer in layers:
        merge(found, {key: value for key, value in layer.items() if key.startswith("env_options")}, {})
    return dict(found.get("env_options") or {})


def _require_copies(env: Any, options: Mapping[str, Any]) -> None:
    """Raise for an environment of which there is one, where each learner of a population needs its own."""
    if callable(env):
        return
    source = find(env, options if isinstance(env, str) else {})
    if source.alone:
        remedy = "train one learner with whorl train"
        if source.batch is not None:
            remedy = "pass a class or function that makes it"
        raise ConfigError(
            f"there is one {source.id}, but each learner of a population needs its own; {remedy}"
        )


def _refuse(function: Callable[..., Any], unknown: Mapping[str, Any]) -> None:
    """Raise for keyword arguments that a function of this module does not have."""
    names = [key for key, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD]
    for key in unknown:
        start = f"{function.__name__} has no setting {key!r}"
        if (here := {"n_eval_episodes": "episodes", "eval_max_steps": "max_steps"}.get(key)) in names:
            raise ConfigError(f"{start}; here it is called {here!r}")
        if word := misspelt(key, names):
            raise ConfigError(f"{start}; did you mean {word!r}?")
        raise ConfigError(f"{start}; it takes {', '.join(names)}")


@contextmanager
def _explaining(id: str, mode: str | None) -> Iterator[None]:
    """Errors of rendering in one sentence."""
    what = "shown in a window" if mode == "human" else "recorded"
    try:
        yield
    except EnvError as error:
        cause = error.__cause__
        if mode is not None and isinstance(cause, DependencyNotInstalled):
            raise WhorlError(f"{id} can't be rendered: {cause}") from error
        if mode is not None and isinstance(cause, TypeError) and "render_mode" in str(cause):
            raise EnvError(
                f"{id} can't be {what}, because its __init__ takes no render_mode; add that argument, keep it as "
                "self.render_mode, and return an image from render()"
            ) from None
        raise
    except DependencyNotInstalled as error:
        raise WhorlError(f"{id} can't be rendered: {error}") from error


def _check_spaces(saved: Spec, now: Spec, id: str, privileged: Sequence[str] = ()) -> None:
    """Raise where an environment has other spaces than the one that a policy was trained on.

    Args:
        privileged: keys of the observation that the environment may have or not.
    """
    found = differences(*(without_keys(spec, privileged) for spec in (saved, now)))
    if found:
        raise EnvError(f"{id} has other spaces than the environment of the run: {'; '.join(found)}")


def _check_changes(saved: Settings, asked: Settings) -> None:
    kept, wanted = saved.saved(), asked.saved()
    for name in sorted(set(kept) - set(MAY_CHANGE)):
        if wanted.get(name) != kept[name]:
            raise ConfigError(
                f"a resumed run can't change {name!r}, which is {kept[name]!r} in the saved run (whorl resume --help "
                "lists what it can change); start a new run from its weights with load_checkpoint_dir"
            )


def _source(
    env: Any,
    settings: Settings | BehaviorSettings,
    env_options: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
    *,
    training: bool = False,
) -> Source:
    """The environment of a saved run, or the one given instead; the run's options apply where they fit, and those that
    are meant for training alone if it goes on."""
    asked, saved = dict(env_options or {}), dict(settings.env_options)
    if not training:
        saved = without_training_options(settings.env, saved)
    drawn = {} if render_mode is None else {"render_mode": render_mode}
    if env is None:
        require_secrets({**saved, **asked})
        return _saved_source(settings.env, {**saved, **asked}, drawn)
    if isinstance(env, str):
        _check_drawn(env, drawn)
        same = find(env).id == settings.env
        options = {**(saved if same else {}), **asked, **drawn}
        require_secrets(options)
        return find(env, options)
    saved = {name: value for name, value in saved.items() if value != HIDDEN}
    if isinstance(env, Made):
        source = env.source
        fits = source.named or (source.given is not None and takes(source.given, {**source.options, **drawn}))
        return source.with_options({**source.options, **asked, **(drawn if fits else {})})
    if not callable(env) or isinstance(env, gymnasium.Env):
        return find(env, {**saved, **asked})
    own, wrapping = split(saved)
    if not takes(env, own):
        wrapping |= {name: own.pop(name) for name in PARALLEL_OPTIONS if name in own}
    options = {**(own if takes(env, {**own, **split(asked)[0]}) else {}), **wrapping, **asked}
    return find(env, options | (drawn if takes(env, {**split(options)[0], **drawn}) else {}))


def _saved_source(id: str, options: Mapping[str, Any], drawn: Mapping[str, Any]) -> Source:
    if module := module_of(id):
        require_trust(module, "an environment of")
    _check_drawn(id, drawn)
    try:
        return find(id, {**options, **drawn})
    except WhorlError as error:
        if id.isidentifier():
            raise CheckpointError(
                f"the environment of the run, {id}, was given as a class or an object and can't be found by its name; "
                f"pass it as env={id}, or name its module, as in env='my_envs:{id}' (whorl eval --env my_envs:{id})"
            ) from None
        raise CheckpointError(
            f"{error.message} (if the run was made with an environment of your own, pass it as env=)",
            error.details,
        ) from None


def _check_drawn(id: str, drawn: Mapping[str, Any]) -> None:
    """Raise where something is to be drawn that has no pictures."""
    if drawn and not adapter_of(id).renders:
        raise WhorlError(
            f"{id} is a batch of environments, which is not rendered: neither a video nor a window can show it; leave "
            "out video and render (on the command line --video and --render)"
        )
