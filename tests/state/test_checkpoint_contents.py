"""Well-formed checkpoints with wrong contents: every node of a real one is replaced in turn, with right checksums.

Each either loads as the real one does or is an error of one sentence, and nothing that a checkpoint names is imported.
"""

import copy
import hashlib
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

import whorl
from whorl.core import files
from whorl.core.errors import WhorlError
from whorl.run.resume import load_run
from whorl.state import checkpoint
from whorl.state.policy import load_policy

QUIET = {"quiet": True, "tensorboard": False, "eval": False, "workers": 0, "num_envs": 2, "max_iterations": 3}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rollouts": (
        "CartPole-v1",
        "ppo",
        {**QUIET, "num_steps": 8, "batch_size": 16, "n_epochs": 1, "actor_hidden_sizes": [4]}
        | {"critic_hidden_sizes": [4], "normalize_obs": True, "normalize_reward": True, "memory": "lstm"}
        | {"memory_size": 4, "chunk_length": 8},
    ),
    "replay": (
        "Pendulum-v1",
        "sac",
        {**QUIET, "num_steps": 8, "batch_size": 4, "hidden_sizes": [4], "buffer_size": 64}
        | {"learning_starts": 8, "prioritized": True},
    ),
}
TRAP = "booby.Trap"
"""an import path in place of every string; whoever imports it leaves a trace"""


@pytest.fixture(scope="module", params=list(RUNS))
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    env, algorithm, settings = RUNS[request.param]
    run = whorl.load(env, algorithm, {**settings, "runs": str(folder)}).train().run_dir
    (folder / "booby.py").write_text(
        f"import pathlib\npathlib.Path({str(folder / 'sprung')!r}).touch()\nclass Trap: pass\n"
    )
    return run


