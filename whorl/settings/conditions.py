"""Settings that depend on the machine and the kind of environment.

A mapping of settings may hold `where:`, from conditions to the settings that apply where they hold:

    num_envs: 8
    where:
      gpu: {num_envs: 64}
      gpu native compiler: {env_device: cuda, compile: true}
      16 cores: {actors: 16}

All words of a condition must hold; of several conditions that hold, later ones come over earlier ones.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from whorl.core import hardware
from whorl.core.errors import ConfigError, nearest

WHERE = "where"
KINDS = ("images", "vectors", "discrete", "continuous", "native")
"""words for environments: what is observed, how it is acted, and whether it is stepped as one batch of tensors"""
WORDS = ("gpu", "cpu", "compiler", "memory", *KINDS)
_PART = re.compile(r"(\d+) cores|(\S+)")


@dataclass(frozen=True)
class ConditionContext:
    """What conditions are checked against.

    Args:
        gpu: whether training runs on a GPU.
        memory: whether the networks have a memory.
        kind: the words of `KINDS` that hold for the environment; called if a condition has one.
    """

    gpu: bool = False
    memory: bool = False
    kind: Callable[[], Iterable[str]] = tuple

    @cached_property
    def kinds(self) -> frozenset[str]:
        return frozenset(self.kind())

    def holds(self, condition: str) -> bool:
        """Whether all words of a condition hold."""
        return all(
            hardware.cores() >= int(cores) if cores else self._word(word, condition)
            for cores, word in _PART.findall(condition)
        )

    def _word(self, word: str, condition: str) -> bool:
        if word not in WORDS:
            raise ConfigError(
                f"the condition {condition!r} has the word {word!r}, which is not known; "
                f"{nearest(word, [*WORDS, '8 cores'])}"
            )
        if word in KINDS:
            return word in self.kinds
        return {
            "gpu": self.gpu,
            "cpu": not self.gpu,
            "compiler": hardware.has_compiler(),
            "memory": self.memory,
        }[word]


def layers_where(layer: Mapping[str, Any], context: ConditionContext) -> list[Mapping[str, Any]]:
    """A layer of settings without `where`, and after it those whose condition holds."""
    conditions = layer.get(WHERE) or {}
    if not isinstance(conditions, Mapping) or not all(isinstance(v, Mapping) for v in conditions.values()):
        raise ConfigError(f"where is {conditions!r}; it must be a mapping of conditions to settings")
    plain = {name: value for name, value in layer.items() if name != WHERE}
    return [
        plain,
        *(values for condition, values in conditions.items() if context.holds(str(condition))),
    ]
