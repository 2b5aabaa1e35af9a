"""Replay against a plain record of random episodes: transitions, n-step folds, sequences, wraps, gaps, resume."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorder import GAMMA, Recorder, image, samples, spec, tree_equal

from whorl.agents.families import OffPolicyConfig
from whorl.conformance import capture_safe
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Continuous, Spec
from whorl.data import samplers
from whorl.data.batch import Batch
from whorl.data.replay import Replay, clipped, weighted
from whorl.data.replay_setup import check_replay, replay_of
from whorl.data.ring import Ring, replay_bytes
from whorl.data.samplers import Priorities
from whorl.data.sum_tree import DeviceSumTree
from whorl.data.views import Sequences, Transitions, View

EXTRAS = {"log_prob": Array(())}


def replay(
    num_envs: int, slots: int, view: View, batch_size: int = 64, seed: int = 0, **options: Any
) -> Replay:
    generator = torch.Generator().manual_seed(seed)
    return Replay(
        spec(num_envs),
        "cpu",
        generator,
        view=view,
        buffer_size=num_envs * slots,
        batch_size=batch_size,
        extras=EXTRAS,
        gamma=GAMMA,
        **options,
    )


def learn(store: Replay, batch: Batch) -> None:
    store.settle(batch, SimpleNamespace(priority=batch.reward.abs() + 0.1))


def check_transitions(batch: Batch, record: Recorder, store: Replay) -> None:
    n = store.view.span
    newest = store.ring.rows - 1
    for b, env_index, start in samples(batch):
        row = record.rows[env_index][start]
        assert row.mask
        assert store.ring.oldest <= start <= newest - n
        reward, discount, keep, after = record.fold(env_index, start, n)
        assert batch.reward[0, b].item() == pytest.approx(reward, abs=1e-6)
        assert batch.discount[0, b].item() == pytest.approx(discount, abs=1e-6)
        assert batch.keep[0, b].item() == keep
        assert batch.obs["row"][1, b].tolist() == [after, env_index]
        assert batch.action[0, b].item() == row.action
        assert batch.reset[0, b].item() == row.reset
        assert batch.extras["log_prob"][0, b].item() == start * 0.5
    numbers, num_envs = batch.obs["row"].long().unbind(-1)
    assert torch.equal(batch.obs["image"], image(numbers, num_envs))
    assert batch.mask.all() and not batch.reset[1].any()


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(
    ("num_envs", "slots", "steps", "n"), [(1, 50, 1, 1), (3, 40, 7, 3), (8, 64, 16, 5), (5, 33, 1, 3)]
)
def test_every_transition_equals_what_the_record_says(
    num_envs: int, slots: int, steps: int, n: int, prioritized: bool
) -> None:
    record = Recorder(num_envs, seed=num_envs)
    store = replay(num_envs, slots, Transitions(n), priorities=Priorities() if prioritized else None)
    rounds = 400 // steps + 3 * slots // steps
    for number in range(rounds):
        if number % 11 == 10:
            record.restart()
        store.add(record.rollout(steps))
        if store.steps > store.learning_starts and number % 3 == 0:
            batch = store.sample()
            check_transitions(batch, record, store)
            learn(store, batch)
    assert store.ring.rows > 3 * slots  # went round


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(("num_envs", "slots", "steps", "length", "burn_in", "stride"), [
    (1, 40, 1, 5, 0, 1),
    (3, 48, 8, 6, 2, 4),
    (4, 60, 5, 5, 5, 5),
])  # fmt: skip
def test_every_sequence_equals_what_the_record_says(
    num_envs: int, slots: int, steps: int, length: int, burn_in: int, stride: int, prioritized: bool
) -> None:
    record = Recorder(num_envs, seed=num_envs)
    memory = {"net": {"h": torch.zeros(1, 2)}} if stride > 1 else {}
    view = Sequences(length, burn_in, stride)
    priorities = Priorities() if prioritized else None
    store = replay(num_envs, slots, view, 16, memory=memory, stride=stride, priorities=priorities)
    total = burn_in + length
    for number in range(4 * slots // steps):
        if number % 11 == 10:
            record.restart()
        store.add(record.rollout(steps, stride if stride > 1 else 0))
        if store.steps <= store.learning_starts:
            continue
        batch = store.sample()
        assert batch.shape == (total, 16) and batch.burn_in == burn_in
        assert len(batch.reset) == total + 1
        for b, env_index, start in samples(batch):
            assert start % stride == 0
            assert store.ring.oldest <= start <= store.ring.rows - 1 - total
            rows = record.rows[env_index][start : start + total + 1]
            assert batch.obs["row"][:, b, 0].tolist() == [row.number for row in rows]
            assert batch.reset[:, b].tolist() == [row.reset for row in rows]
            assert batch.mask[:, b].tolist() == [row.mask and t >= burn_in for t, row in enumerate(rows[:-1])]
            assert batch.keep[:, b].tolist() == [row.keep for row in rows[:-1]]
            # What stands in rows that are no transition does not come out of the ring.
            assert batch.action[:, b].tolist() == [row.action if row.mask else 0 for row in rows[:-1]]
            assert batch.reward[:, b].tolist() == pytest.approx(
                [row.reward if row.mask else 0 for row in rows[:-1]]
            )
            assert batch.discount[:, b].tolist() == pytest.approx(
                [GAMMA * row.continues for row in rows[:-1]]
            )
            if stride > 1:
                assert batch.memory["net"]["h"][b].tolist() == [start, env_index]
        learn(store, batch)


def test_small_columns_in_host_memory_lie_side_by_side_and_large_ones_apart() -> None:
    large = {"log_prob": Array(()), "image": Array((257,), "uint8")}
    ring = Ring(spec(2), 20, extras=large)
    *small, image = (
        *(ring.columns[name] for name in ("reward", "continues", "mask")),
        ring.columns["extras"]["log_prob"],
        ring.columns["extras"]["image"],
    )
    places = [leaf[3, 1].data_ptr() - leaf[2, 1].data_ptr() for leaf in small]
    assert len(set(places)) == 1
    assert max(leaf.data_ptr() for leaf in small) - min(leaf.data_ptr() for leaf in small) < places[0]
    assert image.is_contiguous()
    together = [leaf[0, 0] for leaf in tree.leaves(ring.columns) if leaf[0, 0].nbytes <= 256]
    assert places[0] == 2 * sum(leaf.nbytes for leaf in together) == 2 * 32, "nothing lies between them"
    # Each column has its own bytes.
    for number, leaf in enumerate(tree.leaves(ring.columns)):
        before = [other.clone() for other in tree.leaves(ring.columns)]
        assert not leaf.any()
        leaf.fill_(1)
        for other, (now, then) in enumerate(zip(tree.leaves(ring.columns), before)):
            assert other == number or torch.equal(now, then)


def test_uniform_sampling_draws_every_eligible_row_equally_often() -> None:
    num_envs, slots = 3, 40
    record, store = Recorder(num_envs, seed=5), replay(num_envs, slots, Transitions(2), batch_size=100_000)
    for _ in range(23):
        store.add(record.rollout(7))
    newest = store.ring.rows - 1
    eligible = {
        (env_index, row)
        for env_index in range(num_envs)
        for row in range(store.ring.oldest, newest - 1)
        if record.rows[env_index][row].mask
    }
    drawn = [(env_index, row) for _, env_index, row in samples(store.sample())]
    assert set(drawn) == eligible
    expected = len(drawn) / len(eligible)
    chi = sum((drawn.count(start) - expected) ** 2 / expected for start in eligible)
    assert abs(chi - len(eligible)) < 4 * (2 * len(eligible)) ** 0.5


def test_nothing_crosses_an_announced_gap() -> None:
    record = Recorder(1, end=0.0)
    store = replay(1, 30, Transitions(3), batch_size=500)
    store.add(record.rollout(10))
    store.cut()
    record.rollout(4)  # dropped
    store.add(record.rollout(10))
    batch = store.sample()
    numbers = batch.obs["row"][..., 0]
    # Rows 0-9, then 14-23: the last row before the gap has no successor, folds before it stop there.
    assert not ((numbers[0] == 9) | (numbers[0] > 20)).any()
    near = numbers[0] == 8
    assert near.any() and (numbers[1][near] == 9).all()
    assert torch.allclose(batch.discount[0][near], torch.tensor(GAMMA))
    assert (numbers[1][numbers[0] == 7] == 9).all()


def gapped(view: Sequences, end: float = 0.0, **options: Any) -> Replay:
    """Rows 0-11 and, after a gap, rows 16-39; without `end` of one episode."""
    record = Recorder(1, end=end)
    store = replay(1, 60, view, batch_size=500, **options)
    stride = 4 if options.get("memory") else 0
    store.add(record.rollout(12, stride))
    record.rollout(4)  # dropped
    store.cut()
    store.add(record.rollout(24, stride))
    return store


def test_a_gap_is_no_start_of_an_episode_and_a_sequence_learns_from_nothing_behind_it() -> None:
    store = gapped(Sequences(6))
    batch = store.sample()
    numbers = batch.obs["row"][..., 0]
    assert (numbers == 16).any() and not batch.reset[numbers != 0].any()
    before = numbers[0] < 12
    assert not batch.mask[:, before][numbers[:-1, before] > 10].any()
    assert batch.mask[:, before][numbers[:-1, before] <= 10].all()
    assert batch.mask[:, ~before].all()
    assert not batch.keep[(numbers[:-1] == 10) | (numbers[:-1] == 11)].any()
    # Row 11 has no successor, so a window that begins there has nothing to learn from.
    assert set(numbers[0].tolist()) == {*range(11), *range(16, 34)}


def test_a_sequence_at_a_gap_begins_with_the_memory_that_acting_had_there() -> None:
    store = gapped(Sequences(6, 0, 4), memory={"net": {"h": torch.zeros(1, 2)}}, stride=4)
    batch = store.sample()
    at = batch.obs["row"][0, :, 0] == 16
    assert at.any() and not batch.reset[:, at].any() and batch.mask[:, at].all()
    assert batch.memory["net"]["h"][at].tolist() == [[16.0, 0.0]] * int(at.sum())


def test_a_burn_in_does_not_reach_across_a_gap() -> None:
    store = gapped(Sequences(3, 4, 1))
    numbers = store.sample().obs["row"][0, :, 0]
    # Windows from row 7 on would learn from row 11, which is no transition, or from rows behind the gap only.
    assert set(numbers.tolist()) == {*range(7), *range(16, 33)}


def test_a_whole_episode_never_begins_at_a_gap() -> None:
    store = gapped(Sequences(30, whole=True))
    assert not store.view.allowed(store.ring, torch.arange(1, 36)).any()
    assert store.view.allowed(store.ring, torch.arange(1)).all()
    batch = store.view.gather(store.ring, torch.tensor([0]), store.discounting)
    assert batch.mask.sum() == 11  # rows 0-10, and nothing behind the gap


def test_renewed_memory_stays_before_a_gap() -> None:
    store = gapped(Sequences(12, 0, 4), memory={"net": {"h": torch.zeros(1, 2)}}, stride=4)
    told = torch.tensor([[100.0, 200.0], [101.0, 201.0], [102.0, 202.0]]).unsqueeze(-1).expand(3, 2, 2)
    start = torch.tensor([0, 3])
    with (
        capture_safe()
    ):  # states before rows 4, 8 and 16 from row 0 on, and before rows 20, 24 and 28 from row 16 on
        store.ring.renew(start, {"net": {"h": told}})
    found = store.ring.memories["net"]["h"][:7, 0, 0].tolist()
    assert found == [0, 100, 101, 16, 200, 201, 202]


def test_while_gaps_leave_no_start_nothing_is_due() -> None:
    record, store = Recorder(1, end=0.0), replay(1, 40, Sequences(4, 4, 4), batch_size=8, learning_starts=0)
    for _ in range(6):  # four rows at a time never make a window of burn-in and rows to learn from
        record.rollout(4)
        store.cut()
        store.add(record.rollout(4))
        assert not list(store.due())
    again = replay(1, 40, Sequences(4, 4, 4), batch_size=8, learning_starts=0)
    again.load_state_dict(store.state_dict())
    assert not list(again.due())
    for _ in range(3):
        again.add(record.rollout(4))
    assert all(batch.mask.any(0).all() for _, batch in again.due()) and again.drawn


def test_a_state_saved_before_gaps_were_told_apart_is_loaded() -> None:
    store = gapped(Sequences(6))
    state = store.state_dict()
    del state["gaps"]
    again = replay(1, 60, Sequences(6), batch_size=500)
    again.load_state_dict(state)
    assert torch.equal(again.sample().obs["row"], store.sample().obs["row"])


def test_a_restart_costs_one_row_even_where_nobody_announced_it() -> None:
    record, store = Recorder(2, end=0.0), replay(2, 30, Transitions(1), batch_size=500)
    store.add(record.rollout(5))
    record.restart()
    store.add(record.rollout(5))
    assert sorted(set(store.sample().obs["row"][0, :, 0].tolist())) == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize("ratio", [0.1, 0.3, 1.0, 2.5])
def test_fractions_of_the_ratio_are_carried_exactly(ratio: float) -> None:
    record, store = (
        Recorder(1, end=0.0),
        replay(1, 50, Transitions(1), updates_per_step=ratio, learning_starts=10),
    )
    made = []
    for _ in range(110):
        store.add(record.rollout(1))
        made.append(sum(1 for _ in store.due()))
    assert made[:10] == [0] * 10
    assert sum(made) == round(100 * ratio)
    assert max(made) - min(made[10:]) <= 1


@pytest.mark.parametrize("view", [Transitions(3), Sequences(4, 2, 2)])
def test_batches_drawn_together_are_those_drawn_one_by_one(view: View) -> None:
    memory = {"net": {"h": torch.zeros(1, 2)}} if view.stride > 1 else {}
    options = {"memory": memory, "stride": view.stride, "updates_per_step": 0.3}
    run_parallel, apart = replay(3, 40, view, 8, **options), replay(3, 40, view, 8, **options)
    apart._together = 1
    record = Recorder(3)
    for _ in range(6):
        rollout = record.rollout(6, view.stride)
        for store in (run_parallel, apart):
            store.add(rollout)
        for (_, one), (_, other) in zip(run_parallel.due(), apart.due(), strict=True):
            for (path, a), (_, b) in zip(tree.items(one.tensors()), tree.items(other.tensors()), strict=True):
                assert torch.equal(a, b), path
    assert run_parallel.drawn > 12


def test_steps_are_counted_by_the_mask() -> None:
    record, store = Recorder(4, end=0.5), replay(4, 50, Transitions(1))
    rollout = record.rollout(20)
    store.add(rollout)
    assert store.steps == rollout.mask.sum() < 80


@pytest.mark.parametrize("view", [Transitions(3), Sequences(4, 2, 2)])
@pytest.mark.parametrize("priorities", [None, Priorities()])
def test_a_restored_replay_goes_on_bit_for_bit(view: View, priorities: Priorities | None) -> None:
    memory = {"net": {"h": torch.zeros(1, 2)}} if view.stride > 1 else {}
    options = {"priorities": priorities, "memory": memory, "stride": view.stride, "updates_per_step": 0.3}
    record = Recorder(3)
    store = replay(3, 40, view, 8, **options)

    def run(store: Replay, rollouts: list[Batch]) -> list[dict[str, Any]]:
        found = []
        for rollout in rollouts:
            store.add(rollout)
            for phase, batch in store.due():
                assert phase == "update"
                found.append(tree.clone(batch.tensors()))
                learn(store, batch)
        return found

    rollouts = [record.rollout(4, 2 if memory else 0) for _ in range(40)]
    run(store, rollouts[:20])
    state, position = tree_copy(store.state_dict()), store.generator.get_state()
    whole = run(store, rollouts[20:])
    other = replay(3, 40, view, 8, seed=99, **options)
    other.load_state_dict(state)
    other.generator.set_state(position)
    again = run(other, rollouts[20:])
    assert len(whole) > 20
    assert all(tree_equal(a, b) for a, b in zip(whole, again, strict=True))
    assert tree_equal(store.state_dict(), other.state_dict())


def tree_copy(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: tree_copy(value) for key, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state


@pytest.mark.parametrize("view", [Transitions(3), Sequences(4, 2, 2)])
@pytest.mark.parametrize("priorities", [None, Priorities()])
def test_sampling_and_settling_never_wait_for_the_device(
    view: View, priorities: Priorities | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "HostSumTree", DeviceSumTree)  # what a device would run
    store = replay(3, 40, view, 8, priorities=priorities)
    record = Recorder(3)
    for _ in range(12):
        store.add(record.rollout(4))
    with capture_safe():
        learn(store, store.sample())


def test_the_size_is_known_before_anything_is_allocated() -> None:
    # Per cell: 2 floats and 4 bytes of observation, an int64 action, reward, log_prob, and 4 flags; and 2
    # floats of memory in every second one.
    options: dict[str, Any] = {"extras": EXTRAS, "memory": {"net": {"h": torch.zeros(1, 2)}}, "stride": 2}
    expected = 4 * 10 * (8 + 4 + 8 + 4 + 4 + 4) + 4 * 5 * 8
    assert replay_bytes(spec(4), 43, **options) == expected
    assert Ring(spec(4), 43, **options).bytes == expected


def test_a_ring_too_small_for_its_rollouts_says_what_would_do() -> None:
    store = replay(2, 20, Transitions(3))
    with pytest.raises(ConfigError, match="buffer_size of at least 46"):
        store.add(Recorder(2).rollout(20))
    with pytest.raises(ConfigError, match="use at least 8"):
        Ring(spec(8), 7)
    with pytest.raises(ConfigError, match="holds no whole sample of 31 rows"):
        replay(2, 20, Sequences(30))


def test_a_masked_rows_garbage_never_reaches_a_fold() -> None:
    record, store = Recorder(4, end=0.4), replay(4, 60, Transitions(4), batch_size=300)
    for _ in range(10):
        rollout = record.rollout(5)
        rollout.reward[rollout.mask == 0] = float("nan")
        store.add(rollout)
    assert torch.isfinite(store.sample().reward).all()


# Settings that do not fit


def spec_of(num_envs: int) -> Spec:
    return Spec(Array((3,)), Continuous((1,), (-1.0,), (1.0,)), num_envs)


@pytest.mark.parametrize(("settings", "rows", "sentence"), [
    ({"n_step": 30, "buffer_size": 100}, 32, "buffer_size is 100, 25 rows for each of 4 .* n_step 30 need 38"),
    ({"buffer_size": 100}, 128, "num_steps 32 and n_step 1 need 33; use a buffer_size of at least 132"),
    # one rollout's row and its successor would be 2, but a final row and one that lost its successor may stand there
    ({"buffer_size": 15}, 4, "num_steps 1 and n_step 1 need 4; use a buffer_size of at least 16"),
    ({"buffer_size": 3}, 4, "buffer_size 3 is too small for 4 environments"),
])  # fmt: skip
def test_a_ring_too_small_is_told_in_one_sentence(settings: dict[str, int], rows: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_replay(OffPolicyConfig(**settings), spec_of(4), rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("prioritized", [False, True])
def test_the_smallest_ring_that_is_allowed_never_draws_a_row_that_is_no_start(
    n: int, prioritized: bool
) -> None:
    with pytest.raises(ConfigError, match=f"need {n + 3}"):
        check_replay(OffPolicyConfig(n_step=n, buffer_size=n + 2), spec_of(1), 1)
    check_replay(OffPolicyConfig(n_step=n, buffer_size=n + 3), spec_of(1), 1)
    record = Recorder(1, seed=n, end=0.6)
    store = replay(1, n + 3, Transitions(n), batch_size=8, priorities=Priorities() if prioritized else None)
    for number in range(400):
        if number % 3 == 0:
            record.restart()  # often after a final row and a first one, which so loses its successor
        store.add(record.rollout(1))
        if store.steps > store.learning_starts:
            check_transitions(store.sample(), record, store)


def test_a_ring_larger_than_memory_is_told_in_bytes_before_it_is_allocated() -> None:
    cfg = OffPolicyConfig(buffer_size=10**13)
    # 3 + 1 floats, reward and 4 flags: 24 bytes a row; and 8 to draw it, where numbers go beyond 2^31.
    with pytest.raises(
        ConfigError, match=r"replay of 10,000,000,000,000 rows takes 320,000,000,000,008 bytes, but"
    ):
        replay_of(cfg, spec_of(1), torch.device("cpu"), torch.Generator(), lambda batch: batch.mask)


def test_what_draws_is_counted_as_it_is_allocated() -> None:
    for prioritized in (False, True):
        cfg = OffPolicyConfig(buffer_size=10_000, prioritized=prioritized)
        store = replay_of(cfg, spec_of(4), torch.device("cpu"), torch.Generator(), lambda batch: batch.mask)
        held = (
            [store.sampler.queue]
            if isinstance(store.sampler, samplers.Uniform)
            else store.sampler.sum_tree.levels
        )
        told = samplers.sampler_bytes(10_000, torch.device("cpu"), prioritized)
        assert sum(tensor.nbytes for tensor in held) == told


def test_the_size_told_beforehand_is_the_size_it_has() -> None:
    cfg = OffPolicyConfig(buffer_size=1000)
    store = replay_of(cfg, spec_of(4), torch.device("cpu"), torch.Generator(), lambda batch: batch.mask)
    assert store.bytes == replay_bytes(spec_of(4), 1000) == 24_000


def test_a_cut_is_one_gap_and_not_one_before_every_later_rollout() -> None:
    record, ring = Recorder(2, end=0.0), Ring(spec(2), 2 * 40)
    ring.add(record.rollout(4))
    ring.cut()
    for _ in range(2):
        ring.add(record.rollout(4))
    # Only the row before the gap has no successor.
    assert ring.columns["mask"][:12].all(1).tolist() == [row != 3 for row in range(12)]


def test_a_row_s_weight_is_its_share_times_its_importance_weight() -> None:
    batch = Recorder(2, end=0.0).rollout(3)
    batch.mask[0, 1] = 0  # five of six rows are learned from
    found = weighted(batch, {"weight": torch.tensor([0.5, 1.0])})
    share = torch.tensor([[1.2, 0.0], [1.2, 1.2], [1.2, 1.2]])
    torch.testing.assert_close(found.share, share)
    torch.testing.assert_close(found.weight, share * torch.tensor([0.5, 1.0]))
    torch.testing.assert_close(weighted(batch, {}).weight, share)


def test_rewards_are_clipped_on_both_sides() -> None:
    batch = Recorder(2, end=0.0).rollout(2)
    batch.reward.copy_(torch.tensor([[-3.0, -0.5], [0.5, 3.0]]))
    assert clipped(batch, 1.0).reward.tolist() == [[-1.0, -0.5], [0.5, 1.0]]
    assert clipped(batch, 0.0).reward.tolist() == batch.reward.tolist()


def test_the_exponent_of_importance_weights_grows_with_the_steps_added() -> None:
    store = Replay(
        *(spec(2), "cpu", torch.Generator()),
        view=Transitions(1),
        gamma=GAMMA,
        buffer_size=80,
        batch_size=4,
        priorities=Priorities(beta=0.4, beta_steps=100),
    )
    store.add(Recorder(2, end=0.0).rollout(10))
    assert float(store.sampler.beta) == pytest.approx(0.4 + 0.6 * 0.2)  # type: ignore[attr-defined]


def test_the_exponent_of_importance_weights_follows_the_budget_also_where_no_rows_are_added() -> None:
    store = replay(2, 40, Transitions(1), priorities=Priorities(beta=0.4))
    store.add(Recorder(2, end=0.0).rollout(10))
    for progress in (0.5, 1.0):  # offline, nothing is added after the first rows
        store.anneal(progress)
        assert float(store.sampler.beta) == pytest.approx(0.4 + 0.6 * progress)  # type: ignore[attr-defined]
