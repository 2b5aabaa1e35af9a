"""This library."""

import tempfile
from types import SimpleNamespace
from typing import Any

from contestants import Clock, Work, drawn, per_second

PACKAGES = ("whorl-rl",)
PIXELS = True
WAYS = {
    "ppo": ("no workers", "automatic"),
    "sac": ("1 environment", "8 environments"),
    "td3": ("1 environment", "8 environments"),
    "dqn": ("8 environments", "1 environment"),
    "replay": ("8 batches at a time", "one batch at a time"),
    "stepping": ("2 workers", "2 workers, two groups", "no workers"),
}
ABSENT: dict[str, str] = {}
QUIET = {"eval": False, "save_model": False, "tensorboard": False, "quiet": True, "save_code": False}


def load() -> None:
    import whorl

    _ = whorl.load  # imported on first use


def train(work: Work, algorithm: str, settings: dict[str, Any], skip: float = 0.25) -> float:
    """Environment steps per second."""
    import whorl

    clock = Clock(work, skip)

    class Ticks(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            clock.tick(trainer.steps)
            if clock.over:
                trainer.stop("enough was seen")

    with tempfile.TemporaryDirectory() as folder:
        given = {"total_timesteps": work.steps, "threads": work.threads, **QUIET, "runs": folder, **settings}
        whorl.load(work.env, algorithm, given, callbacks=[Ticks()]).train()
    return clock.rate()


def ppo(work: Work, **changes: Any) -> float:
    settings = {
        "num_envs": work.num_envs,
        "num_steps": work.num_steps,
        "batch_size": work.batch_size,
        "n_epochs": work.n_epochs,
        "actor_lr": work.learning_rate,
        "critic_lr": work.learning_rate,
        "lr_schedule": "constant",
        "kl_cut": 0.0,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "max_grad_norm": 0.5,
        "normalize_obs": False,
        "normalize_reward": False,
        **({"workers": 0} if work.way == "no workers" else {}),
        **changes,
    }
    if not work.pixels:
        sizes = {"actor_hidden_sizes": list(work.hidden), "critic_hidden_sizes": list(work.hidden)}
        settings = {**settings, **sizes, "activation": "tanh"}
    return train(work, "ppo", settings)


def recurrent_ppo(work: Work) -> float:
    return ppo(work, memory="lstm", memory_size=64)


def off_policy(work: Work, algorithm: str) -> float:
    count = 8 if work.way == "8 environments" else 1
    settings = {
        "num_envs": count,
        "num_steps": 8,
        "batch_size": work.batch_size,
        "updates_per_step": 1.0,
        "buffer_size": work.steps,
        "learning_starts": work.learning_starts,
        "random_steps": 0,
        "actor_hidden_sizes": list(work.hidden),
        "critic_hidden_sizes": list(work.hidden),
    }
    return train(work, algorithm, settings, 0.4)


def sac(work: Work) -> float:
    return off_policy(work, "sac")


def td3(work: Work) -> float:
    return off_policy(work, "td3")


def dqn(work: Work) -> float:
    settings: dict[str, Any] = {
        "num_envs": 1 if work.way == "1 environment" else 8,
        "num_steps": 16 if work.pixels else 64,
        "batch_size": work.batch_size,
        "updates_per_step": 0.25,
        "hidden_sizes": [512] if work.pixels else list(work.hidden),
        "n_step": 1,
        "buffer_size": 20_000,
        "learning_starts": work.learning_starts,
        "random_steps": 0,
        "clip_reward": work.pixels,
    }
    return train(work, "dqn", settings, 0.4)


def filled(algorithm: str, work: Work, **changes: Any) -> tuple[Any, Any]:
    """A learner with the shapes of HalfCheetah, and a replay buffer full of noise."""
    import torch

    from whorl.core.process import keep_freed_memory
    from whorl.core.spec import Array, Continuous, Spec
    from whorl.data.batch import Batch
    from whorl.run.learner import Learner
    from whorl.settings.merge import configure
    from whorl.state.policy import build_agent
    from whorl.state.streams import Streams

    keep_freed_memory()  # as a run does
    cpu, rows = torch.device("cpu"), work.rows
    spec = Spec(Array((17,)), Continuous((6,), (-1.0,) * 6, (1.0,) * 6), 1)
    given = {
        "num_envs": 1,
        "buffer_size": rows + 10,  # the newest row is no transition yet
        "learning_starts": 0,
        "batch_size": work.batch_size,
        "actor_hidden_sizes": list(work.hidden),
        "critic_hidden_sizes": list(work.hidden),
        **changes,
    }
    streams = Streams(0, (cpu,))
    agent = build_agent(configure(algorithm, "benchmark", given), spec)
    agent = agent.prepare(cpu, lambda name: streams.generator("learner", cpu, name))
    replay = agent.experience(streams.generator("replay", cpu))
    for _ in range(0, rows, 10_000):
        count = min(rows, 10_000)
        ones = torch.ones(count, 1)
        replay.add(
            Batch(
                obs=torch.randn(count + 1, 1, 17),
                reset=torch.zeros(count + 1, 1, dtype=torch.bool),
                action=torch.rand(count, 1, 6) * 2 - 1,
                reward=torch.randn(count, 1),
                continues=ones.bool(),
                keep=ones,
                mask=ones,
            )
        )
    return Learner(agent, False, False), replay


def updates(work: Work) -> float:
    learner, replay = filled(work.algorithm, work)

    def update() -> None:
        batch = replay.sample()
        replay.settle(batch, learner.update("update", batch))

    return per_second(update, work.seconds)


def replay(work: Work) -> float:
    """Runs draw the batches of a rollout's updates together."""
    buffer = filled("sac", work)[1]
    if work.way == "one batch at a time":
        return per_second(buffer.sample, work.seconds)
    return per_second(lambda: list(buffer.samples(8)), work.seconds, 8)


def prioritized(work: Work) -> float:
    import torch

    buffer = filled("sac", work, prioritized=True)[1]
    errors = SimpleNamespace(priority=torch.rand(1, work.batch_size))
    return per_second(lambda: buffer.settle(buffer.sample(), errors), work.seconds)


def stepping(work: Work) -> float:
    import torch

    from whorl.distributed.pool import WorkerPool
    from whorl.envs.make import find

    source = find(work.env)
    if work.way == "no workers":
        envs: Any = source.vector(work.num_envs)  # CartPole is Gymnasium's own batch of them
    else:
        envs = WorkerPool(source.factory, work.num_envs, work.env, 2)
    envs.reset(0)
    actions = (torch.from_numpy(row) for row in drawn(work))
    groups = [envs.env_slice(group) for group in range(envs.groups)] if "two groups" in work.way else []
    for group, part in enumerate(groups):
        envs.send(group, next(actions)[part])

    def step() -> None:
        """All environments at once, or one group while the other's results are received."""
        action = next(actions)
        if not groups:
            envs.step(action)
        for group, part in enumerate(groups):
            envs.receive(group)
            envs.send(group, action[part])

    try:
        return per_second(step, work.seconds, work.num_envs)
    finally:
        envs.close()
