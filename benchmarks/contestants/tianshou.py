"""Tianshou 2: its collectors, buffers and algorithms, called as its trainers call them."""

from typing import Any

from contestants import Clock, Work, drawn, make_env, per_second

PACKAGES = ("tianshou",)
WAYS = {
    "ppo": ("DummyVectorEnv", "ShmemVectorEnv"),
    "stepping": ("DummyVectorEnv", "ShmemVectorEnv", "SubprocVectorEnv"),
}
ABSENT = {"recurrent_ppo": "its PPO does not keep recurrent state (issue 937)"}


def load() -> None:
    from tianshou.algorithm import PPO
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv

    _ = PPO, Collector, VectorReplayBuffer, DummyVectorEnv


def make_envs(work: Work, way: str, count: int) -> Any:
    from tianshou import env

    return getattr(env, way)([lambda: make_env(work.env) for _ in range(count)])


def ppo(work: Work) -> float:
    import torch
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.utils.net.common import ActorCritic, Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
    from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

    one = make_env(work.env)
    shape, space = one.observation_space.shape, one.action_space

    def net() -> Net:
        return Net(state_shape=shape, hidden_sizes=work.hidden, activation=torch.nn.Tanh)

    policy: Any
    if hasattr(space, "n"):
        actor: Any = DiscreteActor(preprocess_net=net(), action_shape=int(space.n), softmax_output=False)
        critic: Any = DiscreteCritic(preprocess_net=net())
        policy = DiscreteActorPolicy(actor=actor, action_space=space)
    else:
        actor = ContinuousActorProbabilistic(preprocess_net=net(), action_shape=space.shape, unbounded=True)
        critic = ContinuousCritic(preprocess_net=net())

        def normal(parts: Any) -> Any:
            return torch.distributions.Independent(torch.distributions.Normal(*parts), 1)

        policy = ProbabilisticActorPolicy(actor=actor, dist_fn=normal, action_space=space)
    for module in ActorCritic(actor, critic).modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.orthogonal_(module.weight)
    algorithm = PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=work.learning_rate),
        ent_coef=0.0,
        max_grad_norm=0.5,
        max_batchsize=work.rollout,
    )
    envs = make_envs(work, work.way or "DummyVectorEnv", work.num_envs)
    buffer = VectorReplayBuffer(work.rollout, work.num_envs)
    collector = Collector(algorithm, envs, buffer)
    collector.reset()
    clock, steps = Clock(work), 0
    while steps < work.steps and not clock.over:
        with policy_within_training_step(policy):
            collector.collect(n_step=work.rollout)
            with torch_train_mode(algorithm):
                algorithm.update(buffer=buffer, batch_size=work.batch_size, repeat=work.n_epochs)
        collector.reset_buffer(keep_statistics=True)
        steps += work.rollout
        clock.tick(steps)
    envs.close()
    return clock.rate()


def soft_or_delayed(name: str, work: Work, shape: Any, space: Any) -> Any:
    """SAC or TD3 with two critics."""
    import numpy as np
    from tianshou.algorithm import SAC, TD3
    from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.exploration import GaussianNoise
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import (
        ContinuousActorDeterministic,
        ContinuousActorProbabilistic,
        ContinuousCritic,
    )

    def net(**more: Any) -> Net:
        return Net(state_shape=shape, hidden_sizes=work.hidden, **more)

    critics = [ContinuousCritic(preprocess_net=net(action_shape=space.shape, concat=True)) for _ in range(2)]
    optim = AdamOptimizerFactory(lr=work.learning_rate)
    common: Any = {
        "policy_optim": optim,
        "critic": critics[0],
        "critic_optim": optim,
        "critic2": critics[1],
        "critic2_optim": optim,
    }
    if name == "sac":
        soft = ContinuousActorProbabilistic(
            preprocess_net=net(), action_shape=space.shape, unbounded=True, conditioned_sigma=True
        )
        alpha = AutoAlpha(-float(np.prod(space.shape)), 0.0, optim)
        return SAC(policy=SACPolicy(actor=soft, action_space=space), alpha=alpha, **common)
    actor = ContinuousActorDeterministic(preprocess_net=net(), action_shape=space.shape)
    policy = ContinuousDeterministicPolicy(
        actor=actor, exploration_noise=GaussianNoise(sigma=0.1), action_space=space
    )
    return TD3(policy=policy, **common)


