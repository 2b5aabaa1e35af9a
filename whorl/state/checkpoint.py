"""Checkpoints: folders `checkpoint_1`, `checkpoint_2`, ... in a run folder, each either complete or absent.

    checkpoint.pt    the full state, one tree of tensors and plain containers
    policy.pt        the part of the agent that acts
    config.yaml      the run's settings
    metadata.yaml    counters, versions, size and sha256 of the other files; its last line is its own checksum
    observation_normalizing_values.yaml    mean, std, var, count per key, if observations are normalised

    code/            source files of the user's own parts (`whorl.state.code`)
    replay/          the rows of the replay buffer, if there is one

The rows are written once, into the run's folder `replay` (`whorl.data.segments`). A checkpoint has hard links to those
that it needs, so that its folder can be copied elsewhere; on a file system without hard links only the run's folder has
them. checkpoint.pt holds their sizes and checksums, metadata.yaml their names under `segments`.

A checkpoint is written under a hidden name, fsynced and renamed, so a visible one is complete, and later damage shows
in the checksums. Loading runs no code from the files: `weights_only`, safe YAML.
"""

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
import yaml
from torch import Tensor

from whorl.core import files
from whorl.core.errors import CheckpointError, DamagedError, WhorlError
from whorl.core.version import __version__

FORMAT = 2
STATE, POLICY, CONFIG, METADATA = "checkpoint.pt", "policy.pt", "config.yaml", "metadata.yaml"
NORMALIZER = "observation_normalizing_values.yaml"
ROWS = "replay"
"""folder of the files with rows of the replay buffer, in a run folder and in its checkpoints"""
BEST = "best"
"""folder of the best policy so far: a checkpoint without state, which can be evaluated but not resumed"""

T = TypeVar("T")
_KEPT = ".old"
"""ends the hidden name of a folder while it is replaced, where that is not done at once"""
_NAME = re.compile(r"checkpoint_([1-9][0-9]*)")
_CODE = re.compile(r"code(/[A-Za-z_]\w*)+\.py", re.ASCII)
# The trailer is the same in every format version, so that another format is not mistaken for damage.
_TRAILER = re.compile(rb"checksum: ([0-9a-f]{64})\n")
_REASON = 200  # characters of a reason in a message
_TRAILER_LENGTH = len("checksum: \n") + 64


@dataclass(frozen=True)
class Loaded:
    """A complete checkpoint that was read."""

    folder: Path
    state: dict[str, Any]
    policy: dict[str, Any]
    config: dict[str, Any]
    metadata: dict[str, Any]
    code: dict[str, bytes]
    """source files that were saved with it, by their names in the folder; see `whorl.state.code`"""


class FormatError(CheckpointError):
    """A checkpoint of another version of Whorl: not damaged, so never skipped in favour of an older checkpoint."""


