"""What a look at all parts of a table on a disk found, in sums: rows of `<state>/catalog.db`, written with those of the
parts.

A look is used while the disk shows the state that it had (`Disk.state_of`): then the parts are those that are kept, and
who needs only sums reads none of them. Which parts answer queries follows from the looks at all disks; that all of them
do is kept too (`settled`), by the numbers of the looks that it was found with.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from oplog.documents import Document

CREATE = """
CREATE TABLE looks (
  id INTEGER PRIMARY KEY AUTOINCREMENT, disk TEXT NOT NULL, directory TEXT NOT NULL, shape TEXT NOT NULL,
  state BLOB NOT NULL, rules TEXT NOT NULL, sums BLOB NOT NULL, crc32 INTEGER NOT NULL, UNIQUE (disk, directory));
CREATE TABLE settled (directory TEXT PRIMARY KEY, looks TEXT NOT NULL, crc32 INTEGER NOT NULL) WITHOUT ROWID
"""
SELECT_LOOK = "SELECT id, state, rules, sums, crc32 FROM looks WHERE disk = ? AND directory = ? AND shape = ?"
FORGET_LOOK = "DELETE FROM looks WHERE disk = ? AND directory = ?"
INSERT_LOOK = "INSERT INTO looks (disk, directory, shape, state, rules, sums, crc32) VALUES (?, ?, ?, ?, ?, ?, ?)"


class PartitionSums(msgspec.Struct, frozen=True, array_like=True):
    """What the parts of one partition on a disk are together."""

    parts: int
    rows: int
    bytes: int
    first_range: int
    """Of the block numbers that a part in it had."""
    last_range: int
    newest: datetime
    due: datetime | None
    """Before this no rule acts on any of them where it lies; None where none ever does."""
    told_first: datetime | None
    """The first time of those at which a rule is due of which plans only tell (`tiering.policy.due`)."""
    told_last: datetime | None
    values: tuple[Any, ...] | None = None
    """What their rows are partitioned by; None where parts say different things of it."""


class PartSums(msgspec.Struct, frozen=True, array_like=True):
    """What the parts of a table on a disk are together."""

    parts: int = 0
    rows: int = 0
    bytes: int = 0
    newest: datetime | None = None
    """When the last of them was written."""
    due: datetime | None = None
    """Before this no rule of the table acts on any of them where it lies; None where none ever does."""
    highest: dict[int, int] = {}
    """Range of block numbers -> the highest number that a part in it has."""
    partitions: dict[str, PartitionSums] = {}


class KeptLook(msgspec.Struct, frozen=True):
    """A look, and the number by which its parts can be asked for."""

    id: int
    state: tuple[int | str, ...]
    rules: str
    """What `due` was computed with."""
    sums: PartSums


class FoundFiles:
    """Tells which files a look found from those that another one did, or that are kept: all in path order, each with
    its mark as it is kept. Takes no more for a million."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, path: str, mark: bytes) -> None:
        """One more."""
        self._hash.update(b"%d %d " % (len(path), len(mark)) + path.encode() + mark)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    @staticmethod
    def of(marks: Mapping[str, tuple[int | str, ...]]) -> bytes:
        """The digest of these files, which are in path order."""
        found = FoundFiles()
        for path, mark in marks.items():
            found.add(path, msgspec.msgpack.encode(mark))
        return found.digest


_sums = Document(
    "sums of a kept look",
    PartSums,
    write=msgspec.msgpack.Encoder().encode,
    read=msgspec.msgpack.Decoder(PartSums).decode,
)
_state = Document[tuple[int | str, ...]](
    "state of a kept look",
    tuple[int | str, ...],
    write=msgspec.msgpack.Encoder().encode,
    read=msgspec.msgpack.Decoder(tuple[int | str, ...]).decode,
)


def encoded(state: tuple[int | str, ...], rules: str, sums: PartSums) -> tuple[bytes, str, bytes, int]:
    """The columns of a look from its state on."""
    state_data, sums_data = _state.encode(state), _sums.encode(sums)
    return state_data, rules, sums_data, crc32_of(state_data, rules, sums_data)


def decoded(row: tuple[int, bytes, str, bytes, int]) -> KeptLook:
    """The look of a row. Raises `ValueError` for one without its checksum, and what msgspec raises."""
    number, state, rules, sums, crc32 = row
    if crc32_of(state, rules, sums) != crc32:
        raise ValueError("what is kept of a look does not have its checksum")
    return KeptLook(number, _state.decode(state), rules, _sums.decode(sums))


def crc32_of(state: bytes, rules: str, sums: bytes) -> int:
    return zlib.crc32(b"%d %d " % (len(state), len(sums)) + state + rules.encode() + sums)
