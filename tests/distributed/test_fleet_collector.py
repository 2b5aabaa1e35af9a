"""What the learner makes of trajectories, and settings that would have no effect."""

import gc
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import whorl
from whorl.agents.agent import Agent
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.distributed import process
from whorl.distributed.actor import RemoteActor, Role, Trajectory
from whorl.distributed.fleet import Fleet
from whorl.distributed.fleet_collector import FleetCollector, make_fleet
from whorl.envs.make import find
from whorl.run.resume import load_run
from whorl.settings.merge import configure
from whorl.state.checkpoint import checkpoints
from whorl.state.policy import build_agent
from whorl.state.streams import Streams


class Scripted:
    """A fleet of which `alive` actors are at work, and whose polls bring what they are given."""

    sent = 0
    dashboard = ""

    def __init__(self, actors: int, alive: int, *polls: list[Trajectory]) -> None:
        self.lives, self.at_work, self.polls = [0] * actors, alive, list(polls)
        self.released: list[tuple[int, int]] = []

    def publish(self, weights: Any, version: int, random: bool) -> None: ...

    def poll(self, seconds: float) -> list[Trajectory]:
        return self.polls.pop(0)

    def release(self, trajectory: Trajectory) -> None:
        self.released.append((trajectory.actor, trajectory.number))

    def alive(self) -> int:
        return self.at_work

    def stop(self) -> None: ...


def role_of(algorithm: str, num_envs: int, steps: int, **settings: Any) -> Role:
    source = find("CartPole-v1")
    cfg = configure(algorithm, "CartPole-v1", {"num_envs": num_envs, **settings})
    sends: Any = "priorities" if settings.get("priority_on_add") else "rows"
    return Role(build_agent(cfg, source.spec(num_envs), 0), source, 1, steps, sends)


def trajectory(role: Role, actor: int, number: int, version: int = 1) -> Trajectory:
    tensors = role.payload().example
    if "first" in tensors["extras"]:
        tensors["extras"]["first"].fill_(number)
    return Trajectory(tensors, actor, 0, number, version, {"steps": 1.0}, 1.0)


def test_priorities_of_samples_that_reach_back_over_a_gap_are_left_to_replay() -> None:
    role = role_of("dqn", 1, 2, prioritized=True, priority_on_add=True, n_step=5)
    fleet = Scripted(1, 1, *([trajectory(role, 0, number)] for number in (4, 5, 6, 7)))
    collector = FleetCollector(fleet, role, role.agent, 1, max_lag=None)
    found = []
    for _ in range(4):
        collector.start()
        found.append(collector.finish().extras["first"].squeeze(1).nan_to_num(0.0).tolist())
    # A trajectory of two rows completes samples that began five and four rows before it.
    assert found == [[0, 0], [0, 0], [0, 6], [7, 7]]


def test_priorities_behind_a_gap_count_the_rows_that_components_look_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Agent, "successors", (5,))
    role = role_of("dqn", 1, 2, prioritized=True, priority_on_add=True, n_step=1)
    fleet = Scripted(1, 1, *([trajectory(role, 0, number)] for number in (4, 5, 6, 7)))
    collector = FleetCollector(fleet, role, role.agent, 1, max_lag=None)
    found = []
    for _ in range(4):
        collector.start()
        found.append(collector.finish().extras["first"].squeeze(1).nan_to_num(0.0).tolist())
    assert found == [[0, 0], [0, 0], [0, 6], [7, 7]]


def test_rows_behind_a_gap_keep_their_memory_and_claim_no_new_episode() -> None:
    role = role_of("impala", 1, 4, memory="lstm")

    def remembered(number: int) -> Trajectory:
        found = trajectory(role, 0, number)
        for leaf in tree.leaves({name: found.tensors[name] for name in ("memory", "memories")}):
            leaf.fill_(number)
        return found

    fleet = Scripted(1, 1, [remembered(0)], [remembered(2)])  # the one between them was dropped
    collector = FleetCollector(fleet, role, role.agent, 1, max_lag=None)
    for number in (0, 2):
        collector.start()
        rollout = collector.finish()
        held = tree.leaves({"memory": rollout.memory, "memories": rollout.memories})
        assert held and all((leaf == number).all() for leaf in held)
        assert collector.gaps.all() and not rollout.reset.any()


def test_a_trajectory_may_be_max_lag_versions_old_and_no_older() -> None:
    role = role_of("a2c", 1, 2)
    fleet = Scripted(1, 1, [trajectory(role, 0, number, version) for number, version in ((4, 1), (5, 2))])
    collector = FleetCollector(fleet, role, role.agent, 1, max_lag=1)
    collector.version = 2
    collector.start()  # version 3: the first is two versions old, the second one
    collector.finish()
    found = collector.metrics()
    assert (found["actors/lag"], found["actors/dropped_steps"]) == (1, 1)
    assert fleet.released == [(0, 4), (0, 5)]


