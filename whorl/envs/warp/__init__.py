"""Gymnasium's MuJoCo tasks on a GPU: `physics` is MuJoCo Warp, `tasks` has rewards and ends, `world` is the batch."""
