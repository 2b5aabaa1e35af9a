"""Settings: preset < file < arguments, checks, and the message for every mistake."""

import copy
import dataclasses
import math
import pickle
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import torch
import yaml
from torch import Tensor, nn

import whorl
from whorl.agents.correction import CorrectionConfig
from whorl.agents.families import (
    ActorCriticConfig,
    MunchausenConfig,
    OffPolicyConfig,
    OnPolicyConfig,
    SharedTrunkConfig,
    ValueConfig,
)
from whorl.cli.flags import FlagParser
from whorl.core.errors import ConfigError, WhorlError
from whorl.core.registry import Part
from whorl.core.spec import Array, Discrete, Spec
from whorl.data.config import ReplayConfig
from whorl.explore.epsilon_greedy import ExplorationConfig
from whorl.explore.noise import AddedNoiseConfig, NoiseConfig
from whorl.explore.policies import BanditConfig, PoliciesConfig
from whorl.nets.actor import ActorCriticNetworkConfig
from whorl.nets.atoms import AtomsConfig
from whorl.nets.layers import ACTIVATIONS
from whorl.nets.memory import MemoryConfig
from whorl.nets.policy import NetworkConfig
from whorl.nets.preprocessor import PreprocessorConfig
from whorl.nets.q_network import QNetworkConfig
from whorl.nets.soft_actions import SoftActionsConfig
from whorl.nets.temperature import EntropyConfig
from whorl.settings.aliases import SHARED_OFF_POLICY
from whorl.settings.merge import Settings, config_of, configure, settings_of
from whorl.settings.presets import algorithm_class, load_preset, preset_names
from whorl.settings.run import MAY_CHANGE, RunConfig
from whorl.settings.schema import bare, fields_of, help_of
from whorl.state.policy import build_agent

SPEC = Spec(Array((4,)), Discrete(2), num_envs=2)

ON_POLICY_TABLE: dict[str, Any] = {
    "random_seed": 1,
    "n_workers": 32,
    "worker_device": "cpu",
    "max_epochs": 60000,
    "max_rollout": 512,
    "max_grad_norm": 1.5,
    "batch_size": 512,
    "critic_hidden_dims": [64, 64],
    "policy_hidden_dims": [64, 64],
    "gamma": 0.995,
    "adam_eps": 0.00001,
    "activation_fc": "ELU",
    "actor_lr": 0.0003,
    "critic_lr": 0.0003,
    "log_std_bound": [-20, 2],
    "normalize_obs": True,
    "normalize_reward": True,
    "clip_obs": False,
    "obs_clip_range": 10,
    "clip_reward": False,
    "reward_clip_range": 10,
    "K_epochs": 3,
    "policy_clip_eps": 0.2,
    "gae_lambda": 0.95,
    "entropy_coef": 0.0,
    "clip_value": False,
    "value_clip_eps": 0.2,
    "eval": True,
    "eval_freq": 50,
    "eval_episodes": 3,
    "use_wandb": False,
    "save_model": True,
    "model_checkpoint_freq": 500,
    "load_model": False,
}
OFF_POLICY_TABLE: dict[str, Any] = {
    "random_seed": 1,
    "n_workers": 4,
    "worker_device": "cpu",
    "max_epochs": 100000,
    "max_rollout": 25,
    "batch_size": 256,
    "critic_hidden_dims": [256, 256],
    "policy_hidden_dims": [256, 256],
    "gamma": 0.99,
    "adam_eps": 0.00000001,
    "activation_fc": "ReLU",
    "actor_lr": 0.0003,
    "critic_lr": 0.0003,
    "log_std_bound": [-20, 2],
    "noise_scale": 0.1,
    "target_noise_clip": 0.5,
    "target_noise_scale": 0.2,
    "offline_buffer_capacity": 1000000,
    "update_after": 1000,
    "max_random_rollout": 10000,
    "tau": 0.005,
    "temperature_lr": 0.0003,
    "n_critics": 5,
    "n_quantiles": 25,
    "n_drop_atoms": 2,
    "eval": True,
    "eval_freq": 200,
    "eval_episodes": 5,
    "use_wandb": False,
    "save_model": True,
    "load_model": False,
}
PPG_TABLE = {"aux_update_freq": 32, "aux_epochs": 6, "aux_batch_size_coef": 1.2, "bc_coef": 1.0}