def test_a_trajectory_goes_where_its_rows_continue_those_of_the_rollout_before() -> None:
    role = role_of("a2c", 2, 2)
    orders = [(0, 0), (1, 0)], [(1, 1), (1, 2)], [(1, 3), (0, 1)]  # actor and number
    fleet = Scripted(2, 2, *([trajectory(role, *each) for each in order] for order in orders))
    collector = FleetCollector(fleet, role, role.agent, 2, max_lag=None)
    found = []
    for _ in orders:
        collector.start()
        collector.finish()
        found.append(collector.gaps.tolist())
    # The second actor fills both places; in the third rollout it goes on in the first place, not in its own.
    assert found == [[True, True], [True, False], [False, True]]


def test_no_two_actors_and_no_two_lives_of_one_share_seeds() -> None:
    source = find("CartPole-v1")
    cfg = configure("a2c", "CartPole-v1", {"num_envs": 4, "actors": 4})
    collector = make_fleet(source, build_agent(cfg, source.spec(4), 0), cfg.run, Streams(0))
    try:
        seeds = [collector.fleet.seed(actor, life) for actor in range(4) for life in range(2)]
    finally:
        collector.close()
    for numbers in zip(*seeds):  # of acting, and of the environments
        assert len(set(numbers)) == 8


@pytest.mark.parametrize(("algorithm", "direct"), [("sac", True), ("flash_sac", False)])
def test_rows_for_shards_pass_through_a_learner_that_follows_their_rewards(
    algorithm: str, direct: bool
) -> None:
    source = find("Pendulum-v1")
    cfg = configure(algorithm, "Pendulum-v1", {"num_envs": 4, "actors": 2, "shards": 2})
    collector = make_fleet(source, build_agent(cfg, source.spec(4), 0), cfg.run, Streams(0))
    collector.close()
    assert collector.fleet.direct is direct


def test_who_waits_stands_in_for_as_many_as_are_missing() -> None:
    role = role_of("a2c", 4, 2)
    fleet = Scripted(4, 4, [trajectory(role, actor, 0) for actor in range(4)])
    collector = FleetCollector(fleet, role, role.agent, 4, max_lag=0)
    collector.start()
    collector.finish()
    collector.start()
    fleet.released.clear()
    fleet.at_work = 3  # the fourth has died, and the third takes its time
    quick, again, slow = ([trajectory(role, actor, number, 2)] for actor, number in ((0, 1), (0, 2), (2, 1)))
    fleet.polls = [[*quick, trajectory(role, 1, 1, 2)], [], again, [], slow]
    collector.finish()
    assert fleet.released == [(0, 1)]


def test_actors_that_never_start_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    role = role_of("a2c", 2, 2)
    fleet = Scripted(2, 1, [trajectory(role, 0, 0)], [], [], [trajectory(role, 0, 1)])
    collector = FleetCollector(fleet, role, role.agent, 2, max_lag=0)
    collector.start()
    times = iter(range(0, 1000, 20))
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    collector.finish()
    assert fleet.released == [(0, 0)]


class Forgetful:
    """Replay shards that lose the trajectory of the first place once."""

    def __init__(self) -> None:
        self.lost = [{0}, set(), set()]

    def stage(self, place: int, trajectory: Trajectory, lost: int) -> None: ...

    def staged(self) -> set[int]:
        return self.lost.pop(0)


