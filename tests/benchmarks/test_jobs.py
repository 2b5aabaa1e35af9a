"""Jobs of the benchmarks are started in order, recorded as they finish, and continued by the same command."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import jobs
from jobs import known_seconds, read, run_jobs, shares

SCRIPT = """
import json, os, sys, time
job = json.loads(sys.argv[2])
with open(job["log"], "a") as log:
    log.write(f"{job['name']} {os.getpid()}\\n")
if job["name"] == "broken":
    sys.exit("this one fails")
if job["name"] == "endless":
    time.sleep(600)
print("something else")
print(json.dumps({"return": 1.0, "steps": 100, "wall_time": 2.0, "arguments": sys.argv[3:]}))
"""


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs jobs by name, for an hour by default; the names that were started, in order, and the records."""
    script, log, output = tmp_path / "script.py", tmp_path / "log", tmp_path / "out.jsonl"
    script.write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", [str(script)])

    def run(*names: str, seconds: float = 3600, estimates: dict[str, float] | None = None) -> Any:
        log.write_text("")
        found = [{"name": name, "log": str(log)} for name in names]

        def estimate(job: Any, records: Any) -> float:
            return (estimates or {}).get(job["name"], 0.0)

        run_jobs(found, output, 1, seconds, estimate, ["--limit", "5"])
        started = [line.split() for line in log.read_text().splitlines()]
        return [name for name, _ in started], read(output), [int(pid) for _, pid in started]

    return run


def test_jobs_run_in_order_and_leave_records(case: Any) -> None:
    started, records, _ = case("b", "a")
    assert started == ["b", "a"]
    assert [record["job"]["name"] for record in records] == ["b", "a"]
    assert records[0]["return"] == 1.0 and records[0]["cores"] == len(os.sched_getaffinity(0))
    assert records[0]["arguments"] == ["--limit", "5"]
    assert records[0]["total_time"] >= 0


def test_a_second_call_runs_what_is_left(case: Any) -> None:
    case("a")
    started, records, _ = case("a", "b")
    assert started == ["b"]
    assert [record["job"]["name"] for record in records] == ["a", "b"]


def test_a_failed_job_is_told_and_the_others_go_on(case: Any, capfd: pytest.CaptureFixture[str]) -> None:
    started, records, _ = case("broken", "a")
    assert started == ["broken", "a"]
    assert [record["job"]["name"] for record in records] == ["a"]
    assert "this one fails" in capfd.readouterr().err


def test_what_would_not_finish_is_not_started(case: Any) -> None:
    started, records, _ = case("long", "short", seconds=3600, estimates={"long": 3601, "short": 1})
    assert started == ["short"]
    assert [record["job"]["name"] for record in records] == ["short"]


def test_at_the_end_of_the_time_a_running_job_is_stopped(case: Any) -> None:
    started, records, pids = case("endless", seconds=1)
    assert started in (["endless"], [])  # a busy machine may not have started it in that time
    assert records == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_record_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"return": 1}\n{"retu')
    assert read(path) == [{"return": 1}]
    assert read(tmp_path / "none") == []


def test_cores_are_shared_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert shares(4) == [{0}, {1}, {2}, {3}]
    assert shares(2) == [{0, 2}, {1, 3}]
    assert shares(1) == [{0, 1, 2, 3}]
    assert shares(5) == [{0}, {1}, {2}, {3}, {0}]


def test_time_is_estimated_from_the_slowest_run_of_the_same_kind() -> None:
    def record(algorithm: str, env: str, steps: int, seconds: float) -> Any:
        return {"job": {"algorithm": algorithm, "env": env}, "steps": steps, "total_time": seconds}

    same = (("algorithm", "env"), ("algorithm",))
    records = [record("ppo", "A", 100, 1), record("ppo", "B", 100, 10), record("ppo", "B", 100, 5)]
    assert known_seconds(records, {"algorithm": "ppo", "env": "B"}, same, 50) == pytest.approx(5)
    assert known_seconds(records, {"algorithm": "ppo", "env": "A"}, same, 50) == pytest.approx(0.5)
    assert known_seconds(records, {"algorithm": "ppo", "env": "C"}, same, 50) == pytest.approx(5)
    assert known_seconds(records, {"algorithm": "sac", "env": "A"}, same, 50) is None
