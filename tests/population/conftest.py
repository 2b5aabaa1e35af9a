"""Small populations, whose learners live in this process unless a test is about processes."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from inline import InlineBackend

import whorl
from whorl.population import curve, evolver

# A Ray cluster runs whatever it is sent, so only these tests may connect to it. Ray reads this when it is imported.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))

SMALL: dict[str, Any] = {
    "algorithm": "ppo",
    "env": "CartPoleContinuous-v0",
    "population": 3,
    "generations": 3,
    "generation_steps": 64,
    "num_envs": 4,
    "num_steps": 16,
    "batch_size": 64,
    "n_epochs": 1,
    "n_eval_episodes": 2,
    "hidden_sizes": [8],
    "quiet": True,
    "random_params": {"gamma": [0.9, 0.99], "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
}


@pytest.fixture
def inline_backend() -> type:
    return InlineBackend


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners in this process, and no picture, which takes longer than they do."""
    monkeypatch.setattr(evolver, "make_backend", lambda *_: InlineBackend())
    monkeypatch.setattr(curve, "draw_population", lambda *_: None)


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Any]:
    return {**SMALL, "runs": str(tmp_path)}


class Forgetful(CartPoleEnv):
    """A cart-pole of somebody else: nobody knows what its state is, so there is no snapshot of it."""


@pytest.fixture
def forgetful() -> Iterator[str]:
    whorl.register("environment", "Forgetful-v0", lambda: gymnasium.wrappers.TimeLimit(Forgetful(), 60))
    yield "Forgetful-v0"
    whorl.core.registry._registered["environment"].pop("Forgetful-v0")
