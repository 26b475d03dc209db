"""Members of structs are added, renamed, dropped and widened at random, at any depth, and the rows are merged, moved,
altered back and restored: each way of reading gives what a plain model of rows has, at every revision.

The model holds a row's values by field id, as they were inserted; a definition says which of them are shown, and how
they are called. Guards I7.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from restore.history.undo import undo
from tiering.config.settings import Config, embedded
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.query.scan import scan
from tiering.table import definitions
from tiering.table.columns.nested_ids import column_type, field_id, numbered
from tiering.table.columns.type_texts import arrow_type, type_text
from tiering.table.schema import PLAIN_FORMAT, TableDefinition

TABLE = "d.t"
LEAVES = (pa.int16(), pa.int32(), pa.float32(), pa.string(), pa.date32(), pa.bool_())
WIDER = {pa.int16(): pa.int64(), pa.int32(): pa.int64(), pa.float32(): pa.float64()}


def kind(dice: random.Random, level: int = 0) -> pa.DataType:
    """A random type, of three levels at most."""
    if level == 3 or (level and dice.random() < 0.4):
        return dice.choice(LEAVES)
    match dice.randrange(4):
        case 0:
            return pa.list_(kind(dice, level + 1))
        case 1:
            return pa.map_(pa.string(), kind(dice, level + 1))
        case _:
            return pa.struct([(f"a{n}", kind(dice, level + 1)) for n in range(dice.randrange(1, 4))])


def value(dice: random.Random, held: pa.DataType) -> Any:
    """A random value in the model: a struct is a mapping of ids to values."""
    if dice.random() < 0.2:
        return None
    if pa.types.is_struct(held):
        return {field_id(field): value(dice, field.type) for field in held}
    if pa.types.is_map(held):
        return [(str(key), value(dice, held.item_type)) for key in range(dice.randrange(3))]
    if pa.types.is_list(held):
        return [value(dice, held.value_type) for _ in range(dice.randrange(3))]
    if pa.types.is_string(held) or pa.types.is_boolean(held) or pa.types.is_date(held):
        return pa.scalar(dice.randrange(2), pa.int32()).cast(held).as_py()
    return dice.randrange(100)


def shown(found: Any, kind: pa.DataType) -> Any:
    """A value of the model as a reader has it that knows this type."""
    if found is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: shown(found.get(field_id(field)), field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(key, shown(item, kind.item_type)) for key, item in found]
    if pa.types.is_list(kind):
        return [shown(item, kind.value_type) for item in found]
    return found


def paths(kind: pa.DataType, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], pa.DataType, bool]]:
    """Each struct within a type and each field within one: path, type, whether it is a member of a struct."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield (*names, field.name), field.type, True
            yield from paths(field.type, (*names, field.name))
    elif pa.types.is_map(kind):
        yield (*names, "value"), kind.item_type, False
        yield from paths(kind.item_type, (*names, "value"))
    elif pa.types.is_list(kind):
        yield (*names, "element"), kind.value_type, False
        yield from paths(kind.value_type, (*names, "element"))


def unnumbered(definition: TableDefinition) -> TableDefinition:
    """As a version made it that gave no ids to nested fields."""
    columns = tuple(msgspec.structs.replace(column, nested_ids=()) for column in definition.columns)
    return msgspec.structs.replace(definition, columns=columns, format=PLAIN_FORMAT, last_column_id=len(columns))


