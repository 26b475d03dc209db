"""Random statements over parts on the SSD, in a bucket and in the read cache, of several schema versions, whose
`part.json` says all or less: the answer is that of the engine over the same rows in its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TypeVar

import duckdb
import pyarrow as pa
import pytest
from msgspec.structs import replace

from disks.config import LocalDiskConfig, ObjectDiskConfig
from tests.tiers import altered, define, make_context, put_part, put_table, resolver
from tiering.config.settings import ReadCacheConfig
from tiering.query.query import run_sql
from tiering.query.sql import cold_reads, fetched_files
from tiering.query.sql.fetched_files import FetchedFiles
from tiering.query.sql.planning import connect
from tiering.table.part import DataFile
from tiering.table.schema import Column, PartitionField, TableSettings

ROWS = 400
STATEMENTS = 40
TYPES = {
    "k": "int64",
    "ts": "timestamp[us, UTC]",
    "day": "date",
    "s": "string",
    "f": "float64",
    "d": "decimal(12, 2)",
    "n": "int32",
    "b": "bool",
    "p": "struct<x: int64, y: string>",
}
_START = datetime(2026, 1, 1, tzinfo=UTC)
_Choice = TypeVar("_Choice")


def some_rows(random: Random, rows: int) -> pa.Table:
    def maybe(value: object) -> object:
        return None if random.random() < 0.1 else value

    numbers = [random.randint(0, 300) for _ in range(rows)]
    return pa.table(
        {
            "k": pa.array(numbers, pa.int64()),
            "ts": pa.array([_START + timedelta(minutes=97 * number) for number in numbers], pa.timestamp("us", "UTC")),
            "day": pa.array([maybe(date(2026, 1, 1) + timedelta(days=number % 40)) for number in numbers]),
            "s": pa.array([maybe(f"{number % 50:03d}" * random.choice([1, 30])) for number in numbers]),
            "f": pa.array([maybe(random.choice([number / 4, float("nan"), -0.0, float("inf")])) for number in numbers]),
            "d": pa.array([maybe(Decimal(number) / 4) for number in numbers], pa.decimal128(12, 2)),
            "n": pa.array([maybe(random.choice([number, -(2**31), 2**31 - 1])) for number in numbers], pa.int32()),
            "b": pa.array([maybe(number % 2 == 0) for number in numbers]),
            "p": pa.array(
                [maybe({"x": maybe(number), "y": str(number)}) for number in numbers],
                pa.struct({"x": pa.int64(), "y": pa.string()}),
            ),
        }
    )


def as_it_is(file: DataFile) -> DataFile:
    return file


def without_group_ranges(file: DataFile) -> DataFile:
    """As the versions wrote it that knew of no ranges of row groups."""
    return replace(file, row_groups=tuple(replace(group, columns={}) for group in file.row_groups))


def without_sections(file: DataFile) -> DataFile:
    """As the versions wrote it that compared files as a whole."""
    groups = (replace(group, chunk_sums=b"") for group in without_group_ranges(file).row_groups)
    return replace(file, row_groups=tuple(groups), tail_crc32=None)


class Conditions:
    """Filters of every form; about half of them leave row groups out."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def one(self, of: Sequence[_Choice]) -> _Choice:
        return self._random.choice(of)

    def condition(self, depth: int = 2) -> str:
        if depth and self._random.random() < 0.5:
            joined = f" {self.one(['AND', 'AND', 'OR'])} ".join(self.condition(depth - 1) for _ in range(2))
            return f"{self.one(['', 'NOT '])}({joined})"
        column = self.one(["k", "k", "ts", "ts", "day", "s", "f", "d", "n", "b", "p.x"])
        form = self._random.randrange(6)
        if form == 0:
            return f"{column} IS {self.one(['', 'NOT '])}NULL"
        if form == 1:
            return f"{column} {self.one(['IN', 'NOT IN'])} ({', '.join(self.value(column) for _ in range(3))})"
        if form == 2:
            return f"{column} BETWEEN {self.value(column)} AND {self.value(column)}"
        if column == "s" and form == 3:
            return f"s LIKE '{self._random.randrange(50):03d}%'"
        return f"{column} {self.one(['=', '<', '<=', '>', '>=', '<>'])} {self.value(column)}"

    def value(self, column: str) -> str:
        number = self._random.randint(-5, 305)
        match column:
            case "ts":
                return f"TIMESTAMPTZ '{_START + timedelta(minutes=97 * number)}'"
            case "day":
                return f"DATE '{date(2026, 1, 1) + timedelta(days=number % 45)}'"
            case "s":
                return f"'{number % 55:03d}'"
            case "f":
                return self.one([str(number / 4), "'nan'::DOUBLE", "0.0", "'inf'::DOUBLE"])
            case "n":
                return self.one([str(number), "-2147483648", "2147483647", "3000000000"])
            case "b":
                return self.one(["true", "false"])
        return str(number)

    def summary(self) -> str:
        """Counts and outermost values."""
        columns = self.one([["k", "ts"], ["k", "ts", "n", "day", "b"], ["s", "f", "d", "late"]])
        wanted = ["count(*)", "count(*) + 1", *(f"{how}({one})" for one in columns for how in ("min", "max", "count"))]
        wanted += ["count(DISTINCT k)", "min(k + 1)", "max(s) FILTER (WHERE k > 5)", "sum(n)"]
        return ", ".join(self._random.sample(wanted[:-4] if self._random.random() < 0.8 else wanted, 2))

    def simple(self) -> str:
        """What is true for all rows of many parts."""
        column = self.one(["k", "k", "ts", "ts", "day", "s"])
        how = self.one([">=", "<=", "<>", "IS NOT NULL", "IS NULL", "NOT IN"])
        if how == "NOT IN":
            return f"{column} NOT IN ({self.value(column)}, {self.value(column)})"
        return f"{column} {how}" if "NULL" in how else f"{column} {how} {self.value(column)}"

    def some(self) -> tuple[str, str, int, int]:
        """Some rows: a statement, the rows that it is about, how many there are left out and taken."""
        where = self.one(["", f" WHERE {self.simple()}", f" WHERE {self.condition(1)}"])
        limit, offset = self._random.choice([0, 1, 5, 60, 1000]), self._random.choice([0, 0, 7, 200])
        of = f"SELECT * FROM u.t{where}"
        return f"{of} LIMIT {limit} OFFSET {offset}", of, offset, limit

    def statement(self) -> str:
        where = self.condition()
        return self.one(
            [
                f"SELECT count(*), min(k), max(ts), count(s), sum(n), max(d), count(f) FROM u.t WHERE {where}",
                f"SELECT * FROM u.t WHERE {where}",
                f"SELECT s, p.y, count(*) FROM u.t WHERE {where} GROUP BY ALL",
                f"SELECT count(*) FROM u.t WHERE {where}",
                f"SELECT {self.summary()} FROM u.t{self.one(['', f' WHERE {self.simple()}', f' WHERE {where}'])}",
                f"SELECT {self.summary()} FROM u.t WHERE {self.simple()} {self.one(['AND', 'OR'])} {self.simple()}",
                f"SELECT x.k, y.s FROM u.t x, u.t y WHERE x.k = y.k AND x.n > 100 AND y.{self.condition(0)}",
                f"SELECT k, ts FROM u.t WHERE {where} ORDER BY ALL LIMIT 5",
                f"SELECT max(k) FROM u.t WHERE ts = (SELECT max(ts) FROM u.t WHERE {where})",
                f"SELECT count(*) FROM (SELECT k FROM u.t WHERE {where} UNION ALL SELECT n FROM u.t)",
            ]
        )


