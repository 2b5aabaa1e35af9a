"""Names of settings in other libraries: translated where the meaning is the same, explained where it is not."""

import re
import warnings
from typing import Any

import pytest
from torch import nn

from whorl.cli import main
from whorl.core.errors import ConfigError, misspelt
from whorl.core.registry import Part
from whorl.population.config import EvolveConfig
from whorl.settings.aliases import ALIASES, EXPANSIONS, NOTES, canonical
from whorl.settings.merge import configure, settings_of
from whorl.settings.presets import algorithm_class, preset_names, rules
from whorl.settings.schema import fields_of

EARLIER = (
    *("lanes", "rollout_steps", "max_epochs", "total_steps", "learner_device", "worker_device", "slabs"),
    *("eval_episodes", "model_checkpoint_freq", "actor_hidden", "critic_hidden", "chunk", "log_std_bound"),
    *("capacity", "learn_after", "ratio", "sequence", "stride", "target_every", "hidden", "epsilon_start"),
    *("epsilon_final", "epsilon_share", "epsilon_ladder", "lr", "lam", "epochs", "clip", "value_clip"),
    *("entropy_coef", "n_drop_atoms", "actor_every"),
)
"""settings of commit 4a0ae69 that have another name now"""


def found(algorithm: str, **settings: Any) -> dict[str, Any]:
    """The settings that differ from the algorithm's defaults."""
    before, after = configure(algorithm, "X", {}).plain(), configure(algorithm, "X", settings).plain()
    return {name: value for name, value in after.items() if value != before[name]}


def every() -> list[dict[str, Any]]:
    return [*(settings_of(cls) for cls in rules().values()), fields_of(EvolveConfig)]


@pytest.mark.parametrize("alias", ALIASES)
def test_every_alias_stands_for_a_setting_of_some_algorithm(alias: str) -> None:
    assert all(any(target in hints for hints in every()) for target in ALIASES[alias])


@pytest.mark.parametrize("name", EARLIER)
def test_every_earlier_name_is_accepted(name: str) -> None:
    assert any(canonical(name, hints) in hints for hints in every()) or name in EXPANSIONS


@pytest.mark.parametrize("preset", preset_names())
def test_no_setting_of_an_algorithm_has_a_name_that_is_explained_away(preset: str) -> None:
    own = set(settings_of(algorithm_class(preset)[1]))
    some = {"target_kl", "weight_decay", "value_coef"}  # which others lack
    assert own & set(NOTES) <= some