def nodes(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all nodes."""
    yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from nodes(value, (*path, key))
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            yield from nodes(value, (*path, number))


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The tree with another value at a path."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(tree, dict):
        return {key: replaced(old, rest, value) if key == head else old for key, old in tree.items()}
    items = [replaced(old, rest, value) if n == head else old for n, old in enumerate(tree)]
    return items if isinstance(tree, list) else tuple(items)


def others(value: Any, tensors: bool) -> list[Any]:
    """Values of other types and shapes."""
    if isinstance(value, Tensor):
        found = [torch.zeros(*value.shape, 2), "text", {"a": value}, None, value.tolist(), 7]
        found += [torch.zeros(0, *value.shape[1:], dtype=value.dtype)] if value.dim() else []
        return found
    kinds: dict[Any, list[Any]] = {
        bool: ["text", [value], {"a": 1}, None],
        int: ["text", [value], {"a": 1}, None],
        float: ["text", [value], {"a": 1}, None],
        str: [7, [value], {"a": value}, None, TRAP],
        dict: ["text", [1, 2], 7, None, TRAP],
        type(None): [["text"], {"a": 1}],
    }
    found = kinds.get(type(value), ["text", 7, {"a": 1}, None])
    return [*found, torch.zeros(3)] if tensors else found


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.equal(b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or a != a)


def judge(where: str, load: Callable[[], Any], wanted: Any, strict: bool) -> None:
    """Loading gives what the real contents give, or an error of one sentence."""
    try:
        found = load()
    except WhorlError as error:
        assert "\n" not in str(error) and len(str(error)) < 700, f"{where}: {error}"
    except Exception as error:
        raise AssertionError(f"{where}: a raw {type(error).__name__}: {error}") from error
    else:
        assert not strict or equal(found, wanted), f"{where} is taken for what should be there"


def cases(tree: Any, tensors: bool, every: int) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Path and other value, for each node: all of them, or of `every` so many one."""
    number = 0
    for path in nodes(tree):
        for other in others(at(tree, path), tensors):
            number += 1
            if number % every == 0:
                yield path, other


@pytest.fixture(autouse=True)
def trap(real: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that a checkpoint names may be imported."""
    monkeypatch.syspath_prepend(str(real.parent))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    assert "booby" not in sys.modules and not (real.parent / "sprung").exists()


def newest(run: Path) -> Path:
    return checkpoint.checkpoints(run)[0]


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.full)])
def test_wrong_state_is_one_sentence(real: Path, every: int) -> None:
    folder = newest(real)
    tree = torch.load(folder / checkpoint.STATE, weights_only=True)
    trainer = load_run(real, {})
    try:

        def load(tree: Any) -> Any:
            with checkpoint.reading(folder, checkpoint.STATE):
                trainer.load_state(tree)
            return copy.deepcopy(trainer.state())

        wanted = load(tree)
        for path, other in cases(tree, True, every):
            wrong = replaced(tree, path, other)
            judge(f"{path} as {other!r}", lambda: load(wrong), wanted, "env" not in path[:1])  # noqa: B023
    finally:
        trainer._release()


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.full)])
def test_a_wrong_policy_is_one_sentence(real: Path, every: int) -> None:
    folder = newest(real)
    tree = torch.load(folder / checkpoint.POLICY, weights_only=True)

    def load(tree: Any) -> Any:
        with checkpoint.reading(folder, checkpoint.POLICY):
            found = load_policy(tree)
        return dict(found.agent.state_dict()), repr(found.spec), found.settings.plain()

    wanted = load(tree)
    for path, other in cases(tree, True, every):
        wrong = replaced(tree, path, other)
        judge(f"{path} as {other!r}", lambda: load(wrong), wanted, "config" not in path[:1])  # noqa: B023


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.full)])
def test_wrong_settings_and_metadata_are_one_sentence(real: Path, every: int, tmp_path: Path) -> None:
    """Through the files, with right checksums."""
    run = Path(shutil.copytree(real, tmp_path / "run"))
    folder = newest(run)

    def load() -> Any:
        trainer = load_run(run, {})
        try:
            return copy.deepcopy(trainer.state())
        finally:
            trainer._release()

    wanted = load()
    for name in (checkpoint.CONFIG, checkpoint.METADATA):
        real_text = (folder / name).read_bytes()
        metadata = (folder / checkpoint.METADATA).read_bytes()
        tree = yaml.safe_load(real_text)
        tree.pop("checksum", None)
        for path, other in cases(tree, False, every):
            write(folder, name, replaced(tree, path, other))
            judge(f"{name}: {path} as {other!r}", load, wanted, name == checkpoint.METADATA)
            (folder / name).write_bytes(real_text)
            (folder / checkpoint.METADATA).write_bytes(metadata)


def write(folder: Path, name: str, tree: Any) -> None:
    """A YAML file of a checkpoint, and what seals it."""
    text = yaml.safe_dump(tree, sort_keys=False).encode()
    path = folder / checkpoint.METADATA
    if name == checkpoint.CONFIG:
        (folder / name).write_bytes(text)
        metadata = yaml.safe_load(path.read_text())
        metadata.pop("checksum")
        metadata["files"][name] = {"size": len(text), "sha256": files.sha256(folder / name)}
        text = yaml.safe_dump(metadata, sort_keys=False).encode()
    path.write_bytes(text + f"checksum: {hashlib.sha256(text).hexdigest()}\n".encode())


@pytest.mark.parametrize(("path", "other"), [(("env",), {"a": 1}), (("algorithm",), ["ppo"])])
def test_a_mapping_as_environment_is_named(
    real: Path, path: tuple[str, ...], other: Any, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(real, tmp_path / "run"))
    folder = newest(run)
    write(
        folder,
        checkpoint.CONFIG,
        replaced(yaml.safe_load((folder / checkpoint.CONFIG).read_text()), path, other),
    )
    with pytest.raises(WhorlError) as error:
        load_run(run, {})
    assert "\n" not in str(error.value)
