"""Named optimizers of a module: their state exists before the first step and a CUDA graph may contain their steps."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, overload

import torch
from torch import Tensor, nn

from whorl.agents.packed import Packed, fits
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, construct, known, resolve
from whorl.data.batch import Batch, successor_keys
from whorl.nets.images import SpectralConvolution, spectral_layers
from whorl.ops.gradients import add_agreeing_
from whorl.ops.targets import pieces

Stepper: TypeAlias = Callable[[Sequence[Tensor], Tensor, Tensor | None], None]
"""applies gradients at a learning rate; where the third, a 0-dim gate, is 0, it changes nothing"""
Self = TypeVar("Self", bound="Optimized")
Adaptive: TypeAlias = Literal["off", "layer", "whole"]
"""where the gradient of a joined loss is added: everywhere, or where it agrees with the main gradient, each weight or
bias on its own or all shared parameters together"""

UNFIT = {
    "ASGD": "its steps use the learning rate of the step before",
    "Adafactor": "it reads its state on the host",
    "LBFGS": "it evaluates the loss several times per step",
    "Muon": "it accepts matrices only, and networks have biases",
    "Rprop": "it reads the learning rate only once, so a schedule has no effect",
    "SparseAdam": "it accepts sparse gradients only",
}
"""optimizers of torch that cannot be used here, and why"""


RMSPROP_EXTRAS = ("momentum", "centered", "maximize", "weight_decay")
"""options of RMSprop that its step for packed parameters does not have"""


@dataclass(frozen=True)
class ByHand:
    """The gradients of a loss for the parameters of an optimizer, in its order, computed without autograd."""

    gradients: tuple[Tensor, ...]
    loss: Tensor | None = None
    """its value, where it is not returned beside"""


@dataclass(frozen=True)
class JoinedLoss:
    """A loss that is minimised together with that of an optimizer."""

    loss: Callable[[Batch], Tensor]
    adaptive: Adaptive
    shared: tuple[int, ...]
    """which parameters of the optimizer the main loss trains too"""


class Optimized(nn.Module):
    """A module with named optimizers; each learning rate is a buffer `lr_NAME`, so schedules work in CUDA graphs."""

    exchange: Callable[[Sequence[Tensor]], None] | None = None
    """set where several learners share a batch: replaces gradients by their mean over the learners"""
    on_optimizer_step: Callable[[], None] | None = None
    """called after each step of an optimizer, for a progress display; in a CUDA graph only when it is recorded"""
    by_hand: dict[str, Any]
    """losses of optimizers with gradients computed without autograd (`ByHand`), where an algorithm has such"""
    progress: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.generators: dict[str, torch.Generator] = {}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._parameters_of: dict[str, list[nn.Parameter]] = {}
        self._rates: dict[str, float] = {}
        self._schedule: Callable[[Tensor], Tensor] | None = None
        self.by_hand = {}
        self._packed: dict[str, Packed] = {}
        """the parameters of small networks on a CPU"""
        self._steppers: dict[str, Stepper] = {}
        self._joined: dict[str, list[JoinedLoss]] = {}
        self._batch: Batch | None = None
        """what a captured step learns from, for joined losses"""
        # Fraction of the training budget that is used up; the training loop writes it in place before each update.
        self.register_buffer("progress", torch.zeros(()))

    def __setattr__(self, name: str, value: Any) -> None:
        """Losses by hand stand for methods, losses and networks: where one is replaced, autograd differentiates it."""
        super().__setattr__(name, value)
        replaced = callable(value) and name not in (*vars(Optimized), "__class__", "runner", "goal_rewards")
        if replaced and self.__dict__.get("by_hand"):
            self.by_hand.clear()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, here or in another process, has gradients of its own: losses by hand write to those of this agent."""
        return {**self.__dict__, "by_hand": {}}

    def add_optimizer(
        self, name: str, modules: nn.Module | Iterable[nn.Module], part: Part, lr: float, **defaults: Any
    ) -> None:
        """Give `modules` an optimizer called `name`; `defaults` are options it takes unless `part` sets them."""
        self._parameters_of[name] = _parameters(modules)
        self._rates[name] = lr
        self.register_buffer(f"lr_{name}", torch.tensor(lr))
        self._optimizers[name] = build_optimizer(self._parameters_of[name], part, lr, defaults)

    def join_optimizer(
        self,
        name: str,
        modules: nn.Module | Iterable[nn.Module],
        loss: Callable[[Batch], Tensor],
        adaptive: Adaptive = "off",
    ) -> None:
        """Let optimizer `name` train `modules` too, with `loss` (of the batch with normalised observations) added.

        If `adaptive`, the gradient of `loss` for parameters that were the optimizer's before is added only where its
        cosine with the gradient of the optimizer's own loss is positive (`Adaptive`).
        """
        before = self._parameters_of[name]
        self._parameters_of[name] = before + _parameters(modules)
        self._optimizers[name].param_groups[0]["params"] = list(self._parameters_of[name])
        joined = JoinedLoss(loss, adaptive, tuple(range(len(before))))
        self._joined.setdefault(name, []).append(joined)

    def prepare(self: Self, device: torch.device | str, seeds: Callable[[str], torch.Generator]) -> Self:
        """Move to `device`, and create the state and the random generator of every optimizer there."""
        self.to(device)
        for name, optimizer in self._optimizers.items():
            initialise_state(optimizer, getattr(self, f"lr_{name}"))
            parameters = self._parameters_of[name]
            others = [p for other, found in self._parameters_of.items() if other != name for p in found]
            moments = packed_moments(optimizer)
            if moments and fits(parameters, others):
                self._packed[name] = Packed(parameters, [optimizer.state[p] for p in parameters], moments)
            trained = {id(p) for p in parameters}
            spectral = [layer for layer in spectral_layers(self) if id(layer.layer.weight) in trained]
            step = stepper(optimizer, parameters, self._packed.get(name))
            self._steppers[name] = _iterating(step, spectral) if spectral else step
            self.generators[name] = seeds(name)
        return self

    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that an optimizer trains, by name."""
        listed = {id(p) for parameters in self._parameters_of.values() for p in parameters}
        return {name: value for name, value in self.named_parameters() if id(value) in listed}

    def parameters_of(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of each optimizer, in the order of its state."""
        return self._parameters_of

    def packed_gradients(self, name: str) -> dict[int, Tensor]:
        """Where the gradients of optimizer `name` may be written before `minimize`, by the id of their parameter; empty
        if its parameters are not packed or other losses are joined to its own."""
        packed = None if name in self._joined else self._packed.get(name)
        return {} if packed is None else dict(zip(map(id, self._parameters_of[name]), packed.gradients))

    def random(self, name: str) -> torch.Generator:
        """The random generator of the optimizer called `name`."""
        return self.generators[name]

    @overload
    def minimize(
        self, name: str, loss: "Tensor | ByHand", max_norm: float = ..., gate: Tensor | None = ...
    ) -> Tensor | None: ...

    @overload
    def minimize(
        self,
        name: str,
        loss: "Tensor | ByHand",
        max_norm: float = ...,
        gate: Tensor | None = ...,
        *,
        measure: Literal[True],
    ) -> Tensor: ...

    def minimize(
        self,
        name: str,
        loss: "Tensor | ByHand",
        max_norm: float = 0.0,
        gate: Tensor | None = None,
        *,
        measure: bool = False,
    ) -> Tensor | None:
        """One step of optimizer `name`; networks that `loss` passes through but that it does not train get no gradient.

        Args:
            loss: or gradients that were computed without autograd; no loss may be joined to those.
            max_norm: gradients are scaled down to this norm; 0: never.
            gate: 0-dim, 0 or 1; where it is 0, neither the parameters nor the optimizer's state change.
            measure: return the norm of the gradients before clipping, which costs a pass over them.
        """
        gated: list[tuple[JoinedLoss, Tensor]] = []
        free: list[Tensor] = []
        for joined in self._joined.get(name, ()):
            assert isinstance(loss, Tensor)
            added = joined.loss(self._normalised())
            if joined.adaptive == "off":
                free.append(added)
            else:
                gated.append((joined, added))
        if isinstance(loss, ByHand):
            gradients = loss.gradients
            if self.exchange is not None:
                self.exchange(gradients)
        else:
            # What others are compared with is the agent's own gradient.
            gradients = self._gradients(name, loss if gated else sum(free, loss))
        main = tuple(g.clone() for g in gradients) if len(gated) > 1 else gradients
        for joined, added in gated:
            further = self._gradients(name, added)
            add_agreeing_(gradients, further, main, joined.shared, joined.adaptive == "layer")
        if gated and free:
            torch._foreach_add_(gradients, self._gradients(name, sum(free[1:], free[0])))
        norm: Tensor | None = None
        packed = self._packed.get(name)
        if packed is not None:
            packed.gather(gradients)
            gradients = packed.gradients
        if measure or max_norm > 0:
            if packed is None:
                norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            else:
                norm = torch.linalg.vector_norm(packed.gradient)
            if max_norm > 0:
                scale = (norm + 1e-6).reciprocal_().mul_(max_norm).clamp_(max=1.0)
                if packed is None:
                    torch._foreach_mul_(gradients, scale)
                else:
                    packed.gradient.mul_(scale)
        rate = getattr(self, f"lr_{name}")
        self._steppers[name](gradients, rate, gate)
        if self.on_optimizer_step is not None:
            self.on_optimizer_step()
        return norm

    def _normalised(self) -> Batch:
        """The batch of a captured step with normalised observations, those of later steps in its extras included."""
        agent: Any = self
        batch = self._batch
        assert batch is not None
        later = {key: agent.observations(batch.extras[key]) for key in successor_keys(batch.extras)}
        return batch.replace(obs=agent.observations(batch.obs), extras={**batch.extras, **later})

    def _gradients(self, name: str, loss: Tensor) -> tuple[Tensor, ...]:
        parameters = self._parameters_of[name]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        if name not in self._packed or self._joined or self.exchange is not None:  # packing copies them
            gradients = _apart(_with_layout_of(parameters, gradients))
        if self.exchange is not None:
            self.exchange(gradients)
        return gradients

    def export_gradients(self, sink: Callable[[str, Sequence[Tensor], Tensor], None]) -> None:
        """From now on pass every optimizer's name, gradients and learning rate to `sink` instead of stepping it."""
        # The sink may keep gradients, and the next ones must not overwrite them.
        self._packed.clear()
        self.by_hand.clear()
        for name in self._optimizers:
            self._steppers[name] = partial(_export, sink, name)

    def step_optimizer(self, name: str, gradients: Sequence[Tensor], rate: Tensor) -> None:
        """One step from gradients that another copy of this module computed, at its learning rate."""
        getattr(self, f"lr_{name}").copy_(rate)
        self._steppers[name](_with_layout_of(self._parameters_of[name], gradients), rate, None)

    def anneal(self) -> None:
        """Set every learning rate by the schedule; a constant one is left alone."""
        if self._schedule is not None:
            factor = self._schedule(self.progress)
            for name, rate in self._rates.items():
                getattr(self, f"lr_{name}").copy_(rate * factor)

    def reset_rates(self) -> None:
        """Set every learning rate to the configured one."""
        for name, rate in self._rates.items():
            getattr(self, f"lr_{name}").fill_(rate)

    def optimizer_state(self) -> dict[str, list[dict[str, Tensor]]]:
        """The tensors of every optimizer's state, parameter by parameter."""
        return {
            name: [
                {key: value for key, value in optimizer.state[p].items() if isinstance(value, Tensor)}
                for p in self._parameters_of[name]
            ]
            for name, optimizer in self._optimizers.items()
        }

    @torch.no_grad()
    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Restore in place what `optimizer_state` returned."""
        for name, parameters in self.optimizer_state().items():
            for mine, saved in zip(parameters, state[name], strict=True):
                tree.restore_(mine, saved)


def _parameters(modules: nn.Module | Iterable[nn.Module]) -> list[nn.Parameter]:
    modules = [modules] if isinstance(modules, nn.Module) else modules
    return [p for module in modules for p in module.parameters()]


def _with_layout_of(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients with the memory layout of their parameters: fused kernels read raw storage."""
    return tuple(
        g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for g, p in zip(gradients, parameters)
    )


