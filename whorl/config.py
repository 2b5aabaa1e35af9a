"""Typed settings: tuned preset < file < arguments, other systems' key names, and errors that teach.

A run's settings are two flat frozen dataclasses, the loop's (`RunConfig`) and the algorithm's (`Config` in its file).
The string under a field is its documentation and its command-line help.
"""

import copy
import dataclasses
import inspect
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_type_hints

import yaml

from whorl.errors import ConfigError, nearest
from whorl.limits import check, coerce, describe, wrong
from whorl.registry import Part, options_of, registered, resolve


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
    actors: int = 0
    """processes that collect by themselves, each with its share of the lanes; 0: the loop waits for all lanes"""
    ray: str = ""
    """with actors or learners: run them on a Ray cluster: local starts one, auto is the one this machine belongs to,
    or an address; empty: as processes of this machine"""
    actors_on_gpu: bool = False
    """with actors: they act on GPUs, spread evenly over those there are"""
    max_lag: int = -1
    """with actors: how many versions old the weights of a rollout may be, older ones are dropped; 0: actors wait for
    each update; -1: as the algorithm bears it, any age or 0"""
    slabs: int = 0
    """with actors, without replay: rollouts of single actors that make up a batch, by whoever is first; 0: one for each
    actor"""
    actor_gradients: Literal["none", "apart", "averaged"] = "none"
    """with actors: each learns from its own rollout, and gradients travel in place of rows, to be applied as they come
    or averaged over all actors"""
    actor_restarts: int = 3
    """with actors or learners: failures in a row after which one is given up, and the run ends"""
    learners: int = 1
    """how many share each batch and average their gradients: this process, and replicas in others"""
    hold_policy: bool = False
    """act with the same weights until all lanes begin an episode (with workers: all of a worker's), so that a memory
    fits the weights that made it (offpcc); for a lane each, or episodes of one length"""
    threads: int = 1
    """threads of torch's own operations in this process"""
    learner_threads: int = 2
    """threads for learners that run at the same time on a CPU (actor and critic), from 1024 rows a minibatch on"""
    compile: bool = False
    """compile losses and the hot tensor code of native worlds (takes a C++ compiler and some seconds at the start)"""
    tf32: bool = True
    """on a GPU: matrix products on tensor cores, which read their factors with ten bits after the point"""
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
    screenshot_freq: int = 0
    """episodes between pictures in TensorBoard of what one ended with, where observations are pictures; 0: none"""
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
class MemoryConfig:
    """What nets remember of the rows before."""

    memory: Literal["none", "lstm", "gru", "attention"] = "none"
    """memory before the hidden layers, in policy and critics apart: recurrent, or gated attention over the episode"""
    memory_size: int = 64
    """units of that memory"""
    memory_layers: int = 1
    """layers of it"""
    memory_heads: int = 4
    """attention: heads, which share its units"""
    memory_window: int = 64
    """attention: rows of the episode that a row reads, itself included"""
    last_action: bool = False
    """the memory also reads the action before"""
    last_reward: bool = False
    """the memory also reads the reward before (with replay: clipped where rewards are)"""


@dataclass(frozen=True)
class NetworkConfig(MemoryConfig):
    """Settings of the nets and their optimizers, shared by the policy-gradient algorithms."""

    actor_hidden: tuple[int, ...] = (64, 64)
    """widths of the policy's hidden layers"""
    critic_hidden: tuple[int, ...] = (64, 64)
    """widths of the critic's hidden layers"""
    activation: Literal["elu", "relu", "tanh", "sigmoid", "silu", "gelu", "leaky_relu"] = "elu"
    """activation after each hidden layer"""
    chunk: int = 32
    """rows per chunk that a net with memory is unrolled over while learning"""
    mean_init: float = 0.0
    """the policy's mean action at the start, in canonical [-1, 1] (continuous actions)"""
    log_std_init: float = 0.0
    """the policy's log standard deviation at the start (continuous actions)"""
    log_std_bound: tuple[float, float] = (-20.0, 2.0)
    """bounds of the log standard deviation"""
    encoder: Part = Part("auto")
    """what turns an observation tree into a vector: auto (images by convolutions, the rest as it is), flat, images, a
    registered name or an import path, with options"""
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


