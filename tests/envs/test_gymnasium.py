"""Gymnasium spaces as specs, conversion of observations and actions, next-step autoreset, seeding."""

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import whorl
from whorl.core.errors import EnvError, WhorlError
from whorl.core.spec import Array, Continuous, Discrete, MultiDiscrete, to_env
from whorl.envs.adapter import factory_from_id, make_registered
from whorl.envs.adapters import atari
from whorl.envs.adapters.gymnasium import GymnasiumVector, to_spec
from whorl.envs.spaces import probe
from whorl.envs.stepping import EnvStepper, env_seed

torch.set_num_threads(1)


class Countdown(gymnasium.Env):
    """Ends after `length` steps; the observation is whatever `observation_space` holds, the action is remembered."""

    def __init__(
        self,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        length: int = 3,
        masked: bool = False,
    ) -> None:
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = action_space or spaces.Discrete(3)
        self.length, self.masked = length, masked
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.left = self.length
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.actions.append(action)
        self.left -= 1
        return self._obs(), 1.5, self.left == 0, False, self._info()

    def _obs(self) -> Any:
        if isinstance(self.observation_space, spaces.Box) and self.observation_space.shape == (2,):
            return np.array([self.left, 0.1], self.observation_space.dtype)
        return self.observation_space.sample()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([1, 0, 1], np.int8)} if self.masked else {}


class MaskMethod(Countdown):
    def action_masks(self) -> list[bool]:
        return [self.left > 1, True, False]


def test_a_env_that_ended_is_reset_by_the_next_call_with_reward_zero():
    env = GymnasiumVector(Countdown, 2, "Countdown")
    env.reset(0)
    action = torch.zeros(2, dtype=torch.int64)
    seen = []
    for _ in range(5):
        step = env.step(action)
        flags = step.terminated[0].item(), step.truncated[0].item(), step.reset[0].item()
        seen.append((step.obs[0, 0].item(), step.reward[0].item(), *flags))
    assert seen == [
        (2.0, 1.5, False, False, False),
        (1.0, 1.5, False, False, False),
        (0.0, 1.5, True, False, False),
        (3.0, 0.0, False, False, True),
        (2.0, 1.5, False, False, False),
    ]


def test_a_time_limit_truncates_and_does_not_terminate():
    env = GymnasiumVector(factory_from_id("Pendulum-v1", max_episode_steps=2), 1, "Pendulum-v1")
    env.reset(0)
    env.step(torch.zeros(1, 1))
    step = env.step(torch.zeros(1, 1))
    assert step.truncated.tolist() == [True] and step.terminated.tolist() == [False]


def test_observations_become_float32_and_images_stay_bytes():
    assert probe(Countdown).observation[0].dtype == "float32"
    image = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    spec = to_spec(probe(lambda: Countdown(image)), 1)
    assert spec.observation == Array((4, 4, 3), "uint8", 0.0, 255.0)


def test_a_discrete_observation_becomes_one_hot():
    env = GymnasiumVector(lambda: Countdown(spaces.Discrete(5, start=2)), 3, "x")
    obs = env.reset(0)
    assert env.spec.observation == Array((5,), "float32", 0.0, 1.0, start=2, binary=True)
    assert obs.sum(-1).tolist() == [1.0, 1.0, 1.0]


def test_tuples_and_dicts_become_trees_with_string_keys():
    space = spaces.Tuple((spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.MultiBinary(3)), spaces.Discrete(4)))
    env = GymnasiumVector(lambda: Countdown(space), 2, "x")
    obs = env.reset(0)
    assert {key: tuple(value.shape) for key, value in obs["0"].items()} == {"a": (2, 2), "b": (2, 3)}
    assert obs["1"].shape == (2, 4)


def test_actions_reach_the_environment_as_its_own():
    space = spaces.Dict(
        move=spaces.Box(np.array([[0.0, -2.0]], np.float32), np.array([[1.0, 2.0]], np.float32)),
        pick=spaces.Discrete(3, start=5),
        many=spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2))),
    )
    env = GymnasiumVector(lambda: Countdown(action_space=space), 1, "x")
    assert env.spec.action == {
        "many": {"0": MultiDiscrete((2, 3)), "1": MultiDiscrete((2, 2), dtype="int8")},
        "move": Continuous((1, 2), (0.0, -2.0), (1.0, 2.0)),
        "pick": Discrete(3, 5),
    }
    env.reset(0)
    env.step(
        {
            "many": {"0": torch.tensor([[1, 2]]), "1": torch.tensor([[0, 1]])},
            "move": torch.tensor([[0.5, -3.0]]),
            "pick": torch.tensor([2]),
        }
    )
    (action,) = env.stepper.envs[0].unwrapped.actions
    assert space.contains(action)
    assert action["move"].tolist() == [[0.75, -2.0]]  # 0 + 1.5 / 2 * 1, and -3 clipped to -1
    assert action["pick"] == 7
    assert action["many"][0].tolist() == [1, 2] and action["many"][1].tolist() == [0, 1]


