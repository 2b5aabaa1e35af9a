"""Settings files with the sections of Advanced-SAC and RLcycle: nothing means something else than it did there."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from whorl.core.errors import ConfigError
from whorl.settings.merge import configure

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
    with pytest.warns(UserWarning, match="env, experiment_name, agent of experiment_info is ignored"):
        found = configure("rainbow", "CartPole-v1", {}, [written(tmp_path, content)])
    assert (found.total_episodes, found.batch_size, found.buffer_size) == (5000, 64, 100000)
    assert (found.prioritized, found.priority_alpha) == (True, 0.5)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"sac_config": {"init_log_alpha": -2.3}}, "set alpha to exp"),
        ({"sac_config": {"seq_encoder": "RNN"}}, "set memory"),
        ({"sac_config": {"use_rnd": True}}, "rnd_actions"),
        ({"replay_config": {"td_error_min": 0.01}}, "priority_clip"),
        ({"replay_config": {"beta_increment_per_sampling": 0.001}}, "priority_beta_steps"),
        ({"base_config": {"max_iter": 100}}, "total_episodes"),
        ({"nn_config": {"rep": {"a": 1}}}, "nn_config can't be read: set options of encoder"),
        ({"hyper_params": {"train_freq": 4}}, "updates_per_step"),
        ({"hyper_params": {"eps": 1.0}}, "exploration_initial_eps"),
        ({"sac_config": 3}, "sac_config is 3; it must be a mapping"),
    ],
)
def test_a_key_that_means_something_else_here_says_what_to_write(content: dict[str, Any], said: str):
    with warnings.catch_warnings(), pytest.raises(ConfigError, match=said):
        warnings.simplefilter("ignore")
        configure("sac" if "hyper_params" not in content else "rainbow", "", content)


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
    with pytest.raises(ConfigError, match="'gamma' must be a variant over it"):
        configure("sac", "", {}, [written(tmp_path, {**content, "gamma": 0.9})])


def test_random_params_of_a_section_are_found(tmp_path: Path):
    from whorl.api import prepare

    content = {"sac_config": {"random_params": {"gamma": {"in": [0.5, 0.6]}}}}
    found = prepare("Pendulum-v1", "sac", {}, [written(tmp_path, content)], None, {})[1]
    assert found.gamma in (0.5, 0.6)


def test_a_gpu_is_cuda():
    assert configure("sac", "", {"device": "gpu"}).device == "cuda"


def test_use_lstm_is_a_memory():
    assert configure("impala", "", {"use_lstm": True}).memory == "lstm"
    assert configure("r2d2", "", {"use_lstm": False}).memory == "none"