def settings(arguments: dict[str, Any] | None = None, algorithm: str = "ppo", **more: Any) -> Settings:
    return configure(algorithm, "Untuned-v0", {**(arguments or {}), **more})


def comparable(value: Any) -> Any:
    if isinstance(value, str):
        return value.lower()
    return tuple(value) if isinstance(value, list) else value


# The words of CO-GYM


EPOCH_KEYS = {"eval_freq", "model_checkpoint_freq"}


@pytest.mark.parametrize(
    ("algorithm", "table"),
    [
        *(("PPO", ON_POLICY_TABLE), ("PPG", ON_POLICY_TABLE)),
        *((name, OFF_POLICY_TABLE) for name in ("DDPG", "TD3", "SAC", "TQC")),
    ],
)
def test_cogyms_tables_are_taken_whole_with_their_meaning(algorithm: str, table: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # settings of other algorithms in the table
        found = settings(table, algorithm)
    rows = table["n_workers"] * table["max_rollout"]
    for key, value in table.items():
        if key in SHARED_OFF_POLICY or key in (
            "temperature_lr",
            "target_noise_scale",
            "n_drop_atoms",
            "log_std_bound",
        ):
            continue
        expected = value * rows if key in EPOCH_KEYS else comparable(value)
        name = {"max_epochs": "max_iterations", "model_checkpoint_freq": "checkpoint_freq"}.get(key, key)
        assert getattr(found, name) == expected, key
    assert found.total_timesteps == 0


def test_cadences_count_steps_except_beside_cogyms_names() -> None:
    assert settings(eval_freq=50).eval_freq == 50
    assert settings(eval_freq=50, max_epochs=10, num_envs=4, num_steps=16).eval_freq == 50 * 64
    assert settings(model_checkpoint_freq=3, num_envs=4, num_steps=16).checkpoint_freq == 3 * 64


@pytest.mark.parametrize("key", PPG_TABLE)
def test_each_key_of_ppgs_auxiliary_phase_has_its_default(key: str) -> None:
    assert getattr(settings(algorithm="ppg"), key) == PPG_TABLE[key]


@pytest.mark.parametrize("key", PPG_TABLE)
def test_ppo_takes_ppgs_keys_but_says_that_they_do_nothing(key: str) -> None:
    with pytest.warns(UserWarning, match="PPG"):
        assert settings({key: 3}) == settings()


def test_the_learner_takes_a_gpu_where_there_is_one() -> None:
    assert settings().device == "auto"
    assert settings({"device": "cuda"}).device == "cuda"


def test_a_checkpoint_to_start_from_is_taken_under_its_own_name() -> None:
    name = "PPO_Hopper-v4_2024-07-15_23:37:55/checkpoint_3"
    assert settings({"load_model": True, "load_checkpoint_dir": name}).load_checkpoint_dir == name


@pytest.mark.parametrize("key", sorted(set(SHARED_OFF_POLICY) - {"log_std_range"}))
def test_off_policy_keys_given_to_ppo_say_where_they_belong(key: str) -> None:
    with pytest.raises(ConfigError, match=f"ppo has no setting {key!r}, which belongs to "):
        settings({key: 1})


def test_a_setting_that_one_algorithm_has_names_it() -> None:
    with pytest.raises(ConfigError) as caught:
        settings({"n_cosines": 1})
    assert str(caught.value) == "ppo has no setting 'n_cosines', which belongs to IQN"


def test_a_setting_of_other_algorithms_is_answered_with_what_is_near_here() -> None:
    with pytest.raises(ConfigError, match=r"which belongs to SAC and TQC; did you mean 'clip_range'"):
        settings({"clip_epsilon": 0.1})


def test_a_setting_of_a_sibling_is_a_warning_that_names_the_owner_and_the_own_name() -> None:
    sentence = "n_critics is a setting of TQC; sac ignores it; its own is ensemble_q_num"
    with pytest.warns(UserWarning) as caught:
        assert settings({"num_critics": 3}, "sac") == settings(algorithm="sac")
    assert [str(warning.message) for warning in caught] == [sentence]
    with pytest.raises(
        ConfigError, match="tqc has no setting 'ensemble_q_num'; here it is called 'n_critics'"
    ):
        settings({"ensemble_q_num": 3}, "tqc")


@pytest.mark.parametrize("key", ["tau", "target_update_interval"])
def test_crossq_ignores_settings_of_target_networks_with_a_warning(key: str) -> None:
    sentence = f"{key} is a setting of .* and others; crossq ignores it"
    with pytest.warns(UserWarning, match=sentence):
        found = settings({key: 1}, "crossq")
    assert found == settings(algorithm="crossq")
    assert key not in found.plain()


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        *(
            (algorithm, key)
            for algorithm in ("crossq", "flash_sac")
            for key in ("memory_positions", "memory_gate")
        ),
        *(("bc", key) for key in ("priority_alpha", "priority_clip", "priority_eta", "reward_scale")),
    ],
)
def test_a_setting_that_can_not_act_is_refused_except_in_runs_of_earlier_versions(
    algorithm: str, key: str
) -> None:
    saved = configure(algorithm, "X", {})
    value = getattr(saved.algo, key)
    with pytest.raises(ConfigError, match=f"{algorithm} does not use {key}; leave it out"):
        configure(algorithm, "X", {key: value})
    again = configure(algorithm, "X", {**saved.plain(), key: value}, presets=False)
    assert again.plain() == saved.plain()