@dataclass(frozen=True)
class ReplayConfig(MemoryConfig):
    """Settings of replay, nets and optimizers, shared by the algorithms that learn from a ring."""

    unused: ClassVar[tuple[str, ...]] = ()
    """those of these settings that an algorithm makes no use of"""
    gamma: float = 0.99
    """discount per step"""
    batch_size: int = 256
    """rows per update; with memory: sequences"""
    capacity: int = 1_000_000
    """rows of the replay ring, over all lanes"""
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"
    """where the ring lies: auto is beside the learner; cpu is the host, from where batches go through pinned memory"""
    shards: int = 0
    """processes that hold the ring, each with the rows of its share of the lanes, and draw while the learner learns; 0:
    it lies beside the learner"""
    learn_after: int = 1_000
    """environment steps before the first update"""
    random_steps: int = 10_000
    """first environment steps, which are taken with uniformly random actions"""
    ratio: float = 1.0
    """updates per environment step, fractions included (0.25: one update every four steps; 20: twenty a step)"""
    n_step: int = 1
    """rows folded into one transition; returns never cross an episode's end"""
    prioritized: bool = False
    """draw rows by their last error instead of evenly"""
    priority_alpha: float = 0.6
    """how much priorities count: 0 not at all, 1 in proportion"""
    priority_beta: float = 0.4
    """how much of the bias the weights take back at the start; grows linearly and stops at 1"""
    priority_beta_steps: int = 1_000_000
    """environment steps until it is 1; 0: it stays"""
    priority_clip: tuple[float, float] = (0.0, math.inf)
    """bounds of the errors that become priorities (Advanced-SAC: 0.01 and 1)"""
    priority_on_add: bool = False
    """compute the priorities of new rows when they are added, instead of giving them the largest one seen"""
    priority_eta: float = 0.9
    """of a sequence's errors: eta * max + (1 - eta) * mean (Kapturowski et al. 2019)"""
    sequence: int = 40
    """with memory: rows of a sequence that are learned from"""
    burn_in: int = 0
    """with memory: rows before those that only bring the memory up to date, without gradient"""
    stride: int = 20
    """with memory: rows from one sequence's start to the next, and between stored states; divides rollout_steps"""
    stored_memory: bool = True
    """with memory: sequences open from the state that acting left there; false: from an empty one"""
    refresh_memory: bool = False
    """with memory: what learning makes of a stored state replaces it (Advanced-SAC)"""
    whole_episodes: bool = False
    """with memory: sequences begin where episodes do and end with them, after `sequence` rows at most"""
    target_memory: bool = True
    """with memory: targets have a copy of it that follows slowly, as all else; false: they read the newest one"""
    tau: float = 0.005
    """share of the online nets that is mixed into the targets"""
    target_every: int = 1
    """updates between moves of the targets"""
    activation: Literal["elu", "relu", "tanh", "sigmoid", "silu", "gelu", "leaky_relu"] = "relu"
    """activation after each hidden layer"""
    encoder: Part = Part("auto")
    """what turns an observation tree into a vector: auto (images by convolutions, the rest as it is), flat, images, a
    registered name or an import path, with options"""
    augment: int = 0
    """shift images at random by up to so many pixels when they are learned from (DrQ: 4); 0: never"""
    optimizer: Part = Part("Adam")
    """the optimizer of all nets; a name out of torch.optim or an import path, with options"""
    adam_eps: float = 1e-8
    """epsilon of the optimizer"""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """constant, or linear to zero over the budget"""
    max_grad_norm: float = 0.0
    """gradients of each net are scaled down to this norm; 0: never"""
    weight_decay: float = 0.0
    """weight decay of the critics and the actor"""
    reward_scale: float = 1.0
    """rewards are multiplied by it when they are learned from"""
    clip_reward: bool = False
    """clip rewards to reward_clip_range before they are stored; the returns that are reported stay whole"""
    reward_clip_range: float = 1.0
    """where rewards are clipped"""
    normalize_obs: bool = False
    """normalise float observations by running statistics"""
    clip_obs: bool = False
    """clip normalised observations to obs_clip_range"""
    obs_clip_range: float = 10.0
    """where observations are clipped"""

    @property
    def stores_memory(self) -> bool:
        """Whether sequences open from the memory that acting had there."""
        return self.memory != "none" and self.stored_memory and not self.whole_episodes


