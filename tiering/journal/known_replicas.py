"""How far Keeper was with each replicated table when this machine last looked, and which replicas the table had."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from tiering.journal.opened import JournalFile, now_text

_TABLE = """
CREATE TABLE IF NOT EXISTS replicas (
  table_uuid TEXT PRIMARY KEY, number INTEGER NOT NULL, digest TEXT NOT NULL, names TEXT NOT NULL,
  updated TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class KnownReplicas:
    """What this machine last knew of one table."""

    number: int = -1
    """Of the last entry of the log that was taken over; -1 for none."""
    digest: str = ""
    """Of that entry."""
    names: frozenset[str] = frozenset()


class Replicas:
    """The part of the journal about replicated tables. Losing it loses the comparison with Keeper, never a row."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def known(self, table_uuid: str) -> KnownReplicas:
        """What is known of the table. Writes nothing."""
        if not self._file.read("SELECT 1 FROM sqlite_master WHERE name = 'replicas'"):
            return KnownReplicas()
        for row in self._file.read("SELECT * FROM replicas WHERE table_uuid = ?", (table_uuid,)):
            return KnownReplicas(row["number"], row["digest"], frozenset(json.loads(row["names"])))
        return KnownReplicas()

    def note_entry(self, table_uuid: str, number: int, digest: str) -> None:
        """This entry of the log was taken over; a lower one does not replace it."""
        with self._file.write("note_entry", table_uuid) as connection:
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
                (table_uuid, json.dumps(sorted(names)), now_text()),
            )

    def forget_entry(self, table_uuid: str) -> None:
        """The table's log begins anew."""
        if self.known(table_uuid).number < 0:
            return
        with self._file.write("forget_entry", table_uuid) as connection:
            connection.execute("UPDATE replicas SET number = -1, digest = '' WHERE table_uuid = ?", (table_uuid,))


def _make(connection: sqlite3.Connection) -> None:
    """The table: a journal of an earlier version has none, and one that was only read stays as it is."""
    connection.execute(_TABLE)
