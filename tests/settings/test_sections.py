"""Settings files with the sections of Advanced-SAC and RLcycle: nothing means something else than it did there."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from whorl.core.errors import ConfigError
from whorl.settings.merge import configure

DEFAULT = """
base_config: {env_type: UNITY, env_name: env_name, env_args: null, name: "{time}", n_envs: 1, max_iter: -1,
  max_step: -1, max_step_each_iter: -1, reset_on_iteration: true,
  unity_args: {no_graphics: true, build_path: {win32: path_win32, linux: path_linux}, port: 5005}}
reset_config: null
nn_config: {rep: null, policy: null}
replay_config: {capacity: 524288, alpha: 0.9, beta: 0.4, beta_increment_per_sampling: 0.001, td_error_min: 0.01,
  td_error_max: 1.}
sac_config: {nn: nn, seed: null, write_summary_per_step: 1000, save_model_per_step: 5000, use_replay_buffer: true,
  use_priority: true, ensemble_q_num: 2, ensemble_q_sample: 2, burn_in_step: 0, n_step: 1, seq_encoder: null,
  batch_size: 256, tau: 0.005, update_target_per_step: 1, init_log_alpha: -2.3, use_auto_alpha: true,
  learning_rate: 0.0003, gamma: 0.99, v_lambda: 1.0, v_rho: 1.0, v_c: 1.0, clip_epsilon: 0.2, discrete_dqn_like: false,
  use_n_step_is: true, siamese: null, siamese_use_q: false, siamese_use_adaptive: false, use_prediction: false,
  transition_kl: 0.8, use_extra_data: true, curiosity: null, curiosity_strength: 1, use_rnd: false, rnd_n_sample: 10,
  use_normalization: false, use_add_with_td: false, action_noise: null}
