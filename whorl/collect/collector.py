"""Collecting rollouts `[T, B]`: the protocol of all collectors, and the one that steps environments in this process.

A rollout is collected with one version of the policy and fixed normalisation statistics. Storage is allocated once and
written in place. Where the environment's step can be captured, the whole rollout, policy included, is one CUDA graph.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from whorl.agents.agent import Agent, Context
from whorl.collect.episodes import EpisodeStatistics, Statistics
from whorl.core import tree
from whorl.core.cuda_graphs import record
from whorl.core.errors import ConfigError
from whorl.core.spec import empty_action, empty_obs
from whorl.core.tree import Tree
from whorl.data.batch import CELL, LAST, Batch, with_first_row
from whorl.data.config import ReplayConfig
from whorl.envs.vector import Bindable, Step, VectorEnv
from whorl.explore.rollout_actor import RolloutActor, rollout_actor


def acting(device: torch.device) -> AbstractContextManager[None]:
    """A context without gradients; on a CPU inference mode, which is faster."""
    return torch.inference_mode() if device.type == "cpu" else torch.no_grad()


class Collector(Protocol):
    """Collects rollouts, in this process or in others. A class that inherits from this one overrides what it needs."""

    episode_statistics: Statistics
    gaps: Tensor | None = None
    """[B] bool: environments whose newest rows do not continue those of the rollout before; None: there are none"""
    begun: bool = True
    """whether the first steps have come; actors may take minutes to start"""
    watch: Callable[[float], None] | None = None
    """called now and then while a rollout is collected, with the share of it that is there"""

    def reset(self, seed: int) -> None:
        """Reset every environment; the next rollout starts there."""

    def start(self, random: bool = False) -> None:
        """Start the next rollout, with `random` actions or those of the policy."""

    def reseed(self, number: int) -> None:
        """Explore with new random streams, for the time `number`, where they are not those of the run."""
        return

    def finish(self, cut: bool = False) -> Any:
        """Wait for the rollout: a `Batch` (or, from actors that compute gradients, a list of `Gradients`).

        It may be a view of memory that the next rollout overwrites. With `cut` all environments are reset after it:
        returns do not cross its last row, and episodes that have not ended are dropped from the statistics.
        """

    def metrics(self) -> dict[str, float]:
        """Metrics for the log, since the last call."""
        return {}

    def close(self) -> None:
        """Stop processes; safe to call twice."""
        return

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class LocalCollector(Collector):
    """Steps every environment `steps` times with the agent's current policy, in this process.

    Args:
        numbers: the numbers of these environments in the run, where other collectors have the rest.
        renew: for a policy that is held within episodes; called before all environments start one.
    """

    episode_statistics: EpisodeStatistics
    on_row: "Callable[[Row], None] | None" = None
    """called with every row of all environments, once their responses are there; not with `capture`"""

    def __init__(
        self,
        env: VectorEnv,
        agent: Agent,
        steps: int,
        generator: torch.Generator,
        capture: bool = False,
        storage: "Storage | None" = None,
        numbers: Sequence[int] | None = None,
        renew: Callable[[], None] | None = None,
    ) -> None:
        self.renew = renew
        self.env, self.agent, self.steps, self.generator = env, agent, steps, generator
        self.capture = capture
        self.num_envs = env.spec.num_envs
        # Groups of environments are stepped separately, so that acting for one overlaps with stepping the other.
        count = getattr(env, "groups", 1)
        self._groups = [env.env_slice(g) for g in range(count)] if count > 1 else [slice(0, self.num_envs)]  # type: ignore[attr-defined]
        self.storage = storage or Storage.allocate(agent, self.num_envs, steps)
        self._rows = self.storage.rows(self._groups)
        self._bound = [None if count > 1 else self._bind(row[0]) for row in self._rows]
        """the environments' steps from and into each row, where they can do that"""
        self._actor = None
        if count == 1 and renew is None:
            self._actor = rollout_actor(agent, self.storage.tensors)
        with torch.no_grad():
            self.memory = tree.clone(agent.begin(tree.index(self.storage.obs, 0)))
        self.episode_statistics = EpisodeStatistics(self.num_envs, agent.device, agent.spec.measures, numbers)
        env_index = torch.tensor(range(self.num_envs) if numbers is None else numbers, device=agent.device)
        self._env = [env_index[group] for group in self._groups]
        self._graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self._random = False

    def reset(self, seed: int) -> None:
        if self.renew is not None:
            self.renew()
        self.begin(self.env.reset(seed))

    def begin(self, obs: Tree, reset: Tensor | None = None) -> None:
        """Continue from these observations; without `reset`, each of them is the first of an episode."""
        last = self.steps
        tree.copy_(tree.index(self.storage.obs, last), obs)
        self.storage.reset[last].copy_(
            torch.ones(self.num_envs, dtype=torch.bool) if reset is None else reset
        )
        if reset is None:
            with acting(self.agent.device):
                fresh = self.agent.begin(tree.index(self.storage.obs, last))
                tree.copy_(self.memory, self.agent.carry_over(fresh, self.memory))

    def start(self, random: bool = False) -> None:
        self._random = random

    def finish(self, cut: bool = False) -> Batch:
        with acting(self.agent.device):
            if not self.capture:
                self.roll(self._random)
            else:
                if self._random not in self._graphs:
                    self._graphs[self._random] = self._record(self._random)
                self._graphs[self._random].replay()
        return self.storage.finish(self.episode_statistics, cut)

    def collect(self, cut: bool = False, random: bool = False) -> Batch:
        """One rollout, start to finish."""
        self.start(random)
        return self.finish(cut)

    def rollout(self) -> Batch:
        """The rows in the storage."""
        return self.storage.batch()

    def roll(self, random: bool = False) -> None:
        """Fill the storage: act and step, row by row."""
        store, groups = self.storage, self._groups
        tree.copy_(tree.index(store.obs, 0), tree.index(store.obs, self.steps))
        store.reset[0].copy_(store.reset[self.steps])
        if self._actor is not None and not random and not self.agent.collects_greedily:
            self._roll_by(self._actor)
            return
        rows = self._rows
        memories = [tree.index(self.memory, num_envs) for num_envs in groups]
        for t in range(self.steps):
            for number, num_envs in enumerate(groups):
                if t and len(groups) > 1:
                    rows[t - 1][number].write(self.env.receive(number))  # type: ignore[attr-defined]
                    memories[number] = self._follow(rows[t - 1][number], memories[number])
                here = rows[t][number]
                if self.renew is not None and bool(here.reset.all()):
                    self.renew()
                if store.memories and t % store.stride == 0:
                    part = tree.index(store.memories, (t // store.stride, num_envs))
                    tree.copy_(part, memories[number])
                greedy = self.agent.collects_greedily
                context = Context(here.reset, self.generator, greedy, random, self._env[number])
                acted = self.agent.act_tracked(here.obs, memories[number], context)
                memories[number] = acted.memory
                tree.copy_(here.action, acted.action)
                for name, column in acted.extras.items():
                    here.extras[name].copy_(column)
                if len(groups) > 1:
                    self.env.send(number, acted.action)  # type: ignore[attr-defined]
                else:
                    self._step(t, acted.action)
                    memories[number] = self._follow(here, memories[number])
            if len(groups) == 1:
                self._collected(t)
            elif t:
                self._collected(t - 1)
        if len(groups) > 1:
            for number in range(len(groups)):
                last = rows[self.steps - 1][number]
                last.write(self.env.receive(number))  # type: ignore[attr-defined]
                memories[number] = self._follow(last, memories[number])
            self._collected(self.steps - 1)
        for num_envs, memory in zip(groups, memories):
            tree.copy_(tree.index(self.memory, num_envs), memory)

    def _roll_by(self, actor: RolloutActor) -> None:
        """`roll` with an actor for whole rollouts, without memory."""
        actor.begin(self.generator)
        for t in range(self.steps):
            actor.act(t)
            self._step(t, self._rows[t][0].action)
            self._collected(t)
        actor.end()

    def _bind(self, row: "Row") -> Callable[[], None] | None:
        if not isinstance(self.env, Bindable) or row.reward.device.type != "cpu":
            return None
        return self.env.bound_step(row.action, row.answer())

    def _step(self, t: int, action: Tree) -> None:
        """Step all environments with the actions of row t, and store their answer."""
        bound = self._bound[t]
        if bound is None:
            self._rows[t][0].write(self.env.step(action))
        else:
            bound()

    def _follow(self, row: "Row", memory: Tree) -> Tree:
        """The memory after a row that the environments have answered."""
        memory, columns = self.agent.follow(
            memory, row.obs, row.action, row.reward, row.next_obs, row.next_reset
        )
        for name, column in columns.items():
            row.extras[name].copy_(column)
        return memory

    def _collected(self, t: int) -> None:
        """Row t of all environments is there."""
        if self.watch is not None:
            self.watch((t + 1) / self.steps)
        if self.on_row is not None:
            self.on_row(Row(self.storage.tensors, t, slice(0, self.num_envs)))

    def _record(self, random: bool) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        world: Any = self.env
        tensors = [
            *world.state_tensors(),
            *tree.leaves(self.memory),
            *tree.leaves(self.storage.tensors),
        ]
        record(graph, lambda: self.roll(random), tensors, [self.generator, world.generator])
        return graph

    def _weights(self) -> Tree:
        return {str(number): tensor.detach() for number, tensor in enumerate(self.agent.acting_tensors())}

    def state_dict(self) -> dict[str, Any]:
        last = self.steps
        return {
            "obs": tree.index(self.storage.obs, last),
            "reset": self.storage.reset[last],
            "memory": self.memory,
            "episode_statistics": self.episode_statistics.state_dict(),
            "held": {} if self.renew is None else self._weights(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.renew is not None:
            tree.restore_(self._weights(), state["held"])
        mine = self.state_dict()
        for name in ("obs", "reset", "memory"):
            tree.restore_(mine[name], state[name])
        self.episode_statistics.load_state_dict(state["episode_statistics"])


class Row:
    """One row of some environments: views of the storage, which the next rollout overwrites.

    Where `next_reset` is true the row is no step: the action was ignored, and `next_obs` starts an episode.
    """

    __slots__ = (
        "action",
        "extras",
        "measures",
        "next_obs",
        "next_reset",
        "obs",
        "reset",
        "reward",
        "soft",
        "terminated",
        "truncated",
    )

    def __init__(self, tensors: dict[str, Tree], t: int, num_envs: slice) -> None:
        def at(name: str, row: int) -> Tree:
            return tree.index(tensors[name], (row, num_envs))

        self.obs, self.next_obs = at("obs", t), at("obs", t + 1)
        self.reset, self.next_reset = at("reset", t), at("reset", t + 1)
        self.action, self.extras, self.reward = at("action", t), at("extras", t), at("reward", t)
        self.terminated, self.truncated, self.soft = at("terminated", t), at("truncated", t), at("soft", t)
        self.measures = at("measures", t)

    def answer(self) -> Step:
        """The environment's response to this row's actions, as views of the storage."""
        ends = self.terminated, self.truncated
        cells = self.extras.get(CELL)
        return Step(self.next_obs, self.reward, *ends, self.next_reset, self.soft, self.measures, cells=cells)

    def write(self, step: Step) -> None:
        """Store the environment's response to this row's actions."""
        tree.copy_(self.next_obs, step.obs)
        self.next_reset.copy_(step.reset)
        self.reward.copy_(step.reward)
        self.terminated.copy_(step.terminated)
        self.truncated.copy_(step.truncated)
        if step.soft is not None:
            self.soft.copy_(step.soft)
        if step.measures is not None:
            self.measures.copy_(step.measures)
        if step.cells is not None:
            self.extras[CELL].copy_(step.cells)


class Storage:
    """The preallocated tensors of one rollout: obs and reset [T+1, B], the rest [T, B]."""

    def __init__(self, tensors: dict[str, Tree]) -> None:
        self.tensors = tensors
        self.obs: Tree = tensors["obs"]
        self.reset: Tensor = tensors["reset"]
        self.soft: Tensor = tensors["soft"]
        self.measures: Tensor = tensors["measures"]
        self.memories: Tree = tensors["memories"]
        self.steps = len(tensors["reward"])
        self.stride = self.steps // len(tree.first(self.memories)) if self.memories else 1
        self.length: Tensor | None = None
        """[B] rows of each environment, where some are shorter than the rollout; None: all rows"""

    @staticmethod
    def allocate(agent: Agent, num_envs: int, steps: int) -> "Storage":
        """Tensors on the agent's device; a trial call shows what `act` returns besides actions."""
        spec, device = agent.spec, agent.device
        stored = agent.stored(num_envs)
        no_flags = torch.zeros(num_envs, dtype=torch.bool, device=device)
        probe = torch.Generator(device).manual_seed(0)
        with torch.no_grad():
            obs, context = empty_obs(spec.observation, (num_envs,), device), Context(no_flags, probe)
            acted = agent.act_tracked(obs, agent.begin(obs), context)
            nothing = torch.zeros(num_envs, device=device)
            _, columns = agent.follow(acted.memory, obs, acted.action, nothing, obs, no_flags)
        if spec.map_shape is not None:
            columns = {**columns, CELL: torch.zeros(num_envs, dtype=torch.int64, device=device)}
        if steps % agent.stride:
            name = "sequence_stride" if isinstance(agent.cfg, ReplayConfig) else "chunk_length"
            raise ConfigError(
                f"num_steps {steps} is not a multiple of {name} {agent.stride}; change one of them"
            )
        return Storage(
            {
                "obs": empty_obs(spec.observation, (steps + 1, num_envs), device),
                "reset": no_flags.expand(steps + 1, num_envs).clone(),
                "action": empty_action(spec.action, (steps, num_envs), device),
                "reward": torch.zeros(steps, num_envs, device=device),
                "terminated": no_flags.expand(steps, num_envs).clone(),
                "truncated": no_flags.expand(steps, num_envs).clone(),
                "soft": no_flags.expand(steps, num_envs).clone(),
                "measures": torch.full((steps, num_envs, len(spec.measures)), torch.nan, device=device),
                "extras": {
                    name: value.new_zeros(steps, *value.shape)
                    for name, value in {**acted.extras, **columns}.items()
                },
                "memories": tree.map(lambda leaf: leaf.new_zeros(steps // agent.stride, *leaf.shape), stored),
            }
        )

    def rows(self, groups: list[slice]) -> list[list[Row]]:
        """Views of every row, group by group."""
        # Created once, so that the loop only copies.
        return [[Row(self.tensors, t, num_envs) for num_envs in groups] for t in range(self.steps)]

    def finish(self, statistics: EpisodeStatistics, cut: bool) -> Batch:
        """The rollout, counted in `statistics`; with `cut` all environments are reset after it."""
        batch = self.batch()
        statistics.add(batch, self.soft, self.measures)
        if cut:
            batch.keep[-1] = 0
            statistics.forget()
        return batch

    def batch(self) -> Batch:
        """The rollout as a batch without discounts: the only place where episode ends become numbers."""
        tensors = self.tensors
        real = ~self.reset[1:]
        if self.length is not None:
            real = real & (torch.arange(self.steps, device=real.device).unsqueeze(1) < self.length)
        mask = real.float()
        terminal = tensors["terminated"] | tensors["soft"]
        going = (~(terminal | tensors["truncated"])).float()
        opened, last = tree.index(self.memories, 0), {}
        if LAST in opened:
            done = {"action": tensors["action"], "reward": tensors["reward"]}
            last = with_first_row({name: opened[LAST][name] for name in done}, done)
        return Batch(
            obs=self.obs,
            reset=self.reset,
            action=tensors["action"],
            reward=tensors["reward"] * mask,
            continues=~terminal & real,
            keep=going * mask,
            mask=mask,
            memory=opened,
            memories=self.memories,
            last=last,
            extras=dict(tensors["extras"]),
        )
