"""The public API: make, load, train, resume, restore, evaluate, check, algorithms, register."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, overload

import torch
from gymnasium.error import DependencyNotInstalled

from whorl.core.errors import CheckpointError, ConfigError, WhorlError
from whorl.core.registry import only_trusted, register, require_trust
from whorl.envs import checker
from whorl.envs import make as envs
from whorl.envs.adapters.imported import module_of
from whorl.envs.make import Made, Source, find
from whorl.log.video import save_video
from whorl.run.build import choose_device
from whorl.run.callbacks import Callback
from whorl.run.checkpointing import find_checkpoint, use_checkpoint
from whorl.run.evaluate import Evaluation, run_episodes
from whorl.run.reporting import LoggerFactory, Result
from whorl.run.trainer import Trainer
from whorl.settings.merge import Settings, configure, plain_fields
from whorl.settings.presets import algorithm_of, algorithms
from whorl.settings.run import MAY_CHANGE, RunConfig
from whorl.settings.schema import build
from whorl.state import checkpoint
from whorl.state.policy import SavedPolicy, load_policy
from whorl.state.runfolder import resolve_run

__all__ = ["algorithms", "check", "evaluate", "load", "make", "register", "restore", "resume", "train"]


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
    files: Sequence[str | Path] = (),
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    env_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Trainer: ...
@overload
def load(
    env: Any,
    algorithm: str = "ppo",
    config: Mapping[str, Any] | RunConfig | None = None,
    *,
    files: Sequence[str | Path] = (),
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    env_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Trainer: ...
def load(
    env: Any,
    algorithm: Any = "ppo",
    config: Mapping[str, Any] | RunConfig | None = None,
    *,
    files: Sequence[str | Path] = (),
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    env_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Trainer:
    """A trainer for an algorithm on an environment; tuned preset < files < config < keyword settings.

    Args:
        env: an id, an environment or a factory.
        algorithm: a name, or a config object such as `PPOConfig(gamma=0.99)`, whose values are all used as they are.
        config: settings of the loop and the algorithm as a mapping, or a `RunConfig`, whose values are all used.
    """
    given = {} if env_options is None else {"env_options": dict(env_options)}
    if dataclasses.is_dataclass(algorithm):
        algorithm, values = algorithm_of(algorithm), plain_fields(algorithm)
        given = {**values, **given}
    if isinstance(config, RunConfig):
        config = plain_fields(config)
    made = find(env)
    options = made.options if made.named else None
    given = {**given, **made.settings({**(config or {}), **settings})}
    found = configure(algorithm, made.id, given, files, options=options)
    source = _with_options(made, found.env_options)
    source.check(found.run)
    found = dataclasses.replace(found, env_options=dict(source.options))
    return Trainer(source, found, callbacks, loggers)


def train(
    env: Any, algorithm: Any = "ppo", config: Mapping[str, Any] | RunConfig | None = None, **settings: Any
) -> Result:
    """Load and train in one call; see `load`."""
    return load(env, algorithm, config, **settings).train()


def resume(
    run: str | Path,
    config: Mapping[str, Any] | None = None,
    *,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    trust: Sequence[str] = (),
    **changes: Any,
) -> Result:
    """Continue a run from its newest complete checkpoint, bit for bit; `total_timesteps=...` extends it."""
    return load_run(run, {**(config or {}), **changes}, env=env, callbacks=callbacks, trust=trust).train()


def load_run(
    run: str | Path,
    changes: Mapping[str, Any],
    *,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    trust: Sequence[str] = (),
) -> Trainer:
    """The trainer of a saved run with its state restored."""
    folder = resolve_run(run)
    if folder.name == checkpoint.BEST:
        raise CheckpointError(
            f"{folder} holds only a policy, not the state that training needs; resume {folder.parent}"
        )

    def trainer(config: Mapping[str, Any]) -> Trainer:
        saved = configure(config["algorithm"], config["env"], config, presets=False)
        settings = configure(saved.algorithm, saved.env, saved.plain(), presets=False, changes=changes)
        _check_changes(saved, settings)
        return Trainer(_source(env, settings.env, settings.env_options), settings, callbacks)

    with only_trusted(tuple(trust)):
        unsaved = checkpoint.run_config(folder)
        if unsaved is not None:
            return trainer(unsaved).attach_new(folder)
        return use_checkpoint(folder, lambda found: trainer(found.config).attach(found.folder.parent, found))


def restore(
    run: str | Path, *, best: bool = False, trust: Sequence[str] = (), device: str = "cpu"
) -> SavedPolicy:
    """The trained policy of a run or checkpoint, with its normalisers, memory and action scaling."""
    folder = resolve_run(run)
    if best and folder.name != checkpoint.BEST:
        folder = (folder.parent if folder.name.startswith("checkpoint_") else folder) / checkpoint.BEST
    found = checkpoint.load(folder) if folder.name == checkpoint.BEST else find_checkpoint(folder)
    return load_policy(found.policy, tuple(trust), str(choose_device(device)))


def evaluate(
    run: str | Path | SavedPolicy,
    episodes: int = 20,
    *,
    env: Any = None,
    seed: int = 12_345,
    deterministic: bool = True,
    best: bool = False,
    video: str | Path | None = None,
    render: bool = False,
    trust: Sequence[str] = (),
    device: str = "cpu",
    env_options: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Play episodes with a trained policy; `video` records the first one, `render` shows them in a window.

    Args:
        env_options: options of the environment, over those of the run.
    """
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}; it must be at least 1")
    build(RunConfig, {"seed": seed})
    policy = run if isinstance(run, SavedPolicy) else restore(run, best=best, trust=trust, device=device)
    options = {**policy.settings.env_options, **(env_options or {})}
    if video is not None or render:
        options["render_mode"] = "human" if render else "rgb_array"
    with only_trusted(tuple(trust)):
        source = _source(env, policy.settings.env, options)
    if render and source.world is not None:
        raise WhorlError(
            f"{source.id} can't be shown in a window; record it with video=PATH (on the command line --video)"
        )
    vector = source.vector(source.num_envs or (1 if render else min(episodes, 32)), policy.agent.device)
    camera = _Camera(source.id, _frame_rate(source)) if video is not None else None
    try:
        with torch.no_grad():
            found = run_episodes(policy.agent, vector, episodes, seed, deterministic, camera)
    except DependencyNotInstalled as error:
        raise WhorlError(f"{source.id} can't be rendered: {error}") from error
    finally:
        vector.close()
    if video is not None and camera is not None:
        save_video(camera.frames, Path(video), camera.fps)
    return found


