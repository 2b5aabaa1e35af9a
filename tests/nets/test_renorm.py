"""Batch renormalisation against its equation, by numbers worked by hand, and the ensembles that are built with it."""

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.conformance import capture_safe
from whorl.nets.renorm import BatchRenorm, RenormMLP


def norm(mean: float = 0.0, sigma: float = 1.0, *, warmup: int = 0) -> BatchRenorm:
    """One column of one member with these running statistics."""
    found = BatchRenorm(1, 1, momentum=0.99, warmup=warmup)
    found.mean.fill_(mean)
    found.var.fill_(sigma**2 - 1e-3)  # sigma is sqrt(var + 1e-3)
    return found


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(1, -1, 1)


def learned(norm: BatchRenorm, *values: float) -> list[float]:
    return norm.learn(column(*values))[0].flatten().tolist()


def test_acting_goes_by_running_statistics_scale_and_shift() -> None:
    found = norm(mean=2, sigma=3)
    nn.init.constant_(found.scale, 2.0)
    nn.init.constant_(found.shift, 1.0)
    # (5 - 2) / 3 * 2 + 1 = 3 and (-1 - 2) / 3 * 2 + 1 = -1
    assert found(column(5, -1)).flatten().tolist() == pytest.approx([3, -1])


def test_until_the_warm_up_is_over_it_is_batch_normalisation() -> None:
    # The batch has mean 2 and variance 1; what the running statistics say does not matter.
    expected = [-1 / sqrt(1.001), 1 / sqrt(1.001)]
    assert learned(norm(mean=7, sigma=9, warmup=1), 1, 3) == pytest.approx(expected)


def test_the_warm_up_is_counted_in_merged_batches() -> None:
    found = norm(mean=1, sigma=2, warmup=2)
    moments = (found.mean.clone(), found.var.clone())
    for _ in range(2):
        assert learned(found, 1, 3) == pytest.approx([-0.9995, 0.9995], abs=1e-4)
        found.merge_(moments)
    assert learned(found, 1, 3) == pytest.approx([0, 1])  # (x - 1) / 2: by running statistics


def test_where_nothing_is_clipped_learning_says_what_acting_says() -> None:
    # r = sqrt(1.001) / 2 is within [1/3, 3] and d = (2 - 1) / 2 within [-5, 5].
    found = norm(mean=1, sigma=2)
    assert learned(found, 1, 3) == pytest.approx([0, 1])
    assert found(column(1, 3)).flatten().tolist() == pytest.approx([0, 1])


def test_r_is_at_most_three() -> None:
    # The batch has mean 0 and variance 100; r would be 10, and x^ 10.
    expected = 10 / sqrt(100.001) * 3
    assert learned(norm(), -10, 10) == pytest.approx([-expected, expected])


def test_r_is_at_least_a_third() -> None:
    # The batch has mean 0 and variance 0.0009: sigma_B is sqrt(0.0019), and so would r be.
    expected = 0.03 / sqrt(0.0019) / 3
    assert learned(norm(), -0.03, 0.03) == pytest.approx([-expected, expected])


@pytest.mark.parametrize(("mean", "expected"), [(100.0, [4, 6]), (-100.0, [-6, -4])])
def test_d_is_between_minus_five_and_five(mean: float, expected: list[float]) -> None:
    # r = sigma_B, so that x^ = x - mu_B + d, and d would be the batch's mean.
    assert learned(norm(), mean - 1, mean + 1) == pytest.approx(expected, abs=1e-4)


def test_running_statistics_keep_99_hundredths() -> None:
    found = norm()
    found.var.fill_(1.0)
    _, moments = found.learn(column(0, 1, 5))  # mean 2, variance (4 + 1 + 9) / 3 = 14 / 3
    found.merge_(moments)
    assert float(found.mean) == pytest.approx(0.01 * 2)
    assert float(found.var) == pytest.approx(0.99 + 0.01 * 14 / 3)
    assert int(found.count) == 1


def test_gradients_flow_through_the_statistics_of_the_batch_but_not_through_r_and_d() -> None:
    torch.manual_seed(0)
    found = BatchRenorm(1, 4, momentum=0.99, warmup=0).double()
    found.mean.normal_()
    found.var.uniform_(0.5, 2)
    value = torch.randn(1, 6, 4, dtype=torch.float64, requires_grad=True)
    towards = torch.randn(1, 6, 4, dtype=torch.float64)
    mean, std = value.mean(1, keepdim=True), (value.var(1, correction=0, keepdim=True) + 1e-3).sqrt()
    running = (found.var + 1e-3).sqrt()
    r, d = (std / running).detach(), ((mean - found.mean) / running).detach()
    by_hand = ((value - mean) / std * r + d) * found.scale + found.shift
    ours = found.learn(value)[0]
    torch.testing.assert_close(ours, by_hand)
    leaves = (value, found.scale, found.shift)
    for one, other in zip(
        torch.autograd.grad(ours, leaves, towards), torch.autograd.grad(by_hand, leaves, towards)
    ):
        torch.testing.assert_close(one, other)


