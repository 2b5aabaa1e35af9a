"""The first hour of a new user: help texts, hints, and settings that would do nothing."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import gymnasium
import numpy as np
import pytest

import whorl
from whorl import cli
from whorl.bench.suite import suites
from whorl.cli import commands, main
from whorl.cli.commands import TrainFlags
from whorl.cli.flags import FlagParser
from whorl.core.errors import CheckpointError, ConfigError, DivergedError, EnvError
from whorl.envs.adapter import near_id
from whorl.settings.merge import configure
from whorl.state import code

QUIET = {"eval": False, "quiet": True, "tensorboard": False, "num_envs": 2, "num_steps": 8}


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return " ".join(capsys.readouterr().out.split())


# Help


def test_a_flag_with_an_optional_file_has_no_default(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "eval", "--help")
    assert "into the run's folder --screenshots" in found
    assert (
        "--json true|false print one JSON object per run, a line each, and nothing else (default: false)"
        in found
    )


@pytest.mark.parametrize("page", ["--help", "--help-all"])
def test_config_prints_the_settings_of_one_run_and_has_no_flags_for_several(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shown(capsys, "config", "ppo", "CartPole-v1", page)
    assert "--seed N" in found and "--config FILE" in found
    assert "--seeds" not in found and "--parallel" not in found
    assert "--seeds" in shown(capsys, "train", "ppo", "CartPole-v1", page)


def test_config_refuses_several_seeds_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "ppo", "CartPole-v1", "--seeds", "1", "2"]) == 2
    assert "use --seed instead of --seeds" in capsys.readouterr().err


def test_the_help_of_bench_names_the_suites(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "bench", "--help")
    assert suites() and all(f" {name} " in found for name in suites())


@pytest.mark.parametrize("command", ["train", "eval", "bench", "sweep", "plot", "serve", "record", "push"])
def test_help_texts_name_no_default_twice_and_no_value_is_a_word(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shown(capsys, command, "--help")
    assert "WORD" not in found and "--jobs" not in found
    for text in found.split(" --"):
        assert text.count("default") <= 1, text


@pytest.mark.parametrize("words", [["1", "2", "3"], ["1,2,3"], ["1,", "2..3"], ["[1,2,3]"]])
def test_seeds_may_be_written_with_commas(words: list[str]) -> None:
    parser = FlagParser("train")
    parser.add_config(TrainFlags())
    assert parser.read(["--seeds", *words])[1] == {"seeds": [1, 2, 3]}


def test_a_flag_with_one_dash_is_put_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "CartPole-v1", "-lr", "3e-4"]) == 2
    assert "unknown flag '-lr'; flags start with two dashes: --lr" in capsys.readouterr().err


def test_plot_suggests_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Agents in the box have no curves."""
    monkeypatch.chdir(tmp_path)
    assert main(["plot", "nosuch"]) == 2
    said = capsys.readouterr().err
    assert "nosuch" in said and "cartpole" not in said


