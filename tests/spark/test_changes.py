"""Rows that came since a revision: each once, in the order of the commits, whatever was merged or moved since (I1)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from disks.garbage.rules import GcRules
from oplog.errors import FrostlineError, Refused, UsageError
from restore.history.partitions import attach, detach, drop
from restore.history.undo import undo
from spark_tiering.changes.planning import Until, check_changes, latest, plan_batch, plan_changes
from spark_tiering.datasource import FrostlineSource
from spark_tiering.reading.read_options import read_options
from spark_tiering.table_reader import FrostlineReader, shares_of
from spark_tiering.writing.write_job import begin_job, commit_job
from tests.servers import Server
from tests.spark.stores import insert, opened, read, table, to_bucket, write_config
from tiering.engine.store import Store
from tiering.engine.write_job import WriteOptions
from tiering.insert.uploaded.part_writer import write_parts
from tiering.merge.request import MergeRequest
from tiering.table.schema import PartitionField, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = table("db.days", {"day": "int64", "k": "int64"}, ["k"], PartitionField("identity", "day"))
OTHER = table("db.other", {"k": "int64"}, ["k"])
SCHEMA = StructType([StructField("k", LongType())])


@pytest.fixture
def config(ministack: Server, tmp_path: Path) -> Path:
    """Row 0 is in, and revision `head` says so."""
    return _made(ministack, tmp_path, hot=False)


@pytest.fixture
def tiered(ministack: Server, tmp_path: Path) -> Path:
    """The same, behind an SSD, to which inserts go."""
    return _made(ministack, tmp_path, hot=True)


def _made(ministack: Server, home: Path, *, hot: bool) -> Path:
    file = write_config(home, ministack, hot=hot)
    with opened(file) as store:
        store.create_table(DAYS)
        store.create_table(OTHER)
        came(store, 0)
        to_bucket(store, "db.days")
    return file


def came(store: Store, *keys: int, day: int = 1, definition: TableDefinition = DAYS) -> None:
    rows = {"day": [day] * len(keys), "k": keys} if definition is DAYS else {"k": keys}
    insert(store, definition, rows)


def head(config: Path) -> int:
    with opened(config) as store:
        return store.object_disk("s3").revision or 0


def since(config: Path, begin: int, **options: str) -> list[int]:
    """The keys of the rows that came after the revision, in the order in which they are read."""
    asked = read_options({"path": "db.days", "config": str(config), "changes_since": str(begin), **options})
    reader = FrostlineReader(asked, check_changes(asked), SCHEMA)
    return [key for share in reader.partitions() for batch in reader.read(share) for key in batch["k"].to_pylist()]


def test_rows_come_in_the_order_of_commits_also_when_merged(config: Path) -> None:
    begin = head(config)
    with opened(config) as store:
        came(store, 5, 9)
        came(store, 2, day=2)
        middle = store.object_disk("s3").revision or 0
        came(store, 1)
        came(store, 7, definition=OTHER)
        store.merge("db.days", MergeRequest(final=True))
        came(store, 3)
        store.merge("db.days", MergeRequest(final=True))
    assert since(config, begin) == [5, 9, 2, 1, 3]
    assert since(config, middle) == [1, 3]
    assert since(config, begin, revision=str(middle)) == [5, 9, 2]
    assert since(config, head(config)) == []
    assert since(config, begin, filter="k > 2") == [5, 9, 3]
    assert sorted(since(config, 0)) == [0, 1, 2, 3, 5, 9]


def test_what_spark_wrote_comes_and_twice_if_written_twice(config: Path) -> None:
    begin = head(config)
    asked = WriteOptions("db.days", config)
    for _ in range(2):
        _, job = begin_job(asked)
        assert job is not None
        commit_job(asked, job, write_parts([pa.record_batch({"day": [1, 2], "k": [4, 5]})], job, 0, 0))
    assert sorted(since(config, begin)) == [4, 4, 5, 5]


def test_what_was_inserted_on_an_ssd_comes_once_from_the_bucket(tiered: Path) -> None:
    begin = head(tiered)
    with opened(tiered) as store:
        came(store, 5)
        came(store, 2)
    assert since(tiered, begin) == []
    with opened(tiered) as store:
        store.merge("db.days", MergeRequest(final=True))  # on the SSD
        to_bucket(store, "db.days")
        came(store, 3)
        came(store, 8, day=2)
        to_bucket(store, "db.days")
    assert sorted(since(tiered, begin)) == [2, 3, 5, 8]
    with opened(tiered) as store:  # away and back again
        store.apply(store.plan_manual_move("db.days", partition="2", to_disk="ssd"))
        to_bucket(store, "db.days")
    assert sorted(since(tiered, begin)) == [2, 3, 5, 8]
    with opened(tiered) as store:  # away, and back as a part of another name, which also holds new rows
        came(store, 9, day=2)
        store.apply(store.plan_manual_move("db.days", partition="2", to_disk="ssd"))
        store.merge("db.days", MergeRequest(final=True))
        to_bucket(store, "db.days")
    with pytest.raises(Refused, match=r"may hold rows of 2_\d+_\d+_0"):
        since(tiered, begin)


def _dropped(store: Store) -> None:
    drop(store.context, DAYS, "1")


def _undone(store: Store) -> None:
    disk = store.object_disk("s3")
    undo(store.context, disk, disk.revision or 0)


def _aside(store: Store) -> None:
    detach(store.context, DAYS, "1")


def _aside_and_back(store: Store) -> None:
    _aside(store)
    attach(store.context, DAYS, "1")


@pytest.mark.parametrize(
    ("delete", "text"),
    [
        (_dropped, "was dropped by revision"),
        (_undone, r"was taken out \(undo of revision \d+\) by revision"),
        (_aside, r"was removed \(set_aside\) by revision"),
        (_aside_and_back, r"was removed \(set_aside\) by revision"),
    ],
)
def test_rows_that_went_are_an_error_unless_they_are_skipped(
    config: Path, delete: Callable[[Store], None], text: str
) -> None:
    begin = head(config)
    with opened(config) as store:
        came(store, 5)
        delete(store)
        came(store, 6)
    with pytest.raises(Refused, match=text):
        since(config, begin)
    assert since(config, begin, deletes="skip") == [5, 6]


def test_a_merge_that_is_undone_changes_nothing(config: Path) -> None:
    begin = head(config)
    with opened(config) as store:
        came(store, 5)
        store.merge("db.days", MergeRequest(final=True))
        _undone(store)
    assert since(config, begin) == [5]


def test_a_log_cut_off_and_collected_objects_are_reported(ministack: Server, tmp_path: Path) -> None:
    file = write_config(tmp_path, ministack, hot=False, retention_seconds=0)
    with opened(file) as store:
        store.create_table(DAYS)
        came(store, 0)
    begin = head(file)
    with opened(file) as store:
        came(store, 5)
        came(store, 6)
        store.merge("db.days", MergeRequest(final=True))
        rules = GcRules(guard=timedelta(0), delete=True, max_delete_fraction=1.0, allow_short_guard=True)
        assert store.gc("s3", rules).refused is None
    with pytest.raises(FrostlineError, match=r"2 files .* were collected"):
        since(file, begin)
    with opened(file) as store:
        for key in (7, 8):
            store.object_disk("s3").write_snapshot()
            came(store, key)
        assert store.gc("s3", rules).refused is None
    with pytest.raises(Refused, match=r"after revision 1 .* disk s3 is kept"):
        since(file, 1)


def test_mistakes_are_named(config: Path) -> None:
    for options, text in (
        ({"changes_since": "-1"}, "option changes_since: not a revision"),
        ({"deletes": "ignore"}, "option deletes: expected refuse or skip"),
        ({"maxRevisionsPerTrigger": "0"}, "option maxrevisionspertrigger: not a number of commits"),
    ):
        with pytest.raises(UsageError, match=text):
            read_options({"path": "db.days", **options})
    with pytest.raises(Refused, match=r"db\.days cannot have changes after 99999"):
        since(config, 99999)


def test_a_stream_is_told_of_its_filter_by_load(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks for the schema there, and plans when the stream has begun."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # is set by an error, and is no other test's
    for text, message in (("nope = 1", "nope"), ("key =", "no expression of SQL")):
        asked = {"path": "db.days", "config": str(config), "changes_since": "0", "filter": text}
        with pytest.raises(FrostlineError, match=message):
            FrostlineSource(asked).schema()


def test_batches_have_so_many_commits_and_are_the_same_again(config: Path) -> None:
    """Batches of a stream."""
    begin = head(config)
    with opened(config) as store:
        for key in (5, 6, 7):
            came(store, key)
            came(store, key, definition=OTHER)
    asked = read_options({"path": "db.days", "config": str(config), "changes_since": str(begin)})
    first = latest(asked, None, 2, None)
    assert _batch(config, begin, first) == [5, 6]
    with opened(config) as store:
        store.merge("db.days", MergeRequest(final=True))
    assert _batch(config, begin, first) == [5, 6]
    second = latest(asked, first, 2, None)
    assert _batch(config, first.revision, second) == [7]
    assert latest(asked, second, 2, None) == second
    with opened(config) as store:
        came(store, 8, definition=OTHER)
    assert latest(asked, second, None, None) == second  # no batch for what is not of this table
    with pytest.raises(Refused, match="this stream began with"):
        plan_batch(asked, Until("another", head(config)))


def _batch(config: Path, begin: int, until: Until) -> list[int]:
    asked = read_options({"path": "db.days", "config": str(config), "changes_since": str(begin)})
    reader = FrostlineReader(asked, check_changes(asked), SCHEMA)
    shares = shares_of(plan_batch(asked, until))
    return [key for share in shares for batch in reader.read(share) for key in batch["k"].to_pylist()]


def test_only_what_came_is_read(config: Path) -> None:
    begin = head(config)
    with opened(config) as store:
        came(store, 5)
    asked = read_options({"path": "db.days", "config": str(config), "changes_since": str(begin)})
    (share,) = plan_changes(asked).shares
    assert len(share) == 1


@pytest.mark.in_turn
def test_spark_reads_changes_and_streams_them_between_tables(spark: SparkSession, config: Path, tmp_path: Path) -> None:
    begin = head(config)
    with opened(config) as store:
        for key in (5, 6, 7):
            came(store, key)
    frame = read(spark, config, "db.days", changes_since=begin)
    assert [row["k"] for row in frame.collect()] == [5, 6, 7]

    def run(checkpoint: str = "checkpoint") -> list[dict[str, Any]]:
        stream = (
            spark.readStream.format("frostline")
            .option("config", str(config))
            .option("changes_since", str(begin))
            .option("maxRevisionsPerTrigger", "2")
            .load("db.days")
        )
        query = (
            stream.select("k")
            .writeStream.format("frostline")
            .option("config", str(config))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start("db.other")
        )
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    assert [progress["numInputRows"] for progress in run()] == [2, 1]
    assert _keys(config) == [5, 6, 7]
    assert run() == []
    with opened(config) as store:
        came(store, 8)
        store.merge("db.days", MergeRequest(final=True))
    # The driver died after the commit of the table, and before that of the checkpoint.
    for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        file.unlink()
    assert sum(progress["numInputRows"] for progress in run()) >= 1
    assert _keys(config) == [5, 6, 7, 8]
    shutil.rmtree(tmp_path / "checkpoint")
    with opened(config) as store:
        drop(store.context, DAYS, "1")
    with pytest.raises(Exception, match="was dropped by revision"):
        run("another")
    with pytest.raises(Exception, match=r"db\.days cannot have changes after 99999") as caught:
        spark.readStream.format("frostline").option("config", str(config)).option("changes_since", "99999").load(
            "db.days"
        )
    assert "Traceback" not in str(caught.value)


def _keys(config: Path) -> list[int]:
    with opened(config) as store:
        return sorted(store.query("SELECT k FROM db.other").read_all().column(0).to_pylist())
