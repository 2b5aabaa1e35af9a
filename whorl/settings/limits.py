"""What the value of a setting may be: its type, its range, and the sentence that says so where it is neither."""

import math
import numbers
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from whorl.core.errors import ConfigError, nearest
from whorl.core.registry import Part

ABOVE_0 = math.ulp(0.0)
COUNT = 10**15
"""more than any run counts to, and still exact as a float"""

LIMITS: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    **dict.fromkeys(("num_envs", "n_eval_episodes", "n_epochs", "baseline_steps"), (1, 10**6)),
    "aux_epochs": (0, 10**6),
    **dict.fromkeys(("num_steps", "batch_size"), (1, 10**7)),
    **dict.fromkeys(("max_iterations", "eval_freq", "checkpoint_freq", "log_freq"), (1, COUNT)),
    **dict.fromkeys(
        ("reset_every", "chunk_length", "n_step", "target_update_interval", "policy_delay"), (1, COUNT)
    ),
    "buffer_size": (1, COUNT),
    **dict.fromkeys(("total_timesteps", "total_episodes", "keep_checkpoints", "learning_starts"), (0, COUNT)),
    "screenshot_freq": (0, COUNT),
    **dict.fromkeys(("random_steps", "priority_beta_steps", "renorm_warmup", "aux_every"), (0, COUNT)),
    **dict.fromkeys(("lookahead", "top_quantiles_to_drop"), (0, COUNT)),
    **dict.fromkeys(("threads", "learner_threads", "learners"), (1, 1000)),
    "workers": (-1, 1000),
    "actors": (0, 10_000),
    "shards": (0, 1_000),
    "trajectories_per_batch": (0, 10_000),
    "max_lag": (-1, 10**6),
    "actor_restarts": (0, 10**6),
    **dict.fromkeys(
        ("actor_hidden_sizes", "critic_hidden_sizes", "memory_size", "n_quantiles"), (1, 100_000)
    ),
    **dict.fromkeys(("memory_layers", "memory_heads"), (1, 100)),
    "memory_window": (1, 10**6),
    **dict.fromkeys(("sequence_length", "sequence_stride"), (1, 10**6)),
    "burn_in": (0, 10**6),
    **dict.fromkeys(("ensemble_q_num", "ensemble_q_sample", "n_critics"), (1, 1000)),
    **dict.fromkeys(
        ("hidden_sizes", "n_fractions", "n_target_fractions", "n_policy_fractions"), (1, 100_000)
    ),
    "n_cosines": (1, 100_000),
    "n_atoms": (2, 100_000),
    "augment": (0, 1000),
    "updates_per_step": (0, 10_000),
    **dict.fromkeys(("learning_rate", "actor_lr", "critic_lr", "alpha_lr", "aux_lr"), (0, 100)),
    "adam_eps": (1e-30, 1),
    **dict.fromkeys(
        ("gamma", "gae_lambda", "tau", "epsilon", "noise_final", "noise_theta", "final_kl"), (0, 1)
    ),
    "priority_eta": (0, 1),
    **dict.fromkeys(("rho_clip", "c_clip"), (0, 10**6)),
    **dict.fromkeys(("priority_alpha", "priority_beta", "renorm_momentum", "entropy_ratio"), (0, 1)),
    **dict.fromkeys(("ent_coef", "bc_coef", "alpha", "weight_decay", "q_regularization"), (0, 10**6)),
    **dict.fromkeys(
        ("exploration_initial_eps", "exploration_final_eps", "exploration_fraction", "eval_epsilon"), (0, 1)
    ),
    **dict.fromkeys(("noise_scale", "target_noise", "noisy_sigma", "epsilon_ladder"), (0, 10**6)),
    "munchausen": (0, 10**6),
    "munchausen_low": (-(10**6), 0),
    **dict.fromkeys(("munchausen_temperature", "temperature", "temperature_final"), (1e-6, 10**6)),
    "kappa": (1e-6, 10**6),
    **dict.fromkeys(("reward_scale", "aux_batch_factor"), (ABOVE_0, 10**6)),
    **dict.fromkeys(("mean_init", "target_entropy", "entropy_per_dimension"), (-(10**6), 10**6)),
    **dict.fromkeys(("v_min", "v_max"), (-(10**9), 10**9)),
    # The variance is exp(2 * log_std), in single precision.
    **dict.fromkeys(("log_std_init", "log_std_range"), (-40, 40)),
    # However far away a bound is, it makes sense.
    **dict.fromkeys(("max_grad_norm", "kl_cut", "target_noise_clip", "priority_clip"), (0, math.inf)),
    **dict.fromkeys(
        ("obs_clip_range", "reward_clip_range", "clip_range", "clip_range_vf"), (ABOVE_0, math.inf)
    ),
    "target_kl": (ABOVE_0, math.inf),
}
"""What a number may be, where not every number makes sense. None is infinite unless its default is."""

