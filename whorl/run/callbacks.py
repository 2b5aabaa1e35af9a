"""Callbacks: your own code at fixed points of a run.

Override the methods you need. `trainer.stop("why")` ends training after the current iteration. A callback may read
anything of the trainer, but must draw random numbers from a generator of its own, or runs are not reproducible.
"""

import inspect
import numbers
import reprlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whorl.collect.collector import Row
from whorl.collect.episodes import Episode
from whorl.core import tree
from whorl.core.arrays import channels_first
from whorl.core.errors import ConfigError, nearest
from whorl.core.spec import Array
from whorl.data.batch import Batch
from whorl.run.evaluate import Evaluation
from whorl.settings.elsewhere import CALLBACK, explaining

if TYPE_CHECKING:
    from whorl.run.reporting import Result
    from whorl.run.trainer import Trainer


@explaining(CALLBACK)
class Callback:
    """Base of all callbacks: every method does nothing. One that returns False ends training after the iteration."""

    def __init_subclass__(cls) -> None:
        """Raise for a method that looks like a hook and would never be called."""
        for name in dir(cls):
            if name in ELSEWHERE:
                raise ConfigError(
                    f"{cls.__name__}.{name} would never be called: it is a method of Stable-Baselines3's callbacks; "
                    f"here it is {ELSEWHERE[name]}"
                )
            if name in HOOKS:
                _check_arguments(cls, name)
            elif name.startswith("on_") and callable(getattr(cls, name)):
                raise ConfigError(
                    f"{cls.__name__}.{name} would never be called, because callbacks have no such method; "
                    f"{nearest(name, HOOKS)}"
                )

    def on_start(self, trainer: "Trainer") -> None:
        """Before the first rollout of a new or resumed run."""

    def on_step(self, trainer: "Trainer", step: Row) -> None:
        """After each step of all parallel environments, which this process has to make (workers 0 or acting central).

        `step` has obs, action, reward, terminated, truncated, next_obs, ... as tensors [num_envs, ...], which the next
        rollout overwrites.
        """

    def on_episode(self, trainer: "Trainer", episode: Episode) -> None:
        """For each episode that ended, once the rollout in which it did was collected."""

    def on_rollout(self, trainer: "Trainer", rollout: Batch) -> None:
        """After a rollout was collected, before it is learned from."""

    def on_update(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """After an iteration's updates, with the metrics that will be logged, which may be changed in place."""

    def on_evaluation(self, trainer: "Trainer", evaluation: Evaluation) -> None:
        """After an evaluation."""

    def on_checkpoint(self, trainer: "Trainer", folder: Path) -> None:
        """After a checkpoint was written to disk."""

    def on_end(self, trainer: "Trainer", result: "Result") -> None:
        """After training, unless it ended with an error."""


ELSEWHERE = {
    "_init_callback": "on_start(trainer)",
    "_on_rollout_start": "on_update(trainer, metrics), which comes before the next rollout",
    "_on_step": "on_step(trainer, step); to end training, call trainer.stop(why) or return False",
    "_on_training_start": "on_start(trainer)",
    "_on_rollout_end": "on_rollout(trainer, rollout)",
    "_on_training_end": "on_end(trainer, result)",
}
"""methods of Stable-Baselines3's callbacks, and those that are called at the same time here"""

HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
"""the methods that a callback may override"""


def _check_arguments(cls: type, name: str) -> None:
    """Raise for a hook that can't be called with the arguments that it will get."""
    wanted = list(inspect.signature(getattr(Callback, name)).parameters)
    given = (
        wanted[1:] if isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod) else wanted
    )
    try:
        inspect.signature(getattr(cls, name)).bind(*given)
    except TypeError:
        raise ConfigError(f"{cls.__name__}.{name} must take the arguments ({', '.join(wanted)})") from None


def check_metrics(metrics: dict[str, Any]) -> None:
    """Raise for what callbacks added to `metrics` that is no number, and remove it: the rest can be saved."""
    wrong = {name: metrics.pop(name) for name, value in [*metrics.items()] if not _is_metric(value)}
    for name, value in wrong.items():
        shape = getattr(value, "shape", ())
        what = f"an array of shape {tuple(shape)}" if shape else reprlib.repr(value)
        raise ConfigError(f"a callback set the metric {name!r} to {what}; a metric is one number")


