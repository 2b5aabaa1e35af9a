"""Observations, rewards and ends of Gymnasium's MuJoCo tasks, for a batch of environments on a device.

Weights, ranges and what is observed are read from the Gymnasium environment itself, so its options work here too. `-v4`
differs from `-v5` as in Gymnasium: in what Ant and Humanoid observe and pay for contacts, and in that a step that ends
the episode is paid as a healthy one.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from whorl.envs.warp.physics import Capacity, View

TRIES = 16
"""draws of Pusher's object, of which the first that is far enough from the goal is taken; each is with 62 %"""


class Task:
    """One of Gymnasium's environments, `env`, whose wrappers are removed."""

    capacity: ClassVar[Capacity]
    placed: ClassVar[bool] = False
    """whether first observations or rewards read poses or velocities of bodies"""
    forces: ClassVar[bool] = False
    """whether contact forces on bodies (`cfrc_ext`) are read"""
    normal: ClassVar[bool] = False
    """whether first velocities have normal noise instead of uniform"""

    def __init__(self, env: Any, version: int, device: torch.device) -> None:
        self.env, self.old, self.dt = env, version < 5, float(env.dt)
        self.qpos = torch.as_tensor(env.init_qpos, dtype=torch.float32, device=device)  # [nq]
        self.qvel = torch.as_tensor(env.init_qvel, dtype=torch.float32, device=device)  # [nv]
        self.noise = float(getattr(env, "_reset_noise_scale", 0.0))
        self.skipped = 0
        """first positions that are not observed"""
        self.prepare(env)

    def prepare(self, env: Any) -> None:
        """Read what the task needs from Gymnasium's environment."""

    def start(self, num_envs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """First positions [B, nq] and velocities [B, nv]."""
        qpos = self.qpos + self.uniform(num_envs, len(self.qpos), self.noise, generator)
        if self.normal:
            shape = num_envs, len(self.qvel)
            noise = self.noise * torch.randn(shape, generator=generator, device=self.qvel.device)
        else:
            noise = self.uniform(num_envs, len(self.qvel), self.noise, generator)
        return qpos, self.qvel + noise

    def position(self, view: View) -> Tensor:
        """[B] what forward velocity is the change of."""
        return view.qpos[:, 0]

    def observe(self, view: View) -> Tensor:
        """[B, size]"""
        return torch.cat([view.qpos[:, self.skipped :], view.qvel], 1)

    def reward(self, view: View, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Reward [B] and terminated [B] after a step; `velocity` [B] is the change of `position` per second."""
        raise NotImplementedError

    def uniform(self, num_envs: int, size: int, scale: float, generator: torch.Generator) -> Tensor:
        """[B, size] in [-scale, scale)"""
        drawn = torch.rand(num_envs, size, generator=generator, device=self.qpos.device)
        return scale * (2 * drawn - 1)

    def healthy_reward(self, healthy: Tensor) -> Tensor:
        paid = torch.ones_like(healthy) if self.old and self.ends else healthy
        return paid * self.env._healthy_reward

    @property
    def ends(self) -> bool:
        return bool(self.env._terminate_when_unhealthy)

    def terminated(self, healthy: Tensor) -> Tensor:
        return ~healthy if self.ends else torch.zeros_like(healthy)


def never(value: Tensor) -> Tensor:
    """[B] false"""
    return torch.zeros_like(value, dtype=torch.bool)


def within(value: Tensor, bounds: tuple[float, float]) -> Tensor:
    return (value > bounds[0]) & (value < bounds[1])


def squares(value: Tensor) -> Tensor:
    """[B] sum of squares"""
    return value.square().flatten(1).sum(1)


class HalfCheetah(Task):
    capacity, normal = Capacity(16, 96), True

    def prepare(self, env: Any) -> None:
        self.skipped = int(env._exclude_current_positions_from_observation)

    def reward(self, view: View, velocity: Tensor) -> tuple[Tensor, Tensor]:
        cost = self.env._ctrl_cost_weight * squares(view.ctrl)
        return self.env._forward_reward_weight * velocity - cost, never(velocity)


class Hopper(HalfCheetah):
    capacity, normal = Capacity(16, 64), False

    def observe(self, view: View) -> Tensor:
        return torch.cat([view.qpos[:, self.skipped :], view.qvel.clamp(-10, 10)], 1)

    def reward(self, view: View, velocity: Tensor) -> tuple[Tensor, Tensor]:
        moved, _ = super().reward(view, velocity)
        healthy = self.healthy(view)
        return moved + self.healthy_reward(healthy), self.terminated(healthy)

    def healthy(self, view: View) -> Tensor:
        state = torch.cat([view.qpos, view.qvel], 1)[:, 2:]
        upright = within(view.qpos[:, 1], self.env._healthy_z_range)
        upright &= within(view.qpos[:, 2], self.env._healthy_angle_range)
        return upright & within(state, self.env._healthy_state_range).all(1)


class Walker2d(Hopper):
    capacity = Capacity(16, 96)

    def healthy(self, view: View) -> Tensor:
        upright = within(view.qpos[:, 1], self.env._healthy_z_range)
        return upright & within(view.qpos[:, 2], self.env._healthy_angle_range)


class Swimmer(HalfCheetah):
    capacity, normal = Capacity(4, 16), False

    def prepare(self, env: Any) -> None:
        self.skipped = 2 * int(env._exclude_current_positions_from_observation)


class Ant(Task):
    capacity, normal, placed = Capacity(24, 128), True, True

    def prepare(self, env: Any) -> None:
        self.skipped = 2 * int(env._exclude_current_positions_from_observation)
        self.forces = env._use_contact_forces if self.old else True  # type: ignore[misc]
        self._observes = env._use_contact_forces if self.old else env._include_cfrc_ext_in_observation
        self._torso = env.model.body("torso" if self.old else env._main_body).id

    def position(self, view: View) -> Tensor:
        return view.xpos[:, self._torso, 0]

    def observe(self, view: View) -> Tensor:
        seen = [view.qpos[:, self.skipped :], view.qvel]
        if self._observes:
            forces = self.contact_forces(view)
            seen.append((forces if self.old else forces[:, 1:]).flatten(1))
        return torch.cat(seen, 1)

    def reward(self, view: View, velocity: Tensor) -> tuple[Tensor, Tensor]:
        env = self.env
        healthy = (view.qpos[:, 2] >= env._healthy_z_range[0]) & (view.qpos[:, 2] <= env._healthy_z_range[1])
        reward = velocity * getattr(env, "_forward_reward_weight", 1.0) + self.healthy_reward(healthy)
        reward = reward - env._ctrl_cost_weight * squares(view.ctrl)
        if self.forces:
            reward = reward - env._contact_cost_weight * squares(self.contact_forces(view))
        return reward, self.terminated(healthy)

    def contact_forces(self, view: View) -> Tensor:
        return view.cfrc_ext.clamp(*self.env._contact_force_range)


class Humanoid(Task):
    capacity, placed, forces = Capacity(24, 64), True, True

    def prepare(self, env: Any) -> None:
        self.skipped = 2 * int(env._exclude_current_positions_from_observation)
        mass = torch.as_tensor(env.model.body_mass, dtype=torch.float32, device=self.qpos.device)
        self._share = mass / mass.sum()  # [bodies]
        parts = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
        self._parts = [part for part in parts if getattr(env, f"_include_{part}_in_observation", True)]

    def position(self, view: View) -> Tensor:
        return view.xipos[:, :, 0] @ self._share

    def observe(self, view: View) -> Tensor:
        # v5 leaves out the world's rows and the forces on the root, which are always 0.
        bodies, joints = (0, 0) if self.old else (1, 6)
        seen = [view.qpos[:, self.skipped :], view.qvel]
        for part in self._parts:
            value = getattr(view, part)
            seen.append(value[:, joints if part == "qfrc_actuator" else bodies :].flatten(1))
        return torch.cat(seen, 1)

    def reward(self, view: View, velocity: Tensor) -> tuple[Tensor, Tensor]:
        env = self.env
        healthy = within(view.qpos[:, 2], env._healthy_z_range)
        reward = env._forward_reward_weight * velocity + self.healthy_reward(healthy)
        reward = reward - env._ctrl_cost_weight * squares(view.ctrl)
        if not self.old:
            cost = env._contact_cost_weight * squares(view.cfrc_ext)
            reward = reward - cost.clamp(*env._contact_cost_range)
        return reward, self.terminated(healthy)


class HumanoidStandup(Humanoid):
    capacity = Capacity(32, 96)

    def reward(self, view: View, velocity: Tensor) -> tuple[Tensor, Tensor]:
        env = self.env
        impact = env._impact_cost_weight * squares(view.cfrc_ext)
        reward = view.qpos[:, 2] / env.model.opt.timestep + 1
        reward = reward - env._ctrl_cost_weight * squares(view.ctrl) - impact.clamp(*env._impact_cost_range)
        return reward, never(velocity)


class InvertedPendulum(Task):
    capacity = Capacity(4, 16)

    def reward(self, view: View, velocity: Tensor) -> tuple[Tensor, Tensor]:
        fallen = view.qpos[:, 1].abs() > 0.2
        return (~fallen).float(), fallen


class InvertedDoublePendulum(Task):
    capacity, normal, placed = Capacity(4, 16), True, True

    def observe(self, view: View) -> Tensor:
        angles = view.qpos[:, 1:]
        force = view.qfrc_constraint[:, :1].clamp(-10, 10)
        return torch.cat([view.qpos[:, :1], angles.sin(), angles.cos(), view.qvel.clamp(-10, 10), force], 1)

    def reward(self, view: View, velocity: Tensor) -> tuple[Tensor, Tensor]:
        x, _, y = view.site_xpos[:, 0].unbind(1)
        fallen = y <= 1
        away = 0.01 * x.square() + (y - 2).square()
        fast = 1e-3 * view.qvel[:, 1].square() + 5e-3 * view.qvel[:, 2].square()
        return self.env._healthy_reward * (~fallen).float() - away - fast, fallen


class Reacher(Task):
    capacity, placed = Capacity(4, 16), True

    def prepare(self, env: Any) -> None:
        self._finger, self._target = (env.model.body(name).id for name in ("fingertip", "target"))

    def start(self, num_envs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        qpos = self.qpos + self.uniform(num_envs, len(self.qpos), 0.1, generator)
        qvel = self.qvel + self.uniform(num_envs, len(self.qvel), 0.005, generator)
        # Uniform in a disc of 0.2 m.
        square, turn = torch.rand(2, num_envs, generator=generator, device=self.qpos.device)
        radius, angle = 0.2 * square.sqrt(), 2 * torch.pi * turn
        qpos[:, -2:] = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
        qvel[:, -2:] = 0
        return qpos, qvel

    def observe(self, view: View) -> Tensor:
        angles = view.qpos[:, :2]
        return torch.cat(
            [angles.cos(), angles.sin(), view.qpos[:, 2:], view.qvel[:, :2], self._gap(view)[:, :2]], 1
        )

    def reward(self, view: View, velocity: Tensor) -> tuple[Tensor, Tensor]:
        reward = -self.env._reward_dist_weight * self._gap(view).norm(dim=1)
        return reward - self.env._reward_control_weight * squares(view.ctrl), never(velocity)

    def _gap(self, view: View) -> Tensor:
        return view.xpos[:, self._finger] - view.xpos[:, self._target]


class Pusher(Task):
    capacity, placed = Capacity(24, 64), True

    def prepare(self, env: Any) -> None:
        self._tips, self._object, self._goal = (
            env.model.body(name).id for name in ("tips_arm", "object", "goal")
        )
        device = self.qpos.device
        self._scale = torch.tensor([-0.3, 0.4], device=device)
        self._shift = torch.tensor([0.0, -0.2], device=device)

    def start(self, num_envs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        qvel = self.qvel + self.uniform(num_envs, len(self.qvel), 0.005, generator)
        qvel[:, -4:] = 0
        drawn = torch.rand(TRIES, num_envs, 2, generator=generator, device=self.qpos.device)
        drawn = drawn * self._scale + self._shift
        first = (drawn.norm(dim=2) > 0.17).float().argmax(0)  # [B]
        qpos = self.qpos.repeat(num_envs, 1)
        qpos[:, -4:-2] = drawn.gather(0, first[None, :, None].expand(1, -1, 2))[0]
        qpos[:, -2:] = 0
        return qpos, qvel

    def observe(self, view: View) -> Tensor:
        bodies = [view.xpos[:, body] for body in (self._tips, self._object, self._goal)]
        return torch.cat([view.qpos[:, :7], view.qvel[:, :7], *bodies], 1)

    def reward(self, view: View, velocity: Tensor) -> tuple[Tensor, Tensor]:
        env, thing = self.env, view.xpos[:, self._object]
        near = env._reward_near_weight * (thing - view.xpos[:, self._tips]).norm(dim=1)
        away = env._reward_dist_weight * (thing - view.xpos[:, self._goal]).norm(dim=1)
        return -near - away - env._reward_control_weight * squares(view.ctrl), never(velocity)


TASKS: dict[str, tuple[type[Task], tuple[int, ...]]] = {
    "HalfCheetah": (HalfCheetah, (4, 5)),
    "Hopper": (Hopper, (4, 5)),
    "Walker2d": (Walker2d, (4, 5)),
    "Swimmer": (Swimmer, (4, 5)),
    "Ant": (Ant, (4, 5)),
    "Humanoid": (Humanoid, (4, 5)),
    "HumanoidStandup": (HumanoidStandup, (5,)),
    "InvertedPendulum": (InvertedPendulum, (5,)),
    "InvertedDoublePendulum": (InvertedDoublePendulum, (5,)),
    "Reacher": (Reacher, (5,)),
    "Pusher": (Pusher, (5,)),
}
"""by the name of the id: the task, and the versions of it"""
