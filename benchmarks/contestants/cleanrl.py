"""Loops in the shape of CleanRL's single files, written again from their published structure and hyper-parameters.

PPO has a SyncVectorEnv, rollouts in preallocated tensors, GAE by a loop over rows and shuffled minibatches; SAC and TD3
have one environment, a numpy replay buffer and one update after each step, DQN after every fourth. Evaluation and
logging are left out, the statistics that its PPO reads from each minibatch are kept.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F

from contestants import Clock, Work, drawn, make_env, per_second

PACKAGES: tuple[str, ...] = ()
PIXELS = True
WAYS = {"ppo": ("SyncVectorEnv", "AsyncVectorEnv"), "stepping": ("SyncVectorEnv", "AsyncVectorEnv")}
ABSENT = {
    "recurrent_ppo": "its LSTM script is for Atari only",
    "prioritized": "has it in its Rainbow script only",
}


def load() -> None:
    """torch and gymnasium, which are all that the script needs."""
    import gymnasium

    _ = gymnasium


def make_envs(work: Work, way: str) -> Any:
    import gymnasium

    chosen = getattr(gymnasium.vector, way or "SyncVectorEnv")
    return chosen([lambda: make_env(work.env) for _ in range(work.num_envs)])


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def nature() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        layer(3136, 512),
        nn.ReLU(),
    )


class Agent(nn.Module):
    """Actor and critic: apart for vectors, on one convolutional trunk for pixels."""

    def __init__(self, obs: tuple[int, ...], space: Any, hidden: tuple[int, int]) -> None:
        super().__init__()
        self.discrete = hasattr(space, "n")
        outputs = int(space.n) if self.discrete else int(np.prod(space.shape))
        a, b = hidden
        if len(obs) == 3:
            self.trunk: nn.Module = nature()
            self.actor: nn.Module = layer(512, outputs, 0.01)
            self.critic: nn.Module = layer(512, 1, 1.0)
        else:
            self.trunk = nn.Identity()
            self.actor, self.critic = (
                nn.Sequential(layer(obs[0], a), nn.Tanh(), layer(a, b), nn.Tanh(), layer(b, size, gain))
                for size, gain in ((outputs, 0.01), (1, 1.0))
            )
        self.scale = 255.0 if len(obs) == 3 else 1.0
        self.log_std = nn.Parameter(torch.zeros(1, outputs)) if not self.discrete else None

    def features(self, obs: Tensor) -> Tensor:
        return self.trunk(obs / self.scale) if self.scale != 1.0 else obs

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(self.features(obs)).flatten()

    def forward(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Action, log-probability, entropy and value."""
        features = self.features(obs)
        head = self.actor(features)
        if self.discrete:
            choice = Categorical(logits=head, validate_args=False)
            action = choice.sample() if action is None else action
            log_prob, entropy = choice.log_prob(action), choice.entropy()
        else:
            assert self.log_std is not None
            normal = Normal(head, self.log_std.expand_as(head).exp(), validate_args=False)
            action = normal.sample() if action is None else action
            log_prob, entropy = normal.log_prob(action).sum(1), normal.entropy().sum(1)
        return action, log_prob, entropy, self.critic(features).flatten()


