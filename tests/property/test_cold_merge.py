"""I13: a cold merge gives the rows of a merge in one piece, and DuckDB's answer, whatever the table, its parts and how
they are cut into shards. The files of its output hold disjoint, ascending ranges of keys."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.cold import as_rows, assert_sorted_and_disjoint, cold_config, cold_merge, content, digest, group
from tests.crash import mutants
from tests.turns import examples
from tiering.catalog.catalog import StoredPart
from tiering.engine.store import Store
from tiering.merge import rows as merge_rows
from tiering.merge.stream import RowMerge, merge_files
from tiering.parquet import sorted_merge
from tiering.parquet.sorted_input import SortedFile
from tiering.table import definitions
from tiering.table.columns.types import arrow_schema, default_array, field_ids
from tiering.table.merge_modes import parse_merge_mode
from tiering.table.rule_texts import parse_ttl
from tiering.table.schema import TableDefinition

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DUE = NOW - timedelta(days=30)
_LONG = "a" * 300

KEYS: dict[str, list[Any]] = {
    "int64": [-(2**63), -1, 0, 1, 2, 3, 2**63 - 1],
    "uint64": [0, 1, 2**64 - 1],
    "float64": [float("-inf"), -1.5, 0.0, 2.5, float("inf"), float("nan")],
    "string": ["", "a", "b", "\U0001f600", f"{_LONG}x", f"{_LONG}y"],
    "binary": [b"", b"\x00", b"\xff\xff"],
    "bool": [False, True],
    "decimal(10, 2)": [Decimal("-1.50"), Decimal("0.00"), Decimal("1.25")],
    "timestamp[us, UTC]": [NOW + timedelta(microseconds=step) for step in range(-2, 3)],
    "timestamp[ns]": [1_700_000_000_000_000_000 + step for step in (0, 1, 999, 1000, 1001)],
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "v": st.integers(0, 3) | st.none(),
    "n": st.integers(-99, 99) | st.none(),
    "x": st.sampled_from(["", "some", "other"]) | st.none(),
    "f": st.sampled_from([-0.5, 1.25, float("nan")]) | st.none(),
    "gone": st.booleans() | st.none(),
    "ts": st.sampled_from([DUE - timedelta(days=1), DUE, DUE + timedelta(seconds=1), NOW]) | st.none(),
}
MODES = (
    "ordinary", "replacing", "replacing:v", "replacing:v,gone", "summing:n,f",
    "aggregating:n=sum,x=min,f=max,gone=any,ts=anyLast,v=min",
)  # fmt: skip
SQL = {
    "min": "min({0})",
    "max": "max({0})",
    "sum": "sum({0})",
    "any": "first({0} ORDER BY seq) FILTER ({0} IS NOT NULL)",
    "anyLast": "last({0} ORDER BY seq) FILTER ({0} IS NOT NULL)",
    "": "first({0} ORDER BY seq)",
}
_database = duckdb.connect()
_database.execute("SET TimeZone = 'UTC'; SET threads = 1")


@pytest.fixture(autouse=True, scope="module")
def _tiny_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_rows, "_COMBINE_ROWS", 4)
        patch.setattr(merge_rows, "_HELD_ROWS", 6)
        patch.setattr(sorted_merge, "_BATCH_ROWS", (1, 3))
        patch.setattr(sorted_merge, "MAX_OPEN_FILES", 3)
        yield


class Model:
    """The inserted rows in the columns of today, with the number of their insert and their place in it all."""

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.rows = arrow_schema(definition).empty_table()
        self.inserts: list[int] = []

    def insert(self, rows: pa.Table) -> None:
        self.inserts += [max(self.inserts, default=-1) + 1] * rows.num_rows
        self.rows = pa.concat_tables([self.rows, rows])

    def alter(self, new: TableDefinition) -> None:
        names = {column.id: column.name for column in self.definition.columns}
        columns = [
            self.rows.column(names[column.id]).cast(field.type)
            if column.id in names
            else default_array(column, self.rows.num_rows)
            for column, field in zip(new.columns, arrow_schema(new), strict=True)
        ]
        self.definition, self.rows = new, pa.Table.from_arrays(columns, schema=arrow_schema(new))

    def merged(self, inserts: set[int], partition: int, *, drop_deleted: bool) -> list[str]:
        """What DuckDB says a merge of these inserts' rows of the partition gives, in order."""
        mode = parse_merge_mode(self.definition.merge_mode)
        keys = ", ".join(self.definition.order_by)
        names = [column.name for column in self.definition.columns]
        numbered = self.rows.append_column("came", pa.array(self.inserts, pa.int64()))
        numbered = numbered.append_column("seq", pa.array(range(len(self.inserts)), pa.int64()))
        _database.register("inserted", numbered)
        ttl = f"ts IS NULL OR ts > '{DUE.isoformat()}'" if self.definition.ttl else "true"
        chosen = ", ".join(map(str, sorted(inserts))) or "-1"
        live = f"(SELECT * FROM inserted WHERE came IN ({chosen}) AND p = {partition} AND ({ttl}))"
        if mode.name == "ordinary":
            sql = f"SELECT * FROM {live} ORDER BY {keys}, seq"
        elif mode.name == "replacing":
            newest = f"{mode.version} DESC NULLS LAST, seq DESC" if mode.version else "seq DESC"
            kept = f"FROM {live} QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY {newest}) = 1"
            stays = f"NOT coalesce({mode.deleted}, false)" if drop_deleted and mode.deleted else "true"
            sql = f"SELECT * FROM ({kept}) WHERE {stays} ORDER BY {keys}"
        else:
            functions = dict(mode.functions)
            columns = ", ".join(
                name if name in self.definition.order_by else f"{SQL[functions.get(name, '')].format(name)} AS {name}"
                for name in names
            )
            sql = f"SELECT {columns} FROM {live} GROUP BY {keys} ORDER BY {keys}"
        return as_rows(_database.sql(sql).to_arrow_table().select(names).cast(arrow_schema(self.definition)))


