"""The loop of a population: plan a generation, train its learners in processes or on Ray, write down what became of it.

The population's folder:

    population.yaml       settings of the population and of its learners
    lineage.jsonl         one row per learner and generation: score, settings, where its weights came from
    population.png        scores and drawn settings over the generations
    best                  the policy with the best score so far
    learner_0, ...        the run folder of each learner; its checkpoint_k is that of its k-th generation

The lineage is all the state there is: plans follow from it, and it is replaced as a whole after each generation. So a
population can be killed at any moment; learners that had finished the generation under way are not trained again.
"""

import json
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from whorl.core import files
from whorl.core.errors import CheckpointError, WhorlError
from whorl.core.hardware import cores
from whorl.core.process import CTRL_C, first_interrupt
from whorl.core.registry import KINDS, registered
from whorl.distributed.remote import RemoteError, RestartPolicy, make_backend
from whorl.distributed.task_pool import ProcessPool, gpu_share
from whorl.envs.make import Source
from whorl.population.config import EvolveConfig
from whorl.population.display import Display
from whorl.population.member import Member, Report, Task, read_report
from whorl.population.rules import LineageRow, Plan, Population, select
from whorl.run.reporting import Result, Terminated, interrupted
from whorl.settings.draws import RANDOM, Draw
from whorl.settings.merge import Settings, plain_fields
from whorl.state import checkpoint
from whorl.state.runlock import RunLock
from whorl.state.streams import Streams

CONFIG, LINEAGE, CURVE = "population.yaml", "lineage.jsonl", "population.png"
POPULATION, LEARNERS = "population", "learners"
"""parts of population.yaml, besides random_params"""
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Evolved(Result):
    """How an evolution ended: `mean_return` is the best score, `run_dir` the population's folder."""

    generations: int = 0
    learner: int = 0
    """the learner with the best score"""
    params: Mapping[str, Any] | None = None
    """its values of `random_params`"""