@dataclass(frozen=True)
class ActorCriticConfig(ReplayConfig):
    """Settings of replayed agents that have a policy and critics of its actions."""

    actor_hidden: tuple[int, ...] = (256, 256)
    """widths of the policy's hidden layers"""
    critic_hidden: tuple[int, ...] = (256, 256)
    """widths of each critic's hidden layers"""
    actor_network: Part = Part("mlp")
    """the policy's torso: mlp, residual (SimBa), a registered name, an import path, or a list of layers"""
    critic_network: Part = Part("mlp")
    """each critic's torso: mlp (options layer_norm, dropout), residual, or as above"""
    noisy: bool = False
    """explore by noisy layers in the policy (Fortunato et al. 2018): factorised, quiet in evaluation"""
    share_memory: bool = False
    """with memory: one for all nets, which the critics train; false: one for each"""
    actor_lr: float = 3e-4
    """the actor's learning rate"""
    critic_lr: float = 3e-4
    """the critics' learning rate"""
    q_regularization: float = 0.0
    """weight of the mean squared Q value, added to the critics' loss"""


@dataclass(frozen=True)
class ChoiceConfig:
    """Settings of nets that tell the value of every choice, and of how they explore."""

    hidden: tuple[int, ...] = (512,)
    """widths of the hidden layers behind the encoder, of each of the two streams where they duel"""
    activation: Literal["elu", "relu", "tanh", "sigmoid", "silu", "gelu", "leaky_relu"] = "relu"
    """activation after each hidden layer"""
    layer_norm: bool = False
    """normalise features and each hidden layer before its activation"""
    encoder: Part = Part("auto")
    """what turns an observation tree into a vector: auto (images by convolutions, the rest as it is), flat, images, a
    registered name or an import path, with options"""
    dueling: bool = False
    """two streams, for the state's value and the choices' advantages (Wang et al. 2016)"""
    noisy: bool = False
    """noisy layers behind the encoder (Fortunato et al. 2018): factorised, quiet in evaluation"""
    noisy_sigma: float = 0.5
    """how strong their noise is at the start"""
    exploration: Literal["epsilon", "boltzmann", "none"] = "epsilon"
    """at random with a probability, by a softmax over values, or not at all (noisy layers do it alone)"""
    epsilon_start: float = 1.0
    """probability of a random choice at the start"""
    epsilon_final: float = 0.01
    """and in the end"""
    epsilon_share: float = 0.1
    """share of the budget after which the end is reached, linearly"""
    epsilon_ladder: float = 0.0
    """lane i of N explores with epsilon^(1 + ladder * i / (N - 1)) (Horgan et al. 2018: 7); 0: all alike"""
    eval_epsilon: float = 0.0
    """probability of a random choice in evaluation"""
    temperature: float = 1.0
    """of the softmax that explores at the start"""
    temperature_final: float = 0.1
    """and after `epsilon_share` of the budget"""


