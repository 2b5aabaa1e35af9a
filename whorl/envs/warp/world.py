"""Gymnasium's MuJoCo tasks stepped by MuJoCo Warp or MJX, as one batch of tensors.

Positions, velocities and the solver's warm start are the state; the simulation's own memory is written before each step
and read after it, so a snapshot is exact. Randomness at resets is torch's, so first states have Gymnasium's
distributions, not its numbers.

Differs from Gymnasium: physics are in float32, Humanoid's solver is Newton's method instead of PGS, and an environment
whose state diverged is terminated with reward 0 instead of continued from MuJoCo's default pose.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from whorl.core import messages, tree
from whorl.core.spec import Continuous, Spec
from whorl.envs.native.world import State, World
from whorl.envs.warp.physics import MAX_VALUE, View
from whorl.envs.warp.tasks import Task

ITERATIONS = 6
"""Newton iterations per substep: random actions need at most 6, half of the steps 1 to 3"""


class Simulation(Protocol):
    """All copies of a MuJoCo model, in tensors; see `whorl.envs.warp.physics.Physics`."""

    name: str
    view: View
    compile_seconds: float
    cache: str

    @property
    def captured(self) -> bool: ...

    def step(self) -> None: ...

    def place(self) -> None: ...

    def overflow(self) -> str: ...


class MujocoWorld(World):
    """State: `qpos`, `qvel`, `warmstart`, `position` (which forward velocity is the change of) and `obs`, [..., B].

    Args:
        env: Gymnasium's environment, from which the model and the task's settings were read.
    """

    def __init__(self, id: str, env: Any, task: Task, physics: Simulation, spec: Spec) -> None:
        super().__init__(spec.num_envs, task.qpos.device)
        self.id, self.spec, self.env, self.task, self.physics = id, spec, env, task, physics
        self.max_steps = env.spec.max_episode_steps or 2**62
        self.capturable = physics.captured
        self.compile_notice = kernels_notice(physics.name, physics.compile_seconds, physics.cache)
        action = spec.action
        assert isinstance(action, Continuous)
        low, high = (torch.tensor(side, device=self.device) for side in (action.low, action.high))
        self._middle, self._half = (high + low) / 2, (high - low) / 2  # [nu]

    def initial(self, generator: torch.Generator) -> State:
        view = self.physics.view
        qpos, qvel = self.task.start(self.num_envs, generator)
        view.qpos.copy_(qpos)
        view.qvel.copy_(qvel)
        for forces in (view.ctrl, view.qfrc_actuator, view.qfrc_constraint, view.cfrc_ext):
            forces.zero_()  # as in Gymnasium until the first step
        if self.task.placed:
            self.physics.place()
        return self._state(torch.zeros_like(qvel), self.task.observe(view))

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        view, task = self.physics.view, self.task
        # Environments that are about to be reset step from a state that can't diverge further.
        ended = self.ended.unsqueeze(1)
        view.qpos.copy_(torch.where(ended, task.qpos, state["qpos"].T))
        view.qvel.copy_(torch.where(ended, task.qvel, state["qvel"].T))
        view.qacc_warmstart.copy_(state["warmstart"].T.masked_fill(ended, 0))
        view.ctrl.copy_(self._middle + self._half * action.clamp(-1, 1))
        self.physics.step()
        obs = task.observe(view)  # [B, size]
        reward, terminated = task.reward(view, (task.position(view) - state["position"]) / task.dt)
        # Compared so that NaN is out of bounds, too.
        sound = (view.qpos.abs() < MAX_VALUE).all(1) & (view.qvel.abs() < MAX_VALUE).all(1)
        sound &= torch.isfinite(obs).all(1) & torch.isfinite(reward)
        obs = torch.where(sound.unsqueeze(1), obs, state["obs"].T)
        return (
            self._state(view.qacc_warmstart, obs),
            reward.masked_fill(~sound, 0),
            terminated | ~sound,
        )

    def observe(self, state: State) -> tree.Tree:
        return state["obs"].T.contiguous().clone() if self.num_envs == 1 else state["obs"].T.contiguous()

    def snapshot(self) -> dict[str, Any]:
        self._check()
        return super().snapshot()

    def close(self) -> None:
        self._check()
        self.env.close()

    def _state(self, warmstart: Tensor, obs: Tensor) -> State:
        view = self.physics.view
        # Copies, because the simulation's memory is overwritten before the state is.
        return {
            "qpos": view.qpos.T.clone(),
            "qvel": view.qvel.T.clone(),
            "warmstart": warmstart.T.clone(),
            "position": self.task.position(view).clone(),
            "obs": obs.T,
        }

    def _check(self) -> None:
        """Warn where memory was too small, once: reading it waits for the GPU."""
        if not self._overflowed and (what := self.physics.overflow()):
            self._overflowed = True
            messages.warn(
                f"{self.id} had more {what} than there is memory for, so some were left out; raise them in "
                "env_options, for instance by half"
            )

    _overflowed = False


def kernels_notice(engine: str, seconds: float, folder: str) -> str:
    """What the console says about compilation."""
    return f"{engine}'s kernels were compiled or loaded in {seconds:.0f} s; they are kept in {folder}"
