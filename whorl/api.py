"""The public API: make, load, train, evolve, resume, restore, evaluate, record, plot, video, check and others."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, overload

import torch

from whorl.box.cards import load as load_agent
from whorl.box.names import Named, RunName, find_folder, find_folders, find_policy, find_runs
from whorl.core.errors import ConfigError, EnvError, WhorlError, misspelt, nearest
from whorl.core.files import expanded
from whorl.core.hardware import cores, has_display
from whorl.core.process import configure_process
from whorl.core.registry import only_trusted, register
from whorl.datasets.minari import Writer, dataset_name, free_id
from whorl.distributed.pool import make_vector
from whorl.envs import checker
from whorl.envs import make as envs
from whorl.envs.behavior_checks import check_behaviors
from whorl.envs.make import Made, find
from whorl.log.media import Media
from whorl.population.evolver import Evolved, is_population
from whorl.population.load import load_population, resume_population
from whorl.run.behaviors.evaluate import play
from whorl.run.behaviors.trainer import BehaviorTrainer
from whorl.run.build import choose_device
from whorl.run.callbacks import Callback
from whorl.run.checkpointing import find_checkpoint
from whorl.run.evaluate import EVAL_ENVS, Evaluation, Evaluations, run_episodes, shares_of
from whorl.run.prepare import as_options, prepare_all, settings_given
from whorl.run.record import Behavior, Recording, check_recordable, record_episodes
from whorl.run.reporting import LoggerFactory, Result
from whorl.run.resume import load_run
from whorl.run.saved_env import check_spaces, source_of
from whorl.run.show import Show, explaining_render_errors
from whorl.run.trainer import Trainer
from whorl.run.viewer import Viewer
from whorl.settings.aliases import OF_EVALUATION, OPPOSITES
from whorl.settings.behaviors import BEHAVIORS, BehaviorSettings, read_saved
from whorl.settings.presets import algorithms, read_files, read_yaml
from whorl.settings.run import RunConfig
from whorl.settings.schema import build, coerce
from whorl.state import checkpoint, code
from whorl.state.policy import SavedPolicy, load_policy, read_policy

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
    algorithm: str | AlgorithmConfig = "ppo",
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
    algorithm: str | AlgorithmConfig = "ppo",
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
    run: RunName,
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
    changes = {key: value for layer in read_files(files) for key, value in layer.items()}
    changes |= settings_given(config, settings)
    changes |= {} if env_options is None else {"env_options": as_options(env_options)}
    folder = find_folder(run)
    if is_population(folder):
        if callbacks or loggers:
            name = "callbacks" if callbacks else "loggers"
            raise ConfigError(f"{folder} is a population, whose learners take no {name}; leave {name} out")
        return resume_population(folder, changes, env, trust).train()
    return load_run(folder, changes, env=env, callbacks=callbacks, loggers=loggers, trust=trust).train()


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


def restore(
    run: RunName,
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


def is_several(run: RunName | SavedPolicy) -> bool:
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
    run: RunName,
    episodes: int,
    env: Any,
    env_options: Mapping[str, Any] | None,
    seed: int,
    max_steps: int,
    deterministic: bool,
    best: bool,
    trust: Sequence[str],
    device: str,
    show: Show,
) -> Evaluations:
    """Play episodes with the trained policies of all behaviours of a run; arguments as those of `evaluate`."""
    found = _saved(find_folder(run), best)
    with only_trusted(code.admit(found.code, trust), code.hint(found.folder, found.code)):
        with checkpoint.reading(found.folder, checkpoint.CONFIG):
            settings = read_saved(found.config)
        source = source_of(env, settings, env_options, show.mode)
    policies = {name: _policy(found, name, trust, device) for name in settings.behaviors}
    assert source.adapter is not None
    with explaining_render_errors(source.id, show.mode):
        playing = source.adapter.behavior_env(source, 1 if show.render else min(episodes, EVAL_ENVS))
        try:
            for name, policy in policies.items():
                if name not in playing.specs:
                    raise EnvError(f"{source.id} has no behaviour {name!r}; {nearest(name, playing.specs)}")
                check_spaces(policy.spec, playing.specs[name], source.id)
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


def _checked_evaluation(episodes: int, seed: int, max_steps: int) -> tuple[int, int, int]:
    """The arguments of an evaluation as whole numbers; raises for others."""
    if isinstance(episodes, str) or hasattr(episodes, "step") or callable(episodes):
        raise ConfigError(
            f"episodes is {episodes!r}; it must be a whole number; name an environment: whorl.evaluate(run, env=...)"
        )
    episodes = coerce("episodes", episodes, int)
    if not 1 <= episodes <= MOST_EPISODES:
        raise ConfigError(f"episodes is {episodes}; it must lie between 1 and {MOST_EPISODES:,}")
    run = build(RunConfig, {"seed": seed, **({"eval_max_steps": max_steps} if max_steps else {})})
    return episodes, run.seed, run.eval_max_steps if max_steps else 0


def evaluate(
    run: RunName | SavedPolicy,
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
        max_steps: end an episode after this many steps and count its return so far; 0: `eval_max_steps` of the run.
        video: a file to record the first episode to.
        screenshots: a folder for pictures of the last state of each episode, in the size that the environment renders.
        render: show the episodes while they are played: in a window, or where there is no display on a page of this
            machine, whose address is printed. Or a function of the environment's id and steps per second that makes a
            `Viewer` of its own.
    """
    _refuse(evaluate, unknown)
    episodes, seed, max_steps = _checked_evaluation(episodes, seed, max_steps)
    show = Show(video, screenshots, render)
    if is_several(run):
        assert not isinstance(run, SavedPolicy)
        return _evaluate_behaviors(
            *(run, episodes, env, env_options, seed, max_steps, deterministic, best, trust, device, show)
        )
    policy = _restored(run, best, trust, device)
    mode = show.mode
    with only_trusted(code.expanded(trust)):
        source = source_of(env, policy.settings, env_options, mode)
        if render is True and not show.saves and source.world is None and has_display():
            mode = "human"  # a window of its own
            source = source_of(env, policy.settings, env_options, mode)
            show = Show(None, None, False)
    num_envs = source.num_envs or (1 if render else min(episodes, EVAL_ENVS))
    settings = policy.settings.run
    # Threads and processes as in training: torch's default of a thread per core slows small batches on a busy machine.
    workers = min(settings.workers, cores(), num_envs)
    if mode is not None or env is not None or not source.named or workers == 1:
        workers = 0
    with explaining_render_errors(source.id, mode), configure_process(settings.threads, settings.tf32):
        vector = make_vector(source, num_envs, policy.agent.device, workers, timeout=settings.env_timeout)
        try:
            # What trackers read has to be there; a policy alone needs no privileged observations.
            privileged = () if policy.agent.tracks else policy.agent.privileged
            check_spaces(policy.spec, vector.spec, source.id, privileged)
            limit = max_steps or settings.eval_max_steps
            shares = enumerate(shares_of(episodes, vector))
            quota = [0 if row % vector.players else share for row, share in shares]  # a picture of each game
            with torch.no_grad(), show.watch(source, quota) as watch:
                return run_episodes(
                    *(policy.agent, vector, episodes, seed, deterministic, watch, limit), warn=not max_steps
                )
        finally:
            vector.close()


