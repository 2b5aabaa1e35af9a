"""Noisy layers: the variance of their output, noise that is given and none that is not."""

from math import pi

import pytest
import torch

from whorl.nets.noisy import NoisyLinear, NoisyMLP

X = torch.tensor([1.0, -2.0, 0.5])


def test_the_variance_of_the_output_is_the_published_one() -> None:
    # sigma^2 * (2/pi * (1 + 4 + .25) + sqrt(2/pi)) with sigma = .5 / sqrt(3): .345012
    wanted = 0.25 / 3 * (2 / pi * 5.25 + (2 / pi) ** 0.5)
    assert wanted == pytest.approx(0.345012, abs=1e-6)
    torch.manual_seed(0)
    layer, generator = NoisyLinear(3, 4), torch.Generator().manual_seed(0)
    with torch.no_grad():
        found = torch.stack([layer(X, layer.draw(generator)) for _ in range(3000)])
    # Four outputs that are uncorrelated, not independent; a deviation of the estimate is about .007.
    assert float(found.var(0).mean()) == pytest.approx(wanted, abs=0.035)
    torch.testing.assert_close(found.mean(0), layer(X, None), atol=0.05, rtol=0)


def test_noise_is_factorised_and_shared_by_all_rows() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(3, 2)
    torch.nn.init.normal_(layer.weight_scale)
    torch.nn.init.normal_(layer.bias_scale)
    noise = layer.draw(torch.Generator().manual_seed(0))
    raw = torch.randn(5, generator=torch.Generator().manual_seed(0))
    shaped = raw.sign() * raw.abs().sqrt()  # f(e) = sign(e) sqrt(|e|)
    torch.testing.assert_close(noise, shaped)
    into, out = shaped[:3], shaped[3:]
    weight = layer.weight + layer.weight_scale * out[:, None] * into[None]
    wanted = X @ weight.T + layer.bias + layer.bias_scale * out
    torch.testing.assert_close(layer(X.expand(4, 3), noise), wanted.expand(4, 2))


def test_weights_start_evenly_spread_and_scales_at_half_of_their_bound() -> None:
    layer = NoisyLinear(16, 200)
    assert 0.24 < layer.weight.abs().max().item() <= 0.25  # 1 / sqrt(16)
    assert 0.23 < layer.bias.abs().max().item() <= 0.25
    assert (layer.weight_scale == 0.125).all() and (layer.bias_scale == 0.125).all()


def test_without_noise_it_is_a_plain_layer() -> None:
    layer = NoisyLinear(3, 2)
    torch.testing.assert_close(layer(X, None), X @ layer.weight.T + layer.bias)


def test_a_noisy_net_draws_again_for_each_pass_and_is_quiet_without() -> None:
    net, generator = NoisyMLP(3, (5, 4), "tanh"), torch.Generator().manual_seed(0)
    first, second = net.draw(generator), net.draw(generator)
    assert {name: len(noise) for name, noise in first.items()} == {"0": 3 + 5, "1": 5 + 4}
    assert not first["0"].equal(second["0"])
    assert not net(X, first).equal(net(X, second))
    assert net(X, first).equal(net(X, first))
    quiet = torch.tanh(net.layers[1](torch.tanh(net.layers[0](X, None)), None))
    assert net(X).equal(quiet) and net(X, {}).equal(quiet)


def test_gradients_reach_the_scales() -> None:
    layer = NoisyLinear(3, 2)
    noise = layer.draw(torch.Generator().manual_seed(0))
    layer(X, noise).sum().backward()
    assert layer.weight_scale.grad is not None and layer.bias_scale.grad is not None
    into, out = noise[:3], noise[3:]
    torch.testing.assert_close(layer.weight_scale.grad, torch.outer(out, into * X))
    torch.testing.assert_close(layer.bias_scale.grad, out)
