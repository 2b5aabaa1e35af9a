"""Hindsight experience replay: worked numbers, and random rings held against a plain record of their episodes."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorder import GAMMA, Recorder
from torch import Tensor

from whorl.agents.families import OffPolicyConfig
from whorl.conformance import capture_safe
from whorl.core.errors import ConfigError
from whorl.core.goals import ACHIEVED, DESIRED
from whorl.core.spec import Array, Discrete, Spec, Stream
from whorl.data.batch import Batch
from whorl.data.hindsight import Relabelled, check_goals, hindsight_bytes
from whorl.data.replay import Replay
from whorl.data.ring import Ring
from whorl.data.samplers import Priorities
from whorl.data.views import Sequences, Transitions, View

STRATEGIES = ["future", "final", "episode"]


class Rewards:
    """A reward that tells all goals apart: -|achieved - desired| of the first number; equal ones end an episode."""

    on_device = True

    def __init__(self, terminates: bool = False) -> None:
        self.terminates = terminates

    def reward(self, achieved: Tensor, desired: Tensor) -> Tensor:
        return -(achieved - desired)[:, 0].abs()

    def terminated(self, achieved: Tensor, desired: Tensor) -> Tensor:
        return (achieved == desired).all(-1)


def goal_spec(num_envs: int, **options: Any) -> Spec:
    """The achieved goal names the row and its environment; so does the desired one, with negative numbers."""
    goal = Array((2,))
    return Spec({"row": Array((2,)), ACHIEVED: goal, DESIRED: goal}, Discrete(5), num_envs, **options)


def replay(num_envs: int, slots: int, view: View, her: str, batch_size: int = 64, **options: Any) -> Replay:
    return Replay(
        goal_spec(num_envs, **options.pop("spec", {})),
        "cpu",
        torch.Generator().manual_seed(options.pop("seed", 0)),
        view=view,
        buffer_size=num_envs * slots,
        batch_size=batch_size,
        gamma=GAMMA,
        her=her,
        goal_rewards=options.pop("rewards", None) or Rewards(),
        **options,
    )


def with_goals(rollout: Batch) -> Batch:
    row = rollout.obs["row"]
    return rollout.replace(obs={"row": row, ACHIEVED: row, DESIRED: -1 - row}, extras={})


def episodes(*lengths: int, ends: bool = True) -> Batch:
    """Episodes with these numbers of steps, the last of them still running unless `ends`; all truncated, reward 7.

    Row r achieves the goal (r, 0) and desires (-1 - r, -1).
    """
    rows: list[tuple[bool, bool, bool]] = []  # reset, mask, keep
    for number, length in enumerate(lengths):
        closed = ends or number < len(lengths) - 1
        rows += [(step == 0, True, step < length - 1 or not closed) for step in range(length)]
        rows += [(False, False, False)] * closed
    count = len(rows)
    flags = torch.tensor([*rows, (ends, False, False)]).unsqueeze(1)  # the open row
    number = torch.arange(count + 1).float()
    obs = {"row": torch.stack((number, torch.zeros_like(number)), -1).unsqueeze(1)}
    mask = flags[:-1, :, 1]
    return with_goals(
        Batch(
            obs=obs,
            reset=flags[..., 0],
            action=torch.zeros(count, 1, dtype=torch.int64),
            reward=7.0 * mask,
            continues=mask.clone(),
            keep=flags[:-1, :, 2].float(),
            mask=mask.float(),
        )
    )


def goal_rows(store: Replay, start: int, *uniform: float) -> list[int]:
    """The rows whose goals are drawn for a sample that starts at a row of environment 0, before anything wrapped."""
    assert store.hindsight is not None
    count = len(uniform)
    found = store.hindsight.goal_slot(
        torch.full((count,), start), torch.zeros(count, dtype=torch.int64), torch.tensor(uniform)
    )
    return found.tolist()


# Worked numbers: rows 0 1 2 3 are steps and 4 is the final observation; 5 6 are steps, 7 final; 8 9 10 still running.
ROWS = (4, 2, 3)


@pytest.mark.parametrize(
    ("her", "start", "expected"),
    [
        ("future", 0, [1, 2, 3, 4]),
        ("future", 2, [3, 3, 4, 4]),
        ("future", 3, [4, 4, 4, 4]),
        ("future", 5, [6, 6, 7, 7]),
        ("future", 8, [9, 9, 10, 10]),
        ("final", 0, [4, 4, 4, 4]),
        ("final", 6, [7, 7, 7, 7]),
        ("final", 8, [10, 10, 10, 10]),
        ("episode", 3, [0, 1, 2, 4]),
        ("episode", 6, [5, 5, 6, 7]),
        ("episode", 9, [8, 8, 9, 10]),
    ],
)
def test_a_goal_comes_from_the_rows_of_its_own_episode(her: str, start: int, expected: list[int]) -> None:
    store = replay(1, 20, Transitions(), her)
    store.add(episodes(*ROWS, ends=False))
    assert goal_rows(store, start, 0.0, 0.3, 0.59, 0.999) == expected


def test_an_episode_that_goes_on_gets_its_new_rows() -> None:
    record, store = Recorder(1, end=0.0), replay(1, 20, Transitions(), "final")
    for newest in (2, 5, 8):
        store.add(with_goals(record.rollout(3)))
        assert goal_rows(store, 1, 0.5) == [newest]


def test_a_cut_ends_an_episode_as_a_reset_does() -> None:
    record, store = Recorder(1, end=0.0), replay(1, 20, Transitions(), "final")
    store.add(with_goals(record.rollout(4)))
    store.cut()
    store.add(with_goals(record.rollout(4)))
    assert goal_rows(store, 1, 0.5) == [3]
    assert goal_rows(store, 5, 0.5) == [7]


def test_what_was_overwritten_is_no_goal() -> None:
    record, store = Recorder(1, end=0.0), replay(1, 8, Transitions(), "episode")
    for _ in range(3):
        store.add(with_goals(record.rollout(4)))
    # Rows 4 to 11 are stored, row 8 in slot 0: from the oldest one, in slot 4, to the newest, in slot 3.
    found = goal_rows(store, 1, *(k / 8 for k in range(8)))
    assert [slot % 8 for slot in found] == [4, 5, 6, 7, 0, 1, 2, 3]


def chosen(store: Replay, start: list[int], goal: list[int]) -> Batch:
    """Samples that start at rows, with the goals that other rows achieved."""
    assert store.hindsight is not None
    goals = store.ring.columns["obs"][ACHIEVED][torch.tensor(goal), 0]
    some = torch.ones(len(start), dtype=torch.bool)
    rows = Relabelled(store.ring, store.hindsight.rewards, goals, some, store.reward_clip)
    return store.view.gather(rows, torch.tensor(start), store.discounting)


def test_every_reward_of_an_n_step_return_is_that_of_the_new_goal() -> None:
    store = replay(1, 20, Transitions(3), "future")
    store.add(episodes(*ROWS, ends=False))
    found = chosen(store, [0, 1, 2], [3, 4, 4])
    # From row 0 to goal 3: rewards -2, -1, 0 for reaching rows 1, 2 and 3, with discounts 1, 0.9 and 0.81.
    # From row 1 to goal 4: -2, -1, 0, and the episode is cut by its time limit there. From row 2: -1, 0, and it is cut.
    assert found.reward[0].tolist() == pytest.approx([-2.9, -2.9, -1.0])
    assert found.discount[0].tolist() == pytest.approx([0.729, 0.729, 0.81])
    assert found.keep[0].tolist() == [1, 0, 0]
    assert found.obs[DESIRED][:, 0].tolist() == [[3, 0], [3, 0]]
    assert found.obs["row"][1, :, 0].tolist() == [3, 4, 4]


def test_where_achieving_a_goal_terminates_returns_stop_at_the_new_one() -> None:
    store = replay(1, 20, Transitions(3), "future", rewards=Rewards(terminates=True))
    store.add(episodes(*ROWS, ends=False))
    found = chosen(store, [0, 0], [2, 4])
    # Goal 2: -1, then 0, and there it ends. Goal 4: -3, -2, -1, and it goes on.
    assert found.reward[0].tolist() == pytest.approx([-1.0, -3 - 0.9 * 2 - 0.81])
    assert found.discount[0].tolist() == pytest.approx([0.0, 0.729])
    assert found.keep[0].tolist() == [0, 1]
    assert found.obs["row"][1, :, 0].tolist() == [2, 3]


@pytest.mark.parametrize(("reason", "discount"), [("goal", 0.9), ("fall", 0.0)])
def test_an_end_at_the_old_goal_is_none_for_the_new_one_and_other_ends_stay(
    reason: str, discount: float
) -> None:
    store = replay(1, 20, Transitions(), "future", rewards=Rewards(terminates=True))
    rollout = episodes(3, 2)
    assert rollout.continues is not None
    rollout.continues[2] = False  # the step to row 3 ended the first episode
    if reason == "goal":
        rollout.obs[DESIRED][2] = rollout.obs[ACHIEVED][3]
    store.add(rollout)
    found = chosen(store, [2], [0])
    assert found.discount.item() == pytest.approx(discount)
    assert found.keep.item() == 0  # the next row belongs to nobody
    assert found.obs["row"][1, 0, 0].item() == 3


def test_intrinsic_rewards_stay_and_new_rewards_are_clipped() -> None:
    options = {"spec": {"streams": (Stream("bonus"),)}, "reward_clip": 1.5, "separate_streams": True}
    store = replay(1, 20, Transitions(), "future", **options)
    rollout = episodes(*ROWS, ends=False)
    store.add(rollout.replace(reward=torch.stack((rollout.reward, 3 * rollout.mask), -1)))
    assert chosen(store, [0, 1], [4, 3]).reward[0].tolist() == [[-1.5, 3.0], [-1.0, 3.0]]


# Random rings against a record of their episodes


class Record:
    """Random episodes with goals, restarts and gaps; `first[env][row]` is the first row of each row's episode."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.inner = Recorder(num_envs, seed=seed)
        self.breaks: list[set[int]] = [set() for _ in range(num_envs)]
        self.generator = torch.Generator().manual_seed(seed)

    def add(self, store: Replay, steps: int) -> None:
        kind = int(torch.randint(8, (), generator=self.generator))
        if kind == 0:
            self.inner.restart()
        where = torch.rand(len(self.breaks), generator=self.generator) < 0.5
        if kind == 1 and store.ring.rows:
            store.cut(where)
            for env_index in where.nonzero().squeeze(1).tolist():
                rows = self.inner.rows[env_index]
                self.breaks[env_index].add(len(rows) - 1)
                rows[-2].mask = rows[-2].keep = False
                rows[-3].keep = False
        store.add(with_goals(self.inner.rollout(steps)))

    def episode(self, env_index: int, row: int, oldest: int, newest: int) -> range:
        """The stored rows of a row's episode, by walking both ways."""
        rows, breaks = self.inner.rows[env_index], self.breaks[env_index]
        first = last = row
        while first > oldest and not rows[first].reset and first not in breaks:
            first -= 1
        while last < newest and not rows[last + 1].reset and last + 1 not in breaks:
            last += 1
        return range(first, last + 1)

    def fold(self, env_index: int, start: int, n: int, goal: Tensor) -> tuple[float, float, int]:
        """Return, discount and row to bootstrap from with another goal, by walking."""
        reward, discount, at = 0.0, 1.0, start
        for at in range(start, start + n):
            row = self.inner.rows[env_index][at]
            reward -= discount * abs(at + 1 - goal[0].item())
            discount *= GAMMA * row.continues
            if not row.keep:
                break
        return reward, discount, at + 1


