"""Symbols to recall when asked, in the order of a queue or of a stack: hallway, queue and stack.

Each step shows a symbol, a question, or nothing. A symbol is to be kept in mind; a question asks for one of those that
have not been asked for yet: the oldest (queue) or the newest (stack). The action answers the question that is shown and
is ignored in other steps. The reward is 1/n for a right answer and -1/n for a wrong one, with n questions in an
episode, so the best return is 1, and guessing among 4 symbols returns -0.5. The last answer terminates.

What comes next is random: a symbol if none is kept, a question if `depth` are kept or all n symbols were shown, else
either with equal probability. Before each there are some steps that show nothing. In the hallway one symbol is kept at
a time, over a corridor of 3 to 10 steps: that tests how long something is remembered. The queue and the stack keep up
to 4, without such steps: that tests how much is remembered, and in which order.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.core.errors import ConfigError
from whorl.core.spec import Discrete
from whorl.envs.native.sensed import Choices, Sensed
from whorl.envs.native.world import State
from whorl.envs.rendering.scenes import recall_scene

SYMBOLS = 4
NOTHING, SYMBOL, QUESTION = range(3)


class Recall(Sensed):
    """State: `kind` and `symbol` shown [B], `kept` [depth, B] (oldest first, then -1), `wait` (steps until the next is
    shown), `written`, `asked` and `right` [B] (counts).

    Args:
        observe: shown (the symbol, one-hot, and whether there is a question), or full (and the right answer).
        concat: number of observations that are concatenated, newest last.
        order: queue or stack.
        items: symbols and questions of an episode.
        depth: most symbols that are kept at a time.
        gaps: fewest and most steps that show nothing before each symbol and question.
    """

    id = "Queue-v0"
    fps = 4
    choices: ClassVar[Choices] = {"shown": range(SYMBOLS + 1), "full": range(2 * SYMBOLS + 1)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "shown",
        concat: int = 1,
        order: str = "queue",
        items: int = 16,
        depth: int = 4,
        gaps: tuple[int, int] = (0, 0),
    ) -> None:
        if order not in ("queue", "stack"):
            raise ConfigError(f"order is {order!r}; choose queue or stack")
        if not 1 <= depth <= items:
            raise ConfigError(
                f"depth is {depth} and items {items}; give at least 1, and a depth of at most items"
            )
        if len(gaps) != 2 or not 0 <= gaps[0] <= gaps[1]:
            raise ConfigError(f"gaps is {gaps!r}; give the fewest and the most steps, such as (3, 10)")
        steps = 2 * items * (gaps[1] + 1)
        super().__init__(num_envs, device, Discrete(SYMBOLS), observe, concat, steps, "float32", (SUCCESS,))
        self.order, self.items, self.depth, self.gaps = order, items, depth, tuple(gaps)
        self._slots = torch.arange(depth, device=self.device)[:, None]

    def initial(self, generator: torch.Generator) -> State:
        zero = torch.zeros_like(self.steps)
        kept = (zero - 1).repeat(self.depth, 1)
        counts = {"written": zero, "asked": zero, "right": zero}
        # As if something had just been shown, so that the first wait is drawn.
        return self._next(
            {"kind": zero + SYMBOL, "symbol": zero, "kept": kept, "wait": zero, **counts}, generator
        )

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        question = state["kind"] == QUESTION
        right = question & (action == self._answer(state))
        reward = torch.where(question, torch.where(right, 1.0, -1.0), 0.0) / self.items
        # A symbol that was asked for is no longer kept.
        count = self._count(state)
        if self.order == "queue":
            fewer = torch.cat([state["kept"][1:], torch.full_like(state["kept"][:1], -1)])
        else:
            fewer = state["kept"].masked_fill(self._slots == count - 1, -1)
        new = {
            **state,
            "kept": torch.where(question, fewer, state["kept"]),
            "asked": state["asked"] + question,
            "right": state["right"] + right,
        }
        return self._next(new, self.generator), reward, new["asked"] == self.items

    def _next(self, state: State, generator: torch.Generator) -> State:
        """The state with what is shown next."""
        least, most = self.gaps
        gap = least + self.drawn(most - least + 1, generator)
        wait = torch.where(state["kind"] == NOTHING, state["wait"] - 1, gap)
        due, count = wait == 0, self._count(state)
        coin, symbol = self.drawn(2, generator) > 0, self.drawn(SYMBOLS, generator)
        more = (state["written"] < self.items) & (count < self.depth)
        writes = due & more & (coin | (count == 0))
        asks = due & ~writes & (count > 0)
        return {
            **state,
            "kind": torch.where(writes, SYMBOL, torch.where(asks, QUESTION, NOTHING)),
            "symbol": symbol,
            "kept": torch.where(writes & (self._slots == count), symbol, state["kept"]),
            "wait": wait,
            "written": state["written"] + writes,
        }

    def sense(self, state: State) -> Sequence[Tensor]:
        written, question = state["kind"] == SYMBOL, state["kind"] == QUESTION
        answer = self._answer(state)
        shown = [written & (state["symbol"] == i) for i in range(SYMBOLS)]
        answers = [question & (answer == i) for i in range(SYMBOLS)]
        return [row.to(self.dtype) for row in (*shown, question, *answers)]

    def measure(self, state: State) -> Sequence[Tensor]:
        return [state["right"] == self.items]

    def render(self, env_index: int = 0) -> np.ndarray:
        kind, symbol, right, asked = (
            int(self.state[key][env_index]) for key in ("kind", "symbol", "right", "asked")
        )
        kept = [value for value in self.state["kept"][:, env_index].tolist() if value >= 0]
        shown = {**self.clock(env_index), "right": f"{right} of {asked}"}
        asks = 0 if self.order == "queue" else len(kept) - 1
        return recall_scene(
            symbol if kind == SYMBOL else None, kept, asks if kind == QUESTION else None, self.depth, shown
        )

    def _count(self, state: State) -> Tensor:
        return (state["kept"] >= 0).sum(0)

    def _answer(self, state: State) -> Tensor:
        if self.order == "queue":
            return state["kept"][0]
        last = (self._count(state) - 1).clamp(min=0)
        return state["kept"].gather(0, last[None])[0]