def a_table(data: st.DataObject) -> TableDefinition:
    kinds = data.draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2))
    keys = [f"k{number}:{kind}" for number, kind in enumerate(kinds)]
    columns = [
        *keys, "p:int8", "v:int32", "n:int32", "x:string", "f:float64", "gone:bool", "ts:timestamp[us, UTC]",
    ]  # fmt: skip
    definition = definitions.define_table(
        "db.t",
        columns=columns,
        order_by=",".join(key.partition(":")[0] for key in keys),
        policy="cold",
        partition_by="identity(p)",
        merge_mode=data.draw(st.sampled_from(MODES)),
        settings=[
            f"row_group_rows={data.draw(st.sampled_from([1, 2, 5, 1000]))}",
            f"target_file_size_bytes={data.draw(st.sampled_from(['1', '4KiB', '1GiB']))}",
        ],
    )
    # Earlier versions took a rule on any column, also on one that merges change.
    return replace(definition, ttl=(parse_ttl("30d on ts delete"),) if data.draw(st.booleans()) else ())


def some_rows(data: st.DataObject, definition: TableDefinition) -> pa.Table:
    count = data.draw(st.integers(1, 20))
    columns = []
    for column, field in zip(definition.columns, arrow_schema(definition), strict=True):
        if column.name in definition.order_by:
            value: st.SearchStrategy[Any] = st.sampled_from(KEYS[column.type]) | st.none()
        elif column.name == "p":
            value = st.integers(0, 1)
        elif column.name.startswith("new"):
            value = st.integers(0, 3)
        else:
            value = VALUES[column.name.rstrip("0123456789")]
        columns.append(pa.array(data.draw(st.lists(value, min_size=count, max_size=count)), field.type))
    return pa.Table.from_arrays(columns, schema=arrow_schema(definition))


def altered(data: st.DataObject, definition: TableDefinition, number: int) -> TableDefinition:
    """The table with a column renamed, added or widened."""
    change = data.draw(st.sampled_from(["rename", "add", "add with default", "widen"]))
    if change == "rename":
        (name,) = (column.name for column in definition.columns if column.name.startswith("x"))
        return definitions.rename_column(definition, f"{name}:x{number}")
    if change == "widen" and definition.column("n").type == "int32":
        return definitions.widen_column(definition, "n:int64")
    default = "7" if change == "add with default" else None
    return definitions.add_column(definition, f"new{number}:int32", default=default)


def fill(data: st.DataObject, store: Store) -> Model:
    """A table with a history of inserts and changes."""
    model = Model(store.create_table(a_table(data)))
    for number in range(data.draw(st.integers(2, 6))):
        if number and data.draw(st.integers(0, 3)) == 0:
            model.alter(store.alter_table(model.definition, altered(data, model.definition, number)))
        rows = some_rows(data, model.definition)
        store.table("db.t").insert(rows.to_batches())
        store.refresh()
        model.insert(rows)
    return model


