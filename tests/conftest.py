"""What makes tests quick on two cores, and tests in shuffled order: `pytest --shuffle 3`."""

import os
import random
import sys
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)  # two test processes share two cores
# Processes that tests start shall not compile the package each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

from forking import Forks  # noqa: E402

from whorl.core import registry  # noqa: E402
from whorl.distributed import process  # noqa: E402

LAUNCH = process._launch


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """A test that leaves gradients switched off fails, and not the thousand that follow it."""
    yield
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        pytest.fail(f"{item.nodeid} left gradients switched off")


@pytest.fixture(scope="session", autouse=True)
def _forked() -> Iterator[None]:
    """Actors, shards, replicas and workers are forked from a process that has everything loaded."""
    forks = Forks()
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setattr(process, "_launch", forks.launch)
        yield
    forks.close()


@pytest.fixture(scope="module")
def started() -> Iterator[None]:
    """Processes of a module's tests are started as users start them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "_launch", LAUNCH)
        yield


@pytest.fixture
def own_registry() -> Iterator[None]:
    """What a test registers is forgotten after it; what the package registers when it is imported, once, stays."""
    before = {kind: dict(names) for kind, names in registry._registered.items()}
    yield
    for kind, names in registry._registered.items():
        ours = {
            name: thing
            for name, thing in names.items()
            if name not in before[kind] and getattr(thing, "__module__", "").startswith("whorl.")
        }
        registry._registered[kind] = {**before[kind], **ours}
