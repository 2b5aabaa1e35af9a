"""Encoders of observations with images: sizes, layouts, leading axes, and what they say of images that do not fit."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from whorl.conformance import CHECKS, NUM_ENVS, Subject, capture_safe
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, construct
from whorl.core.spec import MASK_KEY, Array, Discrete, Spec
from whorl.nets.flat import Flat
from whorl.nets.images import KINDS, Images, Pooled, ResidualBlock, SpectralConvolution
from whorl.nets.normalize import Observations

SIDES = {"nature": 36, "impala": 12, "small": 4, "drq": 15, "vit": 16}
"""the least for a kind, or little enough to be quick"""
SPEC: dict[str, Any] = {
    "front": Array((36, 40, 3), "uint8", 0, 255),
    "arm": {"stack": Array((2, 10, 10), "uint8", 0, 255), "angle": Array((5,))},
    MASK_KEY: Array((4,), "int8", 0, 1),
}


def observe(*leading: int) -> dict[str, Any]:
    """Observations of `SPEC`, as the nets read them."""
    arm = {"stack": torch.rand(*leading, 2, 10, 10), "angle": torch.rand(*leading, 5)}
    return {"front": torch.rand(*leading, 36, 40, 3), "arm": arm, MASK_KEY: torch.ones(*leading, 4)}


@pytest.mark.parametrize(
    ("kind", "size"), [("nature", 512), ("impala", 256), ("small", 128), ("drq", 50), ("vit", 256)]
)
def test_a_kind_has_its_customary_size(kind: str, size: int) -> None:
    side = SIDES[kind]
    encoder = Images(Array((side, side, 2)), kind)
    assert encoder.size == size
    assert encoder(torch.rand(3, side, side, 2)).shape == (3, size)


@pytest.mark.parametrize("kind", KINDS)
def test_the_width_of_the_features_can_be_chosen(kind: str) -> None:
    side = SIDES[kind]
    encoder = Images(Array((2, side, side)), kind, features=7)
    assert encoder(torch.rand(3, 2, side, side)).shape == (3, encoder.size) == (3, 7)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_parameter(kind: str) -> None:
    torch.manual_seed(0)
    side = SIDES[kind] + 3
    encoder = Images(Array((side, side, 3)), kind)
    (encoder(torch.rand(8, side, side, 3)) * torch.randn(8, encoder.size)).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_picture_has_the_same_features_in_either_layout(kind: str) -> None:
    side = SIDES[kind]
    last, first = Images(Array((side, side, 3)), kind), Images(Array((3, side, side)), kind)
    first.load_state_dict(last.state_dict())
    picture = torch.rand(4, side, side, 3)
    torch.testing.assert_close(first(picture.permute(0, 3, 1, 2).contiguous()), last(picture))


def test_nature_has_the_layers_of_its_paper() -> None:
    encoder = Images(Array((4, 84, 84), "uint8"), "nature")
    shapes = [tuple(p.shape) for p in encoder.parameters() if p.dim() > 1]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 7 * 7 * 64)]


def test_drq_has_the_layers_of_its_paper() -> None:
    encoder = Images(Array((9, 84, 84), "uint8"), "drq")
    shapes = [tuple(p.shape) for p in encoder.parameters() if p.dim() > 1]
    # 84 -> 41 -> 39 -> 37 -> 35
    assert shapes == [(32, 9, 3, 3), *[(32, 32, 3, 3)] * 3, (50, 35 * 35 * 32)]


def test_impala_halves_the_sides_three_times() -> None:
    encoder = Images(Array((84, 84, 3), "uint8"), "impala")
    heads = [layer for layer in encoder.modules() if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in heads] == [11 * 11 * 32]
    # Each stage: one convolution, then two blocks of two.
    assert sum(isinstance(layer, nn.Conv2d) for layer in encoder.modules()) == 15


def test_drq_starts_delta_orthogonal() -> None:
    encoder = Images(Array((15, 15, 3)), "drq")
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            weight = layer.weight.detach()
            middle = weight[:, :, 1, 1]
            torch.testing.assert_close(middle.T @ middle, 2 * torch.eye(weight.shape[1]))
            assert weight.count_nonzero() == middle.count_nonzero()


def test_impala_features_start_neither_large_nor_small() -> None:
    torch.manual_seed(0)
    features = Images(Array((64, 64, 3)), "impala")(torch.rand(8, 64, 64, 3))
    assert 0.3 < features.square().mean().sqrt() < 5


def test_images_of_two_sizes_and_a_vector_are_joined_in_order() -> None:
    encoder, obs = Images(SPEC), observe(6)
    features = encoder(obs)
    assert encoder.size == 512 + 128 + 5  # nature, small, the angles as they are; no mask
    assert features.shape == (6, encoder.size)
    front = Images(SPEC["front"])
    front.nets[0].load_state_dict(encoder.nets[0].state_dict())
    torch.testing.assert_close(features[:, :512], front(obs["front"]))
    assert torch.equal(features[:, -5:], obs["arm"]["angle"])


def test_leading_axes_are_as_good_as_flattened() -> None:
    encoder, obs = Images(SPEC), observe(2, 3)
    flat = {
        "front": obs["front"].flatten(0, 1),
        "arm": {name: value.flatten(0, 1) for name, value in obs["arm"].items()},
        MASK_KEY: obs[MASK_KEY].flatten(0, 1),
    }
    assert torch.equal(encoder(obs).flatten(0, 1), encoder(flat))


def test_a_single_image_needs_no_leading_axis() -> None:
    assert Images(Array((10, 10, 4)))(torch.rand(10, 10, 4)).shape == (128,)


@pytest.mark.parametrize("shape", [(4, 4, 1), (1, 4, 4), (5, 4, 7)])
def test_tiny_images_have_features(shape: tuple[int, ...]) -> None:
    encoder = Images(Array(shape, "uint8"))
    assert encoder.size == 128
    assert encoder(torch.rand(3, *shape)).shape == (3, 128)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_raw_pixels_are_read_too(dtype: torch.dtype) -> None:
    spec = Array((10, 10, 4), str(dtype).removeprefix("torch."))
    encoder, pixels = Images(spec), torch.randint(2, (3, 10, 10, 4)).to(dtype)
    assert torch.equal(encoder(pixels), encoder(Observations(spec, False, 0.0)(pixels)))


def test_an_image_that_is_too_small_is_told_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="image 20x20 is too small for nature; use kind=small"):
        Images(Array((20, 20, 3), "uint8"), "nature")
    with pytest.raises(ConfigError, match="image 14x30 is too small for drq"):
        Images(Array((14, 30, 3), "uint8"), "drq")


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_image_of_a_kind_can_be_read(kind: str) -> None:
    side = KINDS[kind].least
    assert Images(Array((side, side, 1)), kind)(torch.rand(2, side, side, 1)).isfinite().all()


@pytest.mark.parametrize(("side", "size"), [(4, 128), (35, 128), (36, 512)])
def test_auto_takes_the_largest_net_that_fits(side: int, size: int) -> None:
    assert Images(Array((side, side, 1))).size == size


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kind": "natur"}, "did you mean 'nature'?"),
        ({"features": -1}, "features is -1"),
        ({"channels": "middle"}, "choose one of: auto, first, last"),
        ({"width": 3}, "width"),
    ],
)
def test_wrong_options_are_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")):
        construct("encoder", Part("images", options), Array((84, 84, 3), "uint8"))


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        (Array((8, 8, 3), "uint8"), Images),
        ({"view": Array((3, 64, 64), "uint8"), "speed": Array((2,))}, Images),
        (Array((7, 7, 3), "uint8"), Flat),
        (Array((17,)), Flat),
    ],
)
def test_auto_is_flat_unless_there_is_an_image_of_eight_pixels(spec: Any, made: type) -> None:
    assert type(construct("encoder", Part("auto"), spec)) is made


def test_auto_hands_its_options_on() -> None:
    assert (
        construct("encoder", Part("auto", {"kind": "drq", "features": 9}), Array((84, 84, 3), "uint8")).size
        == 9
    )


def test_without_images_all_is_flat() -> None:
    spec = {"position": Array((2,)), "table": Array((3, 3, 2))}
    obs = {"position": torch.rand(2, 5, 2), "table": torch.rand(2, 5, 3, 3, 2)}
    assert torch.equal(Images(spec)(obs), Flat(spec)(obs))


def test_an_encoder_can_be_captured() -> None:
    encoder, obs = Images(SPEC), observe(2, 3)
    with capture_safe():
        encoder(obs).sum().backward()


@pytest.mark.parametrize("check", CHECKS)
def test_an_agent_with_images_keeps_every_contract(check: str) -> None:
    spec = Spec({"view": Array((10, 10, 2), "uint8", 0, 255), "speed": Array((2,))}, Discrete(3), NUM_ENVS)
    encoder = {"class": "images", "features": 16}
    CHECKS[check](Subject("ppo", spec, {"encoder": encoder}))


# As Beyond the Rainbow has it


@pytest.mark.parametrize("kind", KINDS)
def test_flat_features_are_the_convolutions_alone(kind: str) -> None:
    side = SIDES[kind]
    encoder, whole = Images(Array((side, side, 2)), kind, "flat"), Images(Array((side, side, 2)), kind, 5)
    width = next(layer.in_features for layer in whole.nets[0].head.modules() if isinstance(layer, nn.Linear))
    assert encoder.size == width
    assert not any(isinstance(layer, nn.Linear) for layer in encoder.nets[0].head.modules())
    picture = torch.rand(3, side, side, 2)
    found = encoder(picture)
    trunk = encoder.nets[0].trunk(picture.permute(0, 3, 1, 2))
    torch.testing.assert_close(found, trunk.permute(0, 2, 3, 1).flatten(1))


def test_a_wide_impala_has_more_channels_and_a_pool_fixes_its_pixels() -> None:
    spec = Array((84, 84, 4), "uint8")
    plain, wide = Images(spec, "impala", "flat"), Images(spec, "impala", "flat", width=2)
    assert [layer.out_channels for layer in wide.modules() if isinstance(layer, nn.Conv2d)] == [
        2 * layer.out_channels for layer in plain.modules() if isinstance(layer, nn.Conv2d)
    ]
    assert (plain.size, wide.size) == (11 * 11 * 32, 11 * 11 * 64)
    assert Images(spec, "impala", "flat", width=2, pool=6).size == 6 * 6 * 64
    # maxima of areas: 12 pixels become 2 after three halvings, and 2x2 become 1
    small, pooled = (Images(Array((12, 12, 1)), "impala", "flat", pool=pool) for pool in (0, 1))
    pooled.load_state_dict(small.state_dict())
    picture = torch.rand(3, 12, 12, 1)
    torch.testing.assert_close(pooled(picture), small(picture).reshape(3, 4, 32).amax(1))


@pytest.mark.parametrize(("height", "width", "side"), [(11, 11, 6), (7, 9, 3), (4, 5, 4), (3, 8, 2)])
def test_pooling_is_torchs_adaptive_pooling(height: int, width: int, side: int) -> None:
    image = torch.randn(2, 3, height, width)
    assert torch.equal(Pooled(side)(image), nn.AdaptiveMaxPool2d(side)(image))


def test_a_small_net_with_a_pool_sees_the_same_wall_beside_an_agent_at_every_place() -> None:
    spec = Array((21, 21, 3), "uint8")
    pooled, plain = Images(spec, "small", width=2, pool=1), Images(spec, "small")
    assert pooled.nets[0].trunk(torch.zeros(1, 3, 21, 21)).shape == (1, 32, 1, 1)
    pictures = torch.zeros(2, 21, 21, 3)
    for number, (row, column) in enumerate([(3, 5), (14, 11)]):
        pictures[number, row, column] = 1.0  # the agent
        pictures[number, row, column + 1] = torch.tensor([0.2, 0.6, 0.2])  # a wall on its right
    here, there = pooled(pictures)
    torch.testing.assert_close(here, there)
    other = pictures[:1].flip(2)  # the wall on its left
    assert not torch.allclose(pooled(other)[0], here, atol=1e-3)
    assert not torch.allclose(*plain(pictures), atol=1e-3)  # without a pool the place matters


def test_further_layers_of_a_small_net_come_before_the_last_and_keep_the_size() -> None:
    net = Images(Array((7, 7, 3), "uint8"), "small", "flat", width=2, layers=2)
    found = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    assert [(layer.in_channels, layer.out_channels) for layer in found] == [(3, 32), (32, 32)]
    assert net.size == 5 * 5 * 32
    # An output sees two pixels in each direction: the one at row 2 of the image sees row 0, the one at row 3 does not.
    picture = torch.rand(1, 7, 7, 3)
    other = picture.clone()
    other[0, 0] += 1.0
    here, there = (net(x).reshape(5, 5, 32) for x in (picture, other))
    assert not torch.equal(here[1], there[1]) and torch.equal(here[2:], there[2:])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kind": "nature", "width": 2}, "options of kinds impala and small; leave them out"),
        ({"kind": "drq", "spectral_norm": True}, "options of kinds impala and small; leave them out"),
        ({"kind": "small", "spectral_norm": True}, "an option of kind impala only; leave it out"),
        ({"kind": "impala", "layers": 2}, "layers is an option of kind small only; leave it out"),
        ({"kind": "small", "layers": 0}, "width is 1, layers 0 and pool 0; give at least 1, 1 and 0"),
        ({"kind": "impala", "width": 0}, "width is 0, layers 1 and pool 0; give at least 1, 1 and 0"),
        ({"kind": "impala", "pool": -1}, "width is 1, layers 1 and pool -1; give at least 1, 1 and 0"),
        ({"features": "wide"}, "features is 'wide'; give a width, 0 for 512, or flat"),
    ],
)
def test_wrong_options_of_wide_nets_are_one_sentence(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as e:
        construct("encoder", Part("images", options), Array((84, 84, 3), "uint8"))
    assert "\n" not in str(e.value)


def spectral(seed: int = 0) -> SpectralConvolution:
    """A convolution whose weight has singular values far from one another, not orthogonal as it starts."""
    torch.manual_seed(seed)
    layer = nn.Conv2d(4, 6, 3, padding=1)
    nn.init.normal_(layer.weight)
    return SpectralConvolution(layer)


def estimate(layer: SpectralConvolution) -> float:
    return float(layer.left @ layer.layer.weight.detach().flatten(1) @ layer.right)


def test_power_iteration_finds_the_spectral_norm() -> None:
    layer = spectral()
    wanted = float(torch.linalg.matrix_norm(layer.layer.weight.detach().flatten(1), 2))
    # never above it, and nearer with each round
    found = [estimate(layer)]
    for _ in range(200):
        layer.iterate_()
        found.append(estimate(layer))
    assert all(b >= a - 1e-5 for a, b in pairwise(found)) and max(found) <= wanted + 1e-5
    assert found[-1] == pytest.approx(wanted, rel=1e-5)
    assert found[0] == pytest.approx(wanted, rel=0.05)  # 15 rounds are made beforehand


def test_the_estimate_follows_a_weight_that_moves() -> None:
    layer = spectral()
    with torch.no_grad():
        layer.layer.weight.copy_(spectral(1).layer.weight)
    stale = estimate(layer)
    for _ in range(200):
        layer.iterate_()
    wanted = float(torch.linalg.matrix_norm(layer.layer.weight.detach().flatten(1), 2))
    assert abs(stale - wanted) > 0.1
    assert estimate(layer) == pytest.approx(wanted, rel=1e-5)


def test_a_weight_is_divided_by_its_norm_and_reading_leaves_no_trace() -> None:
    layer, picture = spectral(), torch.rand(2, 4, 5, 5)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    found = layer(picture)
    plain = layer.layer
    wanted = nn.functional.conv2d(picture, plain.weight / estimate(layer), plain.bias, padding=1)
    torch.testing.assert_close(found, wanted)
    assert all(value.equal(before[name]) for name, value in layer.state_dict().items())


def test_the_size_of_a_normalised_weight_takes_no_gradient() -> None:
    # f(c W) = f(W), so the slope is at right angles to W; a norm taken for a constant would not give that
    layer, picture = spectral(), torch.rand(2, 4, 5, 5)
    (layer(picture) * torch.randn(2, 6, 5, 5)).sum().backward()
    weight = layer.layer.weight
    assert weight.grad is not None
    along = float((weight.grad * weight.detach()).sum() / (weight.grad.norm() * weight.detach().norm()))
    assert along == pytest.approx(0.0, abs=1e-6)


def test_all_convolutions_of_residual_blocks_are_normalised_and_no_others() -> None:
    encoder = Images(Array((12, 12, 3)), "impala", "flat", spectral_norm=True)
    normalised = {id(m.layer) for m in encoder.modules() if isinstance(m, SpectralConvolution)}
    blocks = {
        id(conv)
        for block in encoder.modules()
        if isinstance(block, ResidualBlock)
        for conv in block.modules()
        if isinstance(conv, nn.Conv2d)
    }
    assert normalised == blocks and len(blocks) == 12
