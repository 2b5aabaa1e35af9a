"""Replay in processes: the same batches, errors that find their rows, a shard that is killed, and resume."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import whorl
from whorl import tree
from whorl.api import load_run
from whorl.config import configure
from whorl.envs.make import find
from whorl.errors import ConfigError
from whorl.experience.replay import replay_of
from whorl.run.collector import Collector
from whorl.run.shards import ShardedReplay
from whorl.state.policy import build_agent

LANES, STEPS = 4, 8
SETTINGS = {
    "lanes": LANES,
    "rollout_steps": STEPS,
    "capacity": 400,
    "batch_size": 16,
    "ratio": 0.25,
    "learn_after": 40,
    "n_step": 3,
}


class Fed:
    """A sharded replay beside the agent and the lanes that feed it."""

    def __init__(self, **settings: Any) -> None:
        source = find("CartPole-v1")
        self.agent = build_agent(
            configure("dqn", "CartPole-v1", {**SETTINGS, **settings}), source.spec(LANES), 0
        )
        self.collector = Collector(
            source.vector(LANES), self.agent, STEPS, 0.99, torch.Generator().manual_seed(1)
        )
        self.collector.reset(3)
        rows = self.collector.storage.batch(0.99)
        self.replay = ShardedReplay(
            self.agent, rows, lambda shard, life: 10 * shard + life, torch.device("cpu"), 2
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


@pytest.mark.parametrize("fed", [{"shards": 2, "prioritized": True}], indirect=True)
def test_errors_find_the_rows_of_the_shard_that_they_were_drawn_from(fed: Fed) -> None:
    taken: list[tuple[int, torch.Tensor]] = []
    for _ in range(4):
        fed.replay.add(fed.collector.collect())
        for _, batch in fed.replay.due():
            number = fed.replay.links.index(fed.replay._from)  # type: ignore[arg-type]
            index = batch.extras["index"].clone()
            taken.append((number, index))
            fed.replay.settle(batch, SimpleNamespace(priority=(1.0 + index + 100 * number).unsqueeze(0)))
    assert {number for number, _ in taken} == {0, 1}
    for number, link in enumerate(fed.replay.links):
        mass = link.call("state")["sampler"]["mass"]
        seen = torch.cat([index for of, index in taken if of == number]).unique()
        expected = (1.0 + seen + 100 * number + 1e-6) ** fed.agent.cfg.priority_alpha
        assert torch.allclose(mass[seen].double(), expected.double(), rtol=1e-4)


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    base = {
        "quiet": True,
        "tensorboard": False,
        "eval": False,
        "workers": 0,
        "runs": str(folder),
        "log_freq": 1,
    }
    return {**base, **SETTINGS, "prioritized": True, "shards": 2, "total_steps": 640, **more}


class Kill(whorl.Callback):
    """kill -9 of a shard in the middle of a run."""

    def on_update(self, trainer: Any, row: dict[str, Any]) -> None:
        if trainer.epoch == 10:
            os.kill(trainer.experience.links[1].servant.pid, signal.SIGKILL)


def test_a_run_goes_on_with_the_shards_that_are_left(tmp_path: Path) -> None:
    trainer = whorl.load("CartPole-v1", "dqn", settings(tmp_path), callbacks=[Kill()])
    result = trainer.train()
    # The last epoch's updates are those of the rows before it.
    assert (
        int(0.25 * (result.steps - LANES * STEPS - 40))
        <= trainer.agent.updates
        <= int(0.25 * (result.steps - 40))
    )
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["shards/replaced"] for row in rows][-1] == 1
    assert rows[-1]["shards/ready"] == 2
    assert whorl.resume(result.run_dir, total_steps=800).steps >= 800


class Halt(whorl.Callback):
    def on_update(self, trainer: Any, row: dict[str, Any]) -> None:
        if trainer.epoch == 10:
            trainer.stop("half of it is enough")


def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path: Path) -> None:
    whole = whorl.load("CartPole-v1", "dqn", settings(tmp_path / "whole", model_checkpoint_freq=10))
    whole.train()
    half = whorl.load("CartPole-v1", "dqn", settings(tmp_path / "half"), callbacks=[Halt()]).train()
    again = load_run(half.run_dir, {})
    assert again.train().steps == whole.steps
    state, expected = again.agent.state_dict(), whole.agent.state_dict()
    assert all(torch.equal(state[name], value) for name, value in expected.items())


@pytest.mark.parametrize(("given", "message"), [
    ({"shards": 3}, "3 shards can't share 4 lanes evenly"),
    ({"priority_on_add": True}, "priority_on_add with shards takes actors"),
])  # fmt: skip
def test_settings_that_do_not_fit_shards_are_told(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        whorl.load("CartPole-v1", "dqn", settings(tmp_path, **given)).train()
