"""Actors as processes: what they bring, what becomes of one that dies or whose environment raises, and weights."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import psutil
import pytest
import torch

import whorl
from whorl.agents.agent import Agent
from whorl.collect.collector import Storage
from whorl.core.errors import ConfigError, EnvError
from whorl.distributed.actor import ActorProcess, Role, Trajectory
from whorl.distributed.fleet import Fleet
from whorl.distributed.fleet_collector import FleetCollector
from whorl.distributed.pool import WorkerPool
from whorl.distributed.remote import RestartPolicy
from whorl.distributed.tensors import SharedWeights
from whorl.envs.make import find
from whorl.settings.merge import configure
from whorl.state.policy import build_agent

ACTORS, NUM_ENVS, STEPS = 2, 2, 8
SMALL: dict[str, Any] = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "num_envs": ACTORS * NUM_ENVS,
    "actors": ACTORS,
}


@pytest.fixture
def collector() -> Iterator[FleetCollector]:
    source = find("CartPole-v1")
    agent = build_agent(
        configure("impala", "CartPole-v1", {"num_envs": ACTORS * NUM_ENVS}), source.spec(ACTORS * NUM_ENVS), 0
    )
    role = Role(agent, source, NUM_ENVS, STEPS)
    fleet = Fleet(
        role, ACTORS, lambda actor, life: (100 * actor + life, 100 * actor + life), policy=RestartPolicy(2)
    )
    found = FleetCollector(fleet, role, agent, ACTORS, max_lag=None)
    yield found
    found.close()


def test_a_batch_is_filled_by_whoever_is_first_and_counts_every_step_once(collector: FleetCollector) -> None:
    fleet: Any = collector.fleet
    steps = 0
    for _ in range(6):
        collector.start()
        steps += int(collector.finish().mask.sum())
    assert steps == collector.episode_statistics.drain()["steps"]
    told = collector.metrics()
    assert told["actors/lag"] <= told["actors/lag_max"] <= 6
    assert fleet.lives == [0, 0]


def test_a_killed_actor_is_replaced_and_the_others_go_on(collector: FleetCollector) -> None:
    fleet: Any = collector.fleet
    collector.start()
    collector.finish()
    while fleet.alive() < ACTORS:
        collector.start()
        collector.finish()
    os.kill(fleet.members[0].remote.pid, signal.SIGKILL)
    deadline = time.monotonic() + 600
    with pytest.warns(UserWarning, match=r"actor 0 failed and is replaced .* was killed by SIGKILL"):
        while fleet.lives != [1, 0] or fleet.alive() < ACTORS:
            assert time.monotonic() < deadline, "the actor never came back"
            collector.start()
            batch = collector.finish()
            assert torch.isfinite(batch.reward).all()


def test_rows_that_do_not_go_on_from_those_before_are_told(collector: FleetCollector) -> None:
    collector.start()
    collector.finish()
    assert collector.gaps.all()  # nothing was there before
    held = list(collector._held)
    collector.start()
    collector.finish()
    for place, (before, now) in enumerate(zip(held, collector._held)):
        follows = now == (before[0], before[1], before[2] + 1)
        assert collector.gaps[place * NUM_ENVS].item() is not follows


class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        raise RuntimeError("the joint is jammed")


def test_an_environment_that_raises_is_tried_a_few_times_and_then_named(tmp_path: Path) -> None:
    settings = {**SMALL, "runs": str(tmp_path), "num_steps": 4, "total_timesteps": 100, "actor_restarts": 1}
    with (
        pytest.warns(UserWarning, match="actor . failed and is replaced"),
        pytest.raises(
            EnvError, match=r"failed 2 times in a row; last error: .*the joint is jammed"
        ) as caught,
    ):
        whorl.load(Broken, "impala", settings).train()
    assert "step 1 of episode 1: step() raised RuntimeError" in caught.value.message
    assert "test_fleet.py" in caught.value.details


def test_a_run_with_actors_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    settings = {**SMALL, "runs": str(tmp_path), "total_timesteps": 800, "log_freq": 1, "max_lag": 5}
    first = whorl.load("CartPole-v1", "impala", settings).train()
    again = whorl.resume(first.run_dir, total_timesteps=1600)
    assert again.steps >= 1600 and again.episodes > first.episodes


def test_replay_fed_by_actors_marks_where_rows_do_not_follow(tmp_path: Path) -> None:
    settings = {
        **SMALL,
        "runs": str(tmp_path),
        "total_timesteps": 600,
        "num_steps": 8,
        "learning_starts": 100,
    }
    trainer = whorl.load(
        "CartPole-v1", "dqn", {**settings, "prioritized": True, "n_step": 3, "buffer_size": 2000}
    )
    assert trainer.train().steps >= 600


def test_envs_that_actors_can_not_share_are_told() -> None:
    with pytest.raises(
        ConfigError, match="3 actors can't share 4 environments evenly; use 3 or 6 environments"
    ):
        whorl.load("CartPole-v1", "impala", {"num_envs": 4, "actors": 3}).train()


def test_a_reader_takes_the_newest_weights_whole() -> None:
    one, other = (
        [torch.arange(5.0), torch.ones(2, dtype=torch.int64)],
        [torch.zeros(5), torch.zeros(2).long()],
    )
    weights = SharedWeights(one)
    assert weights.read(other) == 0 and not other[0].any()
    for version in (1, 2, 3):
        weights.write([one[0] + version, one[1] * version], version)
        assert weights.read(other) == version
        assert other[0].equal(one[0] + version) and other[1].equal(one[1] * version)


def test_a_reader_that_was_overtaken_reads_again() -> None:
    weights = SharedWeights([torch.zeros(3)])
    weights.write([torch.ones(3)], 1)
    found: list[list[float]] = []

    class Overtaken:
        """Where weights are read to; while it is, the first time, two versions are written."""

        def copy_(self, value: torch.Tensor) -> None:
            if not found:
                weights.write([torch.full((3,), 2.0)], 2)
                weights.write([torch.full((3,), 3.0)], 3)
            found.append(value.tolist())

    into: Any = [Overtaken()]
    assert weights.read(into) == 3
    assert found[-1] == [3.0, 3.0, 3.0]


class Late:
    """A fleet whose trajectories were collected with the versions it is given."""

    lives: ClassVar[list[int]] = [0]
    sent = 0
    dashboard = ""

    def __init__(self, agent: Agent, *versions: int) -> None:
        tensors = Storage.allocate(agent, NUM_ENVS, STEPS).batch().tensors()
        self.trajectories = [
            Trajectory(tensors, 0, 0, n, v, {"steps": 10.0}, 1.0) for n, v in enumerate(versions)
        ]
        self.released: list[int] = []

    def publish(self, weights: Any, version: int, random: bool) -> None: ...

    def poll(self, seconds: float) -> list[Trajectory]:
        return [self.trajectories.pop(0)]

    def release(self, trajectory: Trajectory) -> None:
        self.released.append(trajectory.version)

    def alive(self) -> int:
        return 1

    def stop(self) -> None: ...


def agent_of(num_envs: int) -> Agent:
    return build_agent(
        configure("impala", "CartPole-v1", {"num_envs": num_envs}), find("CartPole-v1").spec(num_envs), 0
    )


def test_slabs_that_are_too_old_are_dropped_and_not_counted() -> None:
    agent = agent_of(NUM_ENVS)
    fleet = Late(agent, 1, 2, 4)
    role = Role(agent, find("CartPole-v1"), NUM_ENVS, STEPS)
    collector = FleetCollector(fleet, role, agent, 1, max_lag=1)
    collector.version = 4
    collector.start()  # the fifth version
    collector.finish()
    assert fleet.released == [1, 2, 4]
    assert collector.episode_statistics.drain()["steps"] == 10
    told = collector.metrics()
    assert (told["actors/dropped_steps"], told["actors/lag_max"]) == (20, 1)


def test_a_batch_may_be_made_of_fewer_slabs_than_there_are_actors() -> None:
    agent = agent_of(4 * NUM_ENVS)
    fleet = Late(agent, 1, 1, 1)
    role = Role(agent, find("CartPole-v1"), NUM_ENVS, STEPS)
    collector = FleetCollector(fleet, role, agent, 4, max_lag=None, trajectories=2)
    collector.start()
    assert collector.finish().shape == (STEPS, 2 * NUM_ENVS)
    assert len(fleet.trajectories) == 1 and collector.episode_statistics.drain()["steps"] == 20


@pytest.mark.parametrize(("algorithm", "given", "message"), [
    ("impala", {"trajectories_per_batch": 3}, "there are only 2 actors"),
    ("dqn", {"trajectories_per_batch": 1}, "a replay buffer adds rows of all environments together"),
    ("a2c", {"trajectories_per_batch": 1}, "these actors wait for each update"),
    ("impala", {"trajectories_per_batch": 1, "normalize_reward": True}, "normalize_reward needs every environment"),
    (
        "impala",
        {"trajectories_per_batch": 1, "normalize_reward": False, "components": ["rnd"]},
        "normalize of the component rnd needs every environment",
    ),
])  # fmt: skip
def test_slabs_that_can_not_make_up_a_batch_are_told(
    algorithm: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        whorl.load("CartPole-v1", algorithm, {**SMALL, **given}).train()


def test_workers_of_an_actor_step_its_environments_in_two_groups() -> None:
    source = find("CartPole-v1")
    agent = build_agent(configure("impala", "CartPole-v1", {"num_envs": 8}), source.spec(8), 0)
    actor = ActorProcess(Role(agent, source, 4, STEPS, timeout=60.0, workers=2), 1, (3, 5))
    try:
        pool: Any = actor.collector.env
        assert isinstance(pool, WorkerPool)
        assert (pool.workers, pool.groups, pool.timeout) == (2, 2, 60.0)
        for number in range(3):
            fields, tensors = actor.roll(random=False)
            assert fields["number"] == number and fields["seen"]["steps"] > 0.8 * 4 * STEPS
        obs, reset = tensors["obs"], tensors["reset"]
        same = (obs[1:] == obs[:-1]).all(-1)
        assert not (same & ~reset[1:].bool()).any()  # every environment moved in every step
        os.kill(pool._remotes[1].process.pid, signal.SIGKILL)
        with pytest.raises(EnvError, match=r"worker 1 \(environments 1, 3\)"):
            for _ in range(3):
                actor.roll(random=False)
    finally:
        actor.close()


def test_actors_with_workers_train_and_leave_none_behind_when_one_is_killed(tmp_path: Path) -> None:
    class Watching(whorl.Callback):
        workers: ClassVar[set[int]] = set()
        killed = False

        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            for member in trainer.parts.acting.collector.fleet.members:
                if member.remote is not None:
                    self.workers |= {
                        child.pid for child in psutil.Process(member.remote.process.pid).children()
                    }

    given = {**SMALL, "num_envs": 8, "workers": 2, "max_iterations": 6, "runs": str(tmp_path)}
    result = whorl.load("CartPole-v1", "impala", given, callbacks=[Watching()]).train()
    assert result.steps >= 6 * 8 and len(Watching.workers) == 4
    ended = time.monotonic() + 60
    while any(map(psutil.pid_exists, Watching.workers)):
        assert time.monotonic() < ended
        time.sleep(0.02)
