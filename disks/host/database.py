"""SQLite files: their transactions, those that hold nothing but what can be made again, and those that are only read.

Where a file that is only read cannot be opened, in a directory that is full or read-only, where SQLite would have to
make files beside it, it is copied into memory.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from disks.effects import op, remove_file, rename, why_not_writable
from oplog.errors import Locked, NoSpace, ReadOnly

_MEMORY = Path("/dev/shm")
_ATTEMPTS = 5
_BUSY_SECONDS = 5.0


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


def in_memory(path: Path | None) -> sqlite3.Connection:
    """The database as it was committed last, in memory; empty without a file. Writes nothing beside the file.

    Raises `sqlite3.DatabaseError` for what is no database, `Locked` when others go on changing it.
    """
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    if path is None or not path.exists():
        return copy
    try:
        for _ in range(_ATTEMPTS):
            before = _seen(path)
            with _opened(path) as source:
                source.backup(copy)
            if _seen(path) == before:
                return copy
    except BaseException:
        copy.close()
        raise
    copy.close()
    raise Locked(f"{path} is being changed by another process", hint="try again")


def check_openable(path: Path) -> None:
    """Raise `NoSpace` or `ReadOnly` where SQLite could not make the files that it needs beside the database, and would
    leave a part of them. With those of another process there it can do without."""
    if not Path(f"{path}-shm").exists() and (why := why_not_writable(path.parent)) is not None:
        raise why


def for_reading(path: Path) -> sqlite3.Connection:
    """The database where it lies, never made or changed; in memory where that cannot be. Raises `sqlite3.Error`."""
    try:
        check_openable(path)
        connection = sqlite3.connect(_uri(path, "mode=ro"), uri=True, timeout=_BUSY_SECONDS, check_same_thread=False)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
    except (NoSpace, ReadOnly):
        return in_memory(path)
    except sqlite3.OperationalError:
        if why_not_writable(path.parent) is None:
            raise
        return in_memory(path)
    return connection


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The database for reading. Where a process has it open, or died so, its own files are there and SQLite reads them
    with its locks; else nobody has it open. A log without its index, as a copied directory may have it, is read in a
    directory of ours."""
    log, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    with ExitStack() as stack:
        opened = None
        if index.exists():
            with suppress(sqlite3.OperationalError):
                opened = stack.enter_context(_connected(path, "mode=ro"))
        if opened is None and _size(log):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_memory())))
            for file in (path, log):
                shutil.copyfile(file, directory / file.name)
            opened = stack.enter_context(_connected(directory / path.name, "mode=rw"))
        yield opened or stack.enter_context(_connected(path, "immutable=1"))


@contextmanager
def _connected(path: Path, how: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(_uri(path, how), uri=True, timeout=_BUSY_SECONDS)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield connection
    finally:
        connection.close()


def _uri(path: Path, how: str) -> str:
    return f"{path.absolute().as_uri()}?{how}"


def _memory() -> str | None:
    return str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None


def _seen(path: Path) -> list[tuple[int, int, int] | None]:
    """What changes whenever somebody writes: of the file and of the log beside it."""
    seen: list[tuple[int, int, int] | None] = []
    for file in (path, Path(f"{path}-wal")):
        try:
            found = file.stat()
            seen.append((found.st_ino, found.st_size, found.st_mtime_ns))
        except FileNotFoundError:
            seen.append(None)
    return seen


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
