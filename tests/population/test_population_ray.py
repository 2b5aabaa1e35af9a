"""A population on a Ray cluster: the same as in one process, and a learner that dies is replaced."""

import os
import signal
from typing import Any

import pytest

import whorl
from whorl.population import evolver
from whorl.population.evolver import ProcessPool, read_lineage

pytest.importorskip("ray")


@pytest.mark.full
def test_learners_on_ray_are_those_of_one_process_and_are_replaced_where_they_die(
    small: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any, inline_backend: Any
) -> None:
    settings = {**small, "population": 2, "generations": 1, "parallel": 1, "quiet": False}
    ready, killed = ProcessPool.ready, []

    def killing(pool: ProcessPool, timeout: float) -> Any:
        remote = next(iter(pool.busy.values()))[0]
        if remote.pid and not killed:
            killed.append(remote.pid)
            os.kill(remote.pid, signal.SIGKILL)
        return ready(pool, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(ProcessPool, "ready", killing)
        result = whorl.evolve(settings, ray="local")
    assert killed
    assert "failed and is replaced (1 of 3 in a row" in capsys.readouterr().out
    monkeypatch.setattr(evolver, "make_backend", lambda *_: inline_backend())
    assert read_lineage(result.run_dir) == read_lineage(whorl.evolve(settings).run_dir)
