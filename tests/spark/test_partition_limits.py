"""Spark at the limits of types: what it writes is in the partitions of an insert, and no row of nanoseconds is lost."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import spark_tiering
from tests.spark.stores import insert, opened, table
from tiering.table.schema import PartitionField

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS = (-1001, -1000, -999, -1, 0, 1, 999, 1000, 1001, 1500)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    document = {
        "state_path": str(tmp_path / "state"),
        "disks": {"s3": {"type": "object_disk", "url": f"file://{tmp_path}/bucket/"}},
        "policies": {"tiers": {"volumes": [{"name": "cold", "disks": ["s3"]}]}},
    }
    file = tmp_path / "frostline.yaml"
    file.write_text(json.dumps(document))
    return file


@pytest.mark.in_turn
def test_writes_go_where_inserts_go(spark: SparkSession, config: Path) -> None:
    """Guards I21. The multiple below the least number is none that Spark can count with in its type."""
    least = {"i": -(2**31), "l": -(2**63), "d": -(10**38 - 1)}
    by = [PartitionField("truncate", name, 10) for name in least]
    one = table("db.t", {"k": "int64", "i": "int32", "l": "int64", "d": "decimal(38, 0)"}, ["k"], *by)
    with opened(config) as store:
        store.create_table(one)
        insert(store, one, {"k": [1], **{name: [value] for name, value in least.items()}})
    spark_tiering.register(spark)
    frame = spark.range(2, 10, 1, 2).selectExpr(
        "id as k", "int(-2147483648) as i", "-9223372036854775808L as l", f"cast('{least['d']}' as decimal(38,0)) as d"
    )
    frame.write.format("frostline").mode("append").option("config", str(config)).save("db.t")
    with opened(config) as store:
        assert len({part.name.partition for part in store.parts("db.t")}) == 1
        found: Any = store.query("select count(*) from db.t where i < 0 and l < 0 and d < 0").read_all()
        assert found.column(0).to_pylist() == [9]


def test_ranges_of_partitions_take_the_least_numbers(spark: SparkSession, config: Path) -> None:
    from spark_tiering.writing.ranges import in_ranges

    columns = {"i": "int32", "l": "int64", "d": "decimal(38, 0)"}
    frame = spark.range(0, 20, 1, 2).selectExpr(
        "int(-2147483648 + id) as i", "-9223372036854775808L + id as l",
        f"cast('-{10**38 - 1}' as decimal(38,0)) + cast(id as decimal(38, 0)) as d",
    )  # fmt: skip
    for name in columns:
        one = table(f"db.{name}", columns, [name], PartitionField("truncate", name, 7))
        assert in_ranges(frame, one, 3).count() == 20


@pytest.mark.in_turn
def test_conditions_on_nanoseconds_lose_no_row(spark: SparkSession, config: Path) -> None:
    """Guards I21. Spark compares the microseconds that it gets."""
    one = table("db.n", {"k": "int64", "at": "timestamp[ns]"}, ["at", "k"], PartitionField("identity", "at"))
    with opened(config) as store:
        store.create_table(one)
        insert(store, one, {"k": list(range(len(COUNTS))), "at": list(COUNTS)})
    options: Any = {"config": config, "nanoseconds": "truncate"}
    everything = spark_tiering.sql(spark, "select k, at from db.n", **options).collect()
    zero = datetime(1970, 1, 1)
    for operator, is_true, micro in (("=", "__eq__", 1), ("<=", "__le__", 0)):
        bound = zero.replace(microsecond=micro)
        query = f"select k from db.n where at {operator} timestamp_ntz'{bound.isoformat(' ', 'microseconds')}'"
        found = sorted(row.k for row in spark_tiering.sql(spark, query, **options).collect())
        assert found == sorted(row.k for row in everything if getattr(row.at, is_true)(bound)), query
