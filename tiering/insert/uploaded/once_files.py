"""Marks in a table's directory that say which files a bulk ingest has taken, so that each goes in once.

<table>/ingest-<number>.json    files that one commit brought: digest of the place -> digest of size and time

The commit that brings the rows of files creates the mark. Numbers go up, and two commits cannot create the same one: of
two ingests at once the second looks again. Many marks become one with all of their files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from disks.base import Transaction
from disks.contracts.bucket_disk import LoggedDisk
from oplog.documents import Document
from oplog.errors import Refused
from tiering.config.units import counted
from tiering.table.schema import TableDefinition

MARKS = 64
"""So many are put together."""
_BEGIN, _END = "ingest-", ".json"


class FilesMark(msgspec.Struct, frozen=True):
    """What a mark says."""

    files: dict[str, str]
    rows: int
    time: str


_document = Document("mark of files that an ingest took", FilesMark)


@dataclass(frozen=True, slots=True)
class OnceFiles:
    """The files of one commit."""

    files: Mapping[str, str] = field(repr=False)
    """As `fingerprint` has them."""

    @property
    def id(self) -> str:
        """For the log."""
        return self.label

    @property
    def label(self) -> str:
        """For messages."""
        return f"an ingest of {counted(len(self.files), 'file')}"

    def is_done(self, disk: LoggedDisk, definition: TableDefinition) -> bool:
        """Whether all of them are in the table already."""
        known = taken(disk, definition)
        return all(known.get(place) == state for place, state in self.files.items())

    def mark(
        self, transaction: Transaction, disk: LoggedDisk, definition: TableDefinition, rows: int, now: datetime
    ) -> None:
        """Add to the commit what says that they are. Raises `Refused` where somebody else took some of them meanwhile,
        and is a `Conflict` at the commit where somebody took others."""
        paths = _marks(disk, definition)
        known = taken(disk, definition)
        twice = [place for place, state in self.files.items() if known.get(place) == state]
        if twice:
            raise Refused(
                f"{len(twice)} of the {counted(len(self.files), 'file')} went into {definition.full_name} by "
                "another ingest meanwhile: none of them went in now",
                hint="run it again: it takes those that are left",
            )
        number = max((int(path.rpartition(_BEGIN)[2].removesuffix(_END)) for path in paths), default=0) + 1
        files = dict(self.files)
        if len(paths) >= MARKS:
            files = {**known, **files}
            for path in paths:
                transaction.remove(path)
        document = FilesMark(files=files, rows=rows, time=now.isoformat())
        transaction.create(f"{definition.directory}/{_BEGIN}{number:08d}{_END}", _document.encode(document))


def fingerprint(path: str, size_bytes: int, changed: float) -> tuple[str, str]:
    """A file by where it is, and what tells it from what was there before."""
    return _digest(path), _digest(f"{size_bytes} {changed}")


def taken(disk: LoggedDisk, definition: TableDefinition) -> dict[str, str]:
    """All files that are in the table, as `OnceFiles` has them; of a place the newest."""
    found: dict[str, str] = {}
    for path in _marks(disk, definition):
        found |= _document.decode(disk.read(path)).files
    return found


def _marks(disk: LoggedDisk, definition: TableDefinition) -> list[str]:
    names = disk.list(definition.directory)
    return [f"{definition.directory}/{name}" for name in names if name.startswith(_BEGIN) and name.endswith(_END)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
