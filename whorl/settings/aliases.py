"""Names of settings in other libraries and in earlier versions.

An alias applies where the algorithm has one of the settings it can stand for. A name whose meaning differs elsewhere,
or that would need arithmetic, is never translated silently: `NOTES` says what it is called here.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from whorl.core.errors import ConfigError

ALIASES: dict[str, tuple[str, ...]] = {
    alias: tuple(targets.split())
    for targets, aliases in {
        # Training loop
        "seed": "random_seed",
        "num_envs": "n_envs n_workers training_num num_train_envs num_training_envs lanes agents",
        "num_steps": "n_steps rollout_length rollout_fragment_length max_rollout rollout_steps",
        "total_timesteps": "total_steps n_timesteps max_timesteps max_steps timesteps",
        "total_episodes": "total_num_episodes",
        "device": "learner_device",
        "env_device": "worker_device",
        "env_timeout": "step_timeout",
        "parallel": "jobs n_jobs",
        "actors": "num_actors num_workers num_env_runners num_rollout_workers",
        "trajectories_per_batch": "slabs",
        "n_eval_episodes": "eval_episodes num_eval_episodes evaluation_duration test_num evolver_cem_length",
        "runs": "logdir log_dir log_folder output_dir save_dir results_dir",
        "tag": "exp_name experiment_name",
        "tensorboard": "use_tensorboard tb",
        "screenshot_freq": "debug_screenshots_interval debug_screenshots_frequency",
        "log_file": "logger_in_file",
        "use_wandb": "wandb track log_wandb",
        "wandb_project": "wandb_project_name",
        # Networks
        "actor_hidden_sizes": "actor_hidden policy_hidden_dims actor_hidden_dims",
        "critic_hidden_sizes": "critic_hidden critic_hidden_dims",
        "activation": "activation_fc activation_fn fcnet_activation",
        "log_std_range": "log_std_bound",
        "memory_size": "lstm_hidden_size lstm_cell_size rnn_hidden_size",
        "memory_layers": "n_lstm_layers rnn_num_layers",
        "privileged_obs": "extra_obs",
        "noisy": "use_noisy",
        "noisy_sigma": "sigma0",
        # Optimizers
        "actor_lr": "policy_lr pi_lr actor_learning_rate policy_learning_rate",
        "critic_lr": "q_lr vf_lr qf_lr value_lr critic_learning_rate q_learning_rate baseline_learning_rate",
        "alpha_lr": "temperature_lr alpha_learning_rate",
        "adam_eps": "rms_prop_eps rmsprop_eps",
        "max_grad_norm": "gradient_clip grad_clip gradient_clip_norm",
        # Rollouts and policy gradients
        "gamma": "discount discount_factor",
        "gae_lambda q_lambda": "lam lambda lambda_",
        "q_lambda": "gae_lambda",
        "n_epochs": "epochs K_epochs update_epochs num_sgd_iter num_epochs repeat_per_collect update_k",
        "batch_size": "minibatch_size sgd_minibatch_size",
        "clip_range": "clip clip_coef clip_param clip_ratio eps_clip policy_clip_eps",
        "clip_range_vf": "value_clip_eps",
        "clip_value": "clip_vloss",
        "ent_coef": "entropy_coef entropy_coeff",
        "normalize_advantage": "norm_adv advantage_normalization",
        "normalize_reward": "reward_normalization rew_norm norm_reward",
        "normalize_obs": "norm_obs",
        "chunk_length sequence_length": "chunk max_seq_len",
        "max_kl": "target_kl delta kl_target",
        "cg_iterations": "cg_max_steps cg_iters max_cg_steps",
        "backtracks": "line_search_max_iter backtrack_iters",
        "backtrack_coef": "line_search_shrinking_factor backtrack_coeff",
        "critic_epochs": "n_critic_updates vf_iters optim_critic_iters train_v_iters",
        "value_coef": "vf_coef vf_loss_coeff value_loss_coef baseline_cost baseline_coef",
        "rho_clip": "vtrace_clip_rho_threshold clip_rho_threshold",
        "c_clip": "vtrace_clip_c_threshold clip_c_threshold",
        "aux_every": "aux_update_freq",
        "aux_epochs": "e_auxiliary",
        "aux_batch_factor": "aux_batch_size_coef",
        "bc_coef": "beta_clone",
        # Replay and targets
        "buffer_size": "capacity memory_capacity offline_buffer_capacity replay_buffer_size replay_capacity "
        "replay_size",
        "learning_starts": "learn_after update_after update_starting_point min_replay_size min_replay_history "
        "num_steps_sampled_before_learning_starts",
        "random_steps": "max_random_rollout start_steps",
        "updates_per_step": "ratio update_to_data utd utd_ratio update_per_step",
        "n_step": "estimation_step n_step_return_horizon update_horizon",
        "compress": "compress_state",
        "prioritized": "use_per per prioritized_replay use_priority",
        "priority_alpha": "per_alpha priority_exponent prioritized_replay_alpha",
        "priority_beta": "per_beta importance_sampling_exponent_begin_value prioritized_replay_beta",
        "priority_beta_steps": "per_beta_total_steps",
        "her": "goal_selection_strategy",
        "her_goals": "n_sampled_goal",
        "sequence_length": "sequence",
        "sequence_stride": "stride",
        "burn_in": "replay_burn_in burn_in_step",
        "target_update_interval": "target_every target_net_update_interval target_update_freq "
        "target_network_update_frequency",
        "policy_delay": "actor_every update_actor_freq",
        # Exploration
        "exploration_initial_eps": "epsilon_start start_e initial_epsilon exploration_epsilon_begin_value",
        "exploration_final_eps": "epsilon_final end_e final_epsilon eps_final eps_train_final "
        "exploration_epsilon_end_value",
        "exploration_fraction": "epsilon_share",
        "epsilon_alpha": "epsilon_ladder",
        "eval_epsilon": "eval_exploration_epsilon epsilon_eval eps_test",
        "noise_scale": "exploration_noise act_noise",
        "target_noise": "target_noise_scale target_policy_noise policy_noise",
        "target_noise_clip": "noise_clip",
        # Critics
        "alpha": "initial_alpha init_alpha",
        "tune_alpha": "autotune auto_alpha use_auto_alpha",
        "q_regularization": "q_reg_coeff",
        "n_critics": "num_critics",
        "top_quantiles_to_drop": "n_drop_atoms top_quantiles_to_drop_per_net",
        "n_quantiles": "num_quantiles",
        "n_atoms": "num_atoms",
        "kappa": "huber_param",
        "n_cosines": "tau_latent_dim num_cosines",
        "n_fractions": "num_tau_samples online_sample_size",
        "n_target_fractions": "num_tau_prime_samples target_sample_size",
        "n_policy_fractions": "num_quantile_samples sample_size",
        "double": "double_q is_double",
        # Families of exploring policies
        "max_beta": "policy_beta",
        "max_gamma": "ext_discount",
        "min_gamma": "int_discount",
        "bandit_window": "ucb_window_size",
        "bandit_beta": "ucb_beta",
        "bandit_epsilon": "ucb_epsilon",
        # Populations
        "elite": "evolver_cem_best",
        "remove_worst": "evolver_remove_worst",
    }.items()
    for alias in aliases.split()
}
"""alias -> the settings it can stand for; the first that an algorithm has is meant"""

SHARE_NOTHING = (
    "actor and critic share no parameters, so their losses need no relative weight; set critic_lr instead"
)
_UPDATES = (
    "set updates_per_step, the updates per environment step, to gradient_steps / (train_freq * num_envs)"
)
_TARGETS = "set target_update_interval, which counts updates, not environment steps"
OF_ENVIRONMENT = "it is an option of the environment: set env_options"

OF_EVALUATION = {
    **dict.fromkeys(("n_eval_episodes", "n_episodes", "num_episodes"), "episodes"),
    "eval_max_steps": "max_steps",
    **dict.fromkeys(("env_kwargs", "env_config", "gym_kwargs"), "env_options"),
    **dict.fromkeys(("iqm", "aggregate", "estimator"), "statistic"),
    **dict.fromkeys(("errorbar", "shade"), "band"),
    **dict.fromkeys(("x_axis", "xaxis"), "x"),
}
"""settings of training and names of other libraries, and what evaluating calls them"""

OPPOSITES = {"deterministic": "stochastic", "greedy": "stochastic", "stochastic": "deterministic"}
"""words for how evaluations choose actions, and the setting that means the opposite"""

POLICIES = (
    *("MlpPolicy", "CnnPolicy", "MultiInputPolicy"),
    *("MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy"),
)
"""networks of Stable-Baselines3, which come first there"""

NOTES: dict[str, str] = {
    **dict.fromkeys(
        ("vf_coef", "value_coef", "vf_loss_coeff", "value_loss_coef", "baseline_cost", "baseline_coef"),
        SHARE_NOTHING,
    ),
    **dict.fromkeys(
        ("train_freq", "gradient_steps", "train_frequency", "update_every", "update_period"), _UPDATES
    ),
    **dict.fromkeys(("target_network_frequency", "target_network_update_freq"), _TARGETS),
    **dict.fromkeys(
        (
            "frame_stack",
            "env_config",
            "env_kwargs",
            "gym_kwargs",
            "env_args",
            "max_episode_steps",
            "max_ep_len",
            "hit_reward",
        ),
        OF_ENVIRONMENT,
    ),
    "num_minibatches": "set batch_size to num_envs * num_steps / num_minibatches",
    **dict.fromkeys(
        ("train_batch_size", "train_batch_size_per_learner"),
        "set num_envs * num_steps, the size of a rollout, or batch_size, the size of a minibatch",
    ),
    "step_per_collect": "set num_steps to step_per_collect / num_envs: it counts the steps of one environment",
    "num_envs_per_worker": "set num_envs, which counts the environments of all workers",
    "num_envs_per_env_runner": "set num_envs, which counts the environments of all actors",
    "steps": "set total_timesteps, the steps of the whole run, or num_steps, those of a rollout",
    "n_steps": "set n_step, the steps of an n-step return, or num_steps, those of a rollout in each environment",
    "step_per_epoch": "set total_timesteps",
    "epoch_num_steps": "set total_timesteps to their product with max_epochs",
    "collection_step_num_env_steps": "set num_steps to it divided by num_envs: it counts the steps of one environment",
    "update_step_num_repetitions": "set n_epochs",
    "return_scaling": "set normalize_reward",
    "steps_per_epoch": "set total_timesteps, and num_steps per environment",
    **dict.fromkeys(("epoch", "epochs"), "set total_timesteps, in environment steps"),
    "target_kl": "only PPO has it: its kl_cut stops updates early, as Stable-Baselines3's target_kl does",
    "kl_target": "set target_kl with lr_schedule kl, or kl_cut to stop updates early",
    "kl_coeff": "there is no KL penalty; set lr_schedule kl, or kl_cut to stop updates early",
    "vf_clip_param": "it clips the loss; set clip_value and clip_range_vf to clip the critic's prediction",
    "use_gae": "advantages are always estimated by GAE; gae_lambda 1 gives n-step returns",
    "use_sde": "there is no state-dependent exploration",
    "sde_sample_freq": "there is no state-dependent exploration",
    "polyak": "set tau to 1 - polyak",
    "policy_frequency": "set policy_delay, the critic updates per actor update (CleanRL's SAC corresponds to 1)",
    **dict.fromkeys(
        ("epsilon_timesteps", "epsilon_decay_steps", "epsilon_decay", "eps_decay"),
        "set exploration_fraction, the fraction of the run over which epsilon falls",
    ),
    "eps_train": "set exploration_initial_eps",
    "twin_q": "set the number of critics",
    **dict.fromkeys(("recurrent", "lstm", "rnn", "gru", "use_rnn"), "set memory to lstm, gru or attention"),
    "optimize_memory_usage": "the replay buffer always stores each observation once",
    "policy_kwargs": "set net_arch, activation and the other settings of the networks directly",
    "policy": "the networks follow from the environment's spaces; set encoder, actor_network and critic_network",
    "optimizer_class": "set optimizer",
    "optimizer_kwargs": "set options of optimizer, such as optimizer.weight_decay",
    "use_rms_prop": "set optimizer to RMSprop or Adam",
    "weight_decay": "set the option optimizer.weight_decay",
    "tensorboard_log": "set runs, the folder of all runs, and tensorboard true or false",
    **dict.fromkeys(("verbose", "progress_bar", "progress", "no_progress"), "set quiet to true or false"),
    "log_interval": "set log_freq, in environment steps",
    **dict.fromkeys(
        ("tb_log_name", "run_name", "wandb_name", "wandb_run_name"),
        "set name, the name of the run folder, or tag, its suffix",
    ),
    "run_dir": "set runs, the folder of all runs, or name, the name of this one's folder in it",
    "reset_num_timesteps": "whorl resume counts on; a new run that starts from weights sets load_checkpoint_dir",
    "stats_window_size": "episode/return is the mean of the episodes since the last row; set log_freq",
    "callback": "pass callbacks=[...], a list of whorl.Callback objects",
    "eval_env": "evaluations play in an environment of their own; set eval_freq and n_eval_episodes",
    "best_model_save_path": "the best policy is saved in the folder `best` of the run",
    **dict.fromkeys(("features_extractor_class", "features_extractor_kwargs"), "set encoder, with options"),
    "share_features_extractor": "set shared_trunk",
    "wrapper_class": "pass a function that makes the wrapped environment",
    **dict.fromkeys(("vec_env_cls", "vec_env"), "set workers, the processes that step the environments"),
    **dict.fromkeys(("cuda", "use_cuda", "no_cuda", "gpu", "cpu"), "set device to cuda or cpu"),
    **dict.fromkeys(
        ("reward_threshold", "target_return", "stop_at", "early_stopping"),
        "pass callbacks=[whorl.StopAtReturn(mean_return)] in Python",
    ),
    **dict.fromkeys(
        ("time_limit", "max_time"),
        "set max_seconds, the time limit of the run; that of an episode is an option of the environment",
    ),
    "warmup_steps": (
        "set learning_starts (steps before the first update), random_steps (steps of random actions), or "
        "lr_schedule: {class: warmup}"
    ),
    **dict.fromkeys(
        ("max_steps_per_episode", "episode_length", "max_episode_length"),
        "set the time limit of the environment: env_options max_episode_steps (Gymnasium) or max_steps (native ones)",
    ),
    **dict.fromkeys(("n_stack", "num_stack"), "set env_options: {frame_stack: 4}"),
    **dict.fromkeys(
        ("layers", "num_layers", "n_layers", "hidden_layers", "network", "mlp"),
        "set net_arch, the sizes of the hidden layers, such as [256, 256]",
    ),
    "num_gpus": "set device",
    "render_mode": "watch evaluations with render, or a trained policy with whorl eval RUN --render",
    "hyperparams": "each setting is a keyword, or on the command line a flag: --num-envs 2",
    **dict.fromkeys(
        ("capture_video", "video", "record_video", "save_video"), "record one with whorl eval RUN --video"
    ),
    "torch_deterministic": "runs on one machine are always repeatable",
    **dict.fromkeys(
        ("env_id", "gym_id", "env_name", "env_type"), "the environment is an argument of its own"
    ),
    **dict.fromkeys(("algo", "algo_name"), "the algorithm is an argument of its own"),
    "save_freq": "set checkpoint_freq, in environment steps",
    "save_model_freq": "set checkpoint_freq, in environment steps",
    "lr_decay": "set lr_schedule to linear",
    **dict.fromkeys(
        ("evolver_enabled", "evolver_cem_best", "evolver_remove_worst"),
        "a population is trained by whorl evolve CONFIG",
    ),
    **dict.fromkeys(
        ("evolver_cem_min_length", "evolver_cem_time"),
        "a generation ends when all learners have made generation_steps",
    ),
    # offpcc
    "segment_len": "set sequence_length and sequence_stride to it, and stored_memory to false",
    "recurrent_type": "set memory to lstm, gru, rnn or attention",
    **dict.fromkeys(
        ("num_epochs", "num_steps_per_epoch"), "set total_timesteps to the product of epochs and their steps"
    ),
    "num_test_episodes_per_epoch": "set n_eval_episodes, and eval_freq in environment steps",
    "run_id": "train once for each seed: --seeds 1 2 3",
    **dict.fromkeys(("record", "visualize"), "record trained policies with whorl eval RUN [RUN ...] --video"),
    # RLcycle
    "eps": "set exploration_initial_eps",
    "max_exploration_frame": "set exploration_fraction, the fraction of the run over which epsilon falls",
    "per_beta_max": "priority_beta rises to 1, over priority_beta_steps",
    "test_interval": "set eval_freq, in environment steps",
    **dict.fromkeys(
        ("render_train", "render_test", "train_render", "test_render"),
        "show trained policies with whorl eval RUN --render",
    ),
    **dict.fromkeys(
        ("actor_gradient_clip", "critic_gradient_clip"), "set max_grad_norm, the limit for each network"
    ),
    "max_update_steps": "set max_iterations, or total_timesteps in environment steps",
    **dict.fromkeys(("is_atari", "is_discrete", "use_conv"), "it follows from the environment; leave it out"),
    "defaults": "take the settings of other files over with inherits: FILE",
    "model": "networks follow from the environment; set encoder, actor_network, critic_network by class and params",
    # Deep RL Zoo
    **dict.fromkeys(("clip_grad", "noclip_grad"), "set max_grad_norm, 0 for off"),
    "learn_interval": "set updates_per_step to 1 / learn_interval",
    "learn_frequency": "set updates_per_step to 1 / learn_frequency",
    "q_target_tau": "set tau to 1 - q_target_tau",
    **dict.fromkeys(
        ("clip_epsilon_begin_value", "clip_epsilon_end_value"),
        "set clip_range, which stays the same during training",
    ),
    **dict.fromkeys(("rmsprop_alpha", "rmsprop_momentum"), "set optimizer.alpha and optimizer.momentum"),
    **dict.fromkeys(
        ("int_learning_rate", "rnd_learning_rate", "icm_learning_rate"),
        "set lr of the component: episodic.lr, rnd.lr or icm.lr",
    ),
    "ext_discount": "set gamma",
    **dict.fromkeys(("int_discount", "rnd_discount"), "set gamma of the component: rnd.gamma or icm.gamma"),
    "rnd_experience_proportion": "set rnd.proportion",
    "observation_norm_steps": "set rnd.warmup_steps",
    "observation_norm_clip": "set rnd.obs_clip_range",
    "intrinsic_lambda": "set icm.weight, by which the reward is multiplied after it was normalised",
    "icm_beta": "set icm.beta",
    "policy_loss_coef": "policy and ICM have optimizers of their own, so their losses need no relative weight",
    "episodic_memory_capacity": "set episodic.capacity",
    "num_neighbors": "set episodic.neighbours",
    **{name: f"set episodic.{name}" for name in ("kernel_epsilon", "cluster_distance", "max_similarity")},
    **dict.fromkeys(
        ("reset_episodic_memory", "noreset_episodic_memory"), "it is always emptied when an episode ends"
    ),
    **dict.fromkeys(("transformed_retrace", "notransformed_retrace"), "set rescale_values"),
    "learner_batch_size": "with actor_gradients averaged, an update has the gradients of all actors",
    "checkpoint_dir": "checkpoints are in the run folder; runs names the folder of all runs",
    "exploration_epsilon_decay_step": "set exploration_fraction, the fraction of the run over which epsilon falls",
    "importance_sampling_exponent": "set priority_beta",
    "importance_sampling_exponent_end_value": "priority_beta rises to 1, over priority_beta_steps",
    "uniform_sample_probability": "every priority has 1e-6 added instead, so that no transition is lost",
    "normalize_weights": "weights are always divided by the largest of the batch",
    "tau_samples_policy": "set n_fractions, n_target_fractions and n_policy_fractions",
    "unroll_length": "set sequence_length, or num_steps of on-policy algorithms",
    "rescale_epsilon": "set rescale_values, whose epsilon is 1/1000",
    **dict.fromkeys(
        ("actor_update_interval", "actor_update_frequency"),
        "acting weights are renewed with each rollout, of num_steps",
    ),
    **dict.fromkeys(
        ("num_iterations", "num_train_steps", "num_train_frames"), "set total_timesteps to their product"
    ),
    **dict.fromkeys(("num_eval_steps", "num_eval_frames"), "set n_eval_episodes: whole episodes are played"),
    **dict.fromkeys(
        ("environment_frame_skip", "environment_frame_stack", "environment_height", "environment_width"),
        "set env_options: frame_skip, stack and screen",
    ),
    "obscure_epsilon": "set the option obscure of the environment: env_options",
    "results_csv_path": "progress.csv is in the run folder; runs names the folder of all runs",
    **dict.fromkeys(
        ("resume", "resume_from", "trained_agent"),
        "continue a run with whorl resume RUN, or begin with its weights: load_checkpoint_dir",
    ),
    "load_checkpoint_file": "name the run or its checkpoint: whorl eval RUN, or whorl resume RUN",
    "environment_name": "whorl eval plays in the environment of the run; --env names another one",
    "recording_video_dir": "record with whorl eval RUN --video FILE",
    # Advanced-SAC
    "max_iter": "an iteration is an episode there; set total_episodes, or total_timesteps",
    "max_step": "set total_timesteps, in environment steps",
    "max_step_each_iter": "set the time limit of the environment: env_options max_episode_steps (Gymnasium) or "
    "max_steps (native ones), or eval_max_steps of evaluations",
    "reset_on_iteration": "environments are reset at the end of an episode, and by reset_every",
    "write_summary_per_step": "set log_freq, in environment steps",
    "save_model_per_step": "set checkpoint_freq, in environment steps",
    "repeat": "train once for each seed: --seeds 1 2",
    "ckpt": "continue a run with whorl resume RUN/checkpoint_3, or play it with whorl eval RUN",
    "run": "play a trained policy with whorl eval RUN",
    **dict.fromkeys(
        ("nn", "use_env_nn"), "set encoder, actor_network and critic_network, or their import paths"
    ),
    "nn_config": "set options of encoder, actor_network and critic_network",
    "reset_config": "set env_options: {parameters: {...}} of a Unity environment",
    "net_config": "actors of one machine are set by actors, and of several by ray",
    "ma_config": "an environment with several behaviours takes it, under this name or behaviours",
    "unity_args": "the path of the player is the id, unity:PATH; its port is env_options: {port: 5005}",
    "build_path": "the path of the player is the id, unity:PATH",
    "beta": "set priority_beta; the exponent of priorities, alpha of replay_config, is priority_alpha",
    "beta_increment_per_sampling": "set priority_beta_steps to (1 - beta) / beta_increment_per_sampling / "
    "updates_per_step",
    **dict.fromkeys(("td_error_min", "td_error_max"), "set priority_clip to both: [0.01, 1]"),
    "use_add_with_td": "set priority_on_add",
    "seq_encoder": "set memory: gru or lstm for RNN, attention for ATTN",
    "update_target_per_step": "set target_update_interval, in updates",
    "init_log_alpha": "set alpha to exp(init_log_alpha): -2.3 is 0.1",
    "target_d_alpha": "set entropy_ratio, the target entropy of discrete actions as a fraction of log n",
    "target_c_alpha": "set entropy_per_dimension, the target entropy of continuous actions",
    "use_normalization": "set normalize_obs, and obs_clip_range 5 with clip_obs",
    "siamese": "set components to atc or byol",
    "siamese_use_q": "set components to siamese_q",
    "siamese_use_adaptive": "set atc.joins critic and atc.adaptive layer, or those of byol",
    **dict.fromkeys(
        ("use_prediction", "transition_kl"), "set components to prediction, with prediction.kl_weight"
    ),
    "use_extra_data": "set privileged_obs, the observations that exist in training only",
    **dict.fromkeys(
        ("curiosity", "curiosity_strength"), "set components to icm, with icm.error and icm.weight"
    ),
    **dict.fromkeys(
        ("use_rnd", "rnd_n_sample"), "set components to rnd_actions, with rnd_actions.candidates"
    ),
    "update_sac_bak_per_step": "acting weights are renewed with each rollout; set max_lag",
    "max_actors_each_learner": "set actors",
    **dict.fromkeys(
        ("noise_increasing_rate", "noise_max"),
        "set noise_scale to [low, high], spread over environments",
    ),
    **dict.fromkeys(
        (
            "episode_queue_size",
            "episode_sender_process_num",
            "batch_queue_size",
            "batch_generator_process_num",
        ),
        "set trajectories_per_batch and actors; nothing else has to be set",
    ),
    **dict.fromkeys(("learner_host", "learner_port"), "set ray to the address of a cluster"),
    "replay_buffer_class": "set prioritized, or her: future for HerReplayBuffer",
    "replay_buffer_kwargs": "set her and her_goals for those of HerReplayBuffer",
    "replay_buffer_config": "set buffer_size, prioritized, priority_alpha and priority_beta",
}
"""what a name of another library is called here, where it can't be translated, or why there is no such setting"""

