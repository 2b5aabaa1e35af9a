"""What agents that learn from replay have in common: weights of rows, options, encoders, and what acting reads."""

from typing import Any

import pytest
import torch
from replay_blocks import (
    IMAGE,
    ONE,
    SGD,
    VECTOR,
    batch_of,
    build,
    learn,
    reweighted,
    same,
    transitions,
    weights,
)
from torch import Tensor

from whorl.agents.agent import Agent, Context
from whorl.agents.families import OffPolicyConfig
from whorl.algorithms.crossq import CrossQ
from whorl.algorithms.ddpg import DDPG
from whorl.algorithms.sac import SAC
from whorl.algorithms.td3 import TD3
from whorl.algorithms.tqc import TQC
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Array, Continuous, Discrete, Spec, to_env
from whorl.data.batch import Batch
from whorl.ops.targets import pieces

EVERY = {"policy_delay": 1, "target_update_interval": 1}
AGENTS: dict[str, tuple[type[Agent], dict[str, Any]]] = {
    "ddpg": (DDPG, {}),
    "td3": (TD3, EVERY),
    "sac": (SAC, {}),
    "redq": (SAC, {"ensemble_q_num": 4, "actor_q": "mean"}),
    "choices": (SAC, {"action": Discrete(3)}),
    "tqc": (TQC, {"n_critics": 2, "n_quantiles": 5, "top_quantiles_to_drop": 1}),
}
CONTINUOUS = [name for name in AGENTS if name != "choices"]


def make(name: str, **settings: Any) -> Any:
    cls, own = AGENTS[name]
    return build(cls, **{**own, **settings})


# Rows


@pytest.mark.parametrize("name", AGENTS)
def test_a_row_of_weight_zero_changes_no_bit_of_the_critic_but_counts_for_the_actor(name: str) -> None:
    def after(other: bool) -> tuple[list[Tensor], list[Tensor]]:
        agent = make(name)
        batch = transitions(agent)
        batch = reweighted(batch, torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0, 1.0]))
        if other:
            batch.reward[0, 2] = 1e3
            batch.obs[:, 2] += 1
        learn(agent, batch)
        return weights(agent.critic) + weights(agent.target_critic), weights(agent.actor)

    (critic, actor), (other_critic, other_actor) = after(False), after(True)
    assert same(critic, other_critic)
    assert not same(actor, other_actor)


@pytest.mark.parametrize("name", AGENTS)
def test_weights_enter_the_critic_loss_only(name: str) -> None:
    agent = make(name)
    batch = transitions(agent)
    noise = agent.draw(batch)
    plain, error, _ = agent.critic_loss(batch, noise)
    doubled, same_error, _ = agent.critic_loss(reweighted(batch, torch.full((6,), 2.0)), noise)
    torch.testing.assert_close(doubled, 2 * plain)
    assert same_error.equal(error)
    one, other = (agent.actor_loss(b, noise) for b in (batch, reweighted(batch, torch.arange(6.0))))
    torch.testing.assert_close(one, other, atol=0, rtol=0)


@pytest.mark.parametrize("name", AGENTS)
def test_a_row_without_a_share_does_not_count_at_all(name: str) -> None:
    def after(other: bool) -> list[Tensor]:
        agent = make(name)
        batch = transitions(agent)
        share = torch.tensor([[1.2, 1.2, 0.0, 1.2, 1.2, 1.2]])
        batch = batch.replace(extras={"share": share, "weight": share})
        if other:
            batch.reward[0, 2] = 1e3
            batch.obs[:, 2] += 1
        learn(agent, batch)
        return weights(agent)

    assert same(after(False), after(True))


@pytest.mark.parametrize("name", AGENTS)
def test_first_priorities_are_those_of_an_update(name: str) -> None:
    agent = make(name)
    batch = transitions(agent)
    streams = {key: generator.get_state() for key, generator in agent.generators.items()}
    first = agent.errors(batch)
    for key, generator in agent.generators.items():
        generator.set_state(streams[key])
    priority = learn(agent, batch).priority
    assert first.shape == (1, 6)
    assert first.equal(priority)
    assert not first.requires_grad


