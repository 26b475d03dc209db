"""What the read cache has of objects is opened by the engine itself: as soon as all that a statement reads is there and
is what was written, and never otherwise."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.homes import Home
from tests.integration.cached_homes import cached_home, gets
from tests.servers import Server
from tiering.parquet.sections import Section, stated_sections
from tiering.query.sql import cached_files, served_files, session
from tiering.query.sql.cached_files import CachedFiles
from tiering.query.sql.fetched_files import FetchedFiles

ROWS = 200_000
TEXT = "SELECT count(*), sum(k), sum(a), max(b) FROM d.t"


@pytest.fixture
def asked() -> list[str]:
    """What is asked of the server."""
    return []


@pytest.fixture
def rows() -> pa.Table:
    chance = np.random.default_rng(7)
    return pa.table(
        {
            "k": np.arange(ROWS),
            "a": chance.integers(0, 1 << 40, ROWS),
            "b": [f"{number:x}" for number in chance.integers(0, 1 << 40, ROWS)],
            "l": chance.integers(0, 1 << 40, (ROWS, 2)).tolist(),
        }
    )


@pytest.fixture
def home(
    tmp_path: Path,
    rows: pa.Table,
    asked: list[str],
    ministack: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Home]:
    """A machine whose table lies in a bucket, in two parts, with a cache."""
    with cached_home(tmp_path, ministack, capsys, monkeypatch, asked, max_bytes="100MB") as home:
        pq.write_table(rows, tmp_path / "rows.parquet")
        home("table", "create", "d.t", "--like", str(tmp_path / "rows.parquet"), "--order-by", "k")
        for half in (rows.slice(0, ROWS // 2), rows.slice(ROWS // 2)):
            pq.write_table(half, tmp_path / "half.parquet")
            home("insert", "d.t", str(tmp_path / "half.parquet"))
        home.to_bucket()
        yield home


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that the engine does not have from the cache."""
    found: list[str] = []
    add, fetch = served_files.ServedFiles.add, FetchedFiles.fetch

    def fetched(self: Any, reads: Any) -> None:
        found.extend(read.selected.path for read in reads)
        fetch(self, reads)

    monkeypatch.setattr(FetchedFiles, "fetch", fetched)

    def noted(self: Any, file: Any) -> str:
        found.append(add(self, file))
        return found[-1]

    monkeypatch.setattr(served_files.ServedFiles, "add", noted)
    return found


def right(home: Home, rows: pa.Table, sql: str = TEXT) -> None:
    """The answer is that of an engine that has the rows in memory."""
    with duckdb.connect() as engine:
        engine.register("rows", rows)
        expected = engine.execute(sql.replace("d.t", "rows")).fetchall()
    assert home.json("query", sql)["rows"] == [[*row] for row in expected]


def kept(home: Home) -> list[Path]:
    return sorted((home.path / "state" / "read-cache").glob("[ao]*/*"))


def sections(home: Home, column: int) -> list[tuple[Path, Section]]:
    """Where the chunks of this column lie in the files that are kept."""
    from tiering.config.reading import load
    from tiering.engine.store import Store

    with Store.open(load(home.configuration)) as store:
        stated = {file.size_bytes: file for stored in store.parts("d.t") for file in stored.part.files}
    return [
        (path, section)
        for path in kept(home)
        for section in stated_sections(stated[path.stat().st_size])
        if section.column == column
    ]


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def before_it_reads(monkeypatch: pytest.MonkeyPatch, harm: Callable[[], None]) -> None:
    """Do this once after the files were compared, before the engine opens them."""
    hold, done = CachedFiles.hold, list[bool]()

    def held(self: Any, *arguments: Any) -> None:
        hold(self, *arguments)
        if not done:
            done.append(True)
            harm()

    monkeypatch.setattr(CachedFiles, "hold", held)


