"""What the checks run on: an algorithm with small settings on a kind of environment, and its learning loop."""

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from whorl import components
from whorl.agents.agent import Agent, Updated
from whorl.collect.collector import LocalCollector
from whorl.conformance.environments import RandomWorld, Walk
from whorl.core import tree
from whorl.core.action_masks import mask_size
from whorl.core.errors import ConfigError
from whorl.core.spec import (
    MASK_KEY,
    Array,
    Continuous,
    Discrete,
    MultiDiscrete,
    Spec,
    TupleSpec,
    action_choices,
)
from whorl.data.batch import Batch
from whorl.settings.merge import Settings, configure
from whorl.settings.presets import algorithm_class
from whorl.settings.run import RunConfig
from whorl.state.policy import build_agent
from whorl.state.streams import Streams

NUM_ENVS, ROWS = 4, 16
SMALL: dict[str, Any] = {
    "num_envs": NUM_ENVS,
    "num_steps": ROWS,
    "batch_size": 32,
    "chunk_length": 8,
    "actor_hidden_sizes": (16,),
    "critic_hidden_sizes": (16,),
    "hidden_sizes": (16,),
    "actor_width": 8,
    "critic_width": 8,
    "memory_size": 8,
    "memory_window": 5,
    "sequence_length": 6,
    "burn_in": 2,
    "sequence_stride": 8,
    "lookahead": 0,
    "n_epochs": 2,
    "aux_every": 2,
    "aux_epochs": 2,
    "lr_schedule": "constant",
    "buffer_size": 512,
    "learning_starts": 0,
    "random_steps": 0,
    "updates_per_step": 0.05,
    "policy_delay": 2,
    "num_policies": 4,
    "bandit_window": 8,
}
"""Settings that keep a check short; an algorithm gets those that it has."""

WALK: dict[str, Any] = {
    "gamma": 0.8,
    "normalize_obs": False,
    "normalize_reward": False,
    "learning_rate": 1e-2,
    "optimizer": "Adam",
    "actor_lr": 1e-3,
    "critic_lr": 5e-3,
    "max_grad_norm": 0.0,
    "tau": 0.2,
    "target_update_interval": 1,
    "updates_per_step": 0.125,
    "alpha": 0.0,
    "tune_alpha": False,
    "renorm_warmup": 200,
}
"""Settings with which an agent learns the values of `Walk` quickly."""

OBSERVATIONS: dict[str, Any] = {
    "vector": Array((3,)),
    "image": Array((10, 10, 2), "uint8", 0.0, 255.0),
    "dict": {
        "position": Array((2,)),
        "speed": Array((3,)),
        "image": Array((4, 4, 1), "uint8", 0.0, 255.0),
    },
}
TREE: dict[str, Any] = {
    "arm": TupleSpec({"0": Continuous((2,), (-1.0, 0.0), (1.0, float("inf"))), "1": Discrete(3)}),
    "tools": MultiDiscrete((2, 3)),
}
MIXED: dict[str, Any] = {
    **TREE,
    "arm": TupleSpec({"0": Continuous((2,), (-1.0, 0.0), (1.0, 5.0)), "1": Discrete(3)}),
}
"""the same with bounds"""
ACTIONS: dict[str, Any] = {
    "discrete": Discrete(3),
    "multi-discrete": MultiDiscrete((2, 3)),
    "multi-binary": MultiDiscrete((2, 2, 2), dtype="int8"),
    "continuous": Continuous((2,), (-1.0, 0.0), (1.0, 5.0)),
    "tree": TREE,
    "masked": Discrete(3),
    "masked-tree": TREE,
    "mixed": MIXED,
    "masked-mixed": MIXED,
}
"""Kinds of actions; those called masked come with an action mask in the observation"""
MEMORIES = ("none", "lstm", "gru", "attention")


