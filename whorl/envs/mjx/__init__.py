"""MuJoCo by MJX, which is in JAX: `physics` steps the tasks of `whorl.envs.warp`, `playground` those of Playground."""
