"""Parameters of small networks in one buffer: the same steps, state and gradients for others."""

import copy

import pytest
import torch
from torch import Tensor, nn

from whorl.agents.optimizers import Optimized
from whorl.core.registry import Part


class Two(Optimized):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 1)


ADAM, RMSPROP = Part("Adam"), Part("RMSprop", {"alpha": 0.9, "eps": 1e-3})


def build(packed: bool, part: Part = ADAM) -> Two:
    found = Two()
    found.add_optimizer("net", [found.one, found.two], part, 0.01)
    if not packed:
        found.add_optimizer(
            "other", found.one, Part("SGD"), 0.0
        )  # parameters of two optimizers stay where they are
    return found.prepare("cpu", lambda name: torch.Generator())


def loss(net: Two, seed: int) -> Tensor:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
    return (net.two(net.one(x).tanh()) - 1).square().mean()


@pytest.mark.parametrize("part", [ADAM, RMSPROP], ids=["Adam", "RMSprop"])
def test_packed_steps_are_those_of_single_tensors(part: Part) -> None:
    one, two = build(True, part), build(False, part)
    assert "net" in one._packed and not two._packed
    for seed in range(5):
        norms = [net.minimize("net", loss(net, seed), 0.1, measure=True) for net in (one, two)]
        assert torch.allclose(*norms)
    for a, b in zip(one.parameters(), two.parameters()):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("option", ["momentum", "centered", "weight_decay"])
def test_other_forms_of_rmsprop_are_not_packed(option: str) -> None:
    assert not build(True, Part("RMSprop", {option: True if option == "centered" else 0.1}))._packed


@pytest.mark.parametrize("part", [ADAM, RMSPROP], ids=["Adam", "RMSprop"])
def test_the_state_of_packed_parameters_is_restored(part: Part) -> None:
    one, two = build(True, part), build(True, part)
    one.minimize("net", loss(one, 0), 0.1)
    saved = copy.deepcopy((one.state_dict(), one.optimizer_state()))
    two.load_state_dict(saved[0])
    two.load_optimizer_state(saved[1])
    for net in (one, two):
        net.minimize("net", loss(net, 1), 0.1)
    assert [float(state["step"]) for state in one.optimizer_state()["net"]] == [2.0] * 4
    for a, b in zip(one.parameters(), two.parameters()):
        assert torch.equal(a, b)


def test_exported_gradients_are_not_overwritten_by_the_next() -> None:
    net, seen = build(True), []
    net.export_gradients(lambda name, gradients, rate: seen.append(gradients))
    net.minimize("net", loss(net, 0))
    before = [gradient.clone() for gradient in seen[0]]
    net.minimize("net", loss(net, 1))
    assert all(torch.equal(a, b) for a, b in zip(before, seen[0]))
