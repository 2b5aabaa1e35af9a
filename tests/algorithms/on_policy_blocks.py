"""Hand-made rollouts and tiny worlds for the tests of the on-policy algorithms."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.collect.collector import LocalCollector
from whorl.core import tree
from whorl.core.registry import Part
from whorl.core.spec import MASK_KEY, Array, Continuous, Discrete, MultiDiscrete, Spec, SpecTree
from whorl.data.batch import Batch
from whorl.envs.adapters.gymnasium import GymnasiumVector

torch.set_num_threads(1)

VECTOR = Array((3,))
TREE = {"position": Array((2,)), "speed": Array((2,))}
ACTIONS: dict[str, SpecTree] = {
    "discrete": Discrete(3),
    "multi-discrete": MultiDiscrete((2, 3)),
    "continuous": Continuous((2,), (-1.0, -1.0), (1.0, 1.0)),
}
MASKED_ROW = (2, 0)


def build(
    cls: type[Agent],
    action: SpecTree = ACTIONS["discrete"],
    observation: SpecTree = VECTOR,
    num_envs: int = 2,
    **settings: Any,
) -> Any:
    """An agent of two environments with small nets, ready to learn."""
    torch.manual_seed(0)
    plain = {
        "actor_hidden_sizes": (16,),
        "critic_hidden_sizes": (16,),
        "normalize_obs": False,
        "normalize_reward": False,
    }
    agent = cls(Spec(observation, action, num_envs), cls.Config(**{**plain, "memory_size": 8, **settings}))
    return agent.prepare("cpu", lambda name: torch.Generator().manual_seed(len(name)))


def rollout(agent: Any, steps: int = 8, seed: int = 0) -> Batch:
    """Random rows as the agent would act on them; environment 0 terminates at row 1 and starts again at row 3.

    Row 2 of environment 0, from the final observation to the new episode, is no transition.
    """
    num_envs, spec = agent.spec.num_envs, agent.spec
    torch.manual_seed(seed)
    obs = tree.map(lambda leaf: torch.randn(steps + 1, num_envs, *leaf.shape), spec.observation)
    if spec.masked:
        obs[MASK_KEY] = torch.ones_like(obs[MASK_KEY])
        obs[MASK_KEY][..., 1] = 0
    reset = torch.zeros(steps + 1, num_envs, dtype=torch.bool)
    reset[3, 0] = True
    mask, keep, discount = (
        torch.ones(steps, num_envs),
        torch.ones(steps, num_envs),
        torch.full((steps, num_envs), 0.9),
    )
    keep[1, 0], discount[1, 0] = 0, 0
    for column in (mask, keep, discount):
        column[MASKED_ROW] = 0
    start = memory = agent.initial_memory(num_envs)
    actions, log_probs, memories = [], [], []
    with torch.no_grad():
        for t in range(steps):
            if t % agent.stride == 0:
                memories.append(memory)
            row = agent.observations(tree.index(obs, t))
            policy, after = agent.actor.step(row, memory, reset[t])
            for net in (agent.critic,) if hasattr(agent, "critic") else ():
                after = {**after, **net.backbone.advance(row, memory, reset[t])}
            memory = after
            actions.append(policy.sample(policy.noise()))
            log_probs.append(policy.log_prob(actions[-1]))
    return Batch(
        obs=obs,
        reset=reset,
        action=tree.stack(actions),
        reward=torch.randn(steps, num_envs) * mask,
        discount=discount,
        keep=keep,
        mask=mask,
        memory=start,
        memories=tree.stack(memories),
        extras={"log_prob": torch.stack(log_probs)},
    )


def entropy_step(cls: type[Agent], **settings: Any) -> list[float]:
    """How far one update with ent_coef .5 moves the logits of a policy (.7, .2, .1) that nothing but entropy pulls at.

    SGD with rate 1, no rewards and values of 0: the move is .5 * dH/dlogit_i = -.5 * p_i * (log p_i + H), with
    H = .7 * .35667 + .2 * 1.60944 + .1 * 2.30259 = .80182.
    """
    options = {"ent_coef": 0.5, "optimizer": Part("SGD"), "actor_lr": 1.0, "max_grad_norm": 0.0}
    agent = build(cls, **options, **settings)
    heads = [agent.actor.head.logits, *([agent.critic.head] if hasattr(agent, "critic") else [])]
    with torch.no_grad():
        for head in heads:
            head.weight.zero_()
        heads[0].bias.copy_(torch.tensor([0.7, 0.2, 0.1]).log())
        before = heads[0].bias.clone()
    batch = rollout(agent)
    agent.update(batch.replace(reward=torch.zeros_like(batch.reward)))
    return (heads[0].bias.detach() - before).tolist()


ENTROPY_STEP = pytest.approx([-0.15580, 0.08076, 0.07504], abs=1e-5)
"""-.35 * (-.35667 + .80182), -.1 * (-1.60944 + .80182), -.05 * (-2.30259 + .80182)"""


def poison(batch: Batch) -> None:
    """Put what must not matter into the row that is no transition."""
    batch.reward[MASKED_ROW] = torch.nan
    batch.extras["log_prob"][MASKED_ROW] = torch.nan
    batch.action[MASKED_ROW] = torch.nan if batch.action.is_floating_point() else 1


def weights(module: torch.nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """Bit for bit."""
    return all(a.equal(b) for a, b in zip(one, other, strict=True))


class Walk(gymnasium.Env):
    """State min(t, 5), one-hot; reward 1 for every step from state 5; never terminates, cut after 8 steps.

    With gamma .9, V(s) = 10 * .9^(5 - s). A truncation taken for a terminal state gives V(5) = 2.5, a bootstrap from
    the observation after the reset 4.49.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (6,), np.float32)
    action_space = gymnasium.spaces.Discrete(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(self.t >= 5)
        self.t += 1
        return self._observe(), reward, False, self.t == 8, {}

    def _observe(self) -> np.ndarray:
        return np.eye(6, dtype=np.float32)[min(self.t, 5)]


class Chain(gymnasium.Env):
    """0 -> 1 -> 2 -> end, reward 1 on the last step. With gamma .9: V = .81, .9, 1."""

    observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.eye(4, dtype=np.float32)[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.eye(4, dtype=np.float32)[self.t], float(self.t == 3), self.t == 3, False, {}


def learned_values(
    cls: type[Agent], world: type[gymnasium.Env], updates: int, **settings: Any
) -> list[float]:
    """The critic's value of every state of a world with one action, after `updates` updates on a rollout of it."""
    env = GymnasiumVector(world, 1, world.__name__)
    spec = env.spec
    base = {
        "gamma": 0.9,
        "critic_lr": 2e-2,
        "lr_schedule": Part("linear"),
        "max_grad_norm": 0.0,
        "activation": "tanh",
    }
    agent = build(cls, spec.action, spec.observation, num_envs=1, **{**base, **settings})
    collector = LocalCollector(env, agent, 27, torch.Generator().manual_seed(0))
    collector.reset(0)
    batch = agent.discounting().apply(
        collector.collect()
    )  # there is one action, so a rollout of any policy is a rollout of all
    for update in range(updates):
        agent.progress.fill_(update / updates)
        agent.update(batch)
    states = torch.eye(spec.observation.shape[0]).unsqueeze(1)  # [states, 1, states]
    none = torch.zeros(len(states) - 1, 1)
    with torch.no_grad():
        rows = Batch(states, torch.zeros(len(states), 1, dtype=torch.bool), {}, none, none, none, none).all
        return agent.critic(rows)[:, 0].tolist()
