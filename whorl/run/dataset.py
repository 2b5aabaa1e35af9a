"""Datasets in a run: rows that fill the replay buffer before training, and demonstrations beside it."""

from typing import Any

import torch

from whorl.agents.agent import Agent
from whorl.agents.experience import second_buffer
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.data.batch import Batch
from whorl.data.experience import Experience
from whorl.data.replay import Replay
from whorl.datasets.rows import Recorded, read
from whorl.settings.merge import Settings
from whorl.settings.run import RunConfig

UNNAMED = "?"
"""dataset of presets that need one"""


def check_dataset(settings: Settings, agent: Agent) -> None:
    """Raise where a dataset is missing, or can't be learned from with these settings."""
    run, cfg = settings.run, agent.cfg
    if run.dataset == UNNAMED:
        raise ConfigError(
            f"{settings.algorithm} learns from a dataset: name one with dataset (on the command line --dataset NAME), "
            "a Minari id or a folder that whorl record has written; an empty name learns online"
        )
    if (
        run.dataset
        and run.offline_steps < 0
        and run.total_episodes
        and not (run.total_timesteps or run.max_iterations or run.max_seconds)
    ):
        raise ConfigError(
            "total_episodes never ends training from a dataset alone, which has no episodes; set total_timesteps"
        )
    for setting, name in (("dataset", run.dataset), ("demonstrations", getattr(cfg, "demonstrations", ""))):
        if not name:
            continue
        if not agent.off_policy:
            raise ConfigError(
                f"{setting} is {name!r}, but {settings.algorithm} learns from its own rollouts; use bc, td3_bc, iql, "
                "cql or another algorithm with a replay buffer"
            )
        columns = sorted(agent.columns())
        wrong = {
            "shards": cfg.shards,
            "actor_gradients": run.actors and run.actor_gradients != "none",
            "components": list(agent.components),
        }
        found = [other for other, value in wrong.items() if value]
        if found:
            raise ConfigError(f"{setting} and {found[0]} can't be used together; leave one of them out")
        if columns:
            raise ConfigError(
                f"{settings.algorithm} with these settings stores {columns[0]} with every step, which a dataset does "
                f"not have; leave {setting} out, or what needs it, such as use_n_step_is"
            )
    if run.dataset and run.load_model:
        raise ConfigError("dataset and load_model both fill the replay buffer; leave one of them out")


def offline_updates(run: RunConfig, steps: int) -> int:
    """Updates of the next iteration if it is offline, else 0; `steps` were made before it."""
    if not run.dataset:
        return 0
    size = run.num_envs * run.num_steps
    return size if run.offline_steps < 0 else min(size, max(0, run.offline_steps - steps))


def fill_replay(experience: Experience, agent: Agent, name: str) -> Recorded:
    """Add the rows of a dataset to an empty replay buffer, and their statistics to the agent."""
    assert isinstance(experience, Replay)
    ring, view = experience.ring, experience.view
    rows = _read(name, agent, experience)
    needed = rows.rows + view.span + ring.history
    if needed > ring.slots:
        least = -(-needed // view.stride) * view.stride * ring.num_envs
        raise ConfigError(
            f"the dataset {name!r} has {rows.steps:,} steps in {rows.episodes:,} episodes, which a buffer_size of "
            f"{agent.cfg.buffer_size:,} does not hold; use at least {least:,}"
        )
    experience.fill(_rollouts(rows, agent, experience), rows.hash)
    return rows


def add_demonstrations(experience: Experience, agent: Agent, generator: torch.Generator) -> None:
    """Give a replay buffer the second one that the setting `demonstrations` names."""
    assert isinstance(experience, Replay)
    rows = _read(agent.cfg.demonstrations, agent, experience)
    second = second_buffer(agent, rows.rows, generator)
    second.fill(_rollouts(rows, agent, second), rows.hash)
    experience.demonstrate(second, agent.cfg.demonstration_ratio, rows.hash)


def _read(name: str, agent: Agent, experience: Replay) -> Recorded:
    # The last `span` rows of a buffer begin no sample: padding makes those of the last episode earlier ones.
    padding = experience.view.span - 1
    return read(name, agent.spec, padding, max(experience.view.stride, experience.ring.stride))


def _rollouts(rows: Recorded, agent: Agent, experience: Replay) -> Any:
    """The rows for a replay buffer; what the agent knows of observations includes them."""
    stored = tree.to(agent.stored(agent.spec.num_envs), "cpu")
    before = 0
    for rollout in rows.rollouts(stored, experience.ring.stride):
        for column, length in enumerate(rows.lengths):
            _observe(agent, rollout, column, length - before)
        agent.observe_rewards(rollout)
        before += rollout.shape[0]
        yield rollout


def _observe(agent: Agent, rollout: Batch, column: int, rows: int) -> None:
    """Merge the observations of one environment into their statistics, without padding."""
    rows = min(rows, rollout.shape[0])
    if rows <= 0:
        return
    one = slice(column, column + 1)
    obs = tree.index(rollout.obs, (slice(0, rows), one))
    every = torch.ones_like(rollout.mask[:rows, one])  # a final observation before padding counts, too
    Agent.observe(agent, rollout.replace(obs=obs, mask=every, reset=rollout.reset[: rows + 1, one]))
