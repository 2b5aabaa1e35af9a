"""Ensembles of critics: each member is a net of its own, whatever is computed side by side."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.agents.families import ActorCriticConfig
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Array, Continuous, Discrete, Spec
from whorl.data.batch import Batch, Rows
from whorl.nets.layers import Residual
from whorl.nets.q_ensemble import EnsembleMLP, QEnsemble

SPEC = Spec(Array((3,)), Continuous((2,), (-1.0, -1.0), (1.0, 1.0)), 2)


def critics(members: int = 3, **given: Any) -> QEnsemble:
    torch.manual_seed(0)
    names = ("critic_hidden_sizes", "critic_network", "activation", "memory", "memory_size")
    settings = {key: given.pop(key) for key in names if key in given}
    cfg = ActorCriticConfig(**{"critic_hidden_sizes": (8, 6), **settings})
    found = QEnsemble("critic", SPEC, cfg, members, **{"actions": 2, **given})
    for parameter in found.parameters():  # biases and scales at random too
        nn.init.normal_(parameter, std=0.5)
    return found


def rows(*leading: int) -> Rows:
    obs = torch.randn(*leading, 3)
    none = torch.zeros(leading)
    return Batch(obs, none > 0, {}, none[1:], none[1:], none[1:], none[1:]).now


def member_says(net: EnsembleMLP, member: int, value: Tensor, action: Tensor, join: int = 0) -> Tensor:
    """One member as a net of torch's own layers."""
    last = len(net.weights) - 1
    for number, (weight, bias) in enumerate(zip(net.weights, net.biases)):
        if number == join:
            value = torch.cat((value, action), -1)
        value = F.linear(value, weight[member].T, bias[member, 0])
        if number < last and len(net.scales):
            norm = nn.LayerNorm(value.shape[-1])
            norm.weight.data.copy_(net.scales[number][member, 0])
            norm.bias.data.copy_(net.shifts[number][member, 0])
            value = norm(value)
        value = value if number == last else value.relu()
    return value


@pytest.mark.parametrize("join", [0, 1, 2])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_an_ensemble_is_as_many_separate_nets(layer_norm: bool, join: int) -> None:
    found = critics(critic_network=Part("mlp", {"layer_norm": layer_norm}), outputs=(4,), join=join)
    seen, action = rows(3, 5), torch.randn(2, 5, 2)
    values = found(seen, action)
    assert values.shape == (3, 2, 5, 4)
    for member in range(3):
        assert isinstance(found.nets, EnsembleMLP)
        wanted = member_says(found.nets, member, seen.selected, action, join)
        torch.testing.assert_close(values[member], wanted, atol=1e-5, rtol=1e-5)


def test_a_value_has_no_axis_of_its_own_and_choices_have_one() -> None:
    assert critics()(rows(2, 5), torch.randn(1, 5, 2)).shape == (3, 1, 5)
    assert critics(outputs=(4,), actions=0)(rows(2, 5)).shape == (3, 1, 5, 4)


@pytest.mark.parametrize("network", [Part("mlp", {"layer_norm": True}), Part("residual", {"width": 8})])
def test_no_member_has_a_part_in_what_another_says(network: Part) -> None:
    found = critics(critic_network=network)
    seen, action = rows(2, 5), torch.randn(1, 5, 2)
    for member in range(3):
        parameters = dict(found.nets.named_parameters())
        slopes = torch.autograd.grad(found(seen, action)[member].square().sum(), list(parameters.values()))
        for name, slope in zip(parameters, slopes):
            # [member, ...] where they are computed side by side, "torsos.member.…" where one after the other
            own = slope[member] if network.name == "mlp" else slope * (name.split(".")[1] == str(member))
            assert own.count_nonzero() == slope.count_nonzero()
        assert any(slope.count_nonzero() > 0 for slope in slopes)


def test_members_start_apart_and_orthogonal() -> None:
    torch.manual_seed(0)
    net = EnsembleMLP(3, 4, (6, 4), 2, "relu", actions=2)
    for number, gain in ((0, 2.0), (1, 2.0), (2, 1.0)):  # squares: sqrt(2) before an activation, 1 at the end
        for member in net.weights[number]:  # [in, out]
            tall = member if member.shape[0] >= member.shape[1] else member.T
            torch.testing.assert_close(tall.T @ tall, gain * torch.eye(tall.shape[1]), atol=1e-5, rtol=0)
        assert not net.weights[number][0].equal(net.weights[number][1])
        assert net.biases[number].count_nonzero() == 0


def test_the_action_reaches_the_layer_it_joins_and_no_layer_before() -> None:
    net = EnsembleMLP(2, 3, (8, 8), 1, "relu", actions=2, join=1)
    assert [tuple(weight.shape) for weight in net.weights] == [(2, 3, 8), (2, 8 + 2, 8), (2, 8, 1)]
    # Blind to the observation in the second layer, the net is a function of the action alone.
    with torch.no_grad():
        net.weights[1][:, :8] = 0
    action = torch.randn(5, 2)
    one, other = (net(torch.randn(5, 3), action, None, net.members) for _ in range(2))
    assert one.equal(other)
    assert not one.equal(net(torch.randn(5, 3), -action, None, net.members))


