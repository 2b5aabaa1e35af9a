"""Metric loggers: what is on disk after writing, cutting, crashing and failing."""

import csv
import errno
import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from whorl.core.errors import ConfigError, WhorlError
from whorl.log.writers import Log, LogFile, Logger, MetricFiles, Row, TensorBoard, WandB, read_rows


class Broken(Logger):
    calls = 0

    def write(self, row: Row) -> None:
        self.calls += 1
        raise ConnectionError("no network")


class Full(io.BytesIO):
    """A file on a disk with room for five more bytes."""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if self.tell() >= 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data[:5])


def table(folder: Path) -> list[list[str]]:
    return list(csv.reader((folder / "progress.csv").read_text().splitlines()))


def test_rows_come_back_bit_for_bit(tmp_path: Path) -> None:
    files = MetricFiles(tmp_path)
    files.write({"steps": 128, "loss/critic": 0.1 + 0.2, "phase/name": "policy"})
    assert list(read_rows(files.jsonl)) == [
        {"steps": 128, "loss/critic": 0.30000000000000004, "phase/name": "policy"}
    ]


def test_a_row_is_readable_before_anything_is_flushed(tmp_path: Path) -> None:
    MetricFiles(tmp_path).write({"steps": 1})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"steps": 1}\n'


def test_nan_and_infinity_are_words_so_that_every_json_reader_accepts_the_file(tmp_path: Path) -> None:
    MetricFiles(tmp_path).write({"steps": 1, "a/a": float("nan"), "a/b": float("inf"), "a/c": float("-inf")})
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "steps": 1,
        "a/a": "nan",
        "a/b": "inf",
        "a/c": "-inf",
    }


def test_numpy_numbers_are_written_as_plain_ones(tmp_path: Path) -> None:
    MetricFiles(tmp_path).write({"steps": np.int64(3), "a/a": np.float32(0.5)})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"steps": 3, "a/a": 0.5}\n'


def test_a_row_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs 'steps'"):
        MetricFiles(tmp_path).write({"loss/critic": 1.0})


def test_the_table_grows_a_column_when_a_new_metric_shows_up(tmp_path: Path) -> None:
    files = MetricFiles(tmp_path)
    files.write({"steps": 1, "loss/a": 0.5})
    files.write({"steps": 2, "evaluation/return": 7.0})
    files.write({"steps": 3, "loss/a": 0.25})
    assert table(tmp_path) == [
        ["steps", "loss/a", "evaluation/return"],
        ["1", "0.5", ""],
        ["2", "", "7.0"],
        ["3", "0.25", ""],
    ]


def test_cutting_gives_the_files_of_a_run_that_stopped_there(tmp_path: Path) -> None:
    stopped, went_on = MetricFiles(tmp_path / "stopped"), MetricFiles(tmp_path / "went_on")
    for files in (stopped, went_on):
        files.write({"steps": 1, "loss/a": 0.5})
        files.write({"steps": 2, "loss/a": 0.4})
    offset = went_on.offset()
    went_on.write({"steps": 3, "loss/a": 0.3, "evaluation/return": 1.0})
    went_on.truncate(offset)
    assert went_on.jsonl.read_bytes() == stopped.jsonl.read_bytes()
    assert went_on.csv.read_bytes() == stopped.csv.read_bytes()


def test_writing_after_a_cut_continues_at_the_cut(tmp_path: Path) -> None:
    files = MetricFiles(tmp_path)
    files.write({"steps": 1})
    offset = files.offset()
    files.write({"steps": 2})
    files.truncate(offset)
    files.write({"steps": 20})
    assert [row["steps"] for row in read_rows(files.jsonl)] == [1, 20]
    assert table(tmp_path) == [["steps"], ["1"], ["20"]]


def test_cutting_beyond_the_end_keeps_everything(tmp_path: Path) -> None:
    files = MetricFiles(tmp_path)
    files.write({"steps": 1})
    files.truncate(10_000)
    assert [row["steps"] for row in read_rows(files.jsonl)] == [1]


def test_a_new_column_that_can_not_be_written_leaves_files_that_can_be_closed(tmp_path: Path) -> None:
    files = MetricFiles(tmp_path / "run")
    files.write({"steps": 1})
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(WhorlError, match="can't write metrics"):
        files.write({"steps": 2, "loss/a": 0.5})
    files.close()


def test_cutting_at_zero_leaves_empty_files(tmp_path: Path) -> None:
    files = MetricFiles(tmp_path)
    files.write({"steps": 1})
    files.truncate(0)
    assert files.jsonl.read_bytes() == files.csv.read_bytes() == b""


