"""Players over real gRPC on loopback: the stand-in of `player.py` as a process, or as the editor."""

import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import whorl
from whorl.cli import main
from whorl.cli.commands import _settings_parser
from whorl.core.errors import ConfigError, EnvError, WhorlError
from whorl.envs.adapters import unity
from whorl.envs.adapters.gymnasium import to_spec
from whorl.envs.adapters.unity import UnityVector, layout_of
from whorl.envs.make import find
from whorl.envs.unity.behaviors import Behavior, choose
from whorl.envs.unity.options import read_options
from whorl.envs.unity.sensors import Sensor
from whorl.settings.merge import configure
from whorl.state.policy import SavedPolicy, build_agent

PLAYER = str(Path(__file__).parent / "player.py")
ID = f"unity:{PLAYER}"
BALL = Behavior("Ball", (Sensor("VectorSensor_size6", (6,), False, False),), 2, ())
SMALL = {
    "total_timesteps": 192,
    "num_steps": 8,
    "batch_size": 32,
    "tensorboard": False,
    "quiet": True,
    "n_epochs": 1,
}
SMALL |= {"actor_hidden_sizes": [8], "critic_hidden_sizes": [8], "device": "cpu"}


def ball(num_envs: int = 4, players: int = 1, **options: Any) -> UnityVector:
    """Balls of players that nobody has asked what they are."""
    words = f"--agents {num_envs // players} {options.pop('args', '')}"
    return UnityVector(ID, read_options(ID, {"args": words, "players": players, **options}), BALL, num_envs)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("localhost", 0))
        return int(held.getsockname()[1])


def test_what_an_agent_knows_comes_from_the_player() -> None:
    words = "--task gather --agents 3 --watchers 2"
    source = find(ID, {"args": words, "behavior": "Gatherer"})
    spec = source.spec(3)
    assert source.num_envs == 3
    assert {name: leaf.shape for name, leaf in spec.observation.items()} == {
        "CameraSensor": (8, 8, 3),
        "RayPerceptionSensor": (9,),
        "VectorSensor_size3": (3,),
        "action_mask": (5,),
    }
    assert (spec.action["continuous"].size, spec.action["discrete"].nvec) == (1, (3, 2))


def test_agents_are_counted_once_though_each_episode_has_an_id_of_its_own() -> None:
    """All episodes end with their first decision, before an agent asks again under its old id."""
    options = {"args": "--task gather --agents 4 --new-ids", "parameters": {"limit": 1, "periods": 3}}
    assert find(ID, options).num_envs == 4


def test_a_run_trains_mixed_actions_with_masks_of_agents_that_decide_at_different_times(
    tmp_path: Path,
) -> None:
    """The player ends with an error if a mask is not kept, or if actions are not one for each agent that asked.

    It is killed once in the middle, and the run goes on.
    """
    words = f"--task gather --agents 4 --watchers 2 --dies 20 --once {tmp_path / 'died'}"
    options = {"args": words, "behavior": "Gatherer", "parameters": {"limit": 5}}
    settings = {**SMALL, "total_timesteps": 96, "runs": str(tmp_path), "eval": False}
    trainer = whorl.load(ID, "ppo", settings, env_options=options)
    assert trainer.settings.run.num_envs == 4
    replaced = [warning for warning in _warnings(trainer.train) if "started again" in warning]
    assert len(replaced) == 1 and "ended with status 7" in replaced[0]
    assert trainer.counters.steps >= 96 and trainer.counters.episodes >= 12


def test_several_behaviours_of_a_scene_are_trained_together(tmp_path: Path) -> None:
    """The player ends with an error if an agent gets another number of actions, or one that its mask forbids."""
    words = "--task gather --agents 3 --watchers 2"
    settings = {**SMALL, "total_timesteps": 160, "num_steps": 4, "runs": str(tmp_path), "n_eval_episodes": 2}
    settings |= {"eval_max_steps": 8, "batch_size": 4, "max_iterations": 3}
    options = {"args": words, "parameters": {"limit": 3, "trained": 1}}
    sections = {"Watcher": {"num_steps": 8, "gamma": 0.5}}
    trainer: Any = whorl.load(ID, "ppo", settings, env_options=options, behaviours=sections)
    assert {name: one.run.num_envs for name, one in trainer.settings.behaviors.items()} == {
        "Gatherer": 3,
        "Watcher": 2,
    }
    results: list[Any] = []
    assert not [
        text for text in _warnings(lambda: results.append(trainer.train())) if "started again" in text
    ]
    (result,) = results
    steps = {name: member.counters.steps for name, member in trainer.behaviors.items()}
    assert result.iterations == 3 and min(steps.values()) > 3 and sum(steps.values()) == result.steps
    assert whorl.resume(result.run_dir, max_iterations=4, trust=["unity"]).iterations == 4
    assert whorl.restore(result.run_dir, behavior="Watcher").settings.gamma == 0.5


