"""Spark's own reader over the files of a table: taken only where it can, said in log and plan, and never fewer rows."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

import spark_tiering
from disks.garbage.rules import GcRules
from oplog.errors import Damaged, Refused, UsageError
from spark_tiering.queries import native
from tests.servers import Server
from tests.spark.stores import insert, opened, table, to_bucket, write_config
from tiering.catalog.tables import drop_parts
from tiering.merge.request import MergeRequest
from tiering.table.schema import Column, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = "select count(*), sum(x) from db.t"


def _directory(home: Path, **more: Any) -> Path:
    """A store with an SSD and a bucket in a directory."""
    home.mkdir(parents=True, exist_ok=True)
    bucket = {"type": "object_disk", "url": f"file://{home}/bucket/"}
    document = {
        "state_path": str(home / "state"),
        "disks": {"ssd": {"type": "local", "path": str(home / "ssd")}, "s3": bucket},
        "policies": {"tiers": {"volumes": [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]}},
        **more,
    }
    file = home / "frostline.yaml"
    file.write_text(json.dumps(document))
    return file


def _fill(config: Path, columns: dict[str, str] | None = None, *, cold: int = 2, hot: int = 1) -> TableDefinition:
    columns = columns or {}
    definition = table("db.t", {"k": "int64", "x": "int64", **columns}, ["k"])
    with opened(config) as store:
        store.create_table(definition)
        for number in range(cold + hot):
            more = {name: [None] * 1000 for name in columns}
            insert(store, definition, {"k": range(number, 4000, 4), "x": [number] * 1000, **more})
            if number == cold - 1:
                to_bucket(store, "db.t")
    return definition


def _rows(frame: DataFrame) -> tuple[Any, ...]:
    return tuple(frame.collect()[0])


def _is_native(frame: DataFrame) -> bool:
    plan = frame._jdf.queryExecution().toString()
    assert ("FileScan parquet" in plan) != ("BatchScan" in plan)
    assert ("by Spark's own reader" in plan) == ("FileScan parquet" in plan)
    return "FileScan parquet" in plan


@pytest.mark.in_turn
def test_files_of_directories_are_read_natively_and_it_is_said(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log and the plan say so."""
    config = _directory(tmp_path)
    _fill(config)
    with caplog.at_level(logging.INFO, "spark_tiering"):
        frame = spark_tiering.sql(spark, COUNT, config=config)
        assert _is_native(frame)
        assert caplog.messages == ["db.t by Spark's own reader: 3 files"]
        caplog.clear()
        other = spark_tiering.sql(spark, COUNT, config=config, native="never")
        assert not _is_native(other)
        (message,) = caplog.messages
        assert message.startswith("db.t ")
        assert "native='never'" in message
        assert caplog.messages[0] in other._jdf.queryExecution().toString()
    assert _rows(frame) == _rows(other) == (3000, 3000)
    # Conditions and columns reach the files.
    plan = spark_tiering.sql(spark, "select k from db.t where x = 2", config=config)._jdf.queryExecution().toString()
    assert "PushedFilters: [IsNotNull(x), EqualTo(x,2)], ReadSchema: struct<k:bigint,x:bigint>" in plan
    # Of many files only those that can hold rows are given to it.
    monkeypatch.setattr(native, "_FEW_FILES", 2)
    plan = spark_tiering.sql(spark, "select k from db.t where x = 2", config=config)._jdf.queryExecution().toString()
    assert "db.t by Spark's own reader: 1 file" in plan
    with pytest.raises(UsageError, match="auto, always or never"):
        spark_tiering.sql(spark, COUNT, config=config, native="yes")  # type: ignore[arg-type]


def test_a_table_without_rows_is_read_natively(spark: SparkSession, tmp_path: Path) -> None:
    config = _directory(tmp_path)
    _fill(config, cold=0, hot=0)
    frame = spark_tiering.sql(spark, COUNT, config=config, native="always")
    assert _rows(frame) == (0, None)