def _apart(gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients with memory of their own: autograd returns one tensor for the two biases of `a + b`, and whatever is
    done in place (clipping, the exchange between learners) would be done to it twice."""
    seen: set[int] = set()
    found = []
    for gradient in gradients:
        place = gradient.data_ptr()
        found.append(gradient.clone() if place in seen else gradient)
        seen.add(place)
    return tuple(found)


def build_optimizer(
    parameters: list[nn.Parameter], part: Part, lr: float, defaults: dict[str, Any]
) -> torch.optim.Optimizer:
    """The optimizer that `part` names; `defaults` apply where it accepts them and `part` does not set them."""
    build = resolve("optimizer", part.name)
    for name, reason in UNFIT.items():
        if build is getattr(torch.optim, name, None):
            fit = ", ".join(sorted(set(known("optimizer")) - set(UNFIT)))
            raise ConfigError(f"optimizer {part.name!r} cannot be used: {reason}; choose one of: {fit}")
    taken = inspect.signature(build).parameters
    options = {**{key: value for key, value in defaults.items() if key in taken}, **part.options}
    if build is torch.optim.SGD and options.get("momentum") and options.get("dampening"):
        raise ConfigError(
            f"optimizer {part.name!r} cannot be used with dampening {options['dampening']}, because its first step "
            "would not be damped; use a lower learning rate"
        )
    if build in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        # One kernel for all tensors, on CPU and GPU; step counter and learning rate stay on the device.
        options.setdefault("fused", True)
    without_dynamo()
    return construct("optimizer", Part(part.name, options), parameters, lr=lr)


def without_dynamo() -> None:
    """Let optimizers be made without importing torch's compiler, half of the time to start a training.

    torch imports it to exclude these methods from compiled functions; none of ours calls them, and in this process they
    are no longer excluded from others.
    """
    kind = torch.optim.Optimizer
    for method in (kind.add_param_group, kind.state_dict, kind.load_state_dict, kind.zero_grad):
        plain: Any = getattr(method, "__wrapped__", method)
        if not hasattr(plain, "__dynamo_disable"):
            setattr(plain, "__dynamo_disable", plain)


def adam_kernel(optimizer: torch.optim.Optimizer) -> Any:
    """The kernel that steps all parameters of fused Adam or AdamW; None for other optimizers."""
    kernels: dict[type, Any] = {torch.optim.Adam: torch._fused_adam_, torch.optim.AdamW: torch._fused_adamw_}
    kernel, group = kernels.get(type(optimizer)), optimizer.param_groups[0]
    return None if kernel is None or not group["fused"] or group["amsgrad"] else kernel


def packed_moments(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """The state per parameter of optimizers whose step is written for packed parameters; empty for others."""
    if adam_kernel(optimizer) is not None:
        return "exp_avg", "exp_avg_sq"
    group = optimizer.param_groups[0]
    if type(optimizer) is not torch.optim.RMSprop or any(group[key] for key in RMSPROP_EXTRAS):
        return ()
    return ("square_avg",)


def stepper(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], packed: Packed | None = None
) -> Stepper:
    """A function that steps an optimizer. Fused Adam is called directly: for small networks its wrapper costs more."""
    group, kernel = optimizer.param_groups[0], adam_kernel(optimizer)
    if kernel is None:
        if packed is not None:
            return partial(_rmsprop_step, packed, group["alpha"], group["eps"])
        return partial(_plain_step, optimizer, parameters)
    state = [optimizer.state[p] for p in parameters]
    steps = [entry["step"] for entry in state]
    beta1, beta2 = group["betas"]
    options = {key: group[key] for key in ("weight_decay", "eps", "amsgrad", "maximize")}
    on_gpu = parameters[0].device.type == "cuda"

    def cut(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return pieces(tensors) if on_gpu else tensors

    def skipped(gate: Tensor | None) -> Tensor | None:
        """1 where the kernel changes nothing, which mixed precision uses for gradients that are not finite."""
        return None if gate is None else 1.0 - gate

    held = [cut(parameters), *(cut([entry[key] for entry in state]) for key in ("exp_avg", "exp_avg_sq"))]
    counts = [steps[0]] * len(held[0])

    if packed is not None:
        whole = [[packed.values], [packed.gradient], *([moment] for moment in packed.moments)]
        count = packed.steps[0]

        def step_packed(gradients: Sequence[Tensor], rate: Tensor, gate: Tensor | None) -> None:
            packed.gather(gradients)
            packed.steps.add_(1 if gate is None else gate)
            last = {"lr": rate, "beta1": beta1, "beta2": beta2, "found_inf": skipped(gate)}
            kernel(*whole, [], [count], **last, **options)

        return step_packed

    @torch.no_grad()
    def step(gradients: Sequence[Tensor], rate: Tensor, gate: Tensor | None) -> None:
        # Given one tensor to add to all, torch reads it on the host, which no captured step may do.
        torch._foreach_add_(steps, 1 if gate is None else [gate] * len(steps))
        weights, *moments = held
        last = {"lr": rate, "beta1": beta1, "beta2": beta2, "found_inf": skipped(gate)}
        kernel(weights, cut(gradients), *moments, [], counts, **last, **options)

    return step


def _iterating(step: Stepper, layers: list[SpectralConvolution]) -> Stepper:
    """`step`, then one power iteration of each layer."""

    def both(*given: Any) -> None:
        step(*given)
        for layer in layers:
            layer.iterate_()

    return both


@torch.no_grad()
def _rmsprop_step(
    packed: Packed, alpha: float, eps: float, gradients: Sequence[Tensor], rate: Tensor, gate: Tensor | None
) -> None:
    """torch's RMSprop: v <- alpha v + (1 - alpha) g^2,  p <- p - lr g / (sqrt(v) + eps)."""
    packed.gather(gradients)
    (square,), gradient = packed.moments, packed.gradient
    with _gated([packed.values, square, packed.steps], gate):
        packed.steps.add_(1)
        square.mul_(alpha).addcmul_(gradient, gradient, value=1 - alpha)
        packed.values.addcmul_(gradient / square.sqrt().add_(eps), rate, value=-1.0)


def _plain_step(
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    gradients: Sequence[Tensor],
    rate: Tensor,
    gate: Tensor | None,
) -> None:
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient
    for group in optimizer.param_groups:
        group["lr"].copy_(rate)
    state = [value for p in parameters for value in optimizer.state[p].values() if isinstance(value, Tensor)]
    with _gated([*parameters, *state], gate):
        optimizer.step()


@contextmanager
def _gated(tensors: Sequence[Tensor], gate: Tensor | None) -> Iterator[None]:
    """Undo what this block changes in `tensors` where `gate` is 0."""
    before = [] if gate is None else [tensor.detach().clone() for tensor in tensors]
    yield
    if gate is not None:
        with torch.no_grad():
            for tensor, old in zip(tensors, before):
                tensor.copy_(torch.where(gate > 0, tensor, old))


def _export(
    sink: Callable[[str, Sequence[Tensor], Tensor], None],
    name: str,
    gradients: Sequence[Tensor],
    rate: Tensor,
    gate: Tensor | None,
) -> None:
    sink(name, gradients, rate if gate is None else rate * gate)


def initialise_state(optimizer: torch.optim.Optimizer, rate: Tensor) -> None:
    """Create the optimizer state, before any capture, by a step with zero gradients that is then undone."""
    groups = optimizer.param_groups
    given = [dict(group) for group in groups]
    for group in groups:
        group["lr"] = rate.clone()
        if "weight_decay" in group:
            group["weight_decay"] = (
                0.0  # momentum buffers start as the first gradient, which would include it
            )
        if "capturable" in group and rate.device.type == "cuda":
            group["capturable"] = True
    parameters = [p for group in groups for p in group["params"]]
    saved = [p.detach().clone() for p in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
        optimizer.state[parameter] = _FirstValues(optimizer.state[parameter])
    if type(optimizer).__module__.startswith("torch.optim."):
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(optimizer)  # its decorators import torch's compiler
    else:
        optimizer.step()
    for group, before in zip(groups, given):
        if "weight_decay" in group:
            group["weight_decay"] = before["weight_decay"]
    with torch.no_grad():
        for parameter, value in zip(parameters, saved):
            parameter.copy_(value)
            optimizer.state[parameter] = _put_back(optimizer.state[parameter], type(optimizer).__name__)


class _FirstValues(dict[str, Any]):
    """The state of one parameter, which remembers the first value of each entry."""

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
                f"optimizer {name} stores {key!r} as a {type(first).__name__}; its state must consist of tensors, so "
                "that CUDA graphs can update it and checkpoints contain it"
            )
    return dict(state)