@pytest.mark.parametrize(
    ("algorithm", "given", "expected"),
    [
        ("ppo", {"learning_rate": 0.5}, {"actor_lr": 0.5, "critic_lr": 0.5}),
        ("sac", {"lr": 0.5}, {"actor_lr": 0.5, "critic_lr": 0.5, "alpha_lr": 0.5}),
        ("sac", {"actor_lr": 0.25, "lr": 0.5}, {"actor_lr": 0.25, "critic_lr": 0.5, "alpha_lr": 0.5}),
        ("dqn", {"lr": 0.5}, {"learning_rate": 0.5}),
        ("ppo", {"ent_coef": 0.5}, {"ent_coef": 0.5}),
        ("sac", {"ent_coef": 0.5}, {"alpha": 0.5, "tune_alpha": False}),
        ("crossq", {"ent_coef": "auto_0.5"}, {"alpha": 0.5}),
        ("tqc", {"ent_coef": "auto"}, {}),
        ("ppo", {"net_arch": [7]}, {"actor_hidden_sizes": [7], "critic_hidden_sizes": [7]}),
        (
            "sac",
            {"net_arch": {"pi": [7], "qf": [8]}},
            {"actor_hidden_sizes": [7], "critic_hidden_sizes": [8]},
        ),
        ("ppo", {"net_arch": [{"vf": [8]}]}, {"critic_hidden_sizes": [8]}),
        ("dqn", {"net_arch": [7, 8]}, {"hidden_sizes": [7, 8]}),
        ("ppo", {"activation_fn": nn.ELU}, {"activation": "elu"}),
        ("ppo", {"norm_adv": True}, {"normalize_advantage": "minibatch"}),
        ("ppo", {"anneal_lr": True}, {"lr_schedule": {"class": "linear"}}),
        ("ppo", {"value_clip": True}, {"clip_value": True}),
        ("ppo", {"value_clip": 0.5}, {"clip_range_vf": 0.5}),
        ("pqn", {"lam": 0.5}, {"q_lambda": 0.5}),
        ("a2c", {"lam": 0.5}, {"gae_lambda": 0.5}),
        ("sac", {"start_timesteps": 7}, {"random_steps": 7, "learning_starts": 7}),
        ("a3c", {"actor_gradients": "apart"}, {}),
        (
            "sac",
            {"learning_rate": 0.5, "q_learning_rate": 0.25, "alpha_learning_rate": 0.1},
            {"actor_lr": 0.5, "critic_lr": 0.25, "alpha_lr": 0.1},
        ),
        ("reinforce", {"baseline_learning_rate": 0.25}, {"critic_lr": 0.25}),
        (
            "ngu",
            {"ext_discount": 0.9, "int_discount": 0.8, "policy_beta": 0.1},
            {"max_gamma": 0.9, "min_gamma": 0.8, "max_beta": 0.1},
        ),
        (
            "agent57",
            {"ucb_window_size": 9, "ucb_beta": 0.2, "ucb_epsilon": 0.1},
            {"bandit_window": 9, "bandit_beta": 0.2, "bandit_epsilon": 0.1},
        ),
        ("impala", {"rmsprop_eps": 0.01}, {"adam_eps": 0.01}),
        ("td3", {"policy_noise": 0.5, "noise_clip": 0.25}, {"target_noise": 0.5, "target_noise_clip": 0.25}),
    ],
)
def test_a_name_is_translated_for_the_algorithm(
    algorithm: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert found(algorithm, **given) == expected


def test_a_later_layer_overrides_all_rates() -> None:
    """The preset of a2c sets both rates."""
    assert configure("a2c", "CartPole-v1", {"learning_rate": 0.5}).critic_lr == 0.5


@pytest.mark.parametrize(
    ("algorithm", "given", "sentence"),
    [
        (
            "ppo",
            {"vf_coef": 0.25},
            "value_coef is used only with shared_trunk; without it actor and critic share no parameters, so their "
            "losses need no relative weight; set critic_lr instead",
        ),
        (
            "reinforce",
            {"vf_coef": 0.5},
            "reinforce has no setting 'vf_coef': actor and critic share no parameters, so their losses need no ",
        ),
        ("sac", {"gradient_steps": 2}, "sac has no setting 'gradient_steps': set updates_per_step"),
        (
            "ppo",
            {"num_minibatches": 4},
            "ppo has no setting 'num_minibatches': set batch_size to num_envs * num_steps",
        ),
        ("a2c", {"target_kl": 0.5}, "a2c has no setting 'target_kl': only PPO has it: its kl_cut stops"),
        ("ppo", {"target_kl": 0.5}, "target_kl is used only with lr_schedule kl; set kl_cut"),
        ("ppo", {"clip_range_vf": 0.5}, "clip_range_vf is used only with clip_value; set clip_value to true"),
        ("ppo", {"net_arch": {"x": [3]}}, "net_arch has an entry 'x'"),
        (
            "ppo",
            {"update_after": 5},
            "ppo has no setting 'update_after' (learning_starts), which belongs to ",
        ),
        ("a2c", {"batch_size": 32}, "a2c has no setting 'batch_size': an update takes whole rollouts"),
        ("a2c", {"alpha": 0.01}, "a2c has no setting 'alpha': set ent_coef"),
        ("sac", {"q_target_tau": 0.995}, "sac has no setting 'q_target_tau': set tau to 1 - q_target_tau"),
        ("ngu", {"gamma": 0.9}, "ngu does not use gamma; set max_gamma and min_gamma"),
        ("ngu", {"discount": 0.9}, "ngu has no setting 'discount': set max_gamma and min_gamma"),
        ("agent57", {"num_neighbors": 3}, "agent57 has no setting 'num_neighbors': set episodic.neighbours"),
        (
            "ppo_rnd",
            {"int_discount": 0.9},
            "ppo_rnd has no setting 'int_discount': set gamma of the component",
        ),
        ("rsac", {"num_epochs": 100}, "rsac has no setting 'num_epochs': set total_timesteps to the product"),
        ("rsac", {"segment_len": 50}, "rsac has no setting 'segment_len': set sequence_length"),
        ("sac", {"hit_reward": 1}, "sac has no setting 'hit_reward': it is an option of the environment"),
        ("ppo", {"eval_frequ": 5}, "ppo has no setting 'eval_frequ'; did you mean 'eval_freq'?"),
        (
            "td3",
            {"action_noise": 0.1},
            "td3 has no setting 'action_noise': set noise (gaussian, ou or none) and",
        ),
        (
            "option_critic",
            {"action_noise": 0.1},
            "option_critic has no setting 'action_noise', which belongs to SAC",
        ),
        ("sac", {"noise_max": 0.1}, "sac has no setting 'noise_max': set action_noise to [low, high]"),
        ("td3", {"noise_max": 0.1}, "td3 has no setting 'noise_max': set noise_scale to [low, high]"),
    ],
)
def test_a_name_without_a_counterpart_is_explained(
    algorithm: str, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        configure(algorithm, "X", given)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("name", ["replay_capacity", "min_replay_size"])
def test_numbers_of_sequences_are_not_silently_taken_for_steps(name: str, capsys: Any) -> None:
    sentence = (
        rf"{name} is read as \w+, 2,000 steps; for 2,000 sequences, .* to 40000 \(sequence_stride is 20\)"
    )
    with pytest.warns(UserWarning, match=sentence):
        configure("r2d2", "CartPole-v1", {name: 2000})
    assert main(["config", "r2d2", "CartPole-v1", f"--{name}=2000"]) == 0
    assert re.search(sentence, capsys.readouterr().err)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configure("r2d2", "X", {"buffer_size": 2000, "learning_starts": 2000})
        configure("dqn", "X", {name: 2000})


def test_flags_that_absl_turns_off_are_understood(capsys: Any) -> None:
    assert main(["config", "r2d2", "CartPole-v1", "--nouse_lstm"]) == 0
    assert "memory: none" in capsys.readouterr().out
    assert main(["config", "dqn", "CartPole-v1", "--noclip_grad"]) == 2
    assert "set max_grad_norm, 0 for off" in capsys.readouterr().err


def test_target_kl_is_accepted_with_the_schedule_that_uses_it() -> None:
    assert configure("ppo", "X", {"target_kl": 0.5, "lr_schedule": "kl"}).algo.target_kl == 0.5


@pytest.mark.parametrize("given", ["vf_coef", "tau", "beta", "qf_coef", "max_norm", "critic_wd"])
def test_only_a_misspelling_is_taken_for_another_name(given: str) -> None:
    assert misspelt(given, set(settings_of(algorithm_class("ppo")[1])) - {given}) is None


@pytest.mark.parametrize(
    ("given", "meant"), [("gama", "gamma"), ("n_epcohs", "n_epochs"), ("clip_rnage", "clip_range")]
)
def test_a_misspelling_is_recognised(given: str, meant: str) -> None:
    assert misspelt(given, settings_of(algorithm_class("ppo")[1])) == meant


def test_the_saved_config_has_canonical_names_only() -> None:
    plain = configure("sac", "X", {"lanes": 2, "capacity": 100, "lr": 0.5}).plain()
    assert not set(plain) & set(ALIASES)
    assert (plain["num_envs"], plain["buffer_size"], plain["critic_lr"]) == (2, 100, 0.5)


def test_settings_are_read_by_alias() -> None:
    settings = configure("ppo", "X", {"num_envs": 2})
    assert settings.n_envs == settings.lanes == 2
    assert settings.lr_schedule == Part("constant")
