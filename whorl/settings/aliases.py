"""Other names of settings: those of other libraries, and which algorithms they belong to."""

ALIASES = {
    "random_seed": "seed",
    "n_workers": "lanes",
    "n_envs": "lanes",
    "num_actors": "actors",
    "num_workers": "actors",
    "device": "learner_device",
    "max_rollout": "rollout_steps",
    "n_steps": "rollout_steps",
    "critic_hidden_dims": "critic_hidden",
    "policy_hidden_dims": "actor_hidden",
    "activation_fc": "activation",
    "K_epochs": "epochs",
    "policy_clip_eps": "clip",
    "gae_lambda": "lam",
    "value_clip_eps": "value_clip",
    "aux_update_freq": "aux_every",
    "aux_batch_size_coef": "aux_batch_factor",
    "total_num_episodes": "total_episodes",
    "total_timesteps": "total_steps",
    "checkpoint_freq": "model_checkpoint_freq",
    "wandb": "use_wandb",
    "offline_buffer_capacity": "capacity",
    "buffer_size": "capacity",
    "replay_buffer_size": "capacity",
    "update_after": "learn_after",
    "learning_starts": "learn_after",
    "max_random_rollout": "random_steps",
    "update_to_data": "ratio",
    "utd": "ratio",
    "temperature_lr": "alpha_lr",
    "update_starting_point": "learn_after",
    "use_per": "prioritized",
    "per": "prioritized",
    "q_reg_coeff": "q_regularization",
    "gradient_clip": "max_grad_norm",
    "target_noise_scale": "target_noise",
    "num_critics": "n_critics",
    "exploration_fraction": "epsilon_share",
    "exploration_initial_eps": "epsilon_start",
    "exploration_final_eps": "epsilon_final",
    "replay_capacity": "capacity",
    "min_replay_size": "learn_after",
    "exploration_epsilon_begin_value": "epsilon_start",
    "exploration_epsilon_end_value": "epsilon_final",
    "eval_exploration_epsilon": "eval_epsilon",
    "priority_exponent": "priority_alpha",
    "importance_sampling_exponent_begin_value": "priority_beta",
    "num_quantiles": "n_quantiles",
    "num_atoms": "n_atoms",
    "huber_param": "kappa",
    "tau_latent_dim": "n_cosines",
    "target_net_update_interval": "target_every",
    "per_alpha": "priority_alpha",
    "per_beta": "priority_beta",
    "per_beta_total_steps": "priority_beta_steps",
    "eps_final": "epsilon_final",
    "use_noisy": "noisy",
}
"""Other systems' words (CO-GYM's configuration tables first) for our fields."""


OFF_POLICY = {
    **dict.fromkeys(("capacity", "learn_after", "random_steps"), "off-policy algorithms"),
    **dict.fromkeys(("tau", "target_every"), "algorithms with target networks"),
    "noise_scale": "DDPG and TD3",
    **dict.fromkeys(("target_noise", "target_noise_clip"), "TD3"),
    "alpha_lr": "SAC and TQC",
    **dict.fromkeys(("n_critics", "n_drop_atoms"), "TQC"),
    "n_quantiles": "TQC and QR-DQN",
}
"""Settings that CO-GYM gives to all its off-policy algorithms, and whose they are."""


AUXILIARY = ("aux_every", "aux_epochs", "aux_batch_factor", "bc_coef")
"""Settings of PPG's auxiliary phase; CO-GYM gives them to PPO too, which makes no use of them."""


TWINS = {"n_critics": "ensemble_q_num", "ensemble_q_num": "n_critics"}
"""Settings that are one idea under two names, where an algorithm has one of them."""
