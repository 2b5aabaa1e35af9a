"""What an actor's and a learner's work costs here, measured piece by piece with the classes that runs use."""

import os
import pickle
import select
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from scaling_model import Costs

import whorl
from whorl.agents.agent import Agent
from whorl.collect.collector import LocalCollector, Storage
from whorl.core import tree
from whorl.core.process import keep_freed_memory
from whorl.core.tree import Tree
from whorl.data.replay import Experience
from whorl.distributed.tensors import SharedWeights
from whorl.envs.vector import VectorEnv
from whorl.run.learner import Learner
from whorl.state.policy import build_agent
from whorl.state.streams import Streams

ALGORITHM = "impala"
NUM_ENVS = (1, 4, 8)
ROWS = (4, 16, 32)
UPDATES = {"cpu": (64, 256, 1024), "cuda": (320, 1280, 5120)}
"""rows of an update"""
SHARES = 8
"""places for the largest trajectory in the storage that trajectories are taken into"""


def calibrate(env: str, device: str, seconds: float) -> Costs:
    """All costs for IMPALA's preset on `env`, each from some `seconds` of measuring."""
    torch.set_num_threads(1)
    keep_freed_memory()
    rolled = roll_costs(env, seconds)
    return replace(rolled, **learner_costs(env, device, seconds))


def roll_costs(env: str, seconds: float) -> Costs:
    """The actor's side: rollouts of several lengths and environments, and steps of the environment alone."""
    features, times, stepped = [], [], []
    for num_envs in NUM_ENVS:
        vector, agent = actor(env, num_envs)
        acting = agent.acting_tensors()
        weights = SharedWeights(acting)
        weights.write(acting, 1)
        for rows in ROWS:
            collector = LocalCollector(vector, agent, rows, torch.Generator().manual_seed(0))
            collector.reset(0)
            trajectory = tree.clone(collector.storage.tensors)
            work = partial(roll, collector, partial(weights.read, acting), trajectory)
            times.append(median(work, seconds))
            features.append((1.0, rows, rows * num_envs))
        actions = [tree.index(trajectory["action"], t) for t in range(rows)]
        stepped.append(median(partial(step, vector, actions), seconds) / rows)
        row_bytes, weight_bytes = size(trajectory) / ((rows + 1) * num_envs), size(acting)
        gradient_bytes = size(list(agent.trained().values()))
        weights.segment.release()
        vector.close()
    rollout, act, env_index = fit(features, times)
    alone = min(fit([(1.0, num_envs) for num_envs in NUM_ENVS], stepped)[1], env_index)
    nothing = {"update": 0.0, "update_row": 0.0, "publish_byte": 0.0, "take": 0.0, "take_byte": 0.0}
    return Costs(
        env=alone,
        act=act,
        act_env=env_index - alone,
        rollout=rollout,
        row_bytes=row_bytes,
        weight_bytes=weight_bytes,
        gradient_bytes=gradient_bytes,
        **nothing,
    )


def actor(env: str, num_envs: int) -> tuple[VectorEnv, Agent]:
    """The environments and the policy's copy that an actor has."""
    trainer = whorl.load(env, ALGORITHM, {"num_envs": num_envs})
    vector = trainer.source.vector(num_envs, torch.device("cpu"))
    return vector, build_agent(trainer.settings, trainer.source.spec(num_envs))


@torch.inference_mode()
def roll(collector: LocalCollector, renew: Callable[[], int], trajectory: dict[str, Tree]) -> None:
    """What an actor does for a trajectory."""
    renew()
    collector.collect()
    collector.episode_statistics.drain()
    tree.copy_(trajectory, collector.storage.tensors)


@torch.inference_mode()
def step(vector: VectorEnv, actions: list[Tree]) -> None:
    for action in actions:
        vector.step(action)