def test_dropout_blanks_its_share_of_units_and_scales_up_the_others() -> None:
    net = EnsembleMLP(2, 1, (1000,), 1, "relu", dropout=0.3)
    with torch.no_grad():
        for weight in net.weights:
            weight.fill_(1.0)
    value = torch.ones(4, 1)
    noise = net.draw(4, torch.Generator().manual_seed(0))
    assert noise["0"].shape == (2, 4, 1000)  # every member and row for itself
    kept = (noise["0"] >= 0.3).sum(-1)  # [members, rows]
    torch.testing.assert_close(net(value, None, noise, net.members)[..., 0], kept / 0.7, rtol=1e-5, atol=0)
    # within five deviations of sqrt(8000 * .3 * .7) = 41
    assert abs(int(kept.sum()) - 5600) < 205
    # Without noise nothing is dropped and nothing scaled.
    assert net(value, None, {}, net.members).flatten().tolist() == [1000.0] * 8


def test_dropout_comes_before_the_layer_norm() -> None:
    net = EnsembleMLP(1, 2, (4,), 1, "relu", dropout=0.5, layer_norm=True)
    value, noise = torch.randn(1, 2), {"0": torch.tensor([[[0.2, 0.7, 0.9, 0.4]]])}
    hidden = (value @ net.weights[0][0]) * torch.tensor([0.0, 2.0, 2.0, 0.0])
    wanted = F.layer_norm(hidden, (4,)).relu() @ net.weights[1][0]
    torch.testing.assert_close(net(value, None, noise, net.members)[0], wanted)


def test_no_dropout_draws_nothing() -> None:
    assert critics().draw(5, None) == {}
    assert critics(critic_network=Part("residual")).draw(5, None) == {}


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_of_dropout_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=f"dropout is {rate}; it must be at least 0 and less than 1"):
        critics(critic_network=Part("mlp", {"dropout": rate}))


def test_an_option_that_critics_do_not_have_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"critic_network mlp has no option 'droput'.*dropout"):
        critics(critic_network=Part("mlp", {"droput": 0.1}))


def test_choices_take_no_action() -> None:
    cfg = ActorCriticConfig(critic_hidden_sizes=(8,))
    found = QEnsemble("critic", Spec(Array((3,)), Discrete(4), 2), cfg, 2, (4,))
    assert isinstance(found.nets, EnsembleMLP)
    assert found.nets.weights[0].shape == (2, 3, 8)


# SimBa's torso


def test_a_residual_net_is_the_identity_path_plus_its_blocks_then_a_norm() -> None:
    torch.manual_seed(0)
    net: Any = Residual(3, width=4, blocks=2, expand=2)
    value = torch.randn(5, 3)
    x = F.linear(value, net.enter.weight, net.enter.bias)
    for norm, wide, narrow in zip(net.norms, net.wide, net.narrow):
        inner = F.linear(F.layer_norm(x, (4,), norm.weight, norm.bias), wide.weight, wide.bias)
        x = x + F.linear(inner.relu(), narrow.weight, narrow.bias)
    torch.testing.assert_close(net(value), F.layer_norm(x, (4,), net.leave.weight, net.leave.bias))
    assert [tuple(layer.weight.shape) for layer in net.wide] == [(8, 4)] * 2


def test_blocks_that_say_nothing_leave_a_linear_net() -> None:
    net: Any = Residual(3, width=4, blocks=2)
    for narrow in net.narrow:
        nn.init.zeros_(narrow.weight)
    value = torch.randn(5, 3)
    torch.testing.assert_close(net(value), F.layer_norm(net.enter(value), (4,)))


@pytest.mark.parametrize("network", ["mlp", "residual"])
def test_the_first_member_alone_says_what_it_says_among_all(network: str) -> None:
    found = critics(critic_network=Part(network))
    seen, action = rows(2, 5), torch.rand(1, 5, 2)
    torch.testing.assert_close(found.first(seen, action), found(seen, action)[0])


@pytest.mark.parametrize(
    "network", [Part("mlp"), Part("mlp", {"layer_norm": True, "dropout": 0.3}), Part("residual")]
)
def test_a_subset_of_the_members_says_what_it_says_among_all(network: Part) -> None:
    found = critics(critic_network=network)
    seen, action, subset = rows(2, 5), torch.rand(1, 5, 2), torch.tensor([2, 0])
    noise = found.draw(5, torch.Generator().manual_seed(0))
    values = found(seen, action, noise, subset)
    torch.testing.assert_close(values, found(seen, action, noise)[subset])


def test_each_member_of_a_subset_reads_its_own_memory() -> None:
    found = critics(memory="gru", memory_size=4)
    seen, action, subset = rows(3, 5), torch.rand(2, 5, 2), torch.tensor([2, 0])
    torch.testing.assert_close(found(seen, action, None, subset), found(seen, action)[subset])
