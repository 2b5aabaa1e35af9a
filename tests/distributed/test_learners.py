"""Several learners of one batch: equal to one that has all of it, equal to each other, and none is missed for long."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import whorl
from whorl.agents.agent import Agent, Updated
from whorl.conformance import Run, Subject, copied, same, subject
from whorl.core.errors import ConfigError, WhorlError
from whorl.data.batch import Batch
from whorl.data.replay import Replay
from whorl.distributed.group import GroupMember
from whorl.distributed.learners import Learners, Replica, Round, check_learners, joined, learned, split
from whorl.run.callbacks import Callback
from whorl.run.resume import load_run
from whorl.settings.merge import configure

# Several learners in threads of this process: the arithmetic, without the transport.


class Threads:
    """Sums over ranks that are threads."""

    def __init__(self, size: int) -> None:
        self.size, self.values = size, [torch.zeros(())] * size
        self.barrier = threading.Barrier(size, timeout=600)

    def rank(self, number: int) -> "Rank":
        return Rank(self, number)


class Rank:
    def __init__(self, among: Threads, rank: int) -> None:
        self.among, self.rank, self.size = among, rank, among.size

    def add_(self, value: Tensor) -> None:
        self.among.values[self.rank] = value.clone()
        self.among.barrier.wait()
        found = sum(self.among.values[1:], self.among.values[0])
        self.among.barrier.wait()
        value.copy_(found)

    def average_(self, values: Any) -> None:
        for value in values:
            self.add_(value)
            value.div_(self.size)


class Several(Run):
    """A run of the conformance suite whose batches are shared by two agents."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.other = subject.agent()
        for name, stream in self.other.generators.items():
            stream.manual_seed(len(name))  # what is drawn differs

    def feed(self, rollouts: Any) -> list[Updated]:
        found = []
        for rollout in rollouts:
            self.agent.observe(rollout)
            self.other.observe(rollout)
            self.experience.add(copied(rollout))
            for phase, batch in self.experience.due():
                found.append(self.share(phase, batch))
                self.experience.settle(batch, found[-1])
                for agent in (self.agent, self.other):
                    agent.updates += phase == "update"
        return found

    def share(self, phase: str, batch: Batch) -> Updated:
        threads, done = Threads(2), {}

        def work(number: int, agent: Agent, part: dict[str, Any]) -> None:
            rank: Any = threads.rank(number)
            agent.exchange = rank.average_
            try:
                done[number] = learned(agent, rank, phase, copied(batch.replace(**part)))
            except BaseException:
                threads.barrier.abort()  # or the other would wait for nothing
                raise

        parts = split(batch.tensors(), 2)
        workers = [
            threading.Thread(target=work, args=(number, agent, part))
            for number, (agent, part) in enumerate(zip((self.agent, self.other), parts))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return joined(done[0][0], [done[0][1], done[1][1]], self.agent.device)


EXACT = {
    **dict.fromkeys(("a2c", "impala", "reinforce", "reinforce_baseline"), "continuous"),
    **dict.fromkeys(("dqn", "prioritized_dqn", "c51", "qr_dqn", "sac", "cql", "option_critic"), "discrete"),
    **dict.fromkeys(("ddpg", "td3_bc"), "continuous"),
    **dict.fromkeys(("bc", "iql"), "mixed"),
}
"""agents that draw nothing at random in an update, TD3 without noise on target actions"""


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("name", EXACT)
def test_two_learners_are_one_with_the_joint_batch(name: str, memory: str) -> None:
    case = subject(name, "vector", memory, EXACT[name], **{"target_noise": 0.0} if name == "td3_bc" else {})
    one, two = Run(case), Several(case)
    rollouts = case.rollouts(one.agent, 3)
    alone, shared = one.feed(rollouts), two.feed(rollouts)
    assert len(alone) == len(shared) >= 3
    assert same(two.agent.state(), two.other.state())
    for mine, theirs in zip(one.agent.state_tensors(), two.agent.state_tensors()):
        torch.testing.assert_close(theirs, mine, atol=1e-5, rtol=1e-5)
    for update, other in zip(alone, shared):
        torch.testing.assert_close(other.metrics, update.metrics, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(other.priority, update.priority, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "action", "memory"),
    [
        ("ppo", "discrete", "gru"),
        ("ppo", "continuous", "none"),
        ("ppg", "discrete", "gru"),
        ("ppg", "continuous", "none"),
        ("pqn", "discrete", "none"),
        ("sac", "continuous", "none"),
        ("td3", "continuous", "gru"),
        ("tqc", "continuous", "none"),
        ("iqn", "discrete", "none"),
        ("rainbow", "discrete", "none"),
        ("redq", "continuous", "none"),
    ],
)
def test_learners_that_draw_apart_stay_equal_to_the_last_bit(name: str, action: str, memory: str) -> None:
    adaptive = {"lr_schedule": "kl", "kl_cut": 1e-4, "normalize_advantage": "minibatch"}
    case = subject(name, "vector", memory, action, **adaptive if name == "ppo" else {})
    run = Several(case)
    assert run.feed(case.rollouts(run.agent, 3))
    assert same(run.agent.state(), run.other.state())
    assert not same(run.agent.state_dict(), case.agent().state_dict())


# Replicas in processes.


def telling(agent: type[Agent]) -> type[Agent]:
    """An agent whose updates also return a checksum of its state before, for the environments of each learner."""

    class Telling(agent):  # type: ignore[valid-type, misc]
        def update(self, batch: Batch) -> Updated:
            bits = sum(_bits(tensor) for tensor in self.state_tensors())
            updated = super().update(batch)
            updated.kept = {"bits": bits.expand(1, batch.shape[1]).clone()}
            return updated

    return Telling


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).long().cumsum(0).sum()


