"""The soak of `make chaos` for less than a minute; see soak.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent / "soak.py"


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals, /proc and mounts of Linux")
def test_a_minute_of_trouble_leaves_nothing_behind_and_everything_counted(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SOAK),
        "--seconds",
        "50",
        "--kinds",
        "actors",
        "workers",
        "--to",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    (line,) = (tmp_path / "soak.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found["problems"] == [] and done.returncode == 0
    assert found["trainings"].keys() == {"actors", "workers"}
    assert sum(found["events"].values()) >= 4 and (tmp_path / "memory.png").stat().st_size > 1000
