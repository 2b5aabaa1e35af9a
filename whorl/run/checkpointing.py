"""Saving and restoring a run: its state, checkpoints, the files of the replay buffer, weights of other runs."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from whorl.agents.agent import Agent
from whorl.core import messages
from whorl.core.errors import CheckpointError, ConfigError, DamagedError, EnvError
from whorl.data.experience import Store
from whorl.run.build import Parts
from whorl.run.loop import Counters
from whorl.run.trust import own_code
from whorl.settings.behaviors import BEHAVIORS
from whorl.state import checkpoint
from whorl.state.policy import export
from whorl.state.runfolder import resolve_run

T = TypeVar("T")
RESTARTS = "restarts_episodes"
"""in the metadata of a checkpoint whose environments begin new episodes because of a failure: which one it was"""
FAILED, NO_SNAPSHOT = "an environment had failed", "an environment had no snapshot"
TRIGGERS = ("save_model", "save_replay_buffer")
"""files in a run folder that ask for a checkpoint, which holds both"""
SHOWN = 12
"""tensors that a message names"""


class Checkpointing:
    """Checkpoints of one run; without a run folder only `state` and `load_state` work."""

    def __init__(self, parts: Parts, counters: Counters) -> None:
        self.parts, self.counters = parts, counters
        self.saved = 0
        """number of the newest checkpoint"""
        self.run_dir: Path | None = None
        self.code: dict[str, bytes] = {}
        """source files that are saved with each checkpoint, as they were when the run began"""
        self.store: Store | None = None
        self._reset_at = 0
        """the iteration after which all environments were reset because a state was loaded"""
        self._told = False
        """whether this run has had a warning about a missing snapshot"""

    def open(self, run_dir: Path) -> None:
        """Save into this folder, and keep rows of the replay buffer in files there from now on."""
        if self.run_dir is None:
            self.run_dir = run_dir
            self.code = own_code(self.parts.settings)
            self.store = self.parts.experience.open_store(
                run_dir / checkpoint.ROWS, self.parts.settings.run.save_model
            )
            self._sweep()

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
            self.store = None

    def state(self, restart: bool = False) -> dict[str, Any]:
        """Everything that changes the future, as tensors and plain containers.

        With `restart` without that of environments and collector: new episodes begin when it is loaded.
        """
        parts, env = self.parts, self.parts.acting.env
        return {
            "agent": parts.agent.state(),
            "learner": parts.learner.state_dict(),
            "experience": parts.experience.state_dict(),
            "streams": parts.streams.state_dict(),
            "collector": {} if restart else parts.acting.collector.state_dict(),
            "env": env.snapshot() if env.snapshots and not restart else {},
            "counters": self.counters.state_dict(),
            "map": {} if parts.map is None else parts.map.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken: exactly, unless its environments begin new episodes."""
        parts, acting = self.parts, self.parts.acting
        parts.agent.load_state(state["agent"])
        parts.learner.load_state_dict(state["learner"])
        parts.experience.load_state_dict(state["experience"])
        parts.streams.load_state_dict(state["streams"])
        self.counters.load_state_dict(state["counters"])
        if parts.map is not None and state.get("map"):  # runs of earlier versions have none
            parts.map.load_state_dict(state["map"])
        restart = state["collector"] == {}
        if restart:
            self._forget_episodes()
        else:
            acting.collector.load_state_dict(state["collector"])
        if acting.env.snapshots and not restart:
            acting.env.restore(state["env"])
        else:
            parts.reset(self.counters.resets)
            self._reset_at = self.counters.iteration

    def start_from(self, run: str, strict: bool) -> list[str]:
        """Start a new run where another was: its weights, optimizer states, normalisers and replay buffer, as far as
        they fit, and without its random phase. Returns messages about what does not fit; with `strict` all has to.

        Schedules continue over the steps of both runs; environments begin new episodes.
        """
        assert self.run_dir is not None
        found = find_checkpoint(resolve_run(run, Path(self.parts.settings.run.runs), new=self.run_dir))
        messages = [load_weights(self.parts.agent, found, strict)]
        with checkpoint.reading(found.folder, checkpoint.METADATA):
            self.counters.earlier = earlier(found)
        if self.store is not None:
            messages.append(self.take_rows(found, self.run_dir, strict))
        return [message for message in messages if message]

    def take_rows(self, found: checkpoint.Loaded, run_dir: Path, strict: bool) -> str:
        """Fill the replay buffer with the rows of a checkpoint; a message if they do not fit."""
        if not found.state:
            why = "it is a policy without a replay buffer"
        else:
            checkpoint.bring_rows(found, run_dir)
            try:
                with checkpoint.reading(found.folder, checkpoint.STATE):
                    self.parts.experience.take_rows(found.state["experience"])
                return ""
            except DamagedError as error:
                raise DamagedError(f"{found.folder}: {error}; load another checkpoint") from None
            except ConfigError as error:
                self._sweep()
                why = str(error)
        message = f"{found.folder}: the replay buffer starts empty, because {why}"
        if strict:
            raise CheckpointError(message)
        return message

    def due(self) -> bool:
        """Whether a checkpoint is due after this iteration, by its frequency or because a file asks for it."""
        run, counters = self.parts.settings.run, self.counters
        due = counters.steps // run.checkpoint_freq > counters.saved_steps // run.checkpoint_freq
        return run.save_model and (due or self.asked()) and self.exact

    def asked(self) -> bool:
        """Whether the user has put a file into the run folder that asks for a checkpoint."""
        return self.run_dir is not None and any((self.run_dir / name).exists() for name in TRIGGERS)

    def last_due(self, again: bool) -> bool:
        """Whether the end of training leaves something to save; `again`: even if these steps were saved."""
        unsaved = self.counters.saved_steps != self.counters.steps
        return self.parts.settings.run.save_model and (unsaved or again)

    @property
    def next_folder(self) -> Path:
        """Where the next checkpoint will be."""
        assert self.run_dir is not None
        return self.run_dir / f"checkpoint_{self.saved + 1}"

    def _forget_episodes(self) -> None:
        """The episodes that were under way are lost, and new ones begin: with other seeds and other exploration."""
        collector = self.parts.acting.collector
        self.counters.resets += 1
        collector.episode_statistics.forget()
        collector.reseed(self.counters.resets)
        if self.parts.experience.waits:
            self.parts.experience.cut()  # the agent forgets these episodes when it learns from their last rows
        else:
            self.parts.agent.forget()

    @property
    def exact(self) -> bool:
        """Whether a resumed run would repeat what comes next: environments have snapshots or were all reset."""
        period, iteration = self.parts.reset_period, self.counters.iteration
        return period == 0 or iteration % period == 0 or iteration == self._reset_at

    def save(self, metadata: Mapping[str, Any], failed: bool = False) -> Path:
        """Write a checkpoint now. Weights and metrics are checked first: a diverged run keeps its last good one.

        Args:
            failed: an environment is lost in the middle of a rollout, so all begin new episodes on resume. (Actors
                always do.)
        """
        if failed:
            self._drop_rollout()
        if self.run_dir is None:
            raise CheckpointError("there is no run to save yet; call train() or step() first")
        parts, before = self.parts, (self.saved, self.counters.saved_steps)
        parts.learner.check_finite()
        self.saved += 1
        self.counters.saved_steps = self.counters.steps
        try:
            state, why = self._savable_state(failed)
            if why:
                metadata = {**metadata, RESTARTS: why}
            if self.store is not None:
                metadata = {**metadata, "segments": self.store.names()}
            folder = checkpoint.save(
                self.run_dir,
                self.saved,
                state,
                self.policy(),
                parts.settings.saved(),
                metadata,
                self.normalizer() or None,
                self.code,
            )
        except BaseException:
            self.saved, self.counters.saved_steps = before
            raise
        if checkpoint.retain(self.run_dir, parts.settings.run.keep_checkpoints):
            self._sweep()
        for name in TRIGGERS:
            with suppress(OSError):  # there is none
                (self.run_dir / name).unlink()
        return folder

    def _drop_rollout(self) -> None:
        """The rows of the unfinished rollout are lost, so they don't count."""
        self.parts.acting.collector.episode_statistics.drain()

    def _savable_state(self, failed: bool) -> tuple[dict[str, Any], str]:
        """The state, and the failure because of which it is without that of the environments, if there is one."""
        if self.parts.acting.workers is None:  # actors begin new episodes anyway
            return self.state(), ""
        if failed:
            return self.state(restart=True), FAILED
        try:
            return self.state(restart=not self.exact), ""
        except EnvError as error:
            state = self.state(restart=True)
            if not self._told:
                self._told = True
                messages.warn(
                    f"{error.message}; checkpoints are saved without the episodes under way, and a resumed run begins "
                    "new ones"
                )
            return state, NO_SNAPSHOT

    def save_best(self, metadata: Mapping[str, Any]) -> None:
        """Write the policy alone into the run's folder `best`."""
        assert self.run_dir is not None
        saved, values = self.parts.settings.saved(), self.normalizer() or None
        checkpoint.save_best(self.run_dir, self.policy(), saved, metadata, values, self.code)

    def policy(self) -> dict[str, Any]:
        """The part that acts, as tensors and plain containers."""
        return export(self.parts.agent, self.parts.settings)

    def normalizer(self) -> dict[str, Any]:
        """The statistics that observations are normalised with, by key."""
        return self.parts.agent.normalizer_values()

    def _sweep(self) -> None:
        """Delete rows that no checkpoint needs; if one can't be read, all stay."""
        if self.store is not None and self.run_dir is not None:
            with suppress(CheckpointError):
                self.store.sweep(checkpoint.segments(self.run_dir))


