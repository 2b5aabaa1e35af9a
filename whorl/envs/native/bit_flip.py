"""Bit flipping (Andrychowicz et al. 2017, arXiv:1707.01495, section 3.1): turn one row of bits into another.

State and goal are `bits` random bits each. Action i flips bit i. The reward is 0 for the step that makes them equal,
which terminates, and -1 for all others; an episode is truncated after `bits` steps. No step but the last tells
anything about the goal, and a random policy finds it about `bits` times in 2^bits episodes.
"""

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Discrete
from whorl.envs.native.goal_world import GoalWorld
from whorl.envs.native.world import State
from whorl.envs.rendering.scenes import bits_scene


class BitFlip(GoalWorld):
    """State: `bits` and `goal` [bits, B], 0 and 1.

    Args:
        bits: number of bits, of actions, and of steps after which an episode is truncated.
    """

    id = "BitFlip-v0"
    fps = 4

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", bits: int = 15) -> None:
        if bits < 1:
            raise ConfigError(f"bits is {bits}; it must be at least 1")
        super().__init__(num_envs, device, Discrete(bits), (bits, bits), (0, 1), bits, True)
        self.bits = bits
        self._every = torch.arange(bits, device=self.device).unsqueeze(1)

    def initial(self, generator: torch.Generator) -> State:
        drawn = torch.rand(2, self.bits, self.num_envs, generator=generator, device=self.device)
        bits, goal = (drawn < 0.5).float()
        return {"bits": bits, "goal": goal}

    def move(self, state: State, action: tree.Tree) -> State:
        return {**state, "bits": (state["bits"] - (self._every == action).float()).abs()}

    def seen(self, state: State) -> Tensor:
        return state["bits"]

    def achieved(self, state: State) -> Tensor:
        return state["bits"]

    def matches(self, achieved: Tensor, desired: Tensor) -> Tensor:
        return (achieved == desired).all(-1)

    def render(self, env_index: int = 0) -> np.ndarray:
        bits, goal = (self.state[key][:, env_index] for key in ("bits", "goal"))
        shown = {**self.clock(env_index), "wrong bits": f"{int((bits != goal).sum())}"}
        return bits_scene(bits.tolist(), goal.tolist(), shown)
