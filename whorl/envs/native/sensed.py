"""Native environments with vector observations, of which `observe` selects entries and `concat` joins several."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Continuous, Discrete, Spec, SpecTree, TupleSpec
from whorl.envs.native.world import State, World

Choices: TypeAlias = Mapping[str, Sequence[int]]


class Sensed(World):
    """A subclass sets `choices` and defines `sense` instead of `observe`.

    Args:
        action: the action space; `advance` gets canonical actions.
        observe: which entries are observed, a key of `choices`.
        concat: number of observations that are concatenated, newest last, zeros before the first of an episode.
        max_steps: steps after which an episode is truncated.
        dtype: of physics, rewards and observations.
        measures: names of episode statistics, which `measure` computes.
        parameters_of: hybrid actions: the parameters that each choice uses; empty: each uses all.
        state: observe a dict of what `observe` selects and everything that is sensed (`observed`, `state`).
    """

    choices: ClassVar[Choices]
    """the entries of `sense` that each value of `observe` selects"""

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str,
        action: SpecTree,
        observe: str,
        concat: int,
        max_steps: int,
        dtype: str,
        measures: tuple[str, ...] = (),
        parameters_of: Sequence[Sequence[int]] = (),
        state: bool = False,
    ) -> None:
        super().__init__(num_envs, device)
        if observe not in self.choices:
            raise ConfigError(f"observe is {observe!r}; {self.id} offers {', '.join(self.choices)}")
        if concat < 1:
            raise ConfigError(
                f"concat is {concat}; use 1 for the newest observation alone, or more to concatenate several"
            )
        if max_steps < 1:
            raise ConfigError(f"max_steps is {max_steps}; it must be at least 1")
        if dtype not in ("float32", "float64"):
            raise ConfigError(f"dtype is {dtype!r}; choose float32 or float64")
        self.selected = tuple(self.choices[observe])
        self.concat = concat
        self.max_steps = max_steps
        self.dtype = torch.float64 if dtype == "float64" else torch.float32
        self.returns = self.returns.to(self.dtype)
        self.with_state = state
        observed: SpecTree = Array((concat * len(self.selected),), dtype)
        if state:
            observed = {"observed": observed, "state": Array((len(self.choices["full"]),), dtype)}
        used = tuple(tuple(entry) for entry in parameters_of)
        self.spec = Spec(observed, action, num_envs, measures, parameters_of=used)
        self._blank = torch.zeros(
            concat - 1, len(self.selected), num_envs, dtype=self.dtype, device=self.device
        )

    @abstractmethod
    def sense(self, state: State) -> Sequence[Tensor]:
        """All entries of an observation, a row [B] each."""

    def observe(self, state: State) -> tree.Tree:
        observed = self._observed(state)
        if not self.with_state:
            return observed
        rows = self.sense(state)
        return {"observed": observed, "state": torch.stack([rows[i] for i in self.choices["full"]], 1)}

    def _observed(self, state: State) -> Tensor:
        if self.concat == 1:
            return torch.stack(self._selection(state), 1)
        return state["window"].flatten(0, 1).T.clone(memory_format=torch.contiguous_format)

    def remember(self, state: State, before: State | None) -> State:
        """With `concat`, `window` [concat, n, B] holds the last observations."""
        if self.concat == 1:
            return state
        older = self._blank if before is None else before["window"][1:]
        return {**state, "window": torch.cat([older, torch.stack(self._selection(state))[None]])}

    def _selection(self, state: State) -> list[Tensor]:
        rows = self.sense(state)
        return [rows[i] for i in self.selected]

    def control(self, action: tree.Tree) -> Tensor:
        """Actions clipped to [-1, 1], a contiguous row [B] per dimension, because transposed operands are slow."""
        return action.to(self.dtype).T.contiguous().clamp(-1, 1)

    def constant(self, *values: float) -> Tensor:
        """Values [n, 1] that broadcast over the environments."""
        return torch.tensor(values, dtype=self.dtype, device=self.device)[:, None]

    def uniform(self, rows: int, generator: torch.Generator) -> Tensor:
        """Numbers [rows, B] from [0, 1)."""
        return torch.rand(rows, self.num_envs, generator=generator, dtype=self.dtype, device=self.device)

    def normal(self, rows: int, generator: torch.Generator) -> Tensor:
        """Standard normal numbers [rows, B]."""
        return torch.randn(rows, self.num_envs, generator=generator, dtype=self.dtype, device=self.device)

    def lengths(self, values: Sequence[float]) -> Tensor:
        """The lengths [n] to draw from."""
        if not values or min(values) <= 0:
            raise ConfigError(f"lengths is {values!r}; it must hold at least one length in metres, above 0")
        return self.constant(*values)[:, 0]

    def chosen(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """One of `values` [n] per environment [B], with equal probability."""
        return values[self.drawn(len(values), generator)]

    def drawn(self, n: int, generator: torch.Generator) -> Tensor:
        """An integer from 0 to n - 1 per environment [B], with equal probability."""
        return torch.randint(n, (self.num_envs,), generator=generator, device=self.device)

    def clock(self, env_index: int) -> dict[str, str]:
        """The first lines of text in a rendered frame."""
        steps, total = int(self.steps[env_index]), float(self.returns[env_index])
        return {"step": f"{steps} of {self.max_steps}", "return": f"{total:.1f}"}


def wrapped(angle: Tensor) -> Tensor:
    """The same angle within [-pi, pi)."""
    return torch.remainder(angle + torch.pi, 2 * torch.pi) - torch.pi


def box(low: float, high: float, size: int = 1) -> Continuous:
    """An action of `size` numbers with the same bounds."""
    return Continuous((size,), (low,) * size, (high,) * size)


def hybrid(choices: int, low: Sequence[float], high: Sequence[float]) -> TupleSpec:
    """A hybrid action: one of `choices`, and the parameters of all of them with their bounds."""
    return TupleSpec({"0": Discrete(choices), "1": Continuous((len(low),), tuple(low), tuple(high))})
