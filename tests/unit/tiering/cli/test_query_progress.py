"""What a long query tells of itself: percent, bytes and rows, which never fall back; and a short one nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest

from disks.config import LocalDiskConfig
from disks.workers.progress import SILENT, Silent
from oplog.errors import FrostlineError
from tests.homes import Home
from tests.tiers import define, make_context, put_part, put_table, resolver
from tiering.cli.frame.terminal_progress import Documents
from tiering.cli.reports import query_progress
from tiering.cli.reports.query_progress import shown
from tiering.query.query import QueryResult, run_sql

_TWO = pa.record_batch({"x": [1, 2]})


class Result:
    """How far a query is, as a test says."""

    def __init__(self, *looks: tuple[float | None, int]) -> None:
        self._looks = looks
        self.count = 0

    def done_so_far(self) -> tuple[float | None, int]:
        self.count += 1
        return self._looks[min(self.count, len(self._looks)) - 1]

    @property
    def is_seen(self) -> bool:
        """Whether the last look was taken."""
        return self.count >= len(self._looks)


class Told(Silent):
    """A progress and its only task, which say what they were told."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self.seen = threading.Event()
        self.tasks: list[tuple[str, int | None]] = []
        self.notes: list[str] = []
        self.percents: list[int] = []
        self.sizes: list[int] = []
        self.ended = 0

    def task(self, title: str, *, items: int | None = None, size_bytes: int | None = None) -> Told:
        self.tasks.append((title, items))
        return self

    def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
        self.percents.append(items)
        self.sizes.append(size_bytes)
        if self._result.is_seen:
            self.seen.set()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended += 1


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_progress, "FIRST_SECONDS", 0)
    monkeypatch.setattr(query_progress, "_AGAIN_SECONDS", 0.001)


def _as_result(result: Result) -> QueryResult:
    return cast("QueryResult", result)


def _read(result: QueryResult) -> None:
    with suppress(FrostlineError):
        next(result.batches())


def _tellers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "query progress"]


def test_it_is_told_before_the_first_row_and_never_falls_back() -> None:
    result = Result((None, 0), (0.25, 2048), (0.2, 1024), (0.5, 4096))
    told = Told(result)

    def batches() -> Iterator[pa.RecordBatch]:
        assert told.seen.wait(60)
        yield _TWO

    assert list(shown(batches(), _as_result(result), told)) == [_TWO]
    assert told.tasks == [("percent of the query", 100)]
    assert (told.percents[:4], told.sizes[:4]) == ([0, 25, 0, 25], [0, 2048, 0, 2048])
    assert told.notes[:4] == [
        "0 B read, 0 rows",
        "2.0 KiB read, 0 rows",
        "2.0 KiB read, 0 rows",
        "4.0 KiB read, 0 rows",
    ]
    assert told.notes[-1] == "4.0 KiB read, 2 rows"
    assert told.ended == 1
    assert not _tellers()


@pytest.mark.parametrize("failure", [None, LookupError("gone")])
def test_it_ends_with_a_query_that_ends_early(failure: Exception | None) -> None:
    result = Result((0.1, 1))
    told = Told(result)

    def batches() -> Iterator[pa.RecordBatch]:
        assert told.seen.wait(60)
        yield _TWO
        if failure is not None:
            raise failure
        raise AssertionError("nobody asked for it")

    rows = shown(batches(), _as_result(result), told)
    assert next(rows) == _TWO
    assert told.ended == 0
    if failure is None:
        rows.close()
    else:
        with pytest.raises(LookupError, match="gone"):
            next(rows)
    assert told.ended == 1
    assert not _tellers()


def test_a_short_query_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_progress, "FIRST_SECONDS", 3600)
    result = Result((0.1, 1))
    told = Told(result)
    assert list(shown(iter([_TWO]), _as_result(result), told)) == [_TWO]
    assert told.tasks == []
    assert not _tellers()


def test_nobody_looks_where_nothing_is_shown() -> None:
    rows = shown(iter([_TWO]), _as_result(Result((0.1, 1))), SILENT)
    assert next(rows) == _TWO
    assert not _tellers()


def test_the_engine_counts_while_it_computes(tmp_path: Path) -> None:
    """A product of 10^12 rows: its share is known long before the first row, and it ends when it is given up."""
    context = make_context(tmp_path, {"ssd": LocalDiskConfig(path=str(tmp_path / "ssd"))})
    definition = define("u.t", {"k": "int64"}, ["k"])
    put_table(context, definition)
    put_part(context, definition, "ssd", pa.table({"k": pa.array(range(1000), pa.int64())}), 1)
    sql = "SELECT sum(a.k * b.k + c.k * d.k) FROM u.t a, u.t b, u.t c, u.t d"
    result = run_sql(context, sql, resolver(context))
    session = result._session
    assert session is not None
    is_known, given_up = threading.Event(), threading.Event()

    def ask() -> None:
        while not given_up.wait(0.01):
            if result.done_so_far()[0] is not None:
                is_known.set()
                return

    asker = threading.Thread(target=ask)
    reader = threading.Thread(target=_read, args=[result])
    asker.start()
    reader.start()
    try:
        assert is_known.wait(60)
        share, read_bytes = result.done_so_far()
        assert share is None or 0 <= share <= 1
        assert read_bytes > 0
    finally:
        given_up.set()
        asker.join()
        while reader.is_alive():
            with suppress(duckdb.Error):  # it has ended
                session.connection.interrupt()
            reader.join(0.01)


def test_the_command_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer waits until it was told once."""
    home = Home(tmp_path, "one", capsys)
    home.create()
    home.insert(*range(1000))
    told = threading.Event()
    rows = QueryResult.plain_rows

    class Heard(Documents):
        def task(self, title: str, *, items: int | None = None, size_bytes: int | None = None):  # type: ignore[no-untyped-def]
            told.set()
            return super().task(title, items=items, size_bytes=size_bytes)

    def waiting(self: QueryResult) -> Iterator[list[list[Any]]]:
        assert told.wait(60)
        yield from rows(self)

    monkeypatch.setattr("tiering.cli.frame.terminal_progress.Documents", Heard)
    monkeypatch.setattr(QueryResult, "plain_rows", waiting)
    assert home.json("query", "SELECT count(*) FROM d.t", "--json-progress")["rows"] == [[1000]]
    assert [line for line in home.error.splitlines() if "of the query" in line and '"state": "done"' in line]
