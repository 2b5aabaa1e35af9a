"""The command `whorl`, called in this process, and once or twice as a real one."""

import csv
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import whorl
from whorl.cli import completion as completion_module
from whorl.cli import main, seeds
from whorl.cli.command import commands
from whorl.cli.commands import EvalFlags, PlotFlags, ResumeFlags, TrainFlags
from whorl.cli.completion import script
from whorl.cli.flags import FlagParser
from whorl.cli.groups import GROUPS, group_of
from whorl.cli.report import show_runs
from whorl.core.errors import ConfigError
from whorl.core.hardware import shares
from whorl.run.evaluate import Evaluation
from whorl.run.evaluation_log import log_evaluation
from whorl.run.trainer import Trainer
from whorl.settings.presets import algorithm_class, algorithms, preset_names, read_yaml
from whorl.settings.run import RunConfig
from whorl.settings.schema import fields_of, help_of
from whorl.state.runlock import RunLock

SMALL = [
    *(
        "--num-envs",
        "2",
        "--num-steps",
        "16",
        "--batch-size",
        "32",
        "--max-iterations",
        "2",
        "--log-freq",
        "1",
    ),
    "--quiet",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of PPO on CartPole-v1."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(["train", "ppo", "CartPole-v1", *SMALL, "--n-eval-episodes", "1", "--runs", str(folder)]) == 0
    return next(folder.iterdir())


def config_of(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((next(folder.iterdir()) / "config.yaml").read_text())


def error_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error of a command that fails."""
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("whorl: ") and err.count("\n") == 1
    return err[len("whorl: ") : -1]


# Training


def test_algorithm_and_environment_may_be_given_by_flags(capsys: pytest.CaptureFixture[str]) -> None:
    forms = (
        ["sac", "Pendulum-v1"],
        ["--algo", "sac", "--env", "Pendulum-v1"],
        ["--env=Pendulum-v1", "--seed", "1", "--algo=sac"],
        ["sac", "--environment_name=Pendulum-v1"],
        ["Pendulum-v1", "--algorithm", "sac"],
    )
    found = []
    for words in forms:
        assert main(["config", *words]) == 0
        found.append(capsys.readouterr().out)
    assert len(set(found)) == 1 and "env: Pendulum-v1" in found[0]


def test_a_flag_is_switched_off_as_absl_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "ppo", "CartPole-v1", "--nouse_tensorboard", "--noeval"]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["tensorboard"] is False and found["eval"] is False


def test_train_ends_with_a_table_and_the_lines_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "PPO", "CartPole-v1", *SMALL, "--no-eval", "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    folder = next(tmp_path.iterdir())
    for word in ("steps", "episodes", "mean return", "wall time", "run folder"):
        assert word in out
    assert f"whorl eval {folder}" in out
    assert f"whorl resume {folder} --max-iterations 4" in out


def test_flags_reach_the_config_under_all_their_names(tmp_path: Path) -> None:
    words = "--n_workers 2 --max-rollout=16 --K_epochs 3 --policy_hidden_dims 12 8 --batch_size 32 --max-iterations 1"
    more = "--gae-lambda 0.5 --log-std-init -0.5 --log-std-range -3 1 --no-eval --normalize-obs True --clip-obs --quiet"
    dotted = [
        *["--optimizer.class", "AdamW", "--optimizer.weight_decay", "1e-2"],
        *["--actor_network", "[{class: Linear, out_features: 8}, ELU]"],
        *["--actor_network.layers.0.out_features", "16", "--runs", str(tmp_path)],
    ]
    assert main(["train", "ppo", "CartPole-v1", *words.split(), *more.split(), *dotted]) == 0
    found = config_of(tmp_path)
    assert (found["num_envs"], found["num_steps"], found["n_epochs"]) == (2, 16, 3)
    assert (found["actor_hidden_sizes"], found["gae_lambda"], found["log_std_init"]) == ([12, 8], 0.5, -0.5)
    assert found["log_std_range"] == [-3, 1]
    assert (found["eval"], found["normalize_obs"], found["clip_obs"], found["quiet"]) == (
        False,
        True,
        True,
        True,
    )
    assert found["optimizer"] == {"class": "AdamW", "weight_decay": 0.01}
    assert found["actor_network"]["layers"][0]["out_features"] == 16


def test_options_of_an_environment_are_flags_and_reach_it(tmp_path: Path) -> None:
    words = ["--env_options.faults", "[1,1,1,0]", "--no-eval", "--no-save-model", "--runs", str(tmp_path)]
    assert main(["train", "ppo", "Quadrotor-v0", *SMALL, *words]) == 0
    assert config_of(tmp_path)["env_options"] == {"faults": [1, 1, 1, 0]}


def test_what_is_seen_of_an_environment_is_a_flag_and_survives_a_resume(tmp_path: Path) -> None:
    words = ["--env_options.keep", "0", "2", "--env_options.last_action", "true", "--no-eval"]
    assert main(["train", "ppo", "CartPole-v1", *SMALL, *words, "--runs", str(tmp_path)]) == 0
    assert config_of(tmp_path)["env_options"] == {"keep": [0, 2], "last_action": True}
    (run,) = tmp_path.iterdir()
    assert whorl.restore(run).spec.observation.shape == (4,)
    assert main(["resume", str(run), "--max-iterations", "3"]) == 0
    assert config_of(tmp_path)["env_options"] == {"keep": [0, 2], "last_action": True}


@pytest.mark.parametrize("env", ["CartPole-v1", "Quadrotor-v0"])
def test_an_option_that_an_environment_does_not_have_is_told(
    env: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = error_of(["train", "ppo", env, *SMALL, "--env-options.colour", "red"], capsys)
    assert sentence.startswith(f"{env} can't be made with {{'colour': 'red'}}")


def test_preset_then_files_then_flags(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("gamma: 0.9\nlam: 0.7")
    (tmp_path / "a.yaml").write_text("inherits: base\nlam: 0.6\nlanes: 4")
    (tmp_path / "b.yaml").write_text("adam_eps: 1e-6\nlanes: 8")
    files = ["--config", str(tmp_path / "a.yaml"), "--config", str(tmp_path / "b.yaml")]
    words = ["train", "ppo", "CartPole-v1", *files, *SMALL, "--no-eval", "--runs", str(tmp_path / "runs")]
    assert main(words) == 0
    found = config_of(tmp_path / "runs")
    assert (found["activation"], found["gamma"], found["gae_lambda"]) == ("tanh", 0.9, 0.6)
    assert (found["adam_eps"], found["num_envs"]) == (1e-6, 2)


def test_several_seeds_give_a_folder_each_and_a_closing_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "ppo", "CartPole-v1", *SMALL, "--no-eval", "--tag", "try", "--runs", str(tmp_path)]
    assert main([*words, "--seeds", "3", "4"]) == 0
    folders = sorted(tmp_path.iterdir())
    assert [folder.name.split("_")[-2:] for folder in folders] == [["try", "seed3"], ["try", "seed4"]]
    assert [yaml.safe_load((folder / "config.yaml").read_text())["seed"] for folder in folders] == [3, 4]
    assert "mean ± std" in capsys.readouterr().out
    assert main(["plot", *map(str, folders), "--output", str(tmp_path / "seeds.png")]) == 0
    assert (tmp_path / "seeds.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--total-timesteps", "1e2"], "the budget of steps is spent"),
        (["--total-episodes", "2"], "the budget of episodes is spent"),
        (["--max-iterations", "1"], "the budget of iterations is spent"),
    ],
)
def test_a_budget_is_steps_epochs_or_episodes(
    flags: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [*SMALL[:6], "--quiet", "--no-eval", "--no-save-model", "--runs", str(tmp_path)]
    assert main(["train", "ppo", "CartPole-v1", *small, *flags]) == 0
    assert reason in capsys.readouterr().out


def test_an_algorithm_of_ones_own_is_trained_by_its_import_path(tmp_path: Path) -> None:
    words = ["train", "whorl.algorithms.ppo.PPO", "CartPole-v1", *SMALL, "--no-eval", "--runs", str(tmp_path)]
    assert main(words) == 0
    assert config_of(tmp_path)["algorithm"] == "whorl.algorithms.ppo.PPO"


# Errors


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("trian ppo CartPole-v1", "no command is called 'trian'; did you mean 'train'?"),
        (
            "train",
            "give the algorithm and the environment first: whorl train ppo CartPole-v1 --num-envs 8",
        ),
        (
            "train --num-envs 8",
            "give the algorithm and the environment first: whorl train ppo CartPole-v1 --num-envs 8",
        ),
        (
            "train ppo CartPole-v1 Y-v0",
            "'Y-v0' belongs to no flag; flags start with --, as in --num-envs 8",
        ),
        (
            "train ppo CartPole-v1 --num-envs 8 9",
            "'9' belongs to no flag; flags start with --, as in --num-envs 8",
        ),
        ("train ppo CartPole-v1 --lames 8", "ppo has no flag --lames; did you mean '--lanes'?"),
        (
            "train ppo CartPole-v1 --rollout_step 8",
            "ppo has no flag --rollout_step; did you mean '--rollout-steps'?",
        ),
        (
            "train ppo CartPole-v1 --num-minibatches 8",
            "ppo has no flag --num-minibatches: set batch_size to num_envs * num_steps / num_minibatches",
        ),
        (
            "train ppo CartPole-v1 --nothing.x 8",
            "ppo has no setting 'nothing'; whorl train ppo ENV --help-all lists all settings",
        ),
        ("train ppo CartPole-v1 --qqqqqq 8", "ppo has no flag --qqqqqq; --help-all lists all flags"),
        (
            "train ppo CartPole-v1 --wieght 2 --components rnd",
            "ppo has no flag --wieght; did you mean '--rnd.weight'?",
        ),
        (
            "train ppo CartPole-v1 --components rnd --rnd.wieght 2",
            "rnd has no setting 'wieght'; did you mean 'rnd.weight'?",
        ),
        ("train ppo CartPole-v1 --num-envs many", "--num-envs is 'many'; it must be a whole number"),
        ("train ppo CartPole-v1 --n_workers many", "--n_workers is 'many'; it must be a whole number"),
        ("train ppo CartPole-v1 --num-envs", "--num-envs needs a value: a whole number"),
        ("train ppo CartPole-v1 --num-envs 0", "num_envs is 0; it must be from 1 to 1,000,000"),
        (
            "train ppo CartPole-v1 --actor-hidden-sizes --quiet",
            "--actor-hidden-sizes needs a value: a list of whole numbers",
        ),
        ("train ppo CartPole-v1 --seeds 1 -2", "seed is -2; it must be at least 0"),
        (
            "train tqc CartPole-v1 --ensemble-q-num 3",
            "tqc has no setting 'ensemble_q_num'; here it is called 'n_critics'",
        ),
        (
            "train CartPole-v1 ppo --seed 3",
            "the algorithm comes before the environment: whorl train ppo CartPole-v1 --seed 3",
        ),
        (
            "train --algo sac --env Pendulum-v1 -n 100",
            "unknown flag '-n'; use --name NAME (Advanced-SAC's -n), or --total-timesteps N (RL Baselines3 Zoo's)",
        ),
        ("train sac Pendulum-v1 -p 5006", "unknown flag '-p'; use --port N"),
        ("train sac Pendulum-v1 --env Ant-v5", "--env names the environment a second time; leave it out"),
        ("train --algo sac", "name both algorithm and environment, as in --algo ppo --env CartPole-v1"),
        (
            "train configs=atari/rainbow_dqn",
            "'configs=atari/rainbow_dqn' names a file of RLcycle; name algorithm and environment: whorl train rainbow "
            "PongNoFrameskip-v4",
        ),
        (
            "train configs=pybullet/sac configs.hyper_params.batch_size=64",
            "'configs=pybullet/sac' names a file of RLcycle; name algorithm and environment: whorl train sac "
            "ReacherBulletEnv-v0",
        ),
        (
            "train configs=lunarlander/ddpg",
            "'configs=lunarlander/ddpg' names a file of RLcycle; name algorithm and environment: whorl train ddpg "
            "LunarLanderContinuous-v3",
        ),
        (
            "train configs=lunarlander/qrdqn",
            "'configs=lunarlander/qrdqn' names a file of RLcycle; name algorithm and environment: whorl train qr_dqn "
            "LunarLander-v3",
        ),
        (
            "launch.py --env pendulum-v-v0 --algo rsac",
            "no command is called 'launch.py'; here it is whorl train ALGORITHM ENV",
        ),
        (
            "train sac Pendulum-v1 configs.hyper_params.batch_size=64",
            "'configs.hyper_params.batch_size=64' belongs to no flag; write --batch-size 64",
        ),
        (
            "train sac Pendulum-v1 --run_id 1 2",
            "sac has no flag --run_id: train once for each seed: --seeds 1 2 3",
        ),
        (
            "train sac Pendulum-v1 --repeat 2",
            "sac has no flag --repeat: train once for each seed: --seeds 1 2",
        ),
        (
            "train sac Pendulum-v1 --visualize",
            "sac has no flag --visualize: record trained policies with whorl eval RUN [RUN ...] --video",
        ),
        (
            "train sac Pendulum-v1 --config a.gin",
            "'a.gin' is a gin file, which can't be read; write its values as YAML settings",
        ),
        (
            "train sac Pendulum-v1 --beta 0.4",
            "sac has no flag --beta: set priority_beta; the exponent of priorities, alpha of replay_config, is "
            "priority_alpha",
        ),
        (
            "eval RUN --load_checkpoint_file x",
            "eval has no flag --load_checkpoint_file: name the run or its checkpoint: whorl eval RUN, or "
            "whorl resume RUN",
        ),
        ("train PPO2 CartPole-v1", "no algorithm is called 'PPO2'; did you mean 'ppo'?"),
        (
            "train ppo CartPole-v1 --learning_rat 3",
            "ppo has no flag --learning_rat; did you mean '--learning-rate'?",
        ),
        (
            "train ppo CartPole-v1 --env-kwargs gravity:3",
            "ppo has no flag --env-kwargs; options of the environment are --env_options.NAME VALUE",
        ),
        (
            "check CartPole-v1 --max-episode-steps 3",
            "check has no flag --max-episode-steps; options of the environment are "
            "--env_options.max_episode_steps VALUE",
        ),
        ("train ppo CartPole-v1 --seeds 1 2 1", "--seeds names 1 twice; name each seed once"),
        ("train ppo CartPole-v1 --seeds 1..3 2", "--seeds names 2 twice; name each seed once"),
        (
            "train ppo CartPole-v1 --seeds 8..1",
            "--seeds 8..1 is not a range of at most 10000 seeds; write the lower number first, as in 1..8",
        ),
        (
            "train ppo CartPole-v1 --parallel gpu",
            "--parallel needs --seeds, as in --seeds 1 2 3 --parallel 3",
        ),
        (
            "train ppo CartPole-v1 --seeds 1..2 --parallel gpu --device cpu",
            "--parallel gpu trains all seeds on one GPU, but device is cpu; use --parallel 2 for processes",
        ),
        (
            "train ppo CartPole-v1 --parallel 2",
            "--parallel needs --seeds, as in --seeds 1 2 3 --parallel 3",
        ),
        (
            "config ppo CartPole-v1 --seeds 1 2",
            "config prints the settings of one run; use --seed instead of --seeds and --parallel",
        ),
        ("completion tcsh", "there is no completion for 'tcsh'; choose one of: bash, fish, zsh"),
        (
            "train ppo nowhere.Env",
            "nowhere.Env can't be imported: No module named 'nowhere'; install it, run this in the folder that holds "
            "nowhere.py, or add that folder to PYTHONPATH",
        ),
        ("train ppo json:Env", "json has no class 'Env', and registers no environment of that name"),
        ("eval nowhere --device meta", "device is 'meta'; it must be auto, cpu, cuda or cuda:N"),
        ("eval nowhere --buffer-size 3", "eval has no flag --buffer-size; --help lists all flags"),
        (
            "train ppo CartPole-v1 --actor-hidden-sizes 8 x",
            "--actor-hidden-sizes is ['8', 'x']; it must be a list of whole numbers",
        ),
        ("train ppo CartPole-v1 --acting centre", "--acting is 'centre'; did you mean 'central'?"),
        ("train ppo CartPole-v1 --gamma.x 3", "--gamma.x does not exist: gamma has no options"),
        (
            "train ppo CartPole-v1 --seed 1 --seeds 1 2",
            "--seed and --seeds were both given; use --seeds alone",
        ),
        ("train reinforse CartPole-v1", "no algorithm is called 'reinforse'; did you mean 'reinforce'?"),
        ("train ppo Quadrator-v0", "unknown environment 'Quadrator-v0'; did you mean 'Quadrotor-v0'?"),
        ("eval nowhere --episodes few", "--episodes is 'few'; it must be a whole number"),
        ("eval nowhere --epsodes 3", "eval has no flag --epsodes; did you mean '--episodes'?"),
        ("plot", "name at least one run: whorl plot RUN [RUN ...]"),
        ("plot nowhere --x stepz", "--x is 'stepz'; did you mean 'steps'?"),
        ("list --algorithms", "list has no flag --algorithms; --help lists all flags"),
        ("check CrtPole-v1", "unknown environment 'CrtPole-v1'; did you mean 'CartPole-v1'?"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of(words.split(), capsys) == sentence


@pytest.mark.parametrize("command", ["eval", "resume", "plot"])
def test_a_run_that_is_not_there_is_told(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no run 'nowhere'" in error_of([command, "nowhere"], capsys)


def test_off_policy_flags_say_where_they_belong(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'tau', which belongs to" in error_of(["train", "ppo", "CartPole-v1", "--tau", "0.1"], capsys)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "sac --n-critics 3",
            "n_critics is a setting of TQC; sac ignores it; its own is ensemble_q_num",
        ),
        (
            "td3 --log-std-range -20 2",
            "log_std_range is a setting of A2C, BC, CrossQ and others; td3 ignores it",
        ),
        (
            "crossq --tau 0.1",
            "tau is a setting of Agent57, C51, DDPG and others; crossq ignores it",
        ),
        ("ppo --aux-every 3", "aux_every is a setting of PPG; ppo ignores it"),
    ],
)
def test_a_flag_of_a_sibling_is_a_warning_as_in_files(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    algorithm, *flags = words.split()
    assert main(["train", algorithm, "CartPole-v1", *flags, "--help"]) == 0
    assert capsys.readouterr().err == f"whorl: {sentence}\n"


def test_a_broken_list_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = error_of(["train", "ppo", "CartPole-v1", "--actor-network", "[{class: Linear"], capsys)
    assert sentence.startswith("--actor-network [{class: Linear is not valid YAML: ")


def read(flags: Any, *words: str) -> tuple[list[str], dict[str, Any]]:
    parser = FlagParser("eval")
    parser.add_config(flags)
    return parser.read(words)


def test_boolean_flags_leave_names_alone() -> None:
    names, values = read(EvalFlags(), "--json", "a", "--best", "false", "--no-render")
    assert names == ["a"]
    assert values == {"json": True, "best": False, "render": False}


def test_a_list_of_words_can_be_given_in_pieces() -> None:
    _, values = read(TrainFlags(), "--config", "a", "--seeds", "1", "2", "--config", "b", "c")
    assert values == {"config": ["a", "b", "c"], "seeds": [1, 2]}


def test_negative_numbers_are_values() -> None:
    _, values = read(RunConfig(), "--max-lag", "-1", "--tag", "-x")
    assert values == {"max_lag": -1, "tag": "-x"}
    _, values = read(algorithm_class("c51")[1].Config(), "--v-min", "-1e-3")  # type: ignore[attr-defined]
    assert values == {"v_min": -0.001}


def test_a_boolean_given_a_word_it_is_not_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--json is 'maybe'; it must be true or false"):
        read(EvalFlags(), "--json=maybe")


def test_flags_of_names_that_set_several_settings() -> None:
    words = [
        "train",
        "sac",
        "Pendulum-v1",
        "--learning-rate",
        "0.5",
        "--net-arch",
        "7",
        "8",
        "--ent-coef",
        "auto_0.25",
    ]
    assert main([*words, "--help"]) == 0


# Resume, evaluate, plot, list, check


def test_resume_goes_on_to_the_new_budget(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / run.name)
    assert main(["resume", str(copy), "--max-iterations", "3"]) == 0
    assert "the budget of iterations is spent" in capsys.readouterr().out
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2, 3]


def test_resume_refuses_what_the_state_depends_on(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = error_of(["resume", str(run), "--num-envs", "4"], capsys)
    assert sentence.startswith(
        "a resumed run can't change 'num_envs', which is 2 in the saved run (whorl resume --help lists "
    )
    assert "what it can change); start a new run" in sentence
    sentence = error_of(["resume", str(run), "--optimizer.weight_decay", "0.1"], capsys)
    assert sentence.startswith(
        "a resumed run can't change 'optimizer', which is {'class': 'Adam'} in the saved run (whorl"
    )
    assert "'buffer_size', which belongs to" in error_of(["resume", str(run), "--buffer-size", "500"], capsys)


def test_resume_keeps_the_saved_ring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "--no-eval", "--buffer-size", "1000", "--random-steps", "0", "--runs", str(tmp_path)]
    assert (
        main(
            ["train", "sac", "Pendulum-v1", *words, "--actor-hidden-sizes", "8", "--critic-hidden-sizes", "8"]
        )
        == 0
    )
    capsys.readouterr()
    folder = str(next(tmp_path.iterdir()))
    assert error_of(["resume", folder, "--buffer-size", "500"], capsys).startswith(
        "a resumed run can't change 'buffer_size', which is 1000 in the saved run (whorl resume --help lists "
    )
    assert main(["resume", folder, "--buffer-size", "1000", "--max-iterations", "3"]) == 0, (
        "the same is no change"
    )


def test_eval_prints_a_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert "mean_return" in capsys.readouterr().out


def test_eval_as_json_is_one_object_and_repeats(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        assert main(["eval", "--json", str(run), "--episodes", "3", "--seed", "5", "--stochastic"]) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0] == outputs[1]
    assert len(outputs[0]["returns"]) == outputs[0]["episodes"] == 3
    assert outputs[0]["mean_return"] == pytest.approx(sum(outputs[0]["returns"]) / 3)
    assert outputs[0]["env"] == "CartPole-v1"


def test_eval_takes_the_best_policy_or_a_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for words in ([str(run), "--best"], [str(run / "best")], [str(run / "checkpoint_1")], [str(run)]):
        assert main(["eval", *words, "--json", "--episodes", "2"]) == 0
        found.append(json.loads(capsys.readouterr().out)["returns"])
    assert found[0] == found[1]
    assert found[2] == found[3]


def test_eval_records_a_video_into_the_run_or_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "ppo", "Quadrotor-v0", *SMALL, "--no-eval", "--runs", str(tmp_path)]
    assert main(words) == 0
    folder = next(tmp_path.iterdir())
    capsys.readouterr()
    assert main(["eval", str(folder), "--episodes", "1", "--video"]) == 0
    path = Path(capsys.readouterr().out.rpartition("video: ")[2].strip())
    assert path.parent == folder / "videos" and path.suffix in (".gif", ".mp4") and path.stat().st_size > 0
    assert main(["eval", "--video", str(tmp_path / "x.gif"), str(folder), "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["video"] == str(tmp_path / "x.gif")
    assert (tmp_path / "x.gif").stat().st_size > 0
    assert "end the name in .gif or .mp4" in error_of(
        ["eval", str(folder), "--episodes", "1", "--video", str(tmp_path / "x.avi")], capsys
    )


def test_eval_logs_episodes_and_pictures_of_their_last_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "ppo", "Quadrotor-v0", *SMALL, "--no-eval", "--runs", str(tmp_path)]
    assert main(words) == 0
    folder = next(tmp_path.iterdir())
    steps = yaml.safe_load((folder / "checkpoint_1" / "metadata.yaml").read_text())["steps"]
    capsys.readouterr()
    for seed in ("3", "4"):
        given = ["eval", str(folder), "--episodes", "2", "--log", "--screenshots", "--seed", seed, "--json"]
        assert main([*given, "--max-steps", "400"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    with (folder / "evaluations.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["seed"], line["episode"]) for line in lines] == [
        ("3", "1"),
        ("3", "2"),
        ("4", "1"),
        ("4", "2"),
    ]
    assert {line["steps"] for line in lines} == {str(steps)}
    assert [float(line["return"]) for line in lines[2:]] == report["returns"]
    pictures = sorted((folder / "screenshots" / "newest").glob("*.png"))
    assert [path.name for path in pictures] == ["episode_001.png", "episode_002.png"]
    assert min(Image.open(pictures[0]).size) > 100
    events = EventAccumulator(str(folder / "eval"), size_guidance={"images": 0})
    events.Reload()
    (first, second) = events.Scalars("evaluation/return")
    assert first.step == second.step == steps
    assert second.value == pytest.approx(report["mean_return"], rel=1e-5)
    assert len(events.Images("evaluation/episode_002")) == 2
    assert main([*given, "--max-steps", "400", "--episodes", "1"]) == 0
    assert [path.name for path in pictures[0].parent.iterdir()] == [
        "episode_001.png"
    ]  # none of other episodes


def test_successes_of_some_episodes_are_not_logged_as_those_of_others(tmp_path: Path) -> None:
    """An episode that was cut reports none, so that the list is shorter than that of returns."""
    log_evaluation(
        tmp_path, Evaluation([1.0, 2.0], [9, 4], [True], cut=1), 5, {"policy": "newest", "seed": 0}
    )
    log_evaluation(
        tmp_path, Evaluation([1.0, 2.0], [9, 4], [False, True]), 5, {"policy": "newest", "seed": 0}
    )
    with (tmp_path / "evaluations.csv").open() as file:
        assert [line["success"] for line in csv.DictReader(file)] == ["", "", "0", "1"]


@pytest.mark.parametrize("damaged", [b"\xff\xfe", b"a: [1", b"3"])
def test_eval_reads_the_checkpoint_where_the_config_of_the_run_is_damaged(
    run: Path, tmp_path: Path, damaged: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "config.yaml").write_bytes(damaged)
    assert main(["eval", str(folder), "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 1


def test_eval_says_in_one_line_what_can_not_be_played_or_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(folder / "best")
    assert "has no best policy" in error_of(["eval", str(folder), "--best"], capsys)
    (folder / "screenshots").write_text("")
    assert "pictures can't be saved in" in error_of(["eval", str(folder), "--screenshots"], capsys)


def test_eval_plays_and_records_several_runs(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [shutil.copytree(run, tmp_path / name) for name in ("first", "second")]
    words = ["eval", *map(str, runs), "--episodes", "1"]
    assert main([*words, "--video", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["run"] for one in found] == [str(folder) for folder in runs]
    for folder, one in zip(runs, found):
        assert Path(one["video"]).parent == folder / "videos" and Path(one["video"]).stat().st_size > 0
    assert main(words) == 0
    assert capsys.readouterr().out.count("mean_return") == 2
    assert "one file for 2 runs; leave the name out" in error_of([*words, "--video", "x.gif"], capsys)
    assert "eval needs the name of a run" in error_of(["eval"], capsys)


def test_plot_goes_into_the_folder_of_its_one_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(run), "--metric", "loss/critic", "policy/kl", "--x", "time"]) == 0
    assert capsys.readouterr().out.strip() == str(run / "plot.png")
    assert (run / "plot.png").stat().st_size > 1000


def test_plot_of_a_metric_that_is_not_there_names_the_nearest(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "did you mean 'loss/critic'" in error_of(["plot", str(run), "--metric", "loss/critc"], capsys)


def test_list_names_every_algorithm_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name, about in whorl.algorithms().items():
        assert any(line.startswith(f"{name} ") and about in line for line in out.splitlines())


def test_list_names_our_worlds_and_the_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--envs"]) == 0
    assert "Quadrotor-v0" in capsys.readouterr().out
    assert main(["list", "--runs", "--folder", str(run.parent)]) == 0
    titles, row, *_ = capsys.readouterr().out.splitlines()
    assert titles.split() == ["run", "state", "steps", "return", "written"]
    assert row.split()[:2] == [run.name, "finished"] and int(row.split()[2].replace(",", "")) > 0
    assert main(["list", "--runs", "--folder", str(run / "none")]) == 0
    assert "there are no runs" in capsys.readouterr().out


def test_check_finds_nothing_or_something(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["check", "CartPole-v1"]) == 0
    assert "no mistakes found" in capsys.readouterr().out

    class Stuck(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
            return 7, {}

    whorl.register("environment", "Stuck-v0", Stuck)
    assert main(["check", "Stuck-v0"]) == 1
    assert capsys.readouterr().out.startswith("- ")


# Help


def test_version_and_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"whorl {whorl.__version__}"
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"whorl {command.usage}" in out for command in commands().values())


def test_help_shows_the_defaults_after_preset_file_and_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("gamma: 0.123")
    words = [
        "train",
        "ppo",
        "CartPole-v1",
        "--config",
        str(tmp_path / "mine.yaml"),
        "--gae-lambda",
        "0.321",
        "--help-all",
    ]
    assert main(words) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "discount factor (default: 0.123)" in out
    assert "(default: 0.321)" in out
    assert "number of parallel environments (default: 8)" in out  # tuned


def test_the_whole_help_has_every_setting_of_every_algorithm_once_and_in_a_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for algorithm in preset_names():
        assert main(["train", algorithm, "--help-all"]) == 0
        out = capsys.readouterr().out
        titles = [line[:-1] for line in out.splitlines() if line and line[0].isalpha() and line.endswith(":")]
        groups = [title for title in titles if not title.startswith("component ")]
        assert groups == [group for group in GROUPS if group in groups], algorithm
        config = algorithm_class(algorithm)[1].Config  # type: ignore[attr-defined]
        known = fields_of(RunConfig, config, TrainFlags).keys() - set(getattr(config, "unused", ()))
        shown = [line.split()[0] for line in out.splitlines() if line.startswith("  --")]
        parts = tuple(f"--{title.removeprefix('component ')}." for title in titles if title not in groups)
        shown = [flag for flag in shown if not (parts and flag.startswith(parts))]
        assert sorted(shown) == sorted(
            [f"--{name.replace('_', '-')}" for name in known] + ["--env_options.NAME"]
        )


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("seed", "run"),
        ("num_envs", "environment"),
        ("buffer_size", "data"),
        ("batch_size", "data"),
        ("hidden_sizes", "networks"),
        ("memory", "networks"),
        ("gamma", "algorithm"),
        ("n_atoms", "algorithm"),
        ("exploration_final_eps", "exploration"),
        ("wandb_project", "logging"),
    ],
)
def test_settings_stand_in_the_group_where_one_looks_for_them(name: str, group: str) -> None:
    config: Any = algorithm_class("c51")[1].Config  # type: ignore[attr-defined]
    assert group_of(config if name in fields_of(config) else RunConfig, name) == group


def test_the_short_help_has_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "sac", "Pendulum-v1", "--help"]) == 0
    out = capsys.readouterr().out
    shown = [line.split()[0] for line in out.splitlines() if line.startswith("  --")]
    assert {"--total-timesteps", "--seeds", "--num-envs", "--actor-lr", "--memory", "--config"} <= set(shown)
    assert len(shown) <= 24
    assert "--help-all shows all " in out


@pytest.mark.parametrize(
    "words", [["train"], ["train", "ppo"], *([name] for name in commands() if name != "train")]
)
def test_every_command_has_a_help_page(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    assert f"usage: whorl {words[0]}" in capsys.readouterr().out


def test_flags_of_commands_have_documentation() -> None:
    for flags in (TrainFlags, ResumeFlags, EvalFlags, PlotFlags):
        assert all(help_of(flags).values())


def test_listing_needs_no_torch() -> None:
    code = "import sys; from whorl.cli import main; main(['list']); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=600)


# Settings as YAML


def test_config_prints_what_train_accepts_back_and_makes_the_same_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *SMALL,
        "--gamma",
        "0.9",
        "--optimizer.class",
        "AdamW",
        "--components",
        "rnd",
        "--rnd.lr",
        "0.01",
    ]
    words += ["--no-eval", "--no-save-model"]
    assert main(["config", "ppo", "CartPole", *words, "--runs", str(tmp_path / "a")]) == 0
    text = capsys.readouterr().out
    (tmp_path / "mine.yaml").write_text(text)
    assert main(["config", "ppo", "CartPole", "--config", str(tmp_path / "mine.yaml")]) == 0
    assert capsys.readouterr().out == text
    assert main(["train", "ppo", "CartPole", *words, "--runs", str(tmp_path / "a")]) == 0
    given = ["--config", str(tmp_path / "mine.yaml"), "--runs", str(tmp_path / "b")]
    assert main(["train", "ppo", "CartPole-v1", *given]) == 0
    assert config_of(tmp_path / "a") | {"runs": ""} == config_of(tmp_path / "b") | {"runs": ""}
    assert metrics_of(*(tmp_path / "a").iterdir()) == metrics_of(*(tmp_path / "b").iterdir())


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run without what depends on the clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


# Modules of the user, and hints

OWN = """
import os
import gymnasium as gym
import numpy as np

class Line(gym.Env):
    def __init__(self, size=4, failing=""):
        self.size, self.failing = size, failing
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.failing == "always":
            raise ValueError("sensor disconnected")
        if self.failing:
            try:
                os.close(os.open(self.failing, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                raise ValueError("sensor disconnected")
        return np.full(2, self.t / 100, np.float32), float(action), False, self.t >= self.size, {}

gym.register(__name__ + "-v0", Line)
"""


@pytest.fixture
def folder_of_my_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The current folder: its name has a space, and it holds a module with an environment."""
    folder = tmp_path / "my work"
    folder.mkdir()
    # Every test has its own module, because Python imports one of a name only once.
    (folder / f"{module_name(request)}.py").write_text(OWN)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


def module_name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "_", request.node.name)


@pytest.mark.parametrize("form", ["{0}:{0}-v0", "{0}:Line", "{0}.Line"], ids=["id", "class", "dotted"])
def test_environments_of_this_folder_are_found_and_the_printed_lines_work(
    form: str,
    folder_of_my_own: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = form.format(module_name(request))
    workers = ["--workers", "1" if form == "{0}:Line" else "0"]
    assert main(["train", "ppo", env, *SMALL, "--no-eval", *workers, "--runs", "my runs"]) == 0
    out = capsys.readouterr().out
    lines = dict(
        line.split(": ", 1) for line in out.splitlines() if line.startswith(("evaluate", "continue"))
    )
    assert "'my runs/" in lines["evaluate"], "a path with a space is quoted"
    for line in lines.values():
        command, *words = shlex.split(line)
        assert command == "whorl" and main(words) == 0
    capsys.readouterr()
    trusting = shlex.split(lines["evaluate"])[1:]
    sentence = error_of(trusting[: trusting.index("--trust")], capsys)
    assert f"--trust {module_name(request)}" in sentence, "code is not imported because a file names it"


@pytest.mark.parametrize("required", [False, True], ids=["with defaults", "without"])
def test_a_run_of_a_class_goes_on_with_its_name_on_the_command_line(
    required: bool,
    folder_of_my_own: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The id of its environment is `Line`; options of the run hold, also those without a default."""
    module, name = folder_of_my_own / f"{module_name(request)}.py", module_name(request)
    if required:
        module.write_text(OWN.replace("size=4", "size").split("gym.register")[0])
    monkeypatch.syspath_prepend(folder_of_my_own)
    small = {
        "num_envs": 2,
        "num_steps": 16,
        "batch_size": 32,
        "max_iterations": 1,
        "quiet": True,
        "eval": False,
    }
    env = importlib.import_module(name).Line
    run = whorl.train(env, "ppo", small, env_options={"size": 7}, workers=0).run_dir
    assert whorl.evaluate(run, 2, env=f"{name}:Line").lengths == [7, 7]
    assert (
        main(["resume", str(run), "--env", f"{name}:Line", "--max-iterations", "2", "--log-freq", "1"]) == 0
    )
    lengths = [row["episode/length"] for row in rows_of(run) if "episode/length" in row]
    assert lengths and set(lengths) == {7}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_line_that_compares_seeds_works_as_printed(
    folder_of_my_own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "ppo", "CartPole-v1", *SMALL, "--no-eval", "--no-save-model", "--runs", "my runs"]
    assert main([*words, "--seeds", "3", "4"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("compare:"))
    assert main(shlex.split(line)[2:]) == 0
    assert (folder_of_my_own / "plot.png").is_file()


def test_what_a_run_needs_to_be_trusted_is_printed(
    folder_of_my_own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mynets", sys.modules[__name__])
    network = ["--actor-network", "[{class: mynets.Residual, inputs: 4, width: 8}, ELU]"]
    assert main(["train", "ppo", "CartPole-v1", *SMALL, "--no-eval", *network]) == 0
    for line in capsys.readouterr().out.splitlines():
        if line.startswith(("evaluate", "continue")):
            assert line.endswith("--trust mynets.Residual")
            assert main(shlex.split(line)[2:]) == 0


@pytest.mark.parametrize("names", [[], ["dqn"], ["dqn", "CartPole-v1"]])
def test_the_help_reads_files_whose_settings_are_drawn(
    names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "drawn.yaml"
    path.write_text("gamma: 0.95\nrandom_params: {num_envs: [2, 4], batch_size: [32, 64]}")
    assert main(["train", *names, "--config", str(path), "--help-all"]) == 0
    shown = capsys.readouterr().out
    assert "(default: 0.95)" in " ".join(shown.split())


def test_an_error_in_a_worker_keeps_its_lines_below_our_sentence(
    folder_of_my_own: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--env_options.failing", "always", "--workers", "1", "--no-eval"]
    assert main(["train", "ppo", f"{module_name(request)}:Line", *SMALL, *words]) == 2
    first, blank, *details = capsys.readouterr().err.rstrip().split("\n")
    assert first.startswith("whorl: ") and "sensor disconnected" in first and blank == ""
    command = first.rpartition(": whorl ")[2]
    assert command.startswith("resume ") and command.endswith(f" --trust {module_name(request)}")
    assert details[0] == "Traceback (most recent call last):"
    assert any(f"{module_name(request)}.py" in line for line in details)
    assert details[-1] == "ValueError: sensor disconnected"


def test_eval_and_check_take_other_options_of_the_environment(
    folder_of_my_own: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    env = f"{module_name(request)}:Line"
    assert main(["train", "ppo", env, *SMALL, "--no-eval", "--workers", "0"]) == 0
    run = str(next(Path("runs").iterdir()))
    capsys.readouterr()
    lengths = []
    for words in (
        [],
        ["--env_options.size", "7"],
        ["--env_options", "{size: 3}"],
        ["--env", f"{module_name(request)}.Line"],
    ):
        assert main(["eval", run, "--json", "--episodes", "2", "--trust", module_name(request), *words]) == 0
        lengths.append(json.loads(capsys.readouterr().out)["mean_length"])
    assert lengths == [4, 7, 3, 4]
    assert main(["check", env, "--env_options.size", "9"]) == 0
    assert main(["check", env, "--env_options.failing", "always"]) == 1
    assert "sensor disconnected" in capsys.readouterr().out


# Seeds in parallel


def test_seeds_in_parallel_give_the_same_as_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loud = [word for word in SMALL if word != "--quiet"]
    for name, parallel in (("one", []), ("two", ["--parallel", "2"])):
        words = ["--no-eval", "--runs", str(tmp_path / name), "--seeds", "3", "4", *parallel]
        assert main(["train", "ppo", "CartPole-v1", *loud, *words]) == 0
        out = capsys.readouterr().out
    assert "2 seeds, 2 at a time" in out and "mean ± std" in out
    for seed in (3, 4):
        assert f"\nseed {seed}: 100% 2/2 iterations" in out and f"\nseed {seed}: finished" in out
        one, two = (next((tmp_path / name).glob(f"*seed{seed}")) for name in ("one", "two"))
        assert metrics_of(one) == metrics_of(two)
        weights = [whorl.restore(run).agent.state_dict() for run in (one, two)]
        assert all(weights[0][key].equal(weights[1][key]) for key in weights[0])


def test_seeds_in_one_process_give_the_same_as_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "check_gpu", lambda settings, count: None)
    loud = [word for word in SMALL if word != "--quiet"]
    for name, parallel in (("one", []), ("company", ["--parallel", "gpu"])):
        words = ["--no-eval", "--runs", str(tmp_path / name), "--seeds", "3..4", *parallel]
        assert main(["train", "ppo", "CartPole-v1", *loud, *words]) == 0
        out = capsys.readouterr().out
    assert "2 seeds in one process" in out and "mean ± std" in out
    for seed in (3, 4):
        assert f"\nseed {seed}: 100% 2/2 iterations" in out and f"\nseed {seed}: finished" in out
        one, two = (next((tmp_path / name).glob(f"*seed{seed}")) for name in ("one", "company"))
        assert metrics_of(one) == metrics_of(two)
        weights = [whorl.restore(run).agent.state_dict() for run in (one, two)]
        assert all(weights[0][key].equal(weights[1][key]) for key in weights[0])


def test_a_seed_of_one_process_that_fails_is_told_and_the_others_finish(
    folder_of_my_own: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seeds, "check_gpu", lambda settings, count: None)
    words = [*SMALL, "--no-eval", "--workers", "0", "--seeds", "1..2", "--parallel", "gpu"]
    environment = f"{module_name(request)}:Line"
    assert main(["train", "ppo", environment, *words, "--env_options.failing", "claimed"]) == 2
    out, err = capsys.readouterr()
    assert err.count("whorl: seed ") == 1 and "sensor disconnected" in err and "Traceback" in err
    assert out.count("failed") == 1
    assert len(list(Path("runs").glob("*/checkpoint_*"))) == 1, "the other one has its last checkpoint"


def test_a_seed_that_fails_is_told_and_the_others_finish(
    folder_of_my_own: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "--no-eval", "--workers", "0", "--seeds", "1", "2", "--parallel", "2"]
    assert (
        main(["train", "ppo", f"{module_name(request)}:Line", *words, "--env_options.failing", "claimed"])
        == 2
    )
    out, err = capsys.readouterr()
    assert err.count("whorl: seed ") == 1 and "sensor disconnected" in err and "Traceback" in err
    assert out.count("failed") == 1
    assert len(list(Path("runs").glob("*/checkpoint_*"))) == 1, "the other one has its last checkpoint"


def test_a_seed_that_fails_does_not_end_those_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.step

    def fails(self: Trainer) -> dict[str, Any]:
        if self.settings.run.seed == 1:
            raise RuntimeError("a mistake in my network")
        return step(self)

    monkeypatch.setattr(Trainer, "step", fails)
    words = ["train", "ppo", "CartPole-v1", *SMALL, "--no-eval", "--runs", str(tmp_path), "--seeds", "1", "2"]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert err.count("whorl: seed ") == 1 and "whorl: seed 1: RuntimeError: a mistake in my network" in err
    assert "Traceback" in err, "it is not known whose mistake it is"
    assert re.search(r"seed 1 .* failed .*\n.* seed 2 .* \d", out), "the table of all seeds"
    assert len(list(tmp_path.glob("*seed2/checkpoint_*"))) == 1


def test_names_and_tags_of_files_keep_the_seed_too(tmp_path: Path) -> None:
    files = {"name": "name: mine", "alias": "exp_name: mine", "template": "name: 'of_{seed}_{tag}'\ntag: t"}
    for file, text in files.items():
        (tmp_path / f"{file}.yaml").write_text(text)
        words = [
            "--config",
            str(tmp_path / f"{file}.yaml"),
            "--runs",
            str(tmp_path / file),
            "--seeds",
            "1",
            "2",
        ]
        assert main(["train", "ppo", "CartPole-v1", *SMALL, "--no-eval", "--no-save-model", *words]) == 0
    found = {file: sorted(path.name for path in (tmp_path / file).iterdir()) for file in files}
    assert found["name"] == ["mine_seed1", "mine_seed2"]
    assert [name[-11:] for name in found["alias"]] == ["_mine_seed1", "_mine_seed2"]
    assert found["template"] == ["of_1_t_seed1", "of_2_t_seed2"]


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_seeds_of_one_process_are_built_ends_the_command(
    number: signal.Signals,
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seeds, "check_gpu", lambda settings, count: None)
    build, built = Trainer.build, list[int]()

    def interrupted(self: Trainer) -> Trainer:
        if not self._built:
            built.append(self.settings.run.seed)
            if built == [1, 2]:
                os.kill(os.getpid(), number)
        return build(self)

    monkeypatch.setattr(Trainer, "build", interrupted)
    words = ["train", "ppo", "CartPole-v1", *SMALL, "--no-eval", "--runs", str(tmp_path)]
    words += ["--seeds", "1", "2", "3", "--parallel", "gpu"]
    if number == signal.SIGTERM:
        with pytest.raises(SystemExit, match=str(status)):
            main(words)
    else:
        assert main(words) == status
    out, err = capsys.readouterr()
    assert built == [1, 2] and not list(tmp_path.iterdir()), "nothing was trained, so nothing is left"
    assert "Traceback" not in err + out


def test_ctrl_c_stops_and_saves_all_seeds(tmp_path: Path) -> None:
    words = [
        "train",
        "ppo",
        "CartPole-v1",
        *SMALL[:6],
        "--no-eval",
        "--log-freq",
        "1",
        "--runs",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "whorl", *words, "--seeds", "1", "2", "3", "--parallel", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # in a terminal the signal itself would end the process
        text=True,
    )
    try:
        deadline = time.monotonic() + 600
        while sum(bool(f.stat().st_size) for f in tmp_path.glob("*/metrics.jsonl")) < 2:
            assert process.poll() is None and time.monotonic() < deadline, "it wrote no rows of metrics"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 130
    assert len(list(tmp_path.glob("*/checkpoint_1/checkpoint.pt"))) == 2
    assert len(list(tmp_path.iterdir())) == 2, "the third was not started"
    assert out.count("continue: whorl resume") == 2


def test_cores_are_shared_out() -> None:
    assert shares(range(8), 3) == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert shares([4, 7], 3) == [[4], [7], [4]]


# Completion


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "whorl.bash"
    odd = {"it's $(odd)": "a user's own, whose name a shell would read otherwise"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completion_module, "algorithms", lambda: {**algorithms(), **odd})
        path.write_text(script("bash"))
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["tr"], {"train"}),
        (["train", "pp"], {"ppo", "ppg", "ppo_icm", "ppo_rnd"}),
        (["train", "ppo", "CartPole-v"], {"CartPole-v0", "CartPole-v1"}),
        (["train", "ppo", "X", "--clip-ran"], {"--clip-range", "--clip-range-vf"}),
        (["train", "dqn", "X", "--clip-ran"], set()),
        (["config", "sac", "X", "--total-t"], {"--total-timesteps"}),
        (["train", "ppo", "X", "--acting", ""], {"auto", "central", "workers"}),
        (["train", "ppo", "X", "--acting", "=", "c"], {"central"}),
        (["train", "ppo", "X", "--memory", "l"], {"lstm"}),
        (["train", "ppo", "X", "--no-such-flag"], set()),
        (["plot", "--statistic", ""], {"mean", "iqm", "median"}),
        (["eval", "PPO"], {"PPO_one", "PPO two"}),
        (["resume", "PPO_one", "--demo"], {"--demonstrations"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["sweep", "x.yaml", "--objective", ""], {"mean", "iqm", "worst"}),
        (["bench", "classic", "--pa"], {"--parallel"}),
    ],
)
def test_bash_completes(words: list[str], found: set[str], completion: Path, tmp_path: Path) -> None:
    for name in ("PPO_one", "PPO two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    line = ["whorl", *words]
    code = (
        "enable -n compgen complete compopt; "  # a bash may be built without them
        f"source {shlex.quote(str(completion))}; COMP_WORDS=({shlex.join(line)}); COMP_CWORD={len(line) - 1}; "
        '_whorl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    out = subprocess.run(
        ["bash", "--norc", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert set(filter(None, out.stdout.split("\n"))) == found, out.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_the_same_words(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("CartPole-v1", "rainbow", "clip-range", "central"))


# Settings files


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gamma: 0.9\nlam: 0.8\ngamma: 0.99", "names 'gamma' twice, in lines 1 and 3; keep one of them"),
        (
            "CartPole-v1:\n  n_envs: 8\n  policy: MlpPolicy",
            "has a section for each environment, as files of RL Baselines3 Zoo do; save the settings of one, such as "
            "CartPole-v1, in a file of their own, without its name above them",
        ),
    ],
)
def test_a_file_with_a_mistake_is_told_in_a_sentence(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    told = error_of(["train", "ppo", "CartPole-v1", "--config", str(path)], capsys)
    assert told == f"settings file {str(path)!r} {sentence}"


def test_a_key_may_come_again_in_another_mapping(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: &base {a: 1}\nactor_network: {<<: *base, a: 2}")
    assert read_yaml((tmp_path / "mine.yaml").read_text(), "x")["actor_network"] == {"a": 2}


def test_a_word_that_is_no_misspelling_is_answered_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(["train", "proximal", "CartPole-v1"], capsys).startswith(
        "no algorithm is called 'proximal'; choose one of: a2c, "
    )


# The state of runs


def test_a_list_of_runs_tells_their_state(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("done", "stopped", "now"):
        shutil.copytree(run, tmp_path / name)
    for name in ("stopped", "now"):
        for file in (tmp_path / name).rglob("config.yaml"):  # that of the newest checkpoint has the limit
            file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"max_iterations": 9}))
    lock = RunLock(tmp_path / "now")
    try:
        show_runs(tmp_path)
    finally:
        lock.release()
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["done", "finished"], ["now", "running"], ["stopped", "stopped"]]


def test_training_begins_with_a_line_of_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loud = [word for word in SMALL if word != "--quiet"]
    words = ["train", "ppo", "CartPole-v1", *loud, "--no-eval", "--no-save-model", "--device", "cpu"]
    assert main([*words, "--n-epochs", "3", "--runs", str(tmp_path)]) == 0
    second = capsys.readouterr().out.splitlines()[1]
    assert second == "2 environments x 16 steps, 3 epochs, batches of 32, cpu, 2 iterations"


# Trust and signals


class Residual(nn.Sequential):
    def __init__(self, inputs: int, width: int = 8) -> None:
        super().__init__(nn.Linear(inputs, width), nn.ReLU())


def test_a_part_of_ones_own_needs_trust_when_the_run_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mynets", sys.modules[__name__])
    (tmp_path / "mine.yaml").write_text("actor_network: {class: mynets.Residual, width: 16}")
    words = ["--config", str(tmp_path / "mine.yaml"), "--no-eval", "--runs", str(tmp_path / "runs")]
    assert main(["train", "ppo", "CartPole-v1", *SMALL, *words]) == 0
    folder = str(next((tmp_path / "runs").iterdir()))
    capsys.readouterr()
    for command in (["resume", folder, "--max-iterations", "3"], ["eval", folder, "--episodes", "1"]):
        assert "--trust mynets.Residual" in error_of(command, capsys)
        assert main([*command, "--trust", "mynets.Residual"]) == 0
        capsys.readouterr()


@pytest.mark.parametrize(
    ("module", "hides"),
    [("yaml", False), ("torch", False), ("torch", True)],
    ids=["first", "torch", "hidden"],
)
def test_ctrl_c_during_imports_is_quiet(module: str, hides: bool, tmp_path: Path) -> None:
    """Packages print a traceback, or turn the interrupt into an error of their own."""
    waits = f"import pathlib, time\npathlib.Path({str(tmp_path / 'here')!r}).touch()\ntime.sleep(600)"
    if hides:
        lines = waits.replace("\n", "\n    ")
        waits = f"try:\n    {lines}\nexcept BaseException:\n    raise ImportError('numpy failed') from None"
    (tmp_path / f"{module}.py").write_text(waits)
    path = os.pathsep.join([str(tmp_path), str(Path(whorl.__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, "-m", "whorl", "train", "ppo", "CartPole-v1"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 600
        while not (tmp_path / "here").exists():
            assert process.poll() is None and time.monotonic() < deadline, "it did not get to the import"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (
        130,
        "",
        "whorl: interrupted before training began; nothing was saved\n",
    )


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_a_signal_saves_and_gives_its_exit_status(number: signal.Signals, tmp_path: Path) -> None:
    words = ["train", "ppo", "CartPole-v1", *SMALL[:6], "--no-eval", "--runs", str(tmp_path), "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "whorl", *words], stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 600
        while not any(f.stat().st_size for f in tmp_path.glob("*/metrics.jsonl")):
            assert process.poll() is None and time.monotonic() < deadline, "it wrote no row of metrics"
            time.sleep(0.05)
        process.send_signal(number)
        out, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert "run folder" in out and "continue: whorl resume" in out
    assert list(tmp_path.glob("*/checkpoint_1/checkpoint.pt"))


def test_help_shows_what_a_short_id_will_get(capsys: pytest.CaptureFixture[str]) -> None:
    """DQN's ring holds a million rows in general, 100,000 on CartPole-v1."""
    assert main(["train", "dqn", "CartPole", "--help"]) == 0
    short = capsys.readouterr().out
    assert main(["train", "dqn", "CartPole-v1", "--help"]) == 0
    whole = capsys.readouterr().out
    assert "default: 100000" in short.replace("100_000", "100000")
    assert short.replace("CartPole ", "CartPole-v1 ").split() == whole.split()


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        (
            "export --help",
            ["--format onnx|torchscript|safetensors", "as ONNX, TorchScript or"],
            ["|onnx", "none"],
        ),
        ("report --help", ["one HTML file", "--output FILE"], ["(default: none)", "(default: )"]),
        ("record --help", ["--output FOLDER", "--env ENV", "--trust PATH"], ["WORD"]),
        ("bench --help", ["--parallel N", "--ray ADDRESS", "--algorithms NAME"], ["--jobs", "WORD"]),
        ("sweep --help", ["--parallel N", "--apply [FILE]"], ["WORD"]),
        (
            "train ppo CartPole-v1 --help-all",
            ["--parallel gpu|N", "--http-url URL", "--runs FOLDER"],
            ["WORD"],
        ),
    ],
)
def test_help_calls_values_by_telling_names_and_shows_no_empty_defaults(
    words: str, shown: list[str], hidden: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert [part for part in shown if part not in text] == []
    assert [part for part in hidden if part in text] == []


def test_jobs_is_another_word_for_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--jobs is 'few'" in error_of(["bench", "classic", "--jobs", "few"], capsys)


@pytest.mark.parametrize("name", ["fast_td3", "rtd3", "td3"])
def test_a_preset_of_another_rule_is_called_by_its_own_name(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^{name} needs continuous actions, but this environment has discrete"
    ):
        whorl.load("CartPole-v1", name, {"quiet": True, "save_model": False}).step()
