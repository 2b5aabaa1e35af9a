"""MuJoCo Warp behind torch: all copies of a model stepped by Warp's kernels, in memory that torch reads and writes.

Kernels run on torch's current stream, and what MuJoCo Warp allocates within a step comes from torch's allocator. So a
step can be recorded in any CUDA graph that torch records, and nothing is copied or waited for. Outside of such a
recording the step is replayed from a graph of its own, because it is hundreds of small kernels.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from whorl.core import messages
from whorl.core.cuda_graphs import GATE, recording_stream
from whorl.core.errors import EnvError, missing_extra

NEWTON = 2
"""MuJoCo's number of the solver that MuJoCo Warp and MJX have; it replaces PGS, which they don't have"""
MAX_VALUE = 1e10
"""positions and velocities beyond this have diverged; MuJoCo's own limit"""


@dataclass(frozen=True)
class Capacity:
    """Memory for contacts and constraints.

    Args:
        contacts: per environment, on average over all of them.
        constraints: rows per environment: a contact takes one to six, a joint at its limit one.
    """

    contacts: int
    constraints: int


@dataclass(frozen=True)
class View:
    """Tensors [B, ...] that share memory with the simulation."""

    qpos: Tensor
    qvel: Tensor
    qacc_warmstart: Tensor
    ctrl: Tensor
    xpos: Tensor
    """[B, bodies, 3] positions of the bodies' frames"""
    xipos: Tensor
    """[B, bodies, 3] their centres of mass"""
    site_xpos: Tensor
    cinert: Tensor
    cvel: Tensor
    qfrc_actuator: Tensor
    qfrc_constraint: Tensor
    cfrc_ext: Tensor


class Physics:
    """`num_envs` copies of a MuJoCo model.

    Args:
        model: a `mujoco.MjModel`, which is not changed.
        substeps: steps of the simulation per call of `step`.
        capacity: memory for contacts and constraints; `overflow` tells whether it was too small.
        iterations: Newton iterations per substep, all of which are launched; converged copies skip them.
        forces: whether `step` also computes `cfrc_ext`.
        deterministic: add contact forces in a fixed order, so that a GPU gives the same bits every time. It sorts, for
            which Warp allocates by itself, so such steps are not recorded in graphs.
    """

    name = "MuJoCo Warp"

    def __init__(
        self,
        model: Any,
        num_envs: int,
        device: torch.device,
        substeps: int,
        capacity: Capacity,
        iterations: int,
        forces: bool,
        deterministic: bool,
    ) -> None:
        self._warp, self._mujoco_warp = modules()
        self.substeps, self.forces, self.capacity = substeps, forces, capacity
        self.device = indexed(device)
        self._device = self._find_device()
        self._allocator = TorchAllocator(self.device)
        started = time.perf_counter()
        with self._scope():
            self._model = _put_model(self._mujoco_warp, model, iterations, deterministic)
            self._data = self._mujoco_warp.make_data(
                model, nworld=num_envs, nconmax=capacity.contacts, njmax=capacity.constraints
            )
        share = self._warp.to_torch
        self.view = View(**{name: share(getattr(self._data, name)) for name in View.__dataclass_fields__})
        self._overflow = share(self._data.overflow)  # [B] bits of OverflowType
        # Both calls compile what they launch.
        self._step()
        self.place()
        self._overflow.zero_()
        with GATE.alone():  # evaluation creates environments while other runs of this process train
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.compile_seconds = time.perf_counter() - started
            """what it took to compile or load all kernels"""
            self._graph = self._record() if self.device.type == "cuda" and not deterministic else None
        self.cache = str(self._warp.config.kernel_cache_dir)
        """the folder in which compiled kernels are kept"""

    @property
    def captured(self) -> bool:
        """Whether a step can be recorded in a CUDA graph: it was."""
        return self._graph is not None

    def step(self) -> None:
        """Advance all copies by `substeps`, with the controls in `view.ctrl`."""
        if self._graph is None or torch.cuda.is_current_stream_capturing():
            self._step()
        else:
            self._graph.replay()

    def place(self) -> None:
        """Compute what follows from positions and velocities alone: poses, inertias, velocities of bodies."""
        with self._scope():
            self._mujoco_warp.kinematics(self._model, self._data)
            self._mujoco_warp.com_pos(self._model, self._data)
            self._mujoco_warp.com_vel(self._model, self._data)

    def overflow(self) -> str:
        """Which memory was too small since the first step; "" where there was enough. Waits for the device."""
        kinds = self._mujoco_warp.OverflowType
        bits = 0
        for kind in (kinds.NEFC, kinds.BROADPHASE, kinds.NARROWPHASE):
            if bool((self._overflow & int(kind)).any()):
                bits |= int(kind)
        names = []
        if bits & kinds.NEFC:
            names.append(f"constraints (njmax {self.capacity.constraints})")
        if bits & (kinds.BROADPHASE | kinds.NARROWPHASE):
            names.append(f"contacts (nconmax {self.capacity.contacts})")
        return " and ".join(names)

    def _step(self) -> None:
        with self._scope():
            for _ in range(self.substeps):
                self._mujoco_warp.step(self._model, self._data)
            if self.forces:
                self._mujoco_warp.rne_postconstraint(self._model, self._data)

    def _record(self) -> torch.cuda.CUDAGraph | None:
        """The graph of one step; None, with a warning, where it can't be recorded."""
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may allocate meanwhile.
            with (
                torch.cuda.device(self.device),
                torch.cuda.graph(graph, stream=recording_stream(), capture_error_mode="thread_local"),
            ):
                self._step()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            text = str(error).partition("\n")[0]
            messages.warn(f"MuJoCo Warp's step can't be recorded in a CUDA graph, so it is slow: {text}")
            return None
        return graph

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Warp launches on torch's current stream, and allocates from torch."""
        wp = self._warp
        with ExitStack() as stack:
            if self.device.type == "cuda":
                # Without sync_enter: the stream would wait for one outside of the recording, which ends it.
                stream = warp_stream(torch.cuda.current_stream(self.device))
                stack.enter_context(wp.ScopedStream(stream, sync_enter=False))
                stack.enter_context(wp.ScopedAllocator(self._device, self._allocator))
            else:
                stack.enter_context(wp.ScopedDevice(self._device))
            yield

    def _find_device(self) -> Any:
        if self.device.type == "cuda" and not self._warp.is_cuda_available():
            needs, has = self._warp.get_cuda_toolkit_version(), self._warp.get_cuda_driver_version()
            raise EnvError(
                f"warp-lang finds no GPU, though torch does: it was built for CUDA {needs[0]}.{needs[1]} and the "
                f"driver is for {'no CUDA' if has is None else f'CUDA {has[0]}.{has[1]}'}; update the driver, "
                "install an older warp-lang, or use mjx: in place of warp:"
            )
        return self._warp.device_from_torch(self.device)