@dataclass(frozen=True)
class ValueConfig(ChoiceConfig, ReplayConfig):
    """Settings of replayed agents that take the choice of highest value."""

    batch_size: int = 32
    """rows per update"""
    ratio: float = 0.25
    """updates per environment step, fractions included (0.25: one update every four steps)"""
    random_steps: int = 0
    """first environment steps, which are taken with uniformly random actions"""
    tau: float = 1.0
    """share of the online net that is mixed into the target; 1: all of it"""
    target_every: int = 2_000
    """updates between moves of the target"""
    lr: float = 1e-4
    """learning rate"""
    max_grad_norm: float = 10.0
    """gradients are scaled down to this norm; 0: never"""
    double: bool = False
    """let the online net choose the action whose value the target net tells (van Hasselt et al. 2016)"""
    rescale_values: bool = False
    """learn h(return) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000 instead of the return (Pohlen et al. 2018)"""


@dataclass(frozen=True)
class MunchausenConfig(ValueConfig):
    """Settings of value agents that can add their policy's log-probability to the reward."""

    munchausen: float = 0.0
    """weight of the policy's own log-probability in the reward (Vieillard et al. 2020: 0.9); 0: none"""
    munchausen_temperature: float = 0.03
    """of the softmax over values, if so"""
    munchausen_low: float = -1.0
    """least log-probability that counts, times the temperature"""

    def __post_init__(self) -> None:
        if self.munchausen and self.double:
            raise ConfigError(
                "munchausen averages over all choices, so there is none for double to make; use one of them"
            )


@dataclass(frozen=True)
class NoiseConfig:
    """How deterministic policies explore."""

    noise: Literal["gaussian", "ou", "none"] = "gaussian"
    """what is added to actions: independent numbers, an Ornstein-Uhlenbeck process, nothing"""
    noise_scale: float | tuple[float, float] = 0.1
    """its deviation in canonical actions, [-1, 1]; two numbers are spread evenly over the lanes"""
    noise_theta: float = 0.15
    """how fast an Ornstein-Uhlenbeck process returns to zero"""
    noise_final: float = 1.0
    """share of the noise that is left at the end of the budget, reached linearly"""
    epsilon: float = 0.0
    """probability of a uniformly random action instead"""


@dataclass(frozen=True)
class EntropyConfig:
    """How soft policies are kept random."""

    alpha: float = 1.0
    """the temperature, weight of the entropy: what it starts from, or what it stays at"""
    tune_alpha: bool = True
    """tune the temperature towards the target entropy"""
    alpha_lr: float = 3e-4
    """its learning rate"""
    target_entropy: Literal["auto"] | float = "auto"
    """auto: entropy_per_dimension for each dimension (SAC, discrete actions: entropy_ratio * log(n) for n choices)"""
    entropy_per_dimension: float = -1.0
    """the target for each dimension of the canonical action in [-1, 1]"""
    log_std_bound: tuple[float, float] = (-20.0, 2.0)
    """bounds of the policy's log standard deviation"""

    def target(self, size: int) -> float:
        """The target entropy of `size` continuous dimensions."""
        return (
            self.entropy_per_dimension * size if self.target_entropy == "auto" else float(self.target_entropy)
        )


ALIASES = {
    "random_seed": "seed",
    "n_workers": "lanes",
    "n_envs": "lanes",
    "num_actors": "actors",
    "num_workers": "actors",
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
    "offline_buffer_capacity": "capacity",
    "buffer_size": "capacity",
    "replay_buffer_size": "capacity",
    "update_after": "learn_after",
    "learning_starts": "learn_after",
    "max_random_rollout": "random_steps",
    "update_to_data": "ratio",
    "utd": "ratio",
    "temperature_lr": "alpha_lr",
    "update_starting_point": "learn_after",
    "use_per": "prioritized",
    "per": "prioritized",
    "q_reg_coeff": "q_regularization",
    "gradient_clip": "max_grad_norm",
    "target_noise_scale": "target_noise",
    "num_critics": "n_critics",
    "exploration_fraction": "epsilon_share",
    "exploration_initial_eps": "epsilon_start",
    "exploration_final_eps": "epsilon_final",
    "replay_capacity": "capacity",
    "min_replay_size": "learn_after",
    "exploration_epsilon_begin_value": "epsilon_start",
    "exploration_epsilon_end_value": "epsilon_final",
    "eval_exploration_epsilon": "eval_epsilon",
    "priority_exponent": "priority_alpha",
    "importance_sampling_exponent_begin_value": "priority_beta",
    "num_quantiles": "n_quantiles",
    "num_atoms": "n_atoms",
    "huber_param": "kappa",
    "tau_latent_dim": "n_cosines",
    "target_net_update_interval": "target_every",
    "per_alpha": "priority_alpha",
    "per_beta": "priority_beta",
    "per_beta_total_steps": "priority_beta_steps",
    "eps_final": "epsilon_final",
    "use_noisy": "noisy",
}
"""Other systems' words (CO-GYM's configuration tables first) for our fields."""

