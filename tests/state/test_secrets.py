"""Passwords, keys and tokens are in no file of a run."""

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import whorl
from whorl.core.errors import ConfigError
from whorl.settings.secrets import HIDDEN, hidden, hidden_text, hidden_words, is_secret
from whorl.state import provenance

KEY, TOKEN = "k3y-of-the-robot", "t0ken-of-the-logger"
SETTINGS: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "batch_size": 16,
    "n_epochs": 1,
    "max_iterations": 1,
    "workers": 0,
    "quiet": True,
    "actor_hidden_sizes": [4],
    "critic_hidden_sizes": [4],
    "eval_freq": 1,
    "n_eval_episodes": 1,
    "log_file": True,
}


class Robot(gymnasium.Env):
    """Answers only those who know its key."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, api_key: str, gain: float = 1.0) -> None:
        assert api_key == KEY, "wrong key"
        self.gain, self.steps = gain, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), self.gain, self.steps == 5, False, {}


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *(
            (name, True)
            for name in ("token", "hf_token", "api_key", "api-key", "DB_PASSWORD", "WANDB_API_KEY")
        ),
        *((name, True) for name in ("env_options.api_key", "client_secret", "private_key", "apikey")),
        *(
            (name, False)
            for name in ("num_tokens", "obs_key", "key", "token_size", "tokens", "secretary", "gamma")
        ),
    ],
)
def test_secrets_are_known_by_their_names(name: str, secret: bool) -> None:
    assert is_secret(name) == secret


def test_secrets_are_hidden_wherever_they_are_nested() -> None:
    given = {"a": {"token": "x", "n": [{"password": 7}]}, "token": "", "auth_key": None, "gamma": 0.9}
    expected = {
        "a": {"token": HIDDEN, "n": [{"password": HIDDEN}]},
        "token": "",
        "auth_key": None,
        "gamma": 0.9,
    }
    assert hidden(given) == expected


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--env_options.api_key", "abc", "--seed", "1"], ["--env_options.api_key", HIDDEN, "--seed", "1"]),
        (["--api-token=abc", "ppo"], [f"--api-token={HIDDEN}", "ppo"]),
        (["--env_options", "{api_key: abc, gain: 2}"], ["--env_options", f"{{api_key: {HIDDEN}, gain: 2}}"]),
        (["-c", "f(password='abc', x=1)"], ["-c", f"f(password='{HIDDEN}', x=1)"]),
        (["--tag", f"of-{TOKEN}"], ["--tag", f"of-{HIDDEN}"]),
        (["--env_options.obs_key", "image"], ["--env_options.obs_key", "image"]),
    ],
)
def test_a_command_line_is_recorded_without_secrets(
    words: list[str], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", TOKEN)
    assert hidden_words(words) == shown


def test_no_file_of_a_run_holds_a_secret_and_it_can_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", TOKEN)
    words = ["python", "train.py", "--env_options.api_key", KEY, f"--note=logged with {TOKEN}"]
    monkeypatch.setattr(sys, "orig_argv", words)
    provenance._of_process.cache_clear()
    whorl.register("environment", "Robot-v0", Robot)
    options = {"api_key": KEY, "gain": 2.0}
    run = (
        whorl.load("Robot-v0", "ppo", {**SETTINGS, "runs": str(tmp_path)}, env_options=options)
        .train()
        .run_dir
    )
    provenance._of_process.cache_clear()
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {"config.yaml", "checkpoint.pt", "policy.pt", "metadata.yaml", "log.txt"} <= {
        path.name for path in files
    }
    for path in files:
        assert not any(secret.encode() in path.read_bytes() for secret in (KEY, TOKEN)), path
    for use in (lambda: whorl.resume(run, max_iterations=2), lambda: whorl.evaluate(run, 1)):
        with pytest.raises(
            ConfigError, match=r"the option api_key .* is a secret, .* give it again as --env_options"
        ):
            use()
    assert whorl.evaluate(run, 1, env_options={"api_key": KEY}).returns == [10.0]
    assert whorl.resume(run, max_iterations=2, env_options={"api_key": KEY}).iterations == 2
    with pytest.raises(ConfigError, match="can't change 'env_options'"):
        whorl.resume(run, max_iterations=3, env_options={**options, "gain": 3.0})


@pytest.mark.parametrize(
    "line",
    [
        "api_key: hunter2",
        "password = hunter2",
        "Authorization: Bearer hunter2",
        "connected to https://me:hunter2@host/x",
        "whorl train ppo --token hunter2",
        "TOKEN=hunter2",
    ],
)
def test_lines_of_logs_have_no_secrets(line: str) -> None:
    assert "hunter2" not in hidden_text(line) and HIDDEN in hidden_text(line)


def test_other_lines_of_logs_stay() -> None:
    line = "step 10: return 5.0, learning_rate = 0.1, see https://host:80/x"
    assert hidden_text(line) == line


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "postgres://me:hunter2@host/db"},
        {"headers": {"Authorization": "Bearer hunter2"}},
        {"header": "Bearer hunter2"},
        {"auth": "hunter2"},
        {"access_key_id": "hunter2"},
        {"args": ["--token", "hunter2"]},
        {"args": ["--api-key=hunter2"]},
    ],
)
def test_secrets_are_found_by_their_form_too(settings: dict[str, Any]) -> None:
    assert "hunter2" not in str(hidden(settings))
