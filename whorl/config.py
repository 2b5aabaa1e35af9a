"""Typed settings: tuned preset < file < arguments, the seeds' own key names, and errors that teach.

A run's settings are two flat frozen dataclasses, the loop's (`RunConfig`) and the algorithm's (`Config` in its file).
The string under a field is its documentation and its command-line help.
"""

import dataclasses
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from whorl.errors import ConfigError, nearest
from whorl.registry import Part, registered, resolve


@dataclass(frozen=True)
class RunConfig:
    """Settings of the loop, the same for every algorithm."""

    seed: int = 1
    """seed of all random streams"""
    lanes: int = 32
    """copies of the environment that are stepped together"""
    rollout_steps: int = 512
    """steps per lane and rollout; one rollout and its updates are one epoch"""
    max_epochs: int = 60_000
    """stop after so many epochs"""
    total_steps: int = 0
    """stop after so many environment steps; 0: no such limit"""
    total_episodes: int = 0
    """stop after so many finished episodes; 0: no such limit"""
    learner_device: str = "auto"
    """where updates run: auto, cpu, cuda or cuda:N; auto takes a GPU where there is one"""
    worker_device: str = "cpu"
    """where the policy acts; worlds of our own are stepped there too"""
    workers: int = -1
    """processes that step the lanes; 0: none, step them here; -1: one per core for environments worth it"""
    acting: Literal["auto", "central", "workers"] = "auto"
    """who evaluates the policy: this process, or every worker on its own lanes; auto: the workers, if there are any"""
    threads: int = 1
    """threads of torch's own operations in this process"""
    learner_threads: int = 2
    """threads for learners that run at the same time on a CPU (actor and critic)"""
    compile: bool = False
    """compile the hot tensor code of native worlds (takes a C++ compiler and some seconds at the start)"""
    eval: bool = True
    """evaluate during training"""
    eval_freq: int = 50
    """epochs between evaluations"""
    eval_episodes: int = 3
    """episodes per evaluation, with the mean action"""
    save_model: bool = True
    """write checkpoints"""
    model_checkpoint_freq: int = 500
    """epochs between checkpoints; one is written at the end too"""
    keep_checkpoints: int = 5
    """how many of the newest checkpoints stay on disk (the best one always does); 0: all"""
    reset_every: int = 100_000
    """environments that can't be snapshotted start anew every so many steps, and are checkpointed only there"""
    load_model: bool = False
    """start from the weights, optimizers and normalisers of `load_checkpoint_dir`"""
    load_checkpoint_dir: str = ""
    """a checkpoint or run folder to start from"""
    runs: str = "runs"
    """folder in which run folders are made"""
    tag: str = ""
    """a word that is appended to the run folder's name"""
    log_freq: int = 1
    """epochs between rows of metrics"""
    tensorboard: bool = True
    """write TensorBoard events"""
    use_wandb: bool = False
    """log to Weights & Biases"""
    wandb_project: str = "whorl"
    """its project"""
    wandb_entity: str = ""
    """its entity; empty: your default one"""
    wandb_mode: Literal["online", "offline", "disabled"] = "online"
    """its mode"""
    log_file: bool = False
    """also write what the console says to log.txt"""
    quiet: bool = False
    """no progress display"""


