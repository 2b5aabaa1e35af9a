"""Where a setting stands in the help of `whorl train`: its group, and whether the short help shows it."""

from typing import Any

GROUPS = ("run", "environment", "data", "networks", "algorithm", "exploration", "logging")
"""the groups of `--help-all`, in their order; each component has one more"""

ESSENTIAL = (
    *("config", "total_timesteps", "seed", "seeds", "parallel", "num_envs", "device", "hardware", "tag"),
    *("eval_freq", "learning_rate", "actor_lr", "critic_lr", "gamma", "num_steps", "batch_size", "n_epochs"),
    *("updates_per_step", "buffer_size", "hidden_sizes", "actor_hidden_sizes", "critic_hidden_sizes"),
    "memory",
)
"""what `--help` shows of the settings that an algorithm has, in this order"""

_NAMES = {
    name: group
    for group, names in {
        "environment": "num_envs env_device workers acting reset_every env_timeout",
        "data": "num_steps actors ray actors_on_gpu max_lag trajectories_per_batch actor_gradients actor_restarts "
        "restarts_per_hour learners hold_policy batch_size chunk_length normalize_obs normalize_reward clip_obs "
        "obs_clip_range clip_reward reward_clip_range",
        "networks": "encoder log_std_range",
        "algorithm": "gamma components",
        "exploration": "random_steps",
        "logging": "runs tag name log_freq tensorboard screenshot_freq use_wandb wandb_project wandb_entity wandb_mode "
        "wandb_group wandb_tags wandb_job_type loggers mlflow_uri mlflow_experiment http_url log_file quiet",
    }.items()
    for name in names.split()
}
"""settings whose group is not that of the class that declares them"""

_CLASSES = {
    **dict.fromkeys(("RunConfig", "ConfigFlags", "TrainFlags"), "run"),
    **dict.fromkeys(("ReplayConfig", "PreprocessorConfig"), "data"),
    **dict.fromkeys(
        ("MemoryConfig", "NetworkConfig", "ActorCriticNetworkConfig", "QNetworkConfig"), "networks"
    ),
    **dict.fromkeys(("ExplorationConfig", "NoiseConfig", "AddedNoiseConfig"), "exploration"),
}
"""the group of the settings that a config class declares; other classes belong to an algorithm"""


def group_of(config: type, name: str) -> str:
    """The group of a setting: by its name, or by the class that declares it."""
    return _NAMES.get(name) or _CLASSES.get(_declaring(config, name), "algorithm")


def _declaring(config: Any, name: str) -> str:
    owners = (cls for cls in reversed(config.__mro__) if name in vars(cls).get("__annotations__", {}))
    return next(cls.__name__ for cls in owners)
