"""Random settings of random algorithms: they resolve or are refused in one sentence, and what resolves trains."""

import math
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import torch
import yaml

import whorl
from whorl.core.registry import Part
from whorl.run.prepare import prepare
from whorl.settings.merge import component_config, configure, settings_of
from whorl.settings.presets import algorithm_class, preset_names
from whorl.settings.schema import Choice, Range, bare, fields_of, rules_of

sys.path.append(str(Path(__file__).parent))
import cases
import spaces

NAMES = preset_names()
DISCRETE = ("CartPole-v1", "Taxi-v4", "RepeatFirst-v0", "Acrobot-v1")
CONTINUOUS = ("Pendulum-v1", "PendulumFull-v0", "MountainCarContinuous-v0")
CONTINUOUS_ONLY = ("ddpg", "ddpg_lillicrap", "rdpg", "td3", "rtd3", "crossq")
WORDS = (
    "",
    "none",
    "auto",
    "relu",
    "mean",
    "cpu",
    "cuda",
    "xyz",
    "1e3",
    "[1, 2]",
    "Adam",
    "mlp",
    "~",
    "true",
)
JUNK: tuple[Any, ...] = (
    None,
    True,
    "",
    "word",
    [],
    {},
    [1, "a"],
    {"class": 3},
    math.nan,
    math.inf,
    -1,
    0,
    10**30,
    0.5,
)
PARTS: dict[str, tuple[Any, ...]] = {
    "optimizer": (
        *("Adam", "AdamW", "SGD", "RMSprop", "Adamm", {"class": "AdamW", "weight_decay": 0.1}),
        *(
            {"class": "Adam", "betas": [0.5, 0.9]},
            {"class": "Adam", "bets": 1},
            {"class": "SGD", "momentum": 0.9},
        ),
    ),
    "network": (
        *(["Linear", "ReLU"], [{"class": "Linear", "out_features": 5}, "Tanh"], {"layers": []}, "lstm"),
        *(
            {"class": "residual", "width": 4},
            [{"class": "LayerNorm"}],
            [{"class": "Linear", "out_features": 4}],
        ),
    ),
    "head": ("linear", "linear", {"class": "layers", "layers": ["Linear", "Tanh"]}, "liner"),
    "exploration": ("epsilon", "epsilon", "boltzmann", "none", "noisy"),
    "encoder": ("auto", "auto", "images", "flat", {"class": "images", "channels": [4]}, "natur"),
    "schedule": ("constant", "linear", "cosine", "warmup", "kl", {"class": "warmup", "share": 0.1}, "step"),
    "loss": ("squared", "huber", {"class": "huber", "delta": 0.5}, "l1", "hubr"),
}

TRAINABLE: dict[str, Callable[[random.Random], Any]] = {
    "num_envs": lambda r: r.choice((1, 2, 3, 4)),
    "num_steps": lambda r: r.choice((1, 2, 5, 8, 16)),
    "total_timesteps": lambda r: r.choice((0, 40)),
    "max_iterations": lambda r: r.choice((1, 2, 3)),
    "total_episodes": lambda r: 0,
    "batch_size": lambda r: r.choice((1, 2, 8, 8)),
    "n_epochs": lambda r: r.choice((1, 2)),
    "buffer_size": lambda r: r.choice((7, 64, 500, 500)),
    "learning_starts": lambda r: r.choice((0, 1, 16)),
    "updates_per_step": lambda r: r.choice((0, 0.25, 1, 1.7)),
    "n_step": lambda r: r.choice((1, 1, 2, 3, 3, 50)),
    "hidden_sizes": lambda r: r.choice(((), (4,), (8, 3))),
    "actor_hidden_sizes": lambda r: r.choice(((), (4,), (8, 3))),
    "critic_hidden_sizes": lambda r: r.choice(((), (4,), (8, 3))),
    "advantage_hidden_sizes": lambda r: r.choice(((), (4,))),
    "ensemble_q_num": lambda r: r.choice((1, 2, 3)),
    "ensemble_q_sample": lambda r: r.choice((1, 1, 1, 2)),
    "sequence_length": lambda r: r.choice((1, 2, 4, 9)),
    "burn_in": lambda r: r.choice((0, 1, 3)),
    "sequence_stride": lambda r: r.choice((1, 2, 4)),
    "memory": lambda r: r.choice(("none", "none", "lstm", "gru", "rnn", "attention")),
    "memory_size": lambda r: r.choice((1, 4, 8)),
    "memory_layers": lambda r: r.choice((1, 2)),
    "memory_heads": lambda r: r.choice((1, 2, 3)),
    "memory_window": lambda r: r.choice((1, 2, 6)),
    "augment": lambda r: 0,
    "eval_freq": lambda r: r.choice((5, 10**6)),
    "n_eval_episodes": lambda r: 1,
    "checkpoint_freq": lambda r: r.choice((1, 20, 10**6)),
    "log_freq": lambda r: r.choice((1, 10**6)),
    "learners": lambda r: 1,
    "actors": lambda r: 0,
    "shards": lambda r: 0,
    "workers": lambda r: 0,
    "threads": lambda r: 1,
    "learner_threads": lambda r: r.choice((1, 2)),
}
"""what decides how long a run takes, or is process-wide: drawn small for runs that train"""
ALWAYS = {"quiet": True, "eval": False, "tensorboard": False}
NEVER = (
    "ray",
    "runs",
    "compile",
    "use_wandb",
    "wandb_mode",
    "device",
    "env_device",
    "hardware",
    "render",
    "threads",
    "loggers",
)
"""other machines, accounts, devices and compilers"""


