"""What users of other libraries write, in names, numbers and calls that earlier tests do not hold: each is understood,
or answered in one sentence."""

import threading
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import whorl
from whorl.cli import main
from whorl.core.errors import ConfigError, EnvError, WhorlError
from whorl.core.process import CTRL_C
from whorl.run.reporting import Result
from whorl.settings.schema import coerce

TINY: dict[str, Any] = {"total_timesteps": 64, "num_envs": 2, "num_steps": 16, "quiet": True, "eval": False}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return whorl.train("CartPole-v1", "ppo", TINY, runs=tmp_path_factory.mktemp("runs"))


# Names


@pytest.mark.parametrize(
    ("algorithm", "name", "said"),
    [
        ("ppo", "eval_interval", "did you mean 'eval_freq'?"),
        ("ppo", "evaluate_every", "did you mean 'eval_freq'?"),
        ("ppo", "save_every", "did you mean 'checkpoint_freq'?"),
        ("ppo", "print_freq", "did you mean 'log_freq'?"),
        ("ppo", "lr_actor", "did you mean 'actor_lr'?"),
        ("ppo", "learning_rate_critic", "did you mean 'critic_lr'?"),
        ("ppo", "entropy_coefficient", "did you mean 'ent_coef'?"),
        ("ppo", "max_episodes", "did you mean 'total_episodes'?"),
        ("ppo", "total_frames", "did you mean 'total_timesteps'?"),
        ("ppo", "obs_norm", "did you mean 'normalize_obs'?"),
        ("dqn", "eps_start", "did you mean 'exploration_initial_eps'?"),
        ("dqn", "eps_end", "did you mean 'exploration_final_eps'?"),
        ("ppo", "num_timesteps", "did you mean 'num_steps' or 'total_timesteps'?"),
        ("ppo", "episodes", "perhaps 'n_eval_episodes', 'total_episodes'?"),
        ("ppo", "project", "perhaps 'wandb_project'?"),
        ("ppo", "grad_norm", "perhaps 'max_grad_norm'?"),
        ("ppo", "steps", "set total_timesteps, the steps of the whole run, or num_steps, those of a rollout"),
        ("dqn", "epsilon_decay", "set exploration_fraction"),
        ("sac", "num_layers", "set net_arch"),
        ("ppo", "gpu", "set device to cuda or cpu"),
        ("ppo", "run_name", "set name, the name of the run folder"),
        ("ppo", "reward_threshold", "whorl.StopAtReturn"),
        ("ppo", "n_stack", "{frame_stack: 4}"),
        ("sac", "n_steps", "set n_step, the steps of an n-step return, or num_steps, those of a rollout"),
        ("dqn", "n_steps", "set n_step"),
        ("ppo", "train_batch_size_per_learner", "set num_envs * num_steps"),
        ("ppo", "epoch_num_steps", "set total_timesteps"),
        ("ppo", "return_scaling", "set normalize_reward"),
        ("ppo", "update_step_num_repetitions", "set n_epochs"),
        ("dqn", "collection_step_num_env_steps", "set num_steps"),
        ("ppo", "stats_window_size", "set log_freq"),
        ("dqn", "epsilon", "set exploration_initial_eps and exploration_final_eps"),
        ("ppo", "epsilon", "which belongs to DDPG and TD3"),
        ("dqn", "epochs", "set total_timesteps"),
        ("ppo", "stop_on_performance", "--help-all lists all settings"),
        ("ppo", "zzz", "--help-all lists all settings"),
    ],
)
def test_a_setting_in_other_words_is_answered_with_the_one_here(algorithm: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        whorl.load("CartPole-v1" if algorithm != "sac" else "Pendulum-v1", algorithm, {name: 3})
    assert said in str(error.value)


def test_n_steps_is_the_length_of_a_rollout_where_it_can_be_nothing_else() -> None:
    assert whorl.load("CartPole-v1", "ppo", n_steps=64).settings.run.num_steps == 64


def test_sizes_for_actor_and_critic_are_refused_by_an_algorithm_with_one_network() -> None:
    with pytest.raises(ConfigError, match="this algorithm has one network; give a list of sizes"):
        whorl.load("CartPole-v1", "dqn", net_arch={"pi": [64], "qf": [64]})


def test_one_name_is_a_list_of_one(tmp_path: Path, result: Result) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("total_timesteps: 100\n")
    for given in (file, str(file)):
        trainer = whorl.load("CartPole-v1", "ppo", files=given)  # type: ignore[arg-type]
        assert trainer.settings.run.total_timesteps == 100
    assert whorl.plot(result, metrics="loss/critic", output=tmp_path / "loss.png").path.exists()
    with pytest.raises(WhorlError, match="no logger is called 'mlflows'"):
        whorl.train("CartPole-v1", "ppo", TINY, loggers="mlflows", runs=tmp_path)  # type: ignore[arg-type]


def test_a_flag_that_another_algorithm_has_under_another_name_is_named_as_it_was_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "sac", "Pendulum-v1", "--epochs", "300"]) == 2  # n_epochs is PPO's
    assert "sac has no flag --epochs: set total_timesteps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ddqn", "here it is double_dqn"),
        ("rsac_s", "here it is rsac_share"),
        ("RecurrentPPO", "here it is ppo, with the setting memory: lstm"),
        ("deep_rl_zoo.dqn.run_classic", "here it is whorl train dqn ENV"),
        ("deep_rl_zoo.ppo.eval_agent", "here it is whorl eval RUN"),
    ],
)
def test_an_algorithm_with_another_name_is_answered(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        whorl.load("CartPole-v1", name)
    assert said in str(error.value)


def test_max_epochs_of_tianshou_is_told_from_those_of_co_gym(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match=r"iterations of 2,048 steps; for Tianshou's set total_timesteps"):
        whorl.load("Acrobot-v1", "ppo", max_epochs=10, num_envs=8, num_steps=256)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whorl.load("Acrobot-v1", "ppo", max_epochs=10, n_workers=8)
        assert main(["config", "ppo", "Acrobot-v1", "--max_epochs", "10", "--n_workers", "8"]) == 0
    assert "Tianshou" not in capsys.readouterr().err


def test_a_flag_in_other_words_is_answered_with_the_one_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "CartPole-v1", "--eval-interval", "100"]) == 2
    assert "ppo has no flag --eval-interval; did you mean '--eval-freq'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["output_dir", "save_dir", "results_dir", "log_folder"])
