"""What an agent sees of an environment: entries kept, entries shown once, the last action and reward beside them."""

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import whorl
from whorl.core.errors import EnvError
from whorl.core.registry import register
from whorl.distributed.pool import make_vector
from whorl.envs.adapter import factory_from_id
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.make import find
from whorl.envs.snapshot import restore_env, snapshot_env
from whorl.envs.wrappers import SelectObservation

torch.set_num_threads(1)
PARTS = spaces.Dict(position=spaces.Box(-1, 1, (2,)), velocity=spaces.Box(-1, 1, (1,)))


class Clock(gymnasium.Env):
    """Shows 1, 2, 3 times its step, from 1 on, or a sample of another space; a step earns the number of the step."""

    def __init__(self, observed: spaces.Space | None = None, acted: spaces.Space | None = None) -> None:
        self.observation_space = observed or spaces.Box(1, 99, (3,), np.float64)
        self.action_space = acted or spaces.Discrete(3, start=5)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 1
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._obs(), float(self.count), False, False, {}

    def get_snapshot(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        self.count = snapshot["count"]

    def _obs(self) -> Any:
        if self.observation_space.shape == (3,):
            return np.array([1.0, 2.0, 3.0]) * self.count
        return self.observation_space.sample()


def test_kept_entries_come_in_the_order_given():
    env = SelectObservation(Clock(), keep=[2, 0])
    assert env.observation_space == spaces.Box(1, 99, (2,), np.float64)
    assert env.reset()[0].tolist() == [3, 1]
    assert env.step(5)[0].tolist() == [6, 2]


def test_entries_shown_once_are_zero_after_the_first_observation():
    env = SelectObservation(Clock(), once=[0, 2])
    assert env.observation_space.low.tolist() == [0, 1, 0]
    shown = env.reset()[0]
    assert shown.tolist() == [1, 2, 3]
    assert env.step(5)[0].tolist() == [0, 4, 0] and shown.tolist() == [1, 2, 3]
    assert env.reset()[0].tolist() == [1, 2, 3]


def test_a_vector_gets_the_last_choice_as_one_hot_and_the_last_reward_appended():
    """Three choices that start at 5; an episode opens with zeros."""
    env = SelectObservation(Clock(), keep=1, last_action=True, last_reward=True)
    assert env.reset()[0].tolist() == [2, 0, 0, 0, 0]
    obs = env.step(7)[0]
    assert obs.tolist() == [4, 0, 0, 1, 2] and env.observation_space.contains(obs)
    assert env.step(5)[0].tolist() == [6, 1, 0, 0, 3]
    assert env.reset()[0].tolist() == [2, 0, 0, 0, 0]


def test_a_continuous_action_is_seen_in_the_environments_own_units():
    env = GymnasiumVector(
        lambda: SelectObservation(Clock(acted=spaces.Box(2, 4, (1, 2))), last_action=True), 1, "Clock"
    )
    assert env.reset(0).tolist() == [[1, 2, 3, 0, 0]]
    assert env.step(torch.tensor([[-1.0, 0.5]])).obs.tolist() == [[2, 4, 6, 2, 3.5]]


@pytest.mark.parametrize("observed", [spaces.Box(0, 255, (4, 4, 3), np.uint8), spaces.Discrete(4)])
def test_what_is_no_vector_becomes_a_dict_with_the_last_action(observed: spaces.Space):
    env = SelectObservation(Clock(observed), last_action=True)
    seen, _ = env.reset(seed=0)
    assert set(seen) == {"obs", "last_action"} and env.observation_space.contains(seen)
    assert env.step(6)[0]["last_action"].tolist() == [0, 1, 0]
    assert set(GymnasiumVector(lambda: env, 1, "x").spec.observation) == {"obs", "last_action"}


def test_of_a_dict_entries_are_kept_by_name_and_an_action_mask_stays():
    masked = spaces.Dict({**PARTS.spaces, "action_mask": spaces.MultiBinary(3)})
    env = SelectObservation(Clock(masked), keep="velocity", last_reward=True)
    assert (
        set(env.reset()[0]) == set(env.observation_space.spaces) == {"velocity", "action_mask", "last_reward"}
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"keep": [0, 3]},
            r"keep is \[0, 3\]; the observation is a vector, .* list indices from 0 to 2, each once",
        ),
        ({"keep": [-1]}, r"keep is \[-1\]; .* indices from 0 to 2"),
        ({"keep": [1, 1]}, r"keep is \[1, 1\]; .* each once"),
        ({"keep": []}, r"keep is \[\]; .* indices from 0 to 2"),
        ({"keep": [True]}, r"keep is \[True\]; .* indices from 0 to 2"),
        ({"keep": "position"}, "keep is 'position'; .* indices from 0 to 2"),
        ({"once": 3}, "once is 3; .* indices from 0 to 2"),
        ({"last_action": "yes"}, "last_action is 'yes'; it must be true or false"),
    ],
)
def test_a_wrong_choice_of_a_vector_is_told(options: dict[str, Any], sentence: str):
    with pytest.raises(EnvError, match=sentence):
        SelectObservation(Clock(), **options)


