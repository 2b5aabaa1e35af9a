"""The worker pool: equal to stepping in process, loud when a worker fails, gone when the parent is."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from whorl.core import tree
from whorl.core.errors import EnvError
from whorl.core.spec import Discrete
from whorl.distributed import hang_timer
from whorl.distributed import pool as pool_module
from whorl.distributed.pool import WorkerPool
from whorl.envs.adapter import factory_from_id
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.make import default_workers

pytestmark = pytest.mark.usefixtures("started")

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
CARTPOLE = factory_from_id("CartPole-v1")


class Moody(gymnasium.Env):
    """Dict observations and a mask; some actions make it raise, hang, print or leave."""

    observation_space = spaces.Dict(x=spaces.Box(-1, 1, (2,)), y=spaces.Discrete(3))
    action_space = spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self._obs(), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        if action == 1:
            raise RuntimeError("the wheels came off")
        if action == 2:
            time.sleep(1000)
        if action == 3:
            print("a print of the environment")  # noqa: T201 - that it does no harm is the point
        if action == 4:
            os._exit(17)
        return self._obs(), float(action), False, False, self._info()

    def _obs(self) -> dict[str, Any]:
        return {"x": self.np_random.random(2, dtype=np.float32), "y": self.np_random.integers(3)}

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.np_random.random(5) > 0.5}


@pytest.fixture(scope="module")
def pool(started: None) -> Iterator[WorkerPool]:
    made = WorkerPool(CARTPOLE, 6, "CartPole-v1", 2, arrays={"scratch": ((2, 3), "float32")})
    yield made
    made.close()


def actions(spec: Any, num_envs: int, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if isinstance(spec.action, Discrete):
        return [torch.randint(0, spec.action.n, (num_envs,), generator=generator) for _ in range(count)]
    return [torch.rand(num_envs, spec.action.size, generator=generator) * 2.4 - 1.2 for _ in range(count)]


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/stat")
        # A zombie that nobody has reaped yet has ended, too.
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(("id", "num_envs", "workers"), [("CartPole-v1", 7, 2), ("HalfCheetah-v5", 3, 2)])
def test_a_pool_equals_stepping_in_process_to_the_last_bit(id: str, num_envs: int, workers: int):
    if id == "HalfCheetah-v5":
        pytest.importorskip("mujoco")
    factory = factory_from_id(id, max_episode_steps=40)
    here, there = GymnasiumVector(factory, num_envs, id), WorkerPool(factory, num_envs, id, workers)
    assert here.spec == there.spec
    assert torch.equal(here.reset(5), there.reset(5))
    for action in actions(here.spec, num_envs, 100):
        a, b = here.step(action), there.step(action)
        for name in ("obs", "reward", "terminated", "truncated", "reset"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name
    there.close()


def test_groups_are_contiguous_and_cover_all_envs(pool: WorkerPool):
    assert pool.groups == 2
    assert [pool.env_slice(group) for group in range(2)] == [slice(0, 4), slice(4, 6)]


def test_stepping_by_groups_equals_stepping_all(pool: WorkerPool):
    plan = actions(pool.spec, 6, 30)
    pool.reset(2)
    expected = [pool.step(action).obs.clone() for action in plan]
    pool.reset(2)
    for group in (0, 1):
        pool.send(group, plan[0][pool.env_slice(group)])
    for now, following in zip(range(30), [*plan[1:], None]):
        for group in (0, 1):
            rows = pool.env_slice(group)
            assert torch.equal(pool.receive(group).obs, expected[now][rows])
            if following is not None:
                pool.send(group, following[rows])


def test_groups_may_be_received_in_any_order(pool: WorkerPool):
    pool.reset(0)
    plan = actions(pool.spec, 6, 1)[0]
    expected = pool.step(plan).obs.clone()
    pool.reset(0)
    pool.send(0, plan[pool.env_slice(0)])
    pool.send(1, plan[pool.env_slice(1)])
    assert torch.equal(pool.receive(1).obs, expected[pool.env_slice(1)])
    assert torch.equal(pool.receive(0).obs, expected[pool.env_slice(0)])


def test_what_was_received_stays_valid_while_the_group_steps_again(pool: WorkerPool):
    pool.reset(0)
    action = torch.zeros(4, dtype=torch.int64)
    pool.send(0, action)
    first = pool.receive(0)
    kept = first.obs.clone()
    pool.send(0, action)
    time.sleep(0.05)
    assert torch.equal(first.obs, kept)
    assert not torch.equal(pool.receive(0).obs, kept)


def test_sending_twice_without_receiving_is_refused(pool: WorkerPool):
    pool.reset(0)
    pool.send(0, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(EnvError, match="receive it"):
        pool.send(0, torch.zeros(4, dtype=torch.int64))
    pool.receive(0)


def test_a_snapshot_of_a_pool_continues_exactly_in_process(pool: WorkerPool):
    plan = actions(pool.spec, 6, 60)
    pool.reset(4)
    for action in plan[:25]:
        pool.step(action)
    snapshot = pool.snapshot()
    expected = [pool.step(action).obs.clone() for action in plan[25:]]
    here = GymnasiumVector(CARTPOLE, 6, "CartPole-v1")
    assert torch.equal(here.restore(snapshot), snapshot["obs"])
    assert all(torch.equal(here.step(action).obs, e) for action, e in zip(plan[25:], expected))
    pool.restore(snapshot)
    assert all(torch.equal(pool.step(action).obs, e) for action, e in zip(plan[25:], expected))


def test_workers_do_not_import_torch(pool: WorkerPool):
    class Loaded:
        def __init__(self, stepper: Any, arrays: Any) -> None: ...

        def has(self, module: str) -> bool:
            return module in sys.modules

    pool.attach(Loaded, [(), ()])
    pool.start("has", [("torch",)] * 2)
    assert pool.collect("has") == [False, False]


def test_an_attached_object_lives_next_to_the_envs_and_writes_shared_arrays(pool: WorkerPool):
    class Counter:
        def __init__(self, stepper: Any, arrays: dict[str, np.ndarray], row: int) -> None:
            self.stepper, self.arrays, self.row, self.calls = stepper, arrays, row, 0

        def count(self) -> list[int]:
            self.calls += 1
            self.arrays["scratch"][self.row] = len(self.stepper)
            return [*self.stepper.numbers, self.calls]

    pool.attach(Counter, [(0,), (1,)])
    for calls in (1, 2):
        pool.start("count", [(), ()])
        assert pool.collect("count") == [[0, 1, 4, calls], [2, 3, 5, calls]]
    assert pool.arrays["scratch"].tolist() == [[3.0] * 3, [3.0] * 3]


def test_dict_observations_and_masks_travel():
    there, here = WorkerPool(Moody, 2, "Moody", 1), GymnasiumVector(Moody, 2, "Moody")
    assert there.spec.masked and set(there.spec.observation) == {"x", "y", "action_mask"}
    a, b = here.reset(0), there.reset(0)
    assert all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b)))
    a, b = here.step(torch.tensor([0, 0])).obs, there.step(torch.tensor([0, 3])).obs
    assert all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b)))
    there.close()


def test_an_exception_arrives_with_the_environments_own_traceback():
    pool = WorkerPool(Moody, 2, "Moody", 2)
    pool.reset(0)
    with pytest.raises(
        EnvError,
        match=r"worker 1 .*: environment 1, step 1 of episode 1: step\(\) raised RuntimeError: the wheels",
    ) as caught:
        pool.step(torch.tensor([0, 1]))
    lines = caught.value.details.splitlines()
    assert "test_pool.py" in lines[1] and lines[-1] == "RuntimeError: the wheels came off"
    assert str(caught.value) == f"{caught.value.message}\n\n{caught.value.details}"
    with pytest.raises(EnvError, match="wheels"):
        pool.step(torch.tensor([0, 0]))
    assert all(remote.process.poll() is not None for remote in pool._remotes)


def test_a_worker_that_leaves_is_named_with_its_exit_code():
    pool = WorkerPool(Moody, 1, "Moody", 1)
    pool.reset(0)
    with pytest.raises(EnvError, match=r"worker 0 \(environments 0\) left with exit code 17"):
        pool.step(torch.tensor([4]))


def test_a_killed_worker_is_noticed_at_once():
    pool = WorkerPool(Moody, 2, "Moody", 2)
    pool.reset(0)
    pool.attach(lambda stepper, arrays: time, [(), ()])
    pool.start("sleep", [(3600,), (3600,)])
    began = time.monotonic()
    pool._remotes[1].process.kill()
    with pytest.raises(EnvError, match=r"environments 1\) was killed by SIGKILL"):
        pool.collect("sleep")
    assert time.monotonic() - began < 600


def test_closing_twice_is_fine_and_a_closed_pool_says_so():
    pool = WorkerPool(Moody, 1, "Moody", 1)
    pool.close()
    pool.close()
    with pytest.raises(EnvError, match="closed"):
        pool.send(0, torch.tensor([0]))


def test_a_forgotten_pool_ends_its_workers():
    pool = WorkerPool(Moody, 1, "Moody", 1)
    pid = pool._remotes[0].pid
    del pool
    gc.collect()
    assert gone(pid)


def test_more_workers_than_envs_are_refused():
    with pytest.raises(EnvError, match="3 workers can't share 2 environments"):
        WorkerPool(CARTPOLE, 2, "CartPole-v1", 3)


def test_there_is_no_default_worker_without_a_env():
    assert default_workers(1) == 1


SCRIPT = """
    import sys, time
    import gymnasium, numpy as np, torch
    from whorl.distributed.pool import WorkerPool

    class Slow(gymnasium.Env):  # defined in a script without a main guard: it travels by value
        observation_space = gymnasium.spaces.Box(-1, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}
        def step(self, action):
            time.sleep(1000 if action else 0.001)
            return np.zeros(1, np.float32), 0.0, False, False, {}

    pool = WorkerPool(Slow, 4, "Slow", 2)
    pool.reset(0)
    print(*(remote.pid for remote in pool._remotes), flush=True)
    while True:
        pool.step(torch.full((4,), int(sys.argv[1])))
