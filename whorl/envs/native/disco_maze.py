"""The random disco maze of Never Give Up (Badia et al. 2020, arXiv:2002.06038, section 4.1): walls change colour.

A new maze of 21 by 21 cells in each episode, seen from above as an RGB image. At every step each wall cell gets one of
five random colours, so no image is seen twice, while all that the agent controls is its place. It moves up, right, down
or left; stepping into a wall terminates. There is no reward: what counts is the share of the open cells that are
visited in an episode, the measure `coverage`. Walking along every branch and back visits all 199 in at most 396 steps.

The paper leaves open how mazes are made, where the agent starts and when an episode is truncated: here mazes are random
spanning trees (`whorl.envs.native.grid`), the start is the upper left corner, and the limit 500 steps.
"""

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.envs.native.grid import Maze
from whorl.envs.native.world import State
from whorl.envs.rendering.scenes import grid_scene

COLOURS = ((220, 50, 47), (64, 160, 43), (38, 100, 230), (235, 200, 30), (200, 60, 200))
"""of walls; paths are black and the agent is white"""


class DiscoMaze(Maze):
    """State: that of `Maze`, and `paint` [cells, B], the number of each wall's colour.

    Args:
        size: rows and columns, an odd number.
        max_steps: steps after which an episode is truncated.
    """

    id = "DiscoMaze-v0"
    fps = 15

    def __init__(
        self, num_envs: int, device: torch.device | str = "cpu", size: int = 21, max_steps: int = 500
    ) -> None:
        super().__init__(num_envs, device, size, max_steps)
        palette = ((0, 0, 0), *COLOURS, (255, 255, 255))
        self._palette = torch.tensor(palette, dtype=torch.uint8, device=self.device)

    def initial(self, generator: torch.Generator) -> State:
        place = torch.full((self.num_envs,), self.start, device=self.device)
        return {
            "place": place,
            "walls": self.mazes(generator),
            "paint": self._painted(generator),
        }

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        place, blocked = self.moved(state, action)
        new = {"place": place, "walls": state["walls"], "paint": self._painted(self.generator)}
        return new, torch.zeros_like(self.returns), blocked

    def observe(self, state: State) -> Tensor:
        code = torch.where(state["walls"], state["paint"] + 1, 0)
        agent = self._cells == state["place"]
        return self.image(self._palette, torch.where(agent, len(self._palette) - 1, code))

    def render(self, env_index: int = 0) -> np.ndarray:
        seen = self.observe(self.state)[env_index].cpu().numpy()
        return grid_scene(
            seen, self.trail(env_index), int(self.state["place"][env_index]), self.clock(env_index)
        )

    def _painted(self, generator: torch.Generator) -> Tensor:
        shape = (self.size**2, self.num_envs)
        return torch.randint(len(COLOURS), shape, generator=generator, device=self.device)
