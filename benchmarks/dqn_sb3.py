"""DQN env-steps per second beside Stable-Baselines3, one run, alternating: `python benchmarks/dqn_sb3.py CartPole-v1`.

Same environment, net, batch, one update for every four steps; no evaluation or logging on either. SB3 is shown with one
environment, its custom, and with as many as we have environments; `--threads` are torch's, for both. Each contestant
trains in a process of its own; steps before learning starts are left out, the median of the rounds counts. `Pong` is
PongNoFrameskip-v4 from pixels: Nature's net on 4 frames of 84x84, no-op starts, skip 4, clipped rewards.
"""

import argparse
import json
import tempfile
import time
from typing import Any

from rounds import medians, show

OURS = {"whorl": {}, "whorl, prioritized": {"prioritized": True}}
THEIRS = {"SB3, one env": 1, "SB3, 8 envs": 8}
PONG = "PongNoFrameskip-v4"


def whorl_rate(args: argparse.Namespace, changes: dict[str, Any]) -> float:
    import whorl

    seen: list[tuple[float, int]] = []

    class Clock(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            seen.append((time.perf_counter(), trainer.steps))

    pong = args.env == PONG
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "num_envs": args.num_envs,
            "num_steps": args.rollout,
            "batch_size": 32,
            "updates_per_step": 0.25,
            "hidden_sizes": [512] if pong else [64, 64],
            "buffer_size": 20_000,
            "learning_starts": args.steps // 5,
            "random_steps": 0,
            "clip_reward": pong,
            "total_timesteps": args.steps,
            "threads": args.threads,
            "eval": False,
            "save_model": False,
            "tensorboard": False,
            "quiet": True,
            "runs": folder,
            **changes,
        }
        whorl.load(args.env, "dqn", settings, callbacks=[Clock()]).train()
    return steady(seen, args.steps)


def sb3_rate(args: argparse.Namespace, num_envs: int) -> float:
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    torch.set_num_threads(args.threads)
    seen: list[tuple[float, int]] = []

    class Clock(BaseCallback):
        def _on_step(self) -> bool:
            seen.append((time.perf_counter(), self.num_timesteps))
            return True

    pong = args.env == PONG
    if pong:
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        kind: Any = DummyVecEnv if num_envs == 1 else SubprocVecEnv
        env: Any = VecFrameStack(make_atari_env(args.env, n_envs=num_envs, vec_env_cls=kind), 4)
    else:
        env = make_vec_env(args.env, n_envs=num_envs)
    model = DQN(
        "CnnPolicy" if pong else "MlpPolicy",
        env,
        batch_size=32,
        buffer_size=20_000,
        learning_starts=args.steps // 5,
        train_freq=max(1, 4 // num_envs),
        gradient_steps=max(1, num_envs // 4),
        device="cpu",
        policy_kwargs={} if pong else {"net_arch": [64, 64]},
    )
    model.learn(args.steps, callback=Clock())
    env.close()
    return steady(seen, args.steps)


def steady(seen: list[tuple[float, int]], steps: int) -> float:
    """Steps per second after the first 40 %, when learning has long begun."""
    later = [(when, count) for when, count in seen if count >= 0.4 * steps]
    (t0, s0), (t1, s1) = later[0], later[-1]
    return (s1 - s0) / (t1 - t0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--rollout", type=int, default=64)
    parser.add_argument("--steps", type=int, default=0, help="0: 20,000, or 6,000 from pixels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", help="run one contestant here and print its rate (used by the rounds)")
    args = parser.parse_args()
    args.env = PONG if args.env.lower() == "pong" else args.env
    args.steps = args.steps or (6_000 if args.env == PONG else 20_000)
    if args.only:
        ours = args.only in OURS
        rate = whorl_rate(args, OURS[args.only]) if ours else sb3_rate(args, THEIRS[args.only])
        print(json.dumps(rate))
        return
    print(
        f"DQN on {args.env}: {args.num_envs} environments, batch 32, one update for four steps, {args.threads} threads"
    )
    show(medians((*OURS, *THEIRS), args.rounds), THEIRS, "the faster SB3 setting")


if __name__ == "__main__":
    main()
