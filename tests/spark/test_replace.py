"""Partitions that a job of Spark writes anew: the rows that it knew go in its commit, and no others (I1, I2)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import spark_tiering
from oplog.errors import NotFound, Refused
from restore.check.check import CheckOptions, check
from restore.history.undo import undo
from spark_tiering.writing.write_job import begin_job, commit_job
from tests.servers import Server
from tests.spark.stores import insert, opened, table, to_bucket, write_config
from tiering.engine.store import Store
from tiering.engine.write_job import WriteOptions, WriteResult
from tiering.insert.uploaded.once import OnceAJob
from tiering.insert.uploaded.part_writer import WriteJob, write_parts
from tiering.insert.uploaded.replaced import held_to_replace
from tiering.merge.request import MergeRequest
from tiering.table.schema import PartitionField

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAYS = table("db.days", {"day": "int64", "k": "int64"}, ["k"], PartitionField("identity", "day"))


@pytest.fixture
def config(ministack: Server, tmp_path: Path) -> Path:
    """Day 1 has the rows 1 and 2 in two parts, day 2 the row 3."""
    file = write_config(tmp_path, ministack, hot=False)
    with opened(file) as store:
        store.create_table(DAYS)
        insert(store, DAYS, {"day": [1, 2], "k": [1, 3]})
        insert(store, DAYS, {"day": [1], "k": [2]})
    return file


def rows(config: Path) -> list[tuple[int, int]]:
    with opened(config) as store:
        return _rows(store)


def _rows(store: Store) -> list[tuple[int, int]]:
    found = store.query("SELECT day, k FROM db.days ORDER BY day, k").read_all()
    return list(zip(found["day"].to_pylist(), found["k"].to_pylist(), strict=True))


def begun(config: Path, replaces: str = "partitions", job_id: str = "") -> tuple[WriteOptions, WriteJob]:
    asked = WriteOptions("db.days", config, OnceAJob(job_id) if job_id else None, replaces)  # type: ignore[arg-type]
    _, job = begin_job(asked)
    assert job is not None
    return asked, job


def finish(begun: tuple[WriteOptions, WriteJob], *written: tuple[int, int]) -> WriteResult:
    asked, job = begun
    batch = pa.record_batch({"day": [day for day, _ in written], "k": [key for _, key in written]})
    return commit_job(asked, job, write_parts([batch], job, 0, 0) if written else [])


def test_written_partitions_are_replaced_and_undo_returns_them(config: Path) -> None:
    result = finish(begun(config), (1, 10), (3, 30))
    assert rows(config) == [(1, 10), (2, 3), (3, 30)]
    assert len(result.replaced) == 2
    with opened(config) as store:
        disk = store.object_disk("s3")
        revision = disk.revision or 0
        assert "Spark replaced partitions of db.days" in disk.log.read(revision).commit.reason
        insert(store, DAYS, {"day": [1], "k": [11]})
        store.merge("db.days", MergeRequest(final=True))
        assert _rows(store) == [(1, 10), (1, 11), (2, 3), (3, 30)]
        with pytest.raises(Refused, match=r"merged into .* since"):
            undo(store.context, disk, revision)
    with opened(config) as store:
        assert check(store.context.disks, CheckOptions(read_data=True)).problems == []


def test_what_is_undone_is_as_before_and_can_be_replaced_again(config: Path) -> None:
    finish(begun(config), (1, 10))
    with opened(config) as store:
        disk = store.object_disk("s3")
        undo(store.context, disk, disk.revision or 0)
        assert _rows(store) == [(1, 1), (1, 2), (2, 3)]
        store.merge("db.days", MergeRequest(final=True))
        assert check(store.context.disks, CheckOptions(read_data=True)).problems == []
    finish(begun(config), (1, 12))
    assert rows(config) == [(1, 12), (2, 3)]


def test_the_whole_table_is_replaced_on_request_also_by_nothing(config: Path) -> None:
    finish(begun(config, "table"), (3, 30))
    assert rows(config) == [(3, 30)]
    finish(begun(config, "table"))
    assert rows(config) == []


def test_no_rows_replace_no_partitions(config: Path) -> None:
    assert finish(begun(config)) == WriteResult()
    assert len(rows(config)) == 3


def test_rows_that_came_after_the_job_began_are_not_replaced(config: Path) -> None:
    job = begun(config)
    with opened(config) as store:
        insert(store, DAYS, {"day": [1], "k": [99]})
    with pytest.raises(Refused, match=r"partition 1 of db\.days has rows .*: part 1_.* was "):
        finish(job, (1, 10))
    assert rows(config) == [(1, 1), (1, 2), (1, 99), (2, 3)]
    finish(begun(config), (1, 10))
    assert rows(config) == [(1, 10), (2, 3)]


@pytest.mark.parametrize("late", [False, True])
def test_a_merge_brings_no_rows_but_shows_those_that_came(config: Path, late: bool) -> None:
    job = begun(config)
    with opened(config) as store:
        if late:
            insert(store, DAYS, {"day": [1], "k": [99]})
        store.merge("db.days", MergeRequest(final=True))
        insert(store, DAYS, {"day": [2], "k": [4]})  # not what is replaced
    if late:
        with pytest.raises(Refused, match="rows that came after"):
            finish(job, (1, 10))
        assert rows(config) == [(1, 1), (1, 2), (1, 99), (2, 3), (2, 4)]
    else:
        finish(job, (1, 10))
        assert rows(config) == [(1, 10), (2, 3), (2, 4)]


@contextmanager
def _meddled(monkeypatch: pytest.MonkeyPatch, meddle: Any) -> Iterator[list[int]]:
    """Somebody else does that between the look at what is replaced and the commit, once."""
    looks = [0]

    @contextmanager
    def held(*arguments: Any, **named: Any) -> Iterator[Any]:
        with held_to_replace(*arguments, **named) as found:
            looks[0] += 1
            if looks[0] == 1:
                meddle()
            yield found

    with monkeypatch.context() as patch:
        patch.setattr("tiering.engine.write_job.held_to_replace", held)
        yield looks


def test_rows_that_come_right_before_the_commit_refuse_it(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = _other_machine(config, tmp_path)

    def meddle() -> None:
        with opened(other) as store:
            insert(store, DAYS, {"day": [1], "k": [99]})

    with _meddled(monkeypatch, meddle) as looks, pytest.raises(Refused, match="has rows that came after"):
        finish(begun(config), (1, 10))
    assert looks == [1]
    assert rows(config) == [(1, 1), (1, 2), (1, 99), (2, 3)]


def test_a_merge_or_another_partition_s_rows_refuse_no_commit(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They come right before the commit."""
    other = _other_machine(config, tmp_path)

    def meddle() -> None:
        with opened(other) as store:
            insert(store, DAYS, {"day": [2], "k": [4]})
            store.merge("db.days", MergeRequest(final=True, adopt=True))

    with _meddled(monkeypatch, meddle) as looks:
        finish(begun(config), (1, 10))
    assert looks == [2]
    assert rows(config) == [(1, 10), (2, 3), (2, 4)]


