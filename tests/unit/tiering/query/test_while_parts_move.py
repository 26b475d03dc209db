"""A query, or a scan, whose parts are moved and merged again and again, between looking at them and reading them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from oplog.errors import Damaged
from tests.unit.tiering.catalog.histories import TABLE, cached_store
from tiering.catalog.catalog import StoredPart
from tiering.engine.store import Store
from tiering.engine.table import Table
from tiering.query import query as querying
from tiering.query.scan import Counters, stream
from tiering.query.selection import FileMissing
from tiering.table.schema import MoveToVolume, TtlRule

RULE = TtlRule(after_seconds=10 * 365 * 86400, column="ts", action=MoveToVolume("cold"))
SQL = f"SELECT k FROM {TABLE} WHERE k > 0 ORDER BY k"


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Of two processes: one asks, one moves."""
    with cached_store(tmp_path, RULE) as config, Store.open(config) as asking, Store.open(config) as moving:
        yield asking, moving


def move(store: Store, volume: str) -> None:
    store.refresh()
    assert store.apply(store.plan_manual_move(TABLE, partition="202601", to_volume=volume)).failed == ()


def test_the_part_that_is_not_kept_any_more_is_not_there_either(stores: tuple[Store, Store]) -> None:
    """What it says comes from the disk then, which has it no more: that is no other error than a file that is gone."""
    asking, moving = stores
    move(moving, "cold")
    asking.context.catalog.index.throw_away()
    assert asking.query(SQL).read_all().column("k").to_pylist() == [1, 2, 40]


@pytest.mark.in_turn
@pytest.mark.parametrize("times", [1, 3])
def test_parts_that_move_each_time(stores: tuple[Store, Store], times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asking, moving = stores
    volumes = ["cold", "hot", "cold"][:times]
    select = querying.select_files

    def select_files(*arguments: Any, **options: Any) -> Any:
        if volumes:
            move(moving, volumes.pop(0))
        return select(*arguments, **options)

    monkeypatch.setattr(querying, "select_files", select_files)
    assert asking.query(SQL).read_all().column("k").to_pylist() == [1, 2, 40]
    assert volumes == []


def test_a_part_that_is_really_gone_is_an_error(stores: tuple[Store, Store]) -> None:
    asking, _ = stores
    stored = asking.parts(TABLE)[0]
    path = asking.disk(stored.disk).local_path(stored.path(stored.part.files[0].name))
    assert path is not None
    path.unlink()
    with pytest.raises(Damaged, match="is missing"):
        asking.query(SQL)


@pytest.mark.in_turn
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("how", ["scan", "scan by an expression", "dataset"])
def test_a_scan_looks_again_as_well(
    stores: tuple[Store, Store], how: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that the parts have been chosen, they go; each row is there once."""
    asking, moving = stores
    volumes = ["cold", "hot", "cold"][:times]
    parts = Table.parts

    def chosen(self: Table) -> list[StoredPart]:
        found = parts(self)
        if volumes:
            move(moving, volumes.pop(0))
        return found

    monkeypatch.setattr(Table, "_check_complete", lambda self: None)  # which asks for the parts, too
    monkeypatch.setattr(Table, "parts", chosen)
    table = asking.table(TABLE)
    match how:
        case "scan":
            found = table.scan(columns=["k"]).read_all()
        case "scan by an expression":
            found = table.scan(columns=["k"], filter=pc.field("k") > 0).read_all()
        case _:
            found = table.dataset().to_table(columns=["k"])
    assert sorted(found.column("k").to_pylist()) == [1, 2, 40]
    assert volumes == []


def test_a_file_that_goes_while_rows_are_read_says_to_repeat() -> None:
    """None is given twice, and none is left out."""

    class Ended:
        bytes_read = 0

    def pieces() -> Iterator[int]:
        yield 1
        raise FileMissing("a part is gone", hint="run 'frostline fsck'")

    found = stream(Ended(), pieces(), Counters([]), ExitStack())  # type: ignore[arg-type]
    assert next(found) == 1
    with pytest.raises(FileMissing, match="gone") as error:
        next(found)
    assert error.value.hint.startswith("repeat it: ")
