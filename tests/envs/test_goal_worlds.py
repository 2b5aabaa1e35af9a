"""Environments with goals: the native ones by hand, those of Gymnasium-Robotics, and rewards as functions of goals."""

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import whorl
from whorl.core.errors import ConfigError, EnvError
from whorl.envs.make import find
from whorl.envs.native import BitFlip, PointGoal


def test_an_action_flips_its_bit_and_equal_bits_end_the_episode() -> None:
    world = BitFlip(2, bits=3)
    world.reset(0)
    world.state["bits"].copy_(torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
    world.state["goal"].copy_(torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]))
    step = world.step(torch.tensor([1, 1]))
    assert step.obs["achieved_goal"].tolist() == [[0, 1, 1], [1, 1, 1]]
    assert step.reward.tolist() == [0, -1] and step.terminated.tolist() == [True, False]
    assert step.measures is not None and step.measures.tolist() == [[1.0], [0.0]]


def test_a_point_pushes_the_puck_ahead_of_it() -> None:
    world = PointGoal(1, push=True)
    world.reset(0)
    world.state["place"].copy_(torch.tensor([[0.0], [0.0]]))
    world.state["puck"].copy_(torch.tensor([[0.2], [0.0]]))
    world.state["goal"].copy_(torch.tensor([[0.4], [0.0]]))
    step = world.step(
        torch.tensor([[1.0, 0.0]])
    )  # to 0.1: the puck, which has a radius of 0.15, moves to 0.25
    assert step.obs["achieved_goal"].tolist()[0] == pytest.approx([0.25, 0.0])
    assert step.obs["observation"].tolist()[0] == pytest.approx([0.1, 0.0, 0.15, 0.0])
    assert step.reward.item() == -1
    step = world.step(torch.tensor([[1.0, 0.0]]))  # the puck moves to 0.35, 0.05 from the goal
    assert step.reward.item() == 0 and not step.terminated


def test_a_puck_at_the_edge_stops_the_point() -> None:
    world = PointGoal(1, push=True)
    world.reset(0)
    world.state["place"].copy_(torch.tensor([[0.84], [0.0]]))
    world.state["puck"].copy_(torch.tensor([[1.0], [0.0]]))
    step = world.step(torch.tensor([[1.0, 0.0]]))
    assert step.obs["achieved_goal"].tolist()[0] == pytest.approx([1.0, 0.0])
    assert step.obs["observation"].tolist()[0] == pytest.approx([0.85, 0.0, 0.15, 0.0])


@pytest.mark.parametrize("id", ["BitFlip-v0", "PointReach-v0", "PointPush-v0"])
def test_rewards_of_steps_are_those_of_their_goals(id: str) -> None:
    source = find(id)
    rewards, env = source.goal_rewards(), source.vector(64)
    assert rewards is not None and rewards.on_device
    assert rewards.terminates == (id == "BitFlip-v0")
    env.reset(0)
    for _ in range(30):
        action = torch.randint(15, (64,)) if id == "BitFlip-v0" else torch.rand(64, 2) * 2 - 1
        step = env.step(action)
        goals = step.obs["achieved_goal"], step.obs["desired_goal"]
        assert torch.equal(torch.where(step.reset, 0.0, rewards.reward(*goals)), step.reward)
        if rewards.terminates:
            assert torch.equal(rewards.terminated(*goals) & ~step.reset, step.terminated)


def test_other_libraries_can_ask_a_native_world_for_the_reward_of_a_goal() -> None:
    env: Any = gymnasium.make("BitFlip-v0", bits=2).unwrapped
    bits = np.array([[0, 1], [1, 1]], np.float32)
    assert env.compute_reward(bits, np.ones_like(bits), {}).tolist() == [-1, 0]
    assert env.compute_terminated(bits, np.ones_like(bits), {}).tolist() == [False, True]


class Line(gymnasium.Env):
    """A number that is to become another, by a step of at most 1."""

    def __init__(self, arrays: bool = True, ends: bool = False) -> None:
        one = spaces.Box(-10, 10, (1,), np.float32)
        self.observation_space = spaces.Dict({"observation": one, "achieved_goal": one, "desired_goal": one})
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.arrays, self.ends, self.at, self.goal, self.steps = arrays, ends, 0.0, 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.steps, self.goal = 0.0, 0, float(self.np_random.uniform(-5, 5))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.at, self.steps = self.at + float(action[0]), self.steps + 1
        seen = self._seen()
        reward = float(-(abs(self.at - self.goal) > 0.5))
        return seen, reward, self.ends and reward == 0, self.steps >= 10, {"is_success": reward == 0}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        found = -(np.abs(achieved_goal - desired_goal)[..., 0] > 0.5).astype(np.float32)
        return found if self.arrays else float(found.sum())

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        return np.abs(achieved_goal - desired_goal)[..., 0] <= 0.5 if self.ends else False

    def _seen(self) -> dict[str, np.ndarray]:
        at, goal = np.array([self.at], np.float32), np.array([self.goal], np.float32)
        return {"observation": at, "achieved_goal": at, "desired_goal": goal}


