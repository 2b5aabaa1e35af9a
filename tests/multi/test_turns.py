"""Games that are played in turns, PettingZoo's AEC API: who is answered after which turn, with which reward."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from zoo import Rounds

import whorl
from whorl.cli import main
from whorl.core.errors import EnvError
from whorl.envs.adapters.imported import module_of
from whorl.envs.adapters.parallel import PettingZooEnv, idle
from whorl.envs.make import find

QUIET = {"quiet": True, "tensorboard": False, "eval": False, "threads": 1, "max_iterations": 4}


def rounds(copies: int = 1, **options: Any) -> PettingZooEnv:
    source = find(Rounds, {"copies": copies, **options})
    env = source.adapter.behavior_env(source)
    env.reset(0)
    return env


def turn(env: PettingZooEnv) -> dict[str, Any]:
    """One turn with the legal actions."""
    masks = {name: rows.tensors.obs["action_mask"] for name, rows in env.rows.items()}
    return env.step({name: mask.int().argmax(1) for name, mask in masks.items()})


def test_an_episode_turn_by_turn():
    """A row is answered when its agent is to act again or is gone, with all reward since its own last turn."""
    env, seen = rounds(), []
    for _ in range(9):
        step = turn(env)
        red, blue = step["red"], step["blue"]
        seen.append(
            [
                (reward, reset, ends, cut) if not waits else None
                for one in (red, blue)
                for waits, reward, reset, ends, cut in zip(
                    one.waits.tolist(),
                    one.reward.tolist(),
                    one.reset.tolist(),
                    one.terminated.tolist(),
                    one.truncated.tolist(),
                )
            ]
        )
    first = (0.0, True, False, False)

    def earned(reward: float) -> tuple[float, bool, bool, bool]:
        return reward, False, False, False

    # red_0 earns 1 a turn, red_1 2, blue_0 3; turns of red_0, red_1, blue_0, red_0, blue_0, red_0, blue_0, red_0
    assert seen == [
        [None, first, None],
        [None, None, first],
        [earned(3.0), None, None],
        [None, (6.0, False, True, False), earned(6.0)],
        [earned(2.0), None, None],
        [None, None, earned(6.0)],
        [earned(2.0), None, None],
        [(1.0, False, False, True), None, (6.0, False, False, True)],
        [first, None, None],
    ]
    order = ["red_0", "red_1", "blue_0", "red_0", "blue_0", "red_0", "blue_0", "red_0"]
    assert env._envs[0].env.received == order


def test_masks_of_the_turn_are_observed_and_nothing_is_forbidden_when_a_game_is_over():
    env = rounds()
    for _ in range(8):
        step = turn(env)
    assert step["red"].obs["action_mask"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert turn(env)["red"].obs["action_mask"][0].tolist() == [1, 0, 0]


def test_a_snapshot_continues_in_the_middle_of_a_game():
    env, other = rounds(2), rounds(2)
    for _ in range(2):  # all have appeared, and two wait
        turn(env)
    other.restore(env.snapshot())
    for _ in range(12):
        mine, theirs = turn(env), turn(other)
        for name in mine:
            for column in ("reward", "terminated", "truncated", "reset", "waits"):
                assert torch.equal(getattr(mine[name], column), getattr(theirs[name], column)), (name, column)


def test_a_reset_in_the_middle_of_a_game_begins_another_one():
    env = rounds()
    for _ in range(3):
        turn(env)
    env.reset(1)
    assert turn(env)["red"].reset.tolist() == [False, True]


class Abandoned(Rounds):
    """Everybody is gone after two turns, and nobody says why."""

    def step(self, action: Any) -> None:
        super().step(action)
        if self.turn == 2:
            self.agents = []


class Crowded(Rounds):
    """Agents whose game is over stay in it."""

    def step(self, action: Any) -> None:
        if action is not None:
            super().step(action)


@pytest.mark.parametrize(
    ("game", "message"),
    [
        (Abandoned, "agent 'red_0' left the game and was neither terminated nor truncated"),
        (Crowded, "agent 'red_1' has ended its game and stays in it"),
    ],
)
def test_games_that_end_against_the_rules_are_errors(game, message):
    source = find(game, {"copies": 1})
    env = source.adapter.behavior_env(source)
    env.reset(0)
    with pytest.raises(EnvError, match=message):
        for _ in range(9):
            turn(env)


def test_agents_that_nobody_trains_take_the_first_legal_action():
    env = rounds(behavior="blue")
    for _ in range(8):
        turn(env)  # the game itself raises for an illegal action
    assert env._envs[0].env.received.count("red_0") == 4
    assert idle(env._envs[0].action_space("red_0"), [0, 0, 1]) == 2


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_policies_that_share_a_game_learn_from_legal_turns(tmp_path, algorithm):
    own = {} if algorithm == "ppo" else {"learning_starts": 8, "batch_size": 8, "buffer_size": 512}
    result = whorl.train(
        Rounds, algorithm, {**QUIET, "num_steps": 16, **own}, env_options={"copies": 2}, runs=str(tmp_path)
    )
    found = whorl.evaluate(result.run_dir, 2, env=Rounds)
    # In two games: 8 turns of red_0, 6 for red_1 after its first turn, 18 for blue_0 after its own.
    assert sorted(found.behaviors["red"].returns) == [6.0, 6.0, 8.0, 8.0]
    assert found.behaviors["blue"].returns == [18.0, 18.0]
    assert found.behaviors["red"].lengths.count(1) == 2  # red_1 acts once


def test_the_command_line_plays_trains_and_records_a_game(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quiet = ["--quiet", "--no-tensorboard", "--no-eval", "--max-iterations", "2", "--num-steps", "16"]
    train = ["train", "ppo", "pettingzoo:zoo:Rounds", "--name", "game", "--env_options.copies", "2", *quiet]
    assert main(train) == 0
    capsys.readouterr()
    play = ["eval", "runs/game", "--episodes", "2", "--trust", "zoo", "--video", "game.gif", "--screenshots"]
    assert main(play) == 0
    said = capsys.readouterr().out
    assert "video: game.gif" in said and "screenshots: " in said
    with Image.open("game.gif") as frames:
        assert frames.n_frames == 8  # one game, a frame for each turn
    pictures = sorted(Path("runs/game/screenshots/newest").iterdir())
    with Image.open(pictures[0]) as last:
        assert last.getpixel((0, 0)) == (160, 160, 160)  # the eighth turn
    assert main([*play, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["video"] == "game.gif"


def test_modules_of_games_are_found_by_their_env():
    pytest.importorskip("pettingzoo")
    assert module_of("pettingzoo:classic.tictactoe_v3") == ""
    assert module_of("pettingzoo:classic.tictactoe_v3:env") == ""
    assert module_of("pettingzoo:classic.tictactoe_v3:raw_env") == "pettingzoo.classic.tictactoe_v3"
    with pytest.raises(EnvError, match="has no parallel_env or env, which makes a PettingZoo environment"):
        whorl.load("pettingzoo:pettingzoo.utils.deprecated_module", "ppo")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_one_policy_plays_tic_tac_toe_against_itself_by_the_rules(tmp_path):
    """PettingZoo ends a game with -1 for an illegal move, so that returns of both players then do not add up to 0."""
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    env = "pettingzoo:classic.tictactoe_v3"
    trainer = whorl.load(
        env, "ppo", {**QUIET, "num_steps": 32}, env_options={"copies": 2}, runs=str(tmp_path)
    )
    assert trainer.settings.run.num_envs == 4  # player_1 and player_2 of two boards
    run = trainer.train().run_dir
    found = whorl.evaluate(run, 8, deterministic=False)
    assert sum(found.returns) == 0 and set(found.returns) <= {-1.0, 0.0, 1.0}
    # Eight games, four on each board: both players have a return in each.
    assert (found.episodes, found.players, len(found.returns)) == (8, 2, 16)
    assert whorl.evaluate(run, 3, deterministic=False).episodes == 3
