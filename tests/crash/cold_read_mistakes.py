"""Seeded mistakes of reads of cold parts, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from disks.stores.base import ByteRange
from tests.crash.seeding import nothing, replaced

_FETCHED = "tests/unit/tiering/query/test_fetched_files.py"
_FOOTERS = "tests/unit/tiering/parquet/test_footers.py"
_STATED = "tests/unit/tiering/query/test_stated_rows.py"
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
    from tiering.query.sql import cold_reads

    matching = cold_reads.matching_groups

    def fewer(*arguments: Any) -> frozenset[int] | None:
        groups = matching(*arguments)
        return groups - {max(groups)} if groups else groups

    cold_reads.matching_groups = fewer


def _footer_leaves_out() -> None:
    """The last row group that can match by the footer is not read."""
    from tiering.query.sql import cold_reads

    says = cold_reads.footer_groups

    def fewer(*arguments: Any, **named: Any) -> Any:
        groups = says(*arguments, **named)
        return set(groups) - {max(groups)} if groups else groups

    cold_reads.footer_groups = fewer


def _anything_is_whole() -> None:
    """A file is taken for what was written whatever its SHA-256 is."""
    from tiering.parquet.checked_file import CheckedFile

    compared = CheckedFile._compared_blocks
    CheckedFile._learn = lambda self, put=None: compared(self, put) is not None  # type: ignore[method-assign]


def _nothing_compared() -> None:
    """What a request brings is taken as it is."""
    from tiering.parquet.checked_file import CheckedFile

    CheckedFile._fetched = lambda self, sections: memoryview(  # type: ignore[method-assign]
        self._fetch(ByteRange(sections[0].start, sections[-1].stop))
    )


def _shortened_is_exact() -> None:
    """Bounds of long texts are taken for values."""
    from tiering.query.sql import stated_rows

    stated_rows._SHORT = 1 << 30


def _too_few_rows() -> None:
    """Half of the rows that are wanted are taken for enough."""
    from tiering.query.sql import session

    first = session.first_files
    session.first_files = lambda files, definition, access, enough: first(files, definition, access, enough // 2)


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
        "cold read: a row group left out by the footer",
        "a row group that holds rows of the answer is not read, by statistics of the footer",
        f"{_STATEMENTS}[1-False]",
        _footer_leaves_out,
    ),
    (
        "cold read: a whole file that is another one",
        "a file without sections is not compared with its SHA-256",
        f"{_FETCHED}::test_a_file_without_sections_that_is_another_one",
        _anything_is_whole,
    ),
    (
        "cold read: what came is taken",
        "sections that were fetched are not compared with their CRC32",
        f"{_FETCHED}::test_what_is_not_what_was_written_is_an_error",
        _nothing_compared,
    ),
    (
        "cold read: null taken for true",
        "rows for which a filter is null count as those for which it is true",
        f"{_STATED}::test_what_it_does_not_say_is_read[SELECT count(*) FROM u.t WHERE n >= 0]",
        replaced("tiering.table.pruning", "_is_never_null", lambda *arguments: True),
    ),
    (
        "cold read: a shortened text as the smallest",
        "the bound of a long text, which is shortened, is the answer",
        f"{_STATED}::test_what_it_does_not_say_is_read[SELECT min(long) AS a, max(long) AS b FROM u.t]",
        _shortened_is_exact,
    ),
    (
        "cold read: fewer rows than the limit",
        "not so many row groups are read as have the rows that are wanted",
        f"{_STATED}::test_some_rows_need_few_requests[-1000-300]",
        _too_few_rows,
    ),
    (
        "cold read: rows of all row groups",
        "the footer counts the rows of row groups that are not in it",
        f"{_FOOTERS}::test_arrow_reads_these_groups_and_no_others[plain]",
        replaced("tiering.parquet.footers", "_varint", lambda value: b"\x02"),
    ),
)