def _warnings(call: Any) -> list[str]:
    import warnings

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in found]


def test_players_in_parallel_have_their_own_agents_and_seeds() -> None:
    env = ball(8, players=2)
    first = env.reset(3).clone()
    assert len({tuple(row) for row in first.tolist()}) == 8
    assert len(env.env.players) == 2 and env.env.players[0].port != env.env.players[1].port
    step = env.step(torch.ones(8, 2))
    assert not step.waits.any() and torch.allclose(step.reward, torch.full((8,), 0.1))
    again = ball(8, players=2)
    assert torch.equal(again.reset(3), first)
    for one in (env, again):
        one.close()


def test_agents_beyond_num_envs_are_reported() -> None:
    env = ball(2, args="--agents 3")
    with pytest.warns(UserWarning, match="has 3 agents of behaviour 'Ball' in a player, but num_envs is 2"):
        env.reset(0)
    assert not env.step(torch.zeros(2, 2)).waits.any()
    env.close()


def test_ends_and_time_limits_become_terminated_and_truncated() -> None:
    """A ball that is left alone falls; one on a plate without gravity is cut after 200 decisions."""
    env = ball(4)
    env.reset(0)
    ends = [(step.terminated.clone(), step.truncated.clone()) for step in _steps(env, 60)]
    assert any(fell.any() for fell, _ in ends) and not any(cut.any() for _, cut in ends)
    env.set_parameters(gravity=0.0)
    env.reset(0)
    ends = [(step.terminated.clone(), step.truncated.clone()) for step in _steps(env, 200)]
    assert ends[-1][1].all() and not any(cut.any() for _, cut in ends[:-1])
    assert not any(fell.any() for fell, _ in ends)
    assert env.step(torch.zeros(4, 2)).reset.all()
    env.close()


def test_a_player_that_dies_is_replaced_and_its_rows_begin_again(tmp_path: Path) -> None:
    env = ball(4, args=f"--dies 6 --once {tmp_path / 'died'}")
    first = env.reset(0).clone()
    steps: list[Any] = []
    found = _warnings(
        lambda: steps.extend((s.reset.clone(), s.reward.clone(), s.obs.clone()) for s in _steps(env, 12))
    )
    assert len(found) == 1 and "ended with status 7; it is started again" in found[0]
    assert [number for number, (reset, _, _) in enumerate(steps) if reset.all()] == [4]
    (_, reward, obs), (_, next_reward, _) = steps[4:6]
    assert (reward == 0).all() and (next_reward > 0).all()
    assert not torch.equal(obs, first)  # the new player does not repeat the episodes of the old one
    env.close()


def _steps(env: UnityVector, count: int) -> Any:
    for _ in range(count):
        yield env.step(torch.zeros(env.spec.num_envs, 2))


def test_parameters_are_set_before_a_reset_and_in_players_that_come_later(tmp_path: Path) -> None:
    """Gatherers are cut after `limit` decisions, which they read when an episode begins."""
    words = f"--task gather --agents 2 --dies 9 --once {tmp_path / 'died'}"
    source = find(ID, {"args": words, "parameters": {"limit": 3, "periods": 1}})
    env = source.vector(2)
    idle = {"continuous": torch.zeros(2, 1), "discrete": torch.zeros(2, 2, dtype=torch.int64)}

    def length() -> int:
        return next(number for number in range(1, 99) if env.step(idle).truncated.all())

    env.reset(0)
    assert length() == 3
    env.set_parameters(limit=5)  # type: ignore[attr-defined]
    env.reset(0)
    with pytest.warns(UserWarning, match="started again"):
        assert length() > 5  # it dies on the way
    assert env.step(idle).reset.all() and length() == 5
    env.close()


def test_a_player_that_hangs_is_replaced(tmp_path: Path) -> None:
    env = ball(2, args=f"--hangs 4 --once {tmp_path / 'hung'}", timeout=3.0)
    env.reset(0)
    found = _warnings(lambda: list(_steps(env, 5)))
    assert "did not answer within 3 seconds, the option timeout; it is started again" in found[0]
    env.close()


