"""How far the journal is: a number that goes up, in the same transaction, with whatever the journal must not forget."""

from __future__ import annotations

import secrets
import sqlite3

from tiering.journal.opened import JournalFile

_JOURNAL, _GENERATION = "journal", "generation"


def of(file: JournalFile) -> tuple[str, int]:
    """The id of the journal and its generation; "" and 0 before the first."""
    rows = file.read("SELECT key, value FROM meta WHERE key IN (?, ?)", (_JOURNAL, _GENERATION))
    found = {row["key"]: row["value"] for row in rows}
    return found.get(_JOURNAL, ""), int(found.get(_GENERATION, "0"))


def advance(connection: sqlite3.Connection, above: int = 0) -> None:
    """Within a transaction of the journal: the next generation, above this one. A journal without an id gets one."""
    connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (_JOURNAL, secrets.token_hex(8)))
    connection.execute(
        "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET"
        " value = max(CAST(value AS INTEGER), CAST(?2 AS INTEGER) - 1) + 1",
        (_GENERATION, str(above + 1)),
    )


def renew(connection: sqlite3.Connection) -> None:
    """Within a transaction of the journal: another id."""
    connection.execute("DELETE FROM meta WHERE key = ?", (_JOURNAL,))
    advance(connection)