@pytest.mark.parametrize("torn", [b'{"steps": 2, "loss', b'{"steps": 2}', b"\0\0\0\0\n"])
def test_opening_a_folder_after_a_crash_drops_the_line_that_was_torn(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"steps": 1}\n' + torn)
    files = MetricFiles(tmp_path)
    files.write({"steps": 3})
    assert files.jsonl.read_bytes() == b'{"steps": 1}\n{"steps": 3}\n'


def test_a_full_disk_is_one_clear_sentence(tmp_path: Path) -> None:
    files = MetricFiles(tmp_path)
    files._lines = Full()  # type: ignore[assignment]
    with pytest.raises(WhorlError, match=r"No space left on device.*free some space, then resume"):
        Log(files).write({"steps": 1, "loss/a": 0.5})


def test_a_full_disk_still_reaches_the_other_sinks(tmp_path: Path) -> None:
    files, text = MetricFiles(tmp_path), LogFile(tmp_path / "log.txt")
    files._lines = Full()  # type: ignore[assignment]
    with pytest.raises(WhorlError):
        Log(files, text).write({"steps": 1})
    assert "steps=1" in (tmp_path / "log.txt").read_text()


def test_a_failing_optional_sink_is_reported_once_and_dropped(tmp_path: Path) -> None:
    broken, files = Broken(), MetricFiles(tmp_path)
    log = Log(broken, files)
    with pytest.warns(RuntimeWarning, match="Broken failed and is switched off.*no network"):
        log.write({"steps": 1})
    log.write({"steps": 2})
    assert broken.calls == 1
    assert [row["steps"] for row in read_rows(files.jsonl)] == [1, 2]


def test_the_text_log_holds_messages_and_rows(tmp_path: Path) -> None:
    log = Log(LogFile(tmp_path / "deep" / "log.txt"))
    log.message("a checkpoint was written")
    log.write({"steps": 10, "loss/a": 0.123456789})
    log.close()
    first, second = (tmp_path / "deep" / "log.txt").read_text().splitlines()
    assert first.endswith("  a checkpoint was written")
    assert second.endswith("  steps=10  loss/a=0.123457")


def test_tensorboard_shows_numbers_over_steps_and_hides_what_was_purged(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = TensorBoard(tmp_path)
    for steps in (10, 20, 30):
        first.write({"steps": steps, "episode/return": steps / 10, "phase/name": "policy"})
    first.close()
    resumed = TensorBoard(tmp_path, purge_step=21)
    resumed.write({"steps": 40, "episode/return": 4.0})
    resumed.close()
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["episode/return"]
    assert [(event.step, event.value) for event in events.Scalars("episode/return")] == [
        (10, 1.0),
        (20, 2.0),
        (40, 4.0),
    ]


def test_an_unknown_wandb_mode_is_refused_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="online, offline, disabled"):
        WandB(tmp_path, {}, mode="of")


def test_wandb_that_does_not_start_names_the_setting_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**given: Any) -> None:
        raise ConnectionError("no server")

    fake = SimpleNamespace(
        init=refuse, Settings=SimpleNamespace, errors=SimpleNamespace(Error=ConnectionError)
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(WhorlError, match=r"did not start \(no server\).*set wandb_mode to offline"):
        WandB(tmp_path, {})


def test_wandb_works_offline_and_continues_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    policy = tmp_path / "policy.pt"
    policy.write_bytes(b"weights")
    for steps in (1, 2):
        logger = WandB(tmp_path, {"algorithm": "ppo"}, project="test", mode="offline")
        logger.write({"steps": steps, "episode/return": 1.0})
        logger.artifact(policy, "ppo ALE/Pong-v5")
        logger.close()
    runs = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert runs
    # offline-run-TIME-ID; a second one within the same second has -1 after that.
    assert {run.name.split("-")[3] for run in runs} == {(tmp_path / "wandb_id").read_text()}


def test_tensorboard_shows_what_updates_compute_over_updates_too(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.write({"steps": 1000, "updates": 7, "loss/critic": 0.5, "episode/return": 3.0})
    board.write({"steps": 2000, "loss/critic": 0.25})
    board.close()
    steps, updates = (EventAccumulator(str(folder)) for folder in (tmp_path, tmp_path / "learner"))
    for events in (steps, updates):
        events.Reload()
    assert [(point.step, point.value) for point in steps.Scalars("loss/critic")] == [
        (1000, 0.5),
        (2000, 0.25),
    ]
    assert [(point.step, point.value) for point in updates.Scalars("loss/critic")] == [(7, 0.5)]
    assert updates.Tags()["scalars"] == ["loss/critic"]
    assert set(steps.Tags()["scalars"]) == {"loss/critic", "episode/return"}
