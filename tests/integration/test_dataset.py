"""pandas, Polars and DuckDB read a table that lies on an SSD, in a directory bucket and on a real S3 server, through
the Arrow dataset and the fsspec filesystem; what cannot match is not opened, cold parts are read by range."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from disks.config import LocalDiskConfig, ObjectDiskConfig
from disks.object_disk.disk import ObjectDisk
from disks.stores.wrappers.metered import MeteredStore
from oplog.errors import FrostlineError, Refused
from oplog.kinds import Dropped
from tests.servers import Server
from tests.tiers import altered, define, make_context, put_part, put_table
from tiering.catalog.context import Context
from tiering.query import dataset as dataset_module
from tiering.query.dataset import table_dataset
from tiering.query.filesystem import FrostlineFileSystem
from tiering.table.schema import Column, TableDefinition

DAYS = 9
ROWS_A_DAY = 2000
START = datetime(2026, 1, 1, tzinfo=UTC)


def day_rows(day: int) -> pa.Table:
    moments = [START + timedelta(days=day, seconds=40 * number) for number in range(ROWS_A_DAY)]
    return pa.table(
        {
            "ts": pa.array(moments, pa.timestamp("us", "UTC")),
            "carrier": [("AA", "BB", None)[number % 3] for number in range(ROWS_A_DAY)],
            "delay": pa.array([day * 10_000 + number for number in range(ROWS_A_DAY)], pa.int64()),
            "note": [f"{number * 2654435761 % 2**32:x}" * 3 for number in range(ROWS_A_DAY)],
        }
    )


@pytest.fixture(scope="module")
def context(ministack: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    home = tmp_path_factory.mktemp("store")
    disks = {
        "ssd": LocalDiskConfig(path=str(home / "ssd")),
        "directory": ObjectDiskConfig(url=(home / "bucket").as_uri() + "/store/"),
        "s3": ministack.disk(f"s3://{ministack.new_bucket()}/store/"),
    }
    opened = make_context(home, disks)
    yield opened
    for disk in opened.disks.values():
        disk.close()


@pytest.fixture(scope="module")
def flights(context: Context) -> TableDefinition:
    columns = {"ts": "timestamp[us, UTC]", "carrier": "string", "delay": "int64", "note": "string"}
    definition = define("ds.flights", columns, ["ts"])
    put_table(context, definition)
    names = list(context.disks)
    for day in range(DAYS):
        put_part(context, definition, names[day % len(names)], day_rows(day), day + 1)
    return definition


@pytest.fixture
def dataset(context: Context, flights: TableDefinition) -> Any:
    return table_dataset(context, flights, context.catalog.parts(flights))


@pytest.fixture(scope="module")
def everything() -> pa.Table:
    return pa.concat_tables([day_rows(day) for day in range(DAYS)])


@pytest.fixture
def filesystem(context: Context, flights: TableDefinition) -> FrostlineFileSystem:
    return FrostlineFileSystem(context)


def meter(context: Context) -> MeteredStore:
    disk = context.disk("s3")
    assert isinstance(disk, ObjectDisk)
    assert isinstance(disk.store, MeteredStore)
    return disk.store


def test_pyarrow_reads_all_tiers(dataset: Any, everything: pa.Table) -> None:
    assert dataset.to_table().sort_by("delay").equals(everything)
    assert dataset.count_rows() == everything.num_rows


def test_pandas(dataset: Any, filesystem: FrostlineFileSystem, everything: pa.Table) -> None:
    frame = dataset.to_table(columns=["delay"], filter=pc.field("carrier") == "AA").to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["delay"].sum() == pc.sum(everything.filter(pc.field("carrier") == "AA")["delay"]).as_py()
    file = filesystem.find("ds.flights")[0]
    read = pandas.read_parquet(file, filesystem=filesystem, columns=["delay"])
    assert len(read) == ROWS_A_DAY


def test_polars(dataset: Any, everything: pa.Table) -> None:
    lazy = polars.scan_pyarrow_dataset(dataset)
    found = lazy.filter(polars.col("delay") >= 50_000).group_by("carrier").agg(polars.col("delay").sum()).collect()
    expected = everything.filter(pc.field("delay") >= 50_000).group_by("carrier").aggregate([("delay", "sum")])
    assert dict(found.rows()) == {row["carrier"]: row["delay_sum"] for row in expected.to_pylist()}


def test_duckdb(dataset: Any, everything: pa.Table) -> None:
    row = duckdb.connect().execute("select count(*), sum(delay) from dataset where carrier is null").fetchone()
    missing = everything.filter(pc.field("carrier").is_null())
    assert row == (missing.num_rows, pc.sum(missing["delay"]).as_py())


def test_duckdb_and_polars_through_the_filesystem(filesystem: FrostlineFileSystem, everything: pa.Table) -> None:
    connection = duckdb.connect()
    connection.register_filesystem(filesystem)
    row = connection.execute(
        "select count(*), sum(delay) from read_parquet('frostline://ds.flights/*/*.parquet')"
    ).fetchone()
    assert row == (everything.num_rows, pc.sum(everything["delay"]).as_py())
    path = filesystem.glob("ds.flights/*/*.parquet")[2]
    with filesystem.open(path) as source:
        assert polars.read_parquet(source).height == ROWS_A_DAY


def test_the_filesystem_is_a_read_only_tree(filesystem: FrostlineFileSystem, context: Context) -> None:
    assert "ds.flights" in filesystem.ls("", detail=False)
    parts = filesystem.ls("frostline://ds.flights", detail=False)
    assert len(parts) == DAYS
    (file,) = filesystem.ls(parts[0])
    assert file["type"] == "file"
    assert filesystem.info(file["name"]) == file
    assert filesystem.isdir(parts[0])
    assert len(filesystem.cat(file["name"])) == file["size"]
    assert filesystem.cat_file(file["name"], start=0, end=4) == b"PAR1"
    with pytest.raises(FileNotFoundError):
        filesystem.ls("ds.nope")
    with pytest.raises(FileNotFoundError):
        filesystem.open(f"{parts[0]}/nope")
    with pytest.raises(OSError):
        filesystem.open(file["name"], "wb")


def test_fragments_that_cannot_match_are_not_opened(context: Context, dataset: Any) -> None:
    chosen = (pc.field("delay") >= 0) & (pc.field("delay") < 10_000)  # day 0, on the SSD
    before = meter(context).counts()
    assert dataset.to_table(filter=chosen).num_rows == ROWS_A_DAY
    assert meter(context).counts() == before
    fragments = [fragment for child in _children(dataset) for fragment in child.get_fragments(filter=chosen)]
    assert len(fragments) == 1
    moment = pa.scalar(START + timedelta(days=3), pa.timestamp("us", "UTC"))
    late = [
        fragment for child in _children(dataset) for fragment in child.get_fragments(filter=pc.field("ts") < moment)
    ]
    assert len(late) == 3


def _children(dataset: Any) -> list[Any]:
    return list(getattr(dataset, "children", [dataset]))


def _noise(rows: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(os.urandom(8 * rows))])


def test_cold_parts_are_read_by_range(context: Context) -> None:
    definition = define("ds.wide", {"k": "int64", "noise": "int64"}, ["k"])
    put_table(context, definition)
    rows = pa.table({"k": pa.array([0] * 400_000, pa.int64()), "noise": _noise(400_000)})
    cold = put_part(context, definition, "s3", rows, 1)
    before = meter(context).bytes_received
    file = FrostlineFileSystem(context).find("ds.wide")[0]
    assert len(pandas.read_parquet(file, filesystem=FrostlineFileSystem(context), columns=["k"])) == 400_000
    narrow = meter(context).bytes_received - before
    assert 0 < narrow < cold[0].part.size_bytes / 4


def test_filters_keep_rows_with_null_and_outside_statistics(
    context: Context, dataset: Any, everything: pa.Table
) -> None:
    for chosen in (
        pc.field("carrier").is_null(),
        ~(pc.field("carrier") == "AA"),
        pc.field("note") > "f",
        pc.field("delay").isin([5, 20_005, 80_005]),
        (pc.field("delay") < 10) | pc.field("carrier").is_null(),
    ):
        assert dataset.to_table(filter=chosen).num_rows == everything.filter(chosen).num_rows


def test_older_schemas(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    first = define("ds.old", {"k": "int64", "a": "int32"}, ["k"])
    put_table(context, first)
    put_part(context, first, "s3", pa.table({"k": [1, 2], "a": pa.array([10, 20], pa.int32())}), 1)
    k, a = first.columns
    added = altered(first, [k, a, Column(id=3, name="c", type="string")])
    put_table(context, added)
    context.catalog.refresh()
    rows = table_dataset(context, added, context.catalog.parts(added)).to_table().to_pylist()
    assert rows == [{"k": 1, "a": 10, "c": None}, {"k": 2, "a": 20, "c": None}]
    renamed = altered(
        added, [k, Column(id=2, name="b", type="int64"), Column(id=4, name="a", type="string", default="n")]
    )
    put_table(context, renamed)
    put_part(context, renamed, "ssd", pa.table({"k": [3], "b": [30], "a": ["own"]}), 2)
    parts = context.catalog.parts(renamed)
    rows = table_dataset(context, renamed, parts).to_table().sort_by("k").to_pylist()
    assert rows == [{"k": 1, "b": 10, "a": "n"}, {"k": 2, "b": 20, "a": "n"}, {"k": 3, "b": 30, "a": "own"}]
    monkeypatch.setattr(dataset_module, "MAX_CONVERTED_BYTES", 10)
    with pytest.raises(Refused, match=r"ds\.old"):
        table_dataset(context, renamed, parts)


def test_files_stay_while_a_dataset_lives(context: Context) -> None:
    definition = define("ds.lease", {"k": "int64"}, ["k"])
    put_table(context, definition)
    (stored,) = put_part(context, definition, "ssd", pa.table({"k": pa.array(range(100), pa.int64())}), 1)
    path = Path(context.disk("ssd").location(stored.path(stored.part.files[0].name)).url.removeprefix("file://"))
    made = table_dataset(context, definition, [stored])
    with context.disk("ssd").transaction(Dropped()) as transaction:
        transaction.remove(stored.directory)
        transaction.commit()
    assert made.to_table().num_rows == 100
    del made
    gc.collect()
    with context.disk("ssd").read_lease():
        pass
    assert not path.exists()


def test_a_missing_object_names_itself(context: Context) -> None:
    definition = define("ds.gone", {"k": "int64"}, ["k"])
    put_table(context, definition)
    (stored,) = put_part(context, definition, "s3", pa.table({"k": [1, 2, 3]}), 1)
    disk = context.disk("s3")
    assert isinstance(disk, ObjectDisk)
    key = disk.stat(stored.path(stored.part.files[0].name)).key
    assert key is not None
    disk.store.delete([key])
    with pytest.raises((FrostlineError, OSError), match=key):
        table_dataset(context, definition, [stored]).to_table()


def test_parquet_written_is_plain_parquet(filesystem: FrostlineFileSystem) -> None:
    with filesystem.open(filesystem.find("ds.flights")[0]) as source:
        assert pq.ParquetFile(source).schema_arrow.names == ["ts", "carrier", "delay", "note"]


def test_a_forgotten_dataset_does_not_keep_removed_files_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease ends with it, or after its time; then the space of removed parts comes back."""
    context = make_context(tmp_path, {"ssd": LocalDiskConfig(path=str(tmp_path / "ssd"))})
    table = define("d.t", {"delay": "int64"}, ["delay"])
    put_table(context, table)
    disk = context.disk("ssd")

    def still_there(block: int, seconds: float, *, drop: bool) -> bool:
        monkeypatch.setattr(dataset_module, "LONGEST_LEASE_SECONDS", seconds)
        (stored,) = put_part(context, table, "ssd", pa.table({"delay": pa.array(range(1000), pa.int64())}), block)
        path = tmp_path / "ssd" / stored.path("data-0000.parquet")
        dataset = table_dataset(context, table, [stored])
        with disk.transaction(Dropped()) as transaction:
            transaction.remove(stored.directory)
            transaction.commit()
        assert path.exists(), "the dataset needs the file"
        if drop:
            del dataset
            gc.collect()
        else:
            deadline = time.monotonic() + 10
            while path.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            with pytest.raises(FileNotFoundError):
                dataset.to_table()
        return path.exists()

    assert not still_there(1, 3600, drop=True)
    assert not still_there(2, 0.3, drop=False)
