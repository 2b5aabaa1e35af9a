"""PQN: lambda-returns by hand over both kinds of end, minibatches, fixed targets, and no target net."""

from typing import Any

import pytest
import torch
from replay_blocks import SGD, assert_same_weights, same, says, weights
from torch import Tensor
from value_blocks import MASKED, build, context, masked_obs, plain_values

from whorl import conformance
from whorl.algorithms.pqn import PQN
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, Array
from whorl.data.batch import Batch
from whorl.data.rollouts import Rollouts
from whorl.settings.merge import configure

ENDS = {1: "truncated", 4: "terminated"}
"""rows after which an episode ends; the row behind each is a final one"""


def block(obs: Any, action: Tensor, reward: Tensor) -> Batch:
    """Eight rows per environment: two and a truncation, two and a terminal state, two that continue."""
    num_envs = action.shape[1]
    reset = torch.zeros(9, num_envs, dtype=torch.bool)
    reset[[0, 3, 6]] = True
    mask, discount, keep = torch.ones(8, num_envs), torch.full((8, num_envs), 0.9), torch.ones(8, num_envs)
    for row, end in ENDS.items():
        keep[row] = 0
        discount[row] *= end == "truncated"
        for column in (mask, discount, keep):
            column[row + 1] = 0
    return Batch(obs, reset, action, reward, discount, keep, mask)


