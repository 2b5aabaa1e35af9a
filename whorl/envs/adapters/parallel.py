"""Copies of an environment with PettingZoo's parallel API, as one batch of rows for each behaviour."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from whorl.core import tree
from whorl.core.action_masks import flatten_mask
from whorl.core.arrays import MASK_KEY
from whorl.core.errors import EnvError, WhorlError
from whorl.core.tree import Tree
from whorl.envs.adapters.gymnasium import to_arrays, to_spec, to_step, to_tensors
from whorl.envs.adapters.turns import Turns
from whorl.envs.behaviors import BehaviorEnv
from whorl.envs.mistakes import failure, raised, theirs, wrong_observation
from whorl.envs.snapshot import restore_env, snapshot_env
from whorl.envs.spaces import Factory, Layout, action_decoder, choices_of, leaf_at, observation_parts
from whorl.envs.stepping import Buffers, env_seed, measured
from whorl.envs.vector import Step


@dataclass
class Group:
    """A behaviour: its agents, and their observations and actions as arrays."""

    agents: tuple[str, ...]
    layout: Layout


class PettingZooEnv(BehaviorEnv):
    """Copies of an environment with PettingZoo's parallel API or of a game that is played in turns, stepped one after
    another in this process.

    Args:
        groups: the behaviours that are trained; all other agents get actions of 0.
    """

    together = True

    def __init__(
        self, id: str, factory: Factory, groups: Mapping[str, Group], copies: int, snapshots: bool
    ) -> None:
        self.id, self.snapshots, self.copies = id, snapshots, copies
        self.rows = {name: Rows(group, copies) for name, group in groups.items()}
        self.specs = {
            name: to_spec(group.layout, copies * len(group.agents)) for name, group in groups.items()
        }
        self._envs: list[Any] = [factory() for _ in range(copies)]
        self._live: list[list[str]] = [[] for _ in self._envs]
        """agents of each copy that need an action; where there are none, the next step resets the copy"""
        self._of = {agent: rows for rows in self.rows.values() for agent in rows.place}

    def reset(self, seed: int) -> dict[str, Tree]:
        for rows in self.rows.values():
            rows.begin()
            rows.clear()
        for copy in range(len(self._envs)):
            self._reset(copy, env_seed(seed, copy))
        return {name: rows.tensors.obs for name, rows in self.rows.items()}

    def step(self, action: Mapping[str, Tree]) -> dict[str, Step]:
        for name, rows in self.rows.items():
            rows.begin(action[name])
        for copy, live in enumerate(self._live):
            if live:
                self._step(copy)
            else:
                self._reset(copy, None)
        return {name: rows.result() for name, rows in self.rows.items()}

    def snapshot(self) -> dict[str, Any]:
        envs = [snapshot_of(env) for env in self._envs]
        if None in envs:
            raise EnvError(f"copy {envs.index(None)} of {self.id} has no snapshot, but it had one before")
        return {
            "envs": [to_tensors(state) for state in envs],
            "live": [list(live) for live in self._live],
            "obs": {name: tree.clone(rows.tensors.obs) for name, rows in self.rows.items()},
        }

    def restore(self, snapshot: dict[str, Any]) -> dict[str, Tree]:
        if len(snapshot["envs"]) != len(self._envs) or snapshot["obs"].keys() != self.rows.keys():
            raise EnvError(
                f"the snapshot has {len(snapshot['envs'])} copies of {self.id} with the behaviours "
                f"{', '.join(snapshot['obs'])}; resume with the same ones"
            )
        for env, state in zip(self._envs, snapshot["envs"]):
            env.reset(seed=0)  # most environments make their objects there
            restore_env(inside(env), to_arrays(state))
        self._live = [list(live) for live in snapshot["live"]]
        for env, live in zip(self._envs, self._live):
            if isinstance(env, Turns):
                env.agents = list(live)
        for name, rows in self.rows.items():
            tree.copy_(rows.tensors.obs, snapshot["obs"][name])
        return {name: rows.tensors.obs for name, rows in self.rows.items()}

    def render(self, env_index: int = 0) -> np.ndarray | None:
        frame = self._envs[env_index].render()
        return frame if isinstance(frame, np.ndarray) else None

    def ended(self) -> Tensor:
        return torch.tensor([not live for live in self._live])

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _reset(self, copy: int, seed: int | None) -> None:
        env = self._envs[copy]
        with calling(f"copy {copy} of {self.id}, reset()"):
            obs, infos = env.reset() if seed is None else env.reset(seed=seed)
        self._live[copy] = list(env.agents)
        if not self._live[copy]:
            raise EnvError(f"copy {copy} of {self.id} has no agents after reset()")
        self._open(copy, self._live[copy], obs, infos)

    def _open(self, copy: int, agents: Iterable[str], obs: Any, infos: Any) -> None:
        """Return the first observations of agents that appear."""
        for agent in agents:
            if agent in self._of:
                self._of[agent].open(copy, agent, self._given(copy, agent, obs), infos.get(agent, {}))

    def _step(self, copy: int) -> None:
        env, live = self._envs[copy], self._live[copy]
        present = list(env.agents)  # agents that have ended may be among them, and stay ended
        actions = {agent: self._action(env, copy, agent) for agent in live}
        with calling(f"copy {copy} of {self.id}, step()"):
            obs, reward, terminated, truncated, infos = env.step(actions)
        there, ended = set(env.agents), set()
        for agent in live:
            if isinstance(env, Turns) and agent not in obs:
                continue  # it waits for its turn
            ends, cut = bool(terminated.get(agent)), bool(truncated.get(agent))
            if ends or cut:
                ended.add(agent)
            elif agent not in there:
                raise EnvError(
                    f"agent {agent!r} left copy {copy} of {self.id} and is neither terminated nor truncated"
                )
            if agent in self._of:
                # What follows a terminal state is not used, so that its observation may be missing.
                seen = obs.get(agent) if ends else self._given(copy, agent, obs)
                self._of[agent].write(
                    copy, agent, seen, float(reward.get(agent, 0.0)), ends, cut, infos.get(agent, {})
                )
        new = [agent for agent in env.agents if agent not in present]
        self._open(copy, new, obs, infos)
        self._live[copy] = [*(agent for agent in live if agent not in ended), *new]

    def _action(self, env: Any, copy: int, agent: str) -> Any:
        if agent in self._of:
            return self._of[agent].action(copy, agent)
        return idle(env.action_space(agent), env.mask() if isinstance(env, Turns) else None)

    def _given(self, copy: int, agent: str, obs: Mapping[str, Any]) -> Any:
        if agent not in obs:
            raise EnvError(
                f"copy {copy} of {self.id} returns no observation for agent {agent!r}, which is alive"
            )
        return obs[agent]


class Rows:
    """The agents of one behaviour in all copies as rows of a batch, copy by copy."""

    def __init__(self, group: Group, copies: int) -> None:
        self.layout = layout = group.layout
        self.place = {agent: number for number, agent in enumerate(group.agents)}
        count = copies * len(group.agents)
        self.out = Buffers.empty(layout, count)
        self.tensors = to_step(layout, self.out)
        self.waits = torch.ones(count, dtype=torch.bool)
        self._waits = self.waits.numpy()
        self._choices: list[Any] = []
        self._decode = action_decoder(layout.action_space)
        self._shapes, self._readers = zip(
            *observation_parts(layout.observation_space, layout.action_space, layout.mask)
        )
        self._choice_counts = choices_of(layout.action_space)
        places = [number for number, leaf in enumerate(layout.observation) if leaf.path == (MASK_KEY,)]
        self._mask = places[0] if layout.mask != "none" else None

    def clear(self) -> None:
        """Clear all rows: observations of agents that have not appeared are 0."""
        for leaf in self.out.obs:
            leaf.fill(0)
        if self._mask is not None:
            self.out.obs[self._mask].fill(1)

    def begin(self, action: Tree = None) -> None:
        """A step begins: forget the last one, and take the actions of all agents."""
        out = self.out
        for column in (out.reward, out.terminated, out.truncated, out.reset):
            column.fill(0)
        out.measures.fill(np.nan)
        self._waits.fill(True)
        if action is not None:
            self._choices = self._decode([leaf_at(action, leaf).cpu().numpy() for leaf in self.layout.action])

    def result(self) -> Step:
        return replace(self.tensors, soft=None, cells=None, waits=self.waits)

    def action(self, copy: int, agent: str) -> Any:
        return self._choices[self._row(copy, agent)]

    def open(self, copy: int, agent: str, obs: Any, info: Mapping[str, Any]) -> None:
        """An agent appears with its first observation."""
        self._check(agent, obs)
        row = self._row(copy, agent)
        self._write(row, obs, info)
        self.out.reset[row] = True

    def write(
        self,
        copy: int,
        agent: str,
        obs: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
    ) -> None:
        """An agent answers its action; `obs` None: its last observation stays."""
        row = self._row(copy, agent)
        if obs is None:
            self._waits[row] = False
        else:
            self._write(row, obs, info)
        self.out.reward[row], self.out.terminated[row], self.out.truncated[row] = (
            reward,
            terminated,
            truncated,
        )
        if terminated or truncated:
            if self._mask is not None and not self.out.obs[self._mask][row].any():
                self.out.obs[self._mask][row] = True  # games often allow nothing once they are over
            for number, name in enumerate(self.layout.measures):
                self.out.measures[row, number] = measured(dict(info), name)

    def _row(self, copy: int, agent: str) -> int:
        return copy * len(self.place) + self.place[agent]

    def _write(self, row: int, obs: Any, info: Mapping[str, Any]) -> None:
        self._waits[row] = False
        for array, read in zip(self.out.obs, self._readers):
            array[row] = read(obs)
        if self.layout.mask == "info":
            # An agent that takes no further action often has no mask.
            self.out.obs[-1][row] = (
                flatten_mask(self._choice_counts, info[MASK_KEY]) if MASK_KEY in info else True
            )

    def _check(self, agent: str, obs: Any) -> None:
        """Raise where numpy would silently broadcast another shape."""
        for leaf, read in zip(self._shapes, self._readers):
            try:
                fits = (np.shape(read(obs)) or (1,)) == leaf.shape
            except Exception:  # an observation may be anything
                fits = False
            if not fits:
                name = f"the observation of {agent!r}"
                raise EnvError(
                    wrong_observation(self.layout.observation_space, obs, name)
                    or f"{name} does not fit its space"
                )


def idle(space: spaces.Space, mask: Any = None) -> Any:
    """The action of an agent without a policy: 0 or the nearest value, and the first that a mask allows."""
    if isinstance(space, spaces.Dict):
        return {key: idle(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(idle(child) for child in space.spaces)
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    if isinstance(space, spaces.Discrete):
        return int(space.start) + (0 if mask is None else int(np.argmax(mask)))
    found: Any = np.zeros(space.shape or (), space.dtype)
    return found + getattr(space, "start", found)


def snapshot_of(env: Any) -> dict[str, Any] | None:
    """The state of one copy; None where it has no `get_snapshot` of its own."""
    env = inside(env)
    # PettingZoo's wrappers pass unknown names on, which would leave out the state of the wrapper itself.
    own = all(hasattr(type(env), name) for name in ("get_snapshot", "set_snapshot"))
    return snapshot_env(env) if own else None


def inside(env: Any) -> Any:
    """The environment itself, whose state is saved; which agents have had a turn is saved beside it."""
    return env.env if isinstance(env, Turns) else env


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Errors of the environment in one sentence."""
    try:
        yield
    except WhorlError:
        raise
    except Exception as error:  # an environment may raise anything
        raise failure(raised(what, error), error) from theirs(error)
