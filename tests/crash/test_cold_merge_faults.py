"""Cold merges whose shards, or the objects they read and wrote, are not what they should be: the group fails and says
why, its parts stay, and the other group is committed (I1, I13, I15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from oplog.errors import Damaged, FrostlineError, Refused
from tests.cold import as_rows, cold_config, cold_merge, content, group
from tiering.catalog.catalog import StoredPart
from tiering.engine.store import Store
from tiering.merge.cold.shard_merge import MergeTask, ShardResult, merge_shard
from tiering.parquet.uploads import UploadedFile
from tiering.table.definitions import define_table
from tiering.table.part import DataFile

ROWS = 120


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(cold_config(tmp_path, (tmp_path / "bucket").as_uri() + "/")) as opened:
        yield opened


def fill(store: Store, *, merge_mode: str = "ordinary", parts: int = 3) -> None:
    """A table of two partitions with parts of many row groups, whose keys lie within one another."""
    columns = ["k:int64", "p:int8", "v:int64", "gone:bool", "text:string"]
    definition = define_table(
        "db.t", columns=columns, order_by="k", partition_by="identity(p)", policy="cold", merge_mode=merge_mode,
        settings=["row_group_rows=10"],
    )  # fmt: skip
    store.create_table(definition)
    for number in range(parts):
        keys = [key * parts + number for key in range(ROWS)] if merge_mode == "ordinary" else list(range(ROWS))
        table = {
            "k": keys,
            "p": [row % 2 for row in range(ROWS)],
            "v": [number] * ROWS,
            "gone": [number == parts - 1] * ROWS,
            "text": [f"{number} {row * 7919 % 1000}" for row in range(ROWS)],
        }
        store.table("db.t").insert(pa.table(table).to_batches())
    store.refresh()


def of_partition(store: Store, partition: str) -> list[StoredPart]:
    return sorted((s for s in store.parts("db.t") if s.name.partition == partition), key=lambda stored: stored.name)


def merge_both(
    store: Store, spoil: Callable[[MergeTask, ShardResult], ShardResult], *, shards: int = 4
) -> FrostlineError:
    """Merge both partitions; `spoil` gets the results of partition 1, at least so many, and its merge fails with the
    error that is returned. Its parts stay, and partition 0 is merged."""
    before = {stored.part.name for stored in of_partition(store, "1")}
    rows = rows_of(store, "1")
    spoiled: list[ShardResult] = []

    def merge(task: MergeTask) -> ShardResult:
        result = merge_shard(task)
        if not task.target.rpartition("/")[2].startswith("1_"):
            return result
        spoiled.append(result)
        return spoil(task, result)

    plans = [group(of_partition(store, partition)) for partition in "01"]
    report = cold_merge(store, plans, shard_bytes=1, merge=merge)
    assert len(spoiled) >= shards
    assert [result.partition for result in report.merges] == ["0"]
    assert {stored.part.name for stored in of_partition(store, "1")} == before
    assert rows_of(store, "1") == rows
    (failure,) = report.failures
    return failure.error


def rows_of(store: Store, partition: str) -> list[str]:
    definition = store.definition("db.t")
    tables = [table for s in of_partition(store, partition) for table in content(store.context, definition, s)]
    return sorted(row for table in tables for row in as_rows(table))


def test_a_shard_that_lost_rows_is_refused(store: Store) -> None:
    fill(store)

    def lose(task: MergeTask, result: ShardResult) -> ShardResult:
        return replace(result, files=()) if task.shard.number == 2 else result

    error = merge_both(store, lose)
    assert isinstance(error, Damaged)
    assert "rows and wrote" in error.message


def test_a_shard_that_did_not_read_all_is_refused(store: Store) -> None:
    """Also in a mode that may drop rows: what was read is counted."""
    fill(store, merge_mode="replacing:v")

    def skip(task: MergeTask, result: ShardResult) -> ShardResult:
        return replace(result, rows_read=result.rows_read - 1) if task.shard.number == 1 else result

    error = merge_both(store, skip)
    assert isinstance(error, Damaged)


def test_the_result_of_another_shard_is_refused(store: Store) -> None:
    """Where a mode may drop rows, no count tells."""
    fill(store, merge_mode="replacing:v")
    results: dict[int, ShardResult] = {}

    def mix_up(task: MergeTask, result: ShardResult) -> ShardResult:
        results[task.shard.number] = result
        return replace(results[1], rows_read=result.rows_read) if task.shard.number == 2 else result

    error = merge_both(store, mix_up)
    assert isinstance(error, Damaged)
    assert "keys of another shard" in error.message


@pytest.mark.parametrize("what", ["gone", "short"])
def test_an_object_that_is_not_what_a_shard_says_is_refused(store: Store, what: str) -> None:
    fill(store)
    bucket = store.object_disk("s3").store

    def spoil(task: MergeTask, result: ShardResult) -> ShardResult:
        if task.shard.number != 1:
            return result
        first, *rest = result.files
        if what == "gone":
            assert list(bucket.delete([first.key]).values()) == [None]
            return result
        shorter = msgspec.structs.replace(first.file, size_bytes=first.file.size_bytes - 1)
        return replace(result, files=(UploadedFile(shorter, first.key), *rest))

    error = merge_both(store, spoil)
    assert isinstance(error, Refused)
    assert "is gone" in error.message or "bytes instead of" in error.message


def test_a_byte_that_changed_in_the_bucket_is_named(tmp_path: Path, store: Store) -> None:
    """A shard reads a share of the object: no SHA-256 can tell, the checksum of the page does."""
    fill(store)
    victim = of_partition(store, "1")[1]
    (file,) = victim.part.files
    path = victim.path(file.name)
    key = store.disk("s3").stat(path).key
    places = [found for found in (tmp_path / "bucket").rglob("*") if key and found.is_file() and found.name == key]
    place = max(places, key=lambda found: found.stat().st_size)  # the other holds the object's metadata
    place.chmod(0o644)
    place.write_bytes(with_other_texts(place.read_bytes(), file, 3))
    plans = [group(of_partition(store, partition)) for partition in "01"]
    report = cold_merge(store, plans, shard_bytes=1)
    assert [result.partition for result in report.merges] == ["0"]
    (failure,) = report.failures
    assert isinstance(failure.error, Damaged)
    assert path in failure.error.message
    assert [stored.part.name for stored in of_partition(store, "1")] == [s.part.name for s in plans[1].parts]


def with_other_texts(data: bytes, file: DataFile, number: int) -> bytes:
    """The file with one bit turned, so that a row group still reads well, as other rows."""
    good = pq.ParquetFile(pa.BufferReader(data)).read_row_group(number)
    end = file.row_groups[number].offset_bytes + file.row_groups[number].size_bytes
    for place in range(end - 1, file.row_groups[number].offset_bytes, -1):
        bad = bytearray(data)
        bad[place] ^= 1
        with suppress(OSError, pa.ArrowException):
            rows = pq.ParquetFile(pa.BufferReader(bad)).read_row_group(number)
            if rows.num_rows == good.num_rows and rows.column("k").equals(good.column("k")) and not rows.equals(good):
                return bytes(bad)
    raise AssertionError("every bit that changed was noticed")


@pytest.mark.parametrize("chosen", [slice(1, 3), slice(0, 3)])
def test_tombstones_outlive_a_merge_of_some_parts(store: Store, chosen: slice) -> None:
    fill(store, merge_mode="replacing:v,gone")
    members = of_partition(store, "0")
    report = cold_merge(store, [group(members[chosen])], shard_bytes=1, drop_deleted=True)
    assert not report.failures
    merged = members[chosen] == members
    left = of_partition(store, "0")
    definition = store.definition("db.t")
    marks = [row["gone"] for s in left for t in content(store.context, definition, s) for row in t.to_pylist()]
    assert marks.count(True) == (0 if merged else ROWS // 2), "an older row would come back"
    assert marks.count(False) == (0 if merged else ROWS // 2)


def test_a_disk_that_fails_fails_its_group_only(store: Store) -> None:
    fill(store)

    def fail(task: MergeTask, result: ShardResult) -> ShardResult:
        raise OSError(5, "Input/output error", "/scratch")

    assert "Input/output error" in merge_both(store, fail, shards=1).message
    report = cold_merge(store, [group(of_partition(store, "1"))], shard_bytes=1)
    assert [result.partition for result in report.merges] == ["1"], "the store does not merge any more"
