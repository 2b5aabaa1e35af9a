"""Algorithms and components of users: their settings, ranges and names."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
import torch
import yaml
from torch import nn

import whorl
from whorl.agents.agent import Acted, Agent, Context, Updated
from whorl.algorithms.ppo import PPO, PPOConfig
from whorl.cli import main
from whorl.core.errors import ConfigError
from whorl.core.registry import only_trusted
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.settings.merge import configure
from whorl.settings.schema import LearningRate, Range

pytestmark = pytest.mark.usefixtures("own_registry")

SMALL = {"num_envs": 2, "num_steps": 16, "batch_size": 32, "max_iterations": 1, "quiet": True, "eval": False}


@dataclass(frozen=True)
class OwnConfig(PPOConfig):
    alpha: float = -0.5
    """a number whose name has another range in SAC"""
    share: Annotated[float, Range(0, 1)] = 0.5
    """a number with a range"""


class Own(PPO):
    Config = OwnConfig


@dataclass(frozen=True)
class CollidingConfig(PPOConfig):
    compile: int = 3


class Colliding(PPO):
    Config = CollidingConfig


@dataclass(frozen=True)
class BonusConfig:
    lr: LearningRate = 1e-3
    """learning rate of the predictor"""
    weight: Annotated[float, Range(0, 10)] = 1.0
    """weight of the bonus"""


class Bonus(nn.Module):
    Config = BonusConfig


def test_a_range_of_another_algorithm_does_not_bind_a_setting_of_the_same_name(tmp_path: Path) -> None:
    whorl.register("algorithm", "own", Own)
    run = whorl.train("CartPole-v1", "own", **SMALL, runs=str(tmp_path)).run_dir
    assert whorl.restore(run).settings.alpha == -0.5
    assert whorl.resume(run, max_iterations=2).iterations == 2


@dataclass(frozen=True)
class StillConfig:
    steps: int = 1


class Still(Agent):
    """Always the first action; learns nothing, and has no discount."""

    Config = StillConfig

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return Acted(torch.zeros(len(obs), dtype=torch.int64), {})

    def update(self, batch: Batch) -> Updated:
        return Updated({"loss/none": batch.reward.mean()})


def test_an_algorithm_without_a_discount_trains_and_is_restored(tmp_path: Path) -> None:
    whorl.register("algorithm", "still", Still)
    settings = {name: value for name, value in SMALL.items() if name != "batch_size"}
    run = whorl.train("CartPole-v1", "still", **settings, runs=str(tmp_path)).run_dir
    assert whorl.restore(run).settings.steps == 1


@dataclass(frozen=True)
class WholeConfig:
    memory: str = "none"
    batch_size: int = 32


class Whole(Still):
    """With memory, it learns from whole rollouts."""

    Config = WholeConfig


def test_an_algorithm_with_memory_and_minibatches_may_do_without_chunks() -> None:
    whorl.register("algorithm", "whole", Whole)
    assert configure("whole", "X", {"memory": "lstm", "batch_size": 16}).batch_size == 16


def test_a_range_of_an_own_setting_is_checked() -> None:
    whorl.register("algorithm", "own", Own)
    with pytest.raises(ConfigError, match=r"share is 2\.0; it must be from 0 to 1"):
        configure("own", "X", {"share": 2})
    with pytest.raises(ConfigError, match="alpha is inf; it must be finite"):
        configure("own", "X", {"alpha": float("inf")})


def test_a_setting_of_the_training_loop_can_not_be_declared_again() -> None:
    whorl.register("algorithm", "colliding", Colliding)
    with pytest.raises(ConfigError) as caught:
        configure("colliding", "X", {})
    assert (
        str(caught.value)
        == "colliding has a setting 'compile', a name that the training loop uses; rename it"
    )


def test_a_config_object_selects_its_registered_algorithm() -> None:
    whorl.register("algorithm", "own", Own)
    trainer = whorl.load("CartPole-v1", OwnConfig(share=0.25))
    assert (trainer.settings.algorithm, trainer.settings.share) == ("own", 0.25)


# Components


def with_bonus(**settings: Any) -> Any:
    whorl.register("component", "bonus", Bonus)
    return configure("ppo", "X", {"components": ["bonus"], **settings})


def test_a_component_has_typed_settings_under_its_name() -> None:
    assert with_bonus().components == {"bonus": BonusConfig()}
    assert with_bonus(bonus={"lr": 0.5}).components["bonus"].lr == 0.5
    dotted = with_bonus(**{"bonus": {"lr": 0.5}, "bonus.weight": "2"})
    assert dotted.components["bonus"] == BonusConfig(0.5, 2.0)
    assert configure("ppo", "X", {"components": {"bonus": {"lr": 0.5}}}).components["bonus"].lr == 0.5
    assert configure("ppo", "X", {"components": {"bonus": BonusConfig(0.5)}}).components["bonus"].lr == 0.5
    assert with_bonus(**{"bonus.learning_rate": 0.5}).components["bonus"].lr == 0.5


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"bonus.lr": 101}, "bonus.lr is 101.0; it must be from 0 to 100"),
        ({"bonus.wieght": 1}, "bonus has no setting 'wieght'; did you mean 'bonus.weight'?"),
        ({"bonus": 3}, "bonus is 3; it must be a mapping of the component's settings"),
        (
            {"components": [], "bonus.lr": 1},
            "bonus was configured, but it is not in use; add it: components: [bonus]",
        ),
        ({"components": ["bonsu"]}, "no component is called 'bonsu'; did you mean 'bonus'?"),
        ({"components": 3}, "components is 3; it must be a list of texts"),
    ],
)
def test_a_mistake_in_a_component_is_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_bonus(**settings)
    assert str(caught.value) == sentence


def test_a_preset_may_hold_settings_of_components_in_case_they_are_used() -> None:
    assert configure("ppo", "DeepSea-v0", {}).components == {}
    used = configure("ppo", "DeepSea-v0", {"components": ["rnd"], "rnd.gamma": 0.9}).components["rnd"]
    assert (used.lr, used.gamma, used.weight) == (1e-3, 0.9, 1.0)
    assert configure("ppo", "X", {"components": ["rnd"]}).components["rnd"].lr == 1e-4


def test_a_component_can_not_have_the_name_of_a_setting() -> None:
    whorl.register("component", "gamma", Bonus)
    with pytest.raises(
        ConfigError, match="component 'gamma' has the name of a setting; register it under another"
    ):
        configure("ppo", "X", {"components": ["gamma"]})


def test_own_names_that_are_sections_in_files_of_others_are_what_they_say() -> None:
    @dataclass(frozen=True)
    class NamedConfig(PPOConfig):
        model: str = "small"

    class Named(PPO):
        Config = NamedConfig

    whorl.register("algorithm", "named", Named)
    whorl.register("component", "net_config", Bonus)
    found = configure("named", "", {"model": "large", "components": ["net_config"], "net_config.weight": 2})
    assert found.model == "large" and found.components["net_config"].weight == 2
    assert configure("named", "", found.plain(), presets=False).model == "large"


def test_components_survive_their_file(tmp_path: Path) -> None:
    found = with_bonus(**{"bonus.lr": 0.5})
    saved = yaml.safe_load(yaml.safe_dump(found.plain()))
    assert saved["components"] == ["bonus"] and saved["bonus"] == {"lr": 0.5, "weight": 1.0}
    assert configure("ppo", "X", saved, presets=False) == found
    assert found.replace(gamma=0.5).components == found.components
    (tmp_path / "mine.yaml").write_text("components: [bonus]\nbonus: {lr: 0.25}")
    assert configure("ppo", "X", {"bonus.weight": 3}, [tmp_path / "mine.yaml"]).components[
        "bonus"
    ] == BonusConfig(0.25, 3.0)


def test_an_import_path_of_a_component_needs_trust_when_a_run_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("mybonus")
    module.Bonus = Bonus  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mybonus", module)
    found = configure("ppo", "X", {"components": ["mybonus.Bonus"], "mybonus.Bonus.lr": 0.5})
    assert found.components == {"mybonus.Bonus": BonusConfig(0.5)}
    with only_trusted(()), pytest.raises(ConfigError, match=r"trust=\['mybonus\.Bonus'\]"):
        configure("ppo", "X", found.plain(), presets=False)
    with only_trusted(("mybonus.Bonus",)):
        assert configure("ppo", "X", found.plain(), presets=False) == found


def test_components_are_flags_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    whorl.register("component", "bonus", Bonus)
    words = ["train", "ppo", "CartPole-v1", "--components", "bonus", "--bonus.lr", "0.5", "--help"]
    assert main(words) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "component bonus:" in out
    assert "--bonus.lr X learning rate of the predictor (default: 0.5)" in out
    assert main(["train", "ppo", "CartPole-v1", "--bonus.lr", "0.5", "--help"]) == 2
    assert "add it: components: [bonus]" in capsys.readouterr().err


def test_a_resumed_run_keeps_its_components() -> None:
    from whorl.run.resume import check_changes

    found = with_bonus()
    with pytest.raises(ConfigError, match="can't change 'bonus'"):
        check_changes(found, dataclasses.replace(found, components={}))
