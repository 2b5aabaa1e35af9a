"""One step of a policy as a module of plain tensors: what exports to other runtimes are made from.

Inputs, each with the batch as its first axis: the leaves of the environment's own observation, `action_mask`, `reward`
of the previous step where the memory reads it, `reset` (this observation is the first of an episode), what the policy
remembers between two observations, and random numbers. Outputs: the leaves of the environment's own action, and
`next_NAME` for each remembered tensor NAME. Before the first step what is remembered is all zeros and `reset` is true.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from whorl.core import tree
from whorl.core.errors import WhorlError
from whorl.core.spec import MASK_KEY, Array, empty_obs, to_env
from whorl.core.tree import Tree
from whorl.state.policy import PolicyState, SavedPolicy
from whorl.state.policy_inputs import one_hots

NEXT = "next_"
SAMPLERS = {torch.rand: "uniform", torch.randn: "normal"}
"""functions whose random numbers become inputs, and their distributions"""
OTHER_SAMPLERS = (torch.randint, torch.randperm, torch.multinomial, torch.bernoulli, torch.normal)


SHAPES_ONLY = {
    torch.ops.aten.zeros_like.default,
    torch.ops.aten.ones_like.default,
    torch.ops.aten.full_like.default,
}
"""operations that read no values of their inputs"""


@dataclass(frozen=True)
class Port:
    """One input or output, without the axis of the batch."""

    name: str
    kind: str
    """obs, mask, reward, reset, state or noise; of outputs action or state"""
    shape: tuple[int, ...]
    dtype: str
    batch_axis: int | None = 0
    """None: all rows of a batch share it, as the noise of noisy layers"""
    distribution: str = ""
    """of noise: uniform on [0, 1), or standard normal"""

    def zeros(self, batch: Any) -> Tensor:
        """Zeros for a batch."""
        shape = list(self.shape)
        if self.batch_axis is not None:
            shape.insert(self.batch_axis, batch)
        return torch.zeros(shape, dtype=getattr(torch, self.dtype))


class _Draws(TorchFunctionMode):
    """Notes the random numbers that are drawn, and replaces them by `given` if there are any."""

    def __init__(self, given: list[Tensor] | None = None) -> None:
        super().__init__()
        self.given = given
        self.found: list[tuple[str, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in OTHER_SAMPLERS:
            raise WhorlError(f"this policy draws with torch.{func.__name__}, which cannot be exported")
        if func not in SAMPLERS:
            return func(*args, **kwargs)
        drawn = func(*args, **kwargs) if self.given is None else self.given[len(self.found)]
        self.found.append((SAMPLERS[func], drawn))
        return drawn


class TracedPolicy(nn.Module):
    """One step of a policy; `forward` takes the tensors of `inputs` and returns those of `outputs`, in that order.

    Only what the actions depend on is an input: the memory of a critic, for example, is left out.

    Args:
        stochastic: whether actions are sampled, from random numbers among the inputs; else they are greedy.
    """

    def __init__(self, policy: SavedPolicy, stochastic: bool = False) -> None:
        super().__init__()
        self.agent, self.policy, self.stochastic = policy.agent, policy, stochastic
        self._observation = policy.reads.observation
        start = policy.start(1)
        held = {"memory": start.memory, "frames": start.frames, "last_action": start.action}
        self._held = [_like(name, "state", leaf) for name, leaf in tree.items(held)]
        self._state = held
        # What does not start at zero, such as Agent57's index -1 of no policy, is shifted so that it does.
        initial = tree.items({"memory": self.agent.initial_memory(1)})
        self._shift = {name: leaf.flatten()[0].item() for name, leaf in initial if bool(leaf.any())}
        self._noise = self._drawn()
        self.inputs = [_observed(path, leaf) for path, leaf in tree.items(self._observation)]
        self.inputs += [Port("reward", "reward", (), "float32"), Port("reset", "reset", (), "bool")]
        self.inputs += [*self._held, *self._noise]
        actions = tree.items({"action": to_env(policy.spec.action, start.action)})
        self.outputs = [_like(name, "action", leaf) for name, leaf in actions]
        self.outputs += [replace(port, name=NEXT + port.name) for port in self._held]
        self._leave_out_unused()

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        found = dict(zip((port.name for port in self.inputs), given))
        batch = given[0].shape[0]  # of an observation
        for port in (*self._held, *self._noise, Port("reward", "reward", (), "float32")):
            if port.name not in found:
                found[port.name] = port.zeros(batch)
        if "reset" not in found:
            found["reset"] = torch.zeros(batch, dtype=torch.bool)
        seen = [_stored(leaf, found[_input_name(path)]) for path, leaf in tree.items(self._observation)]
        shifted = {name: found[name] + shift for name, shift in self._shift.items()}
        held = _filled(self._state, [{**found, **shifted}[port.name] for port in self._held])
        state = PolicyState(found["reset"], held["memory"], held["frames"], held["last_action"])
        with _Draws([found[port.name] for port in self._noise]):
            action, after = self.policy.respond(
                _filled(self._observation, seen), state, found["reward"], not self.stochastic
            )
        taken = {"action": to_env(self.policy.spec.action, action)}
        kept = {"memory": after.memory, "frames": after.frames, "last_action": after.action}
        outputs = {**dict(tree.items(taken)), **{NEXT + name: leaf for name, leaf in tree.items(kept)}}
        outputs |= {NEXT + name: outputs[NEXT + name] - shift for name, shift in self._shift.items()}
        return tuple(outputs[port.name] for port in self.outputs)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        """Inputs for a batch: zeros, and masks that allow everything."""
        blank = ((port, port.zeros(batch)) for port in self.inputs)
        return tuple(torch.ones_like(value) if port.kind == "mask" else value for port, value in blank)

    def _drawn(self) -> list[Port]:
        """The random numbers of one step; the axis of the batch is the one that differs between two sizes."""
        found = []
        frames = tree.map(lambda leaf: leaf.frame, self._observation)
        for batch in (2, 3):
            blank = empty_obs(frames, (batch,))
            with _Draws() as draws, torch.no_grad():
                self.policy.respond(blank, self.policy.start(batch), torch.zeros(batch), not self.stochastic)
            found.append(draws.found)
        ports = []
        for number, ((kind, small), (_, large)) in enumerate(zip(*found)):
            axes = [axis for axis, (a, b) in enumerate(zip(small.shape, large.shape)) if a != b]
            axis = axes[0] if axes else None
            shape = tuple(n for place, n in enumerate(small.shape) if place != axis)
            ports.append(Port(f"noise.{number}", "noise", shape, _dtype(small), axis, kind))
        return ports

    def _leave_out_unused(self) -> None:
        """Keep the inputs that an action depends on, now or through the memory in a later step."""
        graph: Any = make_fx(torch.func.functionalize(self.forward))(*self.example(2)).graph
        places = [node for node in graph.nodes if node.op == "placeholder"]
        inputs = dict(zip(places, (port.name for port in self.inputs)))
        (last,) = (node for node in graph.nodes if node.op == "output")
        outputs = dict(zip((port.name for port in self.outputs), last.args[0]))
        needed: set[str] = set()
        wanted = [port.name for port in self.outputs if port.kind == "action"]
        while wanted:
            found = {inputs[node] for node in _behind(outputs[wanted.pop()]) if node in inputs} - needed
            wanted += [NEXT + name for name in found if NEXT + name in outputs]
            needed |= found
        self.inputs = [port for port in self.inputs if port.name in needed or port.kind in ("obs", "mask")]
        self.outputs = [
            port for port in self.outputs if port.kind == "action" or port.name.removeprefix(NEXT) in needed
        ]


def _behind(node: Node) -> set[Node]:
    """The nodes of a graph that a node depends on, with itself."""
    found: set[Node] = set()
    queue = [node]
    while queue:
        one = queue.pop()
        if one not in found:
            found.add(one)
            queue += [] if one.target in SHAPES_ONLY else one.all_input_nodes
    return found


def _filled(like: Tree, leaves: list[Any]) -> Tree:
    """A tree like `like` with these leaves."""
    rest = iter(leaves)
    return tree.map(lambda _: next(rest), like)


def _dtype(leaf: Tensor) -> str:
    return str(leaf.dtype).removeprefix("torch.")


def _like(name: str, kind: str, leaf: Tensor) -> Port:
    return Port(name, kind, tuple(leaf.shape[1:]), _dtype(leaf))


def _input_name(path: str) -> str:
    return path if path == MASK_KEY else f"obs.{path}" if path else "obs"


def _observed(path: str, leaf: Array) -> Port:
    """An observation as the environment gives it: one frame, numbers where the policy reads one-hots."""
    name = _input_name(path)
    kind = "mask" if path == MASK_KEY else "obs"
    if leaf.start is not None:
        return Port(name, kind, (), "int64")
    if leaf.nvec:
        return Port(name, kind, leaf.entries, "int64")
    shape = leaf.frame.shape
    return Port(name, kind, shape[1:] if leaf.plane else shape, leaf.dtype)


def _stored(leaf: Array, value: Tensor) -> Tensor:
    """What the environment gives [B, ...] in the form that the agent reads."""
    if leaf.nvec:
        return one_hots(leaf, value.flatten(1))
    if leaf.start is None:
        return value
    every = torch.arange(prod(leaf.frame.shape))
    return ((value - leaf.start).unsqueeze(-1) == every).to(getattr(torch, leaf.dtype))
