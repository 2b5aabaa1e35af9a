"""Off-policy experience without a replay buffer: each rollout is learned from once, as one batch of sequences."""

from collections.abc import Iterator
from typing import Any

import torch

from whorl.core import tree
from whorl.data.batch import LOG_PROB, Batch
from whorl.data.replay import clipped, weighted
from whorl.data.rollouts import Rollouts


class Trajectories(Rollouts):
    """Yields each rollout once, with the weights of a sample, and without what its masked rows hold.

    Args:
        reward_clip: rewards of the environment are clipped to this range; 0: not clipped.
    """

    def __init__(self, *args: Any, reward_clip: float = 0.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.reward_clip = reward_clip

    def add(self, rollout: Batch) -> None:
        super().add(clipped(rollout, self.reward_clip))

    def due(self) -> Iterator[tuple[str, Batch]]:
        for phase, batch in super().due():
            held = {"action": batch.action, "reward": batch.reward}
            extras = dict(batch.extras)
            if LOG_PROB in extras:
                held[LOG_PROB] = extras[LOG_PROB]
            held = tree.where(batch.mask > 0, held, tree.map(torch.zeros_like, held))
            if LOG_PROB in held:
                extras[LOG_PROB] = held.pop(LOG_PROB)
            yield phase, weighted(batch.replace(**held, extras=extras), {})
