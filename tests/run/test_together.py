"""Several runs in one process: each is bit for bit the run that it would be alone, and one that ends stops no other."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import assert_same

import whorl
from whorl.core.cuda_graphs import Gate
from whorl.core.errors import ConfigError
from whorl.run.callbacks import Callback
from whorl.run.reporting import Result
from whorl.run.resume import load_run
from whorl.run.together import train_together
from whorl.run.trainer import Trainer

SMALL = {
    "device": "cpu",
    "workers": 0,
    "num_envs": 4,
    "num_steps": 8,
    "max_iterations": 8,
    "eval_freq": 10_000,
    "n_eval_episodes": 1,
    "checkpoint_freq": 96,
    "log_freq": 32,
    "tensorboard": False,
    "quiet": True,
}
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": (
        "CartPole-v1",
        {"batch_size": 16, "n_epochs": 1, "actor_hidden_sizes": [8], "critic_hidden_sizes": [8]},
    ),
    "fast_td3": (
        "Pendulum-v1",
        {
            "batch_size": 16,
            "actor_hidden_sizes": [8],
            "critic_hidden_sizes": [8],
            "learning_starts": 32,
            "buffer_size_per_env": 50,
            "updates_per_iteration": 2,
        },
    ),
}


def trainer(rule: str, folder: Path, seed: int, callbacks: Any = (), **changes: Any) -> Trainer:
    env, own = RULES[rule]
    settings = {**SMALL, **own, "runs": str(folder), "name": f"seed{seed}", "seed": seed, **changes}
    return whorl.load(env, rule, settings, callbacks=callbacks)


def same_runs(one: Path, other: Path) -> None:
    """Both have the same last state, and the same metrics but for times."""
    assert_same(state(one), state(other))
    assert metrics(one) == metrics(other)


def state(folder: Path) -> dict[str, Any]:
    """Everything that a resumed run starts from, the rows of its ring in place of the files that hold them."""
    trainer: Any = load_run(folder, {})
    try:
        trainer.experience.store = None
        return trainer.state()
    finally:
        trainer.close()


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if not key.startswith(("time", "system/"))} for row in rows
    ]


@pytest.mark.parametrize("rule", ["ppo", pytest.param("fast_td3", marks=pytest.mark.full)])
def test_runs_in_one_process_are_those_that_each_would_be_alone(rule: str, tmp_path: Path) -> None:
    alone = {seed: trainer(rule, tmp_path / "alone", seed).train() for seed in (1, 2)}
    together = train_together({seed: trainer(rule, tmp_path / "together", seed) for seed in (1, 2)})
    for seed, result in together.items():
        assert isinstance(result, Result), result
        assert result.mean_return == alone[seed].mean_return
        same_runs(result.run_dir, alone[seed].run_dir)


class StopAt(Callback):
    """Interrupts its run, or fails, after some iterations."""

    def __init__(self, iteration: int, fails: bool = False) -> None:
        self.iteration, self.fails = iteration, fails

    def on_update(self, trainer: Any, metrics: dict[str, Any]) -> None:
        if trainer.iteration != self.iteration:
            return
        if self.fails:
            raise RuntimeError("a mistake in a callback")
        trainer.interrupt("SIGTERM")


def test_one_that_is_interrupted_is_resumed_and_one_that_fails_stops_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "together"
    alone = {seed: trainer("ppo", tmp_path / "alone", seed).train() for seed in (1, 2)}
    found = train_together(
        {
            1: trainer("ppo", folder, 1, [StopAt(5)]),
            2: trainer("ppo", folder, 2),
            3: trainer("ppo", folder, 3, [StopAt(3, fails=True)]),
        }
    )
    assert isinstance(found[1], SystemExit) and found[1].result.iterations == 5
    assert isinstance(found[3], RuntimeError) and "a mistake in a callback" in str(found[3])
    assert isinstance(found[2], Result)
    same_runs(found[2].run_dir, alone[2].run_dir)
    resumed = whorl.resume(found[1].result.run_dir)
    same_runs(resumed.run_dir, alone[1].run_dir)


def test_building_the_others_counts_towards_max_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, clock, later = Trainer.build, time.perf_counter, [0.0]

    def slow(self: Trainer) -> Trainer:
        if not self._built:
            later[0] += 100.0
        return build(self)

    monkeypatch.setattr(Trainer, "build", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + later[0])
    trainers = {seed: trainer("ppo", tmp_path, seed, max_seconds=290.0) for seed in (1, 2, 3)}
    found = train_together(trainers)
    assert [one.iterations for one in found.values()] == [1, 1, 1]  # type: ignore[union-attr]
    alone = trainer("ppo", tmp_path, 4, max_seconds=290.0).train()
    assert alone.iterations == 8


def test_options_of_the_process_are_restored(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train_together({1: trainer("ppo", tmp_path, 1, threads=1)})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "said"), [("tf32", "true and false"), ("threads", "1 and 2")])
def test_what_belongs_to_the_process_must_be_the_same(name: str, said: str, tmp_path: Path) -> None:
    values = (True, False) if name == "tf32" else (1, 2)
    trainers = {
        value: trainer("ppo", tmp_path, seed, **{name: value}) for seed, value in enumerate(values, 1)
    }
    with pytest.raises(ConfigError, match=f"{name} is {said}, but runs that train in one process share it"):
        train_together(trainers)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_of_all_saves_each(tmp_path: Path) -> None:
    found = train_together({seed: trainer("ppo", tmp_path, seed, [StopAt(2)]) for seed in (1, 2)})
    assert all(isinstance(one, (SystemExit, KeyboardInterrupt)) for one in found.values())
    assert all(list((tmp_path / f"seed{seed}").glob("checkpoint_*")) for seed in (1, 2))


# The gate


def test_nobody_works_while_one_is_alone_and_those_that_pause_go_on() -> None:
    gate, together, violations, turns = Gate(), threading.Barrier(3), [], []
    alone = threading.Event()

    def work(number: int) -> None:
        with gate.working():
            together.wait()
            for turn in range(50):
                gate.give_way()
                if turn % 10 == number:
                    with gate.alone():
                        alone.set()
                        for _ in range(100):
                            turns.append(number)
                        alone.clear()
                elif alone.is_set():
                    violations.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not violations
    blocks = [turns[at : at + 100] for at in range(0, len(turns), 100)]
    assert len(blocks) == 15 and all(len(set(block)) == 1 for block in blocks)


def test_one_that_wants_to_be_alone_waits_until_the_others_have_left() -> None:
    gate = Gate()
    order: list[str] = []

    def other() -> None:
        with gate.alone():
            order.append("alone")

    def wants() -> bool:
        with gate._changed:  # held by who wants to be alone, unless it waits
            return bool(gate._waiting or order)

    thread = threading.Thread(target=other)
    with gate.working():
        thread.start()
        while not wants():
            time.sleep(0.001)
        order.append("work")
    thread.join(60)
    assert order == ["work", "alone"]


def test_one_that_waits_for_something_else_keeps_nobody_from_being_alone() -> None:
    gate, free = Gate(), threading.Event()

    def other() -> None:
        with gate.working(), gate.alone():
            free.set()

    with gate.working():
        thread = threading.Thread(target=other)
        with gate.paused():
            thread.start()
            assert free.wait(600)
    thread.join(60)
    assert not thread.is_alive()


def test_a_thread_outside_records_when_nobody_works() -> None:
    gate = Gate()

    def work() -> None:
        with gate.alone():
            pass
        with gate.working():
            gate.give_way()
            with gate.alone():
                pass
            gate.give_way()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("ppo", {"num_envs": 256, "num_steps": 16, "batch_size": 1024, "compile": False}),
        ("fast_td3", {"num_envs": 256, "num_steps": 2, "batch_size": 512, "compile": False}),
        ("flash_sac", {"num_envs": 256, "num_steps": 2, "batch_size": 512, "compile": False}),
    ],
)
def test_captured_runs_on_streams_of_their_own_are_those_that_each_would_be_alone(
    rule: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    settings = {
        **SMALL,
        "device": "cuda",
        "env_device": "cuda",
        "max_iterations": 40,
        "log_freq": 2000,
        **changes,
    }

    def made(folder: str, seed: int) -> Trainer:
        own = {**settings, "runs": str(tmp_path / folder), "name": f"seed{seed}", "seed": seed}
        return whorl.load("Quadrotor-v0", rule, own)

    alone = {seed: made("alone", seed).train() for seed in (1, 2, 3)}
    together = train_together({seed: made("together", seed) for seed in (1, 2, 3)})
    for seed, result in together.items():
        assert isinstance(result, Result), result
        same_runs(result.run_dir, alone[seed].run_dir)
