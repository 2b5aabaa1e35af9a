"""Optimizers whose state exists before the first step, whose rate is a tensor, and which a CUDA graph may hold."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.core.registry import Part, construct, known, resolve
from whorl.ops.targets import pieces

Stepper: TypeAlias = Callable[[Sequence[Tensor], Tensor], None]
"""applies gradients at a rate"""

UNFIT = {
    "ASGD": "its steps follow the learning rate one step late",
    "Adafactor": "it reads its state on the host",
    "LBFGS": "it evaluates a loss several times a step",
    "Muon": "it takes matrices only, and nets have biases",
    "Rprop": "it reads the learning rate once, so that no schedule has a hold on it",
    "SparseAdam": "it takes sparse gradients only",
}
"""torch's optimizers that can't serve here, and why"""


def build_optimizer(
    parameters: list[nn.Parameter], part: Part, lr: float, defaults: dict[str, Any]
) -> torch.optim.Optimizer:
    """The optimizer that `part` names; of `defaults` it takes those that it knows and that `part` does not set."""
    build = resolve("optimizer", part.name)
    for name, reason in UNFIT.items():
        if build is getattr(torch.optim, name, None):
            fit = ", ".join(sorted(set(known("optimizer")) - set(UNFIT)))
            raise ConfigError(f"optimizer {part.name!r} can't be used: {reason}; choose one of: {fit}")
    taken = inspect.signature(build).parameters
    options = {**{key: value for key, value in defaults.items() if key in taken}, **part.options}
    if build is torch.optim.SGD and options.get("momentum") and options.get("dampening"):
        raise ConfigError(
            f"optimizer {part.name!r} can't be used with dampening {options['dampening']}: its first step would not be "
            "damped; use a lower learning rate"
        )
    if build in (torch.optim.Adam, torch.optim.AdamW):
        # One kernel for all tensors, on CPU and GPU, and the step counter lives on the device.
        options.setdefault("fused", True)
    return construct("optimizer", Part(part.name, options), parameters, lr=lr)


def stepper(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> Stepper:
    """How to step an optimizer. Fused Adam is called directly: for small nets its wrapper costs more than it does."""
    group = optimizer.param_groups[0]
    kernels: dict[type, Any] = {torch.optim.Adam: torch._fused_adam_, torch.optim.AdamW: torch._fused_adamw_}
    kernel = kernels.get(type(optimizer))
    if kernel is None or not group["fused"] or group["amsgrad"]:
        return partial(_plain_step, optimizer, parameters)
    state = [optimizer.state[p] for p in parameters]
    steps = [entry["step"] for entry in state]
    beta1, beta2 = group["betas"]
    options = {key: group[key] for key in ("weight_decay", "eps", "amsgrad", "maximize")}
    on_gpu = parameters[0].device.type == "cuda"

    def cut(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return pieces(tensors) if on_gpu else tensors

    held = [cut(parameters), *(cut([entry[key] for entry in state]) for key in ("exp_avg", "exp_avg_sq"))]
    counts = [steps[0]] * len(held[0])

    @torch.no_grad()
    def step(gradients: Sequence[Tensor], rate: Tensor) -> None:
        torch._foreach_add_(steps, 1)
        weights, *moments = held
        kernel(weights, cut(gradients), *moments, [], counts, lr=rate, beta1=beta1, beta2=beta2, **options)

    return step


def _plain_step(
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    gradients: Sequence[Tensor],
    rate: Tensor,
) -> None:
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient
    for group in optimizer.param_groups:
        group["lr"].copy_(rate)
    optimizer.step()


def initialise_state(optimizer: torch.optim.Optimizer, rate: Tensor) -> None:
    """Create optimizer state by one step of zero gradients that is then undone: state exists before any capture."""
    groups = optimizer.param_groups
    given = [dict(group) for group in groups]
    for group in groups:
        group["lr"] = rate.clone()
        if "weight_decay" in group:
            group["weight_decay"] = 0.0  # a momentum that starts as the first gradient would hold it
        if "capturable" in group and rate.device.type == "cuda":
            group["capturable"] = True
    parameters = [p for group in groups for p in group["params"]]
    saved = [p.detach().clone() for p in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
        optimizer.state[parameter] = _FirstValues(optimizer.state[parameter])
    optimizer.step()
    for group, before in zip(groups, given):
        if "weight_decay" in group:
            group["weight_decay"] = before["weight_decay"]
    with torch.no_grad():
        for parameter, value in zip(parameters, saved):
            parameter.copy_(value)
            optimizer.state[parameter] = _put_back(optimizer.state[parameter], type(optimizer).__name__)


class _FirstValues(dict[str, Any]):
    """An optimizer's state of one parameter, and what each entry was before a step changed it."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.first: dict[str, Any] = {}
        for key, value in given.items():
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        self.first.setdefault(key, value.clone() if isinstance(value, Tensor) else value)
        super().__setitem__(key, value)


def _put_back(state: _FirstValues, name: str) -> dict[str, Any]:
    for key, first in state.first.items():
        if isinstance(first, Tensor):
            state[key].copy_(first)
        elif first is not None:
            raise ConfigError(
                f"optimizer {name} keeps {key!r} as a {type(first).__name__}; its state must be tensors, which a graph "
                "can change and a checkpoint holds"
            )
    return dict(state)
