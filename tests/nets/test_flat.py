"""The encoder `magnified`: its numbers by hand, wrong options, and agents with it."""

import math

import pytest
import torch

from whorl.conformance import CHECKS, NUM_ENVS, Subject
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, construct
from whorl.core.spec import MASK_KEY, Array, Continuous, Discrete, Spec

MAGNIFIED = {"encoder": {"class": "magnified", "differences": [[1, 0], [4, 2]]}}


def test_small_deviations_are_magnified_and_large_ones_compressed():
    encoder = construct("encoder", Part("magnified", {"scales": [1.0, 100.0]}), Array((3,)))
    found = encoder(torch.tensor([[0.0, -0.01, 8.0], [1.0, -1.0, 1e-6]]))
    assert found.shape == (2, encoder.size) == (2, 6)
    # asinh(x) = ln(x + sqrt(x² + 1)): asinh(1) = 0.88137, asinh(100) = 5.29834
    expected = [0.0, -0.011346, 3.15027, 0.0, -0.166349, 1.392448]
    assert found[0].tolist() == pytest.approx(expected, rel=1e-4)
    assert found[1].tolist() == pytest.approx([1, -1, 1e-6 / 0.881374, 1, -1, 1e-4 / 5.298342], rel=1e-4)


def test_all_leaves_but_a_mask_are_read():
    spec = {"eye": Array((2, 2)), "speed": Array((1,)), MASK_KEY: Array((4,), "int8", 0, 1)}
    encoder = construct("encoder", Part("magnified"), spec)
    found = encoder(
        {"eye": torch.ones(5, 7, 2, 2), "speed": -torch.ones(5, 7, 1), MASK_KEY: torch.zeros(5, 7, 4)}
    )
    assert found.shape == (5, 7, encoder.size) == (5, 7, 15)
    assert torch.allclose(found, torch.tensor([1.0, 1, 1, 1, -1] * 3))


@pytest.mark.parametrize("scales", [[], [10.0, 0.0], [-1.0], [math.nan]])
def test_wrong_scales_are_one_sentence(scales: list[float]):
    with pytest.raises(ConfigError, match="give at least one number, each above 0"):
        construct("encoder", Part("magnified", {"scales": scales}), Array((3,)))


def test_differences_of_large_entries_are_magnified():
    options = {"scales": [1.0, 100.0], "differences": [[2, 0], [0, 1]]}
    encoder = construct("encoder", Part("magnified", options), Array((3,)))
    found = encoder(torch.tensor([[2.0, 1.0, 1.99]]))
    assert found.shape == (1, encoder.size) == (1, 10)
    # x is followed by 1.99 - 2 and 2 - 1, then the same at 100: asinh(-1) = -0.88137
    assert found[0, 3:5].tolist() == pytest.approx([-0.01 / 0.881374, 1], rel=1e-3)
    assert found[0, 8:].tolist() == pytest.approx([-0.881374 / 5.298342, 1], rel=1e-3)
    plain = construct("encoder", Part("magnified", {"scales": [1.0, 100.0]}), Array((3,)))
    assert torch.equal(found[0, [0, 1, 2, 5, 6, 7]], plain(torch.tensor([2.0, 1.0, 1.99])))


@pytest.mark.parametrize("differences", [[[0, 3]], [[-1, 0]], [[0, 1], [2]], [0, 1], [[0, 1.5]]])
def test_wrong_differences_are_one_sentence(differences: list[list[int]]):
    with pytest.raises(ConfigError, match="give pairs of entries from 0 to 2"):
        construct("encoder", Part("magnified", {"differences": differences}), Array((3,)))


@pytest.mark.parametrize("check", ["acts", "resumes_exactly", "can_be_captured", "keeps_its_settings"])
@pytest.mark.parametrize(
    ("algorithm", "action"), [("ppo", Discrete(3)), ("tqc", Continuous((2,), (-1.0, -1.0), (1.0, 1.0)))]
)
def test_agents_with_magnified_observations_conform(check: str, algorithm: str, action):
    CHECKS[check](Subject(algorithm, Spec(Array((5,)), action, NUM_ENVS), MAGNIFIED))
