"""Actors on a Ray cluster of two nodes on this machine: what they bring, and what becomes of those that die."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest
import sockets
import torch
import yaml

import whorl
from whorl.core.errors import ConfigError, EnvError, WhorlError
from whorl.distributed import fleet as fleets
from whorl.distributed.actor import Role
from whorl.distributed.fleet import Fleet, gpu_share
from whorl.distributed.fleet_collector import FleetCollector
from whorl.distributed.ray import LOOPBACK, PATIENT, _same_signals, connect
from whorl.distributed.remote import RestartPolicy
from whorl.envs.make import find
from whorl.settings.merge import configure
from whorl.state.policy import build_agent

ray = pytest.importorskip("ray")

ACTORS, NUM_ENVS, STEPS = 2, 2, 8
SMALL: dict[str, Any] = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "num_envs": ACTORS * NUM_ENVS,
    "actors": ACTORS,
}
NODE: dict[str, Any] = {
    "num_cpus": 1,
    "node_ip_address": LOOPBACK,
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
}


def add_node(cluster: Any, **options: Any) -> None:
    """Ray gives a node 30 seconds to start, which a busy machine exceeds: then another one is tried."""
    for attempt in range(8):
        try:
            cluster.add_node(**NODE, **options)
            return
        except Exception:  # Ray raises no other
            if attempt == 7:
                raise


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        # That a node's process has ended is known after five seconds in place of fifteen. One that is only slow to
        # answer is waited for: Ray would end this process, and with it all tests to come.
        quick = {**PATIENT, "health_check_period_ms": 1000}
        found = Cluster()
        with _same_signals():  # else SIGTERM would end the nodes, and this process with them
            add_node(found, _system_config=quick)
            add_node(found)
        yield found
        found.shutdown()


@pytest.fixture(scope="module")
def collector(cluster: Any) -> Iterator[FleetCollector]:
    found = collector_of(cluster.address)
    yield found
    found.close()


def collector_of(address: str, env: Any = "CartPole-v1", restarts: int = 2) -> FleetCollector:
    source = find(env)
    num_envs = ACTORS * NUM_ENVS
    agent = build_agent(configure("impala", source.id, {"num_envs": num_envs}), source.spec(num_envs), 0)
    role = Role(agent, source, NUM_ENVS, STEPS)
    fleet = Fleet(
        role,
        ACTORS,
        lambda actor, life: (100 * actor + life, life),
        policy=RestartPolicy(restarts),
        ray=address,
    )
    return FleetCollector(fleet, role, agent, ACTORS, max_lag=None)


def collect_until(collector: FleetCollector, reached: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it never came to pass"
        collector.start()
        assert torch.isfinite(collector.finish().reward).all()


def nodes(fleet: Any) -> set[str]:
    return {member.remote.node for member in fleet.members if member.started}


def of_run(mark: str) -> set[int]:
    """Processes that inherited this mark."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.add(int(path.parent.name))
    return found


def wait_until(reached: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.2)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(WhorlError, match=r"pip install .*\[ray\]"):
        collector_of("local")


def test_where_no_cluster_answers_one_hears_of_it_at_once() -> None:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(EnvError, match=f"no Ray cluster answers at 127.0.0.1:{port}; start one with"):
            collector_of(f"{LOOPBACK}:{port}")
        with pytest.raises(
            EnvError, match=f"no Ray cluster answers at ray://127.0.0.1:{port}; start one with"
        ):
            collector_of(f"ray://{LOOPBACK}:{port}")
    assert time.monotonic() - began < 300  # Ray itself tries for more than ten minutes, twice


def test_what_is_no_address_is_told() -> None:
    with pytest.raises(ConfigError, match="ray 'locl' is not an address; use local, auto, host:port"):
        collector_of("locl")


@pytest.mark.parametrize(
    ("gpus", "actors", "expected"),
    [(1, 3, 0.3333), (2, 3, 0.5), (4, 2, 1.0), (0, 2, 0.0)],  # of two GPUs one has two of three actors
)
def test_actors_share_gpus_such_that_all_find_room(gpus: int, actors: int, expected: float) -> None:
    assert gpu_share(gpus, actors) == expected


class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        raise RuntimeError("the joint is jammed")


def test_sigterm_does_what_it_did_before_ray_was_asked() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with _same_signals():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as ray.init does
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(SystemExit) as left, _same_signals():
        sys.exit(int(signal.SIGTERM))  # as it does if one comes while it connects
    assert left.value.code == 143