def test_the_folder_of_runs_has_the_names_that_it_has_elsewhere(name: str, tmp_path: Path) -> None:
    trainer = whorl.load("CartPole-v1", "ppo", **{name: str(tmp_path)})
    assert trainer.settings.run.runs == str(tmp_path)


def test_two_names_of_one_setting_are_not_both_obeyed(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("total_timesteps: 100\nn_timesteps: 200\n")
    with pytest.raises(ConfigError, match="'total_timesteps' and 'n_timesteps' are one setting"):
        whorl.load("CartPole-v1", "ppo", files=[file])
    file.write_text("total_timesteps: 200\nn_timesteps: 200\n")
    assert whorl.load("CartPole-v1", "ppo", files=[file]).settings.run.total_timesteps == 200
    file.write_text("actor_lr: .nan\n")  # which does not equal itself
    with pytest.raises(ConfigError, match="actor_lr is nan; it must be a number"):
        whorl.load("CartPole-v1", "ppo", files=[file])


def test_a_keyword_overrides_another_name_of_the_setting_in_a_mapping() -> None:
    trainer = whorl.load("CartPole-v1", "ppo", {"n_timesteps": 200}, total_timesteps=300)
    assert trainer.settings.run.total_timesteps == 300


# Numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [("10k", 10_000), ("1M", 1_000_000), ("2.3k", 2_300), ("1.5m", 1_500_000), ("1_000k", 1_000_000)],
)
def test_whole_numbers_are_written_as_the_progress_display_writes_them(text: str, number: int) -> None:
    assert coerce("total_timesteps", text, int) == number


