"""Replay on disk: files of rows that never change once they are there, and a manifest that names them.

    RUN/replay/000000012000-000000016000-5f0c6a1b93d2e874.rows    rows 12000 to 15999 of all environments, column after column

Rows that have settled are written in whole segments by one thread while training goes on. A checkpoint adds the rows
since then as a short segment, a *tail*, and holds the manifest: each file with its rows, size and CRC-32, and the
newest rows, which may still change. Later a whole segment takes the place of tails, so files stay few.

A file is written under a hidden name, fsynced and renamed. Its name is never used again, so a run that branches off
from an older checkpoint shares files and overwrites none. It is deleted when no checkpoint names it. Rows are written
once: a change in place after they have settled would not be saved.
"""

import os
import re
import secrets
import zlib
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from whorl.core import files, tree
from whorl.core.errors import CheckpointError, ConfigError, DamagedError
from whorl.core.tree import Tree
from whorl.data.experience import Store

FOLDER = "replay"
SEGMENT_BYTES = 32 << 20
"""size of a whole segment"""
MOST_TAILS = 16
"""so many checkpoints between two whole segments write their new rows alone; the next one gathers them in one file"""
MOST_COPIES = 4
"""segments copied from a device that may wait for the disk"""

_CHUNK = 1 << 20  # bytes that are written and summed up at a time, while they are in the cache
_NAME = re.compile(r"[0-9]{12,}-[0-9]{12,}-[0-9a-f]{16}\.rows")


class Rows(Protocol):
    """A ring of rows, as far as storing it goes (`whorl.data.ring.Ring`)."""

    slots: int
    stride: int
    rows: int
    columns: dict[str, Tree]
    memories: Tree

    @property
    def oldest(self) -> int: ...

    @property
    def settled(self) -> int: ...

    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True)
class Segment:
    """A file of rows `first` to `last` - 1."""

    file: str
    first: int
    last: int
    size: int
    crc32: int = 0


