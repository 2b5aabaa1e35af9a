"""Acting for whole rollouts on a CPU: what need not be done row by row is done once per rollout.

For a small network the overhead of operations is most of the cost of acting. So random numbers are drawn before the
first row and log-probabilities computed after the last one, and in between each row costs two operations per layer and
two for the sample, all into memory that exists already.
"""

from typing import Any

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.data.batch import LOG_PROB
from whorl.nets.by_hand import is_linear
from whorl.nets.flat import Flat
from whorl.nets.layers import MLP
from whorl.nets.normalize import Observations
from whorl.nets.policy import CategoricalHead, GaussianHead, Policy
from whorl.ops.distributions import gumbel


class RolloutActor:
    """Samples from the policy of an agent that acts `by_policy`, row by row of one rollout.

    Args:
        obs: [T+1, B, size] and the other tensors of a rollout: read and written in place.
    """

    def __init__(self, agent: Any, obs: Tensor, action: Tensor, extras: dict[str, Tensor]) -> None:
        policy: Policy = agent.actor
        head: Any = policy.head
        last: Any = head.last
        self.head = head
        self.observations: Observations = agent.observations
        torso: Any = policy.backbone.torso
        self.action, self.log_prob = action, extras.get(LOG_PROB)
        steps, num_envs = action.shape[:2]
        self.hidden = [torch.empty(num_envs, layer.out_features) for layer in torso.layers]
        self.outputs = torch.empty(steps, num_envs, last.out_features)
        self.noise = torch.empty_like(self.outputs)
        self.noisy = torch.empty_like(self.outputs[0])
        self.rows = list(zip(obs.unbind(), action.unbind(), self.outputs.unbind(), self.noise.unbind()))
        self.activation, self._linear = torso.activation, list(torso.layers)
        self.layers: list[tuple[Tensor, Tensor, Tensor]] = []
        self.last, self.bias, self.weight = last, last.bias, last.weight
        self.std: Tensor | None = None

    def begin(self, generator: torch.Generator) -> None:
        """Draw the random numbers of a rollout; weights must stay as they are until it is collected."""
        linear = zip(self._linear, self.hidden)
        self.layers = [(layer.bias, layer.weight.t(), into) for layer, into in linear]
        self.bias, self.weight = self.last.bias, self.last.weight.t()
        if isinstance(self.head, CategoricalHead):
            self.noise.copy_(gumbel(torch.rand(self.noise.shape, generator=generator)))
        else:
            torch.randn(self.noise.shape, generator=generator, out=self.noise)
            self.std = self.head.log_std.clamp(*self.head.bound).exp()

    def act(self, t: int) -> None:
        """Write the actions of row t."""
        obs, action, output, noise = self.rows[t]
        value, activation = self.observations(obs), self.activation
        for bias, weight, into in self.layers:
            value = activation(torch.addmm(bias, value, weight, out=into))
        torch.addmm(self.bias, value, self.weight, out=output)
        if self.std is None:
            torch.argmax(torch.add(output, noise, out=self.noisy), -1, out=action)
        else:
            torch.addcmul(output, self.std, noise, out=action)

    def end(self) -> None:
        """Write the log-probabilities of a rollout, if the agent keeps them."""
        if self.log_prob is not None:
            self.log_prob.copy_(self.head.of(self.outputs).log_prob(self.action))


def rollout_actor(agent: Agent, tensors: dict[str, Any]) -> RolloutActor | None:
    """An actor for a rollout with these tensors; None unless the policy is an MLP over one vector on a CPU."""
    policy, observations = getattr(agent, "actor", None), getattr(agent, "observations", None)
    if "act" in vars(agent) or not getattr(type(agent).act, "by_policy", False):
        return None
    if agent.device.type != "cpu" or agent.components or tensors["memories"]:
        return None
    if type(policy) is not Policy or type(observations) is not Observations or policy.masked:
        return None
    backbone = policy.backbone
    head: Any = policy.head
    torso, encoder = backbone.torso, backbone.encoder
    if type(torso) is not MLP or torso.norms is not None or type(encoder) is not Flat or not encoder.vector:
        return None
    known = isinstance(head, GaussianHead) or (isinstance(head, CategoricalHead) and head.single)
    if not known or not is_linear(head.last) or tensors["obs"].dtype != torch.float32:
        return None
    return RolloutActor(agent, tensors["obs"], tensors["action"], tensors["extras"])
