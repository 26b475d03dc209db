"""Which disks this machine knows: the id and the place of each name, and what of each table lay there."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import msgspec

from oplog.documents import Document
from oplog.stamps import CommitStamp
from tiering.journal.file import JournalFile, advance_generation, now_text

_TABLES = """
CREATE TABLE IF NOT EXISTS disks (
  name TEXT PRIMARY KEY, id TEXT NOT NULL, kind TEXT NOT NULL, place TEXT NOT NULL, changes INTEGER NOT NULL DEFAULT 0,
  counted INTEGER NOT NULL DEFAULT 0, holdings TEXT NOT NULL DEFAULT '{}', updated TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS disk_writers (
  name TEXT NOT NULL, pid INTEGER NOT NULL, start TEXT NOT NULL, instance TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS disk_decisions (
  id INTEGER PRIMARY KEY AUTOINCREMENT, created TEXT NOT NULL, actor TEXT NOT NULL, verb TEXT NOT NULL,
  name TEXT NOT NULL, known TEXT NOT NULL, found TEXT NOT NULL, place TEXT NOT NULL, holdings TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS disk_stamps (
  id TEXT PRIMARY KEY, number INTEGER NOT NULL, token TEXT NOT NULL DEFAULT '',
  accepted INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
"""


class Holding(msgspec.Struct, frozen=True):
    """What a disk held of one table."""

    table: str
    parts: int
    rows: int


Holdings = Mapping[str, Holding]
"""By the table's uuid."""
_holdings = Document[dict[str, Holding]]("what a disk held when it was last counted", dict[str, Holding])


class KnownDisk(msgspec.Struct, frozen=True):
    """One disk as this machine last knew it."""

    name: str
    id: str
    kind: str
    location: str
    changes: int = 0
    """Goes up whenever somebody begins to write."""
    counted: bool = False
    """Whether `holdings` is all that the disk held, and nobody has written since."""
    holdings: dict[str, Holding] = {}


class KnownDisks(msgspec.Struct):
    """The part of the journal that says which disks there are. Losing it loses the comparison, never a row."""

    _file: JournalFile

    def all(self) -> dict[str, KnownDisk]:
        """By name. Writes nothing."""
        if not self._file.has_table("disks"):
            return {}
        return {row["name"]: _known(row) for row in self._file.read("SELECT * FROM disks ORDER BY name")}

    def note(self, name: str, identity: str, kind: str, location: str) -> None:
        """The name is that of this disk. What it held stays what it was."""
        with self._file.write("note_disk", name) as connection:
            _make(connection)
            connection.execute(
                "INSERT INTO disks (name, id, kind, place, updated) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (name)"
                " DO UPDATE SET id = ?2, kind = ?3, place = ?4, updated = ?5",
                (name, identity, kind, location, now_text()),
            )

    def begin_writing(self, name: str, identity: str, kind: str, location: str) -> None:
        """As `note`; and from now on, until somebody has counted again, nobody knows how much the disk holds."""
        with self._file.write("begin_writing", name) as connection:
            _make(connection)
            connection.execute(
                "INSERT INTO disks (name, id, kind, place, changes, updated) VALUES (?1, ?2, ?3, ?4, 1, ?5)"
                " ON CONFLICT (name) DO UPDATE SET id = ?2, kind = ?3, place = ?4, updated = ?5,"
                " changes = changes + 1, counted = 0",
                (name, identity, kind, location, now_text()),
            )
            connection.execute("INSERT INTO disk_writers VALUES (?, ?, ?, ?)", (name, *self._file.owner))
            advance_generation(connection)

    def count(self, name: str, changes: int, holdings: Holdings) -> None:
        """What the disk holds, as it was read after `changes` was. Nothing when somebody writes, or has begun since."""
        with self._file.write("count_disk", name) as connection:
            row = connection.execute("SELECT changes FROM disks WHERE name = ?", (name,)).fetchone()
            writers = connection.execute("SELECT * FROM disk_writers WHERE name = ?", (name,)).fetchall()
            if row is None or row["changes"] != changes or any(map(self._file.is_held, writers)):
                return
            connection.execute("DELETE FROM disk_writers WHERE name = ?", (name,))
            connection.execute(
                "UPDATE disks SET holdings = ?, counted = 1, updated = ? WHERE name = ?",
                (_holdings.encode(dict(holdings)).decode(), now_text(), name),
            )

    def stamps(self) -> dict[str, CommitStamp]:
        """By the id of a local disk: the last transaction there that this machine has seen."""
        if not self._file.has_table("disk_stamps"):
            return {}
        rows = self._file.read("SELECT * FROM disk_stamps WHERE token != ''")
        return {row["id"]: CommitStamp(row["number"], row["token"]) for row in rows}

    def note_stamp(self, identity: str, stamp: CommitStamp) -> None:
        """The disk was seen with this as its last transaction. Nothing where a later one is known. Without an fsync: it
        is durable with the next change that is."""
        with self._file.write("note_stamp", identity, durable=False) as connection:
            _make(connection)
            connection.execute(
                "INSERT INTO disk_stamps (id, number, token) VALUES (?1, ?2, ?3) ON CONFLICT (id)"
                " DO UPDATE SET number = ?2, token = ?3 WHERE number < ?2",
                (identity, stamp.number, stamp.token),
            )

    def accepted(self) -> dict[str, int]:
        """By the id of a disk: up to which number (of a bucket: revision) a person has said that it does not count that
        somebody has seen the disk further than it is."""
        if not self._file.has_table("disk_stamps"):
            return {}
        return {row["id"]: row["accepted"] for row in self._file.read("SELECT * FROM disk_stamps WHERE accepted > 0")}

    def decided(self) -> tuple[set[str], set[str]]:
        """The ids of disks that a person gave up and that nobody has adopted since, and of those adopted since."""
        if not self._file.has_table("disk_decisions"):
            return set(), set()
        given_up: set[str] = set()
        adopted: set[str] = set()
        for row in self._file.read("SELECT verb, known, found FROM disk_decisions ORDER BY id"):
            if row["known"] not in ("", row["found"]):
                given_up.add(row["known"])
                adopted.discard(row["known"])
            if row["verb"] == "adopt":
                given_up.discard(row["found"])
                adopted.add(row["found"])
        named = {row["id"] for row in self._file.read("SELECT id FROM disks")}
        return given_up - named, adopted

    def decide(
        self,
        verb: str,
        disk: KnownDisk,
        shown_id: str | None,
        location: str,
        actor: str,
        *,
        stamp: CommitStamp | None = None,
        accepted: int = 0,
    ) -> None:
        """What a person says of a disk: `adopt` takes `shown_id`, `replace` and `forget` forget the disk,
        also that it was drained. An adopted disk is taken at this stamp, though it was seen up to `accepted`."""
        with self._file.write("decide_disk", disk.name) as connection:
            _make(connection)
            holdings = _holdings.encode(dict(disk.holdings)).decode()
            connection.execute(
                "INSERT INTO disk_decisions (created, actor, verb, name, known, found, place, holdings)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (now_text(), actor, verb, disk.name, disk.id, shown_id or "", location, holdings),
            )
            connection.execute("DELETE FROM disks WHERE name = ?", (disk.name,))
            if verb != "adopt" and self._file.has_table("drained_disks"):
                connection.execute("DELETE FROM drained_disks WHERE name = ?", (disk.name,))
            if verb == "adopt":
                connection.execute(
                    "INSERT INTO disks (name, id, kind, place, updated) VALUES (?, ?, ?, ?, ?)",
                    (disk.name, shown_id or "", disk.kind, location, now_text()),
                )
                connection.execute("DELETE FROM disk_stamps WHERE id = ?", (shown_id or "",))
                connection.execute(
                    "INSERT INTO disk_stamps VALUES (?, ?, ?, ?)",
                    (shown_id or "", stamp.number if stamp else 0, stamp.token if stamp else "", accepted),
                )


def _make(connection: sqlite3.Connection) -> None:
    """The tables: a journal of an earlier version has none, and one that was only read stays as it is."""
    for statement in _TABLES.split(";"):
        if statement.strip():
            connection.execute(statement)


def _known(row: sqlite3.Row) -> KnownDisk:
    try:
        holdings = _holdings.decode(row["holdings"])
    except msgspec.DecodeError:
        holdings = {}
    return KnownDisk(
        name=row["name"],
        id=row["id"],
        kind=row["kind"],
        location=row["place"],
        changes=row["changes"],
        counted=bool(row["counted"]) and bool(holdings or row["holdings"] == "{}"),
        holdings=holdings,
    )