def merged_in_one_piece(
    store: Store, definition: TableDefinition, parts: list[StoredPart], home: Path, *, drop_deleted: bool
) -> pa.Table:
    files = []
    for order, stored in enumerate(parts):
        for file in stored.part.files:
            path = home / f"{order}-{file.name}"
            path.write_bytes(store.disk(stored.disk).read(stored.path(file.name)))
            files.append(SortedFile(path, file, field_ids(pq.read_schema(path)), order, str(path)))
    out = home / "out"
    written = merge_files(files, RowMerge(definition, NOW, drop_deleted=drop_deleted), out, scratch=home)
    return pa.concat_tables([pq.read_table(out / file.name) for file in written.files])


# To make an example small takes minutes, and a mutant needs none.
_PHASES = (Phase.generate,) if mutants.active() else tuple(Phase)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck), phases=_PHASES)
@given(st.data())
def test_shards_give_what_one_merge_gives(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with Store.open(cold_config(home, f"memory://{uuid.uuid4()}"), clock=lambda: NOW) as store:
            model = fill(data, store)
            parts = sorted(store.parts("db.t"), key=lambda stored: stored.name)
            partition = data.draw(st.sampled_from(sorted({str(stored.name.partition) for stored in parts})))
            members = [stored for stored in parts if stored.name.partition == partition]
            first = data.draw(st.integers(0, len(members) - 1))
            chosen = members[first : data.draw(st.integers(first + 1, len(members)))]
            dropping = data.draw(st.booleans())

            numbers = sorted({stored.name.min_block for stored in parts})
            inserts = {numbers.index(stored.name.min_block) for stored in chosen}
            drop_deleted = dropping and len(chosen) == len(members)
            expected = model.merged(inserts, int(partition), drop_deleted=drop_deleted)
            single = merged_in_one_piece(store, model.definition, chosen, home, drop_deleted=drop_deleted)
            assert as_rows(single) == expected

            size = data.draw(st.sampled_from([1, 1, 1, 1000, 1 << 30]))
            report = cold_merge(store, [group(chosen)], shard_bytes=size, drop_deleted=dropping)
            event(f"{min(report.shards, 4)} shards")
            assert not report.failures, report.failures[0].error
            (result,) = report.merges
            left = [stored.part.name for stored in store.parts("db.t") if stored.name.partition == partition]
            others = [stored.part.name for stored in members if stored not in chosen]
            assert sorted(left) == sorted([*others, *([result.output] if expected else [])])
            if expected:
                (made,) = [stored for stored in store.parts("db.t") if stored.part.name == result.output]
                tables = content(store.context, model.definition, made)
                assert_sorted_and_disjoint(tables, model.definition.order_by)
                found = as_rows(pa.concat_tables(tables))
                assert found == expected
                assert digest(found) == digest(as_rows(single))
                assert made.part.rows == result.rows_out == len(expected)


@pytest.mark.parametrize("mode", ["ordinary", "replacing"])
def test_a_key_at_the_end_of_a_shard_is_merged_once(tmp_path: Path, mode: str) -> None:
    """The shards of one insert end within the row groups of the other."""
    with Store.open(cold_config(tmp_path, f"memory://{uuid.uuid4()}"), clock=lambda: NOW) as store:
        definition = store.create_table(
            definitions.define_table(
                "db.t", columns=["k:int64", "n:int32"], order_by="k", policy="cold", merge_mode=mode,
                settings=["row_group_rows=2"],
            )
        )  # fmt: skip
        for number in range(2):
            rows = pa.table({"k": range(number, number + 8), "n": [number] * 8}, schema=arrow_schema(definition))
            store.table("db.t").insert(rows.to_batches())
            store.refresh()
        report = cold_merge(store, [group(store.parts("db.t"))], shard_bytes=1)
        assert report.failures == []
        assert report.shards >= 7
        (made,) = store.parts("db.t")
        found = [row for file in content(store.context, definition, made) for row in file.to_pylist()]
        first = 8 if mode == "ordinary" else 1
        expected = sorted([(key, 0) for key in range(first)] + [(key, 1) for key in range(1, 9)])
        assert [(row["k"], row["n"]) for row in found] == expected
