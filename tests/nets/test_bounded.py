"""Networks with bounded norms: batch statistics by hand, unit weights after a step, one pass written out."""

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from whorl.nets.bounded import BatchNorm, BoundedNet, RMSNorm
from whorl.nets.normalize import BoundedReturnScale


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(1, -1, 1)


def test_learning_goes_by_the_statistics_of_the_batch_and_acting_by_running_ones() -> None:
    norm = BatchNorm(1, 1)
    found, moments = norm.learn(column(1, 3))
    assert found.flatten().tolist() == pytest.approx([-1, 1], abs=1e-4)
    norm.merge_(moments)
    # a hundredth of the mean 2, and of the unbiased variance 2 beside 0.99 of the 1 before
    assert norm.mean.item() == pytest.approx(0.02) and norm.var.item() == pytest.approx(0.99 + 0.02)
    assert norm(column(2.02)).item() == pytest.approx(2 / sqrt(1.01 + 1e-5))


def test_members_are_normalised_apart() -> None:
    norm = BatchNorm(2, 1)
    found, (mean, _) = norm.learn(torch.cat((column(1, 3), column(10, 30))))
    assert mean.flatten().tolist() == [2, 20]
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=0)


def test_scale_and_shift_are_projected_together() -> None:
    norm = BatchNorm(1, 2)
    with torch.no_grad():
        norm.scale.copy_(torch.tensor([[[3.0, 0.0]]]))
        norm.shift.copy_(torch.tensor([[[0.0, 4.0]]]))
    norm.project_()  # from the norm 5 to sqrt(2)
    assert norm.scale.flatten().tolist() == pytest.approx([3 * sqrt(2) / 5, 0])
    assert norm.shift.flatten().tolist() == pytest.approx([0, 4 * sqrt(2) / 5])


def test_features_have_the_norm_of_their_scale() -> None:
    norm = RMSNorm(1, 4)
    found = norm(1000 * torch.randn(1, 5, 4))
    torch.testing.assert_close(found.norm(dim=-1), torch.full((1, 5), 2.0))
    with torch.no_grad():
        norm.scale.fill_(3.0)
    norm.project_()
    assert norm.scale.flatten().tolist() == pytest.approx([1] * 4)


def test_one_pass_is_the_rule_written_out() -> None:
    torch.manual_seed(0)
    net = BoundedNet(2, 3, 4, 1, 2, expand=2)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    rows = torch.randn(6, 3)
    found, moments = net.learn(rows)
    enter, wide, narrow, leave = net.weights

    def normed(number: int, value: Tensor, member: int) -> Tensor:
        norm = net.norms[number]
        scale, shift = norm.scale[member, 0], norm.shift[member, 0]
        return F.batch_norm(value, None, None, scale, shift, training=True, eps=1e-5)

    for member in (0, 1):
        x = normed(0, rows, member) @ enter[member]
        inner = normed(1, x @ wide[member], member).relu()
        x = x + normed(2, inner @ narrow[member], member).relu()
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * net.rms.scale[member, 0]
        torch.testing.assert_close(found[member], x @ leave[member] + net.bias[member, 0])
    for norm, (mean, var) in zip(net.norms, moments, strict=True):
        norm.mean.copy_(mean)
        norm.var.copy_(var * 5 / 6)  # what a batch is normalised by is biased
    torch.testing.assert_close(net(rows), found)


def test_every_unit_has_weights_of_norm_one_and_projecting_again_changes_no_bit() -> None:
    torch.manual_seed(0)
    net = BoundedNet(2, 5, 8, 2, 3)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(3).add_(0.1)
    net.project_()
    for weight in net.weights:
        torch.testing.assert_close(weight.norm(dim=1), torch.ones(2, weight.shape[2]))
    for norm in net.norms:
        size = (norm.scale.square() + norm.shift.square()).sum(-1).sqrt()
        torch.testing.assert_close(size, torch.full_like(size, sqrt(norm.scale.shape[-1])))
    before = [parameter.detach().clone() for parameter in net.parameters()]
    net.project_()
    assert all(a.equal(b) for a, b in zip(before, net.parameters(), strict=True))


def test_rewards_are_divided_by_the_deviation_or_by_the_largest_return_over_the_bound() -> None:
    scale = BoundedReturnScale(2, True, 5.0)
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    scale.merge_(rows, torch.ones(2, 2), torch.ones(2, 2), 0.5)
    # Discounted returns: 1, 0, 1.5, 0; their variance is 0.421875, so the deviation 0.65 is more than 1.5 / 5.
    assert scale(torch.tensor([[1.0]])).item() == pytest.approx(1 / 0.421875**0.5, rel=1e-4)
    scale.largest.fill_(50.0)
    assert scale(torch.tensor([[1.0]])).item() == pytest.approx(0.1)


def test_the_largest_return_ignores_masked_rows_and_negative_ones_count() -> None:
    scale = BoundedReturnScale(2, True, 5.0)
    reward, mask = torch.tensor([[-7.0, torch.nan]]), torch.tensor([[1.0, 0.0]])
    scale.merge_(reward, torch.ones(1, 2), mask, 0.9)
    assert scale.largest.item() == 7
