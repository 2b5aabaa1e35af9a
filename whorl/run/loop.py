"""One iteration of training, the same for every algorithm.

    rollout = collector.collect()
    experience.add(rollout)
    for phase, batch in experience.due():
        experience.settle(batch, learner.update(phase, batch))

Where a copy of the policy acts (worker processes, actors, another device) and batches come from replay, the updates
that are due run while the rollout is collected. Nothing is in flight between two iterations, so that checkpoints taken
there are exact.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NoReturn

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import DivergedError
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.run.build import Parts
from whorl.run.learner import REMEDY
from whorl.settings.run import RunConfig


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
    best_return: float = float("-inf")
    """of the evaluations"""
    mean_return: float = float("nan")
    """of the last evaluation, or of the last training episodes where there was none"""
    new_episodes: int = 0
    """episodes that ended since the last row of metrics was written; the next three are sums over them"""
    new_return: float = 0.0
    new_length: float = 0.0
    new_measures: dict[str, float] = field(default_factory=dict)

    def spent(self, run: RunConfig) -> tuple[float, float, str]:
        """Used amount, limit and unit of the budget that is closest to its end."""
        limits = [(self.steps, run.total_timesteps, "steps")] if run.total_timesteps else []
        limits += [(self.episodes, run.total_episodes, "episodes")] if run.total_episodes else []
        limits += [(self.iteration, run.max_iterations, "iterations")] if run.max_iterations else []
        return max(limits, key=lambda limit: limit[0] / limit[1])

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

    def row(self) -> dict[str, Any]:
        """The counters and the means over new episodes as metrics."""
        row: dict[str, Any] = {"steps": self.steps, "iteration": self.iteration, "episodes": self.episodes}
        if self.new_episodes:
            row["episode/return"] = self.mean_return = self.new_return / self.new_episodes
            row["episode/length"] = self.new_length / self.new_episodes
            row |= {f"episode/{key}": value / self.new_episodes for key, value in self.new_measures.items()}
        return row

    def clear_new(self) -> None:
        """Start the next row's sums at zero."""
        self.new_episodes, self.new_return, self.new_length, self.new_measures = 0, 0.0, 0.0, {}

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in (entry.name for entry in fields(self)):
            setattr(self, name, state.get(name, getattr(self, name)))


class Loop:
    """Runs iterations of `parts` and counts them."""

    def __init__(self, parts: Parts, counters: Counters) -> None:
        self.parts, self.counters = parts, counters

    def iterate(self, progress: float, on_rollout: Callable[[Batch], None]) -> dict[str, Any]:
        """Collect one rollout and run the updates that are due; the metrics.

        Args:
            progress: share of the budget that is spent, for schedules.
            on_rollout: called with the rollout before it is learned from.
        """
        parts, counters = self.parts, self.counters
        agent, collector, experience = parts.agent, parts.acting.collector, parts.experience
        began = time.perf_counter()
        agent.progress.fill_(progress)
        parts.send_weights()
        period = parts.reset_period
        cut = period > 0 and (counters.iteration + 1) % period == 0
        overlaps = parts.acts_apart and experience.overlaps
        collector.start(counters.steps < agent.random_steps)
        if overlaps:
            self._learn()  # while the copy acts with the weights from before
        waited = time.perf_counter()
        rollout = self._collected(cut)
        seen = collector.episode_statistics.drain()
        for name, what in (("bad_observation", "an observation"), ("bad_reward", "a reward")):
            if seen[name]:
                self._diverged(what, rollout)
        if collector.gaps is not None:
            experience.cut(collector.gaps)
        if isinstance(rollout, Batch):  # actors that compute gradients send no rows
            on_rollout(rollout)
            rollout = agent.receive(rollout)
        collected = time.perf_counter()
        experience.add(rollout)
        if not overlaps:
            self._learn()
        counters.count(seen, agent.spec.measures)
        if cut:
            counters.resets += 1
            collector.reset(parts.streams.seed("env", str(counters.resets)))
        row = counters.row()
        if self.row_is_due():
            row |= parts.learner.drain()
            if parts.learners is not None:
                row |= parts.learners.metrics()
            row |= collector.metrics() | experience.metrics()
        ended = time.perf_counter()
        row["time/collect"] = collected - (waited if overlaps else began)
        row["time/update"] = waited - began if overlaps else ended - collected
        row["time/steps_per_second"] = int(seen["steps"]) / (ended - began)
        return row

    def row_is_due(self) -> bool:
        """Whether the metrics of this iteration are written, however long the run continues."""
        run, counters = self.parts.settings.run, self.counters
        return counters.passed(run.log_freq) or (run.eval and counters.passed(run.eval_freq))

    def _learn(self) -> None:
        """Run the updates that are due."""
        experience, learner = self.parts.experience, self.parts.learner
        for phase, batch in experience.due():
            experience.settle(batch, learner.update(phase, batch))

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
        raise DivergedError(
            f"environment {env_index} gave {what} that is not finite {step}; check it with "
            "whorl.check(env); the last good checkpoint is kept"
        )


def _bad_rows(values: Tree, like: Tensor) -> Tensor:
    """[T, B] bool, shaped as `like`: rows that contain a number that is not finite."""
    bad = torch.zeros_like(like, dtype=torch.bool)
    for leaf in tree.leaves(values):
        if leaf.is_floating_point():
            bad |= ~leaf.isfinite().reshape(*like.shape, -1).all(-1)
    return bad