def learner_costs(env: str, device: str, seconds: float) -> dict[str, float]:
    """The learner's side: updates of several sizes, publishing, and taking trajectories of several sizes."""
    times, steps = [], ROWS[1]
    clock = time.perf_counter if device == "cuda" else time.thread_time  # a device's time is no core's
    for rows in UPDATES[device]:
        agent, copy = learning(env, device, rows // steps)
        learner = Learner(agent, device == "cuda")
        experience = agent.experience(torch.Generator(device).manual_seed(0))
        storage = filled(copy, rows // steps, steps)
        times.append(median(partial(update, learner, experience, storage), seconds, clock))
    update_fixed, update_row = fit([(1.0, rows) for rows in UPDATES[device]], times)
    weights = SharedWeights(copy.acting_tensors())
    published = median(partial(publish, copy, agent, weights, count(1)), seconds, clock)
    weights.segment.release()
    taken, sizes = [], []
    into = filled(copy, SHARES * NUM_ENVS[-1], steps)
    for num_envs in NUM_ENVS:
        trajectory = filled(copy, num_envs, steps)
        taken.append(
            median(partial(take, into, trajectory, num_envs), seconds) / (SHARES * NUM_ENVS[-1] // num_envs)
        )
        sizes.append(size(trajectory.tensors))
    take_fixed, take_byte = fit([(1.0, each) for each in sizes], taken)
    return {
        "update": update_fixed,
        "update_row": update_row,
        "publish_byte": published / size(copy.acting_tensors()),
        "take": take_fixed + message_seconds(seconds),
        "take_byte": take_byte,
    }


def learning(env: str, device: str, num_envs: int) -> tuple[Agent, Agent]:
    """An agent that learns on `device`, and the copy that is published from."""
    trainer = whorl.load(env, ALGORITHM, {"num_envs": num_envs})
    spec, streams, on = trainer.source.spec(num_envs), Streams(0), torch.device(device)
    agent = build_agent(trainer.settings, spec, 0)
    agent.prepare(on, lambda name: streams.generator("learner", on, name))
    return agent, build_agent(trainer.settings, spec)


def update(learner: Learner, experience: Experience, storage: Storage) -> None:
    """What becomes of a batch of trajectories that is there."""
    experience.add(storage.batch())
    for phase, batch in experience.due():
        experience.settle(batch, learner.update(phase, batch))
    if learner.agent.device.type == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def publish(copy: Agent, agent: Agent, weights: SharedWeights, version: Iterator[int]) -> None:
    """To the copy that acts, and from there to where actors read."""
    acting = copy.acting_tensors()
    for into, tensor in zip(acting, agent.acting_tensors()):
        into.copy_(tensor)
    weights.write(acting, next(version))


def take(into: Storage, trajectory: Storage, num_envs: int) -> None:
    """Fill the storage with copies of a trajectory."""
    for start in range(0, SHARES * NUM_ENVS[-1], num_envs):
        part = slice(start, start + num_envs)
        tree.map(lambda to, value: to[:, part].copy_(value), into.tensors, trajectory.tensors)  # noqa: B023 - used at once


def filled(agent: Agent, num_envs: int, steps: int) -> Storage:
    """Rollouts of noise: what is in them does not matter to the clock."""
    storage = Storage.allocate(agent, num_envs, steps)
    for leaf in tree.leaves(storage.obs):
        leaf.copy_(torch.randn(leaf.shape) if leaf.is_floating_point() else torch.randint(0, 256, leaf.shape))
    return storage


def message_seconds(seconds: float) -> float:
    """What it takes to hear of a trajectory and to answer: one small message each way through a pipe."""
    read, write = os.pipe()
    said = {
        "number": 1,
        "seen": dict.fromkeys(("steps", "episodes", "return", "length"), 0.0),
        "seconds": 0.1,
    }
    poll = select.poll()
    poll.register(read, select.POLLIN)

    def message() -> None:
        for _ in range(2):
            os.write(write, pickle.dumps(said))
            poll.poll(1000)
            pickle.loads(os.read(read, 65536))

    found = median(message, seconds)
    os.close(read)
    os.close(write)
    return found


def size(tensors: Any) -> int:
    leaves = tensors if isinstance(tensors, list) else tree.leaves(tensors)
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves)


def median(work: Callable[[], None], seconds: float, clock: Callable[[], float] = time.thread_time) -> float:
    """Seconds of a call, of at least five, after two that warm up; of the core alone, whoever else wants it."""
    work()
    work()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 5 or time.perf_counter() < end:
        began = clock()
        work()
        found.append(clock() - began)
    return statistics.median(found)


def fit(features: list[tuple[float, ...]], times: list[float]) -> list[float]:
    """Non-negative factors of the features: least squares of relative errors, a factor below zero set to it."""
    weight = 1 / np.asarray(times)
    rows, ones = np.asarray(features) * weight[:, None], np.ones(len(times))
    used = list(range(rows.shape[1]))
    while True:
        factors = np.linalg.lstsq(rows[:, used], ones, rcond=None)[0]
        if (factors >= 0).all():
            found = np.zeros(rows.shape[1])
            found[used] = factors
            return found.tolist()
        used.pop(int(factors.argmin()))
