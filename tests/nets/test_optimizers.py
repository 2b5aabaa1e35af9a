"""Optimizers start where torch starts them, take N steps as torch takes them, or are declined in one sentence."""

from typing import Any

import pytest
import torch
from torch import nn

from whorl.agents.optimizers import UNFIT, build_optimizer, initialise_state, stepper
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, known

OFFERED = ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD"]
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in OFFERED),
    *((name, {"weight_decay": 0.1}) for name in OFFERED),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("Adagrad", {"initial_accumulator_value": 0.3}),
    ("Adam", {"amsgrad": True}),
    ("Adam", {"fused": False}),
]


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (3,), ())]


def prepared(part: Part, found: list[nn.Parameter], **defaults: Any) -> Any:
    optimizer = build_optimizer(found, part, 0.01, defaults)
    initialise_state(optimizer, torch.tensor(0.01))
    return optimizer


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_steps_are_those_of_a_fresh_optimizer_of_torch(name: str, options: dict[str, Any]) -> None:
    ours, theirs = parameters(), parameters()
    optimizer = prepared(Part(name, options), ours)
    assert all(a.equal(b) for a, b in zip(ours, theirs)), "making the state moved a parameter"
    step = stepper(optimizer, ours)
    other = getattr(torch.optim, name)(theirs, lr=0.01, **options)
    generator = torch.Generator().manual_seed(1)
    for number in range(6):
        rate = 0.01 / (1 + number)  # as a schedule would set it
        gradients = [torch.randn(p.shape, generator=generator) for p in ours]
        for parameter, gradient in zip(theirs, gradients):
            parameter.grad = gradient.clone()
        for group in other.param_groups:
            group["lr"] = rate
        other.step()
        step([gradient.clone() for gradient in gradients], torch.tensor(rate))
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a, b, atol=2e-6, rtol=2e-6)


def test_what_torch_offers_is_offered_or_declined() -> None:
    assert {name for name in known("optimizer") if hasattr(torch.optim, name)} <= {*OFFERED, *UNFIT}


@pytest.mark.parametrize("name", [name for name in UNFIT if hasattr(torch.optim, name)])
def test_what_can_not_serve_is_one_sentence_with_what_can(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"optimizer {name!r} cannot be used: .*choose one of: Adadelta, .*SGD"
    ) as e:
        build_optimizer(parameters(), Part(name), 0.01, {"eps": 1e-8, "weight_decay": 0.0})
    assert "\n" not in str(e.value)


def test_dampening_would_not_start_as_torch_starts_it() -> None:
    with pytest.raises(ConfigError, match=r"cannot be used with dampening 0\.5"):
        build_optimizer(parameters(), Part("SGD", {"momentum": 0.9, "dampening": 0.5}), 0.01, {})


class Follower(torch.optim.Optimizer):
    """Keeps a copy of where each parameter was, and counts in the way that it is told to."""

    def __init__(self, params: Any, lr: float, count: Any = 0) -> None:
        super().__init__(params, {"learning_rate": lr, "count": count})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["was"] = p.clone()
                    state["count"] = group["count"]
                state["was"].lerp_(p, 0.5)
                state["count"] = state["count"] + 1
                p.sub_(group["lr"] * p.grad)


def test_an_optimizer_of_somebody_else_starts_from_its_own_values() -> None:
    ours = parameters()
    optimizer = Follower(ours, 0.01, torch.tensor(5.0))
    initialise_state(optimizer, torch.tensor(0.01))
    assert all(optimizer.state[p]["was"].equal(p) and optimizer.state[p]["count"] == 5 for p in ours)


def test_state_that_is_no_tensor_is_one_sentence() -> None:
    with pytest.raises(
        ConfigError, match="optimizer Follower stores 'count' as a int; its state must consist of tensors"
    ):
        initialise_state(Follower(parameters(), 0.01), torch.tensor(0.01))
