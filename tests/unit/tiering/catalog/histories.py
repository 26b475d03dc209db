"""A store with three parts of two partitions, and what may happen to it, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa

from tests.keeping import keeping
from tiering.catalog import tables
from tiering.config.settings import Config, embedded
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.definitions import define_table
from tiering.table.schema import MoveToVolume, TtlRule

TABLE = "d.t"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@contextmanager
def cached_store(home: Path, *rules: TtlRule, settled: bool = True) -> Iterator[Config]:
    """Its configuration, while what is known of the parts is kept at once (`tests.keeping`)."""
    config = embedded(home)
    with keeping(settled=settled):
        with Store.open(config) as store:
            columns = ["k:int64", "ts:timestamp", "seen:timestamp"]
            table = define_table(TABLE, columns=columns, order_by="k", partition_by="month(ts)", policy="hot_cold")
            store.create_table(msgspec.structs.replace(table, ttl=rules))
            for number in (1, 2, 40):
                insert(store, number)
        with Store.open(config):
            pass
        yield config


def insert(store: Store, number: int) -> None:
    moment = BEGIN + timedelta(days=number)
    row = {"k": [number], "ts": [moment], "seen": [moment + timedelta(days=1)]}
    store.table(TABLE).insert(pa.table(row).to_batches())


def move(store: Store, volume: str) -> None:
    assert store.apply(store.plan_manual_move(TABLE, partition="202601", to_volume=volume)).failed == ()


def drop(store: Store) -> None:
    to_delete = [stored for stored in store.parts(TABLE) if stored.name.partition == "202602"]
    tables.drop_parts(store.context, to_delete, reason="test")


def alter(store: Store) -> None:
    old = store.definition(TABLE)
    rule = TtlRule(after_seconds=86400, column="seen", action=MoveToVolume("cold"))
    store.alter_table(old, msgspec.structs.replace(old, ttl=(rule,)))


STEPS: dict[str, Callable[[Store], object]] = {
    "insert": lambda store: insert(store, 3),
    "move": lambda store: move(store, "cold"),
    "move back": lambda store: move(store, "hot"),
    "merge": lambda store: store.merge(TABLE, MergeRequest(partition="202601", final=True)),
    "alter": alter,
    "move as the rule says": lambda store: store.apply(store.plan().moves),
    "drop": drop,
    "insert again": lambda store: insert(store, 41),
    "drop the table": lambda store: store.drop_table(TABLE),
}
