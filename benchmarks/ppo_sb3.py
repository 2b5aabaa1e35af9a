"""PPO env-steps per second beside Stable-Baselines3, one run, alternating: `python benchmarks/ppo_sb3.py CartPole-v1`.

Same environment, environments, rollout, epochs, minibatch and nets (64x64 tanh, apart), no evaluation or logging on
either. Each contestant trains in a process of its own; the first rollouts are left out, the median of the rounds
counts.
"""

import argparse
import json
import time
from typing import Any

from rounds import medians, show

OURS = {"whorl": {}, "whorl, one thread": {"workers": 0, "learner_threads": 1}}
THEIRS = ("DummyVecEnv", "SubprocVecEnv")


def whorl_rate(env: str, args: argparse.Namespace, changes: dict[str, Any]) -> float:
    import tempfile

    import whorl

    seen: list[tuple[float, int]] = []

    class Clock(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            seen.append((time.perf_counter(), trainer.steps))

    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "num_envs": args.num_envs,
            "num_steps": args.rollout,
            "batch_size": args.batch,
            "n_epochs": args.n_epochs,
            "actor_hidden_sizes": [64, 64],
            "critic_hidden_sizes": [64, 64],
            "activation": "tanh",
            "normalize_obs": False,
            "normalize_reward": False,
            "max_grad_norm": 0.5,
            "lr_schedule": "constant",
            "total_timesteps": args.steps,
            "eval": False,
            "save_model": False,
            "tensorboard": False,
            "quiet": True,
            "runs": folder,
            **changes,
        }
        whorl.load(env, "ppo", settings, callbacks=[Clock()]).train()
    (t0, s0), (t1, s1) = seen[len(seen) // 4], seen[-1]
    return (s1 - s0) / (t1 - t0)


def sb3_rate(env: str, args: argparse.Namespace, kind: str) -> float:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common import vec_env
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(args.sb3_threads)
    seen: list[tuple[float, int]] = []

    class Clock(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            seen.append((time.perf_counter(), self.num_timesteps))

    num_envs = make_vec_env(env, n_envs=args.num_envs, vec_env_cls=getattr(vec_env, kind))
    model = PPO(
        "MlpPolicy",
        num_envs,
        n_steps=args.rollout,
        batch_size=args.batch,
        n_epochs=args.n_epochs,
        device="cpu",
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
    )
    model.learn(args.steps, callback=Clock())
    num_envs.close()
    (t0, s0), (t1, s1) = seen[len(seen) // 4], seen[-1]
    return (s1 - s0) / (t1 - t0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--rollout", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--n-epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sb3-threads", type=int, default=1)
    parser.add_argument("--only", help="run one contestant here and print its rate (used by the rounds)")
    args = parser.parse_args()
    if args.only:
        ours = args.only in OURS
        rate = whorl_rate(args.env, args, OURS[args.only]) if ours else sb3_rate(args.env, args, args.only)
        print(json.dumps(rate))
        return
    print(
        f"PPO on {args.env}: {args.num_envs} environments, rollout {args.rollout}, batch {args.batch}, "
        f"{args.n_epochs} epochs"
    )
    show(medians((*OURS, *THEIRS), args.rounds), THEIRS, "the faster SB3 vector env")


if __name__ == "__main__":
    main()
