"""FlashSAC: one pass over both halves, moved distributions, projected weights, scaled rewards, noise that is held."""

from typing import Any

import pytest
import torch
from replay_blocks import ONE, TWO, VECTOR, build, learn, same, transitions, weights
from torch import Tensor

from whorl.agents.agent import Context
from whorl.agents.component import Component
from whorl.algorithms.flash_sac import FlashSAC, FlashSACConfig
from whorl.core.errors import ConfigError
from whorl.core.spec import Discrete, Spec, Stream
from whorl.data.batch import Batch
from whorl.explore.noise import MEMORY
from whorl.nets.bounded import BoundedNet
from whorl.ops.transforms import categorical_projection

SMALL = {"actor_width": 8, "critic_width": 8, "blocks": 1, "n_atoms": 7, "v_min": -3.0, "v_max": 3.0}


def flash(action: Any = TWO, **settings: Any) -> Any:
    return build(FlashSAC, action, **{"actor_hidden_sizes": (256, 256), **SMALL, **settings})


def context(num_envs: int, **given: Any) -> Context:
    reset = torch.zeros(num_envs, dtype=torch.bool)
    return Context(reset, torch.Generator().manual_seed(0), **given)


def test_the_critics_learn_the_moved_distribution_of_the_lower_target_in_one_pass_over_both_halves() -> None:
    agent = flash(alpha=0.5, tune_alpha=False)
    batch = transitions(agent)
    noise = agent.draw(batch)
    loss, error, q, metrics, moments = agent.critic_loss(batch, noise)
    with torch.no_grad():
        policy = agent.policy(agent.actor(batch.obs[1:]))  # by running statistics
        action, log_prob = policy.sample_with_log_prob(noise["next_action"])
        both = torch.cat((batch.obs, torch.cat((batch.action, action))), -1)  # [2, B, ...]
        atoms = torch.linspace(-3, 3, 7)
        one, other = agent.target_critic.learn(both)[0][:, 1:].softmax(-1)
        prob = torch.where((one @ atoms < other @ atoms).unsqueeze(-1), one, other)
        soft = atoms - 0.5 * log_prob.unsqueeze(-1)
        place = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * soft
        target = categorical_projection(prob, place, atoms)
    answers, statistics = agent.critic.learn(both)
    cross = -(target * answers[:, :1].log_softmax(-1)).sum(-1)
    torch.testing.assert_close(loss, cross.sum(0).mean())
    torch.testing.assert_close(error, (cross + torch.special.xlogy(target, target).sum(-1)).mean(0).detach())
    torch.testing.assert_close(q, (answers[:, :1].softmax(-1) @ atoms).mean().detach())
    assert all(a.equal(b) for one, other in zip(moments, statistics) for a, b in zip(one, other))
    assert metrics["q/clipped"].item() >= 0


def test_the_actor_learns_by_the_statistics_of_both_halves_and_climbs_critics_that_go_by_running_ones() -> (
    None
):
    agent = flash()
    for _ in range(3):
        learn(agent, transitions(agent))
    batch = transitions(agent, seed=1)
    noise = agent.draw(batch)
    said, statistics = agent.actor.learn(batch.obs)
    action, log_prob = agent.policy(said[:, :1]).sample_with_log_prob(noise["action"])
    values = agent.critic(torch.cat((batch.obs[:1], action), -1)).softmax(-1) @ torch.linspace(-3, 3, 7)
    loss, mean, moments = agent.actor_loss(batch, noise)
    torch.testing.assert_close(loss, (agent.temperature() * log_prob - values.amin(0)).mean())
    torch.testing.assert_close(mean, log_prob.mean())
    assert all(a.equal(b) for one, other in zip(moments, statistics) for a, b in zip(one, other))


def units(net: BoundedNet) -> list[Tensor]:
    return [weight.norm(dim=1) for weight in net.weights]


def test_after_each_update_every_unit_has_weights_of_norm_one_and_the_targets_follow() -> None:
    agent = flash(actor_lr=0.1, critic_lr=0.1, tau=0.25)
    for number in (1, 2, 3):
        before = weights(agent.target_critic), weights(agent.actor), agent.actor.norms[0].mean.clone()
        learn(agent, transitions(agent, seed=number))
        for norm in [*units(agent.critic), *units(agent.actor)]:
            torch.testing.assert_close(norm, torch.ones_like(norm))
        moved = [torch.lerp(a, b, 0.25) for a, b in zip(before[0], weights(agent.critic))]
        assert same(weights(agent.target_critic), moved)
        assert same(before[1], weights(agent.actor)) == (
            number != 2
        )  # the actor waits for every second update
        assert before[2].equal(agent.actor.norms[0].mean) == (number != 2)


