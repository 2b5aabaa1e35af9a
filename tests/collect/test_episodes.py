"""Ends of episodes as numbers, and the sums over episodes, row by row by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from whorl.collect.collector import Storage
from whorl.collect.episodes import EpisodeStatistics
from whorl.data.batch import Batch


def columns(*each: list[float]) -> Tensor:
    """[T, B] from one list per environment."""
    return torch.tensor(each, dtype=torch.float32).T


def rollout(reward: Tensor, keep: Tensor, mask: Tensor) -> Batch:
    steps, num_envs = reward.shape
    reset = torch.zeros(steps + 1, num_envs, dtype=torch.bool)
    return Batch(torch.zeros(steps + 1, num_envs, 1), reset, {}, reward, keep, keep, mask)


def add(statistics: EpisodeStatistics, batch: Batch, soft: Tensor | None = None) -> list[float]:
    """Steps, episodes, sum of returns and sum of lengths of one rollout."""
    none = torch.zeros_like(batch.mask, dtype=torch.bool)
    statistics.add(batch, none if soft is None else soft > 0, torch.zeros(*batch.shape, 0))
    found = statistics.drain()
    return [found[name] for name in ("steps", "episodes", "return", "length")]


THREE = [
    # Environment 0 ends after rewards 1 and 2; environment 1 goes on with 1, 1, 1.
    (columns([1, 2, 0], [1, 1, 1]), columns([1, 0, 0], [1, 1, 1]), columns([1, 1, 0], [1, 1, 1])),
    # Environment 0 goes on with 4, 5, 6; environment 1 ends after 3 and has begun with 7.
    (columns([4, 5, 6], [3, 0, 7]), columns([1, 1, 1], [0, 0, 1]), columns([1, 1, 1], [1, 0, 1])),
    # Both end in the first row.
    (columns([1, 0, 9], [1, 0, 9]), columns([0, 0, 1], [0, 0, 1]), columns([1, 0, 1], [1, 0, 1])),
]


def test_episodes_are_summed_across_rollouts() -> None:
    statistics = EpisodeStatistics(2, torch.device("cpu"))
    assert add(statistics, rollout(*THREE[0])) == [5, 1, 3, 2]
    assert add(statistics, rollout(*THREE[1])) == [5, 1, 6, 4]  # 1 + 1 + 1 + 3
    assert add(statistics, rollout(*THREE[2])) == [4, 2, 24, 6]  # 4 + 5 + 6 + 1 and 7 + 1


def test_each_episode_is_kept_where_somebody_asks() -> None:
    statistics = EpisodeStatistics(2, torch.device("cpu"), numbers=[4, 5])
    statistics.record = True
    for given in THREE:
        add(statistics, rollout(*given))
    found = [(e.env_index, e.total_reward, e.length) for e in statistics.ended]
    assert found == [(4, 3.0, 2), (5, 6.0, 4), (4, 16.0, 4), (5, 8.0, 2)]


def test_a_lost_life_does_not_end_an_episode() -> None:
    statistics = EpisodeStatistics(1, torch.device("cpu"))
    batch = rollout(columns([1, 2, 3]), columns([1, 0, 0]), torch.ones(3, 1))
    assert add(statistics, batch, columns([0, 1, 0])) == [3, 1, 6, 3]


def test_open_episodes_that_are_dropped_are_not_in_later_ones() -> None:
    statistics = EpisodeStatistics(2, torch.device("cpu"))
    add(statistics, rollout(*THREE[1]))
    statistics.forget()
    assert add(statistics, rollout(*THREE[2])) == [4, 2, 2, 2]


@pytest.mark.parametrize(("name", "other"), [("reward", "observation"), ("observation", "reward")])
def test_numbers_that_are_not_finite_are_counted(name: str, other: str) -> None:
    statistics = EpisodeStatistics(2, torch.device("cpu"))
    batch = rollout(*(part.clone() for part in THREE[0]))
    (batch.reward if name == "reward" else batch.obs)[1, 1] = torch.nan
    statistics.add(batch, batch.mask < 0, torch.zeros(3, 2, 0))
    found = statistics.drain()
    assert (found[f"bad_{name}"], found[f"bad_{other}"]) == (1, 0)


def test_sums_and_open_episodes_are_state() -> None:
    one, two = (EpisodeStatistics(2, torch.device("cpu")) for _ in range(2))
    one.add(rollout(*THREE[1]), torch.zeros(3, 2) > 1, torch.zeros(3, 2, 0))
    two.load_state_dict(one.state_dict())
    assert add(two, rollout(*THREE[2])) == [9, 3, 27, 7]


def storage(**flags: list[int]) -> Storage:
    """Rows of one environment with reward 1 each; flags are lists of rows."""
    steps = 6
    tensors: dict[str, Any] = {
        "obs": torch.zeros(steps + 1, 1, 1),
        "reset": torch.zeros(steps + 1, 1, dtype=torch.bool),
        "reward": torch.ones(steps, 1),
        "measures": torch.zeros(steps, 1, 0),
        "action": {},
        "extras": {},
        "memories": {},
        **{name: torch.zeros(steps, 1, dtype=torch.bool) for name in ("terminated", "truncated", "soft")},
    }
    for name, rows in flags.items():
        tensors[name][rows] = True
    return Storage(tensors)


def test_ends_of_episodes_become_numbers() -> None:
    # Row 1 is truncated, row 2 leads from its final observation to a new episode; in row 3 a life is lost, row 4
    # terminates, row 5 leads to a new episode.
    batch = storage(truncated=[1], reset=[3, 6], soft=[3], terminated=[4]).batch()
    assert batch.mask[:, 0].tolist() == [1, 1, 0, 1, 1, 0]
    assert batch.continues is not None
    assert batch.continues[:, 0].tolist() == [True, True, False, False, False, False]
    assert batch.keep[:, 0].tolist() == [1, 0, 0, 0, 0, 0]
    assert batch.reward[:, 0].tolist() == [1, 1, 0, 1, 1, 0]


def test_where_environments_are_reset_after_a_rollout_its_last_row_ends_returns_and_no_episode_counts() -> (
    None
):
    statistics = EpisodeStatistics(1, torch.device("cpu"))
    batch = storage().finish(statistics, cut=True)
    assert batch.keep[:, 0].tolist() == [1, 1, 1, 1, 1, 0]
    assert batch.continues is not None and bool(batch.continues.all()), "a cut is no terminal state"
    assert statistics.drain()["episodes"] == 0
    assert not statistics.open.any()
