"""The owner of a run folder: at most one process trains in it at a time. Reading is never blocked.

The file `run.lock` exists as long as a process trains. Its owner holds a lock of the operating system on it, which ends
with the process, however that ends, and has written down who it is. Where the system's lock can't be trusted (some
shared file systems, other hosts) the record decides: a process of this machine is looked up, a requeued SLURM job takes
over from itself, and for a host that can't be asked the file's time, which the owner renews, tells whether it is alive.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import psutil

from whorl.core import files
from whorl.core.errors import CheckpointError

NAME = "run.lock"
BEAT_SECONDS = 30.0
"""time between two signs of life"""
STALE_SECONDS = 900.0
"""an owner on a host that can't be asked, without a sign of life for so long, is taken for dead"""
_TRIES = 100


@dataclass(frozen=True)
class Owner:
    """Who trains in a run folder."""

    pid: int
    host: str
    start: str = ""
    """when the process was started; with the pid it identifies a process"""
    boot: str = ""
    """of the machine: differs after a reboot"""
    machine: str = ""
    namespace: str = ""
    """of process ids: containers have their own"""
    job: str = ""
    """SLURM's job, which keeps its number when it is requeued"""
    restarts: int = 0
    """how often that job was requeued"""
    locked: bool = False
    """whether the owner holds a lock of the operating system"""

    @classmethod
    def current(cls, environ: Mapping[str, str] = os.environ) -> "Owner":
        """This process."""
        return cls(
            os.getpid(),
            socket.gethostname(),
            _start_of(os.getpid()),
            _read("/proc/sys/kernel/random/boot_id"),
            _read("/etc/machine-id"),
            _namespace(),
            environ.get("SLURM_JOB_ID", ""),
            int(environ.get("SLURM_RESTART_COUNT") or 0),
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def on_machine_of(self, other: "Owner") -> bool:
        return self.host == other.host and self.machine == other.machine

    def under_kernel_of(self, other: "Owner") -> bool:
        """Whether both run under one operating system, perhaps in different containers."""
        return self.boot == other.boot and (bool(self.boot) or self.on_machine_of(other))


class RunLock:
    """Held from `__init__` to `release`; raises where another process trains in the folder.

    Args:
        me: this process, for tests.
    """

    def __init__(self, run_dir: Path, me: Owner | None = None) -> None:
        self.path = run_dir / NAME
        self._me, self._pid = me or Owner.current(), os.getpid()
        self._beat = time.monotonic()
        self._descriptor = -1
        try:
            self._descriptor = self._acquire()
        except OSError as error:
            raise CheckpointError(f"can't write to {run_dir}: {files.reason(error)}") from error

    def beat(self) -> None:
        """Show that this process is alive, at most every `BEAT_SECONDS`."""
        if time.monotonic() - self._beat > BEAT_SECONDS:
            self._beat = time.monotonic()
            if self._at_path(self._descriptor):
                with suppress(OSError):
                    os.utime(self.path)

    def check(self) -> None:
        """Raise if the folder was deleted, or another process has taken it over."""
        if self._at_path(self._descriptor):
            return
        if not self.path.parent.is_dir():
            raise CheckpointError(
                f"the run folder {self.path.parent} was deleted during training, so nothing can be saved any more"
            )
        other = _owner_in(self.path)
        if other is not None:
            raise CheckpointError(
                f"{self.path.parent} now belongs to {other}, because {NAME} was deleted; this process stops, so that "
                "they do not overwrite each other's files"
            )
        old, self._descriptor = self._descriptor, self._acquire()  # deleted, but nobody came
        self._close(old)

    def release(self) -> None:
        """Let others train here; safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if os.getpid() != self._pid:
            os.close(descriptor)  # in a fork of the owner, which still holds it
            return
        if self._at_path(descriptor):
            with suppress(OSError):
                os.ftruncate(descriptor, 0)  # no owner, even where an open file can't be deleted
                self.path.unlink()
        self._close(descriptor)

    def __del__(self) -> None:
        self.release()

    def _acquire(self) -> int:
        for _ in range(_TRIES):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
            try:
                locked = _lock(descriptor)
                if locked is not False and not self._at_path(descriptor):
                    self._close(descriptor)  # its owner deleted it in between
                    continue
                owner = _owner_in(self.path)
                if owner is None and locked is False:
                    raise self._refused("another process, which has just started")
                if owner is not None:
                    self._check_owner(owner, locked)
                if locked is not False:
                    self._write(descriptor, locked is True)
                    return descriptor
            except BaseException:
                self._close(descriptor)
                raise
            # Its owner is dead, but a process that it forked still holds the lock: a new file has a new one.
            if self._at_path(descriptor):
                self.path.unlink(missing_ok=True)
            self._close(descriptor)
        raise self._refused("another process, which starts at the same time")

    def _check_owner(self, owner: Owner, locked: bool | None) -> None:
        """Return if this owner is gone; else raise.

        Args:
            locked: whether this process got the system's lock; None: there are no such locks here.
        """
        me, stop = self._me, f"{owner}; stop it first"
        if owner.job and owner.job == me.job and me.restarts > owner.restarts:
            return  # this is the same job, requeued
        if owner.under_kernel_of(me):
            if locked and owner.locked:
                return
            if owner.namespace == me.namespace:
                if _start_of(owner.pid) != owner.start:
                    return
                raise self._refused(
                    stop if owner.pid != me.pid else "another trainer of this process; close it first"
                )
        elif owner.on_machine_of(me) and me.machine and locked is not False:
            return  # the machine was restarted
        if locked is False:
            raise self._refused(stop)
        age = self._age()
        if age < STALE_SECONDS:
            raise self._refused(
                f"{owner}, which gave a sign of life {max(age, 0):.0f} s ago and can't be checked from {me.host}; "
                f"if it is gone, delete {self.path}"
            )

    def _refused(self, who: str) -> CheckpointError:
        return CheckpointError(f"{self.path.parent} is being trained by {who}")

    def _age(self) -> float:
        """Seconds since the owner's last sign of life, by the clock of the file system."""
        with files.scratch(self.path) as probe:
            probe.touch()
            return probe.stat().st_mtime - self.path.stat().st_mtime

    def _at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except OSError:
            return False

    def _write(self, descriptor: int, locked: bool) -> None:
        record = {**asdict(self._me), "locked": locked}
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, json.dumps(record).encode())
        os.fsync(descriptor)

    @staticmethod
    def _close(descriptor: int) -> None:
        # Unlocked for forks of this process too, which share the descriptor.
        _unlock(descriptor)
        os.close(descriptor)


