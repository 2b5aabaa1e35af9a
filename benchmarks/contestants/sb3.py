"""Stable-Baselines3 and sb3-contrib."""

from typing import Any

from contestants import Clock, Work, drawn, per_second

PACKAGES = ("stable-baselines3", "sb3-contrib")
PIXELS = True
WAYS = {
    **dict.fromkeys(("ppo", "recurrent_ppo", "stepping"), ("DummyVecEnv", "SubprocVecEnv")),
    **dict.fromkeys(("sac", "td3", "dqn"), ("1 environment", "8 environments")),
}
ABSENT = {"prioritized": "has no prioritized replay"}


def load() -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    _ = PPO, make_vec_env


def envs(work: Work, kind: str, count: int) -> Any:
    from stable_baselines3.common import vec_env
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env

    chosen = getattr(vec_env, kind)
    if not work.pixels:
        return make_vec_env(work.env, n_envs=count, vec_env_cls=chosen)
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    return vec_env.VecFrameStack(make_atari_env(work.env, n_envs=count, vec_env_cls=chosen), 4)


def train(model: Any, work: Work, env: Any, skip: float, each_step: bool) -> float:
    from stable_baselines3.common.callbacks import BaseCallback

    clock = Clock(work, skip)

    class Ticks(BaseCallback):
        def _on_step(self) -> bool:
            if each_step:
                clock.tick(self.num_timesteps)
            return not clock.over

        def _on_rollout_start(self) -> None:
            if not each_step:
                clock.tick(self.num_timesteps)

    model.learn(work.steps, callback=Ticks())
    if not each_step and not clock.over:
        clock.tick(model.num_timesteps)  # after the last update
    env.close()
    return clock.rate()


def ppo(work: Work) -> float:
    from stable_baselines3 import PPO

    env = envs(work, work.way or "DummyVecEnv", work.num_envs)
    net = {} if work.pixels else {"net_arch": {"pi": list(work.hidden), "vf": list(work.hidden)}}
    model = PPO(
        "CnnPolicy" if work.pixels else "MlpPolicy",
        env,
        n_steps=work.num_steps,
        batch_size=work.batch_size,
        n_epochs=work.n_epochs,
        learning_rate=work.learning_rate,
        device="cpu",
        policy_kwargs=net,
    )
    return train(model, work, env, 0.25, False)


def recurrent_ppo(work: Work) -> float:
    from sb3_contrib import RecurrentPPO

    env = envs(work, work.way, work.num_envs)
    sizes = {"pi": list(work.hidden), "vf": list(work.hidden)}
    model = RecurrentPPO(
        "MlpLstmPolicy",
        env,
        n_steps=work.num_steps,
        batch_size=work.batch_size,
        n_epochs=work.n_epochs,
        learning_rate=work.learning_rate,
        device="cpu",
        policy_kwargs={"net_arch": sizes, "lstm_hidden_size": 64, "enable_critic_lstm": True},
    )
    return train(model, work, env, 0.25, False)


def off_policy(work: Work, algorithm: str, **more: Any) -> float:
    import stable_baselines3

    count = 8 if work.way == "8 environments" else 1
    env = envs(work, "DummyVecEnv", count)
    given = {"net_arch": list(work.hidden)}
    more = {"train_freq": 1, "gradient_steps": count, "policy_kwargs": given, **more}
    model = getattr(stable_baselines3, algorithm)(
        "CnnPolicy" if work.pixels else "MlpPolicy",
        env,
        buffer_size=20_000,
        batch_size=work.batch_size,
        learning_starts=work.learning_starts,
        device="cpu",
        **more,
    )
    return train(model, work, env, 0.4, True)


def sac(work: Work) -> float:
    return off_policy(work, "SAC")


def td3(work: Work) -> float:
    return off_policy(work, "TD3")


def dqn(work: Work) -> float:
    """One update for four steps."""
    eight = work.way == "8 environments"
    rhythm = {"train_freq": 1 if eight else 4, "gradient_steps": 2 if eight else 1}
    return off_policy(work, "DQN", **rhythm, **({"policy_kwargs": {}} if work.pixels else {}))


def filled(work: Work) -> Any:
    """A replay buffer full of noise."""
    import gymnasium
    import numpy as np
    from stable_baselines3.common.buffers import ReplayBuffer

    box = gymnasium.spaces.Box
    spaces = box(-np.inf, np.inf, (17,), np.float32), box(-1, 1, (6,), np.float32)
    buffer = ReplayBuffer(work.rows, *spaces, device="cpu", n_envs=1, handle_timeout_termination=False)
    rng = np.random.default_rng(0)
    buffer.observations[:] = rng.standard_normal(buffer.observations.shape, np.float32)
    buffer.next_observations[:] = rng.standard_normal(buffer.observations.shape, np.float32)
    buffer.actions[:] = rng.uniform(-1, 1, buffer.actions.shape)
    buffer.rewards[:] = rng.standard_normal(buffer.rewards.shape, np.float32)
    buffer.full = True
    return buffer


def updates(work: Work) -> float:
    import gymnasium
    import numpy as np
    import stable_baselines3

    class Still(gymnasium.Env):
        """Spaces, no steps."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)

        def reset(self, **_: Any) -> Any:
            return np.zeros(17, np.float32), {}

    model = getattr(stable_baselines3, work.algorithm.upper())(
        "MlpPolicy",
        Still(),
        buffer_size=work.rows,
        batch_size=work.batch_size,
        device="cpu",
        policy_kwargs={"net_arch": list(work.hidden)},
    )
    model._setup_learn(1, None)
    model.replay_buffer = filled(work)
    few = 10
    train = lambda: model.train(gradient_steps=few, batch_size=work.batch_size)  # noqa: E731
    return per_second(train, work.seconds, few, 2)


def replay(work: Work) -> float:
    buffer = filled(work)
    return per_second(lambda: buffer.sample(work.batch_size), work.seconds)


def stepping(work: Work) -> float:
    env = envs(work, work.way, work.num_envs)
    env.reset()
    actions = drawn(work)
    try:
        return per_second(lambda: env.step(next(actions)), work.seconds, work.num_envs)
    finally:
        env.close()
