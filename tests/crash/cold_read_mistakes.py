"""Seeded mistakes of reads of cold parts, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.crash.seeding import nothing, replaced

_FETCHED = "tests/unit/tiering/query/test_fetched_files.py"
_FOOTERS = "tests/unit/tiering/parquet/test_footers.py"
_STATEMENTS = "tests/property/test_cold_statements.py::test_the_answer_is_that_of_the_engine_alone"


def _written_beside() -> None:
    """Bytes are put four bytes from their place."""
    from tiering.query.sql import fetched_files

    write = fetched_files._write

    def beside(descriptor: int, start: int, pieces: Sequence[memoryview], path: Any) -> None:
        write(descriptor, start + 4, pieces, path)

    fetched_files._write = beside


def _group_left_out() -> None:
    """The last row group that can match is not read."""
    from tiering.query.sql import session

    matching = session.matching_groups

    def fewer(*arguments: Any) -> frozenset[int] | None:
        groups = matching(*arguments)
        return groups - {max(groups)} if groups else groups

    session.matching_groups = fewer


Mistake = tuple[str, str, str, Callable[[], None]]

MISTAKES: tuple[Mistake, ...] = (
    (
        "cold read: bytes beside their place",
        "what was fetched is put at another offset",
        f"{_FETCHED}::test_the_engine_reads_what_was_fetched",
        _written_beside,
    ),
    (
        "cold read: footer of all row groups",
        "row groups that were not fetched stay in the footer",
        f"{_FETCHED}::test_other_row_groups_are_not_there[{{1, 2}}]",
        replaced("tiering.query.sql.fetched_files", "_leave_out", nothing),
    ),
    (
        "cold read: a row group left out",
        "a row group that holds rows of the answer is not read",
        f"{_STATEMENTS}[0-False]",
        _group_left_out,
    ),
    (
        "cold read: rows of all row groups",
        "the footer counts the rows of row groups that are not in it",
        f"{_FOOTERS}::test_arrow_reads_these_groups_and_no_others[plain]",
        replaced("tiering.parquet.footers", "_varint", lambda value: b"\x02"),
    ),
)
