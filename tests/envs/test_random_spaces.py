"""Test-v0: random observations in any spaces."""

from typing import Any

import gymnasium
import numpy as np
import pytest

import whorl
from whorl.core.errors import EnvError
from whorl.envs.adapters.random_spaces import RandomSpaces, space_of

MIXED = {
    "camera": {"shape": [40, 40, 3], "dtype": "uint8"},
    "state": [6],
    "kind": 4,
    "flags": {"nvec": [2, 3]},
}
SMALL: dict[str, Any] = {
    "quiet": True,
    "tensorboard": False,
    "num_envs": 2,
    "num_steps": 8,
    "batch_size": 8,
    "max_iterations": 1,
    "n_eval_episodes": 1,
    "eval_max_steps": 3,
    "device": "cpu",
    "workers": 0,
}


def test_spaces_are_what_the_options_say() -> None:
    found = space_of(MIXED, "observation")
    assert isinstance(found, gymnasium.spaces.Dict)
    assert found["camera"] == gymnasium.spaces.Box(0, 255, (40, 40, 3), np.uint8)
    assert found["state"] == gymnasium.spaces.Box(-1, 1, (6,), np.float32)
    assert found["kind"] == gymnasium.spaces.Discrete(4)
    assert found["flags"] == gymnasium.spaces.MultiDiscrete([2, 3])
    assert space_of({"shape": [2], "low": -5, "high": 3}, "x") == gymnasium.spaces.Box(
        -5, 3, (2,), np.float32
    )


def test_observations_are_in_their_space_random_and_reproducible() -> None:
    one, other = RandomSpaces(MIXED), RandomSpaces(MIXED)
    first, again = one.reset(seed=3)[0], other.reset(seed=3)[0]
    assert one.observation_space.contains(first)
    np.testing.assert_equal(first, again)
    second = one.step(one.action_space.sample())[0]
    assert one.observation_space.contains(second) and not np.array_equal(first["state"], second["state"])
    assert first["camera"].max() > 200 and first["camera"].min() < 50


def test_episodes_end_by_chance_and_at_the_limit() -> None:
    env = RandomSpaces(end=0.0, max_steps=3)
    env.reset(seed=0)
    ends = [env.step(np.zeros(3, np.float32))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    env = RandomSpaces(end=1.0)
    env.reset(seed=0)
    assert env.step(np.zeros(3, np.float32))[2:4] == (True, False)


def test_it_continues_from_a_snapshot() -> None:
    from whorl.envs.snapshot import restore_env, snapshot_env

    env = gymnasium.make("Test-v0")
    env.reset(seed=1)
    saved = snapshot_env(env)
    assert saved is not None
    action = np.zeros(3, np.float32)
    expected = [env.step(action)[:2] for _ in range(3)]
    other = gymnasium.make("Test-v0")
    other.reset(seed=9)
    restore_env(other, saved)
    np.testing.assert_equal([other.step(action)[:2] for _ in range(3)], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation": "six"}, "'six', which is not a space; write a shape"),
        ({"observation": {"a": True}}, r"observation\.a is True, which is not a space"),
        ({"observation": [0]}, "must list whole numbers of at least 1"),
        ({"observation": {"shape": [3], "size": 2}}, "has 'size' besides shape"),
        ({"observation": {"shape": [3], "dtype": "float33"}}, "dtype is 'float33'"),
        ({"observation": {"shape": [3], "low": 2, "high": 1}}, "ranges from 2 to 1"),
        ({"action": 0}, "at least one choice"),
        ({"end": 2}, "a probability"),
        ({"max_steps": 0}, "at least 1"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        RandomSpaces(**options)


def test_an_action_outside_its_space_is_an_error() -> None:
    env = RandomSpaces(action=3)
    env.reset(seed=0)
    with pytest.raises(EnvError, match="which is not in Discrete"):
        env.step(3)


@pytest.mark.parametrize(
    ("algorithm", "action", "settings"),
    [
        ("ppo", {"move": [2], "choice": 3}, {}),
        ("sac", {"move": [2], "choice": 3}, {"learning_starts": 8, "random_steps": 0, "buffer_size": 64}),
    ],
)
def test_networks_for_images_vectors_and_choices_train_on_it(
    algorithm: str, action: Any, settings: dict[str, Any], tmp_path: Any
) -> None:
    options = {"observation": {"camera": MIXED["camera"], "state": [6]}, "action": action, "end": 0.0}
    given = {**SMALL, **settings, "env_options": options, "runs": str(tmp_path)}
    assert whorl.train("Test-v0", algorithm, given).steps == 16


def test_the_checker_finds_nothing() -> None:
    assert whorl.check("Test-v0") == []
