"""Settings that several algorithms share, each family put together from the settings of the parts it uses."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.data.config import ReplayConfig
from whorl.nets.actor import ActorCriticNetworkConfig
from whorl.nets.memory import MemoryConfig
from whorl.nets.policy import NetworkConfig
from whorl.nets.preprocessor import PreprocessorConfig
from whorl.nets.q_network import QNetworkConfig
from whorl.settings.schema import (
    Count,
    Epsilon,
    Fraction,
    LearningRate,
    Limit,
    NonNegative,
    Optimizer,
    PositiveCount,
    PositiveLimit,
    Range,
    Schedule,
    Temperature,
)


@dataclass(frozen=True)
class OnPolicyConfig(NetworkConfig):
    """Settings of the policy-gradient algorithms, which learn from rollouts."""

    chunk_length: PositiveCount = 32
    """PPO and PPG with memory: rollouts are split into chunks of this many steps for learning"""
    optimizer: Optimizer = Part("Adam")
    """optimizer of actor and critic: a class of torch.optim or an import path, with options"""
    adam_eps: Epsilon = 1e-5
    """epsilon of the optimizer"""
    actor_lr: LearningRate = 7e-4
    """learning rate of the actor"""
    critic_lr: LearningRate = 7e-4
    """learning rate of the critic"""
    lr_schedule: Schedule = Part("constant")
    """learning rates over the run: constant, linear (to zero), cosine, warmup, or a registered function of progress"""
    max_grad_norm: Limit = 0.5
    """maximum norm of the gradients of each network; 0: no clipping"""
    normalize_obs: bool = True
    """normalise float observations by running statistics; one-hot and binary ones stay as they are"""
    normalize_reward: bool = True
    """divide rewards by the standard deviation of the discounted return"""
    clip_obs: bool = True
    """clip normalised observations to obs_clip_range"""
    obs_clip_range: PositiveLimit = 10.0
    """bound of clipped observations"""
    clip_reward: bool = False
    """clip scaled rewards to reward_clip_range"""
    reward_clip_range: PositiveLimit = 10.0
    """bound of clipped rewards"""


@dataclass(frozen=True)
class SharedTrunkConfig(OnPolicyConfig):
    """Settings of the policy-gradient algorithms whose actor and critic may share a network."""

    shared_trunk: bool = False
    """actor and critic share encoder, memory and hidden layers (those of the actor), and one optimizer at actor_lr
    minimises the sum of their losses; false: a network and an optimizer each"""
    value_coef: NonNegative = 0.5
    """with shared_trunk: weight of the critic's loss in the sum"""


@dataclass(frozen=True)
class OffPolicyConfig(MemoryConfig, PreprocessorConfig, ReplayConfig):
    """Settings of the algorithms that learn from a replay buffer."""

    off_policy: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ()
    """inherited settings that an algorithm does not use"""
    random_steps: Count = 1_000
    """environment steps at the start with uniformly random actions"""
    tau: Fraction = 0.005
    """coefficient of the soft update of the target networks; 1: copy"""
    target_update_interval: PositiveCount = 1
    """updates between updates of the target networks"""
    target_memory: bool = True
    """with memory: target networks have a memory of their own; false: they use the online networks' memory"""
    optimizer: Optimizer = Part("Adam")
    """optimizer of all networks: a class of torch.optim or an import path, with options"""
    adam_eps: Epsilon = 1e-8
    """epsilon of the optimizer"""
    lr_schedule: Schedule = Part("constant")
    """learning rates over the run: constant, linear (to zero), cosine, warmup, or a registered function of progress"""
    max_grad_norm: Limit = 0.0
    """maximum norm of the gradients of each network; 0: no clipping"""
    weight_decay: NonNegative = 0.0
    """weight decay of critics and actor"""


@dataclass(frozen=True)
class ActorCriticConfig(ActorCriticNetworkConfig, OffPolicyConfig):
    """Settings of the off-policy algorithms with an actor and critics."""

    actor_lr: LearningRate = 3e-4
    """learning rate of the actor"""
    critic_lr: LearningRate = 3e-4
    """learning rate of the critics"""
    q_regularization: NonNegative = 0.0
    """weight of the mean squared Q value in the critics' loss"""


@dataclass(frozen=True)
class ValueConfig(QNetworkConfig, OffPolicyConfig):
    """Settings of the off-policy algorithms that act greedily on Q values."""

    batch_size: Annotated[int, Range(1, 10**7)] = 64
    """transitions per update; with memory: sequences"""
    updates_per_step: Annotated[float, Range(0, 10_000)] = 0.5
    """updates per environment step (0.25: one update every four steps)"""
    n_step: PositiveCount = 3
    """steps of the n-step return; it never crosses the end of an episode"""
    random_steps: Count = 0
    """environment steps at the start with uniformly random actions"""
    tau: Fraction = 1.0
    """coefficient of the soft update of the target network; 1: copy"""
    target_update_interval: PositiveCount = 250
    """updates between updates of the target network (Stable-Baselines3's DQN counts environment steps)"""
    learning_rate: LearningRate = 7e-4
    """learning rate"""
    max_grad_norm: Limit = 10.0
    """maximum norm of the gradients; 0: no clipping"""
    double: bool = False
    """double Q-learning: the online network selects the action that the target network evaluates (van Hasselt et al.
    2016)"""
    rescale_values: bool = False
    """learn h(return) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000 instead of the return (Pohlen et al. 2018)"""


@dataclass(frozen=True)
class MunchausenConfig(ValueConfig):
    """Settings of the value-based algorithms that can add the policy's log-probability to the reward."""

    munchausen: NonNegative = 0.0
    """weight of the policy's log-probability in the reward (Vieillard et al. 2020: 0.9); 0: off"""
    munchausen_temperature: Temperature = 0.03
    """temperature of that policy, a softmax over Q values"""
    munchausen_low: Annotated[float, Range(-(10**6), 0)] = -1.0
    """lower bound of temperature * log-probability"""

    def __post_init__(self) -> None:
        if self.munchausen and self.double:
            raise ConfigError(
                "munchausen and double are both set, but munchausen averages over all actions and selects none; set one"
            )