def value_of(draw: random.Random, name: str, hint: Any) -> Any:
    """A value that the type of a setting allows, likelier at its bounds than inside."""
    kind = bare(hint)
    origin, options = get_origin(kind), get_args(kind)
    for rule in rules_of(hint):
        if isinstance(rule, Choice) and kind is not Part:
            return draw.choice((*rule.names, "xyz"))
    if origin is Literal:
        return draw.choice(options)
    if origin is Union:
        return value_of(draw, name, draw.choice(options))
    if origin in (tuple, list):
        many = options[-1] is Ellipsis or origin is list
        length = draw.choice((0, 1, 2, 3)) if many else len(options)
        return [number_of(draw, options[0], rules_of(hint)) for _ in range(length)]
    if kind is Part:
        known = next((word for word in PARTS if word in name), "loss" if "loss" in name else "network")
        return draw.choice(PARTS[known])
    if kind is bool:
        return draw.random() < 0.5
    return draw.choice(WORDS) if kind is str else number_of(draw, kind, rules_of(hint))


def number_of(draw: random.Random, kind: Any, rules: tuple[Any, ...]) -> Any:
    if kind is str:
        return draw.choice(WORDS)
    limits = next((rule for rule in rules if isinstance(rule, Range)), Range())
    low, high = max(limits.low, -1e6), min(limits.high, 1e6)
    found = draw.choice(
        (low, high, draw.uniform(low, high), math.exp(draw.uniform(-12, 12)), 1, 0, 0.5, 2, 32)
    )
    found = found if draw.random() < 0.03 else min(max(found, low), high)
    return round(found) if kind is int else found


def asked_settings(draw: random.Random, algorithm: str, trains: bool) -> dict[str, Any]:
    """Settings that a user might give: most are valid by themselves, few are of the wrong type or misspelt."""
    name, cls, _ = algorithm_class(algorithm)
    hints = settings_of(cls, name)
    own = [key for key in fields_of(cls.Config) if key in hints]  # type: ignore[attr-defined]
    found = {}
    for key in draw.sample(own, min(len(own), draw.randrange(9))) + draw.sample(
        list(hints), draw.randrange(5)
    ):
        if not (trains and (key in TRAINABLE or key in NEVER)):
            found[key] = value_of(draw, key, hints[key])
    if draw.random() < 0.15:
        found |= components(draw)
    if trains:
        return found | {key: pick(draw) for key, pick in TRAINABLE.items() if key in hints} | ALWAYS
    if draw.random() < 0.3 and found:
        key = draw.choice(list(found))
        found[key] = draw.choice(JUNK)
    if draw.random() < 0.15 and found:
        key = draw.choice(list(found))
        found[misspelling(draw, key)] = found.pop(key)
    return found


def components(draw: random.Random) -> dict[str, Any]:
    """Components, with a setting of one of them; some do not exist or do not fit the environment."""
    names = draw.choice((["rnd"], ["rnd"], ["byol"], ["rnd", "byol"], "rnd", ["rmd"]))
    owner = draw.choice(("rnd", "byol"))
    hints = fields_of(component_config(owner))
    key = draw.choice([name for name in hints if "sizes" not in name])
    dotted = (
        {f"{owner}.{key}": value_of(draw, key, hints[key])} if draw.random() < 0.7 and owner in names else {}
    )
    return {"components": names, **dotted}


def misspelling(draw: random.Random, word: str) -> str:
    at = draw.randrange(len(word))
    return word[:at] + draw.choice(("", "x", word[at].upper(), "-", "_", ".")) + word[at + 1 :]


def environment(draw: random.Random, algorithm: str) -> Any:
    """Mostly an environment whose actions the algorithm takes."""
    number, takes = draw.randrange(10**6), CONTINUOUS if algorithm in CONTINUOUS_ONLY else DISCRETE
    tiny = partial(
        spaces.Tiny, number, draw.choice(("any", "image", "image")), draw.choice(("any", takes[0]))
    )
    kinds = (*takes, *takes, draw.choice(DISCRETE + CONTINUOUS), tiny)
    return draw.choice(kinds)


def resolve(draw: random.Random, folder: Path) -> str:
    """Settings resolve, and the config.yaml of that run stands for exactly the same settings."""
    algorithm = draw.choice(NAMES)
    env = environment(draw, algorithm)
    settings = asked_settings(draw, algorithm, trains=False)
    _, found = prepare(env, algorithm, settings, (), None, {})
    saved = yaml.safe_load(yaml.safe_dump(found.plain(), sort_keys=False))
    again = configure(found.algorithm, found.env, saved, presets=False)
    for name in ("run", "algo", "env_options", "components"):
        before, after = getattr(found, name), getattr(again, name)
        assert before == after, f"{name} changes when it is saved: {before} becomes {after}"
    return "resolved"


def train(draw: random.Random, folder: Path) -> str:
    """A short run with those settings; what was learned is finite, and can be loaded."""
    algorithm = draw.choice(NAMES)
    env = environment(draw, algorithm)
    settings = asked_settings(draw, algorithm, trains=True)
    result = whorl.train(env, algorithm, settings, runs=str(folder))
    assert result.iterations >= 1, "training ended before its first iteration"
    if any(folder.glob("*/checkpoint_*")):
        policy = whorl.restore(result.run_dir)
        for name, value in policy.agent.state_dict().items():
            assert not torch.isnan(value).any(), f"{name} is not a number"
    return "trained"


if __name__ == "__main__":
    cases.main({"resolve": resolve, "train": train})
