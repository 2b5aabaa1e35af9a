"""The replay buffer on disk: files of rows that are written once, and a manifest that lists them.

    RUN/replay/000000012000-000000016000-5f0c6a1b93d2e874.rows    rows 12000 to 15999 of all environments, by column

Rows that can't change any more (settled rows) are written in whole segments by a thread during training. A checkpoint
adds the rows since then as a short segment, a *tail*, and contains the manifest: rows, size and CRC-32 of each file,
and the newest rows, which may still change. Later a whole segment replaces the tails, so that there are few files.

A file is written under a hidden name, fsynced and renamed. Its name is never used again, so a run that continues from
an older checkpoint shares files and overwrites none. It is deleted when no checkpoint names it. Rows are written once:
a change in place after they have settled is not saved.
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

SEGMENT_BYTES = 32 << 20
"""size of a whole segment"""
MOST_TAILS = 16
"""checkpoints between two whole segments that write only their new rows; the next one writes them all into one file"""
MOST_COPIES = 4
"""segments copied from a GPU that may wait for the disk"""

_CHUNK = 1 << 20  # bytes that are written and checksummed at a time, while they are in the cache
_NAME = re.compile(r"[0-9]{12,}-[0-9]{12,}-[0-9a-f]{16}\.rows")


class Rows(Protocol):
    """The part of `whorl.data.ring.Ring` that storing it needs."""

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
        memories: also store memory states; false if they change after their rows have settled.
        without: names of columns that are not stored, because they change, too.
    """

    def __init__(
        self,
        folder: Path,
        ring: Rows,
        *,
        ahead: bool = True,
        memories: bool = True,
        without: Collection[str] = (),
    ) -> None:
        self.folder, self.ring, self.ahead = folder, ring, ahead
        columns = [(name, leaf) for name, leaf in tree.items(ring.columns) if name not in without]
        leaves = [(f"columns.{name}", leaf, 1) for name, leaf in columns]
        if memories:
            leaves += [(f"memories.{name}", leaf, ring.stride) for name, leaf in tree.items(ring.memories)]
        self._leaves: list[tuple[str, Tensor, int]] = sorted(leaves, key=lambda leaf: leaf[0])
        # A small ring has tails only: it is written quickly, and a thread would write it again and again.
        small = ring.bytes < 4 * SEGMENT_BYTES
        self.size = ring.slots if small else max(1, SEGMENT_BYTES * ring.slots // ring.bytes)
        """rows of a whole segment"""
        self._whole: list[Segment] = []
        self._tails: list[Segment] = []
        self._pending: deque[tuple[Segment, Future[int]]] = deque()
        self._next = 0  # the first row that is not in a whole segment, written or pending
        self._named: set[str] = set()  # files that a manifest names: only `sweep` may delete them
        self._failed = False
        self._thread = ThreadPoolExecutor(1, "replay")

    def advance(self, steps: int) -> None:
        """Called before `steps` rows are added: write settled rows, wait for pending ones that would be overwritten.

        It waits only if the ring is filled again before the disk has finished one segment. An error does not stop
        training: the next `save` tries again, and raises if that fails too.
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
        """Write all rows to disk; returns the manifest."""
        # Files that failed before or were deleted are written again: their rows are still in the ring.
        with suppress(OSError):
            self._collect(finish=True)
        self._prune()
        missing = [s for s in self._segments() if not (self.folder / s.file).is_file()]
        if missing:
            self._discard_from(missing[0].first)
        try:
            self.folder.mkdir(exist_ok=True)
            self._enqueue()
            self._collect(finish=True)
            self._add_tail()
            files.fsync_dir(self.folder)
        except OSError as error:
            self._failed = True
            raise CheckpointError(
                f"can't save the replay buffer in {self.folder}: {files.reason(error)}; existing files are unchanged"
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
        """Fill the ring, whose row count is already set, and continue from there."""
        whole, tails = self.check(manifest)
        if self.ring.settled > max((segment.last for segment in (*whole, *tails)), default=0):
            raise DamagedError("the checkpoint names too few files of the replay buffer")
        for segment in (*whole, *tails):  # oldest rows first: newer ones may overwrite them
            self._read(segment)
        for name, leaf, slots in self._newest():
            leaf[slots] = manifest["newest"][name].to(leaf.device)
        self._whole, self._tails, self._next = whole, tails, int(manifest["next"])
        self._named.update(self.names())

    def check(self, manifest: dict[str, Any]) -> tuple[list[Segment], list[Segment]]:
        """The whole segments and tails of a manifest; raises where they do not fit the ring or files are missing."""
        self._check_layout(manifest["layout"])
        whole, tails = ([Segment(**entry) for entry in manifest[kind]] for kind in ("whole", "tails"))
        for segment in (*whole, *tails):  # report missing files at once, not after reading gigabytes
            self._check_size(segment)
        return whole, tails

    def names(self) -> list[str]:
        """The files that the last manifest names."""
        return [segment.file for segment in self._segments()]

    def sweep(self, needed: Collection[str]) -> None:
        """Delete files that neither a checkpoint nor this ring needs, and incomplete ones."""
        if not self.folder.is_dir():
            return
        keep = {*needed, *self.names(), *(segment.file for segment, _ in self._pending)}
        with suppress(OSError):  # tried again next time
            files.sweep(self.folder)
            for entry in list(self.folder.iterdir()):
                if _NAME.fullmatch(entry.name) and entry.name not in keep:
                    entry.unlink(missing_ok=True)

    def close(self) -> None:
        """End the thread, and delete rows written since the last checkpoint."""
        for _, future in self._pending:
            future.cancel()
        self._thread.shutdown()
        for segment in (*self._segments(), *(segment for segment, _ in self._pending)):
            self._release(segment)

    # Writing

    def _enqueue(self) -> None:
        """Submit whole segments to the thread."""
        self._next = max(self._next, self.ring.oldest)
        while self.ring.settled - self._next >= self.size:
            self._submit(self._next, self._next + self.size)
            self._next += self.size
            self._tails = []  # their rows are in the segment

    def _submit(self, first: int, last: int) -> None:
        parts = list(self._parts(first, last))
        if any(map(_needs_copy, parts)):
            wait([future for _, future in list(self._pending)[: 1 - MOST_COPIES]])
        raw = [_raw(part.cpu()) for part in parts]
        name = f"{first:012}-{last:012}-{secrets.token_hex(8)}.rows"
        segment = Segment(name, first, last, sum(map(len, raw)))
        self._pending.append((segment, self._thread.submit(self._write, self.folder / name, raw)))

    def _write(self, path: Path, raw: list[memoryview]) -> int:
        """Runs in the thread; returns the CRC-32 of the new file."""
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
        """Register the segments that the thread has written."""
        while self._pending and (finish or self._pending[0][1].done()):
            segment, future = self._pending[0]
            try:
                crc = future.result()
            except OSError:
                self._discard_from(segment.first)
                raise
            self._pending.popleft()
            self._whole.append(replace(segment, crc32=crc))

    def _discard_from(self, row: int) -> None:
        """Discard files with rows from `row` on."""
        while self._pending:
            segment, future = self._pending.pop()
            if not future.cancel():
                wait([future])
            self._release(segment)
        self._next = min(self._next, row)
        for segment in self._segments():
            if segment.last > self._next:
                self._release(segment)
        self._whole = [segment for segment in self._whole if segment.last <= self._next]
        self._tails = []

    def _add_tail(self) -> None:
        """Write the settled rows that are not in a file yet."""
        first = self._tails[-1].last if 0 < len(self._tails) < MOST_TAILS else self._next
        if first >= self.ring.settled:
            return
        self._submit(first, self.ring.settled)
        segment, future = self._pending.pop()
        written = replace(segment, crc32=future.result())
        self._tails = [*(tail for tail in self._tails if tail.last <= first), written]

    def _prune(self) -> None:
        """Release files whose rows have all been overwritten."""
        for kept in (self._whole, self._tails):
            while kept and kept[0].last <= self.ring.oldest:
                self._release(kept.pop(0))

    def _release(self, segment: Segment) -> None:
        if segment.file not in self._named:
            with suppress(OSError):
                (self.folder / segment.file).unlink(missing_ok=True)

    # Reading

    def _check_size(self, segment: Segment) -> None:
        where = f"{self.folder.name}/{segment.file}"
        if not _NAME.fullmatch(segment.file):
            raise DamagedError(f"its manifest names {segment.file!r}, which is not a segment file")
        try:
            size = (self.folder / segment.file).stat().st_size
        except FileNotFoundError:
            raise DamagedError(f"{where} is missing") from None
        except OSError as error:
            raise DamagedError(f"{where}: {files.reason(error)}") from error
        if size != segment.size:
            raise DamagedError(f"{where} has {size} bytes instead of {segment.size}")

    def _read(self, segment: Segment) -> None:
        """Read directly into the ring, and check the CRC-32."""
        crc = 0
        try:
            with open(self.folder / segment.file, "rb") as file:
                for leaf, slots in self._places(segment.first, segment.last):
                    part = leaf[slots]
                    host = torch.empty(part.shape, dtype=part.dtype) if _needs_copy(part) else part
                    raw = _raw(host)
                    for at in range(0, len(raw), _CHUNK):
                        chunk = raw[at : at + _CHUNK]
                        crc = zlib.crc32(chunk[: file.readinto(chunk)], crc)
                    leaf[slots] = host
        except OSError as error:
            raise DamagedError(f"{self.folder.name}/{segment.file}: {files.reason(error)}") from error
        if crc != segment.crc32:
            raise DamagedError(
                f"{self.folder.name}/{segment.file} does not match its CRC-32; it was damaged or altered"
            )

    # Layout

    def _segments(self) -> list[Segment]:
        return [*self._whole, *self._tails]

    def _parts(self, first: int, last: int) -> Iterator[Tensor]:
        """The ring's rows `first` to `last` - 1 by column, in two parts where they wrap around."""
        return (leaf[slots] for leaf, slots in self._places(first, last))

    def _places(self, first: int, last: int) -> Iterator[tuple[Tensor, slice]]:
        """Columns, and slots of the rows `first` to `last` - 1."""
        for _, leaf, stride in self._leaves:
            begin, end = _blocks(first, last, stride)
            at, count = begin % len(leaf), end - begin
            yield leaf, slice(at, at + count)
            if at + count > len(leaf):
                yield leaf, slice(0, at + count - len(leaf))

    def _newest(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Each column with its name and the slots of the rows that have not settled."""
        for name, leaf, stride in self._leaves:
            begin, end = _blocks(self.ring.settled, self.ring.rows, stride)
            yield name, leaf, torch.arange(begin, end, device=leaf.device) % len(leaf)

    def _layout(self) -> dict[str, str]:
        """Name, type and shape of each column."""
        return {
            name: f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape[1:])} every {stride}"
            for name, leaf, stride in self._leaves
        }

    def _check_layout(self, saved: dict[str, str]) -> None:
        own = self._layout()
        for name in {**saved, **own}:
            if saved.get(name) != own.get(name):
                raise ConfigError(
                    f"the checkpoint's replay buffer has {saved.get(name, 'no')} {name}, but the settings require "
                    f"{own.get(name, 'none')}; resume with the settings it was saved with"
                )


def _blocks(first: int, last: int, stride: int) -> tuple[int, int]:
    """Range of the entries, one per `stride` rows, that belong to rows `first` to `last` - 1."""
    return -(-first // stride), -(-last // stride)


def _needs_copy(part: Tensor) -> bool:
    """Whether the bytes of a tensor are not in one piece in host memory."""
    return part.device.type != "cpu" or not part.is_contiguous()


def _raw(part: Tensor) -> memoryview:
    """The bytes of a tensor in host memory, without a copy where it is contiguous."""
    return part.contiguous().reshape(-1).view(torch.uint8).numpy().data