def test_a_player_that_hangs_behind_a_script_is_ended_with_it(tmp_path: Path) -> None:
    """As behind `xvfb-run`: the process that was started waits for the player."""
    script, number = tmp_path / "scene.x86_64", tmp_path / "number"
    words = f"--agents 2 --hangs 4 --once {tmp_path / 'hung'}"
    script.write_text(
        f'#!/bin/sh\n{sys.executable} {PLAYER} {words} "$@" &\ntest -e {number} || echo $! > {number}\nwait\n'
    )
    script.chmod(0o755)
    id = f"unity:{script}"
    env = UnityVector(id, read_options(id, {"timeout": 3.0}), BALL, 2)
    env.reset(0)
    found = _warnings(lambda: list(_steps(env, 5)))
    assert "did not answer" in found[0]
    hung = int(number.read_text())
    env.close()
    assert ended(hung), "the player that hung still runs"


def test_a_player_that_has_just_ended_is_killed_where_the_system_denies_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As macOS does for a group whose processes have ended and were not waited for."""

    def denied(group: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    player = unity.Player(ID.removeprefix("unity:"), read_options(ID, {"args": "--agents 1"}), 0, 0)
    monkeypatch.setattr("os.killpg", denied)
    player.kill()
    assert player._process is not None and player._process.poll() is not None


def ended(process: int) -> bool:
    """Whether a process that was killed ends."""
    deadline = time.monotonic() + 60
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                psutil.Process(process).kill()
                return False
            time.sleep(0.02)
    return True


def test_a_player_that_fails_at_its_start_is_replaced(tmp_path: Path) -> None:
    env = ball(4, players=2, args=f"--dies 1 --once {tmp_path / 'died'}")
    found = _warnings(lambda: env.reset(0))
    assert len(found) == 1 and "ended with status 7; it is started again" in found[0]
    assert not env.step(torch.zeros(4, 2)).waits.any()
    env.close()


def test_a_player_that_cannot_be_replaced_ends_the_run_in_one_sentence(tmp_path: Path) -> None:
    env = ball(2, args=f"--dies 4 --alone {tmp_path / 'here'}")
    env.reset(0)
    with pytest.raises(EnvError) as error, pytest.warns(UserWarning):
        list(_steps(env, 20))
    sentence = one_sentence(error.value)
    assert "another player was here before; it failed 3 times in a row, so the run ends" in sentence
    env.close()


def test_a_player_that_fails_again_and_again_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unity, "FAILURES_PER_HOUR", 1)
    env = ball(2, args="--dies 3")
    env.reset(0)
    with pytest.raises(EnvError, match="failed too often in an hour"), pytest.warns(UserWarning):
        list(_steps(env, 20))
    env.close()


def one_sentence(error: WhorlError) -> str:
    assert "\n" not in error.message and not error.details
    return error.message


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"args": "--mlagents-port 1", "start_timeout": 1.0},
            "within 1 seconds, the option start_timeout, on port",
        ),
        (
            {"args": "--agents none"},
            "ended with status 2: player.py: error: argument --agents",
        ),
        ({"args": "--version 2.0.0"}, "has version 2.0.0 of ML-Agents' communication, and 1.5.0 is needed"),
        ({"args": "--task gather --watchers 1"}, "has the behaviours Gatherer, Watcher; choose one with"),
    ],
)
def test_what_goes_wrong_at_the_start_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EnvError) as error:
        find(ID, options).spec(1)
    assert sentence in one_sentence(error.value)


@pytest.mark.parametrize(
    ("id", "options", "sentence"),
    [
        ("unity:missing/Game", {}, "there is no Unity player 'missing/Game'"),
        (f"unity:{__file__.replace('.py', '')}", {}, "there is no Unity player"),
        ("unity", {}, "unity needs the path of a built player"),
        (ID, {"timescale": 1.0}, "has no option 'timescale'; did you mean 'time_scale'?"),
        (ID, {"players": 0}, "players is 0; it must be from 1"),
        ("unity:editor", {"players": 2}, "there is one editor"),
        (ID, {"frame_stack": 2}, "which frame_stack can't change"),
        (ID, {"parameters": {"g": "x"}}, "parameter 'g' is 'x'"),
    ],
)
def test_wrong_options_are_one_sentence(id: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((EnvError, ConfigError)) as error:
        find(id, options).spec(1)
    assert sentence in one_sentence(error.value)


def test_several_behaviours_are_told_apart_by_name_and_team() -> None:
    other = Behavior("Ball", BALL.sensors, 3, ())
    found = {"Ball?team=0": BALL, "Ball?team=1": BALL, "Guard?team=0": Behavior("Guard", (), 0, ())}
    assert choose(found, "Ball") == BALL and choose(found, "Ball").owns("Ball?team=1")
    assert not choose(found, "Ball?team=1").owns("Ball?team=0")
    for asked, sentence in (
        ("", "the behaviours Ball, Guard; choose one"),
        ("Bell", "no behaviour 'Bell'; did you mean 'Ball'?"),
        ("Guard", "'Guard' has no actions"),
    ):
        with pytest.raises(EnvError, match=sentence.replace("?", r"\?")):
            choose(found, asked)
    with pytest.raises(
        EnvError, match=r"differ in sensors or actions; choose one of: Ball\?team=0, Ball\?team=1"
    ):
        choose({**found, "Ball?team=1": other}, "Ball")


def test_a_missing_grpcio_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(
        WhorlError, match=r"grpcio is not installed; install it with: pip install .*\[unity\]"
    ):
        ball().reset(0)


def test_the_editor_connects_from_outside_and_is_not_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    words = [
        sys.executable,
        PLAYER,
        "--mlagents-port",
        str(port),
        "--task",
        "gather",
        "--agents",
        "4",
        "--watchers",
        "2",
    ]
    editor = subprocess.Popen(words)
    settings = [f"--{name.replace('_', '-')}" for name in ("quiet", "no_tensorboard")]
    flags = [
        "--editor",
        "--port",
        str(port),
        "--env-args",
        "--level 3",
        "--runs",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    sizes = [
        "--total-timesteps",
        "64",
        "--num-steps",
        "8",
        "--batch-size",
        "32",
        "--env_options.behavior",
        "Gatherer",
    ]
    try:
        assert main(["train", "ppo", "unity:editor", *flags, *sizes, *settings]) == 0
        assert "evaluation is off" in capsys.readouterr().err
        assert editor.wait(600) == 0  # it was told that the run is over
    finally:
        editor.kill()
        editor.wait()


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(EnvError) as error:
            find("unity:editor", {"port": port}).spec(1)
    assert f"port {port} is in use" in one_sentence(error.value)


@pytest.mark.skipif(not Path("/proc/net/if_inet6").is_file(), reason="there is no second loopback address")
def test_only_the_address_that_was_found_free_is_listened_on() -> None:
    player = unity.Player(None, read_options("unity:editor", {"port": free_port()}), 0, 0)
    try:
        with socket.socket(socket.AF_INET6) as other:
            other.bind(("::1", player.port))
        with socket.create_connection(("127.0.0.1", player.port), 5):
            pass
    finally:
        player.close()


def test_a_resumed_run_repeats_what_an_uninterrupted_one_does(tmp_path: Path) -> None:
    """Players are restarted at resets, with their seed; one of the runs ends half way and is resumed."""
    options = {"args": "--agents 4", "exact": True}
    common = {**SMALL, "runs": str(tmp_path), "eval": False, "reset_every": 64, "total_timesteps": 0}
    whole = whorl.load(ID, "ppo", {**common, "max_iterations": 4}, env_options=options)
    whole.train()
    half = whorl.load(ID, "ppo", {**common, "max_iterations": 2}, env_options=options)
    half.train()
    whorl.resume(half.run_dir, {"max_iterations": 4}, trust=["unity"])
    one, other = (whorl.restore(run, trust=["unity"]) for run in (whole.run_dir, half.run_dir))
    weights = [dict(policy.agent.state_dict()) for policy in (one, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("shown", [{"video": "ball.mp4"}, {"render": True}])
def test_a_video_is_refused_in_one_sentence(shown: dict[str, Any]) -> None:
    settings = configure("ppo", ID, {"hidden_sizes": [8]}, presets=False)
    spec = to_spec(layout_of(BALL), 1)
    policy = SavedPolicy(build_agent(settings, spec), settings)
    for env in (None, ID):
        with pytest.raises(WhorlError) as error:
            whorl.evaluate(policy, env=env, trust=["unity"], **shown)
        assert "neither a video nor a window can show it; leave out video" in one_sentence(error.value)


def test_flags_of_their_own_are_options_of_the_environment() -> None:
    parser = _settings_parser("train sac")
    names, found = parser.read(["--env-args", "--level 3 --fast", "--port", "5010", "--editor"])
    assert not names
    assert found == {
        "env_options.args": "--level 3 --fast",
        "env_options.port": 5010,
        "env_options.editor": True,
    }
    assert read_options(ID, {"args": "--level 3 --fast"}).arguments == ["--level", "3", "--fast"]
    with pytest.raises(ConfigError, match="--port is 'x'; it must be a whole number"):
        parser.read(["--port", "x"])
