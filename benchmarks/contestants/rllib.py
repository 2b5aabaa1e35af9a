"""RLlib (Ray), new API stack: its algorithms with the learner in this process and few iterations between reports."""

from typing import Any

from contestants import Clock, Work, per_second

PACKAGES = ("ray",)
WAYS = {"ppo": ("in this process", "2 env runners"), "recurrent_ppo": ("in this process", "2 env runners")}
ABSENT = {
    "td3": "removed TD3",
    "updates": "has no update without its environment runners",
    "stepping": "steps Gymnasium's vector environments, which are those of CleanRL-style",
}


def load() -> None:
    from ray.rllib.algorithms.ppo import PPOConfig

    _ = PPOConfig


def train(config: Any, work: Work, skip: float) -> float:
    import os

    import ray

    cores = len(os.sched_getaffinity(0))
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=max(4, cores), **quiet)
    algorithm = config.build_algo()
    clock, steps = Clock(work, skip), 0
    while steps < work.steps and not clock.over:
        result = algorithm.train()
        steps = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
        clock.tick(steps)
    algorithm.stop()
    ray.shutdown()
    return clock.rate()


def common(
    config: Any, work: Work, runners: int, envs: int, fragment: int, activation: str, **model: Any
) -> Any:
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    net = {"fcnet_hiddens": list(work.hidden), "fcnet_activation": activation, **model}
    return (
        config.environment(work.env)
        .framework("torch")
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=envs // max(runners, 1),
            rollout_fragment_length=fragment,
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .rl_module(model_config=DefaultModelConfig(**net))
        .debugging(log_level="ERROR")
    )


def ppo(work: Work, **model: Any) -> float:
    from ray.rllib.algorithms.ppo import PPOConfig

    runners = 2 if work.way == "2 env runners" else 0
    config = common(
        PPOConfig(), work, runners, work.num_envs, work.num_steps, "tanh", vf_share_layers=False, **model
    )
    config = config.training(
        train_batch_size_per_learner=work.rollout,
        minibatch_size=work.batch_size,
        num_epochs=work.n_epochs,
        lr=work.learning_rate,
        gamma=0.99,
        lambda_=0.95,
        clip_param=0.2,
        vf_clip_param=float("inf"),
        vf_loss_coeff=0.5,
        entropy_coeff=0.0,
        grad_clip=0.5,
        grad_clip_by="global_norm",
        use_kl_loss=False,
    )
    return train(config, work, 0.25)


def recurrent_ppo(work: Work) -> float:
    return ppo(work, use_lstm=True, lstm_cell_size=64, max_seq_len=32)


def buffer_of(rows: int) -> dict[str, Any]:
    return {"type": "EpisodeReplayBuffer", "capacity": rows}


def sac(work: Work) -> float:
    from ray.rllib.algorithms.sac import SACConfig

    config = common(SACConfig(), work, 0, 1, 1, "relu", head_fcnet_hiddens=[])
    config = config.training(
        train_batch_size_per_learner=work.batch_size,
        replay_buffer_config=buffer_of(20_000),
        num_steps_sampled_before_learning_starts=work.learning_starts,
        actor_lr=work.learning_rate,
        critic_lr=work.learning_rate,
        alpha_lr=work.learning_rate,
        lr=None,
        target_entropy="auto",
        tau=0.005,
        n_step=1,
    ).reporting(min_sample_timesteps_per_iteration=100, min_time_s_per_iteration=0)
    return train(config, work, 0.4)


def dqn(work: Work) -> float:
    from ray.rllib.algorithms.dqn import DQNConfig

    config = common(DQNConfig(), work, 0, 1, 4, "relu", head_fcnet_hiddens=[])
    config = config.training(
        train_batch_size_per_learner=work.batch_size,
        replay_buffer_config=buffer_of(20_000),
        num_steps_sampled_before_learning_starts=work.learning_starts,
        target_network_update_freq=500,
        double_q=False,
        dueling=False,
        lr=work.learning_rate,
    ).reporting(min_sample_timesteps_per_iteration=100, min_time_s_per_iteration=0)
    return train(config, work, 0.4)


def filled(work: Work, kind: str, **more: Any) -> Any:
    """A buffer full of noise in episodes of 1,000 steps."""
    import numpy as np
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.replay_buffers import episode_replay_buffer, prioritized_episode_buffer

    module = prioritized_episode_buffer if "Prioritized" in kind else episode_replay_buffer
    buffer = getattr(module, kind)(capacity=work.rows, batch_size_B=work.batch_size, batch_length_T=1, **more)
    rng, length = np.random.default_rng(0), 1000
    for _ in range(work.rows // length):
        buffer.add(
            SingleAgentEpisode(
                observations=list(rng.standard_normal((length + 1, 17), np.float32)),
                actions=list(rng.uniform(-1, 1, (length, 6)).astype(np.float32)),
                rewards=list(rng.standard_normal(length)),
                truncated=True,
                len_lookback_buffer=0,
            )
        )
    return buffer


def replay(work: Work) -> float:
    buffer = filled(work, "EpisodeReplayBuffer")
    return per_second(lambda: buffer.sample(num_items=work.batch_size, n_step=1), work.seconds, 1, 3)


def prioritized(work: Work) -> float:
    import numpy as np

    buffer = filled(work, "PrioritizedEpisodeReplayBuffer", alpha=0.6)
    error = np.random.default_rng(0).random(work.batch_size) + 0.1

    def call() -> None:
        buffer.sample(num_items=work.batch_size, n_step=1, beta=0.4)
        buffer.update_priorities(error)

    return per_second(call, work.seconds, 1, 3)