# Options


@pytest.mark.parametrize("name", CONTINUOUS)
def test_q_regularization_adds_the_mean_square_of_what_the_critics_say(name: str) -> None:
    agent, plain = make(name, q_regularization=0.5), make(name)
    weight = torch.tensor([1.0, 0, 2, 1, 1, 1])
    batch = reweighted(transitions(agent), weight)
    noise = agent.draw(batch)
    said = agent.critic(batch.now, batch.action).movedim(2, 0).flatten(1)  # [rows, critics * quantiles]
    found, without = agent.critic_loss(batch, noise)[0], plain.critic_loss(batch, noise)[0]
    torch.testing.assert_close(found, without + 0.5 * (weight * said.square().mean(-1)).mean())


@pytest.mark.parametrize("name", AGENTS)
def test_weight_decay_pulls_critics_and_actor_towards_zero(name: str) -> None:
    settings = {"optimizer": SGD, "critic_lr": 0.1, "actor_lr": 0.2}
    decayed, plain = make(name, weight_decay=0.5, **settings), make(name, **settings)
    start = weights(plain.critic)
    batch = transitions(plain)
    learn(decayed, batch)
    learn(plain, batch)
    for found, without, before in zip(weights(decayed.critic), weights(plain.critic), start):
        torch.testing.assert_close(found, without - 0.1 * 0.5 * before, atol=1e-6, rtol=1e-5)
    assert decayed._optimizers["actor"].param_groups[0]["weight_decay"] == 0.5


@pytest.mark.parametrize("name", ["sac", "choices", "tqc", "crossq"])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.5}], ids=["", "told"])
@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
def test_a_temperature_does_not_decay(name: str, optimizer: str, options: dict[str, float]) -> None:
    settings = {"optimizer": Part(optimizer, options), "weight_decay": 0.5, "alpha": 0.01}
    agent = build(CrossQ, **settings) if name == "crossq" else make(name, **settings)
    assert agent._optimizers["critic"].param_groups[0]["weight_decay"] == 0.5
    before = agent.temperature.log_alpha.clone()
    agent.minimize("alpha", 0 * agent.temperature.log_alpha)
    assert agent.temperature.log_alpha.equal(before)


@pytest.mark.parametrize("name", AGENTS)
def test_gradients_of_each_net_are_scaled_down_to_the_norm(name: str) -> None:
    agent = make(name, optimizer=SGD, critic_lr=1.0, actor_lr=1.0, max_grad_norm=1e-3)
    before = {net: weights(getattr(agent, net)) for net in ("critic", "actor")}
    learn(agent, transitions(agent))
    for net, old in before.items():
        steps = torch.cat([(a - b).flatten() for a, b in zip(weights(getattr(agent, net)), old)])
        assert float(steps.norm()) == pytest.approx(1e-3, rel=2e-3)


@pytest.mark.parametrize("name", AGENTS)
def test_gradients_below_the_norm_are_left_as_they_are(name: str) -> None:
    agent, plain = make(name, optimizer=SGD, max_grad_norm=1e3), make(name, optimizer=SGD)
    learn(agent, transitions(agent))
    learn(plain, transitions(plain))
    assert same(weights(agent), weights(plain))


@pytest.mark.parametrize("name", AGENTS)
def test_rewards_are_scaled_when_they_are_learned_from(name: str) -> None:
    scaled, plain = make(name, reward_scale=4.0), make(name)
    batch = transitions(plain)
    updated = learn(scaled, batch)
    other = learn(plain, batch.replace(reward=4 * batch.reward))
    assert updated.priority is not None and other.priority is not None
    assert updated.priority.equal(other.priority)
    assert same(weights(scaled), weights(plain))


