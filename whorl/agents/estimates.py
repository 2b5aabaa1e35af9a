"""What a trained agent knows besides its actions: values, action probabilities and Q values of observations.

All functions take one row of prepared observations, `Rows` [1, B], and return [B, ...].
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.core import tree
from whorl.core.action_masks import mask_size
from whorl.core.spec import Continuous, Discrete, SpecTree, TupleSpec, action_choices, flatten_action
from whorl.core.tree import Tree
from whorl.data.batch import Rows
from whorl.nets.actor import DeterministicHead
from whorl.nets.atoms import ReturnAtoms
from whorl.nets.policy import Value
from whorl.nets.q_ensemble import QEnsemble
from whorl.nets.q_network import allowed
from whorl.ops.distributions import Categorical, Distribution, MultiCategorical
from whorl.ops.mixed import Mixed
from whorl.ops.transforms import value_rescale_inverse
from whorl.ops.values import best, pick

Q_METHODS = ("q_values", "q_of_rows", "q")
"""methods of agents for the Q values of discrete actions"""


def offered(agent: Any) -> list[str]:
    """The methods of a saved policy that this agent has the networks for; critics may read more than a policy sees."""
    critic, actor = getattr(agent, "critic", None), getattr(agent, "actor", None)
    found = ["act", "predict"]
    if agent.privileged:
        critic = None
    elif callable(getattr(agent, "value", None)) or hasattr(agent, "q_of_rows") or isinstance(critic, Value):
        found.append("value")
    greedy = getattr(
        getattr(agent, "actions", None), "greedy", False
    )  # choices of the critics have no policy
    if actor is not None and not greedy and not isinstance(getattr(actor, "head", None), DeterministicHead):
        found += ["probabilities"] * (mask_size(action_choices(agent.spec.action)) > 0) + ["log_prob"]
    if (
        agent.q_of_actions
        and critic is not None
        and (any(hasattr(agent, name) for name in Q_METHODS) or isinstance(critic, QEnsemble))
    ):
        found.append("q_values")
    return found


def value(agent: Any, rows: Rows) -> Tensor:
    """V(s) [B]: of the critic, or the Q value of the greedy action."""
    if hasattr(agent, "q_of_rows"):
        q = agent.q_of_rows(rows)
        return _unscaled(agent, pick(q, best(q, allowed(rows, agent.spec)))[0])
    if callable(getattr(agent, "value", None)):
        return _unscaled(agent, agent.value(rows)[0])
    return agent.sum_streams(agent.critic(rows))[0]


def distribution(agent: Any, rows: Rows) -> Distribution:
    """The policy at rows [1, B]."""
    if hasattr(agent, "policy"):  # CrossQ's actor reads features
        return agent.policy(agent.actor(agent.backbone(rows)))
    return agent.actor(rows)


def q_values(agent: Any, rows: Rows, action: Tree | None) -> Tensor:
    """Q(s, a) [B] of a canonical action [B, ...], or of every discrete action [B, n]; the minimum over critics."""
    critic = agent.critic
    taken = None if action is None else tree.map(lambda part: part.unsqueeze(0), action)
    if hasattr(agent, "q"):
        return agent.q(agent.backbone(rows), taken)[0]
    if hasattr(agent, "q_of_rows") or hasattr(agent, "q_values"):
        follows = hasattr(agent, "q_of_rows")  # one of several policies
        every = agent.q_of_rows(rows) if follows else agent.q_values(critic.backbone(rows), {})
        found = _unscaled(agent, every[0])
        return found if action is None else found.gather(-1, action.unsqueeze(-1))[..., 0]
    atoms = getattr(agent, "atoms", None)
    if isinstance(atoms, ReturnAtoms) and atoms.on:  # continuous actions, which the critics read as they are
        return atoms.mean(critic(rows, taken)).amin(0)[0]
    actions = getattr(agent, "actions", None)  # of soft actor-critics
    if actions is None:
        return critic(rows, _read(agent.spec.action, taken, rows)).amin(0)[0]
    values = critic(rows, None if taken is None else actions.read(taken))  # [critics, 1, B, ...]
    values = values.mean(-1) if len(critic.outputs) > len(actions.outputs) else values  # of quantiles
    values = values if taken is None else actions.pick(values, taken)
    return (values.mean(0) if len(critic.outputs) > len(actions.outputs) else values.amin(0))[0]


def _unscaled(agent: Agent, values: Tensor) -> Tensor:
    """Values as returns, where the networks learn h(return)."""
    return value_rescale_inverse(values) if getattr(agent.cfg, "rescale_values", False) else values


def _read(spec: SpecTree, taken: Tree | None, rows: Rows) -> Tensor:
    """Actions as critics read them, a vector each: [1, B, columns], or of every discrete action [1, B, n, columns]."""
    if taken is not None:
        return flatten_action(spec, taken)
    return torch.eye(spec.n, device=rows.reset.device).expand(*rows.reset.shape, -1, -1)


def probabilities(spec: SpecTree, policy: Any) -> Any:
    """Probabilities [B, n] of each discrete choice, nested as the action space; None for continuous parts."""
    if isinstance(policy, Mixed):
        return _nested(spec, iter([part.exp()[0] for part in policy.each]))
    if isinstance(spec, dict):
        parts = {key: probabilities(branch, policy.parts[key]) for key, branch in spec.items()}
        return tuple(parts.values()) if isinstance(spec, TupleSpec) else parts
    if isinstance(policy, Categorical):
        return policy.probs[0]
    if isinstance(policy, MultiCategorical):
        return [policy.each.probs[0, :, number, :n] for number, n in enumerate(spec.nvec)]
    return None


def _nested(spec: SpecTree, choices: Iterator[Tensor]) -> Any:
    """Values of each discrete choice, nested as the action space; None for continuous parts."""
    if isinstance(spec, dict):
        parts = {key: _nested(branch, choices) for key, branch in spec.items()}
        return tuple(parts.values()) if isinstance(spec, TupleSpec) else parts
    if isinstance(spec, Continuous):
        return None
    return next(choices) if isinstance(spec, Discrete) else [next(choices) for _ in spec.nvec]


def untracked(agent: Agent, memory: Tree) -> bool:
    """Whether the critic has a memory that is not kept while acting, so that its values would be those of a start."""
    backbone: Any = getattr(getattr(agent, "critic", None), "backbone", None)
    return backbone is not None and bool(backbone.memories) and backbone.name not in memory
