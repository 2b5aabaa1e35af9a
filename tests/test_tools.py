"""The tools around the tests: the matrix of versions, shuffled order, busy cores."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parent))
import matrix


def test_the_oldest_row_of_the_matrix_has_the_lower_bounds_of_the_package() -> None:
    listed = re.findall(r'"([\w-]+)>=([\d.]+)",?\n', (matrix.ROOT / "pyproject.toml").read_text())
    bounds = matrix.lower_bounds()
    assert {"torch", "gymnasium", "numpy", "psutil"} <= bounds.keys() and bounds.items() <= set(listed)
    oldest = matrix.ROWS[0].constraints()
    assert f"torch=={bounds['torch']}" in oldest and len(oldest) == len(bounds)
    assert matrix.Row("3.11", "pinned").constraints()[0].startswith("torch==")


def test_a_python_that_is_not_here_is_named() -> None:
    assert matrix.interpreter(".".join(map(str, sys.version_info[:2])))
    row = matrix.Row("3.99", "newest")
    assert matrix.run(row, [], False, processes=1) == "not run: there is no Python 3.99 on this machine"


_spec = importlib.util.spec_from_file_location("tests_conftest", Path(__file__).parent / "conftest.py")
assert _spec is not None and _spec.loader is not None
conftest = importlib.util.module_from_spec(_spec)  # other folders have modules of that name
_spec.loader.exec_module(conftest)


def ordered(seed: int | None, count: int = 30) -> list[Any]:
    items: Any = [SimpleNamespace(path=number // 10, number=number) for number in range(count)]
    config: Any = SimpleNamespace(getoption=lambda name: seed)
    conftest.pytest_collection_modifyitems(config, items)
    return [item.number for item in items]


def test_shuffled_tests_are_the_same_for_a_seed_and_stay_with_their_module() -> None:
    assert ordered(None) == list(range(30))
    assert ordered(1) == ordered(1) != ordered(2) and sorted(ordered(1)) == list(range(30))
    for start in (0, 10, 20):
        assert len({number // 10 for number in ordered(4)[start : start + 10]}) == 1


def test_a_command_beside_busy_processes_keeps_its_status() -> None:
    command = [sys.executable, "tests/busy.py", "3", sys.executable, "-c", "raise SystemExit(5)"]
    assert subprocess.run(command, cwd=matrix.ROOT).returncode == 5
