"""Replayed sequences against a plain record of random episodes: folds, burn-in, stored memory, priorities."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorder import GAMMA, Recorder, spec, tree_equal
from torch import Tensor, nn

from whorl.agents.families import OffPolicyConfig
from whorl.algorithms.dqn import DQN
from whorl.conformance import capture_safe
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Discrete, Spec
from whorl.data import replay as module
from whorl.data import segments
from whorl.data.batch import LAST, Batch
from whorl.data.replay import MEMORIES, Replay
from whorl.data.replay_setup import check_replay, replay_of, view_of
from whorl.data.samplers import Priorities
from whorl.data.segments import Segments
from whorl.data.views import Sequences
from whorl.settings.merge import configure
from whorl.state.policy import build_agent

MEMORY = {"net": {"h": torch.zeros(1, 2)}}
LAST_MEMORY = {**MEMORY, LAST: {"action": torch.zeros(1, dtype=torch.int64), "reward": torch.zeros(1)}}


def replay(num_envs: int, slots: int, view: Sequences, **options: Any) -> Replay:
    memory = {} if view.whole else LAST_MEMORY if view.last else MEMORY
    given = {"memory": memory, "stride": view.stride, "batch_size": 16, **options}
    return Replay(
        spec(num_envs),
        "cpu",
        torch.Generator().manual_seed(0),
        view=view,
        gamma=GAMMA,
        buffer_size=num_envs * slots,
        **given,
    )


def added(store: Replay, record: Recorder, steps: int) -> Batch:
    """A rollout of `record`, which went into `store` too."""
    view: Any = store.view
    rollout = record.rollout(steps, 0 if view.whole else view.stride, view.last)
    store.add(rollout)
    return rollout


def starts(store: Replay) -> Tensor:
    """Every start there is by now, oldest first."""
    ring, view = store.ring, store.view
    every = module.starts(ring, view, ring.first_start(), max(0, ring.rows - view.span))
    return every[view.allowed(ring, every)]


def numbers(batch: Batch) -> list[tuple[int, int]]:
    """(row, environment) where each sample starts."""
    return [(row, env_index) for row, env_index in batch.obs["row"][0].long().tolist()]


def check(store: Replay, record: Recorder, batch: Batch, b: int, row: int, env_index: int) -> None:
    """One sample, number by number."""
    view: Any = store.view
    count = view.burn_in + view.length
    rows = record.rows[env_index][row : row + view.span + 1]
    assert batch.obs["row"][:, b].tolist() == [[r.number, env_index] for r in rows]
    assert batch.reset[:, b].tolist() == [r.reset for r in rows]
    over, following = False, batch.next.selected["row"][:, b].tolist()
    for t in range(count):
        over = over or (view.whole and t > 0 and rows[t].reset)
        real = rows[t].mask and t >= view.burn_in and not over
        assert batch.mask[t, b].item() == real
        if not rows[t].mask:
            assert batch.action[t, b] == 0
            continue
        assert batch.action[t, b].item() == rows[t].action
        reward, discount, keep, after = record.fold(env_index, row + t, view.n_step)
        assert batch.reward[t, b].item() == pytest.approx(reward, abs=1e-6)
        assert batch.discount[t, b].item() == pytest.approx(discount, abs=1e-6)
        assert batch.keep[t, b].item() == keep
        assert following[t] == [after, env_index]
    if not view.whole:
        assert batch.memory["net"]["h"][b].tolist() == [row, env_index]
    for t, here in enumerate(rows):
        # Before an episode there is nothing, and without stored memory nothing is known before the first row.
        if view.last and not here.reset and (t or not view.whole):
            before = record.rows[env_index][row + t - 1]
            assert batch.last["action"][t, b].item() == before.action
            assert batch.last["reward"][t, b].item() == pytest.approx(before.reward)


VIEWS = {
    "one row": Sequences(1, 0, 1),
    "folded": Sequences(6, 2, 4, n_step=3, last=("action", "reward")),
    "folded beyond its length": Sequences(2, 1, 3, n_step=5),
    "overlapping": Sequences(5, 5, 2, n_step=2, last=("action", "reward")),
    "apart": Sequences(3, 0, 6, n_step=4, last=("action", "reward")),
    "whole episodes": Sequences(7, 0, 1, n_step=3, whole=True, last=("action", "reward")),
    "whole episodes, one step": Sequences(12, 0, 1, whole=True),
}


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_every_start_gives_what_the_record_says(name: str, prioritized: bool) -> None:
    view, num_envs, slots = VIEWS[name], 3, 36
    record = Recorder(num_envs, seed=len(name))
    store = replay(num_envs, slots, view, priorities=Priorities() if prioritized else None)
    steps, seen = 2 * view.stride, set()
    for number in range(3 * slots // steps):
        if number % 7 == 6:
            record.restart()
        added(store, record, steps)
        every = starts(store)
        if len(every) == 0 or number % 3:
            continue
        batch = view.gather(store.ring, every, store.discounting)
        for b, (row, env_index) in enumerate(numbers(batch)):
            assert row % view.stride == 0
            assert store.ring.oldest <= row <= store.ring.rows - 1 - view.span
            assert not view.whole or (record.rows[env_index][row].reset and record.rows[env_index][row].mask)
            check(store, record, batch, b, row, env_index)
            seen.add(row)
        drawn = store.sample()
        assert set(numbers(drawn)) <= set(numbers(batch)), "no other is drawn"
    assert max(seen) > 2 * slots - view.span, "it went round"


def test_folds_by_hand() -> None:
    """Ten rows, of which row 3 leads to a terminal state, row 4; folded over 3."""
    reward = torch.tensor([1.0, 2.0, 4.0, 8.0, 100.0, 16.0, 32.0, 64.0, 128.0]).unsqueeze(1)
    keep, continues, reset = torch.ones(9, 1), torch.ones(9, 1) > 0, torch.zeros(10, 1, dtype=torch.bool)
    keep[3:5], continues[3:5], reset[5] = 0.0, False, True
    mask = (~reset[1:]).float()
    obs = {"row": torch.zeros(10, 1, 2), "image": torch.zeros(10, 1, 2, 2, dtype=torch.uint8)}
    view = Sequences(6, n_step=3)
    store = replay(1, 20, view, memory={})
    action = torch.ones(9, 1, dtype=torch.int64)
    store.add(Batch(obs, reset, action, reward, keep=keep, mask=mask, continues=continues))
    batch = view.gather(store.ring, torch.tensor([0]), store.discounting)
    assert batch.ahead is not None
    assert batch.ahead[:, 0].tolist() == [3, 4, 4, 4, 5, 8]
    assert batch.mask[:, 0].tolist() == [1, 1, 1, 1, 0, 1]
    expected = [1 + 0.9 * 2 + 0.81 * 4, 2 + 0.9 * 4 + 0.81 * 8, 4 + 0.9 * 8, 8, 0, 16 + 0.9 * 32 + 0.81 * 64]
    assert batch.reward[:, 0].tolist() == pytest.approx(expected)
    assert batch.discount[:, 0].tolist() == pytest.approx([0.729, 0, 0, 0, 0, 0.729])
    assert batch.keep[:, 0].tolist() == [1, 0, 0, 0, 0, 1]
    assert len(batch.reset) == 6 + 3, "rows of the folds are there for the memory"


@pytest.mark.parametrize("view", [Sequences(4, 2, 3, n_step=2), Sequences(5, whole=True)])
def test_garbage_in_a_masked_row_never_comes_out(view: Sequences) -> None:
    record, store = Recorder(4, end=0.4), replay(4, 60, view)
    for _ in range(10):
        rollout = record.rollout(6, 0 if view.whole else 3)
        rollout.reward[rollout.mask == 0] = torch.nan
        store.add(rollout)
    assert store.sample().reward.isfinite().all()


# Settings


def test_settings_say_what_a_sequence_is() -> None:
    cfg = OffPolicyConfig(
        memory="lstm", sequence_length=8, burn_in=4, sequence_stride=2, n_step=3, last_reward=True
    )
    assert view_of(cfg) == Sequences(8, 4, 2, 3, False, ("reward",))
    whole = OffPolicyConfig(memory="gru", sequence_length=50, whole_episodes=True)
    assert view_of(whole) == Sequences(50, 0, 1, 1, True)


def spec_of(num_envs: int) -> Spec:
    return Spec(Array((3,)), Discrete(2), num_envs)


@pytest.mark.parametrize(("settings", "rows", "sentence"), [
    ({"buffer_size": 300, "sequence_length": 40, "burn_in": 20}, 80,
     r"buffer_size is 300, 60 rows for each of 4 environments, but num_steps 20 and sequences of 61 rows "
     r"\(burn_in, sequence_length and n_step\) need 80; use a buffer_size of at least 320"),
    ({"buffer_size": 400, "sequence_length": 40, "burn_in": 20, "n_step": 30}, 80, "sequences of 90 rows .* need 120"),
    # A start every 20 rows, of which the ring must hold one at any moment with the 5 rows behind it.
    ({"buffer_size": 80, "sequence_length": 5, "stored_memory": False}, 4,
     r"num_steps 1 and sequences of 6 rows .* need 40; use a buffer_size of at least 160"),
    ({"buffer_size": 40}, 80, "buffer_size 40 is too small for 4 environments and sequence_stride 20; use at least 80"),
])  # fmt: skip
def test_a_ring_too_small_for_its_sequences_is_told_in_one_sentence(
    settings: dict[str, Any], rows: int, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_replay(OffPolicyConfig(memory="lstm", **settings), spec_of(4), rows)


@pytest.mark.parametrize("stride", [2, 5, 8])
def test_the_smallest_ring_that_is_allowed_always_has_a_start(stride: int) -> None:
    cfg = OffPolicyConfig(
        memory="lstm", sequence_length=3, sequence_stride=stride, n_step=2, stored_memory=False
    )
    slots = stride
    while True:
        try:
            check_replay(OffPolicyConfig(**{**vars(cfg), "buffer_size": slots}), spec_of(1), 1)
            break
        except ConfigError:
            slots += stride
    view: Any = view_of(cfg)
    store, record = replay(1, slots, view, memory={}), Recorder(1)
    for _ in range(10 * slots):
        store.add(record.rollout(1))
        if store.steps > store.learning_starts:
            assert len(starts(store))
            assert set(numbers(store.sample())) <= set(
                numbers(view.gather(store.ring, starts(store), store.discounting))
            )


def test_an_episode_that_outgrows_the_ring_is_one_sentence() -> None:
    store, record = replay(2, 20, Sequences(5, whole=True)), Recorder(2, end=0.0)
    for _ in range(3):
        store.add(record.rollout(5))
        assert list(store.due()) or store.ring.rows < 10
    store.add(record.rollout(5))
    with pytest.raises(
        ConfigError,
        match="no episode begins in the 20 rows that replay holds of each environment; use a larger",
    ):
        for _ in range(3):
            store.add(record.rollout(5))
            list(store.due())


# Priorities


def test_a_sequence_is_drawn_by_its_largest_and_its_mean_error() -> None:
    """eta .9 of errors 1, 3, 2: .9 * 3 + .1 * 2; where the 3 is masked: .9 * 2 + .1 * 1.5."""
    cfg = OffPolicyConfig(
        memory="lstm",
        sequence_length=3,
        sequence_stride=3,
        buffer_size=30,
        prioritized=True,
        priority_alpha=1.0,
    )
    store = replay_of(cfg, spec(1), torch.device("cpu"), torch.Generator(), lambda batch: batch.mask, MEMORY)
    record = Recorder(1, end=0.0)
    for _ in range(3):
        store.add(record.rollout(3, 3))
    batch = store.view.gather(store.ring, torch.tensor([0, 1]), store.discounting)
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    batch = batch.replace(mask=mask, extras={"index": torch.tensor([0, 1])})
    store.settle(batch, SimpleNamespace(priority=torch.tensor([[1.0, 1.0], [3.0, 3.0], [2.0, 2.0]])))
    mass = store.sampler.state_dict()["leaves"]
    assert mass[:2].tolist() == pytest.approx([0.9 * 3 + 0.1 * 2, 0.9 * 2 + 0.1 * 1.5], abs=1e-5)


def test_new_sequences_get_priorities_of_their_own() -> None:
    """Errors are the numbers of rows: .9 * the last unmasked one + .1 * the mean."""
    view, record = Sequences(4, 2, 2, n_step=2), Recorder(2, seed=1)
    store = replay(
        2,
        40,
        view,
        priorities=Priorities(alpha=1.0, epsilon=0.0),
        initial_priority=lambda batch: batch.obs["row"][: batch.shape[0], :, 0],
    )
    for _ in range(15):
        added(store, record, 4)
    every = starts(store)
    batch = view.gather(store.ring, every, store.discounting)
    mass = store.sampler.state_dict()["leaves"]
    for b, (row, env_index) in enumerate(numbers(batch)):
        real = [r.number for r in record.rows[env_index][row + 2 : row + 6] if r.mask]
        expected = 0.9 * max(real) + 0.1 * sum(real) / len(real)
        assert mass[every[b]].item() == pytest.approx(expected, rel=1e-5)


# Memory that is brought up to date


def renewing(slots: int = 40, **options: Any) -> Replay:
    """A replay whose memory becomes 1000 and the number of its row."""
    view = Sequences(5, 2, 3, n_step=2)

    def refresh(batch: Batch) -> Any:
        return {MEMORIES: {"net": {"h": batch.obs["row"][3::3] + torch.tensor([1000.0, 0.0])}}}

    return replay(2, slots // 3 * 3, view, refresh=refresh, refreshed=(MEMORIES,), **options)


def held(store: Replay) -> dict[tuple[int, int], float]:
    """What is remembered before each row of the ring at which memory is stored."""
    ring = store.ring
    found = {}
    for row in range(-(-ring.oldest // 3) * 3, ring.rows, 3):
        for env_index in range(2):
            number, other = ring.memories["net"]["h"][row % ring.slots // 3, env_index].tolist()
            assert other == env_index
            found[row, env_index] = number
    return found


def test_renewed_memory_lands_before_the_rows_it_belongs_to() -> None:
    store, record, renewed = renewing(), Recorder(2), set()
    for number in range(60):
        store.add(record.rollout(3, 3))
        if number > 5 and number % 4 == 0:
            batch = store.sample()
            # Rows 3 and 6 of a window of 9; before row 0 it is as it was.
            renewed |= {(row + ahead, env_index) for row, env_index in numbers(batch) for ahead in (3, 6)}
            store.settle(batch, SimpleNamespace(priority=None))
        for (row, env_index), value in held(store).items():
            assert value == row + 1000 * ((row, env_index) in renewed)


def test_where_samples_meet_the_last_one_counts() -> None:
    """Starts 0, 1 and 0 again, with memory of two rows each; 1 and 0 meet in block 2."""
    view = Sequences(7, 0, 3)
    store, record = replay(1, 30, view), Recorder(1, end=0.0)
    for _ in range(5):
        store.add(record.rollout(3, 3))
    told = torch.tensor([[10.0, 20.0, 30.0], [11.0, 21.0, 31.0]]).unsqueeze(-1).expand(2, 3, 2)
    start = torch.tensor([0, 1, 0])
    with capture_safe():
        store.ring.renew(start, {"net": {"h": told}})
    assert store.ring.memories["net"]["h"][:5, 0, 0].tolist() == [0, 30, 31, 21, 12]


def test_renewed_memory_comes_back_from_a_checkpoint_with_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 400)
    store, record = renewing(120), Recorder(2)
    store.store = Segments(tmp_path, store.ring, memories=False)
    for _ in range(90):
        store.add(record.rollout(3, 3))
        if store.ring.rows > 30:
            store.settle(store.sample(), SimpleNamespace(priority=None))
    state = store.state_dict()
    assert state["ring"]["manifest"]["whole"], "old rows are in files"
    kept = tree.clone(state["ring"]["memories"])
    other = renewing(120)
    other.store = Segments(tmp_path, other.ring, memories=False)
    other.load_state_dict(state)
    assert tree_equal(kept, other.ring.memories)
    assert tree_equal(store.ring.columns, other.ring.columns)
    for one in (store, other):
        one.store.close()


def test_memory_that_changes_is_in_no_file(tmp_path: Path) -> None:
    """A thread writes rows while others are learned from: what changes meanwhile would not match its sum."""
    store = renewing()
    kept = Segments(tmp_path, store.ring, memories=False)
    assert not [name for name, _, _ in kept._leaves if name.startswith("memories")]
    kept.close()


# Size


def test_the_size_counts_what_is_remembered() -> None:
    """3 environments, 80 rows: 3 floats, an int64, a float, 4 flags; every 20 rows 2 * 8 floats, an int64, a float."""
    cfg = DQN.Config(buffer_size=250, memory="lstm", memory_size=8, last_action=True, hidden_sizes=(8,))
    agent = DQN(spec_of(3), cfg)
    expected = 3 * 80 * (12 + 8 + 4 + 4) + 3 * 4 * (64 + 8 + 4)
    assert agent.replay_bytes() == expected
    agent.prepare("cpu", lambda name: torch.Generator())
    assert agent.experience(torch.Generator()).bytes == expected


def test_the_size_without_stored_memory_is_that_of_the_ring_too() -> None:
    agent = DQN(
        spec_of(3), DQN.Config(buffer_size=250, memory="lstm", stored_memory=False, hidden_sizes=(8,))
    )
    agent.prepare("cpu", lambda name: torch.Generator())
    assert agent.replay_bytes() == agent.experience(torch.Generator()).bytes == 3 * 80 * (12 + 8 + 4 + 4)


def test_a_million_rows_of_atari_with_states_of_r2d2_stay_within_7_3_gigabytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nn.init, "orthogonal_", lambda weight, *gain: weight)  # weights do not matter here
    settings = configure("r2d2", "ALE/Pong-v5", {"buffer_size": 1_000_000})
    assert settings.algo.sequence_stride == 40 and settings.algo.memory_size == 512
    expected = 1_000_000 * (84 * 84 + 8 + 4 + 4) + 25_000 * (2 * 512 * 4 + 8 + 4)
    for stack in (1, 4):
        frames = Array((stack, 84, 84), "uint8", 0.0, 255.0, stack=stack, plane=True)
        agent = build_agent(settings, Spec(frames, Discrete(6), settings.run.num_envs))
        # 16 environments of 62,500 rows, of which 62,480 are a whole number of strides.
        assert agent.replay_bytes() == expected * 62_480 // 62_500 < 7.3e9