NOTES_WHERE: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("noise_increasing_rate", "noise_max"),
        ("action_noise", "set action_noise to [low, high], spread over environments"),
    ),
    "action_noise": ("noise_scale", "set noise (gaussian, ou or none) and noise_scale"),
    "epsilon": (
        "exploration_initial_eps",
        "set exploration_initial_eps and exploration_final_eps, between which epsilon falls, and exploration_fraction",
    ),
    "alpha": ("ent_coef", "set ent_coef, the coefficient of the entropy"),
    **dict.fromkeys(
        ("gamma", "discount"),
        ("max_gamma", "set max_gamma and min_gamma, between which the policies' discounts lie"),
    ),
    "batch_size": (
        "num_steps",
        "an update takes whole rollouts: set num_envs and num_steps, and with actors trajectories_per_batch",
    ),
}
"""the same for a name that only means something where an algorithm has a certain setting, which comes first"""

IN_SEQUENCES = ("replay_capacity", "min_replay_size")
"""names by which Deep RL Zoo counts sequences of steps where the algorithm has a memory; here they count steps"""


def note_on(name: str, hints: Mapping[str, Any]) -> str:
    """What a name is called here, for an algorithm with the settings `hints`; empty if there is no note."""
    needed, note = NOTES_WHERE.get(name, ("", ""))
    return note if needed in hints else NOTES.get(name, "")


