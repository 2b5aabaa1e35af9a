"""Runs on an environment with a choice and a push: stopped and resumed bit for bit, with actors, by a saved policy."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import whorl
from whorl.conformance import same


class Steer(gymnasium.Env):
    """Move left or right by the strength of a push, towards 0."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-4, 4, (1,), np.float32)
        self.episodes = 0
        self.action_space = spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,), np.float32)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episodes += 1
        self.place, self.time = float(np.sin(self.episodes)), 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.place = float(np.clip(self.place + (2 * action[0] - 1) * action[1][0], -4, 4))
        self.time += 1
        return self._observe(), -abs(self.place), False, self.time >= 10, {}

    def get_snapshot(self) -> dict[str, Any]:
        return {"place": self.place, "time": self.time, "episodes": self.episodes}

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        self.place, self.time, self.episodes = snapshot["place"], snapshot["time"], snapshot["episodes"]

    def _observe(self) -> np.ndarray:
        return np.array([self.place], np.float32)


SMALL: dict[str, Any] = {
    "num_envs": 4,
    "num_steps": 8,
    "batch_size": 16,
    "buffer_size": 400,
    "learning_starts": 40,
    "random_steps": 40,
    "updates_per_step": 0.2,
    "actor_hidden_sizes": [8],
    "critic_hidden_sizes": [8],
    "eval_freq": 10_000,
    "checkpoint_freq": 10_000,
    "workers": 0,
    "device": "cpu",
    "tensorboard": False,
    "quiet": True,
}
REMEMBERING = {"memory_size": 8, "sequence_length": 4, "burn_in": 2, "sequence_stride": 4, "batch_size": 4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "conditioned": ("sac", {"action_coupling": "conditioned"}),
    "quantiles": ("tqc", {"n_critics": 2, "n_quantiles": 4, "top_quantiles_to_drop": 1}),
    "greedy": ("sac", {"discrete_dqn_like": True}),
    "subsets": ("redq", {"ensemble_q_num": 3, "policy_delay": 2}),
    "dropout": ("droq", {"policy_delay": 2}),
    "memory": ("rsac", REMEMBERING),
    "refreshed": (
        "sac",
        {
            "use_n_step_is": True,
            "n_step": 3,
            "refresh_probabilities": True,
            "clip_epsilon": 0.2,
            "buffer_size": 160,
        },
    ),
    "refreshed memory": (
        "rsac",
        {
            **REMEMBERING,
            "use_n_step_is": True,
            "n_step": 2,
            "refresh_probabilities": True,
            "refresh_memory": True,
        },
    ),
    "trajectories": ("sac", {"use_replay_buffer": False, "n_step": 4}),
}
COMMON = ("conditioned", "refreshed")


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[] if name in COMMON else [pytest.mark.full]) for name in CASES]
)
def test_a_resumed_run_is_the_whole_one(case: str, tmp_path: Path) -> None:
    algorithm, own = CASES[case]

    def train(folder: str, iterations: int) -> Path:
        given = {**SMALL, **own, "runs": str(tmp_path / folder), "max_iterations": iterations}
        return whorl.load(Steer, algorithm, given).train().run_dir

    whole, half = train("whole", 12), train("half", 6)
    whorl.resume(half, env=Steer, max_iterations=12, quiet=True)
    one, other = (whorl.restore(folder) for folder in (whole, half))
    assert same(one.agent.state_dict(), other.agent.state_dict())
    check_policy(other, "discrete_dqn_like" not in own)


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "own"),
    [
        ("sac", {"discrete_dqn_like": True}),
        ("tqc", {"use_n_step_is": True, "n_step": 3, "prioritized": True, "priority_on_add": True}),
        ("rsac", {**REMEMBERING, "action_coupling": "conditioned"}),
        ("sac", {"use_replay_buffer": False, "n_step": 4, "max_lag": 2}),
        ("rsac", {**REMEMBERING, "use_replay_buffer": False, "n_step": 4, "max_lag": -1}),
    ],
)
def test_actors_take_mixed_actions(algorithm: str, own: dict[str, Any], tmp_path: Path) -> None:
    given = {**SMALL, "max_lag": 0, **own, "runs": str(tmp_path), "max_iterations": 8, "actors": 2}
    policy = whorl.restore(whorl.load(Steer, algorithm, given).train().run_dir)
    check_policy(policy, "discrete_dqn_like" not in own)


def check_policy(policy: Any, has_probabilities: bool) -> None:
    env = Steer()
    obs, _ = env.reset(seed=1)
    assert env.action_space.contains(policy.act(obs))
    if has_probabilities:
        left, push = policy.probabilities(obs)
        assert push is None and left.sum() == pytest.approx(1, abs=1e-6)
        choice, strength = policy.act(obs)
        assert np.isfinite(policy.log_prob(obs, (choice, strength)))
    assert np.isfinite(policy.q_values(obs, policy.act(obs))) and np.isfinite(policy.value(obs))
