"""Loops in the shape of LeanRL's: CleanRL's algorithms with acting and the update as functions for torch.compile.

Written again from their published structure: rollouts are collected in lists and stacked, statistics stay on the
device, the optimizer is fused, and policy and one minibatch's update are one function each, compiled or not. GAE stays
eager, since its unrolled loop takes minutes to compile on a CPU. Compilation is part of the warm-up; CUDA graphs need a
GPU and are not used here.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contestants import Clock, Work, cleanrl, per_second

PACKAGES: tuple[str, ...] = ()
PIXELS = True
WAYS = {
    "ppo": ("eager", "compiled"),
    "updates": ("eager", "compiled"),
    **dict.fromkeys(("sac", "td3"), ("eager", "compiled")),
}
ABSENT = {
    "recurrent_ppo": "has none",
    "prioritized": "has none",
    "replay": "has TorchRL's replay buffer",
    "stepping": "has Gymnasium's vector environments",
    "dqn": "its DQN is for Atari with CUDA graphs",
}
load = cleanrl.load


def made(function: Any, way: str) -> Any:
    return torch.compile(function) if way == "compiled" else function


def gae(
    reward: Tensor, value: Tensor, ended: Tensor, last: Tensor, last_ended: Tensor
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of a rollout [T, B]."""
    going = 1.0 - torch.cat((ended[1:], last_ended[None]))
    after = torch.cat((value[1:], last[None]))
    delta = (reward + 0.99 * after * going - value).unbind(0)
    weight = (0.99 * 0.95 * going).unbind(0)
    advantages, running = [], torch.zeros_like(last)
    for t in range(len(delta) - 1, -1, -1):
        running = delta[t] + weight[t] * running
        advantages.append(running)
    advantage = torch.stack(advantages[::-1])
    return advantage, advantage + value


def ppo(work: Work) -> float:
    envs = cleanrl.make_envs(work, "SyncVectorEnv")
    shape, space = envs.single_observation_space.shape, envs.single_action_space
    agent = cleanrl.Agent(shape, space, work.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=work.learning_rate, eps=1e-5, fused=True)

    def update(
        obs: Tensor, action: Tensor, old_log_prob: Tensor, advantage: Tensor, goal: Tensor, old_value: Tensor
    ) -> Tensor:
        optimizer.zero_grad()
        _, log_prob, entropy, value = agent(obs, action)
        ratio = (log_prob - old_log_prob).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        surrogate = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
        near = old_value + (value - old_value).clamp(-0.2, 0.2)
        error = torch.max((value - goal) ** 2, (near - goal) ** 2).mean()
        loss = surrogate - 0.0 * entropy.mean() + 0.25 * error
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    policy, learn = made(agent.forward, work.way), made(update, work.way)
    clock, steps = Clock(work), 0
    obs, done = torch.as_tensor(envs.reset(seed=0)[0], dtype=torch.float32), torch.zeros(work.num_envs)
    while steps < work.steps and not clock.over:
        rows: list[tuple[Tensor, ...]] = []
        for _ in range(work.num_steps):
            with torch.no_grad():
                action, log_prob, _, value = policy(obs)
            after, reward, terminated, truncated, _ = envs.step(action.numpy())
            reward = torch.as_tensor(reward, dtype=torch.float32)
            rows.append((obs, action, log_prob, reward, value, done))
            obs = torch.as_tensor(after, dtype=torch.float32)
            done = torch.as_tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
            steps += work.num_envs
        all_obs, actions, log_probs, rewards, values, ended = (torch.stack(part) for part in zip(*rows))
        with torch.no_grad():
            advantage, goal = gae(rewards, values, ended, agent.value(obs), done)
        flat = [part.flatten(0, 1) for part in (all_obs, actions, log_probs, advantage, goal, values)]
        for _ in range(work.n_epochs):
            for which in torch.randperm(work.rollout).split(work.batch_size):
                learn(*(part[which] for part in flat))
        clock.tick(steps)
    envs.close()
    return clock.rate()


class Off(cleanrl.Off):
    """The same losses; parameters move by fused Adam, targets by one lerp over all of them."""

    def __init__(self, *args: Any, way: str) -> None:
        super().__init__(*args)
        critic = [p for c in self.critics for p in c.parameters()]
        self.critic_optimizer = torch.optim.Adam(critic, lr=1e-3, fused=True)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4, fused=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=1e-3, fused=True)
        self.alpha = torch.ones(())  # type: ignore[assignment]
        self.old = [p.data for target, _ in self.pairs for p in target.parameters()]
        self.new = [p.data for _, net in self.pairs for p in net.parameters()]
        self.learn_critics, self.learn_actor = made(self.critics_step, way), made(self.actor_step, way)

    def critics_step(
        self, obs: Tensor, next_obs: Tensor, action: Tensor, reward: Tensor, ended: Tensor
    ) -> Tensor:
        self.critic_optimizer.zero_grad()
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
        values = torch.stack([self.value(critic, obs, action) for critic in self.critics])
        loss = (values - goal).square().mean(1).sum()
        loss.backward()
        self.critic_optimizer.step()
        return loss.detach()

    def actor_step(self, obs: Tensor) -> Tensor:
        self.actor_optimizer.zero_grad()
        if self.soft:
            action, log_prob = self.drawn(obs)
            least = torch.min(*(self.value(critic, obs, action) for critic in self.critics))
            loss = (self.alpha * log_prob.flatten() - least).mean()
        else:
            loss = -self.value(self.critics[0], obs, self.actor(obs).tanh() * self.bound).mean()
        loss.backward()
        self.actor_optimizer.step()
        if self.soft:
            self.alpha_optimizer.zero_grad()
            excess = (log_prob.detach() - self.actions).mean()
            (-self.log_alpha.exp() * excess).sum().backward()
            self.alpha_optimizer.step()
        return loss.detach()

    def update(self, batch: tuple[Tensor, ...]) -> None:
        self.updates += 1
        self.learn_critics(*batch)
        if self.updates % 2 == 0:
            for _ in range(2 if self.soft else 1):
                self.learn_actor(batch[0])
                if self.soft:
                    self.alpha.copy_(self.log_alpha.detach().exp()[0])  # type: ignore[attr-defined]
        if self.soft or self.updates % 2 == 0:
            torch._foreach_lerp_(self.old, self.new, 0.005)


def sac(work: Work) -> float:
    return cleanrl.off_policy(work, "sac", lambda *args: Off(*args, way=work.way))


def td3(work: Work) -> float:
    return cleanrl.off_policy(work, "td3", lambda *args: Off(*args, way=work.way))


def updates(work: Work) -> float:
    agent = Off(work.algorithm, 17, 6, 1.0, work.hidden, way=work.way)
    buffer = cleanrl.Buffer(work.rows, (17,), (6,), np.float32).fill()
    return per_second(lambda: agent.update(buffer.sample(work.batch_size)), work.seconds)
