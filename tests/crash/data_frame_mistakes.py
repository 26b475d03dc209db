"""Seeded mistakes in what Spark reads and writes: of what is kept for readers, of what is pruned, and of the commit."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

_READER = "tests/spark/test_reader.py"
_NATIVE = "tests/spark/test_native.py"
_QUERIES = "tests/spark/test_queries.py"
_STREAMS = "tests/spark/test_stream_writer.py"
_WRITER = "tests/spark/test_writer.py::TestOnce"
_CHANGES = "tests/spark/test_changes.py"
_REPLACE = "tests/spark/test_replace.py"
_INGEST = "tests/spark/test_ingest.py"
_INGEST_FILES = "tests/spark/test_ingest_files.py"
_SHARES = "tests/unit/spark_tiering/test_file_shares.py"
_FORMATS = "tests/unit/spark_tiering/test_format_options.py"
_TYPES = "tests/unit/spark_tiering/test_arrow_types.py"
_CATALOGUE = "tests/spark/test_catalogue.py"


def _job_marks_differ() -> None:
    from tiering.insert.uploaded.once import OnceAJob

    OnceAJob._path = lambda self, definition: f"{definition.directory}/job-{secrets.token_hex(16)}.json"  # type: ignore[method-assign]


def _fields_not_compared() -> None:
    from spark_tiering import arrow_types

    arrow_types._unknown_within = lambda asked, kind, path: iter(())


def _batch_ids_reused() -> None:
    from tiering.insert.uploaded.once import OnceABatch

    OnceABatch.is_done = lambda self, disk, definition: False  # type: ignore[method-assign]


def _noted_after_its_rows() -> None:
    from datetime import UTC, datetime

    from oplog.kinds import OtherKind
    from tiering.engine import write_job
    from tiering.insert.uploaded.once import OnceABatch

    commit, mark = write_job.commit, OnceABatch.mark

    def commits(context: Any, options: Any, job: Any, parts: Any) -> Any:
        OnceABatch.mark = lambda *arguments: None  # type: ignore[method-assign]
        result = commit(context, options, job, parts)
        if not result.done_before:
            disk = context.disk(result.disk)
            with disk.transaction(OtherKind("test")) as transaction:
                mark(options.once, transaction, disk, job.definition, result.rows, datetime.now(UTC))
                transaction.commit()
        return result

    write_job.commit = commits


def _uploads_without_age() -> None:
    from disks.object_disk.transaction import ObjectTransaction

    original = ObjectTransaction.uploaded

    def uploaded(self: Any, *arguments: Any, since: float | None = None) -> None:
        original(self, *arguments)

    ObjectTransaction.uploaded = uploaded  # type: ignore[method-assign]


def _same_number_for_all() -> None:
    from tiering.engine import write_job

    write_job.Counter = lambda: _Zeros()  # type: ignore[assignment,misc]


class _Zeros(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        return 0


def _catalogued_options_forgotten() -> None:
    from spark_tiering.reading import read_options

    original = read_options.options_of_format

    def forgetful(given: Any, table: str, config: str) -> dict[str, str]:
        return original({name: value for name, value in given.items() if name != "provider"}, table, config)

    read_options.options_of_format = forgetful


def _kept_store_of_before() -> None:
    from spark_tiering.writing import write_job

    write_job._look_again = lambda store, *, recover: None


def _registered_elsewhere() -> None:
    from contextlib import nullcontext

    from spark_tiering import datasource

    datasource._active = lambda session: nullcontext()  # type: ignore[assignment]


def _filter_unread() -> None:
    from spark_tiering import datasource
    from spark_tiering.arrow_types import spark_schema

    def schema(source: Any) -> Any:
        return spark_schema(source._table(source._asked()).columns)

    datasource.FrostlineSource.schema = schema  # type: ignore[method-assign]


def _directories_dear() -> None:
    from spark_tiering.reading import scan_planning

    scan_planning.LOCAL_OPEN_COST_BYTES = scan_planning.OPEN_COST_BYTES


def _replaced_without_precondition() -> None:
    from disks.object_disk.transaction import ObjectTransaction

    ObjectTransaction.made_from = lambda self, revision, within=None: None  # type: ignore[method-assign]


def _newcomers_replaced() -> None:
    from tiering.insert.uploaded import replaced

    replaced.newcomer = lambda disk, directory, since: ""


def _merges_hide_newcomers() -> None:
    from tiering.insert.uploaded import replaced

    original = replaced.newcomer

    def newcomer(disk: Any, directory: str, since: int) -> str:
        level = directory.rpartition("_")[2]
        return "" if int(level) else original(disk, directory, since)

    replaced.newcomer = newcomer


def _change_lost_at_a_merge() -> None:
    """Only parts that are still there are read."""
    from spark_tiering.changes import planning

    original = planning.arrivals

    def arrivals(disk: Any, definition: Any, *more: Any, **named: Any) -> Any:
        found = original(disk, definition, *more, **named)
        return (one for one in found if disk.exists(definition.part_directory(one.part.name)))

    planning.arrivals = arrivals


def _moves_bring_rows() -> None:
    from spark_tiering.changes import added_commits

    added_commits._is_new = lambda disk, commit, directory: True


def _no_pin() -> None:
    from spark_tiering.reading import scan_planning

    scan_planning._pin = lambda *arguments: None


def _another_bucket_read() -> None:
    from spark_tiering.queries import native

    native.check_reach = lambda session, pieces: None


def _files_passed_over() -> None:
    from spark_tiering.writing import ingest

    ingest._check_seen = lambda rows, files: None


def _not_compared_after_reading() -> None:
    from collections.abc import Iterator
    from contextlib import contextmanager

    from spark_tiering.writing import file_shares

    @contextmanager
    def as_listed(file: Any, source: Any) -> Iterator[None]:
        file_shares._check_listed(file, source)
        yield

    file_shares._as_listed = as_listed


def _edges_read_twice() -> None:
    """By everybody who has some of a row group."""
    from tiering.insert.inputs.source_files import SourceSpan

    def within(self: Any, rows: Any) -> range:
        ends = [sum(rows[: number + 1]) * self.of_bytes // max(sum(rows), 1) for number in range(len(rows))]
        begins = [0, *ends]
        chosen = [number for number, end in enumerate(ends) if begins[number] < self.end and end > self.begin]
        return range(chosen[0], chosen[-1] + 1) if chosen else range(0)

    SourceSpan.within = within  # type: ignore[method-assign]


def _mixing_not_seen() -> None:
    from spark_tiering.writing import ingest

    ingest.are_mixed = lambda shares, reshaping: False


def _nothing_held() -> None:
    from disks.local import disk as local

    def hold_files(own: Path, files: list[Path], **more: Any) -> list[Path]:
        return files

    local.hold_files = hold_files  # type: ignore[assignment]


def _row_group_ends_where_it_begins() -> None:
    from spark_tiering.reading import scan_planning
    from tiering.table.part import ColumnRange

    original = scan_planning._key_range

    def key_range(*arguments: Any) -> dict[str, ColumnRange]:
        return {name: ColumnRange(known.min, known.min) for name, known in original(*arguments).items()}

    scan_planning._key_range = key_range


def _bytes_not_compared() -> None:
    from spark_tiering.reading import reader
    from spark_tiering.reading.blob_file import whole_file as original

    def whole_file(store: Any, key: str, sha256: str, label: str) -> Any:
        return original(store, key, hashlib.sha256(store.get(key)).hexdigest(), label)

    reader.whole_file = whole_file


def _nulls_taken_for_values() -> None:
    import msgspec

    from spark_tiering.reading import reader

    original = reader._as_defined

    def as_defined(batch: Any, names: dict[int, str], wanted: Any) -> Any:
        loose = [msgspec.structs.replace(column, nullable=True) for column in wanted.definition.columns]
        definition = msgspec.structs.replace(wanted.definition, columns=tuple(loose))
        return original(batch, names, msgspec.structs.replace(wanted, definition=definition))

    reader._as_defined = as_defined


def _whole_directory_read_natively() -> None:
    """What Spark would read of the directories themselves."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    import msgspec

    from spark_tiering.queries import native

    original = native._frame_of

    def frame_of(session: Any, definition: Any, group: Any) -> Any:
        known = dict(group.files)
        for path in list(known):
            where = Path(url2pathname(urlsplit(path).path))
            root = next(parent for parent in where.parents if parent.name in ("bucket", "ssd"))
            also = [file for file in root.rglob("*") if file.is_file() and file.read_bytes()[:4] == b"PAR1"]
            assert where in also
            known |= {file.as_uri(): file.stat().st_size for file in also if file != where}
        return original(session, definition, msgspec.structs.replace(group, files=tuple(known.items())))

    native._frame_of = frame_of


