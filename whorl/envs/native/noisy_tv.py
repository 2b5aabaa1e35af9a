"""A maze with a television: an agent that seeks what it can't predict may watch for ever.

The agent moves up, right, down or left through a maze, seen from above as an RGB image, to the goal in the lower right
corner, which gives reward 1 and terminates; all other rewards are 0, and walls only stop it. The fifth action, which
works from everywhere, switches the channel: the television, three rows of pixels below the maze, shows new random
pixels, which otherwise stay as they are. `tv=False` leaves it dark, and the action without effect, so that agents can
be compared with and without noise. After the noisy television of Burda et al. 2018 (arXiv:1808.04355).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.envs.native.grid import Maze
from whorl.envs.native.world import State
from whorl.envs.rendering.scenes import grid_scene

SWITCH = 4
"""the action that switches the channel"""
ROWS = 3
"""of the television"""
PATH, WALL, GOAL, AGENT = range(4)
PALETTE = ((0, 0, 0), (120, 124, 134), (64, 160, 43), (255, 255, 255))


class NoisyTVMaze(Maze):
    """State: that of `Maze`, and `screen` [pixels, B], uint8.

    Args:
        size: rows and columns of the maze, an odd number.
        tv: whether the television shows anything.
        fixed: the same maze in all episodes and environments; false: a new one in each episode.
        maze_seed: which maze that is.
        max_steps: steps after which an episode is truncated.
    """

    id = "NoisyTVMaze-v0"
    fps = 8

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        size: int = 11,
        tv: bool = True,
        fixed: bool = True,
        maze_seed: int = 0,
        max_steps: int = 200,
    ) -> None:
        super().__init__(num_envs, device, size, max_steps, strip=ROWS, actions=5, measures=(SUCCESS,))
        self.tv, self.fixed = tv, fixed
        self.goal = size**2 - size - 2
        self._palette = torch.tensor(PALETTE, dtype=torch.uint8, device=self.device)
        # Drawn on the CPU, so that every device, worker and evaluation has the same maze.
        self._maze = self.walls(self.weights(torch.Generator().manual_seed(maze_seed), 1))  # [cells, 1]
        self._dark = torch.zeros(3 * ROWS * size, num_envs, dtype=torch.uint8, device=self.device)

    def initial(self, generator: torch.Generator) -> State:
        place = torch.full((self.num_envs,), self.start, device=self.device)
        walls = self._maze.expand(-1, self.num_envs) if self.fixed else self.mazes(generator)
        return {"place": place, "walls": walls, "screen": self._noise(generator)}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        place, _ = self.moved(state, action)
        screen = torch.where(action == SWITCH, self._noise(self.generator), state["screen"])
        reached = place == self.goal
        return {"place": place, "walls": state["walls"], "screen": screen}, reached.float(), reached

    def measure(self, state: State) -> Sequence[Tensor]:
        return [*super().measure(state), state["place"] == self.goal]

    def observe(self, state: State) -> Tensor:
        code = torch.where(state["walls"], WALL, PATH)
        code = torch.where(self._cells == self.goal, GOAL, code)
        code = torch.where(self._cells == state["place"], AGENT, code)
        screen = state["screen"].T.reshape(self.num_envs, ROWS, self.size, 3)
        return torch.cat([self.image(self._palette, code), screen], 1)

    def render(self, env_index: int = 0) -> np.ndarray:
        seen = self.observe(self.state)[env_index].cpu().numpy()
        return grid_scene(
            seen, self.trail(env_index), int(self.state["place"][env_index]), self.clock(env_index)
        )

    def _noise(self, generator: torch.Generator) -> Tensor:
        if not self.tv:
            return self._dark
        shape, kind = self._dark.shape, torch.uint8
        return torch.randint(256, shape, generator=generator, dtype=kind, device=self.device)
