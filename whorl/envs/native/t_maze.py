"""A T-maze: the first look tells which way to turn at the end of a corridor, and nothing tells it again.

The junction is `length` steps ahead. Actions: 0 turn up, 1 go forward, 2 turn down; where there is a wall nothing
happens. Seen, as 0 and 1: the cue to turn up, the cue to turn down, the corridor, the junction. The first observation
is the cue alone, all later ones are corridor or junction alone. Turning at the junction ends the episode, and the way
of the cue earns 1; nothing else earns anything, so an episode returns at most 1, and without memory at most 0.5 on
average: whichever way a policy turns at the junction, the cue was the other one as often. An episode is truncated
after 4 (length + 1) steps: nobody walks back, so random play mostly comes to the junction, and lacks memory alone.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Discrete
from whorl.envs.native.sensed import Choices, Sensed
from whorl.envs.native.world import State
from whorl.envs.rendering.scenes import t_maze_scene

UP, FORWARD, DOWN = range(3)


class TMaze(Sensed):
    """State: `place` [B], `cue` [B] (1 up, -1 down), `told` [B] (whether the cue has been shown).

    Args:
        observe: once (the cue is in the first observation alone) or full (in every one).
        concat: how many of the last observations are seen at once.
        length: steps from the start to the junction.
    """

    id = "TMaze-v0"
    fps = 4
    choices: ClassVar[Choices] = {"once": (0, 1, 2, 3), "full": (4, 5, 2, 3)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "once",
        concat: int = 1,
        length: int = 10,
    ) -> None:
        if length < 1:
            raise ConfigError(f"length is {length}; the junction is at least 1 step from the start")
        super().__init__(num_envs, device, Discrete(3), observe, concat, 4 * (length + 1), "float32")
        self.length = length
        self._cues = torch.tensor([-1, 1], device=self.device)

    def initial(self, generator: torch.Generator) -> State:
        cue = self.chosen(self._cues, generator)
        return {"place": torch.zeros_like(cue), "cue": cue, "told": torch.zeros_like(cue, dtype=torch.bool)}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        place, cue = state["place"], state["cue"]
        turned = (place == self.length) & (action != FORWARD)
        right = turned & (action == torch.where(cue > 0, UP, DOWN))
        new = {
            "place": (place + (action == FORWARD)).clamp(max=self.length),
            "cue": cue,
            "told": torch.ones_like(state["told"]),
        }
        return new, right.to(self.dtype), turned

    def sense(self, state: State) -> Sequence[Tensor]:
        up, told, end = state["cue"] > 0, state["told"], state["place"] == self.length
        rows = [up & ~told, ~up & ~told, told & ~end, told & end, up, ~up]
        return [row.to(self.dtype) for row in rows]

    def render(self, env_index: int = 0) -> np.ndarray:
        place, cue = int(self.state["place"][env_index]), int(self.state["cue"][env_index])
        shown = {
            **self.clock(env_index),
            "place": f"{place} of {self.length}",
            "cue": "up" if cue > 0 else "down",
        }
        return t_maze_scene(place, self.length, cue, not bool(self.state["told"][env_index]), shown)
