"""BumpsBullet-v0: a gripper with a compliant finger finds two bumps by touch and pushes the right one to the right.

Only the gripper's position and the finger's angle are observed: a soft finger bends at a bump and leaves it in place, a
stiff one moves it. So an agent must sweep softly, remember where it felt the bumps, and push at the right moment.

Everything moves along y. The gripper is a kinematic body, which follows its commanded position exactly: there is no
arm. The finger hangs from it on a hinge with a torsion spring and slides over the bumps, which are domes held by dry
friction; there is no gravity. Each environment has its own physics engine.
"""

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from whorl.core.errors import EnvError, nearest
from whorl.envs.adapter import RegisteredAdapter, make_registered
from whorl.envs.adapters.pybullet import Replayable

ID = "BumpsBullet-v0"
REACH = 0.4
"""m, limit of the gripper's position to either side"""
MOVE = 0.05
"""m, the largest move per step"""
STIFFNESS = (0.007, 0.047)
"""N m/rad, of the finger's spring"""
SUBSTEPS, TIME_STEP = 60, 1 / 240
RADIUS = 0.02
"""m, of a bump"""
FINGER, FINGER_RADIUS, HINGE = 0.1, 0.004, 0.105
"""m, length and radius of the finger, and height of the hinge above the table"""
FINGER_MASS, DAMPING = 0.005, 1e-3
BUMP_MASS, FRICTION = 0.05, 0.08
"""kg, and the force in N that moves a bump"""
TOUCHED, PUSHED = 0.001, 0.01
"""m by which a bump must move to count as touched, and as pushed"""
CLEAR = 0.05
"""m, the smallest distance between the gripper's start and the bumps"""
SPACING = (0.12, 0.32)
"""m between the two bumps"""
WIDTH = {"normal": 0.28, "uniform": 0.35}
"""m, the largest distance of bumps from the middle"""
FIXED = ((-0.25, -0.05), (-0.1, 0.1), (0.05, 0.25))
LAYOUTS = ("normal", "uniform", "fixed")
VIEW = (240, 480)
"""height and width of rendered frames"""


