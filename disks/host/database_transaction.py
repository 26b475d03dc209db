"""One transaction of a SQLite file, as every file of ours is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from disks.effects import op


@contextmanager
def transaction(connection: sqlite3.Connection, effect: str, *arguments: object) -> Iterator[None]:
    """What the block does is committed when it ends, as this side effect, and rolled back when the block or the commit
    raises. Excludes the writers of other processes from its beginning on. The connection has `isolation_level=None`."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        with op(effect, *arguments):
            connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