def _rates(value: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """All learning rates of an algorithm."""
    return {name: value for name in hints if name in ("learning_rate", "lr") or name.endswith("_lr")}


def _hidden(value: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Hidden layer sizes, as a list for all networks or as Stable-Baselines3's `dict(pi=[...], vf=[...])`."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0]
    sizes = value if isinstance(value, Mapping) else dict.fromkeys(("pi", "vf"), value)
    if unknown := sorted(set(map(str, sizes)) - {"pi", "vf", "qf"}):
        raise ConfigError(
            f"net_arch has an entry {unknown[0]!r}; it must be a list of sizes, or have pi and vf or qf"
        )
    if "hidden_sizes" in hints:
        if isinstance(value, Mapping):
            raise ConfigError(
                "net_arch has pi and vf or qf, but this algorithm has one network; give a list of sizes"
            )
        return {"hidden_sizes": value}
    names = {"pi": "actor_hidden_sizes", "vf": "critic_hidden_sizes", "qf": "critic_hidden_sizes"}
    return {names[key]: found for key, found in sizes.items() if names[key] in hints}


def _entropy(value: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Stable-Baselines3's `ent_coef` of SAC: a fixed number, `auto`, or `auto_0.1` to start tuning from 0.1."""
    if "tune_alpha" not in hints:
        return {}
    if isinstance(value, str) and value.startswith("auto"):
        start = value.removeprefix("auto").removeprefix("_")
        return {"tune_alpha": True, **({"alpha": start} if start else {})}
    return {"alpha": value, "tune_alpha": False}


def _log_alpha(value: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Advanced-SAC's `init_log_alpha`."""
    known = "tune_alpha" in hints and isinstance(value, int | float)
    return {"alpha": math.exp(value)} if known else {}


def _anneal(value: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """CleanRL's `anneal_lr`."""
    return {"lr_schedule": "linear" if value else "constant"} if "lr_schedule" in hints else {}


def _start(value: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """TD3's `start_timesteps`: random actions, and no updates before their end."""
    return {name: value for name in ("random_steps", "learning_starts") if name in hints}


def _lstm(value: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Deep RL Zoo's and RLlib's `use_lstm`."""
    return {"memory": "lstm" if value else "none"} if "memory" in hints else {}


def _normalize(value: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """`normalize` of RL Baselines3 Zoo: observations and rewards."""
    return {name: value for name in ("normalize_obs", "normalize_reward") if name in hints}


def _value_clip(value: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """A number is the range (earlier versions); a boolean turns clipping on (Tianshou)."""
    name = "clip_value" if isinstance(value, bool) else "clip_range_vf"
    return {name: value} if name in hints else {}


EPOCHS = {
    "max_epochs": "max_iterations",
    "model_checkpoint_freq": "checkpoint_freq",
    "eval_freq": "eval_freq",
}
"""CO-GYM's settings that count epochs, which are iterations here; `eval_freq` is one beside either of the others"""

COGYM = ("n_workers", "max_rollout", "K_epochs", "max_random_rollout", "model_checkpoint_freq")
"""names by which settings of CO-GYM are told from Tianshou's, whose `max_epochs` is a number of longer epochs"""


def in_epochs(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a layer that count epochs, under their names here."""
    cogym = any(name in layer for name in ("max_epochs", "model_checkpoint_freq"))
    return {EPOCHS[name]: value for name, value in layer.items() if cogym and name in EPOCHS}


EXPANSIONS: dict[str, tuple[type, Callable[[Any, Mapping[str, Any]], dict[str, Any]]]] = {
    **dict.fromkeys(("learning_rate", "lr"), (float, _rates)),
    **dict.fromkeys(("net_arch", "hidden_sizes", "hidden", "fcnet_hiddens"), (list, _hidden)),
    "ent_coef": (str, _entropy),
    "init_log_alpha": (float, _log_alpha),
    "anneal_lr": (bool, _anneal),
    "start_timesteps": (int, _start),
    "normalize": (bool, _normalize),
    "use_lstm": (bool, _lstm),
    "value_clip": (str, _value_clip),
    "max_epochs": (int, lambda value, hints: {"max_iterations": value}),
    "model_checkpoint_freq": (int, lambda value, hints: {"checkpoint_freq": value}),
}
"""names that set several settings, or whose value has to be read first; with the type of that value"""


AMBIGUOUS = {"n_steps": "n_step"}
"""aliases that may mean another setting as well: they apply only where an algorithm does not have that one"""


def canonical(name: str, hints: Mapping[str, Any]) -> str:
    """The setting among `hints` that a name or alias stands for; the name itself where there is none."""
    name = name.replace("-", "_")
    if name in hints or AMBIGUOUS.get(name) in hints:
        return name
    return next((target for target in ALIASES.get(name, ()) if target in hints), name)


def translated(name: str, value: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among `hints`, with values, that a name or alias stands for; the name itself if there are none."""
    name = canonical(name, hints)
    if name not in hints and name in EXPANSIONS:
        return EXPANSIONS[name][1](value, hints) or {name: value}
    return {name: value}


def is_expansion(name: str, hints: Mapping[str, Any]) -> bool:
    """Whether a name stands for several settings of an algorithm."""
    return name not in hints and name in EXPANSIONS and bool(EXPANSIONS[name][1](0, hints))


SHARED_OFF_POLICY = (
    *("buffer_size", "learning_starts", "random_steps", "tau", "target_update_interval", "noise_scale"),
    *("target_noise", "target_noise_clip", "alpha_lr", "n_critics", "top_quantiles_to_drop", "n_quantiles"),
    "log_std_range",
)
"""Settings in CO-GYM's table for all off-policy algorithms: those that lack one ignore it with a warning."""

SHARED_ON_POLICY = ("aux_every", "aux_epochs", "aux_batch_factor", "bc_coef")
"""The same for its table of on-policy algorithms."""

TWINS = {"n_critics": "ensemble_q_num", "ensemble_q_num": "n_critics"}
"""Settings with the same meaning of which an algorithm has one; not aliases, because CO-GYM's table holds TQC's."""
