"""The checker finds what it claims to find, and is silent about good environments."""

import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from whorl.envs.checker import check
from whorl.envs.spaces import sample_allowed


class Good(gymnasium.Env):
    """Every test breaks one thing of it."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-10, 10, (2,), np.float32)
        self.action_space: spaces.Space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.obs(), 1.0, self.count >= 20, False, {}

    def obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


def only(env: Any) -> str:
    findings = check(env)
    assert len(findings) == 1, findings
    return findings[0]


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_a_good_registered_environment_has_no_findings(id: str):
    assert check(id) == []


def test_a_good_environment_has_no_findings_as_class_function_or_instance():
    assert check(Good) == check(lambda: Good()) == check(Good()) == []


def test_an_unknown_id_is_a_finding():
    assert "did you mean 'CartPole-v1'" in only("CartPoole-v1")


def test_a_missing_space():
    class Broken(Good):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = None  # type: ignore[assignment]  # the mistake under test

    assert "action_space is None; set it" in only(Broken)


def test_an_unsupported_space():
    class Broken(Good):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Text(3)

    assert "Text" in only(Broken) and "not supported" in only(Broken)


def test_unbounded_actions_are_no_mistake():
    class Unbounded(Good):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(-np.inf, np.inf, (1,))

    assert check(Unbounded) == []


def observing(make: Callable[[], Any]) -> type:
    class Broken(Good):
        def obs(self) -> Any:
            return make()

    return Broken


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(3, np.float32), r"shape (3,) but its space (2,)"),
        (np.zeros(2, np.float64), "float64 but its space float32"),
        (np.array([0, 11], np.float32), "holds 11 at [1], outside [-10, 10]"),
        (np.array([0, np.nan], np.float32), "contains NaN"),
        ([0.0, 0.0], "is a list; return a numpy array"),
    ],
)
def test_an_observation_outside_its_space(value: Any, words: str):
    findings = check(observing(lambda: value))
    assert any(words in finding for finding in findings), findings


def test_an_observation_that_is_overwritten():
    class Broken(Good):
        buffer = np.zeros(2, np.float32)

        def obs(self) -> Any:
            self.buffer[:] = super().obs()
            return self.buffer

    assert "return a copy" in only(Broken)


@pytest.mark.parametrize(
    ("reward", "words"), [(float("nan"), "finite"), (np.zeros(2), "one number"), ("1", "one number")]
)
def test_a_reward_that_is_no_finite_number(reward: Any, words: str):
    class Broken(Good):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, reward, *rest

    assert words in only(Broken)


def test_a_reset_without_info():
    class Broken(Good):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0]

    assert "return (observation, info)" in only(Broken)


def test_a_reset_that_takes_no_seed():
    class Broken(Good):
        def reset(self) -> Any:  # type: ignore[override]  # the mistake under test
            return super().reset()

    assert "accept reset(*, seed=None, options=None)" in only(Broken)


def test_the_old_step_of_four():
    class Broken(Good):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, _, info = super().step(action)
            return obs, reward, terminated, info

    assert "old gym API" in only(Broken)


def test_an_object_that_is_no_environment():
    assert "derive it from gymnasium.Env" in only(lambda: object())


def test_episodes_that_a_seed_does_not_repeat():
    class Broken(Good):
        def obs(self) -> Any:
            return np.random.uniform(-1, 1, 2).astype(np.float32)

    assert "self.np_random" in only(Broken)


def test_state_that_leaks_from_episode_to_episode():
    class Broken(Good):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            obs, _, *rest = super().step(action)
            return obs, float(self.steps), *rest

    assert "set every attribute in reset()" in only(Broken)


def test_an_environment_that_resets_itself():
    class Broken(Good):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            if terminated:
                obs, _ = self.reset()
            return obs, reward, terminated, truncated, info

    assert "resets itself" in only(Broken)
    assert "resets itself" in only(lambda: gymnasium.wrappers.Autoreset(Broken()))


def test_an_episode_without_an_end():
    class Broken(Good):
        def step(self, action: Any) -> Any:
            return self.obs(), 1.0, False, False, {}

    assert "TimeLimit" in only(Broken)


def test_a_step_that_raises():
    class Broken(Good):
        def step(self, action: Any) -> Any:
            raise ZeroDivisionError("no wheels")

    assert "step() raised ZeroDivisionError: no wheels" in only(Broken)


def test_bounds_that_break_the_environment():
    class Broken(Good):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, float("inf") if abs(action[0]) == 1 else 0.0, *rest

    assert "the reward is inf" in only(Broken)


def test_a_function_that_workers_can_not_receive():
    lock = threading.Lock()
    assert "can't be sent to worker processes" in only(lambda: (lock, Good())[1])


def test_an_instance_keeps_its_methods_and_stays_open():
    env = Good()
    check(env)
    assert "reset" not in vars(env)


class Locked(Good):
    """Allows one of its actions, which changes at every step; `where` says how."""

    def __init__(self, where: str, space: spaces.Space | None = None) -> None:
        super().__init__()
        self.where, self.action_space = where, space or spaces.Discrete(3, start=1)
        self.open = 0
        if where == "observation":
            self.observation_space = spaces.Dict(x=self.observation_space, action_mask=spaces.MultiBinary(3))
        if where == "method":
            self.action_masks = self._mask

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed=seed)
        return obs, self._info()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        assert action == self.open + 1, f"illegal action {action}"
        self.open = (self.open + 1) % 3
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, self._info()

    def obs(self) -> Any:
        if self.where != "observation":
            return super().obs()
        return {"x": super().obs(), "action_mask": self._mask().astype(np.int8)}

    def _mask(self) -> np.ndarray:
        return np.arange(3) == self.open

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._mask()} if self.where == "info" else {}


@pytest.mark.parametrize("where", ["observation", "info", "method"])
def test_only_allowed_actions_are_played(where: str):
    class Restarting(Locked):
        def __init__(self) -> None:
            super().__init__(where)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.open = 0
            return super().reset(seed=seed)

    assert check(Restarting) == []


def test_masks_of_every_space_are_obeyed():
    space = spaces.Dict(
        a=spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [2, 0]]),
        b=spaces.Tuple((spaces.MultiBinary(3), spaces.Box(0, 1, (2,)))),
        c=spaces.Discrete(3, start=-1),
    )
    space.seed(0)
    for _ in range(50):
        target = space.sample()
        flat = [np.arange(n) == k for n, k in zip((2, 3, 4, 2), (target["a"] - space["a"].start).reshape(-1))]
        flat += [np.arange(2) == bit for bit in target["b"][0]] + [np.arange(3) == target["c"] + 1]
        found = sample_allowed(space, np.concatenate(flat))
        assert np.array_equal(found["a"], target["a"]) and np.array_equal(found["b"][0], target["b"][0])
        assert found["c"] == target["c"]
    free = sample_allowed(spaces.MultiBinary(64), np.ones(128, bool))
    assert 0 < free.sum() < 64


class Vectorized(gymnasium.vector.VectorEnv):
    """Three copies, whose episodes end after ten steps."""

    def __init__(self, mode: str = "NEXT_STEP", width: int = 2) -> None:
        if hasattr(gymnasium.vector, "AutoresetMode"):  # since Gymnasium 1.1; before, all are NEXT_STEP
            self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode[mode]}
        self.num_envs, self.width = 3, width
        self.single_observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, 3)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, 3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count = 0
        return np.zeros((3, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.count += 1
        obs = np.zeros((3, self.width), np.float32)
        return obs, np.ones(3), np.zeros(3, bool), np.full(3, self.count % 10 == 0), {}


def test_a_batched_environment_is_checked_as_training_does() -> None:
    assert check(Vectorized) == check(Vectorized()) == []
    (found,) = check(lambda: Vectorized(width=3))
    assert "shape" in found


@pytest.mark.skipif(not hasattr(gymnasium.vector, "AutoresetMode"), reason="since Gymnasium 1.1")
def test_a_batched_environment_that_resets_in_the_same_step_is_named() -> None:
    (found,) = check(lambda: Vectorized("SAME_STEP"))
    assert "has autoreset mode SAME_STEP, which can't be used" in found
