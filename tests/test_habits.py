"""What a user of Stable-Baselines3 tries first: it works, or one sentence says what to write instead."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml

import whorl
from whorl.cli import _WarningPrinter, main
from whorl.core.errors import CheckpointError, ConfigError, EnvError, WhorlError
from whorl.run.reporting import Result
from whorl.run.trainer import Trainer

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "workers": 0,
    "num_steps": 16,
    "total_timesteps": 32,
    "eval": False,
    "quiet": True,
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return whorl.train("CartPole-v1", "ppo", SMALL, runs=str(tmp_path_factory.mktemp("runs")))


# Names of the module and of its objects


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PPO", "algorithms go by name: whorl.load(env, 'ppo')"),
        ("QRDQN", "whorl.load(env, 'qr_dqn')"),
        ("RecurrentPPO", "memory='lstm'"),
        ("make_vec_env", "num_envs=8"),
        ("VecNormalize", "normalize_obs"),
        ("evaluate_policy", "whorl.evaluate(run)"),
        ("EvalCallback", "eval_freq"),
    ],
)
def test_a_name_of_stable_baselines_is_answered_with_the_one_here(name: str, said: str) -> None:
    with pytest.raises(ImportError) as error:
        exec(f"from whorl import {name}")
    assert said in str(error.value)


def test_a_name_that_nobody_has_is_an_ordinary_attribute_error() -> None:
    assert not hasattr(whorl, "no_such_name")
    with pytest.raises(ImportError, match="cannot import name 'no_such_name'"):
        from whorl import no_such_name  # type: ignore[attr-defined]  # noqa: F401


def test_methods_of_a_model_are_answered_with_those_here(result: Result) -> None:
    trainer, policy = whorl.load("CartPole-v1", "ppo", SMALL), whorl.restore(result)
    for thing, name, said in (
        (trainer, "learn", "call train(100_000)"),
        (trainer, "predict", "whorl.restore(run)"),
        (result, "policy", "whorl.restore(result)"),
        (policy, "save", "policy.export(path)"),
        (policy, "predict_values", "it has value(obs)"),
    ):
        assert not hasattr(thing, name)
        with pytest.raises(AttributeError) as error:
            getattr(thing, name)
        assert said in str(error.value)


def test_a_trainer_is_not_saved_elsewhere(tmp_path: Path) -> None:
    trainer = whorl.load("CartPole-v1", "ppo", SMALL, runs=str(tmp_path), name="mine")
    for given in ({"path": "model"}, {"path": Path("model")}):
        with pytest.raises(ConfigError, match=r"save takes no path \('model'\): .* whorl.restore"):
            trainer.save(**given)
    with pytest.raises(ConfigError, match="save takes no path"):
        trainer.save("model")
    trainer.train()
    with pytest.raises(CheckpointError, match=r"training is not under way; the run is saved in .*mine"):
        trainer.save()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"stochastic": True},
            "evaluate has no setting 'stochastic'; the opposite is 'deterministic', True or False",
        ),
        ({"env_kwargs": {}}, "evaluate has no setting 'env_kwargs'; here it is called 'env_options'"),
    ],
)
def test_settings_of_an_evaluation_have_one_name(result: Result, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        whorl.evaluate(result, **given)


def test_what_gymnasium_adds_to_a_wrong_option_is_not_told() -> None:
    with pytest.raises(EnvError, match=r"unexpected keyword argument 'wind'$"):
        whorl.make("CartPole-v1", wind=3)


def test_an_attribute_error_inside_a_property_is_not_hidden() -> None:
    class Broken(whorl.run.trainer.Trainer):  # type: ignore[name-defined]  # loaded with the trainer
        @property
        def device(self) -> Any:
            return self.misspelt_attribute

    trainer = whorl.load("CartPole-v1", "ppo", SMALL)
    with pytest.raises(AttributeError, match="misspelt_attribute"):
        _ = Broken(trainer.source, trainer.settings).device


# A run


def test_the_result_of_training_is_taken_wherever_a_run_is(result: Result) -> None:
    assert whorl.evaluate(result, episodes=1).returns
    assert whorl.restore(result).steps == result.steps
    assert whorl.resume(result, quiet=True).run_dir == result.run_dir


def test_what_is_no_run_is_told(result: Result) -> None:
    trainer: Any = whorl.load("CartPole-v1", "ppo", SMALL)
    with pytest.raises(
        CheckpointError, match="a Trainer was given where a run is asked for; give its folder"
    ):
        whorl.evaluate(trainer)
    with pytest.raises(ConfigError, match="episodes is 'CartPole-v1'; it must be a whole number"):
        whorl.evaluate(result, "CartPole-v1")  # type: ignore[arg-type]  # the mistake


def test_arguments_of_an_evaluation_may_be_whole_numbers_of_any_type(result: Result) -> None:
    given: Any = {"episodes": 2.0, "seed": 3.0, "max_steps": np.float64(5)}
    assert whorl.evaluate(result, **given).returns == [5.0, 5.0]
    trainer = whorl.load("CartPole-v1", "ppo", SMALL)
    with trainer:
        trainer.step()
        assert len(trainer.evaluate(2.0).returns) == 2  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ConfigError, match=r"episodes is -1; it must be at least 0"):
            trainer.evaluate(-1)


def test_a_folder_of_runs_is_no_run(result: Result) -> None:
    runs = result.run_dir.parent
    with pytest.raises(
        CheckpointError, match=f"is a folder of runs; name one of them, such as {result.run_dir}"
    ):
        whorl.restore(runs)


def test_the_module_has_no_classes_of_stable_baselines_and_says_what_to_write() -> None:
    assert not hasattr(whorl, "PPO") and getattr(whorl, "make_vec_env", None) is None
    with pytest.raises(ImportError, match="algorithms go by name: whorl"):
        from whorl import PPO  # noqa: F401
    with pytest.raises(AttributeError, match="algorithms go by name: whorl"):
        whorl.PPO  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        import_module("whorl.nothing")


def test_a_module_that_is_imported_again_explains_once() -> None:
    code = (
        "import importlib, sys, whorl; before = len(sys.meta_path); importlib.reload(whorl); "
        "sys.exit(len(sys.meta_path) - before)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_train_takes_the_number_of_steps_as_learn_does(tmp_path: Path) -> None:
    settings = {**SMALL, "runs": str(tmp_path)}
    del settings["total_timesteps"]
    result = whorl.load("CartPole-v1", "ppo", settings).train(100)
    same = whorl.load("CartPole-v1", "ppo", {**settings, "total_timesteps": 100}).settings.plain()
    saved = yaml.safe_load((result.run_dir / "config.yaml").read_text())
    assert saved == same and saved["total_timesteps"] == 100
    assert 100 <= result.steps <= 128  # whole rollouts of 2 x 16 steps, less those that only reset


def test_train_on_is_resume(tmp_path: Path) -> None:
    trainer = whorl.load("CartPole-v1", "ppo", {**SMALL, "runs": str(tmp_path)})
    done = trainer.train().steps
    with pytest.raises(WhorlError, match=rf"50 more are whorl.resume\(run, total_timesteps={done} \+ 50\)"):
        trainer.train(50)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"callback": None}, "not 'callback': pass callbacks="),
        ({"progress_bar": True}, "not 'progress_bar': set quiet"),
        ({"gamma": 0.9}, r"not 'gamma': give it to whorl.load\(env, 'ppo', gamma=...\)"),
        ({"total_timesteps": "many"}, "total_timesteps is 'many'; it must be"),
    ],
)
def test_arguments_of_learn_are_explained(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        whorl.load("CartPole-v1", "ppo").train(**given)


def test_a_property_that_fails_runs_once() -> None:
    calls = []

    class Failing(Trainer):
        @property
        def mine(self) -> int:
            calls.append(1)
            raise AttributeError("inside")

    made = whorl.load("CartPole-v1", "ppo")
    with pytest.raises(AttributeError, match="inside"):
        Failing(made.source, made.settings).mine  # noqa: B018
    assert calls == [1]


# Settings


def test_paths_and_devices_are_taken_as_objects(tmp_path: Path) -> None:
    run = whorl.load("CartPole-v1", "ppo", runs=tmp_path, device=torch.device("cpu")).settings.run
    assert (run.runs, run.device) == (str(tmp_path), "cpu")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"learning_rate": lambda left: left}, "it must be a number; its schedule is lr_schedule"),
        ({"target_kl": None}, "target_kl is None; it must be a number; leave it out for the default"),
        ({"callback": None}, "pass callbacks="),
        ({"log_interval": 4}, "set log_freq"),
        ({"resume": True}, "continue a run with whorl resume RUN"),
        ({"progress_bar": True}, "set quiet"),
        ({"features_extractor_class": object}, "set encoder"),
    ],
)
def test_a_setting_in_the_form_of_stable_baselines_is_explained(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        whorl.load("CartPole-v1", "ppo", settings)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: whorl.load("CartPole-v1", "MlpPolicy"), "here networks are settings: name the algorithm"),
        (lambda: whorl.load("CartPole-v1", 3), "the algorithm is 3; give its name"),
        (lambda: whorl.load("CartPole-v1", "ppo", "a.yaml"), "config is 'a.yaml'; it must be a mapping"),
        (
            lambda: whorl.load("CartPole-v1", "ppo", callbacks=print),
            "it must be a list of whorl.Callback objects",
        ),
    ],
)
def test_arguments_of_another_kind_are_one_sentence(call: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        call()
    assert said in str(error.value)


class Sized(gymnasium.Env):
    """Needs an argument to be made."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size: int) -> None:
        self.size = size


