"""A run with replay that is killed at any moment and resumed equals the uninterrupted run, and leaves no litter."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import toys  # noqa: F401  registers them
from test_resume import assert_same, in_child, rows, the_run

import whorl
from whorl.core.errors import CheckpointError, ConfigError
from whorl.data import segments
from whorl.data.replay import Replay
from whorl.run.resume import load_run
from whorl.run.trainer import Result, Trainer
from whorl.state import checkpoint

SMALL: dict[str, Any] = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "num_envs": 4,
    "num_steps": 16,
    "buffer_size": 1200,
    "updates_per_step": 0.02,
    "checkpoint_freq": 180,
    "max_iterations": 45,
    "keep_checkpoints": 2,
    "device": "cpu",
    "workers": 0,
}
TINY = {
    "actor_hidden_sizes": [16],
    "critic_hidden_sizes": [16],
    "batch_size": 32,
    "learning_starts": 100,
    "random_steps": 200,
    "log_freq": 240,
}
GAMES = "frames of sticky games, lives lost"
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "transitions": ("toy_q", "CartPole-v1", SMALL),
    "sequences, memory, priorities": ("toy_recurrent_q", "CartPole-v1", {**SMALL, "memory": "lstm"}),
    "memory that is refreshed, priorities, folds": (
        "dqn",
        "CartPole-v1",
        {
            **SMALL,
            "max_iterations": 30,
            "hidden_sizes": [8],
            "memory": "lstm",
            "memory_size": 8,
            "last_action": True,
            "last_reward": True,
            "refresh_memory": True,
            "sequence_length": 6,
            "burn_in": 2,
            "stride": 4,
            "n_step": 3,
            "prioritized": True,
            "batch_size": 8,
            "learning_starts": 100,
            "log_freq": 240,
        },
    ),
    "priorities": ("toy_actor_critic", "Pendulum-v1", {**SMALL, "checkpoint_freq": 1}),
    "learning while workers act": (
        "td3",
        "Pendulum-v1",
        {**SMALL, **TINY, "workers": 2, "noise": "ou", "prioritized": True, "normalize_obs": True},
    ),
    GAMES: (
        "rainbow",
        "ALE/Breakout-v5",
        {
            **SMALL,
            "num_steps": 8,
            "max_iterations": 30,
            "workers": 2,
            "learning_starts": 100,
            "log_freq": 240,
            "batch_size": 8,
            "hidden_sizes": [8],
            "n_atoms": 5,
            "clip_reward": True,
            "env_options": {"screen": 36, "life_loss": True},
        },
    ),
}


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that a toy's ring of 300 rows per environment takes a dozen or more."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4000)


def start(case: str, folder: Path, **changes: Any) -> Result:
    name, env, settings = CASES[case]
    return whorl.load(env, name, {**settings, **changes, "runs": str(folder)}).train()


def state(run: Path) -> dict[str, Any]:
    """Everything that a resumed run starts from, the rows of its ring in place of the files that hold them."""
    trainer = load_run(run, {})
    assert isinstance(trainer.experience, Replay)
    try:
        trainer.experience.store = None
        return trainer.state()
    finally:
        trainer.close()


def files(run: Path) -> set[str]:
    return {entry.name for entry in (run / "replay").iterdir()}


def newest(run: Path) -> dict[str, Any]:
    """The manifest of the newest checkpoint."""
    return checkpoint.use_newest(run, pytest.fail, lambda loaded: loaded).state["experience"]["ring"][
        "manifest"
    ]


@pytest.mark.parametrize("case", CASES)
def test_killed_at_random_moments_and_resumed_equals_uninterrupted(case: str, tmp_path: Path) -> None:
    """Once with workers, which take seconds to start, and with fewer kills then."""
    changes = {"workers": 0} if case == GAMES else {}
    most_kills = 2 if case == "learning while workers act" else 4
    compare(case, tmp_path, most_kills, longest=0.5, **changes)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_killed_many_times_and_resumed_equals_uninterrupted(case: str, tmp_path: Path) -> None:
    compare(case, tmp_path, most_kills=40, longest=0.2)


def compare(case: str, tmp_path: Path, most_kills: int, longest: float, **changes: Any) -> None:
    """`longest` is the share of a whole run that a child may live."""
    # What is imported late is imported once, and not in every child.
    start(case, tmp_path / "first", max_iterations=1, **changes)
    began = time.monotonic()
    assert in_child(lambda: start(case, tmp_path / "whole", **changes), None)
    whole_time = time.monotonic() - began
    chance = random.Random(case)
    finished, kills, attempt = False, 0, 0
    while not finished:
        pieces = tmp_path / f"pieces{attempt}"
        run = the_run(pieces)
        patience = chance.uniform(0.05, longest) * whole_time if kills < most_kills else None
        if run is None:
            finished = in_child(lambda pieces=pieces: start(case, pieces, **changes), patience)
        else:
            finished = in_child(lambda run=run: whorl.resume(run), patience)
        kills += not finished
        if finished and not kills:  # the machine is quicker now than it was: begin again, with less patience
            finished, attempt, whole_time = False, attempt + 1, whole_time / 2
    one, other = the_run(tmp_path / "whole"), the_run(pieces)
    assert one and other
    assert len(newest(one)["whole"]) > 4, "the thread had something to do"
    assert_same(state(one), state(other))
    assert rows(one) == rows(other)
    for run in (one, other):
        assert files(run) == checkpoint.segments(run)


def test_a_damaged_segment_leads_to_an_older_checkpoint(tmp_path: Path) -> None:
    run = start("transitions", tmp_path, max_iterations=9, keep_checkpoints=0).run_dir
    number = checkpoint.checkpoints(run)[0].name
    last = run / "replay" / newest(run)["tails"][-1]["file"]
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{number}: replay/{last.name} does not match its CRC-32"):
        whorl.resume(run / number)
    with pytest.warns(
        UserWarning, match=rf"skipped a damaged checkpoint, .*{number}: replay/{last.name} does not"
    ):
        assert whorl.resume(run, max_iterations=12).iterations == 12
    whole = start("transitions", tmp_path / "whole", max_iterations=12).run_dir
    assert_same(state(whole)["experience"], state(run)["experience"])


def test_where_every_checkpoint_needs_a_missing_segment_the_sentence_names_it(tmp_path: Path) -> None:
    run = start("transitions", tmp_path, max_iterations=9).run_dir
    missing = newest(run)["whole"][0]["file"]
    for path in run.rglob(missing):  # the run's own, and the links of its checkpoints
        path.unlink()
    with (
        pytest.warns(UserWarning, match="skipped a damaged checkpoint"),
        pytest.raises(
            CheckpointError, match=rf"no undamaged checkpoint in .*checkpoint_\d: replay/{missing} is missing"
        ),
    ):
        whorl.resume(run)
    assert whorl.restore(run).act(torch.zeros(2, 4)).shape == (2,), "acting needs no replay"


def test_a_missing_segment_comes_back_from_the_checkpoint_that_has_a_link_to_it(tmp_path: Path) -> None:
    run = start("transitions", tmp_path, max_iterations=9).run_dir
    expected, missing = state(run), newest(run)["whole"][0]["file"]
    (run / "replay" / missing).unlink()
    assert_same(expected, state(run))


def test_old_segments_go_with_the_checkpoints_that_name_them(tmp_path: Path) -> None:
    run = start("transitions", tmp_path).run_dir
    newest, older = (checkpoint.number(folder) for folder in checkpoint.checkpoints(run))
    assert newest == older + 1 >= 15
    assert files(run) == checkpoint.segments(run)
    # 300 rows per environment, of which the older checkpoint has up to 64 that the newer one has overwritten.
    oldest = min(int(name.split("-")[1]) for name in files(run))
    assert 45 * 16 - 300 - 64 <= oldest <= 45 * 16 - 300
    for folder in checkpoint.checkpoints(run):
        trainer = load_run(folder, {})
        trainer.close()


def test_a_run_folder_can_be_moved(tmp_path: Path) -> None:
    run = start("transitions", tmp_path / "here", max_iterations=9).run_dir
    expected = state(run)
    shutil.copytree(run, tmp_path / "there")
    shutil.rmtree(run)
    assert_same(expected, state(tmp_path / "there"))


def test_going_on_from_an_older_checkpoint_keeps_both_lines_whole(tmp_path: Path) -> None:
    run = start("transitions", tmp_path, max_iterations=30, keep_checkpoints=0).run_dir
    before = {name: (run / "replay" / name).read_bytes() for name in files(run)}
    untouched, last = state(run), checkpoint.checkpoints(run)[0]
    whorl.resume(run / "checkpoint_4", max_iterations=18)
    assert {name: (run / "replay" / name).read_bytes() for name in before} == before
    assert_same(untouched["experience"], state(last)["experience"])
    whole = start("transitions", tmp_path / "whole", max_iterations=18).run_dir
    assert_same(state(whole)["experience"], state(run)["experience"])


def test_another_capacity_is_one_sentence_and_nothing_is_lost(tmp_path: Path) -> None:
    run = start("transitions", tmp_path, max_iterations=9).run_dir
    with pytest.raises(ConfigError, match="a resumed run can't change 'buffer_size'"):
        whorl.resume(run, buffer_size=800)
    loaded = checkpoint.use_newest(run, pytest.fail, lambda loaded: loaded)
    trainer = load_run(run, {})
    trainer.close()
    other = Trainer(trainer.source, trainer.settings.replace(buffer_size=800))
    with pytest.raises(
        ConfigError,
        match="the checkpoint's replay buffer holds 300 rows for each of 4 environments, but the settings ask for 200 "
        "for each of 4; resume with buffer_size 1200 and num_envs 4",
    ):
        other.attach(run, loaded)
    assert whorl.resume(run, max_iterations=10).iterations == 10


def test_without_checkpoints_no_rows_are_written(tmp_path: Path) -> None:
    run = start("transitions", tmp_path, max_iterations=30, save_model=False).run_dir
    assert not (run / "replay").exists()
