"""Seeded mistakes in writing ClickHouse's log and metadata, for `tests.crash.mutants`: name, meaning, check, how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def _counter_begins_again() -> None:
    """ClickHouse's first defect: with every start the numbers begin at 1."""
    from disks.clickhouse.disk import ClickHouseDisk

    def reserve(self: Any, count: int) -> int:
        self.file_table  # noqa: B018 - it is opened as ever
        first = self.__dict__.get("_mutant", 0) + 1
        self.__dict__["_mutant"] = first + count - 1
        return int(first)

    ClickHouseDisk._reserve = reserve  # type: ignore[method-assign]


def _bucket_not_asked() -> None:
    """The numbers of the bucket are not looked at: what another machine wrote is not noticed."""
    from disks.clickhouse.log import ClickHouseLog

    ClickHouseLog.highest_number = lambda self, known: 0  # type: ignore[method-assign]


def _intent_not_noted() -> None:
    from disks.clickhouse.disk import ClickHouseDisk

    ClickHouseDisk._intent = lambda self, table: None  # type: ignore[method-assign]


def _removal_not_logged() -> None:
    """ClickHouse has no word for a removal, and so nothing is logged."""
    from disks.clickhouse import plan as clickhouse_plan
    from oplog.entry import Remove

    original = clickhouse_plan._steps

    def steps(view: Any, operation: Any, mark: str) -> Any:
        return [] if isinstance(operation, Remove) else original(view, operation, mark)

    clickhouse_plan._steps = steps


def _directory_taken_for_granted() -> None:
    """A rename into a directory that does not exist, at which ClickHouse's restore stops."""
    from disks.file_table.views import TableReader

    TableReader.has_directory = lambda self, path: True  # type: ignore[method-assign]


def _frozen_parts_not_kept() -> None:
    """ClickHouse's second defect: what only a FREEZE holds is nobody's."""
    from disks.clickhouse.disk import ClickHouseDisk

    def kept(self: Any) -> Iterator[str]:
        with self.file_table.read() as view:
            for row in view.rows():
                if not row.path.startswith("shadow/"):
                    yield from (key for key, _ in row.blobs)

    ClickHouseDisk.kept_keys = kept  # type: ignore[method-assign]


def _frozen_parts_lost_by_a_rebuild() -> None:
    from restore.clickhouse import rebuild as clickhouse_rebuild

    clickhouse_rebuild.SHADOW = "no such directory/"


def _links_as_copies() -> None:
    """Every name of a file gets a metadata file of its own."""
    from restore.clickhouse import tree as clickhouse_tree

    original = clickhouse_tree._write
    clickhouse_tree._write = lambda directory, path, data, source: original(directory, path, data, None)


def _leftovers_replayed() -> None:
    """What a transaction that never ended had uploaded is a file of the disk."""
    from oplog.clickhouse import replay as clickhouse_replay

    clickhouse_replay.is_leftover = lambda path: "/delete_tmp_" in f"/{path}"


_DISK = "tests/unit/disks/clickhouse/test_clickhouse_disk.py"
_TREE = "tests/unit/restore/clickhouse/test_clickhouse_tree.py"
_EXCHANGE = "tests/integration/test_clickhouse_exchange.py"

MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "counter begins again",
        "after a restart numbers repeat",
        f"{_DISK}::test_numbers_never_repeat_over_restarts",
        _counter_begins_again,
    ),
    (
        "bucket not asked",
        "what another machine wrote is not noticed",
        f"{_DISK}::test_another_machine_is_noticed_before_anything_is_written",
        _bucket_not_asked,
    ),
    (
        "intent not noted",
        "a transaction that was stopped while it was logged is not finished",
        f"{_DISK}::test_a_commit_that_was_logged_in_part_is_finished",
        _intent_not_noted,
    ),
    (
        "removal not logged",
        "a rebuild brings removed files back",
        f"{_DISK}::test_a_rebuild_gives_what_the_disk_shows",
        _removal_not_logged,
    ),
    (
        "directory taken for granted",
        "a rename goes where ClickHouse's restore has no directory",
        f"{_DISK}::test_a_rename_into_a_new_directory_is_made_of_links",
        _directory_taken_for_granted,
    ),
    (
        "frozen parts not kept",
        "gc takes what only a frozen part holds",
        f"{_DISK}::test_everything_that_may_be_needed_is_kept",
        _frozen_parts_not_kept,
    ),
    (
        "frozen parts lost",
        "a rebuild forgets frozen parts that the log never knew",
        f"{_EXCHANGE}::test_a_rebuild_keeps_what_only_the_table_knows",
        _frozen_parts_lost_by_a_rebuild,
    ),
    (
        "links as copies",
        "exported names are no hard links",
        f"{_TREE}::test_names_of_one_file_are_one_inode",
        _links_as_copies,
    ),
    (
        "leftovers replayed",
        "an abandoned transaction comes back with a rebuild",
        f"{_DISK}::test_a_rebuild_gives_what_the_disk_shows",
        _leftovers_replayed,
    ),
)
