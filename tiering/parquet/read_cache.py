"""Bytes of objects that were read lately, on a local disk, for all processes of this machine.

A file there has the bytes of one data file at their own places, and holes where nothing was read yet. Nothing says
which is which, and nothing has to: what is kept is compared with the CRC32 that `part.json` states of each section
whenever it is read (`tiering.parquet.checked_file`), so a hole, a torn write and what a power cut left are no more than
bytes that have to be fetched. Hence nothing is synced either.

Files that one query read lie in `once`, those that a later one found there in `again`. What has to go goes from `once`
first, the longest unread before others, so that a scan of more than there is room for takes the place of other scans
only. A writer holds the lock, and counts the bytes before they are there: the limit holds, also after a kill.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from disks.effects import make_directory, op, remove_file, rename
from disks.host.locks import file_lock
from oplog.errors import FrostlineError, Locked

ONCE, AGAIN = "once", "again"
_LOCK, _FIGURES = "lock", "figures"
_NUMBERS = struct.Struct("<QQQ")
_SUM = struct.Struct("<I")
_UNIT_BYTES = 4096
"""File systems give room in pieces of this size."""
_AGAIN_SHARE = 0.8
"""So much of the room at most is for what was read again: a new set of rows must be able to get in."""
_KEPT_SHARE = 0.95
"""So much is left when something has to go: so that not every write looks at all files."""
_USED_NANOSECONDS = 60_000_000_000
"""A file is noted as used once in so long: who compared it knows it again by its times (`checked_local`)."""
_WAIT_SECONDS = 0.25
_WAITS = 4
"""So often a query that cannot get the lock does not keep what it read. Then it keeps nothing more: somebody holds the
lock and does not write."""


class CacheFigures(msgspec.Struct, frozen=True):
    """What is kept, and how often it served."""

    path: str
    max_bytes: int
    bytes: int
    files: int
    again_bytes: int
    """Of what was read by a second query."""
    hit_bytes: int
    """Read here instead of from a bucket, since the cache was made or dropped."""
    missed_bytes: int
    """Read from buckets meanwhile."""

    @property
    def hit_rate(self) -> float | None:
        """None while nothing was read."""
        read_bytes = self.hit_bytes + self.missed_bytes
        return self.hit_bytes / read_bytes if read_bytes else None


class _Kept(msgspec.Struct, frozen=True):
    path: Path
    bytes: int
    used_ns: int


class CachedFile:
    """What the cache has of one data file."""

    def __init__(self, cache: ReadCache, key: str, *, for_good: bool) -> None:
        self._cache = cache
        self.key = key
        """What tells it from all others, in every process."""
        self._for_good = for_good

    def open(self) -> int | None:
        """A descriptor of what is kept, to read at the places of the data file; None for nothing. As with `read`,
        nothing is proved. It stays the same file, whatever has to go from the cache; more may come into it."""
        return self._cache.open(self.key)

    def read(self, start: int, stop: int) -> bytearray | None:
        """What is kept for the bytes [start, stop), of which none is proved to be what was written; None for
        nothing."""
        return self._cache.read(self.key, start, stop)

    def use(self, hit_bytes: int) -> None:
        """Bytes that were kept were those that were written, and have served."""
        self._cache.use(self.key, hit_bytes)

    def keep(self, start: int, data: memoryview, *, was_missed: bool = True) -> None:
        """Keep bytes that lie at `start` in the file, and were compared. They came from a bucket if they were
        missed."""
        self._cache.keep(self.key, start, data, AGAIN if self._for_good else ONCE, was_missed=was_missed)


class ReadCache:
    """The cache as one query sees it. Thread-safe. What cannot be kept is not kept, without an error; `close` counts
    what was read."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        """Where all of it lies."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._is_counted = False
        self.failure: FrostlineError | None = None
        """Why nothing more is kept."""
        self._waits = 0
        self._ours: set[str] = set()
        """Keys of files that this query wrote to, or that are noted as used by it."""
        self._hit_bytes = 0
        self._missed_bytes = 0

    def file(self, *identity: str, for_good: bool = False) -> CachedFile:
        """The bytes of a data file, which these texts identify; they may have any content. `for_good`: they
        stay as if a second query had read them."""
        return CachedFile(self, hashlib.sha256("\0".join(identity).encode()).hexdigest(), for_good=for_good)

    @property
    def room_bytes(self) -> int:
        """So much can be kept for good."""
        return int(self._max_bytes * _AGAIN_SHARE)

    @property
    def missed_bytes(self) -> int:
        """Read from buckets since `close`."""
        return self._missed_bytes

    def open(self, key: str) -> int | None:
        """For `CachedFile`."""
        for folder in (AGAIN, ONCE):
            with suppress(OSError):
                return os.open(self.directory / folder / key, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        return None

    def read(self, key: str, start: int, stop: int) -> bytearray | None:
        """For `CachedFile`."""
        if (descriptor := self.open(key)) is None:
            return None
        try:
            data = bytearray(stop - start)
            return data if os.preadv(descriptor, [data], start) else None
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def use(self, key: str, hit_bytes: int) -> None:
        """For `CachedFile`."""
        with self._lock:
            self._hit_bytes += hit_bytes
            if key in self._ours:
                return
            self._ours.add(key)
        again = self.directory / AGAIN / key
        with suppress(OSError, FrostlineError):
            if not again.exists():
                rename(self.directory / ONCE / key, again)
            elif time.time_ns() - again.stat().st_mtime_ns < _USED_NANOSECONDS:
                return
            os.utime(again)

    def keep(self, key: str, start: int, data: memoryview, folder: str, *, was_missed: bool) -> None:
        """For `CachedFile`."""
        with self._lock:
            self._missed_bytes += len(data) if was_missed else 0
            if self.failure is not None or not data:
                return
            try:
                make_directory(self.directory / ONCE)
                make_directory(self.directory / AGAIN)
                with file_lock(self.directory / _LOCK, timeout_seconds=_WAIT_SECONDS):
                    self._keep(key, start, data, folder)
                self._ours.add(key)
            except Locked as error:
                self._waits += 1
                self.failure = error if self._waits == _WAITS else None
            except FrostlineError as error:
                self.failure = error
            except OSError as error:
                self.failure = FrostlineError(
                    f"the read cache keeps nothing: {error}", hint="check read_cache.path in the configuration"
                )

    def close(self) -> None:
        """Count what was read."""
        with self._lock, suppress(OSError, FrostlineError):
            if (self._hit_bytes or self._missed_bytes) and self.directory.is_dir():
                with file_lock(self.directory / _LOCK, timeout_seconds=_WAIT_SECONDS):
                    used, hit_bytes, missed_bytes = self._figures()
                    self._note(used, hit_bytes + self._hit_bytes, missed_bytes + self._missed_bytes)
                self._hit_bytes = self._missed_bytes = 0

    def figures(self) -> CacheFigures:
        """As it is now. Changes nothing."""
        kept = {folder: list(self._kept(folder)) for folder in (ONCE, AGAIN)}
        _, hit_bytes, missed_bytes = self._figures()
        again_bytes = sum(one.bytes for one in kept[AGAIN])
        return CacheFigures(
            str(self.directory),
            self._max_bytes,
            again_bytes + sum(one.bytes for one in kept[ONCE]),
            sum(map(len, kept.values())),
            again_bytes,
            hit_bytes,
            missed_bytes,
        )

    def drop(self) -> None:
        """Keep nothing any more, and count from zero. Raises `Locked`."""
        if not self.directory.is_dir():
            return
        with file_lock(self.directory / _LOCK):
            for folder in (ONCE, AGAIN):
                for one in self._kept(folder):
                    remove_file(one.path, missing_ok=True)
            self._note(0, 0, 0)

    # ---- with the lock

    def _keep(self, key: str, start: int, data: memoryview, folder: str) -> None:
        stop = start + len(data)
        cost_bytes = (-(-stop // _UNIT_BYTES) - start // _UNIT_BYTES) * _UNIT_BYTES
        if cost_bytes > self._max_bytes:
            return
        used, hit_bytes, missed_bytes = self._figures()
        if not self._is_counted:  # a power cut may have kept the bytes, and lost their number
            used = sum(one.bytes for folder in (ONCE, AGAIN) for one in self._kept(folder))
            self._is_counted = True
        if used + cost_bytes > self._max_bytes:
            used = self._make_room(cost_bytes)
        self._note(used + cost_bytes, hit_bytes, missed_bytes)
        path = self.directory / AGAIN / key
        self._write(path if path.exists() else self.directory / folder / key, start, data)

    def _make_room(self, needed_bytes: int) -> int:
        """Let files go until there is room. How much is used then."""
        once = sorted(self._kept(ONCE), key=lambda file: file.used_ns)
        again = sorted(self._kept(AGAIN), key=lambda file: file.used_ns)
        again_bytes = sum(file.bytes for file in again)
        used = again_bytes + sum(file.bytes for file in once)
        wanted_bytes = min(int(self._max_bytes * _KEPT_SHARE), self._max_bytes - needed_bytes)
        while used > wanted_bytes and (once or again):
            is_too_much = again_bytes > self._max_bytes * _AGAIN_SHARE
            oldest = (again if again and (is_too_much or not once) else once).pop(0)
            remove_file(oldest.path, missing_ok=True)
            used -= oldest.bytes
            again_bytes -= oldest.bytes if oldest.path.parent.name == AGAIN else 0
        return used

    def _write(self, path: Path, start: int, data: memoryview) -> None:
        with op("fs.write", path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
            try:
                while data:
                    written = os.pwrite(descriptor, data, start)
                    start, data = start + written, data[written:]
            finally:
                os.close(descriptor)

    def _kept(self, folder: str) -> Iterator[_Kept]:
        with suppress(FileNotFoundError), os.scandir(self.directory / folder) as found:
            for entry in found:
                with suppress(FileNotFoundError):  # read for the second time just now, or dropped
                    status = entry.stat(follow_symlinks=False)
                    yield _Kept(Path(entry.path), status.st_blocks * 512, status.st_mtime_ns)

    def _figures(self) -> tuple[int, int, int]:
        """Bytes used, hit and missed; zeros where that is not known."""
        try:
            data = (self.directory / _FIGURES).read_bytes()
        except OSError:
            return 0, 0, 0
        numbers, checksum = data[: _NUMBERS.size], data[_NUMBERS.size :]
        if len(numbers) != _NUMBERS.size or checksum != _SUM.pack(zlib.crc32(numbers)):
            return 0, 0, 0
        used, hit_bytes, missed_bytes = _NUMBERS.unpack(numbers)
        return used, hit_bytes, missed_bytes

    def _note(self, used: int, hit_bytes: int, missed_bytes: int) -> None:
        numbers = _NUMBERS.pack(used, hit_bytes, missed_bytes)
        self._write(self.directory / _FIGURES, 0, memoryview(numbers + _SUM.pack(zlib.crc32(numbers))))
