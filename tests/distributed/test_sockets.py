"""No process of a run listens beyond this machine; for a Ray cluster see test_ray.py."""

import socket
import sys
from pathlib import Path

import psutil
import pytest
from sockets import LOOPBACK, listening

import whorl

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def tree() -> set[int]:
    own = psutil.Process()
    return {own.pid, *(child.pid for child in own.children(recursive=True))}


def test_a_socket_that_is_open_to_all_is_found() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert listening(tree()) <= LOOPBACK and "0100007F" in listening(tree())
        with socket.socket() as other:
            other.bind(("", 0))
            other.listen()
            assert not listening(tree()) <= LOOPBACK


@pytest.mark.full
def test_actors_shards_and_learners_listen_on_loopback_alone(tmp_path: Path) -> None:
    settings = {
        "actors": 1,
        "shards": 1,
        "learners": 2,
        "num_envs": 2,
        "num_steps": 8,
        "batch_size": 8,
        "buffer_size": 200,
        "learning_starts": 16,
        "hidden_sizes": [8],
        "updates_per_step": 0.5,
        "eval": False,
        "quiet": True,
    }
    with whorl.load("CartPole-v1", "dqn", {**settings, "runs": str(tmp_path)}) as trainer:
        trainer.build()
        while not trainer.agent.updates:  # then the learners have met
            trainer.step()
        found = listening(tree())
        assert found and found <= LOOPBACK
