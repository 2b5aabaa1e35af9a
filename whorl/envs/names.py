"""Ids of environments in other libraries and in research code: what they are called here.

Where the environment here is not quite the same, a warning says so; an id that can't be translated raises what to
write. An environment registered under such an id comes first. Imports no torch, because workers make their environments
with what is here.
"""

import re
from typing import Any

import gymnasium

from whorl.core import messages
from whorl.core.errors import EnvError

OLD = "that version is no longer made, and this one continues it"
MUJOCO_PY = "that version needs mujoco_py, and this one is the same task with today's MuJoCo"
REPEATED = "before the first observation it is repeated, not zero"
TEN = "it has 10 numbers: the eleventh, always 0, is gone"
ON_ITS_OWN = "a gripper of its own, made of primitives, without the arm"
NO_BODY = "positions and contacts are computed, without MuJoCo's bodies"

_POSITIONS = {"frame_skip": 5, "keep": [0, 1, 2]}
_VELOCITIES = {"frame_skip": 5, "keep": [3, 4], "last_action": True}
_IMAGES = {"pixels": True, "gray": True, "frame_skip": 2, "frame_stack": 3}

IDS: dict[str, tuple[str, dict[str, Any], str]] = {
    # CO-GYM
    "Quadroter": ("Quadrotor-v0", {}, ""),
    # Gym's earlier versions
    "Pendulum-v0": ("Pendulum-v1", {}, ""),
    "LunarLander-v2": ("LunarLander-v3", {}, OLD),
    "LunarLanderContinuous-v2": ("LunarLanderContinuous-v3", {}, OLD),
    "BipedalWalker-v2": ("BipedalWalker-v3", {}, OLD),
    "CarRacing-v2": ("CarRacing-v3", {}, OLD),
    # offpcc
    "cartpole-continuous": ("CartPoleContinuous-v0", {}, ""),
    "cartpole-balance-mdp": ("CartPoleContinuous-v0", {}, ""),
    "cartpole-balance-pomdp": ("CartPoleContinuousP-v0", {}, ""),
    "cartpole-balance-mdp-concat5": ("CartPoleContinuousPConcat5-v0", {}, ""),
    "cartpole-continuous-long": ("CartPoleContinuousLong-v0", {}, ""),
    "cartpole-continuous-long-p": ("CartPoleContinuousLongP-v0", {}, ""),
    "cartpole-continuous-long-v": ("CartPoleContinuousLongV-v0", {}, ""),
    "cartpole-continuous-long-p-concat5": ("CartPoleContinuousLongPConcat5-v0", {}, ""),
    "cartpole-continuous-long-v-concat10": ("CartPoleContinuousLongVConcat10-v0", {}, ""),
    "pendulum-v0": ("PendulumFull-v0", {}, ""),
    "pendulum-p": ("PendulumP-v0", {}, ""),
    "pendulum-v": ("PendulumV-v0", {}, ""),
    "pendulum-va": ("PendulumVA-v0", {}, ""),
    "pendulum-p-concat5": ("PendulumPConcat5-v0", {}, ""),
    "pendulum-v-concat10": ("PendulumVConcat10-v0", {}, ""),
    "pendulum-va-concat10": ("PendulumVAConcat10-v0", {}, ""),
    "pendulum-var-len-pvl": ("PendulumVariableLengthPVL-v0", {}, ""),
    "pendulum-var-len-pv": ("PendulumVariableLengthPV-v0", {}, ""),
    "pendulum-var-len-pl": ("PendulumVariableLengthPL-v0", {}, ""),
    "pendulum-var-len-pa": ("PendulumVariableLengthPA-v0", {}, ""),
    "pendulum-var-len-pa-concat5": ("PendulumVariableLengthPAConcat5-v0", {}, ""),
    "cartpole-var-len-pvl": ("CartPoleSwingUpVariableLengthPVL-v0", {}, ""),
    "cartpole-var-len-pv": ("CartPoleSwingUpVariableLengthPV-v0", {}, ""),
    "cartpole-var-len-pa": ("CartPoleSwingUpVariableLengthPA-v0", {}, ""),
    "cartpole-var-len-pa-concat5": ("CartPoleSwingUpVariableLengthPAConcat5-v0", {}, ""),
    "water-maze-mdp": ("WaterMaze-v0", {}, ""),
    "water-maze-pomdp": ("WaterMazeHidden-v0", {}, ""),
    "water-maze-dense-mdp": ("WaterMazeDense-v0", {}, ""),
    "water-maze-dense-pomdp": ("WaterMazeDense-v0", {"observe": "hidden"}, ""),
    "water-maze-simple-mdp": ("WaterMazeSimple-v0", {}, ""),
    "water-maze-simple-pomdp": ("WaterMazeSimpleHidden-v0", {}, ""),
    "water-maze-simple-mdp-concat10": ("WaterMazeSimpleHiddenConcat10-v0", {}, ""),
    "car": ("CarHeavenHellPriest-v0", {}, ""),
    "car-concat20": ("CarHeavenHellPriestConcat20-v0", {}, ""),
    "car-episodic": ("CarHeavenHellEpisodicPriest-v0", {}, ""),
    "car-episodic-concat20": ("CarHeavenHellEpisodicPriestConcat20-v0", {}, ""),
    "car-top": ("CarHeavenHellTopPriest-v0", {}, ""),
    "car-top-v1": ("CarHeavenHellTopQuietPriest-v0", {}, ""),
    "car-top-relative": (
        "CarHeavenHellTopRelativePriest-v0",
        {},
        "reaching heaven or hell costs a step too",
    ),
    "reacher-mdp": ("Reacher-v5", {}, TEN),
    "reacher-pomdp": ("ReacherOnce-v0", {"last_action": True}, f"{TEN}, and the last action is shown"),
    "reacher-pomdp-v1": ("Reacher-v5", {"keep": [0, 1, 2, 3, 4, 5, 8, 9]}, TEN),
    "dmc-cartpole-balance": ("dm_control/cartpole-balance", {"frame_skip": 5}, ""),
    "dmc-cartpole-balance-p": ("dm_control/cartpole-balance", _POSITIONS, ""),
    "dmc-cartpole-balance-va": ("dm_control/cartpole-balance", _VELOCITIES, ""),
    "dmc-cartpole-balance-p-concat5": (
        "dm_control/cartpole-balance",
        {**_POSITIONS, "frame_stack": 5},
        REPEATED,
    ),
    "dmc-cartpole-balance-va-concat10": (
        "dm_control/cartpole-balance",
        {**_VELOCITIES, "frame_stack": 10},
        REPEATED,
    ),
    "dmc-cartpole-swingup": ("dm_control/cartpole-swingup", {"frame_skip": 5}, ""),
    "dmc-cartpole-swingup-mdp": ("dm_control/cartpole-swingup", {"frame_skip": 5}, ""),
    "dmc-cartpole-swingup-p": ("dm_control/cartpole-swingup", _POSITIONS, ""),
    "dmc-cartpole-swingup-pomdp": ("dm_control/cartpole-swingup", _POSITIONS, ""),
    "dmc-cartpole-swingup-va": ("dm_control/cartpole-swingup", _VELOCITIES, ""),
    "dmc-cartpole-swingup-p-concat5": (
        "dm_control/cartpole-swingup",
        {**_POSITIONS, "frame_stack": 5},
        REPEATED,
    ),
    "dmc-cartpole-swingup-mdp-concat5": (
        "dm_control/cartpole-swingup",
        {**_POSITIONS, "frame_stack": 5},
        REPEATED,
    ),
    "dmc-cartpole-swingup-va-concat10": (
        "dm_control/cartpole-swingup",
        {**_VELOCITIES, "frame_stack": 10},
        REPEATED,
    ),
    "dmc-cart2pole": ("dm_control/cartpole-two_poles", {"frame_skip": 5}, ""),
    "dmc-cart3pole": ("dm_control/cartpole-three_poles", {"frame_skip": 5}, ""),
    "dmc-pendulum-swingup": ("dm_control/pendulum-swingup", {"frame_skip": 5}, ""),
    "dmc-cartpole-balance-mdp-img-concat3": ("dm_control/cartpole-balance", _IMAGES, ""),
    "dmc-walker-walk-mdp-img-concat3": ("dm_control/walker-walk", _IMAGES, ""),
    "pbc-bumps-normal-pomdp": ("BumpsBullet-v0", {}, ON_ITS_OWN),
    "pbc-bumps-normal-pomdp-punish": ("BumpsPunishBullet-v0", {}, ON_ITS_OWN),
    "pbc-bumps-normal-pomdp-real": ("BumpsUniformBullet-v0", {}, ON_ITS_OWN),
    "pbc-bumps-normal-test": ("BumpsFixedBullet-v0", {}, ON_ITS_OWN),
    "pbc-bump-target-pomdp": ("BumpTargetBullet-v0", {}, ON_ITS_OWN),
    "pbc-bump-mdp": ("BumpVelocityFull-v0", {}, NO_BODY),
    "bump-top": ("BumpTop-v0", {}, NO_BODY),
    "box-top": ("BoxTop-v0", {}, NO_BODY),
    "ant-reacher-top": ("AntReacherTopPriest-v0", {}, ""),
    "ur5-top": ("UR5TopSwitch-v0", {}, ""),
    "ur5-mdp-top": ("UR5Top-v0", {}, ""),
    "halfcheetah-p": ("HalfCheetahBulletP-v0", {}, ""),
    "ant-p": ("AntBulletP-v0", {}, ""),
    # Folders of Advanced-SAC
    "gym/mountain_car": ("MountainCarContinuous-v0", {}, ""),
    "gym/cart_pole": ("CartPole-v1", {}, ""),
    "gym/pendulum": ("Pendulum-v1", {}, ""),
    "gym/humanoid": ("Humanoid-v4", {}, MUJOCO_PY),
    "test": ("Test-v0", {}, ""),
}
"""by another id, with or without -v0: id and options here, and how the environment differs"""

