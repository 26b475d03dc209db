"""Streams into tables: each batch goes in once, whatever is repeated, late or made anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

import spark_tiering
from oplog.errors import Locked, NotFound, Refused, UsageError
from spark_tiering.changes.planning import plan_changes
from spark_tiering.reading.read_options import read_options
from spark_tiering.reading.scan_planning import Piece
from spark_tiering.writing.gathering import SMALL_PARTS
from spark_tiering.writing.stream_options import stream_options
from spark_tiering.writing.write_job import begin_job, close_kept, commit_job
from tests.spark.stores import insert, opened, table
from tests.spark.written import batches, counts
from tests.spark.written import config as config
from tiering.engine.store import Store
from tiering.engine.write_job import WriteOptions, WriteResult
from tiering.insert.uploaded.once import OnceABatch
from tiering.insert.uploaded.part_writer import WriteJob, write_parts
from tiering.merge.request import MergeRequest
from tiering.table.part import RowGroup
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def _stream(config: Path, query: str = "first", *, takes_new: bool = False) -> WriteOptions:
    return WriteOptions("db.logs", config, OnceABatch("clicks", query, takes_new=takes_new))


def _begun(asked: WriteOptions) -> WriteJob:
    _, job = begin_job(asked)
    assert job is not None
    return job


def _commit(asked: WriteOptions, batch: int, rows: int, job: WriteJob | None = None) -> WriteResult:
    job = job or _begun(asked)
    assert isinstance(asked.once, OnceABatch)
    return commit_job(replace(asked, once=asked.once.of(batch)), job, write_parts(batches(rows), job, 0, 0))


def test_a_batch_that_comes_again_goes_in_once(config: Path) -> None:
    asked = _stream(config)
    assert [_commit(asked, batch, 10).rows for batch in (0, 1, 5)] == [10, 10, 10]  # Spark skips what holds no rows
    with opened(config) as store:
        before = store.object_disk("s3").revision
    assert [_commit(asked, batch, 10).done_before for batch in (5, 1, 0)] == [True] * 3
    with opened(config) as store:
        assert store.object_disk("s3").revision == before
        names = store.object_disk("s3").list(store.definition("db.logs").directory)
    assert len([name for name in names if name.startswith("stream-")]) == 2  # not one a batch
    assert counts(config)[0] == 30


@pytest.mark.in_turn
def test_small_batches_are_gathered_and_none_is_lost(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(_stream(config), gathers=SMALL_PARTS)
    with opened(config) as store:
        before = store.object_disk("s3").revision or 0
    parts = []
    for batch in range(60):
        assert _commit(asked, batch, 10).rows == 10
        with opened(config) as store:
            parts.append(len(store.parts("db.logs")))
    assert max(parts) <= 12
    assert counts(config)[0] == 600
    assert _commit(asked, 59, 10).done_before
    options = read_options({"path": "db.logs", "config": str(config), "changes_since": str(before)})
    assert sum(group.rows for share in plan_changes(options).shares for one in share for group in _groups(one)) == 600
    # What fails is tried again after the next batch.
    with monkeypatch.context() as patch:
        patch.setattr(Store, "merge_cold", _locked)
        for batch in range(60, 66):
            assert _commit(asked, batch, 10).rows == 10
    with opened(config) as store:
        left = len(store.parts("db.logs"))
    assert _commit(asked, 66, 10).rows == 10
    with opened(config) as store:
        assert len(store.parts("db.logs")) < left
    assert counts(config)[0] == 670


def test_the_store_of_a_stream_stays_open_and_sees_other_commits(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close_kept()
    asked, opens = _stream(config), []
    original = Store.open

    def counted(*arguments: Any, **options: Any) -> Store:
        opens.append(options["actor"])
        return original(*arguments, **options)

    monkeypatch.setattr(Store, "open", counted)
    assert [_commit(asked, batch, 10).rows for batch in range(3)] == [10, 10, 10]
    assert opens == ["spark"]
    with original(config) as store:
        merged = store.merge("db.logs", MergeRequest(final=True))
        old = store.definition("db.logs")
        later = TableDefinition(**{**{name: getattr(old, name) for name in old.__struct_fields__}, "version": 2})
        store.alter_table(old, later)
    assert merged
    assert _begun(asked).definition.version == 2
    assert _commit(asked, 3, 10).rows == 10
    job = _begun(asked)
    with original(config) as store:
        store.drop_table("db.logs")
    with pytest.raises(NotFound, match="was dropped"):
        _commit(asked, 4, 10, job)
    with pytest.raises(NotFound):  # an error closed it: what was kept may be to blame
        _begun(asked)
    assert opens == ["spark"] * 2


def _locked(*arguments: object) -> None:
    raise Locked("somebody is at it")


def _groups(piece: Piece) -> tuple[RowGroup, ...]:
    assert piece.file is not None
    return piece.file.row_groups


@pytest.mark.parametrize("before", [(), (0,)])
def test_two_drivers_with_one_batch_commit_one(config: Path, before: tuple[int, ...]) -> None:
    asked = _stream(config)
    for batch in before:
        _commit(asked, batch, 10)
    one, other = _begun(asked), _begun(asked)
    assert _commit(asked, 1, 10, one).rows == 10
    assert _commit(asked, 1, 10, other).done_before
    assert counts(config)[0] == 10 * len(before) + 10


@pytest.mark.parametrize("before", [(), (0,)])
def test_a_driver_that_comes_late_adds_nothing(
    config: Path, before: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked before others committed its batch and the next one."""
    asked = _stream(config)
    for batch in before:
        _commit(asked, batch, 10)
    late = _begun(asked)
    original, calls = OnceABatch.mark, []

    def mark(self: OnceABatch, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        calls.append(self.batch)
        if calls == [1]:
            assert [_commit(asked, batch, 10).rows for batch in (1, 2)] == [10, 10]

    monkeypatch.setattr(OnceABatch, "mark", mark)
    assert _commit(asked, 1, 10, late).done_before
    assert calls == [1, 1, 2]
    assert counts(config)[0] == 10 * len(before) + 20


def test_a_checkpoint_that_was_made_anew_is_refused_unless_told(config: Path) -> None:
    _commit(_stream(config), 0, 10)
    _commit(_stream(config), 1, 10)
    with pytest.raises(Refused, match=r"stream clicks .* db\.logs with another checkpoint"):
        begin_job(_stream(config, "second"))
    accepting = _stream(config, "second", takes_new=True)
    assert [_commit(accepting, batch, 10).rows for batch in (0, 1)] == [10, 10]
    assert _commit(_stream(config, "second"), 1, 10).done_before
    with pytest.raises(Refused, match="another checkpoint"):
        begin_job(_stream(config, "first"))
    # Two streams know nothing of each other.
    other = replace(_stream(config), once=OnceABatch("other", "first"))
    assert _commit(other, 0, 10).rows == 10
    assert counts(config)[0] == 50


def test_the_stream_is_known_by_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "check point"
    given = {"path": "db.t", "checkpointLocation": str(checkpoint), "queryName": "q"}
    with pytest.raises(UsageError, match="id of the stream"):
        stream_options(given)
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "abc"}))
    assert stream_options(given).once == OnceABatch(str(checkpoint), "abc")
    url = checkpoint.as_uri()
    assert stream_options({**given, "checkpointLocation": url}).once == OnceABatch(url, "abc")
    named = {
        "path": "db.t",
        "stream": "s",
        "query_id": "7",
        "new_checkpoint": "accept",
        "checkpointLocation": "s3a://x",
    }
    assert stream_options(named).once == OnceABatch("s", "7", takes_new=True)
    for wrong, message in (
        ({"path": "db.t"}, "a stream without its own checkpoint"),
        ({**named, "job_id": "x"}, "counts its batches by itself"),
        ({**named, "new_checkpoint": "yes"}, "expected accept or refuse"),
        ({**named, "gather": "1"}, "option gather: not a number of parts"),
        ({**named, "colums": "x"}, "no such option: colums"),
    ):
        with pytest.raises(UsageError, match=message):
            stream_options(wrong)