@pytest.mark.parametrize(
    ("observed", "options", "sentence"),
    [
        (
            PARTS,
            {"keep": [0]},
            "keep has 0, which the observation does not have; choose one of: position, velocity",
        ),
        (PARTS, {"keep": ["positon"]}, "keep has 'positon', .* did you mean 'position'"),
        (PARTS, {"keep": []}, r"keep is \[\]; it must list some of position, velocity, each once"),
        (
            PARTS,
            {"once": [0]},
            "once selects entries of a vector, but the observation is Dict.*; leave once out",
        ),
        (
            spaces.Discrete(4),
            {"keep": [0]},
            r"keep selects .* a vector or a dict, but the observation is Discrete\(4\)",
        ),
        (
            spaces.Dict(last_action=PARTS),
            {"last_action": True},
            "an entry 'last_action' already; leave last_action out",
        ),
    ],
)
def test_a_wrong_choice_of_something_else_is_told(
    observed: spaces.Space, options: dict[str, Any], sentence: str
):
    with pytest.raises(EnvError, match=sentence):
        SelectObservation(Clock(observed), **options)


def test_a_fresh_environment_continues_with_the_last_action_and_reward():
    make = factory_from_id("Pendulum-v1", keep=[0, 1], last_action=True, last_reward=True)
    env, fresh = make(), make()
    env.reset(seed=0)
    before = env.step(np.array([1.5], np.float32))
    snapshot = snapshot_env(env)
    assert snapshot is not None and before[0][2:].tolist() == [1.5, np.float32(before[1])]
    restore_env(fresh, snapshot)
    assert fresh._observe(np.zeros(3)).tolist() == [0, 0, 1.5, np.float32(before[1])]
    action = np.array([-0.5], np.float32)
    assert np.array_equal(env.step(action)[0], fresh.step(action)[0])


# Through whorl.make


def test_an_id_takes_the_options_and_cart_pole_leaves_its_batched_envs():
    source = find("CartPole-v1", {"keep": [0, 2], "last_action": True})
    num_envs = source.vector(2)
    assert num_envs.spec.observation.shape == (4,) and num_envs.snapshots
    assert num_envs.reset(0)[:, 2:].tolist() == [[0, 0]] * 2
    assert num_envs.step(torch.tensor([0, 1])).obs[:, 2:].tolist() == [[1, 0], [0, 1]]


def test_workers_see_the_same_as_envs_here():
    source = find("CartPole-v1", {"keep": [0, 2], "last_action": True})
    here, there = source.vector(2), make_vector(source, 2, workers=1)
    try:
        assert torch.equal(here.reset(0), there.reset(0))
        action = torch.tensor([0, 1])
        assert torch.equal(here.step(action).obs, there.step(action).obs)
    finally:
        there.close()


def test_frames_are_stacked_after_some_was_hidden():
    """Frames of [x, angle, two for the choice]: the newest is last."""
    num_envs = find("CartPole-v1", {"keep": [0, 2], "last_action": True, "frame_stack": 2}).vector(1)
    num_envs.reset(0)
    assert num_envs.step(torch.tensor([1])).obs[0, [2, 3, 6, 7]].tolist() == [0, 0, 0, 1]


def test_registered_environments_factories_and_objects_take_them_too():
    register("environment", "Clock-v0", Clock)
    for env in ("Clock-v0", Clock, Clock()):
        made = whorl.make(env, keep=[1], last_action=True)
        assert made.reset()[0].tolist() == [2, 0, 0, 0]
        assert made.source.options == {"keep": [1], "last_action": True}


def test_other_options_can_not_change_what_is_made():
    with pytest.raises(
        EnvError, match="observed can't change an environment that is already made; pass its id"
    ):
        whorl.make(Clock(), observed=PARTS)
    with pytest.raises(EnvError, match="keep can't change an environment that is already made"):
        whorl.make(whorl.make("CartPole-v1"), keep=[0])


def test_a_run_on_a_factory_keeps_what_is_seen_when_it_is_resumed(tmp_path: Path):
    small = {
        "num_envs": 1,
        "num_steps": 16,
        "batch_size": 16,
        "eval": False,
        "quiet": True,
        "runs": str(tmp_path),
    }
    factory = partial(gymnasium.make, "CartPole-v1")
    trainer = whorl.load(whorl.make(factory, keep=[0, 2]), "ppo", {**small, "total_timesteps": 16})
    assert trainer.config.env_options == {"keep": [0, 2]}
    run = trainer.train().run_dir
    assert whorl.restore(run).spec.observation.shape == (2,)
    assert whorl.resume(run, env=factory, total_timesteps=32).steps >= 32


