"""Settings that another setting switches on: those that a user chose while it is off have no effect, which is told."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from whorl.core.registry import Part


def _on(value: Any) -> bool:
    return bool(value) and _plain(value) != "none"


def _is(*names: str) -> Callable[[Any], bool]:
    return lambda value: _plain(value) in names


_SWITCHES: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
    (
        "prioritized",
        _on,
        "set prioritized to true",
        "priority_alpha priority_beta priority_beta_steps priority_clip priority_on_add priority_eta",
    ),
    (
        "memory",
        _on,
        "set memory to lstm, gru, rnn or attention",
        "memory_size memory_layers burn_in sequence_length sequence_stride chunk_length stored_memory target_memory "
        "share_memory refresh_memory whole_episodes last_action last_reward",
    ),
    (
        "memory",
        _is("attention"),
        "set memory to attention",
        "memory_heads memory_window memory_positions memory_gate",
    ),
    ("her", _on, "set her to future", "her_goals"),
    ("n_step", lambda steps: steps > 1, "set n_step to more than 1", "use_n_step_is refresh_probabilities"),
    ("use_n_step_is", _on, "set use_n_step_is to true", "v_lambda v_rho v_c"),
    ("noise", _is("ou"), "set noise to ou", "noise_theta"),
    ("noise", _on, "set noise to gaussian or ou", "noise_scale noise_final"),
    ("action_noise", _on, "set action_noise to more than 0", "action_noise_theta"),
    (
        "exploration",
        _is("epsilon"),
        "set exploration to epsilon",
        "exploration_initial_eps exploration_final_eps epsilon_alpha",
    ),
    ("exploration", _on, "set exploration to epsilon", "exploration_fraction"),
    ("exploration", _is("boltzmann"), "set exploration to boltzmann", "temperature temperature_final"),
    ("normalize_obs", _on, "set normalize_obs to true", "obs_clip_range"),
    ("clip_reward", _on, "set clip_reward to true", "reward_clip_range"),
    ("lr_schedule", _is("kl"), "set lr_schedule to kl", "final_kl"),
    ("noisy", _on, "set noisy to true", "noisy_sigma"),
    ("munchausen", _on, "set munchausen to 0.9", "munchausen_temperature munchausen_low"),
    ("n_atoms", _on, "set n_atoms to 51", "v_min v_max"),
    ("discrete_dqn_like", _on, "set discrete_dqn_like to true", "discrete_dqn_epsilon"),
    ("cql_weight", _on, "set cql_weight to 5", "cql_actions cql_target_gap"),
    ("policy_head", _on, "set policy_head to true", "policy_max_kl"),
    ("demonstrations", _on, "name a dataset as demonstrations", "demonstration_ratio"),
    ("dataset", _on, "name a dataset", "offline_steps"),
    ("load_checkpoint_dir", _on, "name a run or a checkpoint as load_checkpoint_dir", "load_strict"),
    (
        "use_wandb",
        _on,
        "set use_wandb to true",
        "wandb_project wandb_entity wandb_mode wandb_tags wandb_job_type",
    ),
)
"""a setting, when it is on, how to switch it on, and the settings that have no effect while it is off"""
_IMPLIED = {"use_n_step_is": ("use_replay_buffer", False)}
"""settings that are on whatever their value, where another setting has this one"""


def without_effect(
    values: Mapping[str, Any], defaults: Mapping[str, Any], chosen: Collection[str]
) -> list[str]:
    """A sentence for each chosen setting that another one, which was not chosen, keeps from having an effect.

    Args:
        values: all settings of the run and the algorithm.
        defaults: their defaults; a setting that was chosen at its default is not mentioned.
        chosen: the names that the user set.
    """
    return [
        f"{name} has no effect while {switch} is {_shown(values[switch])}; {remedy}"
        for switch, is_on, remedy, names in _SWITCHES
        if switch in values and switch not in chosen and not is_on(values[switch])
        if switch not in _IMPLIED or values[_IMPLIED[switch][0]] != _IMPLIED[switch][1]
        for name in names.split()
        if name in chosen and name in values and values[name] != defaults[name]
    ]


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Part) else value


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(_plain(value)) or "not set"