def test_a_saved_run_of_crossq_is_read_without_a_warning() -> None:
    found = settings(algorithm="crossq")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found.replace(seed=2).replace(seed=1) == found


# Errors


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"lames": 3}, "ppo has no setting 'lames'; did you mean 'lanes'?"),
        ({"gama": 3}, "ppo has no setting 'gama'; did you mean 'gamma'?"),
        ({"qqqqqq": 3}, "ppo has no setting 'qqqqqq'; whorl train ppo ENV --help-all lists all settings"),
        ({"n_worker": 3}, "ppo has no setting 'n_worker'; did you mean 'n_workers'?"),
        ({"num_envs": "many"}, "num_envs is 'many'; it must be a whole number"),
        ({"num_envs": 2.5}, "num_envs is 2.5; it must be a whole number"),
        ({"num_envs": True}, "num_envs is True; it must be a whole number"),
        ({"num_envs": float("inf")}, "num_envs is inf; it must be a whole number"),
        ({"num_envs": 0}, "num_envs is 0; it must be from 1 to 1,000,000"),
        ({"gamma": 1.5}, "gamma is 1.5; it must be from 0 to 1"),
        ({"gamma": None}, "gamma is None; it must be a number; leave it out for the default"),
        ({"gamma": float("nan")}, "gamma is nan; it must be a number"),
        ({"eval": "yes"}, "eval is 'yes'; it must be true or false"),
        ({"actor_hidden_sizes": 64}, "actor_hidden_sizes is 64; it must be a list of whole numbers"),
        (
            {"actor_hidden_sizes": [64, "x"]},
            "actor_hidden_sizes is [64, 'x']; it must be a list of whole numbers",
        ),
        ({"actor_hidden_sizes": [64, 0]}, "actor_hidden_sizes is 0; it must be from 1 to 100,000"),
        ({"log_std_range": [1]}, "log_std_range is [1]; it must be 2 numbers"),
        ({"activation": "elou"}, "activation is 'elou'; did you mean 'elu'?"),
        ({"tag": 3}, "tag is 3; it must be text"),
        ({"optimizer": 3}, "optimizer is 3; it must be a name, an import path, or a mapping with 'class'"),
        ({"optimizer": {"params": 3}}, "params is 3; it must be a mapping of options to values"),
        ({"optimizer": {1: 2}}, "{1: 2} has an option 1; an option's name must be a word"),
        ({"optimizer.lr": 3}, "optimizer has an option 'lr'; learning rates are settings of their own"),
        ({"seed": 10**20}, f"seed is {10**20}; it must be from 0 to 9,223,372,036,854,775,807"),
        (
            {"log_std_range": [2, -20]},
            "log_std_range is [2.0, -20.0]; it must be two numbers, the smaller first",
        ),
        ({"log_std_range": [-99, 2]}, "log_std_range is -99.0; it must be from -40 to 40"),
        ({"obs_clip_range": -1}, "obs_clip_range is -1.0; it must be above 0"),
        ({"actor_lr": math.inf}, "actor_lr is inf; it must be from 0 to 100"),
        ({"max_grad_norm": math.inf}, "max_grad_norm is inf; it must be finite"),
        ({"device": "meta"}, "device is 'meta'; it must be auto, cpu, cuda or cuda:N"),
        ({"gamma.x": 3}, "gamma.x does not exist: gamma is a number, without options"),
        ({"env_options": 3}, "env_options is 3; it must be a mapping of options to values"),
        ({"env_options": []}, "env_options is []; it must be a mapping of options to values"),
        ({"env": "Other-v0"}, "the settings name env 'Other-v0', but 'Untuned-v0' was asked for"),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_the_remedy(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(arguments)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("algorithm", "arguments", "sentence"),
    [
        ("td3", {"noise_theta": 5}, "noise_theta is 5.0; it must be from 0 to 1"),
        ("crossq", {"renorm_momentum": 2}, "renorm_momentum is 2.0; it must be from 0 to 1"),
        ("sac", {"adam_eps": 0}, "adam_eps is 0.0; it must be from 1e-30 to 1"),
        ("sac", {"reward_scale": 0}, "reward_scale is 0.0; it must be above 0 and at most 1,000,000"),
        (
            "sac",
            {"priority_clip": [1, 0.01]},
            "priority_clip is [1.0, 0.01]; it must be two numbers, the smaller first",
        ),
        (
            "sac",
            {"priority_clip": [0, 0]},
            "priority_clip is [0.0, 0.0]; it must be two numbers, the smaller first",
        ),
    ],
)
def test_a_range_belongs_to_the_algorithm_that_has_the_setting(
    algorithm: str, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(arguments, algorithm)
    assert str(caught.value) == sentence


def test_an_unknown_algorithm_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"no algorithm is called 'PP0'; did you mean 'pp.'"):
        settings(algorithm="PP0")


