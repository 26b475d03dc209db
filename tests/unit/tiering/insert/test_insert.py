"""Inserts on real disks: sorted parts in the right partitions, nothing twice, nothing half."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disks.config import LocalDiskConfig
from disks.host.locks import OwnedDirectory
from disks.registry import open_disk
from oplog.errors import Conflict, NoSpace, UsageError
from oplog.kinds import TableAltered
from tiering.catalog import tables
from tiering.catalog.catalog import Catalog
from tiering.catalog.context import Context
from tiering.catalog.reservation import Reservations
from tiering.config.settings import Config, PolicyConfig, VolumeConfig, embedded
from tiering.insert.insert import Inserting, InsertResult, NewPart, insert
from tiering.journal.journal import Journal
from tiering.table import definitions
from tiering.table.part import Part
from tiering.table.schema import TableDefinition

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SCHEMA = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("text", pa.string())])


def make_context(config: Config) -> Context:
    state = config.state_directory
    disks = {name: open_disk(name, disk, state) for name, disk in config.disks.items()}
    return Context(
        config, disks, Catalog(config, disks), Journal(state), Reservations(config, disks), clock=lambda: NOW
    )


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    opened = make_context(embedded(tmp_path))
    yield opened
    opened.journal.close()
    for disk in opened.disks.values():
        disk.close()


def define(context: Context, **changes: Any) -> TableDefinition:
    options: dict[str, Any] = {"like": SCHEMA, "order_by": "key,ts", "policy": "hot_cold", **changes}
    return tables.create(context, definitions.define_table("db.t", **options))


def rows(count: int, *, seed: int = 0, days: int = 3) -> pa.Table:
    keys = [(number * 7919 + seed) % 1000 if number % 11 else None for number in range(count)]
    stamps = [datetime(2026, 1, 1 + number % days, tzinfo=UTC) + timedelta(seconds=number) for number in range(count)]
    return pa.table({"key": keys, "ts": stamps, "text": [f"é{number}" for number in range(count)]}, SCHEMA)


def put(context: Context, definition: TableDefinition, table: pa.Table) -> InsertResult:
    result = insert(context, definition, [table.to_batches(max_chunksize=37)])
    context.catalog.refresh()
    return result


def stored(context: Context, definition: TableDefinition) -> list[pa.Table]:
    """The rows of every part, read with another reader."""
    return [
        pq.read_table(pa.BufferReader(context.disk(part.disk).read(part.path(file.name))))
        for part in context.catalog.parts(definition)
        for file in part.part.files
    ]


def test_rows_land_sorted_in_their_partitions(context: Context) -> None:
    """I3, I5: a part holds one partition, in sort order, nulls last, and part.json says what is in it."""
    definition = define(context, partition_by="day(ts)", settings=["insert_block_rows=100"])
    table = rows(250)
    result = put(context, definition, table)
    assert (result.rows, result.duplicates, len(result.parts)) == (250, 0, 9)
    assert {name.split("_")[0] for name in result.parts} == {"20260101", "20260102", "20260103"}
    found = pa.concat_tables(stored(context, definition))
    assert sorted(found["text"].to_pylist()) == sorted(table["text"].to_pylist())
    for part in context.catalog.parts(definition):
        (file,) = part.part.files
        part_rows = pq.read_table(pa.BufferReader(context.disk(part.disk).read(part.path(file.name))))
        keys = [(row["key"] is None, row["key"] or 0, row["ts"]) for row in part_rows.to_pylist()]
        assert keys == sorted(keys)
        assert {f"{row['ts']:%Y%m%d}" for row in part_rows.to_pylist()} == {part.name.partition}
        assert part.part.rows == part_rows.num_rows
        assert part.part.columns["1"].nulls == part_rows["key"].null_count
        assert part.part.columns["1"].max == max(filter(None, part_rows["key"].to_pylist()))


def test_a_full_disk_leaves_nothing_of_what_other_disks_get(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second partition finds no room while the first is still written: its directory went before it was whole,
    which hid the reason and left the rest there."""
    definition = define(context, partition_by="day(ts)", ttl=["30d on ts to volume cold"])
    day = timedelta(days=1)
    table = pa.table({"key": [1, 2], "ts": [NOW - 40 * day, NOW], "text": ["old", "new"]}, SCHEMA)
    refused, gone = threading.Event(), threading.Event()
    begin, write, remove = Inserting.begin_on, Inserting._write_part, OwnedDirectory.remove

    def full(self: Inserting, disk: str) -> Any:
        if disk == "ssd":
            refused.set()
            raise NoSpace("no space left on device: ssd")
        return begin(self, disk)

    def late(self: Inserting, *given: Any) -> NewPart:
        assert refused.wait(60)
        gone.wait(0.2)  # what is wrong removes it meanwhile
        return write(self, *given)

    def noted(self: OwnedDirectory) -> None:
        remove(self)
        gone.set()

    monkeypatch.setattr(Inserting, "begin_on", full)
    monkeypatch.setattr(Inserting, "_write_part", late)
    monkeypatch.setattr(OwnedDirectory, "remove", noted)
    with pytest.raises(NoSpace, match="no space left on device: ssd"):
        put(context, definition, table)
    scratch = context.config.state_directory / "disks" / "s3" / "scratch"
    assert list(scratch.iterdir()) == []


