"""I15: a task of Spark answers with no flipped bit, of a local file and of an object, read whole or in row groups."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from spark_tiering.arrow_types import carried_schema
from spark_tiering.reading import reader
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.reading.reader import Projection, read_share
from spark_tiering.reading.scan_planning import plan_scan
from tests.flips import StoredFile, never_another_answer, without_sums
from tests.spark.stores import table
from tiering.engine.store import Store
from tiering.parquet import checked_file, checked_local

COLUMNS = {"k": "int64", "level": "string", "id": "string", "x": "float64", "tags": "list<string>"}
ROWS = pa.table(
    {
        "k": pa.array(range(3000), pa.int64()),
        "level": [("INFO", "WARN", None)[number % 3] for number in range(3000)],
        "id": [f"{number * 7919 % 10**9:09d}" for number in range(3000)],
        "x": [number / 7 for number in range(3000)],
        "tags": [["a", "b"][: number % 3] for number in range(3000)],
    }
)
DISKS = {"local": "{{type: local, path: '{0}/ssd'}}", "bucket": "{{type: object_disk, url: 'file://{0}/bucket/'}}"}
READS = {"some columns": ("k", "level"), "all columns": tuple(COLUMNS)}


class Share:
    """The only share of a scan of a table with one data file."""

    def __init__(self, home: Path, disk: str) -> None:
        config = home / "frostline.yaml"
        config.write_text(
            f"state_path: {home}/state\ndisks: {{one: {DISKS[disk].format(home)}}}\n"
            "policies: {tiers: {volumes: [{name: only, disks: [one]}]}}\n"
        )
        definition = table("db.t", COLUMNS, ["k"], row_group_rows=1000)
        with Store.open(config) as store:
            store.create_table(definition)
            store.table("db.t").insert(ROWS.to_batches())
            (stored,) = store.parts()
            self.file = StoredFile(store.context, stored)
        self.file.label = self.file.file.name
        scan = plan_scan(ReadOptions("db.t", config, on_this_machine=True))
        self.definition, (self.pieces,) = scan.definition, scan.shares

    def read(self, columns: tuple[str, ...]) -> object:
        schema = carried_schema([self.definition.column(name) for name in columns])
        wanted = Projection(self.definition, columns, schema)
        batches = read_share(self.pieces, wanted, datetime.now(UTC) + timedelta(hours=1))
        return pa.Table.from_batches(list(batches), schema).to_pylist()


@pytest.fixture(params=DISKS)
def share(request: pytest.FixtureRequest, tmp_path: Path) -> Share:
    return Share(tmp_path, request.param)


@pytest.mark.in_turn
@pytest.mark.parametrize("columns", READS)
def test_a_task_answers_with_no_flipped_bit(share: Share, columns: str) -> None:
    """I15."""
    assert never_another_answer(share.file, lambda: share.read(READS[columns]), count=300) > 100


@pytest.mark.parametrize("columns", READS)
def test_a_part_of_before_is_compared_as_a_whole(share: Share, columns: str) -> None:
    """I15."""
    (piece,) = share.pieces
    assert piece.file is not None
    share.pieces = (replace(piece, file=without_sums(piece.file)),)

    def ask() -> object:
        checked_file._learned.forget()
        return share.read(READS[columns])

    assert never_another_answer(share.file, ask, count=60) == 60


@pytest.mark.parametrize("columns", READS)
def test_without_the_comparison_flipped_bits_are_answered(
    share: Share, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seeded fault: what the tests above would see."""
    monkeypatch.setattr(checked_local, "_compare", lambda *args: set())
    monkeypatch.setattr(checked_file, "_is", lambda *args: True)
    monkeypatch.setattr(reader, "whole_file", lambda store, key, *more: pa.BufferReader(store.get(key)))
    with pytest.raises(AssertionError, match="is answered as data"):
        never_another_answer(share.file, lambda: share.read(READS[columns]), count=300, errors=(Exception,))
