"""Seeded mistakes in the past as the present leads to it, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import nothing, replaced

_BACK = "tests/property/test_going_back.py"
_LOOKS = "tests/unit/tiering/catalog/test_scans.py"
_LET_GO = "tests/unit/tiering/query/test_past_let_go.py"


class _AnyDigest(str):
    """Is what it is compared with."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def _rows_believed() -> None:
    from disks.file_table import gone_rows

    digest_at = gone_rows.digest_at

    def believed(*arguments: Any, **options: Any) -> Any:
        return None if digest_at(*arguments, **options) is None else _AnyDigest()

    gone_rows.digest_at = believed


def _until_somebody_commits() -> None:
    from disks.file_table import gone_rows

    show_past = gone_rows.show_past

    def shown(connection: Any, *arguments: Any) -> None:
        show_past(connection, *arguments)
        connection.execute("COMMIT")

    gone_rows.show_past = shown  # type: ignore[assignment]


def _kept_of_now() -> None:
    from tiering.catalog.index.past import Difference

    def differing(now: Any, away: Any, change: Any) -> Difference:
        return Difference(now, frozenset(), change)

    replaced("tiering.catalog.index.past", "Difference", differing)()


def _held_like_any_table(self: Any, table: Any) -> None:
    self._table, self._caught_up = table, True


def _let_go_of_by_the_first_try() -> None:
    from tiering.query import query

    run = query._run

    def tried(context: Any, sql: str, resolve: Any, allow_files: bool, held: Any) -> Any:
        try:
            return run(context, sql, resolve, allow_files, held)
        except BaseException:
            held.close()
            raise

    query._run = tried


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "past: what left is forgotten",
        "rows that leave a file table are not kept",
        f"{_BACK}::test_each_revision_is_that_of_the_log",
        replaced("disks.file_table.views:TableWriter", "_note_gone", nothing),
    ),
    (
        "past: beyond the beginning",
        "a table leads back beyond the revision that it was begun at",
        f"{_BACK}::test_a_table_that_was_lost_leads_back_to_where_it_was_begun",
        replaced("disks.file_table.gone_rows", "digest_at", lambda *arguments, **options: _AnyDigest()),
    ),
    (
        "past: rows believed",
        "the rows that lead back are not compared with what the log says",
        f"{_BACK}::test_rows_that_do_not_lead_to_the_log_s_state_are_not_used",
        _rows_believed,
    ),
    (
        "past: too much kept",
        "rows that left are kept without an end",
        f"{_BACK}::test_of_many_rows_the_last_lead_back",
        replaced("disks.file_table.views:TableWriter", "_forget_gone", nothing),
    ),
    (
        "past: changed by what comes",
        "the past is one of the table as it is when it is read, not when it was asked for",
        f"{_BACK}::test_what_is_committed_meanwhile_does_not_change_the_past",
        _until_somebody_commits,
    ),
    (
        "past: only what came",
        "of a bucket it is told what came between two states, and not what left",
        f"{_BACK}::test_what_is_another_at_two_revisions_is_among_what_changed",
        replaced(
            "disks.file_table.gone_rows",
            "_TOUCHED",
            "SELECT path FROM main.files WHERE revision BETWEEN :after + 1 AND :to AND path >= :start AND path < :stop",
        ),
    ),
    (
        "past: the kept of now",
        "a look at the past shows what is kept of the present beside what it found",
        f"{_LOOKS}::test_a_query_of_the_past_reads_what_changed_and_is_asked",
        _kept_of_now,
    ),
    (
        "past: looked at as a whole",
        "what a bucket's commits have changed is not asked for",
        f"{_LOOKS}::test_a_query_of_the_past_reads_what_changed_and_is_asked",
        replaced("disks.object_disk.disk:ObjectDisk", "changed_between", nothing),
    ),
    (
        "past: held for ever",
        "nobody closes the disk of the past that a query was answered from",
        f"{_LET_GO}::test_an_answer_that_was_read",
        replaced("disks.object_disk.disk:DiskAsOf", "close", nothing),
    ),
    (
        "past: let go of too early",
        "a statement that is begun again asks a disk of the past that was closed",
        f"{_LET_GO}::test_a_statement_that_is_begun_again_is_one_of_the_same_past",
        _let_go_of_by_the_first_try,
    ),
    (
        "past: the present instead",
        "a disk of the past that was closed opens the table of now",
        f"{_LET_GO}::test_a_past_that_was_let_go_of_never_shows_the_present",
        replaced("disks.object_disk.cache:TableCache", "hold", _held_like_any_table),
    ),
)