@pytest.mark.parametrize("name", AGENTS)
def test_targets_move_every_so_many_updates_and_stand_still_in_between(name: str) -> None:
    agent = make(name, target_update_interval=3, tau=0.5)
    for number in range(1, 7):
        before = weights(agent.target_critic)
        learn(agent, transitions(agent, seed=number))
        after = weights(agent.target_critic)
        if number % 3:
            assert same(before, after)
        else:
            assert same(after, [torch.lerp(a, b, 0.5) for a, b in zip(before, weights(agent.critic))])


@pytest.mark.parametrize("name", AGENTS)
def test_rates_fall_linearly_with_the_budget(name: str) -> None:
    agent = make(name, lr_schedule="linear", critic_lr=0.4, actor_lr=0.2, optimizer=SGD)
    agent.progress.fill_(0.75)
    learn(agent, transitions(agent))
    assert float(agent.lr_critic) == pytest.approx(0.1)
    assert float(agent.lr_actor) == pytest.approx(0.05)
    steady = make(name, critic_lr=0.1, actor_lr=0.05, optimizer=SGD)
    learn(steady, transitions(steady))
    for a, b in zip(
        weights(agent.critic) + weights(agent.actor), weights(steady.critic) + weights(steady.actor)
    ):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", AGENTS)
def test_statistics_of_observations_follow_rollouts_and_not_drawn_batches(name: str) -> None:
    agent = make(name, normalize_obs=True)
    batch = transitions(agent)
    rollout = batch.replace(obs=torch.arange(36.0).reshape(2, 6, 3))
    agent.observe(rollout)
    found = agent.normalizer_values()["observation"]
    # rows 0 to 5 of the first of two: 0, 3, ..., 15 and two more columns; their variance is 9 * 35 / 12
    assert found["mean"] == pytest.approx([7.5, 8.5, 9.5])
    assert found["var"] == pytest.approx([26.25] * 3)
    assert found["count"] == 6
    learn(agent, batch)
    assert agent.normalizer_values()["observation"] == found
    # Acting and learning see the same numbers.
    plain = make(name)
    plain.load_state_dict({k: v for k, v in agent.state_dict().items() if "statistics" not in k})
    scale = 1 / (26.25 + 1e-6) ** 0.5
    obs = batch.obs
    by_hand = (obs - torch.tensor([7.5, 8.5, 9.5])) * scale
    context = Context(torch.ones(6, dtype=torch.bool), torch.Generator(), greedy=True)
    with torch.no_grad():
        torch.testing.assert_close(
            agent.act(obs[0], {}, context).action, plain.act(by_hand[0], {}, context).action
        )
    streams = {key: generator.get_state() for key, generator in agent.generators.items()}
    for key, generator in plain.generators.items():
        generator.set_state(streams[key])
    torch.testing.assert_close(
        agent.errors(batch), plain.errors(batch.replace(obs=by_hand)), atol=1e-5, rtol=1e-4
    )


def test_a_step_down_a_loss_is_torchs_adam_with_its_gradient() -> None:
    agent = build(DDPG, weight_decay=0.1, adam_eps=1e-4, critic_lr=0.01)
    parameters = list(agent.critic.parameters())
    copies = [torch.nn.Parameter(w) for w in weights(agent.critic)]
    adam = torch.optim.Adam(copies, lr=0.01, weight_decay=0.1, eps=1e-4)
    for _ in range(3):
        gradients = [torch.randn_like(p) for p in parameters]
        for copy, gradient in zip(copies, gradients):
            copy.grad = gradient
        adam.step()
        agent.minimize("critic", torch.stack([(p * g).sum() for p, g in zip(parameters, gradients)]).sum())
    for found, wanted in zip(parameters, copies):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)


# Noise in the layers


