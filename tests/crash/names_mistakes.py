"""Seeded mistakes in giving names to parts, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import replaced

_NAMES = "tests/integration/test_part_names.py"


def _first_free_in_sight(context: Any, definition: Any) -> int:
    """As it was: the number after those in sight, of the last range that this machine owns."""
    from tiering.catalog import blocks
    from tiering.table import part

    current = max(blocks.owned(context, definition), default=None)
    if current is None:
        current = blocks.take_range(context, definition)
    used = [number for number in blocks._in_sight(context, definition) if part.range_of(number) == current]
    return max(used, default=current * part.RANGE_BLOCKS) + 1


def _numbers_forgotten() -> None:
    from tiering.journal.journal import Journal

    original = Journal.forget_table

    def forget_table(self: Any, table_uuid: str) -> None:
        original(self, table_uuid)
        with self.file.write("forget_table", table_uuid) as connection:
            connection.execute("UPDATE blocks SET next = 1 WHERE table_uuid = ?", (table_uuid,))

    Journal.forget_table = forget_table  # type: ignore[method-assign]


def _old_journal_believed() -> None:
    from tiering.catalog import blocks

    original = blocks.first_free

    def first_free(context: Any, definition: Any) -> int:
        blocks._in_sight = lambda *arguments, **options: iter(())
        return original(context, definition)

    blocks.first_free = first_free


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "names: numbers from what is in sight",
        "a journal that is new gives the number after the highest that is left",
        f"{_NAMES}::test_after_a_restore_with_a_lost_state",
        replaced("tiering.catalog.blocks", "first_free", _first_free_in_sight),
    ),
    (
        "names: nothing in sight",
        "after a delete a journal that is new begins its range again",
        f"{_NAMES}::test_after_a_ttl_delete_with_a_lost_state",
        replaced("tiering.catalog.blocks", "first_free", _first_free_in_sight),
    ),
    (
        "names: an old journal is believed",
        "a journal that was put back from a copy gives its numbers again",
        f"{_NAMES}::test_a_journal_that_is_older_than_the_parts",
        _old_journal_believed,
    ),
    (
        "names: numbers forgotten with the table",
        "a table that comes back after it was dropped begins again",
        f"{_NAMES}::test_after_a_drop_an_undo_and_a_restore",
        _numbers_forgotten,
    ),
    (
        "names: ranges go with the table",
        "a drop frees the ranges that were taken, and a restore does not know of them",
        f"{_NAMES}::test_ranges_after_a_drop_and_a_restore",
        replaced("tiering.catalog.tables", "is_reservation", lambda path: False),
    ),
    (
        "names: levels not kept by a restore",
        "what was merged comes back and gets the same name when it is merged again",
        f"{_NAMES}::test_merges_after_the_way_back[False-restore]",
        replaced("restore.rebuild.rebuild", "level_marks", lambda wanted, merged: []),
    ),
    (
        "names: levels not kept by a restore from a copy",
        "a merge that a copy does not have is made again under its name",
        f"{_NAMES}::test_merges_after_the_way_back[False-copy]",
        replaced("restore.transfer.changes", "levels_going", lambda wanted, newest: {}),
    ),
    (
        "names: ranges left behind in a copy",
        "a partition comes from a copy without what says who gave the names of its parts",
        f"{_NAMES}::test_after_a_partition_that_came_from_a_copy",
        replaced("restore.transfer.changes", "reservations_coming", lambda wanted, newest, scope: []),
    ),
    (
        "names: levels not kept by an undo",
        "the same after an undo",
        f"{_NAMES}::test_merges_after_the_way_back[False-undo]",
        replaced("restore.history.undo", "levels_given", lambda decided: {}),
    ),
    (
        "names: levels not read",
        "a merge does not look at the levels that were given",
        f"{_NAMES}::test_merges_after_the_way_back[True-restore]",
        replaced("tiering.merge.output", "highest_level", lambda names: -1),
    ),
)