def _other_machine(config: Path, tmp_path: Path) -> Path:
    """The same bucket, with a state of its own."""
    other = tmp_path / "other"
    other.mkdir()
    file = other / "frostline.yaml"
    file.write_text(config.read_text().replace(str(tmp_path / "state"), str(other / "state")))
    file.chmod(0o600)
    return file


def test_rows_on_an_ssd_are_not_replaced_where_undo_lacks_them(ministack: Server, tmp_path: Path) -> None:
    """Where no undo brings them back."""
    config = write_config(tmp_path, ministack)
    with opened(config) as store:
        store.create_table(DAYS)
        insert(store, DAYS, {"day": [1, 2], "k": [1, 3]})
    with pytest.raises(Refused, match="where undo cannot restore them") as caught:
        finish(begun(config), (1, 10))
    assert caught.value.hint == "frostline move db.days --partition 1 --to-disk s3"
    with opened(config) as store:
        to_bucket(store, "db.days")
    finish(begun(config), (1, 10))
    assert rows(config) == [(1, 10), (2, 3)]


def test_a_job_id_replaces_once(config: Path) -> None:
    finish(begun(config, job_id="day 1"), (1, 10))
    with opened(config) as store:
        insert(store, DAYS, {"day": [1], "k": [11]})
    assert begin_job(WriteOptions("db.days", config, OnceAJob("day 1"), "partitions"))[1] is None
    assert rows(config) == [(1, 10), (1, 11), (2, 3)]


@pytest.mark.in_turn
def test_spark_replaces_what_it_is_told_to(spark: SparkSession, config: Path) -> None:
    spark_tiering.register(spark)

    def write(query: str, **options: str) -> None:
        frame = spark.sql(query).coalesce(1).write.format("frostline").option("config", str(config))
        frame.mode("overwrite").options(**options).save("db.days")

    new = "select bigint(1) as day, id as k from range(10, 12)"
    with pytest.raises(Exception, match=r"rows of db\.days to remove.*'dynamic'"):
        write(new)
    with pytest.raises(Exception, match="expected dynamic or static, got 'dynamc'"):
        write(new, partitionOverwriteMode="dynamc")
    write(new, partitionOverwriteMode="dynamic")
    assert rows(config) == [(1, 10), (1, 11), (2, 3)]
    write("select bigint(3) as day, bigint(30) as k", partitionOverwriteMode="static")
    assert rows(config) == [(3, 30)]


def test_a_partition_is_dropped_from_a_program_and_comes_back(config: Path) -> None:
    revisions = spark_tiering.drop_partition("db.days", "1", config=config)
    assert rows(config) == [(2, 3)]
    with opened(config) as store:
        undo(store.context, store.object_disk("s3"), revisions["s3"])
        assert _rows(store) == [(1, 1), (1, 2), (2, 3)]
    with pytest.raises(NotFound, match="no partition '7'"):
        spark_tiering.drop_partition("db.days", "7", config=config)


@pytest.mark.in_turn
def test_threads_of_a_program_replace_partitions_at_once(spark: SparkSession, config: Path) -> None:
    """Each of a day of its own; a thread that Spark did not start has no active session but by `register`."""
    spark_tiering.register(spark)
    frames = [spark.sql(f"select {day}l as day, {10 * day}l as k") for day in (1, 2)]

    def replaced(frame: DataFrame) -> None:
        spark_tiering.register(spark)
        writer = frame.write.format("frostline").mode("overwrite").option("config", str(config))
        writer.option("partitionOverwriteMode", "dynamic").save("db.days")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(replaced, frames))
    assert rows(config) == [(1, 10), (2, 20)]