@pytest.mark.parametrize("name", AGENTS)
def test_noisy_layers_are_quiet_when_greedy_and_loud_otherwise(name: str) -> None:
    agent = make(name, noisy=True, **({"noise": "none"} if name in ("ddpg", "td3") else {}))
    plain = make(name)
    with torch.no_grad():
        # nothing but the noisy layers is random, and the head does not make little of them
        head = next(m for m in agent.actor.head.modules() if isinstance(m, torch.nn.Linear))
        head.weight *= 100
    obs, drawn = torch.randn(2, 3), torch.Generator().manual_seed(0)
    started = torch.ones(2, dtype=torch.bool)

    def features(greedy: bool) -> Tensor:
        noise = {} if greedy else agent.actor.draw(drawn)
        return agent.actor.backbone.step(obs, {}, started, noise)[0]

    with torch.no_grad():
        assert features(True).equal(features(True))
        assert not features(False).equal(features(False))
        assert not features(False).equal(features(True))
        greedy = [agent.act(obs, {}, Context(started, drawn, greedy=True)).action for _ in range(2)]
        loud = torch.stack([agent.act(obs, {}, Context(started, drawn)).action for _ in range(20)])
    assert greedy[0].equal(greedy[1])
    assert (loud != loud[0]).any()
    # Learning draws noise of its own for each pass, and learns how much of it there should be.
    before = [layer.weight_scale.detach().clone() for layer in agent.actor.backbone.torso.layers]
    learn(agent, transitions(agent))
    assert not any(a.equal(b.weight_scale) for a, b in zip(before, agent.actor.backbone.torso.layers))
    assert plain.actor.draw(drawn) == {}


@pytest.mark.parametrize("name", AGENTS)
def test_dropout_is_drawn_apart_for_critics_and_targets_and_silent_in_values(name: str) -> None:
    agent = make(name, critic_network=Part("mlp", {"dropout": 0.5, "layer_norm": True}))
    batch = transitions(agent)
    noise = agent.draw(batch)
    assert noise["critic"].keys() == {"0", "1"}
    assert not noise["critic"]["0"].equal(noise["target_critic"]["0"])
    assert not noise["critic"]["0"].equal(agent.draw(batch)["critic"]["0"])
    with torch.no_grad():
        q = [agent.critic(batch.now, None if name == "choices" else batch.action) for _ in range(2)]
    assert q[0].equal(q[1])
    updated = learn(agent, batch)
    assert all(torch.isfinite(value) for value in updated.metrics.values())


# Images


@pytest.mark.parametrize("name", AGENTS)
def test_the_encoder_of_images_is_trained_by_the_critics_alone(name: str) -> None:
    def after(**rates: float) -> list[Tensor]:
        agent = make(name, observation=IMAGE, optimizer=SGD, **rates)
        learn(agent, transitions(agent))
        return weights(agent.critic.backbone)

    start = weights(make(name, observation=IMAGE).critic.backbone)
    assert start  # there is something to train
    assert same(start, after(critic_lr=0.0, actor_lr=1.0))
    assert not any(a.equal(b) for a, b in zip(start, after(critic_lr=1e-3, actor_lr=0.0)))
    assert same(after(critic_lr=1e-3, actor_lr=0.0), after(critic_lr=1e-3, actor_lr=1.0))


@pytest.mark.parametrize("name", AGENTS)
def test_no_gradient_runs_from_the_policy_into_the_encoder(name: str) -> None:
    agent = make(name, observation=IMAGE)
    batch = transitions(agent)
    batch = agent.observations.learn(batch, torch.Generator())
    found = agent.actor(batch.now)
    output = (
        found if isinstance(found, Tensor) else found.log_probs if name == "choices" else found.before.mean
    )
    parts = [*agent.critic.backbone.parameters(), *agent.actor.parameters()]
    slopes = torch.autograd.grad(output.square().sum(), parts, allow_unused=True)
    encoder = len(list(agent.critic.backbone.parameters()))
    assert slopes[:encoder] == (None,) * encoder
    assert not any(slope is None for slope in slopes[encoder:])
    assert not {id(p) for p in agent.actor.parameters()} & {id(p) for p in agent.critic.parameters()}