def test_runs_of_a_benchmark_are_plotted_reported_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`runs/*` after a benchmark: a run, a folder of runs, and files beside them."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs/alone", "runs/bench_mine/first", "runs/bench_mine/second"):
        Path(name).mkdir(parents=True)
        Path(name, "config.yaml").write_text(f"{{algorithm: ppo, env: CartPole-v1, tag: {Path(name).name}}}")
        Path(name, "metrics.jsonl").write_text('{"steps": 1, "episode/return": 2.0}\n')
    Path("runs/bench_mine/table.md").touch()
    Path("runs/report.html").touch()
    drawn: list[list[str]] = []

    def noted(folders: list[Path], output: Path, *others: Any) -> Path:
        drawn.append([folder.name for folder in folders])
        return output

    monkeypatch.setattr("whorl.log.plot.plot_runs", noted)
    assert main(["plot", "runs/alone", "runs/bench_mine", "runs/report.html"]) == 0
    assert main(["plot", "runs/bench_mine"]) == 0
    whorl.plot("runs/bench_mine/first", "runs/bench_mine/table.md")
    assert drawn == [["alone", "first", "second"], ["first", "second"], ["first"]]
    capsys.readouterr()
    assert main(["list", "--runs"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert listed == ["alone", "bench_mine/first", "bench_mine/second"]
    assert main(["eval", "bench_mine"]) == 2
    assert "is a folder of runs; name one of them, such as " in capsys.readouterr().err
    assert main(["plot", "runs/bench_mine", "--map"]) == 2
    said = "--map draws one run, but there are 2 in runs/bench_mine; name one of them"
    assert said in capsys.readouterr().err
    pytest.importorskip("plotly")
    assert main(["report", "runs/bench_mine/first", "runs/bench_mine/table.md", "--output", "new.html"]) == 0


def test_list_shows_one_thing_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--agents", "--runs"]) == 2
    assert "list shows one thing at a time; use --envs, --runs or --agents" in capsys.readouterr().err


def test_eval_takes_an_agent_in_the_box_and_an_exported_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "policy.safetensors")
    assert main(["export", "cartpole", "--output", file]) == 0
    capsys.readouterr()
    returns = []
    for name in ("cartpole", file):
        assert main(["eval", name, "--episodes", "1", "--max-steps", "20", "--json"]) == 0
        returns.append(json.loads(capsys.readouterr().out)["returns"])
    assert returns == [[20.0], [20.0]]


# Names of environments


IDS = ["CartPole-v0", "CartPole-v1", "TMaze-v0", "BoxTop-v0", "Acrobot-v1", "LunarLander-v3", "Walker2d-v4"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("CartPoel-v1", "CartPole-v1"),
        ("Cartpole", "CartPole-v1"),  # the newest version
        ("CartPolee-v0", "CartPole-v0"),  # the same version
        ("Lunar", "LunarLander-v3"),
        ("Walker-v5", "Walker2d-v4"),
        ("Foo-v0", None),  # difflib takes BoxTop-v0
        ("MyMaze-v0", None),  # TMaze-v0
        ("Robot-v0", None),  # Acrobot-v1
        ("Car", None),  # too short to begin a name
    ],
)
def test_only_a_near_id_is_suggested(given: str, found: str | None) -> None:
    assert near_id(given, IDS) == found


