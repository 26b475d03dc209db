"""Data frames into tables: all rows of a job once, or none, whatever is repeated, killed or lost (I1, I2)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pytest

import spark_tiering
from disks.garbage.rules import GcRules
from disks.object_disk.commit_checks import MAX_AGE_SECONDS
from oplog.entry import Create
from oplog.errors import NotFound, Refused
from restore.check.check import CheckOptions, check
from spark_tiering.writing.write_job import begin_job, commit_job
from tests.servers import Server
from tests.spark.stores import insert, opened, read, rows_of, write_config
from tests.spark.written import START, batches, counts, logs
from tests.spark.written import config as config
from tiering.engine.store import Store
from tiering.engine.write_job import WriteOptions
from tiering.insert.uploaded.once import OnceAJob
from tiering.insert.uploaded.part_writer import WriteJob, WrittenPart, write_parts
from tiering.merge.request import MergeRequest
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame_of(spark: SparkSession, rows: int, *, days: int = 2, tasks: int = 3) -> DataFrame:
    """Rows over some days, spread over the tasks in no order."""
    spark_tiering.register(spark)
    return spark.range(0, rows, 1, tasks).selectExpr(
        "concat('s', lpad(cast(pmod(id * 7919, 97) as string), 3, '0')) as service",
        f"timestamp_micros({int(START.timestamp() * 1e6)} + pmod(id, {days}) * 86400000000 + id * 1000) as ts",
        "cast(id as decimal(20,0)) as count",
        "if(id % 10 = 0, null, concat('note ', id)) as note",
    )


def write(frame: DataFrame, config: Path, name: str = "db.logs", **options: str) -> None:
    frame.write.format("frostline").mode("append").option("config", str(config)).options(**options).save(name)


def whole(rows: int) -> list[int]:
    return [rows, rows, rows * (rows - 1) // 2]


def objects(store: Store) -> set[str]:
    return {item.key for item in store.object_disk("s3").store.list("r")}


class TestRows:
    @pytest.mark.in_turn
    def test_what_goes_in_comes_out(self, spark: SparkSession, config: Path) -> None:
        frame = frame_of(spark, 5000)
        write(frame, config)
        assert counts(config) == whole(5000)
        assert rows_of(read(spark, config, "db.logs")) == rows_of(frame)

    def test_one_commit_for_the_job_and_a_part_a_task_and_partition(self, spark: SparkSession, config: Path) -> None:
        with opened(config) as store:
            before = store.object_disk("s3").revision or 0
        write(frame_of(spark, 3000, days=2, tasks=3), config)
        with opened(config) as store:
            disk = store.object_disk("s3")
            # One for the range of block numbers, which the first write to a table takes, and one for all parts.
            assert (disk.revision or 0) - before <= 2
            parts = store.parts("db.logs")
            assert {part.disk for part in parts} == {"s3"}
            assert sorted(part.name.partition for part in parts) == ["20260101"] * 3 + ["20260102"] * 3
            assert len({part.part.name for part in parts}) == 6
            for part in parts:
                assert part.part.rows == 500
                keys = [file.row_groups[0].first_key for file in part.part.files]
                assert keys == sorted(keys)

    def test_a_task_of_many_blocks_makes_one_sorted_part_a_partition(
        self, spark: SparkSession, ministack: Server, tmp_path: Path
    ) -> None:
        file = write_config(tmp_path, ministack, hot=False)
        with opened(file) as store:
            store.create_table(logs(insert_block_rows=500, row_group_rows=200))
        write(frame_of(spark, 6000, days=2, tasks=1).repartition(1), file)
        assert counts(file) == whole(6000)
        with opened(file) as store:
            parts = store.parts("db.logs")
            assert len(parts) == 2
            for part in parts:
                (data,) = part.part.files
                keys = [group.first_key for group in data.row_groups]
                assert len(keys) > 10
                assert keys == sorted(keys)
                found = store.disk("s3").read(part.path(data.name))
                rows = pa.parquet.read_table(pa.BufferReader(found))
                ordered = list(zip(rows["service"].to_pylist(), rows["ts"].to_pylist(), strict=True))
                assert ordered == sorted(ordered)

    def test_written_parts_move_merge_and_pass_fsck(self, spark: SparkSession, config: Path) -> None:
        write(frame_of(spark, 2000), config)
        with opened(config) as store:
            insert(store, logs(), {"service": ["z"], "ts": [START], "count": [2000], "note": [None]})
        write(frame_of(spark, 1), config)  # id 0 once more
        with opened(config) as store:
            store.merge("db.logs", MergeRequest(final=True))
            assert check(store.context.disks, CheckOptions(read_data=True)).problems == []
            found = store.query("SELECT count(*) FROM db.logs").read_all()
        assert found.column(0)[0].as_py() == 2002

    def test_every_blob_says_where_the_log_created_it(self, config: Path, ministack: Server) -> None:
        asked = WriteOptions("db.logs", config)
        _, job = begin_job(asked)
        assert job is not None
        commit_job(asked, job, write_parts(batches(10), job, 0, 0))
        with opened(config) as store:
            disk = store.object_disk("s3")
            commit = disk.log.read(disk.revision or 0).commit
            created = {item.key: item.path for item in commit.operations if isinstance(item, Create) and item.key}
            assert created
            for key, path in created.items():
                assert unquote(disk.store.head(key).metadata["path"]) == path
            (part,) = store.parts("db.logs")
            assert disk.stat(part.path("data-0000.parquet")).key in created

    def test_two_appends_of_the_same_rows_are_two(self, spark: SparkSession, config: Path) -> None:
        for _ in range(2):
            write(frame_of(spark, 100), config)
        assert counts(config)[0] == 200

    def test_no_secret_reaches_plans(self, spark: SparkSession, config: Path, ministack: Server) -> None:
        write(frame_of(spark, 10), config)
        executions = spark._jsparkSession.sharedState().statusStore().executionsList()
        shown = []
        for number in range(executions.size()):
            execution = executions.apply(number)
            shown += [execution.physicalPlanDescription(), execution.description(), execution.details()]
        assert any("frostline" in text.lower() or "PythonBatchWrite" in text for text in shown)
        assert not [text for text in shown if ministack.secret_access_key in text]

    def test_an_empty_frame_commits_nothing(self, spark: SparkSession, config: Path) -> None:
        with opened(config) as store:
            before = store.object_disk("s3").revision
        write(frame_of(spark, 100).where("1 = 0"), config)
        with opened(config) as store:
            assert store.object_disk("s3").revision == before


class TestOnce:
    def test_a_job_id_goes_in_once(self, spark: SparkSession, config: Path) -> None:
        write(frame_of(spark, 300), config, job_id="2026-01-01/load")
        with opened(config) as store:
            before = store.object_disk("s3").revision, objects(store)
        write(frame_of(spark, 300), config, job_id="2026-01-01/load")
        with opened(config) as store:
            assert (store.object_disk("s3").revision, objects(store)) == before
        assert counts(config) == whole(300)
        write(frame_of(spark, 300), config, job_id="2026-01-02/load")
        assert counts(config)[0] == 600

    def test_two_runs_of_a_job_at_once_commit_one(self, config: Path) -> None:
        asked = WriteOptions("db.logs", config, OnceAJob("load"))
        (_, one), (_, other) = begin_job(asked), begin_job(asked)
        assert one is not None
        assert other is not None
        parts = [write_parts(batches(100), job, 0, 0) for job in (one, other)]
        first = commit_job(asked, one, parts[0])
        second = commit_job(asked, other, parts[1])
        assert (first.rows, first.done_before) == (100, False)
        assert (second.rows, second.done_before) == (0, True)
        assert counts(config) == whole(100)

    def test_parts_of_several_tasks_have_names_of_their_own(self, config: Path) -> None:
        asked = WriteOptions("db.logs", config)
        _, job = begin_job(asked)
        assert job is not None
        parts = [part for task in range(3) for part in write_parts(batches(50), job, task, 0)]
        assert len(set(commit_job(asked, job, parts).parts)) == 3
        assert counts(config)[0] == 150

    def test_a_driver_that_dies_before_its_commit_leaves_garbage(self, config: Path) -> None:
        asked = WriteOptions("db.logs", config, OnceAJob("load"))
        _, job = begin_job(asked)
        assert job is not None
        with opened(config) as store:
            before = objects(store)
        write_parts(batches(100), job, 0, 0)  # … and the driver is gone
        with opened(config) as store:
            left = objects(store) - before
            assert left
            guard = timedelta(0)
            report = store.gc("s3", GcRules(guard=guard, delete=True, max_delete_fraction=1.0, allow_short_guard=True))
            assert report.refused is None
        _, again = begin_job(asked)
        assert again is not None
        assert commit_job(asked, again, write_parts(batches(100), again, 0, 0)).rows == 100
        assert counts(config) == whole(100)
        with opened(config) as store:
            store.gc("s3", GcRules(guard=guard, delete=True, max_delete_fraction=1.0, allow_short_guard=True))
            assert not left & objects(store)
        assert counts(config) == whole(100)

    def test_uploads_that_gc_may_have_taken_are_not_committed(self, config: Path) -> None:
        asked = WriteOptions("db.logs", config)
        _, job = begin_job(asked)
        assert job is not None
        parts = write_parts(batches(10), job, 0, 0)
        late = WriteJob(job.store, job.disk, job.definition, job.token, job.revision, time.time() - MAX_AGE_SECONDS - 9)
        with pytest.raises(Refused, match="gc may have removed"):
            commit_job(asked, late, parts)
        job.store.open().delete([parts[0].files[0].key])
        with pytest.raises(Refused, match="is gone"):
            commit_job(asked, job, parts)
        assert counts(config)[0] == 0

    def test_a_table_that_was_dropped_meanwhile_gets_no_part(self, config: Path) -> None:
        asked = WriteOptions("db.logs", config)
        _, job = begin_job(asked)
        assert job is not None
        parts = write_parts(batches(10), job, 0, 0)
        with opened(config) as store:
            store.drop_table("db.logs")
        with pytest.raises(NotFound, match="dropped while it was written"):
            commit_job(asked, job, parts)

    def test_a_merge_between_upload_and_commit_covers_no_new_part(self, config: Path) -> None:
        """The numbers are taken at the commit: else a part merged meanwhile could cover them, and the rows be lost."""
        asked = WriteOptions("db.logs", config)
        with opened(config) as store:
            insert(store, logs(), next(rows_as_dict(100, 50)))
        _, job = begin_job(asked)
        assert job is not None
        parts = write_parts(batches(50), job, 0, 0)
        with opened(config) as store:
            insert(store, logs(), next(rows_as_dict(150, 50)))
            store.merge("db.logs", MergeRequest(final=True))
        assert commit_job(asked, job, parts).rows == 50
        assert counts(config)[0] == 150


def rows_as_dict(start: int, rows: int) -> Iterator[dict[str, list[Any]]]:
    numbers = range(start, start + rows)
    yield {
        "service": [f"s{number % 7}" for number in numbers],
        "ts": [START + timedelta(seconds=number) for number in numbers],
        "count": list(numbers),
        "note": [None] * rows,
    }


class TestFailures:
    @pytest.mark.in_turn
    def test_a_task_that_dies_midway_is_repeated_without_a_trace(
        self, spark: SparkSession, config: Path, tmp_path: Path
    ) -> None:
        flag = str(tmp_path / "died")

        def die_once(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(found):
                yield batch
                if number == 2 and not os.path.exists(flag):
                    open(flag, "w").close()
                    os._exit(9)

        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        try:
            frame = frame_of(spark, 2000, tasks=2)
            write(frame.mapInArrow(die_once, frame.schema), config)
        finally:
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        assert os.path.exists(flag)
        assert counts(config) == whole(2000)

    def test_both_attempts_of_a_task_write_and_one_counts(self, config: Path) -> None:
        """As under speculation: each attempt uploads under keys of its own, and Spark commits the messages of one."""
        asked = WriteOptions("db.logs", config)
        _, job = begin_job(asked)
        assert job is not None
        first, second = (write_parts(batches(100), job, 0, attempt) for attempt in (0, 1))
        assert not {item.key for part in first for item in part.files} & _keys(second)
        assert commit_job(asked, job, second).rows == 100
        assert counts(config) == whole(100)

    def test_a_job_that_fails_commits_nothing(self, spark: SparkSession, config: Path) -> None:
        frame = frame_of(spark, 1000, tasks=2).selectExpr(
            "service", "ts", "if(count = 999, cast(-1 as decimal(20,0)), count) as count", "note"
        )
        with pytest.raises(Exception, match=r"column count.*-1"):
            write(frame, config)
        assert counts(config)[0] == 0

    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("change", "options", "message"),
        [
            ({"drop": "service"}, {}, "service"),
            ({"rename": ("note", "nope")}, {}, "nope"),
            ({}, {"jobid": "x"}, "no such option: jobid.*did you mean 'job_id'"),
        ],
    )
    def test_mistakes_are_named_before_anything_runs(
        self, spark: SparkSession, config: Path, change: dict[str, Any], options: dict[str, str], message: str
    ) -> None:
        frame = frame_of(spark, 10)
        if "rename" in change:
            frame = frame.withColumnRenamed(*change["rename"])
        if "drop" in change:
            frame = frame.drop("service")
            with opened(config) as store:
                store.drop_table("db.logs")
                strict = logs()
                columns = tuple(
                    type(column)(column.id, column.name, column.type, nullable=column.name != "service")
                    for column in strict.columns
                )
                raw = {name: getattr(strict, name) for name in strict.__struct_fields__}
                store.create_table(TableDefinition(**{**raw, "uuid": str(uuid4()), "columns": columns}))
        with pytest.raises(Exception, match=message) as caught:
            write(frame, config, **options)
        assert "Traceback" not in str(caught.value)

    @pytest.mark.in_turn
    def test_tables_without_a_bucket_are_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        frame = frame_of(spark, 10)
        home = tmp_path / "local"
        home.mkdir()
        local = home / "frostline.yaml"
        local.write_text(
            f"state_path: {home}/state\ndisks: {{ssd: {{type: local, path: {home}/ssd}}}}\n"
            "policies: {tiers: {volumes: [{name: hot, disks: [ssd]}]}}\n"
        )
        with opened(local) as store:
            store.create_table(logs())
        with pytest.raises(Exception, match=r"policy tiers has no bucket.*frostline insert"):
            write(frame, local)


def _keys(parts: list[WrittenPart]) -> set[str]:
    return {item.key for part in parts for item in part.files}
