"""Local data files that a query engine opens by itself: compared with what was written before it does.

An engine says which columns it will read, not which pages. So the chunks of these columns are read here first, out of
the page cache where they are hot, and the engine reads them again. A file that was compared a moment ago, and that
nobody wrote to since, is not compared again.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from disks.system_errors import of_the_system
from oplog.errors import Damaged
from tiering.parquet.sections import Section, stated_sections
from tiering.table.part import DataFile

KEPT_SECONDS = 300.0
"""So long a comparison counts. What a disk loses by itself changes no time of the file, so not for ever."""
_KEPT_FILES = 10_000
_SETTLED_NANOSECONDS = 2_000_000_000
"""A file written so shortly ago may be written again within the same tick of its clock."""
_READ_BYTES = 256 * 1024
_WHOLE = -1
_Identity = tuple[int, int, int, int, int, str]
_Found = TypeVar("_Found")


class LocalRead(msgspec.Struct, frozen=True):
    """What is about to be read of a local file."""

    path: Path
    file: DataFile
    label: str
    hint: str
    columns: Collection[int] | None = None
    """By their places in the file; None for all of them."""
    groups: Collection[int] | None = None
    """Row groups, likewise."""


def check_local(reads: Iterable[LocalRead]) -> None:
    """Raise `Damaged` for the first file whose bytes are not those that were written, in the columns that are to be
    read or around them; `FileNotFoundError` for one that is gone."""
    _side_by_side(_check, [read for read in reads if not _is_kept(read)])


def which_are_whole(reads: Sequence[LocalRead]) -> list[bool]:
    """Of each file, whether `check_local` would raise nothing for it."""
    waiting = [place for place, read in enumerate(reads) if not _is_kept(read)]
    found = [True] * len(reads)
    for place, is_whole in zip(waiting, _side_by_side(_is_whole, [reads[place] for place in waiting]), strict=True):
        found[place] = is_whole
    return found


def _side_by_side(look: Callable[[LocalRead], _Found], reads: Sequence[LocalRead]) -> list[_Found]:
    if len(reads) < 2:
        return [look(read) for read in reads]
    with ThreadPoolExecutor(min(len(reads), os.cpu_count() or 1), thread_name_prefix="check") as pool:
        return list(pool.map(look, reads))


def _is_whole(read: LocalRead) -> bool:
    try:
        _check(read)
    except Damaged:
        return False
    except OSError as error:
        if (refused := of_the_system(error, read.path)) is not None:  # says nothing about its bytes
            raise refused from error
        return False
    return True


def _is_kept(read: LocalRead) -> bool:
    """Whether all of it was compared lately."""
    return _unkept(read, _identity(os.stat(read.path), read.file)) is None


def unchecked_bytes(reads: Iterable[LocalRead]) -> int:
    """How much of the files `check_local` would read; about, when they are gone or change."""
    return sum(map(_unchecked_bytes, reads))


def _unchecked_bytes(read: LocalRead) -> int:
    try:
        columns = _unkept(read, _identity(os.stat(read.path), read.file))
    except OSError:
        return 0
    if columns is None:
        return 0
    sections = stated_sections(read.file)
    if not sections:
        return read.file.size_bytes
    return sum(section.stop - section.start for section in sections if _is_wanted(section, read, columns))


def _check(read: LocalRead) -> None:
    descriptor = os.open(read.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        identity = _identity(os.fstat(descriptor), read.file)
        if identity[2] != read.file.size_bytes:
            raise _damaged(read, f"it has {identity[2]} bytes instead of {read.file.size_bytes}")
        wanted = _unkept(read, identity)
        if wanted is None:
            return
        compared = _compare(descriptor, read, wanted)
        if _identity(os.fstat(descriptor), read.file) == identity:
            _kept.add(identity, compared)
    finally:
        os.close(descriptor)


def _unkept(read: LocalRead, identity: _Identity) -> set[int] | None:
    """The columns that have to be compared, `_WHOLE` for all; None when that was done lately."""
    wanted = {_WHOLE} if read.columns is None else set(read.columns)
    known = _kept.get(identity)
    if known is None:
        return wanted
    return None if _WHOLE in known or wanted <= known else wanted - known


def _compare(descriptor: int, read: LocalRead, columns: set[int]) -> set[int]:
    """The columns that were compared in every row group."""
    sections = stated_sections(read.file)
    if not sections:
        if _sha256(descriptor, read.file.size_bytes) != read.file.sha256:
            raise _damaged(read, "its SHA-256 is another one")
        return {_WHOLE}
    for section in sections:
        if _is_wanted(section, read, columns) and _crc32(descriptor, section) != section.crc32:
            raise _damaged(read, f"bytes {section.start} to {section.stop} have another CRC32")
    return columns if read.groups is None else set()


def _is_wanted(section: Section, read: LocalRead, columns: set[int]) -> bool:
    if section.column is None:
        return True
    if read.groups is not None and section.group not in read.groups:
        return False
    return _WHOLE in columns or section.column in columns


def _damaged(read: LocalRead, fault: str) -> Damaged:
    return Damaged(f"{read.label} is not what was written: {fault}", hint=read.hint)


def _crc32(descriptor: int, section: Section) -> int:
    found = 0
    for piece in _pieces(descriptor, section.start, section.stop):
        found = zlib.crc32(piece, found)
    return found


def _sha256(descriptor: int, size_bytes: int) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(descriptor, 0, size_bytes):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(descriptor: int, start: int, stop: int) -> Iterator[memoryview]:
    """The bytes there, until the file ends: each piece only until the next one."""
    buffer = memoryview(bytearray(min(_READ_BYTES, stop - start)))
    while start < stop:
        count = os.preadv(descriptor, [buffer[: stop - start]], start)
        if count == 0:
            return
        yield buffer[:count]
        start += count


def _identity(now: os.stat_result, file: DataFile) -> _Identity:
    """What tells one content of a local file from another, as far as the system knows of it."""
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns, file.sha256


class _KeptComparisons:
    """Which columns of which files were found to be as they were written, for a while. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[_Identity, tuple[float, set[int]]] = OrderedDict()

    def get(self, identity: _Identity) -> set[int] | None:
        with self._lock:
            since, columns = self._known.get(identity, (-math.inf, set()))
            return set(columns) if time.monotonic() - since < KEPT_SECONDS else None

    def add(self, identity: _Identity, columns: set[int]) -> None:
        changed_ns = max(identity[3], identity[4])
        if time.time_ns() - changed_ns < _SETTLED_NANOSECONDS:
            return
        with self._lock:
            now = time.monotonic()
            since, known = self._known.pop(identity, (now, set()))
            fresh = now - since < KEPT_SECONDS
            self._known[identity] = (since, known | columns) if fresh else (now, columns)
            while len(self._known) > _KEPT_FILES:
                self._known.popitem(last=False)


_kept = _KeptComparisons()
