"""JAX beside torch: arrays and tensors that share memory, and functions that are compiled once.

Memory is exchanged through DLPack. On a GPU each side makes its stream wait for that of the other, so nothing is copied
and the host does not wait; a CPU computes before it returns.
"""

import io
import os
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whorl.core.errors import EnvError, missing_extra
from whorl.envs.warp.physics import indexed

CACHE = Path("~/.cache/whorl/jax")
"""where compiled functions are kept, unless JAX is told another folder (`JAX_COMPILATION_CACHE_DIR`)"""


@cache
def modules() -> tuple[Any, Any]:
    """JAX and MJX; raises where they are not installed."""
    # JAX would take three quarters of the GPU's memory, which torch needs too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax

        with redirect_stdout(io.StringIO()):  # it prints that Warp is not installed
            from mujoco import mjx
    except ImportError as error:
        raise missing_extra("mujoco-mjx", "mjx") from error
    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(CACHE.expanduser()))
    return jax, mjx


def jax_device(device: torch.device) -> Any:
    """JAX's name for one of torch's devices."""
    jax, _ = modules()
    if device.type != "cuda":
        return jax.devices("cpu")[0]
    try:
        found = jax.devices("cuda")
    except RuntimeError as error:
        raise EnvError(
            "jax finds no GPU, though torch does; install its build for the driver's version of CUDA: "
            "pip install 'jax[cuda12]' or 'jax[cuda13]'"
        ) from error
    return found[indexed(device).index]


def to_jax(tensor: Tensor) -> Any:
    """An array that shares the tensor's memory."""
    return modules()[0].dlpack.from_dlpack(tensor.detach().contiguous())


def to_torch(array: Any) -> Tensor:
    """A tensor that shares the array's memory, which must not be written to."""
    return torch.from_dlpack(array)


class Compiled:
    """A function of arrays, compiled for the shapes of `examples` on one device.

    Args:
        examples: arrays or trees of them, or only their shapes.
        deterministic: the same bits every time on a GPU, too.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        examples: tuple[Any, ...],
        device: Any,
        deterministic: bool = False,
    ) -> None:
        jax, _ = modules()
        self._wait = jax.block_until_ready if device.platform == "cpu" else lambda found: found
        place = jax.sharding.SingleDeviceSharding(device)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), examples)
        options = {"xla_gpu_exclude_nondeterministic_ops": True} if deterministic else {}
        started = time.perf_counter()
        with jax.default_device(device):
            self._call = jax.jit(function).lower(*shapes).compile(compiler_options=options)
        self.seconds = time.perf_counter() - started
        """what it took to trace and compile, or to load what was compiled before"""

    def __call__(self, *arguments: Any) -> Any:
        return self._wait(self._call(*arguments))


def cache_folder() -> str:
    """The folder in which compiled functions are kept."""
    return str(modules()[0].config.jax_compilation_cache_dir)