def earlier(found: checkpoint.Loaded) -> dict[str, float]:
    """Steps, iterations and episodes of a checkpoint's run, with those of the runs that it started from."""
    before = found.metadata.get("earlier", {})  # checkpoints of earlier versions have none
    names = ("steps", "iterations", "episodes")
    return {name: float(found.metadata[name]) + float(before.get(name, 0)) for name in names}


def load_weights(agent: Agent, found: checkpoint.Loaded, strict: bool = False) -> str:
    """Load weights, optimizer state and normalisation statistics of a checkpoint, or of a policy, which has no
    optimizer state; counters stay.

    Tensors with the same name and shape are taken. An optimizer whose weights are not all taken starts afresh. Returns
    a message about those that were not; with `strict` there may be none.
    """
    if BEHAVIORS in found.policy:
        raise CheckpointError(
            f"{found.folder} has policies of several behaviours ({', '.join(found.policy[BEHAVIORS])}), but this run "
            "has one"
        )
    saved = found.state["agent"] if found.state else {"module": found.policy["module"], "optimizers": {}}
    mine = {key: value for key, value in agent.state_dict().items() if not agent.of_one_run(key)}
    theirs = {key: value for key, value in saved["module"].items() if not agent.of_one_run(key)}
    taken = {k: v for k, v in theirs.items() if k in mine and v.shape == mine[k].shape}
    misfits = [key for key in {**mine, **theirs} if key not in taken]
    message = ""
    if misfits:
        shapes = [f"{_shape(theirs.get(key))} there, {_shape(mine.get(key))} here" for key in misfits]
        named = [f"{key} ({shape})" for key, shape in zip(misfits, shapes)]
        if len(named) > SHOWN:
            named[SHOWN:] = [f"and {len(named) - SHOWN} more"]
        taking = f"took {len(taken)} of {len(mine)} tensors"
        message = f"{found.folder}: {taking}; not taken: {', '.join(named)}"
    if misfits and strict:
        raise CheckpointError(f"{message}; leave strict out to start with those that fit")
    if not taken.keys() & agent.trained().keys():
        raise CheckpointError(f"no weights in {found.folder} fit these settings; {message}")
    agent.load_state_dict({**agent.state_dict(), **taken})
    _load_optimizers(agent, saved["optimizers"], taken)
    return message


