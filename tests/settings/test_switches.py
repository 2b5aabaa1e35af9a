"""Settings that have no effect, because another one is off, are told."""

import warnings
from typing import Any

import pytest

from whorl.settings.merge import configure


def told(algorithm: str, **settings: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        configure(algorithm, "X", settings)
    return [str(one.message) for one in found]


def test_what_belongs_to_a_setting_without_effect_is_told_too() -> None:
    found = told("sac", use_n_step_is=True, refresh_probabilities=True)
    names = [sentence.partition(" has no effect while n_step is 1")[0] for sentence in found]
    assert names == ["use_n_step_is", "refresh_probabilities"]


@pytest.mark.parametrize(
    ("algorithm", "settings", "sentence"),
    [
        (
            "dqn",
            {"per_alpha": 0.5},
            "priority_alpha has no effect while prioritized is false; set prioritized to true",
        ),
        (
            "rainbow",
            {"eps_final": 0.0},
            "exploration_final_eps has no effect while exploration is none; set exploration to epsilon",
        ),
        ("sac", {"memory_size": 17}, "memory_size has no effect while memory is none; set memory to lstm, "),
        (
            "rsac",
            {"memory_heads": 2},
            "memory_heads has no effect while memory is lstm; set memory to attention",
        ),
        (
            "rsac",
            {"memory_gate": "output"},
            "memory_gate has no effect while memory is lstm; set memory to attention",
        ),
        (
            "ppo",
            {"memory_positions": "rotary"},
            "memory_positions has no effect while memory is none; set memory to attention",
        ),
        ("td3", {"noise_theta": 0.5}, "noise_theta has no effect while noise is gaussian; set noise to ou"),
        (
            "sac",
            {"action_noise_theta": 0.15},
            "action_noise_theta has no effect while action_noise is 0.0; set action_noise to more than 0",
        ),
        ("dqn", {"her_goals": 3}, "her_goals has no effect while her is none; set her to future"),
        (
            "ppo",
            {"wandb_project": "mine"},
            "wandb_project has no effect while use_wandb is false; set use_wandb to true",
        ),
        (
            "sac",
            {"use_n_step_is": True},
            "use_n_step_is has no effect while n_step is 1; set n_step to more than 1",
        ),
        (
            "sac",
            {"v_lambda": 0.99, "n_step": 10},
            "v_lambda has no effect while use_n_step_is is false; set use_n_step_is to true",
        ),
    ],
)
def test_a_setting_without_effect_is_told(algorithm: str, settings: dict[str, Any], sentence: str) -> None:
    (found,) = told(algorithm, **settings)
    assert found.startswith(sentence)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("dqn", {"per_alpha": 0.5, "use_per": True}),
        ("dqn", {"per_alpha": 0.5, "use_per": False}),  # switched off on purpose
        ("dqn", {"per_alpha": 0.6}),  # the default, from a table that was copied whole
        ("prioritized_dqn", {"per_alpha": 0.5}),
        ("rsac", {"memory_size": 17}),
        ("sac", {"use_n_step_is": True, "n_step": 3}),
        ("sac", {"use_n_step_is": True, "n_step": 3, "v_lambda": 0.9}),
        ("sac", {"use_replay_buffer": False, "n_step": 3, "v_lambda": 0.9}),
        ("rainbow", {"exploration": "epsilon", "eps_final": 0.0}),
        ("ppo", {"wandb_group": "five"}),  # which --seeds sets
    ],
)
def test_a_setting_with_effect_or_at_its_default_is_not(algorithm: str, settings: dict[str, Any]) -> None:
    assert told(algorithm, **settings) == []
