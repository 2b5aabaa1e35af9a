"""IMPALA: without lag it is A2C, and V-trace takes back what an older policy's rollouts cost."""

import pytest
import torch
from on_policy_blocks import ENTROPY_STEP, build, entropy_step

from whorl import conformance
from whorl.algorithms.impala import IMPALA
from whorl.conformance import Run, subject
from whorl.data.batch import Batch

SETTINGS = {"normalize_obs": False, "normalize_reward": False, "ent_coef": 0.01}


def learned(rule: str, rollouts: list[Batch]) -> Run:
    run = Run(subject(rule, "vector", "none", "discrete", **SETTINGS), seed=3)
    run.feed(rollouts)
    return run


def test_without_lag_it_is_a2c() -> None:
    cell = subject("impala", "vector", "none", "discrete", **SETTINGS)
    first = cell.agent(3)
    rollouts = cell.rollouts(first, 1)  # by the very policy that learns
    one, two = learned("impala", rollouts), learned("a2c", rollouts)
    ours, theirs = dict(one.agent.named_parameters()), dict(two.agent.named_parameters())
    assert any(not torch.equal(value, before) for value, before in zip(ours.values(), first.parameters()))
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=1e-6, rtol=1e-5)


def test_an_action_that_has_become_less_likely_counts_less() -> None:
    cell = subject("impala", "vector", "none", "discrete", **SETTINGS)
    agent = cell.agent(3)
    batch = conformance.prepared(agent, cell.rollouts(agent, 1)[0])
    value = torch.zeros(batch.shape[0] + 1, batch.shape[1])
    log_prob, _ = agent.evaluate(agent.actor(batch.now), batch)  # type: ignore[operator]
    same, _, ratio = agent.trace(batch, value, log_prob.detach())  # type: ignore[operator]
    half, _, less = agent.trace(batch, value, log_prob.detach() - torch.tensor(2.0).log())  # type: ignore[operator]
    torch.testing.assert_close(ratio, torch.tensor(1.0))
    torch.testing.assert_close(less, torch.tensor(0.5))
    last = batch.mask[-1] > 0  # nothing follows the last row within the rollout: rho alone counts there
    torch.testing.assert_close(half[-1][last], 0.5 * same[-1][last])


def test_the_entropy_bonus_makes_the_policy_more_even() -> None:
    assert entropy_step(IMPALA) == ENTROPY_STEP


@pytest.mark.parametrize(
    ("settings", "ratio", "error", "advantages"),
    [
        # delta = 1 + 0 - 1, 2 + 1 - 0, 4 + 1.5 - 2; v - V = delta + .5 * .5 * (what follows);
        # A = r + .5 * v' - V: 1 + .5 * 3.875 - 1, 2 + .5 * 5.5 - 0, 4 + 1.5 - 2
        ({"gae_lambda": 0.5}, 1.0, [0.96875, 3.875, 3.5], [1.9375, 4.75, 3.5]),
        # rho 2, c 1/2: v - V = 2 * delta + .5 * .5 * (what follows); A = 2 * (r + .5 * v' - V)
        ({"rho_clip": 2.0, "c_clip": 0.5}, 4.0, [1.9375, 7.75, 7.0], [7.75, 13.0, 7.0]),
    ],
)
def test_lambda_and_the_two_clips_of_the_trace(
    settings: dict[str, float], ratio: float, error: list[float], advantages: list[float]
) -> None:
    agent = build(IMPALA, num_envs=1, **settings)
    ones = torch.ones(3, 1)
    reward, value = torch.tensor([[1.0, 2, 4]]).T, torch.tensor([[1.0, 0, 2, 3]]).T
    extras = {"log_prob": torch.zeros(3, 1)}
    batch = Batch({}, ones > 1, {}, reward, 0.5 * ones, ones, ones, extras=extras)
    advantage, target, _ = agent.trace(batch, value, ones * torch.tensor(ratio).log())
    torch.testing.assert_close((target - value[:-1])[:, 0], torch.tensor(error))
    torch.testing.assert_close(advantage[:, 0], torch.tensor(advantages))
