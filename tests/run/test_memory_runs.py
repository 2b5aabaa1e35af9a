"""Runs with memory: what was done before reaches it, a held policy keeps its weights, and both survive a resume."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import whorl
from whorl.agents.agent import Acted, Agent, Context, Updated
from whorl.conformance import copied
from whorl.core.errors import ConfigError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import LAST, Batch
from whorl.run.callbacks import Callback


@dataclass(frozen=True)
class CountingConfig:
    gamma: float = 0.9


class Counting(Agent):
    """Its action is a thousandth of how often it was updated, as far as who acts has heard of it."""

    Config = CountingConfig

    def __init__(self, spec: Spec, cfg: CountingConfig) -> None:
        super().__init__(spec, cfg)
        self.count = nn.Parameter(torch.zeros(1))

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return Acted(self.count.detach().expand(len(obs), 1) / 1000, memory)

    def update(self, batch: Batch) -> Updated:
        with torch.no_grad():
            self.count.add_(1)
        return Updated({"loss/actor": torch.zeros(())})


whorl.register("algorithm", "counting", Counting)

EPISODE = 10 + 1
"""rows of an episode, its final observation included"""
ROLLOUT = 4
SETTINGS: dict[str, Any] = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "num_envs": 1,
    "num_steps": ROLLOUT,
    "max_iterations": 14,
    "env_options": {"max_episode_steps": 10},
    "workers": 0,
}


class SystemMetrics(Callback):
    """What was done in every row [rows, environments], in updates."""

    def __init__(self) -> None:
        self.done: list[torch.Tensor] = []

    def on_rollout(self, trainer: Any, rollout: Batch) -> None:
        self.done.extend((rollout.action[..., 0] * 1000).round().long().clone())


def rows(count: int, hold: bool = True) -> list[int]:
    """How many updates the weights have seen that each row was done with: those before its rollout, or where the
    policy is held, before the rollout in which its episode began."""
    return [(row // EPISODE * EPISODE if hold else row) // ROLLOUT for row in range(count)]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_within_an_episode_weights_stay_and_at_its_start_the_newest_are_taken(
    num_envs: int, tmp_path: Path
) -> None:
    watch, given = (
        SystemMetrics(),
        {**SETTINGS, "num_envs": num_envs, "hold_policy": True, "runs": str(tmp_path)},
    )
    whorl.load("Pendulum-v1", "counting", given, callbacks=[watch]).train()
    expected = torch.tensor(rows(14 * ROLLOUT)).unsqueeze(1).expand(-1, num_envs)
    assert torch.equal(torch.stack(watch.done), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_without_it_every_rollout_has_the_newest(workers: int, tmp_path: Path) -> None:
    watch, given = SystemMetrics(), {**SETTINGS, "workers": workers, "runs": str(tmp_path)}
    whorl.load("Pendulum-v1", "counting", given, callbacks=[watch]).train()
    assert torch.stack(watch.done)[:, 0].tolist() == rows(14 * ROLLOUT, hold=False)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_held_goes_on_in_a_resumed_run(workers: int, tmp_path: Path) -> None:
    """Epoch 7 ends in row 28, in the middle of the episode that began in row 22 with the weights of 5 updates."""
    watch, given = (
        SystemMetrics(),
        {**SETTINGS, "workers": workers, "hold_policy": True, "runs": str(tmp_path)},
    )
    run = (
        whorl.load("Pendulum-v1", "counting", {**given, "max_iterations": 7}, callbacks=[watch])
        .train()
        .run_dir
    )
    whorl.resume(run, max_iterations=14, callbacks=[watch])
    done = torch.stack(watch.done)[:, 0].tolist()
    assert done[22:33] == [5] * 11
    assert done == rows(14 * ROLLOUT)


def test_central_acting_with_workers_is_one_sentence(tmp_path: Path) -> None:
    given = {
        **SETTINGS,
        "num_envs": 2,
        "workers": 2,
        "acting": "central",
        "hold_policy": True,
        "runs": str(tmp_path),
    }
    trainer = whorl.load("Pendulum-v1", "counting", given)
    with pytest.raises(
        ConfigError, match=r"hold_policy .* acting is central with 2 workers; use acting auto, or workers 0"
    ):
        trainer.train()


# What was done and earned before


REMEMBERING: dict[str, Any] = {
    **SETTINGS,
    "num_envs": 2,
    "num_steps": 6,
    "batch_size": 12,
    "max_iterations": 2,
    "actor_hidden_sizes": [8],
    "critic_hidden_sizes": [8],
    "memory": "gru",
    "memory_size": 8,
    "chunk": 3,
    "last_action": True,
    "last_reward": True,
}


class Steps(Callback):
    """Rollouts, copied."""

    def __init__(self) -> None:
        self.rollouts: list[Batch] = []

    def on_rollout(self, trainer: Any, rollout: Batch) -> None:
        self.rollouts.append(copied(rollout))


@pytest.mark.parametrize("given", [{}, {"workers": 1}, {"workers": 2, "acting": "central"}], ids=str)
def test_the_step_before_reaches_memory_wherever_one_acts_and_after_a_resume(
    given: dict[str, Any], tmp_path: Path
) -> None:
    """Four rollouts of six rows, the last two of a resumed run."""
    steps, settings = Steps(), {**REMEMBERING, **given, "runs": str(tmp_path)}
    run = whorl.load("Pendulum-v1", "ppo", settings, callbacks=[steps]).train().run_dir
    whorl.resume(run, max_iterations=4, callbacks=[steps])
    reset = torch.cat([rollout.reset[:-1] for rollout in steps.rollouts])
    assert reset.nonzero()[:, 0].tolist() == [0, 0, 11, 11, 22, 22]
    for name in ("action", "reward"):
        done = torch.cat([getattr(rollout, name) for rollout in steps.rollouts])
        read = torch.cat([rollout.last[name][:-1] for rollout in steps.rollouts])
        stored = torch.cat([rollout.memories[LAST][name] for rollout in steps.rollouts])
        for row in set(range(24)) - {0, 11, 22}:
            assert torch.equal(read[row], done[row - 1])
            assert row % 3 or torch.equal(stored[row // 3], done[row - 1])


# Settings of memory that a run does not take


@pytest.mark.parametrize(("name", "settings", "sentence"), [
    ("dqn", {"memory": "lstm", "stride": 3}, "num_steps 4 is not a multiple of sequence_stride 3; change one of them"),
    ("ppo", {"memory": "lstm", "chunk": 3, "batch_size": 4}, "is not a multiple of chunk_length 3"),
    ("dqn", {"last_action": True}, "last_action is read by a memory, but memory is none; choose lstm, gru, rnn or att"),
    ("ppo", {"last_reward": True}, "last_reward is read by a memory, but memory is none; choose lstm, gru, rnn or att"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_one_sentence(
    name: str, settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    given = {**SETTINGS, "env_options": {}, **settings, "runs": str(tmp_path)}
    with pytest.raises(ConfigError, match=sentence):
        whorl.load("CartPole-v1", name, given).train()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"whole_episodes": True, "burn_in": 5},
            "burn_in is 5, but with whole_episodes sequences begin with an empty memory",
        ),
        (
            {"refresh_memory": True, "stored_memory": False},
            "refresh_memory updates stored recurrent states, but these settings store none",
        ),
        (
            {"refresh_memory": True, "memory": "none"},
            "refresh_memory updates stored recurrent states, but these settings store none",
        ),
    ],
)
def test_settings_of_sequences_that_exclude_each_other_are_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        whorl.load("TMaze-v0", "drqn", given).build()