@pytest.mark.in_turn
def test_what_is_kept_the_engine_opens(home: Home, rows: pa.Table, asked: list[str], served: list[str]) -> None:
    asked.clear()
    right(home, rows)
    assert len(served) == 2
    assert gets(asked) > 0
    served.clear()
    asked.clear()
    right(home, rows)
    right(home, rows, "SELECT b, a FROM d.t WHERE k IN (1, 150000) ORDER BY k")
    right(home, rows, "SELECT x.a FROM d.t x, d.t y WHERE x.k = y.k AND y.k = 77777")
    assert not served
    right(home, rows, "SELECT sum(l[2]) FROM d.t")  # of these columns nothing is there yet
    assert len(served) == 2
    served.clear()
    asked.clear()
    right(home, rows, "SELECT sum(l[2]), sum(a) FROM d.t")
    assert not served
    assert gets(asked) == 0
    figures = home.json("cache", "stats")
    assert 0.5 < figures["hit_rate"] < 1
    assert figures["again_bytes"] == figures["bytes"]


@pytest.mark.in_turn
def test_nothing_but_the_cache_is_left_of_it(home: Home, rows: pa.Table) -> None:
    right(home, rows)
    there = kept(home)
    for _ in range(3):
        right(home, rows)
    assert not [path for path in map(_target, Path("/proc/self/fd").iterdir()) if "/read-cache/" in path]
    assert {path.name for path in kept(home)} == {path.name for path in there}


@pytest.mark.in_turn
def test_what_it_reads_is_told(home: Home, rows: pa.Table) -> None:
    """As many bytes as when they were served."""
    told = [home.json("query", TEXT)["bytes_read"] for _ in range(2)]
    assert told[1] > 0
    assert abs(told[1] - told[0]) < told[0] // 10


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:  # that of the listing itself, or of another thread
        return ""


@pytest.mark.in_turn
@pytest.mark.parametrize("harm", ["hole", "bit", "short", "tail", "magic"])
def test_what_is_not_what_was_written_is_fetched(
    home: Home, rows: pa.Table, asked: list[str], served: list[str], harm: str
) -> None:
    right(home, rows)
    path, section = sections(home, 1)[1]
    match harm:
        case "hole":
            overwrite(path, section.start, bytes(section.stop - section.start))
        case "bit":
            overwrite(path, section.start + 1000, bytes([path.read_bytes()[section.start + 1000] ^ 4]))
        case "short":
            os.truncate(path, section.start + 5)
        case "tail":
            overwrite(path, path.stat().st_size - 100, bytes(100))
        case "magic":
            overwrite(path, 0, b"PAR2")
    served.clear()
    asked.clear()
    right(home, rows)
    assert len(served) == 1
    assert (gets(asked) > 0) == (harm != "magic")
    served.clear()
    asked.clear()
    right(home, rows)
    assert gets(asked) == 0
    assert bool(served) == (harm == "magic")  # nobody asks for it when it is served


