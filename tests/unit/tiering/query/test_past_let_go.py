"""A query of the past lets go of the file table that led to it: else its log grows as long as the process lives."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import FrostlineError, NotFound, UsageError
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.reading.scan_planning import choose_files, definition_of, places
from tests.unit.tiering.catalog.histories import TABLE, cached_store
from tiering.catalog.catalog import Catalog
from tiering.engine.store import Store
from tiering.query import query as querying
from tiering.query.query import QueryResult
from tiering.query.selection import FileMissing
from tiering.query.sql.engine import EngineOutgrown
from tiering.table.schema import MoveToVolume, TtlRule

RULE = TtlRule(after_seconds=10 * 365 * 86400, column="ts", action=MoveToVolume("cold"))
SQL = f"SELECT k FROM {TABLE} ORDER BY k"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two partitions in the bucket; that of them left it, which is there in the revision `before`."""
    with cached_store(tmp_path, RULE) as config, Store.open(config) as store:
        for partition in ("202601", "202602"):
            move(store, partition, "cold")
        yield store


@pytest.fixture
def before(store: Store) -> int:
    revision = store.object_disk("s3").revision
    move(store, "202602", "hot")
    return revision


@pytest.fixture(autouse=True)
def nobody_collects() -> Iterator[None]:
    """What is let go of is so when nobody holds it any more, not when Python looks for circles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def move(store: Store, partition: str, volume: str) -> None:
    assert store.apply(store.plan_manual_move(TABLE, partition=partition, to_volume=volume)).failed == ()


def is_held(store: Store) -> bool:
    """Whether somebody reads the file table as it was, so that its log cannot be emptied."""
    disk = store.object_disk("s3")
    with disk.file_table.write() as view:
        view.remember(asked="yes")
    with closing(sqlite3.connect(disk.table_path, timeout=0, isolation_level=None)) as table:
        (busy, *_) = table.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return bool(busy)


def keys(result: QueryResult) -> list[int]:
    found: list[int] = result.read_all().column("k").to_pylist()
    return found


@pytest.mark.in_turn
def test_an_answer_that_was_read(store: Store, before: int) -> None:
    result = store.query(SQL, revision=before)
    assert is_held(store)
    assert keys(result) == [1, 2, 40]
    assert not is_held(store)
    assert keys(store.query(SQL)) == [1, 2, 40]


def test_one_that_is_dropped_unread(store: Store, before: int) -> None:
    result = store.query(SQL, revision=before)
    assert result.columns
    del result
    assert not is_held(store)


def test_one_that_is_dropped_half_read(store: Store, before: int) -> None:
    sql = f"SELECT k, range FROM {TABLE}, range(300000)"
    result = store.query(sql, revision=before)
    batches = result.batches()
    assert next(batches).num_rows
    assert is_held(store)
    del batches, result
    assert not is_held(store)


def test_one_that_fails_on_the_way(store: Store, before: int) -> None:
    result = store.query(f"SELECT error('no ' || k) FROM {TABLE}", revision=before)
    with pytest.raises(FrostlineError):
        result.read_all()
    assert not is_held(store)


@pytest.mark.in_turn
def test_a_plan(store: Store, before: int) -> None:
    result = store.query(f"EXPLAIN {SQL}", revision=before)
    assert not is_held(store)
    assert result.read_all().column("plan")[0].as_py().startswith("3 parts to read")


@pytest.mark.in_turn
@pytest.mark.parametrize("sql", ["SELECT * FROM d.none", "SELECT nothing FROM d.t", "DROP TABLE d.t", "SELEC"])
def test_one_that_is_refused(store: Store, before: int, sql: str) -> None:
    with pytest.raises((NotFound, UsageError)):
        store.query(sql, revision=before)
    assert not is_held(store)


def test_a_revision_that_cannot_be_shown(store: Store, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refresh(*arguments: object, **options: object) -> None:
        raise NotFound("as the test says")

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "refresh", refresh)
        with pytest.raises(NotFound, match="as the test says"):
            store.query(SQL, revision=before)
    assert not is_held(store)


@pytest.mark.in_turn
@pytest.mark.parametrize("error", [EngineOutgrown(), FileMissing("moved meanwhile")])
def test_a_statement_that_is_begun_again_is_one_of_the_same_past(
    store: Store, before: int, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds is not let go of between the two."""
    select, tries = querying.select_files, []

    def select_files(*arguments: Any, **options: Any) -> Any:
        tries.append(arguments)
        if len(tries) == 1:
            raise error
        return select(*arguments, **options)

    monkeypatch.setattr(querying, "select_files", select_files)
    move(store, "202601", "hot")
    assert keys(store.query(SQL, revision=before)) == [1, 2, 40]
    assert len(tries) == 2
    tries.clear()
    assert not is_held(store)


def test_what_spark_plans(store: Store, before: int) -> None:
    options = ReadOptions(table=TABLE, revision=before, on_this_machine=True)
    assert definition_of(store, options).full_name == TABLE
    assert not is_held(store)
    assert places(store, options) == {"s3": 3}
    assert not is_held(store)
    assert len(choose_files(store, options).pieces) == 3
    assert not is_held(store)


def test_a_past_that_was_let_go_of_never_shows_the_present(store: Store, before: int) -> None:
    """Which has other parts: that would be a wrong answer, and nobody would see it."""
    with store.past(before) as past:
        then = past.disk("s3")
        assert len(past.catalog.parts(store.definition(TABLE))) == 3
    for ask in (
        lambda: then.list(""),
        lambda: then.state_of(""),
        lambda: then.exists("store"),
        lambda: [*then.walk()],
        lambda: past.catalog.refresh(),
        lambda: as_disk(then, LoggedDisk).file_table,
        lambda: as_disk(then, LoggedDisk).revision,
    ):
        with pytest.raises(UsageError, match="was closed"):
            ask()
    assert not is_held(store)
