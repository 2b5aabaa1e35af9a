"""MJX behind torch: all copies of a model stepped by one compiled function, in memory that torch reads and writes.

It has the interface of `whorl.envs.warp.physics`, so the tasks are the same. JAX's arrays can't be written to: a step
reads the tensors of `view` in place, and what it computed is copied to them on the device.
"""

from typing import Any

import torch

from whorl.core.errors import EnvError
from whorl.envs.mjx.arrays import Compiled, cache_folder, jax_device, modules, to_jax, to_torch
from whorl.envs.warp.physics import View, newton

GIVEN = ("qpos", "qvel", "qacc_warmstart", "ctrl")
"""what a step starts from"""
PLACED = ("xpos", "xipos", "site_xpos", "cinert", "cvel")
"""what follows from positions and velocities alone"""
STEPPED = ("qpos", "qvel", "qacc_warmstart", *PLACED, "qfrc_actuator", "qfrc_constraint")
"""what a step computes; `cfrc_ext` besides, if asked for"""


class MjxPhysics:
    """`num_envs` copies of a MuJoCo model.

    Args:
        model: a `mujoco.MjModel`, which is not changed.
        substeps: steps of the simulation per call of `step`.
        iterations: Newton iterations per substep, at most.
        forces: whether `step` also computes `cfrc_ext`.
        deterministic: the same bits every time on a GPU, too.
    """

    name, captured = "MJX", False
    """JAX's kernels are launched by JAX, so a step is not part of a CUDA graph that torch records"""

    def __init__(
        self,
        model: Any,
        num_envs: int,
        device: torch.device,
        substeps: int,
        iterations: int,
        forces: bool,
        deterministic: bool = False,
    ) -> None:
        jax, mjx = modules()
        where = jax_device(device)
        with newton(model, iterations):
            try:
                put = mjx.put_model(model, where, impl="jax")
            except NotImplementedError as error:
                raise EnvError(f"MJX can't simulate this model: {error}") from error
            data = mjx.make_data(model, where, impl="jax")
        stepped = (*STEPPED, "cfrc_ext") if forces else STEPPED

        def step(*given: Any) -> dict[str, Any]:
            moved = data.replace(**dict(zip(GIVEN, given)))
            moved = jax.lax.fori_loop(0, substeps, lambda _, d: mjx.step(put, d), moved)
            return _read(mjx.rne_postconstraint(put, moved) if forces else moved, stepped)

        def place(qpos: Any, qvel: Any) -> dict[str, Any]:
            placed = mjx.kinematics(put, data.replace(qpos=qpos, qvel=qvel))
            return _read(mjx.com_vel(put, mjx.com_pos(put, placed)), PLACED)

        self.view = View(
            **{
                name: torch.zeros(num_envs, *value.shape, device=device)
                for name, value in _read(data, tuple(View.__dataclass_fields__)).items()
            }
        )
        shapes = [jax.ShapeDtypeStruct((num_envs, *getattr(data, name).shape), "float32") for name in GIVEN]
        self._step = Compiled(jax.vmap(step), tuple(shapes), where, deterministic)
        self._place = Compiled(jax.vmap(place), tuple(shapes[:2]), where, deterministic)
        self.compile_seconds = self._step.seconds + self._place.seconds
        """what it took to compile both, or to load what was compiled before"""
        self.cache = cache_folder()
        """the folder in which it is kept"""
        self._kept: dict[str, Any] = {}

    def step(self) -> None:
        """Advance all copies by `substeps`, with the controls in `view.ctrl`."""
        self._run(self._step, GIVEN)

    def place(self) -> None:
        """Compute what follows from positions and velocities alone: poses, inertias, velocities of bodies."""
        self._run(self._place, GIVEN[:2])

    def overflow(self) -> str:
        """Which memory was too small: none, because MJX reserves what all contacts of the model need."""
        return ""

    def _run(self, work: Compiled, given: tuple[str, ...]) -> None:
        found = work(*(to_jax(getattr(self.view, name)) for name in given))
        for name, array in found.items():
            getattr(self.view, name).copy_(to_torch(array))
        # Until torch has copied them: only the next call makes JAX's stream wait for torch's.
        self._kept = found


def _read(data: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Entries of MJX's data, some of which belong to its implementation in JAX."""
    return {name: getattr(data if name in data.__dataclass_fields__ else data._impl, name) for name in names}
