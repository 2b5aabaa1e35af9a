"""The public API: make, load, train, resume, restore, evaluate, check, algorithms, register."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from whorl.config import algorithm_class, configure, load_preset, preset_names
from whorl.envs.checker import check
from whorl.envs.make import find, make
from whorl.errors import CheckpointError, WhorlError
from whorl.log.video import save_video
from whorl.registry import only_trusted, register, registered
from whorl.run.callbacks import Callback
from whorl.run.evaluate import Evaluation, run_episodes
from whorl.run.trainer import Result, Trainer, find_checkpoint
from whorl.state import checkpoint
from whorl.state.policy import SavedPolicy, load_policy
from whorl.state.runfolder import resolve_run

__all__ = ["algorithms", "check", "evaluate", "load", "make", "register", "restore", "resume", "train"]


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
    source = find(env, env_options)
    arguments = {**(config or {}), "env_options": dict(source.options)}
    return Trainer(source, configure(algorithm, source.id, arguments, files), callbacks)


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
    """Go on with a run from its newest whole checkpoint, bit for bit; `total_steps=...` and the like ask for more."""
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
    loaded = find_checkpoint(folder, _warn)
    run_dir = loaded.folder.parent
    with only_trusted(tuple(trust)):
        settings = configure(
            loaded.config["algorithm"], loaded.config["env"], {**loaded.config, **changes}, presets=False
        )
        source = _source(env, settings.env, settings.env_options)
        return Trainer(source, settings, callbacks).attach(run_dir, loaded)


def restore(
    run: str | Path, *, best: bool = False, trust: Sequence[str] = (), device: str = "cpu"
) -> SavedPolicy:
    """The trained policy of a run or checkpoint, self-contained: normalisers, memory and action scaling inside."""
    folder = resolve_run(run)
    found = checkpoint.load(folder / checkpoint.BEST) if best else find_checkpoint(folder, _warn)
    return load_policy(found.policy, tuple(trust), device)


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
    policy = run if isinstance(run, SavedPolicy) else restore(run, best=best, trust=trust, device=device)
    options = dict(policy.settings.env_options)
    if video is not None or render:
        options["render_mode"] = "human" if render else "rgb_array"
    source = _source(env, policy.settings.env, options)
    lanes = 1 if render else min(episodes, 32)
    vector = source.vector(lanes, device)
    frames: list[Any] = []
    over = [False]

    def watch(world: Any, step: Any) -> None:
        if not over[0]:
            frame = world.render(0)
            if frame is None:
                raise WhorlError(f"{source.id} draws no frames, so there is nothing to record")
            frames.append(frame)
            over[0] = bool(step.terminated[0] | step.truncated[0])

    try:
        with torch.no_grad():
            found = run_episodes(
                policy.agent, vector, episodes, seed, deterministic, watch if video is not None else None
            )
    finally:
        vector.close()
    if video is not None:
        save_video(frames, Path(video), fps=30)
    return found


def algorithms() -> dict[str, str]:
    """Every algorithm's name with one line about it."""
    known = {name: load_preset(name)["about"] for name in preset_names()}
    users = {
        name: (inspect.getdoc(cls) or "").split("\n")[0] for name, cls in registered("algorithm").items()
    }
    return dict(sorted({**known, **users}.items()))


def describe(algorithm: str) -> type:
    """The config class of an algorithm."""
    return algorithm_class(algorithm)[1].Config  # type: ignore[attr-defined]


def _source(env: Any, id: str, options: Mapping[str, Any]) -> Any:
    if env is not None:
        return find(env, options)
    try:
        return find(id, options)
    except WhorlError as error:
        raise CheckpointError(
            f"{error} (the run was made with an environment of your own? pass it as env=)"
        ) from None


def _warn(text: str) -> None:
    import warnings

    warnings.warn(text, stacklevel=3)
