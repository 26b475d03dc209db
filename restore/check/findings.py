"""What a check looks at and what it finds: plain records, and the one shape in which every disk is checked."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from disks.stores.base import ByteRange
from oplog.replay import FileRow


class Problem(msgspec.Struct, frozen=True):
    """One thing that is not as it must be. Names everything needed to find it."""

    invariant: str
    """One of the design, such as I1."""
    what: str
    disk: str
    table: str | None = None
    """`db.name`, or the uuid while the name cannot be read."""
    part: str | None = None
    path: str | None = None
    object: str | None = None


class Checked(msgspec.Struct):
    """How much was looked at: a check that saw nothing proves nothing."""

    parts: int = 0
    files: int = 0
    objects: int = 0
    bytes: int = 0
    """Sizes of the files that were compared."""
    bytes_read: int = 0
    """Data that was read and hashed."""
    files_read: int = 0
    parts_without_nested_ids: int | msgspec.UnsetType = msgspec.UNSET
    """Parts with nested columns, older than the ids of their fields: other engines may not find these fields."""


class ShareRead(msgspec.Struct, frozen=True):
    """Which share of a disk's data a check read."""

    disk: str
    share: int
    """From 1 to `shares`; every file belongs to one share for ever."""
    shares: int
    read_lately: int
    """How many shares were read since the last round began, this one included."""
    filled: int
    """How many shares hold any data: when all of them were read, the next round begins."""
    files: int
    bytes: int


class CheckResult(msgspec.Struct):
    """All that a check found and, with `repair`, what it put right again."""

    checked: Checked = msgspec.field(default_factory=Checked)
    problems: list[Problem] = msgspec.field(default_factory=list)
    repaired: list[str] = msgspec.field(default_factory=list)
    """One sentence a repair, done or (dry run) to be done. The problem of one that is done is not in `problems`."""
    set_aside: list[str] = msgspec.field(default_factory=list)
    """`disk:path` of the parts that lie in `detached/`."""
    attachable: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    """Of those the ones whose files are all there again: the table and the partition to attach."""
    held: dict[str, dict[str, tuple[int, int]]] = msgspec.field(default_factory=dict)
    """disk -> table's uuid -> how many parts of it, and rows in them."""
    unsure: set[str] = msgspec.field(default_factory=set)
    """Tables, by uuid, with a part that cannot be read."""
    shares: list[ShareRead] = msgspec.field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


PartKey = tuple[str, str, str]
"""(disk, table uuid, part name)"""


class Findings:
    """Collects problems from several threads; each problem once. Tables go by uuid until the check ends."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}
        self._reasons: dict[PartKey, str] = {}
        self._lock = threading.Lock()

    def add(self, problem: Problem, *, unusable: str | None = None) -> None:
        """`unusable` says in one word why the part cannot be read any more: a repair may then set it aside."""
        with self._lock:
            self._problems.setdefault(problem)
            if unusable is not None and problem.table is not None and problem.part is not None:
                self._reasons.setdefault((problem.disk, problem.table, problem.part), unusable)

    def unusable(self) -> dict[PartKey, str]:
        """The parts that cannot be read, and why."""
        with self._lock:
            return dict(self._reasons)

    def settle(self, part: PartKey) -> None:
        """Take the part's problems out: it was set aside."""
        with self._lock:
            for problem in [one for one in self._problems if (one.disk, one.table or "", one.part or "") == part]:
                del self._problems[problem]

    def sorted(self) -> list[Problem]:
        """By disk, table, part and path."""
        with self._lock:
            return sorted(
                self._problems,
                key=lambda problem: (
                    problem.disk,
                    problem.table or "",
                    problem.part or "",
                    problem.path or "",
                    problem.object or "",
                    problem.what,
                ),
            )


class FileTree(Protocol):
    """The files of one disk as the check sees them: for a bucket the table replayed from the log, never the cache.

    A file is a row of a file table; on a local disk its digest is unknown and its bytes are in no object.
    """

    @property
    def disk(self) -> str: ...

    def sweep(self, findings: Findings) -> Iterator[FileRow]:
        """Every file in path order, once: what can be told from one row alone is checked on the way."""

    def rows(self) -> Iterator[FileRow]:
        """Every file in path order."""

    def find(self, path: str) -> FileRow | None:
        """One file."""

    def content(self, row: FileRow, byte_range: ByteRange | None = None) -> bytes:
        """Bytes of a file, from any thread; a whole one is checked against its digest. Raises `NotFound`, `Damaged`."""

    def close(self) -> None:
        """Let go of what the tree is read from."""


class ListedTree:
    """The files of a disk that keeps no log, from one walk over it."""

    def __init__(self, disk: str, rows: Iterable[FileRow], read: Reader) -> None:
        self.disk = disk
        self._rows = {row.path: row for row in rows}
        self._read = read

    def sweep(self, findings: Findings) -> Iterator[FileRow]:
        return iter(self._rows.values())

    def rows(self) -> Iterator[FileRow]:
        return iter(self._rows.values())

    def find(self, path: str) -> FileRow | None:
        return self._rows.get(path)

    def content(self, row: FileRow, byte_range: ByteRange | None = None) -> bytes:
        return self._read(row.path, byte_range)

    def close(self) -> None:
        return None


class Reader(Protocol):
    """How a disk reads a file."""

    def __call__(self, path: str, byte_range: ByteRange | None = None, /) -> bytes: ...
