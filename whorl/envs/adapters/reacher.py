"""ReacherOnce-v0: Gymnasium's MuJoCo Reacher-v5, whose goal is shown in an episode's first observation alone.

Of the ten numbers seen, four tell of the goal: its place (4, 5) and the fingertip's way to it (8, 9). They are 0 after
the first observation, so that an agent must remember them. Actions, rewards and the 50 steps are Reacher-v5's.
"""

import gymnasium
from gymnasium.envs.registration import WrapperSpec

GOAL = (4, 5, 8, 9)

gymnasium.register(
    "ReacherOnce-v0",
    entry_point="gymnasium.envs.mujoco.reacher_v5:ReacherEnv",
    max_episode_steps=50,
    reward_threshold=-3.75,
    additional_wrappers=(WrapperSpec("SelectObservation", "whorl.envs.wrappers:Seen", {"once": GOAL}),),
)
