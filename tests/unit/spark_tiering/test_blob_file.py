"""Reading a share of a scan costs few requests, and no more bytes than its columns and row groups need."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy
import pyarrow as pa
import pytest

from disks.stores.base import ByteRange
from disks.stores.wrappers.metered import MeteredStore
from spark_tiering.arrow_types import carried_schema
from spark_tiering.reading.blob_file import coalesced
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.reading.reader import Projection, read_share
from spark_tiering.reading.scan_planning import PlannedScan, plan_scan
from tests.spark.stores import table
from tiering.engine.store import Store

ROWS, GROUP_ROWS = 400_000, 20_000
COLUMNS = {"k": "int64", "a": "float64", "b": "float64", "c": "float64"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One part of twenty row groups of 4 x 160 KB in a directory bucket."""
    home = tmp_path_factory.mktemp("blobs")
    file = home / "frostline.yaml"
    file.write_text(
        f"state_path: {home}/state\ndisks: {{s3: {{type: object_disk, url: 'file://{home}/bucket/'}}}}\n"
        "policies: {tiers: {volumes: [{name: cold, disks: [s3]}]}}\n"
    )
    random = numpy.random.default_rng(1)
    rows = pa.table({"k": range(ROWS), **{name: random.random(ROWS) for name in "abc"}})
    definition = table("db.t", COLUMNS, ["k"], row_group_rows=GROUP_ROWS)
    with Store.open(file) as store:
        store.create_table(definition)
        store.table("db.t").insert(rows.to_batches())
    return file


class Counted:
    """What a read of a scan's only share costs."""

    def __init__(self, scan: PlannedScan, *columns: str) -> None:
        (share,) = scan.shares
        store = share[0].store
        assert store is not None
        opened = store.open()
        assert isinstance(opened, MeteredStore)
        before = opened.counts()["GET"], opened.bytes_received
        schema = carried_schema([scan.definition.column(name) for name in columns])
        wanted = Projection(scan.definition, columns, schema, scan.predicate)
        batches = list(read_share(share, wanted, datetime.now(UTC) + timedelta(hours=1)))
        self.rows = pa.Table.from_batches(batches, schema)
        self.gets = opened.counts()["GET"] - before[0]
        self.bytes = opened.bytes_received - before[1]


def planned(config: Path, condition: str = "") -> PlannedScan:
    return plan_scan(ReadOptions("db.t", config, filter=condition, partition_bytes=1 << 30))


def test_all_of_a_small_file_is_one_request(config: Path) -> None:
    scan = planned(config)
    found = Counted(scan, *COLUMNS)
    assert found.rows.num_rows == ROWS
    assert found.gets == 1
    assert found.bytes == scan.shares[0][0].size_bytes


def test_one_column_is_its_bytes_and_a_footer(config: Path) -> None:
    scan = planned(config)
    found = Counted(scan, "b")
    assert found.rows.num_rows == ROWS
    # Between two chunks of the column lie more bytes than a request costs.
    assert found.gets <= 1 + ROWS // GROUP_ROWS
    assert found.bytes < scan.shares[0][0].size_bytes * 0.35


def test_a_range_of_the_key_is_a_row_group_or_two(config: Path) -> None:
    found = Counted(planned(config, "k between 50000 and 50999"), "k", "a")
    assert found.rows.column("k").to_pylist() == list(range(50_000, 51_000))
    assert found.gets <= 2
    assert found.bytes < 600_000


def test_statistics_prune_what_the_sparse_index_cannot(config: Path) -> None:
    scan = planned(config, "a between -2 and -1")
    assert scan.shares == ()
    rare = planned(config, "a < 0.00001")
    assert Counted(rare, "a").rows.num_rows < 20


def test_columns_that_only_decide_are_not_handed_on(config: Path) -> None:
    found = Counted(planned(config, "k < 10"), "c")
    assert found.rows.column_names == ["c"]
    assert found.rows.num_rows == 10


def test_neighbours_are_joined_over_small_holes_only() -> None:
    ranges = [ByteRange(0, 10), ByteRange(30, 40), ByteRange(12, 20), ByteRange(100, 110)]
    assert coalesced(ranges, 10) == [ByteRange(0, 40), ByteRange(100, 110)]
    assert coalesced(ranges, 0) == [ByteRange(0, 10), ByteRange(12, 20), ByteRange(30, 40), ByteRange(100, 110)]
    assert coalesced([ByteRange(0, 50), ByteRange(10, 20)], 0) == [ByteRange(0, 50)]
