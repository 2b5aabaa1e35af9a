"""Nets that tell the value of every choice: dueling streams, noise in all layers behind the encoder, fractions."""

from math import cos, pi
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import MASK_KEY, Array, Continuous, Discrete, MultiDiscrete, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.nets.images import spectral_layers
from whorl.nets.noisy import NoisyLinear
from whorl.nets.q_network import QNetwork, QNetworkConfig, QuantileNetwork, allowed, without_features

VECTOR = Array((3,))
IMAGE = Array((12, 12, 2), "uint8", 0.0, 255.0)
X = torch.tensor([1.0, -2.0, 0.5])


def values(columns: int = 1, choices: int = 4, observation: Any = VECTOR, **settings: Any) -> QNetwork:
    torch.manual_seed(0)
    cfg = QNetworkConfig(**{"hidden_sizes": (8,), **settings})
    return QNetwork("dqn", Spec(observation, Discrete(choices), 2), cfg, columns)


def quantiles(
    cosines: int = 4, choices: int = 3, observation: Any = VECTOR, **settings: Any
) -> QuantileNetwork:
    torch.manual_seed(0)
    cfg = QNetworkConfig(**{"hidden_sizes": (8,), **settings})
    return QuantileNetwork("iqn", Spec(observation, Discrete(choices), 2), cfg, cosines)


def rows(obs: Tree, time: int = 2) -> Rows:
    num_envs = 5
    none = torch.zeros(time, num_envs)
    return Batch(obs, none > 0, {}, none, none, none, none).now


def some(time: int = 2) -> Rows:
    return rows(torch.randn(time, 5, 3, generator=torch.Generator().manual_seed(0)), time)


# Shapes


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("columns", [1, 7])
def test_every_row_has_columns_for_every_choice(columns: int, dueling: bool) -> None:
    net = values(columns, dueling=dueling)
    assert net(some()).shape == (2, 5, 4, columns)
    one, memory = net.step(some().obs[0], {}, torch.zeros(5, dtype=torch.bool))
    assert one.shape == (5, 4, columns) and memory == {}
    torch.testing.assert_close(one, net(some())[0])


def test_hidden_layers_stand_behind_the_encoder_in_each_stream() -> None:
    net = values(hidden_sizes=(8, 6), dueling=True)
    for stream, outputs in ((net.advantage, 4), (net.value, 1)):
        assert stream is not None
        shapes = [tuple(p.shape) for p in stream.parameters() if p.dim() == 2]
        assert shapes == [(8, 3), (6, 8), (outputs, 6)]
    assert not list(net.backbone.parameters())


# Dueling


def test_dueling_streams_are_added_less_the_mean_advantage_column_by_column() -> None:
    net = values(columns=2, choices=3, hidden_sizes=(), dueling=True)
    assert net.value is not None
    with torch.no_grad():
        for stream in (net.advantage, net.value):
            for weight in stream.parameters():
                weight.zero_()
        # advantages of three choices (1, 2, 6) and (0, 3, 3), values 10 and 20
        net.advantage.last.bias.copy_(torch.tensor([1.0, 0, 2, 3, 6, 3]))
        net.value.last.bias.copy_(torch.tensor([10.0, 20.0]))
    # 10 + (1, 2, 6) - 3 and 20 + (0, 3, 3) - 2
    assert net(some(1))[0, 0].tolist() == [[8.0, 18.0], [9.0, 21.0], [13.0, 21.0]]


@pytest.mark.parametrize("columns", [1, 5])
def test_a_constant_added_to_all_advantages_changes_nothing(columns: int) -> None:
    net = values(columns, dueling=True)
    before = net(some())
    with torch.no_grad():
        net.advantage.last.bias.add_(7.0)
    torch.testing.assert_close(net(some()), before, atol=2e-6, rtol=0)
    with torch.no_grad():
        # another constant for each column: the same for all choices still
        net.advantage.last.bias.add_(torch.arange(columns).float().repeat(4))
    torch.testing.assert_close(net(some()), before, atol=2e-6, rtol=0)