@pytest.mark.in_turn
@pytest.mark.parametrize("gone", ["dropped", "another"])
def test_a_file_that_has_to_go_meanwhile_is_read_to_its_end(
    home: Home, rows: pa.Table, served: list[str], monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """Also where another process began to keep it anew: of that there are holes."""
    right(home, rows)
    served.clear()

    def go() -> None:
        for path in kept(home):
            size_bytes = path.stat().st_size
            path.unlink()
            if gone == "another":
                path.write_bytes(b"PAR1")
                os.truncate(path, size_bytes)

    before_it_reads(monkeypatch, go)
    right(home, rows)
    assert not served


@pytest.mark.in_turn
def test_what_the_disk_loses_meanwhile_is_a_passing_error(
    home: Home, rows: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    right(home, rows)

    def lose() -> None:
        for path in kept(home):
            overwrite(path, 0, bytes(path.stat().st_size))

    before_it_reads(monkeypatch, lose)
    home("query", TEXT, code=5)
    assert "the read cache lost bytes" in home.error
    assert "run it again" in home.error
    right(home, rows)


@pytest.mark.in_turn
def test_more_than_is_compared_ahead_is_served(
    home: Home, rows: pa.Table, served: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right(home, rows)
    served.clear()
    monkeypatch.setattr(session, "_quarter_of_memory", lambda: 1000)
    right(home, rows)
    assert len(served) == 2


@pytest.mark.in_turn
def test_of_more_files_than_may_be_open_the_others_are_served(
    home: Home, rows: pa.Table, served: list[str], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right(home, rows)
    served.clear()
    asked.clear()
    most = cached_files.resource.getrlimit(cached_files.resource.RLIMIT_NOFILE)[0]
    monkeypatch.setattr(cached_files, "_DESCRIPTORS_SHARE", 1.5 / most)
    right(home, rows)
    assert len(served) == 1
    assert gets(asked) == 0


@pytest.mark.in_turn
def test_where_descriptors_are_no_files_all_are_served(
    home: Home, rows: pa.Table, served: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right(home, rows)
    served.clear()
    monkeypatch.setattr(cached_files, "_DESCRIPTORS", tmp_path / "nowhere")
    right(home, rows)
    assert len(served) == 2


@pytest.mark.in_turn
def test_an_older_schema_is_read_from_the_cache(
    home: Home, rows: pa.Table, asked: list[str], served: list[str]
) -> None:
    """Where its columns lie, the file says."""
    home("table", "alter", "d.t", "--add-column", "n:int64")
    right(home, rows, "SELECT sum(l[1]), count(*) FROM d.t")
    asked.clear()
    served.clear()
    right(home, rows, "SELECT sum(l[1]), count(*) FROM d.t")
    assert home.json("query", "SELECT count(n) FROM d.t WHERE l[1] IS NOT NULL")["rows"] == [[0]]
    assert not served
    assert gets(asked) == 0


@pytest.mark.in_turn
def test_rows_on_the_ssd_and_in_the_cache_are_one_answer(
    home: Home, rows: pa.Table, tmp_path: Path, served: list[str]
) -> None:
    more = rows.slice(0, 1000)
    pq.write_table(more, tmp_path / "more.parquet")
    home("insert", "d.t", str(tmp_path / "more.parquet"))
    for _ in range(2):
        served.clear()
        right(home, pa.concat_tables([rows, more]))
        right(home, pa.concat_tables([rows, more]), "SELECT k, count(*) FROM d.t GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5")
    assert not served


@pytest.mark.in_turn
def test_engines_of_later_queries_read_no_other_file(home: Home, tmp_path: Path, rows: pa.Table) -> None:
    """Of the cache they may read what is there; links lead there alone."""
    from tiering.config.reading import load
    from tiering.engine.store import Store
    from tiering.query.sql.session import SqlSession

    pq.write_table(rows.slice(0, 1), tmp_path / "secret.parquet")
    with Store.open(load(home.configuration)) as store:
        for _ in range(2):
            store.query(TEXT).read_all()
        with ExitStack() as closing:
            engine = SqlSession(store.context, closing)
            paths: Sequence[Path] = [tmp_path / "secret.parquet", home.path / "state" / "read-cache" / ".." / "x"]
            for path in paths:
                with pytest.raises(duckdb.Error, match=re.compile("cannot access", re.IGNORECASE)):
                    engine.connection.execute(f"FROM read_parquet('{path}')")
                engine.connection.execute("ROLLBACK")
                engine.connection.execute("BEGIN")


@pytest.mark.in_turn
def test_queries_of_either_kind_find_their_engine(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a bucket has more threads than what computes, and both engines stay."""
    from tiering.config.reading import load
    from tiering.engine.store import Store
    from tiering.query.checked_parts import read_cache
    from tiering.query.sql.engine import Engine

    made, threads = list[int](), list[int]()
    begin, allow = Engine.__init__, Engine.allow

    def begun(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(1)

    def allowed(self: Any, *arguments: Any) -> None:
        allow(self, *arguments)
        threads.append(self.connection.sql("SELECT current_setting('threads')").fetchall()[0][0])

    monkeypatch.setattr(Engine, "__init__", begun)
    monkeypatch.setattr(Engine, "allow", allowed)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(FetchedFiles, "room_bytes", 0)
    with Store.open(load(home.configuration)) as store:
        cache = read_cache(store.context.config)
        assert cache is not None
        for _ in range(3):
            cache.drop()
            for _ in range(3):
                store.query(TEXT).read_all()
    assert threads == [store.context.workers, 2, 2] * 3
    assert len(made) == 2
