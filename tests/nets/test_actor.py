"""Policies of agents with replay: heads by hand, whose encoder they read, and which actions they are for."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whorl.agents.families import ActorCriticConfig
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, register
from whorl.core.spec import Array, Continuous, Discrete, MultiDiscrete, Spec, to_env
from whorl.data.batch import Batch, Rows
from whorl.nets.actor import Actor, DeterministicHead, SquashedHead, bounded
from whorl.nets.q_ensemble import QEnsemble
from whorl.nets.temperature import Temperature

TWO = Continuous((2,), (-1.0, -1.0), (1.0, 1.0))
IMAGE = Array((8, 8, 1))


class Linear(nn.Module):
    """An encoder of the user's own, with weights."""

    def __init__(self, observation: Any) -> None:
        super().__init__()
        self.size = 4
        self.layer = nn.Linear(observation.size, 4)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs)


def pair(observation: Any, **settings: Any) -> tuple[Actor, QEnsemble]:
    torch.manual_seed(0)
    spec, cfg = (
        Spec(observation, TWO, 2),
        ActorCriticConfig(actor_hidden_sizes=(8,), critic_hidden_sizes=(8,), **settings),
    )
    critics = QEnsemble("critic", spec, cfg, 2, actions=2)
    return Actor("actor", spec, cfg, lambda width: DeterministicHead(width, 2), critics.backbone), critics


def rows(observation: Array) -> Rows:
    none = torch.zeros(2, 5)
    obs = torch.rand(2, 5, *observation.shape)
    return Batch(obs, none > 0, {}, none[1:], none[1:], none[1:], none[1:]).now


def test_a_deterministic_head_is_the_tanh_of_a_linear_layer() -> None:
    head: Any = DeterministicHead(3, 2)
    features = torch.randn(4, 3)
    torch.testing.assert_close(head(features, None), torch.tanh(features @ head.action.weight.T))
    assert head(features, None).abs().max() < 0.1  # small at the start: nothing is decided yet


def test_a_squashed_head_has_means_first_and_bounded_deviations_after_them() -> None:
    head = SquashedHead(1, 2, (-3.0, 1.0))
    with torch.no_grad():
        head.both.weight.zero_()
        head.both.bias.copy_(torch.tensor([0.5, -0.5, -7.0, 4.0]))
    policy = head(torch.zeros(1, 1), None)
    assert policy.before.mean.tolist() == [[0.5, -0.5]]
    assert policy.before.log_std.tolist() == [[-3.0, 1.0]]
    torch.testing.assert_close(policy.mode(), torch.tensor([[0.5, -0.5]]).tanh())


def test_a_temperature_is_positive_or_exactly_zero() -> None:
    assert Temperature(0.2, tuned=True)().item() == pytest.approx(0.2)
    assert Temperature(0.0, tuned=False)().item() == 0.0
    with pytest.raises(ConfigError, match="alpha is 0, which cannot be tuned"):
        Temperature(0.0, tuned=True)


def test_a_policy_of_vectors_reads_by_itself() -> None:
    actor, critics = pair(Array((3,)))
    assert actor.reads == ()
    assert list(critics.backbone.parameters()) == []
    assert sum(p.numel() for p in actor.parameters()) == (3 + 1) * 8 + (8 + 1) * 2


@pytest.mark.parametrize("encoder", ["auto", "linear_of_a_test"])
def test_a_policy_reads_an_encoder_with_weights_detached_and_has_no_such_weights_itself(encoder: str) -> None:
    register("encoder", "linear_of_a_test", Linear)
    observation = IMAGE if encoder == "auto" else Array((3,))
    actor, critics = pair(observation, encoder=Part(encoder))
    assert actor.reads == (critics.backbone,)
    # nothing but the torso and the head: whatever is listed can be trained
    assert sum(p.numel() for p in actor.parameters()) == (critics.backbone.size + 1) * 8 + (8 + 1) * 2
    seen = rows(observation)
    slopes = torch.autograd.grad(
        actor(seen).sum(), [*actor.parameters(), *critics.backbone.parameters()], allow_unused=True
    )
    trained = len(list(actor.parameters()))
    assert not any(slope is None for slope in slopes[:trained])
    assert all(slope is None for slope in slopes[trained:])


@pytest.mark.parametrize("observation", [Array((3,)), IMAGE])
def test_one_row_while_acting_is_read_as_many_rows_while_learning(observation: Array) -> None:
    actor, _ = pair(observation)
    seen = rows(observation)
    acted, memory = actor.step(seen.selected[0], {}, torch.zeros(5, dtype=torch.bool))
    torch.testing.assert_close(acted, actor(seen)[0])
    assert memory == {}


def test_a_target_reads_another_body_and_takes_no_gradient() -> None:
    actor, critics = pair(IMAGE)
    _, other = pair(IMAGE)
    target = actor.target(other.backbone)
    assert target.reads == (other.backbone,)
    assert not any(p.requires_grad for p in target.parameters())
    assert all(p.requires_grad for p in (*actor.parameters(), *critics.parameters(), *other.parameters()))
    assert not {id(p) for p in target.parameters()} & {id(p) for p in actor.parameters()}


def test_noisy_layers_come_with_plain_torsos_only() -> None:
    with pytest.raises(ConfigError, match="noisy layers need network 'mlp', but the network is 'residual'"):
        pair(Array((3,)), noisy=True, actor_network=Part("residual"))


# Actions


def test_columns_of_a_bounded_action_are_counted() -> None:
    assert bounded(Spec(Array((3,)), Continuous((2, 3), (-1.0,) * 6, (1.0,) * 6), 1), "td3") == 6


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (
            Discrete(3),
            "td3 needs continuous actions, but this environment has discrete actions; use sac or ppo",
        ),
        (MultiDiscrete((2, 3)), "but this environment has multidiscrete actions; use sac, tqc, ppo"),
        (
            {"arm": TWO},
            "td3 needs continuous actions, but this environment has Dict or Tuple actions; "
            "use sac, tqc, ppo, ppg, a2c, impala or reinforce",
        ),
        (
            Continuous((3,), (-1.0, -1.0, float("-inf")), (1.0, 1.0, 2.0)),
            "td3 needs bounded actions, but dimension 2 ranges from -inf to 2; ",
        ),
    ],
)
def test_what_can_not_be_learned_is_one_sentence(action: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        bounded(Spec(Array((3,)), action, 1), "td3")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (-2.0, 3.0),
        (0.0, 0.25),
        (-0.30000001192092896, 0.699999988079071),
        (-1.6325231790542603, 0.5970547199249268),
    ],
)
def test_bounds_are_reached_exactly_and_never_passed(low: float, high: float) -> None:
    action = Continuous((1,), (low,), (high,))
    ends = to_env(action, torch.tensor([[-1.0], [1.0], [-1.5], [7.0]])).flatten().tolist()
    assert ends == [low, high, low, high]
    between = to_env(action, torch.linspace(-1, 1, 1001).unsqueeze(-1))
    assert low <= float(between.min()) and float(between.max()) <= high