def save(
    run_dir: Path,
    k: int,
    state: Mapping[str, Any],
    policy: Mapping[str, Any],
    config: Mapping[str, Any],
    metadata: Mapping[str, Any],
    normalizer: Mapping[str, Mapping[str, Any]] | None,
    code: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    """Write `checkpoint_k`, replacing one of that number; if that fails, existing files are unchanged.

    Args:
        metadata: iterations, steps, episodes, mean_return, wall_time, metrics_offset, and segments if there is a replay
            buffer; the rest is added here.
        normalizer: for each observation key its `mean`, `var` and `count`.
        code: source files, see `whorl.state.code`.
    """
    if k < 1:
        raise ValueError(f"checkpoint number {k} is out of range; they count from 1")
    return _save(Path(run_dir) / f"checkpoint_{k}", k, state, policy, config, metadata, normalizer, code)


def save_best(
    run_dir: Path,
    policy: Mapping[str, Any],
    config: Mapping[str, Any],
    metadata: Mapping[str, Any],
    normalizer: Mapping[str, Mapping[str, Any]] | None,
    code: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    """Write the policy alone into the folder `best`, replacing the previous one."""
    return _save(Path(run_dir) / BEST, 0, {}, policy, config, metadata, normalizer, code)


def _save(
    final: Path,
    k: int,
    state: Mapping[str, Any],
    policy: Mapping[str, Any],
    config: Mapping[str, Any],
    metadata: Mapping[str, Any],
    normalizer: Mapping[str, Mapping[str, Any]] | None,
    code: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    run_dir = final.parent
    trees = {STATE: _portable(state, "state"), POLICY: _portable(policy, "policy")}
    documents = {CONFIG: _yaml(_portable(config, "config"), CONFIG)}
    if normalizer is not None:
        documents[NORMALIZER] = _yaml(
            {key: _statistics(value) for key, value in normalizer.items()}, NORMALIZER
        )
    try:
        recover(run_dir)
        files.sweep(run_dir)
        with files.scratch(final) as temp:
            temp.mkdir()
            written = {name: _write(temp / name, _saver(tree)) for name, tree in trees.items()}
            written |= {name: _write(temp / name, _dumper(text)) for name, text in documents.items()}
            for name, text in code.items():
                (temp / name).parent.mkdir(parents=True, exist_ok=True)
                written[name] = _write(temp / name, _dumper(text))
            _write(temp / METADATA, _dumper(_sealed(k, metadata, written)))
            for folder in {parent for name in code for parent in Path(name).parents}:
                files.fsync_dir(temp / folder)
            _link_rows(run_dir / ROWS, temp / ROWS, metadata.get("segments", ()))
            files.fsync_dir(temp)
            _move_in(temp, final)
        files.fsync_dir(run_dir)
    except OSError as error:
        raise CheckpointError(
            f"can't save {final.name} in {run_dir}: {files.reason(error)}; existing checkpoints are unchanged"
        ) from error
    return final


def _link_rows(rows: Path, into: Path, names: Collection[str]) -> None:
    """Hard links to the files of rows that a checkpoint needs; none where the file system has no hard links."""
    found = _found_rows(rows, names)
    if all(files.link(path, into / name) for name, path in found.items()):
        for folder in {folder for name in found for folder in (into, (into / name).parent)}:
            files.fsync_dir(folder)


def _found_rows(folder: Path, names: Collection[str]) -> dict[Path, Path]:
    """Those of the named files of rows that are in a folder or, with shards, in folders in it, by their place there."""
    if not names or not folder.is_dir():
        return {}
    wanted = set(names)
    found = (path for path in folder.rglob("*.rows") if path.name in wanted and not path.is_symlink())
    return {path.relative_to(folder): path for path in found}


def bring_rows(loaded: "Loaded", run_dir: Path) -> None:
    """Link or copy the files of rows that a checkpoint names into a run's folder, where they are not there already."""
    names = loaded.metadata.get("segments", ())
    try:
        for source in (loaded.folder / ROWS, loaded.folder.parent / ROWS):
            for name, path in _found_rows(source, names).items():
                if not (run_dir / ROWS / name).exists():
                    files.link_or_copy(path, run_dir / ROWS / name)
    except OSError as error:
        raise CheckpointError(
            f"can't copy the replay buffer of {loaded.folder} to {run_dir}: {files.reason(error)}"
        ) from error


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint, which may have been renamed; damaged ones are known by their names."""
    return _NAME.fullmatch(folder.name) is not None or (folder / METADATA).is_file()


def best_folder(folder: Path) -> Path:
    """The best policy of a run, given its folder or one of its checkpoints; a copy of a best policy is its own."""
    if is_checkpoint(folder):
        if folder.name == BEST or (_NAME.fullmatch(folder.name) is None and _unsealed(folder).get("k") == 0):
            return folder
        folder = folder.parent
    if not (folder / BEST).is_dir():
        raise CheckpointError(f"{folder} has no best policy, because it was never evaluated; leave best out")
    return folder / BEST


def checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoint folders of a run, the newest (highest number) first; not yet checked for damage."""
    try:
        found = [entry for entry in Path(run_dir).iterdir() if _NAME.fullmatch(entry.name) and entry.is_dir()]
    except OSError as error:
        raise CheckpointError(f"can't read the run folder {run_dir}: {files.reason(error)}") from error
    return sorted(found, key=number, reverse=True)


def number(folder: Path) -> int:
    """The k of a folder named `checkpoint_k`."""
    match = _NAME.fullmatch(folder.name)
    if match is None:
        raise CheckpointError(
            f"{folder} is not a checkpoint folder; they are named checkpoint_1, checkpoint_2, ...: if it is a copy "
            "of one, rename it to resume it"
        )
    return int(match[1])


def load(folder: Path, map_location: torch.device | str = "cpu") -> Loaded:
    """Read one checkpoint after checking every file against its size and sha256.

    Where it was replaced meanwhile, as `best` is, the new one is read.
    """
    while True:
        before = _inode(folder)
        try:
            found = _load(Path(folder), map_location)
        except CheckpointError:
            if _inode(folder) == before:
                raise
        else:
            if _inode(folder) == before:
                return found


def _inode(folder: Path) -> int:
    try:
        return os.stat(folder).st_ino
    except OSError:
        return 0


def _load(folder: Path, map_location: torch.device | str) -> Loaded:
    try:
        metadata = _unsealed(folder)
        for name, expected in metadata["files"].items():
            _verify(folder / name, expected)
        return Loaded(
            folder=folder,
            state=_tensors(folder / STATE, map_location),
            policy=_tensors(folder / POLICY, map_location),
            config=_mapping(folder / CONFIG, (folder / CONFIG).read_bytes()),
            metadata=metadata,
            code={name: (folder / name).read_bytes() for name in metadata["files"] if _CODE.fullmatch(name)},
        )
    except FileNotFoundError as error:
        missing = Path(error.filename).name if folder.is_dir() else "the folder"
        raise CheckpointError(f"{folder}: {missing} is missing") from error
    except OSError as error:
        raise CheckpointError(f"{folder}: {files.reason(error)}") from error


@contextmanager
def reading(folder: Path, name: str) -> Iterator[None]:
    """Where contents of a file are used: those of another type or shape than expected are one sentence.

    Checksums find damage, not files that someone wrote or that belong to other code.
    """
    try:
        yield
    except (WhorlError, OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # anything can be where something else is expected
        raise unusable_file(folder, name, f"{type(error).__name__}: {error}") from error


def unusable_file(folder: Path, name: str, why: str) -> CheckpointError:
    """The error for a file whose contents can't be used."""
    return CheckpointError(f"{folder}: {name} holds something else than this run needs ({_line(why)})")


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON else f"{line[:_REASON]} ..."


def use_newest(
    run_dir: Path,
    warn: Callable[[str], None],
    use: Callable[[Loaded], T],
    map_location: torch.device | str = "cpu",
) -> T:
    """The result of `use` on the newest undamaged checkpoint; `warn` gets a message for each one that is skipped.

    A checkpoint for which `use` raises `DamagedError` is skipped too: damage in files of the replay buffer shows only
    when they are read.
    """
    problems = []
    for folder in checkpoints(run_dir):
        try:
            found = load(folder, map_location)
        except FormatError:
            raise
        except CheckpointError as error:
            problems.append(str(error))
        else:
            try:
                return use(found)
            except DamagedError as error:
                problems.append(str(error))
        warn(f"skipped a damaged checkpoint, {problems[-1]}")
    if problems:
        raise CheckpointError(f"no undamaged checkpoint in {run_dir}; tried {'; '.join(problems)}")
    inside = [found.parent for found in sorted(Path(run_dir).glob(f"*/{CONFIG}"))]
    runs = [found for found in inside if found.name != BEST and not found.name.startswith(".")]
    if runs:
        raise CheckpointError(f"{run_dir} is a folder of runs; name one of them, such as {runs[0]}")
    best = (
        f", but {BEST} has its best policy; use best=True (--best)" if (Path(run_dir) / BEST).is_dir() else ""
    )
    raise CheckpointError(f"{run_dir} contains no checkpoint yet{best}")


def segments(run_dir: Path) -> set[str]:
    """Names of the replay files that the run's checkpoints need; raises if one of them can't be read."""
    try:
        return {name for folder in checkpoints(run_dir) for name in _unsealed(folder).get("segments", ())}
    except OSError as error:
        raise CheckpointError(f"can't read the checkpoints in {run_dir}: {files.reason(error)}") from error


def run_config(run_dir: Path) -> dict[str, Any] | None:
    """The settings of a run that ended before its first checkpoint; None if there is a checkpoint, or no run."""
    path = Path(run_dir) / CONFIG
    if is_checkpoint(run_dir) or checkpoints(run_dir) or not path.is_file():
        return None
    return _mapping(path, path.read_bytes())


def retain(run_dir: Path, keep: int) -> list[int]:
    """Delete all but the newest `keep` checkpoints (0: keep all); the numbers of those deleted."""
    if keep < 0:
        raise ValueError(f"can't keep {keep} checkpoints; use 0 to keep all")
    surplus = checkpoints(run_dir)[keep:] if keep else []
    try:
        for folder in surplus:
            # Renamed first: if the process is killed half-way, the rest is hidden.
            with files.scratch(folder) as trash:
                os.rename(folder, trash)
        if surplus:
            files.fsync_dir(run_dir)  # before replay files that only they needed are deleted
    except OSError as error:
        raise CheckpointError(f"can't delete old checkpoints in {run_dir}: {files.reason(error)}") from error
    return [number(folder) for folder in surplus]


class _Recorder:
    """A file to write to that computes the size and sha256 of its content."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        try:
            self.file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self.file.flush()


def _write(path: Path, produce: Callable[[_Recorder], object]) -> dict[str, Any]:
    """Write and fsync a new file; returns its size and sha256."""
    with open(path, "xb") as file:
        recorder = _Recorder(file)
        try:
            produce(recorder)
        except RuntimeError:
            # On a full disk torch.save raises a RuntimeError about stream positions.
            if recorder.error is not None:
                raise recorder.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return {"size": recorder.size, "sha256": recorder.digest.hexdigest()}


def _saver(tree: Any) -> Callable[[_Recorder], object]:
    return lambda recorder: torch.save(tree, recorder)  # type: ignore[arg-type]  # it calls write and flush only


def _dumper(text: bytes) -> Callable[[_Recorder], object]:
    return lambda recorder: recorder.write(text)


def _move_in(temp: Path, final: Path) -> None:
    """Rename the finished folder; an existing one (`best`, or damaged and so skipped on resume) is replaced."""
    if not final.exists():
        os.rename(temp, final)
    elif not files.exchange(temp, final):
        kept = final.with_name(f".{final.name}{_KEPT}")
        os.rename(final, kept)
        try:
            os.rename(temp, final)
        except OSError:
            os.rename(kept, final)
            raise
        os.rename(kept, temp)  # which is removed


def recover(run_dir: Path) -> None:
    """Put back a folder that a process was replacing when it was killed, unless the new one is there."""
    for kept in list(run_dir.glob(f".*{_KEPT}")):
        final = run_dir / kept.name[1:].removesuffix(_KEPT)
        if final.name != BEST and _NAME.fullmatch(final.name) is None:
            continue
        if not final.exists():
            os.rename(kept, final)
        else:
            with files.scratch(final) as trash:
                os.rename(kept, trash)


def _portable(value: Any, where: str) -> Any:
    """The same tree with compact CPU tensors and plain containers; the caller's tensors are not modified."""
    if isinstance(value, Tensor):
        return _compact(value, where)
    if isinstance(value, Mapping):
        for key in value:
            if type(key) not in (str, int):
                raise CheckpointError(
                    f"{where} has the key {key!r}; keys in a checkpoint are strings or integers"
                )
        return {key: _portable(item, f"{where}.{key}") for key, item in value.items()}
    if type(value) in (list, tuple, torch.Size):
        items = [_portable(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, np.generic):  # before float: numpy's float64 is a float, but would not load safely
        return value.item()
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    raise CheckpointError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint may contain tensors, "
        "numbers, strings, dicts, lists and tuples, so that loading it runs no code"
    )


def _compact(tensor: Tensor, where: str) -> Tensor:
    if tensor.layout != torch.strided:
        raise CheckpointError(
            f"{where} is a {tensor.layout} tensor; a checkpoint may contain dense ones only: call to_dense()"
        )
    tensor = tensor.detach().cpu()
    # A view would be saved with all of its base tensor.
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()


def _statistics(values: Mapping[str, Any]) -> dict[str, Any]:
    mean, var = (torch.as_tensor(values[name]).detach().cpu().double() for name in ("mean", "var"))
    count = torch.as_tensor(values["count"]).item()
    return {"mean": mean.tolist(), "std": var.sqrt().tolist(), "var": var.tolist(), "count": count}


def _yaml(document: Any, name: str) -> bytes:
    # The C dumper is five times as fast, which matters for the statistics of images.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    try:
        text = yaml.dump(
            document, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=None
        )
    except yaml.representer.RepresenterError as error:
        raise CheckpointError(
            f"{name} can't contain {error.args[-1]!r}; use numbers, strings, dicts, lists"
        ) from error
    return text.encode()


def _sealed(k: int, metadata: Mapping[str, Any], written: dict[str, dict[str, Any]]) -> bytes:
    """The text of metadata.yaml, its checksum as the last line."""
    document = {
        **_portable(metadata, "metadata"),
        "format": FORMAT,
        "k": k,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "torch": str(torch.__version__),
        "whorl": __version__,
        "files": written,
    }
    text = _yaml(document, METADATA)
    return text + f"checksum: {hashlib.sha256(text).hexdigest()}\n".encode()


def _unsealed(folder: Path) -> dict[str, Any]:
    """The content of metadata.yaml, after checking its checksum, its format version and the files it names."""
    path = folder / METADATA
    text = path.read_bytes()
    body, trailer = text[:-_TRAILER_LENGTH], _TRAILER.fullmatch(text[-_TRAILER_LENGTH:])
    if trailer is None or trailer[1].decode() != hashlib.sha256(body).hexdigest():
        raise CheckpointError(
            f"{folder}: {METADATA} does not match its checksum; it was truncated or altered"
        )
    metadata = _mapping(path, body)
    found = metadata.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise FormatError(
            f"{folder}: format {found} is newer than this version of Whorl can read ({FORMAT}); upgrade Whorl"
        )
    if isinstance(found, int) and found < FORMAT:
        raise FormatError(
            f"{folder}: format {found} is older than this version of Whorl can read ({FORMAT}); use Whorl "
            f"{metadata.get('whorl', 'of that time')} for it, or train again"
        )
    listed = metadata.get("files")
    if found != FORMAT or not isinstance(listed, dict) or not {STATE, POLICY, CONFIG} <= listed.keys():
        raise CheckpointError(f"{folder}: {METADATA} is not the metadata of a checkpoint")
    if not {name for name in listed if not _CODE.fullmatch(name)} <= {STATE, POLICY, CONFIG, NORMALIZER}:
        raise CheckpointError(f"{folder}: {METADATA} names files that do not belong to a checkpoint")
    segments = metadata.get("segments", [])
    if not isinstance(segments, list) or not all(isinstance(name, str) for name in segments):
        raise CheckpointError(f"{folder}: {METADATA} names no files of a replay buffer under segments")
    return metadata


def _verify(path: Path, expected: Any) -> None:
    if not isinstance(expected, dict) or expected.keys() != {"size", "sha256"}:
        raise CheckpointError(f"{path.parent}: {METADATA} lacks the size and sha256 of {path.name}")
    size = path.stat().st_size
    if size != expected["size"]:
        raise CheckpointError(f"{path.parent}: {path.name} has {size} bytes instead of {expected['size']}")
    if files.sha256(path) != expected["sha256"]:
        raise CheckpointError(
            f"{path.parent}: {path.name} does not match its sha256; it was damaged or altered"
        )


def _tensors(path: Path, map_location: torch.device | str) -> dict[str, Any]:
    try:
        tree = torch.load(path, map_location=map_location, weights_only=True)
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a malicious file can make the unpickler raise anything
        raise CheckpointError(
            f"{path.parent}: {path.name} contains more than tensors and plain containers"
        ) from error
    if not isinstance(tree, dict):
        raise CheckpointError(
            f"{path.parent}: {path.name} contains a {type(tree).__name__} instead of a dict"
        )
    return tree


def _mapping(path: Path, text: bytes) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.parent}: {path.name} is not plain YAML") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path.parent}: {path.name} is not a mapping")
    return document