@pytest.mark.parametrize("text", ["k", "1.0001k", "1kk", ".k", "-1k", "1.2.3M"])
def test_a_suffix_alone_makes_no_number(text: str) -> None:
    with pytest.raises(ConfigError, match="it must be a whole number"):
        coerce("total_timesteps", text, int)


def test_a_suffix_is_for_whole_numbers_only() -> None:
    with pytest.raises(ConfigError, match="it must be a number"):
        coerce("actor_lr", "1k", float)


def test_a_flag_and_a_file_take_a_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("total_timesteps: 20k\n")
    assert main(["config", "ppo", "CartPole-v1", "--config", str(file), "--eval-freq", "5k"]) == 0
    out = capsys.readouterr().out
    assert "total_timesteps: 20000\n" in out and "eval_freq: 5000\n" in out


# The command line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("eval RUN -e 5", "unknown flag '-e'; write --episodes or --env"),
        ("plot RUN -o x.png", "unknown flag '-o'; write --output"),
        ("record RUN -o data", "unknown flag '-o'; write --output"),
        ("export RUN -o x.onnx", "unknown flag '-o'; write --output"),
        (
            "check CartPole-v1 -v",
            "unknown flag '-v'; flags are written out, with two dashes: --help lists them",
        ),
        ("list -r", "unknown flag '-r'; write --runs"),
        ("train ppo CartPole-v1 -s 3", "unknown flag '-s'; use --seed N, or --seeds N N ..."),
        ("train -s 3 ppo CartPole-v1", "unknown flag '-s'; use --seed N, or --seeds N N ..."),
        ("resume RUN -n 1000", "unknown flag '-n'; use --name NAME"),
    ],
)
def test_a_flag_with_one_letter_is_put_right_by_every_command(
    line: str, said: str, result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(result.run_dir) if word == "RUN" else word for word in line.split()]) == 2
    assert said in capsys.readouterr().err


def test_eval_looks_for_all_runs_before_it_plays_the_first(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(result.run_dir), "nowhere", "--episodes", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "no run 'nowhere'" in err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("enjoy", "here it is whorl eval RUN, or whorl play RUN to watch it\n"),
        ("algorithms", "here it is whorl list\n"),
        ("envs", "here it is whorl list --envs\n"),
        ("runs", "here it is whorl list --runs\n"),
    ],
)
def test_a_command_of_another_name_is_answered(
    command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command]) == 2
    assert capsys.readouterr().err.endswith(said)


def test_a_folder_with_spaces_is_quoted_where_it_is_to_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--runs", "my runs"]) == 2
    assert "use --folder 'my runs'" in capsys.readouterr().err


def test_a_module_without_the_name_of_an_environment_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_own_envs.py").write_text("")
    assert main(["check", "my_own_envs"]) == 2
    assert (
        "my_own_envs.py is a file; name an environment in it, as in my_own_envs:MyEnv"
        in capsys.readouterr().err
    )


# Python


class Stops(whorl.Callback):
    def on_update(self, trainer: Any, metrics: dict[str, float]) -> bool:  # type: ignore[override]
        return False


class Continues(whorl.Callback):
    def on_update(self, trainer: Any, metrics: dict[str, float]) -> bool:  # type: ignore[override]
        return True


def test_a_hook_that_returns_false_ends_training_and_the_run_is_saved(tmp_path: Path) -> None:
    result = whorl.train("CartPole-v1", "ppo", TINY, runs=tmp_path, callbacks=[Stops()])
    assert result.iterations == 1 and result.reason == "Stops.on_update returned False"
    assert whorl.resume(result, callbacks=[Continues()]).steps >= 60


@pytest.mark.parametrize("env", ["CartPole-v1", whorl.make])
def test_an_environment_in_the_second_place_of_evaluate_is_told_its_name(result: Result, env: Any) -> None:
    with pytest.raises(ConfigError, match=r"name an environment: whorl\.evaluate\(run, env=\.\.\.\)"):
        whorl.evaluate(result, env)


def test_plot_takes_a_list_of_runs(result: Result, tmp_path: Path) -> None:
    assert whorl.plot([result, result.run_dir], output=tmp_path / "x.png").path.is_file()
    with pytest.raises(ConfigError, match="name at least one run"):
        whorl.plot()


