"""Seeded mistakes in what is kept of parts, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from msgspec.structs import replace

from tests.crash.seeding import nothing, replaced

_PARTS = "tests/unit/tiering/catalog/test_stored_parts.py"
_LOST = "tests/unit/tiering/catalog/test_lost_rows.py"
_LOOKS = "tests/unit/tiering/catalog/test_scans.py"
_BATCHES = "tests/unit/tiering/catalog/test_scan_batches.py"
_CHANGES = "tests/unit/disks/local/test_changes.py"
_ARRIVALS = "tests/unit/disks/local/test_many_arrivals.py"
_RACES = "tests/crash/test_move_races.py"
_MACHINE = "tests/property/test_store_machine.py::test_the_store_is_a_dict"
_KILLS = "tests/crash/test_kill.py::test_killed_at_every_effect"
_HISTORIES = f"{_CHANGES}::test_what_is_another_than_before_is_among_what_was_touched"


def _fingerprint_by_size(file: str, settled_ns: int) -> tuple[int, ...] | None:
    try:
        found = os.lstat(file)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _each_by_itself(self: Any, arriving: Any, transaction: str) -> None:
    for path in arriving:
        self._make_way(path, transaction)


def _over_what_is_there(self: Any, arriving: Any, transaction: str) -> None:
    return


def _gaps_not_seen() -> None:
    from disks.local.changes import Changes

    def between(self: Any, directory: str, before: Any, after: Any) -> set[str]:
        return {name for touched in self._lately(directory) for name in touched.names}

    Changes.between = between  # type: ignore[method-assign]


def _by_the_last_line() -> None:
    from disks.local.disk import LocalDisk

    state_of = LocalDisk.state_of

    def said(self: Any, directory: str) -> Any:
        touched = next(iter(self._commits.changes._lately(directory)), None)
        return state_of(self, directory) if touched is None else touched.after

    LocalDisk.state_of = said  # type: ignore[method-assign]


def _held() -> None:
    from tiering.catalog.stored import LazyPart

    LazyPart.part_of = lambda self, known: self.part()  # type: ignore[method-assign]


def _all_names_listed() -> None:
    from disks.object_disk.table_disk import TableDisk

    del TableDisk.files_in


def _seen_once() -> None:
    from tiering.catalog.index.table import IndexedTable

    original = IndexedTable.scan

    def scan(self: Any, *, every_file: bool) -> Any:
        return self.moment or original(self, every_file=every_file)

    IndexedTable.scan = scan  # type: ignore[method-assign]


def _but_for_the_last_batch() -> None:
    from tiering.catalog.index import scan

    batches = scan._batches
    scan._batches = lambda names: iter(list(batches(names))[:-1])


def _still_summed() -> None:
    from tiering.catalog.index.rows import PartitionTotals

    original = PartitionTotals.without

    def without(self: Any, *arguments: Any) -> Any:
        return replace(original(self, *arguments), rows=self.rows)

    PartitionTotals.without = without  # type: ignore[method-assign, assignment]


def _by_several_looks() -> None:
    from tiering.catalog.index.table import IndexedTable

    def stored_in(self: Any, moment: Any, names: Any) -> Any:
        def read(name: str) -> Any:
            return self._read(lambda moment: self._stored(moment, name))

        return [stored for name in sorted(names) for stored in read(name)]

    IndexedTable._stored_in = stored_in  # type: ignore[method-assign]


def _state_before_its_rows() -> None:
    from tiering.catalog.index import changes
    from tiering.catalog.index.index import PartIndex

    original = PartIndex.follow

    def follow(self: Any, table: Any, change: Any, state: Any, *touched: Any) -> Any:
        with self._database.writing() as connection:
            now = self._now(connection, table)
            before = self._note(replace(now, row=replace(now.row, state=state)))
            changes.write(connection, before, ())
        return original(self, before, change, state, *touched)

    PartIndex.follow = follow  # type: ignore[method-assign]


def _but_for_cut_off(error: Exception) -> bool:
    return not isinstance(error, sqlite3.OperationalError)


def _changes_alone_counted() -> None:
    from tiering.catalog.index.index import PartIndex

    original = PartIndex.follow
    PartIndex.follow = lambda self, table, change, state, touched=None: original(  # type: ignore[method-assign]
        self, table, change, state
    )


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "catalog: others not seen",
        "what another process committed since the first look is not looked for",
        f"{_PARTS}::test_each_step_of_one_process_is_what_the_others_see",
        _seen_once,
    ),
    (
        "catalog: always the same",
        "parts that were read stay, whatever has changed",
        f"{_PARTS}::test_each_step_of_one_process_is_what_the_others_see",
        replaced("tiering.catalog.index.table:TableMoment", "generations", ()),
    ),
    (
        "catalog: a fingerprint that can be set",
        "a file is told from others by its inode, its size and the time that anybody can set",
        f"{_PARTS}::test_a_file_that_was_changed_by_hand_is_read_again",
        replaced("disks.local.disk", "fingerprint_of", _fingerprint_by_size),
    ),
    (
        "catalog: the ranges of an older rule",
        "which columns tell when a part is due is not asked again when the rules change",
        f"{_PARTS}::test_a_rule_about_another_column_is_followed",
        replaced("tiering.catalog.index.scan", "timed_columns", lambda definition: [str(definition.columns[1].id)]),
    ),
    (
        "catalog: gone at once",
        "what a part said goes with the part, also when somebody who looked before asks for it",
        f"{_PARTS}::test_who_looked_before_a_merge_can_read_what_it_took",
        replaced("tiering.catalog.index.changes", "_KEPT_SECONDS", -10),
    ),
    (
        "catalog: marks among all names",
        "the marks of other machines are looked for among the names of all parts",
        f"{_PARTS}::test_a_plan_goes_through_no_names_of_cold_parts",
        _all_names_listed,
    ),
    (
        "catalog: believed by fsck",
        "fsck does not compare what is kept of parts with what they say",
        f"{_PARTS}::test_fsck_names_the_part_of_which_something_else_is_kept",
        replaced("restore.check.check", "check_kept", nothing),
    ),
    (
        "catalog: facts believed by fsck",
        "fsck compares the part.json that are kept, and not the facts beside them",
        f"{_PARTS}::test_fsck_names_the_part_of_which_something_else_is_kept",
        replaced("restore.check.kept", "_are_of", lambda *arguments: True),
    ),
    (
        "looks: due by the rules of before",
        "when a rule is due is not computed anew when the rules change",
        f"{_LOOKS}::test_a_pass_looks_at_each_part_before_it_moves_one",
        replaced("tiering.catalog.index.scan:ScanTarget", "basis", (7, 7)),
    ),
    (
        "looks: deleted by a kept look",
        "a pass moves parts that it has not looked at",
        f"{_LOOKS}::test_a_pass_looks_at_each_part_before_it_moves_one",
        replaced("tiering.engine.maintenance", "_look", lambda context: False),
    ),
    (
        "changes: commits leave no trace",
        "a commit that touches only what is in a part's directory leaves the state of the table's",
        f"{_CHANGES}::test_a_commit_within_a_directory_shows_above_it",
        replaced("disks.local.changes:Changes", "noted", lambda self, *touched: nullcontext()),
    ),
    (
        "changes: gaps not seen",
        "what commits say they touched is all, whatever else happened in between",
        _HISTORIES,
        _gaps_not_seen,
    ),
    (
        "changes: arrivals only",
        "a commit does not say what it took away",
        _HISTORIES,
        replaced("disks.local.plan:CommitRecord", "moved_paths", lambda self: iter(())),
    ),
    (
        "looks: died before it was noted",
        "what a commit did that died before it said so is not looked for",
        f"{_LOOKS}::test_a_commit_that_died_is_seen",
        _by_the_last_line,
    ),
    (
        "looks: believed by fsck",
        "fsck does not compare the looks that are kept with the disks",
        f"{_LOOKS}::test_fsck_names_the_table_of_which_something_else_is_kept",
        replaced("restore.check.kept", "_is_what_the_disk_shows", lambda *arguments: True),
    ),
    (
        "looks: a part that is gone stays summed",
        "sums only grow",
        f"{_LOOKS}::test_looks_are_what_disks_say_after_each_step_of_another",
        _still_summed,
    ),
    (
        "looks: the last batch forgotten",
        "a first look at very many parts ends before its last batch",
        f"{_BATCHES}::test_all_is_kept_and_nothing_held",
        _but_for_the_last_batch,
    ),
    (
        "looks: a query by several",
        "a query takes the parts of some partitions from one look and those of others from a later one",
        f"{_LOOKS}::test_a_query_goes_by_one_look",
        _by_several_looks,
    ),
    (
        "looks: the month before",
        "partitions are left out that may hold rows of the answer",
        f"{_LOOKS}::test_a_query_reads_the_partitions_that_may_hold_its_rows",
        replaced("tiering.query.query", "partition_may_match", lambda predicate, values, definition: values[0] % 2),
    ),
    (
        "watched: others not seen",
        "who has looked once goes by that, whatever others commit",
        _MACHINE,
        _seen_once,
    ),
    (
        "watched: killed between disk and index",
        "a look is kept before the rows of its parts, not with them",
        f"{_KILLS}[move]",
        _state_before_its_rows,
    ),
    (
        "watched: due by the rules of before",
        "when a rule is due is not computed anew when the rules change",
        _MACHINE,
        replaced("tiering.catalog.index.scan:ScanTarget", "basis", (7, 7)),
    ),
    (
        "looks: held after a query",
        "parts hold all that they say once a query has looked into them",
        f"{_LOOKS}::test_parts_that_a_query_looks_into_do_not_hold_what_they_say",
        _held,
    ),
    (
        "looks: all of the past",
        "a query of the past looks into the parts of all partitions",
        f"{_LOOKS}::test_a_query_of_the_past_looks_only_into_its_partitions",
        replaced(
            "tiering.catalog.catalog:Catalog", "parts_where", lambda self, table, may_match: (self.parts(table), 0)
        ),
    ),
    (
        "looks: overtaken",
        "a look at a bucket is kept for the state before a commit that came while it was made",
        f"{_LOOKS}::test_a_look_overtaken_by_commits_is_of_the_state_before",
        replaced("disks.object_disk.table_disk:TableDisk", "steady", lambda self: nullcontext()),
    ),
    (
        "kept: cut off for ever",
        "a kept catalog whose log is cut off stays for as long as somebody has it open",
        f"{_PARTS}::test_a_catalog_with_a_cut_log_is_rebuilt_while_it_is_open",
        replaced("tiering.catalog.index.database", "_is_damage", _but_for_cut_off),
    ),
    (
        "arrivals: each by itself",
        "a commit asks again for each file what is in the directories above it",
        f"{_ARRIVALS}::test_a_part_more_is_a_few_questions_more",
        replaced("disks.local.commits:LocalCommits", "_make_ways", _each_by_itself),
    ),
    (
        "arrivals: over what is hidden",
        "nothing makes way for the files of a commit",
        f"{_ARRIVALS}::test_hidden_files_and_empty_directories_make_way_for_many",
        replaced("disks.local.commits:LocalCommits", "_make_ways", _over_what_is_there),
    ),
    (
        "looks: counted twice",
        "a part whose row is lost is counted twice by who looks at each",
        f"{_LOST}::test_who_looks_at_each_part_does_not_count_it_twice",
        replaced("tiering.catalog.index.index", "_compare", nothing),
    ),
    (
        "looks: dropped unseen",
        "a part whose row is lost is counted for ever where a commit drops it",
        f"{_LOST}::test_a_part_that_is_dropped_is_counted_no_more",
        _changes_alone_counted,
    ),
    (
        "looks: of another day",
        "a part of a partition that a look does not know is taken from its sums",
        f"{_LOST}::test_a_look_of_before_with_rows_of_what_is_gone_since",
        replaced("tiering.catalog.index.index", "_count", nothing),
    ),
)
