"""Reward streams in on-policy agents: a value, a discount and an end of their own for each, one weighted advantage."""

from typing import Any

import pytest
import torch
from on_policy_blocks import ACTIONS
from torch import Tensor

from whorl.algorithms.a2c import A2C
from whorl.algorithms.impala import IMPALA
from whorl.algorithms.ppg import PPG
from whorl.algorithms.ppo import PPO
from whorl.algorithms.reinforce import Reinforce
from whorl.core.spec import Array, Spec, Stream
from whorl.data.batch import Batch

SETTINGS: dict[type, dict[str, Any]] = {
    A2C: {},
    IMPALA: {},
    PPO: {"gae_lambda": 1.0, "normalize_advantage": "none", "batch_size": 4},
    PPG: {"gae_lambda": 1.0, "aux_every": 1, "aux_epochs": 1, "batch_size": 4},
    Reinforce: {"baseline": True, "lookahead": 0},
}
AGENTS = list(SETTINGS)


def build(cls: type, weight: float | None, **settings: Any) -> Any:
    """An agent with a second, non-episodic stream of this weight; None: without streams."""
    torch.manual_seed(0)
    streams = () if weight is None else (Stream("novelty", 0.5, episodic=False, weight=weight),)
    small = {"actor_hidden_sizes": (8,), "critic_hidden_sizes": (8,), "normalize_obs": False}
    given = {**small, "normalize_reward": False, **SETTINGS[cls], **settings}
    agent = cls(Spec(Array((2,)), ACTIONS["discrete"], 1, streams=streams), cls.Config(**given))
    return agent.prepare("cpu", lambda name: torch.Generator().manual_seed(0))


def rollout(streams: bool) -> Batch:
    """Four rows of one environment: row 1 ends in a terminal state, row 2 is masked, row 3 is the next episode.

    The observations are the values of both streams.
    """
    nan = float("nan")
    reward = torch.tensor([[1.0, 1.0], [2.0, 1.0], [nan, 0.0], [3.0, 1.0]]).unsqueeze(1)
    discount = torch.tensor([[0.9, 0.5], [0.0, 0.5], [0.0, 1.0], [0.9, 0.5]]).unsqueeze(1)
    keep = torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]]).unsqueeze(1)
    if not streams:
        reward, discount, keep = reward[..., 0], discount[..., 0], keep[..., 0]
    value = torch.tensor([[10.0, 1.0], [20.0, 2.0], [30.0, 3.0], [40.0, 4.0], [50.0, 5.0]]).unsqueeze(1)
    return Batch(
        obs=value,
        reset=torch.tensor([False, False, False, True, False]).unsqueeze(1),
        action=torch.tensor([0, 1, 2, 0]).unsqueeze(1),
        reward=reward,
        discount=discount,
        keep=keep,
        mask=torch.tensor([1.0, 1.0, 0.0, 1.0]).unsqueeze(1),
        extras={"log_prob": torch.full((4, 1), -1.0)},
    )


def estimate(agent: Any) -> tuple[Tensor, Tensor]:
    """Advantage and value target of the rollout, where the critic reads its values off the observation."""
    batch = rollout(bool(agent.spec.streams))
    read = slice(None) if agent.spec.streams else 0
    agent.critic.forward = lambda rows: rows.selected[..., read]
    value = agent.critic(batch.all)
    if isinstance(agent, A2C):
        return agent.estimate(batch, value)
    if isinstance(agent, IMPALA):
        advantage, target, _ = agent.trace(batch, value, batch.extras["log_prob"])
        return advantage, target
    found = agent.estimate(batch)
    if isinstance(agent, Reinforce):
        return agent.sum_streams(found[0] - found[1]), found[0]
    return found[0], found[1]


@pytest.mark.parametrize("cls", AGENTS)
def test_each_stream_has_its_own_discount_and_end(cls: type) -> None:
    advantage, target = estimate(build(cls, 2.0))
    # Environment: 3 + .9 * 50 - 40 = 8; 2 - 20 = -18; 1 + .9 * 2 - 10 = -7.2.
    # Novelty, across the end of the episode: 1 + .5 * 5 = 3.5; 1 + .5 * 3.5 = 2.75; 1 + .5 * 2.75 = 2.375;
    # without the values 4, 2, 1: -.5, .75, 1.375. The sum has twice these.
    assert advantage[[0, 1, 3], 0].tolist() == pytest.approx([-7.2 + 2.75, -18 + 1.5, 8 - 1])
    assert target[[0, 1, 3], 0, 0].tolist() == pytest.approx([2.8, 2.0, 48.0])
    assert target[[0, 1, 3], 0, 1].tolist() == pytest.approx([2.375, 2.75, 3.5])
    assert advantage[2, 0] == 0


@pytest.mark.parametrize("cls", AGENTS)
def test_a_stream_of_weight_zero_changes_no_advantage(cls: type) -> None:
    with_stream, target = estimate(build(cls, 0.0))
    without, expected = estimate(build(cls, None))
    assert with_stream.equal(without)
    assert target[..., 0].equal(expected)


@pytest.mark.parametrize("cls", AGENTS)
def test_the_critic_learns_every_stream(cls: type) -> None:
    agent = build(cls, 1.0, max_grad_norm=0.0)
    head = agent.critic.head.weight
    before = head.detach().clone()
    updated = agent.update(rollout(True))
    assert head.shape[0] == 2
    assert all((now != old).any() for now, old in zip(head, before))
    assert all(torch.isfinite(value) for value in updated.metrics.values())


def test_value_losses_are_the_mean_over_streams() -> None:
    agent = build(A2C, 1.0)
    batch = agent.begin_update(rollout(True))
    value = agent.critic(batch.all)
    target = torch.zeros(4, 1, 2)
    loss = agent.fit_value(batch, value, target)["loss/critic"]
    rows = value.detach()[[0, 1, 3], 0]  # [3, 2]
    assert float(loss) == pytest.approx(float(0.5 * rows.square().mean()), rel=1e-5)


def test_only_the_environments_rewards_are_scaled() -> None:
    agent = build(PPO, 1.0, normalize_reward=True, clip_reward=True, reward_clip_range=0.5)
    batch = agent.begin_update(rollout(True))
    single = build(PPO, None, normalize_reward=True, clip_reward=True, reward_clip_range=0.5)
    expected = single.begin_update(rollout(False))
    real = batch.mask > 0
    assert batch.reward[..., 0][real].equal(expected.reward[real])
    assert batch.reward[..., 1].flatten().tolist() == [1.0, 1.0, 0.0, 1.0]


def test_the_auxiliary_phase_distils_every_stream() -> None:
    agent = build(PPG, 1.0)
    experience, batch = agent.experience(torch.Generator()), rollout(True)
    experience.settle(batch, agent.update(batch))
    ((phase, history),) = experience.due()
    before = agent.auxiliary_value.weight.detach().clone()
    metrics = agent.auxiliary(history).metrics
    assert phase == "auxiliary" and history.extras["target"].shape == (4, 1, 2)
    assert all((now != old).any() for now, old in zip(agent.auxiliary_value.weight, before))
    assert all(torch.isfinite(value) for value in metrics.values())
