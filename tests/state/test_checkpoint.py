"""Checkpoints are whole or not there, come back bit for bit, and never run code."""

import hashlib
import os
import pickle
import random
import subprocess
import sys
from collections import OrderedDict
from errno import ENOSPC, EROFS
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from whorl.core import files
from whorl.core.errors import CheckpointError
from whorl.state import checkpoint


def write(run_dir: Path, k: int, **state: Any) -> Path:
    """A small checkpoint in which every file knows its k."""
    return checkpoint.save(
        run_dir,
        k,
        state={"weight": torch.full((50,), float(k)), "updates": k, **state},
        policy={"weight": torch.full((50,), float(k))},
        config={"number": k},
        metadata={"n_epochs": k, "steps": 100 * k, "episodes": 3, "mean_return": 1.5, "metrics_offset": 7},
        normalizer={
            "observation": {"mean": torch.tensor([1.0, 2.0]), "var": torch.tensor([4.0, 9.0]), "count": k}
        },
    )


def assert_whole(loaded: checkpoint.Loaded, k: int) -> None:
    assert loaded.state["updates"] == loaded.config["number"] == loaded.metadata["k"] == k
    assert loaded.folder.name == f"checkpoint_{k}"
    assert torch.equal(loaded.state["weight"], torch.full((50,), float(k)))
    assert torch.equal(loaded.policy["weight"], torch.full((50,), float(k)))


def visible(run_dir: Path) -> set[str]:
    return {entry.name for entry in run_dir.iterdir() if not entry.name.startswith(".")}


def hidden(run_dir: Path) -> set[str]:
    return {entry.name for entry in run_dir.iterdir() if entry.name.startswith(".")}


def reseal(folder: Path, **changes: Any) -> None:
    """Make the checksums fit the files again, as a forger would."""
    text = (folder / "metadata.yaml").read_bytes()
    metadata = yaml.safe_load(text[: text.rindex(b"checksum: ")])
    for name, entry in metadata["files"].items():
        data = (folder / name).read_bytes()
        entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    seal(folder, yaml.safe_dump(metadata | changes).encode())


def seal(folder: Path, body: bytes) -> None:
    checksum = f"checksum: {hashlib.sha256(body).hexdigest()}\n".encode()
    (folder / "metadata.yaml").write_bytes(body + checksum)


