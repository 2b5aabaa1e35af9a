"""How agents act, shared by calls: by Q values, by a policy, or by a deterministic actor with noise."""

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any, TypeVar

from torch import Tensor

from whorl.agents.agent import Acted, Context
from whorl.agents.protocols import Acting, ActorCriticAgent, NoisyAgent, PolicyAgent, SoftAgent, ValueAgent
from whorl.core import tree
from whorl.core.tree import Tree
from whorl.data.batch import LAST, LOG_PROB, Rows
from whorl.explore.noise import random_action, random_log_prob
from whorl.nets.q_network import allowed
from whorl.ops.values import best, pick

Act = TypeVar("Act", bound=Callable[..., Acted])


def act_by_values(agent: ValueAgent, obs: Tree, memory: Tree, context: Context) -> Acted:
    """The actions that `agent.explore` chooses by their Q values; uniformly random ones during warm-up."""
    critic, reset = agent.critic, context.reset
    if context.random:
        after = critic.advance(agent.observations(obs), memory, reset) if memory else memory
        return _random(agent, obs, after, context)
    noise = {} if context.greedy else critic.draw(context.generator)
    features, memory = critic.backbone.step(agent.observations(obs), memory, reset)
    return Acted(agent.explore(agent.q_values(features, noise), obs, context, agent.progress), memory)


def highest_value(agent: ValueAgent, rows: Rows) -> Tensor:
    """max_a Q(s, a) over the allowed actions of rows [T, B]."""
    q = agent.q_values(agent.critic.backbone(rows), {})
    return pick(q, best(q, allowed(rows, agent.spec)))


def by_policy(act: Act) -> Act:
    """Mark an `act` that only samples from `self.actor`, by `act_by_policy`: a rollout may be acted for by a
    `RolloutActor` instead."""
    act.by_policy = True  # type: ignore[attr-defined]
    return act


def act_by_policy(agent: PolicyAgent, obs: Tree, memory: Tree, context: Context, *, log_prob: bool) -> Acted:
    """Actions of an on-policy agent's policy, with their log-probabilities if `log_prob`."""
    obs = agent.observations(obs)
    policy, after = agent.actor.step(obs, memory, context.reset)
    action = sample(policy, context)
    critic: Any = getattr(agent, "critic", None)
    if critic is not None:
        after = {**after, **critic.advance(obs, memory, context.reset)}
    return Acted(action, after, {"log_prob": policy.log_prob(action)} if log_prob else {})


def chosen(agent: Any, obs: Tree, policy: Any, context: Context) -> Tree:
    """A sample of the policy, if greedy its mode; while collecting, a component may choose among several samples
    (`Component.candidates`): the one it wants most."""
    chooser = next((part for part in agent.components.values() if part.candidates), None)
    if chooser is None or context.greedy or context.env_index is None:
        return sample(policy, context)
    actions = tree.stack([sample(policy, context) for _ in range(chooser.candidates)])  # [n, B, ...]
    wanted = chooser.score(obs, actions).argmax(0)  # [B]

    def pick(leaf: Tensor) -> Tensor:
        place = tree.expand(wanted.unsqueeze(0), leaf)
        return leaf.gather(0, place.expand(1, *leaf.shape[1:]))[0]

    return tree.map(pick, actions)


def act_by_soft_actor(agent: SoftAgent, obs: Tree, memory: Tree, context: Context) -> Acted:
    """Actions of a soft actor, uniformly random ones during warm-up, with log-probabilities where targets are corrected
    by them; with `discrete_dqn_like` the discrete choices are epsilon-greedy on the critics' values."""
    actions, stores = agent.actions, bool(agent.returns.columns)
    policy, after = _evaluate(agent, obs, memory, context)
    if context.random:
        acted = _random(agent, obs, after, context)
        if not stores:
            return acted
        log_prob = random_log_prob(agent.spec, obs)
        if actions.used is not None:
            log_prob = log_prob + log(2) * actions.unused(acted.action)
        return replace(acted, extras={LOG_PROB: log_prob})
    if not actions.greedy:
        action, process = agent.noise(chosen(agent, obs, policy, context), memory, context)
        return Acted(action, {**after, **process}, {LOG_PROB: policy.log_prob(action)} if stores else {})
    drawn = policy.drawn(None if context.greedy else policy.noise(context.generator)["continuous"])
    seen = {"obs": agent.observations(obs), "last": memory.get(LAST, {})}
    one = tree.map(lambda leaf: leaf.unsqueeze(0), seen)
    rows = Rows(one["obs"], context.reset.unsqueeze(0), memory, 0, 0, 1, one["last"])
    values = agent.q_of_choices(rows, drawn.reads.unsqueeze(0))[:, 0]  # [critics, B, choices]
    drawn = actions.chosen(drawn, values, agent.temperature, 0.0 if context.greedy else None)
    action = actions.sample(drawn, None if context.greedy else context.generator)
    action, process = agent.noise(action, memory, context)
    return Acted(action, {**after, **process})


def acting_tensors_with_critic(agent: SoftAgent, tensors: list[Tensor]) -> list[Tensor]:
    """What acting reads, `tensors`, with the critics if they choose actions."""
    if not agent.actions.greedy:
        return tensors
    own = (t for part in (agent.critic, agent.temperature) for t in (*part.parameters(), *part.buffers()))
    return list({id(tensor): tensor for tensor in (*tensors, *own)}.values())


def act_with_noise(agent: NoisyAgent, obs: Tree, memory: Tree, context: Context) -> Acted:
    """Actions of a deterministic actor with `agent.noise`, if not greedy; uniformly random ones during warm-up."""
    action, after = _evaluate(agent, obs, memory, context)
    if context.random:
        return _random(agent, obs, after, context)
    if context.greedy:
        return Acted(action, after)
    action, process = agent.noise(action, memory, context, agent.progress)
    return Acted(action, {**after, **process})


def sample(policy: Any, context: Context) -> Tree:
    """A sample of a distribution over actions, or its mode if greedy."""
    return policy.mode() if context.greedy else policy.sample(policy.noise(context.generator))


def _evaluate(agent: ActorCriticAgent, obs: Tree, memory: Tree, context: Context) -> tuple[Any, Tree]:
    """The output of the actor and the memory of all networks after this row; skipped if only memory would need it."""
    if context.random and not memory:
        return None, memory
    seen, reset = agent.observations(obs), context.reset
    noise = {} if context.greedy else agent.actor.draw(context.generator)
    output, after = agent.actor.step(seen, memory, reset, noise)
    return output, {**memory, **after, **agent.critic.advance(seen, memory, reset)}


def _random(agent: Acting, obs: Tree, memory: Tree, context: Context) -> Acted:
    return Acted(random_action(agent.spec, obs, context.generator), memory)
