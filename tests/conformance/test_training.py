"""Every toy through the real loop on real environments, and a resumed run that equals the uninterrupted one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import TOYS, documented_metrics

import whorl
from whorl.conformance import same
from whorl.data.replay import Replay
from whorl.run.resume import load_run

SETTINGS: dict[str, dict[str, Any]] = {
    "toy_policy_gradient": {"memory": "gru", "chunk": 8, "memory_size": 8},
    "toy_q": {"updates_per_step": 0.2, "buffer_size": 300},
    "toy_recurrent_q": {"memory": "lstm", "updates_per_step": 0.1, "buffer_size": 320},
    "toy_actor_critic": {"updates_per_step": 0.2, "buffer_size": 300},
}
EPOCHS = 8


def train(name: str, folder: Path, epochs: int) -> Path:
    env = "Pendulum-v1" if name == "toy_actor_critic" else "CartPole-v1"
    settings = {
        **SETTINGS[name],
        "runs": str(folder),
        "num_envs": 4,
        "num_steps": 16,
        "max_iterations": epochs,
        "eval_freq": 300,
        "n_eval_episodes": 2,
        "device": "cpu",
        "workers": 0,
        "tensorboard": False,
        "quiet": True,
    }
    return whorl.load(env, name, settings).train().run_dir


def state(run_dir: Path) -> dict[str, Any]:
    """What a resumed run starts from, the rows of replay in place of the files that hold them."""
    trainer = load_run(run_dir, {})
    try:
        if isinstance(trainer.experience, Replay):
            trainer.experience.store = None
        return trainer.state()
    finally:
        trainer.close()


@pytest.mark.parametrize("name", TOYS)
def test_a_toy_trains_and_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole = state(train(name, tmp_path / "whole", EPOCHS))
    half = train(name, tmp_path / "half", EPOCHS // 2)
    whorl.resume(half, max_iterations=EPOCHS, quiet=True)
    resumed = state(half)
    assert whole["agent"]["updates"] == resumed["agent"]["updates"] > 4
    for part in ("agent", "experience", "streams", "collector", "env"):
        assert same(whole[part], resumed[part]), f"{part} of the resumed run differs"
    for counter in ("steps", "iteration", "episodes", "resets"):
        assert whole["counters"][counter] == resumed["counters"][counter]


@pytest.mark.parametrize("name", TOYS)
def test_a_saved_toy_policy_acts(name: str, tmp_path: Path) -> None:
    run_dir = train(name, tmp_path, 2)
    policy = whorl.restore(run_dir)
    size = 3 if name == "toy_actor_critic" else 4
    action = policy.act(torch.zeros(5, size))
    assert len(action) == 5


def test_every_column_of_a_run_is_documented(tmp_path: Path) -> None:
    run_dir = train("toy_q", tmp_path, EPOCHS)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert not set().union(*rows) - documented_metrics()
