"""Reading a disk whose files are rows of a file table and whose bytes are objects of a store."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TypeVar

from disks.base import DiskUsage, FileInfo, Fingerprint, Location, SmallFile
from disks.contracts.bucket_disk import BucketDisk
from disks.file_table.row_bytes import read_row
from disks.file_table.table import FileTable
from disks.stores.base import ByteRange
from oplog.errors import NotFound
from oplog.replay import FileRow

_T = TypeVar("_T")

_READ_THREADS = 16


class TableDisk(BucketDisk):
    """The reading half of such a disk."""

    max_size_bytes: int | None

    @property
    def table_path(self) -> Path:
        return self.state_path / "files.db"

    @property
    def revision(self) -> int:  # type: ignore[override]
        return self.file_table.head()[0]

    def local_state_exists(self) -> bool:
        return self.table_path.exists()

    def _reading(self, read: Callable[[FileTable], _T]) -> _T:
        """What `read` finds in the table. A disk whose table is a cache replaces a damaged one first."""
        return read(self.file_table)

    def steady(self) -> AbstractContextManager[None]:
        return self.file_table.steady()

    def usage(self) -> DiskUsage:
        with self.file_table.read() as view:
            used = view.used_bytes()
        if self.max_size_bytes is None:
            return DiskUsage(None, None, used)
        return DiskUsage(self.max_size_bytes, max(self.max_size_bytes - used, 0), used)

    def list(self, directory: str = "") -> builtins.list[str]:
        return self._children(directory)

    def files_in(self, directory: str, begin: str = "") -> builtins.list[str]:
        return [name for name in self._children(directory, begin) if not name.endswith("/")]

    def _children(self, directory: str, begin: str = "") -> builtins.list[str]:
        def children(table: FileTable) -> builtins.list[str]:
            with table.read() as view:
                return view.children(directory, begin)

        return self._reading(children)

    def walk(self, directory: str = "") -> Iterator[FileInfo]:
        return map(row_info, self.file_table.rows(directory))

    def stat(self, path: str) -> FileInfo:
        return row_info(self._row(path))

    def exists(self, path: str) -> bool:
        return self.file_table.exists(path)

    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        return self._content(self._row(path), byte_range)

    def reader(self, path: str) -> Callable[[ByteRange], bytes]:
        return partial(self._content, self._row(path))

    def look_over(
        self, directory: str, name: str, fingerprints: Mapping[str, Fingerprint], among: Collection[str] | None = None
    ) -> builtins.list[SmallFile]:
        def look(table: FileTable) -> tuple[builtins.list[tuple[str, int, str]], dict[str, FileRow]]:
            with table.read() as view:
                versions = list(view.versions(directory, name, among))
                new = (
                    path for path, *version in versions if not version[1] or fingerprints.get(path) != tuple(version)
                )
                return versions, {row.path: row for row in map(view.get, new) if row is not None}

        versions, rows = self._reading(look)
        contents = self._contents(rows.values())
        return [
            SmallFile(path, (revision, sha256) if sha256 else None, contents.get(path), revision)
            for path, revision, sha256 in versions
        ]

    def _contents(self, rows: Collection[FileRow]) -> dict[str, bytes]:
        """The bytes of these files by path."""
        contents = {row.path: row.inline for row in rows if row.inline is not None}
        if uploaded := [row for row in rows if row.inline is None]:
            with ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read") as pool:
                fetched = pool.map(self._content, uploaded)
                contents.update((row.path, data) for row, data in zip(uploaded, fetched, strict=True))
        return contents

    def location(self, path: str) -> Location | None:
        row = self._row(path)
        if row.key is None or row.more:  # it rides inside the log, or is in several objects
            return None
        return Location(self.store.url(row.key), self.store.s3_connection)

    def _row(self, path: str) -> FileRow:
        row = self._reading(lambda table: table.get(path))
        if row is None:
            raise NotFound(f"no file {path} on disk {self.name}")
        return row

    def _content(self, row: FileRow, byte_range: ByteRange | None = None) -> bytes:
        return read_row(self.store, row, byte_range, disk=self.name)


def row_info(row: FileRow) -> FileInfo:
    """The row as a disk shows it. `key` is that of the first object."""
    return FileInfo(row.path, row.size_bytes, row.sha256 or None, row.key, row.blob_set, row.revision)
