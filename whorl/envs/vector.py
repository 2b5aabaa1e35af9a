"""The one protocol that every source of experience follows: many environments, stepped together, next-step autoreset.

A environment whose episode ended at step t is reset by the call for step t+1: that call ignores the environment's action, returns the
first observation of the new episode with `reset` set, reward 0 and both end flags clear. So the final observation is an
ordinary row, nothing is patched, and the row that leads from it to the new episode is simply no transition.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from whorl.core.spec import Spec
from whorl.core.tree import Tree


@dataclass
class Step:
    """What one call returns. Tensors may be views of buffers that the next call overwrites: copy what you keep."""

    obs: Tree
    """[B, ...]"""
    reward: Tensor
    """[B] float32"""
    terminated: Tensor
    """[B] bool: the episode ended in a terminal state"""
    truncated: Tensor
    """[B] bool: the episode was cut, for instance by a time limit"""
    reset: Tensor
    """[B] bool: `obs` opens a new episode"""
    soft: Tensor | None = None
    """[B] bool: what comes after is worth nothing to the learner (a life was lost), though the episode goes on"""
    measures: Tensor | None = None
    """[B, N] what the environment says of an episode that ended, in the order of the spec's `measures`"""


class VectorEnv(Protocol):
    """`num_envs` copies of one environment. Actions come in canonical form (see `whorl.core.spec`)."""

    spec: Spec
    id: str
    snapshots: bool
    """whether `snapshot` can capture the exact state, so that a run resumes bit for bit anywhere"""

    capturable: bool
    """whether `step` can be captured in a CUDA graph: needs `state_tensors()` and `generator`"""

    def reset(self, seed: int) -> Tree:
        """Start every environment anew, each from its own stream derived from `seed`; the first observations [B, ...]."""

    def step(self, action: Tree) -> Step: ...

    def snapshot(self) -> dict[str, Any]:
        """Tensors and plain containers from which `restore` continues exactly, episode counters included."""

    def restore(self, snapshot: dict[str, Any]) -> Tree:
        """Continue from a snapshot; returns the current observations [B, ...]."""

    def render(self, env_index: int = 0) -> Any:
        """One uint8 RGB frame [H, W, 3] of a environment, or None where the environment draws nothing."""

    def close(self) -> None: ...