def rings() -> Iterator[Any]:
    for her in STRATEGIES:
        for number, (num_envs, slots, steps, n) in enumerate([(1, 30, 1, 1), (3, 40, 7, 3), (5, 17, 4, 2)]):
            yield pytest.param(her, num_envs, slots, steps, n, number == 1, id=f"{her}-{num_envs}x{slots}")


@pytest.mark.parametrize(("her", "num_envs", "slots", "steps", "n", "prioritized"), list(rings()))
def test_every_new_goal_is_of_the_same_episode_and_has_its_reward(
    her: str, num_envs: int, slots: int, steps: int, n: int, prioritized: bool
) -> None:
    record = Record(num_envs, seed=num_envs)
    options = {"priorities": Priorities() if prioritized else None, "batch_size": 32}
    store = replay(num_envs, slots, Transitions(n), her, **options)
    relabelled = drawn = 0
    while store.ring.rows < 5 * slots:
        record.add(store, steps)
        if store.ring.rows < 6 or (steps == 1 and store.ring.rows % 3) or not store.sampler.any():
            continue
        batch = store.sample()
        store.settle(batch, SimpleNamespace(priority=batch.reward.abs() + 0.1))
        for b, (start, env_index) in enumerate(batch.obs["row"][0].long().tolist()):
            drawn += 1
            goal = batch.obs[DESIRED][0, b]
            assert torch.equal(goal, batch.obs[DESIRED][1, b]) or goal[0] < 0
            if goal[0] < 0:
                assert goal.tolist() == [-1 - start, -1 - env_index]
                assert batch.reward[0, b].item() == pytest.approx(
                    record.inner.fold(env_index, start, n)[0], abs=1e-5
                )
                continue
            relabelled += 1
            row = int(goal[0])
            episode = record.episode(env_index, start, store.ring.oldest, store.ring.rows - 1)
            assert int(goal[1]) == env_index
            assert row in episode
            if her != "episode":
                assert row > start
            if her == "final":
                assert row == episode[-1]
            reward, discount, after = record.fold(env_index, start, n, goal)
            assert batch.reward[0, b].item() == pytest.approx(reward, abs=1e-4)
            assert batch.discount[0, b].item() == pytest.approx(discount, abs=1e-6)
            assert batch.obs["row"][1, b].tolist() == [after, env_index]
    assert relabelled / drawn == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize(("her", "rows"), [("future", range(3, 8)), ("episode", range(8))])
