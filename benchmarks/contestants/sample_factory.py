"""Sample Factory 2: its PPO by its runner; environments of Gymnasium 0.29, which it needs."""

import tempfile
from typing import Any

from contestants import Clock, Work, make_env

PACKAGES = ("sample-factory",)
WAYS = dict.fromkeys(
    ("ppo", "recurrent_ppo"), ("serial", "synchronous, 2 workers", "asynchronous, 2 workers")
)
ABSENT = {"": "has PPO only"}


def load() -> None:
    from sample_factory.cfg.arguments import parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    _ = parse_sf_args, register_env, make_runner


def older(id: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    """An environment as its workers make it; HalfCheetah-v5 is v4 in its Gymnasium."""
    return make_env("HalfCheetah-v4" if id == "HalfCheetah-v5" else id)


def ppo(work: Work, recurrent: bool = False) -> float:
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    register_env(work.env, older)
    clock = Clock(work)

    class Ticks(AlgoObserver):
        def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
            clock.tick(runner.total_env_steps_since_resume or 0)

    workers = 1 if work.way == "serial" else 2
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "env": work.env,
            "experiment": "peers",
            "train_dir": folder,
            "restart_behavior": "overwrite",
            "device": "cpu",
            "serial_mode": work.way == "serial",
            "async_rl": work.way.startswith("asynchronous"),
            "num_workers": workers,
            "num_envs_per_worker": work.num_envs // workers,
            "worker_num_splits": 1 if work.way == "serial" else 2,
            "rollout": work.num_steps,
            "recurrence": 32 if recurrent else 1,
            "use_rnn": recurrent,
            "rnn_type": "lstm",
            "rnn_size": 64,
            "batch_size": work.batch_size,
            "num_batches_per_epoch": work.rollout // work.batch_size,
            "num_epochs": work.n_epochs,
            "learning_rate": work.learning_rate,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "ppo_clip_ratio": 0.2,
            "ppo_clip_value": 0.2,
            "value_loss_coeff": 0.5,
            "exploration_loss_coeff": 0.0,
            "max_grad_norm": 0.5,
            "nonlinearity": "tanh",
            "actor_critic_share_weights": False,
            "adaptive_stddev": False,
            "normalize_input": False,
            "normalize_returns": False,
            "train_for_env_steps": work.steps,
            "save_every_sec": 3600,
            "experiment_summaries_interval": 3600,
            "set_workers_cpu_affinity": False,
        }
        words = [f"--{key}={value}" for key, value in given.items()]
        words += ["--encoder_mlp_layers", *map(str, work.hidden)]
        parser, _ = parse_sf_args(words)
        _, runner = make_runner(parse_full_cfg(parser, words))
        runner.register_observer(Ticks())
        runner.init()
        runner.run()
    return clock.rate()


def recurrent_ppo(work: Work) -> float:
    return ppo(work, True)
