"""The journal's list of parts of which this machine may hold a copy beside the one in a bucket."""

from __future__ import annotations

from collections.abc import Iterable

from tiering.journal.opened import JournalFile

SOURCE_COPIES = (
    "CREATE TABLE IF NOT EXISTS source_copies (table_uuid TEXT NOT NULL, part TEXT NOT NULL,"
    " PRIMARY KEY (table_uuid, part)) WITHOUT ROWID"
)
_LISTED = "source_copies"
"""In `meta`: the list holds all of them."""


class SourceCopyRecords:
    """The part of the journal that lists them. A part may be listed that is no copy: the log of the bucket decides."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def parts(self) -> dict[str, set[str]]:
        """The listed parts by the uuid of their table, and those of moves that have not ended."""
        found: dict[str, set[str]] = {}
        rows = self._file.read("SELECT table_uuid, part FROM moves WHERE state IN ('copying', 'committed')")
        if self._file.has_table("source_copies"):
            rows += self._file.read("SELECT table_uuid, part FROM source_copies")
        for row in rows:
            found.setdefault(row["table_uuid"], set()).add(row["part"])
        return found

    def add(self, parts: Iterable[tuple[str, str]], *, all_listed: bool = False) -> None:
        """List parts, each as (uuid of its table, name). `all_listed`: there are no others."""
        rows = list(parts)
        if not rows and not all_listed:
            return
        with self._file.write("add_source_copies", len(rows)) as connection:
            connection.execute(SOURCE_COPIES)  # a journal of an earlier version has none
            connection.executemany("INSERT OR IGNORE INTO source_copies VALUES (?, ?)", rows)
            if all_listed:
                connection.execute("INSERT OR REPLACE INTO meta VALUES (?, 'all')", (_LISTED,))

    def forget(self, parts: Iterable[tuple[str, str]]) -> None:
        """These are no copies: removed, or at home again."""
        if (rows := list(parts)) and self._file.has_table("source_copies"):
            with self._file.write("forget_source_copies", len(rows)) as connection:
                connection.executemany("DELETE FROM source_copies WHERE table_uuid = ? AND part = ?", rows)

    def are_listed(self) -> bool:
        """Whether the list holds all copies: that of a new journal, or of an older version, does not."""
        return bool(self._file.read("SELECT 1 FROM meta WHERE key = ?", (_LISTED,)))

    def kept_between(self, table_uuid: str, part: str) -> tuple[str, ...]:
        """The disks of the part's last move, if that left the part on both; else none."""
        rows = self._file.read(
            "SELECT * FROM moves WHERE table_uuid = ? AND part = ? ORDER BY id DESC LIMIT 1", (table_uuid, part)
        )
        is_kept = bool(rows) and bool(rows[0]["keep_source"]) and rows[0]["state"] in ("committed", "done")
        return (rows[0]["source"], rows[0]["target"]) if is_kept else ()
