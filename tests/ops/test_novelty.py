"""Novelty within an episode, on points worked by hand."""

import math

import pytest
import torch

from whorl.ops.novelty import elliptical_, episodic_bonus, nearest_distances

POINTS = torch.tensor([0.0, 1.0, 3.0, 7.0, 10.0]).reshape(1, 5, 1)


def test_nearest_of_five_points() -> None:
    held = POINTS.expand(3, -1, -1)
    value = torch.tensor([[2.0], [2.0], [9.0]])
    found = nearest_distances(value, held, torch.tensor([5, 2, 0]), 3)
    assert found.tolist() == [[1.0, 1.0, 4.0], [1.0, 4.0, math.inf], [math.inf] * 3]


def test_similarity_and_bonus_by_hand() -> None:
    distance, scale = torch.tensor([[1.0, 1.0, 4.0]]), torch.tensor([2.0])
    # relative 0.5, 0.5, 2; less 0.25; kernel 0.5, 0.5, 0.125; sqrt(1.125) + 0.1
    bonus = episodic_bonus(distance, scale, 0.25, 0.25, 0.1, 8.0)
    assert bonus.item() == pytest.approx(1 / (math.sqrt(1.125) + 0.1), rel=1e-6)
    assert episodic_bonus(distance, scale, 0.25, 0.25, 0.1, 1.0).item() == 0.0, "too similar"


def test_neighbours_that_do_not_exist_are_not_similar() -> None:
    one, three = torch.tensor([[4.0]]), torch.tensor([[4.0, math.inf, math.inf]])
    given = (torch.tensor([2.0]), 1e-2, 0.0, 1e-3, 8.0)
    assert torch.equal(episodic_bonus(one, *given), episodic_bonus(three, *given))


def test_a_distance_of_zero_is_whole_similarity() -> None:
    bonus = episodic_bonus(torch.zeros(1, 4), torch.zeros(1), 1e-4, 8e-3, 1e-3, 8.0)
    assert bonus.item() == pytest.approx(1 / 2.001)


def test_the_elliptical_bonus_is_that_of_the_inverted_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20, 3, 5, generator=generator, dtype=torch.float64)
    inverse = (torch.eye(5, dtype=torch.float64) / 0.1).expand(3, -1, -1).clone()
    matrix = 0.1 * torch.eye(5, dtype=torch.float64).expand(3, -1, -1)
    for value in values:
        expected = torch.einsum("bi,bij,bj->b", value, torch.linalg.inv(matrix), value)
        torch.testing.assert_close(elliptical_(inverse, value), expected)
        matrix = matrix + value.unsqueeze(2) * value.unsqueeze(1)
    torch.testing.assert_close(inverse, torch.linalg.inv(matrix))