def test_connecting_to_a_cluster_leaves_the_signals_alone(cluster: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    found, connected, _ = connect(cluster.address, 0)
    found.shutdown()
    assert connected and signal.getsignal(signal.SIGTERM) == before


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_whose_node_is_lost_says_so_and_is_resumed(tmp_path: Path) -> None:
    """Ray ends the learner with status 1 and prints nothing."""
    command = [sys.executable, "-m", "whorl"]
    train = [
        "train",
        "impala",
        "CartPole-v1",
        "--actors",
        "1",
        "--num-envs",
        "2",
        "--ray",
        "local",
        "--log-freq",
        "1",
    ]
    train += [
        "--total-timesteps",
        "1000000000",
        "--checkpoint-freq",
        "200",
        "--no-eval",
        "--runs",
        str(tmp_path),
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with open(tmp_path / "log", "w") as log:
        run = subprocess.Popen([*command, *train], env=environ, stdout=log, stderr=log)
    try:
        wait_until(lambda: run.poll() is not None or any(tmp_path.glob("*/checkpoint_*/metadata.yaml")))
        (raylet,) = (p for p in psutil.Process(run.pid).children(recursive=True) if p.name() == "raylet")
        raylet.kill()
        assert run.wait(600) == 1
    finally:
        run.kill()
    wait_until(lambda: "was ended from outside Python" in (tmp_path / "log").read_text())
    (folder,) = tmp_path.glob("*/config.yaml")
    steps = yaml.safe_load(max(folder.parent.glob("checkpoint_*/metadata.yaml")).read_text())["steps"]
    resume = ["resume", str(folder.parent), "--total-timesteps", str(steps + 2000)]
    assert subprocess.run([*command, *resume], env=environ, timeout=600).returncode == 0


def test_an_environment_that_raises_is_tried_a_few_times_and_then_named(cluster: Any, tmp_path: Path) -> None:
    settings = {
        **SMALL,
        "runs": str(tmp_path),
        "num_envs": 1,
        "actors": 1,
        "actor_restarts": 1,
        "ray": cluster.address,
    }
    with (
        pytest.warns(UserWarning, match="actor 0 failed and is replaced .*the joint is jammed"),
        pytest.raises(
            EnvError, match=r"actor 0 failed 2 times in a row; last error: .*the joint is jammed"
        ) as caught,
    ):
        whorl.load(Broken, "impala", settings).train()
    assert "step 1 of episode 1: step() raised RuntimeError" in caught.value.message
    assert "Traceback" in caught.value.details
    assert not ray.is_initialized()


def test_gradients_come_from_a_cluster_as_from_processes(cluster: Any, tmp_path: Path) -> None:
    more = {
        "runs": str(tmp_path),
        "num_steps": 4,
        "total_timesteps": 100,
        "log_freq": 1,
        "ray": cluster.address,
    }
    trainer = whorl.load("CartPole-v1", "a3c", {**SMALL, **more})
    assert trainer.train().steps >= 100
    assert trainer.agent.updates == trainer.iteration > 0
    assert not ray.is_initialized()


class Kill(whorl.Callback):
    """The end of a shard in the middle of a run."""

    def on_update(self, trainer: Any, row: dict[str, Any]) -> None:
        if trainer.iteration == 8:
            os.kill(trainer.experience.links[1].remote.pid, signal.SIGKILL)


def test_shards_on_a_cluster_serve_and_one_that_dies_is_replaced(cluster: Any, tmp_path: Path) -> None:
    more = {
        "runs": str(tmp_path),
        "num_steps": 4,
        "total_timesteps": 600,
        "log_freq": 1,
        "ray": cluster.address,
    }
    replay = {
        "shards": 2,
        "learning_starts": 64,
        "updates_per_step": 0.1,
        "batch_size": 8,
        "buffer_size": 400,
        "random_steps": 0,
    }
    trainer = whorl.load("CartPole-v1", "apex_dqn", {**SMALL, **more, **replay}, callbacks=[Kill()])
    with pytest.warns(UserWarning, match="replay shard 1 failed and is replaced"):
        result = trainer.train()
    assert int(0.1 * (result.steps - ACTORS * NUM_ENVS * 4 - 64)) <= trainer.agent.updates
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert (rows[-1]["shards/replaced"], rows[-1]["shards/ready"]) == (1, 2)
    assert all(row["actors/bytes_in"] == 0 for row in rows)  # actors write to the shards directly


def test_gpus_that_a_cluster_does_not_have_are_told(cluster: Any) -> None:
    with pytest.raises(ConfigError, match="the Ray cluster has no GPU"):
        whorl.load("CartPole-v1", "impala", {**SMALL, "actors_on_gpu": True, "ray": cluster.address}).build()
    assert not ray.is_initialized()


def test_what_can_not_be_sent_is_told_before_anything_is_started() -> None:
    more = {"actor_gradients": "async", "ray": f"{LOOPBACK}:1"}
    with pytest.raises(ConfigError, match="DQN learns from replay"):
        whorl.load("CartPole-v1", "dqn", {**SMALL, **more}).build()


def test_actors_on_two_nodes_bring_rollouts_and_every_step_is_counted_once(collector: FleetCollector) -> None:
    fleet: Any = collector.fleet
    collect_until(collector, lambda: fleet.alive() == ACTORS)
    assert len(nodes(fleet)) == 2
    collector.episode_statistics.drain(), collector.metrics()
    steps = 0
    for _ in range(6):
        collector.start()
        steps += int(collector.finish().mask.sum())
    assert steps == collector.episode_statistics.drain()["steps"]
    told = collector.metrics()
    assert told["actors/lag"] <= told["actors/lag_max"] < collector.version
    # A version goes to a node once, however many rollouts are made with it there: those of six batches, and of four
    # slots that are filled ahead, at most.
    assert 0 < told["actors/bytes_out"] <= (6 * ACTORS + 4) * fleet._weights.bytes


def test_a_killed_actor_is_replaced_and_the_others_go_on(collector: FleetCollector) -> None:
    fleet: Any = collector.fleet
    collect_until(collector, lambda: fleet.alive() == ACTORS)
    before = list(fleet.lives)
    os.kill(fleet.members[0].remote.pid, signal.SIGKILL)
    with pytest.warns(UserWarning, match="actor 0 failed and is replaced"):
        collect_until(collector, lambda: fleet.lives[0] > before[0] and fleet.alive() == ACTORS)
    assert fleet.lives[1] == before[1]


def test_a_run_outlives_a_node_and_uses_one_that_comes(
    collector: FleetCollector, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet: Any = collector.fleet
    collect_until(collector, lambda: fleet.alive() == ACTORS)
    before = nodes(fleet)
    monkeypatch.setattr(fleets, "START_WARNING", 2.0)
    (other,) = cluster.worker_nodes
    cluster.remove_node(other, allow_graceful=False)
    with pytest.warns(UserWarning, match=r"1 of 2 actors have not started in \d+ s; each takes a CPU"):
        collect_until(collector, lambda: fleet.alive() == 1 and fleet._warned)
    add_node(cluster)
    collect_until(collector, lambda: fleet.alive() == ACTORS)
    assert len(nodes(fleet)) == 2 and nodes(fleet) != before


def test_a_run_none_of_whose_actors_finds_room_ends_and_says_what_there_is(
    collector: FleetCollector, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet: Any = collector.fleet
    collect_until(collector, lambda: fleet.alive() == ACTORS)  # they hold both CPUs
    monkeypatch.setattr(fleets, "START_LIMIT", 1.0)
    other = collector_of(cluster.address)
    other.start()
    with pytest.raises(EnvError, match="2 of 2 actors have not started"):
        other.finish()
    other.close()
    assert ray.is_initialized()  # it was connected before


def test_stopping_ends_the_actors_and_leaves_the_cluster(collector: FleetCollector) -> None:
    fleet: Any = collector.fleet
    collect_until(collector, lambda: fleet.alive() == ACTORS)
    pids = [member.remote.pid for member in fleet.members]
    collector.close()
    assert not ray.is_initialized()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    collector.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_cluster_of_this_machine_listens_on_loopback_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    mark = f"WHORL_TEST_RUN={secrets.token_hex(8)}"
    settings = {**SMALL, "runs": str(tmp_path), "total_timesteps": 10**9, "ray": "local", "log_freq": 1}
    run = subprocess.Popen(
        [sys.executable, "-c", f"import whorl; whorl.load('CartPole-v1', 'impala', {settings}).train()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **dict([mark.split("=")])},
    )
    try:
        wait_until(lambda: any(path.stat().st_size for path in tmp_path.rglob("metrics.jsonl")))
        found = sockets.listening(of_run(mark))
        assert found and found <= sockets.LOOPBACK
        run.send_signal(signal.SIGINT)
        run.wait(600)
        wait_until(lambda: not of_run(mark))
    finally:
        for pid in of_run(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