UNITY = ("3dball", "pyramid", "roller", "square", "uav", "ugv", "usv")
"""folders of Advanced-SAC whose Unity players are not public"""
_OLD_MUJOCO = re.compile(
    r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|Pusher|Reacher|Swimmer|"
    r"Walker2d)-v[23]"
)
_BULLET = re.compile(r"(\w+)PyBulletEnv(-v0)?")
"""ids of PyBullet Gymperium"""


def named(id: str) -> tuple[str, dict[str, Any], str]:
    """Id and options here, and how the environment differs from that of another library's id."""
    if _is_registered(id):
        return id, {}, ""
    if found := IDS.get(id) or IDS.get(re.sub(r"-v0$", "", id)):
        return found
    if old := _OLD_MUJOCO.fullmatch(id):
        version = "v5" if old[1] == "Pusher" else "v4"  # Pusher-v4 does not run with today's MuJoCo
        return f"{old[1]}-{version}", {}, MUJOCO_PY
    if bullet := _BULLET.fullmatch(id):
        return f"{bullet[1]}BulletEnv-v0", {}, ""
    if id in UNITY:
        raise EnvError(f"the Unity player of {id!r} is not public; name your own build, as unity:PATH")
    return id, {}, ""


def meant(id: str) -> tuple[str, dict[str, Any]]:
    """Id and options here; warns where the environment differs from the one that was asked for."""
    name, options, difference = named(id)
    if difference:
        messages.warn(f"{id} is {name} here: {difference}")
    return name, dict(options)


def _is_registered(id: str) -> bool:
    """Whether somebody registered the id; those of Gymnasium and Gymnasium-Robotics that need mujoco_py don't count."""
    entries = [entry for key, entry in gymnasium.registry.items() if id in (key, key.rpartition("-v")[0])]
    return any(
        getattr(entry.entry_point, "__name__", "") != "_raise_mujoco_py_error"
        and not str(entry.entry_point).startswith("gymnasium_robotics.envs.mujoco.")
        for entry in entries
    )
