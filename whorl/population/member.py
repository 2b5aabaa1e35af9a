"""One learner for one generation: it starts from its newest checkpoint, takes over weights, trains and is evaluated.

What a generation does depends on its task and on checkpoints alone, so that a learner whose process dies, or a
population that is resumed, repeats it bit for bit.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.core import files
from whorl.core.errors import DivergedError
from whorl.core.process import configure_process, interruptible_waits
from whorl.core.registry import register
from whorl.envs.make import Source
from whorl.ops.targets import polyak_
from whorl.population.config import EvolveConfig
from whorl.population.rules import drawn, moments
from whorl.run.build import learner_threads
from whorl.run.trainer import Trainer
from whorl.settings.merge import configure
from whorl.state import checkpoint
from whorl.state.policy import build_agent
from whorl.state.streams import Streams

REPORT = "report.json"


@dataclass(frozen=True)
class Task:
    """One generation of one learner."""

    generation: int
    learner: int
    folder: str
    """its run folder"""
    age: int
    """the checkpoint that it starts from; 0: it is new"""
    settings: Mapping[str, Any]
    """all settings of its run"""
    steps: int
    """environment steps that it has made at the end"""
    origin: str
    parents: tuple[str, ...] = ()
    """checkpoints of the learners whose weights it takes over"""
    weight_seed: int = 0
    """of drawn weights; of a new learner, the seed of the initial weights that all have, or 0"""


@dataclass(frozen=True)
class Report:
    """Result of a task."""

    generation: int
    score: float
    """mean return of the evaluation; -inf: the learner diverged"""
    steps: int
    age: int
    """the newest checkpoint"""
    note: str = ""
    """why it diverged"""


class Member:
    """Lives in a process of its own and trains one learner after the other."""

    def __init__(
        self, source: Source, config: EvolveConfig, registered: Mapping[str, Mapping[str, Any]]
    ) -> None:
        for kind, things in registered.items():
            for name, thing in things.items():
                register(kind, name, thing)
        self.source, self.config = source, config

    def train(self, task: Task) -> Report:
        """Run one generation; the report is written to the learner's folder as well."""
        folder = Path(task.folder)
        settings = configure(task.settings["algorithm"], task.settings["env"], task.settings, presets=False)
        run = settings.run
        _forget_attempts(folder, task.age)
        files.write_atomic(
            folder / checkpoint.CONFIG, yaml.safe_dump(settings.saved(), sort_keys=False).encode()
        )
        trainer = Trainer(self.source, settings)
        trainer.owns_process = True
        with configure_process(run.threads, run.tf32, learner_threads(settings)), interruptible_waits():
            try:
                with trainer:
                    report = self._run_generation(trainer, task)
            except DivergedError as error:
                report = Report(task.generation, -math.inf, 0, task.age, error.message.partition(";")[0])
        write_report(folder, report)
        return report

    def _run_generation(self, trainer: Trainer, task: Task) -> Report:
        folder = Path(task.folder)
        if task.age:
            trainer.attach(folder, checkpoint.load(folder / f"checkpoint_{task.age}"))
        else:
            trainer.attach_new(folder).build()
        take_over(trainer.agent, task, self.config, trainer.settings)
        while trainer.steps < task.steps:
            trainer.step()
        evaluation = trainer.evaluate()
        if not math.isfinite(evaluation.mean_return):
            raise DivergedError("the return of its evaluation is not finite")
        trainer.log.write({"steps": trainer.steps, **evaluation.metrics()})
        return Report(task.generation, evaluation.mean_return, trainer.steps, task.age + 1)

    def close(self) -> None:
        """Nothing is open between two tasks."""


def write_report(folder: Path, report: Report) -> None:
    files.write_atomic(folder / REPORT, json.dumps(asdict(report)).encode())


def read_report(folder: Path, generation: int) -> Report | None:
    """The report of a learner that has finished a generation; None: it has not."""
    with suppress(OSError, ValueError, TypeError):
        found = Report(**json.loads((folder / REPORT).read_text()))
        return found if found.generation == generation else None
    return None


@torch.no_grad()
def take_over(agent: Agent, task: Task, config: EvolveConfig, settings: Any) -> None:
    """Weights and optimizer state of a learner at the start of a generation."""
    if task.origin == "own":
        return
    if task.origin == "new":
        if task.weight_seed:
            agent.load_state_dict(_weights_like(agent, settings, task.weight_seed))
        return
    found = [checkpoint.load(Path(parent)).state["agent"] for parent in task.parents]
    own = {name: value for name, value in agent.state_dict().items() if agent.of_one_run(name)}
    agent.load_state_dict({**found[0]["module"], **own})
    agent.load_optimizer_state(found[0]["optimizers"])
    if task.origin == "drawn":
        names = list(agent.trained())
        mean, std = moments([{name: one["module"][name] for name in names} for one in found])
        for name, value in drawn(mean, std, config, task.weight_seed).items():
            agent.trained()[name].copy_(value)
        for online, target in getattr(getattr(agent, "targets", None), "pairs", ()):
            polyak_(target, online, 1.0)
    agent.reset_rates()


def _weights_like(agent: Agent, settings: Any, seed: int) -> dict[str, Tensor]:
    """The state of an agent of the same kind with the initial weights of a seed."""
    return build_agent(settings, agent.spec, Streams(seed).seed("learner")).state_dict()


def _forget_attempts(folder: Path, age: int) -> None:
    """Delete checkpoints of an attempt that was not reported, because its process or the population was killed."""
    for newer in [found for found in checkpoint.checkpoints(folder) if checkpoint.number(found) > age]:
        with files.scratch(newer) as trash:
            newer.rename(trash)
