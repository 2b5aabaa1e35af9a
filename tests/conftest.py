"""What makes tests quick on two cores, and tests in shuffled order: `pytest --shuffle 3`."""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # two test processes share two cores
# Processes that tests start shall not compile the package each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
sys.path.append(str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="run modules, and tests in them, in another order"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    draw, modules = random.Random(seed), dict[str, list[pytest.Item]]()
    for item in items:
        modules.setdefault(str(item.path), []).append(item)
    groups = list(modules.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    items[:] = [item for group in groups for item in group]


@pytest.fixture(scope="session")
def _forks() -> Iterator[object]:
    from forking import Forks

    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture
def forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors, shards, replicas and workers of a test are forked from a process that has everything loaded."""
    if sys.platform == "linux":
        forks = request.getfixturevalue("_forks")
        monkeypatch.setattr("whorl.distributed.process._launch", forks.launch)