def ppo(work: Work) -> float:
    envs = make_envs(work, work.way)
    shape, space = envs.single_observation_space.shape, envs.single_action_space
    agent = Agent(shape, space, work.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=work.learning_rate, eps=1e-5)
    rows, count = work.num_steps, work.num_envs
    stored_obs = torch.zeros(rows, count, *shape)
    actions = torch.zeros(rows, count, *space.shape)
    log_probs, rewards, ended, values = (torch.zeros(rows, count) for _ in range(4))
    clock, steps = Clock(work), 0
    obs = torch.as_tensor(envs.reset(seed=0)[0], dtype=torch.float32)
    done = torch.zeros(count)
    while steps < work.steps and not clock.over:
        for t in range(rows):
            steps += count
            stored_obs[t], ended[t] = obs, done
            with torch.no_grad():
                action, log_prob, _, value = agent(obs)
            actions[t], log_probs[t], values[t] = action, log_prob, value
            after, reward, terminated, truncated, _ = envs.step(action.numpy())
            rewards[t] = torch.as_tensor(reward, dtype=torch.float32)
            obs = torch.as_tensor(after, dtype=torch.float32)
            done = torch.as_tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
        with torch.no_grad():
            next_value, next_ended = agent.value(obs), done
            advantages, last = torch.zeros_like(rewards), torch.zeros(count)
            for t in reversed(range(rows)):
                going = 1.0 - next_ended
                delta = rewards[t] + 0.99 * next_value * going - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * going * last
                next_value, next_ended = values[t], ended[t]
            returns = advantages + values
        flat = [part.flatten(0, 1) for part in (stored_obs, actions, log_probs, advantages, returns, values)]
        order, clipped = np.arange(work.rollout), []
        for _ in range(work.n_epochs):
            np.random.shuffle(order)
            for start in range(0, work.rollout, work.batch_size):
                which = order[start : start + work.batch_size]
                b_obs, b_action, b_log_prob, b_advantage, b_return, b_value = (part[which] for part in flat)
                _, log_prob, entropy, value = agent(b_obs, b_action)
                log_ratio = log_prob - b_log_prob
                ratio = log_ratio.exp()
                with torch.no_grad():  # statistics of its logs
                    _ = -log_ratio.mean(), (ratio - 1 - log_ratio).mean()
                    clipped.append(((ratio - 1).abs() > 0.2).float().mean().item())
                b_advantage = (b_advantage - b_advantage.mean()) / (b_advantage.std() + 1e-8)
                surrogate = torch.max(-b_advantage * ratio, -b_advantage * ratio.clamp(0.8, 1.2)).mean()
                near = b_value + (value - b_value).clamp(-0.2, 0.2)
                error = torch.max((value - b_return) ** 2, (near - b_return) ** 2)
                loss = surrogate - 0.0 * entropy.mean() + 0.5 * 0.5 * error.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        clock.tick(steps)
    envs.close()
    return clock.rate()


class Buffer:
    """Transitions in numpy arrays, drawn uniformly."""

    def __init__(self, rows: int, obs: tuple[int, ...], action: tuple[int, ...], dtype: Any) -> None:
        kind = np.uint8 if len(obs) == 3 else np.float32
        self.obs, self.next_obs = np.zeros((rows, *obs), kind), np.zeros((rows, *obs), kind)
        self.action = np.zeros((rows, *action), dtype)
        self.reward, self.ended = np.zeros((2, rows), np.float32)
        self.rows, self.at, self.full = rows, 0, False

    def add(self, obs: Any, next_obs: Any, action: Any, reward: float, ended: bool) -> None:
        at = self.at
        self.obs[at], self.next_obs[at], self.action[at] = obs, next_obs, action
        self.reward[at], self.ended[at] = reward, ended
        self.at = (at + 1) % self.rows
        self.full |= self.at == 0

    def fill(self) -> "Buffer":
        """Noise everywhere."""
        for part in (self.obs, self.next_obs, self.action, self.reward):
            part[:] = np.random.default_rng(0).uniform(-1, 1, part.shape)
        self.full = True
        return self

    def sample(self, count: int) -> tuple[Tensor, ...]:
        which = np.random.randint(0, self.rows if self.full else self.at, count)
        parts = self.obs, self.next_obs, self.action, self.reward, self.ended
        return tuple(torch.as_tensor(part[which]) for part in parts)


