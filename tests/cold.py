"""What tests of cold merges share: stores whose parts lie in one bucket, and the content of parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from disks.config import ObjectDiskConfig
from disks.workers.runner import threads
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.config.settings import Config, PolicyConfig, VolumeConfig
from tiering.engine.store import Store
from tiering.merge.cold.job import ColdMergeReport, Workers, merge_groups
from tiering.merge.cold.shard_merge import MergeTask, ShardResult, merge_shard
from tiering.merge.request import ColdOptions, MergeRequest
from tiering.merge.selection import MergePlan
from tiering.parquet.sort_keys import row_key
from tiering.table.columns.types import arrow_schema, default_array, field_ids
from tiering.table.schema import TableDefinition


def cold_config(home: Path, url: str, **options: Any) -> Config:
    """A machine without an SSD: its parts lie in the bucket of that URL."""
    return Config(
        state_path=str(home / "state"),
        disks={"s3": ObjectDiskConfig(url=url, **options)},
        policies={"cold": PolicyConfig(volumes=(VolumeConfig(name="cold", disks=("s3",)),))},
    )


def group(parts: Sequence[StoredPart]) -> MergePlan:
    """These parts as one group."""
    return MergePlan(parts[0].name.partition, tuple(parts), "a test")


def cold_merge(
    store: Store,
    plans: Sequence[MergePlan],
    *,
    shard_bytes: int = 1 << 30,
    drop_deleted: bool = False,
    merge: Callable[[MergeTask], ShardResult] = merge_shard,
) -> ColdMergeReport:
    """The groups merged one after the other, shard by shard; `merge` may do something else beside."""
    context = store.context
    own = Workers.of_this_process(context)
    workers = Workers(threads(1), own.store_of, groups_in_flight=1, merge=merge)
    report = ColdMergeReport()
    definition = plans[0].parts[0].definition
    request = MergeRequest(drop_deleted=drop_deleted, cold=ColdOptions(shard_bytes=shard_bytes))
    merge_groups(context, context.catalog.table(definition.uuid), plans, workers, request, report)
    return report


def content(context: Context, definition: TableDefinition, stored: StoredPart) -> list[pa.Table]:
    """The rows of each file of a part, read by pyarrow and put into the table's columns of today; the file is what
    `part.json` says."""
    tables = []
    schema = arrow_schema(definition)
    for file in stored.part.files:
        data = context.disk(stored.disk).read(stored.path(file.name))
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size_bytes, file.sha256)
        table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        assert table.num_rows == file.rows == sum(group.rows for group in file.row_groups)
        names = field_ids(table.schema)
        columns = [
            table.column(names[column.id]).cast(field.type)
            if column.id in names
            else default_array(column, table.num_rows)
            for column, field in zip(definition.columns, schema, strict=True)
        ]
        tables.append(pa.Table.from_arrays(columns, schema=schema))
    return tables


def assert_sorted_and_disjoint(tables: Sequence[pa.Table], order_by: Sequence[str]) -> None:
    """That the files of a part, in their order, hold ascending keys, and no key is in two of them."""
    last = None
    for table in tables:
        keys = [row_key(table, row, order_by) for row in range(table.num_rows)]
        assert keys == sorted(keys)
        assert not keys or last is None or last < keys[0], f"{last} is in two files, or they are out of order"
        last = keys[-1] if keys else last


def digest(rows: Sequence[object]) -> str:
    """Of rows in their order."""
    return hashlib.sha256(repr(list(rows)).encode()).hexdigest()


def as_rows(table: pa.Table) -> list[str]:
    """The rows as texts, in order: NaNs are equal then, and values keep their types."""
    return [repr(tuple(row.values())) for row in table.to_pylist()]