def assert_bitwise(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        same = (
            found.contiguous().reshape(-1).view(torch.uint8),
            expected.contiguous().reshape(-1).view(torch.uint8),
        )
        assert torch.equal(*same)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_bitwise(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            assert_bitwise(a, b)
    else:
        assert found == expected


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    state = {
        "float": torch.tensor([0.1, -0.0, float("inf"), float("nan")]),
        "bfloat16": torch.randn(7, 3).bfloat16(),
        "half": torch.randn(4).half(),
        "double": torch.randn(2, 2, dtype=torch.float64),
        "int": torch.tensor([2**62, -1]),
        "uint8": torch.arange(256, dtype=torch.uint8),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(3.25),
        "empty": torch.zeros(0, 4),
        "transposed": torch.arange(6.0).reshape(2, 3).t(),
        "generator": generator.get_state(),
        "plain": {"list": [1, 2.5, None, "text", b"bytes", True], "tuple": (1, (2, 3)), 4: "integer key"},
        "numpy generator": 2**127 + 1,
    }
    folder = checkpoint.save(tmp_path, 1, state, {}, {}, {}, None)
    assert_bitwise(checkpoint.load(folder).state, state)


def test_a_restored_generator_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    folder = write(tmp_path, 1, generator=generator.get_state())
    expected = torch.rand(9, generator=generator)
    restored = torch.Generator()
    restored.set_state(checkpoint.load(folder).state["generator"])
    assert torch.equal(torch.rand(9, generator=restored), expected)


def test_module_and_optimizer_states_are_accepted_and_left_as_they_were(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    addresses = [parameter.data_ptr() for parameter in net.parameters()]
    state = {"net": net.state_dict(), "parameter": net.weight, "optimizer": optimizer.state_dict()}
    loaded = checkpoint.load(checkpoint.save(tmp_path, 1, state, {}, {}, {}, None)).state
    assert torch.equal(loaded["net"]["weight"], net.weight)
    assert torch.equal(
        loaded["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )
    assert not loaded["parameter"].requires_grad and net.weight.requires_grad
    assert isinstance(state["net"], OrderedDict)
    assert [parameter.data_ptr() for parameter in net.parameters()] == addresses


def test_a_view_does_not_take_its_base_into_the_file(tmp_path: Path) -> None:
    base = torch.arange(1_000_000.0)
    folder = write(tmp_path, 1, view=base[10:20], expanded=base[3].expand(4))
    assert (folder / "checkpoint.pt").stat().st_size < 10_000
    loaded = checkpoint.load(folder).state
    assert torch.equal(loaded["view"], torch.arange(10.0, 20.0))
    assert torch.equal(loaded["expanded"], torch.full((4,), 3.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_on_a_gpu_are_saved_from_there_and_come_back_on_the_cpu(tmp_path: Path) -> None:
    base = torch.arange(1_000_000.0, device="cuda")
    folder = write(tmp_path, 1, row=base[10:20], transposed=base[:6].view(2, 3).t())
    assert (folder / "checkpoint.pt").stat().st_size < 10_000 and base.is_cuda
    loaded = checkpoint.load(folder).state
    assert torch.equal(loaded["row"], torch.arange(10.0, 20.0))
    assert torch.equal(loaded["transposed"], torch.arange(6.0).view(2, 3).t())
    assert checkpoint.load(folder, map_location="cuda").state["row"].is_cuda


def test_a_storage_shared_by_two_names_is_written_once(tmp_path: Path) -> None:
    weight = torch.randn(100_000)
    folder = write(tmp_path, 1, embedding=weight, output=weight)
    assert (folder / "checkpoint.pt").stat().st_size < 500_000
    assert torch.equal(checkpoint.load(folder).state["output"], weight)


def test_numpy_scalars_become_plain_numbers(tmp_path: Path) -> None:
    loaded = checkpoint.load(write(tmp_path, 1, best=np.float64(2.5), count=np.int32(4))).state
    assert type(loaded["best"]) is float and type(loaded["count"]) is int


def test_an_object_in_the_state_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"state\.envs\[1\]\.array is a numpy\.ndarray"):
        write(tmp_path, 1, envs=[0, {"array": np.zeros(3)}])
    assert not list(tmp_path.iterdir())


def test_a_config_that_yaml_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.yaml can't contain"):
        checkpoint.save(tmp_path, 1, {}, {}, {"layer": torch.zeros(1)}, {}, None)


def test_the_folder_holds_the_documented_files_and_metadata(tmp_path: Path) -> None:
    folder = write(tmp_path, 4)
    assert visible(folder) == {
        "checkpoint.pt",
        "policy.pt",
        "config.yaml",
        "metadata.yaml",
        "observation_normalizing_values.yaml",
    }
    metadata = yaml.safe_load((folder / "metadata.yaml").read_bytes())
    assert metadata["format"] == checkpoint.FORMAT and metadata["k"] == 4 and metadata["steps"] == 400
    assert metadata["torch"] == torch.__version__ and metadata["mean_return"] == 1.5 and metadata["date"]
    assert metadata["files"]["policy.pt"]["sha256"] == files.sha256(folder / "policy.pt")


def test_normalizing_values_are_plain_lists_and_std_is_the_standard_deviation(tmp_path: Path) -> None:
    path = write(tmp_path, 4) / "observation_normalizing_values.yaml"
    values = yaml.safe_load(path.read_bytes())["observation"]
    assert values == {"mean": [1.0, 2.0], "std": [2.0, 3.0], "var": [4.0, 9.0], "count": 4}


def test_config_values_come_back_as_they_were(tmp_path: Path) -> None:
    config = {
        "learning_rate": 1e-7,
        "text": "1e-3",
        "on": True,
        "off": "no",
        "none": None,
        "net": {"hidden_sizes": [64, 64]},
        "ä": "ü",
    }
    assert checkpoint.load(checkpoint.save(tmp_path, 1, {}, {}, config, {}, None)).config == config


def test_checkpoints_are_listed_newest_first_by_number(tmp_path: Path) -> None:
    for k in (2, 10, 9):
        write(tmp_path, k)
    (tmp_path / "checkpoint_11").write_text("a file")
    (tmp_path / "checkpoint_012").mkdir()
    assert [checkpoint.number(folder) for folder in checkpoint.checkpoints(tmp_path)] == [10, 9, 2]


def test_the_newest_checkpoint_is_loaded_without_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    write(tmp_path, 1)
    write(tmp_path, 2)
    assert_whole(checkpoint.use_newest(tmp_path, warnings.append, lambda loaded: loaded), 2)
    assert warnings == []


NAMES = ["checkpoint.pt", "policy.pt", "config.yaml", "metadata.yaml", "observation_normalizing_values.yaml"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_told_and_the_one_before_is_loaded(
    tmp_path: Path, name: str, share: float
) -> None:
    write(tmp_path, 1)
    victim = write(tmp_path, 2) / name
    length = int(victim.stat().st_size * share)
    os.truncate(victim, length)
    warnings: list[str] = []
    assert_whole(checkpoint.use_newest(tmp_path, warnings.append, lambda loaded: loaded), 1)
    assert len(warnings) == 1 and "checkpoint_2" in warnings[0] and name in warnings[0]
    assert victim.stat().st_size == length


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, 2)
    path = folder / name
    data = path.read_bytes()
    chance = random.Random(name)
    for _ in range(40):
        place, bit = chance.randrange(len(data)), chance.randrange(8)
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match=name):
            checkpoint.load(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, 2)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        checkpoint.load(folder)


def test_an_absent_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the folder is missing"):
        checkpoint.load(tmp_path / "checkpoint_9")


def test_when_none_is_whole_the_error_lists_all_that_was_tried(tmp_path: Path) -> None:
    for k in (1, 2):
        (write(tmp_path, k) / "policy.pt").unlink()
    with pytest.raises(
        CheckpointError, match=r"checkpoint_2: policy\.pt is missing; .*checkpoint_1: policy\.pt"
    ):
        checkpoint.use_newest(tmp_path, lambda _: None, lambda loaded: loaded)


def test_a_run_without_checkpoints_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        checkpoint.use_newest(tmp_path, lambda _: None, lambda loaded: loaded)


def test_an_absent_run_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.use_newest(tmp_path / "gone", lambda _: None, lambda loaded: loaded)


def test_a_newer_format_asks_for_an_upgrade_and_is_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 1)
    reseal(write(tmp_path, 2), format=99)
    with pytest.raises(CheckpointError, match=r"format 99 is newer .*upgrade"):
        checkpoint.use_newest(tmp_path, lambda _: None, lambda loaded: loaded)


def test_an_older_format_names_the_version_that_reads_it_and_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1)
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    folder = write(tmp_path, 2)
    assert checkpoint.load(folder).metadata["k"] == 2
    reseal(folder, format=checkpoint.FORMAT - 1, whorl="0.1.0")
    sentence = rf"checkpoint_2: format {checkpoint.FORMAT - 1} is older than .* use Whorl 0.1.0 for it, or train again$"
    with pytest.raises(CheckpointError, match=sentence):
        checkpoint.use_newest(tmp_path, pytest.fail, lambda loaded: loaded)


class Malice:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("name", ["checkpoint.pt", "policy.pt"])
@pytest.mark.parametrize("dump", ["torch", "pickle"])
def test_a_malicious_pickle_runs_nothing_even_with_its_hash_fixed_up(
    tmp_path: Path, name: str, dump: str
) -> None:
    folder, trace = write(tmp_path, 2), tmp_path / "trace"
    if dump == "torch":
        torch.save({"weight": Malice(trace)}, folder / name)
    else:
        (folder / name).write_bytes(pickle.dumps({"weight": Malice(trace)}, protocol=2))
    with pytest.raises(CheckpointError, match=r"bytes instead of|sha256"):
        checkpoint.load(folder)
    reseal(folder)
    with pytest.raises(CheckpointError, match="contains more than tensors"):
        checkpoint.load(folder)
    assert not trace.exists()
    unsafe = torch.load if dump == "torch" else lambda path, **_: pickle.loads(path.read_bytes())
    unsafe(folder / name, weights_only=False)
    assert trace.exists(), "the attack itself works, so the test means something"


def test_a_python_tag_in_the_config_runs_nothing_even_with_its_hash_fixed_up(tmp_path: Path) -> None:
    folder, trace = write(tmp_path, 2), tmp_path / "trace"
    (folder / "config.yaml").write_text(f"number: !!python/object/apply:os.mkdir ['{trace}']\n")
    reseal(folder)
    with pytest.raises(CheckpointError, match=r"config\.yaml is not plain YAML"):
        checkpoint.load(folder)
    assert not trace.exists()


def test_a_python_tag_in_the_metadata_runs_nothing_even_with_its_checksum_fixed_up(tmp_path: Path) -> None:
    folder, trace = write(tmp_path, 2), tmp_path / "trace"
    seal(folder, f"k: !!python/object/apply:os.mkdir ['{trace}']\n".encode())
    with pytest.raises(CheckpointError, match=r"metadata\.yaml is not plain YAML"):
        checkpoint.load(folder)
    assert not trace.exists()


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "format: 2",
        "format: 2\nfiles: 3",
        "format: one\nfiles: {}",
        "format: 2\nfiles: {checkpoint.pt: 1, policy.pt: 2, config.yaml: 3}",
        "format: 2\nfiles: {checkpoint.pt: 1, policy.pt: 2, config.yaml: 3, ../../secret: 4}",
        "date: 2026-99-99",
    ],
)
def test_forged_metadata_is_an_error_and_never_a_crash(tmp_path: Path, body: str) -> None:
    folder = write(tmp_path, 2)
    seal(folder, body.encode() + b"\n")
    with pytest.raises(CheckpointError, match=r"metadata\.yaml"):
        checkpoint.load(folder)


def test_saving_a_number_again_replaces_a_damaged_checkpoint(tmp_path: Path) -> None:
    (write(tmp_path, 2) / "policy.pt").write_bytes(b"")
    assert_whole(checkpoint.load(write(tmp_path, 2)), 2)
    assert visible(tmp_path) == {"checkpoint_2"} and not hidden(tmp_path)


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system on which two folders can't swap names."""
    monkeypatch.setattr(files, "exchange", lambda one, other: False)


def test_when_the_last_rename_fails_the_checkpoint_of_that_number_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_exchange: None
) -> None:
    write(tmp_path, 2)
    rename, calls = os.rename, []

    def second_fails(a: Path, b: Path) -> None:
        calls.append(b)
        if len(calls) == 2:
            raise OSError(ENOSPC, "No space left on device")
        rename(a, b)

    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(CheckpointError, match="disk is full"):
        write(tmp_path, 2, other=1)
    assert "other" not in checkpoint.load(tmp_path / "checkpoint_2").state
    assert visible(tmp_path) == {"checkpoint_2"} and not hidden(tmp_path)


