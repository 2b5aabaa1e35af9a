"""Any action tree as a list of discrete choices and one vector of continuous dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import EnvError
from whorl.core.spec import Continuous, Discrete, SpecTree
from whorl.core.tree import Tree


@dataclass(frozen=True)
class ActionParts:
    """The discrete choices and the continuous dimensions of an action tree, each in the order of the tree."""

    spec: SpecTree
    options: tuple[int, ...]
    """number of options of each discrete choice, in the order of the flat action mask"""
    size: int
    """number of continuous dimensions"""

    @staticmethod
    def of(spec: SpecTree) -> "ActionParts":
        options: list[int] = []
        size = 0
        for leaf in tree.leaves(spec):
            if isinstance(leaf, Continuous):
                size += leaf.size
            else:
                options += [leaf.n] if isinstance(leaf, Discrete) else leaf.nvec
        return ActionParts(spec, tuple(options), size)

    @property
    def combinations(self) -> int:
        """Number of combinations of all discrete choices; 1 if there is none."""
        return prod(self.options)

    def choices(self, action: Tree) -> Tensor:
        """The discrete choices of a canonical action: int64 [..., choices]."""
        pairs = self._pairs(action)
        return torch.cat(
            [
                part.unsqueeze(-1) if isinstance(leaf, Discrete) else part
                for leaf, part in pairs
                if not isinstance(leaf, Continuous)
            ],
            -1,
        )

    def continuous(self, action: Tree) -> Tensor:
        """The continuous dimensions of a canonical action: [..., size]."""
        found = [part for leaf, part in self._pairs(action) if isinstance(leaf, Continuous)]
        return found[0] if len(found) == 1 else torch.cat(found, -1)

    def action(self, choices: Tensor | None, continuous: Tensor | None) -> Tree:
        """The canonical action of choices [..., choices] and continuous dimensions [..., size]."""
        at = {"choice": 0, "size": 0}

        def take(source: Tensor | None, kind: str, count: int) -> Tensor:
            assert source is not None
            found = source.narrow(-1, at[kind], count)
            at[kind] += count
            return found

        def leaf(like: SpecTree) -> Tensor:
            if isinstance(like, Continuous):
                return take(continuous, "size", like.size)
            if isinstance(like, Discrete):
                return take(choices, "choice", 1).squeeze(-1)
            return take(choices, "choice", len(like.nvec))

        return tree.map(leaf, self.spec)

    def combination(self, choices: Tensor) -> Tensor:
        """The number [...] of a combination of choices [..., choices]; the last choice counts fastest."""
        number, *others = choices.unbind(-1)
        for options, choice in zip(self.options[1:], others):
            number = number * options + choice
        return number

    def choices_of(self, combination: Tensor) -> Tensor:
        """The choices [..., choices] of the combination with a number [...]."""
        found = []
        for options in reversed(self.options):
            found.append(combination % options)
            combination = combination // options
        return torch.stack(found[::-1], -1)

    def every_combination(self) -> Tensor:
        """All combinations of choices in the order of their numbers: int64 [combinations, choices]."""
        return self.choices_of(torch.arange(self.combinations))

    def code(self, choices: Tensor) -> Tensor:
        """Choices [..., choices] as one float vector, each one-hot: [..., sum(options)]."""
        # Not one_hot, which reads the values on some devices.
        ranges = (torch.arange(n, device=choices.device) for n in self.options)
        columns = zip(choices.unbind(-1), ranges)
        return torch.cat([(choice.unsqueeze(-1) == every).float() for choice, every in columns], -1)

    def _pairs(self, action: Tree) -> list[tuple[SpecTree, Tensor]]:
        return list(
            zip(tree.leaves(self.spec), tree.leaves(tree.map(lambda _, part: part, self.spec, action)))
        )


def used_parameters(parts: ActionParts, declared: Sequence[Sequence[int]]) -> Tensor:
    """1 where a combination of choices uses a continuous dimension, else 0: float [combinations, size].

    `declared` has an entry for each combination in the order of their numbers (the last choice counts fastest): the
    dimensions it uses, counted from 0 in the order of the action tree.
    """
    if not parts.options or not parts.size:
        raise EnvError("parameters_of needs discrete and continuous actions; leave it out")
    if len(declared) != parts.combinations:
        raise EnvError(
            f"parameters_of has {len(declared)} entries, but there are {parts.combinations} combinations of discrete "
            "choices; give each the continuous dimensions that it uses"
        )
    found = torch.zeros(parts.combinations, parts.size)
    for number, dimensions in enumerate(declared):
        for dimension in dimensions:
            if not 0 <= dimension < parts.size:
                raise EnvError(
                    f"parameters_of gives choice {number} the dimension {dimension}, but the continuous dimensions "
                    f"are 0 to {parts.size - 1}"
                )
            found[number, dimension] = 1
    if not found.any():
        raise EnvError("parameters_of gives no choice a continuous dimension; leave it out if each uses all")
    return found
