"""Search spaces in words: what is read, and the sentence for what is not."""

import warnings
from typing import Any

import pytest

from whorl.core.errors import ConfigError, WhorlError
from whorl.core.registry import Part
from whorl.settings.merge import Settings, configure
from whorl.settings.presets import preset_names
from whorl.sweep.space import Space, decoded, defaults, read_spaces, suggested
from whorl.sweep.strategy import check_names, make_pruner, make_sampler


@pytest.fixture(scope="module")
def ppo() -> Settings:
    return configure("ppo", "CartPole-v1", {})


class Asked:
    """Optuna's trial, which takes the last of what it is offered."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        self.asked[name] = choices
        return choices[-1]

    def suggest_int(self, name: str, low: int, high: int, step: int, log: bool) -> int:
        self.asked[name] = (low, high, step, log)
        return high

    def suggest_float(self, name: str, low: float, high: float, step: Any, log: bool) -> float:
        self.asked[name] = (low, high, step, log)
        return high


def test_ranges_and_lists_are_read_as_they_are_written(ppo: Settings) -> None:
    given = {
        "lr": "log 1e-5..1e-2",
        "gamma": "0.9 .. 0.9999",
        "n_steps": "int 16..512 log",
        "clip_range": "0.1..0.3 step 0.1",
        "hidden_sizes": [[64, 64], [256]],
        "n_epochs": {"low": 1, "high": 10},
    }
    trial = Asked()
    chosen = suggested(read_spaces(given, ppo), trial)
    assert trial.asked == {
        "lr": (1e-5, 1e-2, None, True),
        "gamma": (0.9, 0.9999, None, False),
        "n_steps": (16, 512, 1, True),
        "clip_range": (0.1, 0.3, 0.1, False),
        "hidden_sizes": ["[64, 64]", "[256]"],  # Optuna stores no lists
        "n_epochs": (1, 10, 1, False),  # whole, because the setting is
    }
    assert chosen["hidden_sizes"] == [256]
    assert decoded(read_spaces(given, ppo), {"hidden_sizes": "[64, 64]"}) == {"hidden_sizes": [64, 64]}


@pytest.mark.parametrize("memory, expected", [("gru", 128), ("none", None)])
def test_a_condition_leaves_a_setting_out_where_it_does_not_hold(
    ppo: Settings, memory: str, expected: Any
) -> None:
    values = ["none", "gru"] if memory == "gru" else ["gru", "none"]
    given = {"memory_size": {"space": [64, 128], "when": {"memory": "gru"}}, "memory": values}
    spaces = read_spaces(given, ppo)
    assert [space.name for space in spaces] == ["memory", "memory_size"]  # parents first
    assert suggested(spaces, Asked()).get("memory_size") == expected


@pytest.mark.parametrize(
    "given, sentence",
    [
        (
            {"lr": "log 1e-2..1e-5"},
            "search.lr is 'log 1e-2..1e-5'; the smaller number comes first, as in 1e-05..0.01",
        ),
        ({"lr": "log 0..1"}, "search.lr is 'log 0..1'; a range in logarithms starts above 0"),
        ({"lr": "lg 1e-5..1e-2"}, "'lg' is not understood"),
        ({"lr": "log 1e-5..x"}, "'x' is not a number"),
        ({"lr": 1e-3}, "search.lr is 0.001, which leaves nothing to search"),
        ({"lr": [1e-3]}, "search.lr lists 1 values; list two or more"),
        ({"gamma": "0.9..1.5"}, "search.gamma includes an invalid value: gamma is 1.5; it must be"),
        ({"n_steps": "int 1.5..3"}, "n_steps takes whole numbers"),
        ({"gama": "0.9..0.99"}, "search: ppo has no setting 'gama'; did you mean 'gamma'?"),
        ({"tau": "0.9..0.99"}, "search: ppo has no setting 'tau', which belongs to"),
        ({"lr": "log 1e-5..1e-2", "actor_lr": "0..1"}, "search names actor_lr twice, as lr and actor_lr"),
        ({"lr": {"spaces": [1]}}, "search.lr has a key 'spaces'; did you mean 'space'?"),
        (
            {"gamma": {"space": [0.9, 1], "when": {"memry": "gru"}}, "memory": ["none", "gru"]},
            "search.gamma.when names 'memry', which is not searched; did you mean 'memory'?",
        ),
        (
            {"gamma": {"space": [0.9, 1], "when": {"memory": "grru"}}, "memory": ["none", "gru"]},
            "search.gamma.when: memory never is 'grru'; did you mean 'gru'?",
        ),
        (
            {
                "gamma": {"space": [0.9, 1], "when": {"memory": "gru"}},
                "memory": {"space": ["none", "gru"], "when": {"gamma": 1}},
            },
            "the conditions of gamma and memory depend on each other",
        ),
        ("defaults", "search is 'defaults'; it must be 'default' or a mapping"),
        ({"chunk_length": "default"}, "search.chunk_length has no default space"),
    ],
)
def test_a_mistake_is_named_in_a_sentence(ppo: Settings, given: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_spaces(given, ppo)
    assert sentence in error.value.message and "\n" not in error.value.message


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(name, marks=() if name in ("ppo", "dqn", "td3") else pytest.mark.full)
        for name in preset_names()
    ],
)
def test_every_algorithm_comes_with_a_search_space_that_fits_it(algorithm: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spaces = read_spaces("default", configure(algorithm, "CartPole-v1", {}))
    names = {space.name for space in spaces}
    width = "actor_width" if algorithm == "flash_sac" else "hidden_sizes"
    assert len(spaces) >= 4 and {"learning_rate", width} <= names


def test_a_name_may_take_its_default(ppo: Settings) -> None:
    space = read_spaces({"gae_lambda": "default"}, ppo)[0]
    assert (space.low, space.high) == (0.8, 1.0)
    assert defaults("ppo_rnd") == defaults("ppo")  # the rule is PPO's


def test_a_grid_has_every_value_of_lists_and_steps() -> None:
    assert Space("gamma", (0.9, 0.99)).grid() == [0.9, 0.99]
    assert Space("n_epochs", low=2, high=4, whole=True).grid() == [2, 3, 4]
    assert Space("clip_range", low=0.1, high=0.3, step=0.1).grid() == pytest.approx([0.1, 0.2, 0.3])
    with pytest.raises(ConfigError, match="too many values for a grid"):
        Space("lr", low=1e-5, high=1e-2).grid()


@pytest.mark.parametrize(
    "sampler, pruner, sentence",
    [
        ("tpee", "median", "no sampler is called 'tpee'; did you mean 'tpe'?"),
        ("tpe", "mediann", "no pruner is called 'mediann'; did you mean 'median'?"),
    ],
)
def test_an_unknown_sampler_or_pruner_is_named(sampler: str, pruner: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_names(Part(sampler), Part(pruner))
    assert error.value.message == sentence


def test_samplers_and_pruners_are_made_by_name() -> None:
    pytest.importorskip("optuna")
    spaces = [Space("gamma", (0.9, 0.99))]
    for name in ("tpe", "random", "grid"):
        make_sampler(Part(name), spaces, 1, 0)
    for name in ("median", "percentile", "hyperband", "successive_halving", "none"):
        make_pruner(Part(name), 100, 1000)
    with pytest.raises(
        ConfigError, match="sampler tpe has no option 'n_startup_trial'; did you mean 'n_startup_trials'"
    ):
        make_sampler(Part("tpe", {"n_startup_trial": 3}), spaces, 1, 0)
    with pytest.raises(ConfigError, match="a grid takes no conditions"):
        make_sampler(Part("grid"), [Space("a", (1, 2), when={"b": (1,)})], 1, 0)


def test_a_sampler_whose_package_is_missing_is_refused_before_the_first_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whorl.sweep.strategy.find_spec", lambda name: None)
    check_names(Part("tpe"), Part("median"))
    with pytest.raises(WhorlError, match=r"sampler cmaes needs the package cmaes, .*pip install cmaes$"):
        check_names(Part("cmaes"), Part("median"))
    with pytest.raises(WhorlError, match=r"sampler gp needs the package scipy"):
        check_names(Part("gp"), Part("median"))
