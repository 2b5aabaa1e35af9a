"""Tasks of touch: a gripper with a compliant finger on a table, in PyBullet.

    BumpsBullet-v0       find two equal bumps and push the right one to the right
    BumpsDiffBullet-v0   touch a bump of 40 mm and one of 50 mm, then push the larger one to the right
    BumpTargetBullet-v0  push a bump to a place that is shown
    TopPlateBullet-v0    feel along a stack of plates and grasp between the upper two

Mostly the gripper's position and the finger's angle are all that is observed: a soft finger bends at a bump and leaves
it in place, a stiff one moves it. So an agent must sweep softly, remember what it felt, and act at the right moment.

Everything moves along y. The gripper is a kinematic body, which follows its commanded position exactly: there is no
arm. The finger hangs from it on a hinge with a torsion spring and slides over the bumps, which are domes held by dry
friction; there is no gravity. A stack of plates lies on its side: its plates are fixed ridges, and up is y. Each
environment has its own physics engine.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from whorl.core.errors import EnvError, nearest
from whorl.envs.adapter import RegisteredAdapter, make_registered
from whorl.envs.adapters.pybullet import Replayable

REACH = 0.4
"""m, limit of the gripper's position to either side"""
MOVE, PLATE_MOVE = 0.05, 0.02
"""m, the largest move per step"""
STIFFNESS, TARGET_STIFFNESS = (0.007, 0.047), (0.007, 0.057)
"""N m/rad, of the finger's spring"""
SUBSTEPS, TIME_STEP = 60, 1 / 240
RADIUS, LARGE_RADIUS = 0.02, 0.025
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
SPACING = {"normal": (0.12, 0.32), "wide": (0.48, 0.48)}
"""m between the two bumps"""
DIFFERENT_SPACING, WITHIN = (0.24, 0.4), 0.24
"""m between bumps of different size, and the largest distance of those, and of a bump with a target, from the middle"""
WIDTH = {"normal": 0.28, "wide": 0.28, "uniform": 0.35}
"""m, the largest distance of bumps from the middle"""
FIXED = ((-0.25, -0.05), (-0.1, 0.1), (0.05, 0.25))
LAYOUTS = ("normal", "wide", "uniform", "fixed")
NEAR, AWAY = 0.05, 0.06
"""m: a bump so near to its target is there; at the start it is further away"""
PLATES, PLATE_SPACING = 10, 0.014
RIDGE, RIDGE_HEIGHT, BELOW = 0.003, 0.006, (0.02, 0.1)
"""m, radius and height of a plate's edge, and distance of the gripper's start below the lowest plate"""
VIEW = (240, 480)
"""height and width of rendered frames"""
OBSERVED = ("touch", "full")
SOFT_STIFF = ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0))
"""discrete actions: left or right, with a soft or a stiff finger"""