def test_the_mean_over_choices_is_the_states_value() -> None:
    net = values(columns=3, dueling=True)
    assert net.value is not None
    torch.testing.assert_close(net(some()).mean(-2), net.value(some().selected, None))


def test_the_gradient_of_one_choice_reaches_both_streams_and_of_all_advantages() -> None:
    net = values(dueling=True)
    assert net.value is not None
    net(some())[..., 1, 0].sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    bias = net.advantage.last.bias.grad
    # d(A_1 - mean A) over ten rows: 10 * 3/4 for the choice itself, -10/4 for the others
    torch.testing.assert_close(bias, torch.tensor([-2.5, 7.5, -2.5, -2.5]))
    torch.testing.assert_close(net.value.last.bias.grad, torch.tensor([10.0]))


# Noise


def test_all_layers_behind_the_encoder_are_noisy_and_none_in_it() -> None:
    net = values(observation=IMAGE, noisy=True, dueling=True)
    weighted = (nn.Linear, NoisyLinear, nn.Conv2d)
    streams = [
        layer for layer in (*net.advantage.modules(), *net.value.modules()) if isinstance(layer, weighted)
    ]
    assert [type(layer) for layer in streams] == [NoisyLinear] * 4
    assert {type(layer) for layer in net.backbone.modules() if isinstance(layer, weighted)} == {nn.Conv2d}


def test_the_variance_of_a_noisy_value_is_the_published_one() -> None:
    # one noisy layer of three inputs (1, -2, .5) and scale .5 / sqrt(3): .345012
    net, generator = values(choices=3, hidden_sizes=(), noisy=True), torch.Generator().manual_seed(0)
    told = sampled(net, generator)
    # three values that are uncorrelated, not independent: a deviation of the estimate is about .007
    assert float(told.var(0).mean()) == pytest.approx(0.345012, abs=0.035)
    with torch.no_grad():
        torch.testing.assert_close(told.mean(0), net.outputs(X, None)[:, 0], atol=0.05, rtol=0)


def test_dueling_streams_have_noise_of_their_own() -> None:
    # Var(V + A - mean A) = .345012 * (1 + 1 - 1/3); shared noise would make it another number
    net, generator = (
        values(choices=3, hidden_sizes=(), noisy=True, dueling=True),
        torch.Generator().manual_seed(0),
    )
    assert float(sampled(net, generator).var(0).mean()) == pytest.approx(0.345012 * 5 / 3, abs=0.06)


def sampled(net: QNetwork, generator: torch.Generator) -> Tensor:
    """[draws, choices]"""
    with torch.no_grad():
        return torch.stack([net.outputs(X, net.draw(generator))[:, 0] for _ in range(3000)])


@pytest.mark.parametrize("noisy_sigma", [0.5, 0.1])
def test_the_scale_of_the_noise_is_a_setting(noisy_sigma: float) -> None:
    net = values(hidden_sizes=(16,), noisy=True, noisy_sigma=noisy_sigma)
    assert net.advantage.last.weight_scale.unique().tolist() == [pytest.approx(noisy_sigma / 4)]
    assert net.advantage.hidden.layers[0].weight_scale.unique().tolist() == [
        pytest.approx(noisy_sigma / 3**0.5)
    ]


def test_noise_is_drawn_for_every_layer_and_net_without_noisy_layers_draws_none() -> None:
    noise = values(hidden_sizes=(8, 6), noisy=True, dueling=True).draw(torch.Generator().manual_seed(0))
    sizes = {
        stream: [*(len(layer) for layer in found["hidden"].values()), len(found["last"])]
        for stream, found in noise.items()
    }
    assert sizes == {"advantage": [3 + 8, 8 + 6, 6 + 4], "value": [3 + 8, 8 + 6, 6 + 1]}
    assert values(dueling=True).draw(torch.Generator()) == {}


