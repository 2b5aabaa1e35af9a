"""One iteration of training, the same for every algorithm.

    rollout = collector.collect()
    experience.add(rollout)
    for phase, batch in experience.due():
        experience.settle(batch, learner.update(phase, batch))

Where a copy of the policy acts (worker processes, actors, another device) and batches come from replay, the updates
that are due run while the rollout is collected. With a dataset, iterations before `offline_steps` are updates alone.
Nothing is in flight between two iterations, so that checkpoints taken there are exact.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NoReturn

import torch
from torch import Tensor

from whorl.collect.episodes import Episode, reported
from whorl.core import messages, tree
from whorl.core.errors import DivergedError
from whorl.core.tree import Tree
from whorl.data.batch import CELL, Batch
from whorl.run.build import Parts
from whorl.run.dataset import offline_updates
from whorl.run.learner import REMEDY
from whorl.run.progress import Progress
from whorl.settings.run import RunConfig

RECENT = 100
"""training episodes, at least, whose mean return is reported where a run does not evaluate"""


@dataclass
class Counters:
    """How far a run has come; part of every checkpoint."""

    steps: int = 0
    steps_before: int = 0
    """steps before the newest iteration"""
    iteration: int = 0
    episodes: int = 0
    resets: int = 0
    """resets of all environments at once"""
    saved_steps: int = 0
    """steps at the newest checkpoint"""
    earlier: dict[str, float] = field(default_factory=dict)
    """steps, iterations and episodes of the run that this one started from (load_model)"""
    best_return: float = float("-inf")
    """of the evaluations"""
    evaluated_return: float = float("nan")
    """of the last evaluation; nan: there was none"""
    recent: list[list[float]] = field(default_factory=list)
    """numbers of episodes and sums of their returns in the last rollouts with at least `RECENT` episodes together"""
    new_episodes: int = 0
    """episodes that ended since the last row of metrics was written; the next three are sums over them"""
    new_return: float = 0.0
    new_length: float = 0.0
    new_measures: dict[str, float] = field(default_factory=dict)
    new_reports: dict[str, float] = field(default_factory=dict)
    """episodes that reported each measure"""

    @property
    def mean_return(self) -> float:
        """Mean return of the last evaluation or, without one, of at least `RECENT` training episodes."""
        if not math.isnan(self.evaluated_return):
            return self.evaluated_return
        episodes = sum(count for count, _ in self.recent)
        return sum(total for _, total in self.recent) / episodes if episodes else math.nan

    def spent(self, run: RunConfig) -> tuple[float, float, str]:
        """Used amount, limit and unit of the budget that is closest to its end."""
        limits = [(self.steps, run.total_timesteps, "steps")] if run.total_timesteps else []
        limits += [(self.episodes, run.total_episodes, "episodes")] if run.total_episodes else []
        limits += [(self.iteration, run.max_iterations, "iterations")] if run.max_iterations else []
        return max(limits, key=lambda limit: limit[0] / limit[1])

    def progress(self, run: RunConfig) -> float:
        """Share of the budget that is spent, for schedules; that of an earlier run counts in both."""
        done, total, unit = self.spent(run)
        earlier = self.earlier.get(unit, 0.0)
        return min((earlier + done) / max(earlier + total, 1), 1.0)

    def passed(self, interval: int) -> bool:
        """Whether the newest iteration passed a multiple of `interval` steps."""
        return self.steps // interval > self.steps_before // interval

    def count(self, seen: dict[str, float], measures: tuple[str, ...]) -> None:
        """Add one rollout's statistics."""
        self.iteration += 1
        self.steps_before, self.steps = self.steps, self.steps + int(seen["steps"])
        self.episodes += int(seen["episodes"])
        self.new_episodes += int(seen["episodes"])
        self.new_return += seen["return"]
        self.new_length += seen["length"]
        for name in measures:
            self.new_measures[name] = self.new_measures.get(name, 0.0) + seen[name]
            self.new_reports[name] = self.new_reports.get(name, 0.0) + seen[reported(name)]
        if seen["episodes"]:
            self.recent.append([seen["episodes"], seen["return"]])
            while sum(count for count, _ in self.recent[1:]) >= RECENT:
                del self.recent[0]

    def count_updates(self, updates: int) -> None:
        """Add an iteration without the environment, whose updates count as steps."""
        self.iteration += 1
        self.steps_before, self.steps = self.steps, self.steps + updates

    def row(self) -> dict[str, Any]:
        """The counters and the means over new episodes as metrics."""
        row: dict[str, Any] = {"steps": self.steps, "iteration": self.iteration, "episodes": self.episodes}
        if self.new_episodes:
            row["episode/return"] = self.new_return / self.new_episodes
            row["episode/length"] = self.new_length / self.new_episodes
            for name, value in self.new_measures.items():
                if self.new_reports[name]:
                    row[f"episode/{name}"] = value / self.new_reports[name]
        return row

    def clear_new(self) -> None:
        """Start the next row's sums at zero."""
        self.new_episodes, self.new_return, self.new_length = 0, 0.0, 0.0
        self.new_measures, self.new_reports = {}, {}

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in (entry.name for entry in fields(self) if entry.name in state.keys()):  # noqa: SIM118 - a dict
            setattr(self, name, _like(getattr(self, name), state[name], name))


