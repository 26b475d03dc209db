"""Seeded mistakes in the index of parts, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.crash.seeding import nothing, replaced

_UNIT = "tests/unit/tiering/catalog/test_part_index.py"
_TABLE = "tests/unit/tiering/catalog/test_index_table.py"
_MACHINE = "tests/property/test_part_index.py::test_the_index_is_what_the_disks_say"
_INDEX = "tiering.catalog.index.index"
_SCAN = "tiering.catalog.index.scan"
_ROWS = "tiering.catalog.index.rows"


def _is_of_this_layout(connection: Any, boot: str) -> bool:
    from tiering.catalog.index.database import SCHEMA

    return bool(connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,))


def _settled_for_good() -> None:
    from tiering.catalog.index.rows import PartitionTotals

    original = PartitionTotals.without

    def without(self: Any, *arguments: Any) -> Any:
        return replace(original(self, *arguments), is_settled=self.is_settled)

    PartitionTotals.without = without  # type: ignore[method-assign, assignment]


def _gone_is_kept() -> None:
    from tiering.catalog.index import scan

    original = scan.compared

    def compared(*arguments: Any) -> Any:
        change = original(*arguments)
        change.gone = []
        return change

    scan.compared = compared  # type: ignore[assignment]


def _broken_is_believed() -> None:
    from tiering.catalog.index import scan

    original = scan._follow

    def follow(index: Any, target: Any, table: Any, names: set[str], *rest: Any) -> Any:
        return original(index, target, table, names - {name for name, _ in table.row.broken}, *rest)

    scan._follow = follow  # type: ignore[assignment]


def _any_state() -> None:
    from tiering.catalog.index import scan

    original = scan._scan

    def look(index: Any, target: Any, *, every_file: bool, progress: Any) -> Any:
        table = index.table(target.disk.name, target.directory)
        if table.row.state is not None and table.row.basis == target.basis and not every_file:
            return table
        return original(index, target, every_file=every_file, progress=progress)

    scan._scan = look


def _state_before_the_end() -> None:
    """Some of a scan is taken for the whole."""
    from tiering.catalog.index import scan
    from tiering.catalog.index.index import PartIndex

    original, asked = scan._full_scan, list[Any]()

    def scanned(index: Any, target: Any, table: Any, state: Any, basis: Any, progress: Any) -> Any:
        asked[:] = [state, basis]
        return original(index, target, table, state, basis, progress)

    def put(self: Any, table: Any, change: Any) -> None:
        with self._database.writing() as connection:
            self._apply(connection, self._now(connection, table), change, *asked)

    scan._full_scan, PartIndex.put = scanned, put  # type: ignore[method-assign]


def _without_states(connection: Any, table: Any, partitions: Any, states: Any) -> Any:
    held = {name: sums for name in partitions if (sums := table.partitions.get(name)) is not None}
    return {name: replace(sums, is_settled=True) for name, sums in held.items()}


def _states_of_now() -> None:
    from tiering.catalog.index.past import PastTable
    from tiering.catalog.index.table import TableMoment

    PastTable._with_states = lambda self, tables: TableMoment(tables)  # type: ignore[method-assign]


MISTAKES = (
    (
        "index: of another moment",
        "an answer is made of what another process has changed since",
        f"{_UNIT}::test_a_place_that_others_changed_gives_no_answer",
        replaced(_INDEX, "_check_now", nothing),
    ),
    (
        "index: overtaken",
        "a scan ends though others have brought in something else meanwhile",
        f"{_UNIT}::test_a_scan_that_others_overtake_does_not_end",
        replaced(_INDEX, "_is_what", lambda table, found: True),
    ),
    (
        "index: a flipped bit of a sum",
        "sums in the index have no checksum",
        f"{_UNIT}::test_no_flipped_bit_of_a_sum_is_believed",
        replaced(_ROWS, "_check", nothing),
    ),
    (
        "index: a flipped bit of a part",
        "a part is taken from the sums with what its row says, whatever its checksum",
        f"{_UNIT}::test_no_flipped_bit_of_a_part_goes_into_a_sum",
        replaced("tiering.catalog.index.changes", "_is_checked", lambda facts, state, crc32: True),
    ),
    (
        "index: a row that is lost",
        "a part whose row is lost from the index is left out",
        f"{_UNIT}::test_a_row_that_is_lost_leaves_no_part_out",
        replaced(_INDEX, "_compare", nothing),
    ),
    (
        "index: a partition that is lost",
        "a partition whose sums are lost from the index is left out",
        f"{_UNIT}::test_sums_that_are_lost_are_not_left_out",
        replaced(f"{_ROWS}:DiskTable", "adds_up", lambda self: True),
    ),
    (
        "index: settled for good",
        "states are not computed again when a part goes",
        f"{_UNIT}::test_states_are_kept_and_go_with_the_parts",
        _settled_for_good,
    ),
    (
        "index: duplicates unseen",
        "parts whose names meet are taken for active",
        f"{_UNIT}::test_parts_whose_blocks_meet_are_mixed",
        replaced(_INDEX, "_may_be_mixed", nothing),
    ),
    (
        "index: times of another boot",
        "after a power cut the indexes of times are taken as they are",
        f"{_UNIT}::test_after_a_boot_times_are_indexed_once_more",
        replaced("tiering.catalog.index.database", "_is_ready", _is_of_this_layout),
    ),
    (
        "index: in memory for good",
        "a file of the index that could not be used once is never tried again",
        f"{_UNIT}::test_a_file_that_cannot_be_made_is_none",
        replaced("tiering.catalog.index.database", "_PAUSE_SECONDS", float("inf")),
    ),
    ("index: gone is kept", "parts that are gone stay in the index", _MACHINE, _gone_is_kept),
    ("index: broken for good", "a part that is mended in table is shown as broken", _MACHINE, _broken_is_believed),
    ("index: any state", "who has looked once goes by that, whatever others commit", _MACHINE, _any_state),
    (
        "index: the first of a scan",
        "a scan that is not over is believed",
        f"{_UNIT}::test_a_scan_that_died_is_not_believed",
        _state_before_the_end,
    ),
    (
        "index: due by the rules of before",
        "when a rule is due is not computed again when the rules change",
        _MACHINE,
        replaced(f"{_SCAN}:ScanTarget", "basis", (7, 7)),
    ),
    (
        "index: one disk after the other",
        "a part that moves from a disk that is yet to be looked at to one that was is seen on neither",
        f"{_TABLE}::test_a_part_that_moves_between_two_disks_is_seen",
        replaced("tiering.catalog.index.table:IndexedTable", "_is_behind", nothing),
    ),
    (
        "index: states not kept",
        "who opens after a state was computed takes all parts for active",
        f"{_TABLE}::test_a_copy_that_comes_to_a_second_disk_is_a_duplicate",
        replaced("tiering.catalog.index.changes", "set_states", _without_states),
    ),
    (
        "index: dropped by half",
        "parts that are about to be dropped are shown",
        f"{_TABLE}::test_parts_that_are_being_dropped_are_gone",
        replaced("tiering.catalog.index.table:IndexedTable", "_prefix", "none"),
    ),
    (
        "index: states of now",
        "a part of the past has the state that it has now",
        f"{_TABLE}::test_each_revision_of_the_past_is_what_the_bucket_had",
        _states_of_now,
    ),
    (
        "index: away now",
        "a query of the past is answered by the parts of now",
        f"{_TABLE}::test_each_revision_of_the_past_is_what_the_bucket_had",
        replaced("tiering.catalog.index.past:PastTable", "_new", lambda self, difference, partition: []),
    ),
)