def test_the_log_deviation_reaches_its_bounds_by_a_tanh() -> None:
    agent = flash(ONE, log_std_range=(-4.0, 2.0))
    outputs = torch.tensor([[[0.0, -100.0], [0.0, 0.0], [0.0, 100.0]]])
    log_std = agent.policy(outputs).before.log_std
    assert log_std.flatten().tolist() == pytest.approx([-4, -1, 2])


def two(batch: Batch, reward: Tensor) -> Batch:
    """The first two rows as a rollout with these rewards [1, 2]."""
    columns = {
        name: getattr(batch, name)[:, :2] for name in ("obs", "reset", "action", "discount", "keep", "mask")
    }
    return batch.replace(reward=reward, **columns)


def test_rewards_are_divided_by_the_size_of_returns_when_learned_from() -> None:
    agent = flash()
    batch = transitions(agent)
    assert agent.scaled(batch).reward.equal(batch.reward * agent.rewards.scale())
    rollout = two(batch, torch.tensor([[0.0, 12.0]]))
    agent.receive(rollout)
    # The returns are 0 and 12, with deviation 6: more than 12 / v_max = 4.
    torch.testing.assert_close(agent.scaled(batch).reward, batch.reward / 6, rtol=1e-5, atol=0)
    plain = flash(normalize_reward=False)
    plain.receive(rollout)
    assert plain.scaled(batch).reward.equal(batch.reward)


class Novelty(Component):
    """An intrinsic reward of 4 and 2."""

    def rewards(self, rollout: Batch) -> dict[str, Tensor]:
        return {"novelty": torch.tensor([[4.0, 2.0]])}


def test_the_returns_that_scale_rewards_are_those_of_the_rewards_that_are_learned() -> None:
    """Of the environment's, clipped to 2, plus half of the intrinsic ones, times 10."""
    spec = Spec(VECTOR, TWO, 2, streams=(Stream("novelty", weight=0.5),))
    settings: Any = {**SMALL, "clip_reward": True, "reward_clip_range": 2.0, "reward_scale": 10.0}
    agent = FlashSAC(spec, FlashSACConfig(**settings))
    agent.components["novelty"] = Novelty("novelty", spec, None, agent)
    rollout = two(transitions(agent), torch.tensor([[5.0, 0.0]]))
    assert agent.receive(rollout).reward.tolist() == [[[5.0, 4.0], [0.0, 2.0]]], "replay clips"
    # The returns are 10 (2 + 4 / 2) = 40 and 10 (0 + 2 / 2) = 10, with deviation 15: more than 40 / v_max = 13.3.
    assert agent.rewards.scale().item() == pytest.approx(1 / 15)


def test_noise_is_held_while_exploring_and_absent_in_evaluation() -> None:
    agent = flash()
    obs, memory = torch.randn(2, 3), agent.begin(torch.randn(2, 3))
    held = {"held": torch.tensor([[1.0, -1.0], [0.5, 0.5]]), "left": torch.tensor([3, 3])}
    acted = agent.act(obs, {MEMORY: held}, context(2))
    policy = agent.policy(agent.actor(obs))
    torch.testing.assert_close(acted.action, policy.sample(held["held"]))
    assert acted.memory[MEMORY]["left"].tolist() == [2, 2]
    greedy = agent.act(obs, memory, context(2, greedy=True))
    torch.testing.assert_close(greedy.action, policy.mode())


def test_defaults_are_the_papers() -> None:
    cfg = FlashSACConfig()
    assert (cfg.batch_size, cfg.tau, cfg.policy_delay, cfg.ensemble_q_num) == (2048, 0.01, 2, 2)
    assert (cfg.n_atoms, cfg.v_min, cfg.v_max, cfg.alpha) == (101, -5, 5, 0.01)
    assert (cfg.actor_width, cfg.critic_width, cfg.blocks, cfg.noise_steps) == (128, 256, 2, 16)
    assert cfg.target(2) == pytest.approx(
        torch.distributions.Normal(0.0, 0.15).entropy().item() * 2, abs=1e-3
    )


def test_what_does_not_fit_is_declined() -> None:
    with pytest.raises(ConfigError, match="flash_sac needs continuous actions"):
        flash(Discrete(3))
    with pytest.raises(ConfigError, match="v_max is -1, but normalize_reward scales returns to it"):
        FlashSAC(Spec(flash().spec.observation, TWO, 2), FlashSACConfig(v_min=-2.0, v_max=-1.0))
