"""Training from datasets: without the environment, going on with it, resumed bit for bit, and beside replay."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import whorl
from whorl.conformance import same
from whorl.core.errors import CheckpointError, ConfigError
from whorl.data.batch import Batch
from whorl.data.replay import Replay
from whorl.datasets.rows import read
from whorl.run.resume import load_run

sys.path.append(str(Path(__file__).parents[1] / "datasets"))
from scripted import ACTOR, NETS, SETTINGS, Match, scripted

MEMORY = {
    "memory": "gru",
    "memory_size": 4,
    "last_action": True,
    "sequence_length": 4,
    "sequence_stride": 5,
    "burn_in": 1,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(scripted(tmp_path_factory.mktemp("data") / "match", 12))


@pytest.fixture(scope="module")
def choices(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(scripted(tmp_path_factory.mktemp("data") / "choices", 12, choices=True))


class Counting(Match):
    """Counts the steps of all copies."""

    steps = 0

    def step(self, action: Any) -> Any:
        type(self).steps += 1
        return super().step(action)


def settings(folder: Path, algorithm: str = "", **more: Any) -> dict[str, Any]:
    return {**SETTINGS, **(ACTOR if algorithm == "bc" else NETS), "runs": str(folder), **more}


def state(run: Path, env: Any = Match) -> dict[str, Any]:
    """What a resumed run starts from, the rows of replay in place of the files that hold them."""
    trainer = load_run(run, {}, env=env)
    try:
        assert isinstance(trainer.experience, Replay)
        trainer.experience.store = None
        return trainer.state()
    finally:
        trainer._release()


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_statistics_of_rewards_include_the_dataset(data: str, tmp_path: Path) -> None:
    small = {"actor_width": 8, "critic_width": 8, "num_envs": 2, "n_step": 3}
    given = {**SETTINGS, **small, "runs": str(tmp_path), "dataset": data}
    with whorl.load(Match, "flash_sac", given) as trainer:
        trainer.step()
        assert float(trainer.agent.rewards.statistics.count) > 12


@pytest.mark.parametrize(
    "algorithm", ["bc", "td3_bc", *(pytest.param(n, marks=pytest.mark.full) for n in ("iql", "cql"))]
)
def test_offline_each_step_is_an_update_and_the_environment_is_not_stepped(
    algorithm: str, data: str, tmp_path: Path
) -> None:
    Counting.steps = 0
    asked = settings(tmp_path, algorithm, dataset=data, total_timesteps=30)
    result = whorl.train(Counting, algorithm, asked)
    assert Counting.steps == 0
    assert (result.steps, result.episodes) == (30, 0)
    last = rows(result.run_dir)[-1]
    assert (last["steps"], last["updates"], last["iteration"]) == (30, 30, 3)
    assert "loss/actor" in last


def test_the_replay_buffer_holds_the_dataset_and_its_hash_is_in_the_checkpoint(
    data: str, tmp_path: Path
) -> None:
    run = whorl.train(Match, "bc", settings(tmp_path, "bc", dataset=data, total_timesteps=10)).run_dir
    found = state(run)["experience"]
    recorded = read(data, whorl.make(Match).source.spec(2))
    assert found["dataset"] == recorded.hash
    assert int(found["ring"]["columns"]["mask"].sum()) == recorded.steps == 60
    assert found["granted"] == 10


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        pytest.param("td3_bc", {}, marks=pytest.mark.full),
        pytest.param(
            "iql", {"prioritized": True, "priority_beta_steps": 0, "n_step": 2}, marks=pytest.mark.full
        ),
        ("bc", MEMORY),
    ],
)
def test_an_offline_run_resumes_bit_for_bit_and_without_its_dataset(
    algorithm: str, more: dict[str, Any], tmp_path: Path
) -> None:
    folder = scripted(tmp_path / "data", 8)
    asked = {**more, "dataset": str(folder), "lr_schedule": "constant"}
    whole = whorl.train(
        Match, algorithm, settings(tmp_path / "whole", algorithm, total_timesteps=40, **asked)
    ).run_dir
    half = whorl.train(
        Match, algorithm, settings(tmp_path / "half", algorithm, total_timesteps=20, **asked)
    ).run_dir
    kept = state(whole)
    (folder / "data" / "main_data.hdf5").unlink()
    whorl.resume(half, env=Match, total_timesteps=40, quiet=True)
    again = state(half)
    for name in ("agent", "experience", "streams"):
        for part in kept[name]:
            if name == "experience" and part in ("ring", "sampler"):
                continue
            assert same(kept[name][part], again[name][part]), (name, part)
    assert same(kept["experience"]["ring"]["columns"], again["experience"]["ring"]["columns"])


def test_offline_steps_are_followed_by_steps_in_the_environment(data: str, tmp_path: Path) -> None:
    Counting.steps = 0
    asked = settings(tmp_path, dataset=data, offline_steps=24, total_timesteps=54, updates_per_step=0.5)
    result = whorl.train(Counting, "iql", asked)
    found = rows(result.run_dir)
    assert result.steps >= 54
    online = result.steps - 24
    # Rows of final observations are no steps; those of the newest rollouts reset the environment.
    assert Counting.steps == online
    assert found[-1]["updates"] == 24 + online // 2
    assert result.episodes > 0
    replay = state(result.run_dir, Counting)["experience"]
    assert int(replay["ring"]["columns"]["mask"].sum()) == 60 + online
    assert replay["steps"] == 60 + online


@pytest.mark.full
def test_a_resumed_offline_run_goes_on_online(data: str, tmp_path: Path) -> None:
    Counting.steps = 0
    asked = settings(tmp_path, dataset=data, total_timesteps=20)
    run = whorl.train(Counting, "cql", asked).run_dir
    assert Counting.steps == 0
    result = whorl.resume(run, env=Counting, offline_steps=20, total_timesteps=40, quiet=True)
    assert Counting.steps == result.steps - 20 > 0


@pytest.mark.full
def test_going_online_equals_a_run_that_was_planned_so(data: str, tmp_path: Path) -> None:
    more = {"dataset": data, "updates_per_step": 1.0}
    whole = whorl.train(
        Match, "td3_bc", settings(tmp_path / "a", offline_steps=20, total_timesteps=50, **more)
    ).run_dir
    parts = whorl.train(Match, "td3_bc", settings(tmp_path / "b", total_timesteps=20, **more)).run_dir
    whorl.resume(parts, env=Match, offline_steps=20, total_timesteps=50, quiet=True)
    one, two = state(whole), state(parts)
    assert same(one["agent"]["module"], two["agent"]["module"])
    assert same(one["experience"]["ring"]["columns"], two["experience"]["ring"]["columns"])


@pytest.mark.parametrize("num_envs", [2, 5])  # five have 3, 3, 2, 2 and 2 episodes, so three end in padding
def test_observations_are_normalised_by_the_dataset_alone(num_envs: int, data: str, tmp_path: Path) -> None:
    given = settings(tmp_path, dataset=data, total_timesteps=10, num_envs=num_envs)
    trainer = whorl.load(Match, "td3_bc", given)
    with trainer:
        trainer.step()
        found: Any = trainer.agent.observations.statistics["observation"]
        recorded = read(data, whorl.make(Match).source.spec(1))
        seen = recorded.frames[:-1, 0]  # 12 episodes of six observations, no padding
        assert len(seen) == 72 == int(found.count)
        torch.testing.assert_close(found.mean, seen.mean(0))
        torch.testing.assert_close(found.var, seen.var(0, correction=0))


def test_a_dataset_that_is_missing_leaves_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no dataset"):
        whorl.train(Match, "td3_bc", settings(tmp_path / "runs", dataset=str(tmp_path / "nothing")))
    assert not list((tmp_path / "runs").glob("*"))


def test_a_dataset_that_is_missing_or_does_not_fit_is_one_sentence(data: str, tmp_path: Path) -> None:
    def wrong(algorithm: str, match: str, env: Any = Match, **more: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            whorl.train(env, algorithm, settings(tmp_path, algorithm, total_timesteps=10, **more))

    wrong("bc", "bc learns from a dataset: name one with dataset")
    wrong("cql", "cql learns from a dataset")
    wrong("iql", "which a buffer_size of 40 does not hold; use at least 74", dataset=data, buffer_size=40)
    wrong("iql", "has other spaces than the environment", env="Pendulum-v1", dataset=data)
    wrong("sac", "sac with these settings stores log_prob", dataset=data, use_n_step_is=True, n_step=3)
    wrong("sac", "dataset and load_model both", dataset=data, load_model=True)
    wrong("sac", "dataset and shards", dataset=data, shards=2)
    with pytest.raises(ConfigError, match="ppo learns from its own rollouts"):
        whorl.train(Match, "ppo", dataset=data, num_envs=2, num_steps=5, batch_size=10, runs=str(tmp_path))


def sampled(trainer: Any) -> Batch:
    trainer.step()
    trainer.step()
    return trainer.experience.sample()


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, marks=pytest.mark.full),
        {"prioritized": True, "n_step": 3},
        pytest.param({**MEMORY, "prioritized": True}, marks=pytest.mark.full),
    ],
)
def test_half_of_each_batch_are_demonstrations(more: dict[str, Any], data: str, tmp_path: Path) -> None:
    """Those have observations of the dataset, the others of the run."""
    asked = settings(
        tmp_path, demonstrations=data, learning_starts=0, random_steps=0, max_iterations=20, **more
    )
    with whorl.load(Match, "sac", asked) as trainer:
        batch = sampled(trainer)
        replay: Any = trainer.experience
        own = replay.ring.columns["obs"].flatten(0, 1)
        shown = replay.demonstrations.ring.columns["obs"].flatten(0, 1)
        first = batch.obs[0]  # [B, 2]
        assert batch.shape[1] == 8
        assert [bool((own == row).all(-1).any()) for row in first[:4]] == [True] * 4
        assert [bool((shown == row).all(-1).any()) for row in first[4:]] == [True] * 4
        assert int(replay.demonstrations.ring.columns["mask"].sum()) == 60
        if more.get("prioritized"):
            assert batch.extras["index"].shape == (4,)
            assert (batch.extras["weight"] == batch.extras["share"])[:, 4:].all()  # importance weight 1
        trainer.step()  # priorities of the own half are written
        assert trainer.agent.updates > 0


@pytest.mark.gpu
@pytest.mark.parametrize("more", [{}, {"prioritized": True, "n_step": 3}, {**MEMORY, "prioritized": True}])
def test_demonstrations_are_sampled_on_the_gpu(more: dict[str, Any], data: str, tmp_path: Path) -> None:
    """Both rings are on the device, and a captured draw has new demonstrations each time."""
    asked = settings(
        tmp_path, demonstrations=data, learning_starts=0, random_steps=0, max_iterations=20, **more
    )
    with whorl.load(Match, "sac", asked, device="cuda") as trainer:
        first = sampled(trainer).obs[0].clone()
        replay: Any = trainer.experience
        shown = replay.demonstrations.ring.columns["obs"].flatten(0, 1)
        assert shown.device.type == replay.ring.columns["obs"].device.type == "cuda"
        second = replay.sample().obs[0].clone()
        for drawn in (first, second):
            assert [bool((shown == row).all(-1).any()) for row in drawn[4:]] == [True] * 4
        assert not first[4:].equal(second[4:])
        trainer.step()
        assert trainer.agent.updates > 0


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["bc", "td3_bc", "iql", "cql"])
def test_offline_updates_are_captured_on_the_gpu(algorithm: str, data: str, tmp_path: Path) -> None:
    asked = settings(tmp_path, algorithm, dataset=data, total_timesteps=40, save_model=False)
    assert whorl.train(Match, algorithm, asked, device="cuda").steps == 40


def test_demonstrations_are_learned_from_in_their_share(data: str, tmp_path: Path) -> None:
    asked = settings(
        tmp_path, demonstrations=data, demonstration_ratio=0.25, learning_starts=0, max_iterations=9
    )
    with whorl.load(Match, "td3", asked) as trainer:
        sampled(trainer)
        assert trainer.experience._demonstrated == 2  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"demonstration_ratio 0\.01 of a batch of 8 is 0"):
        whorl.train(Match, "td3", asked, demonstration_ratio=0.01)
    with pytest.raises(ConfigError, match="refresh_memory and refresh_probabilities"):
        whorl.train(Match, "td3", asked, **MEMORY, refresh_memory=True)


def test_a_run_with_demonstrations_resumes_bit_for_bit_and_only_with_the_same(tmp_path: Path) -> None:
    folder = scripted(tmp_path / "data", 6)
    asked = {
        "demonstrations": str(folder),
        "prioritized": True,
        "priority_beta_steps": 0,
        "learning_starts": 0,
    }
    whole = whorl.train(Match, "td3", settings(tmp_path / "a", max_iterations=6, **asked)).run_dir
    half = whorl.train(Match, "td3", settings(tmp_path / "b", max_iterations=3, **asked)).run_dir
    whorl.resume(half, env=Match, max_iterations=6, quiet=True)
    one, two = state(whole), state(half)
    assert same(one["agent"]["module"], two["agent"]["module"])
    assert one["experience"]["demonstrations"] == two["experience"]["demonstrations"] != ""
    moved = str(folder.rename(tmp_path / "moved"))
    with pytest.raises(ConfigError, match=r"there is no dataset in '.*data'"):
        whorl.resume(half, env=Match, max_iterations=8, quiet=True)
    with pytest.raises(CheckpointError, match=r"their hash was .* and is none; restore that dataset"):
        whorl.resume(half, env=Match, max_iterations=8, quiet=True, demonstrations="")
    longer = [
        whorl.resume(run, env=Match, max_iterations=8, quiet=True, demonstrations=moved).run_dir
        for run in (whole, half)
    ]
    assert same(*(state(run)["agent"]["module"] for run in longer)), "settings of the run have the new place"
    scripted(tmp_path / "data", 7)
    with pytest.raises(CheckpointError, match="the demonstrations have changed since this checkpoint"):
        whorl.resume(half, env=Match, max_iterations=9, quiet=True, demonstrations=str(folder))


@pytest.mark.full
def test_discrete_agents_learn_from_demonstrations_and_offline(choices: str, tmp_path: Path) -> None:
    env = lambda: Match(choices=True)  # noqa: E731
    asked = {**SETTINGS, "runs": str(tmp_path), "hidden_sizes": [8], "learning_starts": 0}
    result = whorl.train(env, "dqn", asked, demonstrations=choices, max_iterations=3)
    assert result.iterations == 3
    assert whorl.train(env, "dqn", asked, dataset=choices, total_timesteps=10).steps == 10
    for algorithm in ("bc", "iql", "cql"):
        own = settings(tmp_path, algorithm, dataset=choices, total_timesteps=10)
        assert whorl.train(env, algorithm, own).steps == 10