OFF_POLICY = {
    **dict.fromkeys(("capacity", "learn_after", "random_steps"), "off-policy algorithms"),
    **dict.fromkeys(("tau", "target_every"), "algorithms with target networks"),
    "noise_scale": "DDPG and TD3",
    **dict.fromkeys(("target_noise", "target_noise_clip"), "TD3"),
    "alpha_lr": "SAC and TQC",
    **dict.fromkeys(("n_critics", "n_drop_atoms"), "TQC"),
    "n_quantiles": "TQC and QR-DQN",
}
"""Settings that CO-GYM gives to all its off-policy algorithms, and whose they are."""

AUXILIARY = ("aux_every", "aux_epochs", "aux_batch_factor", "bc_coef")
"""Settings of PPG's auxiliary phase; CO-GYM gives them to PPO too, which makes no use of them."""

TWINS = {"n_critics": "ensemble_q_num", "ensemble_q_num": "n_critics"}
"""Settings that are one idea under two names, where an algorithm has one of them."""

MAY_CHANGE = (
    *("max_epochs", "total_steps", "total_episodes", "learner_device", "worker_device"),
    *("threads", "learner_threads", "eval", "eval_freq", "eval_episodes", "save_model"),
    *("model_checkpoint_freq", "keep_checkpoints", "log_freq", "tensorboard", "log_file", "quiet"),
    *("screenshot_freq", "ray", "actors_on_gpu", "actor_restarts", "learners"),
    *("use_wandb", "wandb_project", "wandb_entity", "wandb_mode"),
)
"""What a resumed run may change: how long, where and what is told, but nothing that its saved state depends on."""


@dataclass(frozen=True)
class Settings:
    """All settings of one run. Fields of both configs, and their aliases, are read as attributes."""

    algorithm: str
    env: str
    run: RunConfig
    algo: Any
    env_options: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name in ("run", "algo"):  # not there yet while a copy is being made
            raise AttributeError(name)
        name = ALIASES.get(name, name)
        for config in (self.run, self.algo):
            if name in {f.name for f in dataclasses.fields(config)}:
                return getattr(config, name)
        raise AttributeError(f"no setting is called {name!r}")

    def plain(self) -> dict[str, Any]:
        """Plain containers, as written to config.yaml."""
        merged = {**_plain_fields(self.run), **_plain_fields(self.algo)}
        options = copy.deepcopy(dict(self.env_options))
        return {"algorithm": self.algorithm, "env": self.env, "env_options": options, **merged}

    def replace(self, **changes: Any) -> "Settings":
        """The same settings with some values changed (names or aliases)."""
        return configure(self.algorithm, self.env, self.plain(), presets=False, changes=changes)


