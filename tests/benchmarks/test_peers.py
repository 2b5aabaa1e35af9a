"""Speed beside other libraries: what is measured in which order, the tables, and who is missing for which reason."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import peers
from contestants import Clock, Work
from rounds import NoAnswerError, answer

KINDS = {case.work.kind for case in peers.CASES.values()} - {"import", *peers.TRAINS}


def record(case: str, name: str, value: float | str, way: str = "", round: int = 0) -> Any:
    found = {"reason": value} if isinstance(value, str) else {"value": value, "versions": {"torch": "2.13"}}
    where = {"machine": "a machine", "commit": "abc", "date": "2026-01-31", "threads": 1, "cores": 2}
    return {"case": case, "contestant": name, "way": way, "round": round, **found, **where}


RECORDS = [
    *(
        record("ppo_cartpole", "whorl", value, "automatic", n)
        for n, value in enumerate((900.0, 3000.0, 5000.0))
    ),
    record("ppo_cartpole", "sb3", 1000.0, "DummyVecEnv"),
    record("ppo_cartpole", "sb3", 400.0, "SubprocVecEnv"),
    record("ppo_cartpole", "skrl", 6000.0),
    record("ppo_cartpole", "pufferlib", "does not install: no compiler"),
    record("import", "whorl", 2.0),
    record("import", "sb3", 3.0),
    record("import", "sb3", 4.0, "slower"),
    record("import", "pufferlib", "does not install: no compiler"),
]


def test_the_summary_shows_the_ratio_to_the_best_way_of_each_peer() -> None:
    header, _, ppo, imported = peers.summary(RECORDS).splitlines()
    assert header == "| case | whorl | SB3 | skrl |", "PufferLib has no figure"
    assert ppo == "| PPO CartPole-v1, minibatch 256 | 3,000 env-steps/s | 3.00× | **0.50×** |"
    assert imported == "| import what PPO needs | 2.00 s | 1.50× | – |"


def test_the_page_names_who_is_ahead_who_is_missing_and_where_it_was_measured() -> None:
    page = peers.page(RECORDS)
    assert "Ahead of whorl: skrl in PPO CartPole-v1, minibatch 256 (0.50×)." in page
    assert "| PufferLib | all | does not install: no compiler |" in page
    assert "Machine: a machine, 2 used. Commit abc, 2026-01-31." in page
    assert "torch 2.13" in page and "median of 3 rounds" in page


def test_of_several_calls_the_last_counts_and_ratios_are_within_a_call() -> None:
    later = [record("ppo_cartpole", "whorl", 8000.0), record("ppo_cartpole", "sb3", 2000.0)]
    both = [*({**each, "call": 0} for each in RECORDS), *({**each, "call": 1} for each in later)]
    ppo, imported = peers.summary(both).splitlines()[2:]
    assert ppo == "| PPO CartPole-v1, minibatch 256 | 8,000 env-steps/s | 4.00× | **0.50×** |"
    assert imported == "| import what PPO needs | 2.00 s | 1.50× | – |"


def test_the_report_shows_every_figure_with_its_way() -> None:
    row = "| PPO CartPole-v1, minibatch 256 | SB3 | 1,000 env-steps/s | DummyVecEnv | 3.00× |"
    assert row in peers.tables(RECORDS)


def test_every_second_round_is_in_reverse() -> None:
    found = [
        (each["round"], each["contestant"], each["way"])
        for each in peers.measurements(["ppo_cartpole"], ["whorl", "sb3"], 2)
    ]
    first = [entry[1:] for entry in found if entry[0] == 0]
    assert ("sb3", "SubprocVecEnv") in first and first[0][0] == "whorl"
    assert [entry[1:] for entry in found if entry[0] == 1] == first[::-1]


@pytest.mark.parametrize("name", peers.NAMES)
def test_a_contestant_does_what_is_measured_or_says_why_not(name: str, tmp_path: Path) -> None:
    module = import_module(f"contestants.{name}")
    assert set(module.WAYS) <= KINDS
    assert set(module.ABSENT) <= KINDS | {""}
    for kind in KINDS:
        assert hasattr(module, kind) != bool(peers.absence(name, Work(kind), tmp_path)), kind
    assert hasattr(module, "load")
    if name == peers.OURS:
        assert not module.ABSENT


@pytest.fixture
def arguments(tmp_path: Path) -> argparse.Namespace:
    return argparse.Namespace(
        output=tmp_path / "out.jsonl",
        contestants=["whorl", "sb3"],
        cases=["prioritized"],
        venvs=tmp_path,
        rounds=2,
        threads=1,
        cores=99,
        seconds=1e9,
        quick=True,
    )


def test_an_absent_library_is_recorded_once_with_its_reason(
    arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (arguments.venvs / "sb3.reason").write_text("does not install: no wheel\n")
    measured: list[str] = []

    def once(name: str, work: Work, limit: float, folder: Path) -> Any:
        measured.append(name)
        return {"value": 10.0, "versions": {}}

    monkeypatch.setattr(peers, "once", once)
    peers.run(arguments)
    peers.run(arguments)  # finds everything done
    records = [json.loads(line) for line in arguments.output.read_text().splitlines()]
    assert measured == ["whorl", "whorl"]
    assert [each.get("reason") for each in records] == [None, "does not install: no wheel", None]
    assert "| SB3 | all | does not install: no wheel |" in peers.tables(records)
    assert records[0]["machine"] and records[0]["work"]["rows"] == 2000


def test_a_library_that_pip_rejects_gets_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(code: str) -> None:
        """Setup runs this program instead of pip."""
        popen = subprocess.Popen
        monkeypatch.setattr(
            peers.subprocess, "Popen", lambda _, **kwargs: popen([sys.executable, "-Sc", code], **kwargs)
        )

    said = "Building\\nERROR: no matching version\\nnote\\n"
    pip(f"import sys; sys.stderr.write('{said}'); sys.exit(1)")
    peers.setup(["whorl", "pufferlib"], tmp_path, 600.0)
    assert not (tmp_path / "whorl").exists()  # it needs none
    assert (
        peers.absence("pufferlib", Work("stepping"), tmp_path)
        == "does not install: ERROR: no matching version"
    )
    assert peers.interpreter("pufferlib", tmp_path) == str(tmp_path / "pufferlib" / "bin" / "python")
    monkeypatch.undo()
    pip("")
    peers.setup(["pufferlib"], tmp_path, 600.0)
    assert not peers.absence("pufferlib", Work("stepping"), tmp_path)


def test_a_process_that_fails_or_takes_too_long_gives_a_reason() -> None:
    assert answer([sys.executable, "-Sc", "print('noise'); print('[1, 2]')"]) == [1, 2]
    with pytest.raises(NoAnswerError, match=r"^ModuleNotFoundError: No module named 'nobody_has_this'$"):
        answer([sys.executable, "-Sc", "import nobody_has_this"])
    with pytest.raises(NoAnswerError, match=r"^took more than 0 s$"):
        answer([sys.executable, "-Sc", "import time; time.sleep(600)"], limit=0.2)


def test_the_clock_leaves_the_warm_up_out() -> None:
    clock = Clock(Work("ppo", steps=100), seen=[(0.0, 10), (50.0, 20), (60.0, 30), (62.0, 100)])
    assert clock.rate() == 35.0


def test_a_training_is_over_when_enough_was_seen_after_the_warm_up() -> None:
    clock = Clock(Work("ppo", steps=100, enough=0.0))
    clock.tick(24)
    assert not clock.over
    clock.tick(25)
    clock.tick(30)
    assert clock.over
    patient = Clock(Work("ppo", steps=100, enough=600.0))
    patient.tick(25)
    patient.tick(30)
    assert not patient.over


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    "work",
    [
        Work("ppo", num_envs=2, num_steps=16, batch_size=16, n_epochs=1, steps=128, way="no workers"),
        Work("updates", algorithm="sac", hidden=(8, 8), rows=300, batch_size=8, seconds=0.01),
        Work("prioritized", rows=300, batch_size=8, seconds=0.01),
    ],
    ids=lambda work: work.kind,
)
def test_our_own_contestant_runs(work: Work) -> None:
    found = peers.measured("whorl", work, 0.0)
    assert found["value"] > 0
    assert {"torch", "gymnasium", "numpy"} <= set(found["versions"])
