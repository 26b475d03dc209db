"""How many bytes lie below each directory of a local disk, kept for those of many parts instead of asked of each file.

<root>/.frostline/sizes.db       a cache: losing it costs one look at each file

A directory is kept when many directories lie in it, and these hold nothing but files: a table's. What is kept counts
while the directory has the state that it had; where lines of commits say which names they touched since
(`disks.local.changes`), these are looked at. A hand that changes a file inside a part's directory is not seen.
"""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from disks.base import Fingerprint
from disks.host.database import check_openable, open_cache, remove_database, transaction
from disks.local.tree import LocalTree, join
from oplog.errors import FrostlineError, NotFound

logger = logging.getLogger(__name__)

KEPT_FROM = 64
"""So many directories below one are worth it."""
_FOLLOWED = 2048
_BUSY_SECONDS = 2
_SCHEMA = 1
_CREATE = """
CREATE TABLE directories (
  id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL, state BLOB NOT NULL, bytes INTEGER NOT NULL, crc32 INTEGER NOT NULL
);
CREATE TABLE sizes (
  directory INTEGER NOT NULL, name TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (directory, name)
) WITHOUT ROWID
"""
_TROUBLE = (sqlite3.Error, OSError, FrostlineError, msgspec.MsgspecError, ValueError)
_decoder = msgspec.msgpack.Decoder(Fingerprint)


class KeptSizes(msgspec.Struct, frozen=True):
    """The sizes of one disk. What fails here is logged, and costs a look at each file."""

    path: Path
    state_of: Callable[[str], Fingerprint | None]
    changed_between: Callable[[str, Fingerprint, Fingerprint], set[str] | None]

    def total(self, tree: LocalTree) -> int:
        """The sizes of all visible files. The caller keeps the tree as it is."""
        if self.path.parent.is_dir():
            try:
                check_openable(self.path)
                with closing(open_cache(self.path, busy_seconds=_BUSY_SECONDS, prepare=self._prepare)) as kept:
                    return self._below(kept, tree, "")
            except _TROUBLE as error:
                logger.info("%s cannot be used: %s", self.path, error)
                if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                    self._throw_away()
        hidden = tree.hidden.inodes()
        return sum(entry.stat(follow_symlinks=False).st_size for _, entry in tree.files("", hidden))

    def _below(self, kept: sqlite3.Connection, tree: LocalTree, directory: str) -> int:
        state = self.state_of(directory) if directory else None
        if state is not None and (known := self._known(kept, tree, directory, state)) is not None:
            return known
        sizes: dict[str, int] = {}
        is_flat, directories = True, 0
        known_directories = {path for (path,) in kept.execute("SELECT path FROM directories")}
        for name, is_directory in [(entry.name, is_directory) for entry, is_directory in tree.scan(directory)]:
            path = join(directory, name)
            size_bytes = _flat(tree, path) if path not in known_directories else None
            if size_bytes is None:
                is_flat, size_bytes = False, self._below(kept, tree, path)
            directories += is_directory
            sizes[name] = size_bytes
        if state is not None and is_flat and directories >= KEPT_FROM:
            self._keep(kept, tree, directory, state, sizes)
        return sum(sizes.values())

    def _known(self, kept: sqlite3.Connection, tree: LocalTree, directory: str, state: Fingerprint) -> int | None:
        """What is kept of the directory, with what commits have changed since; None where that is not known."""
        asked = "SELECT id, state, bytes, crc32 FROM directories WHERE path = ?"
        found = kept.execute(asked, (directory,)).fetchone()
        if found is None:
            return None
        number, encoded, total, crc32 = found
        if crc32 != _crc32(directory, encoded, total):
            raise sqlite3.DatabaseError(f"what is kept of {directory} does not have its checksum")
        before = _decoder.decode(encoded)
        if before == state:
            return int(total)
        names = self.changed_between(directory, before, state)
        if names is None or len(names) > _FOLLOWED:
            return None
        now = {name: _flat(tree, join(directory, name)) for name in names}
        with transaction(kept, "sqlite.commit", self.path):
            if None in now.values() or kept.execute(asked, (directory,)).fetchone() != found:
                return None
            for name, size_bytes in now.items():
                known = "SELECT bytes FROM sizes WHERE directory = ? AND name = ?"
                (known_bytes,) = kept.execute(known, (number, name)).fetchone() or (0,)
                total += (size_bytes or 0) - known_bytes
            _write(kept, directory, state, total, number)
            rows = ((number, name, size_bytes) for name, size_bytes in now.items())
            kept.executemany("INSERT OR REPLACE INTO sizes VALUES (?, ?, ?)", rows)
        return int(total)

    def _keep(
        self, kept: sqlite3.Connection, tree: LocalTree, directory: str, state: Fingerprint, sizes: Mapping[str, int]
    ) -> None:
        with transaction(kept, "sqlite.commit", self.path):
            for number, path in kept.execute("SELECT id, path FROM directories").fetchall():
                if path == directory or not (tree.root / path).is_dir():
                    kept.execute("DELETE FROM sizes WHERE directory = ?", (number,))
                    kept.execute("DELETE FROM directories WHERE id = ?", (number,))
            number = _write(kept, directory, state, sum(sizes.values()))
            rows = ((number, name, size_bytes) for name, size_bytes in sizes.items())
            kept.executemany("INSERT INTO sizes VALUES (?, ?, ?)", rows)

    def _throw_away(self) -> None:
        with suppress(OSError, FrostlineError):
            remove_database(self.path)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if connection.execute("PRAGMA user_version").fetchone() == (_SCHEMA,):
            return
        with transaction(connection, "sqlite.commit", self.path):
            for table in ("directories", "sizes"):
                connection.execute(f"DROP TABLE IF EXISTS {table}")
            for statement in _CREATE.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_SCHEMA}")


def _flat(tree: LocalTree, path: str) -> int | None:
    """The size of the file, or of those in the directory; 0 where nothing is visible, None where a directory lies in
    it."""
    with suppress(NotFound):
        return tree.stat_file(path).st_size
    hidden, total = tree.hidden.inodes(), 0
    for entry, is_directory in tree.scan(path):
        if is_directory:
            return None
        if hidden.get(join(path, entry.name)) != entry.inode():
            total += entry.stat(follow_symlinks=False).st_size
    return total


def _write(
    kept: sqlite3.Connection, directory: str, state: Fingerprint, total: int, number: int | None = None
) -> int | None:
    """Keep the size of the directory, under this number or a new one, which it returns."""
    encoded = msgspec.msgpack.encode(state)
    row = (number, directory, encoded, total, _crc32(directory, encoded, total))
    return kept.execute("INSERT OR REPLACE INTO directories VALUES (?, ?, ?, ?, ?)", row).lastrowid


def _crc32(directory: str, state: bytes, total: int) -> int:
    return zlib.crc32(b"%s %d " % (directory.encode(), total) + state)
