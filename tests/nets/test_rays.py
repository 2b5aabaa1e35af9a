"""The encoder of ray sensors: which leaves are rays, what neighbours mean, and a training with it."""

import math

import pytest
import torch

from whorl.conformance import CHECKS, NUM_ENVS, Subject
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, construct
from whorl.core.spec import MASK_KEY, Array, Discrete, Spec
from whorl.nets.rays import Rays
from whorl.nets.vit import VisionTransformer

SPEC = {"eye": Array((12, 3)), "speed": Array((2,)), MASK_KEY: Array((4,), "int8", 0, 1)}


def test_leaves_with_two_axes_are_rays_and_the_others_follow_flat():
    encoder = construct("encoder", Part("rays", {"features": 9}), SPEC)
    speed = torch.rand(5, 2, 2)
    found = encoder({"eye": torch.rand(5, 2, 12, 3), "speed": speed, MASK_KEY: torch.ones(5, 2, 4)})
    assert found.shape == (5, 2, encoder.size) == (5, 2, 11)
    assert torch.equal(found[..., 9:], speed)


def test_a_vector_is_read_as_rays_one_after_the_other():
    torch.manual_seed(0)
    plain, split = Rays(Array((12, 3))), Rays(Array((36,)), rays=12)
    split.load_state_dict(plain.state_dict())
    value = torch.rand(4, 12, 3)
    assert torch.equal(plain(value), split(value.flatten(1)))


def test_a_circle_of_rays_has_no_ends():
    """Turning the rays by four (two strides) turns the features of the convolutions, if the circle is closed."""
    torch.manual_seed(0)
    value = torch.rand(1, 1, 16)
    for circular in (True, False):
        convolutions = Rays(Array((16, 1)), circular=circular).nets[0][:4]
        turned = convolutions(value.roll(4, -1))
        assert torch.allclose(turned, convolutions(value).roll(1, -1), atol=1e-6) == circular


def test_an_observation_without_rays_is_one_sentence():
    with pytest.raises(ConfigError, match=r"needs an observation \[rays, channels\] of at least 5 rays"):
        Rays(Array((7,)))
    with pytest.raises(ConfigError, match="needs an observation"):
        Rays(Array((7,)), rays=6)


@pytest.mark.parametrize("check", ["acts", "resumes_exactly", "can_be_captured", "keeps_its_settings"])
def test_agents_with_rays_conform(check: str):
    subject = Subject("ppo", Spec(Array((8, 2)), Discrete(3), NUM_ENVS), {"encoder": {"class": "rays"}})
    CHECKS[check](subject)


def test_a_vision_transformer_sees_where_a_patch_is():
    torch.manual_seed(0)
    net = VisionTransformer(1)
    image = torch.zeros(1, 1, 24, 24)
    image[..., :8, :8] = 1.0
    with torch.no_grad():
        here, there = net(image), net(image.transpose(2, 3).flip(3))
    assert not torch.allclose(here, there, atol=1e-4)
    assert here.shape == (1, 128, 1, 1) and math.isfinite(float(here.sum()))