@dataclass(frozen=True)
class NetworkConfig:
    """Settings of the nets and their optimizers, shared by the policy-gradient algorithms."""

    actor_hidden: tuple[int, ...] = (64, 64)
    """widths of the policy's hidden layers"""
    critic_hidden: tuple[int, ...] = (64, 64)
    """widths of the critic's hidden layers"""
    activation: str = "elu"
    """activation after each hidden layer"""
    memory: Literal["none", "lstm", "gru"] = "none"
    """recurrent memory before the hidden layers, in policy and critic apart"""
    memory_size: int = 64
    """units of that memory"""
    chunk: int = 32
    """rows per chunk that a recurrent net is unrolled over while learning"""
    log_std_init: float = 0.0
    """the policy's log standard deviation at the start (continuous actions)"""
    log_std_bound: tuple[float, float] = (-20.0, 2.0)
    """bounds of the log standard deviation"""
    encoder: Part = Part("flat")
    """what turns an observation tree into a vector; a registered name or an import path, with options"""
    actor_network: Part = Part("mlp")
    """the policy's torso: mlp, a registered name, an import path, or a list of layers"""
    critic_network: Part = Part("mlp")
    """the critic's torso, likewise"""
    optimizer: Part = Part("Adam")
    """the optimizer of both; a name out of torch.optim or an import path, with options"""
    adam_eps: float = 1e-5
    """epsilon of the optimizer"""
    actor_lr: float = 3e-4
    """the actor's learning rate"""
    critic_lr: float = 3e-4
    """the critic's learning rate"""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """constant, or linear to zero over the budget"""
    max_grad_norm: float = 1.5
    """gradients of each net are scaled down to this norm; 0: never"""
    normalize_obs: bool = True
    """normalise float observations by running statistics"""
    normalize_reward: bool = True
    """divide rewards by the deviation of the discounted return"""
    clip_obs: bool = False
    """clip normalised observations to obs_clip_range"""
    obs_clip_range: float = 10.0
    """where observations are clipped"""
    clip_reward: bool = False
    """clip scaled rewards to reward_clip_range"""
    reward_clip_range: float = 10.0
    """where rewards are clipped"""


ALIASES = {
    "random_seed": "seed",
    "n_workers": "lanes",
    "n_envs": "lanes",
    "device": "learner_device",
    "max_rollout": "rollout_steps",
    "n_steps": "rollout_steps",
    "critic_hidden_dims": "critic_hidden",
    "policy_hidden_dims": "actor_hidden",
    "activation_fc": "activation",
    "K_epochs": "epochs",
    "policy_clip_eps": "clip",
    "gae_lambda": "lam",
    "value_clip_eps": "value_clip",
    "aux_update_freq": "aux_every",
    "aux_batch_size_coef": "aux_batch_factor",
    "total_num_episodes": "total_episodes",
    "total_timesteps": "total_steps",
    "checkpoint_freq": "model_checkpoint_freq",
    "wandb": "use_wandb",
}
"""Other systems' words (seed 000's configuration tables first) for our fields."""


@dataclass(frozen=True)
class Settings:
    """All settings of one run. Fields of both configs, and their aliases, are read as attributes."""

    algorithm: str
    env: str
    run: RunConfig
    algo: Any
    env_options: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        name = ALIASES.get(name, name)
        for config in (self.run, self.algo):
            if name in {f.name for f in dataclasses.fields(config)}:
                return getattr(config, name)
        raise AttributeError(f"no setting is called {name!r}")

    def plain(self) -> dict[str, Any]:
        """Plain containers, as written to config.yaml."""
        merged = {**_plain_fields(self.run), **_plain_fields(self.algo)}
        return {"algorithm": self.algorithm, "env": self.env, "env_options": dict(self.env_options), **merged}

    def replace(self, **changes: Any) -> "Settings":
        """The same settings with some values changed (names or aliases)."""
        return configure(self.algorithm, self.env, {**self.plain(), **changes}, presets=False)


def algorithm_class(name: str) -> tuple[str, type, dict[str, Any]]:
    """Canonical name, agent class and preset of an algorithm, by its name in any case."""
    word = name.lower().replace("-", "_")
    users = {key.lower(): (key, cls) for key, cls in registered("algorithm").items()}
    if word in users:
        key, cls = users[word]
        return key, cls, {}
    presets = preset_names()
    if word not in presets:
        raise ConfigError(f"no algorithm is called {name!r}; {nearest(word, [*presets, *users])}")
    preset = load_preset(word)
    return word, resolve("algorithm", preset["rule"]), preset  # type: ignore[return-value]