@pytest.mark.parametrize("max_lag", [0, None])
def test_a_trajectory_that_shards_could_not_read_is_collected_again(max_lag: int | None) -> None:
    role = role_of("dqn", 2, 2)
    both = [trajectory(role, actor, 0) for actor in range(2)]
    fleet = Scripted(2, 2, both, [trajectory(role, 0, 1)])
    collector = FleetCollector(fleet, role, role.agent, 2, max_lag)
    collector.shards = Forgetful()
    collector.start()
    collector.finish()
    assert (0, 0) in fleet.released, "its actor has nothing to do"
    assert ((1, 0) in fleet.released) == (max_lag is None), (
        "the other one waits for the next version with max_lag 0"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_first_actor_has_started_ends_the_run_at_once(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent = []

    def poll(self: Fleet, seconds: float) -> list[Trajectory]:
        if not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return []

    monkeypatch.setattr(Fleet, "poll", poll)
    monkeypatch.setattr(Fleet, "_start", lambda self, number: None)
    given = {"quiet": True, "tensorboard": False, "eval": False, "num_envs": 2, "runs": str(tmp_path)}
    with pytest.raises((KeyboardInterrupt, SystemExit)) as error:
        whorl.load("CartPole-v1", "impala", given).train()
    (run,) = tmp_path.iterdir()
    assert not (run / "run.lock").exists() and not checkpoints(run)
    if number == signal.SIGINT:
        assert "before the first checkpoint; start again with" in str(error.value)
    else:
        assert isinstance(error.value, SystemExit) and error.value.code == 143


def test_an_actor_that_hangs_at_its_start_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(RemoteActor):
        def __init__(self, role: bytes, number: int, *rest: Any) -> None:
            if number == 0:
                time.sleep(1000)
            super().__init__(role, number, *rest)

    monkeypatch.setattr("whorl.distributed.fleet.RemoteActor", Hanging)
    role = role_of("a2c", 2, 2)
    fleet = Fleet(role, 2, lambda actor, life: (actor, life))
    try:
        fleet.publish(role.weights(role.agent), 1, False)
        found: list[Trajectory] = []
        while not found:
            found = fleet.poll(1.0)
        assert found[0].actor == 1 and fleet.alive() == 1
    finally:
        fleet.stop()


def test_a_replaced_actor_does_not_overwrite_unread_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    role = role_of("a2c", 1, 2)
    fleet = Fleet(role, 1, lambda actor, life: (actor, life))
    try:
        fleet.publish(role.weights(role.agent), 1, False)
        found: list[Trajectory] = []
        while not found:
            found = fleet.poll(1.0)
        kept = tree.clone(found[0].tensors)
        remote: Any = fleet.members[0].remote
        remote.process.kill()
        with pytest.warns(UserWarning, match="actor 0 failed and is replaced"):
            later: list[Trajectory] = []
            while not later:
                for one in fleet.poll(1.0):
                    if one.life:
                        later.append(one)
                    else:  # it was finished before its actor was killed
                        fleet.release(one)
        assert later[0].slot != found[0].slot
        assert all(map(torch.equal, tree.leaves(kept), tree.leaves(found[0].tensors)))
        fleet.release(found[0])
        while not any(one.slot == found[0].slot for one in fleet.poll(1.0)):
            pass
    finally:
        fleet.stop()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors in /proc")
def test_an_actor_that_can_not_be_started_leaves_no_memory_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError("no more processes")

    def descriptors() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    monkeypatch.setattr(process, "_launch", refuse)
    role = role_of("a2c", 2, 2)
    fleet = Fleet(role, 2, lambda actor, life: (actor, life))
    before = descriptors()
    for _ in range(3):
        with pytest.raises(OSError, match="no more processes"):
            fleet.publish(role.weights(role.agent), 1, False)
    assert descriptors() == before
    fleet.stop()


def test_a_restart_is_not_counted_as_a_replacement() -> None:
    role = role_of("impala", 2, 2)
    collector = FleetCollector(Scripted(2, 2), role, role.agent, 2, max_lag=None)
    collector.fleet.lives = [0, 3]
    again = FleetCollector(Scripted(2, 2), role, role.agent, 2, max_lag=None)
    again.load_state_dict(collector.state_dict())
    assert again.fleet.lives == [1, 4]  # other seeds
    again.fleet.lives[0] += 1
    assert again.metrics()["actors/replaced"] == 4


def test_the_rate_of_updates_after_a_resume_is_of_those_made_since(tmp_path: Path) -> None:
    small = {"quiet": True, "tensorboard": False, "eval": False, "runs": str(tmp_path)}
    given = {**small, "num_envs": 2, "num_steps": 2, "max_iterations": 2}
    run = whorl.load("CartPole-v1", "a2c", given).train().run_dir
    again = load_run(run, {"max_iterations": 3})
    try:
        again._open()
        found = again._system.metrics(again.agent.updates, 0.0)
        assert found["learner/updates"] > 0 and found["learner/updates_per_second"] == 0
    finally:
        again.close()


@pytest.mark.parametrize(("algorithm", "settings", "message"), [
    ("dqn", {"ray": "local"}, "ray is 'local', but there are no actors or learners to run there"),
    ("a3c", {"actors": 0}, "actor_gradients is 'async', but there are no actors"),
    ("dqn", {"max_lag": 2}, "max_lag is 2, but there are no actors"),
    ("dqn", {"actors_on_gpu": True}, "actors_on_gpu is True, but there are no actors"),
    ("a3c", {"max_lag": 2}, "max_lag is 2, but actors that send gradients wait"),
    ("impala", {"acting": "workers"}, "acting is workers, but with actors these act; leave acting out"),
    ("impala", {"actors": 4, "num_envs": 4, "workers": 2}, "2 for each actor, which has 1 environment; choose 0 to 1"),
])  # fmt: skip
def test_settings_without_effect_are_told(algorithm: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        whorl.load("CartPole-v1", algorithm, settings).build()


def test_workers_are_none_where_environments_are_one_batch(tmp_path: Path) -> None:
    given = {"num_envs": 4, "actors": 2, "workers": 2, "quiet": True, "runs": str(tmp_path)}
    trainer = whorl.load("Quadrotor-v0", "impala", given).build()
    try:
        assert trainer.settings.run.workers == 0
    finally:
        trainer.close()


def test_actors_on_gpus_that_are_not_there_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        whorl.load("CartPole-v1", "impala", {"actors_on_gpu": True}).build()