@pytest.mark.parametrize("name", AGENTS)
def test_the_target_encoder_follows_by_tau(name: str) -> None:
    agent = make(name, observation=IMAGE, tau=0.25)
    before = weights(agent.target_critic.backbone)
    learn(agent, transitions(agent))
    wanted = [torch.lerp(a, b, 0.25) for a, b in zip(before, weights(agent.critic.backbone))]
    assert same(weights(agent.target_critic.backbone), wanted)
    assert not same(before, wanted)


def test_weights_of_convolutions_can_be_handed_to_a_gpu_in_pieces() -> None:
    agent = make("sac", observation=Array((8, 8, 3), "uint8", 0.0, 255.0))
    parameters, wanted = list(agent.critic.parameters()), weights(agent.critic)
    assert not all(p.is_contiguous() for p in parameters)
    for piece in pieces(parameters):
        piece.mul_(2)
    assert same(weights(agent.critic), [2 * w for w in wanted])
    # Pieces of two nets of one structure are cut at the same places.
    torch._foreach_lerp_(pieces(list(agent.target_critic.parameters())), pieces(parameters), 0.25)
    assert same(weights(agent.target_critic), [torch.lerp(w, 2 * w, 0.25) for w in wanted])


@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_a_target_policy_reads_the_target_encoder(name: str) -> None:
    agent = make(name, observation=IMAGE)
    batch = agent.observations.learn(transitions(agent), torch.Generator())
    with torch.no_grad():
        before, online = agent.target_actor(batch.next), agent.actor(batch.next)
        for weight in agent.critic.backbone.parameters():
            weight.add_(0.1)
        assert agent.target_actor(batch.next).equal(before)
        assert not agent.actor(batch.next).equal(online)
        for weight in agent.target_critic.backbone.parameters():
            weight.add_(0.1)
        assert not agent.target_actor(batch.next).equal(before)


@pytest.mark.parametrize("name", AGENTS)
def test_both_images_of_a_transition_are_shifted_again_each_time_they_are_learned_from(name: str) -> None:
    agent, generator = make(name, observation=IMAGE, augment=2), torch.Generator().manual_seed(0)
    batch = transitions(agent, rows=40)
    batch.obs[1] = batch.obs[0]
    first, second = (agent.observations.learn(batch, generator).obs for _ in range(2))
    assert not first.equal(second)
    # now and next are shifted apart: alike one time in 25
    assert (first[0] == first[1]).flatten(1).all(1).sum() < 10
    # An inner pixel holds what one of the 25 places around it held, divided by 255.
    shifts = torch.stack([batch.obs[:, :, 4 + y, 4 + x, 0] for y in range(-2, 3) for x in range(-2, 3)])
    assert ((first[:, :, 4, 4, 0] - shifts / 255).abs() < 1e-6).any(0).all()


def test_images_are_shifted_with_their_channels_where_the_encoder_is_told_they_are() -> None:
    # [10, 4, 10] would be [H, W, C] by its look; told otherwise, each of ten pictures of 4x10 moves as a whole
    encoder = Part("images", {"channels": "first", "kind": "small"})
    agent = make("sac", observation=Array((10, 4, 10), "uint8", 0.0, 255.0), augment=2, encoder=encoder)
    # every pixel holds its place on the last axis
    columns = torch.arange(10, dtype=torch.uint8).expand(2, 30, 10, 4, 10)
    batch = transitions(agent, rows=30).replace(obs=columns.clone())
    moved = agent.observations.learn(batch, torch.Generator().manual_seed(0)).obs * 255
    middle = moved[..., 2:8].round().long() - torch.arange(2, 8)
    assert middle.amin() == -2 and middle.amax() == 2
    assert (middle == middle[..., :1, :1, :1]).all(), "channels of one picture went apart"


def test_shifting_without_an_image_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="augment is 4, but no observation is an image"):
        make("sac", augment=4)
    make("sac", observation={"camera": IMAGE, "speed": VECTOR}, augment=4)


# Acting