"""


def run_script(tmp_path: Path, action: int) -> tuple["subprocess.Popen[str]", list[int]]:
    """A parent with a pool in the middle of stepping, and the ids of its workers."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen(
        [sys.executable, str(script), str(action)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        start_new_session=True,
        # A shell starts what runs in its background with Ctrl-C ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 2
    return parent, workers


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize("action", [0, 1], ids=["stepping", "hanging"])
def test_a_killed_parent_leaves_neither_processes_nor_memory(tmp_path: Path, action: int):
    parent, workers = run_script(tmp_path, action)
    time.sleep(0.1)
    parent.kill()
    parent.communicate()
    assert all(map(gone, workers))
    shared = Path("/dev/shm")
    assert not shared.is_dir() or not [entry for entry in shared.iterdir() if "whorl" in entry.name]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes through /proc")
def test_ctrl_c_ends_everything_with_one_traceback(tmp_path: Path):
    parent, workers = run_script(tmp_path, 0)
    time.sleep(0.1)
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=600)
    assert errors.count("Traceback") == 1 and "KeyboardInterrupt" in errors
    assert all(map(gone, workers))


def test_a_worker_has_stalled_when_it_makes_no_step_for_long_not_when_its_rollout_is_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress, now = np.zeros(2), [0.0]
    monkeypatch.setattr(hang_timer.time, "monotonic", lambda: now[0])
    stalls, never = pool_module.StallDetector(progress, 10.0), pool_module.StallDetector(progress, 0.0)
    for second in range(1, 40):
        now[0] = float(second)
        progress[0] += 0.01
        assert stalls.found() == ([1] if second > 10 else []) and never.found() == []


