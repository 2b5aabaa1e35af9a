"""Novelty within an episode: similarity to the nearest earlier states, and the elliptical bonus."""

import torch
from torch import Tensor


def nearest_distances(value: Tensor, held: Tensor, count: Tensor, k: int) -> Tensor:
    """Squared distances [B, k] of `value` [B, d] to its nearest among the first `count` [B] of `held` [B, M, d].

    Missing neighbours are infinitely far away.
    """
    distance = (held - value.unsqueeze(1)).square().sum(-1)  # [B, M]
    number = torch.arange(held.shape[1], device=held.device)
    distance = distance.masked_fill(number >= count.unsqueeze(1), torch.inf)
    return distance.topk(min(k, held.shape[1]), largest=False).values


def episodic_bonus(
    distance: Tensor, scale: Tensor, epsilon: float, cluster: float, constant: float, most: float
) -> Tensor:
    """The episodic reward of NGU [B] from squared distances [B, k] (Badia et al. 2020, arXiv:2002.06038, eq. 2).

    d_i = max(distance_i / scale - cluster, 0),   s = sqrt(sum_i epsilon / (d_i + epsilon)) + constant
    reward = 1 / s, or 0 if s > most

    `scale` [B] is the running mean of the distances; infinitely distant neighbours do not count.
    """
    relative = (distance / scale.clamp(min=torch.finfo(scale.dtype).tiny).unsqueeze(1) - cluster).clamp(min=0)
    similarity = (epsilon / (relative + epsilon)).sum(-1).sqrt() + constant
    return torch.where(similarity > most, 0.0, 1 / similarity)


def elliptical_(inverse: Tensor, value: Tensor) -> Tensor:
    """b = value^T C^-1 value [B] for `inverse` C^-1 [B, d, d], then C <- C + value value^T, in place.

    (Henaff et al. 2022, arXiv:2210.05805, eq. 1; the inverse is updated by the Sherman-Morrison formula.)
    """
    turned = torch.bmm(inverse, value.unsqueeze(-1)).squeeze(-1)  # [B, d]
    bonus = (value * turned).sum(-1)
    scaled = turned * (1 + bonus).rsqrt().unsqueeze(-1)
    inverse.baddbmm_(scaled.unsqueeze(2), scaled.unsqueeze(1), alpha=-1)
    return bonus
