"""Filters as text prune and select as the query engine does: the same rows, no more and no fewer."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

from oplog.errors import UsageError
from tests.tiers import define
from tiering.query.row_masks import row_mask
from tiering.query.sql_filter import parse_filter
from tiering.table.columns.types import arrow_schema
from tiering.table.pruning import columns_of

DEFINITION = define(
    "db.t",
    {
        "n": "int32",
        "u": "uint64",
        "f": "float64",
        "g": "float32",
        "s": "string",
        "b": "bool",
        "d": "date",
        "t": "timestamp[us, UTC]",
        "m": "timestamp[ms]",
        "x": "decimal(10, 2)",
        "r": 'struct<a: int64, "b c": struct<w: string, t: timestamp[us, UTC], f: float64, l: list<int64>>>',
    },
    ["n"],
)
SCHEMA = pa.schema([field.remove_metadata() for field in arrow_schema(DEFINITION)])
NAN = float("nan")
ROWS = pa.table(
    {
        "n": [1, 2, 3, None, 5, 6],
        "u": [0, 2**64 - 1, 2**63, None, 7, 8],
        "f": [0.5, NAN, -1.0, None, 1e300, float("-inf")],
        "g": [0.5, NAN, -1.0, None, 2.0, 3.0],
        "s": ["a", "ab", "", None, "b'c", "ä"],
        "b": [True, False, None, True, False, True],
        "d": [date(2026, 1, day) for day in (1, 2, 3, 4, 5)] + [None],
        "t": [datetime(2026, 1, 1, hour) for hour in (0, 6, 12, 18)] + [datetime(2026, 1, 1, 12, 0, 0, 1), None],
        "m": [datetime(2026, 1, 1, hour) for hour in (0, 6, 12, 18)] + [datetime(2026, 1, 2), None],
        "x": [Decimal("1.50"), Decimal("-2.25"), Decimal("0"), None, Decimal("99999999.99"), Decimal("1.51")],
        "r": [
            {"a": 1, "b c": {"w": "ab", "t": datetime(2026, 1, 1, 6), "f": NAN, "l": [1]}},
            {"a": 2, "b c": {"w": None, "t": datetime(2026, 1, 1, 18), "f": 0.5, "l": None}},
            {"a": None, "b c": {"w": "b", "t": None, "f": None, "l": []}},
            {"a": 4, "b c": None},
            None,
            {"a": 6, "b c": {"w": "", "t": datetime(2026, 1, 2), "f": -1.0, "l": [2]}},
        ],
    },
    SCHEMA,
)

CONDITIONS = [
    "n = 2",
    "n <> 2 and s is not null",
    "n in (1, 3, 5, 7, 9)",
    "n not in (1, 2, 3, 4, 5)",
    "not (n between 2 and 5)",
    "n < 3 or f > 1",
    "u >= 9223372036854775808",
    "f > 0",
    "f >= 0.5",
    "f < 0.5",
    "f <= -1",
    "f <> 0.5",
    "g = cast(0.5 as float)",
    "g = 0.5",
    "n + 1 = 2",
    "n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)",
    "s like 'a%'",
    "s not like 'a%'",
    "s = 'b''c' or s = ''",
    "s > 'a'",
    "b",
    "not b",
    "b is null",
    "d >= '2026-01-03'",
    "t > '2026-01-01T12:00:00Z'",
    "t = '2026-01-01T12:00:00Z'",
    "t between timestamp '2026-01-01 06:00:00' and '2026-01-01T12:00:00Z'",
    "m >= '2026-01-01T06:00:00'",
    "x > 1.5",
    "x = 1.51",
    "1 = 0",
    "1 = 1",
    "n = 1 and n = 2",
    "s = 'a' or 1 = 1",
    "n is null or not (n > 2 and b)",
    "r.a > 1",
    "r.a not in (1, 6)",
    "r.a is null",
    "r is null",
    'r."b c" is null',
    'r."b c" is not null and r.a is null',
    'r."b c".l is null',
    "r.\"b c\".w = 'b' or r.\"b c\".w like 'a%'",
    "not (r.\"b c\".w like 'a%')",
    "r.\"b c\".t >= '2026-01-01T12:00:00Z' and n > 0",
    'r."b c".f > 0',
    'not (r.a > 1 and r."b c".w is null)',
]


@pytest.mark.in_turn
@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_rows_are_those_of_the_query_engine(condition: str) -> None:
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("given", ROWS)
        engine.execute("CREATE TABLE rows AS FROM given")  # else Arrow compares, for which NaN is no number
        expected = [row[0] for row in engine.execute(f"select n from rows where {condition}").fetchall()]
    predicate = parse_filter(condition, DEFINITION)
    assert columns_of(predicate) <= set(SCHEMA.names)
    assert ROWS.filter(row_mask(predicate, ROWS, DEFINITION)).column("n").to_pylist() == expected
    batch = ROWS.to_batches()[0]
    assert batch.filter(row_mask(predicate, batch, DEFINITION)).column("n").to_pylist() == expected


@pytest.mark.parametrize(
    "condition",
    [
        "lower(s) = 'a'",
        "n = u",
        "s like '%a'",
        "n % 2 = 1",
        'r."b c".l[1] = 1',
        "r.a is not distinct from 1",
        "n in (select 1)",
        "n in (select n from db.other)",
        "1 = 1) union all select * from db.t where (1 = 1",
        "1 = 1) limit (1",
    ],
)
def test_what_does_not_prune_exactly_is_refused(condition: str) -> None:
    with pytest.raises(UsageError, match="more than comparisons") as caught:
        parse_filter(condition, DEFINITION)
    assert "compares columns with constants" in caught.value.hint


def test_mistakes_are_told_in_the_words_of_the_engine() -> None:
    with pytest.raises(UsageError, match="wrong"):
        parse_filter("wrong = 1", DEFINITION)
    with pytest.raises(UsageError, match="syntax error"):
        parse_filter("n = = 1", DEFINITION)
    with pytest.raises(UsageError):
        parse_filter("1=1); drop table filtered; select (1", DEFINITION)


def test_an_empty_text_selects_everything() -> None:
    assert row_mask(parse_filter("  ", DEFINITION), ROWS, DEFINITION).to_pylist() == [True] * 6