def _like(mine: Any, saved: Any, name: str) -> Any:
    """A saved counter, checked for the type that it has here."""
    if isinstance(mine, dict) and isinstance(saved, dict):
        return {str(key): _like(0.0, value, name) for key, value in saved.items()}
    if isinstance(mine, list) and isinstance(saved, list):
        return [[_like(0.0, episodes, name), _like(0.0, total, name)] for episodes, total in saved]
    if isinstance(mine, (dict, list)) or isinstance(saved, bool) or not isinstance(saved, (int, float)):
        raise ValueError(f"the counter {name} is a {type(saved).__name__}")
    return type(mine)(saved)


class Loop:
    """Runs iterations of `parts` and counts them.

    Args:
        on_episode: called for each episode that ended, if they are recorded.
        on_rollout: called with the rollout before it is learned from.
    """

    def __init__(
        self,
        parts: Parts,
        counters: Counters,
        on_episode: Callable[[Episode], None],
        on_rollout: Callable[[Batch], None],
    ) -> None:
        self.parts, self.counters = parts, counters
        self.on_episode, self.on_rollout = on_episode, on_rollout
        self.progress: Progress | None = None
        self.whole = True
        """whether agent, replay and counters belong together: not while an update runs"""
        self.reset_due = False
        """whether the newest iteration made a reset of all environments due (`reset_every`)"""
        self.advised = False
        """whether this run has had a warning about its metrics"""

    def watch(self, progress: Progress | None) -> None:
        """Report to `progress` from now on."""
        self.progress = progress
        self.parts.acting.collector.watch = None if progress is None else progress.collected
        self.parts.agent.on_optimizer_step = None if progress is None else progress.updated

    def iterate(self, progress: float) -> dict[str, Any]:
        """Collect one rollout and run the updates that are due; the metrics.

        Args:
            progress: share of the budget that is spent, for schedules.
        """
        parts, counters = self.parts, self.counters
        offline = offline_updates(parts.settings.run, counters.steps)
        if offline:
            return self._iterate_offline(progress, offline)
        began = time.perf_counter()
        period = parts.reset_period
        cut = period > 0 and (counters.iteration + 1) % period == 0
        overlaps = parts.acts_with_copy and parts.experience.overlaps
        self.start(progress)
        if overlaps:
            self._learn()  # while the copy acts with the weights from before
        waited = time.perf_counter()
        collected, steps = self.finish(cut, overlaps)
        self.reset_due = cut
        counters.resets += cut  # before callbacks, which may save
        row = counters.row()
        if self.row_is_due():
            row |= self.metrics()
        over = time.perf_counter()
        row["time/collect"] = collected - (waited if overlaps else began)
        row["time/update"] = waited - began if overlaps else over - collected
        row["time/steps_per_second"] = steps / (over - began)
        if self.progress is not None:
            self.progress.next(row["time/collect"], row["time/update"])
        return row

    def _iterate_offline(self, progress: float, updates: int) -> dict[str, Any]:
        """Updates without new rows, each counted as a step; the metrics."""
        parts, counters = self.parts, self.counters
        began = time.perf_counter()
        self._anneal(progress)
        parts.experience.grant(updates)
        self._learn()
        counters.count_updates(updates)
        row = counters.row()
        if self.row_is_due():
            row |= self.metrics()
        row["time/collect"], row["time/update"] = 0.0, time.perf_counter() - began
        row["time/steps_per_second"] = updates / row["time/update"]
        if self.progress is not None:
            self.progress.next(row["time/collect"], row["time/update"])
        return row

    def _anneal(self, progress: float) -> None:
        """Move schedules to this share of the budget."""
        self.parts.agent.progress.fill_(progress)
        self.parts.experience.anneal(progress)

    def start(self, progress: float) -> None:
        """Begin a rollout with the newest weights."""
        parts, counters = self.parts, self.counters
        agent, collector = parts.agent, parts.acting.collector
        self._anneal(progress)
        parts.send_weights()
        collector.start(counters.earlier.get("steps", 0) + counters.steps < agent.random_steps)

    def finish(self, cut: bool, learned: bool = False) -> tuple[float, int]:
        """Take the rollout and run the updates that are due; the time before them, and the steps.

        Args:
            cut: all environments are reset after this rollout.
            learned: the updates were run while it was collected.
        """
        parts, counters = self.parts, self.counters
        agent, collector, experience = parts.agent, parts.acting.collector, parts.experience
        rollout = self._collected(cut)
        seen = collector.episode_statistics.drain()
        for name, what in (("bad_observation", "an observation"), ("bad_reward", "a reward")):
            if seen[name]:
                self._diverged(what, rollout)
        if collector.gaps is not None:
            experience.cut(collector.gaps)
            agent.forget(collector.gaps)
        ended, collector.episode_statistics.ended = collector.episode_statistics.ended, []
        for episode in ended:
            self.on_episode(episode)
        received = isinstance(rollout, Batch)  # actors that compute gradients send no rows
        if received:
            self.on_rollout(rollout)
        self.whole = False
        if received:
            rollout = agent.receive(rollout)
            if parts.map is not None and CELL in rollout.extras:
                parts.map.add(rollout)
        collected = time.perf_counter()
        experience.add(rollout)
        if not learned:
            self._learn()
        counters.count(seen, agent.spec.measures)
        self.whole = True
        return collected, int(seen["steps"])

    def metrics(self) -> dict[str, float]:
        """The metrics of updates, rollouts and replay since the last call."""
        parts = self.parts
        row = parts.learner.drain() | parts.agent.row_metrics()
        self._warn_by_metrics(row)
        if parts.learners is not None:
            row |= parts.learners.metrics()
        return row | parts.acting.collector.metrics() | parts.experience.metrics()

    def row_is_due(self) -> bool:
        """Whether the metrics of this iteration are written, however long the run continues."""
        run, counters = self.parts.settings.run, self.counters
        return counters.passed(run.log_freq) or (run.eval and counters.passed(run.eval_freq))

    def _warn_by_metrics(self, row: dict[str, Any]) -> None:
        """Warn once of what an agent sees in its metrics."""
        advice = None if self.advised else self.parts.agent.advice(row)
        if advice is not None:
            self.advised = True
            messages.warn(advice)

    def _learn(self) -> None:
        """Run the updates that are due."""
        experience, learner, whole = self.parts.experience, self.parts.learner, self.whole
        self.whole = False
        for phase, batch in experience.due():
            experience.settle(batch, learner.update(phase, batch))
            if self.progress is not None:
                self.progress.updated()
        self.whole = whole

    def _collected(self, cut: bool) -> Any:
        try:
            return self.parts.acting.collector.finish(cut)
        except Exception:  # an environment may raise anything where a diverged policy acts
            self.parts.learner.check_finite()
            raise

    def _diverged(self, what: str, rollout: Any) -> NoReturn:
        """Raise for a value that is not finite, and name its cause: weights, actions, or the environment."""
        self.parts.learner.check_finite()
        step = f"at about step {self.counters.steps}"
        if not isinstance(rollout, Batch):
            raise DivergedError(f"an environment gave {what} that is not finite {step}; {REMEDY}")
        seen = _bad_rows(rollout.obs, rollout.reset).cumsum(0) > 0
        if bool((_bad_rows(rollout.action, rollout.mask) & ~seen[:-1]).any()):
            raise DivergedError(
                f"the policy gave an action that is not finite {step}, for observations that are; {REMEDY}"
            )
        # Row t + 1 of the observations and row t of the rewards came from the same step.
        bad = (
            seen[1:]
            if "observation" in what
            else _bad_rows(rollout.reward, rollout.mask) & (rollout.mask > 0)
        )
        row, env_index = (int(at) for at in bad.nonzero()[0]) if bool(bad.any()) else (0, 0)
        step = f"at about step {self.counters.steps + int(rollout.mask[: row + 1].sum()):,}"
        part = _part_not_finite(rollout.obs, row + 1, env_index) if "observation" in what else ""
        which = f"{what} whose {part!r}" if part else f"{what} that"
        raise DivergedError(
            f"environment {env_index} gave {which} is not finite {step}; check it with whorl.check(env)"
        )


def _part_not_finite(obs: Tree, row: int, env_index: int) -> str:
    """The path of the first part of an observation tree that is not finite there; empty for a tree without parts."""
    for path, leaf in tree.items(obs):
        if not bool(leaf[row, env_index].isfinite().all()):
            return path
    return ""


def _bad_rows(values: Tree, like: Tensor) -> Tensor:
    """[T, B] bool, shaped as `like`: rows that contain a number that is not finite."""
    bad = torch.zeros_like(like, dtype=torch.bool)
    for leaf in tree.leaves(values):
        if leaf.is_floating_point():
            bad |= ~leaf.isfinite().reshape(*like.shape, -1).all(-1)
    return bad
