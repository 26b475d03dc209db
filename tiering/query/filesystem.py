"""A read-only fsspec filesystem over the data files of tables, whatever tier they lie on.

Paths are `database.table/part/data-0000.parquet`, also written `frostline://…`. Reads are ranged: only the bytes asked
for leave the disk, through its store with its limits and retries. pandas, Polars, DuckDB and pyarrow accept it:

    fs = FrostlineFileSystem(store.context)
    duckdb.register_filesystem(fs);  duckdb.sql("from read_parquet('frostline://nyc.flights/*/*.parquet')")

By URL alone they are found as `tiering.engine.store_files`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.parquet.checked_file import CheckedFile
from tiering.query.checked_parts import checked_file
from tiering.query.selection import SelectedFile
from tiering.table.part import DataFile

Tables = Mapping[str, Sequence[StoredPart]]
"""Full table name -> its parts."""

FileInfo = dict[str, Any]
"""As fsspec passes the facts of a file and the options of a cache."""


class FrostlineFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The active parts of a store's tables as a tree of Parquet files; by default those in the catalog at each call."""

    protocol = "frostline"
    cachable = False
    root_marker = ""

    def __init__(self, context: Context, tables: Callable[[], Tables] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._context = context
        self._tables = tables or self._catalog

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """Entries directly below the path. Raises `FileNotFoundError`."""
        pieces = [piece for piece in self._strip_protocol(path).split("/") if piece]
        tables = self._tables()
        entries: list[FileInfo]
        if not pieces:
            entries = [_directory(name) for name in sorted(tables)]
        elif len(pieces) == 1 and pieces[0] in tables:
            entries = [_directory(f"{pieces[0]}/{stored.facts.name}") for stored in tables[pieces[0]]]
        elif len(pieces) == 2:
            stored = self._part(pieces[0], pieces[1])
            entries = [_file("/".join(pieces), file) for file in stored.part.files]
        else:
            stored, file = self._find(path)
            entries = [_file("/".join(pieces[:2]), file)]
        return entries if detail else [entry["name"] for entry in entries]

    def info(self, path: str, **options: Any) -> FileInfo:
        """Name, size and type. Raises `FileNotFoundError`."""
        name = self._strip_protocol(path).strip("/")
        if name.count("/") >= 2:
            return _file(name.rpartition("/")[0], self._find(name)[1])
        self.ls(name)
        return _directory(name)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: FileInfo | None = None,
        **options: Any,
    ) -> Any:
        if mode != "rb":
            raise io.UnsupportedOperation("tables are read-only here: use insert")
        stored, file = self._find(path)
        self._check(stored, file)
        # No read-ahead: readers of Parquet know which ranges they want, and every byte of a cold part is paid for.
        return _PartFile(
            self,
            self._strip_protocol(path),
            checked_file(self._context, SelectedFile(stored, file, None, stored.part.schema_version)),
            size=file.size_bytes,
            cache_type=options.get("cache_type", "none"),
            cache_options=cache_options,
            block_size=block_size or "default",
        )

    def modified(self, path: str) -> Any:
        """When the part was created."""
        return self._find(path)[0].part.created

    created = modified

    def _catalog(self) -> Tables:
        catalog = self._context.catalog
        return {table.full_name: catalog.parts(table) for table in catalog.tables()}

    def _check(self, stored: StoredPart, file: DataFile) -> None:
        """Raise for a file that is not to be read like this. Here: none, who asks knows what the files hold."""

    def _part(self, table: str, name: str) -> StoredPart:
        for stored in self._tables().get(table, ()):
            if stored.facts.name == name:
                return stored
        raise FileNotFoundError(f"no part {name} of table {table}")

    def _find(self, path: str) -> tuple[StoredPart, DataFile]:
        pieces = self._strip_protocol(path).strip("/").split("/")
        if len(pieces) == 3:
            stored = self._part(pieces[0], pieces[1])
            for file in stored.part.files:
                if file.name == pieces[2]:
                    return stored, file
        raise FileNotFoundError(path)


class _PartFile(AbstractBufferedFile):  # type: ignore[misc]
    """One data file, read by range."""

    def __init__(self, fs: FrostlineFileSystem, path: str, checked: CheckedFile, **options: Any) -> None:
        self._checked = checked
        super().__init__(fs, path, mode="rb", **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return b"".join(self._checked.pieces(start, min(end, self.size)))


def _directory(name: str) -> FileInfo:
    return {"name": name, "size": 0, "type": "directory"}


def _file(directory: str, file: DataFile) -> FileInfo:
    return {"name": f"{directory}/{file.name}", "size": file.size_bytes, "type": "file"}