@cache
def preset_names() -> tuple[str, ...]:
    """The algorithm names that come with the package."""
    found = (item.name for item in resources.files("whorl.presets").iterdir())
    return tuple(sorted(name[:-5] for name in found if name.endswith(".yaml")))


@cache
def load_preset(name: str) -> dict[str, Any]:
    """What an algorithm name stands for: `rule`, `about`, `settings`, and `environments` with tuned settings."""
    return yaml.safe_load((resources.files("whorl.presets") / f"{name}.yaml").read_text("utf-8"))


def configure(
    algorithm: str,
    env: str,
    arguments: Mapping[str, Any],
    files: Iterable[str | Path] = (),
    presets: bool = True,
) -> Settings:
    """Merge tuned preset < files < arguments into checked, typed settings."""
    name, cls, preset = algorithm_class(algorithm)
    layers: list[Mapping[str, Any]] = []
    if presets:
        layers += [preset.get("settings") or {}, (preset.get("environments") or {}).get(env) or {}]
    layers += [read_file(path) for path in files]
    layers.append(arguments)
    classes = (RunConfig, cls.Config)  # type: ignore[attr-defined]
    merged: dict[str, Any] = {}
    for layer in layers:
        merge(merged, expand(layer))
    for key, value in (("algorithm", name), ("env", env)):
        given = merged.pop(key, value)
        if str(given).lower() != value.lower():
            raise ConfigError(f"the settings name {key} {given!r}, but {value!r} was asked for")
    env_options = merged.pop("env_options", {})
    run, algo = (build(config, merged) for config in classes)
    unknown = set(merged) - {f.name for config in classes for f in dataclasses.fields(config)}
    if unknown:
        key = sorted(unknown)[0]
        words = [f.name for config in classes for f in dataclasses.fields(config)]
        usable = [*words, *(alias for alias, ours in ALIASES.items() if ours in words)]
        raise ConfigError(f"{name} has no setting {key!r}; {nearest(key, usable)}")
    return Settings(name, env, run, algo, env_options)