ma_config: null
"""
REPLAY = {"capacity": 4096, "alpha": 0.9, "beta": 0.5}


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("where", ["file", "arguments", "dotted"])
def test_alpha_of_the_replay_buffer_is_not_the_temperature(where: str, tmp_path: Path):
    given: dict[str, Any] = {"sac_config": {"use_priority": True}, "replay_config": REPLAY}
    if where == "dotted":
        given = {"use_priority": True} | {f"replay_config.{key}": value for key, value in REPLAY.items()}
    files = [written(tmp_path, given)] if where == "file" else []
    found = configure("sac", "", {} if files else given, files)
    assert (found.priority_alpha, found.priority_beta, found.buffer_size) == (0.9, 0.5, 4096)
    assert found.prioritized and found.alpha == configure("sac", "", {}).alpha


def test_settings_of_advanced_sac_are_read_with_their_empty_ones(tmp_path: Path):
    content = {
        "base_config": {"n_envs": 3, "name": "test_{time}", "max_iter": -1, "env_args": None},
        "reset_config": None,
        "nn_config": {},
        "replay_config": {"capacity": 524288},
        "sac_config": {
            "ensemble_q_num": 3,
            "seed": None,
            "n_step": 2,
            "siamese": None,
            "learning_rate": 1e-4,
        },
        "ma_config": None,
    }
    found = configure("sac", "", {}, [written(tmp_path, content)])
    assert (found.num_envs, found.name, found.buffer_size, found.ensemble_q_num) == (
        3,
        "test_{time}",
        524288,
        3,
    )
    assert (found.n_step, found.actor_lr, found.alpha_lr) == (2, 1e-4, 1e-4)


def test_the_default_settings_of_advanced_sac_are_read_as_they_are(tmp_path: Path):
    """All keys of its `default_config.yaml`: what is off there is left out, and two keys may be one setting here."""
    content = yaml.safe_load(DEFAULT)
    with pytest.warns(UserWarning, match="priority_beta_steps 600, which is the same at one update"):
        found = configure("sac", "", {}, [written(tmp_path, content)])
    assert found.alpha == pytest.approx(0.1, rel=0.01) and found.tune_alpha
    assert (found.priority_alpha, found.priority_beta, found.priority_clip) == (0.9, 0.4, (0.01, 1.0))
    assert (found.log_freq, found.checkpoint_freq, found.target_update_interval) == (1000, 5000, 1)
    assert (found.priority_beta_steps, found.clip_epsilon, found.memory) == (600, 0.2, "none")
    assert not found.components


def test_settings_of_rlcycle_are_read_and_what_the_command_says_is_named(tmp_path: Path):
    content = {
        "experiment_info": {
            "experiment_name": "Rainbow DQN",
            "agent": "rlcycle.dqn_base.agent.DQNBaseAgent",
            "env": {"name": "PongNoFrameskip-v4"},
            "log_wandb": False,
            "total_num_episodes": 5000,
        },
        "hyper_params": {"batch_size": 64, "replay_buffer_size": 100000, "use_per": True, "per_alpha": 0.5},
    }
    with pytest.warns(UserWarning, match="env, experiment_name, agent of experiment_info are ignored"):
        found = configure("rainbow", "CartPole-v1", {}, [written(tmp_path, content)])
    assert (found.total_episodes, found.batch_size, found.buffer_size) == (5000, 64, 100000)
    assert (found.prioritized, found.priority_alpha) == (True, 0.5)


def test_a_zero_comes_over_the_number_of_another_file_and_is_no_setting_where_there_is_none():
    files = [{"hyper_params": {"q_reg_coeff": 0.1}}, {"hyper_params": {"q_reg_coeff": 0.0}}]
    assert configure("sac", "", {}, files).q_regularization == 0.0
    assert not hasattr(configure("dqn", "", {}, files[1:]).algo, "q_regularization")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"sac_config": {"init_log_alpha": "low"}}, "set alpha to exp"),
        ({"sac_config": {"seq_encoder": "RNN"}}, "set memory"),
        ({"sac_config": {"use_rnd": True}}, "rnd_actions"),
        ({"replay_config": {"td_error_min": 0.01}}, "priority_clip"),
        ({"replay_config": {"beta_increment_per_sampling": 0.001}}, "priority_beta_steps"),
        ({"base_config": {"max_iter": 100}}, "total_episodes"),
        ({"nn_config": {"rep": {"a": 1}}}, "nn_config can't be read: set options of encoder"),
        ({"hyper_params": {"train_freq": 4}}, "updates_per_step"),
        ({"hyper_params": {"critic_gradient_clip": 10.0}}, "max_grad_norm"),
        ({"sac_config": 3}, "sac_config is 3; it must be a mapping"),
    ],
)
def test_a_key_that_means_something_else_here_says_what_to_write(content: dict[str, Any], said: str):
    with warnings.catch_warnings(), pytest.raises(ConfigError, match=said):
        warnings.simplefilter("ignore")
        configure("sac" if "hyper_params" not in content else "rainbow", "", content)


RAINBOW = """
batch_size: 64
replay_buffer_size: 100000
use_per: False
per_alpha: 0.5
per_beta: 0.4
per_beta_max: 1.0
per_beta_total_steps: 300000
eps: 1.0
eps_final: 0.0
update_starting_point: 40000
gamma: 0.99
tau: 0.005
q_reg_coeff: 0.0
gradient_clip: 10.0
n_step: 3
learning_rate: 0.0000625
weight_decay: 0.0
adam_eps: 0.00015
"""


def test_what_rlcycle_sets_to_what_is_so_here_is_left_out():
    settings = {"exploration": "epsilon", "hyper_params": yaml.safe_load(RAINBOW)}
    info = {"test_num": 3, "render_train": False, "render_test": False}
    found = configure("rainbow", "", {**settings, "experiment_info": info})
    assert (found.exploration_initial_eps, found.exploration_final_eps, found.prioritized) == (
        1.0,
        0.0,
        False,
    )
    assert found.n_eval_episodes == 3


def test_all_keys_of_a_file_that_mean_something_else_are_answered_at_once():
    with pytest.raises(ConfigError) as error:
        configure(
            "rainbow", "", {"defaults": [], "hyper_params": {"max_exploration_frame": 100, "train_freq": 4}}
        )
    assert "'defaults': take the settings of other files over with inherits" in error.value.message
    said = ("'max_exploration_frame': set exploration_fraction", "'train_freq': set updates_per_step")
    assert all(one in error.value.details for one in said)


def test_a_population_that_is_off_and_a_learner_without_a_host_are_left_out():
    base = {"evolver_enabled": False, "evolver_cem_length": 50, "evolver_remove_worst": 4}
    content = {"base_config": base, "net_config": {"learner_host": None, "learner_port": 61001}}
    assert configure("sac", "", content).plain() == configure("sac", "", {}).plain()
    with pytest.raises(ConfigError, match="net_config can't be read: actors"):
        configure("sac", "", {"net_config": {"learner_host": "here"}})
    with pytest.raises(ConfigError, match=r"trained by whorl evolve CONFIG"):
        configure("sac", "", {"base_config": {"evolver_enabled": True}})


def test_training_begins_with_the_default_settings_of_advanced_sac(tmp_path: Path):
    """They correct n-step returns, but of one step, which needs no correction."""
    import whorl

    content = yaml.safe_load(DEFAULT)
    content["sac_config"] |= {"batch_size": 16}
    small = {"total_timesteps": 60, "learning_starts": 30, "eval": False, "quiet": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = whorl.load(
            "Pendulum-v1", "sac", small, files=[written(tmp_path, content)], runs=str(tmp_path)
        )
        assert trainer.train().steps >= 60


def test_variants_of_advanced_sac_lie_over_its_default(tmp_path: Path):
    content = {
        "default": {"sac_config": {"n_step": 2, "gamma": 0.9}},
        "vanilla": {"sac_config": {"n_step": 3}},
        "long": {"inherited": "vanilla", "sac_config": {"gamma": 0.99}},
    }
    path = written(tmp_path, content)
    expected = {path: (2, 0.9), f"{path}:vanilla": (3, 0.9), f"{path}:long": (3, 0.99)}
    for file, values in expected.items():
        found = configure("sac", "", {}, [file])
        assert (found.n_step, found.gamma) == values
    with pytest.raises(ConfigError, match=r"'gamma' must be a variant over it.*under 'variants'"):
        configure("sac", "", {}, [written(tmp_path, {**content, "gamma": 0.9})])


def test_random_params_of_a_section_are_found(tmp_path: Path):
    from whorl.run.prepare import prepare

    content = {"sac_config": {"random_params": {"gamma": {"in": [0.5, 0.6]}}}}
    found = prepare("Pendulum-v1", "sac", {}, [written(tmp_path, content)], None, {})[1]
    assert found.gamma in (0.5, 0.6)


def test_learning_rates_and_losses_of_rlcycle_s_actor_critics_are_read():
    content = {
        "experiment_info": {
            "critic_loss": "rlcycle.a2c.loss.X",
            "actor_loss": "rlcycle.a2c.loss.Y",
            "test_render": False,
        },
        "hyper_params": {"critic_learning_rate": 0.25, "actor_learning_rate": 0.5},
    }
    with pytest.warns(UserWarning, match="actor_loss, critic_loss of experiment_info are ignored"):
        found = configure("a2c", "", content)
    assert (found.critic_lr, found.actor_lr) == (0.25, 0.5)


def test_a_gpu_is_cuda():
    assert configure("sac", "", {"device": "gpu"}).device == "cuda"


def test_use_lstm_is_a_memory():
    assert configure("impala", "", {"use_lstm": True}).memory == "lstm"
    assert configure("r2d2", "", {"use_lstm": False}).memory == "none"