def algorithm_class(name: str) -> tuple[str, type, dict[str, Any]]:
    """Canonical name, agent class and preset of an algorithm, by its name in any case or its import path."""
    word = _word(name)
    users = {_word(key): (key, cls) for key, cls in registered("algorithm").items()}
    if word in users:
        key, cls = users[word]
        return key, cls, {}
    if "." in name:
        found = resolve("algorithm", name)
        if not hasattr(found, "Config"):
            raise ConfigError(
                f"{name!r} is no algorithm; derive a class with a Config from whorl.agent.Agent"
            )
        return name, found, {}  # type: ignore[return-value]
    presets = preset_names()
    if word not in presets:
        raise ConfigError(f"no algorithm is called {name!r}; {nearest(word, [*presets, *users])}")
    preset = load_preset(word)
    return word, resolve("algorithm", preset["rule"]), preset  # type: ignore[return-value]


def _word(name: str) -> str:
    return name.lower().replace("-", "_")


def algorithms() -> dict[str, str]:
    """Every algorithm's name with one line about it."""
    known = {name: load_preset(name)["about"] for name in preset_names()}
    users = {
        name: (inspect.getdoc(cls) or "").split("\n")[0] for name, cls in registered("algorithm").items()
    }
    return dict(sorted({**known, **users}.items()))


@cache
def preset_names() -> tuple[str, ...]:
    """The algorithm names that come with the package."""
    found = (item.name for item in resources.files("whorl.presets").iterdir())
    return tuple(sorted(name[:-5] for name in found if name.endswith(".yaml")))


@cache
def load_preset(name: str) -> dict[str, Any]:
    """What an algorithm name stands for: `rule`, `about`, `settings`, and `environments` with tuned settings.

    One that `inherits:` another starts from all of it.
    """
    found = read_yaml(
        (resources.files("whorl.presets") / f"{name}.yaml").read_text("utf-8"), f"preset {name}"
    )
    if "inherits" not in found:
        return found
    parent = load_preset(found["inherits"])
    tuned = parent["environments"] | (found.get("environments") or {})
    for env in parent["environments"]:
        tuned[env] = {**parent["environments"][env], **tuned[env]}
    settings = {**parent["settings"], **(found.get("settings") or {})}
    return {"rule": parent["rule"], **found, "settings": settings, "environments": tuned}


WRAPPED = "-wrapped"
"""ends the name of an environment that somebody put a wrapper around: it takes no other's tuned settings"""


def preset_layers(preset: Mapping[str, Any], env: str) -> list[dict[str, Any]]:
    """The settings of a preset for an environment: those for all, for names that it matches (`ALE/*`), for itself."""
    tuned = preset.get("environments") or {}
    named = {} if env.endswith(WRAPPED) else tuned
    families = [values for name, values in named.items() if "*" in name and fnmatchcase(env, name)]
    return [preset.get("settings") or {}, *families, tuned.get(env) or {}]


def configure(
    algorithm: str,
    env: str,
    arguments: Mapping[str, Any],
    files: Iterable[str | Path] = (),
    presets: bool = True,
    changes: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = MappingProxyType({}),
) -> Settings:
    """Merge tuned preset < files < arguments < changes into checked, typed settings.

    Args:
        options: what the environment was made with, which comes before a preset's `env_options`; None: it is what it
            is, and takes none of a preset's.
    """
    name, cls, preset = algorithm_class(algorithm)
    hints = settings_of(cls)
    layers: list[Mapping[str, Any]] = []
    if presets:
        found = preset_layers(preset, env)
        layers += found if options is not None else [_without(layer, "env_options") for layer in found]
    layers.append({"env_options": dict(options or {})})
    layers += [layer for path in files for layer in read_file(path)]
    merged: dict[str, Any] = {}
    for layer in [*layers, arguments, changes or {}]:
        merge(merged, layer, hints)
    for key, value in (("algorithm", name), ("env", env)):
        given = str(merged.pop(key, value))
        if _word(given) != _word(value):
            raise ConfigError(f"the settings name {key} {given!r}, but {value!r} was asked for")
    env_options = merged.pop("env_options", None)
    env_options = {} if env_options is None else env_options
    if not isinstance(env_options, Mapping) or not all(isinstance(key, str) for key in env_options):
        raise wrong("env_options", env_options, "a mapping of options to values")
    owners = borrowed(cls)
    for key in sorted(set(merged) - set(hints)):
        if key not in owners:
            if key in _unused(cls.Config):  # type: ignore[attr-defined]
                raise ConfigError(f"{name} makes no use of {key}; leave it out")
            raise unknown_setting(name, key, hints)
        own = f"; its own is {TWINS[key]}" if TWINS.get(key) in hints else ""
        warnings.warn(f"{key} is a setting of {owners[key]}; {name} makes no use of it{own}", stacklevel=2)
        del merged[key]
    run, algo = (build(config, merged) for config in (RunConfig, cls.Config))  # type: ignore[attr-defined]
    return Settings(name, env, run, algo, dict(env_options))


