"""Deep sea (Osband et al. 2019, bsuite, arXiv:1908.03568): a treasure that random exploration finds once in 2^size.

A diver starts in the upper left corner of a `size` by `size` grid. Each step takes it one row down, and one column left
or right, within the grid; after `size` steps the episode terminates. Going right costs 0.01 / size. Going right from
the lower right corner, which is reached only by going right every time, gives 1. So the best return is 0.99, and never
going right gives 0. In each cell one of the two actions means right, at random but always the same
(`randomize_actions`): nothing is learned in one cell about another. Observed: the cell, one-hot, and all zeros at the
end of an episode.

Stochastic: a move to the right is one straight down with probability 1 / size, and the last step from either lower
corner has standard normal noise in its reward. The best mean return is (1 - 1/size)^(size - 1) - 0.01.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Discrete, Spec
from whorl.envs.native.world import State, World
from whorl.envs.rendering.scenes import sea_scene

COST = 0.01
"""of going right at every step of an episode"""


class DeepSea(World):
    """State: `row`, `column` [B], and whether the treasure was `found` [B].

    Args:
        size: rows and columns, and the length of an episode.
        stochastic: wind, and noisy rewards at the lower corners.
        randomize_actions: which action means right depends on the cell; false: 1 in all cells.
        mapping_seed: of these random meanings, which are the same in all environments and runs.
    """

    id = "DeepSea-v0"
    fps = 4

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        size: int = 10,
        stochastic: bool = False,
        randomize_actions: bool = True,
        mapping_seed: int = 0,
    ) -> None:
        super().__init__(num_envs, device)
        if size < 2:
            raise ConfigError(f"size is {size}; it must be at least 2 rows and columns")
        self.size = self.max_steps = size
        self.stochastic = stochastic
        calm = 1 - 1 / size if stochastic else 1.0
        moves = sum(calm**row for row in range(size))
        self.optimal_return = calm ** (size - 1) - COST / size * moves
        """the mean return of the best policy"""
        self.spec = Spec(
            Array((size * size,), "float32", 0, 1), Discrete(2), num_envs, (SUCCESS,), map_shape=(size, size)
        )
        meaning = torch.ones(size * size, dtype=torch.int64)
        if randomize_actions:
            meaning.random_(2, generator=torch.Generator().manual_seed(mapping_seed))
        self.right = meaning.to(self.device)
        """[cells] the action that means right"""
        self._cells = torch.arange(size * size, device=self.device)

    def initial(self, generator: torch.Generator) -> State:
        row = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        return {"row": row, "column": row, "found": torch.zeros_like(self.ended)}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        row, column, last = state["row"], state["column"], self.size - 1
        right = action == self.right[self._cell(state)]
        found = right & (column == last)
        reward = found.float() - COST / self.size * right
        blown = torch.zeros_like(right)
        if self.stochastic:
            blown = self._drawn(torch.rand) <= 1 / self.size
            corner = (row == last) & ((column == 0) | (column == last))
            reward = reward + self._drawn(torch.randn) * corner
        moved = torch.where(right, (~blown).long(), -1)
        new = {"row": row + 1, "column": (column + moved).clamp(0, last), "found": found}
        return new, reward, row == last

    def observe(self, state: State) -> Tensor:
        here = self._cells == self._cell(state)[:, None]
        return (here & (state["row"] < self.size)[:, None]).float()

    def measure(self, state: State) -> Sequence[Tensor]:
        return [state["found"]]

    def cells(self) -> Tensor:
        return self._cell(self.state)

    def render(self, env_index: int = 0) -> np.ndarray:
        row, column = int(self.state["row"][env_index]), int(self.state["column"][env_index])
        shown = {
            "step": f"{int(self.steps[env_index])} of {self.max_steps}",
            "return": f"{float(self.returns[env_index]):.3f}",
        }
        return sea_scene(row, column, self.size, shown)

    def _cell(self, state: State) -> Tensor:
        """The cell [B] of each diver; below the last row it is that of the last row."""
        return state["row"].clamp(max=self.size - 1) * self.size + state["column"]

    def _drawn(self, numbers: Callable[..., Tensor]) -> Tensor:
        """A random number per environment [B]."""
        return numbers(self.num_envs, generator=self.generator, device=self.device)