def test_goals_are_drawn_uniformly(her: str, rows: range) -> None:
    store = replay(1, 20, Transitions(), her, batch_size=40_000)
    store.add(episodes(7, 1))
    batch = store.sample()
    own = batch.obs["row"][0, :, 0] == 2
    goal = batch.obs[DESIRED][0, own, 0]
    assert (goal >= 0).float().mean().item() == pytest.approx(0.8, abs=0.03)
    counts = torch.bincount(goal[goal >= 0].long(), minlength=rows.stop).float()
    assert len(counts) == rows.stop and not counts[: rows.start].any()
    share = counts[rows.start :] / counts.sum()
    assert torch.allclose(share, torch.full_like(share, 1 / len(rows)), atol=0.03)


@pytest.mark.parametrize("her", STRATEGIES)
def test_a_loaded_ring_draws_the_same_goals(her: str) -> None:
    record, store = Record(3, seed=1), replay(3, 20, Transitions(2), her)
    for _ in range(9):  # round twice
        record.add(store, 5)
    again, other = replay(3, 20, Transitions(2), her, seed=9), Record(3, seed=2)
    for _ in range(30):
        other.add(again, 3)  # what was there before is gone
    again.load_state_dict(store.state_dict())
    again.generator.set_state(store.generator.get_state())
    for _ in range(4):
        one, two = store.sample(), again.sample()
        assert torch.equal(one.obs[DESIRED], two.obs[DESIRED]) and torch.equal(one.reward, two.reward)
        state = record.inner.generator.get_state()
        rollout = with_goals(record.inner.rollout(5))
        record.inner.generator.set_state(state)
        store.add(rollout)
        again.add(rollout)


