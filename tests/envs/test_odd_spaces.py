"""Spaces that hold nothing, can't be read, or have no axes; resets that need what nobody gives them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import whorl
from whorl.core.errors import EnvError


class Odd(gymnasium.Env):
    """Ten steps, with samples of its space as observations."""

    def __init__(self, space: spaces.Space, actions: spaces.Space | None = None) -> None:
        self.observation_space = space
        self.action_space = actions or spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        self.observation_space.seed(0)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.observation_space.sample(), 1.0, False, self.count == 10, {}


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (
            spaces.Box(-1, 1, (0,)),
            "the observation space is Box([], [], (0,), float32), which holds no values",
        ),
        (spaces.Dict({}), "the observation space is Dict(), which holds no values"),
        (spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(-1, 1, (0, 3))), "space, key 'b', is Box"),
        (spaces.Dict(a=spaces.Discrete(2), mission=spaces.Text(9)), "key 'mission', is a Text space, which"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Sequence(spaces.Discrete(3)))), "key '1', is a Sequence"),
    ],
)
def test_a_space_that_can_not_be_read_is_named_with_its_place(space: spaces.Space, said: str) -> None:
    (found,) = whorl.check(lambda: Odd(space))
    assert said in found
    with pytest.raises(EnvError) as error:
        whorl.load(lambda: Odd(space), "ppo")
    assert said in str(error.value)


def test_an_action_space_without_values_is_told() -> None:
    (found,) = whorl.check(lambda: Odd(spaces.Discrete(2), spaces.Box(-1, 1, (0,))))
    assert found.startswith("the action space is Box([], [], (0,), float32), which holds no values")


class NeedsOptions(Odd):
    """Reads its options without looking whether there are any."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(3))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.level = options["level"]
        return super().reset(seed=seed)


def test_a_reset_that_needs_options_is_told_that_it_gets_none() -> None:
    (found,) = whorl.check(NeedsOptions)
    assert "reset is called without options, so that its argument `options` is None" in found


def test_a_wrapper_with_statistics_is_named_where_a_seed_does_not_repeat() -> None:
    def normalized() -> gymnasium.Env:
        return gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1"))

    (found,) = whorl.check(normalized)
    assert "such as NormalizeObservation, is normalize_obs here" in found


@pytest.mark.parametrize("episodes", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Odd(spaces.Box(-1, 1, (), np.float32), spaces.Box(-1, 1, (), np.float32)),
        lambda: Odd(spaces.Dict(a=spaces.Box(-1, 1, ()), b=spaces.Discrete(3))),
    ],
)
def test_observations_without_axes_are_trained_on_played_and_recorded(
    make: Callable[[], gymnasium.Env], episodes: int, tmp_path: Path
) -> None:
    small = {
        "num_envs": 2,
        "workers": 0,
        "num_steps": 16,
        "total_timesteps": 32,
        "eval": False,
        "quiet": True,
    }
    result = whorl.train(make, "ppo", small, runs=str(tmp_path))
    assert whorl.evaluate(result, episodes, env=make).lengths == [10] * episodes
    policy = whorl.restore(result)
    env = make()
    assert env.action_space.contains(policy.act(env.reset(seed=0)[0]))
    recorded = whorl.record(policy, episodes, env=make, output=tmp_path / "data" / "odd-v0")
    assert recorded.lengths == [10] * episodes
