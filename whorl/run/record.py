"""Recording episodes of a policy as a dataset, in the environment's own observations and actions."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import MASK_KEY
from whorl.core.errors import ConfigError
from whorl.core.spec import ActionLeaf, Continuous, as_keyed, as_nested, from_env, to_env
from whorl.datasets.minari import Episode, Writer, collate
from whorl.envs.make import Source
from whorl.envs.mistakes import make_env
from whorl.envs.spaces import describe, mask_reader, sample_allowed
from whorl.envs.stepping import env_seed
from whorl.state.policy import SavedPolicy


@dataclass(frozen=True)
class Recording:
    """A dataset that was written."""

    id: str
    folder: Path
    returns: list[float]
    lengths: list[int]

    @property
    def mean_return(self) -> float:
        return fmean(self.returns)

    @property
    def steps(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class Behavior:
    """How the policy acts while it is recorded."""

    deterministic: bool = True
    epsilon: float = 0.0
    """probability of a random action"""
    noise: float = 0.0
    """standard deviation of Gaussian noise on continuous actions, for actions scaled to [-1, 1]"""


def record_episodes(
    policy: SavedPolicy,
    source: Source,
    writer: Writer,
    episodes: int,
    seed: int,
    behavior: Behavior,
    max_steps: int,
    num_envs: int = 16,
) -> Recording:
    """Play `episodes` episodes, as many in each environment plus or minus one, and write them as they end.

    Counting those that end first would favour short ones. An episode is truncated after `max_steps`.
    """
    if behavior.noise and not any(isinstance(leaf, Continuous) for leaf in tree.leaves(policy.spec.action)):
        raise ConfigError(
            "noise is for continuous actions, and this policy has none; use epsilon for random ones"
        )
    num_envs = min(num_envs, episodes)
    players = [
        _Player(
            source, writer, episodes // num_envs + (n < episodes % num_envs), env_seed(seed, n), max_steps
        )
        for n in range(num_envs)
    ]
    policy.seed(seed)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    policy.reset()
    try:
        while any(player.left for player in players):
            policy.reset(np.array([player.opens for player in players]))
            space = players[0].env.observation_space
            observed = collate(space, [player.obs for player in players], for_policy=True)
            masks = None if players[0].mask is None else np.array([player.mask for player in players])
            rewards = np.array([player.reward for player in players], np.float32)
            batch = policy.act(observed, behavior.deterministic, masks, rewards)
            if behavior.noise:
                batch = _noisy(policy, batch, behavior.noise, generator)
            chance = rng.random(num_envs)
            actions = [
                player.random_action() if chance[number] < behavior.epsilon else _row(batch, number)
                for number, player in enumerate(players)
            ]
            if behavior.noise or behavior.epsilon:
                policy.took(collate(players[0].env.action_space, actions))
            for player, action in zip(players, actions):
                if player.left:
                    player.step(action)
    finally:
        for player in players:
            player.env.close()
    done = [episode for player in players for episode in player.done]
    return Recording(writer.id, writer.finish(), [r for r, _ in done], [n for _, n in done])


class _Player:
    """One environment, and the episode that is played in it."""

    def __init__(self, source: Source, writer: Writer, quota: int, seed: int, max_steps: int) -> None:
        self.env: gymnasium.Env = make_env(source.factory)
        layout = describe(self.env)
        self.read_mask = mask_reader(layout, self.env) if layout.mask in ("info", "method") else None
        self.writer, self.left, self.max_steps, self.seed = writer, quota, max_steps, seed
        self.done: list[tuple[float, int]] = []
        """return and length of each episode"""
        self.env.action_space.seed(seed)
        self.mask: np.ndarray | None = None
        self._begin(seed)

    def _begin(self, seed: int | None = None) -> None:
        self.episode, self.opens, self.reward = Episode(seed), True, 0.0
        self._see(*self.env.reset(seed=seed))

    def _see(self, obs: Any, info: dict[str, Any]) -> None:
        self.obs = obs
        self.episode.observations.append(_copied(obs))
        if self.read_mask is not None:
            self.mask = self.read_mask(info)
            self.episode.infos.setdefault(MASK_KEY, []).append(self.mask)

    def random_action(self) -> Any:
        """A uniformly random action that is allowed."""
        inside = isinstance(self.obs, dict) and self.read_mask is None
        mask = self.obs.get(MASK_KEY) if inside else self.mask
        return sample_allowed(self.env.action_space, mask)

    def step(self, action: Any) -> None:
        """Take a step; the end of an episode writes it and begins the next one."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        episode = self.episode
        truncated = bool(truncated) or len(episode.rewards) + 1 >= self.max_steps
        episode.actions.append(_copied(action))
        episode.rewards.append(float(reward))
        episode.terminations.append(bool(terminated))
        episode.truncations.append(truncated)
        self.opens, self.reward = False, float(reward)
        self._see(obs, info)
        if terminated or truncated:
            self.writer.add(episode)
            self.done.append((sum(episode.rewards), len(episode.rewards)))
            self.left -= 1
            self._begin()


def check_recordable(source: Source, behavior: Behavior) -> None:
    """Raise where an environment can't be recorded, or these numbers make no sense."""
    if source.adapter is not None and not source.adapter.single:
        raise ConfigError(
            f"{source.id} is a batch of environments; only a single environment can be recorded"
        )
    if not 0 <= behavior.epsilon <= 1:
        raise ConfigError(f"epsilon is {behavior.epsilon}; a probability is at least 0 and at most 1")
    if not 0 <= behavior.noise < np.inf:
        raise ConfigError(f"noise is {behavior.noise}; a standard deviation is at least 0")


def _noisy(policy: SavedPolicy, batch: Any, scale: float, generator: torch.Generator) -> Any:
    """A batch of the environment's actions with Gaussian noise on continuous ones, within their bounds."""
    spec = policy.spec.action

    def leaf(like: ActionLeaf, value: Tensor) -> Tensor:
        if not isinstance(like, Continuous):
            return value
        return value + scale * torch.randn(value.shape, generator=generator)

    canonical = from_env(spec, tree.map(torch.as_tensor, as_keyed(spec, batch)))
    noisy = to_env(spec, tree.map(leaf, spec, canonical))
    return as_nested(spec, tree.map(lambda value: value.numpy(), noisy))


def _row(batch: Any, number: int) -> Any:
    """One action of a batch."""
    if isinstance(batch, dict):
        return {key: _row(value, number) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_row(value, number) for value in batch)
    return batch[number]


def _copied(value: Any) -> Any:
    """A copy: environments may reuse their arrays."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_copied(inner) for inner in value)
    return np.array(value)
