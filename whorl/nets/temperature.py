"""The entropy coefficient of soft actor-critics."""

from dataclasses import dataclass
from math import log
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.settings.schema import LearningRate, LogStdRange, NonNegative, Number, Range


@dataclass(frozen=True)
class EntropyConfig:
    """Settings of the entropy bonus of soft policies."""

    alpha: NonNegative = 1.0
    """entropy coefficient: its initial value, or its value if it is not tuned"""
    tune_alpha: bool = True
    """tune the entropy coefficient towards the target entropy"""
    alpha_lr: LearningRate = 3e-4
    """learning rate of the entropy coefficient"""
    target_entropy: Annotated[Literal["auto"] | float, Range(-(10**6), 10**6)] = "auto"
    """auto: entropy_per_dimension times the number of dimensions (SAC and TQC, discrete actions: entropy_ratio *
    log(n)); with mixed actions that of the continuous part"""
    entropy_per_dimension: Number = -1.0
    """target entropy per dimension of the action, scaled to [-1, 1]"""
    log_std_range: LogStdRange = (-20.0, 2.0)
    """bounds of the policy's log standard deviation"""

    def target(self, size: float) -> float:
        """The target entropy of `size` continuous dimensions."""
        if self.target_entropy == "auto":
            return self.entropy_per_dimension * size
        return float(self.target_entropy)


class Temperature(nn.Module):
    """alpha = exp(log_alpha), which is always positive: one number, or several: of kinds of actions, of options."""

    def __init__(self, alpha: float | tuple[float, ...], tuned: bool) -> None:
        super().__init__()
        several = alpha if isinstance(alpha, tuple) else (alpha,)
        for value in several:
            if tuned and not value > 0:
                raise ConfigError(
                    f"alpha is {value:g}, which cannot be tuned; use a value above 0, or set tune_alpha to false"
                )
        logs = [log(value) if value > 0 else float("-inf") for value in several]
        self.log_alpha = nn.Parameter(torch.tensor(logs if isinstance(alpha, tuple) else logs[0]))

    def forward(self) -> Tensor:
        return self.log_alpha.exp()

    def cost(self, log_prob: Tensor) -> Tensor:
        """alpha * log pi [...], summed over kinds where log pi is [kinds, ...]; no gradient flows into alpha."""
        alpha = self().detach()
        if alpha.dim() == 0:
            return alpha * log_prob
        return (alpha.reshape(-1, *[1] * (log_prob.dim() - 1)) * log_prob).sum(0)


def without_weight_decay(optimizer: Part) -> Part:
    """An optimizer without weight decay, which would pull alpha towards 1."""
    return Part(optimizer.name, {k: v for k, v in optimizer.options.items() if k != "weight_decay"})
