"""Rows that left a file table, each with the revision that took it away: what leads from the table of now back to that
of an earlier revision, at the cost of what has changed since.

They are written in the transaction that takes the rows out of the table, so a crash leaves both or neither. How far
they lead back is remembered beside the rows: not beyond the revision that the table was begun at, nor beyond what was
forgotten because it became too much. Where a table leads back, the digest of its rows then follows from that of its
rows now; its users compare it with what the log says of that revision.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from disks.file_table.views import COLUMNS, DIGEST, SINCE, STORED, TableReader, row_of
from oplog import paths
from oplog.replay import FileRow
from oplog.table_digest import TableDigest

Head = tuple[str, str]
"""A revision, and what is remembered of it as the digest of the rows then."""

LAYOUT = """CREATE TABLE gone (
  path TEXT NOT NULL,
  size_bytes INTEGER NOT NULL,
  sha256 BLOB NOT NULL,
  key TEXT,
  blob_set TEXT,
  revision INTEGER NOT NULL,
  document INTEGER NOT NULL,
  inline BLOB,
  more TEXT,
  read_only INTEGER NOT NULL,
  until INTEGER NOT NULL,
  PRIMARY KEY (path, revision)
);
CREATE INDEX gone_until ON gone (until);
CREATE INDEX file_revisions ON files (revision)"""
"""Beside the files. `until`: the first revision without the row."""
MOST_CHANGED = 16_384
"""Where more rows have changed, a look at everything costs hardly more than to find out which."""

_STATE = "SELECT name, value FROM main.state"
_CAME = f"SELECT {COLUMNS} FROM main.files WHERE revision > ?"
_LEFT = f"SELECT {COLUMNS} FROM main.gone WHERE until > ? AND revision <= ?"
_THERE = "+path >= :start AND +path < :stop"
"""Not by path: of a directory of many parts few have changed."""
_TOUCHED = f"""
SELECT path FROM main.files WHERE revision > :after AND revision <= :to AND {_THERE}
UNION ALL SELECT path FROM main.gone WHERE until > :after AND (until <= :to OR revision > :after AND revision <= :to)
  AND {_THERE}"""


def digest_at(view: TableReader, revision: int, *, at_most: int | None = None) -> str | None:
    """The digest of the rows at a revision. None where what is kept does not lead back to it, or where more rows than
    `at_most` have changed since."""
    connection = view.connection
    state = dict(connection.execute(_STATE))
    head, since = state.get("revision", "0"), state.get(SINCE)
    known, _, text = state.get(DIGEST, "").partition(" ")
    if since is None or not int(since) <= revision <= int(head) or known != head:
        return None
    digest = TableDigest(text)
    changed = 0
    for row in _rows(connection, _CAME, revision):
        digest.remove(row)
        if (changed := changed + 1) == at_most:
            return None
    for row in _rows(connection, _LEFT, revision, revision):
        digest.add(row)
        if (changed := changed + 1) == at_most:
            return None
    return digest.hex


def names_changed(view: TableReader, directory: str, before: Head, after: Head) -> set[str] | None:
    """The names directly below the directory at or below which rows came or went between two states of the table, of
    which any may be the earlier. None unless the view shows the state `after`, and leads back to `before`, and few
    rows have changed."""
    state = view.state()
    if after != (state.get("revision"), state.get(DIGEST)) or not before[0].isdecimal():
        return None
    low, high = sorted((int(before[0]), int(after[0])))
    found = digest_at(view, int(before[0]), at_most=MOST_CHANGED)
    if found is None or before[1] != f"{before[0]} {found}":
        return None
    start, stop = paths.below(directory)
    asked = {"after": low, "to": high, "start": start, "stop": stop}
    touched = view.connection.execute(_TOUCHED, asked)
    return {path[len(start) :].partition("/")[0] for (path,) in touched}


def show_past(connection: sqlite3.Connection, revision: int, entry_digest: str, table_digest: str) -> None:
    """Queries of this connection for files, and for what is remembered beside them, get that revision from now
    on. Within a transaction, which lasts as long."""
    columns = f"SELECT {STORED} FROM main"
    connection.execute(
        f"CREATE TEMP VIEW files AS {columns}.files WHERE +revision <= {revision:d}"
        f" UNION ALL {columns}.gone WHERE +revision <= {revision:d} AND +until > {revision:d}"
    )
    connection.execute("CREATE TEMP TABLE state AS SELECT name, value FROM main.state")
    remembered = {"revision": str(revision), "digest": entry_digest, DIGEST: f"{revision} {table_digest}"}
    connection.executemany("UPDATE temp.state SET value = ? WHERE name = ?", [(v, n) for n, v in remembered.items()])


def _rows(connection: sqlite3.Connection, query: str, *values: int) -> Iterator[FileRow]:
    return map(row_of, connection.execute(query, values))
