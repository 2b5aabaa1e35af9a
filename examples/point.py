"""An environment of one's own, with a Dict observation and a Tuple action: `whorl train ppo examples.point:Point`.

Move to the middle of a box, and press the button while the lamp is on.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Point(gymnasium.Env):
    """Observes where the point is and whether the lamp is on; an action presses the button (or not) and moves."""

    def __init__(self, size: int = 2) -> None:
        box = spaces.Box(-1, 1, (size,), np.float32)
        self.observation_space = spaces.Dict({"position": box, "lamp": spaces.Discrete(2)})
        self.action_space = spaces.Tuple((spaces.Discrete(2), box))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1, 1, self.action_space[1].shape)
        self.time = 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        pressed, move = action
        reward = 0.1 * float(pressed == self.time % 2) - float(np.abs(self.position).mean())
        self.position = np.clip(self.position + 0.2 * move, -1, 1)
        self.time += 1
        arrived = bool(np.abs(self.position).max() < 0.1)
        return self._observed(), reward, False, self.time == 50, {"is_success": arrived}

    def _observed(self) -> dict[str, Any]:
        return {"position": self.position.astype(np.float32), "lamp": self.time % 2}
