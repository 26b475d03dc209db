"""Of `catalog.db` rows are lost, or are those of another day, each with its checksum: no sum and no answer is made of
what is left (I1)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from disks.host.database import remove_database
from tests.crash.as_read import index_is_as_read
from tests.unit.tiering.catalog.histories import TABLE, cached_store, insert
from tiering.catalog import tables
from tiering.catalog.freshness import Freshness
from tiering.config.settings import Config
from tiering.engine.store import Store
from tiering.table.schema import MoveToVolume, TtlRule

LATER = TtlRule(after_seconds=10 * 365 * 86400, column="ts", action=MoveToVolume("cold"))
_KEPT = ("disk_tables", "sums")


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    with cached_store(tmp_path, LATER) as config:
        yield config


def lose(config: Config, name: str) -> None:
    """The row of this part, as a damaged page does."""
    with closing(sqlite3.connect(config.state_directory / "catalog.db")) as kept, kept:
        assert kept.execute(f"DELETE FROM parts WHERE name = '{name}'").rowcount == 1


def is_as_the_disks_say(config: Config, parts: int) -> bool:
    """Whether who opens now, and reads no part, sees so many; and then each of them."""
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        sums = store.context.catalog.sums(store.definition(TABLE))
        assert sums is not None
        return sum(one.parts for one in sums.values()) == parts and [*index_is_as_read(store)] == []


def test_who_looks_at_each_part_does_not_count_it_twice(config: Config) -> None:
    """What the look before found, and the part whose row is lost as one that came since."""
    lose(config, "202601_1_1_0")
    with Store.open(config):
        pass
    assert is_as_the_disks_say(config, 3)


def test_a_part_that_is_dropped_is_counted_no_more(config: Config) -> None:
    """Nobody knows then that it was there: but its partition has fewer rows than the sums say."""
    lose(config, "202601_1_1_0")
    drop_unnoticed(config, "202601_1_1_0")
    assert is_as_the_disks_say(config, 2)


@pytest.mark.in_turn
@pytest.mark.parametrize("number", [3, 70], ids=["a partition that it knows", "another one"])
def test_a_look_of_before_with_rows_of_after(config: Config, number: int) -> None:
    """As where an old file is put under the log of the new one."""
    rows_come_after_the_look(config, number)
    assert is_as_the_disks_say(config, 4)


def test_a_look_of_before_with_rows_of_what_is_gone_since(config: Config) -> None:
    """Of a partition of which the sums know no part, that one cannot be taken from them."""
    rows_come_after_the_look(config, 70)
    drop_unnoticed(config, "202603_4_4_0")
    assert is_as_the_disks_say(config, 3)


def drop_unnoticed(config: Config, name: str) -> None:
    """Drop the part; what whoever does it keeps of that is not kept."""
    path = config.state_directory / "catalog.db"
    kept = path.read_bytes()
    with Store.open(config) as acting:
        to_delete = [stored for stored in acting.parts(TABLE) if stored.facts.name == name]
        assert to_delete
        tables.drop_parts(acting.context, to_delete, reason="test")
    remove_database(path)
    path.write_bytes(kept)


def rows_come_after_the_look(config: Config, number: int) -> None:
    """A part is inserted, and the look that is kept is then that of before."""
    path = config.state_directory / "catalog.db"
    with closing(sqlite3.connect(path)) as kept:
        before = {table: kept.execute(f"SELECT * FROM {table}").fetchall() for table in _KEPT}
    with Store.open(config) as store:
        insert(store, number)
    assert is_as_the_disks_say(config, 4)
    with closing(sqlite3.connect(path)) as kept, kept:
        for table, rows in before.items():
            kept.execute(f"DELETE FROM {table}")
            kept.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)
