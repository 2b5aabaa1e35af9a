"""Training that ends early: an error saves what can be saved, and it and Ctrl-C say how to continue."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from whorl.core.errors import WhorlError, extend
from whorl.run.trust import trust_flag
from whorl.state import checkpoint

if TYPE_CHECKING:
    from whorl.run.trainer import Trainer


@contextmanager
def saving_on_failure(trainer: "Trainer", collecting: bool = False) -> Iterator[None]:
    """Save what can be saved if something raises within, and say how to continue.

    Args:
        collecting: environments are lost in the middle of a rollout.
    """
    try:
        yield
    except Exception as error:  # an environment or a callback may raise anything
        extend(error, what_is_saved(trainer, collecting))
        raise


@contextmanager
def interrupt_explained(trainer: "Trainer") -> Iterator[None]:
    """A `KeyboardInterrupt` that ends training at once says what there is to continue from."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = stop.args or (_what_is_left(trainer),)
        raise


def what_is_saved(trainer: "Trainer", collecting: bool, save: bool = True) -> str:
    """What there is to continue from.

    Args:
        collecting: environments are lost in the middle of a rollout.
        save: save the last complete iteration first, unless that was done.
    """
    if not trainer.settings.run.save_model:
        return "nothing was saved, because save_model is false"
    call = _resume_call(trainer)
    go_on = f"continue with: {call}"
    if save and trainer.loop.whole and trainer.steps > trainer.counters.saved_steps:
        with suppress(WhorlError):  # diverged weights, a full disk: the first error is the one to report
            folder = trainer.save_after_failure(collecting)
            without = ", without the episodes under way" if collecting else ""
            at = f"iteration {trainer.iteration} (step {trainer.steps})"
            return f"{at} is saved in {folder.name}{without}; {go_on}"
    if not trainer.checkpointing.saved:
        return f"there was no checkpoint yet; start again with: {call}"
    saved = trainer.counters.saved_steps
    return f"the newest checkpoint is that of step {saved:,}, the error came after {trainer.steps:,}; {go_on}"


def _what_is_left(trainer: "Trainer") -> str:
    if trainer.run_dir is None:
        return "before training began; nothing was saved"
    if not trainer.settings.run.save_model:
        return "at once; nothing was saved, because save_model is false"
    saved, call = checkpoint.checkpoints(trainer.run_dir), _resume_call(trainer)
    if not saved:
        return f"before the first checkpoint; start again with: {call}"
    return f"at once; the newest checkpoint is {saved[0].name}; continue with: {call}"


def how_to_go_on(trainer: "Trainer") -> str:
    """What continues a run that was stopped after an iteration."""
    if not trainer.settings.run.save_model:
        return "nothing was saved, because save_model is false"
    return f"continue it with: {_resume_call(trainer)}"


def _resume_call(trainer: "Trainer") -> str:
    if not trainer.source.named:
        return f"whorl.resume({str(trainer.run_dir)!r}, env=...)"
    return shlex.join(["whorl", "resume", str(trainer.run_dir), *trust_flag(trainer.settings)])
