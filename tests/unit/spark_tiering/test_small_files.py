"""Small files of a share: fetched many at once, read in their order, and handed over in few batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from oplog.errors import Damaged, NotFound
from spark_tiering.arrow_types import carried_schema
from spark_tiering.reading import reader
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.reading.reader import BATCH_ROWS, Projection, in_larger_batches, read_share
from spark_tiering.reading.scan_planning import PlannedScan, plan_scan
from tests.spark.stores import insert, table
from tiering.engine.store import Store

FILES = 40
AT_ONCE = 16


@pytest.fixture
def scan(tmp_path: Path) -> PlannedScan:
    """Forty files of two rows each, one share."""
    file = tmp_path / "frostline.yaml"
    file.write_text(
        f"state_path: {tmp_path}/state\ndisks: {{s3: {{type: object_disk, url: 'file://{tmp_path}/bucket/'}}}}\n"
        "policies: {tiers: {volumes: [{name: cold, disks: [s3]}]}}\n"
    )
    definition = table("db.t", {"k": "int64"}, ["k"])
    with Store.open(file) as store:
        store.create_table(definition)
        for number in range(FILES):
            insert(store, definition, {"k": [2 * number, 2 * number + 1]})
    found = plan_scan(ReadOptions("db.t", file, partition_bytes=1 << 30))
    assert [len(share) for share in found.shares] == [FILES]
    return found


class _FarAway:
    """A bucket whose requests go through `get`, at an address that is no directory."""

    def __init__(self, get: Callable[[str], bytes]) -> None:
        self.get = get
        self.config = SimpleNamespace(url="s3://bucket/")

    def open(self) -> _FarAway:
        return self


def _read(scan: PlannedScan, on_get: Callable[[str], None]) -> list[pa.RecordBatch]:
    (share,) = scan.shares
    assert share[0].store is not None
    near = share[0].store.open()

    def get(key: str) -> bytes:
        on_get(key)
        return near.get(key)

    far: Any = _FarAway(get)
    schema = carried_schema(list(scan.definition.columns))
    wanted = Projection(scan.definition, ("k",), schema, scan.predicate)
    pieces = [replace(piece, store=far) for piece in share]
    return list(read_share(pieces, wanted, datetime.now(UTC) + timedelta(hours=1)))


def test_many_come_at_once_and_their_rows_in_order_in_one_batch(scan: PlannedScan) -> None:
    together, asked = threading.Barrier(AT_ONCE, timeout=30), []

    def on_get(key: str) -> None:
        asked.append(key)
        if len(asked) <= AT_ONCE:
            together.wait()  # broken, and so an error, where they come one by one

    (batch,) = _read(scan, on_get)
    assert sorted(batch["k"].to_pylist()) == list(range(2 * FILES))
    by_file = [batch["k"].to_pylist()[2 * n : 2 * n + 2] for n in range(FILES)]
    (share,) = scan.shares
    assert by_file == [[2 * n, 2 * n + 1] for n in range(FILES)]
    assert len(asked) == len(set(asked)) == len(share)


def test_one_that_is_gone_is_an_error_of_the_read(scan: PlannedScan) -> None:
    (share,) = scan.shares

    def on_get(key: str) -> None:
        if key == share[20].key:
            raise NotFound("no such object")

    with pytest.raises(Damaged, match="is gone"):
        _read(scan, on_get)


def test_small_batches_are_joined_and_large_ones_are_left() -> None:
    def batch(first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"k": pa.array(range(first, first + count))})

    large = batch(100, BATCH_ROWS)
    found = list(in_larger_batches([batch(0, 50), batch(50, 50), large, batch(100 + BATCH_ROWS, 1)]))
    assert [one.num_rows for one in found] == [100, BATCH_ROWS, 1]
    assert found[1] is large
    assert pa.Table.from_batches(found)["k"].to_pylist() == list(range(101 + BATCH_ROWS))
    assert list(in_larger_batches([])) == []
    assert reader._FILES_AT_ONCE == AT_ONCE