@pytest.mark.parametrize("ends", [False, True])
def test_the_functions_of_a_gymnasium_environment_take_arrays(ends: bool) -> None:
    rewards = find(Line, {"ends": ends}).goal_rewards()
    assert rewards is not None and not rewards.on_device
    assert rewards.terminates == ends
    again = pickle.loads(pickle.dumps(rewards))  # as for a replay shard
    goals = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.2], [3.0]])
    assert again.reward(*goals).tolist() == [0, -1]
    if ends:
        assert again.terminated(*goals).tolist() == [True, False]


def test_a_function_that_does_not_take_arrays_is_refused() -> None:
    with pytest.raises(EnvError, match="returned one value for 3 goals"):
        find(Line, {"arrays": False}).goal_rewards()


SMALL: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 10,
    "workers": 0,
    "learning_starts": 20,
    "random_steps": 20,
    "batch_size": 16,
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "log_freq": 20,
    "her": "future",
}


def test_a_resumed_run_is_the_whole_one(tmp_path: Path) -> None:
    own = {"n_step": 3, "prioritized": True, "priority_beta_steps": 100, "buffer_size": 60}
    given = {**SMALL, **own, "actor_hidden_sizes": [8], "critic_hidden_sizes": [8]}

    def train(folder: str, iterations: int) -> Path:
        budget = {"runs": str(tmp_path / folder), "max_iterations": iterations}
        return whorl.load("PointPush-v0", "sac", {**given, **budget}).train().run_dir

    whole, half = train("whole", 12), train("half", 6)  # the buffer goes round after three iterations
    whorl.resume(half, max_iterations=12, quiet=True)
    one, other = (whorl.restore(folder).agent.state_dict() for folder in (whole, half))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_gymnasium_environment_is_learned_from_with_new_goals(tmp_path: Path) -> None:
    own = {"env_options": {"ends": True}, "runs": str(tmp_path), "max_iterations": 6, "buffer_size": 60}
    own |= {"actor_hidden_sizes": [8], "critic_hidden_sizes": [8]}
    with whorl.load(Line, "td3", {**SMALL, **own}) as trainer:
        trainer.train()
        assert trainer.experience.hindsight.rewards.terminates
        assert trainer.experience.drawn > 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "env", "own"),
    [
        *((name, "BitFlip-v0", {}) for name in ("dqn", "c51", "qr_dqn", "iqn", "rainbow")),
        *((name, "PointPush-v0", {}) for name in ("ddpg", "td3", "tqc", "crossq", "redq")),
        *((name, "PointPush-v0", {"whole_episodes": True}) for name in ("rsac", "rtd3")),
        ("drqn", "BitFlip-v0", {"whole_episodes": True}),
        ("sac", "PointPush-v0", {"shards": 2}),
        ("sac", Line, {"shards": 2}),
        ("sac", "PointReach-v0", {"actors": 2}),
    ],
)
def test_every_replay_agent_takes_new_goals(
    algorithm: str, env: Any, own: dict[str, Any], tmp_path: Path
) -> None:
    given = {**SMALL, "num_envs": 4, **own, "runs": str(tmp_path), "buffer_size": 2000, "max_iterations": 8}
    if own.get("whole_episodes"):
        given |= {"sequence_length": 5, "burn_in": 0, "num_steps": 20, "batch_size": 4, "sequence_stride": 1}
        given |= {"refresh_memory": False}
    assert whorl.load(env, algorithm, given).train().run_dir.is_dir()


@pytest.mark.parametrize("algorithm", ["rsac", "ppo"])
def test_agents_that_can_not_take_new_goals_say_so(algorithm: str) -> None:
    with pytest.raises(ConfigError, match="whole_episodes" if algorithm == "rsac" else "her"):
        whorl.load("PointReach-v0", algorithm, {**SMALL, "actor_hidden_sizes": [8]}).train()


def test_names_of_stable_baselines_are_understood() -> None:
    from whorl.settings.merge import configure

    found = configure("sac", "Pendulum-v1", {"goal_selection_strategy": "final", "n_sampled_goal": 2}).algo
    assert (found.her, found.her_goals) == ("final", 2)


# Gymnasium-Robotics


@pytest.mark.parametrize(
    ("id", "options", "terminates"),
    [
        ("FetchReach-v4", {}, False),
        ("PointMaze_UMaze-v3", {}, False),
        ("PointMaze_UMaze-v3", {"continuing_task": False}, True),
    ],
)
def test_robots_and_mazes_are_found_by_id(id: str, options: dict[str, Any], terminates: bool) -> None:
    pytest.importorskip("gymnasium_robotics")
    source = find(id, options)
    rewards, env = source.goal_rewards(), source.vector(1)
    assert rewards is not None and (rewards.on_device, rewards.terminates) == (False, terminates)
    assert env.spec.measures == ("success_rate",)
    env.reset(0)
    for _ in range(3):
        step = env.step(torch.ones(1, env.spec.action.size))
        assert torch.equal(rewards.reward(step.obs["achieved_goal"], step.obs["desired_goal"]), step.reward)
    env.close()


def test_a_maze_that_ends_at_its_goal_says_so_for_arrays_of_goals() -> None:
    pytest.importorskip("gymnasium_robotics")
    rewards = find("PointMaze_UMaze-v3", {"continuing_task": False}).goal_rewards()
    assert rewards is not None
    near, far = torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.4, 0.0], [0.4, 0.4]])
    assert rewards.terminated(near, far).tolist() == [True, False]
