"""A run that really trains is stopped, saved and resumed by the page's requests."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_page_server import TOKEN, client_of, post, wait_for_state

pytestmark = pytest.mark.full


def test_a_run_is_stopped_and_resumed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "whorl", "train", "ppo", "CartPole-v1", "--runs", str(tmp_path / "runs")]
    small = [
        "--num-envs",
        "4",
        "--num-steps",
        "32",
        "--batch-size",
        "64",
        "--name",
        "a",
        "--no-eval",
        "--quiet",
    ]
    with subprocess.Popen([*command, *small, "--total-timesteps", "1000000000"]) as process:
        while not (tmp_path / "runs" / "a" / "metrics.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.05)
        client, desk = client_of(tmp_path / "runs")
        client.get(f"/?token={TOKEN}")
        row = wait_for_state(client, desk, "a", "running")
        assert client.get("/api/run?name=a").json()["process"]["pid"] == process.pid
        while not row["steps"]:
            row = wait_for_state(client, desk, "a", "running")
        post(client, "/api/stop", {"name": "a"})
        assert process.wait(600) == 143
    stopped = wait_for_state(client, desk, "a", "stopped")
    assert list((tmp_path / "runs" / "a").glob("checkpoint_*"))
    limit = int(stopped["steps"]) + 2000
    assert post(client, "/api/resume", {"name": "a", "total_timesteps": limit}).json()["state"] == "starting"
    finished = wait_for_state(client, desk, "a", "finished")
    assert finished["steps"] >= limit, (tmp_path / "runs" / "a" / "resume.log").read_text()