@dataclass(frozen=True)
class Subject:
    """An algorithm on a kind of environment."""

    algorithm: str
    spec: Spec
    settings: Mapping[str, Any] = field(default_factory=dict)
    _kept: "dict[str, Any]" = field(default_factory=dict, init=False, repr=False, compare=False)
    """the rollouts of the policy that was last asked for, and what collects more of them"""

    def configured(self) -> Settings:
        """Typed settings: the algorithm's preset with `SMALL`, then this subject's own."""
        return self._configured

    @cached_property
    def _configured(self) -> Settings:
        known = settings_of(self.algorithm) | {f.name for f in fields(RunConfig)}
        small = {key: value for key, value in SMALL.items() if key in known}
        return configure(self.algorithm, "conformance", {**small, **self.settings})

    def agent(self, seed: int = 0, device: str = "cpu") -> Agent:
        """A new agent with its optimizers and random streams; the same for the same seed."""
        settings, streams = self._configured, Streams(seed, (device,))
        agent = build_agent(settings, self.spec, seed)
        agent.check(settings.run.num_envs * settings.run.num_steps)
        return agent.prepare(device, lambda name: streams.generator("learner", device, name))

    def rollouts(self, agent: Agent, count: int, world: RandomWorld | Walk | None = None) -> list[Batch]:
        """Rollouts of `agent`'s current policy on random episodes, copied out of the collector's storage."""
        weights = agent.state_dict()
        if world is None and same(self._kept.get("weights"), weights):
            found, collector = self._kept["found"], self._kept["collector"]
        else:
            actor = build_agent(self._configured, self.spec)
            actor.load_state_dict(weights)
            generator, env = torch.Generator().manual_seed(1), cast(Any, world or RandomWorld(self.spec))
            found, collector = [], LocalCollector(env, actor, self._configured.run.num_steps, generator)
            collector.reset(0)
            if world is None:
                weights = {name: tree.clone(value) for name, value in weights.items()}
                self._kept.update(weights=weights, found=found, collector=collector)
        found += [copied(collector.collect()) for _ in range(count - len(found))]
        return [copied(rollout).to(agent.device) for rollout in found[:count]]


def subject(algorithm: str, observation: str, memory: str, action: str, **settings: Any) -> Subject:
    """The subject of one cell of the matrix; with a memory, it also reads the last action and reward."""
    observed, actions = OBSERVATIONS[observation], ACTIONS[action]
    if action.startswith("masked"):
        observed = observed if isinstance(observed, dict) else {"observation": observed}
        mask = Array((mask_size(action_choices(actions)),), "int8", 0.0, 1.0)
        observed = {**observed, MASK_KEY: mask}
    known = settings_of(algorithm)
    if "memory" not in known and memory != "none":
        raise ConfigError(f"{algorithm} has no setting memory")
    wanted: dict[str, Any] = {
        "memory": memory,
        "last_action": memory != "none",
        "last_reward": memory != "none",
    }
    if memory != "none" and "sequence_length" in known:
        wanted["batch_size"] = 8  # sequences
    given = {**{key: value for key, value in wanted.items() if key in known}, **settings}
    return Subject(algorithm, Spec(observed, actions, NUM_ENVS), given)


def settings_of(algorithm: str) -> set[str]:
    """The names of the settings that an algorithm has."""
    config: Any = algorithm_class(algorithm)[1]
    return {f.name for f in fields(config.Config)} - {*getattr(config.Config, "unused", ())}


def component_names() -> list[str]:
    """The components of this package; a component of your own is checked by name, once it is registered."""
    return [module.name for module in pkgutil.iter_modules(components.__path__)]


class Run:
    """An agent with its experience: what the training loop does with rollouts, without the loop."""

    def __init__(self, subject: Subject, seed: int = 0, device: str = "cpu") -> None:
        self.agent = subject.agent(seed, device)
        self.generator = torch.Generator(self.agent.device).manual_seed(seed)
        self.experience = self.agent.experience(self.generator)

    def feed(self, rollouts: Sequence[Batch]) -> list[Updated]:
        """Make the updates that are due after each rollout."""
        found = []
        for rollout in rollouts:
            self.experience.add(copied(self.agent.receive(rollout)))
            for phase, batch in self.experience.due():
                updated = self.agent.learn(phase, batch)
                self.agent.updates += phase == "update"
                self.experience.settle(batch, updated)
                found.append(updated)
        return found

    def state(self) -> dict[str, Any]:
        """Everything that later updates depend on."""
        return {
            "agent": self.agent.state(),
            "experience": self.experience.state_dict(),
            "generators": {name: g.get_state() for name, g in self.agent.generators.items()},
            "replay": self.generator.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.agent.load_state(state["agent"])
        self.experience.load_state_dict(state["experience"])
        for name, position in state["generators"].items():
            self.agent.generators[name].set_state(position)
        self.generator.set_state(state["replay"])


def copied(batch: Batch) -> Batch:
    """A copy of a batch that shares no memory with it."""
    return batch.replace(**tree.clone(batch.tensors()))


def same(one: Any, two: Any) -> bool:
    """Whether two states are equal bit for bit."""
    if isinstance(one, Mapping):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two))
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    return bool(one == two)
