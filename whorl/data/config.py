"""Settings of the replay buffer."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from whorl.settings.schema import LARGE, Count, Fraction, Ordered, PositiveCount, PositiveLimit, Range


@dataclass(frozen=True)
class ReplayConfig:
    """Settings of the replay buffer, for algorithms that learn from one."""

    off_policy: ClassVar[bool] = True
    gamma: Fraction = 0.99
    """discount factor"""
    batch_size: Annotated[int, Range(1, 10**7)] = 256
    """transitions per update; with memory: sequences"""
    buffer_size: PositiveCount = 1_000_000
    """transitions in the replay buffer, over all environments"""
    buffer_size_per_env: Count = 0
    """transitions in the replay buffer for each environment, which then sets buffer_size; 0: buffer_size as given"""
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"
    """device of the replay buffer; auto: the learner's; cpu: host memory, batches are copied through pinned memory"""
    compress: bool = False
    """keep images in the replay buffer compressed (zlib, lossless) in host memory: about a tenth of the bytes on Atari,
    at the cost of compressing each frame once and decompressing those of each batch"""
    shards: Annotated[int, Range(0, 1_000)] = 0
    """processes that hold the replay buffer, each for its share of the environments, and sample while the learner
    updates; 0: it is kept in the learner's process"""
    learning_starts: Count = 1_000
    """environment steps before the first update"""
    updates_per_step: Annotated[float, Range(0, 10_000)] = 1.0
    """updates per environment step (0.25: one update every four steps; 20: twenty updates per step)"""
    updates_per_iteration: Annotated[float, Range(0, 10_000)] = 0.0
    """updates per iteration, that is per num_steps steps of all environments, whatever their number, which then sets
    updates_per_step; 0: updates_per_step as given"""
    n_step: PositiveCount = 1
    """steps of the n-step return; it never crosses the end of an episode"""
    prioritized: bool = False
    """sample in proportion to the last TD error instead of uniformly (Schaul et al. 2016)"""
    priority_alpha: Fraction = 0.6
    """exponent of the priorities: 0 is uniform sampling, 1 proportional"""
    priority_beta: Fraction = 0.4
    """exponent of the importance weights at the start; grows linearly to 1"""
    priority_beta_steps: Annotated[int, Range(-1, LARGE)] = -1
    """environment steps until priority_beta is 1; -1: the whole run; 0: it stays constant"""
    priority_clip: Annotated[tuple[float, float], Range(0, math.inf), Ordered()] = (0.0, math.inf)
    """bounds of the TD errors that become priorities (Advanced-SAC: 0.01 and 1)"""
    priority_on_add: bool = False
    """compute the TD errors of new transitions when they are added, instead of using the largest priority so far"""
    priority_eta: Fraction = 0.9
    """priority of a sequence: eta * max + (1 - eta) * mean of its TD errors (Kapturowski et al. 2019)"""
    her: Literal["none", "future", "final", "episode"] = "none"
    """hindsight experience replay in environments with goals (Andrychowicz et al. 2017): learn also as if a goal had
    been desired that was achieved later in the episode (future), at its end (final) or anywhere in it (episode)"""
    her_goals: Annotated[int, Range(1, 10**6)] = 4
    """with her: samples with a goal in hindsight for each sample with its own goal (4: 80 % of a batch)"""
    sequence_length: Annotated[int, Range(1, 10**6)] = 40
    """with memory: steps of a sequence that are learned from"""
    burn_in: Annotated[int, Range(0, 10**6)] = 0
    """with memory: steps before the sequence that only update the memory, without gradient"""
    sequence_stride: Annotated[int, Range(1, 10**6)] = 20
    """with memory: steps between the starts of sequences, and between stored states; divides num_steps"""
    stored_memory: bool = True
    """with memory: sequences start from the state stored while acting; false: from a zero state"""
    refresh_memory: bool = False
    """with memory: learning replaces stored states by those of the current networks (Advanced-SAC)"""
    whole_episodes: bool = False
    """with memory: sequences start and end with episodes, after sequence_length steps at most"""
    demonstrations: str = ""
    """dataset, a Minari id or a folder, from which a share of every batch is drawn (RLPD, Ball et al. 2023); the rest
    comes from the replay buffer"""
    demonstration_ratio: Fraction = 0.5
    """with demonstrations: their share of each batch"""
    clip_reward: bool = False
    """clip rewards to reward_clip_range before they are stored; reported returns are not clipped"""
    reward_clip_range: PositiveLimit = 1.0
    """bound of clipped rewards"""

    @property
    def recurrent(self) -> bool:
        """Whether samples are sequences: the networks have a memory (`MemoryConfig`)."""
        return getattr(self, "memory", "none") != "none"

    @property
    def memory_inputs(self) -> tuple[str, ...]:
        """What the networks' memory reads besides the observation (`MemoryConfig`)."""
        return ()

    @property
    def needs_steps(self) -> bool:
        """Whether samples with n-step returns give their single steps, too (`CorrectionConfig`)."""
        corrected = getattr(self, "use_n_step_is", False) or not getattr(self, "use_replay_buffer", True)
        return self.n_step > 1 and corrected

    @property
    def refreshes_log_prob(self) -> bool:
        """Whether learning replaces stored log-probabilities (`CorrectionConfig`)."""
        return self.needs_steps and getattr(self, "refresh_probabilities", False)

    @property
    def stores_memory(self) -> bool:
        """Whether sequences start from the memory state stored while acting."""
        return self.recurrent and self.stored_memory and not self.whole_episodes
