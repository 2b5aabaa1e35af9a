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
        (
            "ppo",
            {"final_kl": 0.5},
            "final_kl has no effect while lr_schedule is constant; set lr_schedule to kl",
        ),
        ("dqn", {"noisy_sigma": 0.1}, "noisy_sigma has no effect while noisy is false; set noisy to true"),
        (
            "iqn",
            {"munchausen_low": -2.0},
            "munchausen_low has no effect while munchausen is 0.0; set munchausen to 0.9",
        ),
        ("td3", {"v_max": 50.0}, "v_max has no effect while n_atoms is 0; set n_atoms to 51"),
        (
            "sac",
            {"discrete_dqn_epsilon": 0.1},
            "discrete_dqn_epsilon has no effect while discrete_dqn_like is false; set discrete_dqn_like to true",
        ),
        ("sac", {"cql_actions": 5}, "cql_actions has no effect while cql_weight is 0.0; set cql_weight to 5"),
        (
            "agent57",
            {"policy_max_kl": 0.1},
            "policy_max_kl has no effect while policy_head is false; set policy_head to true",
        ),
        (
            "sac",
            {"demonstration_ratio": 0.2},
            "demonstration_ratio has no effect while demonstrations is not set; name a dataset as demonstrations",
        ),
        ("sac", {"offline_steps": 5}, "offline_steps has no effect while dataset is not set; name a dataset"),
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
