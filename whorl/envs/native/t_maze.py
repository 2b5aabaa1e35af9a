"""A T-maze: only the first observation shows which way to turn at the end of a corridor.

The junction is `length` steps ahead. Actions: 0 turn up, 1 go forward, 2 turn down; a move into a wall has no effect.
Observed, as 0 and 1: the cue to turn up, the cue to turn down, the corridor, the junction. The first observation is
the cue alone, all later ones are corridor or junction alone. Turning at the junction terminates; turning in the
direction of the cue gives reward 1, everything else 0. So the best return is 1, and without memory at most 0.5 on
average. An episode is truncated after 4 (length + 1) steps: there is no way back, so a random policy usually reaches
the junction, and the task tests memory rather than exploration.
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
        observe: once (only the first observation has the cue) or full (all have).
        concat: number of observations that are concatenated, newest last.
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
            raise ConfigError(f"length is {length}; it must be at least 1 step from the start")
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
