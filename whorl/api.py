"""The public API: make, load, train, resume, restore, evaluate, check, algorithms, register."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gymnasium.error import DependencyNotInstalled

from whorl.core.errors import CheckpointError, ConfigError, WhorlError
from whorl.core.registry import only_trusted, register, require_trust
from whorl.envs import checker
from whorl.envs import make as envs
from whorl.envs.make import Made, Source, find
from whorl.log.video import save_video
from whorl.run.callbacks import Callback
from whorl.run.evaluate import Evaluation, run_episodes
from whorl.run.trainer import Result, Trainer, choose_device, find_checkpoint, use_checkpoint
from whorl.settings.merge import Settings, build, configure
from whorl.settings.presets import algorithm_class, algorithms
from whorl.settings.run import MAY_CHANGE, RunConfig
from whorl.state import checkpoint
from whorl.state.policy import SavedPolicy, load_policy
from whorl.state.runfolder import resolve_run

__all__ = ["algorithms", "check", "evaluate", "load", "make", "register", "restore", "resume", "train"]


def make(env_id: Any, **options: Any) -> Made:
    """An environment by id (ours, Gymnasium's, or one you registered), from an object, or from a factory."""
    return envs.make(env_id, **options)


def load(
    env: Any,
    algorithm: str = "ppo",
    config: Mapping[str, Any] | None = None,
    *,
    files: Sequence[str | Path] = (),
    callbacks: Sequence[Callback] = (),
    env_options: Mapping[str, Any] | None = None,
) -> Trainer:
    """A trainer for `algorithm` on `env` (an id, an environment or a factory); tuned preset < files < config."""
    given = {} if env_options is None else {"env_options": dict(env_options)}
    made = find(env)
    options = made.options if made.named else None
    settings = configure(algorithm, made.id, {**made.settings(config or {}), **given}, files, options=options)
    source = _with_options(made, settings.env_options)
    source.check(settings.run)
    return Trainer(source, replace(settings, env_options=dict(source.options)), callbacks)


def train(env: Any, algorithm: str = "ppo", **config: Any) -> Result:
    """Load and train in one call."""
    return load(env, algorithm, config).train()


def resume(
    run: str | Path,
    config: Mapping[str, Any] | None = None,
    *,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    trust: Sequence[str] = (),
    **changes: Any,
) -> Result:
    """Go on with a run from its newest whole checkpoint, bit for bit; `total_timesteps=...` and the like ask for more."""
    return load_run(run, {**(config or {}), **changes}, env=env, callbacks=callbacks, trust=trust).train()


def load_run(
    run: str | Path,
    changes: Mapping[str, Any],
    *,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    trust: Sequence[str] = (),
) -> Trainer:
    """The trainer of a saved run, its state restored."""
    folder = resolve_run(run)
    if folder.name == checkpoint.BEST:
        raise CheckpointError(
            f"{folder} holds a policy alone, without the state to go on; resume {folder.parent}"
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
        return use_checkpoint(
            folder, _warn, lambda found: trainer(found.config).attach(found.folder.parent, found)
        )


def restore(
    run: str | Path, *, best: bool = False, trust: Sequence[str] = (), device: str = "cpu"
) -> SavedPolicy:
    """The trained policy of a run or checkpoint, self-contained: normalisers, memory and action scaling inside."""
    folder = resolve_run(run)
    if best and folder.name != checkpoint.BEST:
        folder = (folder.parent if folder.name.startswith("checkpoint_") else folder) / checkpoint.BEST
    found = checkpoint.load(folder) if folder.name == checkpoint.BEST else find_checkpoint(folder, _warn)
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
) -> Evaluation:
    """Play whole episodes with a trained policy; `video` records the first one, `render` shows it in a window."""
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}; it must be at least 1")
    build(RunConfig, {"seed": seed})
    policy = run if isinstance(run, SavedPolicy) else restore(run, best=best, trust=trust, device=device)
    options = dict(policy.settings.env_options)
    if video is not None or render:
        options["render_mode"] = "human" if render else "rgb_array"
    with only_trusted(tuple(trust)):
        source = _source(env, policy.settings.env, options)
    if render and source.world is not None:
        raise WhorlError(
            f"{source.id} has no window; record it with video=PATH (on the command line --video)"
        )
    vector = source.vector(source.num_envs or (1 if render else min(episodes, 32)), policy.agent.device)
    camera = _Camera(source.id, _frame_rate(source)) if video is not None else None
    try:
        with torch.no_grad():
            found = run_episodes(policy.agent, vector, episodes, seed, deterministic, camera)
    except DependencyNotInstalled as error:
        raise WhorlError(f"{source.id} can't be drawn: {error}") from error
    finally:
        vector.close()
    if video is not None and camera is not None:
        save_video(camera.frames, Path(video), camera.fps)
    return found


def check(env: Any) -> list[str]:
    """What is wrong with an environment (an id, an instance, or a function that makes one), each with its remedy."""
    return checker.check(find(env).factory if isinstance(env, str) else env)


def describe(algorithm: str) -> type:
    """The config class of an algorithm."""
    return algorithm_class(algorithm)[1].Config  # type: ignore[attr-defined]


class _Camera:
    """Keeps frames of the first environment's first episode, about 25 for each second of it."""

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
                raise WhorlError(f"{self.id} draws no frames, so there is nothing to record")
            self.frames.append(frame)
        self.steps += 1


def _frame_rate(source: Source) -> float:
    env = source.factory()
    env.close()
    return float((env.metadata or {}).get("render_fps") or 30)


def _with_options(source: Source, options: Mapping[str, Any]) -> Source:
    """A made environment's source, under options from a file or the config."""
    if not options or dict(options) == dict(source.options):
        return source
    if not source.named:
        raise ConfigError("env_options can't change an environment that is already made; pass its id instead")
    return find(source.id, {**source.options, **options})


def _check_changes(saved: Settings, asked: Settings) -> None:
    kept, wanted = saved.plain(), asked.plain()
    for name in sorted(set(kept) - set(MAY_CHANGE)):
        if wanted[name] != kept[name]:
            ring = ": a run can't be resumed with another ring size or another number of environments"
            raise ConfigError(
                f"a resumed run can't change {name!r}, resume keeps the saved {kept[name]!r}"
                f"{ring if name in ('buffer_size', 'num_envs') else ''}; it can change {', '.join(MAY_CHANGE)}; for anything "
                "else start a new run with load_model and load_checkpoint_dir"
            )


def _source(env: Any, id: str, options: Mapping[str, Any]) -> Source:
    """The environment of a saved run, or the one the caller gives in its place."""
    if env is not None:
        return find(env, options)
    module = id.rpartition(":")[0]
    if module:
        require_trust(module, "an environment of")
    try:
        return find(id, options)
    except WhorlError as error:
        raise CheckpointError(
            f"{error} (the run was made with an environment of your own? pass it as env=)"
        ) from None


def _warn(text: str) -> None:
    import warnings

    warnings.warn(text, stacklevel=3)
