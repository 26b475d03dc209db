"""What an insert did, as a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    from tiering.engine.write_job import WriteResult
    from tiering.insert.insert import InsertResult


class InsertDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`insert --json`."""

    table: str
    rows: int
    parts: Sequence[str] = ()
    duplicates: int = 0
    """Parts that an earlier insert wrote."""
    bytes: int = 0
    replaced: Sequence[str] | UnsetType = UNSET
    """This and the next two: with `--replace-partitions`."""
    disk: str | UnsetType | None = UNSET
    revision: int | UnsetType | None = UNSET
    bad_rows: int | UnsetType = UNSET
    """With `--skip-bad-rows`."""
    dry_run: bool

    @classmethod
    def of(cls, result: InsertResult, *, dry_run: bool) -> InsertDocument:
        return cls(
            table=result.table,
            rows=result.rows,
            parts=result.parts,
            duplicates=result.duplicates,
            bytes=result.bytes,
            dry_run=dry_run,
        )

    @classmethod
    def of_replaced(cls, table: str, result: WriteResult, *, dry_run: bool) -> InsertDocument:
        """Of an insert that replaced partitions."""
        return cls(
            table=table,
            rows=result.rows,
            parts=result.parts,
            bytes=result.bytes,
            replaced=result.replaced,
            disk=result.disk or None,
            revision=result.revision,
            dry_run=dry_run,
        )