@pytest.mark.in_turn
@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_answer_is_that_of_the_engine_alone(
    tmp_path: Path, seed: int, cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    disks = {
        "ssd": LocalDiskConfig(path=str(tmp_path / "ssd")),
        "s3": ObjectDiskConfig(url=f"memory://cold-{seed}-{cache}/"),
    }
    context = make_context(tmp_path, disks)
    if cache:
        context.config = context.config.__replace__(read_cache=ReadCacheConfig(max_bytes=random.choice([10**5, 10**8])))
    rows = some_rows(random, ROWS)
    if seed % 2:  # so that many conditions are true for all rows of a part
        rows = rows.sort_by("ts")
    definition = define(
        "u.t",
        TYPES,
        random.choice([["k"], ["s", "k"], ["f"], ["day", "ts"]]),
        settings=TableSettings(row_group_rows=random.choice([8, 30, 1000])),
        partition_by=random.choice([(), (PartitionField("month", "ts"),), (PartitionField("bucket", "k", 3),)]),
    )
    put_table(context, definition)
    for number, start in enumerate(range(0, ROWS, ROWS // 4)):
        if number == 2:  # the later parts have a column that the former lack
            definition = altered(definition, [*definition.columns, Column(20, "late", "int64", default=7)])
            put_table(context, definition)
            rows = rows.append_column("late", pa.array([7] * ROWS, pa.int64()))
        described = random.choice([as_it_is, as_it_is, without_group_ranges, without_sections])
        put_part(
            context, definition, random.choice(["ssd", "s3", "s3"]), rows.slice(start, ROWS // 4), number, described
        )
    most = cold_reads._FOOTER_BYTES
    fetched = _count_fetched(monkeypatch)
    statements, compared = Conditions(Random(seed)), 0
    with closing(connect()) as engine:
        engine.execute("CREATE SCHEMA u")
        engine.register("rows", rows)
        engine.execute("CREATE TABLE u.t AS FROM rows")
        for statement in (statements.statement() for _ in range(STATEMENTS)):
            try:
                expected = engine.sql(statement).to_arrow_table()
            except duckdb.Error:
                continue
            monkeypatch.setattr(cold_reads, "_FOOTER_BYTES", random.choice([0, most]))
            monkeypatch.setattr(fetched_files, "MOST_BYTES", random.choice([10_000, 1 << 30]))
            answer = run_sql(context, statement, resolver(context)).read_all()
            assert _rows(answer) == _rows(expected), statement
            compared += 1
        for statement, whole, offset, limit in (statements.some() for _ in range(STATEMENTS // 4)):
            try:
                among = _rows(engine.sql(whole).to_arrow_table())
            except duckdb.Error:
                continue
            some = _rows(run_sql(context, statement, resolver(context)).read_all())
            assert some <= among, statement
            assert some.total() == min(limit, max(0, among.total() - offset)), statement
    assert compared > STATEMENTS / 2, "most statements meant nothing"
    assert fetched or cache, "no file of the bucket was fetched"


def _count_fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts: list[int] = []
    fetch = FetchedFiles.fetch

    def counted(self: FetchedFiles, reads: Sequence[object]) -> None:
        counts.append(len(reads))
        fetch(self, reads)  # type: ignore[arg-type]

    monkeypatch.setattr(FetchedFiles, "fetch", counted)
    return counts


def _rows(answer: pa.Table) -> Counter[str]:
    return Counter(map(repr, zip(*(column.to_pylist() for column in answer.columns), strict=True)))
