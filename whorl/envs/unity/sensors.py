"""Sensors of Unity agents as arrays: vectors and rays as float32, compressed camera images as uint8 [H, W, C]."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces

from whorl.core.arrays import MASK_KEY
from whorl.core.errors import EnvError
from whorl.envs.unity.messages import PNG

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS_FIRST = (1, 2, 2)
"""dimension properties of images [C, H, W]: no equivariance in channels, translational in height and width"""


@dataclass(frozen=True)
class Sensor:
    """One sensor of a behaviour."""

    name: str
    given: tuple[int, ...]
    """the shape that the player sends"""
    first: bool
    """whether the player sends an image with channels first"""
    png: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the observation: images are [H, W, C]."""
        return (*self.given[1:], self.given[0]) if self.first else self.given

    @property
    def space(self) -> spaces.Box:
        if self.png:
            return spaces.Box(0, 255, self.shape, np.uint8)
        return spaces.Box(-np.inf, np.inf, self.shape, np.float32)

    def read(self, observation: Any) -> np.ndarray:
        """What one agent sees."""
        if observation.compression_type == PNG:
            channels = self.given[0] if self.first else self.given[2]
            image = decode_png(
                observation.compressed_data, channels, observation.compressed_channel_mapping, self.name
            )
            if image.shape != self.shape:
                raise EnvError(
                    f"sensor {self.name!r} sends an image of shape {image.shape}, but announced {self.shape}"
                )
            return image if self.png else image.astype(np.float32) / np.float32(255)
        count = prod(self.given)
        # Serialised, the numbers are little-endian floats at the end: much faster to read than one by one.
        raw = observation.float_data.SerializeToString()
        if len(observation.float_data.data) != count:
            raise EnvError(
                f"sensor {self.name!r} sends {len(observation.float_data.data)} numbers, but announced {self.given}"
            )
        data = np.frombuffer(raw, "<f4", count, len(raw) - 4 * count).reshape(self.given)
        data = np.moveaxis(data, 0, 2) if self.first else data
        return np.rint(data * 255).astype(np.uint8) if self.png else data


def sensors_of(observations: Sequence[Any]) -> tuple[Sensor, ...]:
    """The sensors that an agent has, each with a name of its own."""
    found: list[Sensor] = []
    for number, observation in enumerate(observations):
        name = observation.name or f"sensor{number}"
        if any(name == sensor.name for sensor in found) or name == MASK_KEY:
            name = f"{name}_{number}"
        shape = tuple(observation.shape)
        first = len(shape) == 3 and tuple(observation.dimension_properties) == CHANNELS_FIRST
        found.append(Sensor(name, shape, first, observation.compression_type == PNG))
    return tuple(found)


def observation_space(sensors: Sequence[Sensor]) -> spaces.Space:
    """The space of one sensor, or a dict by the names of several."""
    if len(sensors) == 1:
        return sensors[0].space
    return spaces.Dict({sensor.name: sensor.space for sensor in sensors})


def decode_png(data: bytes, channels: int, mapping: Sequence[int], name: str) -> np.ndarray:
    """The image [H, W, C] of one or more PNG files, one after another.

    `mapping` says for each of their channels which channel of the image it belongs to: those with the same number are
    averaged, those with a negative one dropped. Without it one channel is the mean of three, more are the first ones.
    """
    from PIL import Image

    parts = [SIGNATURE + part for part in data.split(SIGNATURE)[1:]]
    if not parts:
        raise EnvError(f"sensor {name!r} sends compressed data that is not a PNG image")
    planes = [np.asarray(Image.open(io.BytesIO(part)).convert("RGB")) for part in parts]
    image = np.concatenate(planes, 2)
    if len(mapping):
        if len(mapping) != image.shape[2]:
            raise EnvError(
                f"sensor {name!r} maps {len(mapping)} channels, but its images have {image.shape[2]}"
            )
        numbers = np.asarray(mapping)
        if all(number == at for at, number in enumerate(mapping)):
            return image
        merged = [image[..., numbers == number].mean(2) for number in range(max(mapping) + 1)]
        return np.rint(np.stack(merged, 2)).astype(np.uint8)
    if channels == 1:
        return np.rint(image.mean(2, keepdims=True)).astype(np.uint8)
    return image[..., :channels]