@pytest.mark.parametrize("dueling", [False, True])
def test_a_noisy_net_is_quiet_without_noise(dueling: bool) -> None:
    net, generator = values(noisy=True, dueling=dueling), torch.Generator().manual_seed(0)
    quiet = net(some())
    assert quiet.equal(net(some(), {})) and quiet.equal(net(some(), None))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "scale" in name:
                parameter.mul_(100)
    assert quiet.equal(net(some()))
    first, second = net.draw(generator), net.draw(generator)
    assert net(some(), first).equal(net(some(), first))
    assert not net(some(), first).equal(net(some(), second))


# Layer norms


def test_layer_norms_stand_before_each_activation_and_behind_an_encoder_with_weights() -> None:
    norms = [
        tuple(m.normalized_shape)
        for m in values(hidden_sizes=(8, 6), layer_norm=True).modules()
        if is_norm(m)
    ]
    assert norms == [(8,), (6,)]
    net = values(observation=IMAGE, hidden_sizes=(8,), layer_norm=True)
    assert [tuple(m.normalized_shape) for m in net.modules() if is_norm(m)] == [(8,), (net.backbone.size,)]
    assert not any(is_norm(m) for m in values(observation=IMAGE).modules())


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm)


def test_a_hidden_layer_is_normalised_by_hand() -> None:
    net = values(hidden_sizes=(4,), layer_norm=True)
    layer = net.advantage.hidden.layers[0]
    with torch.no_grad():
        before = layer(X)
        centred = before - before.mean()
        wanted = net.advantage.last((centred / (centred.square().mean() + 1e-5).sqrt()).relu())
        torch.testing.assert_close(net.outputs(X, None)[:, 0], wanted)


def test_noisy_layers_are_normalised_too() -> None:
    net = values(hidden_sizes=(8, 6), layer_norm=True, noisy=True)
    assert [tuple(m.normalized_shape) for m in net.modules() if is_norm(m)] == [(8,), (6,)]
    layer, noise = net.advantage.hidden.layers[0], net.draw(torch.Generator().manual_seed(0))["advantage"]
    with torch.no_grad():
        before = layer(X, noise["hidden"]["0"])
        centred = before - before.mean()
        first = (centred / (centred.square().mean() + 1e-5).sqrt()).relu()
        after = net.advantage.hidden.layers[1](first, noise["hidden"]["1"])
        centred = after - after.mean()
        second = (centred / (centred.square().mean() + 1e-5).sqrt()).relu()
        wanted = net.advantage.last(second, noise["last"])
        torch.testing.assert_close(net.outputs(X, {"advantage": noise})[:, 0], wanted)


# Fractions


def test_features_are_multiplied_by_an_embedding_of_the_fraction() -> None:
    net = quantiles(cosines=3, observation=Array((2,)), hidden_sizes=())
    with torch.no_grad():
        # i = 0, 1, 2: the first column 1 + 2 cos(pi tau), the second cos(2 pi tau) - 1, which the relu cuts to 0
        net.embedding.weight.copy_(torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))
        net.embedding.bias.copy_(torch.tensor([0.0, -1.0]))
        features, tau = torch.tensor([[3.0, 5.0]]), torch.tensor([[0.0, 0.25, 0.9]])
        found = net.at(features, tau, None)  # [1, 3, choices]
        waves = [[1 + 2 * cos(pi * t), 0.0] for t in (0.0, 0.25)] + [[0.0, 0.0]]  # 1 + 2 cos(.9 pi) = -.902
        wanted = net.outputs(torch.tensor([3.0, 5.0]) * torch.tensor(waves), None)[..., 0]
    assert found.shape == (1, 3, 3)
    torch.testing.assert_close(found[0], wanted)


