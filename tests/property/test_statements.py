"""Random statements over small tables: the answer is that of the engine over the same tables in its memory.

A query plans over empty tables, reads the columns that the plan says, and declares those that the statement may mean. A
column that is read nevertheless is an error that no user can understand, and one that is missing another answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

import duckdb
import pyarrow as pa
import pytest

from disks.config import LocalDiskConfig
from tests.tiers import define, make_context, put_part, put_table, resolver
from tiering.query.query import run_sql
from tiering.query.sql.planning import connect

TABLES: dict[str, dict[str, list[int | None]]] = {
    "many": {
        "k": [1, 2, 3, 4],
        "shared": [10, 20, 30, None],
        "b": [5, 6, 7, 8],
        "far": [8, 8, 9, 9],
        "m": [1, 1, 2, 2],
    },
    "more": {"shared": [20, 30, 40], "name": [1, 2, 3], "k2": [1, 2, 3], "b": [5, 5, 6]},
    "few": {"n": [1, 2], "far": [8, 9]},
}
STATEMENTS = 50
_Choice = TypeVar("_Choice")


@dataclass(frozen=True)
class Source:
    """What a FROM holds: how it is written, what it is called, and its columns."""

    text: str
    name: str
    columns: Sequence[str]


class Writer:
    """Writes statements. Most bind; names are few, so that they often mean two things."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._names = 0

    def statement(self) -> str:
        text, columns = self.select(2, outermost=True)
        if self._chance(0.7):
            return text
        inner, columns = self.select(1)
        key = self._one(columns)
        return self._one(
            [
                f"WITH c AS ({inner}) {text}",
                f"WITH c AS MATERIALIZED ({inner}) SELECT count(*), min(x.{key}) FROM c x JOIN c y USING ({key})",
                f"WITH c AS ({inner}) SELECT {key} FROM c UNION ALL SELECT count(*) FROM c",
                f"SELECT count(*), min(x.{key}) FROM ({inner}) x JOIN ({inner}) y ON x.{key} = y.{key}",
                f"SELECT count(*) FROM (SELECT * FROM ({inner}) z ORDER BY {key} LIMIT 2)",
                f"SELECT min({key}) FROM (FROM ({inner}) z QUALIFY row_number() OVER (PARTITION BY {key}) = 1)",
                f"SELECT {key}, (SELECT count(*) FROM ({inner}) w WHERE w.{key} = z.{key}) AS n FROM ({inner}) z",
            ]
        )

    def select(self, depth: int, *, outermost: bool = False) -> tuple[str, list[str]]:
        """A SELECT and the names of its columns."""
        sources = [*self._sources(depth)]
        joined = f"FROM {''.join(source.text for source in sources)}"
        if self._chance(0.4):
            joined += f" WHERE {self._condition(sources, depth)}"
        first, second = self._column(sources), self._column(sources)
        match self._random.randrange(12):
            case 0:
                star = self._one(["*", f"{sources[0].name}.*", f"* EXCLUDE ({self._one(sources[0].columns)})"])
                return f"SELECT {star} {joined}", [column for source in sources for column in source.columns]
            case 1:
                return joined, [column for source in sources for column in source.columns]
            case 2:
                return f"SELECT count(*) AS n, {self._one(['sum', 'min', 'count'])}({first}) AS a {joined}", ["n", "a"]
            case 3:
                grouped = self._one([first, "ALL", "1"])
                return f"SELECT {first} AS g, count(*) AS n {joined} GROUP BY {grouped}", ["g", "n"]
            case 4:
                sets = [f"ROLLUP ({first}, {second})", f"CUBE ({first}, {second})", f"GROUPING SETS (({first}), ())"]
                distinct = f"count(DISTINCT {self._column(sources)}) AS d, sum(DISTINCT {self._column(sources)}) AS e"
                return f"SELECT {first} AS g, count(*) AS n, {distinct} {joined} GROUP BY {self._one(sets)}", [*"gnde"]
        names = [self._one([f"e{place}", "k", "far", "b"]) for place in range(self._random.randint(1, 3))]
        items = [f"{self._expression(sources, depth, outermost=outermost)} AS {name}" for name in names]
        return f"SELECT {self._one(['', '', 'DISTINCT '])}{', '.join(items)} {joined}", names

    def _sources(self, depth: int) -> Iterator[Source]:
        known = [self._source(depth)]
        yield known[0]
        while self._chance(0.4) and len(known) < 3:
            other = self._source(depth)
            left, right = self._column(known), f"{other.name}.{self._one(other.columns)}"
            common = [column for column in other.columns if any(column in one.columns for one in known)]
            joins = [
                f" NATURAL {self._one(['', 'LEFT ', 'FULL '])}JOIN {other.text}",
                f" {self._one(['', 'LEFT ', 'RIGHT '])}JOIN {other.text} ON {left} = {right}",
                f", {other.text}",
                *(f" JOIN {other.text} USING ({column})" for column in common[:1]),
            ]
            yield Source(self._one(joins), other.name, other.columns)
            known.append(other)
        if self._chance(0.1):
            other = self._source(0)
            condition = f"{self._column(known)} = {other.name}.{self._one(other.columns)}"
            yield Source(f" {self._one(['SEMI', 'ANTI'])} JOIN {other.text} ON {condition}", known[0].name, ["k"])

    def _source(self, depth: int) -> Source:
        self._names += 1
        name = self._one(["t", "s", "m", "far", "b", "k"]) + self._one(["", str(self._names)])
        if depth and self._chance(0.25):
            inner, columns = self.select(depth - 1)
            text = f"({inner}) AS {name}"
        else:
            table = self._one(list(TABLES))
            columns = list(TABLES[table])
            if self._chance(0.3):
                return Source(f"u.{table}", table, columns)
            text = f"u.{table} AS {name}"
        if self._chance(0.2):
            given = [
                self._one([f"z{place}", "k", "far", "b"]) for place in range(self._random.randint(1, len(columns)))
            ]
            return Source(f"{text}({', '.join(given)})", name, [*given, *columns[len(given) :]])
        return Source(text, name, columns)

    def _column(self, sources: Sequence[Source]) -> str:
        source = self._one(sources)
        column = self._one(source.columns)
        return self._one([column, f"{source.name}.{column}"])

    def _condition(self, sources: Sequence[Source], depth: int) -> str:
        column = self._column(sources)
        if not depth or self._chance(0.6):
            return f"{column} {self._one(['>', '<', '=', '<>'])} {self._one(['1', '5', '20', self._column(sources)])}"
        inner = self._source(depth - 1)
        other = self._one(inner.columns)
        exists = f"{self._one(['', 'NOT '])}EXISTS (SELECT 1 FROM {inner.text} WHERE {inner.name}.{other} = {column})"
        return self._one([exists, f"{column} IN (SELECT {other} FROM {inner.text})", f"{column} IS NOT NULL"])

    def _expression(self, sources: Sequence[Source], depth: int, *, outermost: bool) -> str:
        column, other = self._column(sources), self._column(sources)
        forms = [column] * 6
        forms += [f"({column} + 1)", f"CASE WHEN {column} > 2 THEN {other} END", f"#{self._random.randint(1, 3)}", "1"]
        over = self._one(["", f"PARTITION BY {other}", f"PARTITION BY {other}, {self._column(sources)}"])
        forms += [f"{call} OVER ({over})" for call in ("count(*)", f"sum({column})", f"count(DISTINCT {column})")]
        if depth:
            forms.append(f"(SELECT count(*) FROM ({self.select(depth - 1)[0]}) q)")
        if outermost:  # elsewhere they would be compared with numbers
            row = self._one(sources).name
            forms += [row, f"typeof({row})", f"typeof({column})", "typeof(COLUMNS(*))", "COLUMNS('b|far')"]
        return self._one(forms)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _one(self, values: Sequence[_Choice]) -> _Choice:
        return self._random.choice(values)


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(6))
def test_the_answer_is_that_of_the_engine_alone(tmp_path: Path, seed: int) -> None:
    context = make_context(tmp_path, {"ssd": LocalDiskConfig(path=str(tmp_path / "ssd"))})
    compared, writer = 0, Writer(seed)
    with closing(connect()) as engine:
        engine.execute("CREATE SCHEMA u")
        for name, columns in TABLES.items():
            rows = pa.table({column: pa.array(values, pa.int64()) for column, values in columns.items()})
            engine.register("rows", rows)
            engine.execute(f"CREATE TABLE u.{name} AS FROM rows")
            definition = define(f"u.{name}", dict.fromkeys(columns, "int64"), [next(iter(columns))])
            put_table(context, definition)
            for block in range(rows.num_rows):
                put_part(context, definition, "ssd", rows.slice(block, 1), block)
        for statement in (writer.statement() for _ in range(STATEMENTS)):
            try:
                expected = engine.sql(statement).to_arrow_table()
            except duckdb.Error:
                continue
            answer = run_sql(context, statement, resolver(context)).read_all()
            assert answer.column_names == expected.column_names, statement
            assert _rows(answer) == _rows(expected), statement
            compared += 1
    assert compared > STATEMENTS / 3, "most statements meant nothing"


def _rows(answer: pa.Table) -> Counter[str]:
    return Counter(map(repr, zip(*(column.to_pylist() for column in answer.columns), strict=True)))