def _is_metric(value: Any) -> bool:
    """Whether it is a number, or an array that holds one; short strings are metrics, too."""
    if isinstance(value, numbers.Real | str):
        return True
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several numbers
        return False
    return True


def check_callbacks(callbacks: Sequence[object]) -> None:
    """Raise for what is no callback."""
    if not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks is {callbacks!r}; it must be a list of whorl.Callback objects")
    for one in callbacks:
        if isinstance(one, type):
            raise ConfigError(
                f"callbacks contains the class {one.__name__}; give an object: {one.__name__}()"
            )
        if not isinstance(one, Callback):
            raise ConfigError(f"callbacks contains {one!r}; each must be derived from whorl.Callback")


def call(callbacks: Sequence[Callback], hook: str, trainer: "Trainer", *arguments: Any) -> None:
    """Call one method of all callbacks; one that returns False ends training, as in Stable-Baselines3."""
    for one in callbacks:
        answer = getattr(one, hook)(trainer, *arguments)
        if isinstance(answer, bool | np.bool_) and not answer:
            trainer.stop(f"{type(one).__name__}.{hook} returned False")


def overridden(callbacks: Sequence[Callback], hook: str) -> list[Callback]:
    """The callbacks that have this method themselves."""
    return [one for one in callbacks if getattr(type(one), hook) is not getattr(Callback, hook)]


class BestCheckpoint(Callback):
    """Saves the policy with the best evaluation in the run's folder `best`."""

    def on_evaluation(self, trainer: "Trainer", evaluation: Evaluation) -> None:
        if evaluation.mean_return > trainer.counters.best_return:
            trainer.counters.best_return = evaluation.mean_return
            trainer.save_best(evaluation)


class StopAtReturn(Callback):
    """Ends training once an evaluation reaches `mean_return`."""

    def __init__(self, mean_return: float) -> None:
        self.mean_return = mean_return

    def on_evaluation(self, trainer: "Trainer", evaluation: Evaluation) -> None:
        if evaluation.mean_return >= self.mean_return:
            trainer.stop(f"an evaluation reached {evaluation.mean_return:.1f}")


class Screenshots(Callback):
    """Logs the final frame of every `every`-th episode to TensorBoard, at most one per rollout."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.seen = 0

    def on_start(self, trainer: "Trainer") -> None:
        spec = trainer.agent.spec.observation
        images = [place for place, leaf in enumerate(tree.leaves(spec)) if _is_image(leaf)]
        if not images:
            raise ConfigError(
                f"screenshot_freq is {self.every}, but {trainer.source.id} has no image observations; leave it at 0"
            )
        self._place = images[0]
        self._leaf: Array = tree.leaves(spec)[self._place]

    def on_rollout(self, trainer: "Trainer", rollout: Batch) -> None:
        ends = (rollout.mask == 0).nonzero()  # [episodes, 2] rows and environments of final observations
        before, self.seen = self.seen, self.seen + len(ends)
        due = self.seen // self.every * self.every
        if due > before:
            row, env_index = ends[due - before - 1].tolist()
            final = tree.leaves(rollout.obs)[self._place][row, env_index].cpu().numpy()
            trainer.log.picture("episode/final", _newest(final, self._leaf), trainer.steps)


def _is_image(leaf: Array) -> bool:
    return leaf.dtype == "uint8" and len(leaf.shape) in (2, 3)


def _newest(frames: np.ndarray, leaf: Array) -> np.ndarray:
    """The last frame of a stack as [height, width, 1 or 3]; of any other number of channels the maximum is taken."""
    newest = np.split(frames, leaf.stack, leaf.axis)[-1]
    if newest.ndim == 2:
        return newest[..., None]
    if channels_first(newest.shape):
        newest = np.moveaxis(newest, 0, 2)
    return newest if newest.shape[2] in (1, 3) else newest.max(2, keepdims=True)


class WarmStart(Callback):
    """Starts a new run from the weights, optimizer state and normalisation statistics of another, as far as they fit.

    With `strict` all have to fit.
    """

    def __init__(self, run: str | Path, strict: bool = False) -> None:
        self.run, self.strict = run, strict

    def on_start(self, trainer: "Trainer") -> None:
        if trainer.iteration == 0:
            trainer.load_weights(self.run, self.strict)