def test_a_batch_that_does_not_divide_names_one_that_does(tmp_path: Path) -> None:
    small = {"num_envs": 2, "num_steps": 8, "batch_size": 5, "runs": str(tmp_path)}
    with pytest.raises(ConfigError, match="batch_size 5 does not divide the 16 rows of a rollout; use 4"):
        whorl.load("CartPole-v1", "ppo", small).train()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="torch finds no GPU; use auto or cpu"):
        whorl.load("CartPole-v1", "ppo", {"device": "cuda", "runs": str(tmp_path)}).train()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_settings_for_a_gpu_without_one_are_told_which_setting_asked_for_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use auto or cpu, for hardware as well"):
        whorl.load("CartPole-v1", "dqn", {"hardware": "gpu", "runs": str(tmp_path)}).train()


@pytest.mark.parametrize(("hardware", "sizes"), [("cpu", (256, 256)), ("gpu", (2048, 2048))])
def test_the_wide_critics_of_crossq_are_for_a_gpu(hardware: str, sizes: tuple[int, ...]) -> None:
    assert configure("crossq", "none", {"hardware": hardware}).critic_hidden_sizes == sizes
    assert configure("crossq", "Pendulum-v1", {"hardware": hardware}).critic_hidden_sizes == (256, 256)
    assert configure("crossq", "none", {"critic_hidden_sizes": [8]}).critic_hidden_sizes == (8,)


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    small = {"num_envs": 2, "num_steps": 8, "batch_size": 16, "max_iterations": 1, "runs": str(tmp_path)}
    with pytest.raises(WhorlError, match=r"pip install -e '.*\[wandb\]'"):
        whorl.load("CartPole-v1", "ppo", {**small, "use_wandb": True, "quiet": True}).train()
    assert not list(tmp_path.iterdir())


def test_a_keyword_for_several_settings_comes_over_one_of_them_in_the_mapping() -> None:
    found = whorl.load("CartPole-v1", "ppo", {"actor_hidden_sizes": [8]}, hidden_sizes=[4]).settings
    assert (found.actor_hidden_sizes, found.critic_hidden_sizes) == ((4,), (4,))
    found = whorl.load("CartPole-v1", "ppo", {"optimizer.eps": 1e-3}, optimizer={"class": "sgd"}).settings
    assert found.optimizer.plain() == {"class": "sgd"}


def test_every_changeable_setting_exists() -> None:
    assert set(MAY_CHANGE) <= {*fields_of(RunConfig), *fields_of(ReplayConfig)}


