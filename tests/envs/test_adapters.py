"""Adapters: every library is found through the registry, and users add their own."""

import importlib
from functools import partial
from typing import Any

import gymnasium
import pytest
import torch

from whorl.core import registry
from whorl.core.errors import EnvError, WhorlError
from whorl.envs.adapter import MODULES, Adapter, RegisteredAdapter, adapter_of, full_id
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.adapters.vectorized import BatchedVector
from whorl.envs.make import find
from whorl.envs.native import Quadrotor

pytestmark = pytest.mark.usefixtures("own_registry")

torch.set_num_threads(1)


class LabAdapter(Adapter):
    """lab/NAME is Gymnasium's environment NAME."""

    def __init__(self, cheap: bool = False) -> None:
        self.cheap = cheap

    def owns(self, id: str) -> bool:
        return id.startswith("lab/")

    def full_id(self, id: str) -> str:
        return id if id.endswith("-v1") else f"{id}-v1"

    def factory(self, id: str, options: dict[str, Any]) -> Any:
        return partial(gymnasium.make, self.full_id(id).removeprefix("lab/"), **options)

    def ids(self) -> list[str]:
        return ["lab/CartPole-v1"]


@pytest.mark.parametrize(
    ("id", "module"),
    [
        ("Quadrotor-v0", "native"),
        ("Quadrotor", "native"),
        ("whorl.envs.native:Quadrotor-v0", "native"),
        ("CartPole-v1", "gymnasium"),
        ("Ant-v5", "gymnasium"),
        ("Blackjack", "gymnasium"),
        ("my_package:Thing-v3", "gymnasium"),
        ("ALE/Pong-v5", "atari"),
        ("PongNoFrameskip-v4", "atari"),
        ("MinAtar/Breakout", "minatar"),
        ("MiniGrid-Empty-8x8-v0", "minigrid"),
        ("dmc/walker-walk", "dm_control"),
        ("AntBulletEnv-v0", "pybullet"),
        ("AntBulletP-v0", "pybullet"),
        ("BumpsBullet-v0", "bumps_bullet"),
        ("warp:Hopper-v5", "warp"),
        ("mjx:Hopper-v5", "mjx"),
        ("playground:CheetahRun", "playground"),
        ("FetchReach-v4", "robotics"),
        ("PointMaze_UMaze-v3", "robotics"),
    ],
)
def test_every_id_has_one_owner(id: str, module: str):
    assert type(adapter_of(id)).__module__ == f"whorl.envs.adapters.{module}"


def test_every_module_has_adapters_with_the_extra_to_install():
    extras = {
        adapter.extra
        for name in MODULES
        for adapter in importlib.import_module(f"whorl.envs.adapters.{name}").ADAPTERS
        if adapter.packages
    }
    assert extras == {
        *("dm-control", "minatar", "atari", "minigrid", "pybullet", "mujoco", "box2d", "pettingzoo"),
        *("robotics", "warp", "mjx", "playground"),
    }


def test_a_registered_adapter_makes_environments_of_its_ids():
    registry.register("adapter", "lab", LabAdapter())
    source = find("lab/CartPole", {"keep": [0, 2]})
    assert source.id == "lab/CartPole-v1" == full_id("lab/CartPole")
    vector = source.vector(3)
    assert isinstance(vector, GymnasiumVector)
    assert vector.reset(0).shape == (3, 2)
    with pytest.raises(EnvError, match=r"lab/CartPole can't be made with \{'colour': 'red'\}"):
        find("lab/CartPole", {"colour": "red"})


def test_known_ids_of_an_adapter_are_suggested():
    registry.register("adapter", "lab", LabAdapter())
    with pytest.raises(EnvError, match="did you mean 'lab/CartPole-v1'"):
        find("lap/CartPole-v1")


def test_users_adapters_are_asked_before_those_of_the_package():
    class Mine(RegisteredAdapter):
        def owns(self, id: str) -> bool:
            return id == "CartPole-v1"

    assert isinstance(find("CartPole-v1").vector(8), BatchedVector)
    registry.register("adapter", "mine", Mine())
    assert isinstance(find("CartPole-v1").vector(8), GymnasiumVector)


def test_an_adapter_may_step_batches_itself():
    class Flock(LabAdapter):
        def batches(self, options: Any) -> bool:
            return True

        def vector(self, source, num_envs, device, compile):  # type: ignore[no-untyped-def]
            return Quadrotor(num_envs, device)

    registry.register("adapter", "flock", Flock())
    source = find("lab/CartPole-v1")
    assert source.workers(4, 8) == 0 and source.spec(5).num_envs == 5
    assert isinstance(source.vector(5), Quadrotor)


@pytest.mark.parametrize(("cheap", "workers"), [(True, 0), (False, 3)])
def test_an_adapter_says_whether_workers_are_worth_it(
    cheap: bool, workers: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("whorl.envs.make.default_workers", lambda num_envs: 3)
    registry.register("adapter", "lab", LabAdapter(cheap))
    monkeypatch.setattr(gymnasium, "make", lambda id: Dear())
    assert find("lab/CartPole-v1").workers(-1, 8) == workers


class Dear(gymnasium.Env):
    """Of a module that no adapter calls cheap."""


def test_environments_are_cheap_by_the_module_of_their_class(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("whorl.envs.make.default_workers", lambda num_envs: 3)
    wrapped = partial(gymnasium.make, "CartPole-v1", max_episode_steps=7)
    assert find(wrapped).workers(-1, 8) == 0
    assert find(wrapped).workers(2, 8) == 2
    assert find(Dear).workers(-1, 8) == 3


def test_a_missing_package_names_the_extra_of_the_adapter():
    class Missing(RegisteredAdapter):
        packages = ("lab_engine",)

        def owns(self, id: str) -> bool:
            return id.startswith("lab_engine:")

    registry.register("adapter", "missing", Missing())
    with pytest.raises(WhorlError, match=r"lab-engine is not installed.*pip install lab-engine"):
        find("lab_engine:Maze-v0")
    Missing.extra = "lab"
    with pytest.raises(WhorlError, match=r"lab-engine is not installed.*pip install -e '.*\[lab\]'"):
        find("lab_engine:Maze-v0")
