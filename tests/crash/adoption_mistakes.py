"""Seeded mistakes in the order of inserts that adoption keeps, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk, identity_of
from tests.crash.seeding import nothing, replaced

_ORDER = "tests/integration/test_adoption_order.py"
_MACHINES = "tests/hostile/test_bucket_of_machines_set_back.py"


def _by_name(stored: Any) -> tuple[int, int]:
    return stored.name.min_block, stored.name.max_block


def _everything_seen(context: Any, definition: Any) -> dict[str, int]:
    disks = map(context.disk, context.catalog.policy_disks(definition))
    return {identity: 10**9 for disk in disks if (identity := identity_of(disk)) is not None}


def _any_kind_took_it(disk: Any, path: str) -> int | None:
    revision: int | None = disk.stat(path).revision
    return revision


def _same_range_goes_on(context: Any, definition: Any, inputs: Any) -> int:
    from tiering.catalog import blocks

    return blocks.first_free(context, definition)


def _word_over_all(self: Any, ordered: Any, earlier: Any) -> list[Any]:
    return sorted(ordered, key=lambda stored: self._is_foreign(stored) != (self.counts_as == "older"))


def _all_are_own(context: Any, plan: Any, definition: Any) -> set[int]:
    from tiering.table.part import PartName, range_of

    used = {range_of(PartName.parse(placed.entry.name).max_block) for placed in plan.parts}
    return {item.index for item in plan.ranges} | used


def _any_mark_speaks(self: Any, index: int) -> dict[str, int]:
    from tiering.catalog import blocks

    disks = [self._context.disk(name) for name in self._context.catalog.policy_disks(self._definition)]
    names = {identity_of(disk): disk.name for disk in disks if as_disk(disk, LoggedDisk) is not None}
    marks = (blocks.read_mark(disk, self._definition, index) for disk in disks)
    return {names[one]: revision for said in marks if said for one, revision in said.seen.items() if one in names}


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "adoption: order ignored",
        "what was inserted after the adopted parts is not rewritten, and merges go by names alone",
        f"{_ORDER}::test_the_newer_row_stays[cold-replacing]",
        replaced("tiering.merge.adoption", "depends_on_order", lambda definition: False),
    ),
    (
        "adoption: order of the new number",
        "adopted rows count as inserted when they were adopted",
        f"{_ORDER}::test_after_an_undo_parts_stay_apart_until_they_are_in_line",
        replaced("tiering.catalog.stored:StoredPart", "inserted", property(_by_name)),
    ),
    (
        "adoption: refusal left out",
        "where nobody can tell which rows came first, the numbers do",
        f"{_ORDER}::test_what_nobody_can_order_is_refused",
        replaced("tiering.catalog.insertion_order:InsertionOrder", "came_first", lambda *arguments: True),
    ),
    (
        "adoption: neighbours by name alone",
        "parts merge over one that was inserted between them",
        f"{_ORDER}::test_after_an_undo_parts_stay_apart_until_they_are_in_line",
        replaced("tiering.catalog.insertion_order:Followers", "follows", lambda *arguments: True),
    ),
    (
        "adoption: marks say too much",
        "a range says that its machine had seen what came later",
        f"{_ORDER}::test_what_nobody_can_order_is_refused",
        replaced("tiering.catalog.blocks", "_seen", _everything_seen),
    ),
    (
        "adoption: copied marks believed",
        "a mark without a word counts as taken when it came, also by a copy",
        f"{_ORDER}::test_marks_that_a_copy_brought_say_nothing",
        replaced("tiering.catalog.insertion_order", "_taken", _any_kind_took_it),
    ),
    (
        "adoption: later inserts in an old range",
        "what is inserted after an adoption gets a number below that of what was adopted",
        f"{_ORDER}::test_what_is_inserted_after_an_adoption_is_newer",
        replaced("tiering.merge.merger", "_first_after", _same_range_goes_on),
    ),
    (
        "adoption: what came meanwhile forgotten",
        "a part that came between the plan and the claims keeps a number above those of what is older",
        f"{_ORDER}::test_a_part_that_came_meanwhile_is_a_conflict",
        replaced("tiering.merge.merger", "_check_later", nothing),
    ),
    (
        "adoption: ranges of several backups",
        "of a table restored from the backups of several machines all ranges become this machine's, in any order",
        f"{_ORDER}::test_a_backup_of_several_machines_gives_no_order",
        replaced("backup.recover.recover", "_own_ranges", _all_are_own),
    ),
    (
        "ranges: the bucket is not asked again (I18)",
        "a machine keeps its ranges, whatever the marks in a bucket that was set back say",
        f"{_MACHINES}::test_a_range_is_not_given_twice",
        replaced("tiering.catalog.blocks", "prove_own", lambda context, definition: []),
    ),
    (
        "ranges: every mark is one's own (I18)",
        "a range that another machine took after a set-back gives numbers here, too",
        f"{_MACHINES}::test_a_range_that_another_machine_took_is_its_own",
        replaced("tiering.catalog.blocks", "_is_own", lambda *arguments: True),
    ),
    (
        "two parts of one name are one (I1)",
        "of two parts that bear one name only one answers",
        f"{_MACHINES}::test_a_range_that_another_machine_took_is_its_own",
        replaced("tiering.catalog.stored:StoredPart", "is_copy_of", lambda stored, other: stored.name == other.name),
    ),
    (
        "adoption: revisions of a lost log (I13)",
        "a mark elsewhere says how far a bucket was seen before it was set back",
        f"{_MACHINES}::test_a_revision_of_the_lost_log_orders_nothing",
        replaced("tiering.catalog.insertion_order:InsertionOrder", "_read", _any_mark_speaks),
    ),
    (
        "adoption: a word over the log",
        "what a person says of foreign rows also orders those whose order the log knows",
        f"{_ORDER}::test_a_word_never_overrides_the_log[older]",
        replaced("tiering.merge.adoption:_Planner", "_in_line", _word_over_all),
    ),
)
