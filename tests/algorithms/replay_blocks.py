"""For the tests of replay agents: hand-made transitions, known functions in place of nets, plain nets in double."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.agents.agent import Agent, Updated
from whorl.core import tree
from whorl.core.registry import Part
from whorl.core.spec import MASK_KEY, Array, Continuous, Discrete, Spec, SpecTree
from whorl.data.batch import Batch

torch.set_num_threads(1)

VECTOR = Array((3,))
IMAGE = Array((8, 8, 1), "uint8", 0.0, 255.0)
TWO = Continuous((2,), (-1.0, -1.0), (1.0, 1.0))
ONE = Continuous((1,), (-1.0,), (1.0,))
SGD = Part("SGD")
"""moves by rate * gradient: what a loss does is seen without Adam's division by the size of a gradient"""


def build(
    cls: type[Agent],
    action: SpecTree = TWO,
    observation: SpecTree = VECTOR,
    num_envs: int = 2,
    seed: int = 0,
    **settings: Any,
) -> Any:
    """An agent with small nets, ready to learn."""
    torch.manual_seed(seed)
    small = {"actor_hidden_sizes": (8,), "critic_hidden_sizes": (8, 8)}
    agent = cls(Spec(observation, action, num_envs), cls.Config(**{**small, **settings}))
    return agent.prepare("cpu", lambda name: torch.Generator().manual_seed(seed * 100 + len(name)))


def transitions(agent: Any, rows: int = 6, seed: int = 0) -> Batch:
    """Random transitions; row 0 ends in a terminal state, row 1 is folded over three steps of discount .9."""
    spec = agent.spec
    generator = torch.Generator().manual_seed(seed)

    def observe(leaf: Array) -> Tensor:
        if leaf.dtype == "uint8":
            return torch.randint(256, (2, rows, *leaf.shape), dtype=torch.uint8, generator=generator)
        return torch.randn(2, rows, *leaf.shape, generator=generator)

    obs = tree.map(observe, spec.observation)
    if spec.masked:
        obs[MASK_KEY] = torch.ones(2, rows, *spec.observation[MASK_KEY].shape, dtype=torch.int8)
    if isinstance(spec.action, Discrete):
        action = torch.randint(spec.action.n, (1, rows), generator=generator)
    else:
        action = torch.rand(1, rows, spec.action.size, generator=generator) * 2 - 1
    discount = torch.full((rows,), 0.9)
    discount[0] = 0.0
    discount[1] = 0.9**3
    return batch_of(obs, action, torch.randn(rows, generator=generator), discount)


def batch_of(
    obs: Any, action: Tensor, reward: Tensor | Sequence[float], discount: Tensor | Sequence[float]
) -> Batch:
    """Transitions [1, B] out of observations [2, B, ...], actions [1, B, ...], and rewards and discounts [B]."""
    reward, discount = torch.as_tensor(reward).unsqueeze(0), torch.as_tensor(discount).unsqueeze(0)
    ones = torch.ones_like(reward)
    reset = torch.zeros(2, reward.shape[1], dtype=torch.bool)
    keep = (discount > 0).to(reward.dtype)
    extras = {"share": ones.clone(), "weight": ones.clone()}
    return Batch(obs, reset, action, reward, discount, keep, ones, extras=extras)


def reweighted(batch: Batch, weight: Tensor) -> Batch:
    """The same batch with other weights [B], as a prioritized draw gives them."""
    return batch.replace(extras={**batch.extras, "weight": weight.unsqueeze(0)})


def learn(agent: Any, batch: Batch) -> Updated:
    """One update, counted as the learner counts."""
    updated = agent.update(batch)
    agent.updates += 1
    return updated


def says(net: nn.Module, function: Callable[..., Any]) -> None:
    """Let a net answer by a known function of the observations [T, B, ...] it is asked about (and of the action)."""

    def forward(rows: Any, *given: Any, **named: Any) -> Any:
        return function(rows.selected, *given[: function.__code__.co_argcount - 1])

    net.forward = forward


def weights(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """Bit for bit."""
    return all(a.equal(b) for a, b in zip(one, other, strict=True))


class Plain:
    """A multi-layer perceptron written out in double precision, from a net of ours: weights [out, in] and biases."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]]) -> None:
        self.leaves = [t.detach().double().clone().requires_grad_() for layer in layers for t in layer]

    def __call__(self, value: Tensor) -> Tensor:
        last = len(self.leaves) - 2
        for number in range(0, last + 2, 2):
            value = F.linear(value, self.leaves[number], self.leaves[number + 1])
            value = value if number == last else value.relu()
        return value

    def copy(self) -> "Plain":
        return Plain(list(zip(self.leaves[::2], self.leaves[1::2])))

    @torch.no_grad()
    def descend(self, loss: Tensor, rate: float) -> None:
        """Plain gradient descent."""
        for leaf, gradient in zip(self.leaves, torch.autograd.grad(loss, self.leaves)):
            leaf -= rate * gradient

    @torch.no_grad()
    def follow(self, online: "Plain", tau: float) -> None:
        for leaf, other in zip(self.leaves, online.leaves):
            leaf.copy_((1 - tau) * leaf + tau * other)


def plain_critics(critic: Any) -> list[Plain]:
    """One plain net per member of an ensemble."""
    nets = critic.nets
    return [
        Plain([(weight[member].T, bias[member, 0]) for weight, bias in zip(nets.weights, nets.biases)])
        for member in range(critic.members)
    ]


def plain_actor(actor: Any) -> Plain:
    """The policy's hidden layers and the linear layer of its head."""
    head = next(layer for layer in actor.head.modules() if isinstance(layer, nn.Linear))
    layers = [*actor.backbone.torso.layers, head]
    return Plain([(layer.weight, layer.bias) for layer in layers])


def assert_same_weights(ours: list[Plain], plain: list[Plain]) -> None:
    """Close enough for single precision against double."""
    for one, other in zip(ours, plain, strict=True):
        for a, b in zip(one.leaves, other.leaves, strict=True):
            torch.testing.assert_close(a, b, atol=2e-6, rtol=2e-5)
