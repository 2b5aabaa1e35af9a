"""Distributions of the return: means, the lowest critic, moved targets and cross entropies by hand."""

from math import log

import pytest
import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.nets.atoms import AtomsConfig, ReturnAtoms, advice_on_clipping

THREE = AtomsConfig(n_atoms=3, v_min=0.0, v_max=2.0)


def logits(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows).clamp(min=1e-30).log()


def test_the_value_is_the_mean_of_the_distribution() -> None:
    assert ReturnAtoms(THREE).mean(logits((0.5, 0.25, 0.25))).tolist() == pytest.approx([0.75])


def test_without_atoms_an_answer_is_the_value() -> None:
    found = ReturnAtoms(AtomsConfig())
    assert not found.on and found.outputs == ()
    assert found.mean(torch.tensor([3.0])).tolist() == [3.0]


def test_the_lowest_distribution_is_chosen_whole_in_each_row() -> None:
    one, other = logits((0.5, 0, 0.5), (0, 0, 1)), logits((0.25, 0.5, 0.25), (0.5, 0, 0.5))
    # Row 0: both means are 1, the first is taken. Row 1: 2 against 1.
    found = ReturnAtoms(THREE).lowest(torch.stack((one, other)))
    torch.testing.assert_close(found, torch.tensor([[0.5, 0, 0.5], [0.5, 0, 0.5]]))


def test_the_target_is_moved_by_reward_and_discount_and_tells_what_it_clips() -> None:
    prob = torch.tensor([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
    found, outside = ReturnAtoms(THREE).target(
        prob, torch.tensor([0.5, 1.0, 1.5]), torch.tensor([0.5, 1.0, 0.0])
    )
    # 0.5 + 0.5 z: 0.5, 1, 1.5; half of 0.2 to atoms 0 and 1, 0.3 to atom 1, half of 0.5 to atoms 1 and 2
    assert found[0].tolist() == pytest.approx([0.1, 0.1 + 0.3 + 0.25, 0.25])
    # 1 + z: 1, 2 and 3, which is clipped to 2
    assert found[1].tolist() == pytest.approx([0, 0.2, 0.8])
    # terminal: the reward alone, 1.5
    assert found[2].tolist() == pytest.approx([0, 0.5, 0.5])
    assert outside.tolist() == pytest.approx([0, 0.5, 0])


def test_the_loss_is_the_cross_entropy_and_the_priority_its_excess_over_the_entropy() -> None:
    answers = logits((0.5, 0.25, 0.25), (0.25, 0.5, 0.25)).unsqueeze(1)  # [critics, rows, atoms]
    target = torch.tensor([[0.5, 0.5, 0.0]])
    loss, divergence = ReturnAtoms(THREE).losses(answers, target)
    cross = 0.5 * log(2) + 0.5 * log(4)
    assert loss.flatten().tolist() == pytest.approx([cross, cross])
    assert divergence.flatten().tolist() == pytest.approx([cross - log(2)] * 2)
    same = ReturnAtoms(THREE).losses(logits((0.5, 0.5, 0.0)), target)[1]
    assert same.tolist() == pytest.approx([0.0], abs=1e-6)


def test_settings_that_do_not_fit_are_declined_and_clipped_targets_are_told() -> None:
    with pytest.raises(ConfigError, match="n_atoms is 1; use at least 2"):
        ReturnAtoms(AtomsConfig(n_atoms=1))
    with pytest.raises(ConfigError, match="v_min must be less than v_max"):
        ReturnAtoms(AtomsConfig(n_atoms=3, v_min=1.0, v_max=1.0))
    assert advice_on_clipping(THREE, {"q/clipped": 0.1}) is None
    assert "25% of the probability" in (advice_on_clipping(THREE, {"q/clipped": 0.25}) or "")
