"""What actors send: the gradients of A2C, and the priorities that the learner would compute."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import whorl
from whorl.agents.agent import Agent, Context
from whorl.collect.collector import LocalCollector
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Array, Discrete, Spec
from whorl.data.gradients import GradientQueue, Gradients
from whorl.distributed.actor import ActorProcess, Role
from whorl.distributed.tensors import array, tensor_of
from whorl.envs.make import find
from whorl.settings.merge import configure
from whorl.state.policy import build_agent

SMALL: dict[str, Any] = {"quiet": True, "tensorboard": False, "eval": False, "workers": 0}


def weights(folder: Path, algorithm: str, **settings: Any) -> dict[str, torch.Tensor]:
    given = {**SMALL, "runs": str(folder), "num_envs": 4, "num_steps": 8, "total_timesteps": 500, **settings}
    trainer = whorl.load("CartPole-v1", algorithm, given)
    trainer.train()
    return trainer.agent.state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_a3c_with_one_actor_is_a2c(tmp_path: Path) -> None:
    """Up to rounding: A2C computes gradients without autograd, actors that send them do not."""
    alone, one = weights(tmp_path, "a2c", lr_schedule="linear"), weights(tmp_path, "a3c", actors=1)
    torch.testing.assert_close(one, alone, rtol=1e-5, atol=1e-6)
    assert same(one, weights(tmp_path, "a3c", actors=1, actor_gradients="averaged"))


def test_a2c_over_an_actor_waits_for_each_version_and_is_a2c_bit_for_bit(tmp_path: Path) -> None:
    alone = weights(tmp_path, "a2c")
    assert same(alone, weights(tmp_path, "a2c", actors=1))


def test_averaged_gradients_are_one_step_along_their_mean() -> None:
    def sent(value: float) -> Gradients:
        step = {"gradient": {"0": torch.full((2,), value)}, "rate": torch.tensor(0.5)}
        return Gradients({"actor": step}, {"loss/actor": torch.tensor(value)})

    joint = GradientQueue(averaged=True)
    joint.add([sent(1.0), sent(2.0), sent(6.0)])
    ((phase, found),) = joint.due()
    ((name, gradient, rate),) = found.steps(torch.device("cpu"))
    assert (phase, name, gradient[0].tolist(), rate.item()) == ("apply_gradients", "actor", [3.0, 3.0], 0.5)
    assert found.metrics["loss/actor"].item() == 3
    apart = GradientQueue(averaged=False)
    apart.add([sent(1.0), sent(2.0)])
    assert [batch.metrics["loss/actor"].item() for _, batch in apart.due()] == [1, 2]


@pytest.mark.parametrize(("algorithm", "settings", "message"), [
    ("dqn", {}, "DQN learns from replay"),
    ("ppo", {"batch_size": 16}, "takes several steps of its actor"),
    ("a3c", {"normalize_obs": True}, "normalize_obs needs the rows of all actors"),
])  # fmt: skip
def test_gradients_that_can_not_travel_alone_are_refused(
    tmp_path: Path, algorithm: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        weights(tmp_path, algorithm, actors=2, actor_gradients="async", **settings)


NUM_ENVS, STEPS = 2, 8


@pytest.mark.parametrize("settings", [
    {"n_step": 1},
    {"n_step": 3},
    {"n_step": 3, "clip_reward": True, "reward_clip_range": 0.25},
    {"memory": "lstm", "memory_size": 8, "sequence_length": 6, "burn_in": 3, "stride": 4, "n_step": 2},
    {"algorithm": "option_critic"},
    {"n_step": 1, "looks_ahead": 3},
])  # fmt: skip
def test_an_actor_finds_the_priorities_that_replay_would(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {
        "num_envs": NUM_ENVS,
        "num_steps": STEPS,
        "prioritized": True,
        "priority_on_add": True,
        "buffer_size": 400,
    }
    source, name = find("CartPole-v1"), settings.get("algorithm", "dqn")
    if steps := settings.get("looks_ahead"):  # as a component may
        monkeypatch.setattr(Agent, "successors", (steps,))
    settings = {key: value for key, value in settings.items() if key not in ("algorithm", "looks_ahead")}
    agent = build_agent(configure(name, "CartPole-v1", {**more, **settings}), source.spec(NUM_ENVS), 0)
    agent.prepare("cpu", lambda name: torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    collector = LocalCollector(source.vector(NUM_ENVS), agent, STEPS, generator)
    collector.reset(3)
    learner, actor = agent.experience(torch.Generator()), agent.experience(torch.Generator())
    payload = Role(agent, source, NUM_ENVS, STEPS, "priorities").payload(collector.storage.batch())
    agent.prepare("cpu", lambda name: torch.Generator().manual_seed(0))
    for _ in range(12):
        rollout = collector.collect()
        learner.add(rollout)
        actor.add(rollout.replace(extras=payload.make(rollout)["extras"]))
    expected = learner.sampler.state_dict()["leaves"]
    assert (expected > 0).sum() > 10 and expected[expected > 0].std() > 0
    assert torch.allclose(actor.sampler.state_dict()["leaves"], expected, rtol=1e-6)


def test_rollouts_whose_samples_nobody_could_match_are_told() -> None:
    more = {
        "prioritized": True,
        "priority_on_add": True,
        "memory": "lstm",
        "stored_memory": False,
        "stride": 5,
    }
    agent = build_agent(
        configure("dqn", "CartPole-v1", {"num_envs": NUM_ENVS, **more}), find("CartPole-v1").spec(NUM_ENVS), 0
    )
    with pytest.raises(ConfigError, match="num_steps 8 is not a multiple of sequence_stride 5"):
        Role(agent, find("CartPole-v1"), NUM_ENVS, STEPS, "priorities").payload()


def test_numbers_travel_as_numbers() -> None:
    rate = tensor_of(array(torch.tensor(0.5)))
    assert rate.shape == () and rate.item() == 0.5


def test_priorities_of_samples_that_began_in_lost_rows_are_left_to_replay() -> None:
    agent = build_agent(
        configure("dqn", "CartPole-v1", {"num_envs": 1, "prioritized": True, "buffer_size": 40, "n_step": 1}),
        find("CartPole-v1").spec(1),
        0,
    )
    replay = agent.experience(torch.Generator())
    collector = LocalCollector(find("CartPole-v1").vector(1), agent, 4, torch.Generator().manual_seed(1))
    collector.reset(3)
    replay.add(collector.collect())
    rollout = collector.collect()
    first = torch.tensor([[torch.nan], [0.5], [0.25], [0.125]])
    replay.add(rollout.replace(extras={"first": first}))
    mass = replay.sampler.state_dict()["leaves"][:8]
    alpha = agent.cfg.priority_alpha
    assert mass[3].item() == pytest.approx(1.0)  # the largest so far
    assert mass[4:7].tolist() == pytest.approx([(e + 1e-6) ** alpha for e in (0.5, 0.25, 0.125)], rel=1e-4)


def test_the_first_actor_begins_as_a_loop_without_actors_would() -> None:
    source = find("CartPole-v1")
    agent = build_agent(configure("a2c", "CartPole-v1", {"num_envs": NUM_ENVS}), source.spec(NUM_ENVS), 0)
    body = ActorProcess(Role(agent, source, NUM_ENVS, STEPS), 0, (5, 7))
    body.roll(random=False)
    alone = LocalCollector(source.vector(NUM_ENVS), agent, STEPS, torch.Generator().manual_seed(5))
    alone.reset(7)
    assert torch.equal(alone.collect().action, body.collector.storage.tensors["action"])


def test_an_actor_acts_at_random_if_asked_and_knows_the_numbers_of_its_environments() -> None:
    source = find("CartPole-v1")
    agent = build_agent(configure("dqn", "CartPole-v1", {"num_envs": 6}), source.spec(6), 0)
    actor = ActorProcess(Role(agent, source, NUM_ENVS, STEPS), 2, (5, 7))
    seen: list[tuple[bool, list[int]]] = []
    act = agent.act_tracked

    def noted(obs: Any, memory: Any, context: Context) -> Any:
        assert context.env_index is not None
        seen.append((context.random, context.env_index.tolist()))
        return act(obs, memory, context)

    actor.agent.act_tracked = noted  # type: ignore[method-assign]
    first = 2 * NUM_ENVS
    for random in (True, False):
        seen.clear()
        actor.roll(random)
        assert seen == [(random, list(range(first, first + NUM_ENVS)))] * STEPS


class Convolving(Agent):
    """One kernel whose channels lie side by side in memory, as convolutions like it."""

    def __init__(self) -> None:
        super().__init__(Spec(Array((1,)), Discrete(2), 1), None)
        self.net = nn.Conv2d(2, 1, 2, bias=False).to(memory_format=torch.channels_last)
        self.add_optimizer("net", self.net, Part("Adam"), 0.1)
        self.prepare("cpu", lambda name: torch.Generator())


def test_gradients_that_have_travelled_move_the_weights_they_belong_to() -> None:
    agent = Convolving()
    before = agent.net.weight.detach().clone()
    gradient = torch.zeros(1, 2, 2, 2)
    gradient[0, 1, 0, 0] = 1
    agent.apply_gradients(Gradients({"net": {"gradient": {"0": gradient}, "rate": torch.tensor(0.1)}}, {}))
    moved = (agent.net.weight.detach() != before).nonzero().tolist()
    assert moved == [[0, 1, 0, 0]]
