"""Seeded mistakes in what TTL rules do with rows without a time, and moves with the copies that they leave, for
`tests.crash.mutants`. Name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tests.crash.seeding import replaced

_ROWS = "tests/property/test_ttl_rows.py"
_UNDATED = "tests/integration/test_undated_rows.py"


def _stated_otherwise(change: Callable[[Any], Any]) -> Callable[[], None]:
    """The rules read other statistics than `part.json` has."""

    def apply() -> None:
        from tiering.policy import ttl

        original = ttl._undated
        ttl._undated = lambda known, rows, rule: original(change(known), rows, rule)

    return apply


def _no_nulls(known: Any) -> Any:
    return replace(known, nulls=0)


def _oldest_is_newest(known: Any) -> Any:
    return known if known.min is not None else replace(known, min=known.max)


def _rows_without_a_time_go() -> None:
    from tiering.merge import rows

    original = rows._is_live

    def is_live(times: Any, last_due: Any) -> Any:
        import pyarrow.compute as pc

        return pc.and_(original(times, last_due), pc.is_valid(times))

    rows._is_live = is_live


_CLOCKS = "tests/integration/test_clock_trust.py"
_COPIES = "tests/integration/test_source_copies.py"
_FSCK_OF_COPIES = "tests/integration/test_fsck_of_copies.py"
_ORIGINALS = "tests/integration/test_copies_are_not_merged.py"


def _copies_stay() -> None:
    from tiering.catalog.copies.source_copies import VALID

    replaced("tiering.catalog.copies.source_copies:SourceCopies", "state", lambda self, definition, part: VALID)()


def _unknown_is_local() -> None:
    replaced(
        "tiering.catalog.copies.source_copies:SourceCopies",
        "_is_shared",
        lambda self, disk: disk in self._disks and self._disks[disk].capabilities.shared,
    )()


def _only_the_nearest_copy_moves() -> None:
    from tiering.policy import change

    original = change.manual_moves

    def manual_moves(parts: Any, *arguments: Any, **options: Any) -> Any:
        nearest = {copy.name: copy for copy in reversed(list(parts))}
        return original(nearest.values(), *arguments, **options)

    change.manual_moves = manual_moves


def _changes_go_by_copies() -> None:
    def originals(self: Any, definition: Any, partition: str | None = None) -> Any:
        return self.parts(definition) if partition is None else self.partition(definition, partition)

    replaced("tiering.catalog.catalog:Catalog", "originals", originals)()


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "ttl: a null is due",
        "a part is deleted with its rows that have no time",
        f"{_ROWS}::test_a_part_is_deleted_when_each_row_is",
        _stated_otherwise(_no_nulls),
    ),
    (
        "ttl: unknown is none",
        "a part is deleted though its statistics do not say whether each row has a time",
        f"{_ROWS}::test_what_statistics_leave_open_keeps_the_part",
        _stated_otherwise(_oldest_is_newest),
    ),
    (
        "ttl: merges drop nulls",
        "a merge leaves out rows without a time",
        f"{_ROWS}::test_a_merge_deletes_the_rows_that_are_due",
        _rows_without_a_time_go,
    ),
    (
        "ttl: merges trust any clock",
        "a merge drops rows by a clock that no other confirms",
        f"{_CLOCKS}::test_parts_merge_on_while_no_clock_confirms",
        replaced("tiering.move.policy_facts", "check_merge", lambda context, definition: ""),
    ),
    (
        "ttl: kept rows are rewritten",
        "a part is rewritten with each pass to delete rows that are kept",
        f"{_CLOCKS}::test_a_part_with_undated_rows_waits_for_a_clock",
        replaced("tiering.move.policy_facts", "delete_doubt", lambda context, definition: ""),
    ),
    (
        "ttl: no merge for the rest",
        "the due rows of a part that keeps others wait for a merge with other parts",
        f"{_UNDATED}::test_a_pass_deletes_the_rows_that_are_due_and_no_others",
        replaced("tiering.merge.planning", "_expirations", lambda *arguments: ()),
    ),
    (
        "what a doubtful merge kept stays (I13)",
        "a final merge passes over a part that is alone and has rows past their TTL",
        "tests/integration/test_clock_trust.py::test_a_final_merge_deletes_what_a_doubtful_one_kept",
        replaced("tiering.policy.ttl", "due_rows", lambda dues, now: None),
    ),
    (
        "copies: changed as if they were parts",
        "a merge takes the copy that a move left, and recovery takes the part off the bucket",
        f"{_ORIGINALS}::test_a_change_leaves_the_rows_of_copies_in_the_bucket",
        _changes_go_by_copies,
    ),
    (
        "copies: saved in place of the part",
        "a backup names the copy that a move left on the SSD, and a restore brings the rows there",
        f"{_ORIGINALS}::test_a_backup_has_the_part_of_the_bucket",
        _changes_go_by_copies,
    ),
    (
        "copies: only the nearest moves",
        "a part stays in the bucket that a person moves to where its copy is",
        f"{_COPIES}::test_a_move_to_the_copy_makes_it_the_part",
        _only_the_nearest_copy_moves,
    ),
    (
        "copies: all move at once",
        "two copies of a part are taken off their disks by one batch",
        f"{_COPIES}::test_a_move_takes_every_copy_along",
        replaced("tiering.move.mover", "_each_once", lambda moves: [list(moves)]),
    ),
    (
        "copies: never outdated",
        "a copy that a move left counts though a commit took the part off the bucket",
        f"{_COPIES}::test_what_another_machine_takes_away_stays_away",
        _copies_stay,
    ),
    (
        "copies: a bucket's word is never the last",
        "of two buckets that had a part, the one that it left first is believed",
        f"{_COPIES}::test_no_clock_decides_which_bucket_had_a_part_last",
        replaced("tiering.catalog.copies.source_copies:CopyHistory", "is_before", lambda self, other: False),
    ),
    (
        "copies: home in a bucket nobody knows",
        "a move to a bucket that is not configured here is taken for a return to this machine",
        f"{_COPIES}::test_a_move_to_a_bucket_of_another_machine_is_no_return",
        _unknown_is_local,
    ),
    (
        "copies: outdated on a return",
        "a part that came back to this machine is taken for a copy of what was dropped",
        f"{_COPIES}::test_a_part_that_moved_back_stays",
        replaced("tiering.catalog.copies.source_copies", "_returns", lambda *arguments: False),
    ),
    (
        "copies: outdated by an undo of the move",
        "the part that an undo of its move leaves on this machine alone is taken for a copy",
        f"{_COPIES}::test_the_undo_of_the_move_leaves_the_part_here",
        replaced("tiering.catalog.copies.source_copies", "_returns", lambda *arguments: False),
    ),
    (
        "copies: outdated by damage",
        "a copy goes because a check set its damaged original aside",
        f"{_COPIES}::test_a_damaged_original_leaves_the_copy_valid",
        replaced("tiering.catalog.copies.source_copies", "_is_damaged", lambda *arguments: False),
    ),
    (
        "copies: forgotten with the journal",
        "a new journal lists no copies",
        f"{_COPIES}::test_what_another_machine_takes_away_stays_away",
        replaced("tiering.journal.journal:SourceCopyRecords", "are_listed", lambda self: True),
    ),
    (
        "copies: a fault without a journal",
        "fsck names a copy that was kept on purpose where the journal does not list it",
        f"{_FSCK_OF_COPIES}::test_no_fault_between_buckets_on_any_machine",
        replaced("restore.check.copies:_Arrivals", "explain", lambda self, copies: False),
    ),
    (
        "copies: a fault of none",
        "fsck names no part that a move was to take off its disk",
        f"{_FSCK_OF_COPIES}::test_a_copy_that_nobody_asked_for_is_a_fault",
        replaced("restore.check.copies:_Arrivals", "explain", lambda self, copies: True),
    ),
)