@pytest.mark.parametrize("observation", [VECTOR, IMAGE, {"camera": IMAGE, "speed": VECTOR}])
@pytest.mark.parametrize("name", AGENTS)
def test_whoever_has_the_acting_tensors_acts_the_same(name: str, observation: Any) -> None:
    settings = {"observation": observation, "normalize_obs": True}
    if name in ("ddpg", "td3"):
        settings |= {"noise_final": 0.1, "noise_scale": (0.1, 0.5)}
    agent, copy = make(name, **settings), make(name, seed=1, **settings)
    batch = transitions(agent)
    agent.observe(batch)
    agent.progress.fill_(0.5)
    learn(agent, batch)
    obs = (
        {key: value[0, :2] for key, value in batch.obs.items()}
        if isinstance(batch.obs, dict)
        else batch.obs[0, :2]
    )
    started = torch.ones(2, dtype=torch.bool)

    def actions(who: Any) -> list[Tensor]:
        with torch.no_grad():
            greedy = who.act(obs, {}, Context(started, torch.Generator(), greedy=True)).action
            drawn = torch.Generator().manual_seed(3)
            return [greedy, who.act(obs, {}, Context(started, drawn, env_index=torch.arange(2))).action]

    assert not same(actions(copy)[1:], actions(agent)[1:]) or name == "choices"
    with torch.no_grad():
        for into, source in zip(copy.acting_tensors(), agent.acting_tensors(), strict=True):
            into.copy_(source)
    assert same(actions(copy), actions(agent))


@pytest.mark.parametrize("name", AGENTS)
def test_weights_fit_a_run_with_other_envs_and_leave_it_its_own_noise(name: str) -> None:
    noise = {"noise_scale": 0.5} if name in ("ddpg", "td3") else {}
    agent, other = make(name, num_envs=2), make(name, num_envs=5, seed=1, **noise)
    other.load_state_dict(agent.state_dict())
    assert same(weights(other), weights(agent))
    assert not noise or other.noise.scale.flatten().tolist() == [0.5] * 5


@pytest.mark.parametrize("name", AGENTS)
def test_acting_is_sent_no_critic_where_the_policy_reads_by_itself(name: str) -> None:
    agent = make(name)
    sent = {id(t) for t in agent.acting_tensors()}
    assert not sent & {id(p) for net in (agent.critic, agent.target_critic) for p in net.parameters()}
    assert {id(p) for p in agent.actor.parameters()} <= sent


BOUNDS = Continuous((3,), (-2.0, 0.0, -0.5), (3.0, 0.25, 8.0))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_asymmetric_bounds_are_reached_exactly_dimension_by_dimension(name: str) -> None:
    agent = make(name, action=BOUNDS, noise="none") if name in ("ddpg", "td3") else make(name, action=BOUNDS)
    head = next(m for m in agent.actor.head.modules() if isinstance(m, torch.nn.Linear))
    started = torch.ones(2, dtype=torch.bool)
    for sign, wanted in ((1, BOUNDS.high), (-1, BOUNDS.low)):
        with torch.no_grad():
            head.bias[:3] = sign * 50.0  # tanh is 1 to the last bit
            acted = agent.act(torch.randn(2, 3), {}, Context(started, torch.Generator(), greedy=True))
        assert to_env(BOUNDS, acted.action).tolist() == [list(wanted)] * 2


@pytest.mark.parametrize("name", CONTINUOUS)
def test_warm_up_actions_cover_the_range_evenly(name: str) -> None:
    agent, num_envs = make(name, action=BOUNDS), 4000
    context = Context(torch.ones(num_envs, dtype=torch.bool), torch.Generator().manual_seed(0), random=True)
    taken = to_env(BOUNDS, agent.act(torch.zeros(num_envs, 3), {}, context).action)
    for column, low, high in zip(taken.T, BOUNDS.low, BOUNDS.high):
        width = high - low
        assert low <= float(column.min()) < low + width / 100
        assert high - width / 100 < float(column.max()) <= high
        # a tenth of the draws in each tenth of the range, within five deviations of 19
        count = torch.histc(column, 10, low, high)
        assert (count - num_envs / 10).abs().max() < 95


