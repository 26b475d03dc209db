"""How far Keeper was with each replicated table when this machine last looked, and which replicas the table had."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping

import msgspec

from oplog.documents import Document
from tiering.journal.file import JournalFile, now_text

_TABLES = (
    "CREATE TABLE IF NOT EXISTS replicas (table_uuid TEXT PRIMARY KEY, number INTEGER NOT NULL, digest TEXT NOT NULL,"
    " names TEXT NOT NULL, updated TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS replica_failures (table_uuid TEXT, node TEXT, brings TEXT NOT NULL,"
    " reason TEXT NOT NULL, tries INTEGER NOT NULL, last TEXT NOT NULL, inserted INTEGER,"
    " PRIMARY KEY (table_uuid, node)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS replica_whole (id INTEGER PRIMARY KEY, table_uuid TEXT NOT NULL, part TEXT NOT NULL,"
    " reason TEXT NOT NULL, at TEXT NOT NULL)",
)
_MOST_WHOLE = 100
"""The newest parts of a table of which is remembered why they were fetched whole."""


_names = Document("names of a table's replicas", tuple[str, ...])


class KnownReplicas(msgspec.Struct, frozen=True):
    """What this machine last knew of one table."""

    number: int = -1
    """Of the last entry of the log that was taken over, or made here; -1 for none."""
    digest: str = ""
    """Of that entry."""
    names: frozenset[str] = frozenset()


class FailedEntry(msgspec.Struct, frozen=True):
    """What waits in the queue and could not be done when it was last tried."""

    node: str
    """Of Keeper."""
    brings: str
    """The part or the definition."""
    reason: str
    tries: int
    last: str
    """When, in RFC 3339 UTC."""
    inserted: int | None = None
    """Of an insert of another replica's: when, in seconds since 1970."""


class WholeFetch(msgspec.Struct, frozen=True):
    """A part that came with its bytes where those are shared."""

    part: str
    reason: str
    at: str
    """When, in RFC 3339 UTC."""


class ReplicaRecords(msgspec.Struct):
    """The part of the journal about replicated tables. Losing it loses the comparison with Keeper, never a row."""

    _file: JournalFile

    def record(self, table_uuid: str) -> KnownReplicas:
        """What is known of the table. Writes nothing."""
        if not self._file.has_table("replicas"):
            return KnownReplicas()
        for row in self._file.read("SELECT * FROM replicas WHERE table_uuid = ?", (table_uuid,)):
            return KnownReplicas(row["number"], row["digest"], frozenset(_names.decode(row["names"])))
        return KnownReplicas()

    def note_entry(self, table_uuid: str, number: int, digest: str, *, durable: bool = True) -> None:
        """The log has this entry; a lower one does not replace it."""
        with self._file.write("note_entry", table_uuid, durable=durable) as connection:
            _make(connection)
            connection.execute(
                "INSERT INTO replicas VALUES (?1, ?2, ?3, '[]', ?4) ON CONFLICT (table_uuid)"
                " DO UPDATE SET number = ?2, digest = ?3, updated = ?4 WHERE number < ?2",
                (table_uuid, number, digest, now_text()),
            )

    def note_names(self, table_uuid: str, names: Collection[str]) -> None:
        """The table has these replicas."""
        with self._file.write("note_replicas", table_uuid) as connection:
            _make(connection)
            connection.execute(
                "INSERT INTO replicas VALUES (?1, -1, '', ?2, ?3) ON CONFLICT (table_uuid)"
                " DO UPDATE SET names = ?2, updated = ?3",
                (table_uuid, _names.encode(tuple(sorted(names))).decode(), now_text()),
            )

    def forget_entry(self, table_uuid: str) -> None:
        """The table's log starts over."""
        if self.record(table_uuid).number < 0:
            return
        with self._file.write("forget_entry", table_uuid) as connection:
            connection.execute("UPDATE replicas SET number = -1, digest = '' WHERE table_uuid = ?", (table_uuid,))

    def forget(self, table_uuid: str) -> None:
        """The table is not replicated any more."""
        if not self._file.has_table("replicas"):
            return
        with self._file.write("forget_replicas", table_uuid) as connection:
            _make(connection)
            for table in ("replicas", "replica_failures", "replica_whole"):
                connection.execute(f"DELETE FROM {table} WHERE table_uuid = ?", (table_uuid,))

    def failures(self, table_uuid: str) -> list[FailedEntry]:
        """What could not be done when the queue of this machine's replica was last worked on."""
        if not self._file.has_table("replica_failures"):
            return []
        rows = self._file.read("SELECT * FROM replica_failures WHERE table_uuid = ? ORDER BY node", (table_uuid,))
        return [FailedEntry(*tuple(row)[1:]) for row in rows]

    def note_failures(self, table_uuid: str, failed: Collection[tuple[str, str, str, int | None]]) -> None:
        """These entries could not be done now: the node, what it brings, why, when it was inserted. All others were."""
        known = {one.node: one for one in self.failures(table_uuid)}
        if not failed and not known:
            return
        with self._file.write("note_failures", table_uuid, durable=False) as connection:
            _make(connection)
            connection.execute("DELETE FROM replica_failures WHERE table_uuid = ?", (table_uuid,))
            for node, brings, reason, inserted in failed:
                tries = known[node].tries + 1 if node in known else 1
                row = (table_uuid, node, brings, reason, tries, now_text(), inserted)
                connection.execute("INSERT INTO replica_failures VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def whole(self, table_uuid: str) -> list[WholeFetch]:
        """The last parts that came whole, the newest first."""
        if not self._file.has_table("replica_whole"):
            return []
        sql = "SELECT part, reason, at FROM replica_whole WHERE table_uuid = ? ORDER BY id DESC"
        return [WholeFetch(*row) for row in self._file.read(sql, (table_uuid,))]

    def note_whole(self, table_uuid: str, reasons: Mapping[str, str]) -> None:
        """These parts came whole, and why."""
        if not reasons:
            return
        with self._file.write("note_whole", table_uuid, durable=False) as connection:
            _make(connection)
            connection.executemany(
                "INSERT INTO replica_whole (table_uuid, part, reason, at) VALUES (?, ?, ?, ?)",
                [(table_uuid, part, reason, now_text()) for part, reason in reasons.items()],
            )
            connection.execute(
                "DELETE FROM replica_whole WHERE table_uuid = ?1 AND id NOT IN"
                " (SELECT id FROM replica_whole WHERE table_uuid = ?1 ORDER BY id DESC LIMIT ?2)",
                (table_uuid, _MOST_WHOLE),
            )


def _make(connection: sqlite3.Connection) -> None:
    """The tables: a journal of an earlier version has none, and one that was only read stays as it is."""
    for statement in _TABLES:
        connection.execute(statement)