def test_a_disk_that_fills_while_tensors_are_written_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, 1)
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # real failing writes, inside torch.save
    try:
        with pytest.raises(
            CheckpointError, match=r"can't save checkpoint_2 in .*: file too large; existing checkpoints"
        ):
            write(tmp_path, 2, ring=torch.zeros(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert visible(tmp_path) == {"checkpoint_1"} and not hidden(tmp_path)
    assert_whole(checkpoint.use_newest(tmp_path, pytest.fail, lambda loaded: loaded), 1)


@pytest.mark.parametrize("n", range(8))
def test_a_disk_full_at_any_fsync_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    write(tmp_path, 1)
    fsync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == n + 1:
            raise OSError(ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    if n < 6:  # five files and their folder come before the rename
        with pytest.raises(CheckpointError, match="the disk is full; free some space"):
            write(tmp_path, 2)
        assert visible(tmp_path) == {"checkpoint_1"} and not hidden(tmp_path)
    elif n == 6:  # the parent comes after it: reported, but what is visible is whole
        with pytest.raises(CheckpointError, match="the disk is full"):
            write(tmp_path, 2)
        assert_whole(checkpoint.use_newest(tmp_path, pytest.fail, lambda loaded: loaded), 2)
    else:
        assert_whole(checkpoint.load(write(tmp_path, 2)), 2)


def test_a_read_only_run_folder_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CheckpointError, match="read-only; choose another folder"):
        write(tmp_path, 1)


def test_a_file_in_place_of_the_run_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(CheckpointError, match="a file with the name of the folder exists"):
        write(tmp_path / "run", 1)


def test_an_interrupt_while_saving_removes_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 1)
    assert not list(tmp_path.iterdir())


def test_left_overs_of_dead_processes_are_removed_and_of_live_ones_kept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone = [
        f".checkpoint_7.tmp-{dead.pid}-0123abcd",
        f".checkpoint_7.tmp-{os.getpid()}-0123abcd",  # our id, reused after a restart
        ".checkpoint_7.tmp-4294967295-0123abcd",
    ]
    kept = [
        f".checkpoint_7.tmp-{os.getppid()}-0123abcd",
        f".checkpoint_7.tmp-{dead.pid}",
        ".cache",
        "checkpoint_7.tmp-1-0123abcd",
    ]
    for name in gone + kept:
        (tmp_path / name).mkdir()
        (tmp_path / name / "checkpoint.pt").write_bytes(b"half")
    write(tmp_path, 1)
    assert {entry.name for entry in tmp_path.iterdir()} == {*kept, "checkpoint_1"}


def test_retention_keeps_the_newest(tmp_path: Path) -> None:
    for k in range(1, 7):
        write(tmp_path, k)
    assert checkpoint.retain(tmp_path, keep=2) == [4, 3, 2, 1]
    assert visible(tmp_path) == {"checkpoint_5", "checkpoint_6"} and not hidden(tmp_path)


def test_retention_of_zero_keeps_all(tmp_path: Path) -> None:
    for k in (1, 2):
        write(tmp_path, k)
    assert checkpoint.retain(tmp_path, keep=0) == []
    assert visible(tmp_path) == {"checkpoint_1", "checkpoint_2"}


def test_a_deletion_that_stops_half_way_leaves_no_half_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in (1, 2):
        write(tmp_path, k)
    with monkeypatch.context() as patch:
        patch.setattr(files, "_remove", lambda path: (path / "policy.pt").unlink())  # as far as it came
        checkpoint.retain(tmp_path, keep=1)
    assert visible(tmp_path) == {"checkpoint_2"} and len(hidden(tmp_path)) == 1
    write(tmp_path, 3)
    assert visible(tmp_path) == {"checkpoint_2", "checkpoint_3"} and not hidden(tmp_path)


def test_the_best_policy_replaces_the_one_before_and_is_no_resume_point(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        policy = {"weight": torch.tensor(value)}
        checkpoint.save_best(tmp_path, policy, {"number": 1}, {"mean_return": value}, None)
    found = checkpoint.load(tmp_path / checkpoint.BEST)
    assert found.policy["weight"] == 2.0 and found.metadata["mean_return"] == 2.0
    assert checkpoint.checkpoints(tmp_path) == [] and not hidden(tmp_path)


def save_best(run_dir: Path, value: float) -> Path:
    weight = {"weight": torch.tensor(value)}
    return checkpoint.save_best(run_dir, weight, {"number": value}, {"mean_return": value}, None)


def test_the_best_policy_is_never_missing_while_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    if not files.exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("names can't be swapped here")
    best = save_best(tmp_path, 1.0)
    rename = os.rename

    def watched(a: Path, b: Path) -> None:
        rename(a, b)
        assert best.exists()

    monkeypatch.setattr(os, "rename", watched)
    save_best(tmp_path, 2.0)
    assert checkpoint.load(best).policy["weight"] == 2.0


@pytest.mark.parametrize("renames", [1, 2])
def test_the_best_policy_is_there_again_after_a_kill_while_it_was_replaced(
    renames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_exchange: None
) -> None:
    best = save_best(tmp_path, 1.0)
    rename, calls = os.rename, []

    class Killed(BaseException): ...

    def killed(a: Path, b: Path) -> None:
        if len(calls) == renames:
            raise Killed
        calls.append(b)
        rename(a, b)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(Killed):
            save_best(tmp_path, 2.0)
    write(tmp_path, 1)
    assert checkpoint.load(best).policy["weight"] == renames
    assert visible(tmp_path) == {"best", "checkpoint_1"} and not hidden(tmp_path)


@pytest.mark.parametrize("during", ["_verify", "_tensors"])
def test_a_policy_that_is_replaced_while_it_is_read_is_read_again(
    during: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = save_best(tmp_path, 1.0)
    work, replaced = getattr(checkpoint, during), []

    def meanwhile(*given: Any) -> Any:
        if not replaced:
            replaced.append(save_best(tmp_path, 2.0))
        return work(*given)

    monkeypatch.setattr(checkpoint, during, meanwhile)
    found = checkpoint.load(best)
    assert (found.policy["weight"], found.metadata["mean_return"], found.config["number"]) == (2, 2, 2)


SAVER = """
import os, random, signal, sys, tempfile, time
from pathlib import Path
import torch
from whorl.state import checkpoint

def save_on(run_dir, k, until):
    while k < until:
        k += 1
        weight, ring = torch.full((50,), float(k)), torch.full((20_000,), k)
        state = {"weight": weight, "updates": k, "ring": ring}
        checkpoint.save(run_dir, k, state, {"weight": weight}, {"number": k}, {}, None)
        checkpoint.save_best(run_dir, {"weight": weight}, {"number": k}, {"mean_return": k}, None)
        checkpoint.retain(run_dir, 3)

torch.set_num_threads(1)
chance = random.Random(0)
with tempfile.TemporaryDirectory() as folder:  # how long one round takes here, so that kills fall into it
    save_on(Path(folder), 0, 2)
    start = time.perf_counter()
    save_on(Path(folder), 2, 6)
    round = (time.perf_counter() - start) / 4
for line in sys.stdin:  # the newest k; then fork, kill, and say so: one slow import of torch serves all kills
    pid = os.fork()
    if pid == 0:
        save_on(Path(sys.argv[1]), int(line), 1_000_000)
    time.sleep(chance.uniform(0, 4 * round))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print("killed", flush=True)
"""


def test_killed_at_any_moment_the_newest_checkpoint_is_whole_and_consistent(tmp_path: Path) -> None:
    write(tmp_path, 1)
    newest, half_written, seen = 1, 0, False
    command = [sys.executable, "-c", SAVER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as saver:
        assert saver.stdin and saver.stdout
        for _ in range(25):
            print(newest, file=saver.stdin, flush=True)
            assert saver.stdout.readline() == "killed\n"
            loaded = checkpoint.use_newest(tmp_path, pytest.fail, lambda loaded: loaded)
            assert_whole(loaded, loaded.metadata["k"])
            assert loaded.metadata["k"] >= newest, "nothing once saved is lost"
            newest = loaded.metadata["k"]
            if newest > 1:
                assert torch.equal(loaded.state["ring"], torch.full((20_000,), newest))
            for folder in checkpoint.checkpoints(tmp_path):
                assert_whole(checkpoint.load(folder), checkpoint.number(folder))
            best = tmp_path / checkpoint.BEST
            checkpoint.recover(tmp_path)
            assert best.exists() or not seen
            seen = best.exists()
            if seen:
                marked = checkpoint.load(best)
                assert torch.equal(marked.policy["weight"], torch.full((50,), float(marked.config["number"])))
            half_written += bool(hidden(tmp_path))
        saver.stdin.close()
    assert newest > 2 and half_written > 0, "the kills fell into saves"
    write(tmp_path, newest + 1)
    assert not hidden(tmp_path)