def test_an_id_that_is_nowhere_near_is_told_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "Foo-v0"]) == 2
    said = capsys.readouterr().err
    assert "unknown environment 'Foo-v0'; import the package that registers it" in said
    assert "did you mean" not in said


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("door_file.py", "door_file.py is a file; name an environment in it, as in door_file:Mine"),
        ("door_file:Mien", "door_file has no class 'Mien', .* did you mean 'Mine'"),
        (
            "door_file:Needs",
            r"missing .* 'level'; give it in env_options \(on the command line --env_options.level",
        ),
    ],
)
def test_a_name_in_ones_own_file_is_put_right(
    id: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        from gymnasium.envs.classic_control import CartPoleEnv

        class Mine(CartPoleEnv):
            pass

        class Needs(CartPoleEnv):
            def __init__(self, level):
                super().__init__()
        """
    (tmp_path / "door_file.py").write_text(dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvError, match=said):
        whorl.load(id, "ppo", QUIET).build()


def test_check_says_where_an_environment_is_that_does_not_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        import pathlib, time
        from gymnasium.envs.classic_control import CartPoleEnv

        class Stuck(CartPoleEnv):
            def step(self, action):
                while not pathlib.Path("told").exists():
                    time.sleep(0.01)
                return super().step(action)
        """
    (tmp_path / "door_stuck.py").write_text(dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        if " in step()" in text:
            (tmp_path / "told").touch()

    monkeypatch.setattr(commands, "PATIENCE", 0.05)
    monkeypatch.setattr(commands, "_say", tell)
    main(["check", "door_stuck:Stuck"])
    assert any(f" in step(), {tmp_path / 'door_stuck.py'}, line " in text for text in said)


def test_check_ends_with_the_call_that_does_not_return(tmp_path: Path) -> None:
    text = """
        import time
        from gymnasium.envs.classic_control import CartPoleEnv

        class Endless(CartPoleEnv):
            def step(self, action):
                while True:
                    time.sleep(0.01)
        """
    (tmp_path / "door_endless.py").write_text(dedent(text))
    run = (
        "from whorl.cli import commands, main; commands.LIMIT = 0.5; main(['check', 'door_endless:Endless'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert found.returncode == 1
    place = f"step(), {tmp_path / 'door_endless.py'}, line "
    assert f"- step() did not return within 0.5 seconds; it is in {place}" in found.stdout


def test_check_does_not_count_time_in_which_it_was_stopped(tmp_path: Path) -> None:
    """A step during which an hour passes at once, as after Ctrl-Z, and which then returns."""
    text = """
        import time
        from gymnasium.envs.classic_control import CartPoleEnv
        from whorl.cli import commands

        said, passed, clock = [], [], time.monotonic
        commands.PATIENCE, commands._say = 0.02, said.append
        time.monotonic = lambda: clock() + sum(passed)

        class Stopped(CartPoleEnv):
            def step(self, action):
                while not passed and not any(" in step()" in text for text in said):
                    time.sleep(0.01)
                if not passed:
                    passed.append(3600.0)
                    heard = len(said)
                    while len(said) < heard + 2:
                        time.sleep(0.01)
                return super().step(action)
        """
    (tmp_path / "door_stopped.py").write_text(dedent(text))
    run = "from whorl.cli import main; print(main(['check', 'door_stopped:Stopped']))"
    found = subprocess.run(
        [sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert found.stdout == "door_stopped:Stopped: no mistakes found\n0\n", found.stderr


def test_a_run_continued_with_another_environment_is_evaluated_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = "from gymnasium.envs.classic_control import CartPoleEnv\nclass Mine(CartPoleEnv): pass\n"
    (tmp_path / "door_mine.py").write_text(text)
    tiny = {"total_timesteps": 64, "num_envs": 2, "num_steps": 16, "eval": False, "quiet": True}
    result = whorl.train(__import__("door_mine").Mine, "ppo", tiny, runs=tmp_path / "runs")
    words = ["resume", str(result.run_dir), "--env", "door_mine:Mine", "--total-timesteps", "128"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    hint = next(line for line in lines if line.startswith("evaluate: "))
    assert hint.endswith("--env door_mine:Mine")
    assert main([*hint.removeprefix("evaluate: whorl ").split(), "--episodes", "1"]) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ("ppo", "CartPole-v1"),
            "environment comes before the algorithm: whorl.load\\('CartPole-v1', 'ppo'\\)",
        ),
        (("SAC", dict), "the environment comes before the algorithm: whorl.load\\(env, 'SAC'\\)"),
        (
            ("MlpPolicy", dict),
            "'MlpPolicy' is a policy of Stable-Baselines3; here the environment comes first",
        ),
    ],
)
def test_swapped_arguments_are_one_sentence_in_python_too(given: tuple[Any, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        whorl.load(*given)


# Trust


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("my_env.py", "my_env"),
        ("./my_env.py", "my_env"),
        ("pack/my_env.py", "pack.my_env"),
        ("pack/__init__.py", "pack"),
        ("my_env:Mine", "my_env"),
        ("my_env", "my_env"),
        ("pack.nets.Deep", "pack.nets.Deep"),
        ("/elsewhere/my_env.py", "my_env"),
    ],
)
def test_trust_takes_the_name_of_a_file(given: str, path: str) -> None:
    assert code.expanded([given]) == (path,)


def test_trust_takes_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert code.expanded([str(tmp_path / "pack" / "my_env.py")]) == ("pack.my_env",)


def test_a_run_is_evaluated_with_the_file_of_its_environment_as_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
        from gymnasium.envs.classic_control import CartPoleEnv

        class Mine(CartPoleEnv):
            pass
        """
    (tmp_path / "door_env.py").write_text(dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    whorl.train("door_env:Mine", "ppo", QUIET, max_iterations=1, name="mine")
    assert main(["eval", "mine", "--episodes", "1", "--max-steps", "5"]) == 2
    assert "--trust door_env" in capsys.readouterr().err
    assert main(["eval", "mine", "--episodes", "1", "--max-steps", "5", "--trust", "door_env.py"]) == 0


# Settings that follow, and settings that would do nothing


def test_the_lookahead_of_reinforce_follows_the_rollout(tmp_path: Path) -> None:
    assert configure("reinforce", "CartPole-v1", {"num_steps": 8}).algo.lookahead == 4
    assert configure("reinforce", "CartPole-v1", {"num_steps": 1}).algo.lookahead == 0
    long = configure("reinforce", "CartPole-v1", {"lookahead": 3000})
    assert (long.algo.lookahead, long.run.num_steps) == (3000, 6000)
    whorl.train("CartPole-v1", "reinforce", QUIET, max_iterations=1, runs=str(tmp_path))
    with pytest.raises(ConfigError, match="lookahead is 8, which excludes all 8 rows"):
        whorl.train("CartPole-v1", "reinforce", QUIET, lookahead=8, max_iterations=1, runs=str(tmp_path))


def test_a_run_that_is_named_to_load_from_is_loaded() -> None:
    named = configure("ppo", "CartPole-v1", {"load_checkpoint_dir": "mine"})
    assert named.run.load_model
    off = configure("ppo", "CartPole-v1", {"load_checkpoint_dir": "mine", "load_model": False})
    assert not off.run.load_model and not configure("ppo", "CartPole-v1", {}).run.load_model


def test_a_run_to_load_from_that_is_not_there_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run 'nosuch'"):
        whorl.train("CartPole-v1", "ppo", QUIET, load_checkpoint_dir="nosuch", runs=str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "impala"])
@pytest.mark.parametrize(("name", "value"), [("lr", 0.5), ("hidden_sizes", [3]), ("network", ["Linear"])])
def test_settings_of_a_critic_that_shares_the_actors_network_are_refused(
    algorithm: str, name: str, value: object
) -> None:
    with pytest.raises(
        ConfigError, match=f"critic_{name} has no effect with shared_trunk: .* set actor_{name}"
    ):
        configure(algorithm, "CartPole-v1", {"shared_trunk": True, f"critic_{name}": value})
    configure(algorithm, "CartPole-v1", {f"critic_{name}": value})


def test_layers_of_an_own_critic_by_stable_baselines_name_are_refused_with_a_shared_trunk() -> None:
    with pytest.raises(ConfigError, match="critic_hidden_sizes has no effect with shared_trunk"):
        configure("ppo", "CartPole-v1", {"shared_trunk": True, "net_arch": {"pi": [64], "vf": [256]}})
    configure("ppo", "CartPole-v1", {"shared_trunk": True, "net_arch": [64]})


def test_one_value_for_actor_and_critic_fits_a_shared_trunk() -> None:
    both = configure(
        "ppo", "CartPole-v1", {"shared_trunk": True, "learning_rate": 0.01, "hidden_sizes": [32]}
    )
    assert both.algo.actor_lr == both.algo.critic_lr == 0.01
    saved = {"algorithm": "ppo", **configure("ppo", "CartPole-v1", {"shared_trunk": True}).plain()}
    configure("ppo", "CartPole-v1", {}, [saved])  # a whole file of settings names the critic's, too


@pytest.mark.parametrize("algorithm", ["sac", "tqc"])
def test_noise_on_actions_that_have_no_continuous_part_is_refused(algorithm: str, tmp_path: Path) -> None:
    env = "CartPole-v1" if algorithm == "sac" else "Pendulum-v1"
    if algorithm == "tqc":
        whorl.load(env, algorithm, action_noise=0.1, runs=str(tmp_path)).build()
        return
    with pytest.raises(
        ConfigError, match="action_noise is added to continuous actions, and this environment has"
    ):
        whorl.load(env, algorithm, action_noise=0.1, runs=str(tmp_path)).build()


# Ctrl-C


def interrupted(folder: Path, text: str, *words: str, env: str = "door_env:Slow") -> tuple[int, str]:
    """Exit status and errors of a training that gets Ctrl-C when its environment has written the file `here`."""
    (folder / "door_env.py").write_text(dedent(text))
    path = os.pathsep.join([str(folder), str(Path(whorl.__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, "-m", "whorl", "train", "ppo", env, "--quiet", "--no-eval", *words],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 600
        while not (folder / "here").exists():
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        if (folder / "here").read_text() == "twice":
            while "Ctrl-C: finishing" not in (line := process.stderr.readline() if process.stderr else ""):
                assert line, "it did not answer"
            process.send_signal(signal.SIGINT)
        return process.wait(600), process.communicate()[1]
    finally:
        process.kill()


def test_ctrl_c_while_environments_are_made_says_that_nothing_was_saved(tmp_path: Path) -> None:
    text = """
        import time
        from gymnasium.envs.classic_control import CartPoleEnv

        class Slow(CartPoleEnv):
            def __init__(self):
                super().__init__()
                open("here", "w").close()
                time.sleep(600)
        """
    status, said = interrupted(tmp_path, text, "--workers", "0")
    assert status == 130
    assert said.endswith("whorl: interrupted before training began; nothing was saved\n")
    assert not list(tmp_path.glob("runs/*"))


def test_a_second_ctrl_c_before_the_first_checkpoint_says_how_to_start_again(tmp_path: Path) -> None:
    text = """
        import time
        from gymnasium.envs.classic_control import CartPoleEnv

        class Slow(CartPoleEnv):
            def step(self, action):
                with open("here.tmp", "w") as file:
                    file.write("twice")
                import os
                os.replace("here.tmp", "here")
                time.sleep(600)
        """
    status, said = interrupted(tmp_path, text, "--workers", "0", "--num-envs", "1", "--name", "slow")
    assert status == 130
    assert "interrupted before the first checkpoint; start again with: whorl resume runs/slow" in said
    assert "--trust door_env" in said


@pytest.mark.parametrize("where", ["making", "importing"])
def test_ctrl_c_in_a_terminal_ends_a_loop_over_seeds_of_a_shell(where: str, tmp_path: Path) -> None:
    """A shell goes on with the next command after a status of 130, but not where the signal ended the last."""
    (tmp_path / "door_env.py").write_text(
        dedent(
            f"""
            import os, time
            def Slow():
                os.mkfifo(f"here{{len(os.listdir('.'))}}")
                time.sleep(600)
            {"" if where == "making" else "Slow()"}
            """
        )
    )
    line = f"{shlex.quote(sys.executable)} -m whorl train ppo door_env:Slow --workers 0 --seed $seed"
    terminal, end = os.openpty()
    os.set_blocking(terminal, False)
    process = subprocess.Popen(
        ["bash", "-c", f"for seed in 1 2; do {line}; done"],
        env={**os.environ, "PYTHONPATH": str(Path(whorl.__file__).parents[1])},
        cwd=tmp_path,
        stderr=end,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )
    try:
        deadline = time.monotonic() + 600
        while not list(tmp_path.glob("here*")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the shell and the command
        while process.poll() is None and time.monotonic() < deadline:
            assert len(list(tmp_path.glob("here*"))) == 1, "the second seed was started"
            time.sleep(0.02)
        assert process.returncode == -signal.SIGINT
        assert b"nothing was saved" in os.read(terminal, 10_000)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        os.close(terminal)
        os.close(end)


@pytest.mark.parametrize(("system", "ends"), [("posix", True), ("nt", False)])
def test_a_process_ends_by_the_signal_where_systems_know_that(
    system: str, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows `os.kill` would end it with 2, the status of a mistake."""
    before, killed = signal.getsignal(signal.SIGINT), list[int]()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "isatty", lambda stream: True)
            patch.setattr(os, "kill", lambda process, number: killed.append(number))
            patch.setattr(os, "name", system)
            cli._end_by_interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    assert killed == [signal.SIGINT] * ends


# The whole way


OWN = """
    import gymnasium
    import numpy as np
    from gymnasium import spaces

    class Point(gymnasium.Env):
        def __init__(self, size=2):
            box = spaces.Box(-1, 1, (size,), np.float32)
            self.observation_space = spaces.Dict({"position": box, "phase": spaces.Discrete(2)})
            self.action_space = spaces.Tuple((spaces.Discrete(2), box))

        def seen(self):
            return {"position": self.at.astype(np.float32), "phase": self.time % 2}

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.at, self.time = self.np_random.uniform(-1, 1, self.action_space[1].shape), 0
            return self.seen(), {}

        def step(self, action):
            choice, move = action
            self.time += 1
            self.at = np.clip(self.at + 0.2 * move, -1, 1)
            distance = float(np.abs(self.at).mean())
            reward = float(choice) - distance
            return self.seen(), reward, False, self.time >= 20, {"is_success": distance < 0.1}
    """


def test_an_environment_of_ones_own_from_its_check_to_a_policy_in_another_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dict observation, Tuple action, five seeds with a plot, Ctrl-C and resume, a script that uses the policy."""
    (tmp_path / "door_point.py").write_text(dedent(OWN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["check", "door_point:Point"]) == 0
    words = ["ppo", "door_point:Point", "--num-envs", "2", "--num-steps", "40", "--workers", "0", "--quiet"]
    assert main(["train", *words, "--total-timesteps", "160", "--seeds", "1..5", "--no-tensorboard"]) == 0
    assert "mean ± std" in capsys.readouterr().out
    runs = sorted(map(str, Path("runs").iterdir()))
    assert len(runs) == 5
    assert main(["plot", *runs, "--output", "five.svg"]) == 0
    assert "(5 seeds)" in Path("five.svg").read_text()

    interrupts = Interrupts()
    with pytest.raises(KeyboardInterrupt) as stopped:
        whorl.train("door_point:Point", "ppo", QUIET, name="mine", workers=0, callbacks=[interrupts])
    result = stopped.value.result  # type: ignore[attr-defined]
    assert result.interrupted and result.steps == 16
    resume = ["resume", "mine", "--trust", "door_point.py", "--total-timesteps", "48", "--quiet"]
    assert main(resume) == 0
    capsys.readouterr()
    assert (
        main(
            ["resume", "mine", "--trust", "door_point", "--total-timesteps", "80", "--env_options.size", "3"]
        )
        == 2
    )
    assert "can't change 'env_options'" in capsys.readouterr().err

    script = """
        import door_point
        import whorl

        policy = whorl.restore("runs/mine", trust=["door_point.py"])
        env = door_point.Point()
        obs, _ = env.reset(seed=0)
        for _ in range(20):
            action = policy.act(obs)
            assert env.action_space.contains(action), action
            obs = env.step(action)[0]
        assert policy.predict(obs)[0] is not None
        print("value", float(policy.value(obs)))
        """
    (tmp_path / "use.py").write_text(dedent(script))
    path = os.pathsep.join([str(tmp_path), str(Path(whorl.__file__).parents[1])])
    ran = subprocess.run(
        [sys.executable, "use.py"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0 and ran.stdout.startswith("value "), ran.stderr


class Interrupts(whorl.Callback):
    """Presses Ctrl-C in the first iteration."""

    def on_rollout(self, trainer: Any, rollout: Any) -> None:
        if trainer.iteration == 0:
            os.kill(os.getpid(), signal.SIGINT)


# What a user of one's own environment meets


ROBOT = """
    import gymnasium, numpy as np

    class Robot(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count = 0
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.count += 1
            return np.zeros(2, np.float32), 1.0, False, self.count == 8, {}
"""
FEW = ("--total-timesteps", "16", "--num-envs", "2", "--num-steps", "8", "--no-eval", "--workers", "0")


def test_no_part_of_a_name_becomes_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "with_robot.py").write_text(dedent(ROBOT))
    found = shown(capsys, "train", "ppo", "with_robot:Robot", *FEW, "--name", "a[bold]b")
    assert "ppo on with_robot:Robot: runs/" in found


def test_a_name_of_several_seeds_shows_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown(capsys, "train", "ppo", "CartPole-v1", *FEW, "--seeds", "5", "7", "--name", "mine")
    shown(capsys, "train", "ppo", "CartPole-v1", *FEW, "--seeds", "5", "7", "--name", "own-{seed}")
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "mine_seed5",
        "mine_seed7",
        "own-5",
        "own-7",
    ]


def test_a_misspelt_setting_of_resume_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", "somewhere", "--total-timestep", "9"]) == 2
    assert "resume has no flag --total-timestep; did you mean '--total-timesteps'?" in capsys.readouterr().err


def test_the_class_of_a_config_is_no_config() -> None:
    with pytest.raises(ConfigError, match=r"PPOConfig is a class; give an object of it, as in PPOConfig\("):
        whorl.load("CartPole-v1", whorl.PPOConfig)  # type: ignore[arg-type]  # the mistake


def test_a_file_is_no_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "./my_env.py"]) == 2
    assert "my_env.py is a file; name its module: my_env:MyEnv" in capsys.readouterr().err


class Sensors(gymnasium.Env):
    """Two sensors, of which one fails once, and a reward that may be forgotten."""

    observation_space = gymnasium.spaces.Dict(
        arm=gymnasium.spaces.Box(-1, 1, (2,)), eye=gymnasium.spaces.Box(-1, 1, (2,))
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, forgets: bool = False) -> None:
        self.forgets = forgets

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return {"arm": np.zeros(2, np.float32), "eye": np.zeros(2, np.float32)}, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        eye = np.full(2, np.nan if self.count == 5 and not self.forgets else 0, np.float32)
        reward = None if self.forgets else 1.0
        return {"arm": np.zeros(2, np.float32), "eye": eye}, reward, False, self.count == 8, {}


def test_the_part_of_an_observation_that_is_not_finite_is_named(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="environment 0 gave an observation whose 'eye' is not finite"):
        whorl.train(Sensors, "ppo", {**QUIET, "workers": 0, "total_timesteps": 32, "runs": str(tmp_path)})


def test_a_forgotten_reward_is_told(tmp_path: Path) -> None:
    settings = {**QUIET, "workers": 0, "total_timesteps": 32, "runs": str(tmp_path)}
    with pytest.raises(EnvError, match="the reward is None; return one number"):
        whorl.train(Sensors, "ppo", settings, env_options={"forgets": True})


def test_play_in_a_pipe_prints_returns_and_no_pictures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert main(["play", "cartpole", "--max-steps", "6"]) == 0
    found = capsys.readouterr()
    assert "episode 1: return 6.0 in 6 steps" in found.out and "\x1b" not in found.out
    assert "nothing is shown; use --gif FILE" in found.out + found.err
