"""Shifts and crops move pixels exactly, colours are factors, one rule says what an image is and where channels are."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from whorl.conformance import capture_safe
from whorl.core.spec import Array
from whorl.ops.augment import (
    NOISE,
    Augmentation,
    Picture,
    picture,
    random_colour,
    random_crop,
    random_intensity,
    random_shift,
)


def by_hand(image: Tensor, pad: int, noise: Tensor) -> Tensor:
    """Pad one image [C, H, W] by replication and crop it at the place that `noise` [2] names."""
    height, width = image.shape[-2:]
    padded = F.pad(image.float().unsqueeze(0), (pad, pad, pad, pad), mode="replicate")[0]
    top, left = (int(number * (2 * pad + 1)) for number in noise.tolist())
    return padded[:, top : top + height, left : left + width].to(image.dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_shift_is_padding_by_replication_and_a_crop(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (50, 3, 9, 12), generator=generator).to(dtype)
    noise = torch.rand(50, 2, generator=generator)
    shifted = random_shift(images, 4, noise)
    assert shifted.dtype == dtype
    assert torch.equal(shifted, torch.stack([by_hand(i, 4, n) for i, n in zip(images, noise)]))


def test_channels_last_gives_the_same_pictures() -> None:
    images, noise = torch.randint(256, (6, 3, 9, 12), dtype=torch.uint8), torch.rand(6, 2)
    last = random_shift(images.permute(0, 2, 3, 1), 4, noise, "last")
    assert torch.equal(last.permute(0, 3, 1, 2), random_shift(images, 4, noise))


def test_zero_noise_is_the_upper_left_corner_of_the_padded_image() -> None:
    image = torch.tensor([[[1, 2, 3], [4, 5, 6], [7, 8, 9]]])
    # Everything moves down and right by one; the border stays behind.
    moved = torch.tensor([[[1, 1, 2], [1, 1, 2], [4, 4, 5]]])
    assert torch.equal(random_shift(image, 1, torch.zeros(2)), moved)


def test_the_largest_noise_is_the_lower_right_corner() -> None:
    image = torch.tensor([[[1, 2, 3], [4, 5, 6], [7, 8, 9]]])
    almost_one = torch.tensor(1.0).nextafter(torch.tensor(0.0)).expand(2)
    moved = torch.tensor([[[5, 6, 6], [8, 9, 9], [8, 9, 9]]])
    assert torch.equal(random_shift(image, 1, almost_one), moved)
    # 0.99999994 * 201 rounds to 201, one more than there is.
    assert torch.equal(random_shift(image, 100, almost_one), torch.full((1, 3, 3), 9))


def test_noise_in_the_middle_moves_nothing() -> None:
    images = torch.rand(4, 2, 8, 8)
    assert torch.equal(random_shift(images, 4, torch.full((4, 2), 0.5)), images)


def test_no_padding_moves_nothing() -> None:
    images = torch.rand(4, 2, 8, 8)
    assert torch.equal(random_shift(images, 0, torch.rand(4, 2)), images)


def test_all_offsets_are_equally_likely() -> None:
    ramp = torch.arange(7).expand(1, 7, 7)  # the middle pixel is 3; moved by d it is 3 + d
    noise = (torch.arange(50) + 0.5).div(50).unsqueeze(1).expand(50, 2)
    middle = random_shift(ramp.expand(50, 1, 7, 7), 2, noise)[:, 0, 3, 3]
    assert middle.bincount().tolist() == [0, 10, 10, 10, 10, 10]


@pytest.mark.parametrize("channels", ["first", "last"])
def test_rows_have_their_own_shifts_or_share_those_of_their_env(channels: str) -> None:
    images, noise = torch.rand(3, 5, 6, 6, 6), torch.rand(3, 5, 2)
    own = random_shift(images, 2, noise, channels)  # type: ignore[arg-type]
    shared = random_shift(images, 2, noise[0], channels)  # type: ignore[arg-type]
    for row in range(3):
        assert torch.equal(own[row], random_shift(images[row], 2, noise[row], channels))  # type: ignore[arg-type]
        assert torch.equal(shared[row], random_shift(images[row], 2, noise[0], channels))  # type: ignore[arg-type]


def test_only_the_images_of_a_tree_are_shifted() -> None:
    spec = {
        "front": Array((8, 8, 3), "uint8"),
        "back": {"stack": Array((4, 12, 12), "uint8"), "speed": Array((2,))},
        "grid": Array((3, 3, 2)),
    }
    obs: dict[str, Any] = {
        "front": torch.randint(256, (2, 5, 8, 8, 3), dtype=torch.uint8),
        "back": {
            "stack": torch.randint(256, (2, 5, 4, 12, 12), dtype=torch.uint8),
            "speed": torch.rand(2, 5, 2),
        },
        "grid": torch.rand(2, 5, 3, 3, 2),
    }
    noise = torch.rand(2, 5, 2)
    shifted = Augmentation(shift=3)(obs, spec, noise)
    assert torch.equal(shifted["front"], random_shift(obs["front"], 3, noise, "last"))
    assert torch.equal(shifted["back"]["stack"], random_shift(obs["back"]["stack"], 3, noise, "first"))
    assert shifted["back"]["speed"] is obs["back"]["speed"]
    assert shifted["grid"] is obs["grid"]


@pytest.mark.parametrize("shape", [(5, 8, 8, 3), (5, 3, 8, 8)])
def test_augmentations_read_no_value(shape: tuple[int, ...]) -> None:
    images, noise = torch.rand(shape), torch.rand(5, NOISE)
    with capture_safe():
        Augmentation(shift=2, crop=0.3, colour=0.2, intensity=0.1)(images, Array(shape[1:]), noise)


def test_a_crop_is_a_window_enlarged_by_repeating_pixels() -> None:
    image = torch.arange(16).reshape(1, 4, 4)
    # Half of each side is cut off; of the three places in each direction, the last row and the middle column.
    window = torch.tensor([[9, 9, 10, 10], [9, 9, 10, 10], [13, 13, 14, 14], [13, 13, 14, 14]])
    almost_one = 1 - 1e-6
    assert torch.equal(random_crop(image, 0.5, torch.tensor([almost_one, almost_one, 0.4]))[0], window)


def test_nothing_is_cropped_at_the_smallest_noise_or_without_a_share() -> None:
    images = torch.rand(3, 2, 5, 6)
    assert torch.equal(random_crop(images, 0.5, torch.zeros(3, 3)), images)
    assert torch.equal(random_crop(images, 0.0, torch.rand(3, 3)), images)


def test_crops_of_both_layouts_are_the_same() -> None:
    images, noise = torch.rand(6, 3, 9, 12), torch.rand(6, 3)
    last = random_crop(images.permute(0, 2, 3, 1), 0.4, noise, "last")
    assert torch.equal(last.permute(0, 3, 1, 2), random_crop(images, 0.4, noise))


def test_colours_are_multiplied_and_frames_share_their_factors() -> None:
    images, noise = torch.ones(6, 2, 2), torch.tensor([0.0, 0.5, 1.0])
    found = random_colour(images, 0.2, noise, frames=2)
    torch.testing.assert_close(found[:, 0, 0], torch.tensor([0.8, 1.0, 1.2, 0.8, 1.0, 1.2]))
    last = random_colour(images.permute(1, 2, 0), 0.2, noise, frames=2, channels="last")
    torch.testing.assert_close(last.permute(2, 0, 1), found)


def test_grey_images_have_one_factor_for_all_channels() -> None:
    found = random_colour(torch.ones(4, 2, 2), 0.2, torch.tensor([0.0, 0.5, 1.0]), frames=4)
    torch.testing.assert_close(found, torch.full((4, 2, 2), 0.8))


def test_intensity_is_one_factor_for_the_image() -> None:
    found = random_intensity(torch.ones(2, 3, 2, 2), 0.1, torch.tensor([[0.0], [1.0]]))
    torch.testing.assert_close(found, torch.tensor([0.9, 1.1]).reshape(2, 1, 1, 1).expand(2, 3, 2, 2))


def test_brightened_images_of_bytes_stay_in_their_range_and_others_do_not() -> None:
    images, noise = torch.ones(1, 3, 4, 4), torch.ones(1, NOISE)
    brighter = Augmentation(intensity=0.5)
    assert float(brighter(images, Array((3, 4, 4), "uint8"), noise).max()) == 1
    assert float(brighter(images, Array((3, 4, 4)), noise).max()) == 1.5


def test_wrong_shapes_are_told() -> None:
    with pytest.raises(ValueError, match="share 1"):
        random_crop(torch.rand(2, 3, 8, 8), 1.0, torch.rand(2, 3))
    with pytest.raises(ValueError, match="pad -1"):
        random_shift(torch.rand(2, 3, 8, 8), -1, torch.rand(2, 2))
    with pytest.raises(ValueError, match=r"noise \(2, 1\)"):
        random_shift(torch.rand(2, 3, 8, 8), 1, torch.rand(2, 1))


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((84, 84, 3), Picture(84, 84, 3, first=False)),
        ((4, 84, 84), Picture(84, 84, 4, first=True)),
        ((210, 160, 3), Picture(210, 160, 3, first=False)),
        ((3, 210, 160), Picture(210, 160, 3, first=True)),
        ((10, 10, 16), Picture(10, 10, 16, first=False)),
        ((10, 10, 10), Picture(10, 10, 10, first=False)),
        ((4, 4, 1), Picture(4, 4, 1, first=False)),
        ((3, 3, 2), None),
        ((84, 84), None),
        ((7,), None),
    ],
)
def test_shapes_are_read_as_pictures(shape: tuple[int, ...], found: Picture | None) -> None:
    assert picture(Array(shape)) == found


def test_channels_can_be_named_where_a_shape_misleads() -> None:
    assert picture(Array((16, 20, 20)), "last") == Picture(16, 20, 20, first=False)
    assert picture(Array((20, 20, 30)), "first") == Picture(20, 30, 20, first=True)
    with pytest.raises(ValueError, match="'middle'; choose one of: auto, first, last"):
        picture(Array((84, 84, 3)), "middle")  # type: ignore[arg-type]