class History:
    """A table, what was done to it, and the rows that it has."""

    def __init__(self, config: Config, seed: int) -> None:
        self.dice = random.Random(seed)
        self.config = config
        self.rows: list[dict[int, Any]] = []
        self.past: dict[int, list[dict[str, Any]]] = {}
        self.given: set[int] = set()
        self.told: list[str] = []
        self.count = 0
        with self.open() as store:
            kinds = [f"c{number}:{type_text(kind(self.dice))}" for number in range(2)]
            self.told.append(f"create {kinds}")
            table = definitions.define_table(
                TABLE, columns=["k:int64", *kinds], order_by="k", policy=next(iter(config.policies))
            )
            if seed % 3 == 0:
                table = unnumbered(table)
            store.create_table(table)
            self.insert(store)

    def open(self) -> Store:
        return Store.open(self.config, actor="somebody@here")

    def ids(self, definition: TableDefinition) -> TableDefinition:
        """With the ids that the model has for fields of a table that has none yet."""
        return numbered(definition)

    def insert(self, store: Store) -> None:
        definition = self.ids(store.definition(TABLE))
        fresh = []
        for _ in range(self.dice.randrange(1, 4)):
            self.count += 1
            row = {column.id: value(self.dice, column_type(column)) for column in definition.columns}
            fresh.append(row | {definition.column("k").id: self.count})
        arrays = {
            column.name: pa.array(
                [shown(row[column.id], column_type(column)) for row in fresh], arrow_type(column.type)
            )
            for column in definition.columns
        }
        self.told.append(f"insert {len(fresh)}")
        store.table(TABLE).insert(pa.table(arrays).to_batches())
        self.rows += fresh

    def alter(self, store: Store) -> None:
        old = store.definition(TABLE)
        column = self.dice.choice([one for one in old.columns if one.name != "k"])
        known = list(paths(arrow_type(column.type))) or [((), pa.null(), False)]
        names, inner, is_member = self.dice.choice(known)
        path = ".".join((column.name, *names))
        self.count += 1
        change: Callable[[TableDefinition, str], TableDefinition]
        match self.dice.randrange(4):
            case 0 if pa.types.is_struct(inner):
                change, text = definitions.add_column, f"{path}.n{self.count}:{type_text(kind(self.dice, 2))}"
            case 1 if is_member:
                change, text = definitions.rename_column, f"{path}:{path.rpartition('.')[0]}.r{self.count}"
            case 2 if is_member and sum(names[:-1] == other[:-1] for other, _, _ in known) > 1:
                change, text = definitions.drop_column, path
                if self.dice.random() < 0.5:  # and another one of its name
                    self.told.append(f"drop {path}, add it")
                    new = definitions.add_column(change(old, path), f"{path}:{type_text(kind(self.dice, 2))}")
                    store.alter_table(old, new)
                    return
            case _ if inner in WIDER:
                change, text = definitions.widen_column, f"{path}:{type_text(WIDER[inner])}"
            case _:
                change, text = definitions.add_column, f"t{self.count}:{type_text(kind(self.dice, 1))}"
        self.told.append(f"{change.__name__} {text}")
        store.alter_table(old, change(old, text))

    def step(self) -> None:
        with self.open() as store:
            parts = store.parts(TABLE)
            match self.dice.randrange(9):
                case 0 | 1:
                    self.insert(store)
                case 2:
                    part = self.dice.choice(parts)
                    target = "s3" if part.disk != "s3" else "ssd"
                    self.told.append(f"move {part.part.name} to {target}")
                    store.apply(store.plan_manual_move(TABLE, part=part.part.name, to_disk=target))
                case 3:
                    self.told.append("merge")
                    store.merge(TABLE, MergeRequest(final=True))
                case 4:
                    self.told.append("alter and undo")
                    self.alter(store)
                    disk = store.object_disk("s3")
                    undo(store.context, disk, disk.revision)
                    store.refresh()
                case _:
                    self.alter(store)
        self.check()

    def expected(self, definition: TableDefinition) -> list[dict[str, Any]]:
        definition = self.ids(definition)
        return [
            {column.name: shown(row.get(column.id), column_type(column)) for column in definition.columns}
            for row in self.rows
        ]

    def check(self) -> None:
        with self.open() as store:
            definition = store.definition(TABLE)
            parts = store.parts(TABLE)
            expected = self.expected(definition)
            for name, found in {
                "query": store.query(f"SELECT * FROM {TABLE} ORDER BY k").read_all(),
                "scan": scan(store.context, definition, parts).read_all().sort_by("k"),
                "dataset": store.table(TABLE).dataset().to_table().sort_by("k"),
            }.items():
                assert found.to_pylist() == expected, (name, self.told)
            self.check_members(store, definition, expected)
            ids = [number for column in self.ids(definition).columns for number in (column.id, *column.nested_ids)]
            assert len(set(ids)) == len(ids), self.told
            revision = store.object_disk("s3").revision
            cold = {part.disk for part in parts} == {"s3"}
            if cold:
                self.past[revision] = expected
            for revision, rows in self.past.items():
                found = store.query(f"SELECT * FROM {TABLE} ORDER BY k", revision=revision).read_all()
                assert found.to_pylist() == rows, (revision, self.told)

    def check_members(self, store: Store, definition: TableDefinition, expected: list[dict[str, Any]]) -> None:
        """Filters by members leave out no part that has such rows."""
        for column in definition.columns:
            for field in arrow_type(column.type) if pa.types.is_struct(arrow_type(column.type)) else ():
                held = [(row[column.name] or {}).get(field.name) for row in expected]
                values = [found for found in held if isinstance(found, int) and not isinstance(found, bool)]
                path = f'"{column.name}"."{field.name}"'
                count = store.query(f"SELECT count(*) AS n FROM {TABLE} WHERE {path} IS NULL").read_all()
                assert count.column("n").to_pylist() == [held.count(None)], (path, self.told)
                if values and pa.types.is_integer(field.type):
                    asked = self.dice.choice(values)
                    count = store.query(f"SELECT count(*) AS n FROM {TABLE} WHERE {path} = {asked}").read_all()
                    assert count.column("n").to_pylist() == [values.count(asked)], (path, self.told)


@pytest.mark.parametrize("seed", range(8))
def test_members_are_found_by_their_ids(seed: int, tmp_path: Path) -> None:
    history = History(embedded(tmp_path), seed)
    history.check()
    for _ in range(10):
        history.step()
