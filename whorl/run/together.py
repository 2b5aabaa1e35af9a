"""Several runs in one process, on one device: their work on a GPU overlaps.

Each trainer has a thread and on a GPU a stream of its own; everything else that it changes is its own anyway, so each
run is bit for bit the one that it would be alone. They are built one after the other, and while one of them records a
CUDA graph the others pause (`core.cuda_graphs.Gate`).
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from signal import SIGTERM
from typing import Any, TypeVar

import torch

from whorl.core.cuda_graphs import GATE
from whorl.core.errors import ConfigError
from whorl.core.process import CTRL_C, configure_process
from whorl.run.build import choose_device, learner_threads
from whorl.run.reporting import Result
from whorl.run.trainer import Trainer

Key = TypeVar("Key")
Ended = Callable[[Any, "Result | BaseException"], None]
"""called in the thread of a run with its key, and its result or what it raised"""


class Together:
    """Trains several trainers at the same time.

    Args:
        trainers: by any key.
        ended: called when a run is over.
        around: makes a context in which the thread of a run works, from its key.
    """

    def __init__(
        self,
        trainers: Mapping[Key, Trainer],
        ended: Ended,
        around: Callable[[Any], AbstractContextManager[Any]] = lambda key: nullcontext(),
    ) -> None:
        self.trainers, self.ended, self.around = trainers, ended, around
        self._threads: list[threading.Thread] = []
        self._options: configure_process | None = None
        self._started = False
        self._signal = ""
        """what has interrupted the runs"""

    def start(self) -> None:
        """Build all runs and start their threads."""
        first = next(iter(self.trainers.values())).settings
        _check_process_settings(self.trainers)
        # Once for all of them: what each sets and restores by itself is then the same.
        self._options = configure_process(first.run.threads, first.run.tf32, learner_threads(first))
        streams = {key: _stream(trainer) for key, trainer in self.trainers.items()}
        try:
            # Each waits for the others, which counts towards its max_seconds.
            with ExitStack() as stack:
                for trainer in self.trainers.values():
                    stack.enter_context(trainer.counted())
                for key, trainer in self.trainers.items():
                    with _on(streams[key]):
                        trainer.build()
                    if self._signal:  # nothing was trained
                        raise KeyboardInterrupt if self._signal == CTRL_C else SystemExit(128 + SIGTERM)
        except BaseException:
            for trainer in self.trainers.values():
                trainer.close()
            self._options.__exit__()
            raise
        for key in self.trainers:
            thread = threading.Thread(target=self._train, args=(key, streams[key]), daemon=True)
            self._threads.append(thread)
            thread.start()
        self._started = True
        if self._signal:
            self.interrupt(self._signal)

    def _train(self, key: Any, stream: Any) -> None:
        try:
            with self.around(key), _on(stream), GATE.working():
                outcome: Result | BaseException = self.trainers[key].train()
        except BaseException as error:  # of an environment, say: the other runs continue
            outcome = error
        self.ended(key, outcome)

    def interrupt(self, name: str) -> None:
        """End all runs after their iteration, as a signal called `name` does; `start` while they are built."""
        self._signal = name
        for trainer in self.trainers.values() if self._started else ():
            trainer.interrupt(name)

    def join(self) -> None:
        """Wait for all runs."""
        for thread in self._threads:
            thread.join()
        if self._options is not None:
            self._options.__exit__()


def train_together(trainers: Mapping[Key, Trainer]) -> dict[Key, "Result | BaseException"]:
    """Train all of them; the result of each, or what it raised."""
    found: dict[Key, Result | BaseException] = {}
    company = Together(trainers, found.__setitem__)
    company.start()
    company.join()
    return {key: found[key] for key in trainers}


def _check_process_settings(trainers: Mapping[Any, Trainer]) -> None:
    """Raise for runs with different settings of the whole process."""
    for name in ("tf32", "threads"):
        values = {getattr(trainer.settings.run, name): None for trainer in trainers.values()}
        if len(values) > 1:
            said = " and ".join(str(value).lower() for value in values)
            raise ConfigError(
                f"{name} is {said}, but runs that train in one process share it; give all the same value, or train "
                "them one after the other"
            )


def _stream(trainer: Trainer) -> Any:
    """A stream for a trainer on a GPU; None on a CPU."""
    device = choose_device(trainer.settings.run.device)
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def _on(stream: Any) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)
