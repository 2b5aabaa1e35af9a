"""The trainer of a run with several behaviours."""

from pathlib import Path
from typing import Any

from whorl.core.errors import ConfigError
from whorl.run.behaviors.checkpointing import BehaviorCheckpointing, of_behavior
from whorl.run.behaviors.evaluate import BehaviorEvaluator
from whorl.run.behaviors.loop import BehaviorLoop
from whorl.run.behaviors.parts import Member, build_behaviors
from whorl.run.build import Needs
from whorl.run.checkpointing import find_checkpoint, load_weights
from whorl.run.trainer import Trainer
from whorl.settings.behaviors import BehaviorSettings
from whorl.state.runfolder import resolve_run


class BehaviorTrainer(Trainer):
    """A `Trainer` of several behaviours in one environment. Metrics begin with the name of their behaviour."""

    settings: BehaviorSettings  # type: ignore[assignment]

    @property
    def behaviors(self) -> dict[str, Member]:
        """Each behaviour with its agent, replay buffer and counters, from `build` on."""
        parts: Any = self.parts
        return {member.name: member for member in parts.members}

    @property
    def replay_bytes(self) -> int:
        self.build()
        return self.agent.replay_bytes()

    def returns(self) -> dict[str, float]:
        return {name: member.counters.mean_return for name, member in self.behaviors.items()}

    def load_weights(self, run: str | Path, strict: bool = False) -> None:
        found = find_checkpoint(resolve_run(run, Path(self.settings.run.runs)))
        for name, member in self.behaviors.items():
            message = load_weights(member.parts.agent, of_behavior(found, name), strict)
            if message:
                self._notify(f"{name}: {message}")

    def _assemble(self, needs: Needs) -> None:
        for name, one in self.settings.behaviors.items():
            if one.run.dataset:
                raise ConfigError(
                    f"behaviour {name!r} has a dataset, but several behaviours learn online; leave it out"
                )
        parts: Any = build_behaviors(
            self.source, self.settings, needs, self._notify, self._on_episode, self._on_rollout
        )
        self._parts = parts
        self.checkpointing = BehaviorCheckpointing(parts, self.counters)
        evaluator: Any = BehaviorEvaluator(self.source, parts)
        loop: Any = BehaviorLoop(parts, self.counters)
        self._evaluator, self.loop = evaluator, loop
