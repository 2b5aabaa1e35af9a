"""Imports point one way, algorithm files do not know each other, and optional packages are optional."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "whorl"
LAYERS = (
    {"core"},
    {"settings", "presets"},
    {"ops"},
    {"data"},
    {"nets"},
    {"agents"},
    {"explore", "components"},
    {"algorithms"},
    {"envs", "log", "state"},
    {"collect", "datasets"},
    {"distributed"},
    {"run"},
    {"population", "page"},
    {"api", "box", "conformance", "hub", "__init__"},
    {"sweep", "bench"},
    {"cli"},
    {"__main__"},
)
"""A module may import from its own layer and those before it."""
SURROUNDINGS = {"envs", "log", "state"}
"""Imported by the loop and the surface alone"""
MAY_IMPORT_SURROUNDINGS = {
    "collect",
    "datasets",
    "distributed",
    "run",
    "population",
    "page",
    "api",
    "sweep",
    "bench",
    "box",
    "cli",
    "conformance",
    "hub",
    "__init__",
    "__main__",
}
REQUIRED = {
    *(
        "torch",
        "numpy",
        "gymnasium",
        "cloudpickle",
        "rich",
        "tensorboard",
        "yaml",
        "matplotlib",
        "PIL",
    ),
    "psutil",
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def unit(name: str) -> str:
    """The part of the package that a dotted module name belongs to."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def imported(path: Path, everywhere: bool = True) -> set[str]:
    """Dotted names that a file imports; with `everywhere` false, those of the top level only."""
    text = ast.parse(path.read_text("utf-8"))
    nodes = ast.walk(text) if everywhere else _top_level(text)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("a relative import")
    return found


def _top_level(text: ast.Module) -> list[ast.stmt]:
    """Statements that run on import, those under `if` and `try` included, `if TYPE_CHECKING` not."""
    found: list[ast.stmt] = []
    queue = list(text.body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            queue += node.body + node.orelse
        elif isinstance(node, (ast.Try, ast.With)):
            queue += node.body
        found.append(node)
    return found


def ours(path: Path) -> set[str]:
    """Names of modules of the package that a file imports."""
    return {name for name in imported(path) if name.split(".")[0] == "whorl"}


def units(path: Path) -> set[str]:
    known = set().union(*LAYERS)
    # `from whorl import x` reads the surface unless x is a module.
    return {unit(name) if unit(name) in known else "__init__" for name in ours(path)}


def level(name: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if name in layer)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    here = unit(name_of(path))
    assert any(here in layer for layer in LAYERS), f"say in LAYERS where {here} belongs"
    for name in units(path) - {here}:
        assert level(name) <= level(here), f"{name_of(path)} imports {name}, which stands above it"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_loop_and_the_surface_know_what_surrounds_them(path: Path) -> None:
    here = unit(name_of(path))
    if here in MAY_IMPORT_SURROUNDINGS:
        return
    assert not (units(path) & SURROUNDINGS) - {here}, f"{name_of(path)} imports {units(path) & SURROUNDINGS}"
    if here in SURROUNDINGS and path != PACKAGE / "state" / "policy.py":
        assert not units(path) & {"agents", "algorithms", "nets", "data"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "algorithms").glob("*.py")), ids=name_of)
def test_algorithm_files_do_not_import_each_other(path: Path) -> None:
    siblings = {name for name in ours(path) if name.startswith("whorl.algorithms.")}
    assert not siblings


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_optional_packages_are_imported_where_they_are_needed(path: Path) -> None:
    packages = {name.split(".")[0] for name in imported(path, everywhere=False)} - {"whorl"}
    optional = packages - REQUIRED - set(sys.stdlib_module_names)
    assert not optional, f"{name_of(path)} needs {optional} just to be imported"


def test_training_imports_neither_torchs_compiler_nor_what_only_pictures_and_extras_need(
    tmp_path: Path,
) -> None:
    code = (
        "import sys, whorl\n"
        "small = {'max_iterations': 1, 'num_envs': 4, 'num_steps': 16, 'batch_size': 64, 'eval': False}\n"
        f"whorl.train('CartPole-v1', 'ppo', small, runs={str(tmp_path)!r}, quiet=True, tensorboard=False)\n"
        "print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    slow = {
        "matplotlib",
        "tensorboard",
        "pandas",
        "plotly",
        "optuna",
        "minari",
        "h5py",
        "onnx",
        "ray",
        "mujoco",
    }
    assert not slow & set(found.stdout.split())
    assert "torch._dynamo" not in found.stdout.split()


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_the_library_is_imported_without_garbage_collections(before: str) -> None:
    code = (
        f"import gc; gc.{before}(); seen = []\n"
        "gc.callbacks.append(lambda phase, info: seen.append(info['generation']))\n"
        "import whorl; whorl.load\n"
        "young = gc.get_count()[0] < 700\n"
        "print(*(number for number in seen if number == 2), gc.isenabled(), young)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    enabled = before == "enable"
    assert found.stdout.split() == [
        str(enabled),
        str(enabled),
    ]  # later nothing of it is looked through at once
