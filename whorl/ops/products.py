"""Matrix products of float32 on processors where torch's own are slow.

torch multiplies by MKL, which reaches half the rate of an AMD core with AVX-512: 256 x 256 x 256 takes 300 us on a Zen
5 core, and 145 us by oneDNN, which torch contains, too. There, products that are large enough to pay for a call from
Python are given to oneDNN; everywhere else these functions are torch's.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whorl.core.hardware import acts_as_on_gpu, is_amd

LEAST = 2**21
"""multiplications of a product from which oneDNN is worth it"""


def linear(value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`: value [..., inputs] times weight [outputs, inputs] transposed, plus bias [outputs]."""
    if not onednn_pays(value, value.numel() * weight.shape[0]):
        return F.linear(value, weight, bias)
    rows = _Product.apply(value.reshape(-1, value.shape[-1]), weight.mT, bias)
    return rows if value.dim() == 2 else rows.view(*value.shape[:-1], weight.shape[0])


def batched_product(value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.bmm`: value [members, rows, inputs] times weight [members, inputs, outputs], plus bias [members, 1,
    outputs]."""
    on_cpu = value.device.type == "cpu"
    if on_cpu and weight.shape[-1] == 1:
        # A CPU takes eight times as long for the batched product, and for both of its gradients.
        multiply: Callable[..., Tensor] = torch.mm
    elif on_cpu and onednn_pays(value, value.shape[-2] * weight[0].numel()):
        multiply = _without_bias
    else:
        return torch.bmm(value, weight) if bias is None else torch.baddbmm(bias, value, weight)
    found = torch.stack([multiply(*pair) for pair in zip(value.unbind(), weight.unbind(), strict=True)])
    return found if bias is None else found.add_(bias)


def product(value: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """value [rows, inputs] times weight [inputs, outputs] plus bias [outputs], by oneDNN and without a gradient."""
    # With other strides oneDNN takes a thousand times as long.
    ordered = weight if weight.is_contiguous() or weight.mT.is_contiguous() else weight.contiguous()
    found = torch.ops.mkldnn._linear_pointwise(value.contiguous(), ordered.mT, bias, "none", [], "")
    return found if out is None else out.copy_(found)


class _Product(torch.autograd.Function):
    """value [rows, inputs] times weight [inputs, outputs], plus bias [outputs]."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(value, weight)
        return product(value, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        value, weight = ctx.saved_tensors
        # The gradient of a gradient is torch's.
        multiply = torch.mm if torch.is_grad_enabled() else product
        of_value, of_weight, of_bias = None, None, None
        if _asked_for(ctx.next_functions[0][0]):
            of_value = multiply(slope, weight.mT)
        if _asked_for(ctx.next_functions[1][0]):
            # In the order of its memory.
            ordered = weight.is_contiguous()
            of_weight = multiply(value.mT, slope) if ordered else multiply(slope.mT, value).mT
        if ctx.needs_input_grad[2]:
            of_bias = slope.sum(0)
        return of_value, of_weight, of_bias


def _without_bias(value: Tensor, weight: Tensor) -> Tensor:
    return _Product.apply(value, weight, None)


def _asked_for(node: Any) -> bool:
    """Whether this backward pass goes on to `node`: an actor's loss asks for no gradient of the critics' weights, which
    `needs_input_grad` does not say."""
    if node is None:
        return False
    leaf = hasattr(node, "variable")  # for which the engine has no answer
    return leaf or torch._C._will_engine_execute_node(node)


def onednn_pays(value: Tensor, size: int) -> bool:
    """Whether oneDNN is faster for products of `size` multiplications with this tensor, and may be used."""
    if type(size) is int and size < LEAST:  # torch.export counts by symbols, which it must not compare
        return False
    return (
        not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and size >= LEAST
        and _faster_by_onednn()
        and value.device.type == "cpu"
        and value.dtype is torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not acts_as_on_gpu()
        and not torch._C._len_torch_dispatch_stack()  # what records operations gets torch's
    )


@cache
def _faster_by_onednn() -> bool:
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and is_amd()
    )
