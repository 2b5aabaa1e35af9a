"""Which words of settings are import paths, for which a saved run needs trust."""

from typing import Any

import pytest

from whorl.envs.adapters.imported import module_of
from whorl.run.trust import trust_flag
from whorl.settings.merge import configure
from whorl.settings.trust import import_paths, own_paths


@pytest.mark.parametrize(
    ("settings", "paths"),
    [
        ({"actor_network": {"class": "mynets.Body", "data": "weights.v2", "tags": ["a.b"]}}, ["mynets.Body"]),
        (
            {"actor_network": [{"class": "mynets.Block", "file": "data.json"}, "mynets.Relu"]},
            ["mynets.Block", "mynets.Relu"],
        ),
        ({"lr_schedule": {"class": "warmup", "fraction": 0.1, "then": "mysteps.cosine"}}, ["mysteps.cosine"]),
        ({"optimizer": {"class": "myopt.Lion", "params": {"path": "x.y"}}}, ["myopt.Lion"]),
        ({"loggers": ["mylogs.Logger"]}, ["mylogs.Logger"]),
        ({"components": ["rnd"], "rnd": {"encoder": {"class": "mynets.Eye", "note": "a.b"}}}, ["mynets.Eye"]),
        ({"env_options": {"file": "level.one"}}, []),
    ],
)
def test_names_of_parts_are_import_paths_and_other_options_are_not(
    settings: dict[str, Any], paths: list[str]
) -> None:
    found = configure("ppo", "CartPole-v1", settings, options=settings.get("env_options", {}))
    assert [path for path in import_paths(found) if not path.startswith("whorl.")] == paths
    assert own_paths(found) == paths


@pytest.mark.parametrize(
    ("id", "module"),
    [
        (r"unity:C:\games\game.exe", "unity"),
        ("unity:/games/game.x86_64", "unity"),
        ("myenvs:MyEnv-v0", "myenvs"),
        ("myenvs.more.MyEnv", "myenvs.more"),
        ("CartPole-v1", ""),
    ],
)
def test_an_environment_is_trusted_by_its_module(id: str, module: str) -> None:
    assert module_of(id) == module
    settings = configure("ppo", id, {"num_envs": 2})
    assert trust_flag(settings) == (["--trust", module] if module else [])
