"""The loop that all algorithms share, and what surrounds it: counters, log, evaluation, checkpoints, resume.

while there is budget:
    rollout = collector.collect()
    experience.add(rollout)
    for phase, batch in experience.due():
        experience.settle(batch, learner.update(phase, batch))
    advance: counters, log, evaluate, checkpoint

Where others act (worker processes, another device) and batches come from replay, the updates that are due run between
sending the weights out and gathering the rollout. Nothing is in flight between two iterations, so checkpoints fall there.
"""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

import torch
import yaml
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.collect.collector import Collector
from whorl.core import tree
from whorl.core.allocator import keep_freed_memory
from whorl.core.errors import CheckpointError, ConfigError, DivergedError
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.gradients import GradientQueue
from whorl.data.replay import Replay
from whorl.distributed.actor import check_actors, envs_per_batch
from whorl.distributed.fleet import FleetCollector, RemoteEnvs, make_fleet
from whorl.distributed.learners import Learners, check_learners
from whorl.distributed.pool import make_vector
from whorl.distributed.replay_shards import ShardedReplay, make_shards
from whorl.distributed.worker_collector import WorkerCollector
from whorl.envs.make import Source
from whorl.envs.vector import VectorEnv
from whorl.log.console import Console
from whorl.log.writers import Log, LogFile, MetricFiles, Sink, TensorBoard, WandB
from whorl.run.callbacks import BestCheckpoint, Callback, Screenshots
from whorl.run.evaluate import Evaluation, run_episodes
from whorl.run.learner import REMEDY, Learner
from whorl.run.system_metrics import SystemMetrics
from whorl.settings.families import ReplayConfig
from whorl.settings.merge import Settings
from whorl.state import checkpoint, files
from whorl.state.policy import build_agent, export
from whorl.state.runfolder import new_run_folder, resolve_run
from whorl.state.segments import FOLDER, DamagedError, Segments
from whorl.state.streams import Streams

T = TypeVar("T")
EVAL_ENVS = 32
ROWS_WORTH_A_THREAD = 1024
"""rows per minibatch from which learners on a CPU gain from a thread each; below, Python's lock eats the gain"""
COUNTERS = (
    *("steps", "iteration", "episodes", "resets", "saved_iteration", "best_return", "mean_return"),
    *("new_episodes", "new_return", "new_length", "new_measures"),
)


@dataclass(frozen=True)
class Result:
    """How a call of `train` ended."""

    run_dir: Path
    steps: int
    iterations: int
    episodes: int
    mean_return: float
    """of the last evaluation, or of the last episodes seen in training where there was none"""
    wall_time: float
    """seconds of training, earlier sittings of a resumed run included"""
    reason: str
    interrupted: bool = False
    """whether Ctrl-C or SIGTERM ended it"""