@pytest.mark.in_turn
def test_a_stream_of_spark_goes_in_once_through_restarts(spark: SparkSession, config: Path, tmp_path: Path) -> None:
    spark_tiering.register(spark)
    (tmp_path / "in").mkdir()

    def arrive(number: int) -> None:
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"k": number}) + "\n")

    def run() -> None:
        query: StreamingQuery = (
            spark.readStream.schema("k bigint")
            .option("maxFilesPerTrigger", "1")
            .json(str(tmp_path / "in"))
            .writeStream.format("frostline")
            .option("config", str(config))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start("db.numbers")
        )
        query.awaitTermination()

    def numbers() -> list[int]:
        with opened(config) as store:
            return sorted(store.query("SELECT k FROM db.numbers").read_all().column(0).to_pylist())

    definition = table("db.numbers", {"k": "int64"}, ["k"])
    with opened(config) as store:
        store.create_table(definition)
        insert(store, definition, {"k": [-1]})
    for number in range(2):
        arrive(number)
    run()
    assert numbers() == [-1, 0, 1]
    # The driver died after the commit of the table, and before that of the checkpoint.
    for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        file.unlink()
    for file in (tmp_path / "checkpoint" / "commits").glob(".1*"):
        file.unlink()
    arrive(2)
    run()
    assert numbers() == [-1, 0, 1, 2]
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(Exception, match="another checkpoint"):
        run()
    assert numbers() == [-1, 0, 1, 2]