def _load_optimizers(agent: Agent, saved: Mapping[str, Any], taken: Mapping[str, Any]) -> None:
    """Take the state of the optimizers all of whose weights were taken."""
    names = {id(value): name for name, value in agent.named_parameters()}
    state = agent.optimizer_state()
    for name, parameters in agent.parameters_of().items():
        fits = [
            names[id(parameter)] in taken and entry.keys() == mine.keys()
            for parameter, entry, mine in zip(parameters, saved.get(name, ()), state[name])
        ]
        if all(fits) and len(fits) == len(parameters) == len(saved[name]):
            state[name] = saved[name]
    agent.load_optimizer_state(state)


def _shape(tensor: Any) -> str:
    return "absent" if tensor is None else str(list(tensor.shape))


def find_checkpoint(folder: Path) -> checkpoint.Loaded:
    """The checkpoint in this folder, or the newest undamaged one of a run folder."""
    return use_checkpoint(folder, lambda loaded: loaded)


def use_checkpoint(folder: Path, use: Callable[[checkpoint.Loaded], T]) -> T:
    """The result of `use` on that checkpoint; in a run folder older ones are tried where it raises `DamagedError`."""
    if checkpoint.is_checkpoint(folder):
        return use(checkpoint.load(folder))
    return checkpoint.use_newest(folder, lambda text: messages.warn(text), use)
