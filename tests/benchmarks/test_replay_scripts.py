"""The scripts that measure replay buffers still fit them, with small numbers."""

import argparse
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import compressed_frames
import prioritized
import replay_checkpoint


def test_checkpoints_of_replay_are_written_and_read(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(replay_checkpoint, "ROWS", 128)
    monkeypatch.setattr(replay_checkpoint, "disk", lambda folder: 1.0)
    small = {"num_envs": 2, "buffer_size": 400, "checkpoints": 3, "keep": 2, "rate": 0}
    replay_checkpoint.measure(tmp_path, argparse.Namespace(**small))
    assert "loaded in" in capsys.readouterr().out


def test_prioritized_draws_are_measured_beside_a_binary_tree(capsys, monkeypatch):
    monkeypatch.setattr(prioritized, "SIZES", (64, 100))
    monkeypatch.setattr(sys, "argv", ["prioritized.py", "--batch", "8", "--repeats", "1", "--calls", "1"])
    with torch.enable_grad():  # the script switches gradients off
        prioritized.main()
    assert "whorl: 10^7 rows cost" in capsys.readouterr().out


@pytest.mark.full
def test_compressed_frames_are_smaller_and_their_batches_the_same():
    pytest.importorskip("ale_py")
    found = compressed_frames.measure("Pong", 512)
    assert found["bytes"]["compressed"] < found["bytes"]["plain"] / 10
    assert found["frames"] == 512 and found["batch_ms"].keys() == {"plain", "compressed"}
