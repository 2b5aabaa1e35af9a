"""The episodes of a dataset as rows of a replay buffer.

An episode of n steps becomes n + 1 rows: the last one holds the final observation and is masked, as in rollouts (see
`whorl.envs.vector`). A terminal state ends the return; at a truncation, and where an episode just stops, values
bootstrap from the final observation. Episodes are spread over as many environments as the run has, each appended to the
shortest column.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from whorl.core import tree
from whorl.core.action_masks import flatten_mask
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, Array, Continuous, Spec, as_keyed, differences, empty_action, from_env
from whorl.core.tree import Tree
from whorl.data.batch import LAST, Batch
from whorl.datasets.minari import open_dataset
from whorl.envs.adapters.gymnasium import to_spec
from whorl.envs.spaces import MaskSource, choices_of, make_layout, nest, observation_parts

CHUNK = 8192
"""rows of an environment that are handed out at a time"""


@dataclass(frozen=True)
class Recorded:
    """A dataset as rows [R, B]."""

    name: str
    spec: Spec
    frames: Tree
    """[R+1, B, ...] observations; of a frame stack the newest frame"""
    first: Tensor
    """[R+1, B] int64: the row in which the episode began"""
    reset: Tensor
    """[R+1, B] bool"""
    action: Tree
    """[R, B, ...] canonical"""
    reward: Tensor
    terminated: Tensor
    ended: Tensor
    """[R, B] bool: an episode ended for any reason"""
    mask: Tensor
    lengths: list[int]
    """rows of each environment, without padding"""
    episodes: int
    returns: list[float]
    hash: str
    """of everything that is learned from; it does not depend on the number of environments"""

    @property
    def rows(self) -> int:
        """Rows per environment, padding included."""
        return len(self.mask)

    @property
    def steps(self) -> int:
        return int(self.mask.sum())

    def rollouts(self, memory: Tree | None = None, stride: int = 1) -> Iterator[Batch]:
        """All rows in order, without discounts, as collectors give them.

        Args:
            memory: the agent's recurrent state before an episode [B, ...], where it is stored with rollouts: sequences
                start with it, and with the last action and reward of the row before.
            stride: rows between stored states; divides `rows`.
        """
        size = max(CHUNK // stride, 1) * stride
        for start in range(0, self.rows, size):
            yield self._rollout(start, min(start + size, self.rows), memory or {}, stride)

    def _rollout(self, start: int, stop: int, memory: Tree, stride: int) -> Batch:
        here = slice(start, stop)
        mask = self.mask[here]
        return Batch(
            obs=self._observed(start, stop + 1),
            reset=self.reset[start : stop + 1],
            action=tree.index(self.action, here),
            reward=self.reward[here],
            continues=~self.terminated[here] & mask,
            keep=(~self.ended[here] & mask).float(),
            mask=mask.float(),
            memories=self._memories(torch.arange(start, stop, stride), memory),
        )

    def _observed(self, start: int, stop: int) -> Tree:
        """Observations with their frame stacks: [stop - start, B, ...]."""
        env_index = torch.arange(self.spec.num_envs)
        row = torch.arange(start, stop).unsqueeze(1)

        def leaf(like: Array, frames: Tensor) -> Tensor:
            if like.stack == 1:
                return frames[start:stop]
            ages = range(
                like.stack - 1, -1, -1
            )  # oldest first; before an episode its first frame is repeated
            seen = [frames[torch.maximum(row - age, self.first[start:stop]), env_index] for age in ages]
            return torch.cat(seen, 2 + like.axis)

        return tree.map(leaf, self.spec.observation, self.frames)

    def _memories(self, rows: Tensor, memory: Tree) -> Tree:
        """[len(rows), B, ...] the state before each of these rows."""
        found = tree.map(lambda leaf: leaf.cpu().expand(len(rows), *leaf.shape).clone(), memory)
        if LAST in found:
            # The row before an episode is a final observation or the last of all, padding: both have zeros there.
            done = {"action": tree.index(self.action, rows - 1), "reward": self.reward[rows - 1]}
            found[LAST] = {**found[LAST], **done}
        return found


def read(name: str, spec: Spec, padding: int = 0, stride: int = 1) -> Recorded:
    """The dataset of this name for environments with `spec`; a `ConfigError` where its spaces are others.

    Args:
        padding: masked rows after the last episode, so that samples of several rows can begin in its last ones.
        stride: the number of rows is a multiple of it.
    """
    dataset = open_dataset(name)
    reader = _Reader(name, dataset, spec)
    lengths = [
        int(entry["total_steps"]) for entry in dataset.storage.get_episode_metadata(dataset.episode_indices)
    ]
    if not sum(lengths):
        raise ConfigError(f"the dataset {name!r} has no steps")
    places, heights = _placed(lengths, spec.num_envs)
    rows = -(-(max(heights) + padding) // stride) * stride
    shape = (rows + 1, spec.num_envs)
    frames = tree.map(
        lambda leaf: torch.zeros(*shape, *leaf.frame.shape, dtype=getattr(torch, leaf.dtype)),
        spec.observation,
    )
    first, reset = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
    action = empty_action(spec.action, (rows, spec.num_envs))
    reward = torch.zeros(rows, spec.num_envs)
    terminated, ended, mask = (torch.zeros(rows, spec.num_envs, dtype=torch.bool) for _ in range(3))
    reset[-1] = True
    # Rows that are no steps keep zeros in all columns but those of observations.
    digest, returns = hashlib.sha256(), []
    for (at, env_index), count, episode in zip(places, lengths, dataset.iterate_episodes(), strict=True):
        obs, done = reader.observations(episode, count), reader.actions(episode)
        over, cut, paid = (
            torch.as_tensor(np.asarray(values))
            for values in (episode.terminations, episode.truncations, episode.rewards)
        )
        here, every = (slice(at, at + count), env_index), (slice(at, at + count + 1), env_index)
        tree.copy_(tree.index(frames, every), obs)
        tree.copy_(tree.index(action, here), done)
        first[every], reset[at, env_index], mask[here] = at, True, True
        reward[here], terminated[here] = paid.float(), over.bool()
        ended[here] = over.bool() | cut.bool()
        ended[at + count - 1, env_index] = True  # an episode that just stops is cut
        returns.append(float(paid.sum()))
        for leaf in (*tree.leaves(obs), *tree.leaves(done), paid.float(), over.bool(), cut.bool()):
            digest.update(leaf.contiguous().numpy().tobytes())
    return Recorded(
        *(name, spec, frames, first, reset, action, reward, terminated, ended, mask),
        lengths=heights,
        episodes=len(lengths),
        returns=returns,
        hash=digest.hexdigest(),
    )


def _placed(lengths: list[int], num_envs: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Row and column in which each episode begins, and the length of every column."""
    heights, places = [0] * num_envs, []
    for count in lengths:
        column = heights.index(min(heights))
        places.append((heights[column], column))
        heights[column] += count + 1
    return places, heights