@pytest.mark.parametrize("given", ["Pendulum-v1", partial(gymnasium.make, "Pendulum-v1")])
def test_a_wrong_choice_is_told_before_anything_is_trained(given: Any):
    with pytest.raises(EnvError, match=r"keep is \[3\]; .* from 0 to 2"):
        find(given, {"keep": [3]})


def test_worlds_made_of_tensors_say_how_else_they_are_seen():
    with pytest.raises(
        EnvError,
        match="a native environment, which does not support keep; choose what is observed with observe",
    ):
        find("CartPoleContinuous-v0", {"keep": [99]})
    with pytest.raises(EnvError, match="which does not support last_action; leave it out"):
        find("Quadrotor-v0", {"last_action": True})


def test_envpool_shows_pictures_alone():
    pytest.importorskip("ale_py")
    with pytest.raises(
        EnvError, match="EnvPool does not support last_action; leave it out, or use backend='ale'"
    ):
        find("Pong", {"last_action": True, "backend": "envpool"})


# Variants with an id of their own


def test_reacher_once_shows_its_goal_in_the_first_observation_alone():
    pytest.importorskip("mujoco")
    env, whole = factory_from_id("ReacherOnce-v0")(), factory_from_id("Reacher-v5")()
    action = np.array([0.3, -0.2], np.float32)
    for seed in (0, 1):
        first, _ = env.reset(seed=seed)
        assert np.array_equal(first, whole.reset(seed=seed)[0])
        steps = [(env.step(action), whole.step(action)) for _ in range(50)]
        for (seen, reward, *ends, _), (all_of_it, its_reward, *its_ends, _) in steps:
            assert np.array_equal(seen[[0, 1, 2, 3, 6, 7]], all_of_it[[0, 1, 2, 3, 6, 7]])
            assert seen[[4, 5, 8, 9]].tolist() == [0, 0, 0, 0] and all_of_it[[4, 5, 8, 9]].all()
            assert (reward, ends) == (its_reward, its_ends)
        assert ends == [False, True]


def test_the_entries_that_reacher_once_hides_are_all_that_depend_on_the_goal():
    pytest.importorskip("mujoco")
    env: Any = factory_from_id("Reacher-v5")()
    first, _ = env.reset(seed=0)
    base = env.unwrapped
    place = base.data.qpos.copy()
    place[2:] += 0.05
    base.set_state(place, base.data.qvel)
    assert np.flatnonzero(base._get_obs() != first).tolist() == [4, 5, 8, 9]


def test_reacher_once_continues_exactly_and_nothing_is_wrong_with_it():
    pytest.importorskip("mujoco")
    env, fresh = (GymnasiumVector(factory_from_id("ReacherOnce-v0"), 2, "x") for _ in range(2))
    assert env.snapshots and whorl.check("ReacherOnce-v0") == []
    env.reset(0)
    env.step(torch.full((2, 2), 0.3))
    fresh.restore(env.snapshot())
    for _ in range(60):
        a, b = env.step(torch.full((2, 2), 0.2)), fresh.step(torch.full((2, 2), 0.2))
        assert torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward) and torch.equal(a.reset, b.reset)


needs_dm_control = pytest.mark.skipif(
    importlib.util.find_spec("dm_control") is None, reason="pip install -e '.[dm-control]'"
)


@needs_dm_control
@pytest.mark.filterwarnings("ignore")
def test_a_cart_pole_of_dm_control_is_seen_by_place_or_by_speed_and_action():
    """It shows place, cosine and sine of the angle, then two speeds."""
    whole = whorl.make("dm_control/cartpole-balance", frame_skip=5)
    p = whorl.make("dm_control/cartpole-balance", frame_skip=5, keep=[0, 1, 2])
    va = whorl.make("dm_control/cartpole-balance", frame_skip=5, keep=[3, 4], last_action=True)
    named = whorl.make("dm_control/cartpole-balance", frame_skip=5, flatten=False, keep="position")
    for env in (whole, p, va, named):
        env.reset(seed=0)
    action = np.array([0.5], np.float32)
    everything, places, speeds, named_places = (env.step(action)[0] for env in (whole, p, va, named))
    assert np.array_equal(places, everything[:3]) and np.array_equal(named_places["position"], everything[:3])
    assert np.array_equal(speeds, [*everything[3:], 0.5]) and set(named_places) == {"position"}