def _restored(run: RunName | SavedPolicy, best: bool, trust: Sequence[str], device: str) -> SavedPolicy:
    """The policy of a run, or the one that was given, which is on its device already."""
    if not isinstance(run, SavedPolicy):
        return restore(run, best=best, trust=trust, device=device)
    if best:
        raise ConfigError(
            "best chooses a policy of a run, but a policy was given: whorl.restore(run, best=True)"
        )
    if device != "cpu" and choose_device(device) != run.agent.device:
        raise ConfigError(
            f"device is {device}, but the policy was restored to {run.agent.device}: "
            f"whorl.restore(run, device={device!r})"
        )
    return run


def record(
    run: RunName | SavedPolicy,
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
        max_steps: truncate an episode after this many steps; 0: `eval_max_steps` of the run.
        epsilon: probability of a random action.
        noise: standard deviation of Gaussian noise on continuous actions, for actions scaled to [-1, 1].
    """
    _refuse(record, unknown)
    episodes, seed, max_steps = _checked_evaluation(episodes, seed, max_steps)
    if is_several(run):
        raise WhorlError("a run of several behaviours can't be recorded; a dataset is that of one policy")
    policy = _restored(run, best, trust, device)
    behavior = Behavior(deterministic, epsilon, noise)
    with only_trusted(code.expanded(trust)):
        source = source_of(env, policy.settings, env_options)
    check_recordable(source, behavior)
    privileged = () if policy.agent.tracks else policy.agent.privileged
    check_spaces(policy.spec, source.spec(1), source.id, privileged)
    folder = None if output is None else expanded(output)
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


def plot(
    *runs: RunName | Sequence[RunName], metrics: Sequence[str] = (), output: str | Path | None = None
) -> Media:
    """Learning curves of runs, those that differ in their seed as one with a band; a notebook shows them.

    Args:
        runs: each an argument, or lists of them.
        metrics: what to draw, one row of panels each; by default the return.
        output: a .png, .svg or .pdf file; by default plot.png, in the folder of a single run.
    """
    from whorl.log.plot import RETURN, plot_runs

    names: list[RunName] = []
    for given in runs:
        names += given if isinstance(given, list | tuple) else [given]  # type: ignore[list-item]  # a str is no list
    if not names:
        raise ConfigError("name at least one run: whorl.plot(run)")
    folders = find_folders(names)
    path = (folders[0] if len(folders) == 1 else Path()) / "plot.png" if output is None else Path(output)
    return Media(plot_runs(find_runs(names), path, metrics or (RETURN,)))


def video(run: RunName | SavedPolicy, output: str | Path | None = None, **options: Any) -> Media:
    """An episode with a trained policy as a video, which a notebook shows.

    Args:
        output: a .gif or .mp4 file; by default video.gif in the folder of the run; a policy alone needs it.
        options: those of `evaluate`, such as `best`, `seed`, `max_steps` and `env_options`.
    """
    if output is not None:
        path = Path(output)
    elif isinstance(run, SavedPolicy):
        raise ConfigError("a policy was given, which has no folder; name the file: output='video.gif'")
    else:
        path = find_policy(run).output("video.gif")
    evaluate(run, **{"episodes": 1, **options, "video": path})
    return Media(path)


Result.make_video = staticmethod(video)


def check(env: Any, env_options: Mapping[str, Any] | None = None, **unknown: Any) -> list[str]:
    """Mistakes found in an environment (an id, an object, or a class or function), each with its remedy.

    Args:
        env_options: what the environment is made with.
    """
    _refuse(check, unknown)
    options = as_options(env_options)
    try:
        source = find(env, options)
    except WhorlError:
        if isinstance(env, str) or options:
            raise
        return checker.check(env)
    if source.adapter is not None and source.adapter.behaviors(source.id, source.options):
        return check_behaviors(source)
    return checker.check(source.factory if isinstance(env, str) or options else env)


def _refuse(function: Callable[..., Any], unknown: Mapping[str, Any]) -> None:
    """Raise for keyword arguments that a function of this module does not have."""
    names = [key for key, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD]
    for key in unknown:
        start = f"{function.__name__} has no setting {key!r}"
        if (here := OF_EVALUATION.get(key)) in names:
            raise ConfigError(f"{start}; here it is called {here!r}")
        if (here := OPPOSITES.get(key)) in names:
            raise ConfigError(f"{start}; the opposite is {here!r}, True or False")
        if word := misspelt(key, names):
            raise ConfigError(f"{start}; did you mean {word!r}?")
        raise ConfigError(f"{start}; it takes {', '.join(names)}")
