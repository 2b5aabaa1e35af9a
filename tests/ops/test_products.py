"""Products by oneDNN equal torch's, in every layout, with their gradients, and only where they may be used."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from whorl.core.hardware import as_on_gpu, is_amd
from whorl.nets.by_hand import Dense
from whorl.nets.layers import MLP, Linear
from whorl.ops import products
from whorl.ops.products import batched_product, linear, product

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch is without oneDNN"
)
ROWS, INPUTS, OUTPUTS = 120, 130, 140  # more multiplications than products.LEAST


@pytest.fixture(autouse=True)
def given_to_onednn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the products that oneDNN was given: [rows, inputs, outputs]."""
    made: list[tuple[int, ...]] = []
    real = products.product

    def recorded(value: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Tensor:
        made.append((*value.shape, weight.shape[1]))
        return real(value, weight, *rest, **options)

    monkeypatch.setattr(products, "_faster_by_onednn", lambda: True)
    monkeypatch.setattr(products, "product", recorded)
    torch.manual_seed(0)
    return made


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


def same(function: Callable[..., Tensor], torchs: Callable[..., Tensor], *given: Tensor) -> None:
    """Both give the same outputs, and the same gradients of a nonlinear loss."""
    found, expected = function(*given), torchs(*given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    scale = torch.randn(expected.shape)
    pairs = zip(
        torch.autograd.grad((found.tanh() * scale).sum(), given),
        torch.autograd.grad((expected.tanh() * scale).sum(), given),
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("lead", [(ROWS,), (4, 30)])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_equals_torchs(
    lead: tuple[int, ...], biased: bool, given_to_onednn: list[tuple[int, ...]]
) -> None:
    bias = (drawn(OUTPUTS),) if biased else ()
    same(linear, F.linear, drawn(*lead, INPUTS), drawn(OUTPUTS, INPUTS), *bias)
    # The product, then the gradients by value and by weight.
    assert given_to_onednn == [
        (ROWS, INPUTS, OUTPUTS),
        (ROWS, OUTPUTS, INPUTS),
        (OUTPUTS, ROWS, INPUTS),
    ]


def test_batched_product_equals_torchs(given_to_onednn: list[tuple[int, ...]]) -> None:
    same(batched_product, torch.bmm, drawn(2, ROWS, INPUTS), drawn(2, INPUTS, OUTPUTS))
    assert len(given_to_onednn) == 6


@pytest.mark.parametrize(("rows", "outputs"), [(ROWS, OUTPUTS), (10, OUTPUTS), (ROWS, 1)])
def test_batched_product_adds_a_bias(rows: int, outputs: int) -> None:
    def theirs(value: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.baddbmm(bias, value, weight)

    same(batched_product, theirs, drawn(2, rows, INPUTS), drawn(2, INPUTS, outputs), drawn(2, 1, outputs))


def test_rows_that_all_members_share_have_the_gradients_of_all() -> None:
    def shared(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda rows, weight: product(rows.expand(2, -1, -1), weight)

    same(shared(batched_product), shared(torch.bmm), drawn(ROWS, INPUTS), drawn(2, INPUTS, OUTPUTS))


def test_one_output_equals_torchs(given_to_onednn: list[tuple[int, ...]]) -> None:
    value, weight = torch.randn(2, 256, 9_000) / 100, torch.randn(2, 9_000, 1)
    same(batched_product, torch.bmm, value.requires_grad_(), weight.requires_grad_())
    assert given_to_onednn == []


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(lambda: torch.randn(OUTPUTS, INPUTS).mT, id="transposed"),
        pytest.param(lambda: torch.randn(INPUTS + 5, OUTPUTS + 9)[3:-2, 4:-5], id="part"),
        pytest.param(lambda: torch.randn(INPUTS, 1).expand(INPUTS, OUTPUTS), id="repeated"),
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda: torch.randn(INPUTS, ROWS).mT, id="transposed"),
        pytest.param(lambda: torch.randn(ROWS, INPUTS + 7)[:, 3:-4], id="part"),
        pytest.param(lambda: torch.ones(()).expand(ROWS, INPUTS), id="repeated"),
    ],
)
def test_any_layout_of_memory_is_right(value: Callable[[], Tensor], weight: Callable[[], Tensor]) -> None:
    one, other, bias = value(), weight(), torch.randn(OUTPUTS)
    expected = (one.double() @ other.double() + bias).float()
    torch.testing.assert_close(product(one, other, bias), expected, rtol=1e-4, atol=1e-4)
    into = torch.empty(OUTPUTS, ROWS).mT
    assert product(one, other, bias, out=into) is into
    torch.testing.assert_close(into, expected, rtol=1e-4, atol=1e-4)


def test_gradients_have_the_layout_of_their_parameters() -> None:
    layer, batched = Linear(INPUTS, OUTPUTS), drawn(2, INPUTS, OUTPUTS)
    (found,) = torch.autograd.grad(layer(drawn(ROWS, INPUTS)).sum(), layer.weight)
    assert found.is_contiguous()
    (found,) = torch.autograd.grad(batched_product(drawn(2, ROWS, INPUTS), batched).sum(), batched)
    assert found.is_contiguous()


def test_gradients_that_nobody_asks_for_are_not_computed(given_to_onednn: list[tuple[int, ...]]) -> None:
    # An actor's loss needs the critics' gradient by the action, not by their weights.
    action, weights = drawn(2, ROWS, INPUTS), drawn(2, INPUTS, OUTPUTS)
    loss = batched_product(action.tanh(), weights).sum()
    given_to_onednn.clear()
    torch.autograd.grad(loss, action, retain_graph=True)
    assert given_to_onednn == [(ROWS, OUTPUTS, INPUTS)] * 2
    given_to_onednn.clear()
    torch.autograd.grad(loss, weights)
    assert given_to_onednn == [(INPUTS, ROWS, OUTPUTS)] * 2


def test_the_gradient_of_a_leaf_is_found_by_grad_and_by_backward() -> None:
    value, weight = drawn(ROWS, INPUTS), drawn(OUTPUTS, INPUTS)
    (found,) = torch.autograd.grad(linear(value, weight).sum(), weight)
    torch.testing.assert_close(found, value.detach().sum(0).expand(OUTPUTS, INPUTS), rtol=1e-4, atol=1e-4)
    linear(value, weight).sum().backward()
    torch.testing.assert_close(weight.grad, found)
    torch.testing.assert_close(value.grad, weight.detach().sum(0).expand(ROWS, INPUTS), rtol=1e-4, atol=1e-4)


def test_gradients_can_be_differentiated() -> None:
    value, weight = drawn(ROWS, INPUTS), drawn(OUTPUTS, INPUTS)

    def penalty(layer: Callable[..., Tensor]) -> Tensor:
        (slope,) = torch.autograd.grad(layer(value, weight).tanh().sum(), value, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), weight)[0]

    torch.testing.assert_close(penalty(linear), penalty(F.linear), rtol=1e-3, atol=1e-2)


def test_networks_by_hand_equal_autograd() -> None:
    for activation in ("relu", "tanh"):
        net, last = MLP(INPUTS, (OUTPUTS, 150), activation), Linear(150, 160)
        parameters = [*net.parameters(), *last.parameters()]
        gradients = {id(p): torch.empty_like(p) for p in parameters}
        by_hand, value, slope = Dense(net, last, gradients), torch.randn(ROWS, INPUTS), torch.randn(ROWS, 160)
        outputs = last(net(value))
        expected = torch.autograd.grad(outputs, parameters, slope)
        with torch.no_grad():
            torch.testing.assert_close(by_hand.forward(value), outputs, rtol=1e-4, atol=1e-4)
            assert by_hand._mm is product
            by_hand.backward(slope)
        for one, other in zip(gradients.values(), expected):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def _under_autocast(layer: nn.Module) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return layer(torch.randn(ROWS, INPUTS))


def _as_on_gpu(layer: nn.Module) -> Tensor:
    with as_on_gpu():
        return layer(torch.randn(ROWS, INPUTS))


def _recorded(layer: nn.Module) -> torch.fx.GraphModule:
    return make_fx(layer)(torch.randn(ROWS, INPUTS))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(_recorded, id="recorded"),
        pytest.param(lambda layer: layer.double()(torch.randn(ROWS, INPUTS).double()), id="double"),
        pytest.param(lambda layer: layer(torch.randn(100, INPUTS)), id="small"),
        pytest.param(lambda layer: layer.to("meta")(torch.empty(ROWS, INPUTS, device="meta")), id="device"),
        pytest.param(_under_autocast, id="autocast"),
        pytest.param(_as_on_gpu, id="as on a GPU"),
        pytest.param(
            lambda layer: torch.jit.trace(layer, torch.randn(ROWS, INPUTS), check_trace=False), id="traced"
        ),
        pytest.param(lambda layer: torch.export.export(layer, (torch.randn(ROWS, INPUTS),)), id="exported"),
    ],
)
def test_torch_multiplies_everything_else(
    call: Callable[[nn.Module], Any], given_to_onednn: list[tuple[int, ...]]
) -> None:
    call(Linear(INPUTS, OUTPUTS))
    assert given_to_onednn == []


@pytest.mark.parametrize(("maker", "amd"), [("AuthenticAMD", True), ("GenuineIntel", False)])
def test_the_maker_of_the_processor_is_read(maker: str, amd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path: f"processor\t: 0\nvendor_id\t: {maker}\n")
    assert is_amd() == amd
