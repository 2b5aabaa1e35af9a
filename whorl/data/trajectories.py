"""Off-policy experience without a replay buffer: each rollout is learned from once, as one batch of sequences."""

from collections.abc import Iterator

import torch

from whorl.core import tree
from whorl.data.batch import LOG_PROB, Batch
from whorl.data.replay import weighted
from whorl.data.rollouts import Rollouts


class Trajectories(Rollouts):
    """Yields each rollout once, with the weights of a sample, and without what its masked rows hold."""

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