def settings_of(algorithm: type) -> dict[str, Any]:
    """What a run of an algorithm can be told, with types: the settings of the loop, and those it makes use of."""
    config = algorithm.Config  # type: ignore[attr-defined]
    found = fields_of(RunConfig, config)
    return {name: hint for name, hint in found.items() if name not in _unused(config)}


def borrowed(algorithm: type) -> dict[str, str]:
    """Settings of others that an algorithm takes, since one table serves several; and whose they are."""
    config = algorithm.Config  # type: ignore[attr-defined]
    if issubclass(config, ReplayConfig):
        return {**OFF_POLICY, "log_std_bound": "SAC and TQC"}
    return dict.fromkeys(AUXILIARY, "PPG")


def _unused(config: type) -> tuple[str, ...]:
    return getattr(config, "unused", ())


def _without(layer: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name != key}


def fields_of(*configs: type) -> dict[str, Any]:
    """The settings of config classes by name, with their types."""
    hints = {name: hint for config in configs for name, hint in get_type_hints(config).items()}
    return {f.name: hints[f.name] for config in configs for f in dataclasses.fields(config)}


def unknown_setting(algorithm: str, key: str, known: Iterable[str]) -> ConfigError:
    """The error for a setting that an algorithm does not have."""
    known = set(known)
    replay = {*OFF_POLICY, *TWINS, *fields_of(ActorCriticConfig, NoiseConfig, EntropyConfig)}
    if "capacity" not in known and key in replay:
        return ConfigError(
            f"{key!r} belongs to off-policy algorithms (SAC, TD3 and others); {algorithm} keeps no replay buffer, so "
            "leave it out"
        )
    if TWINS.get(key) in known:
        return ConfigError(f"{algorithm} has no setting {key!r}; did you mean {TWINS[key]!r}?")
    hint = nearest(key, [*known, *(alias for alias, ours in ALIASES.items() if ours in known)])
    if not hint.startswith("did"):
        hint = f"whorl train {algorithm} ENV --help lists those it has"
    return ConfigError(f"{algorithm} has no setting {key!r}; {hint}")


def canonical(key: str) -> str:
    """Our name of a setting, from an alias or with hyphens."""
    key = key.replace("-", "_")
    return ALIASES.get(key, key)


