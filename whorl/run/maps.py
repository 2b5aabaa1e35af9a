"""Where agents have been: visits and intrinsic rewards by cell of the environment's map, counted over the whole run."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.spec import Spec
from whorl.data.batch import CELL, Batch


class VisitMap:
    """Sums over all steps by the cell that a step led to, without a host sync.

    Args:
        spec: of the agent, with `map_shape` and its reward streams.
    """

    def __init__(self, spec: Spec, device: torch.device) -> None:
        assert spec.map_shape is not None
        self.shape, self.streams = spec.map_shape, tuple(stream.name for stream in spec.streams)
        cells = self.shape[0] * self.shape[1]
        self.visits = torch.zeros(cells, dtype=torch.int64, device=device)
        self.rewards = torch.zeros(len(self.streams), cells, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, rollout: Batch) -> None:
        """Count a rollout, whose rewards are [T, B, 1 + S] with reward streams; masked rows are no steps."""
        device = self.visits.device
        cell, real = (x.to(device).flatten() for x in (rollout.extras[CELL], rollout.mask > 0))
        self.visits.index_add_(0, cell, real.long())
        for number in range(len(self.streams)):
            reward = rollout.reward[..., 1 + number].to(device).flatten()
            added = torch.where(real, reward, 0.0).double()
            # In the order of the rows on every device, unlike index_add_.
            self.rewards[number].index_put_((cell,), added, accumulate=True)

    def arrays(self) -> dict[str, np.ndarray]:
        """`visits`, and the mean of each intrinsic reward, nan in cells without visits: [rows, columns] each."""
        mean = torch.where(self.visits > 0, self.rewards / self.visits, torch.nan)
        found = {"visits": self.visits, **dict(zip(self.streams, mean))}
        return {name: value.cpu().numpy().reshape(self.shape) for name, value in found.items()}

    def state_dict(self) -> dict[str, Tensor]:
        return {"visits": self.visits, "rewards": self.rewards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tree.restore_(self.state_dict(), state)
