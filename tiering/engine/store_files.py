"""`frostline://` for everything that opens URLs by fsspec (pandas, Dask, `fsspec.open`): the files of the tables.

    pandas.read_parquet("frostline://nyc.flights", storage_options={"config": "frostline.yaml"})

fsspec finds it by the entry point that the package has (`fsspec.specs`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oplog.errors import Refused
from tiering.catalog.catalog import StoredPart
from tiering.engine.store import Store
from tiering.query.checked_parts import read_schema
from tiering.query.filesystem import FrostlineFileSystem
from tiering.table.columns.nested_ids import is_current
from tiering.table.columns.types import field_ids
from tiering.table.part import DataFile


class StoreFiles(FrostlineFileSystem):
    """The tables of the store of a configuration file; by default that which the command line finds.

    Listing the store or a table reads it again. A part that was written before a column of its table got another name,
    came or went is refused: readers of files go by names, and would take one column for another.
    """

    cachable = True

    def __init__(self, config: str | None = None, **options: Any) -> None:
        self._store = Store.open(None if config is None else Path(config), actor="fsspec", recover=False)
        super().__init__(self._store.context, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """Entries directly below the path. Raises `FileNotFoundError`."""
        if "/" not in self._strip_protocol(path).strip("/"):
            self._store.refresh()
        entries: list[Any] = super().ls(path, detail, **options)
        return entries

    def _check(self, stored: StoredPart, file: DataFile) -> None:
        definition = stored.definition
        if stored.part.schema_version == definition.schema_version:
            return
        today = {column.id: column.name for column in definition.columns}
        held = read_schema(self._context, stored, file)
        if field_ids(held) != today or not all(
            is_current(held.field(column.name).type, column, definition) for column in definition.columns
        ):
            raise Refused(
                f"part {stored.facts.name} of {definition.full_name} has the columns of an older definition",
                hint=f"frostline.open().table('{definition.full_name}') reads it: to_pandas(), to_polars(), dataset()",
            )