class Bumps(gymnasium.Env, gymnasium.utils.EzPickle):
    """One table. A copy gets a new physics engine, because engines can't be copied.

    Args:
        layout: positions of the bumps: `normal` (0.12 to 0.32 m apart, within 0.28 m), `uniform` (anywhere within
            0.35 m, at least 0.12 m apart), `fixed` (one of three).
        failure: reward of an episode that ends without the right bump being pushed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, layout: str = "normal", failure: float = 0.0, render_mode: str | None = None) -> None:
        gymnasium.utils.EzPickle.__init__(self, layout, failure, render_mode)
        if layout not in LAYOUTS:
            raise EnvError(f"layout is {layout!r}; {nearest(str(layout), LAYOUTS)}")
        import pybullet
        from pybullet_utils.bullet_client import BulletClient

        self.layout, self.failure, self.render_mode = layout, float(failure), render_mode
        self._p: Any = BulletClient(connection_mode=pybullet.DIRECT)
        high = np.array([REACH, np.pi], np.float32)
        self.observation_space = spaces.Box(-high, high)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.gripper = 0.0
        self.places = FIXED[0]
        """initial positions of the two bumps, from left to right"""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.places = self._lay()
        self.gripper = self._start()
        self._build()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        move, firmness = np.clip(np.asarray(action, np.float64), -1, 1).tolist()
        wanted = self.gripper + move * MOVE
        stiffness = STIFFNESS[0] + (firmness + 1) / 2 * (STIFFNESS[1] - STIFFNESS[0])
        self._move_to(min(max(wanted, -REACH), REACH), stiffness)
        left, right = self.moved()
        success = right > PUSHED and abs(left) <= TOUCHED and self.fingertip() < self.places[1] + right
        failed = abs(left) > TOUCHED or right < -TOUCHED or abs(wanted) > REACH
        reward = 1.0 if success else self.failure if failed else 0.0
        return self._observe(), reward, success or failed, False, {"success": success}

    def moved(self) -> tuple[float, float]:
        """How far each bump has moved to the right."""
        left, right = (self._p.getJointState(bump, 0)[0] for bump in self._bumps)
        return left, right

    def fingertip(self) -> float:
        return self.gripper + FINGER * float(np.sin(self._angle()[0]))

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        height, width = VIEW
        p = self._p
        eye = p.computeViewMatrix([1.1, 0, 0.25], [0, 0, 0.05], [0, 0, 1])
        lens = p.computeProjectionMatrixFOV(30, width / height, 0.1, 3)
        picture = p.getCameraImage(width, height, eye, lens, renderer=p.ER_TINY_RENDERER)[2]
        return np.reshape(picture, (height, width, 4))[..., :3].astype(np.uint8)

    def close(self) -> None:
        if self._p.isConnected():
            self._p.disconnect()

    def _lay(self) -> tuple[float, float]:
        random = self.np_random
        if self.layout == "fixed":
            return FIXED[int(random.integers(len(FIXED)))]
        width, least = WIDTH[self.layout], SPACING[0]
        if self.layout == "normal":
            spacing = random.uniform(*SPACING)
            left = random.uniform(-width, width - spacing)
            return left, left + spacing
        # Uniform among the allowed pairs: two points of a shorter line, and the minimal distance added.
        left, right = sorted(random.uniform(-width, width - least, 2).tolist())
        return left, right + least

    def _start(self) -> float:
        while True:
            place = float(self.np_random.uniform(-REACH + CLEAR, REACH - CLEAR))
            if all(abs(place - bump) > CLEAR for bump in self.places):
                return place

    def _build(self) -> None:
        """A scene of new bodies: for old ones the engine keeps contacts of the previous episode."""
        p = self._p
        p.resetSimulation()
        p.setPhysicsEngineParameter(deterministicOverlappingPairs=1, fixedTimeStep=TIME_STEP)
        table = p.createVisualShape(p.GEOM_BOX, halfExtents=[0.15, 0.5, 0.01], rgbaColor=[0.75, 0.7, 0.6, 1])
        p.createMultiBody(0, -1, table, [0, 0, -0.01])
        self._hand = self._add_hand()
        self._bumps = [self._add_bump(place) for place in self.places]

    def _add_hand(self) -> int:
        p = self._p
        palm = p.createVisualShape(p.GEOM_BOX, halfExtents=[0.02, 0.02, 0.015], rgbaColor=[0.3, 0.3, 0.35, 1])
        length, centre = FINGER - 2 * FINGER_RADIUS, [0, 0, -FINGER / 2]
        shape = p.createCollisionShape(
            p.GEOM_CAPSULE, radius=FINGER_RADIUS, height=length, collisionFramePosition=centre
        )
        drawn = p.createVisualShape(
            p.GEOM_CAPSULE,
            radius=FINGER_RADIUS,
            length=length,
            visualFramePosition=centre,
            rgbaColor=[0.8, 0.3, 0.2, 1],
        )
        straight = [0, 0, 0, 1]
        hand = p.createMultiBody(
            basePosition=[0, 0, HINGE],
            linkMasses=[0.5, FINGER_MASS],
            linkCollisionShapeIndices=[-1, shape],
            linkVisualShapeIndices=[palm, drawn],
            linkPositions=[[0, 0, 0], [0, 0, 0]],
            linkOrientations=[straight, straight],
            linkInertialFramePositions=[[0, 0, 0], centre],
            linkInertialFrameOrientations=[straight, straight],
            linkParentIndices=[0, 1],
            linkJointTypes=[p.JOINT_PRISMATIC, p.JOINT_REVOLUTE],
            linkJointAxis=[[0, 1, 0], [1, 0, 0]],
        )
        p.resetJointState(hand, 0, self.gripper)
        for link in (0, 1):
            p.setJointMotorControl2(hand, link, p.VELOCITY_CONTROL, force=0)
            p.changeDynamics(hand, link, linearDamping=0, angularDamping=0, jointDamping=0, lateralFriction=0)
        return hand

    def _add_bump(self, place: float) -> int:
        p = self._p
        shape = p.createCollisionShape(p.GEOM_SPHERE, radius=RADIUS)
        drawn = p.createVisualShape(p.GEOM_SPHERE, radius=RADIUS, rgbaColor=[0.2, 0.45, 0.7, 1])
        bump = p.createMultiBody(
            basePosition=[0, place, 0],
            linkMasses=[BUMP_MASS],
            linkCollisionShapeIndices=[shape],
            linkVisualShapeIndices=[drawn],
            linkPositions=[[0, 0, 0]],
            linkOrientations=[[0, 0, 0, 1]],
            linkInertialFramePositions=[[0, 0, 0]],
            linkInertialFrameOrientations=[[0, 0, 0, 1]],
            linkParentIndices=[0],
            linkJointTypes=[p.JOINT_PRISMATIC],
            linkJointAxis=[[0, 1, 0]],
        )
        # A weak motor with target velocity 0 acts like dry friction.
        p.setJointMotorControl2(bump, 0, p.VELOCITY_CONTROL, targetVelocity=0, force=FRICTION)
        p.changeDynamics(bump, 0, linearDamping=0, angularDamping=0, jointDamping=0, lateralFriction=0)
        return bump

    def _move_to(self, place: float, stiffness: float) -> None:
        """Move the gripper at constant speed, with the spring's torque on the finger."""
        p, hand, start = self._p, self._hand, self.gripper
        speed = (place - start) / (SUBSTEPS * TIME_STEP)
        for substep in range(SUBSTEPS):
            p.resetJointState(hand, 0, start + speed * TIME_STEP * substep, speed)
            angle, rate = self._angle()
            torque = -stiffness * angle - DAMPING * rate
            p.setJointMotorControl2(hand, 1, p.TORQUE_CONTROL, force=torque)
            p.stepSimulation()
        self.gripper = place
        p.resetJointState(hand, 0, place)

    def _angle(self) -> tuple[float, float]:
        """Angle and angular velocity of the finger: positive where its tip is right of the gripper."""
        angle, rate = self._p.getJointState(self._hand, 1)[:2]
        return angle, rate

    def _observe(self) -> np.ndarray:
        return np.array([self.gripper, self._angle()[0]], np.float32)


gymnasium.register(ID, entry_point=f"{__name__}:Bumps", max_episode_steps=50)


class BumpsAdapter(RegisteredAdapter):
    """BumpsBullet-v0, with snapshots."""

    extra = "pybullet"
    modules = (__name__,)

    def owns(self, id: str) -> bool:
        return id == ID

    @staticmethod
    def make(entry: EnvSpec, options: dict[str, Any]) -> gymnasium.Env:
        return Replayable(make_registered(entry, options))


ADAPTERS = (BumpsAdapter(),)
