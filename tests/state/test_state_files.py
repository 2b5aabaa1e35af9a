"""Atomic writes and scratch names."""

import hashlib
import os
from errno import EIO, ENOSPC
from itertools import islice
from pathlib import Path

import pytest

from whorl.core import files


def test_an_atomic_write_replaces_the_content_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    files.write_atomic(path, b"old")
    files.write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["best.yaml"]


def test_a_failed_atomic_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "best.yaml"
    files.write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["best.yaml"]


def test_data_reaches_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        order.append("fsync")
        fsync(descriptor)

    def noted_replace(source: Path, target: Path) -> None:
        order.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    files.write_atomic(tmp_path / "x", b"data")
    assert order == ["fsync", "replace", "fsync"]


def test_sha256_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    (tmp_path / "x").write_bytes(data)
    assert files.sha256(tmp_path / "x") == hashlib.sha256(data).hexdigest()


def test_free_names_count_from_two_and_pass_over_taken_ones(tmp_path: Path) -> None:
    (tmp_path / "a.b").mkdir()
    (tmp_path / "a.b_3").symlink_to("nowhere")
    assert [path.name for path in islice(files.free_names(tmp_path / "a.b"), 2)] == ["a.b_2", "a.b_4"]


def test_a_scratch_name_in_use_in_this_process_survives_a_sweep(tmp_path: Path) -> None:
    with files.scratch(tmp_path / "x") as temp:
        temp.mkdir()
        files.sweep(tmp_path)
        assert temp.is_dir()
    assert not temp.exists()


def test_a_reason_names_the_remedy_or_says_what_the_system_said() -> None:
    assert files.reason(OSError(ENOSPC, "No space left on device")) == "the disk is full; free some space"
    assert files.reason(OSError(EIO, "Input/output error")) == "input/output error"
