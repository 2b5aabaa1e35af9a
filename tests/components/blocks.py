"""Agents with components, and rollouts to give them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from whorl.agents.agent import Agent
from whorl.agents.component import with_components
from whorl.collect.collector import LocalCollector
from whorl.conformance import RandomWorld, copied
from whorl.core.spec import Array, Discrete, Spec
from whorl.data.batch import Batch
from whorl.settings.merge import configure
from whorl.settings.presets import algorithm_class

NUM_ENVS, STEPS = 4, 16
IMAGE = Array((16, 16, 3), "uint8", 0.0, 255.0)
VECTOR = Array((3,))
SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"batch_size": 32, "n_epochs": 2, "actor_hidden_sizes": (16,), "critic_hidden_sizes": (16,)},
    "a2c": {"actor_hidden_sizes": (16,), "critic_hidden_sizes": (16,)},
    "dqn": {"batch_size": 16, "buffer_size": 512, "hidden_sizes": (16,), "learning_starts": 0},
    "sac": {"batch_size": 16, "buffer_size": 512, "learning_starts": 0, "actor_hidden_sizes": (16,)},
}


def build(
    algorithm: str,
    observation: Any = VECTOR,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    action: Any = Discrete(3),  # noqa: B008 - frozen
    **components: Any,
) -> Agent:
    """A small agent with components, ready to learn; `config` has further settings."""
    settings = {**SMALL[algorithm], "num_envs": NUM_ENVS, "num_steps": STEPS, **(config or {})}
    if algorithm in ("dqn", "sac"):
        settings |= {"updates_per_step": 0.1, "random_steps": 0, "n_step": 1}
    cfg = configure(algorithm, "blocks", settings).algo
    torch.manual_seed(seed)
    cls: Any = algorithm_class(algorithm)[1]
    agent = with_components(partial(cls, cfg=cfg), Spec(observation, action, NUM_ENVS), components)
    seeds = {name: number for number, name in enumerate(agent._optimizers)}
    return agent.prepare("cpu", lambda name: torch.Generator().manual_seed(seeds[name]))


def rollouts(agent: Agent, count: int = 1) -> list[Batch]:
    """Random episodes."""
    world: Any = RandomWorld(agent.spec)
    collector = LocalCollector(world, agent, STEPS, torch.Generator().manual_seed(1))
    collector.reset(0)
    return [copied(collector.collect()) for _ in range(count)]


def feed(agent: Agent, experience: Any, given: list[Batch]) -> list[dict[str, torch.Tensor]]:
    """Learn from rollouts as the training loop does; the metrics of every update."""
    found = []
    for rollout in given:
        experience.add(copied(agent.receive(rollout)))
        for phase, batch in experience.due():
            updated = agent.learn(phase, batch)
            agent.updates += 1
            experience.settle(batch, updated)
            found.append(updated.metrics)
    return found
