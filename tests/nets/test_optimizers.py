"""Optimizers start where torch starts them, take N steps as torch takes them, or are declined in one sentence."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whorl.agents.optimizers import UNFIT, Optimized, build_optimizer, initialise_state, stepper
from whorl.core.errors import ConfigError
from whorl.core.hardware import as_on_gpu
from whorl.core.registry import Part, known
from whorl.nets.memory import Recurrent

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
        step([gradient.clone() for gradient in gradients], torch.tensor(rate), None)
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


class Pair(Optimized):
    """Two biases that are added: autograd returns one tensor as the gradient of both."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.ParameterList(torch.zeros(2) for _ in range(2))
        self.add_optimizer("pair", self.biases, Part("SGD"), 1.0)
        self.prepare("cpu", lambda name: torch.Generator())

    def learn(self, max_norm: float = 0.0) -> list[list[float]]:
        """The biases after a step against a gradient of (3, 4) each."""
        total = self.biases[0] + self.biases[1]
        self.minimize("pair", (total * torch.tensor([3.0, 4.0])).sum(), max_norm)
        return [bias.tolist() for bias in self.biases]


def test_gradients_that_autograd_returns_as_one_tensor_are_clipped_once() -> None:
    # The norm over both is sqrt(2 * 25); clipped to a tenth of it, each moves by a tenth, not by a hundredth.
    moved = Pair().learn(max_norm=0.1 * 50**0.5)
    assert moved == [pytest.approx([-0.3, -0.4], rel=1e-5)] * 2


def test_gradients_that_autograd_returns_as_one_tensor_are_exchanged_once() -> None:
    pair = Pair()

    def halve(gradients: Any) -> None:
        for gradient in gradients:
            gradient.mul_(0.5)

    pair.exchange = halve
    assert pair.learn() == [[-1.5, -2.0]] * 2


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_clipped_step_of_a_memory_is_the_same_on_the_path_of_a_gpu(kind: str) -> None:
    def moved() -> list[Tensor]:
        torch.manual_seed(0)
        module = Optimized()
        module.memory = Recurrent(kind, 3, 4)
        module.add_optimizer("memory", module.memory, Part("SGD"), 1.0)
        module.prepare("cpu", lambda name: torch.Generator())
        value, reset = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
        loss = module.memory(value, reset, None, 0).square().sum() * 100
        module.minimize("memory", loss, max_norm=0.5)
        return [parameter.detach() for parameter in module.memory.parameters()]

    on_cpu = moved()
    with as_on_gpu():
        for ours, theirs in zip(moved(), on_cpu):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_decorators_of_ones_own_optimizer_are_called() -> None:
    class Decorated(torch.optim.SGD):
        calls = 0

        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    def counting(step: Any) -> Any:
        @functools.wraps(step)
        def counted(self: Decorated, closure: Any = None) -> Any:
            Decorated.calls += 1
            return step(self, closure)

        return counted

    Decorated.step = counting(Decorated.step)  # type: ignore[method-assign]
    initialise_state(Decorated(parameters(), 0.01), torch.tensor(0.01))
    assert Decorated.calls == 1
