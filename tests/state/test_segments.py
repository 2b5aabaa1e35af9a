"""Replay comes back from its segments bit for bit, new rows alone are written, and damage is never loaded."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from whorl.core import tree
from whorl.core.errors import CheckpointError, ConfigError
from whorl.core.spec import Array, Discrete, Spec
from whorl.data import segments
from whorl.data.batch import Batch
from whorl.data.ring import Ring
from whorl.data.segments import DamagedError, Segments

NUM_ENVS, SLOTS, STRIDE = 3, 64, 2
ROW = NUM_ENVS * (
    2 * 4 + 9 + 1 + 8 + 4 + 1 + 1 + 1 + 2
)  # bytes of one row of all environments, as `ring` below stores it
MEMORY = NUM_ENVS * 4 * 4 / STRIDE
"""bytes of stored memory per row"""


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole segments of ten rows."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", int(10 * (ROW + MEMORY)))


def ring(slots: int = SLOTS, num_envs: int = NUM_ENVS) -> Ring:
    observation = {"vector": Array((2,)), "image": Array((3, 3), "uint8")}
    return Ring(
        Spec(observation, Discrete(5), num_envs),
        slots * num_envs,
        extras={"code": Array((2,), "uint8")},
        memory={"net": {"h": torch.zeros(1, 4)}},
        stride=STRIDE,
    )


def rollout(steps: int, num_envs: int = NUM_ENVS) -> Batch:
    shape = (steps, num_envs)
    return Batch(
        obs={
            "vector": torch.randn(steps + 1, num_envs, 2),
            "image": torch.randint(256, (steps + 1, num_envs, 3, 3), dtype=torch.uint8),
        },
        reset=torch.rand(steps + 1, num_envs)
        < 0.3,  # breaks off where it was not announced: gaps are closed backwards
        action=torch.randint(5, shape),
        reward=torch.randn(shape),
        continues=torch.rand(shape) < 0.9,
        keep=torch.ones(shape),
        mask=torch.ones(shape),
        memories={"net": {"h": torch.randn(steps // STRIDE, num_envs, 4)}},
        extras={"code": torch.randint(256, (*shape, 2), dtype=torch.uint8)},
    )


def add(store: Segments, *steps: int) -> None:
    """As `Replay.add` does it."""
    for count in steps:
        store.advance(count)
        store.ring.add(rollout(count))  # type: ignore[attr-defined]


def saved(store: Segments) -> dict[str, Any]:
    """A state as a checkpoint would hold it: what happens to the ring later does not touch it."""
    state = store.ring.state_dict()  # type: ignore[attr-defined]
    del state["columns"], state["memories"]
    return clone({**state, "manifest": store.save()})


def clone(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def loaded(folder: Path, state: dict[str, Any], into: Ring | None = None) -> Segments:
    into = into or ring()
    into.load_state_dict(state)
    store = Segments(folder, into)
    store.load(state["manifest"])
    return store


def contents(store: Segments) -> dict[str, torch.Tensor]:
    return dict(tree.items({"columns": store.ring.columns, "memories": store.ring.memories}))


def assert_same(one: Segments | dict[str, torch.Tensor], other: Segments) -> None:
    before = contents(one) if isinstance(one, Segments) else one
    after = contents(other)
    assert before.keys() == after.keys()
    for name in before:
        assert before[name].dtype == after[name].dtype and torch.equal(before[name], after[name]), name


def on_disk(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def written(folder: Path, before: set[str] = frozenset()) -> int:
    return sum((folder / name).stat().st_size for name in on_disk(folder) - before)


@pytest.mark.parametrize(
    "steps",
    [[2], [4], [30], [62], [64], [64, 2], [8] * 20, [2] * 70, [64, 64, 64], [60, 20, 40, 6], []],
    ids=lambda steps: f"{len(steps)} rollouts, {sum(steps)} rows",
)
def test_a_ring_comes_back_bit_for_bit(steps: list[int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    store = Segments(tmp_path / "replay", ring())
    add(store, *steps)
    other = loaded(tmp_path / "replay", saved(store))
    assert_same(store, other)
    assert other.ring.rows == sum(steps)
    # Both go on alike, and can be saved again.
    torch.manual_seed(1)
    add(store, 6, 8)
    torch.manual_seed(1)
    add(other, 6, 8)
    assert_same(store, other)
    assert_same(other, loaded(tmp_path / "replay", saved(other)))


@pytest.mark.parametrize("ahead", [True, False])
def test_every_checkpoint_of_a_long_run_comes_back(ahead: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    store = Segments(tmp_path / "replay", ring(), ahead=ahead)
    kept = []
    for number in range(60):
        add(store, 2 + 2 * (number % 5))
        if number % 3 == 0:
            kept.append((saved(store), clone(contents(store))))
            manifest = kept[-1][0]["manifest"]
            assert all(tail["last"] > manifest["next"] for tail in manifest["tails"]), (
                "in a whole segment already"
            )
    for state, expected in kept:
        assert_same(expected, loaded(tmp_path / "replay", state))


def test_small_rings_are_kept_in_tails_that_are_gathered_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1 << 20)
    store = Segments(tmp_path / "replay", ring())
    counts = []
    for _ in range(40):
        add(store, 2)
        state = saved(store)
        counts.append(len(state["manifest"]["tails"]))
        assert not state["manifest"]["whole"]
    # Nothing has settled at first; sixteen grow, then one holds it all.
    assert counts[:18] == [*range(17), 1]
    assert max(counts) == 16
    assert_same(store, loaded(tmp_path / "replay", state))


def test_the_second_checkpoint_writes_the_new_rows_alone(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    store = Segments(folder, ring())
    add(store, 32)
    saved(store)
    assert store.size == 10
    # 30 rows have settled: three whole segments.
    first = on_disk(folder)
    assert written(folder) == 30 * (ROW + MEMORY)
    add(store, 6)
    saved(store)
    assert written(folder, first) == 6 * (ROW + MEMORY)
    second = on_disk(folder)
    saved(store)
    assert on_disk(folder) == second, "nothing new, nothing written"


def test_after_a_resume_only_new_rows_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    store = Segments(folder, ring())
    add(store, 32, 6)
    state = saved(store)
    store.close()
    before = on_disk(folder)
    other = loaded(folder, state)
    saved(other)
    assert on_disk(folder) == before
    add(other, 2)
    saved(other)
    assert written(folder, before) == 2 * (ROW + MEMORY)


def test_whole_segments_are_written_while_rows_are_added(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    store = Segments(folder, ring())
    add(store, 30, 2)
    store._collect(finish=True)
    assert written(folder) == 20 * (ROW + MEMORY)  # 28 rows had settled when the two came
    add(store, 2)
    store.close()
    assert on_disk(folder) == set(), "no checkpoint knows of them"


def test_rows_are_not_overwritten_before_they_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    write, unfinished = Segments._write, []

    def slow(self: Segments, path: Path, raw: list[memoryview]) -> int:
        before = [bytes(part) for part in raw]
        torch.rand(100_000).sort()  # a few milliseconds, in which the ring could go on
        unfinished.append(before != [bytes(part) for part in raw])
        return write(self, path, raw)

    monkeypatch.setattr(Segments, "_write", slow)
    store = Segments(tmp_path / "replay", ring())
    add(store, *[32] * 12)
    assert_same(store, loaded(tmp_path / "replay", saved(store)))
    assert len(unfinished) > 30 and not any(unfinished)


def test_files_that_nobody_was_told_of_do_not_pile_up(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    store = Segments(folder, ring())
    add(store, *[10] * 60)
    store._collect(finish=True)
    assert len(on_disk(folder)) <= SLOTS / 10 + 2


def test_a_branch_shares_files_and_overwrites_none(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = tmp_path / "replay"
    store = Segments(folder, ring())
    add(store, 36)
    old = saved(store)
    add(store, 30)
    new, expected = saved(store), clone(contents(store))
    before = {name: (folder / name).read_bytes() for name in on_disk(folder)}
    branch = loaded(folder, old)
    add(branch, 30)
    other = saved(branch)
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert_same(expected, loaded(folder, new))
    assert_same(branch, loaded(folder, other))


def test_sweeping_deletes_what_neither_checkpoint_nor_ring_needs(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    store = Segments(folder, ring())
    add(store, 32, 4)
    state = saved(store)
    named = set(store.names())
    add(store, 64, 64)
    saved(store)
    (folder / ".000.rows.tmp-999999999-00000000").write_bytes(b"half a segment")
    (folder / "notes.txt").write_text("not ours")
    store.sweep(named)
    assert on_disk(folder) == {*named, *store.names(), "notes.txt"}
    loaded(folder, state)
    store.sweep(set())
    assert on_disk(folder) == {*store.names(), "notes.txt"}


@pytest.mark.parametrize("which", range(6))
def test_a_segment_that_somebody_deleted_is_written_again(which: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = tmp_path / "replay"
    store = Segments(folder, ring())
    for steps in (34, 2, 2):
        add(store, steps)
        state = saved(store)
    assert [len(state["manifest"][kind]) for kind in ("whole", "tails")] == [3, 3]
    (folder / store.names()[which]).unlink()
    add(store, 2)
    assert_same(store, loaded(folder, saved(store)))


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize(
    "damage, message",
    [
        ("missing", r"replay/0\S+\.rows is missing"),
        ("short", r"replay/0\S+\.rows has \d+ bytes instead of \d+"),
        ("empty", r"replay/0\S+\.rows has 0 bytes instead of \d+"),
        ("flipped", r"replay/0\S+\.rows does not match its CRC-32; it was damaged or altered"),
    ],
)
def test_damage_is_one_sentence(damage: str, message: str, which: int, tmp_path: Path) -> None:
    store = Segments(tmp_path / "replay", ring())
    add(store, 32, 4)
    state = saved(store)
    path = tmp_path / "replay" / store.names()[which]
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[: 0 if damage == "empty" else -1])
    with pytest.raises(DamagedError, match=f"^{message}$"):
        loaded(tmp_path / "replay", state)


def test_a_manifest_can_name_no_file_elsewhere(tmp_path: Path) -> None:
    store = Segments(tmp_path / "replay", ring())
    add(store, 32)
    state = saved(store)
    state["manifest"]["whole"][0]["file"] = "../secret"
    (tmp_path / "secret").write_bytes(b"x" * state["manifest"]["whole"][0]["size"])
    with pytest.raises(DamagedError, match=r"'\.\./secret', which is not a segment file"):
        loaded(tmp_path / "replay", state)


def test_a_full_disk_is_told_at_the_next_save_and_mended_by_the_one_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    folder = tmp_path / "replay"
    store = Segments(folder, ring())
    add(store, 32)
    state, expected = saved(store), clone(contents(store))
    before = on_disk(folder)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        add(store, *[8] * 10)  # training goes on
        with pytest.raises(
            CheckpointError, match=r"can't save the replay buffer in .*: the disk is full; free some space"
        ):
            store.save()
        assert on_disk(folder) == before, "no half files"
        assert_same(expected, loaded(folder, state))
        add(store, 8)
    assert_same(store, loaded(folder, saved(store)))


def test_a_disk_that_was_full_for_a_while_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Segments(tmp_path / "replay", ring())
    add(store, 36)
    saved(store)  # three whole segments and a tail
    fsync, calls = os.fsync, []

    def full_once(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full_once)
    add(store, 6, 2)  # the fourth, in place of the tail, fails
    assert_same(store, loaded(tmp_path / "replay", saved(store)))
    assert len(calls) > 1


def test_a_full_disk_while_writing_is_the_same(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    store = Segments(tmp_path / "replay", ring())
    add(store, 40, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        add(store, 10)
        with pytest.raises(CheckpointError, match=r"can't save the replay buffer in .*: file too large"):
            store.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_same(store, loaded(tmp_path / "replay", saved(store)))


def test_another_ring_size_is_one_sentence_and_nothing_is_lost(tmp_path: Path) -> None:
    store = Segments(tmp_path / "replay", ring())
    add(store, 32)
    state = saved(store)
    with pytest.raises(
        ConfigError,
        match="the checkpoint's replay buffer holds 64 rows for each of 3 environments, but the settings ask for 32 "
        "for each of 3; resume with buffer_size 192 and num_envs 3",
    ):
        loaded(tmp_path / "replay", state, ring(slots=32))
    with pytest.raises(
        ConfigError, match="64 rows for each of 3 environments, but the settings ask for 64 for each of 2"
    ):
        loaded(tmp_path / "replay", state, ring(num_envs=2))
    assert_same(store, loaded(tmp_path / "replay", state))


def test_other_columns_are_one_sentence(tmp_path: Path) -> None:
    store = Segments(tmp_path / "replay", ring())
    add(store, 32)
    state = saved(store)
    plain = Ring(Spec(Array((2,)), Discrete(5), NUM_ENVS), SLOTS * NUM_ENVS)
    with pytest.raises(
        ConfigError, match=r"the checkpoint's replay buffer has .* columns.* but the settings require none"
    ):
        loaded(tmp_path / "replay", state, plain)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_ring_on_a_gpu_is_copied_to_the_host_before_it_goes_on(tmp_path: Path) -> None:
    torch.manual_seed(0)
    observation = Array((3,))
    on_gpu = Ring(Spec(observation, Discrete(5), 2), 2000, "cuda")
    store = Segments(tmp_path / "replay", on_gpu)
    for _ in range(90):
        store.advance(30)
        plain = rollout(30, 2)
        on_gpu.add(plain.replace(obs=torch.randn(31, 2, 3), extras={}, memories={}).to(torch.device("cuda")))
    other = loaded(tmp_path / "replay", saved(store), Ring(Spec(observation, Discrete(5), 2), 2000))
    assert_same({name: leaf.cpu() for name, leaf in contents(store).items()}, other)