class TorchAllocator:
    """Memory for Warp from torch's allocator, whose blocks belong to the graph that is being recorded, if any."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, size_in_bytes: int) -> int:
        return torch.cuda.caching_allocator_alloc(size_in_bytes, self._device)

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        torch.cuda.caching_allocator_delete(ptr)


@cache
def warp_stream(stream: torch.cuda.Stream) -> Any:
    """Warp's name for one of torch's streams. It is kept: deleting it would unregister the stream for all others."""
    return modules()[0].stream_from_torch(stream)


def modules() -> tuple[Any, Any]:
    """Warp and MuJoCo Warp; raises where they are not installed."""
    try:
        import mujoco_warp
        import warp
    except ImportError as error:
        raise missing_extra("mujoco-warp", "warp") from error
    # Otherwise a line is printed for each of about fifty modules.
    warp.config.log_level = max(warp.config.log_level, warp.LOG_WARNING)
    warp.init()
    return warp, mujoco_warp


def _put_model(mujoco_warp: Any, model: Any, iterations: int, deterministic: bool) -> Any:
    with newton(model, iterations):
        try:
            found = mujoco_warp.put_model(model)
        except NotImplementedError as error:
            raise EnvError(f"MuJoCo Warp can't simulate this model: {error}") from error
    # A loop whose end is decided on the GPU can't be recorded by torch.
    found.opt.graph_conditional = False
    found.opt.warn_overflow = False
    found.opt.deterministic = deterministic
    return found


@contextmanager
def newton(model: Any, iterations: int) -> Iterator[None]:
    """Within, a `mujoco.MjModel` has this solver and number of iterations."""
    given = model.opt.solver, model.opt.iterations
    model.opt.solver, model.opt.iterations = NEWTON, iterations
    try:
        yield
    finally:
        model.opt.solver, model.opt.iterations = given


def indexed(device: torch.device) -> torch.device:
    """The device with its number: the current one where it has none."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
