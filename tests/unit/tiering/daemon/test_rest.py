"""A daemon with nothing to do goes by sums: it looks at no part, asks no bucket and loads no Arrow. Guards I11's costs,
and that the sums tell what going through the parts does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tiering.catalog.catalog import Catalog, StoredPart
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.facts.metrics import collect
from tiering.journal.records import PauseKind
from tiering.merge.request import MergeRequest
from tiering.merge.selection import MergePlan
from tiering.table.definitions import define_table
from tiering.table.schema import Recompress, TtlRule

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(embedded(tmp_path), workers=1) as opened:
        columns, ttl = ["ts:timestamp[us, UTC]", "n:int64"], ["30d on ts to volume cold"]
        table = define_table("d.t", columns=columns, order_by="n", partition_by="day(ts)", policy="hot_cold", ttl=ttl)
        opened.create_table(table)
        yield opened


def insert(store: Store, *days: int) -> None:
    """A part for each, of so many days ago."""
    for number, days_ago in enumerate(days):
        store.table("d.t").insert([pa.record_batch([[NOW - days_ago * DAY], [number]], schema=SCHEMA)])
    store.refresh()


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The looks that find parts from now on."""
    looks: list[str] = []

    def noted(name: str, look: Callable[..., list[StoredPart]]) -> Callable[..., list[StoredPart]]:
        def look_and_note(*arguments: Any, **options: Any) -> list[StoredPart]:
            if found := look(*arguments, **options):
                looks.append(name)
            return found

        return look_and_note

    for name in ("parts", "partition", "partitions"):
        monkeypatch.setattr(Catalog, name, noted(name, getattr(Catalog, name)))
    return looks


@pytest.mark.parametrize("paused", [[], ["merges"], ["gc"]])
def test_a_pass_with_nothing_to_do_looks_at_no_part(
    store: Store, paused: list[PauseKind], monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(store, 1, 2, 3)
    store.context.journal.overrides.pause(None, paused, actor="test")
    looks = looked_at(monkeypatch)
    store.tick()
    collect.look(store)
    assert looks == []


def test_moves_that_are_paused_are_still_told(store: Store) -> None:
    insert(store, 1)
    store.context.journal.overrides.pause(None, ["moves"], actor="test")
    assert store.tick().waiting


def test_only_partitions_with_something_due_are_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    insert(store, 1, 2, 3)
    store.context.clock = lambda: NOW + 28.5 * DAY
    looks = looked_at(monkeypatch)
    assert collect.look(store).overdue["d.t"].parts == 2
    assert looks == ["partitions"]


def test_the_numbers_are_those_of_the_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    insert(store, 1, 2, 3, 3, 40)
    store.tick(only="moves")
    store.context.clock = lambda: NOW + 28.5 * DAY
    by_sums = collect.look(store)
    assert {(place.disk, amount.parts) for place, amount in by_sums.places.items()} == {("ssd", 4), ("s3", 1)}
    assert by_sums.overdue["d.t"].parts == 3
    monkeypatch.setattr(Catalog, "sums", lambda *_: None)
    by_parts = collect.look(store)
    assert (by_sums.places, by_sums.overdue) == (by_parts.places, by_parts.overdue)


def named(plans: Sequence[MergePlan]) -> list[tuple[str, list[str], str]]:
    return [(plan.partition, [stored.facts.name for stored in plan.parts], plan.reason) for plan in plans]


def test_merges_are_those_of_the_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    insert(store, 1, 2, *[3] * 6)
    looks = looked_at(monkeypatch)
    by_sums = store.plan_merges("d.t", MergeRequest())
    assert (len(by_sums), looks) == (1, ["partitions"])
    monkeypatch.setattr(Catalog, "sums", lambda *_: None)
    assert named(store.plan_merges("d.t", MergeRequest())) == named(by_sums)


def test_a_part_that_is_alone_is_recompressed(store: Store) -> None:
    insert(store, 2)
    table = store.definition("d.t")
    rule = TtlRule(after_seconds=86400, column="ts", action=Recompress(level=19))
    store.alter_table(table, msgspec.structs.replace(table, ttl=(rule,)))
    assert len(store.plan_merges("d.t", MergeRequest())) == 1


def test_a_pass_at_rest_loads_no_arrow(store: Store, tmp_path: Path) -> None:
    insert(store, 1, 2)
    script = """
import sys, threading
from pathlib import Path
from tiering.config.settings import DaemonConfig, embedded
from tiering.daemon import daemon
from tiering.engine.store import Store

with Store.open(embedded(Path(sys.argv[1]))) as store:
    assert daemon.run(store, DaemonConfig(), threading.Event(), once=True).ticks == 1
print("pyarrow" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "False\n"