class Segments(Store):
    """Keeps the rows of `ring` in `folder`.

    Args:
        ahead: write whole segments as they fill, and not only when asked to save.
        memories: stored memory too; not where it changes after its rows have settled.
    """

    def __init__(self, folder: Path, ring: Rows, *, ahead: bool = True, memories: bool = True) -> None:
        self.folder, self.ring, self.ahead = folder, ring, ahead
        leaves = [(f"columns.{name}", leaf, 1) for name, leaf in tree.items(ring.columns)]
        if memories:
            leaves += [(f"memories.{name}", leaf, ring.stride) for name, leaf in tree.items(ring.memories)]
        self._leaves: list[tuple[str, Tensor, int]] = sorted(leaves, key=lambda leaf: leaf[0])
        # A small ring has tails alone: all of it is written in no time, and a thread would write it over and over.
        small = ring.bytes < 4 * SEGMENT_BYTES
        self.size = ring.slots if small else max(1, SEGMENT_BYTES * ring.slots // ring.bytes)
        """rows of a whole segment"""
        self._whole: list[Segment] = []
        self._tails: list[Segment] = []
        self._pending: deque[tuple[Segment, Future[int]]] = deque()
        self._next = 0  # the first row that is in no whole segment, written or on its way
        self._named: set[str] = set()  # files that a manifest names, so that only `sweep` may delete them
        self._failed = False
        self._thread = ThreadPoolExecutor(1, "replay")

    def advance(self, steps: int) -> None:
        """Called before `steps` rows are added: have what has settled written, and keep unwritten rows from harm.

        It waits only where the ring has gone all the way round before the disk was done with one segment. A failure
        is no reason to stop training: the next `save` tries again, and says so if that fails too.
        """
        if not self.ahead or self._failed:
            return
        try:
            self._collect(finish=False)
            self._enqueue()
        except OSError:
            self._failed = True
        gone = self.ring.rows + steps - self.ring.slots
        if self._pending and self._pending[0][0].first < gone:
            wait([future for segment, future in self._pending if segment.first < gone])
        self._prune()

    def save(self) -> dict[str, Any]:
        """Bring all rows to the disk; the manifest."""
        # What failed before, or was deleted by somebody, is written anew: its rows are still here.
        with suppress(OSError):
            self._collect(finish=True)
        self._prune()
        missing = [s for s in self._segments() if not (self.folder / s.file).is_file()]
        if missing:
            self._go_back(missing[0].first)
        try:
            self.folder.mkdir(exist_ok=True)
            self._enqueue()
            self._collect(finish=True)
            self._add_tail()
            files.fsync_dir(self.folder)
        except OSError as error:
            self._failed = True
            raise CheckpointError(
                f"can't save replay in {self.folder}: {files.reason(error)}; what was there is untouched"
            ) from error
        self._failed = False
        self._named.update(self.names())
        return {
            "layout": self._layout(),
            "next": self._next,
            "whole": [asdict(segment) for segment in self._whole],
            "tails": [asdict(segment) for segment in self._tails],
            "newest": {name: leaf[slots] for name, leaf, slots in self._newest()},
        }

    def load(self, manifest: dict[str, Any]) -> None:
        """Fill the ring, whose row count is set already, and go on from there."""
        self._check_layout(manifest["layout"])
        whole, tails = ([Segment(**entry) for entry in manifest[kind]] for kind in ("whole", "tails"))
        for segment in (*whole, *tails):  # what is missing shows at once, and not after gigabytes
            self._check_size(segment)
        for segment in (*whole, *tails):  # older rows first: where they are overwritten, newer ones follow
            self._read(segment)
        for name, leaf, slots in self._newest():
            leaf[slots] = manifest["newest"][name].to(leaf.device)
        self._whole, self._tails, self._next = whole, tails, int(manifest["next"])
        self._named.update(self.names())

    def names(self) -> list[str]:
        """The files that the last manifest names."""
        return [segment.file for segment in self._segments()]

    def sweep(self, needed: Collection[str]) -> None:
        """Delete the files that neither a checkpoint needs nor this ring, and what died half-written."""
        if not self.folder.is_dir():
            return
        keep = {*needed, *self.names(), *(segment.file for segment, _ in self._pending)}
        with suppress(OSError):  # what resists is tried again next time
            files.sweep(self.folder)
            for entry in list(self.folder.iterdir()):
                if _NAME.fullmatch(entry.name) and entry.name not in keep:
                    entry.unlink(missing_ok=True)

    def close(self) -> None:
        """End the thread; rows since the last checkpoint are of no use to anybody any more."""
        for _, future in self._pending:
            future.cancel()
        self._thread.shutdown()
        for segment in (*self._segments(), *(segment for segment, _ in self._pending)):
            self._let_go(segment)

    # Writing

    def _enqueue(self) -> None:
        """Hand whole segments to the thread."""
        self._next = max(self._next, self.ring.oldest)
        while self.ring.settled - self._next >= self.size:
            self._submit(self._next, self._next + self.size)
            self._next += self.size
            self._tails = []  # they hold some of its rows

    def _submit(self, first: int, last: int) -> None:
        parts = list(self._parts(first, last))
        if any(part.device.type != "cpu" for part in parts):
            wait([future for _, future in list(self._pending)[: 1 - MOST_COPIES]])
        raw = [_raw(part.cpu()) for part in parts]
        name = f"{first:012}-{last:012}-{secrets.token_hex(8)}.rows"
        segment = Segment(name, first, last, sum(map(len, raw)))
        self._pending.append((segment, self._thread.submit(self._write, self.folder / name, raw)))

    def _write(self, path: Path, raw: list[memoryview]) -> int:
        """Runs in the thread; the CRC-32 of the new file."""
        crc = 0
        path.parent.mkdir(exist_ok=True)
        with files.scratch(path) as temp:
            with open(temp, "xb") as file:
                for part in raw:
                    for at in range(0, len(part), _CHUNK):
                        chunk = part[at : at + _CHUNK]
                        file.write(chunk)
                        crc = zlib.crc32(chunk, crc)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temp, path)
        return crc

    def _collect(self, finish: bool) -> None:
        """Take over what the thread has written."""
        while self._pending and (finish or self._pending[0][1].done()):
            segment, future = self._pending[0]
            try:
                crc = future.result()
            except OSError:
                self._go_back(segment.first)
                raise
            self._pending.popleft()
            self._whole.append(replace(segment, crc32=crc))

    def _go_back(self, row: int) -> None:
        """Forget what was written of the rows from `row` on."""
        while self._pending:
            segment, future = self._pending.pop()
            if not future.cancel():
                wait([future])
            self._let_go(segment)
        self._next = min(self._next, row)
        for segment in self._segments():
            if segment.last > self._next:
                self._let_go(segment)
        self._whole = [segment for segment in self._whole if segment.last <= self._next]
        self._tails = []

    def _add_tail(self) -> None:
        """Write the settled rows that are in no file yet."""
        first = self._tails[-1].last if 0 < len(self._tails) < MOST_TAILS else self._next
        if first >= self.ring.settled:
            return
        self._submit(first, self.ring.settled)
        segment, future = self._pending.pop()
        written = replace(segment, crc32=future.result())
        self._tails = [*(tail for tail in self._tails if tail.last <= first), written]

    def _prune(self) -> None:
        """Let go of files whose rows are all overwritten."""
        for kept in (self._whole, self._tails):
            while kept and kept[0].last <= self.ring.oldest:
                self._let_go(kept.pop(0))

    def _let_go(self, segment: Segment) -> None:
        if segment.file not in self._named:
            with suppress(OSError):
                (self.folder / segment.file).unlink(missing_ok=True)

    # Reading

    def _check_size(self, segment: Segment) -> None:
        where = f"{self.folder.name}/{segment.file}"
        if not _NAME.fullmatch(segment.file):
            raise DamagedError(f"its manifest names {segment.file!r}, which is no segment of replay")
        try:
            size = (self.folder / segment.file).stat().st_size
        except FileNotFoundError:
            raise DamagedError(f"{where} is missing") from None
        except OSError as error:
            raise DamagedError(f"{where}: {files.reason(error)}") from error
        if size != segment.size:
            raise DamagedError(f"{where} has {size} bytes instead of {segment.size}")

    def _read(self, segment: Segment) -> None:
        """Straight into the ring, summed up on the way."""
        crc = 0
        try:
            with open(self.folder / segment.file, "rb") as file:
                for part in self._parts(segment.first, segment.last):
                    host = part if part.device.type == "cpu" else torch.empty_like(part, device="cpu")
                    raw = _raw(host)
                    for at in range(0, len(raw), _CHUNK):
                        chunk = raw[at : at + _CHUNK]
                        crc = zlib.crc32(chunk[: file.readinto(chunk)], crc)
                    part.copy_(host)
        except OSError as error:
            raise DamagedError(f"{self.folder.name}/{segment.file}: {files.reason(error)}") from error
        if crc != segment.crc32:
            raise DamagedError(
                f"{self.folder.name}/{segment.file} does not match its CRC-32; it was damaged or altered"
            )

    # Where rows lie

    def _segments(self) -> list[Segment]:
        return [*self._whole, *self._tails]

    def _parts(self, first: int, last: int) -> Iterator[Tensor]:
        """The ring's own memory of rows `first` to `last` - 1, column after column, in two parts at its end."""
        for _, leaf, stride in self._leaves:
            begin, end = _blocks(first, last, stride)
            at, count = begin % len(leaf), end - begin
            yield leaf[at : at + count]
            if at + count > len(leaf):
                yield leaf[: at + count - len(leaf)]

    def _newest(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Each column with its name and the slots of the rows that have not settled."""
        for name, leaf, stride in self._leaves:
            begin, end = _blocks(self.ring.settled, self.ring.rows, stride)
            yield name, leaf, torch.arange(begin, end, device=leaf.device) % len(leaf)

    def _layout(self) -> dict[str, str]:
        """What a row is made of."""
        return {
            name: f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape[1:])} every {stride}"
            for name, leaf, stride in self._leaves
        }

    def _check_layout(self, saved: dict[str, str]) -> None:
        own = self._layout()
        for name in {**saved, **own}:
            if saved.get(name) != own.get(name):
                raise ConfigError(
                    f"the checkpoint's replay has {saved.get(name, 'no')} {name}, but the settings ask for "
                    f"{own.get(name, 'none')}; resume with the settings it was saved with"
                )


def _blocks(first: int, last: int, stride: int) -> tuple[int, int]:
    """What is stored before every `stride` rows, as far as it belongs to rows `first` to `last` - 1."""
    return -(-first // stride), -(-last // stride)


def _raw(part: Tensor) -> memoryview:
    """The bytes of contiguous memory, not copied."""
    return part.reshape(-1).view(torch.uint8).numpy().data
