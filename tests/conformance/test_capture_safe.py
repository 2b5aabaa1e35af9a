"""The guard itself: it catches each offence, and lets through what a graph allows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from whorl.agents.agent import Agent, Updated, captured
from whorl.conformance import CheckedRunner, NotCapturable, capture_safe
from whorl.core.registry import Part
from whorl.core.spec import Array, Discrete, Spec
from whorl.data.batch import Batch

OFFENCES: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "if": lambda x: 1 if x.sum() > 0 else 2,
    "as a number": lambda x: [1, 2, 3][x.long()[0]],
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "to another device": lambda x: x.to("meta"),
    "nonzero": lambda x: x.nonzero(),
    "where without values": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "boolean index": lambda x: x[x > 0],
    "boolean assignment": lambda x: x.__setitem__(x > 0, torch.zeros(2)),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "equal": lambda x: torch.equal(x, x),
    "tensor of host data": lambda x: x * torch.tensor([1.0, 2.0]),
    "list as an index": lambda x: x[[0, 1]],
    "allclose": lambda x: torch.allclose(x, x),
}
ALLOWED: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: (x * 2.0 + 1).softmax(0).argmax(),
    "integer index": lambda x: x[torch.zeros_like(x, dtype=torch.int64)],
    "slice": lambda x: x[1:].clone(),
    "assignment to a slice": lambda x: x[1:].__setitem__(0, 0.0),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "full": lambda x: x + torch.full((), 3.0, device=x.device),
    "random numbers": lambda x: torch.rand(3, generator=torch.Generator()),
    "cast": lambda x: x.to(torch.float64).long().float(),
    "gradient": lambda x: torch.autograd.grad((x.requires_grad_() ** 2).sum(), x),
}


@pytest.mark.parametrize("offence", OFFENCES)
def test_each_offence_is_caught(offence: str) -> None:
    with capture_safe(), pytest.raises(NotCapturable):
        OFFENCES[offence](torch.ones(2))


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_graph_allows_passes(name: str) -> None:
    with capture_safe():
        ALLOWED[name](torch.ones(2))


class Stub(Agent):
    """One weight and one number, with an update to be filled in."""

    running: Tensor

    def __init__(self, update: Callable[["Stub"], None]) -> None:
        super().__init__(Spec(Array((1,)), Discrete(2), 1), None)
        self.weight = torch.nn.Linear(1, 1)
        self.register_buffer("running", torch.zeros(()))
        self.add_optimizer("weight", self.weight, Part("Adam", {"fused": False}), 1e-3)
        self.prepare("cpu", lambda name: torch.Generator())
        self.runner = CheckedRunner()
        self.rule = update

    @captured
    def step(self, batch: Batch) -> Updated:
        self.rule(self)
        return Updated({})


def rebinds_a_buffer(agent: Stub) -> None:
    agent.running = agent.running * 0.9


def rebinds_a_weight(agent: Stub) -> None:
    agent.weight.weight = torch.nn.Parameter(agent.weight.weight * 0.9)


def rebinds_the_optimizers_state(agent: Stub) -> None:
    state = agent._optimizers["weight"].state[agent.weight.weight]
    state["exp_avg"] = state["exp_avg"] * 0.9


def updates_in_place(agent: Stub) -> None:
    agent.running.lerp_(torch.ones(()), 0.1)
    agent.minimize("weight", agent.weight(torch.ones(1, 1)).sum())


@pytest.mark.parametrize("rule", [rebinds_a_buffer, rebinds_a_weight, rebinds_the_optimizers_state])
def test_a_rebound_tensor_is_caught(rule: Callable[[Stub], None]) -> None:
    with pytest.raises(NotCapturable, match="rebound"):
        Stub(rule).step(None)  # type: ignore[arg-type]


def test_an_optimizer_may_read_its_own_counter() -> None:
    agent = Stub(updates_in_place)
    agent.step(None)  # type: ignore[arg-type]
    assert agent.running == 0.1
    with capture_safe(), pytest.raises(NotCapturable):  # and the guard is whole again after it
        torch.ones(1).item()
