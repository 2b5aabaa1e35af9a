"""gamma is applied when a batch is made: the same numbers as with a stored discount, per environment and per stream."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from recorder import Recorder, spec
from torch import Tensor

from whorl.core.spec import Stream
from whorl.data.batch import Batch
from whorl.data.discounting import Discounting, with_streams
from whorl.data.replay import Replay, starts
from whorl.data.ring import Ring, replay_bytes
from whorl.data.rollouts import Rollouts
from whorl.data.views import Sequences, Transitions, View
from whorl.ops.returns import discounted_return, gae

NOVELTY = Stream("novelty", gamma=0.5, episodic=False, weight=2.0)
EPISODIC = Stream("curiosity", gamma=0.8, weight=0.5)


def filled(view: View, gamma: Any = 0.9, num_envs: int = 3, streams: Any = (), **options: Any) -> Replay:
    """A replay buffer with random episodes; the reward of stream i is that of the environment plus i."""
    record = Recorder(num_envs, seed=1)
    given = replace(spec(num_envs), streams=streams)
    store = Replay(
        *(given, "cpu", torch.Generator().manual_seed(0)),
        view=view,
        gamma=gamma,
        buffer_size=num_envs * 40,
        batch_size=64,
        **options,
    )
    for _ in range(7):
        rollout = record.rollout(6)
        rewards = {stream.name: rollout.reward + 1 + i for i, stream in enumerate(streams)}
        store.add(with_streams(rollout, streams, rewards))
    return store


def every(store: Replay) -> Tensor:
    found = starts(store.ring, store.view, store.ring.first_start(), store.ring.rows - store.view.span)
    return found[store.view.allowed(store.ring, found)]


@pytest.mark.parametrize("gamma", [0.9, 0.99, 0.995, 0.997, 1.0])
def test_rollouts_have_the_discounts_that_were_computed_at_collection_before(gamma: float) -> None:
    rollout = Recorder(4, seed=2).rollout(50)
    experience = Rollouts(Discounting(gamma))
    experience.add(rollout)
    ((phase, batch),) = experience.due()
    assert phase == "update" and batch.continues is None and rollout.continues is not None
    assert torch.equal(batch.discount, gamma * rollout.continues.float() * rollout.mask)
    assert batch.discount.dtype == torch.float32
    assert torch.equal(batch.reward, rollout.reward) and torch.equal(batch.keep, rollout.keep)


@pytest.mark.parametrize("gamma", [0.9, 0.99, 0.995, 0.997])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_transitions_equal_those_of_a_stored_discount_bit_for_bit(n: int, gamma: float) -> None:
    store = filled(Transitions(n), gamma)
    ring, start = store.ring, every(store)
    stored = gamma * ring.columns["continues"].float()  # the column that the ring held before
    cells = ring.cells(start // 3 + torch.arange(n).unsqueeze(1), start % 3)
    keep, mask = ring.take("keep", cells), ring.take("mask", start.unsqueeze(0))
    counts = torch.cat((mask, keep[:-1])).cumprod(0).bool()
    discount = torch.where(counts, stored.flatten()[cells], 1.0).cumprod(0)
    weight = torch.cat((torch.ones_like(discount[:1]), discount[:-1]))
    reward = torch.where(counts, weight * ring.take("reward", cells), 0.0).sum(0, keepdim=True)
    batch = store.view.gather(ring, start, store.discounting)
    assert len(start) > 50
    assert torch.equal(batch.discount, discount[-1:]) and torch.equal(batch.reward, reward)


@pytest.mark.parametrize("n", [1, 3])
def test_sequences_equal_those_of_a_stored_discount_bit_for_bit(n: int) -> None:
    gamma, count = 0.997, 5
    store = filled(Sequences(count, n_step=n), gamma)
    ring, start = store.ring, every(store)
    stored = (gamma * ring.columns["continues"].float()).flatten()
    rows = ring.cells(start // 3 + torch.arange(count + n - 1).unsqueeze(1), start % 3)
    reward = torch.where(ring.take("mask", rows), ring.take("reward", rows), 0.0)
    keep, discount = ring.take("keep", rows), stored[rows]
    folded, weight = torch.zeros(count, len(start)), torch.ones(count, len(start))
    counts = torch.ones(count, len(start), dtype=torch.bool)
    for step in range(n):
        row = slice(step, step + count)
        folded = folded + torch.where(counts, weight * reward[row], 0.0)
        weight = torch.where(counts, weight * discount[row], weight)
        counts = counts & keep[row]
    batch = store.view.gather(ring, start, store.discounting)
    assert torch.equal(batch.discount, discount[:count] if n == 1 else weight)
    assert torch.equal(batch.reward, reward[:count] if n == 1 else folded)


def test_a_row_takes_fewer_bytes_than_with_a_stored_discount() -> None:
    # 8 + 4 bytes of observation, an int64 action, reward, and the flags reset, keep, mask; before: a float discount.
    before = 4 * 100 * (8 + 4 + 8 + 4 + 3 + 4)
    assert replay_bytes(spec(4), 400) == 4 * 100 * (8 + 4 + 8 + 4 + 4) < before
    two = replace(spec(4), streams=(NOVELTY, EPISODIC))
    assert replay_bytes(two, 400) == 4 * 100 * (8 + 4 + 8 + 3 * 4 + 4)
    assert Ring(two, 400).columns["reward"].shape == (100, 4, 3)


@pytest.mark.parametrize("view", [Transitions(1), Transitions(3), Sequences(4), Sequences(4, n_step=2)])
def test_gamma_may_differ_between_environments(view: View) -> None:
    gamma = torch.tensor([0.5, 0.9, 1.0])
    mixed, start = filled(view, gamma), every(filled(view, gamma))
    batch = mixed.view.gather(mixed.ring, start, mixed.discounting)
    for env_index, value in enumerate(gamma.tolist()):
        alone = filled(view, value)
        expected = alone.view.gather(alone.ring, start, alone.discounting)
        here = start % 3 == env_index
        assert torch.equal(batch.discount[:, here], expected.discount[:, here])
        assert torch.equal(batch.reward[:, here], expected.reward[:, here])


def test_a_rollout_s_gamma_may_differ_between_environments() -> None:
    rollout = Recorder(3, seed=2).rollout(20)
    batch = Discounting(torch.tensor([0.5, 0.9, 1.0])).apply(rollout)
    for env_index, value in enumerate((0.5, 0.9, 1.0)):
        assert torch.equal(
            batch.discount[:, env_index], Discounting(value).apply(rollout).discount[:, env_index]
        )


# Reward streams


@pytest.mark.parametrize("view", [Transitions(1), Transitions(3), Sequences(4), Sequences(4, n_step=2)])
def test_replay_mixes_streams_before_folding(view: View) -> None:
    streams = (NOVELTY, EPISODIC)
    store, plain = filled(view, streams=streams), filled(view)
    # r + 2 * (r + 1) + 0.5 * (r + 2) on every transition, 0 on masked rows
    rewards = plain.ring.columns["reward"]
    mixed = rewards + 2.0 * (rewards + 1) + 0.5 * (rewards + 2)
    rewards.copy_(torch.where(plain.ring.columns["mask"], mixed, 0.0))
    start = every(store)
    batch = store.view.gather(store.ring, start, store.discounting)
    expected = plain.view.gather(plain.ring, start, plain.discounting)
    assert batch.reward.shape == batch.mask.shape
    torch.testing.assert_close(batch.reward, expected.reward)
    assert torch.equal(batch.discount, expected.discount) and torch.equal(batch.keep, expected.keep)


def test_a_weight_of_zero_leaves_the_environments_reward_bit_for_bit() -> None:
    store = filled(Transitions(3), streams=(replace(NOVELTY, weight=0.0),))
    plain, start = filled(Transitions(3)), every(filled(Transitions(3)))
    batch = store.view.gather(store.ring, start, store.discounting)
    assert torch.equal(batch.reward, plain.view.gather(plain.ring, start, plain.discounting).reward)


@pytest.mark.parametrize("view", [Transitions(1), Transitions(3), Sequences(4), Sequences(4, n_step=2)])
def test_replay_gives_separate_streams_when_asked(view: View) -> None:
    streams = (NOVELTY, EPISODIC)
    store, start = filled(view, streams=streams, separate_streams=True), every(filled(view))
    batch = store.view.gather(store.ring, start, store.discounting)
    assert batch.reward.shape == batch.discount.shape == batch.keep.shape == (*batch.mask.shape, 3)
    # The environment's stream and the episodic one are what replay with that reward and gamma alone gives.
    for number, gamma in ((0, 0.9), (2, EPISODIC.gamma)):
        alone = filled(view, gamma)
        alone.ring.columns["reward"].copy_(store.ring.columns["reward"][..., number])
        expected = alone.view.gather(alone.ring, start, alone.discounting)
        torch.testing.assert_close(batch.reward[..., number], expected.reward)
        assert torch.equal(batch.discount[..., number], expected.discount)
        assert torch.equal(batch.keep[..., number], expected.keep)
    assert batch.keep[..., 1].all()
    real = batch.mask > 0
    powers = 0.5 ** torch.arange(1, 4)
    assert torch.isin(
        batch.discount[..., 1][real], powers
    ).all()  # never 0: returns go on after a terminal state


def episode() -> Batch:
    """Rows 0, 1 | masked row 2 | rows 3, 4: row 1 leads to a terminal state, row 3 starts the next episode."""
    ones = torch.ones(5, 1)
    mask, keep, reset = ones.clone(), ones.clone(), torch.zeros(6, 1, dtype=torch.bool)
    mask[2] = 0
    keep[1:3] = 0
    reset[0] = reset[3] = True
    reward = torch.tensor([1.0, 2.0, 0.0, 4.0, 8.0]).unsqueeze(1)
    intrinsic = torch.tensor([1.0, 1.0, 7.0, 1.0, 1.0]).unsqueeze(
        1
    )  # what stands in the masked row must not count
    rollout = Batch(
        torch.zeros(6, 1, 1), reset, torch.zeros(5, 1), reward, keep=keep, mask=mask, continues=keep > 0
    )
    return with_streams(rollout, (NOVELTY,), {"novelty": intrinsic})


def test_an_intrinsic_return_crosses_the_end_of_an_episode_and_the_environments_does_not() -> None:
    batch = Discounting(0.9, (NOVELTY,), separate=True).apply(episode())
    assert batch.reward.shape == (5, 1, 2)
    assert batch.reward[:, 0, 1].tolist() == [1, 1, 0, 1, 1]
    assert batch.discount[:, 0, 0].tolist() == pytest.approx([0.9, 0, 0, 0.9, 0.9])
    assert batch.discount[:, 0, 1].tolist() == [0.5, 0.5, 1, 0.5, 0.5]
    assert batch.keep[:, 0, 0].tolist() == [1, 0, 0, 1, 1] and batch.keep[:, 0, 1].tolist() == [1] * 5
    value = torch.zeros(6, 1, 2)
    value[-1, 0] = torch.tensor([10.0, 16.0])  # bootstrapped after the last row
    found = discounted_return(batch.reward, batch.discount, batch.keep, value)[:, 0]
    # Environment: 4 + .9 * (8 + .9 * 10) = 19.3; 1 + .9 * 2 = 2.8. Intrinsic, backwards: 1 + .5 * 16 = 9, 5.5, the
    # masked row hands it on: 5.5, 1 + .5 * 5.5 = 3.75, 2.875.
    assert found[:, 1].tolist() == [2.875, 3.75, 5.5, 5.5, 9.0]
    assert found[[0, 1, 3, 4], 0].tolist() == pytest.approx([2.8, 2.0, 19.3, 17.0])


def test_gae_of_all_streams_is_one_scan() -> None:
    batch = Discounting(0.9, (NOVELTY,), separate=True).apply(episode())
    value = torch.randn(6, 1, 2, generator=torch.Generator().manual_seed(0))
    both = gae(batch.reward, batch.discount, value, batch.keep, 0.95)
    for number in range(2):
        reward, discount, v, keep = (
            part[..., number] for part in (batch.reward, batch.discount, value, batch.keep)
        )
        alone = gae(reward, discount, v, keep, 0.95)
        assert torch.equal(both[..., number], alone)


def test_reward_clipping_is_for_the_environments_stream_alone() -> None:
    streams = (NOVELTY,)
    record = Recorder(2, seed=3)
    given = replace(spec(2), streams=streams)
    store = Replay(
        *(given, "cpu", torch.Generator()),
        view=Transitions(1),
        gamma=0.9,
        buffer_size=40,
        batch_size=4,
        reward_clip=0.25,
    )
    rollout = record.rollout(8)
    store.add(with_streams(rollout, streams, {"novelty": torch.full_like(rollout.reward, 5.0)}))
    stored = store.ring.columns["reward"][:8]
    assert torch.equal(stored[..., 0], rollout.reward.clamp(-0.25, 0.25))
    assert torch.equal(stored[..., 1], 5.0 * rollout.mask)