def test_rescaling_equals_the_spec_to_the_last_bit():
    low = np.array([-0.4, -np.inf, -3.7, 0.0], np.float32)
    high = np.array([0.4, np.inf, 11.3, np.inf], np.float32)
    layout = probe(lambda: Countdown(action_space=spaces.Box(low, high)))
    action = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) * 2
    num_envs = EnvStepper(lambda: Countdown(action_space=spaces.Box(low, high)), layout, [0])
    found = torch.from_numpy(np.stack(num_envs._decode([action.numpy()])))
    assert torch.equal(found, to_env(to_spec(layout, 1).action, action))


def test_an_environment_may_keep_the_action_it_was_given():
    env = GymnasiumVector(lambda: Countdown(action_space=spaces.Box(-1, 1, (1,))), 1, "x")
    env.reset(0)
    env.step(torch.tensor([[0.5]]))
    env.step(torch.tensor([[-0.5]]))
    assert [float(action[0]) for action in env.stepper.envs[0].unwrapped.actions] == [0.5, -0.5]


def test_a_mask_in_info_joins_the_observation():
    env = GymnasiumVector(lambda: Countdown(masked=True), 2, "x")
    obs = env.reset(0)
    assert env.spec.masked and set(obs) == {"obs", "action_mask"}
    assert obs["action_mask"].tolist() == [[True, False, True]] * 2
    assert env.step(torch.zeros(2, dtype=torch.int64)).obs["action_mask"].dtype == torch.bool


def test_a_mask_method_is_asked_at_every_step():
    env = GymnasiumVector(MaskMethod, 1, "x")
    action = torch.zeros(1, dtype=torch.int64)
    assert env.reset(0)["action_mask"].tolist() == [[True, True, False]]
    env.step(action)
    assert env.step(action).obs["action_mask"].tolist() == [[False, True, False]]


def test_a_mask_inside_a_dict_observation_is_bool():
    space = spaces.Dict(action_mask=spaces.MultiBinary(3), x=spaces.Box(0, 1, (2,)))
    spec = to_spec(probe(lambda: Countdown(space)), 1)
    assert spec.observation["action_mask"] == Array((3,), "bool", 0.0, 1.0)


def test_envs_differ_and_a_seed_repeats():
    env = GymnasiumVector(factory_from_id("CartPole-v1"), 3, "CartPole-v1")
    first = env.reset(7).clone()
    assert torch.equal(first, env.reset(7))
    assert len({tuple(row) for row in first.tolist()}) == 3
    assert not torch.equal(first, env.reset(8))


def test_env_seeds_are_stable():
    # From numpy's SeedSequence((0, 0)), whose output numpy promises to keep.
    assert env_seed(0, 0) == int(np.random.SeedSequence((0, 0)).generate_state(1)[0]) // 2
    assert env_seed(0, 1) != env_seed(1, 0)


def test_an_unknown_id_names_the_nearest_one():
    with pytest.raises(EnvError, match="'CartPoole-v1'; did you mean 'CartPole-v1'"):
        factory_from_id("CartPoole-v1")


def test_an_id_without_a_version_means_the_newest():
    assert factory_from_id("Pendulum")().spec.id == "Pendulum-v1"


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    atari._ale.cache_clear()
    with pytest.raises(WhorlError, match=r"\[atari\]"):
        factory_from_id("ALE/Pong-v5")


def test_a_version_that_is_refused_is_not_called_missing():
    pytest.importorskip("mujoco", minversion="3")
    with pytest.raises(EnvError, match=r"Pusher-v4 can't be imported: .*only supported on `mujoco<3`"):
        factory_from_id("Pusher-v4")()


def test_an_unsupported_space_is_named():
    with pytest.raises(EnvError, match="observation space is a Text space"):
        probe(lambda: Countdown(spaces.Text(5)))


def test_a_wrong_shape_is_refused_at_reset():
    class Wrong(Countdown):
        def _obs(self) -> Any:
            return np.zeros(1)

    env = GymnasiumVector(Wrong, 1, "x")
    with pytest.raises(EnvError, match=r"environment 0, episode 1: .*shape \(1,\) but its space \(2,\)"):
        env.reset(0)


def test_rendering_gives_none_where_nothing_is_drawn():
    assert GymnasiumVector(Countdown, 1, "x").render() is None


def test_deprecated_words_in_models_of_gymnasium_are_not_told_and_other_warnings_are_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mujoco = pytest.importorskip("mujoco", minversion="3")
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its log
    mujoco.set_mju_user_warning(None)  # dm_control sets its own when it is imported
    whorl.make("HalfCheetah-v5").close()
    assert capfd.readouterr() == ("", "") and not list(tmp_path.iterdir())
    assert mujoco.get_mju_user_warning() is None

    def made(*arguments: Any, **options: Any) -> None:
        said = mujoco.get_mju_user_warning()
        said("a word is deprecated")
        said("a body has no mass")

    monkeypatch.setattr(gymnasium, "make", made)
    with pytest.warns(UserWarning, match="MuJoCo: a body has no mass") as found:
        make_registered(gymnasium.spec("HalfCheetah-v5"), {})
    assert len(found) == 1 and mujoco.get_mju_user_warning() is None
