"""One run of a benchmark, in a process of its own: new, or continued from its newest checkpoint."""

import json
import math
import shutil
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from whorl.core import files
from whorl.core.errors import DivergedError
from whorl.core.process import configure_process, interruptible_waits
from whorl.distributed.task_pool import prepare_process
from whorl.envs.make import find
from whorl.log.groups import EVALUATION
from whorl.run.build import learner_threads, on_gpu
from whorl.run.resume import load_run
from whorl.run.trainer import Trainer
from whorl.run.trust import trust_for
from whorl.settings.merge import configure
from whorl.state import checkpoint

RESULT = "result.json"


@dataclass(frozen=True)
class Cell:
    """An algorithm on an environment with a seed."""

    name: str
    env: str
    seed: int
    folder: str
    """its run folder"""
    settings: Mapping[str, Any]
    """all settings of its run"""
    buffer_chosen: bool = True
    """whether the suite or the caller chose the size of the replay buffer; else it may shrink to fit into memory"""


@dataclass(frozen=True)
class CellResult:
    """Result of a run."""

    mean_return: float | None
    """of its last evaluation; None: it diverged"""
    steps: int
    wall_time: float
    note: str = ""
    """why it diverged"""
    share: float = 1.0
    """of its budget that was spent when it ended"""


class CellWorker:
    """Lives in a process of its own and trains one run after the other."""

    def __init__(self, cores: Sequence[int], registered: Mapping[str, Mapping[str, Any]], place: int) -> None:
        prepare_process(cores, registered)
        self.place = place

    def train(self, cell: Cell) -> CellResult:
        """Train a run to its end; its result is written to its folder as well."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = self._trainer(cell)
            trainer.owns_process, run = True, trainer.settings.run
            try:
                with (
                    configure_process(run.threads, run.tf32, learner_threads(trainer.settings)),
                    interruptible_waits(),
                    trainer,
                ):
                    rows = deque(trainer, maxlen=1)
                    if rows and EVALUATION not in rows[-1]:
                        # max_seconds are over, after which a run does not evaluate by itself
                        trainer.evaluate()
                    value = trainer.mean_return
                    if not math.isfinite(value):
                        raise DivergedError("the return of its evaluation is not finite")
                    found = CellResult(value, trainer.steps, trainer.wall_time)
            except DivergedError as error:
                why = error.message.partition(";")[0]
                found = CellResult(None, trainer.steps, trainer.wall_time, why, _spent(trainer))
        files.write_atomic(Path(cell.folder) / RESULT, json.dumps(asdict(found)).encode())
        return found

    def close(self) -> None:
        """Nothing is open between two runs."""

    def _trainer(self, cell: Cell) -> Trainer:
        folder = Path(cell.folder)
        settings = configure(cell.settings["algorithm"], cell.env, cell.settings, presets=False)
        if (folder / checkpoint.CONFIG).is_file():
            # A new run would load what the suite names as well.
            return load_run(folder, {}, trust=trust_for(settings))
        if folder.exists():  # killed before its settings were written
            shutil.rmtree(folder)
        settings = replace(settings, buffer_chosen=cell.buffer_chosen)
        own = {"seed": cell.seed, "runs": str(folder.parent), "name": folder.name}
        return Trainer(find(cell.env, settings.env_options), on_gpu(settings.replace(**own), self.place))


def _spent(trainer: Trainer) -> float:
    """The share of its budget that a run has spent."""
    run = trainer.settings.run
    done, total, _ = trainer.counters.spent(run)
    seconds = trainer.wall_time / run.max_seconds if run.max_seconds else 0.0
    return min(max(done / total, seconds), 1.0)


def read_result(folder: Path) -> CellResult | None:
    """The result of a run that has ended; None: it has not."""
    with suppress(OSError, ValueError, TypeError):
        return CellResult(**json.loads((folder / RESULT).read_text("utf-8")))
    return None