@pytest.mark.parametrize("name", CONTINUOUS)
def test_an_unbounded_dimension_is_named_in_one_sentence(name: str) -> None:
    open_above = Continuous((2,), (-1.0, 0.0), (1.0, float("inf")))
    with pytest.raises(ConfigError, match="needs bounded actions, but dimension 1 ranges from 0 to inf") as e:
        make(name, action=open_above)
    assert "\n" not in str(e.value)


# Fixed points


def walk() -> Any:
    """Six states in a row, one-hot; every step leads on, the last state to itself with reward 1; discount .9."""
    states = torch.eye(6)
    after = states[[1, 2, 3, 4, 5, 5]]
    return batch_of(torch.stack((states, after)), torch.zeros(1, 6, 1), [0.0, 0, 0, 0, 0, 1], [0.9] * 6)


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_the_values_of_a_walk_are_a_fixed_point(name: str, alpha: float) -> None:
    soft = {} if name in ("ddpg", "td3") else {"alpha": alpha, "tune_alpha": False}
    agent = make(name, action=ONE, observation=Array((6,)), critic_hidden_sizes=(), **soft)
    batch = walk()
    noise = agent.draw(batch)
    bonus = 0.0
    if soft:
        # Every next action is tanh(.5) of a policy tanh N(0, 1), which has log pi = -.803710.
        noise["next_action"].fill_(0.5)
        for parameter in agent.actor.head.parameters():
            parameter.data.zero_()
        bonus = 0.9 * alpha * 0.803710
    # V(5) = 10 (1 + bonus), and V(s) = bonus + .9 V(s + 1): without entropy 10 * .9^(5 - s)
    value = [10 * (1 + bonus)]
    for _ in range(5):
        value.insert(0, bonus + 0.9 * value[0])
    assert alpha or value[0] == pytest.approx(5.9049)
    with torch.no_grad():
        for net in (agent.critic.nets, agent.target_critic.nets):
            net.weights[0].zero_()  # a table: a linear net of one-hot states that does not look at the action
            net.weights[0][:, :6] = torch.tensor(value).unsqueeze(-1)
    loss, error, _ = agent.critic_loss(batch, noise)
    assert float(error.max()) < 1e-5
    assert loss.item() < 1e-9
    with torch.no_grad():
        agent.target_critic.nets.weights[0][:, 5] += 1
    # what is wrong about the last state is wrong about it and the one before, by .9
    error = agent.critic_loss(batch, noise)[1][0]
    torch.testing.assert_close(error, torch.tensor([0, 0, 0, 0, 0.9, 0.9]), atol=1e-5, rtol=0)


# Agents from outside the package


class Bare(Agent):
    """Settings of replay, but none of the parts that `Agent` reads."""

    Config = OffPolicyConfig


class Measured(Bare):
    """Computes its own TD errors."""

    def errors(self, batch: Batch) -> Tensor:
        return batch.reward.abs()


def check(cls: type[Agent], **settings: Any) -> None:
    cls(Spec(VECTOR, ONE, 2), cls.Config(buffer_size=100, **settings)).check(8)


def test_settings_that_need_parts_which_an_agent_has_not_are_one_sentence() -> None:
    check(Bare)
    check(Bare, prioritized=True)
    with pytest.raises(
        ConfigError, match=r"normalize_obs is true, but Bare has no observations, .* override observe"
    ):
        check(Bare, normalize_obs=True)
    needs = "priority_on_add is true, but Bare has no observations and no critic_loss and no draw, .* override errors"
    with pytest.raises(ConfigError, match=needs) as e:
        check(Bare, prioritized=True, priority_on_add=True)
    assert "\n" not in str(e.value)
    check(Measured, prioritized=True, priority_on_add=True)
