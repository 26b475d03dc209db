"""The journal's memory of files that the inbox brought in: the same bytes again are no new rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping

from tiering.journal.opened import JournalFile, now_text

_TABLE = (
    "CREATE TABLE IF NOT EXISTS inbox_files (table_uuid TEXT NOT NULL, sha256 TEXT NOT NULL, name TEXT NOT NULL,"
    " created TEXT NOT NULL, PRIMARY KEY (table_uuid, sha256))"
)
_KEPT = 1_000_000


class Ingested:
    """The part of the journal that knows files. Losing it loses the comparison with old files, never a row."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def names_of(self, table_uuid: str, digests: Iterable[str]) -> dict[str, str]:
        """Of these SHA-256s, those that are in the table, and under which name they came. Writes nothing."""
        if not self._file.has_table("inbox_files"):
            return {}
        rows = self._file.read(
            "SELECT sha256, name FROM inbox_files WHERE table_uuid = ? AND sha256 IN (SELECT value FROM json_each(?))",
            (table_uuid, json.dumps(list(digests))),
        )
        return {row["sha256"]: row["name"] for row in rows}

    def note(self, table_uuid: str, names: Mapping[str, str]) -> None:
        """These are in, by SHA-256. What is known already stays as it is."""
        with self._file.write("note_ingested", len(names)) as connection:
            _make(connection)
            connection.executemany(
                "INSERT OR IGNORE INTO inbox_files VALUES (?, ?, ?, ?)",
                [(table_uuid, digest, name, now_text()) for digest, name in names.items()],
            )
            connection.execute(
                "DELETE FROM inbox_files WHERE rowid <= (SELECT max(rowid) FROM inbox_files) - ?", (_KEPT,)
            )


def _make(connection: sqlite3.Connection) -> None:
    connection.execute(_TABLE)