def test_trainers_and_policies_say_what_they_are(result: Result) -> None:
    assert repr(whorl.restore(result)) == f"<policy of ppo on CartPole-v1 after {result.steps} steps>"
    assert repr(whorl.load("CartPole-v1", "ppo")) == "<trainer of ppo on CartPole-v1 after 0 steps>"


def test_names_that_torch_modules_have_lead_to_the_networks(result: Result) -> None:
    with pytest.raises(AttributeError, match=r"policy\.agent"):
        whorl.restore(result).parameters  # noqa: B018  # what is tested is that it raises
    with pytest.raises(AttributeError, match=r"whorl\.restore\(run\)\.export"):
        whorl.export  # noqa: B018


def test_actors_without_an_environment_each_are_not_told_to_use_none() -> None:
    with pytest.raises(ConfigError, match="2 actors can't share 1 environment evenly; use 2 environments"):
        whorl.train("CartPole-v1", "dqn", actors=2, num_envs=1)


def test_a_q_value_of_several_choices_asks_for_the_action(tmp_path: Path) -> None:
    import gymnasium
    from gymnasium import spaces

    class Choices(gymnasium.Env):
        observation_space = spaces.Box(-1, 1, (2,))
        action_space = spaces.MultiDiscrete([2, 3])

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(2, np.float32), 0.0, False, True, {}

    policy = whorl.restore(
        whorl.train(Choices, "sac", total_timesteps=20, quiet=True, eval=False, workers=0, runs=tmp_path)
    )
    with pytest.raises(
        whorl.core.errors.WhorlError, match=r"for each whole action; call q_values\(obs, action\)"
    ):
        policy.q_values(np.zeros(2))
    assert np.isfinite(policy.q_values(np.zeros(2), [1, 2]))


@pytest.mark.parametrize("name", ["_init_callback", "_on_rollout_start"])
def test_methods_of_other_callbacks_that_would_never_be_called_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} would never be called"):
        type("Ported", (whorl.Callback,), {name: lambda self: None})


def test_attributes_of_other_callbacks_are_answered() -> None:
    callback = Continues()
    with pytest.raises(AttributeError, match=r"trainer\.steps counts environment steps"):
        _ = callback.num_timesteps  # type: ignore[attr-defined]
    callback.logger = 3  # type: ignore[attr-defined]  # one of the user's own is allowed
    assert callback.logger == 3  # type: ignore[attr-defined]


def test_a_policy_is_as_it_was_restored(result: Result, tmp_path: Path) -> None:
    policy = whorl.restore(result)
    with pytest.raises(ConfigError, match="best chooses a policy of a run, but a policy was given"):
        whorl.evaluate(policy, 1, best=True)
    with pytest.raises(ConfigError, match="name the file: output="):
        whorl.video(policy)
    assert whorl.video(policy, tmp_path / "one.gif", max_steps=3).path.exists()


class Locked(gymnasium.Env):
    """Can't be copied."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 1.0, True, False, {}


def test_an_object_that_cannot_be_copied_is_told_to_be_given_as_a_class() -> None:
    with pytest.raises(EnvError, match=r"Locked was given as an object, which is copied .* pass its class"):
        whorl.load(Locked(), "ppo", **TINY).train()


def test_a_function_that_cannot_be_sent_to_workers_is_told() -> None:
    lock = threading.Lock()

    def make() -> gymnasium.Env:
        with lock:
            return Locked()

    with pytest.raises(EnvError, match=r"can't be sent to worker processes .* or set workers to 0"):
        whorl.load(make, "ppo", **TINY, workers=2).train()


def test_resume_names_what_continues_a_run_of_a_class(tmp_path: Path) -> None:
    class Interrupts(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            trainer.interrupt(CTRL_C)

    with pytest.raises(KeyboardInterrupt, match=r"continue it with: whorl.resume\(.*, env=...\)"):
        whorl.train(Locked, "ppo", TINY, runs=tmp_path, callbacks=[Interrupts()])
