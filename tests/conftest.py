"""One torch thread, because two test processes share two cores; and tests in shuffled order: `pytest --shuffle 3`."""

import random

import pytest
import torch

torch.set_num_threads(1)


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
