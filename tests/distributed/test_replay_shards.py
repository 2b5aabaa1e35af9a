"""Replay in processes: the same batches, errors that find their rows, a shard that is killed, and resume."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import whorl
from whorl.collect.collector import LocalCollector
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.data import memory_check
from whorl.data.batch import Batch
from whorl.data.replay_setup import allocated_bytes, replay_of
from whorl.distributed import replay_shards
from whorl.distributed.remote import RestartPolicy
from whorl.distributed.replay_shards import ShardedReplay
from whorl.distributed.shard import Shard
from whorl.distributed.tensors import SharedSlots, layout_of
from whorl.envs.make import find
from whorl.run.resume import load_run
from whorl.settings.merge import configure
from whorl.state.policy import build_agent
from whorl.state.streams import Streams

NUM_ENVS, STEPS = 4, 8
SETTINGS = {
    "num_envs": NUM_ENVS,
    "num_steps": STEPS,
    "buffer_size": 400,
    "batch_size": 16,
    "updates_per_step": 0.25,
    "learning_starts": 40,
    "n_step": 3,
}


class Fed:
    """A sharded replay beside the agent and the environments that feed it."""

    def __init__(self, **settings: Any) -> None:
        source = find("CartPole-v1")
        self.agent = build_agent(
            configure("dqn", "CartPole-v1", {**SETTINGS, **settings}), source.spec(NUM_ENVS), 0
        )
        self.collector = LocalCollector(
            source.vector(NUM_ENVS), self.agent, STEPS, torch.Generator().manual_seed(1)
        )
        self.collector.reset(3)
        rows = self.collector.storage.batch()
        self.replay = ShardedReplay(
            self.agent, rows, lambda shard, life: 10 * shard + life, torch.device("cpu"), RestartPolicy(2)
        )


@pytest.fixture
def fed(request: pytest.FixtureRequest) -> Iterator[Fed]:
    found = Fed(**request.param)
    yield found
    found.replay.close()


@pytest.mark.parametrize("fed", [{"shards": 1}], indirect=True)
def test_one_shard_draws_what_a_ring_beside_the_learner_would(fed: Fed) -> None:
    stream = torch.Generator().manual_seed(0)
    own = replay_of(fed.agent.cfg, fed.agent.spec, torch.device("cpu"), stream, lambda batch: batch.mask)
    drawn = 0
    for _ in range(6):
        rollout = fed.collector.collect()
        own.add(rollout)
        fed.replay.add(rollout)
        for _, batch in fed.replay.due():
            expected = own.sample()
            pairs = zip(tree.leaves(batch.tensors()), tree.leaves(expected.tensors()), strict=True)
            assert all(torch.equal(found, wanted) for found, wanted in pairs)
            fed.replay.settle(batch, SimpleNamespace(priority=None))
            drawn += 1
    assert drawn == int(0.25 * (own.steps - 40)) > 20


@pytest.mark.parametrize(
    "fed",
    [{"shards": 2, "prioritized": True, "priority_beta": 0.4, "priority_beta_steps": 200}],
    indirect=True,
)
def test_errors_find_the_rows_of_their_shard_and_beta_follows_the_steps_of_all_shards(fed: Fed) -> None:
    taken: list[tuple[int, torch.Tensor]] = []
    for _ in range(4):
        fed.replay.add(fed.collector.collect())
        for _, batch in fed.replay.due():
            number = fed.replay.links.index(fed.replay._from[0])  # type: ignore[index]
            index = batch.extras["index"].clone()
            taken.append((number, index))
            fed.replay.settle(batch, SimpleNamespace(priority=(1.0 + index + 100 * number).unsqueeze(0)))
    assert [number for number, _ in taken] == [at % 2 for at in range(len(taken))], "in turn"
    betas: list[float] = []
    for number, link in enumerate(fed.replay.links):
        state = link.call("state")
        sampler, mass = state["sampler"], state["sampler"]["leaves"]
        assert (
            state["ring"]["slots"] == 400 // NUM_ENVS
        )  # its share of the buffer, for its share of the environments
        betas.append(float(sampler["beta"]))
        seen = torch.cat([index for of, index in taken if of == number]).unique()
        expected = (1.0 + seen + 100 * number + 1e-6) ** fed.agent.cfg.priority_alpha
        assert torch.allclose(mass[seen].double(), expected.double(), rtol=1e-4)
    # Each shard sees its half of the steps, of which there are 200 until beta is 1.
    assert 64 < fed.replay.steps <= 4 * NUM_ENVS * STEPS
    assert sum(betas) / 2 == pytest.approx(0.4 + 0.6 * fed.replay.steps / 200)


@pytest.mark.parametrize("fed", [{"shards": 2, "prioritized": True}], indirect=True)
def test_beta_of_every_shard_follows_the_training_budget(fed: Fed) -> None:
    fed.replay.add(fed.collector.collect())
    fed.replay.anneal(0.5)
    for link in fed.replay.links:
        assert link.call("state")["sampler"]["beta"].item() == pytest.approx(0.7)


def test_shards_that_do_not_fit_together_are_told_before_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    source = find("CartPole-v1")
    cfg = configure("dqn", source.id, SETTINGS).algo
    size = allocated_bytes(cfg, source.spec(NUM_ENVS), torch.device("cpu"), {})
    # Each half of the rows would fit.
    monkeypatch.setattr(memory_check, "free_memory", lambda: int(0.9 * size))
    with pytest.raises(ConfigError, match=r"replay of 400 rows takes .* bytes, but .* are free on cpu"):
        Fed(shards=2)


def test_a_shard_that_begins_in_the_middle_of_an_episode_starts_no_sample_there() -> None:
    given = {"num_envs": 1, "buffer_size": 40, "memory": "gru", "whole_episodes": True, "sequence_length": 4}
    source = find("CartPole-v1")
    agent = build_agent(configure("dqn", source.id, given), source.spec(1), 0)
    collector = LocalCollector(source.vector(1), agent, STEPS, torch.Generator().manual_seed(1))
    collector.reset(3)
    collector.collect()
    rows = SharedSlots(layout_of(collector.storage.batch().tensors()), 1)
    shard = Shard(agent.cfg, agent.spec, agent.stored(), agent.replay_options(), 0, rows, rows)
    resets = []
    for _ in range(4):
        rollout = collector.collect()
        resets += rollout.reset[:-1, 0].tolist()
        ready = shard.add(rows.write(0, rollout.tensors()), np.zeros(1, dtype=bool))
        span = shard.replay.view.span
        starts = [row for row, reset in enumerate(resets[:-span]) if reset]
        assert ready is bool(starts)
        if ready:
            drawn = shard.replay.sampler.draw(100, shard.generator)[0]
            assert set(drawn.tolist()) == set(starts)
    assert any(resets) and not resets[0]


def test_no_two_shards_and_no_two_lives_of_one_share_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = find("CartPole-v1")
    cfg = configure("dqn", "CartPole-v1", {**SETTINGS, "shards": 2})
    agent = build_agent(cfg, source.spec(NUM_ENVS), 0)
    collector = LocalCollector(source.vector(NUM_ENVS), agent, STEPS, torch.Generator())
    monkeypatch.setattr(replay_shards, "ShardedReplay", lambda agent, rows, seed, *rest: seed)
    seed: Any = replay_shards.make_shards(agent, collector, cfg.run, Streams(0), torch.device("cpu"))
    assert len({seed(shard, life) for shard in range(3) for life in range(2)}) == 6


class Slow:
    """In place of a GPU: batches are copied, and errors are there only when the next ones are."""

    def send(self, batch: Batch) -> Batch:
        return batch.replace(**tree.clone(batch.tensors()))

    def fetch(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return tree.clone(tensors)

    def wait(self) -> None: ...


@pytest.mark.parametrize("fed", [{"shards": 1, "prioritized": True}], indirect=True)
def test_errors_that_come_late_find_their_own_rows(fed: Fed) -> None:
    fed.replay._transfer = Slow()  # type: ignore[assignment]
    taken = []
    for _ in range(4):
        fed.replay.add(fed.collector.collect())
        for _, batch in fed.replay.due():
            taken.append(batch.extras["index"])
            fed.replay.settle(batch, SimpleNamespace(priority=(1.0 + taken[-1]).unsqueeze(0)))
    assert len(taken) > 10
    mass = fed.replay.state_dict()["shards"][0]["sampler"]["leaves"]
    seen = torch.cat(taken).unique()
    expected = (1.0 + seen + 1e-6) ** fed.agent.cfg.priority_alpha
    assert torch.allclose(mass[seen].double(), expected.double(), rtol=1e-4)


@pytest.mark.parametrize("fed", [{"shards": 1, "prioritized": True}], indirect=True)
def test_errors_that_come_late_are_applied_before_new_rows_whether_a_run_is_saved_or_not(fed: Fed) -> None:
    fed.replay._transfer = Slow()  # type: ignore[assignment]
    while fed.replay._late is None:
        fed.replay.add(fed.collector.collect())
        for _, batch in fed.replay.due():
            fed.replay.settle(batch, SimpleNamespace(priority=batch.mask))
    order: list[str] = []
    for link in fed.replay.links:
        for name in ("settle", "add"):
            call = getattr(link, name)
            setattr(link, name, lambda *given, name=name, call=call: order.append(name) or call(*given))
    fed.replay.add(fed.collector.collect())
    assert order[:2] == ["settle", "add"] and fed.replay._late is None


@pytest.mark.parametrize("fed", [{"shards": 2, "updates_per_step": 0.5}], indirect=True)
def test_a_shard_that_dies_while_it_draws_is_not_waited_for(fed: Fed) -> None:
    for _ in range(4):
        fed.replay.add(fed.collector.collect())
    due = fed.replay.due()
    drawn = [next(due)]  # both shards were asked for two batches
    victim: Any = fed.replay.links[0].remote
    os.kill(victim.pid, signal.SIGKILL)
    victim.process.wait()
    with pytest.warns(UserWarning, match=r"replay shard 0 failed and is replaced .* was killed by SIGKILL"):
        drawn += due
    assert fed.replay.lives == [1, 0]
    assert len(drawn) == fed.replay.drawn == int(0.5 * (fed.replay.steps - 40))


@pytest.mark.parametrize(
    "fed", [{"shards": 1, "updates_per_step": 0.29, "learning_starts": 0}], indirect=True
)
def test_updates_are_due_as_often_as_without_shards(fed: Fed) -> None:
    stream = torch.Generator().manual_seed(0)
    own = replay_of(fed.agent.cfg, fed.agent.spec, torch.device("cpu"), stream, lambda batch: batch.mask)
    for _ in range(12):
        rollout = fed.collector.collect()
        own.add(rollout)
        fed.replay.add(rollout)
        for _ in own.due():
            pass
        for _, batch in fed.replay.due():
            fed.replay.settle(batch, SimpleNamespace(priority=None))
        assert fed.replay.drawn == own.drawn


def test_a_shard_that_has_lost_the_beginning_of_its_only_episode_says_so() -> None:
    given = {"num_envs": 1, "buffer_size": 40, "memory": "gru", "whole_episodes": True, "sequence_length": 8}
    source = find("MountainCar-v0")  # whose episodes last for 200 steps
    agent = build_agent(configure("dqn", source.id, given), source.spec(1), 0)
    collector = LocalCollector(source.vector(1), agent, STEPS, torch.Generator().manual_seed(1))
    collector.reset(3)
    rows = SharedSlots(layout_of(collector.storage.batch().tensors()), 1)
    shard = Shard(agent.cfg, agent.spec, agent.stored(), agent.replay_options(), 0, rows, rows)
    with pytest.raises(
        ConfigError, match="no episode begins in the 40 rows that replay holds of each environment"
    ):
        for _ in range(8):
            shard.add(rows.write(0, collector.collect().tensors()), np.zeros(1, dtype=bool))


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    base = {
        "quiet": True,
        "tensorboard": False,
        "eval": False,
        "workers": 0,
        "runs": str(folder),
        "log_freq": 1,
    }
    return {**base, **SETTINGS, "prioritized": True, "shards": 2, "total_timesteps": 640, **more}


class Kill(whorl.Callback):
    """kill -9 of a shard in the middle of a run."""

    def on_update(self, trainer: Any, row: dict[str, Any]) -> None:
        if trainer.iteration == 10:
            os.kill(trainer.experience.links[1].remote.pid, signal.SIGKILL)


def test_a_run_goes_on_with_the_shards_that_are_left(tmp_path: Path) -> None:
    trainer = whorl.load("CartPole-v1", "dqn", settings(tmp_path), callbacks=[Kill()])
    with pytest.warns(UserWarning, match="replay shard 1 failed and is replaced"):
        result = trainer.train()
    # The last epoch's updates are those of the rows before it.
    assert (
        int(0.25 * (result.steps - NUM_ENVS * STEPS - 40))
        <= trainer.agent.updates
        <= int(0.25 * (result.steps - 40))
    )
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["shards/replaced"] for row in rows][-1] == 1
    assert rows[-1]["shards/ready"] == 2
    assert whorl.resume(result.run_dir, total_timesteps=800).steps >= 800


class Halt(whorl.Callback):
    def on_update(self, trainer: Any, row: dict[str, Any]) -> None:
        if trainer.iteration == 10:
            trainer.stop("half of it is enough")


def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path: Path) -> None:
    whole = whorl.load("CartPole-v1", "dqn", settings(tmp_path / "whole", checkpoint_freq=10))
    whole.train()
    half = whorl.load("CartPole-v1", "dqn", settings(tmp_path / "half"), callbacks=[Halt()]).train()
    again = load_run(half.run_dir, {})
    assert again.train().steps == whole.steps
    state, expected = again.agent.state_dict(), whole.agent.state_dict()
    assert all(torch.equal(state[name], value) for name, value in expected.items())


@pytest.mark.parametrize(("given", "message"), [
    ({"shards": 3}, "3 shards can't share 4 environments evenly"),
    ({"priority_on_add": True}, "priority_on_add with shards needs actors"),
    ({"replay_device": "cuda"}, "shards are in host memory"),
])  # fmt: skip
def test_settings_that_do_not_fit_shards_are_told(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        whorl.load("CartPole-v1", "dqn", settings(tmp_path, **given)).train()


# Actors that write to shards directly.


class Reads(whorl.Callback):
    """Wants the rows, so they pass through the learner."""

    def __init__(self) -> None:
        self.rows = 0

    def on_rollout(self, trainer: Any, rollout: Batch) -> None:
        self.rows += int(rollout.mask.sum())


def with_actors(folder: Path, **more: Any) -> dict[str, Any]:
    given = {"actors": 2, "max_lag": 0, "priority_on_add": True, "learning_starts": 32}
    return settings(folder, **given, **more)


@pytest.mark.parametrize("num_envs", [4, 6])  # three environments of an actor are in two of three shards
def test_rows_that_do_not_pass_through_the_learner_train_the_same(tmp_path: Path, num_envs: int) -> None:
    more = {"num_envs": num_envs, "shards": num_envs // 2}
    direct = whorl.load("CartPole-v1", "dqn", with_actors(tmp_path / "direct", **more))
    result = direct.train()
    reads = Reads()
    relayed = whorl.load("CartPole-v1", "dqn", with_actors(tmp_path / "relayed", **more), callbacks=[reads])
    assert relayed.train().steps == result.steps == reads.rows
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert all(row["actors/bytes_in"] == 0 for row in rows)
    assert direct.agent.updates == relayed.agent.updates > 20
    state, expected = direct.agent.state_dict(), relayed.agent.state_dict()
    assert all(torch.equal(state[name], value) for name, value in expected.items())


def test_a_shard_that_dies_while_actors_write_to_it_is_replaced(tmp_path: Path) -> None:
    trainer = whorl.load("CartPole-v1", "dqn", with_actors(tmp_path), callbacks=[Kill()])
    with pytest.warns(UserWarning, match="replay shard 1 failed and is replaced"):
        result = trainer.train()
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert (rows[-1]["shards/replaced"], rows[-1]["shards/ready"]) == (1, 2)
    assert trainer.agent.updates >= int(0.25 * (result.steps - NUM_ENVS * STEPS - 40))


def test_learners_read_their_parts_of_a_batch_from_the_shards(tmp_path: Path) -> None:
    more = {"learners": 2, "total_timesteps": 320}
    shared = whorl.load("CartPole-v1", "dqn", settings(tmp_path / "two", **more))
    shared.train()
    alone = whorl.load("CartPole-v1", "dqn", settings(tmp_path / "one", **{**more, "learners": 1}))
    alone.train()
    assert shared.agent.updates == alone.agent.updates > 20
    for mine, theirs in zip(alone.agent.state_tensors(), shared.agent.state_tensors()):
        torch.testing.assert_close(theirs, mine, atol=1e-4, rtol=1e-4)