def mlp(members: int = 2, warmup: int = 100, seed: int = 0) -> RenormMLP:
    torch.manual_seed(seed)
    return RenormMLP(members, 3, (8, 5), 2, "relu", momentum=0.99, warmup=warmup)


def plain(net: RenormMLP, member: int) -> nn.Sequential:
    """The same member out of torch's own layers."""
    layers: list[nn.Module] = []
    for number, (norm, weight, bias) in enumerate(zip(net.norms, net.weights, net.biases)):
        layers += [nn.ReLU()] if number else []
        batch_norm, linear = nn.BatchNorm1d(weight.shape[1], eps=1e-3), nn.Linear(*weight.shape[1:])
        with torch.no_grad():
            for ours, theirs in (
                (norm.scale, batch_norm.weight),
                (norm.shift, batch_norm.bias),
                (norm.mean, batch_norm.running_mean),
                (norm.var, batch_norm.running_var),
            ):
                theirs.copy_(ours[member, 0])
            linear.weight.copy_(weight[member].T)
            linear.bias.copy_(bias[member, 0])
        layers += [batch_norm, linear]
    return nn.Sequential(*layers)


def scrambled(net: RenormMLP) -> RenormMLP:
    """With parameters and statistics that no two columns have in common."""
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5) if name.endswith(("var", "scale")) else tensor.normal_()
    return net


@pytest.mark.parametrize("member", [0, 1])
def test_a_member_is_norm_linear_relu_norm_linear_relu_norm_linear(member: int) -> None:
    net, value = scrambled(mlp()), torch.randn(7, 3)
    torch.testing.assert_close(net.learn(value)[0][member], plain(net, member).train()(value))
    torch.testing.assert_close(net(value)[member], plain(net, member).eval()(value))


@pytest.mark.parametrize("warmup", [0, 100])
def test_members_know_nothing_of_each_other(warmup: int) -> None:
    net, value = mlp(warmup=warmup), torch.randn(7, 3)
    before, moments = net.learn(value)
    for tensor in net.state_dict().values():
        if tensor.dim():
            tensor[1] += 1.0
    after, others = net.learn(value)
    assert after[0].equal(before[0]) and not after[1].equal(before[1])
    assert all(a[0].equal(b[0]) for found, other in zip(moments, others) for a, b in zip(found, other))


def test_a_member_gets_no_gradient_from_another() -> None:
    net = mlp()
    gradients = torch.autograd.grad(net.learn(torch.randn(7, 3))[0][0].sum(), list(net.parameters()))
    assert all(not gradient[1].any() for gradient in gradients)


def test_learning_writes_nothing_before_it_is_merged() -> None:
    net = mlp()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    _, moments = net.learn(torch.randn(7, 3))
    assert all(tensor.equal(before[name]) for name, tensor in net.state_dict().items())
    net.merge_(moments)
    assert all(not tensor.equal(before[name]) for name, tensor in net.named_buffers())


def test_the_statistics_of_each_layer_are_those_of_what_reaches_it() -> None:
    net, value = mlp(members=1), torch.randn(7, 3)
    _, moments = net.learn(value)
    hidden = torch.relu(
        F.linear(F.batch_norm(value, None, None, training=True, eps=1e-3), net.weights[0][0].T)
    )
    for found, reached in zip(moments, (value, hidden)):
        torch.testing.assert_close(found[0].flatten(), reached.mean(0))
        torch.testing.assert_close(found[1].flatten(), reached.var(0, correction=0))


def test_leading_axes_are_rows() -> None:
    net, value = mlp(), torch.randn(2, 4, 3)
    assert net(value).shape == net.learn(value)[0].shape == (2, 2, 4, 2)
    assert net(value).flatten(1, 2).equal(net(value.flatten(0, 1)))
    assert net.learn(value)[0].flatten(1, 2).equal(net.learn(value.flatten(0, 1))[0])


def test_by_running_statistics_a_row_depends_on_no_other() -> None:
    net, value = scrambled(mlp()), torch.randn(7, 3)
    torch.testing.assert_close(net(value)[:, :1], net(value[:1]))


def test_weights_start_with_variance_one_over_columns_read() -> None:
    net = RenormMLP(2, 400, (300,), 1, "relu", momentum=0.99, warmup=1)
    assert net.weights[0].std().item() == pytest.approx(400**-0.5, rel=0.02)


def test_a_graph_could_capture_it_in_the_warm_up_and_after_it() -> None:
    net, value = mlp(warmup=1), torch.randn(7, 3)
    places = [tensor.data_ptr() for tensor in net.state_dict().values()]
    for _ in range(2):
        with capture_safe():
            net.merge_(net.learn(value)[1])
    assert places == [tensor.data_ptr() for tensor in net.state_dict().values()]
    assert all(int(norm.count) == 2 for norm in net.norms)