def check(env: Any, env_options: Mapping[str, Any] | None = None) -> list[str]:
    """Mistakes found in an environment (an id, with options, an object or a factory), each with its remedy."""
    return checker.check(find(env, env_options).factory if isinstance(env, str) or env_options else env)


class _Camera:
    """Records the first episode of the first environment, about 25 frames per second of it."""

    def __init__(self, id: str, rate: float) -> None:
        self.id = id
        self.stride = max(1, round(rate / 25))
        self.fps = rate / self.stride
        self.frames: list[Any] = []
        self.steps = 0
        self.over = False

    def __call__(self, world: Any, step: Any) -> None:
        if self.over:
            return
        self.over = bool(step.terminated[0] | step.truncated[0])
        if self.steps % self.stride == 0 or self.over:
            frame = world.render(0)
            if frame is None:
                raise WhorlError(f"{self.id} renders no frames, so there is nothing to record")
            self.frames.append(frame)
        self.steps += 1


def _frame_rate(source: Source) -> float:
    env = source.factory()
    env.close()
    return float((env.metadata or {}).get("render_fps") or 30)


def _with_options(source: Source, options: Mapping[str, Any]) -> Source:
    """The source of an environment with options from a file or the config."""
    if not options or dict(options) == dict(source.options):
        return source
    if not source.named:
        raise ConfigError("env_options can't change an environment that is already made; pass its id instead")
    return find(source.id, {**source.options, **options})


def _check_changes(saved: Settings, asked: Settings) -> None:
    kept, wanted = saved.plain(), asked.plain()
    for name in sorted(set(kept) - set(MAY_CHANGE)):
        if wanted.get(name) != kept[name]:
            raise ConfigError(
                f"a resumed run can't change {name!r}, which is {kept[name]!r} in the saved run; it can change "
                f"{', '.join(MAY_CHANGE)}; for anything else start a new run with load_model and load_checkpoint_dir"
            )


def _source(env: Any, id: str, options: Mapping[str, Any]) -> Source:
    """The environment of a saved run, or the one given instead."""
    if env is not None:
        return find(env, options)
    if module := module_of(id):
        require_trust(module, "an environment of")
    try:
        return find(id, options)
    except WhorlError as error:
        raise CheckpointError(
            f"{error} (if the run was made with an environment of your own, pass it as env=)"
        ) from None
