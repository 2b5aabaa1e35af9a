"""Finds on a CPU most of what a CUDA graph does not allow: host syncs, data-dependent shapes, rebound tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from whorl.agents.agent import Agent, Updated
from whorl.data.batch import Batch

READS = (
    "item",
    "tolist",
    "numpy",
    "cpu",
    "cuda",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__array__",
)
"""tensor methods that copy values to the host or to another device; on a CPU some of them call no operator"""
SYNCS = (
    *(
        "_local_scalar_dense",
        "is_nonzero",
        "equal",
        "allclose",
        "nonzero",
        "masked_select",
        "_unique",
        "_unique2",
    ),
    *("unique_dim", "unique_consecutive", "bincount", "histc", "repeat_interleave"),
)
"""operators that read a value or whose output shape depends on values"""
HOST_DATA = ("tensor", "as_tensor", "asarray", "from_numpy")
"""functions that copy host data to the device"""


class NotCapturable(AssertionError):
    """Raised for something that a CUDA graph does not allow."""


class _Methods(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and not _paused():
            raise NotCapturable(f"Tensor.{name} can't be captured: the host would have to wait for the value")
        if name in HOST_DATA and not isinstance(args[0], Tensor) and not _paused():
            raise NotCapturable(
                f"torch.{name} of host data can't be captured; use torch.full, or create it in __init__"
            )
        if name in ("__getitem__", "__setitem__") and _has_list(args[1]):
            raise NotCapturable(
                "a list as an index can't be captured: it is host data; use a slice or a tensor"
            )
        return func(*args, **(kwargs or {}))


def _has_list(index: Any) -> bool:
    return isinstance(index, list) or (isinstance(index, tuple) and any(_has_list(part) for part in index))


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not _paused():
            if name in SYNCS:
                raise NotCapturable(
                    f"{func} can't be captured: it reads values, or its shape depends on them"
                )
            indices = args[1] if name in ("index", "index_put", "index_put_", "_unsafe_index") else ()
            if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
                raise NotCapturable(
                    f"{func} with a boolean index can't be captured; use torch.where or a mask"
                )
        result = func(*args, **(kwargs or {}))
        if not _paused() and name in ("_to_copy", "copy_", "_copy_from"):
            _check_devices(func, args, result)
        return result


def _check_devices(func: Any, args: Any, result: Any) -> None:
    devices = {value.device for value in (*args, result) if isinstance(value, Tensor)}
    if len(devices) > 1:
        raise NotCapturable(f"{func} between {devices} can't be captured; keep tensors on the agent's device")


# Optimizers may read their step counters on a CPU; on a GPU they are built with capturable=True.
_in_optimizer = 0


def _paused() -> bool:
    return _in_optimizer > 0


@contextmanager
def capture_safe() -> Iterator[None]:
    """Raise `NotCapturable` inside the block for what a CUDA graph does not allow; any device, this thread only."""

    def enter(*_: Any) -> None:
        global _in_optimizer
        _in_optimizer += 1

    def leave(*_: Any) -> None:
        global _in_optimizer
        _in_optimizer -= 1

    hooks = [register_optimizer_step_pre_hook(enter), register_optimizer_step_post_hook(leave)]
    try:
        with _Methods(), _Operators():
            yield
    finally:
        global _in_optimizer
        _in_optimizer = 0
        for hook in hooks:
            hook.remove()


class CheckedRunner:
    """Runs `@captured` steps inside `capture_safe`; set it as `agent.runner`."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, method: Any, agent: Agent, batch: Batch, static: dict[str, Any]) -> Updated:
        self.calls += 1
        places = [tensor.data_ptr() for tensor in agent.state_tensors()]
        with capture_safe():
            updated = method(agent, batch, **static)
        if places != [tensor.data_ptr() for tensor in agent.state_tensors()]:
            raise NotCapturable(
                f"{method.__qualname__} rebound a tensor of the agent's state; write to it in place"
            )
        return updated
