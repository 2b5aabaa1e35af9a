"""Preprocessing of replayed batches: normalised observations, augmented images, scaled rewards."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.data.batch import Batch
from whorl.data.config import ReplayConfig
from whorl.nets.images import has_images
from whorl.nets.normalize import Observations
from whorl.ops.augment import LEAST_SIDE, Augmentation, Channels
from whorl.settings.schema import Positive, PositiveLimit, Range


@dataclass(frozen=True)
class PreprocessorConfig:
    """Settings of what happens to sampled observations and rewards before the networks read them."""

    encoder: Part = Part("auto")
    """network that encodes observations: auto (CNN for images, other inputs flattened), flat, magnified (for
    small deviations), images, rays, a registered name or an import path, with options"""
    augment: Annotated[int, Range(0, 1000)] = 0
    """random shift of images in learning, in pixels (DrQ: 4); 0: none"""
    reward_scale: Positive = 1.0
    """factor of rewards in learning"""
    normalize_obs: bool = False
    """normalise float observations by running statistics; one-hot and binary ones stay as they are"""
    clip_obs: bool = True
    """clip normalised observations to obs_clip_range"""
    obs_clip_range: PositiveLimit = 10.0
    """bound of clipped observations"""


def reward_limit(cfg: ReplayConfig) -> float:
    """Bound of clipped rewards; 0: not clipped."""
    return cfg.reward_clip_range if cfg.clip_reward else 0.0


class Preprocessor(Observations):
    """Normalises observations, shifts images and scales rewards."""

    def __init__(self, spec: Spec, cfg: PreprocessorConfig) -> None:
        super().__init__(spec.observation, cfg.normalize_obs, cfg.obs_clip_range if cfg.clip_obs else 0)
        self.observation, self.pad, self.reward_scale = spec.observation, cfg.augment, cfg.reward_scale
        self.augmentation = Augmentation(shift=cfg.augment)
        # A registered encoder may use this option for something else.
        channels = cfg.encoder.options.get("channels")
        self.channels: Channels = channels if channels in ("first", "last") else "auto"
        if self.pad and not has_images(spec.observation, channels=self.channels):
            raise ConfigError(
                f"augment is {self.pad}, but no observation is an image, [H, W, C] or [C, H, W] with sides of at least "
                f"{LEAST_SIDE} pixels; leave it out"
            )

    def learn(self, batch: Batch, generator: torch.Generator) -> Batch:
        """A batch ready for the losses; images are shifted at random (Kostrikov et al. 2021, arXiv:2004.13649)."""
        obs = batch.obs
        if self.pad:
            lead = (batch.reset.shape[0], batch.reset.shape[1], 2)
            noise = torch.rand(lead, generator=generator, device=batch.reset.device)
            obs = self.augmentation(obs, self.observation, noise, self.channels)
        return batch.replace(obs=self(obs), reward=self.scaled(batch.reward))

    def scaled(self, reward: Tensor) -> Tensor:
        """Rewards times `reward_scale`."""
        return reward if self.reward_scale == 1 else reward * self.reward_scale
