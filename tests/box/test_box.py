"""Agents in the box: cards and weights fit together, and each is shown in a terminal or recorded without a display."""

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from whorl import api, cli
from whorl.box import play as playing
from whorl.box.add import _public, add
from whorl.box.cards import FOLDER, agents, load
from whorl.box.play import play
from whorl.core import files
from whorl.core.errors import CheckpointError, ConfigError, WhorlError
from whorl.log.terminal import SHOW, Terminal, blocks

ROOT = Path(__file__).parents[2]
TINY = {"num_envs": 2, "num_steps": 8, "max_iterations": 1, "quiet": True, "seed": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of SAC, whose actor acts without the critics."""
    folder = tmp_path_factory.mktemp("runs")
    sizes = {"actor_hidden_sizes": (8,), "critic_hidden_sizes": (64,)}
    small = {**TINY, **sizes, "learning_starts": 0, "runs": str(folder), "name": "pendulum"}
    return Path(api.train("Pendulum-v1", "sac", small).run_dir)


def test_the_box_is_whole_and_small() -> None:
    spec = importlib.util.spec_from_file_location("box", ROOT / "benchmarks" / "box.py")
    assert spec is not None and spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = agents()
    assert "cartpole" in found and found.keys() <= script.COMMANDS.keys()
    for name, card in found.items():
        assert files.sha256(FOLDER / f"{name}.pt") == card.sha256
        assert card.name == name and card.episodes >= 30 and len(card.commit) == 40
        assert card.command == script.COMMANDS[name]
        assert card.command.startswith(f"whorl train {card.algorithm} {card.env} ")
        assert f" --seed {card.seed}" in card.command
        assert card.about and card.about != f"{card.algorithm} on {card.env}"
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= script.MOST_BYTES


@pytest.mark.parametrize("name", sorted(agents()))
def test_an_agent_acts_in_its_environment(name: str) -> None:
    policy, card = load(name)
    try:
        found = api.evaluate(policy, 1, seed=card.eval_seed, max_steps=20, deterministic=not card.stochastic)
    except WhorlError as error:
        if "is not installed" in str(error):
            pytest.skip(str(error))
        raise
    assert found.lengths[0] <= 20


def test_cartpole_is_balanced_to_the_end() -> None:
    assert api.evaluate(load("cartpole")[0], 2).returns == [500.0, 500.0]


def test_adding_a_run_writes_what_acting_reads_and_a_card(run: Path, tmp_path: Path) -> None:
    card = add(run, "swing", about="swings", episodes=2, folder=tmp_path)
    assert (card.algorithm, card.env, card.seed, card.episodes) == ("sac", "Pendulum-v1", 3, 2)
    assert agents(tmp_path) == {"swing": card}
    policy, again = load("swing", tmp_path)
    assert again == card
    whole = api.restore(run)
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.testing.assert_array_equal(policy.act(obs), whole.act(obs))
    assert (tmp_path / "swing.pt").stat().st_size < 0.7 * next(
        run.glob("checkpoint_*/policy.pt")
    ).stat().st_size
    with pytest.raises(WhorlError, match="saved for acting alone, so it has no value"):
        policy.value(obs)
    assert str(run.parent) not in (tmp_path / "swing.pt").read_bytes().decode("latin-1")


def test_weights_of_another_file_are_refused(run: Path, tmp_path: Path) -> None:
    add(run, "swing", episodes=1, folder=tmp_path)
    with open(tmp_path / "swing.pt", "ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match="not the file that its card describes"):
        load("swing", tmp_path)


def test_a_command_loses_the_folders_of_its_machine() -> None:
    words = (
        "python /home/me/.venv/bin/whorl train ppo Pong-v5 --runs /home/me/runs --seed 3 --max_seconds 9 --name=mine "
        "--gamma 0.9 --eval-freq 5000"
    )
    assert _public(words, "ppo", "Pong-v5") == "whorl train ppo Pong-v5 --seed 3 --gamma 0.9"
    assert _public("python script.py", "ppo", "Pong-v5") == "whorl train ppo Pong-v5"


def test_an_unknown_screen_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="screen is 'terminl'; did you mean 'terminal'"):
        play("cartpole", screen="terminl")


def test_half_blocks_have_the_upper_pixel_as_text_and_the_lower_as_background() -> None:
    frame = np.array([[[1, 2, 3], [1, 2, 3]], [[4, 5, 6], [4, 5, 6]]], np.uint8)
    assert blocks(frame, 2, 1) == "\x1b[38;2;1;2;3;48;2;4;5;6m▀▀\x1b[0m"


def test_a_frame_keeps_its_proportions_in_a_terminal() -> None:
    lines = blocks(np.zeros((400, 600, 3), np.uint8), 80, 20).split("\n")
    assert len(lines) == 20 and {line.count("▀") for line in lines} == {60}


def test_the_terminal_shows_a_run_and_gives_the_cursor_back(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(playing, "Terminal", lambda title: Terminal(title, stream))
    found = play(run, screen="terminal", speed=1e3, fps=1e6, max_steps=3)
    assert found.lengths == [3] and stream.getvalue().count("\x1b[H") == 3
    assert stream.getvalue().endswith(SHOW) and "sac on Pendulum-v1" in stream.getvalue()


def test_without_a_display_the_terminal_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "has_display", lambda: False)
    assert isinstance(playing._open("auto", "x")[0], Terminal)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--agents"]) == 0
    assert "cartpole" in capsys.readouterr().out
    path = tmp_path / "episode.gif"
    assert cli.main(["play", "cartpole", "--gif", str(path), "--max-steps", "6"]) == 0
    assert "episode 1: return 6.0 in 6 steps" in capsys.readouterr().out
    with Image.open(path) as picture:
        assert picture.n_frames >= 3  # type: ignore[attr-defined]  # of GIFs
