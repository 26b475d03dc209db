"""Stores on a real S3 server for the tests of the data source, and what Spark makes of their tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import spark_tiering
from tests.servers import Server
from tiering.engine.store import Store
from tiering.table.columns.types import arrow_schema
from tiering.table.schema import Column, PartitionField, TableDefinition, TableSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write_config(home: Path, server: Server, *, hot: bool = True, **disk: Any) -> Path:
    """A configuration with a bucket of its own on the server, and its keys in the file; `hot` puts an SSD before it."""
    s3 = {
        "type": "object_disk",
        "url": f"s3://{server.new_bucket()}/store/",
        "endpoint_url": server.endpoint_url,
        "region": "us-east-1",
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
        **disk,
    }
    ssd = {"type": "local", "path": str(home / "ssd")}
    volumes = [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]
    document = {
        "state_path": str(home / "state"),
        "disks": {"ssd": ssd, "s3": s3} if hot else {"s3": s3},
        "policies": {"tiers": {"volumes": volumes if hot else volumes[1:]}},
    }
    home.mkdir(parents=True, exist_ok=True)
    file = home / "frostline.yaml"
    file.write_text(json.dumps(document))
    file.chmod(0o600)
    return file


def table(
    name: str, columns: Mapping[str, str], order_by: Sequence[str], *partition_by: PartitionField, **settings: int
) -> TableDefinition:
    """A definition on the policy of `write_config`."""
    database, _, short = name.partition(".")
    return TableDefinition(
        uuid=f"00000000-0000-4000-8000-{sum(map(ord, name)):012d}",
        database=database,
        name=short,
        columns=tuple(Column(number, column, kind) for number, (column, kind) in enumerate(columns.items(), 1)),
        order_by=tuple(order_by),
        partition_by=partition_by,
        policy="tiers",
        settings=TableSettings(**settings),
        last_column_id=len(columns),
    )


@contextmanager
def opened(config: Path) -> Iterator[Store]:
    with Store.open(config) as store:
        yield store


def insert(store: Store, definition: TableDefinition, rows: Mapping[str, Sequence[Any]]) -> None:
    schema = pa.schema([field.remove_metadata() for field in arrow_schema(definition)])
    store.table(definition.full_name).insert(pa.table(dict(rows), schema).to_batches())


def to_bucket(store: Store, name: str) -> None:
    """Move what lies on the SSD to the bucket."""
    for partition in sorted({part.name.partition for part in store.parts(name) if part.disk == "ssd"}):
        store.apply(store.plan_manual_move(name, partition=partition, to_disk="s3"))


def read(spark: SparkSession, config: Path, name: str, **options: Any) -> DataFrame:
    """The table as a data frame."""
    spark_tiering.register(spark)
    reader = spark.read.format("frostline").option("config", str(config))
    for option, value in options.items():
        reader = reader.option(option, str(value))
    return reader.load(name)


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows, sorted: Spark promises no order."""
    return sorted((tuple(row) for row in frame.collect()), key=repr)
