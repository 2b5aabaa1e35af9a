"""Sensors: vectors, images compressed or not, channels first or last."""

import io
from typing import Any

import numpy as np
import pytest
import wire
from PIL import Image

from whorl.core.errors import EnvError
from whorl.envs.unity.messages import messages
from whorl.envs.unity.sensors import decode_png, observation_space, sensors_of


def observation(data: bytes) -> Any:
    return messages().ObservationProto.FromString(data)


def png(image: np.ndarray) -> bytes:
    held = io.BytesIO()
    Image.fromarray(image).save(held, "png")
    return held.getvalue()


IMAGE = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def test_an_uncompressed_image_has_its_channels_moved_last() -> None:
    sent = np.random.default_rng(0).random((3, 4, 5)).astype(np.float32)
    told = observation(wire.vector(sent, "Camera", (1, 2, 2)))
    (sensor,) = sensors_of([told])
    assert sensor.shape == (4, 5, 3) and sensor.space.dtype == np.float32
    assert np.array_equal(sensor.read(told), np.moveaxis(sent, 0, 2))


def test_an_image_of_older_releases_stays_as_it_is() -> None:
    sent = np.random.default_rng(0).random((4, 5, 3)).astype(np.float32)
    told = observation(wire.vector(sent, "Camera", (2, 2, 1)))
    assert np.array_equal(sensors_of([told])[0].read(told), sent)


def test_a_compressed_image_is_bytes() -> None:
    told = observation(wire.picture(png(IMAGE), (3, 4, 5)))
    (sensor,) = sensors_of([told])
    assert sensor.space.dtype == np.uint8 and np.array_equal(sensor.read(told), IMAGE)


def test_a_sensor_that_stops_compressing_still_gives_bytes() -> None:
    first = observation(wire.picture(png(IMAGE), (3, 4, 5)))
    later = np.moveaxis(IMAGE, 2, 0).astype(np.float32) / 255
    found = sensors_of([first])[0].read(observation(wire.vector(later, "CameraSensor", (1, 2, 2))))
    assert found.dtype == np.uint8 and np.array_equal(found, IMAGE)


def test_channels_are_averaged_dropped_and_joined_by_the_mapping() -> None:
    two = png(IMAGE) + png(IMAGE + 10)
    found = decode_png(two, 3, [0, 0, -1, 1, 2, -1], "x")
    mean = np.rint((IMAGE[..., 0].astype(float) + IMAGE[..., 1]) / 2)
    assert np.array_equal(found, np.stack([mean, IMAGE[..., 0] + 10, IMAGE[..., 1] + 10], 2).astype(np.uint8))


def test_without_a_mapping_one_channel_is_the_mean_and_more_are_the_first() -> None:
    assert np.array_equal(decode_png(png(IMAGE), 1, [], "x")[..., 0], np.rint(IMAGE.mean(2)))
    two = png(IMAGE) + png(IMAGE + 1)
    assert np.array_equal(decode_png(two, 4, [], "x"), np.concatenate((IMAGE, IMAGE[..., :1] + 1), 2))


def test_sensors_of_one_name_get_different_ones() -> None:
    told = [
        observation(wire.vector([1.0])),
        observation(wire.vector([1.0, 2.0])),
        observation(wire.vector([3.0], "")),
    ]
    names = [sensor.name for sensor in sensors_of(told)]
    assert names == ["VectorSensor", "VectorSensor_1", "sensor2"]
    assert list(observation_space(sensors_of(told)).spaces) == sorted(names)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (wire.vector([1.0, 2.0]), "sends 2 numbers, but announced (3,)"),
        (wire.picture(b"jpeg", (3,)), "is not a PNG image"),
    ],
)
def test_what_does_not_fit_is_one_sentence(sent: bytes, sentence: str) -> None:
    sensor = sensors_of([observation(wire.vector([1.0, 2.0, 3.0]))])[0]
    if "PNG" in sentence:
        sensor = sensors_of([observation(wire.picture(png(IMAGE), (3, 4, 5)))])[0]
    with pytest.raises(EnvError) as error:
        sensor.read(observation(sent))
    assert sentence in error.value.message