CASES = {"a2c": "continuous", "impala": "discrete", "prioritized_dqn": "discrete"}


class Pair:
    """An agent alone, and one that shares its batches with a replica."""

    def __init__(self, name: str) -> None:
        self.case = subject(name, "vector", "none", CASES[name], learners=2)
        self.one, self.two = Run(self.case), Run(self.case)
        agent = self.two.agent
        agent.__class__ = telling(type(agent))
        copy = type(agent)(agent.spec, agent.cfg)
        self.learners = Learners(agent, copy, self.case.configured().run, [])


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, Pair]]:
    found = {name: Pair(name) for name in CASES}  # all replicas start at once
    yield found
    for pair in found.values():
        pair.learners.close()


@pytest.mark.parametrize("name", CASES)
def test_a_replica_in_a_process_makes_two_of_one(name: str, pairs: dict[str, Pair]) -> None:
    pair = pairs[name]
    rollouts = pair.case.rollouts(pair.one.agent, 3)
    alone = pair.one.feed(rollouts)
    shared = []
    for rollout in rollouts:
        pair.two.experience.add(copied(rollout))
        for phase, batch in pair.two.experience.due():
            shared.append(pair.learners.update(phase, batch))
            pair.two.agent.updates += 1
            pair.two.experience.settle(batch, shared[-1])
            bits = shared[-1].kept["bits"]
            assert bits.shape[1] == batch.shape[1] and (bits == bits[0, 0]).all()
    assert len(shared) == len(alone) >= 3
    for mine, theirs in zip(pair.one.agent.state_tensors(), pair.two.agent.state_tensors()):
        torch.testing.assert_close(theirs, mine, atol=1e-5, rtol=1e-5)
    for update, other in zip(alone, shared):
        torch.testing.assert_close(other.priority, update.priority, atol=1e-5, rtol=1e-5)


def test_what_is_written_outside_of_an_update_reaches_the_replica(pairs: dict[str, Pair]) -> None:
    pair = pairs["a2c"]
    agent = pair.one.agent
    rollout = agent.discounting().apply(pair.case.rollouts(agent, 1)[0])
    with torch.no_grad():
        pair.two.agent.progress.fill_(0.5)
        pair.two.agent.load_state(pair.one.agent.state())
    bits = pair.learners.update("update", rollout).kept["bits"]
    assert (bits == bits[0, 0]).all()


def test_no_two_replicas_and_no_two_rounds_share_random_numbers() -> None:
    case = subject("sac", "vector", "none", "continuous", learners=3)
    agent, run = case.agent(), case.configured().run

    def drawn(rank: int, updates: int) -> tuple[float, ...]:
        member = GroupMember(rank, 3, "cpu", ("127.0.0.1", 0), "gloo")
        replica = Replica(type(agent)(case.spec, agent.cfg), run, member, [])
        replica._seed(Round("update", updates, 0, [], {}, None))
        return tuple(torch.rand((), generator=stream).item() for stream in replica.agent.generators.values())

    assert drawn(1, 5) == drawn(1, 5)  # a round that is repeated
    assert len({drawn(1, 5), drawn(2, 5), drawn(1, 6)}) == 3


def test_learners_that_fail_too_often_end_the_run_and_are_named() -> None:
    case = subject("a2c", "vector", "none", "discrete", learners=2, actor_restarts=0)
    agent, run = case.agent(), case.configured().run
    learners = Learners(agent, type(agent)(case.spec, agent.cfg), run, [])
    os.kill(learners.replicas[0].pid, signal.SIGKILL)
    with pytest.raises(
        WhorlError, match=r"a learner replica failed once; last error: learner 1 was killed by SIGKILL"
    ):
        learners.update("update", agent.discounting().apply(case.rollouts(agent, 1)[0]))


