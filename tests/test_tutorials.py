"""The tutorials' code blocks run as they stand, in order, each page in a folder of its own."""

import re
from pathlib import Path

import pytest
import torch

from whorl.core import registry

PAGES = sorted((Path(__file__).parent.parent / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_it_is_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    before = {kind: dict(names) for kind, names in registry._registered.items()}
    text = page.read_text("utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S))
    assert blocks
    names: dict[str, object] = {"__name__": page.stem}
    try:
        for block in blocks:
            # Blank lines in front keep the line numbers of the page in tracebacks.
            lines_before = text.count("\n", 0, block.start(1))
            exec(compile("\n" * lines_before + block[1], str(page), "exec"), names)
    finally:
        for kind, known in before.items():
            ours = {
                n: t
                for n, t in registry._registered[kind].items()
                if getattr(t, "__module__", "") != page.stem
            }
            registry._registered[kind].clear()
            registry._registered[kind].update({**ours, **known})


def test_every_tutorial_is_there() -> None:
    expected = {"callbacks", "config_files", "own_algorithm", "own_environment", "own_network", "stepping"}
    assert expected <= {page.stem for page in PAGES}
