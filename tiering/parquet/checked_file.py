"""A data file as a reader sees it whose every byte was compared with what was written, wherever it comes from."""

from __future__ import annotations

import hashlib
import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import groupby

from disks.host.ranged_file import RangedFile
from disks.stores.base import ByteRange
from oplog.errors import Damaged
from tiering.parquet.read_cache import CachedFile
from tiering.parquet.sections import BLOCK_BYTES, MAGIC, Section, blocks, stated_sections
from tiering.table.part import DataFile

Fetch = Callable[[ByteRange], bytes]
"""The bytes of a range, from wherever the file lies: all of them, or an error."""
HELD_BYTES = 64 * 1024 * 1024
_LEARNING_BYTES = 32 * BLOCK_BYTES
_LEARNED_FILES = 1000
_WHOLE_BYTES = 64 * 1024
"""A smaller file is read in one request, for any part of it."""


class _Sections:
    """Sections that lie together and were fetched at once, or are being fetched."""

    def __init__(self, sections: Sequence[Section]) -> None:
        self.sections = sections
        self.start, self.stop = sections[0].start, sections[-1].stop
        self.data: Future[memoryview] = Future()


class HeldSections:
    """Sections that were read lately, by what they are: read once, however many ask for them at a time. Thread-safe."""

    def __init__(self, limit_bytes: int = HELD_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, Section], _Sections] = OrderedDict()
        self._held_bytes = 0

    def claim(self, sha256: str, sections: Sequence[Section]) -> tuple[list[_Sections], list[_Sections]]:
        """Where each section of the file with this digest is found, and those runs that the caller has to fetch."""
        found: list[_Sections] = []
        ours: list[_Sections] = []
        with self._lock:
            for absent, group in groupby(sections, lambda section: (sha256, section) not in self._held):
                members = list(group)
                if absent:
                    ours.append(_Sections(members))
                    self._held.update(((sha256, section), ours[-1]) for section in members)
                    self._held_bytes += ours[-1].stop - ours[-1].start
                found.extend(self._held[sha256, section] for section in members)
            while self._held_bytes > self._limit_bytes and len(self._held) > len(sections):
                (_, oldest), _ = self._held.popitem(last=False)
                self._held_bytes -= oldest.stop - oldest.start
        return found, ours

    def drop(self, sha256: str, run: _Sections) -> None:
        """Forget what could not be read."""
        with self._lock:
            for section in run.sections:
                if self._held.pop((sha256, section), None) is not None:
                    self._held_bytes -= section.stop - section.start