def test_activations_that_may_be_named_are_those_there_are() -> None:
    assert set(get_args(bare(fields_of(NetworkConfig)["activation"]))) == set(ACTIVATIONS)


# Every setting of every algorithm, given nonsense

WORDS = ["abc", "", "-1", "0", "0.5", "nan", "-inf", "[]", "[", "[1, 0]", "{1: 2}", "{class: 3}", "9" * 400]
NUMBERS = [-1, 0, 0.5, math.nan, math.inf, 10**20, 10**400]
VALUES = [None, True, "abc", *NUMBERS, [], [1, 0], ["a"], [[1]], {}, {1: 2}]
NEGATIVE = {
    "workers",
    "max_lag",
    "offline_steps",
    "priority_beta_steps",
    "mean_init",
    "log_std_init",
    "log_std_range",
}
NEGATIVE |= {"target_entropy", "entropy_per_dimension", "munchausen_low", "v_min", "v_max"}
"""the only numbers that may be below zero"""
DISTANT = {"max_grad_norm", "kl_cut", "max_kl", "target_kl", "target_noise_clip", "priority_clip"}
DISTANT |= {"clip_range", "clip_range_vf", "obs_clip_range", "reward_clip_range"}
"""bounds, which may be as far away as one likes"""


def taken(algorithm: str, key: str, value: Any) -> bool:
    """Whether a value is accepted; where it is not, that is one sentence."""
    hint = bare(settings_of(algorithm_class(algorithm)[1])[key])
    if get_args(hint) == (float, float) and not isinstance(value, list):
        value = [value, value + 1]
    elif get_args(hint) == (int, ...) and not isinstance(value, list):
        value = [value]
    try:
        settings({key: value}, algorithm)
    except ConfigError as error:
        assert "\n" not in str(error)
        return False
    return True


def numeric(algorithm: str) -> list[str]:
    """The settings of an algorithm that hold numbers."""
    hints = settings_of(algorithm_class(algorithm)[1])
    return [key for key, hint in hints.items() if {int, float} & {bare(hint), *get_args(bare(hint))}]


def of_every_rule() -> list[object]:
    """All presets; those after the first of an update rule in the full suite only."""
    rules = {name: load_preset(name)["rule"] for name in preset_names()}
    first = {rule: name for name, rule in reversed(rules.items())}
    return [
        pytest.param(name, marks=[] if first[rule] == name else [pytest.mark.full])
        for name, rule in rules.items()
    ]


@pytest.mark.parametrize("algorithm", of_every_rule())
def test_a_nonsensical_value_is_taken_or_told_in_a_sentence(algorithm: str) -> None:
    for key in settings_of(algorithm_class(algorithm)[1]):
        for value in VALUES:
            try:
                settings({key: value}, algorithm)
            except ConfigError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize("algorithm", of_every_rule())
def test_a_nonsensical_flag_is_taken_or_told_in_a_sentence(algorithm: str) -> None:
    cls = algorithm_class(algorithm)[1]
    parser = FlagParser(algorithm, nested=True)
    parser.add_config(RunConfig())
    parser.add_config(config_of(cls)())
    for key in settings_of(cls):
        for word in WORDS:
            try:
                settings(parser.read([f"--{key}", word])[1], algorithm)
            except ConfigError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize("algorithm", preset_names())
def test_numbers_make_sense(algorithm: str) -> None:
    """A setting that fails here needs a Range in its type, or a place in the sets above."""
    names = numeric(algorithm)
    assert {key for key in names if taken(algorithm, key, -1)} <= NEGATIVE
    assert {key for key in names if taken(algorithm, key, 10**20)} <= DISTANT
    assert not [key for key in names if taken(algorithm, key, math.nan)]
    assert not [key for key in names if taken(algorithm, key, math.inf)]


# Merging


def write(path: Path, **content: Any) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


