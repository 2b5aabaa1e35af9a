"""Whether replay fits: the machine's free memory, the limits of containers, and allocations that fail nevertheless."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml

import whorl
from whorl.bench import cell as cells
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Continuous, Spec
from whorl.data import memory_check as room
from whorl.data import replay_setup
from whorl.data.memory_check import allocating, free_memory, require_memory
from whorl.data.replay_setup import allocated_bytes
from whorl.envs.make import find

CPU = torch.device("cpu")


def machine(root: Path, files: dict[str, str]) -> Path:
    """A file system with 1000 kB of available memory and these files."""
    for name, text in {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    1000 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_limits_free_is_what_the_machine_has(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory.current": "7\n",
    }
    assert free_memory(machine(tmp_path, files)) == 1000 * 1024


def test_a_container_may_have_less_and_gives_up_pages_of_files(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "500000\n",
        "sys/fs/cgroup/memory.current": "300000\n",
        "sys/fs/cgroup/memory.stat": "anon 1000\ninactive_file 50000\nactive_file 9\n",
    }
    assert free_memory(machine(tmp_path, files)) == 500_000 - 300_000 + 50_000


def test_the_limit_of_a_group_above_holds_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/jobs/one\n",
        "sys/fs/cgroup/jobs/memory.max": "100000\n",
        "sys/fs/cgroup/jobs/memory.current": "60000\n",
        "sys/fs/cgroup/jobs/one/memory.max": "90000\n",
        "sys/fs/cgroup/jobs/one/memory.current": "10000\n",
    }
    assert free_memory(machine(tmp_path, files)) == 40_000


def test_the_first_version_of_control_groups_is_read_at_the_top_where_the_path_is_the_hosts(
    tmp_path: Path,
) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n0::/docker/ab\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "200000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "50000\n",
        "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 7000\n",
    }
    assert free_memory(machine(tmp_path, files)) == 157_000


def test_a_group_that_is_over_its_limit_has_nothing(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "100\n",
        "sys/fs/cgroup/memory.current": "300\n",
    }
    assert free_memory(machine(tmp_path, files)) == 0


def test_a_capacity_that_fits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_memory", lambda: 1000)
    require_memory(1000, CPU, 50)
    # 0.9 * 1000 / 1001 of 50 rows
    with pytest.raises(ConfigError, match=r"takes 1,001 bytes, but 1,000 are free on cpu; .* at most 44"):
        require_memory(1001, CPU, 50)


def test_an_allocation_that_fails_is_told_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_setup, "require_memory", lambda *_: None)
    spec = Spec(Array((3,)), Continuous((1,), (-1.0,), (1.0,)), 1)
    cfg = replay_setup.ReplayConfig(buffer_size=10**15)
    with pytest.raises(
        ConfigError, match=r"takes 32,000,000,000,000,008 bytes, more than cpu could allocate"
    ):
        replay_setup.replay_of(cfg, spec, CPU, torch.Generator(), lambda batch: batch.mask)


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="something else"), allocating(1, CPU, 1):
        raise RuntimeError("something else")


def pictures() -> gymnasium.Env:
    class Pictures(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.count = 0
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            self.count += 1
            return self.observation_space.sample(), 1.0, False, self.count == 10, {}

    return Pictures()


SMALL: dict[str, Any] = {"num_envs": 2, "workers": 0, "max_iterations": 2, "eval": False, "quiet": True}


def test_a_buffer_that_nobody_chose_shrinks_until_it_fits_and_the_run_keeps_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A million pictures of 768 bytes do not fit into 200 MB; an eighth of them takes 96 MB, which is less than half.
    monkeypatch.setattr(room, "free_memory", lambda: 200_000_000)
    with pytest.warns(
        UserWarning, match="the replay buffer holds 125,000 transitions: 1,000,000 would take 0.8 GB"
    ):
        result = whorl.train(pictures, "dqn", SMALL, runs=str(tmp_path))
    assert yaml.safe_load((result.run_dir / "config.yaml").read_text())["buffer_size"] == 125_000
    monkeypatch.setattr(room, "free_memory", lambda: 1 << 40)
    resumed = whorl.resume(result, env=pictures, max_iterations=3, quiet=True)
    assert yaml.safe_load((resumed.run_dir / "config.yaml").read_text())["buffer_size"] == 125_000


class Reaching(gymnasium.Env):
    """Big goals, so that a default buffer takes gigabytes."""

    goal = gymnasium.spaces.Box(-1, 1, (100,))
    observation_space = gymnasium.spaces.Dict(observation=goal, achieved_goal=goal, desired_goal=goal)
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.observation_space.sample(), -1.0, False, self.count == 10, {}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -np.ones(len(achieved), np.float32)


@pytest.mark.parametrize(
    ("env", "algorithm", "settings"),
    [
        (Reaching, "sac", {"her": "future"}),
        (pictures, "dqn", {"memory": "lstm"}),
        (pictures, "dqn", {"shards": 2}),
    ],
)
def test_buffers_with_goals_memories_and_shards_shrink_too(
    env: Any, algorithm: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 200_000_000
    monkeypatch.setattr(room, "free_memory", lambda: free)
    with pytest.warns(UserWarning, match="the replay buffer holds"):
        trainer = whorl.load(env, algorithm, {**SMALL, "max_iterations": 1}, runs=str(tmp_path), **settings)
        trainer.build()
    with trainer:
        agent = trainer.agent
        size = allocated_bytes(agent.cfg, agent.spec, CPU, agent.stored(), agent.columns())
        assert free / 8 < size <= free / 2


def test_columns_count_in_what_a_buffer_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with whorl.load(
        "Pendulum-v1", "option_critic", SMALL, runs=str(tmp_path), buffer_size=200_000
    ) as trainer:
        trainer.build()
        agent = trainer.agent
        without, whole = (
            allocated_bytes(agent.cfg, agent.spec, CPU, agent.stored(), columns)
            for columns in (None, agent.columns())
        )
    assert whole - without == 200_000 * 8  # the option of each row
    default = trainer.settings.replace(buffer_size=1_000_000).algo
    without, whole = (
        allocated_bytes(default, agent.spec, CPU, agent.stored(), columns)
        for columns in (None, agent.columns())
    )
    monkeypatch.setattr(room, "free_memory", lambda: (without + whole) // 2)
    with pytest.warns(UserWarning, match="the replay buffer holds"):
        trainer = whorl.load("Pendulum-v1", "option_critic", SMALL, runs=str(tmp_path))
        trainer.build()
    trainer.close()


def test_shards_take_together_what_one_buffer_takes() -> None:
    cfg = replay_setup.ReplayConfig(buffer_size=8_000)
    spec = Spec(Array((3,)), Continuous((1,), (-1.0,), (1.0,)), 4)
    one, four = (allocated_bytes(replace(cfg, shards=shards), spec, CPU, None) for shards in (0, 4))
    assert one <= four < 1.01 * one


def test_the_note_of_a_smaller_buffer_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_memory", lambda: 200_000_000)
    with pytest.warns(UserWarning, match="the replay buffer holds"):
        result = whorl.train(pictures, "dqn", SMALL, runs=str(tmp_path), log_file=True)
    log = result.run_dir / "log.txt"
    assert "the replay buffer holds 125,000 transitions" in log.read_text()


def test_a_cell_of_a_benchmark_shrinks_its_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = whorl.load(pictures, "dqn", SMALL).settings
    monkeypatch.setattr(cells, "find", lambda env, options: find(pictures))
    monkeypatch.setattr(room, "free_memory", lambda: 200_000_000)
    cell = cells.Cell("dqn", "pictures", 1, str(tmp_path / "run"), found.plain(), found.buffer_chosen)
    trainer = cells.CellWorker._trainer(SimpleNamespace(place=0), cell)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="the replay buffer holds"):
        trainer.build()
    with trainer:
        assert trainer.settings.buffer_size == 125_000


def test_a_buffer_that_was_chosen_is_refused_where_it_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "free_memory", lambda: 200_000_000)
    with pytest.raises(ConfigError, match="replay of 900,000 rows takes"):
        whorl.train(pictures, "dqn", SMALL, runs=str(tmp_path), buffer_size=900_000)
