"""Tiny worlds whose best action, value or policy is known exactly, each with what a typical mistake gives instead."""

import math

import torch
from torch import Tensor, nn

from whorl.core.spec import Array, Continuous, Discrete, Spec, to_env
from whorl.core.tree import Tree
from whorl.envs.vector import Step, VectorEnv

CHOICE = Discrete(2)
PUSH = Continuous((1,), (-1.0,), (1.0,))


class World(VectorEnv):
    """Episodes of all environments, restarted one step after their end.

    A world sets `columns`, its observation's size, and defines `begin`, `move` and `observe`.
    """

    columns = 1

    def __init__(self, action: Discrete | Continuous = CHOICE, num_envs: int = 8) -> None:
        self.spec = Spec(Array((self.columns,)), action, num_envs)
        self.index = torch.arange(num_envs)
        self.time = torch.zeros(num_envs, dtype=torch.long)
        """steps of this episode so far"""
        self.over = torch.zeros(num_envs, dtype=torch.bool)
        self.random = torch.Generator()

    def reset(self, seed: int) -> Tree:
        self.random.manual_seed(seed)
        self.over.zero_()
        self.time.zero_()
        self.begin(~self.over)
        return self.observe()

    def step(self, action: Tree) -> Step:
        reset, going = self.over, ~self.over
        reward, terminated, truncated = self.move(to_env(self.spec.action, action), going)
        self.time = torch.where(going, self.time + 1, 0)
        terminated, truncated = terminated & going, truncated & going
        self.over = terminated | truncated
        self.begin(reset)
        return Step(self.observe(), reward.float() * going, terminated, truncated, reset)

    def begin(self, where: Tensor) -> None:
        """Start episodes in the environments `where` [B]."""

    def move(self, action: Tensor, going: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reward, terminated and truncated [B]; what environments that are not `going` give is ignored."""
        raise NotImplementedError

    def observe(self) -> Tensor:
        """[B, columns]"""
        return torch.ones(self.spec.num_envs, 1)

    @property
    def always(self) -> Tensor:
        return torch.ones_like(self.over)

    @property
    def never(self) -> Tensor:
        return torch.zeros_like(self.over)


class Ends(World):
    """A reward of 1 per step. In state 0 a time limit ends episodes after 3 steps, in state 1 each step is the last.

    V(0) = 1 / (1 - gamma), less if a time limit counts as an end. V(1) = 1, more if values are bootstrapped from the
    end or returns go on into the next episode.
    """

    columns = 2

    def move(self, action: Tensor, going: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        last = self.index % 2 == 1
        return self.always, last, ~last & (self.time == 2)

    def observe(self) -> Tensor:
        return nn.functional.one_hot(self.index % 2, 2).float()


class Seam(World):
    """Episodes of one step in state 0 and state 1 by turns; what is refused in state 0 is paid tenfold in state 1.

    Choice 0 in state 0 is worth 1 and choice 1 nothing, a push (1 - a) / 2: V(0) = 1. What was not earned is paid
    in the *next* episode, where it counts for nothing, unless returns run across the seam.
    """

    columns = 2

    def __init__(self, action: Discrete | Continuous = CHOICE, num_envs: int = 8) -> None:
        super().__init__(action, num_envs)
        self.state, self.owed = torch.zeros(num_envs, dtype=torch.long), torch.zeros(num_envs)

    def begin(self, where: Tensor) -> None:
        self.state = torch.where(where, 1 - self.state, self.state)

    def move(self, action: Tensor, going: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(self.spec.action, Discrete):
            earned = (action == 0).float()
            owed = 10 * (1 - earned)
        else:
            push = action[..., 0]
            earned, owed = (1 - push) / 2, 5 * (1 + push)
        reward = torch.where(self.state == 0, earned, self.owed)
        self.owed = torch.where(going & (self.state == 0), owed, self.owed)
        return reward, self.always, self.never

    def observe(self) -> Tensor:
        return nn.functional.one_hot(self.state, 2).float()


class Lottery(World):
    """Every tenth ticket wins 10: V = 1. Sampling winners more often, without weights for it, gives up to 2.5."""

    def __init__(self, action: Discrete | Continuous = CHOICE, num_envs: int = 8) -> None:
        super().__init__(action, num_envs)
        self.tickets = self.index.clone()

    def move(self, action: Tensor, going: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.tickets += going
        return 10.0 * (self.tickets % 10 == 0), self.always, self.never


class Arms(World):
    """A bandit with given rewards. The soft optimum at temperature alpha is softmax(reward / alpha)."""

    def __init__(self, rewards: tuple[float, ...], num_envs: int = 8) -> None:
        super().__init__(Discrete(len(rewards)), num_envs)
        self.rewards = torch.tensor(rewards)

    def move(self, action: Tensor, going: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.rewards[action], self.always, self.never


class SoftPush(World):
    """A bandit whose reward is alpha times the log-density of tanh(N(mean, std)): that is its soft optimum.

    Its soft value is 0: alpha * H + E[reward] = 0.
    """

    def __init__(self, alpha: float, mean: float, std: float, num_envs: int = 8) -> None:
        super().__init__(PUSH, num_envs)
        self.alpha, self.mean, self.std = alpha, mean, std

    def move(self, action: Tensor, going: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        push = action[..., 0].clamp(-0.995, 0.995)
        score = (push.atanh() - self.mean) / self.std
        log_density = -0.5 * score.square() - math.log(self.std * math.sqrt(2 * math.pi))
        return self.alpha * (log_density - (1 - push.square()).log()), self.always, self.never


class Bounds(World):
    """Actions in [-0.5, 2], reward -(a - 1.5)²: best is 1.5, which a policy that keeps to [-1, 1] can't reach."""

    def __init__(self, num_envs: int = 8) -> None:
        super().__init__(Continuous((1,), (-0.5,), (2.0,)), num_envs)

    def move(self, action: Tensor, going: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return -(action[..., 0] - 1.5).square(), self.always, self.never


class Linear(World):
    """x' = x + u / 2, reward -(x² + u² / 4), x from [-1, 1], a time limit of 2 steps: best is u = -gain(gamma) * x."""

    def __init__(self, num_envs: int = 8) -> None:
        super().__init__(PUSH, num_envs)
        self.place = torch.zeros(num_envs)

    @staticmethod
    def gain(gamma: float) -> float:
        """By the Riccati equation p = 1 + gamma p - (gamma p / 2)² / (1 / 4 + gamma p / 4)."""
        p = 1.0
        for _ in range(1000):
            p = 1 + gamma * p - (gamma * p / 2) ** 2 / (1 / 4 + gamma * p / 4)
        return gamma * p / 2 / (1 / 4 + gamma * p / 4)

    def begin(self, where: Tensor) -> None:
        drawn = torch.rand(self.spec.num_envs, generator=self.random) * 2 - 1
        self.place = torch.where(where, drawn, self.place)

    def move(self, action: Tensor, going: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        push = action[..., 0]
        reward = -(self.place.square() + push.square() / 4)
        self.place = torch.where(going, self.place + push / 2, self.place)
        return reward, self.never, self.time == 1

    def observe(self) -> Tensor:
        return self.place.unsqueeze(-1)


class Cue(World):
    """The first of two observations shows -1 or 1; the answer to the second, which shows nothing, is to match it.

    A choice (0 for -1) earns 1 if it matches, a push 1 - (a - cue)². With `stale`, the cue of the episode *before* is
    to be matched, which nobody can who forgets at the start of an episode: a choice is worth 1/2, and the best push is
    0, worth 0.
    """

    columns = 2

    def __init__(
        self, action: Discrete | Continuous = CHOICE, stale: bool = False, num_envs: int = 8
    ) -> None:
        super().__init__(action, num_envs)
        self.stale = stale
        self.cue, self.before = torch.ones(num_envs), torch.ones(num_envs)

    def begin(self, where: Tensor) -> None:
        drawn = torch.randint(2, self.cue.shape, generator=self.random) * 2.0 - 1
        self.before = torch.where(where, self.cue, self.before)
        self.cue = torch.where(where, drawn, self.cue)

    def move(self, action: Tensor, going: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wanted = self.before if self.stale else self.cue
        if isinstance(self.spec.action, Discrete):
            earned = (action * 2 - 1 == wanted).float()
        else:
            earned = 1 - (action[..., 0] - wanted).square()
        asked = self.time == 1
        return earned * asked, asked, self.never

    def observe(self) -> Tensor:
        shown = torch.where(self.time == 0, self.cue, 0.0)
        return torch.stack((shown, (self.time == 1).float()), -1)
