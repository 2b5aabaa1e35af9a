"""The protocol of everything that steps environments: `num_envs` copies at once, with next-step autoreset.

An episode that ended at step t is reset by the call for step t+1. That call ignores the environment's action and
returns the first observation of the next episode, with `reset` true, reward 0 and both end flags false. So the final
observation of an episode is an ordinary one, and values bootstrap from it where the episode was truncated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from whorl.core.errors import EnvError
from whorl.core.spec import Spec
from whorl.core.tree import Tree


@dataclass
class Step:
    """The result of one step of all environments. The next call may overwrite these tensors: copy what you keep."""

    obs: Tree
    """[B, ...]"""
    reward: Tensor
    """[B] float32"""
    terminated: Tensor
    """[B] bool: the episode ended in a terminal state, so the value of what follows is 0"""
    truncated: Tensor
    """[B] bool: the episode was truncated, for instance by a time limit, so values bootstrap from `obs`"""
    reset: Tensor
    """[B] bool: `obs` is the first observation of an episode, and the action was ignored"""
    soft: Tensor | None = None
    """[B] bool: a life was lost: the value of what follows is 0, but the episode continues"""
    measures: Tensor | None = None
    """[B, N] numbers about an episode that ended, in the order of the spec's `measures`"""
    waits: Tensor | None = None
    """[B] bool: nothing happened yet: `obs` is unchanged, the action stays in effect until the step that answers it,
    and actions in between are ignored"""
    cells: Tensor | None = None
    """[B] int64: the agent's cell on the spec's map, counted row by row; with `map_shape` only"""


@runtime_checkable
class VectorEnv(Protocol):
    """`num_envs` copies of one environment. Your own derives from this class and needs `spec`, `reset` and `step`.

    Actions arrive in canonical form (see `whorl.core.spec`), on the device of the agent that acts (`env_device`).
    """

    spec: Spec
    id: str = ""
    """a name for run folders and messages"""
    players: int = 1
    """rows that play one episode together, as the players of a game do; they follow each other"""
    snapshots: bool = False
    """whether `snapshot` saves the exact state, so that a run can be resumed bit for bit from any step"""
    capturable: bool = False
    """whether `step` can be recorded in a CUDA graph and replayed.

    If so, the environment also has `state_tensors()`, all tensors that a step changes, and `generator`, the
    `torch.Generator` of all its random numbers. Its `step` writes state in place, never waits for the GPU (no
    `.item()`, no `if` on the value of a tensor), and makes no tensor whose shape depends on values.
    """

    def reset(self, seed: int) -> Tree:
        """Reset all environments and seed their random numbers; returns the first observations [B, ...]."""

    def step(self, action: Tree) -> Step:
        """Step all environments; those whose episode ended at the last step are reset instead."""

    def snapshot(self) -> dict[str, Any]:
        """Tensors and plain containers from which `restore` continues exactly, episode counters included."""
        raise EnvError(f"{self.id or type(self).__name__} has no snapshots")

    def restore(self, snapshot: dict[str, Any]) -> Tree:
        """Continue from a snapshot; returns the current observations [B, ...]."""
        raise EnvError(f"{self.id or type(self).__name__} has no snapshots")

    def render(self, env_index: int = 0) -> Any:
        """One uint8 RGB frame [H, W, 3] of one environment, or None where it does not render."""
        return None

    def close(self) -> None:
        """Free what the environment holds."""


@runtime_checkable
class Waiting(Protocol):
    """A `VectorEnv` in which some environments may not respond in a step (`Step.waits`)."""

    waits: bool


@runtime_checkable
class Compiled(Protocol):
    """A `VectorEnv` that compiles its physics when it is made."""

    compile_notice: str
    """how long that took, for the console"""


@runtime_checkable
class Bindable(Protocol):
    """A `VectorEnv` that can write its results to where they are kept, without a copy between."""

    def bound_step(self, action: Tree, out: Step) -> Callable[[], None] | None:
        """A step that reads its actions from the CPU tensors `action` and writes to those of `out`; None where their
        types are not the environment's own."""


@runtime_checkable
class Traced(Protocol):
    """A `VectorEnv` with numbers that are drawn over time beside its picture (`--render`)."""

    def traces(self, env_index: int) -> dict[str, dict[str, float]]:
        """Panels of named numbers of one environment: `{"position": {"x": 0.1, "y": 2.0}}`."""


@runtime_checkable
class Mapped(Protocol):
    """A `VectorEnv` that may say where its agents are, so that visits and bonuses can be drawn as a heat map."""

    spec: Spec

    @property
    def map_shape(self) -> tuple[int, int] | None:
        """Rows and columns of the map; None: there is none."""
        return self.spec.map_shape

    def cells(self) -> Tensor:
        """The cell of each agent [B] int64, counted row by row: row * columns + column."""
        raise EnvError(f"{type(self).__name__} has no map")