class CheckedFile(RangedFile):
    """Ranges of a data file, read by whole sections. Raises `Damaged`, which begins with the label, for a section that
    is not what was written, even when it is read a second time. Thread-safe, but for the position of `read`."""

    def __init__(
        self,
        file: DataFile,
        fetch: Fetch,
        *,
        label: str,
        hint: str,
        held: HeldSections | None = None,
        cached: CachedFile | None = None,
    ) -> None:
        """`cached` is asked before `fetch`, and keeps what was fetched."""
        super().__init__(file.size_bytes)
        self._file = file
        self._fetch = fetch
        self._label = label
        self._hint = hint
        self._held = held or HeldSections()
        self._cached = cached
        self._lock = threading.Lock()
        self._sections = stated_sections(file)
        self._starts = [section.start for section in self._sections]
        self.tail_bytes = file.size_bytes - self._starts[-1] if self._starts else None
        """How much follows the column chunks; None where that is not known."""

    @property
    def sections(self) -> Sequence[Section]:
        """What it is compared by; none while that is not known."""
        return self._sections

    def pieces(self, start: int, stop: int) -> list[memoryview]:
        """The bytes [start, stop), in pieces. What is not held and lies together is fetched at once."""
        found, ours = self._held.claim(self._file.sha256, self._covering(start, stop))
        try:
            for run in ours:
                run.data.set_result(self._read(run.sections))
        except BaseException as error:
            for run in ours:
                if not run.data.done():
                    self._held.drop(self._file.sha256, run)
                    run.data.set_exception(error)
            raise
        pieces = []
        while start < stop:
            run = next(run for run in found if run.start <= start < run.stop)
            pieces.append(run.data.result()[start - run.start : stop - run.start])
            start = run.stop
        return pieces

    def read_whole(self, put: Callable[[int, memoryview], None]) -> None:
        """Give all of it, some at a time: where it lies, bytes. Nothing says that these are what was written until this
        has ended."""
        if self._learn(put):
            return
        for first in range(0, self._size, _LEARNING_BYTES):
            start = first
            for piece in self.pieces(first, min(first + _LEARNING_BYTES, self._size)):
                put(start, piece)
                start += len(piece)

    def _bytes(self, start: int, stop: int) -> bytes | memoryview:
        pieces = self.pieces(start, stop)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _covering(self, start: int, stop: int) -> Sequence[Section]:
        if not self._sections:
            self._learn()
        if self._size <= _WHOLE_BYTES:
            return self._sections
        first = bisect_right(self._starts, start) - 1
        return self._sections[first : bisect_right(self._starts, stop - 1)]

    def _read(self, sections: Sequence[Section]) -> memoryview:
        """Sections that lie together: those that are kept and proved, and the others fetched. Of the first four bytes,
        which the engine asks for alone, no store is asked: they are the same in each file."""
        if len(sections) == 1 and sections[0].stop == len(MAGIC) and _is(sections[0], memoryview(MAGIC), 0):
            return memoryview(MAGIC)
        start, stop = sections[0].start, sections[-1].stop
        kept = self._cached.read(start, stop) if self._cached else None
        if self._cached is None or kept is None:
            data = self._fetched(sections)
            if self._cached:
                self._keep(start, data)
            return data
        whole = memoryview(kept)
        for proved, group in groupby(sections, lambda section: _is(section, whole, start)):
            members = list(group)
            first, last = members[0].start, members[-1].stop
            if proved:
                self._cached.use(last - first)
            else:
                data = self._fetched(members)
                whole[first - start : last - start] = data
                self._keep(first, data)
        return whole

    def _keep(self, start: int, data: memoryview) -> None:
        assert self._cached is not None
        self._cached.keep(start, data)
        if start and start + len(data) == self._size:  # so that an engine can open what is kept
            self._cached.keep(0, memoryview(MAGIC), was_missed=False)

    def _fetched(self, sections: Sequence[Section]) -> memoryview:
        start = sections[0].start
        wanted = ByteRange(start, sections[-1].stop)
        data = memoryview(self._fetch(wanted))
        if all(_is(one, data, start) for one in sections):
            return data
        # A bit may have been lost on the way.
        data = memoryview(self._fetch(wanted))
        for one in sections:
            if not _is(one, data, start):
                raise self._damaged(f"bytes {one.start} to {one.stop} have another CRC32")
        return data

    def _damaged(self, fault: str) -> Damaged:
        return Damaged(f"{self._label} is not what was written: {fault}", hint=self._hint)

    def _learn(self, put: Callable[[int, memoryview], None] | None = None) -> bool:
        """Compare the whole file with its SHA-256, and remember its blocks. Whether it was read for that, and `put`."""
        with self._lock:
            if self._sections:
                return False
            known = _learned.get(self._file.sha256)
            found = known or self._compared_blocks(put) or self._compared_blocks(put)
            if not found:
                raise self._damaged("its SHA-256 is another one")
            self._starts = [section.start for section in found]
            self._sections = found
            return not known

    def _compared_blocks(self, put: Callable[[int, memoryview], None] | None) -> tuple[Section, ...]:
        """Nothing where its SHA-256 is another one: a bit may have been lost on the way."""
        digest = hashlib.sha256()
        found: list[Section] = []
        for start in range(0, self._size, _LEARNING_BYTES):
            data = memoryview(self._fetch(ByteRange(start, min(start + _LEARNING_BYTES, self._size))))
            digest.update(data)
            found += blocks(data, start)
            if put is not None:
                put(start, data)
                if self._cached:  # the reader of the cache compares it
                    self._keep(start, data)
        if digest.hexdigest() != self._file.sha256:
            return ()
        _learned.add(self._file.sha256, tuple(found))
        return tuple(found)


def _is(section: Section, data: memoryview, start: int) -> bool:
    """Whether the data, which lies at `start` in the file, has what was written of the section."""
    return zlib.crc32(data[section.start - start : section.stop - start]) == section.crc32


class _LearnedSections:
    """Blocks of files that this process compared as a whole, by their SHA-256."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[Section, ...]] = OrderedDict()

    def get(self, sha256: str) -> tuple[Section, ...]:
        with self._lock:
            return self._known.get(sha256, ())

    def add(self, sha256: str, sections: tuple[Section, ...]) -> None:
        with self._lock:
            self._known[sha256] = sections
            while len(self._known) > _LEARNED_FILES:
                self._known.popitem(last=False)

    def forget(self) -> None:
        """Know nothing, as a new process does."""
        with self._lock:
            self._known.clear()


_learned = _LearnedSections()
