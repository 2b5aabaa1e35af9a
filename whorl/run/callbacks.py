"""Code of your own at the points of a run that users of other libraries know.

Override what you need. `trainer.stop("why")` ends training after the current iteration; callbacks see the trainer and may
read anything, but what they draw at random must come from a generator of their own, or runs stop being repeatable.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whorl.core import tree
from whorl.core.arrays import channels_first
from whorl.core.errors import ConfigError
from whorl.core.spec import Array
from whorl.data.batch import Batch
from whorl.run.evaluate import Evaluation

if TYPE_CHECKING:
    from whorl.run.trainer import Result, Trainer


class Callback:
    """Does nothing at every point."""

    def on_start(self, trainer: "Trainer") -> None:
        """Before the first rollout, of a new run or a resumed one."""

    def on_rollout(self, trainer: "Trainer", rollout: Batch) -> None:
        """After a rollout was collected, before it is learned from."""

    def on_update(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """After an iteration's updates, with the row of metrics that will be logged; rows may be changed in place."""

    def on_evaluation(self, trainer: "Trainer", evaluation: Evaluation) -> None:
        """After an evaluation."""

    def on_checkpoint(self, trainer: "Trainer", folder: Path) -> None:
        """After a checkpoint is safely on disk."""

    def on_end(self, trainer: "Trainer", result: "Result") -> None:
        """After training, however it ended short of an error."""


class BestCheckpoint(Callback):
    """Keeps the policy with the best evaluation in the run's `best` folder."""

    def on_evaluation(self, trainer: "Trainer", evaluation: Evaluation) -> None:
        if evaluation.mean_return > trainer.best_return:
            trainer.best_return = evaluation.mean_return
            trainer.save_best(evaluation)


class StopAtReturn(Callback):
    """Ends training once an evaluation reaches `mean_return`."""

    def __init__(self, mean_return: float) -> None:
        self.mean_return = mean_return

    def on_evaluation(self, trainer: "Trainer", evaluation: Evaluation) -> None:
        if evaluation.mean_return >= self.mean_return:
            trainer.stop(f"an evaluation reached {evaluation.mean_return:.1f}")


class Screenshots(Callback):
    """Shows in TensorBoard what every `every`-th episode ended with, one per rollout at most."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.seen = 0

    def on_start(self, trainer: "Trainer") -> None:
        spec = trainer.agent.spec.observation
        pictures = [place for place, leaf in enumerate(tree.leaves(spec)) if _is_picture(leaf)]
        if not pictures:
            raise ConfigError(
                f"screenshot_freq is {self.every}, but {trainer.source.id} shows no pictures; leave it at 0"
            )
        self._place = pictures[0]
        self._leaf: Array = tree.leaves(spec)[self._place]

    def on_rollout(self, trainer: "Trainer", rollout: Batch) -> None:
        ends = (rollout.mask == 0).nonzero()  # [episodes, 2] rows and environments of final observations
        before, self.seen = self.seen, self.seen + len(ends)
        due = self.seen // self.every * self.every
        if due > before:
            row, env_index = ends[due - before - 1].tolist()
            final = tree.leaves(rollout.obs)[self._place][row, env_index].cpu().numpy()
            trainer.log.picture("episode/final", _newest(final, self._leaf), trainer.steps)


def _is_picture(leaf: Array) -> bool:
    return leaf.dtype == "uint8" and len(leaf.shape) in (2, 3)


def _newest(frames: np.ndarray, leaf: Array) -> np.ndarray:
    """The last frame of a stack as [height, width, 1 or 3]; other planes than these are laid over each other."""
    newest = np.split(frames, leaf.stack, leaf.axis)[-1]
    if newest.ndim == 2:
        return newest[..., None]
    if channels_first(newest.shape):
        newest = np.moveaxis(newest, 0, 2)
    return newest if newest.shape[2] in (1, 3) else newest.max(2, keepdims=True)


class WarmStart(Callback):
    """Starts a new run from the weights, optimizers and normalisers of another; counters start at zero."""

    def __init__(self, run: str | Path) -> None:
        self.run = run

    def on_start(self, trainer: "Trainer") -> None:
        if trainer.iteration == 0:
            trainer.load_weights(self.run)