def test_a_repeated_insert_is_skipped_block_by_block(context: Context) -> None:
    """An insert is idempotent, also when only a part of it went in before."""
    definition = define(context, partition_by="day(ts)", settings=["insert_block_rows=100"])
    table = rows(250)
    assert put(context, definition, table.slice(0, 100)).rows == 100
    whole = put(context, definition, table)
    assert (whole.rows, whole.duplicates, whole.duplicate_rows) == (150, 3, 100)
    again = put(context, definition, table)
    assert (again.rows, again.parts, again.duplicates) == (0, (), 9)
    assert sum(found.num_rows for found in stored(context, definition)) == 250


def test_a_repeat_after_a_change_of_the_definition_is_skipped(context: Context) -> None:
    """Columns that the rows say nothing of, and how files are laid out."""
    definition = define(context, settings=["insert_block_rows=100"])
    put(context, definition, rows(150))
    changed = definitions.add_column(definition, "more:string", default="x")
    changed = definitions.set_settings(changed, ["row_group_rows=10"])
    definition = tables.replace(context, definition, changed, reason="alter", kind=TableAltered())
    assert put(context, definition, rows(150)).duplicates == 2


def test_a_block_that_an_older_version_inserted_is_known(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its files: an insert that was stopped before an upgrade is run again after it."""
    definition = define(context)
    described = Inserting.described

    def by_files(run: Inserting, name: str, new: NewPart) -> Part:
        return msgspec.structs.replace(described(run, name, new), digests=(new.former_digest,))

    with monkeypatch.context() as patch:
        patch.setattr(Inserting, "described", by_files)
        put(context, definition, rows(50))
    assert put(context, definition, rows(50)).duplicates == 1


def test_the_same_block_twice_in_one_insert_goes_in_once(context: Context) -> None:
    definition = define(context, settings=["insert_block_rows=50"])
    result = put(context, definition, pa.concat_tables([rows(50), rows(50)]))
    assert (result.rows, result.duplicates) == (50, 1)


def test_deduplication_can_be_switched_off(context: Context) -> None:
    definition = define(context, settings=["deduplication_window=0"])
    put(context, definition, rows(10))
    assert put(context, definition, rows(10)).rows == 10


def test_a_broken_batch_keeps_whole_blocks_and_says_so(context: Context) -> None:
    """Bad input half way: what is in is told, and a repeat skips it."""
    definition = define(context, settings=["insert_block_rows=50"])
    good = rows(120)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from good.to_batches()
        yield pa.RecordBatch.from_pydict({"key": ["x"], "ts": [NOW], "text": ["t"]})

    with pytest.raises(UsageError, match=r"row 121 has 'x'.*100 rows in 2 parts"):
        insert(context, definition, [batches()])
    assert context.journal.claimed(definition.uuid) == {}
    again = put(context, definition, good)
    assert (again.rows, again.duplicates) == (20, 2)


@pytest.mark.parametrize("method", ["write_table", "close"])
def test_a_full_disk_leaves_nothing_of_the_block(
    context: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    """ENOSPC mid-insert: a clear error, nothing visible, nothing left in staging, and it works once there is space."""
    definition = define(context)

    def full(self: Any, *_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28), "data-0000.parquet")

    monkeypatch.setattr(pq.ParquetWriter, method, full)
    with pytest.raises(NoSpace, match="no space left on device"):
        insert(context, definition, [rows(10).to_batches()])
    monkeypatch.undo()
    context.catalog.refresh()
    assert context.catalog.parts(definition) == []
    assert not list((tmp_path / "ssd" / ".frostline").rglob("*.parquet"))
    assert context.journal.claimed(definition.uuid) == {}
    assert put(context, definition, rows(10)).rows == 10


def test_rows_already_due_go_straight_to_the_cold(context: Context) -> None:
    """perform_ttl_move_on_insert."""
    definition = define(context, ttl=["30d on ts to volume cold"], partition_by="month(ts)")
    old = rows(20)
    fresh = old.set_column(1, "ts", pa.array([NOW] * 20, pa.timestamp("us", "UTC")))
    put(context, definition, pa.concat_tables([old, fresh]))
    assert {(part.name.partition, part.disk) for part in context.catalog.parts(definition)} == {
        ("202601", "s3"),
        ("202603", "ssd"),
    }


def test_wide_rows_make_smaller_blocks(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by bytes too, not only by rows."""
    monkeypatch.setattr("tiering.insert.row_blocks._BLOCK_BYTES", 2000)
    definition = define(context)
    assert len(put(context, definition, rows(300)).parts) == 3


def test_an_empty_insert_does_nothing(context: Context) -> None:
    definition = define(context)
    assert put(context, definition, rows(0)) == InsertResult("db.t")


def test_block_numbers_never_repeat_after_the_journal_is_lost(context: Context, tmp_path: Path) -> None:
    definition = define(context)
    put(context, definition, rows(10))
    context.journal.close()
    for file in (tmp_path / "state").glob("journal.db*"):
        file.unlink()
    context.journal = Journal(tmp_path / "state")
    assert put(context, definition, rows(10, seed=1)).parts == ("all_1000001_1000001_0",), "a new range"


def test_a_table_dropped_meanwhile_gets_no_part_back(context: Context) -> None:
    """Another process drops the table between the look at the catalog and the commit."""
    definition = define(context)

    def batches() -> Iterator[pa.RecordBatch]:
        tables.drop(context, definition)
        yield from rows(20).to_batches()

    with pytest.raises(Conflict, match=r"table\.json is gone"):
        insert(context, definition, [batches()])
    assert context.disk("ssd").list(definition.directory) == []


def test_processes_insert_in_turn_on_the_disks_of_a_volume(tmp_path: Path) -> None:
    config = Config(
        state_path=str(tmp_path / "state"),
        disks={name: LocalDiskConfig(path=str(tmp_path / name)) for name in ("one", "two")},
        policies={"hot_cold": PolicyConfig(volumes=(VolumeConfig(name="hot", disks=("one", "two")),))},
    )
    for number in range(4):
        context = make_context(config)
        context.catalog.refresh()
        definition = context.catalog.tables()[0] if number else define(context)
        put(context, definition, rows(10, seed=number))
        held = [stored.disk for stored in context.catalog.parts(definition)]
        context.journal.close()
    assert sorted(held) == ["one", "one", "two", "two"]