def living_owner(run_dir: Path) -> Owner | None:
    """The owner of a run folder, as far as it can be found without touching its lock; None: there is none."""
    path = run_dir / NAME
    owner = _owner_in(path)
    if owner is None:
        return None
    me = Owner.current()
    if owner.under_kernel_of(me) and owner.namespace == me.namespace:
        return owner if _start_of(owner.pid) == owner.start else None
    return owner if time.time() - path.stat().st_mtime < STALE_SECONDS else None


def _owner_in(path: Path) -> Owner | None:
    """The owner that the file names; None if it is empty or can't be read."""
    try:
        found = json.loads(path.read_text())
        return Owner(**{entry.name: found[entry.name] for entry in fields(Owner) if entry.name in found})
    except (OSError, ValueError, TypeError):
        return None


def _lock(descriptor: int) -> bool | None:
    """Whether the system's lock was free; None: there are no such locks here."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return None
    return True


def _unlock(descriptor: int) -> None:
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _start_of(pid: int) -> str:
    """When a process was started; empty if it does not exist or is a zombie."""
    if sys.platform == "linux":
        # psutil adds the time of the last boot, which shifts when the clock is set.
        words = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return words[19] if words and words[0] not in "ZX" else ""
    try:
        return f"{psutil.Process(pid).create_time():.0f}"
    except psutil.Error:
        return ""


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""