class Trainer:
    """One run: builds everything from settings, trains, saves, resumes."""

    collector: Collector | WorkerCollector | FleetCollector
    env: VectorEnv | RemoteEnvs

    def __init__(self, source: Source, settings: Settings, callbacks: Sequence[Callback] = ()) -> None:
        self.source, self.settings = source, settings
        self.callbacks: list[Callback] = list(callbacks)
        if settings.run.eval and settings.run.save_model:
            self.callbacks.insert(0, BestCheckpoint())
        if settings.run.screenshot_freq:
            self.callbacks.append(Screenshots(settings.run.screenshot_freq))
        self.run_dir: Path | None = None
        self.steps = self.iteration = self.episodes = self.resets = self.saved = 0
        self.saved_iteration = 0
        # Since the last row that was written: how many episodes ended, and what they add up to.
        self.new_episodes, self.new_return, self.new_length = 0, 0.0, 0.0
        self.new_measures: dict[str, float] = {}
        self.wall_time = 0.0
        self.best_return = float("-inf")
        self.mean_return = float("nan")
        self._stop_reason = ""
        self.interrupted = False
        self._window_at: int | None = None
        """offset of a last row that only the end of a run made due: a run that goes on from there writes over it"""
        self._built = False
        self._purge: int | None = None
        self._branched = False
        self._restored = False
        self.store: Segments | ShardedReplay | None = None
        self._learners: Learners | None = None

    @property
    def config(self) -> Settings:
        """The settings of this run."""
        return self.settings

    # Building

    def build(self) -> "Trainer":
        """Make environment, agent, collector, learner; `train` does it by itself."""
        if self._built:
            return self
        run = self.settings.run
        self.device = choose_device(run.device)
        acting_device = choose_device(run.env_device)
        self._before = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
        torch.set_num_threads(run.threads)
        torch.backends.cuda.matmul.allow_tf32 = run.tf32
        keep_freed_memory()
        self.streams = Streams(run.seed)
        spec = self.source.spec(run.num_envs)
        self.agent = build_agent(self.settings, spec, self.streams.seed("learner"))
        check_actors(run, self.agent)
        rows = envs_per_batch(run) * run.num_steps
        self.agent.check(rows)
        self.agent.prepare(self.device, lambda name: self.streams.generator("learner", self.device, name))
        rows = getattr(self.settings.algo, "batch_size", rows)
        worth_it = self.device.type == "cpu" and rows >= ROWS_WORTH_A_THREAD
        # Learners that share batches must exchange gradients in one order.
        self.agent.use_threads(run.learner_threads if worth_it and run.learners == 1 else 1)
        # Whoever acts elsewhere holds a copy of the weights, refreshed once per rollout.
        self.actor = self.agent
        if acting_device != self.device:
            self.actor = build_agent(self.settings, spec).to(acting_device)
        self.actor_copies = self.actor is not self.agent
        self._copied: Callable[[Agent], list[Tensor]] = lambda agent: agent.acting_tensors()
        self._build_collector(acting_device)
        self._eval_env: VectorEnv | None = None
        self._built = True
        with ExitStack() as stack:
            stack.callback(self.close)
            self._build_learner()
            stack.pop_all()
        return self

    def _build_learner(self) -> None:
        run = self.settings.run
        self.experience = self._build_experience()
        if run.learners > 1:
            check_learners(self.agent, run, self.experience)
            copy = build_agent(self.settings, self.agent.spec)
            self._learners = Learners(self.agent, copy, run, getattr(self.experience, "batches", []))
        shared = None if self._learners is None else self._learners.update
        capture = self.device.type == "cuda" and shared is None
        self.learner = Learner(self.agent, capture, run.compile, shared)
        if not isinstance(self.experience, (Replay, ShardedReplay)):
            return
        if run.compile and isinstance(self.experience, Replay):
            self.experience.compile()
        if not self.env.snapshots and self._reset_period() * run.num_steps == 1:
            raise ConfigError(
                f"reset_every is {run.reset_every}: {run.num_envs} environments would start anew after every row, and none would "
                f"have a successor to learn from; use more than {run.num_envs}"
            )

    def _build_experience(self) -> Any:
        gradients = self.settings.run.actor_gradients
        if self.settings.run.actors and gradients != "none":
            return GradientQueue(gradients == "averaged")
        if isinstance(self.agent.cfg, ReplayConfig) and self.agent.cfg.shards:
            run, gamma = self.settings.run, self.settings.gamma
            return make_shards(self.agent, self.collector, run, gamma, self.streams, self.device)
        return self.agent.experience(self.streams.generator("replay", self._replay_device()))

    def _build_collector(self, device: torch.device) -> None:
        run, gamma = self.settings.run, self.settings.gamma
        if run.actors:
            copy = build_agent(self.settings, self.agent.spec)
            reads = any(type(one).on_rollout is not Callback.on_rollout for one in self.callbacks)
            self.collector = make_fleet(self.source, copy, run, gamma, self.streams, needs_rows=reads)
            self.actor, self.actor_copies, self._copied = copy, True, self.collector.role.weights
            self.watch = SystemMetrics(0)
            self.env = RemoteEnvs(self.source.id)
            return
        workers = self.source.workers(run.workers, run.num_envs)
        # What -1 stood for here is written to config.yaml: a resumed run must split its environments alike.
        self.settings = self.settings.replace(workers=workers)
        if workers and run.acting != "central":
            copy = build_agent(self.settings, self.agent.spec)
            self.collector = WorkerCollector(
                self.source, copy, run.num_envs, run.num_steps, workers, gamma, self.streams, run.hold_policy
            )
            self.actor, self.actor_copies = copy, True
            self.env = self.collector.env
            return
        if workers and run.hold_policy:
            raise ConfigError(
                "hold_policy needs whoever acts to see all of its environments begin together, but acting is central with "
                f"{workers} workers; use acting auto, or workers 0"
            )
        self.env = make_vector(self.source, run.num_envs, device, workers, run.compile)
        # Whether all environments begin an episode is a question that a graph can't ask.
        capture = device.type == "cuda" and self.source.world is not None and not run.hold_policy
        acts, renew = self.actor, None
        if run.hold_policy:
            acts = build_agent(self.settings, self.agent.spec).to(device)
            renew = partial(copy_tensors, acts.acting_tensors(), self.actor.acting_tensors())
        generator = self.streams.generator("act", device)
        self.collector = Collector(self.env, acts, run.num_steps, gamma, generator, capture, renew=renew)

    def _replay_device(self) -> torch.device:
        """Where the ring lies: beside the learner unless settings say otherwise."""
        name = getattr(self.settings.algo, "replay_device", "auto")
        if name == "cpu" or (self.device.type == "cpu" and name == "auto"):
            return torch.device("cpu")
        if self.device.type != "cuda":
            raise ConfigError(
                f"replay_device is {name!r}, but the learner is on {self.device}; use auto or cpu"
            )
        return self.device

    @property
    def replay_bytes(self) -> int:
        """Size of the replay ring, known before it is allocated; 0 for algorithms without one."""
        if self._built:
            return self.agent.replay_bytes()
        return build_agent(self.settings, self.source.spec(self.settings.run.num_envs)).replay_bytes()

    # Training

    def train(self) -> Result:
        """Train until the budget is spent, a callback stops it, or Ctrl-C; always leaves a checkpoint behind."""
        run = self.settings.run
        self._stop_reason = ""
        self.interrupted = False
        with ExitStack() as stack:
            stack.callback(self.close)
            if self._restored and not self._built and self.run_dir is not None:
                # Trained before and closed: go on from what that left on disk.
                if not run.save_model:
                    raise CheckpointError(
                        f"{self.run_dir} was trained with save_model false, so nothing is there to go on from; load a "
                        "new trainer, or leave save_model true"
                    )
                checkpoint.use_newest(
                    self.run_dir, self._warn, lambda found: self.attach(found.folder.parent, found)
                )
            self.build()
            if self.run_dir is None:
                self._open_run()
            assert self.run_dir is not None
            self._open_store()
            log = self.log = stack.enter_context(self._logs())
            console = stack.enter_context(self._console())
            stack.enter_context(_interrupts(self))
            if not self._restored:
                self._begin()
            elif self._branched:
                self.save()  # from now on the newest checkpoint is one of this line
            for callback in self.callbacks:
                callback.on_start(self)
            row: dict[str, Any] = {}
            began, before = time.perf_counter(), self.wall_time
            while not self._finished():
                row = self._iteration()
                self.wall_time = before + time.perf_counter() - began
                row["time/elapsed"] = self.wall_time
                self._observe(row)
                if self._row_is_due():
                    log.write(row)
                    self.new_episodes, self.new_return, self.new_length, self.new_measures = 0, 0.0, 0.0, {}
                console.update(self._done()[0], row)
                if not self._finished():
                    self._maybe_save()
            if row and not self._row_is_due():
                self._window_at = self.metric_files.offset()
                log.write({**row, **self.learner.means()})
            self._save_last()
            result = self._result()
            for callback in self.callbacks:
                callback.on_end(self, result)
            self._upload()
            console.update(self._done()[0])
        return result

    def stop(self, reason: str) -> None:
        """End training after this iteration."""
        self._stop_reason = self._stop_reason or reason

    def _iteration(self) -> dict[str, Any]:
        """One rollout and the updates that are due; returns the iteration's row of metrics."""
        began = time.perf_counter()
        self.agent.progress.fill_(self._progress())
        self._renew_actor()
        cut = self._resets_after_this()
        random = self.steps < self.agent.random_steps
        overlaps = self.actor_copies and self.experience.overlaps
        self.collector.start(random)
        if overlaps:
            self._learn()  # while others act, with the weights from before
        waited = time.perf_counter()
        rollout = self._rollout(cut)
        seen = self.collector.episode_statistics.drain()
        for name, what in (("bad_observation", "an observation"), ("bad_reward", "a reward")):
            if seen[name]:
                self._blame(what, rollout)
        steps = int(seen["steps"])
        if isinstance(self.collector, FleetCollector) and isinstance(
            self.experience, (Replay, ShardedReplay)
        ):
            self.experience.cut(self.collector.gaps)
        if isinstance(rollout, Batch):  # where actors learn themselves only gradients come
            for callback in self.callbacks:
                callback.on_rollout(self, rollout)
            self.agent.observe(rollout)
        collected = time.perf_counter()
        self.experience.add(rollout)
        if not overlaps:
            self._learn()
        self.iteration += 1
        self.steps += steps
        self.episodes += int(seen["episodes"])
        if cut:
            self.resets += 1
            self.collector.reset(self.streams.seed("env", str(self.resets)))
        row: dict[str, Any] = {"steps": self.steps, "iteration": self.iteration, "episodes": self.episodes}
        self.new_episodes += int(seen["episodes"])
        self.new_return += seen["return"]
        self.new_length += seen["length"]
        for name in self.agent.spec.measures:
            self.new_measures[name] = self.new_measures.get(name, 0.0) + seen[name]
        if self.new_episodes:
            row["episode/return"] = self.new_return / self.new_episodes
            row["episode/length"] = self.new_length / self.new_episodes
            row.update(
                {f"episode/{key}": value / self.new_episodes for key, value in self.new_measures.items()}
            )
            self.mean_return = row["episode/return"]
        if self._row_is_due():
            row.update(self.learner.drain())
            if self._learners is not None:
                row.update(self._learners.metrics())
            if isinstance(self.collector, FleetCollector):
                told = self.collector.metrics()
                row.update(told, **self.watch.metrics(self.agent.updates, told["time/waited_for_actors"]))
            if isinstance(self.experience, ShardedReplay):
                row.update(self.experience.metrics())
        ended = time.perf_counter()
        row["time/collect"] = collected - (waited if overlaps else began)
        row["time/update"] = waited - began if overlaps else ended - collected
        row["time/steps_per_second"] = steps / (ended - began)
        return row

    def _renew_actor(self) -> None:
        """Whoever acts elsewhere gets the newest weights."""
        if self.actor_copies:
            with torch.no_grad():
                copy_tensors(self._copied(self.actor), self._copied(self.agent))

    def _row_is_due(self) -> bool:
        """Whether this iteration's row of metrics is written, however long the run goes on."""
        run = self.settings.run
        return self.iteration % run.log_freq == 0 or (run.eval and self.iteration % run.eval_freq == 0)

    def _rollout(self, cut: bool) -> Any:
        try:
            return self.collector.finish(cut)
        except Exception:  # whatever an environment throws may come of what a diverged policy did to it
            self.learner.check_finite()
            raise

    def _blame(self, what: str, rollout: Any) -> NoReturn:
        """Raise for what an environment gave that is not finite, by its cause: it may only answer to bad actions."""
        self.learner.check_finite()
        if not isinstance(rollout, Batch):
            raise DivergedError(
                f"an environment gave {what} that is not finite at about step {self.steps}; {REMEDY}"
            )
        seen = _bad_rows(rollout.obs, rollout.reset).cumsum(0) > 0
        if bool((_bad_rows(rollout.action, rollout.mask) & ~seen[:-1]).any()):
            raise DivergedError(
                f"the policy gave an action that is not finite at about step {self.steps}, for observations that are; "
                f"{REMEDY}"
            )
        raise DivergedError(
            f"the environment gave {what} that is not finite at about step {self.steps}; "
            "look at it with whorl.check(env); the last good checkpoint is kept"
        )

    def _learn(self) -> None:
        """The updates that are due."""
        for phase, batch in self.experience.due():
            self.experience.settle(batch, self.learner.update(phase, batch))

    def _observe(self, row: dict[str, Any]) -> None:
        """Callbacks and evaluation of this iteration; neither draws from a training stream."""
        for callback in self.callbacks:
            callback.on_update(self, row)
        run = self.settings.run
        if run.eval and (self.iteration % run.eval_freq == 0 or (self._finished() and not self.interrupted)):
            evaluation = self.evaluate()
            row.update(evaluation.metrics())
            for callback in self.callbacks:
                callback.on_evaluation(self, evaluation)

    def evaluate(self, episodes: int = 0) -> Evaluation:
        """Play `episodes` (default: as configured) with the mean action."""
        self.learner.check_finite()
        episodes = episodes or self.settings.run.n_eval_episodes
        num_envs = min(episodes, EVAL_ENVS) if self.source.world is None else episodes
        if self.actor.device.type == "cuda":
            num_envs = max(num_envs, self.settings.run.num_envs)  # the shape that is compiled already
        if self._eval_env is None or self._eval_env.spec.num_envs != num_envs:
            self._close_eval()
            workers = min(self.settings.run.workers, num_envs)
            self._eval_env = make_vector(
                self.source, num_envs, self.actor.device, workers, self.settings.run.compile
            )
        self._renew_actor()
        seed = self.streams.seed("eval", str(self.iteration))
        evaluation = run_episodes(self.actor, self._eval_env, episodes, seed)
        self.mean_return = evaluation.mean_return
        return evaluation

    # Budget

    def _done(self) -> tuple[float, float, str]:
        """How much of which limit is spent: the one that is nearest to its end."""
        run = self.settings.run
        limits = [(self.steps, run.total_timesteps, "steps")] if run.total_timesteps else []
        limits += [(self.episodes, run.total_episodes, "episodes")] if run.total_episodes else []
        limits += [(self.iteration, run.max_iterations, "iterations")]
        return max(limits, key=lambda limit: limit[0] / max(limit[1], 1))

    def _progress(self) -> float:
        done, total, _ = self._done()
        return min(done / max(total, 1), 1.0)

    def _finished(self) -> bool:
        done, total, _ = self._done()
        return done >= total or bool(self._stop_reason)

    # Saving

    def _reset_period(self) -> int:
        """Epochs between fresh starts of environments that can't be snapshotted."""
        run = self.settings.run
        return max(1, -(-run.reset_every // (run.num_envs * run.num_steps)))

    def _resets_after_this(self) -> bool:
        return not self.env.snapshots and (self.iteration + 1) % self._reset_period() == 0

    def _maybe_save(self) -> None:
        run = self.settings.run
        due = self.iteration // run.checkpoint_freq > self.saved_iteration // run.checkpoint_freq
        # Without snapshots only a fresh start of all environments can be repeated exactly.
        if run.save_model and due and (self.env.snapshots or self.iteration % self._reset_period() == 0):
            self.save()

    def _save_last(self) -> None:
        if not self.settings.run.save_model or self.saved_iteration == self.iteration:
            return
        if not self.env.snapshots and self.iteration % self._reset_period():
            self.resets += 1  # the environments' state is lost: a resumed run starts them anew
            self.collector.episode_statistics.forget()
            self.agent.forget()
        self.save()

    def save(self) -> Path:
        """Write a checkpoint now. Metrics are looked at first: a diverged run keeps its last good one."""
        if self.run_dir is None:
            raise CheckpointError("there is no run to save yet; call train() first")
        self.learner.check_finite()
        self.log.flush()
        self.saved += 1
        self.saved_iteration = self.iteration
        state, metadata = self.state(), self._metadata()
        if self.store is not None:
            metadata["segments"] = self.store.names()
        folder = checkpoint.save(
            self.run_dir,
            self.saved,
            state,
            export(self.agent, self.settings),
            self.settings.plain(),
            metadata,
            self.agent.normalizer_values() or None,
        )
        if checkpoint.retain(self.run_dir, self.settings.run.keep_checkpoints):
            self._sweep_store()
        for callback in self.callbacks:
            callback.on_checkpoint(self, folder)
        return folder

    def save_best(self, evaluation: Evaluation) -> None:
        """Write the policy alone into the run's `best` folder, in one move."""
        assert self.run_dir is not None
        metadata = {**self._metadata(), "mean_return": evaluation.mean_return}
        policy = export(self.agent, self.settings)
        values = self.agent.normalizer_values() or None
        checkpoint.save_best(self.run_dir, policy, self.settings.plain(), metadata, values)

    def state(self) -> dict[str, Any]:
        """Everything that changes the future, as tensors and plain containers."""
        return {
            "agent": self.agent.state(),
            "learner": self.learner.state_dict(),
            "experience": self.experience.state_dict(),
            "streams": self.streams.state_dict(),
            "collector": self.collector.state_dict(),
            "env": self.env.snapshot() if self.env.snapshots else {},
            "counters": {name: getattr(self, name) for name in COUNTERS},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state` was taken."""
        self.build()
        self._open_store()
        self.agent.load_state(state["agent"])
        self.watch = SystemMetrics(self.agent.updates)
        self.learner.load_state_dict(state["learner"])
        self.experience.load_state_dict(state["experience"])
        self.streams.load_state_dict(state["streams"])
        for name in COUNTERS:
            setattr(self, name, state["counters"].get(name, getattr(self, name)))
        self.collector.load_state_dict(state["collector"])
        if self.env.snapshots:
            self.env.restore(state["env"])
        else:
            self.collector.reset(self.streams.seed("env", str(self.resets)))

    def load_weights(self, run: str | Path) -> None:
        """Weights, optimizers and normalisers of another run or checkpoint; counters stay."""
        folder = resolve_run(run)
        found = find_checkpoint(folder, self._warn)
        try:
            # Rates, progress and open returns belong to this run and its environments, not to where the weights come from.
            own = ("progress", "lr_", "rewards.running")
            mine = {key: value for key, value in self.agent.state_dict().items() if key.startswith(own)}
            saved = found.state["agent"]
            module = {**saved["module"], **mine}
            self.agent.load_state({**saved, "module": module, "updates": self.agent.updates})
        except (RuntimeError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"the weights in {found.folder} do not fit these settings: {' '.join(str(error).split())[:300]}"
            ) from None

    def _metadata(self) -> dict[str, Any]:
        end = self.metric_files.offset()
        return {
            "iterations": self.iteration,
            "steps": self.steps,
            "episodes": self.episodes,
            "mean_return": self.mean_return,
            "wall_time": self.wall_time,
            "metrics_offset": end if self._window_at is None else self._window_at,
            "metrics_end": end,
        }

    # The run folder

    def _open_run(self) -> None:
        run = self.settings.run
        self.run_dir = new_run_folder(Path(run.runs), self.settings.algorithm, self.source.id, run.tag)
        text = yaml.safe_dump(self.settings.plain(), sort_keys=False)
        files.write_atomic(self.run_dir / checkpoint.CONFIG, text.encode())

    def _open_store(self) -> None:
        """Rows of replay are kept in the run folder, as they come."""
        if self.run_dir is None or self.store is not None:
            return
        ahead = self.settings.run.save_model
        if isinstance(self.experience, ShardedReplay):
            self.store = self.experience.open_store(self.run_dir / FOLDER, ahead)
        elif isinstance(self.experience, Replay):
            ring, fixed = self.experience.ring, self.experience.refresh is None
            self.store = Segments(self.run_dir / FOLDER, ring, ahead=ahead, memories=fixed)
            self.experience.store = self.store
        self._sweep_store()

    def _sweep_store(self) -> None:
        """Delete rows that no checkpoint needs; where one can't be asked, all stay."""
        if self.store is not None and self.run_dir is not None:
            with suppress(CheckpointError):
                self.store.sweep(checkpoint.segments(self.run_dir))

    def _begin(self) -> None:
        """The start of a run: environments reset, weights as drawn or as loaded."""
        run = self.settings.run
        self.collector.reset(self.streams.seed("env", "0"))
        if run.load_model:
            if not run.load_checkpoint_dir:
                raise ConfigError("load_model is set, but load_checkpoint_dir names no checkpoint")
            self.load_weights(run.load_checkpoint_dir)
        self._restored = True

    def attach_new(self, run_dir: Path) -> "Trainer":
        """Take up a run that ended before its first checkpoint: it starts over in its own folder."""
        self.run_dir = run_dir
        metrics = MetricFiles(run_dir)
        metrics.cut(0)
        metrics.close()
        self._purge = 0
        return self

    def attach(self, run_dir: Path, loaded: checkpoint.Loaded) -> "Trainer":
        """Take up an existing run at a checkpoint: state, counters, and metric files cut back to it."""
        self.run_dir = run_dir
        try:
            self.load_state(loaded.state)
        except BaseException as error:
            self.close()
            if isinstance(error, DamagedError):
                raise DamagedError(f"{loaded.folder}: {error}") from None
            raise
        self.wall_time = float(loaded.metadata["wall_time"])
        # Number on after all that are there: one taken up again, or a damaged one that was skipped, is not overwritten.
        self.saved = max(checkpoint.number(folder) for folder in checkpoint.checkpoints(run_dir))
        self._branched = checkpoint.number(loaded.folder) != self.saved
        metrics, offset = MetricFiles(run_dir), int(loaded.metadata["metrics_offset"])
        self._window_at = offset if self._finished() else None
        metrics.cut(int(loaded.metadata.get("metrics_end", offset)) if self._finished() else offset)
        metrics.close()
        self._purge = self.steps + 1
        self._restored = True
        return self

    @contextmanager
    def _logs(self) -> Iterator[Log]:
        assert self.run_dir is not None
        run = self.settings.run
        self.metric_files = MetricFiles(self.run_dir)
        self.wandb: WandB | None = None
        sinks: list[Sink] = [self.metric_files]
        if run.tensorboard:
            sinks.append(TensorBoard(self.run_dir, self._purge))
        if run.log_file:
            sinks.append(LogFile(self.run_dir / "log.txt"))
        if run.use_wandb:
            self.wandb = WandB(
                self.run_dir,
                self.settings.plain(),
                run.wandb_project,
                run.wandb_entity or None,
                self.run_dir.name,
                run.wandb_mode,
            )
            sinks.append(self.wandb)
        log = Log(*sinks)
        try:
            yield log
        finally:
            log.close()

    def _console(self) -> Console:
        done, total, unit = self._done()
        title = f"{self.settings.algorithm} on {self.source.id}: {self.run_dir}"
        if self.replay_bytes:
            title += f" (replay: {self.replay_bytes / 1e6:,.1f} MB on {self._replay_device().type})"
        if isinstance(self.collector, FleetCollector) and self.collector.fleet.dashboard:
            title += f" (Ray: {self.collector.fleet.dashboard})"
        return Console(total, unit, title, self.settings.run.quiet, done=done)

    def _upload(self) -> None:
        if self.wandb is not None and self.saved and self.run_dir is not None:
            policy = self.run_dir / f"checkpoint_{self.saved}" / checkpoint.POLICY
            self.wandb.artifact(policy, f"{self.settings.algorithm}-{self.source.id}-policy")

    def _warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=3)

    def _result(self) -> Result:
        assert self.run_dir is not None
        reason = self._stop_reason or f"{self._done()[2]} are spent"
        return Result(
            self.run_dir,
            self.steps,
            self.iteration,
            self.episodes,
            self.mean_return,
            self.wall_time,
            reason,
            self.interrupted,
        )

    def _close_eval(self) -> None:
        if self._eval_env is not None:
            self._eval_env.close()
            self._eval_env = None

    def close(self) -> None:
        """Stop worker processes and free the environments."""
        if self._built:
            if self.store is not None:
                self.store.close()
                self.store = None
            if isinstance(getattr(self, "experience", None), ShardedReplay):
                self.experience.close()
            self._close_eval()
            if self._learners is not None:
                self._learners.close()
                self._learners = None
            self.collector.close()
            self.env.close()
            threads, torch.backends.cuda.matmul.allow_tf32 = self._before
            torch.set_num_threads(threads)
            self._built = False


def find_checkpoint(folder: Path, warn: Any) -> checkpoint.Loaded:
    """A checkpoint folder as it is, or the newest whole one of a run folder."""
    return use_checkpoint(folder, warn, lambda loaded: loaded)


def use_checkpoint(folder: Path, warn: Any, use: Callable[[checkpoint.Loaded], T]) -> T:
    """What `use` makes of that checkpoint."""
    if folder.name.startswith("checkpoint_"):
        return use(checkpoint.load(folder))
    return checkpoint.use_newest(folder, warn, use)


def choose_device(name: str) -> torch.device:
    """The device that a setting names; auto is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"no device is called {name!r}; use auto, cpu, cuda or cuda:0") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {name!r} was asked for, but torch sees no GPU here; use auto or cpu")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"device {name!r} was asked for, but there are {torch.cuda.device_count()} GPUs"
            )
        return torch.device("cuda", device.index or 0)
    return device


def _bad_rows(values: Tree, like: Tensor) -> Tensor:
    """[T, B] bool, as `like`: rows with a number that is not finite."""
    bad = torch.zeros_like(like, dtype=torch.bool)
    for leaf in tree.leaves(values):
        if leaf.is_floating_point():
            bad |= ~leaf.isfinite().reshape(*like.shape, -1).all(-1)
    return bad


@torch.no_grad()
def copy_tensors(into: list[Tensor], source: list[Tensor]) -> None:
    """In place, one by one."""
    for target, value in zip(into, source, strict=True):
        target.copy_(value)


@contextmanager
def _interrupts(trainer: Trainer) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) ends training after this iteration, with a checkpoint; the second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        # The next one is not ours: it ends the process, as it would have without us.
        for name, handler in before.items():
            signal.signal(name, handler)
        trainer.interrupted = True
        trainer.stop("it was interrupted")

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
