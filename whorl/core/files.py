"""Files that are either complete or absent: atomic writes, hidden temporary names, checksums."""

import ctypes
import errno
import hashlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

_SCRATCH = re.compile(r"\..+\.tmp-([0-9]{1,10})-([0-9a-f]{8})")
_mine: set[str] = set()  # tokens of the temporary names in use in this process

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission denied; make the folder writable or choose another one",
    errno.EPERM: "permission denied; make the folder writable or choose another one",
    errno.ENOENT: "the folder does not exist; create it or choose another one",
    errno.EEXIST: "a file with the name of the folder exists; choose another folder",
    errno.ENOTDIR: "a file with the name of the folder exists; choose another folder",
}

# Another disk, a file system without hard links, or one that allows no more of them.
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}


def reason(error: OSError) -> str:
    """The cause of an error and its remedy, as the second half of a sentence."""
    return _REASONS.get(error.errno or 0, str(error.strerror or error).lower())


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a mixture."""
    with scratch(path) as temp:
        with open(temp, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
    fsync_dir(path.parent)


def fsync_dir(folder: Path) -> None:
    """Make renames inside `folder` durable (not available and not needed on Windows)."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(path: Path, into: Path) -> bool:
    """Give a file a second name (a hard link, which costs no space); False where the file system has none."""
    into.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, into)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def link_or_copy(path: Path, into: Path) -> None:
    """Give a file a second name, or copy it where that is on another disk."""
    if not link(path, into):
        with scratch(into) as temp:
            shutil.copyfile(path, temp)
            with open(temp, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temp, into)


def exchange(one: Path, other: Path) -> bool:
    """Let two files or folders swap names at once; False where the system or the file system can't."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, swap = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), swap) == 0


def sha256(path: Path) -> str:
    """The hexadecimal digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def expanded(path: Path | str) -> Path:
    """A path with the home folder in place of `~`; as it is where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def free_names(path: Path) -> Iterator[Path]:
    """`path`, `path_2`, `path_3`, ... that do not exist; create them exclusively, other processes may do the same."""
    for n in count(1):
        candidate = path if n == 1 else path.with_name(f"{path.name}_{n}")
        if not os.path.lexists(candidate):
            yield candidate


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """A hidden temporary name next to `path`, for a file or folder; whatever has that name at the end is removed."""
    token = secrets.token_hex(4)
    temp = path.with_name(f".{path.name}.tmp-{os.getpid()}-{token}")
    _mine.add(token)
    try:
        yield temp
    finally:
        _remove(temp)
        _mine.discard(token)


def sweep(folder: Path) -> None:
    """Remove temporary files of dead processes; never those that a live one is writing."""
    for entry in list(folder.iterdir()):
        match = _SCRATCH.fullmatch(entry.name)
        if match is None:
            continue
        pid, token = int(match[1]), match[2]
        # A restarted container reuses process ids, so our own id alone does not show that the file is ours.
        in_use = token in _mine if pid == os.getpid() else _alive(pid)
        if not in_use:
            _remove(entry)


def _remove(path: Path) -> None:
    # Whatever can't be removed stays hidden, and the next sweep tries again.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _alive(pid: int) -> bool:
    if sys.platform == "win32":
        # os.kill(pid, 0) would send Ctrl-C there.
        query_limited_information, still_active = 0x1000, 259
        kernel = ctypes.windll.kernel32
        handle = kernel.OpenProcess(query_limited_information, False, pid)
        if not handle:
            return False
        code = ctypes.c_ulong()
        kernel.GetExitCodeProcess(handle, ctypes.byref(code))
        kernel.CloseHandle(handle)
        return code.value == still_active
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