def merge(into: dict[str, Any], layer: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Put `layer` over `into`.

    Parts and `env_options` are overridden option by option, unless another class is named. Dotted keys such as
    `optimizer.weight_decay` change one entry, of what the same layer says where it says something.
    """
    for key, value in layer.items():
        if "." not in str(key):
            name = canonical(str(key))
            into[name] = _combined(into.get(name), value, name, hints.get(name) is Part)
    for key, value in layer.items():
        head, _, path = str(key).partition(".")
        if path:
            name = canonical(head)
            if name in hints and hints[name] is not Part:
                raise ConfigError(f"{key} names nothing: {name} is {describe(hints[name])}, without parts")
            into[name] = _override(into.get(name), path, value, name)


def _combined(old: Any, new: Any, name: str, part: bool) -> Any:
    if part:
        if not isinstance(new, (str, list, tuple, Mapping, Part)):
            raise wrong(name, new, describe(Part))
        new = _options(new) if isinstance(new, Mapping) else Part.of(new).plain()
    if not isinstance(new, Mapping) or not isinstance(old, Mapping):
        return dict(new) if isinstance(new, Mapping) else new
    if part and "class" in new and new["class"] != old.get("class"):
        return dict(new)
    return {**old, **new}


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """A part's mapping in one form: options beside `class`, and a list of layers named as such."""
    found = options_of(given)
    return {"class": "layers", **found} if "layers" in found else found


def _override(old: Any, path: str, new: Any, name: str) -> Any:
    """`old` with the entry at a dotted path changed; items of a list are named by number."""
    value = copy.deepcopy({} if old is None else old)
    node, words = value, path.split(".")
    try:
        for word, after in zip(words, [*words[1:], None]):
            index: Any = int(word) if isinstance(node, list) else word
            if after is None:
                node[index] = new
            elif isinstance(node, list):
                # A layer that is just a name gets room for options.
                node[index] = {"class": node[index]} if isinstance(node[index], str) else node[index]
                node = node[index]
            else:
                node = node.setdefault(index, {})
    except (ValueError, IndexError, AttributeError, TypeError):
        raise ConfigError(f"{name}.{path} names nothing in {old!r}") from None
    return value


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers: 1e-3 is one, although it has no dot."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(text: str, what: str) -> Any:
    """Plain values from YAML; `what` it is goes into the error."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # a date or a number that can't be is a ValueError
        raise ConfigError(f"{what} is not valid YAML: {' '.join(str(error).split())}") from None


def read_file(path: str | Path, seen: tuple[Path, ...] = ()) -> list[dict[str, Any]]:
    """The layers of a YAML file of settings: those it `inherits:`, from files beside it or presets; then its own."""
    path = Path(path)
    if not path.is_file():
        others = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        hint = f"; {nearest(path.name, others)}" if others else ""
        raise ConfigError(f"there is no settings file {str(path)!r}{hint}")
    if path.resolve() in seen:
        raise ConfigError(f"settings file {str(path)!r} inherits from itself")
    what = f"settings file {str(path)!r}"
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} can't be read: {error}") from None
    content = read_yaml(text, what) or {}
    if not isinstance(content, dict):
        raise ConfigError(f"{what} must hold a mapping of settings")
    parents = content.pop("inherits", None) or []
    names = parents if isinstance(parents, list) else [parents]
    inherited = [layer for name in names for layer in _inherited(str(name), path, seen)]
    return [*inherited, content]


def _inherited(name: str, child: Path, seen: tuple[Path, ...]) -> list[dict[str, Any]]:
    for candidate in (child.parent / name, child.parent / f"{name}.yaml"):
        if candidate.is_file():
            return read_file(candidate, (*seen, child.resolve()))
    algorithm, _, env = name.partition("/")
    if _word(algorithm) in preset_names():
        preset = load_preset(_word(algorithm))
        return preset_layers(preset, env)
    beside = [p.stem for p in child.parent.glob("*.yaml") if p != child]
    raise ConfigError(
        f"{str(child)!r} inherits from {name!r}, which is neither a file beside it nor a preset; "
        f"{nearest(name, [*beside, *preset_names()])}"
    )


def build(config: type, values: Mapping[str, Any]) -> Any:
    """One checked dataclass out of merged values; keys of the other classes are left alone."""
    hints = fields_of(config)
    found = {}
    for f in dataclasses.fields(config):
        if f.name in values:
            value, default = values[f.name], f.default
            if isinstance(value, Mapping) and isinstance(default, Part):
                value = {"class": default.name, **value}
            found[f.name] = checked = coerce(f.name, value, hints[f.name])
            check(f.name, checked, default)
    return config(**found)


def _plain_fields(config: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Part):
            return copy.deepcopy(value.plain())
        return list(value) if isinstance(value, tuple) else value

    names = [f.name for f in dataclasses.fields(config) if f.name not in _unused(type(config))]
    return {name: plain(getattr(config, name)) for name in names}
