"""Symbols to repeat from memory: the one of some steps ago, or the first one of the episode.

Each step shows one of 4 symbols, uniformly random, as one-hot. The action repeats an earlier symbol: the reward is
1/n where it is correct and else -1/n, with n steps that are scored, so the best return is 1 and guessing gives -0.5.
Actions do not change what is shown. Episodes are only truncated, after 64 steps.
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
from whorl.envs.rendering.scenes import symbol_scene

SYMBOLS = 4


class RepeatPrevious(Sensed):
    """State: `symbols` [delay + 1, B], from the one to repeat to the one shown; -1 where there is none yet.

    Args:
        observe: symbol (the one shown) or full (and the one to repeat).
        concat: number of observations that are concatenated, newest last.
        delay: the symbol of `delay` steps ago is to be repeated; the first `delay` steps are not scored.
        max_steps: steps after which an episode is truncated.
    """

    id = "RepeatPrevious-v0"
    fps = 4
    choices: ClassVar[Choices] = {"symbol": range(SYMBOLS), "full": range(2 * SYMBOLS)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "symbol",
        concat: int = 1,
        delay: int = 4,
        max_steps: int = 64,
    ) -> None:
        super().__init__(num_envs, device, Discrete(SYMBOLS), observe, concat, max_steps, "float32")
        if not 1 <= delay < max_steps:
            raise ConfigError(f"delay is {delay}; choose 1 to {max_steps - 1}, so that some steps are scored")
        self.scored = max_steps - delay
        """scored steps of an episode"""
        self._none = torch.full((delay, num_envs), -1, device=self.device)

    def initial(self, generator: torch.Generator) -> State:
        return {"symbols": torch.cat([self._none, self.drawn(SYMBOLS, generator)[None]])}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        symbols = state["symbols"]
        asked = symbols[0]
        points = torch.where(action == asked, 1.0, -1.0).masked_fill(asked < 0, 0)
        new = torch.cat([self.kept(symbols), self.drawn(SYMBOLS, self.generator)[None]])
        return {"symbols": new}, points.to(self.dtype) / self.scored, torch.zeros_like(self.ended)

    def kept(self, symbols: Tensor) -> Tensor:
        """The symbols that stay in the state when the next one is shown."""
        return symbols[1:]

    def sense(self, state: State) -> Sequence[Tensor]:
        symbols = state["symbols"]
        return [(symbols[row] == i).to(self.dtype) for row in (-1, 0) for i in range(SYMBOLS)]

    def render(self, env_index: int = 0) -> np.ndarray:
        return symbol_scene(self.state["symbols"][:, env_index].tolist(), self.clock(env_index))


class RepeatFirst(RepeatPrevious):
    """State: `symbols` [2, B], the first, which is to be repeated at every step, and the one shown."""

    id = "RepeatFirst-v0"

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "symbol",
        concat: int = 1,
        max_steps: int = 64,
    ) -> None:
        super().__init__(num_envs, device, observe, concat, 1, max_steps)
        self.scored = max_steps

    def initial(self, generator: torch.Generator) -> State:
        return {"symbols": self.drawn(SYMBOLS, generator).expand(2, -1)}

    def kept(self, symbols: Tensor) -> Tensor:
        return symbols[:1]