def test_preset_then_file_then_arguments(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.yaml", gamma=0.9, num_envs=4)
    found = configure("ppo", "CartPole-v1", {"num_envs": 2}, [file])
    assert (found.num_steps, found.gamma, found.num_envs) == (32, 0.9, 2)  # tuned, file, argument


def test_a_file_inherits_from_files_beside_it_and_from_presets(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", gamma=0.9, lam=0.8, optimizer={"class": "AdamW", "weight_decay": 0.1})
    write(tmp_path / "more.yaml", inherits="base", lam=0.7)
    file = write(
        tmp_path / "mine.yaml",
        inherits=["ppo/CartPole-v1", "more"],
        num_envs=4,
        **{"optimizer.betas": [0, 0]},
    )
    found = configure("ppo", "Untuned-v0", {}, [file])
    assert (found.num_steps, found.gamma, found.lam, found.num_envs) == (32, 0.9, 0.7, 4)
    assert found.optimizer == Part("AdamW", {"weight_decay": 0.1, "betas": [0, 0]})


def test_a_circle_of_files_is_told(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", inherits="b")
    file = write(tmp_path / "b.yaml", inherits="./a")
    with pytest.raises(ConfigError, match="inherits from itself"):
        configure("ppo", "X", {}, [file])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("num_envs: [", "not valid YAML"),
        ("tag: 2024-13-45", "not valid YAML: month must be in 1..12"),
        ("- 1", "must hold a mapping"),
        ("inherits: bse", "did you mean 'base'"),
        ("inherits: 3", "inherits from '3', which is neither"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    write(tmp_path / "base.yaml")
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(ConfigError, match=sentence) as caught:
        configure("ppo", "X", {}, [tmp_path / "mine.yaml"])
    assert "\n" not in str(caught.value)


def test_a_missing_file_names_the_nearest_one(tmp_path: Path) -> None:
    write(tmp_path / "mine.yaml")
    with pytest.raises(ConfigError, match=r"did you mean 'mine\.yaml'"):
        configure("ppo", "X", {}, [tmp_path / "mne.yaml"])


def test_numbers_without_a_dot_are_numbers_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("total_timesteps: 1e6\noptimizer: {class: AdamW, weight_decay: 1e-2}")
    found = configure("ppo", "X", {}, [tmp_path / "mine.yaml"])
    assert found.total_timesteps == 1_000_000
    assert found.optimizer.options["weight_decay"] == 0.01


def test_nested_fields_are_overridden_one_by_one() -> None:
    found = settings({"optimizer": "AdamW", "optimizer.weight_decay": 0.1, "optimizer.betas": [0.8, 0.9]})
    assert found.optimizer == Part("AdamW", {"weight_decay": 0.1, "betas": [0.8, 0.9]})
    assert found.replace(**{"optimizer.weight_decay": 0.2}).optimizer.options["weight_decay"] == 0.2
    assert found.replace(optimizer={"weight_decay": 0.3}).optimizer.options["betas"] == [0.8, 0.9]
    assert found.replace(optimizer={"class": "SGD"}).optimizer == Part("SGD")
    assert found.optimizer.options["weight_decay"] == 0.1


def test_a_layer_is_overridden_by_its_number() -> None:
    layers = [{"class": "Linear", "params": {"out_features": 8}}, "ELU"]
    found = settings(
        {
            "actor_network": layers,
            "actor_network.layers.0.out_features": 16,
            "actor_network.layers.1.alpha": 0.5,
        }
    )
    first, second = (Part.of(layer) for layer in found.actor_network.options["layers"])
    assert first == Part("Linear", {"out_features": 16})
    assert second == Part("ELU", {"alpha": 0.5})
    with pytest.raises(ConfigError, match="does not exist"):
        settings({"actor_network": layers, "actor_network.layers.7.alpha": 1})


def test_settings_survive_copying_pickling_and_their_own_file() -> None:
    found = settings({"optimizer.weight_decay": 0.1, "actor_network": ["Linear"], "env_options": {"x": [1]}})
    assert copy.deepcopy(found) == found
    assert pickle.loads(pickle.dumps(found)) == found
    saved = yaml.safe_load(yaml.safe_dump(found.plain()))
    assert configure("ppo", "Untuned-v0", saved, presets=False) == found


def test_a_setting_that_does_not_exist_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no setting is called 'gama'"):
        settings().gama  # noqa: B018


# Parts by import path, and nets layer by layer (seed 002's habit)


@pytest.fixture
def mypkg(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("mypkg")

    class Residual(nn.Module):
        def __init__(self, inputs: int, width: int) -> None:
            super().__init__()
            self.linear = nn.Linear(inputs, width)

        def forward(self, value: Tensor) -> Tensor:
            return self.linear(value).relu()

    class Halved(nn.Module):
        def __init__(self, observation: Any) -> None:
            super().__init__()
            self.size = observation.size

        def forward(self, obs: Tensor) -> Tensor:
            return obs / 2

    class Plain(torch.optim.SGD):
        pass

    def log_cosh(value: Tensor, target: Tensor) -> Tensor:
        return (value - target).cosh().log()

    for thing in (Residual, Halved, Plain, log_cosh):
        setattr(module, thing.__name__, thing)
    monkeypatch.setitem(sys.modules, "mypkg", module)
    return module


def agent_from(tmp_path: Path, text: str) -> Any:
    (tmp_path / "mine.yaml").write_text(text)
    return build_agent(configure("ppo", "X", {}, [tmp_path / "mine.yaml"]), SPEC)


def test_a_file_swaps_network_encoder_optimizer_and_loss_by_import_path(
    tmp_path: Path, mypkg: ModuleType
) -> None:
    agent = agent_from(
        tmp_path,
        """
        actor_network: {class: mypkg.Residual, width: 64}
        critic_network: {class: mypkg.Residual, params: {width: 32}}
        encoder: mypkg.Halved
        optimizer: {class: mypkg.Plain, momentum: 0.5}
        critic_loss: mypkg.log_cosh
        """,
    )
    assert isinstance(agent.actor.backbone.torso, mypkg.Residual)
    assert (agent.actor.backbone.size, agent.critic.backbone.size) == (64, 32)
    assert isinstance(agent.critic.backbone.encoder, mypkg.Halved)
    assert isinstance(agent._optimizers["actor"], mypkg.Plain)
    assert agent.value_loss(torch.ones(2), torch.ones(2)).tolist() == [0, 0]


@pytest.mark.parametrize(
    "text",
    [
        """
        actor_network:
          - {class: Linear, out_features: 48}
          - ELU
          - {class: LayerNorm}
          - {class: Linear, out_features: 24}
        """,
        """
        actor_network:
          layers:
            - {class: torch.nn.Linear, params: {in_features: undefined, out_features: 48}}
            - {class: torch.nn.ELU}
            - {class: torch.nn.LayerNorm, params: {normalized_shape: undefined}}
            - {class: torch.nn.Linear, params: {in_features: undefined, out_features: 24}}
        """,
    ],
)
def test_a_net_is_described_layer_by_layer_with_sizes_left_open(tmp_path: Path, text: str) -> None:
    agent = agent_from(tmp_path, text)
    linear, elu, norm, last = agent.actor.backbone.torso
    assert (linear.in_features, linear.out_features, last.in_features) == (4, 48, 48)
    assert isinstance(elu, nn.ELU)
    assert norm.normalized_shape == (48,)
    assert agent.actor.backbone.size == 24


def test_a_layer_that_does_not_exist_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no layer is called 'Linar'; did you mean"):
        agent_from(tmp_path, "actor_network: [Linar]")


def test_an_option_that_a_network_does_not_have_is_told(tmp_path: Path, mypkg: ModuleType) -> None:
    with pytest.raises(ConfigError, match=r"network 'mypkg\.Residual' can't be built with widht=3"):
        agent_from(tmp_path, "actor_network: {class: mypkg.Residual, widht: 3}")


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        ({"class": "residual", "width": 0}, "width is 0; it must be a whole number of at least 1"),
        ({"class": "residual", "blocks": -1}, "blocks is -1; it must be a whole number of at least 0"),
        ({"class": "residual", "blocks": "abc"}, "blocks is 'abc'; it must be a whole number of at least 0"),
        (
            [{"class": "Linear", "out_features": -1}],
            "layer 'Linear' can't be built with {'out_features': -1,",
        ),
        ([{"class": "Linear", "out_features": 0}], r"Linear returns \[2, 0\] for 2 rows of 4 columns"),
        (
            [{"class": "LSTM", "input_size": 4, "hidden_size": 8}],
            "LSTM returns a tuple for 2 rows of 4 columns",
        ),
        ([{"class": "Linear", "in_features": 3, "out_features": 8}], "Linear can't read rows of 4 columns"),
        (
            {"layers": 3},
            "network 'layers': layers is 3; it must be a list of names or of mappings with 'class'",
        ),
    ],
)
def test_a_network_that_can_not_be_built_is_one_sentence(network: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build_agent(settings(actor_network=network), SPEC)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("critic_network.dropout", "abc", "critic_network.dropout is 'abc'; it must be a number"),
        ("critic_network.dropout", 1, "dropout is 1.0; it must be at least 0 and less than 1"),
        ("critic_network.layer_norm", 3, "critic_network.layer_norm is 3; it must be true or false"),
        ("optimizer.betas", 0.5, r"'Adam' can't be built with .*betas=0\.5.* it takes .*\(0\.9, 0\.999\)"),
    ],
)
def test_an_option_that_does_not_fit_is_one_sentence(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build_agent(settings({key: value}, "sac"), SPEC)


def test_a_loss_without_a_width_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="delta of the loss 'huber' is -1; it must be above 0"):
        agent_from(tmp_path, "critic_loss: {class: huber, delta: -1}")


def test_the_critics_loss_is_learned_from(tmp_path: Path) -> None:
    """With |error| above delta, Huber's loss is delta * (|error| - delta / 2)."""
    agent = agent_from(tmp_path, "critic_loss: {class: huber, delta: 0.5}")
    assert agent.value_loss(torch.tensor([3.0]), torch.tensor([0.0])).tolist() == [0.5 * (3 - 0.25)]


# Documentation


CONFIGURATION = Path(__file__).parents[2] / "docs" / "configuration.md"
FAMILIES = (
    *(
        RunConfig,
        MemoryConfig,
        NetworkConfig,
        OnPolicyConfig,
        SharedTrunkConfig,
        ReplayConfig,
        PreprocessorConfig,
        OffPolicyConfig,
    ),
    *(ActorCriticNetworkConfig, ActorCriticConfig, QNetworkConfig, ExplorationConfig, ValueConfig),
    *(MunchausenConfig, NoiseConfig, AddedNoiseConfig, EntropyConfig, SoftActionsConfig, CorrectionConfig),
    *(PoliciesConfig, BanditConfig, AtomsConfig),
)


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.__name__)
def test_the_documentation_has_a_table_of_every_family(config: type) -> None:
    region = f"<!-- generated: config {config.__module__}.{config.__name__} -->"
    assert region in CONFIGURATION.read_text("utf-8")


def test_a_family_is_listed_or_part_of_an_algorithms_file() -> None:
    """A config class between an algorithm's own and `object` must have its table."""
    for name in preset_names():
        parents = [
            cls for cls in config_of(algorithm_class(name)[1]).__mro__[1:] if dataclasses.is_dataclass(cls)
        ]
        assert set(parents) <= set(FAMILIES)


def test_every_setting_of_every_algorithm_is_documented() -> None:
    for name in preset_names():
        texts = help_of(config_of(algorithm_class(name)[1]))
        assert all(texts.values()), name


def test_a_presets_options_for_an_environment_come_before_nobodys() -> None:
    """Preset < what it was made with < what a run asks for; an environment that is made already takes none."""
    found = configure("dqn", "ALE/Pong-v5", {})
    assert found.env_options == {"life_loss": True}
    made = {"life_loss": False, "sticky": 0.0}
    assert configure("dqn", "ALE/Pong-v5", {}, options=made).env_options == made
    asked = {"env_options": {"sticky": 0.1}}
    assert configure("dqn", "ALE/Pong-v5", asked, options=made).env_options == {
        "life_loss": False,
        "sticky": 0.1,
    }
    assert configure("dqn", "ALE/Pong-v5", {}, options=None).env_options == {}


def test_settings_of_a_family_are_not_those_of_a_wrapped_member() -> None:
    assert configure("dqn", "ALE/Pong-v5", {}).clip_reward
    assert configure("dqn", "PongNoFrameskip-v0", {}).clip_reward
    assert not configure("dqn", "ALE/Pong-v5-wrapped", {}).clip_reward


MUJOCO = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5")


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.parametrize("algorithm", ["redq", "droq"])
def test_twenty_updates_per_step_come_with_a_budget_of_their_own(algorithm: str, hardware: str) -> None:
    """A default of a million steps would be twenty million updates."""
    for env in ("Untuned-v0", *MUJOCO):
        found = configure(algorithm, env, {"hardware": hardware})
        assert 0 < found.total_timesteps <= 100_000
        assert found.updates_per_step == 20
