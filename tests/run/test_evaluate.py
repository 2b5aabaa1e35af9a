"""Evaluation of environments whose episodes do not end by themselves."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import whorl
from whorl import api
from whorl.agents.agent import Acted
from whorl.cli import main
from whorl.core.errors import ConfigError
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.run.evaluate import run_episodes
from whorl.settings.run import RunConfig

SETTINGS: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "batch_size": 16,
    "n_epochs": 1,
    "max_iterations": 1,
    "workers": 0,
    "tensorboard": False,
    "quiet": True,
    "actor_hidden_sizes": [8],
    "critic_hidden_sizes": [8],
    "n_eval_episodes": 3,
    "eval_max_steps": 7,
}


class Endless(gymnasium.Env):
    """Pays 1 for each step. Every other episode ends after four steps, the first and the third never do."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.episodes = self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episodes, self.steps = self.episodes + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.episodes % 2 == 0 and self.steps == 4, False, {}


class Still:
    """Always action 0."""

    device = torch.device("cpu")
    tracks = False

    def begin(self, obs: Any, collecting: bool) -> dict[str, Any]:
        return {}

    def follow(self, memory: Any, *row: Any) -> tuple[Any, dict[str, Any]]:
        return memory, {}

    def act_tracked(self, obs: Any, memory: Any, context: Any) -> Any:
        return Acted(torch.zeros(len(obs), dtype=torch.int64), memory)


def test_an_episode_is_cut_at_the_limit_and_the_next_one_starts_from_a_reset() -> None:
    """Two environments of two episodes: the first of each is cut after 7 steps, the second ends after 4."""
    vector = GymnasiumVector(Endless, 2, "endless")
    with pytest.warns(UserWarning, match="endless: evaluation truncated 2 of 4 episodes after 7 steps"):
        found = run_episodes(Still(), vector, 4, seed=0, max_steps=7)  # type: ignore[arg-type]
    assert (sorted(found.returns), sorted(found.lengths), found.cut) == ([4, 4, 7, 7], [4, 4, 7, 7], 2)


def test_an_environment_whose_episode_was_cut_waits_for_the_others() -> None:
    """Its third episode, which it would start by itself otherwise, does not count in place of another's."""
    vector = GymnasiumVector(Endless, 2, "endless")
    with pytest.warns(UserWarning, match="truncated 4 of 6 episodes"):
        found = run_episodes(Still(), vector, 6, seed=0, max_steps=5)  # type: ignore[arg-type]
    assert sorted(found.lengths) == [4, 4, 5, 5, 5, 5]


def test_an_episode_that_ends_at_its_limit_is_not_cut() -> None:
    vector = GymnasiumVector(lambda: gymnasium.wrappers.TimeLimit(Endless(), 7), 1, "endless")
    found = run_episodes(Still(), vector, 1, seed=0, max_steps=7)  # type: ignore[arg-type]
    assert (found.lengths, found.cut) == ([7], 0)


def test_training_evaluate_and_the_command_line_have_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whorl.register("environment", "Endless-v0", Endless)
    with pytest.warns(
        UserWarning, match="evaluation truncated 3 of 3 episodes after 7 steps.*raise eval_max_steps"
    ):
        run = whorl.load("Endless-v0", "ppo", {**SETTINGS, "runs": str(tmp_path)}).train().run_dir
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["evaluation/length"] == row["evaluation/return"] == 7
    with pytest.warns(UserWarning, match="truncated 1 of 1 episodes after 7 steps"):
        assert whorl.evaluate(run, 1).lengths == [7]
    assert whorl.evaluate(run, 1, max_steps=9).cut == 1  # asked for, so without a warning
    assert main(["eval", str(run), "--episodes", "2", "--max-steps", "11", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert json.loads(shown.out)["lengths"] == [11, 11] and json.loads(shown.out)["cut"] == 2
    with pytest.raises(ConfigError, match="no setting 'eval_max_steps'; here it is called 'max_steps'"):
        whorl.evaluate(run, 1, eval_max_steps=3)


def test_processes_and_threads_are_those_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, whatever torch has; workers where training had some, with the same results as without."""
    pytest.importorskip("minatar")
    policy = whorl.restore("breakout")
    policy.settings = policy.settings.replace(workers=2)
    made: list[tuple[int, int]] = []
    make = api.make_vector

    def watched(source: Any, num_envs: int, device: Any, workers: int, timeout: float) -> Any:
        made.append((workers, torch.get_num_threads()))
        return make(source, num_envs, device, workers, timeout=timeout)

    monkeypatch.setattr(api, "make_vector", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(api, "cores", lambda: 4)
        several = whorl.evaluate(policy, 3, max_steps=30)
        monkeypatch.setattr(api, "cores", lambda: 1)
        alone = whorl.evaluate(policy, 3, max_steps=30)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert made == [(2, 1), (0, 1)] and several == alone


def test_the_default_leaves_atari_its_longest_episodes() -> None:
    """108,000 frames, four to a step."""
    assert 27_000 < RunConfig.eval_max_steps <= 50_000