def critic_net(obs: int, actions: int, hidden: tuple[int, int]) -> nn.Sequential:
    a, b = hidden
    return nn.Sequential(nn.Linear(obs + actions, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU(), nn.Linear(b, 1))


class Off:
    """SAC or TD3 for actions within bounds."""

    def __init__(self, algorithm: str, obs: int, actions: int, bound: float, hidden: tuple[int, int]) -> None:
        self.soft, self.bound, self.actions = algorithm == "sac", bound, actions
        a, b = hidden
        outputs = 2 * actions if self.soft else actions
        self.actor = nn.Sequential(
            nn.Linear(obs, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU(), nn.Linear(b, outputs)
        )
        self.critics = [critic_net(obs, actions, hidden) for _ in range(2)]
        self.targets = [critic_net(obs, actions, hidden) for _ in range(2)]
        self.target_actor = nn.Sequential(
            nn.Linear(obs, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU(), nn.Linear(b, outputs)
        )
        self.pairs = list(zip(self.targets, self.critics))
        if not self.soft:
            self.pairs.append((self.target_actor, self.actor))
        for target, net in self.pairs:
            target.load_state_dict(net.state_dict())
        self.critic_optimizer = torch.optim.Adam([p for c in self.critics for p in c.parameters()], lr=1e-3)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=1e-3)
        self.alpha, self.updates = 1.0, 0

    def drawn(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """SAC's action and its log-probability."""
        mean, log_std = self.actor(obs).chunk(2, -1)
        log_std = -5 + 0.5 * 7 * (log_std.tanh() + 1)
        normal = Normal(mean, log_std.exp(), validate_args=False)
        before = normal.rsample()
        squashed = before.tanh()
        log_prob = normal.log_prob(before) - (self.bound * (1 - squashed.pow(2)) + 1e-6).log()
        return squashed * self.bound, log_prob.sum(-1, keepdim=True)

    @torch.no_grad()
    def act(self, obs: Any) -> np.ndarray:
        row = torch.as_tensor(obs, dtype=torch.float32)[None]
        if self.soft:
            return self.drawn(row)[0][0].numpy()
        action = self.actor(row).tanh()[0] * self.bound
        noisy = action + torch.randn_like(action) * 0.1 * self.bound
        return noisy.clamp(-self.bound, self.bound).numpy()

    def value(self, net: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
        return net(torch.cat((obs, action), 1)).flatten()

    def update(self, batch: tuple[Tensor, ...]) -> None:
        """One of the critics and, for TD3 every second time, of the actor; SAC's actor twice every second time."""
        obs, next_obs, action, reward, ended = batch
        self.updates += 1
        with torch.no_grad():
            if self.soft:
                after, log_prob = self.drawn(next_obs)
            else:
                noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5) * self.bound
                after = self.target_actor(next_obs).tanh() * self.bound + noise
                after = after.clamp(-self.bound, self.bound)
            least = torch.min(*(self.value(target, next_obs, after) for target in self.targets))
            if self.soft:
                least = least - self.alpha * log_prob.flatten()
            goal = reward + (1 - ended) * 0.99 * least
        loss = sum(F.mse_loss(self.value(critic, obs, action), goal) for critic in self.critics)
        self.critic_optimizer.zero_grad()
        loss.backward()  # type: ignore[union-attr]
        self.critic_optimizer.step()
        if self.updates % 2 == 0:
            for _ in range(2 if self.soft else 1):
                self.update_actor(obs)
        if self.soft or self.updates % 2 == 0:
            for target, net in self.pairs:
                for old, new in zip(target.parameters(), net.parameters()):
                    old.data.copy_(0.005 * new.data + 0.995 * old.data)

    def update_actor(self, obs: Tensor) -> None:
        if not self.soft:
            loss = -self.value(self.critics[0], obs, self.actor(obs).tanh() * self.bound).mean()
        else:
            action, log_prob = self.drawn(obs)
            least = torch.min(*(self.value(critic, obs, action) for critic in self.critics))
            loss = (self.alpha * log_prob.flatten() - least).mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        if self.soft:
            with torch.no_grad():
                _, log_prob = self.drawn(obs)
            alpha_loss = (-self.log_alpha.exp() * (log_prob - self.actions)).mean()
            self.alpha_optimizer.zero_grad()
            alpha_loss.backward()
            self.alpha_optimizer.step()
            self.alpha = self.log_alpha.exp().item()


def off_policy(work: Work, algorithm: str, build: Callable[..., Off] = Off) -> float:
    env = make_env(work.env)
    space = env.action_space
    size, actions = env.observation_space.shape[0], space.shape[0]
    agent = build(algorithm, size, actions, float(space.high[0]), work.hidden)
    buffer = Buffer(work.steps, (size,), (actions,), np.float32)
    clock, obs = Clock(work, 0.4), env.reset(seed=0)[0]
    for step in range(1, work.steps + 1):
        action = space.sample() if step <= work.learning_starts else agent.act(obs)
        after, reward, terminated, truncated, _ = env.step(action)
        buffer.add(obs, after, action, float(reward), terminated)
        obs = env.reset()[0] if terminated or truncated else after
        if step > work.learning_starts:
            agent.update(buffer.sample(work.batch_size))
        clock.tick(step)
        if clock.over:
            break
    return clock.rate()


def sac(work: Work) -> float:
    return off_policy(work, "sac")


def td3(work: Work) -> float:
    return off_policy(work, "td3")


def dqn(work: Work) -> float:
    """One update for four steps; the target network is copied every 500 steps."""
    env = make_env(work.env)
    shape, actions = env.observation_space.shape, int(env.action_space.n)
    a, b = work.hidden

    def net() -> nn.Sequential:
        if work.pixels:
            return nn.Sequential(nature(), nn.Linear(512, actions))
        return nn.Sequential(
            nn.Linear(shape[0], a), nn.ReLU(), nn.Linear(a, b), nn.ReLU(), nn.Linear(b, actions)
        )

    online, target, scale = net(), net(), 255.0 if work.pixels else 1.0
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=2.5e-4)
    buffer = Buffer(20_000, shape, (), np.int64)
    clock, obs = Clock(work, 0.4), env.reset(seed=0)[0]
    for step in range(1, work.steps + 1):
        if random.random() < max(0.05, 1 - step / (0.5 * work.steps)):
            action = int(env.action_space.sample())
        else:
            with torch.no_grad():
                row = torch.as_tensor(np.asarray(obs), dtype=torch.float32)[None] / scale
                action = int(online(row).argmax(1))
        after, reward, terminated, truncated, _ = env.step(action)
        buffer.add(obs, after, action, float(reward), terminated)
        obs = env.reset()[0] if terminated or truncated else after
        if step > work.learning_starts and step % 4 == 0:
            b_obs, b_next, b_action, b_reward, b_ended = buffer.sample(work.batch_size)
            with torch.no_grad():
                best = target(b_next.float() / scale).amax(1)
                goal = b_reward + 0.99 * best * (1 - b_ended)
            value = online(b_obs.float() / scale).gather(1, b_action[:, None]).flatten()
            loss = F.mse_loss(value, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 500 == 0:
            target.load_state_dict(online.state_dict())
        clock.tick(step)
        if clock.over:
            break
    return clock.rate()


def updates(work: Work) -> float:
    agent = Off(work.algorithm, 17, 6, 1.0, work.hidden)
    buffer = Buffer(work.rows, (17,), (6,), np.float32).fill()
    return per_second(lambda: agent.update(buffer.sample(work.batch_size)), work.seconds)


def replay(work: Work) -> float:
    buffer = Buffer(work.rows, (17,), (6,), np.float32).fill()
    return per_second(lambda: buffer.sample(work.batch_size), work.seconds)


def stepping(work: Work) -> float:
    envs = make_envs(work, work.way)
    envs.reset(seed=0)
    actions = drawn(work)
    try:
        return per_second(lambda: envs.step(next(actions)), work.seconds, work.num_envs)
    finally:
        envs.close()