class Evolver:
    """A population of learners in its folder."""

    def __init__(
        self,
        folder: Path,
        source: Source,
        settings: Settings,
        config: EvolveConfig,
        draws: Mapping[str, Draw],
    ) -> None:
        self.folder, self.source, self.settings, self.config = folder, source, settings, config
        self.population = Population(config, draws, settings.run.seed, read_lineage(folder))
        self._signal = ""
        self._drawn = 0
        """the last generation in the picture"""
        self._began = time.monotonic()

    def train(self) -> Evolved:
        """Go on until the last generation, the target or a signal, which raises `KeyboardInterrupt` or `Terminated`."""
        run = self.settings.run
        with ExitStack() as stack:
            self.lock = RunLock(self.folder)
            stack.callback(self.lock.release)
            self.display = Display(self.config, self.settings, self.folder)
            stack.enter_context(first_interrupt(self._interrupt))
            self._save_config()
            stack.enter_context(self.display)
            self._conclude()
            if not self._over():
                self.restarts = RestartPolicy(run.actor_restarts, run.restarts_per_hour, self.display.message)
                self.backend = make_backend(run.ray, self._processes())
                stack.callback(self.backend.close)
                arguments = self._arguments()
                gpus = gpu_share(self.backend, run.device, self._processes())
                self.pool = ProcessPool(
                    self.backend, "learner", Member, lambda place: arguments, self._processes(), gpus
                )
            while not self._over():
                self.lock.check()
                self._generation()
            self._draw_curve()
        result = self._result()
        if self._signal:
            raise (
                interrupted(result, f"continue it with: whorl resume {result.run_dir}")
                if self._signal == CTRL_C
                else Terminated(result)
            )
        return result

    def _save_config(self) -> None:
        found = {
            POPULATION: plain_fields(self.config),
            RANDOM: {name: draw.plain() for name, draw in self.population.draws.items()},
            LEARNERS: self.settings.saved(),
        }
        files.write_atomic(self.folder / CONFIG, yaml.safe_dump(found, sort_keys=False).encode())

    def _generation(self) -> None:
        """Plan and train one generation, and write it down unless a signal came."""
        plans = self.population.next()
        for plan in plans:
            if plan.note:
                self.display.message(
                    f"learner {plan.learner} replaces another in slot {plan.slot}: {plan.note}"
                )
        tasks = {plan.slot: self._task(plan) for plan in plans}
        self.display.plan(plans, {slot: Path(task.folder) for slot, task in tasks.items()})
        reports = self._train(tasks)
        if len(reports) < len(tasks):
            return
        rows = self._rows(plans, reports)
        self.population = replace(self.population, history=[*self.population.history, *rows])
        write_lineage(self.folder, self.population.history)
        self._conclude()

    def _conclude(self) -> None:
        """Finish the newest generation of the lineage; repeated on resume, because a kill may have interrupted it."""
        rows = self.population.newest()
        self._save_best(rows)
        self.display.generation(self.population)
        if rows and not any(math.isfinite(row.score) for row in rows):
            raise WhorlError(
                f"all {len(rows)} learners diverged in generation {rows[0].generation}; the last one: {rows[-1].note}; "
                "use lower learning rates, or narrower intervals in random_params"
            )

    def _task(self, plan: Plan) -> Task:
        run, population = self.settings.run, self.population
        generation = population.generation + 1
        folder = self.folder / f"learner_{plan.learner}"
        folder.mkdir(exist_ok=True)
        seeds = Streams(run.seed)
        seed = seeds.seed("learner", f"learner {plan.learner}")
        settings = self.settings.replace(
            **plan.params, seed=seed, ray=""
        )  # the learner itself is on the cluster
        common = self.config.rule == "cem" and self.config.common_start and plan.origin == "new"
        weights = population.weight_seed(plan.slot, generation) if plan.origin == "drawn" else 0
        return Task(
            generation,
            plan.learner,
            str(folder),
            plan.age,
            settings.plain(),
            (plan.age + 1) * self.config.generation_steps,
            plan.origin,
            tuple(str(self._checkpoint(parent)) for parent in plan.parents),
            seeds.seed("learner", "common") if common else weights,
        )

    def _checkpoint(self, row: LineageRow) -> Path:
        return self.folder / f"learner_{row.learner}" / f"checkpoint_{row.age}"

    def _train(self, tasks: Mapping[int, Task]) -> dict[int, Report]:
        """Train the learners that have no report of this generation yet."""
        reports = {
            slot: found
            for slot, task in tasks.items()
            if (found := read_report(Path(task.folder), task.generation)) is not None
        }
        queue = deque((slot, task) for slot, task in tasks.items() if slot not in reports)
        for slot, report in reports.items():
            self.display.ended(slot, report)
        while (queue or self.pool.busy) and not self._signal:
            self.lock.beat()
            while queue and self.pool.idle:
                slot, task = queue.popleft()
                self.display.started(slot)
                self.pool.give(slot, task)
            self._draw_curve()  # while the learners train
            for slot, task, found in self.pool.ready(POLL_SECONDS):
                name = f"learner {task.learner}"
                if isinstance(found, RemoteError):
                    self.restarts.failed(name, found)
                    queue.appendleft((slot, task))
                    continue
                self.restarts.succeeded(name)
                reports[slot] = found
                self.display.ended(slot, found)
                if found.note:
                    self.display.message(f"{name} diverged: {found.note}")
            self.display.refresh()
        return reports

    def _draw_curve(self) -> None:
        """Bring the picture up to date."""
        from whorl.population.curve import (
            draw_population,
        )  # here, because matplotlib takes a second to import

        population = self.population
        if self._drawn < population.generation:
            self._drawn = population.generation
            title = f"{self.config.rule} of {self.config.population} {self.settings.algorithm} on {self.settings.env}"
            draw_population(population.history, population.draws, self.folder / CURVE, title)

    def _rows(self, plans: Sequence[Plan], reports: Mapping[int, Report]) -> list[LineageRow]:
        scores = [reports[plan.slot].score for plan in plans]
        chosen = select(scores, self.config.elite) if self.config.rule == "cem" else [False] * len(plans)
        return [
            LineageRow(
                generation=reports[plan.slot].generation,
                slot=plan.slot,
                learner=plan.learner,
                age=reports[plan.slot].age,
                score=reports[plan.slot].score,
                params=dict(plan.params),
                origin=plan.origin,
                parents=tuple(parent.learner for parent in plan.parents),
                steps=reports[plan.slot].steps,
                selected=selected,
                note=reports[plan.slot].note or plan.note,
            )
            for plan, selected in zip(plans, chosen)
        ]

    def _save_best(self, rows: Sequence[LineageRow]) -> None:
        """Copy the policy of the best learner of all generations, if it is one of these."""
        best = best_of(self.population.history)
        if best is None or best not in rows:
            return
        found = checkpoint.load(self._checkpoint(best))
        statistics = found.folder / checkpoint.NORMALIZER
        values = yaml.safe_load(statistics.read_text()) if statistics.is_file() else None
        metadata = {**found.metadata, "learner": best.learner, "generation": best.generation}
        checkpoint.save_best(self.folder, found.policy, found.config, metadata, values)

    def _over(self) -> bool:
        return bool(self._signal) or self._reached() or self.population.generation >= self.config.generations

    def _reached(self) -> bool:
        rows = self.population.newest() if self.population.history else []
        return any(row.score >= self.config.target_return for row in rows)

    def _reason(self) -> str:
        if self._signal:
            return "it was interrupted"
        return "the target return is reached" if self._reached() else "the last generation is over"

    def _interrupt(self, name: str) -> None:
        self._signal = name
        self.display.message(
            f"{name}: stopping; learners that have not finished this generation will repeat it"
        )

    def _result(self) -> Evolved:
        history = self.population.history
        best = best_of(history)
        steps: dict[int, int] = {row.learner: row.steps for row in history}
        return Evolved(
            self.folder,
            sum(steps.values()),
            0,
            0,
            best.score if best else math.nan,
            time.monotonic() - self._began,
            self._reason(),
            bool(self._signal),
            generations=self.population.generation,
            learner=best.learner if best else 0,
            params=dict(best.params) if best else {},
        )

    def _processes(self) -> int:
        return min(self.config.parallel or cores(), self.config.population)

    def _arguments(self) -> tuple[Any, ...]:
        return self.source, self.config, {kind: registered(kind) for kind in KINDS if kind != "adapter"}


def best_of(history: Sequence[LineageRow]) -> LineageRow | None:
    """The best row of all generations; of equal ones the first."""
    finite = [row for row in history if math.isfinite(row.score)]
    return max(finite, key=lambda row: row.score, default=None)


def write_lineage(folder: Path, history: Sequence[LineageRow]) -> None:
    """Replace the lineage; a learner that diverged has the score null."""
    rows = [{**asdict(row), "score": row.score if math.isfinite(row.score) else None} for row in history]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    files.write_atomic(folder / LINEAGE, ("\n".join(lines) + "\n").encode())


def read_lineage(folder: Path) -> list[LineageRow]:
    """The rows of all complete generations."""
    path = folder / LINEAGE
    if not path.is_file():
        return []
    try:
        found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return [
            LineageRow(
                **{
                    **row,
                    "parents": tuple(row["parents"]),
                    "score": -math.inf if row["score"] is None else row["score"],
                }
            )
            for row in found
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is not the lineage of a population: {error}") from error


def is_population(folder: Path) -> bool:
    """Whether a folder is that of a population."""
    return (folder / CONFIG).is_file()
