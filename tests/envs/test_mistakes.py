"""Mistakes of environments while they are stepped: one sentence, in the words of `whorl check`, with index and step."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from whorl.core.errors import ConfigError, EnvError, EnvFailure, WhorlError
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.checker import check
from whorl.envs.mistakes import make_env, wrong_observation
from whorl.envs.vector import VectorEnv


class Clock(gymnasium.Env):
    """Episodes of three steps; `answer` replaces what the second step of the second episode returns."""

    def __init__(self, answer: Callable[[], Any] | None = None, space: spaces.Space | None = None) -> None:
        self.observation_space = space or spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.answer, self.time, self.episodes = answer, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        self.episodes += 1
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        if self.answer is not None and self.episodes >= 2 and self.time == 2:
            return self.answer()
        return self.observation_space.sample(), 1.0, self.time == 3, False, {}


def broken() -> Any:
    raise ValueError("sensor disconnected\nsecond line")


def play(env: VectorEnv, steps: int = 12) -> None:
    try:
        env.reset(0)
        for _ in range(steps):
            env.step(torch.zeros(env.spec.num_envs, dtype=torch.int64))
    finally:
        env.close()


def sentence(answer: Callable[[], Any]) -> str:
    """What is said in this process."""
    with pytest.raises(EnvError) as caught:
        play(GymnasiumVector(partial(Clock, answer), 1, "clock"))
    return str(caught.value)


GOOD = np.zeros(3, np.float32)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "shape": (
        lambda: (np.zeros(4), 1.0, False, False, {}),
        "the observation of step() has shape (4,) but its space (3,); make them agree",
    ),
    "a dict as observation": (
        lambda: ({"position": GOOD}, 1.0, False, False, {}),
        "the observation of step() is a dict with the keys ['position'] but its space an array of shape (3,); make "
        "them agree",
    ),
    "four values": (
        lambda: (GOOD, 1.0, False, {}),
        "step() returns 4 values as in the old gym API; return obs, reward, terminated, truncated, info",
    ),
    "nothing": (
        lambda: None,
        "step() returns None; return obs, reward, terminated, truncated, info",
    ),
    "array reward": (
        lambda: (GOOD, np.zeros(2), False, False, {}),
        "the reward is an array of shape (2,); return one number",
    ),
    "array flag": (
        lambda: (GOOD, 1.0, np.zeros(2, bool), False, {}),
        "step() returns terminated as ndarray; return a bool",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_of_step_is_told_as_check_tells_it(name: str) -> None:
    answer, words = WRONG[name]

    class Always(Clock):
        def step(self, action: Any) -> Any:
            return answer()

    assert sentence(answer) == f"environment 0, step 2 of episode 1: {words}".replace(
        "episode 1", "episode 2"
    )
    assert words in check(Always)


def test_a_shape_that_numpy_would_broadcast_is_refused_at_the_first_step() -> None:
    class Short(Clock):
        def step(self, action: Any) -> Any:
            return np.zeros(1, np.float32), 1.0, False, False, {}

    with pytest.raises(EnvError, match=r"step 1 of episode 1: .* has shape \(1,\) but its space \(3,\)"):
        play(GymnasiumVector(Short, 2, "short"))


@pytest.mark.parametrize(
    ("space", "given", "words"),
    [
        (spaces.Box(-1, 1, (3,)), None, "it is None but its space an array of shape (3,); make them agree"),
        (
            spaces.Box(-1, 1, (3,)),
            "near",
            "it is a str but its space an array of shape (3,); make them agree",
        ),
        (
            spaces.Dict(a=spaces.Discrete(2)),
            GOOD,
            "it is an array of shape (3,) but its space a Dict; make them agree",
        ),
        (
            spaces.Tuple([spaces.Discrete(2)]),
            (0, 1),
            "it is a tuple of 2 but its space a Tuple of 1; make them agree",
        ),
        (
            spaces.Dict(a=spaces.Discrete(2)),
            {1: 0, "b": 1},
            "it has the keys [1, 'b'] but its space ['a']; make them agree",
        ),
    ],
)
def test_an_observation_of_another_kind_is_told_by_its_kind(
    space: spaces.Space, given: Any, words: str
) -> None:
    assert wrong_observation(space, given, "it") == words


def test_fractions_are_not_cut_off_to_fit_an_image_of_bytes() -> None:
    class Grey(Clock):
        def step(self, action: Any) -> Any:
            return np.full((2, 2), 0.5), 1.0, False, False, {}

    with pytest.raises(EnvError, match="is float64 but its space uint8"):
        play(GymnasiumVector(partial(Grey, space=spaces.Box(0, 255, (2, 2), np.uint8)), 1, "grey"))


def test_a_missing_key_is_named() -> None:
    space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3))
    answer = lambda: ({"a": np.zeros(2)}, 1.0, False, False, {})  # noqa: E731
    with pytest.raises(
        EnvError, match=r"step 2 of episode 2: .* has the keys \['a'\] but its space \['a', 'b'\]"
    ):
        play(GymnasiumVector(partial(Clock, answer, space), 1, "clock"))


def test_an_integer_outside_its_space_is_named() -> None:
    answer = lambda: (7, 1.0, False, False, {})  # noqa: E731
    with pytest.raises(EnvError, match=r"the observation of step\(\) is 7, which is not in Discrete\(3\)"):
        play(GymnasiumVector(partial(Clock, answer, spaces.Discrete(3)), 1, "clock"))


def test_answers_that_are_odd_but_clear_are_taken() -> None:
    answers = [
        lambda: ([0.0, 0.0, 0.0], np.float64(1), np.True_, 0, {}),
        lambda: (np.zeros(3, np.float64), np.int32(1), False, np.False_, {}),
        lambda: (np.zeros(3, np.int64), True, 0, 0, {}),
    ]
    for answer in answers:
        play(GymnasiumVector(partial(Clock, answer), 2, "clock"))


def test_an_exception_is_the_cause_and_its_traceback_the_details() -> None:
    with pytest.raises(EnvError) as caught:
        play(GymnasiumVector(partial(Clock, broken), 3, "clock"))
    error = caught.value
    expected = "environment 0, step 2 of episode 2: step() raised ValueError: sensor disconnected"
    assert error.message == str(error) == expected
    assert isinstance(error.__cause__, ValueError)
    lines = error.details.splitlines()
    assert "test_mistakes.py" in lines[1] and "in step" in lines[1], "it begins in the environment's own code"
    assert lines[-2:] == ["ValueError: sensor disconnected", "second line"]


def test_the_count_of_steps_continues_after_a_snapshot() -> None:
    class Kept(Clock):
        def get_snapshot(self) -> Any:
            return {"time": self.time, "episodes": self.episodes}

        def set_snapshot(self, state: Any) -> None:
            vars(self).update(state)

    env = GymnasiumVector(partial(Kept, broken), 2, "clock")
    env.reset(0)
    for _ in range(5):  # three steps, a reset, and the first step of the second episode
        env.step(torch.zeros(2, dtype=torch.int64))
    found = env.stepper.snapshot()
    assert [state["counts"] for state in found] == [[2, 1], [2, 1]]
    again = GymnasiumVector(partial(Kept, broken), 2, "clock")
    again.stepper.restore(found)
    with pytest.raises(EnvError, match="environment 0, step 2 of episode 2"):
        again.step(torch.zeros(2, dtype=torch.int64))


def test_the_old_reset_and_its_exceptions_are_told_before_training() -> None:
    class NoSeed(Clock):
        def reset(self) -> Any:  # type: ignore[override]  # the mistake under test
            return np.zeros(3)

    class OnlyObs(Clock):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(3, np.float32)

    class Fails(Clock):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            raise OSError("no licence")

    for kind, words in (
        (NoSeed, "unexpected keyword argument 'seed'; accept reset(*, seed=None, options=None)"),
        (OnlyObs, "reset() returns an array of shape (3,); return (observation, info) with info a dict"),
        (Fails, "reset(seed=0) raised OSError: no licence"),
    ):
        with pytest.raises(EnvError) as caught:
            GymnasiumVector(kind, 1, "x")
        assert words in caught.value.message
        assert any(words in finding for finding in check(kind))


def test_a_reset_that_fails_later_names_environment_and_episode() -> None:
    class Fails(Clock):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if self.episodes == 2:
                raise OSError("no licence")
            return super().reset(seed=seed)

    # One more reset than in the message was made, to find the spaces: by another instance.
    with pytest.raises(EnvError, match=r"environment 0, episode 3: reset\(\) raised OSError: no licence"):
        play(GymnasiumVector(Fails, 2, "x"))


def test_an_exception_in_init_is_one_sentence() -> None:
    class Fails(Clock):
        def __init__(self) -> None:
            raise OSError("no licence")

    with pytest.raises(EnvError, match=r"^making the environment raised OSError: no licence$") as caught:
        GymnasiumVector(Fails, 1, "x")
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("kind", [WhorlError, EnvError, ConfigError])
def test_errors_travel_between_processes_with_their_details(kind: type[WhorlError]) -> None:
    sent = pickle.loads(pickle.dumps(kind("one sentence", "line 1\nline 2")))
    assert type(sent) is kind and (sent.message, sent.details) == ("one sentence", "line 1\nline 2")
    assert str(sent) == "one sentence\n\nline 1\nline 2" and str(kind("alone")) == "alone"


def test_only_an_exception_of_the_environments_own_code_brings_a_traceback() -> None:
    failed, told = EnvFailure("raised"), EnvError("raised")
    for error in (failed, told):
        error.__cause__ = ValueError("the cause")
        assert str(error) == "raised"
    assert failed.details == pickle.loads(pickle.dumps(failed)).details == "ValueError: the cause"
    assert told.details == ""

    class Needs(Clock):
        def __init__(self, level: int) -> None:
            super().__init__()

    with pytest.raises(EnvError, match="'level'; give it in env_options") as caught:
        make_env(Needs)  # type: ignore[arg-type]  # the mistake under test
    assert caught.value.details == ""


def test_a_number_of_numpy_is_an_observation_of_a_box_without_axes() -> None:
    """Gymnasium samples whole numbers of such a Box so."""

    class Dial(Clock):
        def __init__(self, reading: Any = None) -> None:
            super().__init__(space=spaces.Box(0, 5, (), np.int64))
            self.reading = reading

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.int64(0), {}

        def step(self, action: Any) -> Any:
            return self.reading or np.int64(self.time % 5), *super().step(action)[1:]

    assert check(Dial) == []
    outside = ["the observation of step() holds 9 at [], outside [0, 5]; widen the space or clip"]
    assert check(lambda: Dial(np.int64(9))) == outside
