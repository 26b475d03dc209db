"""Removed files of a local disk that readers may still have open: out of sight, and deleted when nobody reads.

<root>/.frostline/hidden/<tx>.json    path -> inode of what is hidden
<root>/.frostline/readers.lock        held shared by readers
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disks.effects import fsync_directories, remove_empty_directories, remove_file, replace_file
from disks.host.locks import try_file_lock
from disks.local.changes import Changes
from disks.local.trash import Trash
from oplog.documents import Document


class HiddenFiles:
    """The hidden files of one disk. A caller that changes them holds the commit lock."""

    def __init__(self, root: Path, own: Path, trash: Trash, changes: Changes) -> None:
        self.directory = own / "hidden"
        self.readers_lock = own / "readers.lock"
        self._root = root
        self._trash = trash
        self._changes = changes
        self._held = _Held()

    def records(self) -> list[Path]:
        """The files that say what is hidden."""
        try:
            return [Path(entry.path) for entry in os.scandir(self.directory) if entry.name.endswith(".json")]
        except FileNotFoundError:
            return []

    def inodes(self) -> dict[str, int]:
        """Paths that were removed but are still there for readers, with the inode that is meant."""
        if self._held.inodes is not None:
            return self._held.inodes
        hidden: dict[str, int] = {}
        for record in self.records():
            try:
                hidden.update(_read(record))
            except FileNotFoundError:
                continue  # swept meanwhile
        return hidden

    @property
    def is_held(self) -> bool:
        """Whether this thread is within `held`."""
        return self._held.inodes is not None

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is hidden is read once for this thread. Meanwhile it can only be swept, never grow."""
        self._held.inodes = self.inodes()
        try:
            yield
        finally:
            self._held.inodes = None

    def hide(self, files: dict[str, int], transaction: str) -> None:
        """Put the files out of sight durably, for the sweep after the last reader; empties `files`."""
        if files:
            record = self.directory / f"{transaction}-{secrets.token_hex(4)}.json"
            replace_file(record, _document.encode(files))
            files.clear()

    def displace(self, path: str, transaction: str) -> None:
        """Throw hidden files at or below the path away although readers may want them: the path is needed. They leave
        the records too, also when a crash threw them away before."""
        for record in self.records():
            hidden = _read(record)
            displaced = [name for name in hidden if name == path or name.startswith(f"{path}/")]
            for name in displaced:
                if inode_of(self._root / name) == hidden.pop(name):
                    self._trash.take(self._root / name, transaction)
            if displaced:
                replace_file(record, _document.encode(hidden))

    def remove_torn_records(self) -> None:
        """Remove what a killed writer of a record left."""
        for leftover in sorted(self.directory.glob(".*.tmp")):
            remove_file(leftover, missing_ok=True)

    def sweep(self) -> list[str]:
        """Delete the hidden files when nobody reads, and what a killed writer of a record left; their paths."""
        self.remove_torn_records()
        records = self.records()
        if not records:
            return []
        deleted: list[str] = []
        with try_file_lock(self.readers_lock) as idle:
            if not idle:
                return []
            for record in records:
                gone = [path for path, inode in _read(record).items() if inode_of(self._root / path) == inode]
                with self._changes.noted(gone):
                    self._delete(gone, record.stem)
                deleted += gone
                remove_file(record, missing_ok=True)
        return deleted

    def _delete(self, gone: list[str], transaction: str) -> None:
        """Delete the files, durably: else a power cut brings them back when their record is gone. A directory with
        nothing else in it goes whole, which is one rename and, for all of them together, one fsync."""
        touched: set[str] = set()
        by_directory: dict[Path, list[str]] = {}
        for path in gone:
            by_directory.setdefault((self._root / path).parent, []).append(path)
        for directory, files in by_directory.items():
            if directory != self._root and len(os.listdir(directory)) == len(files):
                self._trash.take(directory, transaction)
                touched.add(str(directory.parent))
                continue
            for path in files:
                remove_file(self._root / path, missing_ok=True)
            touched.add(str(directory))
        emptied = sorted(touched)
        fsync_directories(touched)
        for name in emptied:
            remove_empty_directories(Path(name), self._root)


class _Held(threading.local):
    """What this thread has read of the hidden files, while it holds them."""

    inodes: dict[str, int] | None = None


def inode_of(path: Path | str) -> int | None:
    """The inode at the path, links not followed; None when nothing is there."""
    found = lstat(path)
    return None if found is None else found.st_ino


def lstat(path: Path | str) -> os.stat_result | None:
    """What is at the path, links not followed; None when nothing is there."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


_document = Document[dict[str, int]]("record of files that are out of sight", dict[str, int])


def _read(record: Path) -> dict[str, int]:
    return _document.decode(record.read_bytes())
