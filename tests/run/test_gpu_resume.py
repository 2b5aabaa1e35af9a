"""On a GPU: runs killed in the middle and resumed equal the uninterrupted run bit for bit, and exhausted memory is
reported with the settings to lower."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from test_replay_resume import state as state_with_rows
from test_resume import assert_same, rows, state, the_run

import whorl
from whorl.core.errors import ConfigError
from whorl.state import checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RUN = {"device": "cuda", "quiet": True, "tensorboard": False, "eval": False, "workers": 0, "log_freq": 1}
REPLAY = {
    **RUN,
    "num_envs": 4,
    "num_steps": 8,
    "batch_size": 16,
    "learning_starts": 200,
    "buffer_size": 2000,
    "max_iterations": 120,
    "checkpoint_freq": 320,
    "log_freq": 320,
}
ROLLOUTS = {
    **RUN,
    "num_envs": 16,
    "num_steps": 32,
    "batch_size": 128,
    "max_iterations": 24,
    "checkpoint_freq": 1024,
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "images": (
        "rainbow",
        "ALE/Breakout-v5",
        {**REPLAY, "env_options": {"life_loss": True}, "clip_reward": True, "prioritized": True},
    ),
    "LSTM and continuous actions": ("rsac", "PendulumV-v0", REPLAY),
    "attention": (
        "dqn",
        "TMaze-v0",
        {**REPLAY, "memory": "attention", "sequence_length": 8, "burn_in": 4, "stride": 4},
    ),
    "stored states and priorities": ("r2d2", "TMaze-v0", {**REPLAY, "actors": 0}),
    "novelty of single states": ("dqn", "DeepSea-v0", {**REPLAY, "components": {"rnd": {}, "count": {}}}),
    "novelty within an episode": ("agent57", "TMaze-v0", {**REPLAY, "actors": 0}),
    "native world, novelty": ("ppo", "DeepSea-v0", {**ROLLOUTS, "components": {"rnd": {}}}),
    "native world, LSTM": ("ppo", "TMaze-v0", {**ROLLOUTS, "memory": "lstm"}),
    # A compiler chooses kernels by their speed, which differs on a busy GPU.
    "native world, captured rollouts": (
        "ppo",
        "Quadrotor-v0",
        {**ROLLOUTS, "compile": False, "env_device": "cuda"},
    ),
}
SCRIPT = """
import json, sys, whorl
if sys.argv[1] == "resume":
    whorl.resume(sys.argv[2])
else:
    whorl.load(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])).train()
"""


def child(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stderr=subprocess.PIPE)


def finish(process: "subprocess.Popen[bytes]") -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()


def kill_at(process: "subprocess.Popen[bytes]", folder: Path, number: int) -> Path:
    """Kill it once that checkpoint is there; the run's folder."""
    while process.poll() is None:
        run = the_run(folder)
        if run is not None and any(checkpoint.number(one) >= number for one in checkpoint.checkpoints(run)):
            break
        time.sleep(0.01)
    assert process.poll() is None, f"ended too early: {process.communicate()[1].decode()}"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert run is not None
    return run


@pytest.mark.parametrize("case", CASES)
def test_killed_twice_and_resumed_equals_uninterrupted(case: str, tmp_path: Path) -> None:
    algorithm, env, settings = CASES[case]
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    finish(child(env, algorithm, json.dumps({**settings, "runs": str(whole)})))
    run = kill_at(child(env, algorithm, json.dumps({**settings, "runs": str(pieces)})), pieces, 1)
    kill_at(child("resume", str(run)), pieces, 4)
    finish(child("resume", str(run)))
    one = the_run(whole)
    assert one is not None
    found = state_with_rows if "buffer_size" in settings else state
    assert_same(found(one), found(run))
    assert rows(one) == rows(run)


def test_exhausted_memory_names_the_settings_to_lower(tmp_path: Path) -> None:
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(256 * 2**20 / total)
    try:
        settings = {**ROLLOUTS, "num_envs": 65_536, "batch_size": 65_536, "runs": str(tmp_path)}
        with pytest.raises(ConfigError, match=r"no memory left.*lower num_envs \(65,536\)"):
            whorl.load("Quadrotor-v0", "ppo", settings).train()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
