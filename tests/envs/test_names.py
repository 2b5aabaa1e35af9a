"""Ids of other libraries: every one makes an environment here, and what differs is said."""

import warnings
from typing import Any

import gymnasium
import pytest

import whorl
from whorl.core.errors import EnvError
from whorl.envs.adapter import adapter_of, factory_from_id, full_id, registry_id
from whorl.envs.make import find
from whorl.envs.names import IDS, named

LIGHT = [id for id, (name, *_) in IDS.items() if not name.startswith(("dm_control/", "Humanoid"))]


@pytest.mark.parametrize("id", IDS)
def test_every_id_of_another_library_is_one_of_this_one(id: str):
    """Ids here mean themselves, so that translating is done once."""
    name, options, _ = named(id)
    assert named(name) == (name, {}, "")
    assert named(f"{id}-v0")[0] == name or id[-3:-1] == "-v"
    adapter = adapter_of(name)
    assert adapter.full_id(name).startswith(name.partition("-v")[0])
    if adapter.single:
        adapter.check_options(name, dict(options))


@pytest.mark.parametrize("id", LIGHT)
def test_an_id_makes_the_environment_with_its_options(id: str):
    pytest.importorskip("pybullet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = find(id)
    name, options, _ = named(id)
    assert source.id == full_id(name) and dict(source.options) == options
    source.spec(1)


def test_options_of_an_id_can_be_changed():
    env = whorl.make("water-maze-dense-pomdp-v0")
    assert env.observation_space.shape == (3,)
    assert whorl.make("water-maze-dense-pomdp-v0", observe="full").observation_space.shape == (5,)


@pytest.mark.parametrize(
    ("id", "name", "said"),
    [
        ("LunarLander-v2", "LunarLander-v3", "no longer made"),
        ("Humanoid-v3", "Humanoid-v4", "mujoco_py"),
        ("Ant-v2", "Ant-v4", "mujoco_py"),
        ("Pusher-v2", "Pusher-v5", "mujoco_py"),
        ("reacher-mdp-v0", "Reacher-v5", "10 numbers"),
        ("bump-top-v0", "BumpTop-v0", "without MuJoCo"),
    ],
)
def test_a_warning_says_what_runs_and_how_it_differs(id: str, name: str, said: str):
    pytest.importorskip("gymnasium_robotics")  # it registers tasks of mujoco_py under the same names
    with pytest.warns(UserWarning, match=f"{id} is {name} here: .*{said}"):
        assert find(id).id == name


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("Quadroter-v0", "Quadrotor-v0"),
        ("Pendulum-v0", "Pendulum-v1"),
        ("pendulum-v0", "PendulumFull-v0"),
        ("pendulum-v", "PendulumV-v0"),
        ("car-top-v0", "CarHeavenHellTopPriest-v0"),
        ("car-top-v1", "CarHeavenHellTopQuietPriest-v0"),
        ("ReacherPyBulletEnv-v0", "ReacherBulletEnv-v0"),
        ("HalfCheetahPyBulletEnv-v0", "HalfCheetahBulletEnv-v0"),
    ],
)
def test_the_same_environment_under_another_name_needs_no_warning(id: str, name: str):
    if "Bullet" in id:
        pytest.importorskip("pybullet_envs_gymnasium")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert find(id).id == name


def test_what_somebody_registered_comes_first():
    gymnasium.register("car-top-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
    try:
        assert find("car-top-v0").id == "car-top-v0"
    finally:
        gymnasium.registry.pop("car-top-v0")


def test_a_game_by_its_name_alone_says_that_actions_are_sticky():
    pytest.importorskip("ale_py")
    with pytest.warns(
        UserWarning, match=r"Pong is ALE/Pong-v5 here, with sticky actions; PongNoFrameskip-v4"
    ):
        assert find("Pong").id == "ALE/Pong-v5"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for id in ("ALE/Pong-v5", "PongNoFrameskip-v4", "ALE/Pong"):
            find(id)


def test_players_that_are_not_public_are_named():
    with pytest.raises(
        EnvError, match="Unity player of 'roller' is not public; name your own build, as unity:PATH"
    ):
        find("roller")


def test_a_run_is_saved_under_the_name_here(tmp_path: Any):
    small = {"num_envs": 2, "num_steps": 8, "batch_size": 16, "max_iterations": 1, "eval": False}
    trainer = whorl.load("water-maze-dense-pomdp-v0", "ppo", small, runs=str(tmp_path), quiet=True)
    assert trainer.settings.env == "WaterMazeDense-v0"
    assert trainer.settings.env_options == {"observe": "hidden"}
    trainer.close()


def test_checks_and_factories_know_the_names():
    assert whorl.check("car-top-v0") == []
    assert factory_from_id("water-maze-dense-pomdp")().observation_space.shape == (3,)


def test_a_misspelt_id_of_another_library_is_recognised():
    with pytest.raises(EnvError, match="did you mean 'car-top-v0'"):
        find("car-topp-v0")


def test_an_id_without_version_is_not_confused_by_ids_that_continue_it() -> None:
    for name in ("Robot-v0", "Robot-v10", "Robot-visual"):
        gymnasium.register(name, entry_point="nowhere:Robot")
    try:
        assert registry_id("Robot") == "Robot-v10"
    finally:
        for name in ("Robot-v0", "Robot-v10", "Robot-visual"):
            del gymnasium.registry[name]