@pytest.mark.in_turn
def test_what_spark_cannot_read_goes_through_the_source(
    spark: SparkSession, tmp_path: Path, ministack: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The log and the plan say why."""
    elsewhere = write_config(tmp_path / "elsewhere", ministack)
    limited = _directory(tmp_path / "limited", limits={"requests_per_second": 500})
    finer = _directory(tmp_path / "finer")
    no_client = "files are on s3, and Spark has no hadoop-aws on its class path: .*S3AFileSystem not found"
    obstacles: list[tuple[Path, dict[str, str], dict[str, Any], str]] = [
        (elsewhere, {}, {}, no_client),
        (limited, {}, {}, "it would not keep the limits of bytes and requests a second of s3"),
        (finer, {"n": "timestamp[ns]"}, {"nanoseconds": "truncate"}, "it reads no nanoseconds, as those of column n"),
    ]
    for config, columns, options, reason in obstacles:
        _fill(config, columns)
        caplog.clear()
        with caplog.at_level(logging.INFO, "spark_tiering"):
            frame = spark_tiering.sql(spark, COUNT, config=config, **options)
        (message,) = caplog.messages
        assert re.fullmatch(f"db.t is read through the data source: {reason}", message)
        assert message in frame._jdf.queryExecution().toString()
        assert not _is_native(frame)
        assert _rows(frame) == (3000, 3000)
        with pytest.raises(Refused, match=f"Spark's own reader cannot read db.t: {reason}"):
            spark_tiering.sql(spark, COUNT, config=config, native="always", **options)
    # What a query does not need does not stand in its way.
    hot = spark_tiering.sql(spark, "select k from db.t where x = 2", config=elsewhere)
    assert _is_native(hot)
    assert hot.count() == 1000


@pytest.fixture
def s3a(spark: SparkSession, tmp_path: Path, ministack: Server) -> Iterator[Callable[[str], Path]]:
    """Makes `s3a://BUCKET/` of this session a directory with copies of the objects in the bucket, by a file system that
    comes with Hadoop: the one for S3 itself comes with hadoop-aws."""
    settings = {
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    }

    def copied(bucket: str) -> Path:
        mirror, client = tmp_path / "mirror", ministack.client()
        for item in client.list_objects_v2(Bucket=bucket)["Contents"]:
            path = mirror / item["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read())
        settings[f"fs.viewfs.mounttable.{bucket}.linkFallback"] = f"file://{mirror}"
        for name, value in settings.items():
            spark.conf.set(name, value)
        return mirror

    yield copied
    for name in settings:
        spark.conf.unset(name)


@pytest.mark.in_turn
def test_objects_are_read_natively_where_spark_opens_s3a(
    spark: SparkSession, tmp_path: Path, ministack: Server, s3a: Callable[[str], Path]
) -> None:
    config = write_config(tmp_path, ministack, hot=False)
    old = _fill(config, cold=2, hot=0)
    columns = tuple(replace(column, name="y" if column.name == "x" else column.name) for column in old.columns)
    with opened(config) as store:
        new = replace(old, columns=(*columns, Column(3, "z", "int64", default=7)), last_column_id=3)
        new = replace(new, version=2, schema_version=2)
        store.alter_table(old, new)
        insert(store, new, {"k": [1], "y": [5], "z": [1]})
    bucket = json.loads(config.read_text())["disks"]["s3"]["url"].split("/")[2]
    mirror = s3a(bucket)
    query = "select count(*), sum(y), sum(z) from db.t"
    frame = spark_tiering.sql(spark, query, config=config, native="always")
    assert f"s3a://{bucket}/store/" in frame._jdf.inputFiles()[0]
    assert _is_native(frame)
    assert _rows(frame) == (2001, 1005, 14001)
    # Where Spark sees other objects than the store, or none, the rows come through the data source.
    objects = [path for path in mirror.rglob("*") if path.is_file() and _is_parquet(path)]
    for path in objects:
        path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(Refused, match=r"another s3a://.*, of \d+ bytes instead of \d+"):
        spark_tiering.sql(spark, query, config=config, native="always")
    for path in objects:
        path.unlink()
    with pytest.raises(Refused, match=r"Spark cannot open s3a://.* by its properties spark.hadoop.fs.s3a.\*: .*"):
        spark_tiering.sql(spark, query, config=config, native="always")
    other = spark_tiering.sql(spark, query, config=config)
    assert not _is_native(other)
    assert _rows(other) == (2001, 1005, 14001)


def test_an_object_with_another_footer_is_an_error(
    spark: SparkSession, tmp_path: Path, ministack: Server, s3a: Callable[[str], Path]
) -> None:
    config = write_config(tmp_path, ministack, hot=False)
    _fill(config, cold=1, hot=0)
    bucket, client = json.loads(config.read_text())["disks"]["s3"]["url"].split("/")[2], ministack.client()
    s3a(bucket)
    bodies = {
        item["Key"]: client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
        for item in client.list_objects_v2(Bucket=bucket)["Contents"]
    }
    (key,) = [key for key, body in bodies.items() if body[:4] == b"PAR1"]
    client.put_object(Bucket=bucket, Key=key, Body=_flipped(bodies[key], -20))
    with pytest.raises(Damaged, match="is not what was written"):
        spark_tiering.sql(spark, COUNT, config=config, native="always")


def test_a_change_of_type_spark_may_misread_uses_the_source(spark: SparkSession, tmp_path: Path) -> None:
    config = _directory(tmp_path)
    old = _fill(config, {"n": "date"})
    columns = tuple(Column(3, "n", "timestamp[us]") if column.name == "n" else column for column in old.columns)
    changes = {"columns": columns, "version": 2, "schema_version": 2}
    with opened(config) as store:
        store.alter_table(old, TableDefinition(**{**{n: getattr(old, n) for n in old.__struct_fields__}, **changes}))
    assert not _is_native(spark_tiering.sql(spark, COUNT, config=config))


def test_views_read_natively_only_the_columns_of_a_query(spark: SparkSession, tmp_path: Path) -> None:
    config = _directory(tmp_path)
    _fill(config)
    try:
        spark_tiering.views(spark, config=config)
        frame = spark.sql("select k from `db.t` where x = 1")
        assert "ReadSchema: struct<k:bigint,x:bigint>" in frame._jdf.queryExecution().toString()
        assert frame.count() == 1000
    finally:
        spark.catalog.dropTempView("`db.t`")


def test_what_was_merged_or_dropped_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    config = _directory(tmp_path)
    definition = _fill(config, cold=2, hot=0)
    with opened(config) as store:
        store.merge("db.t", MergeRequest(final=True))
        insert(store, definition, {"k": [1], "x": [1]})
        drop_parts(store.context, [part for part in store.parts("db.t") if part.disk == "ssd"], reason="a test")
        insert(store, definition, {"k": [2], "x": [5]})
    assert _rows(spark_tiering.sql(spark, COUNT, config=config, native="always")) == (2001, 1005)


def test_a_frame_stays_readable_during_merges_and_collections(spark: SparkSession, tmp_path: Path) -> None:
    config = _directory(tmp_path)
    definition = _fill(config, cold=2, hot=2)
    frame = spark_tiering.sql(spark, COUNT, config=config, native="always")
    with opened(config) as store:
        insert(store, definition, {"k": [1], "x": [1]})
        store.merge("db.t", MergeRequest(final=True))
        rules = GcRules(guard=timedelta(0), delete=True, max_delete_fraction=1.0, allow_short_guard=True)
        assert store.gc("s3", rules).deleted == 0
    assert _rows(frame) == (4000, 6000)
    assert _rows(spark_tiering.sql(spark, COUNT, config=config, native="always")) == (4001, 6001)


def test_a_file_gone_or_altered_is_an_error_in_every_session(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever the session ignores."""
    config = _directory(tmp_path)
    _fill(config, cold=1, hot=0)
    (file,) = (path for path in (tmp_path / "bucket").rglob("*") if path.is_file() and _is_parquet(path))
    written = file.read_bytes()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        frame = spark_tiering.sql(spark, "select sum(k) from db.t", config=config, native="always")
        file.write_bytes(_flipped(written, 40))  # in the first page
        with pytest.raises(Exception, match="FAILED_READ_FILE"):
            frame.collect()
        file.unlink()
        with pytest.raises(Exception, match=r"FAILED_READ_FILE|does not exist"):
            frame.collect()
        file.write_bytes(_flipped(written, -20))  # in the footer
        with pytest.raises(Damaged, match="is not what was written"):
            spark_tiering.sql(spark, "select sum(k) from db.t", config=config, native="always")
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def _is_parquet(path: Path) -> bool:
    return path.read_bytes()[:4] == b"PAR1"


def _flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 0x10
    return bytes(changed)