BOUNDS = ("log_std_range", "priority_clip")
"""Pairs of which the first number must be the smaller one."""

DEVICES = ("device", "env_device", "device")
"""Settings and flags that name a device."""


def coerce(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type that the field declares, or one sentence that says what it should have been."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        word = value.lower() if isinstance(value, str) else value
        if word not in options:
            raise ConfigError(f"{name} is {value!r}; {nearest(str(value), [str(o) for o in options])}")
        return word
    if origin in (tuple, list):
        return origin(_items(name, value, hint))
    if origin in (Union, types.UnionType):
        for option in options:
            try:
                return coerce(name, value, option)
            except ConfigError:
                continue
        raise wrong(name, value, describe(hint))
    if hint is Part:
        return Part.of(value)
    if hint in (int, float):
        return _number(name, value, hint)
    if hint in (bool, str, type(None)) and not isinstance(value, hint):
        raise wrong(name, value, describe(hint))
    return value


def _items(name: str, value: Any, hint: Any) -> list[Any]:
    options = get_args(hint)
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise wrong(name, value, describe(hint))
    values = list(value)
    kinds = (
        options if get_origin(hint) is tuple and options[-1] is not Ellipsis else options[:1] * len(values)
    )
    if len(kinds) != len(values):
        raise wrong(name, value, describe(hint))
    try:
        return [coerce(name, v, kind) for v, kind in zip(values, kinds)]
    except ConfigError:
        raise wrong(name, value, describe(hint)) from None


def describe(hint: Any) -> str:
    """What a setting of this type must be, in words."""
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a word",
        type(None): "none",
    }
    origin, options = get_origin(hint), get_args(hint)
    if hint is Part:
        return "a name, an import path, or a mapping with 'class'"
    if origin is Literal:
        return "one of " + ", ".join(str(option) for option in options)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(option) for option in options)
    if origin in (tuple, list):
        plural = words.get(options[0], str(options[0])).removeprefix("a ") + "s"
        return (
            f"a list of {plural}" if origin is list or options[-1] is Ellipsis else f"{len(options)} {plural}"
        )
    return words.get(hint, str(hint))


def _number(name: str, value: Any, hint: type) -> Any:
    kind, given = describe(hint), value
    if isinstance(value, str):  # from the command line, or quoted in a file
        try:
            value = int(value) if hint is int and not set(value.lower()) & set(".e") else float(value)
        except ValueError:
            raise wrong(name, given, kind) from None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong(name, given, kind)
    if hint is int and isinstance(value, numbers.Integral):
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        raise wrong(name, given, "a number that fits a float") from None
    if math.isnan(number) or (hint is int and not number.is_integer()):
        raise wrong(name, given, kind)
    return int(number) if hint is int else number


def check(name: str, value: Any, default: Any) -> None:
    """Raise where a value of the right type makes no sense for the setting or flag called `name`."""
    low, high = LIMITS.get(name, (-math.inf, math.inf))
    for number in _numbers(value):
        if not low <= number <= high:
            raise wrong(name, number, _interval(low, high))
        if abs(number) == math.inf and math.inf not in map(abs, _numbers(default)):
            raise wrong(name, number, "finite")
    if name in BOUNDS and isinstance(value, tuple) and not value[0] < value[1]:
        raise wrong(name, list(value), "two numbers, the smaller first")
    if name in DEVICES and not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise wrong(name, value, "auto, cpu, cuda or cuda:N")
    if name == "optimizer" and isinstance(value, Part) and "lr" in value.options:
        raise ConfigError("optimizer has an option 'lr'; learning rates are settings of their own")


def _numbers(value: Any) -> list[float]:
    values = value if isinstance(value, tuple) else (value,)
    return [number for number in values if isinstance(number, (int, float))]


def _interval(low: float, high: float) -> str:
    least = "above 0" if low == ABOVE_0 else f"at least {low:,}"
    if high == math.inf:
        return least
    return f"above 0 and at most {high:,}" if low == ABOVE_0 else f"from {low:,} to {high:,}"


def wrong(name: str, value: Any, wanted: str) -> ConfigError:
    """The error for a value that is not what is wanted."""
    return ConfigError(f"{name} is {value!r}; it must be {wanted}")