def test_arguments_of_an_environment_under_another_name_are_told() -> None:
    with pytest.raises(
        ConfigError, match="there is no setting 'env_kwargs': it is an option of the environment"
    ):
        whorl.load(Sized, "ppo", env_kwargs={"size": 3})


def test_several_environments_are_a_number() -> None:
    with pytest.raises(EnvError, match="is a list of 2; give one id or function, and set num_envs"):
        whorl.load([lambda: Sized(1), lambda: Sized(1)], "ppo")


# Policies


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        ((np.zeros(4), {}), "which is what reset() returns; pass the observation alone"),
        (None, "the observation is None; this policy takes an array of numbers of shape (4,)"),
        ("abc", "the observation is 'abc'"),
        ([[1.0], [1.0, 2.0]], "this policy takes an array of numbers"),
    ],
)
def test_what_is_no_observation_is_told(result: Result, obs: Any, said: str) -> None:
    with pytest.raises(WhorlError) as error:
        whorl.restore(result).predict(obs)
    assert said in str(error.value)


def test_an_action_that_does_not_exist_has_no_probability(result: Result) -> None:
    with pytest.raises(WhorlError, match="the action 7 is outside the action space of this policy"):
        whorl.restore(result).log_prob(np.zeros(4), 7)


# The command line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["enjoy", "--algo", "ppo"], "here it is whorl eval RUN, or whorl play RUN"),
        (["train", "MlpPolicy", "CartPole-v1"], "name the algorithm, as in ppo"),
        (["train", "ppo", "./habits.py:Mine"], "./habits.py is a file; name its module: habits:Mine"),
        (["train", "ppo", "a/habits.py:Mine"], "name its module: a.habits:Mine"),
        (["train", "ppo", "/x/habits.py:Mine"], "name its module: habits:Mine, in the folder of the file"),
        (["train", "ppo", "CartPole-v1", "--memory"], "needs a value: one of none, lstm, gru"),
        (["eval", "cartpole", "--n-eval-episodes", "2"], "here it is called --episodes"),
        (["eval", "cartpole", "--deterministic"], "the opposite is --stochastic, true or false"),
        (["train", "sac", "Pendulum-v1", "--noise-max", "1"], "--noise-max: set action_noise to [low, high]"),
        (["train", "td3", "Pendulum-v1", "--noise-max", "1"], "--noise-max: set noise_scale to [low, high]"),
        (["plot", "mine", "--iqm"], "here it is called --statistic"),
        (["train", "ppo", "CartPole-v1", "--hyperparams", "a:1"], "on the command line a flag"),
        (
            ["train", "ppo", "CartPole-v1", "--eval-freq", "0"],
            "eval_freq is 0; it must be at least 1; to train without evaluations set eval to false\n",
        ),
        (["list", "--runs", "elsewhere"], "list takes no name, but got 'elsewhere'; use --folder elsewhere"),
        (["pull"], "pull takes 1 name, but got 0"),
        (["train", "ppo", "CartPole-v1", "mine.yaml"], "write --config mine.yaml"),
    ],
)
def test_a_habit_of_the_zoo_is_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1


