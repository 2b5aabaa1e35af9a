"""Code of your own at the points of a run that users of other libraries know.

Override what you need. `trainer.stop("why")` ends training after the current epoch; callbacks see the trainer and may
read anything, but what they draw at random must come from a generator of their own, or runs stop being repeatable.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from whorl.experience.batch import Batch
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
        """After an epoch's updates, with the row of metrics that will be logged; rows may be changed in place."""

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


class WarmStart(Callback):
    """Starts a new run from the weights, optimizers and normalisers of another; counters start at zero."""

    def __init__(self, run: str | Path) -> None:
        self.run = run

    def on_start(self, trainer: "Trainer") -> None:
        if trainer.epoch == 0:
            trainer.load_weights(self.run)
