"""The quick-start notebook runs, and what it shows is shown inline."""

import ast
import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import whorl
from whorl.core.errors import WhorlError
from whorl.log.media import Media

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
CELLS = [
    "".join(cell["source"])
    for cell in json.loads(NOTEBOOK.read_text())["cells"]
    if cell["cell_type"] == "code"
]
LITTLE = {"20_000": "512", "10_000": "256", "24_000": "768"}
"""budgets of the notebook, and those of the quick test"""


def shown(code: str, names: dict[str, Any]) -> Any:
    """The value of a cell's last line, as a notebook shows it."""
    tree = ast.parse(code)
    last = tree.body.pop()
    if not isinstance(last, ast.Expr):
        tree.body.append(last)
    exec(compile(tree, "cell", "exec"), names)
    return (
        eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        if isinstance(last, ast.Expr)
        else None
    )


def test_the_cells_of_the_quick_start_run_and_show_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    names: dict[str, Any] = {}
    found = []
    for cell in CELLS:
        for large, little in LITTLE.items():
            cell = cell.replace(large, little)
        found.append(shown(cell, names))
    pictures = [value for value in found if isinstance(value, Media)]
    assert [picture.path.suffix for picture in pictures] == [".png", ".gif", ".png"]
    curve, episode, _ = pictures
    assert curve.path.parent == found[0].run_dir
    assert (curve._repr_png_() or b"").startswith(b"\x89PNG") and curve._repr_html_() is None
    gif = (episode._repr_html_() or "").removeprefix('<img src="data:image/gif;base64,').removesuffix('">')
    assert base64.b64decode(gif) == episode.path.read_bytes() and episode._repr_png_() is None
    assert found[-2] in (0, 1) and found[-1] >= 768


@pytest.mark.full
def test_the_quick_start_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert [output for output in outputs if output.output_type == "error"] == []
    kinds = [set(output.get("data", {})) for output in outputs]
    assert sum("image/png" in kind for kind in kinds) == 2
    assert sum("data:image/gif" in str(output.get("data", {}).get("text/html")) for output in outputs) == 1


def test_the_notebook_is_saved_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


def test_a_file_that_pages_can_not_show_is_named_only(tmp_path: Path) -> None:
    media = Media(tmp_path / "plot.pdf")
    assert media._repr_png_() is None and media._repr_html_() is None and "plot.pdf" in repr(media)


def test_a_video_shows_controls(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"film")
    assert '<video controls loop src="data:video/mp4;base64,ZmlsbQ==">' in (
        Media(tmp_path / "a.mp4")._repr_html_() or ""
    )


def test_a_plot_of_a_run_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(WhorlError, match="no run"):
        whorl.plot(tmp_path / "nothing")
