"""Target networks move by their rule, in place."""

import pytest
import torch
from torch import nn

from whorl.ops import hard_update_, polyak_


def filled(value: float) -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(value)
    return net


def test_polyak_share_of_the_online_weights() -> None:
    # 1 - .995^k
    target, online = filled(0.0), filled(1.0)
    share = {}
    for update in range(1, 1001):
        polyak_(target, online, 0.005)
        share[update] = [p.flatten()[0].item() for p in target.parameters()]
    for update, expected in ((1, 0.005), (138, 0.4993), (200, 0.6330), (1000, 0.99335)):
        assert share[update] == pytest.approx([expected] * 4, abs=5e-5)


def test_updates_happen_in_place_and_leave_the_online_net_alone() -> None:
    target, online = filled(0.0), filled(1.0)
    addresses = [t.data_ptr() for t in (*target.parameters(), *target.buffers())]
    polyak_(target, online, 0.1)
    hard_update_(target, online)
    assert addresses == [t.data_ptr() for t in (*target.parameters(), *target.buffers())]
    assert all(bool((p == 1).all()) and p.grad_fn is None for p in online.parameters())


def test_buffers_are_copied_whole() -> None:
    target, online = filled(0.0), filled(1.0)
    online(torch.tensor([[1.0, 2.0], [5.0, 6.0]]))  # moves the running statistics and the integer counter
    polyak_(target, online, 0.005)
    for copied, source in zip(target.buffers(), online.buffers()):
        assert torch.equal(copied, source)


def test_hard_update_makes_the_nets_equal() -> None:
    target, online = filled(0.0), filled(1.0)
    hard_update_(target, online)
    for copied, source in zip(target.state_dict().values(), online.state_dict().values()):
        assert torch.equal(copied, source)


def test_nets_of_different_structure_are_refused() -> None:
    with pytest.raises(ValueError, match="have different shapes"):
        polyak_(nn.Linear(2, 3), nn.Linear(3, 2), 0.5)
