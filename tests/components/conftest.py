"""Agents, conformance subjects and runs with components."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whorl.agents.component import with_components
from whorl.state import policy

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """From now on every agent that settings describe is built with these components: `use(rnd=RNDConfig())`."""

    def use(**configs: Any) -> None:
        monkeypatch.setattr(
            policy, "with_components", lambda build, spec, _: with_components(build, spec, configs)
        )

    return use
