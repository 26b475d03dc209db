"""Seeded mistakes in taking foreign data in, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from tests.crash.seeding import nothing, replaced
from tiering.insert.inputs.packed_sizes import GroupSize

_CHECK = "tests/unit/tiering/insert/test_reshaping.py"
_FILES = "tests/unit/tiering/insert/test_attach_files.py"
_HIVE = "tests/integration/test_hive.py"
_SOURCES = "tests/unit/tiering/insert/test_sources.py"
_POISON = "tests/hostile/test_poison_inputs.py"
_REPLACE = "tests/integration/test_replace_partitions.py"


def _nulls_stay() -> None:
    import pyarrow as pa

    from tiering.insert import reshaping

    reshaping.pc = type(
        "Compute", (), {"coalesce": lambda array, value: array, "struct_field": pa.compute.struct_field}
    )


def _bad_rows_forgotten() -> None:
    from tiering.insert.bad_rows import BadRows

    def add(self: Any, source: str, place: Any, problem: str, content: Any) -> None:
        self.count += 1

    BadRows.add = add  # type: ignore[method-assign]


def _block_is_bad() -> None:
    """One bad row takes its whole block with it."""
    from tiering.insert import row_reader

    def salvage(records: Any, take: Any, bad: Any) -> Any:
        try:
            yield take(records)
        except Exception as error:
            bad(records[0], str(error))

    row_reader.salvage = salvage  # type: ignore[assignment]


def _lines_are_records() -> None:
    from tiering.insert.inputs import source_csv
    from tiering.insert.row_reader import TextRecord

    source_csv._records = lambda block, first: [
        TextRecord(line, text + b"\n") for line, text in enumerate(block.rstrip(b"\n").split(b"\n"), first)
    ]


def _keys_as_urls() -> None:
    from tiering.insert.inputs import bucket_sources

    def opened(self: Any, bucket: str, key: str) -> Any:
        place, _, name = key.rpartition("/")
        config = bucket_sources.bucket_at(self._config, f"s3://{bucket}/{place}/")
        return bucket_sources.BucketFile(bucket_sources.open_store(config), name, key)

    bucket_sources.BucketSources._open = opened  # type: ignore[method-assign]


def _globs_alone(self: Any, bucket: str, pattern: str, start: str) -> list[str]:
    import re

    from tiering.insert.inputs.bucket_sources import _regular

    with self._store(bucket) as store:
        return [info.key for info in store.list(start) if re.fullmatch(_regular(pattern), info.key)]


def _types_by_the_names_of_the_table() -> None:
    from tiering.insert.inputs import source_csv
    from tiering.table.columns.type_texts import arrow_type

    source_csv.source_types = lambda reshaping: {
        column.name: arrow_type(column.type) for column in reshaping.definition.columns
    }


def _misspelt_names_are_nulls() -> None:
    from tiering.insert.row_reader import RowReader

    RowReader.check_seen = lambda self: None  # type: ignore[method-assign]


def _replaced_without_precondition() -> None:
    from disks.object_disk.transaction import ObjectTransaction

    ObjectTransaction.made_from = lambda self, revision, within=None: None  # type: ignore[method-assign]


def _replacing_begins_late() -> None:
    from tiering.engine.table import Table

    original = Table.replace_partitions

    def replace_partitions(self: Any, batches: Any, *, begun: Any = None, **named: Any) -> Any:
        return original(self, batches, **named)

    Table.replace_partitions = replace_partitions  # type: ignore[method-assign]


def _appended(batch: Any, columns: Any, **named: Any) -> Any:
    from tiering.insert.inputs.hive import with_path_columns

    lacking = {name: said for name, said in columns.items() if name not in batch.schema.names}
    return with_path_columns(batch, lacking, **named)


def _replaced_without_digests() -> None:
    from tiering.engine import write_job
    from tiering.insert.uploaded.part_writer import write_parts

    write_job.write_insert = lambda batches, job: write_parts(batches, job, 0, 0)


_FOREIGN = "tests/unit/tiering/insert/test_foreign_values.py"


def _rows_alone(file: Any) -> tuple[int, str]:
    import pyarrow.parquet as pq

    return pq.ParquetFile(file).metadata.num_rows, ""


def _numbers_are_floats() -> None:
    """Decimals of JSON are read as the parser likes."""
    import pyarrow as pa

    from tiering.insert.inputs.json import source

    read_as = source._read_as
    source._read_as = lambda kind, as_texts: None if pa.types.is_decimal(kind) else read_as(kind, as_texts)


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "insert: bytes for texts",
        "bytes that are no text go in, and no query of the column works any more",
        f"{_FOREIGN}::test_bytes_that_are_no_text_are_refused",
        replaced("tiering.table.columns.types", "sound_column", lambda array, name, **options: array),
    ),
    (
        "insert: elements with what is no text",
        "bytes of a JSON array that are no text become other text",
        f"{_FOREIGN}::test_bytes_that_are_no_text_are_refused",
        replaced(
            "tiering.insert.inputs.json.records", "_block", lambda lines: "\n".join(lines).encode(errors="replace")
        ),
    ),
    (
        "insert: offsets are believed",
        "an Arrow file whose offsets lead out of its buffer is read",
        f"{_FOREIGN}::test_offsets_out_of_the_buffer_are_refused",
        replaced("tiering.table.columns.sound_values", "is_sound", lambda array: True),
    ),
    (
        "insert: decimals by way of floats",
        "a number of JSON for a decimal has other digits",
        f"{_FOREIGN}::test_a_number_for_a_decimal_keeps_its_digits",
        _numbers_are_floats,
    ),
    (
        "insert: bent values",
        "a cast changes a value, and the insert says nothing",
        f"{_FOREIGN}::test_values_that_a_cast_would_bend_are_refused",
        replaced("tiering.table.columns.types", "check_kept", nothing),
    ),
    (
        "insert: numbers as CSV parses them",
        "a number in another base, or too large, is another number",
        f"{_FOREIGN}::test_numbers_of_text_formats_are_what_stands_there",
        replaced("tiering.insert.inputs.source_csv", "_doubted", lambda table, block: []),
    ),
    (
        "insert: rows beside a slice",
        "a list that does not fit is told of another row",
        f"{_FOREIGN}::test_values_that_a_cast_would_bend_are_refused",
        replaced("tiering.table.columns.nested", "copied", lambda array: array),
    ),
    (
        "table: any zone",
        "a table has a time zone that nobody knows",
        "tests/unit/tiering/table/test_types.py::test_a_zone_that_nobody_knows_is_refused",
        replaced("tiering.table.definitions", "with_zones", lambda kind: kind),
    ),
    (
        "fsck: any bytes are text",
        "a part whose texts cannot be read has no problem",
        "tests/unit/tiering/insert/test_texts_of_older_parts.py::test_fsck_names_the_part_and_a_repair_leaves_it",
        replaced("restore.check.data", "_rows_and_texts", _rows_alone),
    ),
    (
        "insert: nanoseconds of any year",
        "a moment of INT96 beyond what nanoseconds reach comes as another one",
        "tests/unit/tiering/insert/test_sources.py::test_moments_of_int96_are_what_they_are_in_every_year",
        replaced(
            "tiering.insert.inputs.source_parquet",
            "_decoded",
            lambda file, stream, groups, rows: file.iter_batches(rows, row_groups=groups),
        ),
    ),
    (
        "insert: commas alone",
        "a sheet with semicolons has one column",
        "tests/unit/tiering/insert/test_sources.py::test_sheets_have_the_delimiter_of_their_header",
        replaced("tiering.insert.inputs.source_csv", "_delimiter", lambda header, source: ","),
    ),
    (
        "nulls stay",
        "a default does not stand where a row of the input has null",
        f"{_CHECK}::TestColumns::test_defaults_stand_where_the_input_has_nothing",
        _nulls_stay,
    ),
    (
        "bad rows forgotten",
        "rows that cannot be taken are in no file",
        f"{_CHECK}::TestBadRows::test_json_lines_that_are_none_or_do_not_fit",
        _bad_rows_forgotten,
    ),
    (
        "the block is bad",
        "a row that cannot be taken takes good ones with it",
        f"{_CHECK}::TestBadRows::test_csv_keeps_the_lines_that_duckdb_rejects",
        _block_is_bad,
    ),
    (
        "lines are records",
        "a text with a line end is cut when its block holds a bad row",
        f"{_CHECK}::TestBadRows::test_csv_keeps_the_lines_that_duckdb_rejects",
        _lines_are_records,
    ),
    (
        "types by the table's names",
        "a renamed text column is read as numbers",
        f"{_CHECK}::TestColumns::test_renamed_columns_are_read_as_the_types_of_the_table",
        _types_by_the_names_of_the_table,
    ),
    (
        "misspelt names are nulls",
        "a path that no row of JSON has fills the column with nulls",
        f"{_CHECK}::TestColumns::test_a_column_that_the_input_does_not_have",
        _misspelt_names_are_nulls,
    ),
    (
        "insert replaces without precondition",
        "an insert that replaces partitions does not ask at its commit whether they are as they were looked at",
        f"{_REPLACE}::test_rows_that_come_right_before_the_commit",
        _replaced_without_precondition,
    ),
    (
        "replacing begins late",
        "what came into the table after its rows were read counts as known",
        f"{_REPLACE}::test_a_table_rewritten_from_itself_loses_no_later_row",
        _replacing_begins_late,
    ),
    (
        "a replace forgets what it brought",
        "the same file inserted after --replace-partitions doubles its rows",
        f"{_REPLACE}::test_the_same_file_inserted_after_a_replace_is_known",
        _replaced_without_digests,
    ),
    (
        "a replace claims no digests",
        "an insert of the same rows commits beside a replace, and neither knows of the other",
        f"{_REPLACE}::test_while_a_replace_commits_no_insert_commits_the_same_rows",
        replaced("tiering.engine.write_job", "digests_claimed", lambda *arguments: nullcontext()),
    ),
    (
        "a replace of many blocks remembers the newest alone",
        "a part whose older blocks are forgotten counts as there when only its newest ones are",
        f"{_REPLACE}::test_of_many_blocks_those_of_the_window_are_remembered",
        replaced(
            "tiering.engine.write_job",
            "_remembered",
            lambda part, own, definition: part.digests[-definition.settings.deduplication_window :],
        ),
    ),
    (
        "directories are no columns",
        "the column of a Hive directory is null in every row",
        f"{_HIVE}::test_every_value_is_what_duckdb_reads",
        replaced("tiering.insert.row_reader", "path_columns", lambda source, reshaping: {}),
    ),
    (
        "a file's own column against its directory",
        "a file says another value than the directory that it lies in, and nobody says so",
        f"{_HIVE}::test_a_column_of_the_file_must_say_the_same",
        replaced("tiering.insert.row_reader", "with_path_columns", _appended),
    ),
    (
        "scratch removed under its writers",
        "an insert that one disk refuses takes away what is still written for another",
        "tests/unit/tiering/insert/test_insert.py::test_a_full_disk_leaves_nothing_of_what_other_disks_get",
        replaced("tiering.insert.insert", "wait", nothing),
    ),
    (
        "attached: order not asked",
        "a file that is not sorted becomes a part, which merges and queries trust to be",
        f"{_FILES}::test_what_does_not_fit_is_named_and_changes_nothing",
        replaced("tiering.insert.attach_files", "is_sorted", lambda rows, keys: True),
    ),
    (
        "attached: the file of a part goes in twice",
        "rows are doubled by attaching the file of a merged part that is there",
        f"{_FILES}::test_a_file_of_a_merge_is_known_while_its_part_is_there",
        replaced("tiering.insert.attach_files", "_is_there", lambda run, found: False),
    ),
    (
        "keys as URLs",
        "a key that a listing shows is read as part of a URL, and may be another object's",
        "tests/property/test_names_in_statements.py::test_a_key_that_exists_is_the_object_that_is_read",
        _keys_as_urls,
    ),
    (
        "a key that exists as a glob",
        "an object whose key holds what a glob does brings the rows of others",
        "tests/property/test_names_in_statements.py::test_a_key_that_exists_is_the_object_that_is_read",
        replaced("tiering.insert.inputs.bucket_sources:BucketSources", "_matching", _globs_alone),
    ),
    (
        "objects passed over",
        "a glob leaves out the objects whose keys no disk can have written",
        "tests/unit/tiering/insert/test_bucket_sources.py::test_objects_that_a_glob_cannot_read_are_named",
        replaced("tiering.insert.inputs.bucket_sources", "unwrapped", nothing),
    ),
    (
        "names as conditions",
        "the name of a column ends at the first quote in it",
        "tests/property/test_names_in_statements.py::test_a_condition_of_spark_is_about_the_column_it_names",
        replaced("spark_tiering.queries.required", "identifier", '"{}"'.format),
    ),
    (
        "compressed: a damaged stream ends the file",
        "rows behind a damaged stream of a .bz2 or .xz are left out without a word",
        f"{_SOURCES}::test_a_damaged_stream_behind_a_whole_one_is_no_end[.bz2-file]",
        replaced(
            "tiering.insert.inputs.source_files", "_OPENED", {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
        ),
    ),
    (
        "poison: what is unpacked at once has no limit",
        "a batch of a small file takes all memory",
        f"{_POISON}::test_what_is_unpacked_at_once_has_a_limit[arrow]",
        replaced("tiering.insert.inputs.sources", "check_at_once", nothing),
    ),
    (
        "poison: rows count as their dictionaries do",
        "many rows of packed pages are decoded together, however wide they are",
        f"{_POISON}::test_rows_of_packed_pages_are_decoded_in_slices[parquet]",
        replaced("tiering.insert.inputs.source_parquet", "group_size", lambda stream, group: GroupSize(0, 0)),
    ),
    (
        "poison: a stripe is read whole",
        "memory is that of all that a stripe of ORC unpacks to",
        f"{_POISON}::test_rows_of_packed_pages_are_decoded_in_slices[orc]",
        replaced("tiering.insert.inputs.sources", "_ORC_ROWS", 1 << 30),
    ),
    (
        "poison: a value is as long as what differs from the one before",
        "a small file of repeated values takes all memory",
        f"{_POISON}::test_values_that_repeat_the_one_before_are_decoded_in_slices",
        replaced("tiering.insert.inputs.source_parquet", "_prefixed_rows", lambda stream, group: 1 << 17),
    ),
    (
        "attach: a row group is decoded whole",
        "memory is that of all that a row group unpacks to",
        "tests/unit/tiering/insert/test_attach_files.py::test_a_row_group_is_looked_at_in_pieces[plain]",
        replaced(
            "tiering.insert.attach_files", "parquet_batches", lambda file, stream, run: file.iter_batches(1 << 17)
        ),
    ),
    (
        "S3: what a store does not compare has arrived",
        "a byte altered on the way is stored, and the source deleted",
        "tests/hostile/test_altered_on_the_way.py::test_a_data_file_is_whole_or_its_move_fails[nothing-plain]",
        replaced("disks.stores.s3.store", "_arrived", lambda sent, answered: True),
    ),
)