def expand(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve aliases and dotted keys: {'optimizer.weight_decay': 0.1} becomes a nested mapping."""
    result: dict[str, Any] = {}
    for key, value in layer.items():
        head, _, rest = str(key).partition(".")
        head = head.replace("-", "_")
        head = ALIASES.get(head, head)
        if rest:
            result[head] = {**result.get(head, {}), "..": {**result.get(head, {}).get("..", {}), rest: value}}
        else:
            result[head] = value
    return result


def merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Put `layer` over `into`; nested mappings are overridden field by field, unless they name another class."""
    for key, value in layer.items():
        old = into.get(key)
        if isinstance(value, Mapping) and ".." in value:
            value = _override(old, value[".."], key)
        elif isinstance(value, Mapping) and isinstance(old, (Mapping, Part)):
            before = old.plain() if isinstance(old, Part) else dict(old)
            same = "class" not in value or value["class"] == before.get("class")
            value = {**before, **value} if same else dict(value)
        into[key] = value


def _override(old: Any, changes: Mapping[str, Any], key: str) -> Any:
    """Change single entries of a nested setting by dotted path; list items by number."""
    value = old.plain() if isinstance(old, Part) else ({} if old is None else old)
    if isinstance(value, str):
        value = {"class": value}
    value = yaml.safe_load(yaml.safe_dump(value))  # a deep copy of plain containers
    for path, new in changes.items():
        node = value
        *parents, last = path.split(".")
        try:
            for word in parents:
                node = node[int(word)] if isinstance(node, list) else node.setdefault(word, {})
            node[int(last) if isinstance(node, list) else last] = new
        except (ValueError, IndexError, AttributeError, TypeError):
            raise ConfigError(f"{key}.{path} names nothing in {value!r}") from None
    return value


def read_file(path: str | Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A YAML file of settings; `inherits:` names files it builds on, beside it or among the presets."""
    path = Path(path)
    if not path.exists():
        others = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        hint = f"; {nearest(path.name, others)}" if others else ""
        raise ConfigError(f"no settings file {str(path)!r}{hint}")
    if path in seen:
        raise ConfigError(f"settings file {str(path)!r} inherits from itself")
    try:
        content = yaml.safe_load(path.read_text("utf-8")) or {}
    except yaml.YAMLError as error:
        raise ConfigError(
            f"settings file {str(path)!r} is not valid YAML: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(content, dict):
        raise ConfigError(f"settings file {str(path)!r} must hold a mapping of settings")
    parents = content.pop("inherits", [])
    result: dict[str, Any] = {}
    for parent in [parents] if isinstance(parents, str) else parents:
        merge(result, expand(_inherited(parent, path, seen)))
    merge(result, expand(content))
    return result


def _inherited(name: str, child: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    for candidate in (child.parent / name, child.parent / f"{name}.yaml"):
        if candidate.exists():
            return read_file(candidate, (*seen, child))
    if name.lower() in preset_names():
        return load_preset(name.lower()).get("settings") or {}
    beside = [p.stem for p in child.parent.glob("*.yaml") if p != child]
    raise ConfigError(f"{str(child)!r} inherits from {name!r}, which is neither a file beside it nor a preset; "
                      + nearest(name, [*beside, *preset_names()]))  # fmt: skip


def build(config: type, values: Mapping[str, Any]) -> Any:
    """One checked dataclass out of merged values; keys of the other classes are left alone."""
    hints = get_type_hints(config)
    found = {}
    for f in dataclasses.fields(config):
        if f.name in values:
            value = values[f.name]
            default = f.default
            if hints[f.name] is Part and isinstance(default, Part) and isinstance(value, Mapping):
                value = {"class": "layers" if "layers" in value else default.name, **value}
            found[f.name] = coerce(f.name, value, hints[f.name])
    return config(**found)


def coerce(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type that the field declares, or one sentence that says what it should have been."""
    origin = get_origin(hint)
    if origin is Literal:
        allowed = get_args(hint)
        word = value.lower() if isinstance(value, str) else value
        if word not in allowed:
            raise ConfigError(f"{name} is {value!r}; {nearest(str(value), [str(a) for a in allowed])}")
        return word
    if origin is tuple:
        item = get_args(hint)[0]
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise _wrong(name, value, f"a list of {item.__name__}s")
        found = tuple(coerce(name, v, item) for v in value)
        if get_args(hint)[-1] is not Ellipsis and len(found) != len(get_args(hint)):
            raise _wrong(name, value, f"{len(get_args(hint))} {item.__name__}s")
        return found
    if origin in (Union, types.UnionType):
        for option in get_args(hint):
            try:
                return coerce(name, value, option)
            except ConfigError:
                continue
        raise _wrong(name, value, str(hint))
    if hint is Part:
        return Part.of(value)
    if hint is bool:
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value
    if hint in (int, float):
        return _number(name, value, hint)
    if hint is str:
        if not isinstance(value, str):
            raise _wrong(name, value, "a word")
        return value
    return value


def _number(name: str, value: Any, hint: type) -> Any:
    kind = "a whole number" if hint is int else "a number"
    if isinstance(value, bool):
        raise _wrong(name, value, kind)
    if isinstance(value, str):  # YAML reads 1e6 as a word
        try:
            value = float(value)
        except ValueError:
            raise _wrong(name, value, kind) from None
    if not isinstance(value, (int, float)) or (isinstance(value, float) and math.isnan(value)):
        raise _wrong(name, value, kind)
    if hint is int:
        if value != int(value):
            raise _wrong(name, value, kind)
        return int(value)
    return float(value)


def _wrong(name: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{name} is {value!r}, a {type(value).__name__}; it must be {wanted}")


def _plain_fields(config: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Part):
            return value.plain()
        return list(value) if isinstance(value, tuple) else value

    return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