def off_policy(work: Work, algorithm: Any, updates: int, steps_between: int) -> float:
    """One environment; `updates` after every `steps_between` steps."""
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

    envs = make_envs(work, "DummyVectorEnv", 1)
    buffer = VectorReplayBuffer(20_000, 1)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=work.learning_starts, random=True)
    clock, steps = Clock(work, 0.4), work.learning_starts
    while steps < work.steps and not clock.over:
        with policy_within_training_step(algorithm.policy):
            collector.collect(n_step=steps_between)
            with torch_train_mode(algorithm):
                for _ in range(updates):
                    algorithm.update(buffer=buffer, sample_size=work.batch_size)
        steps += steps_between
        clock.tick(steps)
    return clock.rate()


def sac(work: Work) -> float:
    one = make_env(work.env)
    algorithm = soft_or_delayed("sac", work, one.observation_space.shape, one.action_space)
    return off_policy(work, algorithm, 1, 1)


def td3(work: Work) -> float:
    one = make_env(work.env)
    algorithm = soft_or_delayed("td3", work, one.observation_space.shape, one.action_space)
    return off_policy(work, algorithm, 1, 1)


def dqn(work: Work) -> float:
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net

    one = make_env(work.env)
    shape, space = one.observation_space.shape, one.action_space
    net = Net(state_shape=shape, action_shape=int(space.n), hidden_sizes=work.hidden)
    policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=0.1)
    optim = AdamOptimizerFactory(lr=work.learning_rate)
    return off_policy(work, DQN(policy=policy, optim=optim, target_update_freq=500, is_double=False), 1, 4)


def filled(work: Work, kind: str, **more: Any) -> Any:
    """A buffer full of noise."""
    import numpy as np
    from tianshou import data

    rng, rows = np.random.default_rng(0), work.rows
    buffer = getattr(data, kind)(rows, **more)
    no = np.zeros(rows, bool)
    batch = data.Batch(
        obs=rng.standard_normal((rows, 17), np.float32),
        obs_next=rng.standard_normal((rows, 17), np.float32),
        act=rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
        rew=rng.standard_normal(rows),
        terminated=no,
        truncated=no,
        done=no,
        info=data.Batch(),
    )
    buffer.set_batch(batch)
    buffer._size = rows
    return buffer


def updates(work: Work) -> float:
    import gymnasium
    from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

    space = gymnasium.spaces.Box(-1, 1, (6,))
    algorithm = soft_or_delayed(work.algorithm, work, (17,), space)
    buffer = filled(work, "ReplayBuffer")
    with policy_within_training_step(algorithm.policy), torch_train_mode(algorithm):
        return per_second(lambda: algorithm.update(buffer=buffer, sample_size=work.batch_size), work.seconds)


def replay(work: Work) -> float:
    buffer = filled(work, "ReplayBuffer")
    return per_second(lambda: buffer.sample(work.batch_size), work.seconds)


def prioritized(work: Work) -> float:
    import numpy as np

    buffer = filled(work, "PrioritizedReplayBuffer", alpha=0.6, beta=0.4)
    rng = np.random.default_rng(0)
    buffer.update_weight(np.arange(work.rows), rng.random(work.rows))
    error = rng.random(work.batch_size)

    def call() -> None:
        _, index = buffer.sample(work.batch_size)
        buffer.update_weight(index, error)

    return per_second(call, work.seconds)


def stepping(work: Work) -> float:
    import numpy as np

    envs = make_envs(work, work.way, work.num_envs)
    envs.reset()
    actions = drawn(work)

    def step() -> None:
        _, _, terminated, truncated, _ = envs.step(next(actions))
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            envs.reset(ended)

    try:
        return per_second(step, work.seconds, work.num_envs)
    finally:
        envs.close()
