"""Settings that families of algorithms share."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from whorl.core.errors import ConfigError
from whorl.core.registry import Part


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

    actor_hidden_sizes: tuple[int, ...] = (64, 64)
    """widths of the policy's hidden layers"""
    critic_hidden_sizes: tuple[int, ...] = (64, 64)
    """widths of the critic's hidden layers"""
    activation: Literal["elu", "relu", "tanh", "sigmoid", "silu", "gelu", "leaky_relu"] = "elu"
    """activation after each hidden layer"""
    chunk_length: int = 32
    """rows per chunk that a net with memory is unrolled over while learning"""
    mean_init: float = 0.0
    """the policy's mean action at the start, in canonical [-1, 1] (continuous actions)"""
    log_std_init: float = 0.0
    """the policy's log standard deviation at the start (continuous actions)"""
    log_std_range: tuple[float, float] = (-20.0, 2.0)
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

    off_policy: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ()
    """those of these settings that an algorithm makes no use of"""
    gamma: float = 0.99
    """discount per step"""
    batch_size: int = 256
    """rows per update; with memory: sequences"""
    buffer_size: int = 1_000_000
    """rows of the replay ring, over all environments"""
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"
    """where the ring lies: auto is beside the learner; cpu is the host, from where batches go through pinned memory"""
    shards: int = 0
    """processes that hold the ring, each with the rows of its share of the environments, and draw while the learner learns; 0:
    it lies beside the learner"""
    learning_starts: int = 1_000
    """environment steps before the first update"""
    random_steps: int = 10_000
    """first environment steps, which are taken with uniformly random actions"""
    updates_per_step: float = 1.0
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
    sequence_length: int = 40
    """with memory: rows of a sequence that are learned from"""
    burn_in: int = 0
    """with memory: rows before those that only bring the memory up to date, without gradient"""
    sequence_stride: int = 20
    """with memory: rows from one sequence's start to the next, and between stored states; divides num_steps"""
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
    target_update_interval: int = 1
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

    actor_hidden_sizes: tuple[int, ...] = (256, 256)
    """widths of the policy's hidden layers"""
    critic_hidden_sizes: tuple[int, ...] = (256, 256)
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

    hidden_sizes: tuple[int, ...] = (512,)
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
    exploration_initial_eps: float = 1.0
    """probability of a random choice at the start"""
    exploration_final_eps: float = 0.01
    """and in the end"""
    exploration_fraction: float = 0.1
    """share of the budget after which the end is reached, linearly"""
    epsilon_ladder: float = 0.0
    """environment i of N explores with epsilon^(1 + ladder * i / (N - 1)) (Horgan et al. 2018: 7); 0: all alike"""
    eval_epsilon: float = 0.0
    """probability of a random choice in evaluation"""
    temperature: float = 1.0
    """of the softmax that explores at the start"""
    temperature_final: float = 0.1
    """and after `exploration_fraction` of the budget"""


@dataclass(frozen=True)
class ValueConfig(ChoiceConfig, ReplayConfig):
    """Settings of replayed agents that take the choice of highest value."""

    batch_size: int = 32
    """rows per update"""
    updates_per_step: float = 0.25
    """updates per environment step, fractions included (0.25: one update every four steps)"""
    random_steps: int = 0
    """first environment steps, which are taken with uniformly random actions"""
    tau: float = 1.0
    """share of the online net that is mixed into the target; 1: all of it"""
    target_update_interval: int = 2_000
    """updates between moves of the target"""
    learning_rate: float = 1e-4
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
    """its deviation in canonical actions, [-1, 1]; two numbers are spread evenly over the environments"""
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
    log_std_range: tuple[float, float] = (-20.0, 2.0)
    """bounds of the policy's log standard deviation"""

    def target(self, size: int) -> float:
        """The target entropy of `size` continuous dimensions."""
        return (
            self.entropy_per_dimension * size if self.target_entropy == "auto" else float(self.target_entropy)
        )