# Whole runs.

RUN: dict[str, Any] = {
    "learners": 2,
    "num_envs": 4,
    "num_steps": 4,
    "max_iterations": 16,
    "checkpoint_freq": 128,
    "learning_starts": 32,
    "random_steps": 0,
    "updates_per_step": 0.2,
    "batch_size": 16,
    "buffer_size": 2000,
    "actor_hidden_sizes": [16],
    "critic_hidden_sizes": [16],
    "prioritized": True,
    "normalize_obs": True,
    "eval": False,
    "log_freq": 1,
    "device": "cpu",
    "workers": 0,
    "tensorboard": False,
    "quiet": True,
}


class Fate(Callback):
    """Kills the replica before the sixth epoch, and interrupts the run after the eighth."""

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def on_rollout(self, trainer: Any, rollout: Any) -> None:
        (replica,) = trainer.parts.learners.replicas
        self.pids.add(replica.pid)
        if trainer.iteration == 5:
            os.kill(replica.pid, signal.SIGKILL)
        if trainer.iteration == 7:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return whorl.load("Pendulum-v1", "sac", {**RUN, "runs": str(folder)}).train().run_dir


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Fate]:
    folder, fate = tmp_path_factory.mktemp("half"), Fate()
    with (
        pytest.warns(UserWarning, match=r"a learner replica failed and is replaced .*SIGKILL"),
        pytest.raises(KeyboardInterrupt) as interrupted,
    ):
        whorl.load("Pendulum-v1", "sac", {**RUN, "runs": str(folder)}, callbacks=[fate]).train()
    result = interrupted.value.result
    assert result.interrupted and result.iterations == 8
    return result.run_dir, fate


def state(folder: Path) -> dict[str, Any]:
    trainer = load_run(folder, {"learners": 1})
    try:
        if isinstance(trainer.experience, Replay):
            trainer.experience.store = None
        return trainer.state()
    finally:
        trainer.close()


def assert_same_run(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["agent"]["updates"] == other["agent"]["updates"] > 0
    for part in ("agent", "experience", "streams", "collector"):
        assert same(one[part], other[part]), f"{part} differs"
    for counter in ("steps", "iteration", "episodes"):
        assert one["counters"][counter] == other["counters"][counter]


def test_a_run_whose_replica_was_killed_equals_one_where_none_was(
    whole: Path, half: tuple[Path, Fate]
) -> None:
    run_dir, _ = half
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [row["learners/replaced"] for row in rows] == [0] * 5 + [1] * 3
    assert_same_run(state(whole / "checkpoint_1"), state(run_dir / "checkpoint_1"))


def test_an_interrupted_run_leaves_no_replica_behind(half: tuple[Path, Fate]) -> None:
    _, fate = half
    assert len(fate.pids) == 2
    for pid in fate.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_resumed_run_with_two_learners_equals_the_uninterrupted_one(
    whole: Path, half: tuple[Path, Fate]
) -> None:
    run_dir, _ = half
    whorl.resume(run_dir, quiet=True)
    assert_same_run(state(whole), state(run_dir))


# What can't be shared.


@pytest.mark.parametrize(
    ("algorithm", "settings", "words"),
    [
        ("a2c", {"num_envs": 4, "learners": 3}, "3 learners can't share num_envs 4 evenly; use 3 or 6"),
        (
            "dqn",
            {"batch_size": 32, "learners": 5},
            "5 learners can't share batch_size 32 evenly; use 30 or 35",
        ),
        (
            "ppo",
            {"num_envs": 4, "num_steps": 64, "batch_size": 64, "memory": "gru", "chunk": 64, "learners": 2},
            "2 learners can't share batch_size 64 evenly in whole chunks of 64 rows; use 128",
        ),
        ("dqn", {"compile": True, "learners": 2}, "compiled losses can't exchange counts"),
        ("dqn", {"learners": 0}, "learners is 0; it must be from 1 to 1,000"),
    ],
)
def test_settings_that_can_not_be_shared_are_told(
    algorithm: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        whorl.load("CartPole-v1", algorithm, {**settings, "workers": 0}).build()


def test_statistics_of_a_whole_batch_can_not_be_shared() -> None:
    agent = subject("crossq", "vector", "none", "continuous").agent()
    run = configure("crossq", "Pendulum-v1", {"learners": 2}).run
    with pytest.raises(ConfigError, match=r"CrossQ normalises by the statistics of a whole batch, .*sac"):
        check_learners(agent, run, agent.experience(torch.Generator()))
