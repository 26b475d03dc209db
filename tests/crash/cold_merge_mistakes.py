"""Seeded mistakes in merges: of keys' ranges, of what is checked before the commit, and of the merge modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oplog.kinds import Merged

_FAULTS = "test_cold_merge_faults.py"
_ROWS = "tests/property/test_cold_merge.py::test_shards_give_what_one_merge_gives"
_ENDS = "tests/property/test_cold_merge.py::test_a_key_at_the_end_of_a_shard_is_merged_once"
_MODES = "tests/property/test_merge_modes.py"


def _bound_in_both() -> None:
    from tiering.parquet import sorted_input
    from tiering.parquet.sort_keys import row_key, rows_below

    def clipped(self: Any, table: Any) -> Any:
        keys = self._definition.order_by
        if self._below:
            table = table.slice(rows_below(table, self._below, keys))
            self._below = None if table.num_rows else self._below
        high = self._within.high
        if high is not None and table.num_rows and row_key(table, -1, keys) > high:
            table = table.slice(0, rows_below(table, high, keys, inclusive=True))
            self.close()
        return table

    sorted_input.SortedInput._clipped = clipped  # type: ignore[method-assign]


def _bound_in_none() -> None:
    from tiering.parquet import sorted_input
    from tiering.parquet.sort_keys import rows_below

    original = sorted_input.SortedInput._clipped

    def clipped(self: Any, table: Any) -> Any:
        if self._below:
            table = table.slice(rows_below(table, self._below, self._definition.order_by, inclusive=True))
            self._below = None if table.num_rows else self._below
        return original(self, table)

    sorted_input.SortedInput._clipped = clipped  # type: ignore[method-assign]


def _last_row_group_left_out() -> None:
    from tiering.merge.cold import shards

    original = shards.row_groups_within

    def row_groups_within(*arguments: Any) -> tuple[int, ...]:
        found = original(*arguments)
        return found[:-1] if len(found) > 1 else found

    shards.row_groups_within = row_groups_within


def _rows_not_counted() -> None:
    from tiering.merge.cold import job as cold_merge

    cold_merge.check_counts = lambda *arguments, **options: None


def _keys_not_checked() -> None:
    from tiering.merge.cold import job as cold_merge

    cold_merge._check_keys = lambda *arguments: None


def _inputs_removed_first() -> None:
    from tiering.merge.cold import job as cold_merge

    original = cold_merge._ColdMerge._committed

    def committed(self: Any, plan: Any, inputs: Any, output: Any, transaction: Any, *rest: Any) -> Any:
        disk = self.context.disk(inputs[0].disk)
        with disk.transaction(Merged(), reason="mutant", actor="test") as early:
            for stored in inputs:
                early.remove(stored.directory)
            early.commit()
        transaction.remove = lambda path: None
        return original(self, plan, inputs, output, transaction, *rest)

    cold_merge._ColdMerge._committed = committed  # type: ignore[method-assign]


def _inputs_kept() -> None:
    from tiering.merge.cold import job as cold_merge

    original = cold_merge._ColdMerge._committed

    def committed(self: Any, plan: Any, inputs: Any, output: Any, transaction: Any, *rest: Any) -> Any:
        transaction.remove = lambda path: None
        return original(self, plan, inputs, output, transaction, *rest)

    cold_merge._ColdMerge._committed = committed  # type: ignore[method-assign]


def _blob_not_asked_for() -> None:

    from disks.object_disk.commit_checks import CommitChecks

    CommitChecks.check_blob = lambda self, blob: None  # type: ignore[method-assign]


def _partial_merge_drops_tombstones() -> None:
    from tiering.merge import merger
    from tiering.merge.cold import job as cold_merge

    cold_merge.holds_everything = lambda *arguments: True
    merger.holds_everything = lambda *arguments: True


def _foreign_parts_forgotten() -> None:
    from tiering.catalog import blocks

    blocks.foreign = lambda *arguments: set()


def _page_checksums_ignored() -> None:
    from pyarrow import parquet

    original = parquet.ParquetFile.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **{**options, "page_checksum_verification": False})

    parquet.ParquetFile.__init__ = init


def _no_page_checksums() -> None:
    from pyarrow import parquet

    original = parquet.ParquetWriter.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **{**options, "write_page_checksum": False})

    parquet.ParquetWriter.__init__ = init


def _rows_of_a_file_not_counted() -> None:
    from tiering.parquet import sorted_input

    sorted_input.SortedInput._check_complete = lambda self: None  # type: ignore[method-assign]


def _runs_cut_at_tables() -> None:
    from tiering.merge import rows as merge_rows

    merge_rows.whole_runs = lambda tables, keys, shortened: (table for table in tables if table.num_rows)


def _long_run_begins_anew() -> None:
    from tiering.merge import rows as merge_rows

    original = merge_rows._HeldRun.add

    def add(self: Any, table: Any) -> None:
        if sum(held.num_rows for held in self.tables) + table.num_rows > self._most_rows:
            self.tables.clear()
        original(self, table)

    merge_rows._HeldRun.add = add  # type: ignore[method-assign]


def _first_of_equal_versions() -> None:
    import numpy

    from tiering.merge import run_reduction

    def first_where(flags: Any, starts: Any) -> Any:
        places = numpy.minimum.reduceat(numpy.where(flags, numpy.arange(len(flags)), len(flags)), starts)
        return numpy.where(places == len(flags), -1, places)

    run_reduction._last_where = first_where


def _nan_below_numbers() -> None:
    import numpy

    from tiering.merge import run_reduction

    original = run_reduction._worst

    def worst(kind: Any, *, largest: bool) -> Any:
        return kind.type(numpy.inf) if kind.kind == "f" and not largest else original(kind, largest=largest)

    run_reduction._worst = worst
    run_reduction.numpy = type("Numpy", (), {"__getattr__": lambda self, name: getattr(numpy, name)})()
    run_reduction.numpy.maximum = numpy.fmax


def _sums_wrap_around() -> None:
    import numpy

    from tiering.merge import run_reduction

    run_reduction.numpy = type("Numpy", (), {"__getattr__": lambda self, name: getattr(numpy, name)})()
    run_reduction.numpy.abs = lambda values: values * 0


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    ("bound in both shards", "a shard takes the keys at both its ends", _ENDS, _bound_in_both),
    ("bound in no shard", "a shard takes the keys at neither of its ends", _ENDS, _bound_in_none),
    ("row group left out", "a shard does not read the last row group that it should", _ROWS, _last_row_group_left_out),
    (
        "shards not counted",
        "the rows that shards have read and written are not added up",
        f"{_FAULTS}::test_a_shard_that_lost_rows_is_refused",
        _rows_not_counted,
    ),
    (
        "shard of another range",
        "the result of one shard is taken for another's",
        f"{_FAULTS}::test_the_result_of_another_shard_is_refused",
        _keys_not_checked,
    ),
    (
        "inputs removed first",
        "a cold merge removes its inputs before it commits the output",
        "test_kill.py::test_killed_at_every_effect[cold_merge]",
        _inputs_removed_first,
    ),
    (
        "inputs kept",
        "a cold merge does not remove its inputs in its commit",
        "test_cold_merge_races.py::test_another_machine_between_two_requests[drop]",
        _inputs_kept,
    ),
    (
        "uploaded blob not asked for",
        "a commit names an object that nobody saw in the bucket",
        f"{_FAULTS}::test_an_object_that_is_not_what_a_shard_says_is_refused[gone]",
        _blob_not_asked_for,
    ),
    (
        "tombstones forgotten early",
        "a merge of some parts drops tombstones",
        f"{_FAULTS}::test_tombstones_outlive_a_merge_of_some_parts[chosen0]",
        _partial_merge_drops_tombstones,
    ),
    (
        "tombstones of others",
        "a merge drops tombstones although another machine writes the table",
        "tests/unit/tiering/merge/test_merger.py::test_tombstones_go_only_when_a_merge_holds_its_partition",
        _foreign_parts_forgotten,
    ),
    (
        "page checksum ignored",
        "a merge does not check the pages that it reads",
        f"{_FAULTS}::test_a_byte_that_changed_in_the_bucket_is_named",
        _page_checksums_ignored,
    ),
    (
        "pages without checksum",
        "data files have no page checksums",
        "tests/unit/tiering/parquet/test_page_checksums.py::test_no_altered_bit_of_a_row_group_gets_into_a_merge",
        _no_page_checksums,
    ),
    (
        "short row group",
        "a merge does not count the rows it decoded",
        "tests/unit/tiering/parquet/test_page_checksums.py::test_no_altered_bit_of_a_row_group_gets_into_a_merge",
        _rows_of_a_file_not_counted,
    ),
    (
        "runs cut at tables",
        "rows of one key in two batches are not reduced together",
        f"{_MODES}::test_replacing_is_the_row_with_the_highest_version",
        _runs_cut_at_tables,
    ),
    (
        "long run begins anew",
        "what came of a long run of one key is forgotten where the run is shortened",
        "tests/property/test_merge_rows.py::test_rows_of_a_long_run_do_not_gather[summing:n-numbers1]",
        _long_run_begins_anew,
    ),
    (
        "first of equal versions",
        "of equal versions the one inserted first stays",
        f"{_MODES}::test_replacing_is_the_row_with_the_highest_version",
        _first_of_equal_versions,
    ),
    (
        "NaN passed over",
        "the largest of numbers and NaN is a number",
        f"{_MODES}::test_nan_is_above_all_numbers",
        _nan_below_numbers,
    ),
    (
        "sums wrap around",
        "a sum that does not fit 64 bits becomes another number",
        f"{_MODES}::test_a_sum_that_does_not_fit_is_an_error",
        _sums_wrap_around,
    ),
)