def test_help_and_version_are_found_under_their_other_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "eval"]) == 0
    assert capsys.readouterr().out.startswith("usage: whorl eval RUN")
    for word in ("version", "-V"):
        assert main([word]) == 0
        assert capsys.readouterr().out == f"whorl {whorl.__version__}\n"


def test_a_run_without_a_finished_episode_has_no_return_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--num-envs", "2", "--workers", "0", "--total-timesteps", "32", "--num-steps", "16", "--no-eval"]
    assert main(["train", "ppo", "Pendulum-v1", *small, "--runs", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "no episode ended" in printed and "nan" not in printed


def test_exporting_into_a_folder_that_is_not_there_says_so_at_once(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whorl.state.formats._traced", lambda *given: pytest.fail("exported first"))
    with pytest.raises(WhorlError, match="the folder does not exist"):
        whorl.restore(result).export("/no/such/folder/policy.onnx")


# Files of settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("env_options: sutton", "env_options is 'sutton'; it must be a mapping of options to values"),
        ("algo: ppo", "the algorithm is an argument of its own"),
        ("ppo:\n  gamma: 0.9", "settings are not grouped by algorithm; write them at the top level"),
        ("learning_rate: lin_0.001", "lr_schedule: linear"),
        ("gamma: 0.9\n num_envs: 3", "is not valid YAML in line 2: mapping values are not allowed here"),
        ("gamma = 0.9", "must hold a mapping of settings, such as gamma: 0.99"),
        ("where: {gpuu: {num_envs: 4}}", "has the word 'gpuu', which is not known; did you mean 'gpu'?"),
    ],
)
def test_a_file_with_a_users_mistake_is_one_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert main(["train", "ppo", "CartPole-v1", "--config", str(path)]) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1


def test_options_that_are_no_mapping_are_told_in_python(result: Result) -> None:
    wrong: Any = "sutton"
    for call in (
        lambda: whorl.load("CartPole-v1", "ppo", env_options=wrong),
        lambda: whorl.resume(result, env_options=wrong),
        lambda: whorl.evaluate(result, env_options=wrong),
        lambda: whorl.check("CartPole-v1", env_options=wrong),
    ):
        with pytest.raises(ConfigError, match="env_options is 'sutton'; it must be a mapping"):
            call()


def test_a_warning_of_gymnasium_comes_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    _WarningPrinter()("\x1b[33mWARN: Casting input x to numpy array.\x1b[0m")
    assert capsys.readouterr().err == "whorl: Casting input x to numpy array.\n"


def test_the_same_warning_in_a_row_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    show = _WarningPrinter()  # settings files are read more than once
    for message in ("one", "one", "two", "one"):
        show(message)
    assert capsys.readouterr().err == "whorl: one\nwhorl: two\nwhorl: one\n"