def test_fractions_of_each_row_are_its_own() -> None:
    net, tau = quantiles(), torch.rand(2, 5, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = net.backbone(some())
        run_parallel = net.at(features, tau, None)
        alone = net.at(features[1, 3], tau[1, 3, 4:5], None)
    assert run_parallel.shape == (2, 5, 6, 3)
    torch.testing.assert_close(run_parallel[1, 3, 4], alone[0])


def test_without_an_encoder_the_first_hidden_layer_makes_the_features() -> None:
    assert quantiles(hidden_sizes=(8, 6)).backbone.size == 8
    assert [
        tuple(p.shape) for p in quantiles(hidden_sizes=(8, 6)).advantage.parameters() if p.dim() == 2
    ] == [
        (6, 8),
        (3, 6),
    ]
    # of one layer there would be none left
    assert [tuple(p.shape) for p in quantiles(hidden_sizes=(8,)).advantage.parameters() if p.dim() == 2] == [
        (8, 8),
        (3, 8),
    ]


def test_gradients_reach_embedding_features_and_streams() -> None:
    net = quantiles(dueling=True, observation=IMAGE)
    obs = torch.randint(256, (1, 5, 12, 12, 2), dtype=torch.uint8)
    features = net.backbone(rows(obs, 1))
    net.at(features, torch.rand(1, 5, 6), None).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


# Encoders and actions


def test_images_have_no_layer_between_convolutions_and_streams_unless_asked_for() -> None:
    # 3x3 convolutions with 16 channels leave 10 x 10 of 12 x 12 pixels
    assert values(observation=IMAGE).backbone.size == 10 * 10 * 16
    assert values(observation=IMAGE, encoder=Part("images")).backbone.size == 10 * 10 * 16
    assert values(observation=IMAGE, encoder=Part("auto", {"features": 9})).backbone.size == 9
    assert values(observation=IMAGE, encoder=Part("auto", {"features": 0})).backbone.size == 128
    assert values(observation=IMAGE, encoder=Part("flat")).backbone.size == 12 * 12 * 2
    assert without_features(Part("mine", {"size": 3})) == Part("mine", {"size": 3})


def test_evaluation_leaves_estimates_of_spectral_norms_alone() -> None:
    encoder = Part("images", {"kind": "impala", "spectral_norm": True})
    net = values(observation=IMAGE, encoder=encoder)
    layers = spectral_layers(net)
    assert len(layers) == 12
    with torch.no_grad():
        for layer in layers:
            layer.layer.weight.normal_()
    before = [layer.left.clone() for layer in layers]
    net(rows(torch.randint(256, (2, 5, 12, 12, 2), dtype=torch.uint8)))
    assert all(a.equal(layer.left) for a, layer in zip(before, layers))


def test_allowed_choices_are_read_from_the_rows_asked_for() -> None:
    spec = Spec({"state": VECTOR, MASK_KEY: Array((2,), "int8", 0, 1)}, Discrete(2), 1)
    mask = torch.tensor([[[1, 0]], [[0, 1]]], dtype=torch.int8)
    none = torch.zeros(1, 1)
    batch = Batch(
        {"state": torch.zeros(2, 1, 3), MASK_KEY: mask}, torch.zeros(2, 1) > 0, {}, none, none, none, none
    )
    now, after = allowed(batch.now, spec), allowed(batch.next, spec)
    assert now is not None and after is not None
    assert now.tolist() == [[[True, False]]] and after.tolist() == [[[False, True]]]
    assert allowed(batch.now, Spec(VECTOR, Discrete(2), 1)) is None


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (Continuous((2,), (-1.0, -1.0), (1.0, 1.0)), "has continuous actions; use sac, td3 or ppo"),
        (
            MultiDiscrete((2, 3)),
            "has multidiscrete actions; use sac, tqc, ppo, ppg, a2c, impala or reinforce",
        ),
        (
            {"one": Discrete(2), "two": Discrete(3)},
            "has Dict or Tuple actions; use sac, tqc, ppo, ppg, a2c, impala or reinforce",
        ),
    ],
)
def test_other_kinds_of_action_are_one_sentence(action: Any, told: str) -> None:
    with pytest.raises(
        ConfigError, match=f"rainbow needs one discrete action, but this environment {told}$"
    ) as e:
        QNetwork("rainbow", Spec(VECTOR, action, 2), QNetworkConfig())
    assert "\n" not in str(e.value)