def rollout(agent: Any, num_envs: int = 2, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(9, num_envs, 3, generator=generator)
    action = torch.randint(3, (8, num_envs), generator=generator)
    return block(obs, action, torch.randn(8, num_envs, generator=generator))


def telling(**settings: Any) -> Any:
    """An agent that reads its values off the observation."""
    agent = build(PQN, 2, Array((2,)), num_envs=1, **settings)
    says(agent.critic, lambda obs: obs.unsqueeze(-1))
    return agent


def known() -> Batch:
    """Row t has the values (t - 1, t); rewards 1, 2, then 3, 4, then 5, 6, and 99 in final rows."""
    obs = torch.stack((torch.arange(9.0) - 1, torch.arange(9.0)), -1).unsqueeze(1)
    reward = torch.tensor([[1.0, 2, 99, 3, 4, 99, 5, 6]]).T
    return block(obs, torch.zeros(8, 1, dtype=torch.int64), reward)


# Targets


@pytest.mark.parametrize(
    ("lam", "wanted"),
    [
        # from the end: 6 + .9 * 8 = 13.2, 5 + .9 * (7 + 13.2) / 2 = 14.09; 4, 3 + .9 * (4 + 4) / 2 = 6.6;
        # 2 + .9 * 2 = 3.8 bootstraps from the final row, 1 + .9 * (1 + 3.8) / 2 = 3.16
        (0.5, [3.16, 3.8, 0, 6.6, 4.0, 0, 14.09, 13.2]),
        # one step each
        (0.0, [1.9, 3.8, 0, 6.6, 4.0, 0, 5 + 0.9 * 7, 13.2]),
        # as far as the episode or the rollout goes
        (1.0, [1 + 0.9 * 3.8, 3.8, 0, 3 + 0.9 * 4, 4.0, 0, 5 + 0.9 * 13.2, 13.2]),
    ],
)
def test_returns_bootstrap_through_truncation_and_stop_at_termination(
    lam: float, wanted: list[float]
) -> None:
    found = telling(q_lambda=lam).target(known(), {})[:, 0]
    torch.testing.assert_close(found, torch.tensor(wanted))


def test_what_is_not_allowed_is_not_in_a_return() -> None:
    agent = build(
        PQN, 2, {"said": Array((2,)), MASK_KEY: Array((2,), "int8", 0, 1)}, num_envs=1, q_lambda=0.5
    )
    says(agent.critic, lambda obs: obs["said"].unsqueeze(-1))
    batch = known()
    mask = torch.tensor([1, 0], dtype=torch.int8).expand(9, 1, 2)
    batch = batch.replace(obs={"said": batch.obs, MASK_KEY: mask})
    # all values are one less: 6 + .9 * 7 = 12.3, 5 + .9 * (6 + 12.3) / 2; 3 + .9 * (3 + 4) / 2; 2 + .9 * 1
    wanted = torch.tensor([1 + 0.9 * (0 + 2.9) / 2, 2.9, 0, 6.15, 4.0, 0, 13.235, 12.3])
    torch.testing.assert_close(agent.target(batch, {})[:, 0], wanted)


def test_clipped_rewards_are_learned_from() -> None:
    agent = telling(q_lambda=0.0, clip_reward=True, reward_clip_range=2.5)
    found = agent.target(agent.begin_update(known()), {})[:, 0]
    torch.testing.assert_close(found[:4], torch.tensor([1.9, 3.8, 0, 2.5 + 0.9 * 4]))


def test_the_loss_by_hand() -> None:
    agent, batch = telling(), known()
    data = {
        "action": torch.tensor([[0, 1, 1]]),
        "target": torch.tensor([[2.0, 2.0, 50.0]]),
        "weight": torch.tensor([[1.5, 1.5, 0.0]]),
    }
    rows = batch.replace(obs=batch.obs[1:4].transpose(0, 1), mask=torch.ones(1, 3)).now
    # Q = 0, 2 against 2, 2: halves of 4 and 0; the third does not count
    loss, q = agent.critic_loss(rows, data, {})
    assert float(loss) == pytest.approx(1.5 * 2.0 / 3)
    assert float(q) == pytest.approx((0 + 2) / 2)


# Updates


def test_there_is_no_target_net_and_no_replay() -> None:
    agent = build(PQN)
    assert not [name for name, _ in agent.named_parameters() if not name.startswith("critic.")]
    assert set(agent.trained()) == {name for name, _ in agent.named_parameters()}
    assert isinstance(agent.experience(torch.Generator()), Rollouts) and agent.replay_bytes() == 0


def test_a_net_has_layer_norms_by_default_and_radam() -> None:
    agent = build(PQN)
    assert any(isinstance(module, torch.nn.LayerNorm) for module in agent.critic.modules())
    assert isinstance(agent._optimizers["critic"], torch.optim.RAdam)


def test_every_row_is_learned_from_once_per_epoch_in_minibatches_of_one_size() -> None:
    agent = build(PQN, n_epochs=3, batch_size=4)
    batch, seen = rollout(agent), []
    goals = agent.target(batch, {}).flatten().sort().values
    loss = agent.critic_loss

    def spy(rows: Any, data: dict[str, Tensor], noise: Any) -> Any:
        seen.append(data["target"])
        return loss(rows, data, noise)

    agent.critic_loss = spy
    agent.update(batch)
    # 8 rows of 2 environments are 4 minibatches, three times over
    assert [tuple(part.shape) for part in seen] == [(1, 4)] * 12
    for epoch in range(3):
        part = torch.cat(seen[4 * epoch : 4 * epoch + 4], 1).flatten()
        # targets are made once: the same in each epoch although the net has moved
        assert part.sort().values.equal(goals)
    assert not torch.cat(seen[:4]).equal(torch.cat(seen[4:8])), "the order is drawn again"
    assert {float(entry["step"]) for entry in agent.state()["optimizers"]["critic"]} == {12.0}


def test_updates_are_the_rule_written_out() -> None:
    settings = {
        "optimizer": SGD,
        "learning_rate": 0.1,
        "max_grad_norm": 0.0,
        "q_lambda": 0.7,
        "layer_norm": False,
    }
    agent = build(PQN, n_epochs=2, batch_size=16, **settings)
    net = plain_values(agent.critic)
    for number in (1, 2):
        batch = rollout(agent, seed=number)
        agent.update(batch)
        obs, reward, discount, keep = (
            t.double() for t in (batch.obs, batch.reward, batch.discount, batch.keep)
        )
        with torch.no_grad():
            value = net(obs).amax(-1)  # [9, 2]
            goal, following = torch.zeros(8, 2).double(), value[8]
            for t in reversed(range(8)):
                mixed = torch.where(keep[t] > 0, 0.3 * value[t + 1] + 0.7 * following, value[t + 1])
                goal[t] = following = reward[t] + discount[t] * mixed
        real = batch.mask > 0
        for _ in range(2):
            q = net(obs[:8]).gather(-1, batch.action.unsqueeze(-1))[..., 0]
            net.descend(0.5 * (q - goal)[real].square().mean(), 0.1)
    assert_same_weights([plain_values(agent.critic)], [net])


def test_rows_that_are_no_transition_have_no_influence() -> None:
    def after(garbage: bool) -> list[Tensor]:
        agent = build(PQN, batch_size=4)
        batch = rollout(agent)
        if garbage:
            batch.reward[[2, 5]] = torch.nan
            batch.action[[2, 5]] = 99
        agent.update(batch)
        return weights(agent)

    assert same(after(False), after(True))


def test_the_learning_rate_falls_with_the_budget_where_asked() -> None:
    agent = build(PQN, learning_rate=0.4, lr_schedule="linear", batch_size=4)
    agent.progress.fill_(0.75)
    agent.update(rollout(agent))
    assert float(agent.lr_critic) == pytest.approx(0.1)


# Acting


def test_acting_explores_by_epsilon_and_obeys_masks() -> None:
    agent = build(PQN, observation=MASKED, exploration_final_eps=0.0, exploration_fraction=0.5)
    with torch.no_grad():
        agent.critic.advantage.last.bias.copy_(torch.tensor([10.0, 1e3, 0.0]))
        for progress, epsilon in ((0.0, 1.0), (0.25, 0.5), (0.5, 0.0)):
            agent.progress.fill_(progress)
            taken = agent.act(masked_obs(20_000, (0, 2)), {}, context(20_000)).action
            assert not (taken == 1).any()
            share = epsilon / 2
            other = float((taken == 2).float().mean())
            assert other == pytest.approx(share, abs=4 * (share * (1 - share) / 20_000) ** 0.5 + 1e-9)
        agent.progress.zero_()
        assert (agent.act(masked_obs(100, (0, 2)), {}, context(100, greedy=True)).action == 0).all()


# Wrong settings


def test_minibatches_that_do_not_divide_a_rollout_are_one_sentence() -> None:
    agent = build(PQN, batch_size=5)
    with pytest.raises(
        ConfigError, match="batch_size 5 does not divide the 16 rows of a rollout; use 4, or"
    ) as e:
        agent.check(16)
    assert "\n" not in str(e.value)
    build(PQN, batch_size=4).check(16)


@pytest.mark.parametrize(
    ("settings", "told_so"),
    [
        ({"q_lambda": 1.5}, "q_lambda is 1.5; it must be from 0 to 1"),
        ({"n_epochs": 0}, "n_epochs is 0; it must be from 1 to 1,000,000"),
        ({"double": True}, "pqn has no setting 'double'"),
        ({"target_update_interval": 100}, "pqn has no setting 'target_update_interval', which belongs to "),
    ],
)
def test_wrong_settings_are_one_sentence(settings: dict[str, Any], told_so: str) -> None:
    with pytest.raises(ConfigError) as e:
        configure("pqn", "CartPole-v1", settings)
    assert str(e.value).startswith(told_so) and "\n" not in str(e.value)


def test_the_mean_of_q_is_that_of_transitions() -> None:
    case = conformance.subject("pqn", "vector", "none", "discrete", n_epochs=1, batch_size=64)
    run = conformance.Run(case)
    (rollout,) = case.rollouts(run.agent, 1)
    real = rollout.mask > 0
    assert not real.all() and real.numel() == 64
    agent: Any = run.agent
    q = agent.critic(rollout.now)[..., 0].gather(-1, rollout.action.unsqueeze(-1))[..., 0].detach()
    (updated,) = run.feed([rollout])
    torch.testing.assert_close(updated.metrics["q/mean"], q[real].mean())
    assert q[real].mean() != q.mean()
