"""Networks of a latent prediction model: a recurrent state-space model, and decoders of observations."""

from itertools import pairwise
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.core.spec import Array
from whorl.nets.layers import MLP
from whorl.ops.augment import Channels, picture
from whorl.ops.distributions import Normal

STD = (0.1, 1.0)
"""bounds of the standard deviations of latents"""


class LatentModel(nn.Module):
    """Gaussian latents z with a deterministic recurrent state h (Hafner et al. 2019, arXiv:1811.04551).

    prior p(z_t | h_t),  posterior q(z_t | h_t, s_t),  h_{t+1} = GRU([z_t, a_t], h_t)
    Windows and episodes start from a learned h.
    """

    def __init__(self, inputs: int, actions: int, size: int, latent: int, hidden: int) -> None:
        super().__init__()
        self.size, self.latent = size, latent
        self.prior = nn.Sequential(MLP(size, (hidden,), "elu"), nn.Linear(hidden, 2 * latent))
        self.posterior = nn.Sequential(MLP(size + inputs, (hidden,), "elu"), nn.Linear(hidden, 2 * latent))
        self.cell = nn.GRUCell(latent + actions, size)
        self.initial = nn.Parameter(torch.zeros(size))

    def forward(
        self, state: Tensor, action: Tensor, reset: Tensor, noise: Tensor
    ) -> tuple[Normal, Normal, Tensor]:
        """Posterior and prior of rows [T+1, N], and the features [T+1, N, h + z] of samples of the posterior.

        Args:
            state: [T+1, N, inputs] what the agent makes of each observation.
            action: [T, N, actions].
            reset: [T+1, N] bool, where an episode starts.
            noise: [T+1, N, latent] of the samples.
        """
        initial = self.initial.expand(state.shape[1], -1)
        h = initial
        every, sampled = [], []
        for row in range(len(state)):
            h = torch.where(reset[row].unsqueeze(-1), initial, h)
            z = _gaussian(self.posterior(torch.cat((h, state[row]), -1))).sample(noise[row])
            every.append(h)
            sampled.append(z)
            if row < len(action):
                h = self.cell(torch.cat((z, action[row]), -1), h)
        states = torch.stack(every)
        posterior = _gaussian(self.posterior(torch.cat((states, state), -1)))
        return posterior, _gaussian(self.prior(states)), torch.cat((states, torch.stack(sampled)), -1)

    def imagine(self, features: Tensor, action: Tensor) -> Tensor:
        """Features [T+1, N, h + z] from one row on [N, h + z], by the means of the prior under actions [T, N, ...]."""
        found = [features]
        for row in action:
            h, z = found[-1].split((self.size, self.latent), -1)
            h = self.cell(torch.cat((z, row), -1), h)
            found.append(torch.cat((h, _gaussian(self.prior(h)).mean), -1))
        return torch.stack(found)


def _gaussian(outputs: Tensor) -> Normal:
    mean, log_std = outputs.chunk(2, -1)
    return Normal(mean, log_std.clamp(log(STD[0]), log(STD[1])))


def balanced_kl(posterior: Normal, prior: Normal, balance: float, free_nats: float) -> Tensor:
    """KL(posterior || prior) [...] whose gradient reaches the prior with weight `balance`, the posterior with the rest.

    balance * max(free, KL(sg(q) || p)) + (1 - balance) * max(free, KL(q || sg(p)))   (Hafner et al. 2021)
    """
    fixed, still = (Normal(d.mean.detach(), d.log_std.detach()) for d in (posterior, prior))
    to_prior = fixed.kl(prior).clamp(min=free_nats)
    to_posterior = posterior.kl(still).clamp(min=free_nats)
    return balance * to_prior + (1 - balance) * to_posterior


def decoder(inputs: int, leaf: Array, hidden: int, channels: Channels = "auto") -> nn.Module:
    """Features [..., inputs] -> an observation leaf [..., *shape]: convolutions for images, else hidden layers."""
    found = picture(leaf, channels)
    if found is None:
        return VectorDecoder(inputs, leaf.shape, hidden)
    return ImageDecoder(inputs, (found.channels, found.height, found.width), hidden, found.first)


class VectorDecoder(nn.Module):
    """Two hidden layers and one output per number."""

    def __init__(self, inputs: int, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.shape = shape
        self.hidden = MLP(inputs, (hidden, hidden), "elu")
        self.last = nn.Linear(hidden, int(torch.Size(shape).numel()))

    def forward(self, features: Tensor) -> Tensor:
        return self.last(self.hidden(features)).reshape(*features.shape[:-1], *self.shape)


class ImageDecoder(nn.Module):
    """An eighth of the image by a linear layer, doubled three times with a convolution after each."""

    def __init__(self, inputs: int, shape: tuple[int, int, int], hidden: int, first: bool) -> None:
        super().__init__()
        self.shape, self.first = shape, first
        self.small = (32, *(-(-side // 8) for side in shape[1:]))
        self.enter = nn.Linear(inputs, int(torch.Size(self.small).numel()))
        widths = (32, 32, 32, shape[0])
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))

    def forward(self, features: Tensor) -> Tensor:
        value = F.elu(self.enter(features.flatten(0, -2))).reshape(-1, *self.small)
        for number, layer in enumerate(self.layers):
            value = layer(value.repeat_interleave(2, -1).repeat_interleave(2, -2))
            value = F.elu(value) if number < len(self.layers) - 1 else value
        value = value[..., : self.shape[1], : self.shape[2]]
        value = value if self.first else value.permute(0, 2, 3, 1)
        return value.reshape(*features.shape[:-1], *value.shape[1:])
