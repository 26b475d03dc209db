"""SQLite files that hold nothing but what can be made again: opened, thrown away and set aside in one way."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from disks.effects import remove_file, rename


def open_cache(
    name: Path | str, *, busy_seconds: float, prepare: Callable[[sqlite3.Connection], None]
) -> sqlite3.Connection:
    """A connection for all threads, without transactions of its own, on which `prepare` has made the tables. What is
    committed last may be lost in a power cut. Raises what SQLite and `prepare` raise, and leaves nothing open then."""
    connection = sqlite3.connect(name, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        prepare(connection)
    except BaseException:
        connection.close()  # now: closed later, it would remove the -wal of the file that takes its place
        raise
    return connection


def remove_database(path: Path) -> None:
    """Take away the file and those beside it, itself last. Nobody here has it open."""
    _remove_log(path)
    remove_file(path, missing_ok=True)


def set_database_aside(path: Path) -> Path:
    """Keep the file of a damaged database for people, without those beside it; under which name. Nobody here has it
    open."""
    aside = path.with_name(f"{path.name}.damaged")
    _remove_log(path)
    rename(path, aside)
    return aside


def _remove_log(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        remove_file(path.with_name(path.name + suffix), missing_ok=True)
