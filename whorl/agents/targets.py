"""Target networks: copies of online networks that follow them, updated in place."""

import copy
from typing import TypeVar

from torch import nn

from whorl.agents.families import OffPolicyConfig
from whorl.nets.backbone import BackboneNet
from whorl.ops.targets import Polyak

Net = TypeVar("Net", bound=BackboneNet)


class TargetNetworks:
    """Pairs of an online and a target network.

    Every `target_update_interval` updates, target <- (1 - tau) * target + tau * online. Without `target_memory` the
    recurrent parts of the targets are those of the online networks, copied after every update.
    """

    def __init__(self, cfg: OffPolicyConfig) -> None:
        self.tau, self.interval = cfg.tau, cfg.target_update_interval
        self.own_memory = cfg.target_memory
        self.pairs: list[tuple[BackboneNet, BackboneNet]] = []
        self._moves: list[Polyak] | None = None
        self._copies: list[Polyak] = []

    def add(self, online: Net, target: Net | None = None) -> Net:
        """The target of `online`: a copy without gradients, unless a `target` is given."""
        target = copy.deepcopy(online).requires_grad_(False) if target is None else target
        self.pairs.append((online, target))
        self._moves = None
        return target

    def due(self, updates: int) -> bool:
        """Whether the targets move in the update that follows `updates` earlier ones."""
        return (updates + 1) % self.interval == 0

    def update_(self, move: bool) -> None:
        """Move all targets towards their online networks if `move`."""
        if self._moves is None:  # not before the first update: until then, tensors may move to a device
            self._moves = [Polyak(target, online) for online, target in self.pairs]
            if not self.own_memory:
                self._copies = [Polyak(_memory(target), _memory(online)) for online, target in self.pairs]
        if move:
            for follow in self._moves:
                follow(self.tau)
        for copy_memory in self._copies:
            copy_memory(1.0)


def _memory(net: BackboneNet) -> nn.Module:
    return net.backbone.memories
