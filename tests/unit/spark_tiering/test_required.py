"""Conditions on nanoseconds, of which Spark gets microseconds, select every row that Spark's own selects (I21)."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from spark_tiering.queries.required import _comparison
from tiering.query.sql_filter import parse_filter
from tiering.table.definitions import define_table
from tiering.table.pruning import And, Compare, Or, Predicate

OPERATORS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
COUNTS = (-(2**63) + 1, -86_400 * 10**9, -1001, -1000, -999, -1, 0, 1, 999, 1000, 1001, 1500, 2**63 - 1)


class Constant:
    """As much of a constant of a plan as is asked."""

    def __init__(self, microseconds: int, kind: str) -> None:
        self._microseconds = microseconds
        self._kind = kind

    def getClass(self) -> Constant:  # noqa: N802
        return self

    def getSimpleName(self) -> str:  # noqa: N802
        return "Literal"

    def dataType(self) -> Constant:  # noqa: N802
        return self

    def simpleString(self) -> str:  # noqa: N802
        return self._kind

    def value(self) -> int:
        return self._microseconds


def _selects(predicate: Predicate, count: int) -> bool:
    if isinstance(predicate, And):
        return all(_selects(child, count) for child in predicate.children)
    if isinstance(predicate, Or):
        return any(_selects(child, count) for child in predicate.children)
    assert isinstance(predicate, Compare)
    return bool(OPERATORS[predicate.operator](count, predicate.value))


@pytest.mark.in_turn
@pytest.mark.parametrize("zone", ["", ", Europe/Berlin"])
@pytest.mark.parametrize("word", OPERATORS)
def test_conditions_on_nanoseconds_lose_no_row(word: str, zone: str) -> None:
    """Whether Spark's microsecond is rounded towards the past or towards 1970."""
    columns = ["k:int64", f"ts:timestamp[ns{zone}]"]
    definition = define_table("d.t", columns=columns, order_by="k", policy="p")
    for microseconds in (-1001, -1, 0, 1, 2, 1_600_000_000_000_000):
        constant: Any = Constant(microseconds, "timestamp" if zone else "timestamp_ntz")
        text = _comparison("ts", word, [constant], definition)
        assert text
        predicate = parse_filter(text, definition)
        for count in COUNTS:
            for cut in (count // 1000, int(count / 1000) if abs(count) < 2**50 else count // 1000):
                if OPERATORS[word](cut, microseconds):
                    assert _selects(predicate, count), (text, count)