def _columns_of_filters_pruned() -> None:
    import msgspec

    from spark_tiering.queries import required

    original = required._together

    def together(scans: Any, definition: Any) -> Any:
        need = original(scans, definition)
        kept = tuple(name for name in need.columns if f'"{name}"' not in need.filter)
        return msgspec.structs.replace(need, columns=kept)

    required._together = together


def _files_go_in_again() -> None:
    from tiering.insert.uploaded import once_files

    once_files.taken = lambda disk, definition: {}


def _marks_not_found() -> None:
    from tiering.insert.uploaded import once_files

    once_files._marks = lambda disk, definition: []


def _first_schema_for_all() -> None:
    from spark_tiering.writing import ingest

    ingest._READERS = ingest._READERS | {"parquet": {}}


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "job marks differ",
        "two runs of one job write different marks",
        f"{_WRITER}::test_two_runs_of_a_job_at_once_commit_one",
        _job_marks_differ,
    ),
    (
        "batch goes in again",
        "nobody asks whether a batch of a stream is in the table already",
        f"{_STREAMS}::test_a_batch_that_comes_again_goes_in_once",
        _batch_ids_reused,
    ),
    (
        "batch noted after its rows",
        "the note that a batch of a stream is in comes with a commit of its own, after that of the rows",
        "tests/crash/test_kill.py::test_killed_at_every_effect[spark_stream]",
        _noted_after_its_rows,
    ),
    (
        "uploads without age",
        "a commit takes old uploads of tasks for new ones",
        f"{_WRITER}::test_uploads_that_gc_may_have_taken_are_not_committed",
        _uploads_without_age,
    ),
    (
        "one number for all",
        "the parts of all tasks get one block number",
        f"{_WRITER}::test_parts_of_several_tasks_have_names_of_their_own",
        _same_number_for_all,
    ),
    (
        "files go in again",
        "an ingest does not know which files are in the table when it commits",
        f"{_INGEST}::test_two_at_once_take_each_file_once",
        _files_go_in_again,
    ),
    (
        "marks not found",
        "an ingest does not find the marks of those before it",
        f"{_INGEST}::test_what_stopped_between_two_commits_goes_on_after_the_last",
        _marks_not_found,
    ),
    (
        "first schema for all",
        "a column that only later files of a batch have is lost",
        f"{_INGEST}::test_files_of_one_batch_may_have_other_columns",
        _first_schema_for_all,
    ),
    (
        "replace without precondition",
        "a commit that replaces partitions does not ask whether they are as they were looked at",
        f"{_REPLACE}::test_rows_that_come_right_before_the_commit_refuse_it",
        _replaced_without_precondition,
    ),
    (
        "newcomers replaced",
        "rows that came after a job began go with those that it replaces",
        f"{_REPLACE}::test_rows_that_came_after_the_job_began_are_not_replaced",
        _newcomers_replaced,
    ),
    (
        "merges hide newcomers",
        "rows that came after a job began, and were merged since, go with those that it replaces",
        f"{_REPLACE}::test_a_merge_brings_no_rows_but_shows_those_that_came",
        _merges_hide_newcomers,
    ),
    (
        "change lost at a merge",
        "rows of parts that were merged since are left out of the changes",
        f"{_CHANGES}::test_rows_come_in_the_order_of_commits_also_when_merged",
        _change_lost_at_a_merge,
    ),
    (
        "moves bring rows",
        "a part that was moved away and back again counts as new",
        f"{_CHANGES}::test_what_was_inserted_on_an_ssd_comes_once_from_the_bucket",
        _moves_bring_rows,
    ),
    (
        "data frame without pin",
        "a revision that is read longer than the retention is not pinned",
        f"{_READER}::TestThePast::test_a_long_retention_needs_no_pin",
        _no_pin,
    ),
    (
        "local files not held",
        "files on an SSD that executors will read get no second name",
        "tests/unit/disks/local/test_held_files.py::test_what_is_held_stays_readable_when_it_is_removed",
        _nothing_held,
    ),
    (
        "opening in a directory dear",
        "small files of a directory are divided as if each took a request",
        "tests/unit/disks/workers/test_pieces.py::test_small_files_of_a_directory_are_few_tasks",
        _directories_dear,
    ),
    (
        "row groups cut short",
        "the sparse index is taken to say that a row group ends with its first key",
        "tests/unit/spark_tiering/test_blob_file.py::test_a_range_of_the_key_is_a_row_group_or_two",
        _row_group_ends_where_it_begins,
    ),
    (
        "share not compared",
        "a file that a task reads whole is not compared with its SHA-256",
        f"{_READER}::TestPlaces::test_an_object_that_is_gone_is_an_error_and_not_fewer_rows",
        _bytes_not_compared,
    ),
    (
        "nulls taken for values",
        "a null in a column that takes none reaches Spark, which does not look for it",
        f"{_READER}::TestPlaces::test_a_null_where_none_may_be_is_an_error_and_not_a_zero",
        _nulls_taken_for_values,
    ),
    (
        "filter read when a stream has begun",
        "what a filter says is looked at only when a read is planned, not at load()",
        f"{_CHANGES}::test_a_stream_is_told_of_its_filter_by_load",
        _filter_unread,
    ),
    (
        "native read of deleted rows",
        "Spark's own reader is given every file of the disk, and so those of parts that were merged or dropped",
        f"{_NATIVE}::test_what_was_merged_or_dropped_is_not_read",
        _whole_directory_read_natively,
    ),
    (
        "native read of another bucket",
        "Spark's own reader is given URLs that mean other objects to it, or none",
        f"{_NATIVE}::test_objects_are_read_natively_where_spark_opens_s3a",
        _another_bucket_read,
    ),
    (
        "ingest: a file passed over",
        "a file that Spark takes for no data, by its name, is noted as taken",
        f"{_INGEST}::test_a_file_that_spark_passes_over_otherwise_takes_none_in",
        _files_passed_over,
    ),
    (
        "ingest: not compared after reading",
        "a file that is written anew while a task reads it goes in as it was read, by parts of both",
        f"{_SHARES}::test_a_file_that_is_written_anew_is_refused",
        _not_compared_after_reading,
    ),
    (
        "ingest: edges read twice",
        "a row group that two tasks have bytes of is read by both",
        f"{_SHARES}::test_each_row_group_is_read_by_one_task",
        _edges_read_twice,
    ),
    (
        "ingest: mixing not seen",
        "of files that mix the partitions of a table each task leaves a part of each partition",
        f"{_INGEST_FILES}::test_files_that_mix_partitions_leave_few_parts",
        _mixing_not_seen,
    ),
    (
        "catalogued options forgotten",
        "a table of Spark's catalogue is made with options that no read or write of it will see",
        f"{_FORMATS}::test_a_table_is_not_made_with_options_that_it_would_forget",
        _catalogued_options_forgotten,
    ),
    (
        "fields of structs not compared",
        "a field that only Spark's catalogue has is read as null, as is one that was renamed there",
        f"{_TYPES}::test_names_that_a_table_has_not_are_found_at_any_depth",
        _fields_not_compared,
    ),
    (
        "kept store of a stream not looked at again",
        "a store that stays open between batches shows the table as it was when it was opened",
        f"{_STREAMS}::test_the_store_of_a_stream_stays_open_and_sees_other_commits",
        _kept_store_of_before,
    ),
    (
        "format known to another session",
        "Spark is asked in another session than the one that is told whether a format is there",
        f"{_CATALOGUE}::test_a_new_session_of_the_same_spark_is_told_of_the_format",
        _registered_elsewhere,
    ),
    (
        "filtered column pruned",
        "a column that only a condition of the query needs is not read",
        f"{_QUERIES}::test_only_what_is_needed_is_read",
        _columns_of_filters_pruned,
    ),
)
