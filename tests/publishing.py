"""Random work on a published table, for tests of publications."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa

from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from oplog.errors import FrostlineError
from restore.history.partitions import detach
from restore.history.undo import undo
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table import definitions
from tiering.table.definitions import define_table
from tiering.table.schema import Publish

NAME = "d.t"
COLUMNS = ["k:int32", "ts:timestamp[us, UTC]", "host:string", "price:decimal(9, 2)", "f:float64", "day:date", "b:bool"]
NESTED = "o:struct<x: int32, items: list<struct<y: string>>, m: map<string, int32>>"
PARTITIONS = ["", "day(ts)", "month(ts), bucket(3, k)", "truncate(2, host)", "identity(day), truncate(10, k)"]
_START = dt.datetime(2025, 12, 30, tzinfo=dt.UTC)


def some_rows(dice: random.Random, store: Store) -> pa.Table:
    """A few rows in the columns that the table has now, with the ends of types and nulls."""

    def value(kind: pa.DataType) -> Any:
        is_many = pa.types.is_list(kind) or pa.types.is_map(kind)
        if dice.random() < 0.15 and not is_many:  # PyIceberg reads a list that is null as empty
            return None
        if pa.types.is_struct(kind):
            return {field.name: value(field.type) for field in kind}
        if pa.types.is_map(kind):
            return [(name, value(kind.item_type)) for name in ("a", "b")[: dice.randrange(3)]]
        if pa.types.is_list(kind):
            return [value(kind.value_type) for _ in range(dice.randrange(3))]
        number = dice.randrange(40)
        if pa.types.is_integer(kind):
            return dice.choice([number, -number, (1 << (kind.bit_width - 1)) - 1, -(1 << (kind.bit_width - 1)) + 16])
        if pa.types.is_timestamp(kind):
            return _START + dt.timedelta(hours=number, microseconds=number)
        if pa.types.is_date(kind):
            return dt.date(1969, 12, 20) + dt.timedelta(days=number)
        if pa.types.is_boolean(kind):
            return number % 2 == 0
        if pa.types.is_floating(kind):
            return dice.choice([number / 3, float("nan"), -0.0, float("inf"), float("-inf")])
        if pa.types.is_decimal(kind):
            return pa.scalar(f"{number - 20}.25", pa.string()).cast(kind).as_py()
        return dice.choice(["", "é", "zz", "\U0010ffff", "h"]) * dice.choice([1, 1, 70])

    schema = store.table(NAME).dataset().schema
    rows = dice.randrange(1, 8)
    return pa.table([pa.array([value(field.type) for _ in range(rows)], field.type) for field in schema], schema=schema)


class History:
    """One store, and what is done with it."""

    def __init__(self, store: Store, dice: random.Random) -> None:
        self.store = store
        self.dice = dice
        self._added = 0

    @property
    def bucket(self) -> Any:
        return self.store.object_disk("s3")

    def step(self) -> None:
        done = self.dice.choice(
            [
                *(self.insert, self.insert, self.insert, self.move, self.move, self.merge, self.alter, self.undo),
                *(self.go_back, self.detach, self.collect),
            ]
        )
        with suppress(FrostlineError):  # what is not possible now
            done()
        self.store.refresh()

    def insert(self) -> None:
        self.store.table(NAME).insert(some_rows(self.dice, self.store).to_batches())

    def move(self) -> None:
        for part in self.store.parts(NAME):
            if part.disk != "s3" and self.dice.random() < 0.7:
                self.store.apply(self.store.plan_manual_move(NAME, part=str(part.name), to_disk="s3"))

    def merge(self) -> None:
        self.store.merge(NAME, MergeRequest(final=True))

    def alter(self) -> None:
        old, self._added = self.store.definition(NAME), self._added + 1
        new = self.dice.choice(
            [
                lambda: definitions.add_column(old, f"c{self._added}:int32"),
                lambda: definitions.add_column(old, f"c{self._added}:int32", default="7"),
                lambda: definitions.rename_column(old, f"price:c{self._added}"),
                lambda: definitions.widen_column(old, "price:decimal(20, 2)"),
                lambda: definitions.widen_column(old, "c1:int64"),
                lambda: definitions.drop_column(old, "f"),
                lambda: definitions.rename_column(old, f"host:h{self._added}"),
                lambda: definitions.add_column(old, f"o.c{self._added}:string"),
                lambda: definitions.add_column(old, f"o.items.element.c{self._added}:int64"),
                lambda: definitions.rename_column(old, f"o.x:o.c{self._added}"),
                lambda: definitions.drop_column(old, "o.items.element.y"),
            ]
        )()
        self.store.alter_table(old, new)

    def undo(self) -> None:
        undo(self.store.context, self.bucket, self.dice.randint(3, max(3, self.bucket.revision)))

    def go_back(self) -> None:
        revision = self.dice.randint(3, max(3, self.bucket.revision))
        restore(self.bucket, RebuildRequest(revision=revision, apply=True))

    def detach(self) -> None:
        parts = [part for part in self.store.parts(NAME) if part.disk == "s3"]
        if parts:
            detach(self.store.context, self.store.definition(NAME), self.dice.choice(parts).name.partition)

    def collect(self) -> None:
        """Everything goes that nothing names, however young."""
        rules = GcRules(
            delete=True,
            retention=dt.timedelta(0),
            guard=dt.timedelta(0),
            allow_short_guard=True,
            max_delete_fraction=1.0,
        )
        later = dt.datetime.now(dt.UTC) + dt.timedelta(days=2)
        collect(self.bucket, rules, now=later)


def rows_of(table: pa.Table) -> Counter[str]:
    """The rows, told apart by what they hold: NaN is NaN."""
    names = sorted(table.schema.names)
    return Counter(repr([plain(row[name]) for name in names]) for row in table.to_pylist())


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((name, plain(inner)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value.astimezone(dt.UTC).isoformat() if isinstance(value, dt.datetime) else value


def begin(store: Store, seed: int) -> History:
    """A published table without rows."""
    partitions = PARTITIONS[seed % len(PARTITIONS)]
    table = define_table(
        NAME, columns=[*COLUMNS, NESTED], order_by="host, k", partition_by=partitions, policy="hot_cold"
    )
    store.create_table(table)
    definition = store.definition(NAME)
    store.alter_table(definition, msgspec.structs.replace(definition, version=2, publish=Publish()))
    return History(store, random.Random(seed))
