"""No op reads a value back to the host or has a shape that depends on values: all run in a captured graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from whorl import ops
from whorl.core import tree

FORBIDDEN = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "lift_fresh"}
"""reads of a value, shapes that depend on values, and tensors made from host data"""
T, B, A = 6, 4, 3


class NoHostSync(TorchDispatchMode):
    """Fails on what a graph can't capture; a boolean index counts, since it hides a `nonzero`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put_") else ()
        if name in FORBIDDEN or any(i is not None and i.dtype == torch.bool for i in indices):
            raise AssertionError(f"{func} can't be captured")
        return func(*args, **(kwargs or {}))


def everything(device: str) -> Callable[[], list[torch.Tensor]]:
    """A function that calls every public op on fixed inputs."""
    rows, mask = torch.rand(T, B, device=device), (torch.rand(T, B, device=device) > 0.3).float()
    value, atoms = torch.rand(T + 1, B, device=device), torch.linspace(-2, 2, 5, device=device)
    x, logits = torch.randn(T, B, A, device=device), torch.randn(T, B, 9, device=device)
    tau, clip = torch.rand(5, device=device), torch.full((), 0.2, device=device)
    online, target = nn.Linear(3, 3, device=device), nn.Linear(3, 3, device=device)

    def joint(shift: float) -> ops.Joint:
        return ops.Joint(
            {
                "normal": ops.Normal(x + shift, x[0, 0]),
                "tanh": ops.TanhNormal(x + shift, x[0, 0]),
                "categorical": ops.Categorical(x + shift, x[0] > -9),
                "multi": ops.MultiCategorical(logits * shift, (2, 4, 3), logits > -9),
            }
        )

    noise = joint(0.5).noise()

    def call() -> list[torch.Tensor]:
        d = joint(0.5)
        action, log_prob = d.sample_with_log_prob(noise)
        prob = torch.rand(T, B, 5, device=device).softmax(-1)
        found = [
            ops.gae(rows, rows, value, mask, 0.9),
            ops.lambda_return(rows, rows, value, mask, 0.9),
            ops.discounted_return(rows, rows, mask, value),
            ops.n_step_return(rows, rows, value, mask, 3),
            *ops.vtrace(rows, rows, value, mask, 2 * rows),
            ops.retrace(rows, rows, value, mask, rows, 2 * rows),
            ops.masked_mean(rows, mask),
            ops.masked_normalize(rows, mask),
            ops.clipped_surrogate(rows, rows, clip),
            ops.clipped_value_loss(rows, rows, rows, clip),
            ops.quantile_huber(prob, tau, prob),
            ops.explained_variance(rows, rows, mask),
            ops.value_rescale_inverse(ops.value_rescale(rows)),
            ops.categorical_projection(prob, rows.unsqueeze(-1) + atoms, atoms),
            ops.sorted_projection(prob, rows.unsqueeze(-1) + atoms, atoms),
            log_prob,
            *tree.leaves(action),
            d.log_prob(action),
            d.entropy(noise),
            d.kl(joint(0.7)),
            *tree.leaves(d.mode()),
            *tree.leaves(d.noise()),
        ]
        ops.polyak_(target, online, 0.1)
        ops.hard_update_(target, online)
        return found

    return call


def test_no_op_syncs_with_the_host_or_has_a_shape_that_depends_on_values() -> None:
    call = everything("cpu")
    with NoHostSync():
        call()


def test_the_guard_itself_catches_a_sync() -> None:
    with NoHostSync(), pytest.raises(AssertionError, match="can't be captured"):
        torch.ones(1).item()
    with NoHostSync(), pytest.raises(AssertionError, match="can't be captured"):
        _ = torch.ones(3)[torch.ones(3) > 0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_op_runs_in_a_captured_graph() -> None:
    call = everything("cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    graph.replay()
    for inside, outside in zip(captured[:7], call()[:7]):  # the returns: no fresh randomness in them
        torch.testing.assert_close(inside, outside)