class Table(gymnasium.Env, gymnasium.utils.EzPickle):
    """The gripper, its finger and bumps. A copy gets a new physics engine, because engines can't be copied.

    A task sets `places` and `radii` in `lay`, and defines `observe` and `judge`.

    Args:
        observed: number of observed numbers.
        discrete: actions are choices; `moves` holds what they stand for.
        action_failure: probability that an action has no effect.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 - Gymnasium's own declaration
    move: ClassVar[float] = MOVE
    reach: ClassVar[float] = REACH
    stiffness: ClassVar[tuple[float, float]] = STIFFNESS
    moves: ClassVar[Sequence[tuple[float, float]]] = SOFT_STIFF
    fixed: ClassVar[bool] = False
    """bumps are ridges that can't be moved"""
    feels: ClassVar[bool] = False
    """record which bumps the finger touches"""

    def __init__(self, observed: int, discrete: bool, action_failure: float, render_mode: str | None) -> None:
        import pybullet
        from pybullet_utils.bullet_client import BulletClient

        if not isinstance(discrete, bool):
            raise EnvError(f"discrete is {discrete!r}; it must be true or false")
        if isinstance(action_failure, bool) or not 0 <= action_failure <= 1:
            raise EnvError(f"action_failure is {action_failure!r}; it must be between 0 and 1")
        self.discrete, self.action_failure, self.render_mode = discrete, action_failure, render_mode
        self._p: Any = BulletClient(connection_mode=pybullet.DIRECT)
        high = np.array([REACH, np.pi, REACH, REACH][:observed], np.float32)
        self.observation_space = spaces.Box(-high, high)
        continuous = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space: Any = spaces.Discrete(len(self.moves)) if discrete else continuous
        self.gripper = 0.0
        self.places: Sequence[float] = ()
        """initial positions of the bumps"""
        self.radii: Sequence[float] = ()
        self.felt: set[int] = set()
        """bumps that the finger has touched in this episode, where `feels`"""

    def lay(self) -> None:
        """Draw the bumps of an episode."""
        raise NotImplementedError

    def observe(self) -> list[float]:
        """The observation."""
        raise NotImplementedError

    def judge(self, wanted: float) -> tuple[float, bool, bool]:
        """Reward, end and success after a step to the position `wanted`, which may be out of reach."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.lay()
        self.gripper = self.start()
        self.felt = set()
        self._build()
        return self._observed(), {}

    def step(self, action: Any) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        given = self.moves[int(action)] if self.discrete else action
        first, second = np.clip(np.asarray(given, np.float64), -1, 1).tolist()
        if self.action_failure and self.np_random.random() < self.action_failure:
            return self._observed(), 0.0, False, False, {"success": False}
        reward, ended, success = self.judge(self.act(first, second))
        return self._observed(), reward, ended, False, {"success": success}

    def act(self, first: float, second: float) -> float:
        """Move by `first` with the stiffness `second`, both in [-1, 1]; the position that was to be reached."""
        wanted = self.gripper + first * self.move
        low, high = self.stiffness
        self._move_to(min(max(wanted, -self.reach), self.reach), low + (second + 1) / 2 * (high - low))
        return wanted

    def start(self) -> float:
        """The gripper's first position."""
        while True:
            place = float(self.np_random.uniform(-REACH + CLEAR, REACH - CLEAR))
            if all(abs(place - bump) > CLEAR for bump in self.places):
                return place

    def moved(self) -> list[float]:
        """How far each bump has moved to the right."""
        return [self._p.getJointState(bump, 0)[0] for bump in self._bumps]

    def fingertip(self) -> float:
        return self.gripper + FINGER * float(np.sin(self.angle()))

    def angle(self) -> float:
        """Angle of the finger: positive where its tip is right of the gripper."""
        return float(self._p.getJointState(self._hand, 1)[0])

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

    def _build(self) -> None:
        """A scene of new bodies: for old ones the engine keeps contacts of the previous episode."""
        p = self._p
        p.resetSimulation()
        p.setPhysicsEngineParameter(deterministicOverlappingPairs=1, fixedTimeStep=TIME_STEP)
        table = p.createVisualShape(p.GEOM_BOX, halfExtents=[0.15, 0.5, 0.01], rgbaColor=[0.75, 0.7, 0.6, 1])
        p.createMultiBody(0, -1, table, [0, 0, -0.01])
        self._hand = self._add_hand()
        self._bumps = [self._add_bump(place, radius) for place, radius in zip(self.places, self.radii)]

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

    def _add_bump(self, place: float, radius: float) -> int:
        p = self._p
        shape = p.createCollisionShape(p.GEOM_SPHERE, radius=radius)
        drawn = p.createVisualShape(p.GEOM_SPHERE, radius=radius, rgbaColor=[0.2, 0.45, 0.7, 1])
        bump = p.createMultiBody(
            basePosition=[0, place, RIDGE_HEIGHT if self.fixed else 0],
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
        force = 1000 * FRICTION if self.fixed else FRICTION
        p.setJointMotorControl2(bump, 0, p.VELOCITY_CONTROL, targetVelocity=0, force=force)
        p.changeDynamics(bump, 0, linearDamping=0, angularDamping=0, jointDamping=0, lateralFriction=0)
        return bump

    def _move_to(self, place: float, stiffness: float) -> None:
        """Move the gripper at constant speed, with the spring's torque on the finger."""
        p, hand, start = self._p, self._hand, self.gripper
        speed = (place - start) / (SUBSTEPS * TIME_STEP)
        for substep in range(SUBSTEPS):
            p.resetJointState(hand, 0, start + speed * TIME_STEP * substep, speed)
            angle, rate = p.getJointState(hand, 1)[:2]
            torque = -stiffness * angle - DAMPING * rate
            p.setJointMotorControl2(hand, 1, p.TORQUE_CONTROL, force=torque)
            p.stepSimulation()
            if self.feels:
                self._feel()
        self.gripper = place
        p.resetJointState(hand, 0, place)

    def _feel(self) -> None:
        for number, bump in enumerate(self._bumps):
            if number not in self.felt and self._p.getContactPoints(self._hand, bump):
                self.felt.add(number)

    def _observed(self) -> np.ndarray:
        return np.array(self.observe(), np.float32)


class Bumps(Table):
    """Push the right one of two equal bumps to the right.

    Args:
        layout: positions of the bumps: `normal` (0.12 to 0.32 m apart, within 0.28 m), `wide` (0.48 m apart), `uniform`
            (anywhere within 0.35 m, at least 0.12 m apart), `fixed` (one of three).
        failure: reward of an episode that ends without the right bump being pushed.
        discrete: four actions, left or right with a soft or a stiff finger.
        action_failure: probability that an action has no effect.
    """

    def __init__(
        self,
        layout: str = "normal",
        failure: float = 0.0,
        discrete: bool = False,
        action_failure: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        gymnasium.utils.EzPickle.__init__(self, layout, failure, discrete, action_failure, render_mode)
        if layout not in LAYOUTS:
            raise EnvError(f"layout is {layout!r}; {nearest(str(layout), LAYOUTS)}")
        super().__init__(2, discrete, action_failure, render_mode)
        self.layout, self.failure = layout, float(failure)
        self.radii = (RADIUS, RADIUS)

    def lay(self) -> None:
        """From left to right."""
        random = self.np_random
        if self.layout == "fixed":
            self.places = FIXED[int(random.integers(len(FIXED)))]
            return
        width = WIDTH[self.layout]
        if self.layout in SPACING:
            spacing = random.uniform(*SPACING[self.layout])
            left = random.uniform(-width, width - spacing)
            self.places = left, left + spacing
            return
        # Uniform among the allowed pairs: two points of a shorter line, and the minimal distance added.
        least = SPACING["normal"][0]
        left, right = sorted(random.uniform(-width, width - least, 2).tolist())
        self.places = left, right + least

    def observe(self) -> list[float]:
        return [self.gripper, self.angle()]

    def judge(self, wanted: float) -> tuple[float, bool, bool]:
        left, right = self.moved()
        success = right > PUSHED and abs(left) <= TOUCHED and self.fingertip() < self.places[1] + right
        failed = abs(left) > TOUCHED or right < -TOUCHED or abs(wanted) > REACH
        return 1.0 if success else self.failure if failed else 0.0, success or failed, success


class BumpsDiff(Table):
    """Touch a bump of 40 mm and one of 50 mm, whichever is left, then push the larger one to the right.

    Args:
        observe: touch (gripper and finger) or full (and the smaller and the larger bump).
        discrete: four actions, left or right with a soft or a stiff finger.
        action_failure: probability that an action has no effect.
    """

    feels = True

    def __init__(
        self,
        observe: str = "touch",
        discrete: bool = False,
        action_failure: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        gymnasium.utils.EzPickle.__init__(self, observe, discrete, action_failure, render_mode)
        self.full = _whether_full(observe)
        super().__init__(4 if self.full else 2, discrete, action_failure, render_mode)
        self.radii = (RADIUS, LARGE_RADIUS)

    def lay(self) -> None:
        """The smaller one first."""
        random = self.np_random
        spacing = random.uniform(*DIFFERENT_SPACING)
        left = random.uniform(-WITHIN, WITHIN - spacing)
        small_left = random.random() < 0.5
        self.places = (left, left + spacing) if small_left else (left + spacing, left)

    def observe(self) -> list[float]:
        bumps = [place + moved for place, moved in zip(self.places, self.moved())]
        return [self.gripper, self.angle(), *(bumps if self.full else ())]

    def judge(self, wanted: float) -> tuple[float, bool, bool]:
        small, large = self.moved()
        pushed = large > PUSHED and abs(small) <= TOUCHED
        success = pushed and len(self.felt) == 2 and self.fingertip() < self.places[1] + large
        ended = pushed or abs(small) > TOUCHED or large < -TOUCHED or abs(wanted) > REACH
        return float(success), ended, success


class BumpTarget(Table):
    """Push a bump of 40 mm to a place that is shown; the bump is not.

    Args:
        discrete: four actions, left or right with a soft or a stiff finger.
        action_failure: probability that an action has no effect.
    """

    stiffness = TARGET_STIFFNESS

    def __init__(
        self, discrete: bool = False, action_failure: float = 0.0, render_mode: str | None = None
    ) -> None:
        gymnasium.utils.EzPickle.__init__(self, discrete, action_failure, render_mode)
        super().__init__(3, discrete, action_failure, render_mode)
        self.radii = (RADIUS,)
        self.target = 0.0

    def lay(self) -> None:
        place, self.target = self.np_random.uniform(-WITHIN, WITHIN, 2).tolist()
        while abs(self.target - place) < AWAY:
            self.target = float(self.np_random.uniform(-WITHIN, WITHIN))
        self.places = (place,)

    def observe(self) -> list[float]:
        return [self.gripper, self.angle(), self.target]

    def judge(self, wanted: float) -> tuple[float, bool, bool]:
        success = abs(self.places[0] + self.moved()[0] - self.target) <= NEAR
        return float(success), success or abs(wanted) > REACH, success


class TopPlate(Table):
    """Of 1 to 10 plates, stacked 14 mm apart, grasp between the upper two. A grasp ends the episode.

    The action is a move of up to 0.02 m, and a grasp where the second number is 0 or more.

    Args:
        observe: full (gripper, finger, and the position of the upper plate) or touch (without that).
        discrete: three actions: down, up, grasp.
        action_failure: probability that an action has no effect.
    """

    move = PLATE_MOVE
    moves = ((-1.0, -1.0), (1.0, -1.0), (0.0, 1.0))
    fixed = True

    def __init__(
        self,
        observe: str = "full",
        discrete: bool = False,
        action_failure: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        gymnasium.utils.EzPickle.__init__(self, observe, discrete, action_failure, render_mode)
        self.full = _whether_full(observe)
        super().__init__(3 if self.full else 2, discrete, action_failure, render_mode)
        self.grasped = False

    def lay(self) -> None:
        """From the lowest to the upper one."""
        count = int(self.np_random.integers(1, PLATES + 1))
        self.places, self.radii = [i * PLATE_SPACING for i in range(count)], [RIDGE] * count

    def start(self) -> float:
        return -float(self.np_random.uniform(*BELOW))

    def act(self, first: float, second: float) -> float:
        self.grasped = second >= 0
        # The finger is always soft, and stays where it is in a grasp.
        return self.gripper if self.grasped else super().act(first, -1.0)

    def observe(self) -> list[float]:
        return [self.gripper, self.angle(), *([self.places[-1]] if self.full else ())]

    def judge(self, wanted: float) -> tuple[float, bool, bool]:
        tip, top = self.fingertip(), self.places[-1]
        touching = bool(self._p.getContactPoints(self._hand, self._bumps[-1]))
        success = self.grasped and (top - PLATE_SPACING < tip <= top or (tip > top and touching))
        return float(success), self.grasped, success


def _whether_full(observe: str) -> bool:
    if observe not in OBSERVED:
        raise EnvError(f"observe is {observe!r}; {nearest(str(observe), OBSERVED)}")
    return observe == "full"


TASKS: dict[str, tuple[type[Table], dict[str, Any]]] = {
    "BumpsBullet-v0": (Bumps, {}),
    "BumpsPunishBullet-v0": (Bumps, {"failure": -1.0}),
    "BumpsWideBullet-v0": (Bumps, {"layout": "wide"}),
    "BumpsUniformBullet-v0": (Bumps, {"layout": "uniform"}),
    "BumpsFixedBullet-v0": (Bumps, {"layout": "fixed"}),
    "BumpsDiffBullet-v0": (BumpsDiff, {}),
    "BumpTargetBullet-v0": (BumpTarget, {}),
    "TopPlateBullet-v0": (TopPlate, {}),
}
"""by id: class and options"""

for _id, (_task, _options) in TASKS.items():
    gymnasium.register(_id, entry_point=f"{__name__}:{_task.__name__}", max_episode_steps=50, kwargs=_options)


class BumpsAdapter(RegisteredAdapter):
    """The tasks of touch, with snapshots."""

    extra = "pybullet"
    modules = (__name__,)

    def owns(self, id: str) -> bool:
        return id in TASKS or f"{id}-v0" in TASKS

    @staticmethod
    def make(entry: EnvSpec, options: dict[str, Any]) -> gymnasium.Env:
        return Replayable(make_registered(entry, options))


ADAPTERS = (BumpsAdapter(),)