class _Reader:
    """Converts episodes from the dataset's spaces to trees of tensors; checks that the spaces are those of `spec`."""

    def __init__(self, name: str, dataset: Any, spec: Spec) -> None:
        self.name, self.spec, self.space = name, spec, dataset.action_space
        stack = max(leaf.stack for leaf in tree.leaves(spec.observation))
        observed: spaces.Space = dataset.observation_space
        self.mask: MaskSource = "none"
        if spec.masked:
            inside = isinstance(observed, spaces.Dict) and MASK_KEY in observed.spaces
            self.mask = "observation" if inside else "info"
        layout = make_layout(observed, self.space, self.mask, stack)
        own = to_spec(layout, spec.num_envs)
        own = replace(
            own,
            observation=_in_order(spec.observation, own.observation),
            action=_in_order(spec.action, own.action),
        )
        found = differences(own, spec)
        if found:
            raise ConfigError(
                f"the dataset {name!r} has other spaces than the environment: {'; '.join(found)} (was: in the dataset; "
                "is: in the environment)"
            )
        self.leaves = layout.observation
        self.readers = [read for _, read in observation_parts(observed, self.space, self.mask, 1)]

    def observations(self, episode: Any, count: int) -> Tree:
        """[count + 1, ...] one frame each."""
        found = [read(episode.observations) for read in self.readers]
        if self.mask == "info":
            found.append(self._masks(episode, count))
        values = []
        for leaf, value in zip(self.leaves, found):
            array = np.asarray(value, leaf.dtype)
            if len(array) != count + 1:
                raise ConfigError(
                    f"episode {episode.id} of the dataset {self.name!r} has {len(array)} observations for {count} "
                    "steps; the final observation is needed too, one more than steps"
                )
            values.append(torch.from_numpy(array.reshape(count + 1, *leaf.array.frame.shape)))
        return nest(self.leaves, values)

    def _masks(self, episode: Any, count: int) -> np.ndarray:
        found = (episode.infos or {}).get(MASK_KEY)
        if found is None or len(found) != count + 1:
            raise ConfigError(
                f"the environment has action masks, but episode {episode.id} of the dataset {self.name!r} has none for "
                f"each observation under infos[{MASK_KEY!r}]; record one with whorl record"
            )
        return flatten_mask(choices_of(self.space), found, 1)

    def actions(self, episode: Any) -> Tree:
        """Canonical actions [count, ...]; those beyond a bound are clipped to it, as environments do."""
        action = self.spec.action
        own = tree.map(lambda value: torch.as_tensor(np.asarray(value)), as_keyed(action, episode.actions))
        return tree.map(_bounded, action, from_env(action, own))


def _in_order(like: Tree, given: Tree) -> Tree:
    """`given` with its keys in the order of `like`, if the keys are the same: Gymnasium sorts those of a Dict."""
    if dict(tree.items(given)).keys() != dict(tree.items(like)).keys():
        return given
    return tree.map(lambda _, value: value, like, given)


def _bounded(leaf: Any, action: Tensor) -> Tensor:
    if not isinstance(leaf, Continuous):
        return action
    low = torch.tensor([-1.0 if np.isfinite(x) else -torch.inf for x in leaf.low])
    high = torch.tensor([1.0 if np.isfinite(x) else torch.inf for x in leaf.high])
    return action.clamp(low, high)
