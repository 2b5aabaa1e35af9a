"""A new run with `load_model` goes on where another was: weights, replay buffer, schedules, without a random phase."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import whorl
from whorl.core import tree
from whorl.core.errors import CheckpointError, DamagedError
from whorl.data import segments
from whorl.data.replay import Replay
from whorl.run.resume import load_run
from whorl.run.trainer import Trainer
from whorl.state import checkpoint

SAC: dict[str, Any] = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "num_envs": 2,
    "num_steps": 20,
    "buffer_size": 400,
    "batch_size": 16,
    "updates_per_step": 0.1,
    "learning_starts": 60,
    "random_steps": 80,
    "total_timesteps": 320,
    "checkpoint_freq": 80,
    "actor_hidden_sizes": [8],
    "critic_hidden_sizes": [8],
    "device": "cpu",
    "workers": 0,
}


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1000)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return whorl.train("Pendulum-v1", "sac", {**SAC, "runs": str(tmp_path / "first")}).run_dir


def go_on(folder: Path | str, tmp_path: Path, **changes: Any) -> Trainer:
    """A new run from `folder`, at its first iteration."""
    given = {**SAC, "load_model": True, "load_checkpoint_dir": str(folder), "runs": str(tmp_path / "second")}
    trainer = whorl.load("Pendulum-v1", "sac", {**given, **changes})
    trainer._open()
    return trainer


def replay_of(trainer: Trainer) -> Replay:
    assert isinstance(trainer.experience, Replay)
    return trainer.experience


def rewards(run: Path) -> torch.Tensor:
    """All stored rewards of a saved run."""
    trainer = load_run(run, {})
    try:
        return replay_of(trainer).ring.columns["reward"].clone()
    finally:
        trainer.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_memories_of_the_first_observations_are_made_with_the_loaded_weights(
    workers: int, tmp_path: Path
) -> None:
    episodic = {"components": ["episodic"], "episodic": {"capacity": 4, "hidden_sizes": [8], "features": 4}}
    given = {**SAC, **episodic, "runs": str(tmp_path / "first")}
    run = whorl.train("Pendulum-v1", "sac", given).run_dir
    with go_on(run, tmp_path, **episodic, workers=workers) as trainer:
        found = trainer.collector.state_dict()
        for part in found["workers"] if workers else [found]:
            with torch.no_grad():
                tree.map(torch.testing.assert_close, part["memory"], trainer.agent.begin(part["obs"]))


def test_load_model_restores_the_replay_buffer(first: Path, tmp_path: Path) -> None:
    with go_on(first, tmp_path) as trainer:
        replay = replay_of(trainer)
        assert replay.ring.rows == 160 and replay.steps == 320
        assert torch.equal(replay.ring.columns["reward"], rewards(first))
        drawn = replay.drawn
        trainer.step()
        # 0.1 updates per step: 4 for the 40 new steps, none for the old ones; and no random phase before them
        assert replay.drawn - drawn == 4
        assert replay.ring.rows == 180


def test_the_random_phase_is_not_repeated(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    with go_on(first, tmp_path) as trainer:
        start = trainer.collector.start
        monkeypatch.setattr(trainer.collector, "start", lambda random: (seen.append(random), start(random)))
        trainer.step()
    with go_on(first / "checkpoint_1", tmp_path, random_steps=200) as trainer:
        start = trainer.collector.start
        monkeypatch.setattr(trainer.collector, "start", lambda random: (seen.append(random), start(random)))
        for _ in range(4):
            trainer.step()
    # checkpoint_1 was at step 80: 120 of 200 random steps are left, three rollouts of 40
    assert seen == [False, True, True, True, False]


def test_schedules_go_on_over_both_runs(first: Path, tmp_path: Path) -> None:
    with go_on(first, tmp_path, total_timesteps=320) as trainer:
        trainer.step()
        assert float(trainer.agent.progress) == pytest.approx(0.5)
        trainer.step()
        assert float(trainer.agent.progress) == pytest.approx(360 / 640)
        assert trainer.steps == 80
        folder = trainer.save()
    resumed = load_run(folder, {})
    try:
        assert resumed.counters.earlier["steps"] == 320
    finally:
        resumed.close()


def test_a_run_from_a_run_from_a_run_counts_the_steps_of_all(first: Path, tmp_path: Path) -> None:
    with go_on(first, tmp_path) as trainer:
        trainer.step()
        second = trainer.save()
    with go_on(second, tmp_path) as trainer:
        assert trainer.counters.earlier["steps"] == 360
        trainer.step()
        assert float(trainer.agent.progress) == pytest.approx(360 / 680)


def test_shards_say_that_they_take_no_rows(first: Path, tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match="the replay buffer starts empty, because shards can't take the rows"
    ):
        go_on(first, tmp_path, shards=1).close()


def test_a_new_run_has_its_own_files_of_the_rows(first: Path, tmp_path: Path) -> None:
    trainer = go_on(first, tmp_path)
    second = trainer.train().run_dir
    shutil.rmtree(first)
    continued = load_run(second, {"total_timesteps": 400})
    assert replay_of(continued).ring.rows == 320
    assert continued.train().steps == 400


def test_a_checkpoint_folder_copied_elsewhere_works_by_itself(first: Path, tmp_path: Path) -> None:
    before = rewards(first / "checkpoint_2")
    copied = tmp_path / "elsewhere" / "checkpoint_2"
    shutil.copytree(first / "checkpoint_2", copied)
    shutil.rmtree(first)
    with go_on(copied, tmp_path) as trainer:
        assert replay_of(trainer).ring.rows == 80
        assert torch.equal(replay_of(trainer).ring.columns["reward"][:80], before[:80])
    assert whorl.resume(copied).steps == 320
    assert whorl.evaluate(copied, 1, max_steps=5).lengths == [5]


def test_a_renamed_copy_can_be_loaded_and_says_how_it_could_be_resumed(first: Path, tmp_path: Path) -> None:
    copied = tmp_path / "elsewhere" / "good one"
    shutil.copytree(first / "checkpoint_2", copied)
    with go_on(copied, tmp_path) as trainer:
        assert replay_of(trainer).ring.rows == 80
    whorl.restore(copied)
    with pytest.raises(CheckpointError, match="rename it to resume it"):
        whorl.resume(copied)


def test_rows_are_links_that_cost_no_space_and_go_with_their_checkpoint(tmp_path: Path) -> None:
    given = {**SAC, "runs": str(tmp_path), "keep_checkpoints": 2, "buffer_size": 100}
    run = whorl.train("Pendulum-v1", "sac", given).run_dir
    shared = {path.name: path for path in (run / "replay").iterdir()}
    kept = checkpoint.checkpoints(run)
    assert len(kept) == 2
    linked = [path for folder in kept for path in (folder / "replay").iterdir()]
    assert linked and all(path.samefile(shared[path.name]) for path in linked)
    assert shared.keys() == {path.name for path in linked}


def test_without_hard_links_the_run_folder_alone_holds_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.link", refuse)
    run = whorl.train("Pendulum-v1", "sac", {**SAC, "runs": str(tmp_path / "first")}).run_dir
    assert not list((run / "checkpoint_1").rglob("*.rows"))
    with go_on(run, tmp_path) as trainer:  # copied
        assert replay_of(trainer).ring.rows == 160
    with pytest.warns(UserWarning, match="the replay buffer starts empty, because replay/.* is missing"):
        alone = tmp_path / "alone" / "checkpoint_1"
        shutil.copytree(run / "checkpoint_1", alone)
        go_on(alone, tmp_path).close()


def test_best_can_be_loaded(tmp_path: Path) -> None:
    given = {**SAC, "runs": str(tmp_path / "first"), "eval": True, "eval_freq": 160, "n_eval_episodes": 1}
    run = whorl.train("Pendulum-v1", "sac", {**given, "eval_max_steps": 5}).run_dir
    with pytest.warns(UserWarning, match="best: the replay buffer starts empty, because it is a policy"):
        trainer = go_on(run / "best", tmp_path)
    saved = checkpoint.load(run / "best").policy["module"]
    assert torch.equal(trainer.agent.state_dict()["critic.nets.weights.0"], saved["critic.nets.weights.0"])
    trainer.close()


def test_names_are_looked_up_in_the_runs_folder_in_use(first: Path, tmp_path: Path) -> None:
    with go_on(f"{first.name}/checkpoint_1", tmp_path, runs=str(first.parent)) as trainer:
        assert replay_of(trainer).ring.rows == 40
        trainer.load_weights(first.name)


def test_a_run_that_is_not_there_is_not_said_to_be_the_new_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run 'nowhere'; there are no runs in"):
        go_on("nowhere", tmp_path, runs=str(tmp_path / "new"), name="begun")


@pytest.mark.parametrize("changes", [{"buffer_size": 600}, {"num_envs": 4, "num_steps": 10}])
def test_a_buffer_of_another_size_is_not_taken_and_the_message_says_what_to_set(
    changes: dict[str, Any], first: Path, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="starts empty, because .* buffer_size 400 and num_envs 2"):
        trainer = go_on(first, tmp_path, **changes)
    assert replay_of(trainer).ring.rows == 0 and not list((trainer.run_dir or tmp_path).rglob("*.rows"))
    trainer.step()
    trainer.close()
    with pytest.raises(CheckpointError, match="starts empty, because"):
        go_on(first, tmp_path, load_strict=True, **changes)


def test_recurrent_states_of_another_size_are_not_taken(tmp_path: Path) -> None:
    # Those that are refreshed are in the checkpoint itself.
    recurrent = {"memory": "gru", "memory_size": 4, "sequence_length": 10, "refresh_memory": True}
    given = {**SAC, **recurrent, "stored_memory": True, "sequence_stride": 5, "runs": str(tmp_path / "first")}
    run = whorl.train("Pendulum-v1", "sac", given).run_dir
    changes: dict[str, Any] = {**given, "runs": str(tmp_path / "second")}
    with go_on(run, tmp_path, **changes) as trainer:
        assert replay_of(trainer).ring.rows == 160
    with pytest.warns(UserWarning, match="starts empty, because its recurrent states have another size"):
        trainer = go_on(run, tmp_path, **{**changes, "memory_size": 6})
    assert replay_of(trainer).ring.rows == 0
    trainer.close()


def test_priorities_are_taken_where_samples_are_the_same_and_else_found_again(
    tmp_path: Path,
) -> None:
    first = whorl.train(
        "Pendulum-v1", "sac", {**SAC, "prioritized": True, "runs": str(tmp_path / "first")}
    ).run_dir
    saved = checkpoint.load(checkpoint.checkpoints(first)[0]).state["experience"]["sampler"]["leaves"]
    with go_on(first, tmp_path, prioritized=True) as trainer:
        leaves = replay_of(trainer).sampler.state_dict()["leaves"]
        assert torch.equal(leaves, saved) and len(saved.unique()) > 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = go_on(first, tmp_path, prioritized=True, n_step=3)
    leaves = replay_of(trainer).sampler.state_dict()["leaves"]
    # 160 rows of two environments; the last three rows have no three successors
    assert int((leaves > 0).sum()) < int((saved > 0).sum())
    assert len(leaves[leaves > 0].unique()) == 1
    trainer.step()
    trainer.close()


def test_damaged_rows_end_the_new_run_with_a_sentence(first: Path, tmp_path: Path) -> None:
    path = max((first / "replay").iterdir())
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=r"does not match its CRC-32.*load another checkpoint"):
        go_on(first, tmp_path)