def test_sampling_with_new_goals_can_be_captured() -> None:
    record, store = Record(3, seed=1), replay(3, 20, Transitions(2), "future", rewards=Rewards(True))
    record.add(store, 9)
    with capture_safe():
        store.sample()


def test_a_sequence_has_one_goal_of_its_own_episode() -> None:
    record, store = Record(2, seed=3), replay(2, 60, Sequences(6, whole=True, n_step=2), "future")
    record.inner.end = 0.3
    while store.ring.rows < 150:
        record.add(store, 5)
    batch = store.sample()
    new = 0
    for b, (start, env_index) in enumerate(batch.obs["row"][0].long().tolist()):
        goals = batch.obs[DESIRED][:, b]
        if goals[0, 0] < 0:
            continue
        new += 1
        assert torch.equal(goals, goals[:1].expand_as(goals))
        row = int(goals[0, 0])
        assert row > start
        assert row in record.episode(env_index, start, store.ring.oldest, store.ring.rows - 1)
        for t in range(6):
            if batch.mask[t, b]:
                reward, discount, _ = record.fold(env_index, start + t, 2, goals[0])
                assert batch.reward[t, b].item() == pytest.approx(reward, abs=1e-4)
                assert batch.discount[t, b].item() == pytest.approx(discount, abs=1e-6)
    assert new > 30


# Settings


@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        (Spec(Array((2,)), Discrete(2), 1), {}, "no achieved_goal and no desired_goal"),
        (Spec({ACHIEVED: Array((2,)), DESIRED: Array((3,))}, Discrete(2), 1), {}, "of one shape"),
        (goal_spec(1), {"memory": "gru"}, "set whole_episodes to true"),
        (goal_spec(1), {"memory": "gru", "whole_episodes": True}, ""),
        (goal_spec(1), {}, ""),
    ],
)
def test_what_can_not_be_given_other_goals_is_refused(
    spec: Spec, settings: dict[str, Any], message: str
) -> None:
    cfg = OffPolicyConfig(her="future", **settings)
    if not message:
        check_goals(cfg, spec)
        return
    with pytest.raises(ConfigError, match=message):
        check_goals(cfg, spec)


def test_without_a_reward_function_there_are_no_new_goals() -> None:
    with pytest.raises(ConfigError, match="compute_reward"):
        Replay(
            goal_spec(1),
            "cpu",
            torch.Generator(),
            view=Transitions(),
            buffer_size=9,
            batch_size=2,
            gamma=GAMMA,
            her="final",
        )


def test_the_size_of_what_is_stored_for_goals_is_known_before() -> None:
    store = replay(3, 20, Transitions(), "future")
    assert store.hindsight is not None and isinstance(store.ring, Ring)
    held = [store.hindsight.episodes.episode, store.hindsight.episodes.first, store.hindsight.episodes.last]
    cfg = OffPolicyConfig(her="future", buffer_size=60)
    assert hindsight_bytes(cfg, goal_spec(3), 1) == sum(x.numel() * x.element_size() for x in held)
