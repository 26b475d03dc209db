"""What a check looks at and what it finds: plain records, and the one shape in which every disk is checked."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from disks.base import FileInfo
from disks.stores.base import ByteRange
from oplog.errors import UsageError
from tiering.part import PartName

STORE_DIRECTORY = "store"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it must be. Names everything needed to find it."""

    invariant: str
    """I1 to I15 of the design."""
    what: str
    disk: str
    table: str | None = None
    """`db.name`, or the uuid while the name cannot be read."""
    part: str | None = None
    path: str | None = None
    object: str | None = None


@dataclass(slots=True)
class Checked:
    """How much was looked at: a check that saw nothing proves nothing."""

    parts: int = 0
    files: int = 0
    objects: int = 0
    bytes: int = 0
    """Sizes of the files that were compared."""
    bytes_read: int = 0
    """Data that was read and hashed."""


@dataclass(slots=True)
class CheckResult:
    """All that a check found and, with `repair`, what it put right again."""

    checked: Checked = field(default_factory=Checked)
    problems: list[Problem] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)
    """One sentence a repair. Its problem is not in `problems` any more."""

    @property
    def ok(self) -> bool:
        return not self.problems


class Findings:
    """Collects problems from several threads; each problem once."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}
        self._lock = threading.Lock()

    def add(self, problem: Problem) -> None:
        with self._lock:
            self._problems.setdefault(problem)

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
    """The files of one disk as the check sees them: for a bucket the table replayed from the log, never the cache."""

    @property
    def disk(self) -> str: ...

    @property
    def files(self) -> Mapping[str, FileInfo]: ...

    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        """Bytes of a file. Raises `NotFound` and `Damaged`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path belongs: `store/<3>/<uuid>/<part>/<file>`. `part` is None for files of the table itself."""

    uuid: str
    part: str | None
    file: str


def locate(path: str) -> Place | None:
    """The table and part a path belongs to; None for paths outside of tables."""
    segments = path.split("/")
    if len(segments) < 4 or segments[0] != STORE_DIRECTORY or not segments[2].startswith(segments[1]):
        return None
    if len(segments) == 4:
        return Place(segments[2], None, segments[3])
    return Place(segments[2], segments[3], "/".join(segments[4:]))


def is_part_name(name: str) -> bool:
    """Whether a directory's name is a part's."""
    try:
        PartName.parse(name)
    except UsageError:
        return False
    return True
