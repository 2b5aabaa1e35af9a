"""Collecting from environments that answer at different times, such as agents of a game that ask when they like.

Each environment has a row of its own to write to, and advances when it answers (`Step.waits`). Until then its
observation, memory and action stay: a row holds the action that was in effect, and the row after it what followed. The
memory after a row is that of this action, too: it may hold what was drawn with it (an option, noise). The missing rows
at the end of a rollout are masked; nothing is carried across them, values bootstrap from the last observation, and the
next rollout continues there.
"""

from typing import Any

import torch
from torch import Tensor

from whorl.agents.agent import COMPONENTS, Context
from whorl.collect.collector import LocalCollector, acting
from whorl.core import tree
from whorl.core.tree import Tree
from whorl.data.batch import CELL, Batch
from whorl.envs.vector import Step, VectorEnv, Waiting


class WaitingCollector(LocalCollector):
    """A `LocalCollector` for environments with `waits`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        device = self.agent.device
        self._waits = torch.zeros(self.num_envs, dtype=torch.bool, device=device)
        """environments that have an action which they have not answered"""
        stored = {name: tree.index(self.storage.tensors[name], 0) for name in ("action", "extras")}
        self._held: dict[str, Tree] = tree.clone({**stored, "memory": _of_networks(self.memory)})
        """actions in effect with their extras, and the memory of networks after them [B, ...]"""
        self._all = torch.arange(self.num_envs, device=device)
        self._numbers = torch.cat(self._env)
        """of these environments in the run"""
        self.driven = False
        """whether somebody else steps the environment: `open`, then `act` and `answer` for each row, before `finish`"""

    def begin(self, obs: Tree, reset: Tensor | None = None) -> None:
        super().begin(obs, reset)
        self._waits.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "waits": self._waits, "in_effect": self._held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        tree.restore_(self._waits, state["waits"])
        # Earlier versions did not keep the memory after the actions in effect.
        tree.restore_(self._held, {"memory": state["memory"], **state["in_effect"]})

    def finish(self, cut: bool = False) -> Batch:
        with acting(self.agent.device):
            self.roll(self._random)
        batch = self.storage.batch()
        self._count(batch)
        # A row that is no step is followed by nothing of the row before it.
        batch.keep[:-1].mul_(batch.mask[1:])
        if cut:
            batch.keep[-1] = 0
            self.episode_statistics.forget()
        return batch

    def _count(self, batch: Batch) -> None:
        """Count the rollout, without episodes that were dropped: a new one began, but the old one had not ended."""
        statistics, store = self.episode_statistics, self.storage
        goes_on = torch.cat((statistics.open[1:] > 0, (batch.mask * batch.keep)[:-1] > 0))  # before each row
        dropped = goes_on & (batch.mask == 0) & batch.reset[1:]
        start = 0
        for row in [*dropped.any(1).nonzero().flatten().tolist(), self.steps]:
            if row > start:
                rows = slice(start, row)
                part = batch.replace(
                    obs=tree.index(batch.obs, slice(start, row + 1)),
                    reward=batch.reward[rows],
                    keep=batch.keep[rows],
                    mask=batch.mask[rows],
                )
                statistics.add(part, store.soft[rows], store.measures[rows])
            if row < self.steps:
                statistics.open[:, dropped[row]] = 0
            start = row

    def roll(self, random: bool = False) -> None:
        if not self.driven:
            self._random = random
            self.open()
            for t in range(self.steps):
                self.answer(self.env.step(self.act()))
                if self.watch is not None:
                    self.watch((t + 1) / self.steps)
        tree.copy_(self.memory, self._memory)
        self._pad(self._row)

    def open(self) -> None:
        """Begin a rollout where the last one ended."""
        store, steps = self.storage, self.steps
        tree.copy_(tree.index(store.obs, 0), tree.index(store.obs, steps))
        store.reset[0].copy_(store.reset[steps])
        self._row, self._memory = torch.zeros_like(self._all), self.memory

    def act(self) -> Tree:
        """The actions that are in effect now: new ones, except where the environment has not answered the last one."""
        store, row = self.storage, self._row
        self._obs, reset = _read(store.obs, row, self._all), store.reset[row, self._all]
        if self.renew is not None and bool(reset.all()):
            self.renew()
        if store.memories:
            opens = row % store.stride == 0
            _write(store.memories, self._memory, row // store.stride, self._all, opens)
        greedy = self.agent.collects_greedily
        context = Context(reset, self.generator, greedy=greedy, random=self._random, env_index=self._numbers)
        acted = self.agent.act_tracked(self._obs, self._memory, context)
        extras = {**self._held["extras"], **acted.extras}
        fresh = {"action": acted.action, "extras": extras, "memory": _of_networks(acted.memory)}
        self._held = tree.where(self._waits, self._held, fresh)
        self._after = {**acted.memory, **self._held["memory"]}
        self._memory = self.agent.kept(self._memory)
        return self._held["action"]

    def answer(self, step: Step) -> None:
        """Store what the environments answered."""
        store, row, action = self.storage, self._row, self._held["action"]
        answer = tree.to(_tensors(step), self.agent.device)
        self._waits.copy_(answer.pop("waits"))
        answered = ~self._waits
        following = answer.pop("obs"), answer.pop("next_reset")
        after, columns = self.agent.follow(self._after, self._obs, action, answer["reward"], *following)
        self._memory = tree.where(self._waits, self._memory, after)
        if "cells" in answer:
            columns[CELL] = answer.pop("cells")
        written = {**answer, "action": action, "extras": {**self._held["extras"], **columns}}
        _write({name: store.tensors[name] for name in written}, written, row, self._all, answered)
        ahead = {"obs": store.obs, "reset": store.reset}
        _write(ahead, dict(zip(ahead, following)), row + 1, self._all, answered)
        self._row = row + answered

    def _pad(self, row: Tensor) -> None:
        """Fill the missing rows of an environment, masked and without effect."""
        store, steps = self.storage, self.steps
        number = torch.arange(steps + 1, device=row.device).unsqueeze(1)  # [T+1, 1]
        newest, opens = _read(store.obs, row, self._all), store.reset[row, self._all]
        beyond = number > row  # [T+1, B]
        tree.copy_(
            store.obs, tree.where(beyond, tree.map(lambda a, b: b.expand_as(a), store.obs, newest), store.obs)
        )
        # The row at which the next rollout continues may be the first of an episode.
        store.reset.copy_(torch.where(beyond, opens & (number == steps), store.reset))
        store.length = row
        for name in ("reward", "terminated", "truncated", "soft"):
            store.tensors[name].masked_fill_(number[:-1] >= row, 0)


def collector_for(env: VectorEnv) -> type[LocalCollector]:
    """The collector of an environment in this process."""
    return WaitingCollector if isinstance(env, Waiting) and env.waits else LocalCollector


def _of_networks(memory: Tree) -> Tree:
    """The memory without that of components, which follows what is answered."""
    return {name: held for name, held in memory.items() if name != COMPONENTS}


def _tensors(step: Any) -> dict[str, Tree]:
    """What is stored of a step, by the names of the storage."""
    found = {"obs": step.obs, "next_reset": step.reset, "waits": step.waits}
    found |= {name: getattr(step, name) for name in ("reward", "terminated", "truncated")}
    return found | {
        name: getattr(step, name) for name in ("soft", "measures", "cells") if getattr(step, name) is not None
    }


def _read(columns: Tree, row: Tensor, env: Tensor) -> Tree:
    """[B, ...] of columns [T, B, ...], each environment at its own row."""
    return tree.map(lambda leaf: leaf[row, env], columns)


def _write(columns: Tree, values: Tree, row: Tensor, env: Tensor, where: Tensor) -> None:
    """Write values [B, ...] of some environments, each at its own row."""
    row, env = row[where], env[where]

    def put(column: Tensor, value: Tensor) -> None:
        column[row, env] = value[where].to(column.dtype)

    tree.map(put, columns, values)
