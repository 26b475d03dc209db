"""The header of a backup: it exists exactly when the backup does. Small, for listings read it; no secret in it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from backup.format import encoding, names
from backup.format.names import PLAIN_FORMAT, TREES_FORMAT, Ref
from oplog import bounds
from oplog.documents import Document
from oplog.errors import Damaged
from oplog.paths import is_safe

Cold = Literal["pin", "copy"]


class TableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One table of a backup, and its list."""

    name: str
    uuid: str
    list: Ref
    partitions: int
    parts: int
    rows: int
    files: int
    size_bytes: int


class TreeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of files on a disk that ClickHouse wrote, and its list: of a table, whose name is its uuid."""

    disk: str
    directory: str
    list: Ref
    parts: int
    files: int
    size_bytes: int

    @property
    def name(self) -> str:
        return self.directory.rpartition("/")[2]


class DiskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A disk that parts of the backup lay on. A local one is the SSD of the machine that made the backup."""

    name: str
    identity: str | None
    remote: bool
    parts: int


class PinnedDisk(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket that still holds cold data of the backup: at this revision, kept by this pin."""

    disk: str
    url: str
    endpoint_url: str | None
    revision: int
    pin: str


class NotHeld(msgspec.Struct, frozen=True, kw_only=True):
    """Another machine that writes a table: what lies on its own disks is not in this backup."""

    table: str
    owner: str


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A table that could not be read when the backup was made: nothing of it is in this backup."""

    table: str
    """Its name; its uuid where nothing told the name."""
    uuid: str
    why: str


class BackupHeader(msgspec.Struct, frozen=True, kw_only=True):
    """One backup of one machine. Backups of several machines under one name are a set."""

    format: int = PLAIN_FORMAT
    minimum_reader: int = 1
    id: str
    name: str
    machine: str
    host: str
    actor: str
    tool: str
    taken: datetime
    """The instant that the backup shows."""
    completed: datetime
    tags: tuple[str, ...] = ()
    cold: Cold = "copy"
    scope: tuple[str, ...] = ()
    """What was asked for, when it was not everything."""
    tables: tuple[TableEntry, ...] = ()
    trees: tuple[TreeEntry, ...] = ()
    disks: tuple[DiskEntry, ...] = ()
    pinned: tuple[PinnedDisk, ...] = ()
    not_held: tuple[NotHeld, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    new_bytes: int = 0
    """What was sent or copied for it."""

    def __post_init__(self) -> None:
        _check_times(taken=self.taken, completed=self.completed)
        counts = [self.new_bytes, *(count for table in self.tables for count in _counts(table))]
        counts += [count for tree in self.trees for count in (tree.parts, tree.files, tree.size_bytes)]
        if not all(0 <= count <= bounds.LARGEST_COUNT for count in counts):
            raise ValueError("a count of it is none")

    def with_trees(self, trees: Sequence[TreeEntry]) -> BackupHeader:
        """The same backup with what ClickHouse wrote, readable by who knows such."""
        if not trees:
            return self
        least = max(self.minimum_reader, TREES_FORMAT)
        return msgspec.structs.replace(self, trees=tuple(trees), format=least, minimum_reader=least)

    @property
    def listed(self) -> tuple[TableEntry | TreeEntry, ...]:
        """All that it holds, each with its list."""
        return (*self.tables, *self.trees)

    @property
    def parts(self) -> int:
        return sum(listed.parts for listed in self.listed)

    @property
    def files(self) -> int:
        return sum(listed.files for listed in self.listed)

    @property
    def size_bytes(self) -> int:
        return sum(listed.size_bytes for listed in self.listed)

    @property
    def key(self) -> str:
        return names.header_key(self.name, self.machine, self.id)


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """`.frostline-backup`: that this is a repository, and which."""

    format: int = PLAIN_FORMAT
    minimum_reader: int = 1
    id: str
    created: datetime

    def __post_init__(self) -> None:
        if not names.is_nonce(self.id):  # it names a directory here
            raise ValueError("its id is none")


class UnfinishedBackup(msgspec.Struct, frozen=True, kw_only=True):
    """`unfinished/<id>.json`: a backup is being made, or its maker is gone."""

    format: int = PLAIN_FORMAT
    minimum_reader: int = 1
    id: str
    name: str
    machine: str
    actor: str
    started: datetime

    def __post_init__(self) -> None:
        _check_times(started=self.started)


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    """In the place of a header: its backup was given up, and can never become complete."""

    format: int = PLAIN_FORMAT
    minimum_reader: int = 1
    revoked: str
    """The id of the backup."""
    time: datetime
    actor: str


class VerificationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification found. `slice` of `slices`: which share of the data it read; 0 of 0: none, 0 of 1: all."""

    prefix: ClassVar[str] = names.VERIFIED_PREFIX

    format: int = PLAIN_FORMAT
    minimum_reader: int = 1
    backup: str
    time: datetime
    actor: str
    depth: Literal["quick", "subset", "data"]
    files: int
    size_bytes: int
    read_bytes: int = 0
    slices: int = 0
    slice: int = 0
    problems: tuple[str, ...] = ()
    """The first of them."""
    problem_count: int = 0

    def __post_init__(self) -> None:
        _check_times(time=self.time)


class DrillRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a drill found. `whole`: it restored everything that the backup holds; else as much as the counts say."""

    prefix: ClassVar[str] = names.DRILLED_PREFIX

    format: int = PLAIN_FORMAT
    minimum_reader: int = 1
    backup: str
    time: datetime
    actor: str
    whole: bool
    parts: int
    rows: int
    size_bytes: int
    problems: tuple[str, ...] = ()
    """The first of them."""
    problem_count: int = 0

    def __post_init__(self) -> None:
        _check_times(time=self.time)


def is_revoked(data: bytes, where: str) -> bool:
    """Whether these bytes stand where a header would be, so that none can be put."""
    try:
        encoding.unsealed(data, Revoked, where)
    except Damaged:
        return False
    return True


def read_header(data: bytes, key: str, where: str) -> BackupHeader:
    """The header, from its key or from that of its claim. Raises `UnknownBackupFormat` or `Damaged`."""
    header = _header(data, where)
    if key not in (header.key, names.claim_key(header.id)):
        raise _not_its_backup(where)
    return header


def _header(data: bytes, where: str) -> BackupHeader:
    header = encoding.unsealed(data, BackupHeader, where)
    sound = all(names.is_ref(entry.list) for entry in header.listed)
    sound = sound and all(is_safe(tree.directory) for tree in header.trees)
    if not sound or names.parse_header_key(header.key) is None:
        raise _not_its_backup(where)
    return header


def _not_its_backup(where: str) -> Damaged:
    return Damaged(f"{where} is not the backup that its name says", hint=encoding.others_can(where))


_S = TypeVar("_S", bound=msgspec.Struct)
Sealed = Marker | UnfinishedBackup | Revoked | VerificationRecord | DrillRecord | BackupHeader


def _sealed(name: str, kind: type[_S]) -> Document[_S]:
    return Document(name, kind, write=encoding.sealed, read=lambda data: encoding.unsealed(data, kind, "it"))


_DOCUMENTS: dict[type, Document[Any]] = {
    Marker: _sealed("mark of a backup repository", Marker),
    UnfinishedBackup: _sealed("mark of a backup that is being made", UnfinishedBackup),
    Revoked: _sealed("mark of a backup that was given up", Revoked),
    VerificationRecord: _sealed("record of a verification", VerificationRecord),
    DrillRecord: _sealed("record of a drill", DrillRecord),
    BackupHeader: Document(
        "header of a backup", BackupHeader, write=encoding.sealed, read=lambda data: _header(data, "it")
    ),
}


def sealed(document: Sealed) -> bytes:
    """The bytes, with their own digest behind them. Raises `Refused` for a document that could not be read back."""
    return _DOCUMENTS[type(document)].encode(document)


def _check_times(**times: datetime) -> None:
    """Raise `ValueError` for a time that others cannot be compared with."""
    for word, time in times.items():
        if fault := bounds.fault_in_time(word, time):
            raise ValueError(fault)


def _counts(table: TableEntry) -> tuple[int, ...]:
    return table.partitions, table.parts, table.rows, table.files, table.size_bytes