def test_workers_have_not_stalled_because_everything_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(hang_timer.time, "monotonic", lambda: now[0])
    stalls = pool_module.StallDetector(np.zeros(1), 10.0)
    now[0] = 3600.0  # of these, pool.MOST_BETWEEN count
    assert stalls.found() == []
    now[0] += 4.0
    assert stalls.found() == []
    now[0] += 2.0
    assert stalls.found() == [0]


def test_a_worker_hangs_only_if_several_waits_in_a_row_end_without_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wait is over when this process goes on after it was stopped, a suspended job for instance."""
    ended, answers = list[float](), [False, True, *[False] * 10]

    def waited(remotes: Any, timeout: float) -> list[Any]:
        ended.append(timeout)
        return remotes if answers.pop(0) else []

    monkeypatch.setattr(pool_module, "wait", waited)
    assert pool_module._answers(None, 20.0) and ended == [5.0, 5.0]  # type: ignore[arg-type]
    assert not pool_module._answers(None, 20.0) and len(ended) == 6  # type: ignore[arg-type]


def test_a_pool_in_which_a_worker_hangs_ends_where_there_are_no_signals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Windows can only kill."""

    class Process:
        killed = False

        def send_signal(self, number: int) -> None:
            raise ValueError(f"Unsupported signal: {number}")

        def kill(self) -> None:
            self.killed = True

    process = Process()
    made = WorkerPool.__new__(WorkerPool)
    made.timeout, made._failed, made._remotes = 3.0, "", []
    monkeypatch.setattr(pool_module.os, "name", "nt")
    with pytest.raises(EnvError, match="worker 0 did not answer within 3 seconds"):
        made._hangs(SimpleNamespace(process=process, name="worker 0"))  # type: ignore[arg-type]
    assert process.killed
