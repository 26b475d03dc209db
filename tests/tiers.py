"""A small store on several disks for tests of reading: parts are written by hand, each where a test wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from disks.config import DiskConfig
from disks.registry import open_disk
from oplog.kinds import Inserted, OtherKind
from tiering.catalog.catalog import Catalog, StoredPart
from tiering.catalog.context import Context
from tiering.catalog.reservation import Reservations
from tiering.config.settings import Config, PolicyConfig, VolumeConfig
from tiering.journal.journal import Journal
from tiering.parquet.column_ranges import combine_ranges
from tiering.parquet.part_files import write_part_files
from tiering.query.query import PartsFor, parts_for
from tiering.table import part as part_format
from tiering.table import schema as table_format
from tiering.table.columns.types import arrow_schema
from tiering.table.part import PART_FILE, DataFile, Part
from tiering.table.schema import TABLE_FILE, Column, TableDefinition
from tiering.table.transforms import apply_transform, partition_id, partition_values_json


def make_context(home: Path, disks: Mapping[str, DiskConfig]) -> Context:
    """An open store with one policy, `tiers`, of one volume a disk in the order given."""
    volumes = tuple(VolumeConfig(name=name, disks=(name,)) for name in disks)
    config = Config(
        state_path=str(home / "state"), disks=dict(disks), policies={"tiers": PolicyConfig(volumes=volumes)}
    )
    opened = {name: open_disk(name, disk, config.state_directory) for name, disk in disks.items()}
    return Context(
        config=config,
        disks=opened,
        catalog=Catalog(config, opened),
        journal=Journal(config.state_directory),
        reservations=Reservations(config, opened),
    )


def define(name: str, columns: Mapping[str, str], order_by: Sequence[str], **more: Any) -> TableDefinition:
    """A table definition; `columns` maps names to type texts."""
    made = tuple(Column(id=number, name=column, type=kind) for number, (column, kind) in enumerate(columns.items(), 1))
    database, _, table = name.partition(".")
    return TableDefinition(
        uuid=f"{abs(hash(name)) % 16**8:08x}-0000-4000-8000-000000000000",
        database=database,
        name=table,
        columns=made,
        order_by=tuple(order_by),
        policy="tiers",
        last_column_id=len(made),
        **more,
    )


def put_table(context: Context, definition: TableDefinition) -> None:
    """Write `table.json` to all disks."""
    for disk in context.disks.values():
        transaction = disk.transaction(OtherKind("table"))
        with transaction:
            path = f"{definition.directory}/{TABLE_FILE}"
            if disk.exists(path):
                transaction.remove(path)
            transaction.create(path, table_format.encode(definition))
            transaction.commit()


def put_part(
    context: Context,
    definition: TableDefinition,
    disk_name: str,
    rows: pa.Table,
    block: int,
    described: Callable[[DataFile], DataFile] = lambda file: file,
) -> list[StoredPart]:
    """Write the rows as parts of one block number, one a partition, on the disk; refreshes the catalog. `described`:
    what `part.json` says of a file, such as less, as an older version did."""
    rows = rows.cast(arrow_schema(definition)).sort_by([(name, "ascending") for name in definition.order_by])
    disk = context.disk(disk_name)
    names = []
    for partition, values, table in _partitions(rows, definition):
        name = f"{partition}_{block}_{block}_0"
        with disk.transaction(Inserted()) as transaction:
            directory = transaction.scratch()
            files = tuple(map(described, write_part_files([table], definition, directory)))
            part = Part(
                table=definition.uuid,
                name=name,
                rows=table.num_rows,
                size_bytes=sum(file.size_bytes for file in files),
                created=datetime.now(UTC),
                partition_values=partition_values_json(values),
                schema_version=definition.schema_version,
                files=files,
                columns=combine_ranges(files, definition),
            )
            for file in files:
                transaction.create(
                    f"{definition.part_directory(name)}/{file.name}", directory / file.name, sha256=file.sha256
                )
            transaction.create(f"{definition.part_directory(name)}/{PART_FILE}", part_format.encode(part))
            transaction.commit()
        names.append(name)
    context.catalog.refresh()
    return [context.catalog.part(definition, name) for name in names]


def _partitions(rows: pa.Table, definition: TableDefinition) -> Iterator[tuple[str, tuple[Any, ...], pa.Table]]:
    """(id, values, rows) of each partition."""
    columns = [
        apply_transform(field, rows.column(field.column).combine_chunks()).to_pylist()
        for field in definition.partition_by
    ]
    keys = list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows
    for key in dict.fromkeys(keys):
        yield partition_id(definition, key), key, rows.filter(pa.array([other == key for other in keys]))


def resolver(context: Context) -> Any:
    """What `run_sql` asks for tables."""

    def resolve(name: str) -> tuple[TableDefinition, PartsFor]:
        definition = context.catalog.table(name)
        return definition, partial(parts_for, context, definition)

    return resolve


def altered(definition: TableDefinition, columns: Sequence[Column]) -> TableDefinition:
    """The definition with other columns, as `alter` makes it."""
    raw = {field: getattr(definition, field) for field in definition.__struct_fields__}
    raw |= {
        "columns": tuple(columns),
        "version": definition.version + 1,
        "schema_version": definition.schema_version + 1,
        "last_column_id": max(definition.last_column_id, *(column.id for column in columns)),
    }
    return TableDefinition(**raw)
