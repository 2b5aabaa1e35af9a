"""What every component gets: reward streams, checkpoints, memory per environment while acting, a step of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from blocks import NUM_ENVS, STEPS, build, feed, rollouts
from torch import Tensor, nn

import whorl
from whorl.agents.agent import COMPONENTS, Agent
from whorl.agents.component import Component
from whorl.collect.collector import LocalCollector
from whorl.conformance import CHECKS, RandomWorld, subject
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, register
from whorl.core.spec import Array, Spec, Stream
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.ops.losses import masked_mean
from whorl.state.policy import export, load_policy


@dataclass(frozen=True)
class VisitsConfig:
    weight: float = 0.1
    cells: int = 32


@register("component", "visits")
class Visits(Component):
    """A bonus of 1 / sqrt(visits) for the cell of the next observation, cells being random half-spaces."""

    Config = VisitsConfig
    visits: Tensor

    def __init__(self, name: str, spec: Spec, cfg: VisitsConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.register_buffer("planes", torch.randn(spec.observation.size, 5))
        self.register_buffer("visits", torch.zeros(cfg.cells))

    @classmethod
    def streams(cls, name: str, cfg: VisitsConfig) -> tuple[Stream, ...]:
        return (Stream(name, 0.9, weight=cfg.weight),)

    def cell(self, rollout: Batch) -> Tensor:
        return ((rollout.obs[1:] @ self.planes > 0) * 2 ** torch.arange(5)).sum(-1)  # [T, B]

    def observe(self, rollout: Batch) -> None:
        self.visits.index_add_(0, self.cell(rollout).flatten(), rollout.mask.flatten())

    def rewards(self, rollout: Batch) -> dict[str, Tensor]:
        return {self.name: self.visits[self.cell(rollout)].clamp(min=1).rsqrt()}


@dataclass(frozen=True)
class ClockConfig:
    lr: float = 0.01


@register("component", "clock")
class Clock(Component):
    """Counts the steps of an episode while acting, stores them, and learns to predict them with a step of its own."""

    Config = ClockConfig
    columns: ClassVar[Mapping[str, Array]] = {"clock": Array(())}

    def __init__(self, name: str, spec: Spec, cfg: ClockConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.guess = nn.Linear(1, 1)
        agent.add_optimizer(name, self.guess, Part("Adam"), cfg.lr)

    def initial_memory(self, num_envs: int) -> Tree:
        return {"steps": torch.zeros(num_envs)}

    def track(
        self, memory: Tree, obs: Tree, action: Tree, next_obs: Tree, reset: Tensor
    ) -> tuple[Tree, dict[str, Tensor]]:
        return {"steps": torch.where(reset, 0.0, memory["steps"] + 1)}, {"clock": memory["steps"]}

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        clock = batch.extras["clock"].unsqueeze(-1)
        loss = masked_mean((self.guess(torch.ones_like(clock)) - clock).square()[..., 0], batch.mask)
        agent.minimize(self.name, loss)
        return {f"loss/{self.name}": loss.detach()}


# A component from outside the package


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_component_of_ones_own_trains_end_to_end(
    algorithm: str, use: Callable[..., None], tmp_path: Path
) -> None:
    use(visits=VisitsConfig())
    settings: dict[str, Any] = {"num_envs": 4, "num_steps": 32, "total_timesteps": 1024, "eval": False}
    settings |= {"batch_size": 32} | (
        {"learning_starts": 100, "random_steps": 0} if algorithm == "dqn" else {}
    )
    settings |= {"runs": str(tmp_path), "quiet": True, "tensorboard": False}
    trainer = whorl.load("CartPole-v1", algorithm, settings)
    trainer.train()
    count: Any = trainer.agent.components["visits"]
    assert count.visits.sum() == trainer.steps >= 1024
    assert trainer.agent.spec.streams == (Stream("visits", 0.9, weight=0.1),)


def test_rewards_reach_the_batch_of_an_on_policy_agent_as_a_stream() -> None:
    agent = build("ppo", visits=VisitsConfig())
    (rollout,) = rollouts(agent)
    experience = agent.experience(torch.Generator())
    experience.add(agent.receive(rollout))
    ((_, batch),) = experience.due()
    count: Any = agent.components["visits"]
    assert torch.equal(batch.reward[..., 0], rollout.reward)
    assert torch.equal(batch.reward[..., 1], count.rewards(rollout)["visits"] * rollout.mask)
    assert batch.discount.shape == (STEPS, NUM_ENVS, 2)


def test_an_agent_without_stream_heads_gets_the_weighted_sum() -> None:
    agent = build("dqn", visits=VisitsConfig(weight=0.5))
    received = agent.receive(rollouts(agent)[0])
    experience = agent.experience(torch.Generator().manual_seed(0))
    experience.add(received)
    batch = experience.sample()
    mixed = received.reward[..., 0] + 0.5 * received.reward[..., 1]
    assert batch.reward.shape == (1, 16) and torch.isin(batch.reward[0], mixed).all()


def test_two_streams_of_one_name_are_refused(use: Callable[..., None]) -> None:
    class Twin(Visits):
        @classmethod
        def streams(cls, name: str, cfg: VisitsConfig) -> tuple[Stream, ...]:
            return (Stream("visits"),)

    register("component", "twin", Twin)
    with pytest.raises(ConfigError, match="two components have a reward stream called 'visits'; leave one"):
        build("ppo", visits=VisitsConfig(), twin=VisitsConfig())


def test_an_unknown_component_is_named() -> None:
    with pytest.raises(ConfigError, match="no component is called 'rdn'"):
        build("ppo", rdn=None)


# The acting side


def test_a_memory_per_environment_restarts_with_the_episode_and_is_stored() -> None:
    agent = build("dqn", clock=ClockConfig())
    found = rollouts(agent, 3)
    expected = torch.zeros(NUM_ENVS)
    for rollout in found:
        for row in range(STEPS):
            expected = torch.where(rollout.reset[row], 0.0, expected)
            assert torch.equal(rollout.extras["clock"][row], expected)
            expected = expected + 1
    experience = agent.experience(torch.Generator().manual_seed(0))
    experience.add(agent.receive(found[0]))
    assert torch.equal(experience.ring.columns["extras"]["clock"][:STEPS], found[0].extras["clock"])
    assert experience.sample().extras["clock"].shape == (1, 16)
    assert agent.replay_bytes() == experience.bytes


def test_the_acting_memory_is_checkpointed() -> None:
    agent = build("ppo", clock=ClockConfig())

    def collector() -> LocalCollector:
        made: Any = LocalCollector(RandomWorld(agent.spec), agent, 5, torch.Generator())  # type: ignore[arg-type]
        return made

    one, two = collector(), collector()
    one.reset(0)
    one.collect()
    two.load_state_dict(one.state_dict())
    assert torch.equal(two.memory[COMPONENTS]["clock"]["steps"], one.memory[COMPONENTS]["clock"]["steps"])
    assert one.memory[COMPONENTS]["clock"]["steps"].any()


def test_its_own_step_learns_and_reports() -> None:
    agent = build("ppo", clock=ClockConfig(lr=0.1))
    metrics = feed(agent, agent.experience(torch.Generator()), rollouts(agent, 12))
    assert metrics[-1]["loss/clock"] < metrics[0]["loss/clock"]


def test_tensors_are_sent_to_actors_only_if_acting_reads_them() -> None:
    plain, counts, clock = (
        len(build("ppo", **parts).acting_tensors())
        for parts in ({}, {"visits": VisitsConfig()}, {"clock": ClockConfig()})
    )
    assert plain == counts == clock - 2  # a weight and a bias


def test_an_exported_policy_needs_no_components(use: Callable[..., None]) -> None:
    use(clock=ClockConfig(), visits=VisitsConfig())
    cell = subject("ppo", "vector", "none", "discrete")
    agent = cell.agent()
    saved = export(agent, cell.configured())
    assert not any(name.startswith("components.") for name in saved["module"])
    policy = load_policy(saved)
    assert not policy.agent.components and policy.agent.spec.streams == agent.spec.streams
    obs = torch.randn(2, 3)
    observations: Any = agent.observations
    expected = agent.actor.step(observations(obs), {}, torch.ones(2) > 0)[0].mode()  # type: ignore[union-attr, operator]
    assert torch.equal(policy.act(obs), expected)


# Learning with components


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_a_component_without_rewards_or_losses_of_the_agent_changes_no_weight(algorithm: str) -> None:
    one, two = build(algorithm), build(algorithm, clock=ClockConfig())
    given = rollouts(two, 4)
    for agent in (one, two):
        feed(agent, agent.experience(torch.Generator().manual_seed(0)), given)
    own = dict(two.named_parameters())
    assert all(torch.equal(value, own[name]) for name, value in one.named_parameters())


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_a_stream_of_weight_zero_changes_no_weight_of_a_replay_agent(algorithm: str) -> None:
    one, two = build(algorithm), build(algorithm, visits=VisitsConfig(weight=0.0))
    given = rollouts(one, 4)
    for agent in (one, two):
        feed(agent, agent.experience(torch.Generator().manual_seed(0)), given)
    own = dict(two.named_parameters())
    assert all(torch.equal(value, own[name]) for name, value in one.named_parameters())


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "dqn", "impala"])
def test_agents_with_components_pass_the_conformance_suite(
    algorithm: str, check: str, use: Callable[..., None]
) -> None:
    use(visits=VisitsConfig(), clock=ClockConfig())
    CHECKS[check](subject(algorithm, "vector", "none", "discrete"))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rnd.features", 0),
        ("rnd.batch_size", -1),
        ("rnd.proportion", 0),
        ("byol.tau", 2),
        ("byol.hidden_size", -8),
    ],
)
def test_a_setting_of_a_component_outside_its_range_is_one_sentence(setting: str, value: int) -> None:
    name = setting.partition(".")[0]
    with pytest.raises(ConfigError, match=rf"^{setting} is {value}(\.0)?; it must be (from|above|at least) "):
        whorl.load("CartPole-v1", "ppo", {"components": [name], setting: value})
