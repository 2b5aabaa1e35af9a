"""Gymnasium's MuJoCo tasks on a GPU, by MuJoCo Warp: `physics` steps all copies, `tasks` has rewards and ends."""
