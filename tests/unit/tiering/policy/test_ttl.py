"""When rules are due. Guards P20 (missing statistics are explained) and P23 (implausible times)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tiering.policy import ttl
from tiering.table.part import ColumnRange, Part
from tiering.table.schema import Column, Delete, MoveToDisk, MoveToVolume, Recompress, TableDefinition, TtlRule

NOW = datetime(2013, 3, 2, 23, 0, tzinfo=UTC)
DAY = 86400


def table(*rules: tuple[int, Any]) -> TableDefinition:
    return TableDefinition(
        uuid="u1",
        database="nyc",
        name="flights",
        columns=(Column(id=7, name="ts", type="timestamp[us, UTC]"),),
        order_by=("ts",),
        policy="p",
        ttl=tuple(TtlRule(after_seconds=days * DAY, column="ts", action=action) for days, action in rules),
    )


def part(newest: Any = "2013-01-31T23:00:00Z", **changes: Any) -> Part:
    fields: dict[str, Any] = {
        "table": "u1",
        "name": "201301_1_1_0",
        "rows": 10,
        "size_bytes": 100,
        "created": NOW,
        "columns": {"7": ColumnRange(min=newest, max=newest)},
    }
    return Part(**(fields | changes))


def test_due_to_the_microsecond() -> None:
    (due,) = ttl.due_times(table((30, MoveToVolume(volume="cold"))), part())
    assert due.due == datetime(2013, 3, 2, 23, 0, tzinfo=UTC)
    assert due.is_due(NOW)
    assert not due.is_due(NOW - timedelta(microseconds=1))
    assert due.describe(NOW) == "newest row 2013-01-31T23:00Z + 30d was due 2013-03-02T23:00Z"
    assert due.describe(NOW - timedelta(days=1)) == "newest row 2013-01-31T23:00Z + 30d is due 2013-03-02T23:00Z"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2013-01-31T23:00:00+00:00", datetime(2013, 1, 31, 23, tzinfo=UTC)),
        ("2013-02-01T00:00:00+01:00", datetime(2013, 1, 31, 23, tzinfo=UTC)),
        ("2013-01-31T23:00:00", datetime(2013, 1, 31, 23, tzinfo=UTC)),
        ("2013-01-31", datetime(2013, 1, 31, tzinfo=UTC)),
        ("2013-01-31T23:00:00.123456789Z", datetime(2013, 1, 31, 23, 0, 0, 123456, tzinfo=UTC)),
    ],
)
def test_times_as_part_json_has_them(value: str, expected: datetime) -> None:
    (due,) = ttl.due_times(table((0, Delete())), part(value))
    assert due.newest == expected


def test_of_several_due_moves_the_latest_time_wins() -> None:
    dues = ttl.due_times(
        table((7, MoveToVolume(volume="warm")), (20, MoveToVolume(volume="cold")), (60, MoveToDisk(disk="tape"))),
        part(),
    )
    winner = ttl.winning_move(dues, NOW)
    assert winner is not None
    assert winner.rule.action == MoveToVolume(volume="cold")
    assert ttl.next_due(dues, NOW) is dues[2]
    assert ttl.winning_move(dues, NOW - timedelta(days=90)) is None


def test_on_a_tie_the_later_rule_wins() -> None:
    dues = ttl.due_times(table((7, MoveToVolume(volume="a")), (7, MoveToVolume(volume="b"))), part())
    winner = ttl.winning_move(dues, NOW)
    assert winner is not None
    assert winner.rule.action == MoveToVolume(volume="b")


def test_deletes_and_recompressions_are_not_moves() -> None:
    dues = ttl.due_times(table((7, Delete()), (8, Recompress(level=12))), part())
    assert ttl.winning_move(dues, NOW) is None
    assert ttl.due_delete(dues, NOW) is dues[0]
    assert ttl.due_recompressions(dues, NOW) == [dues[1]]
    assert ttl.rule_text(dues[1].rule) == "8d on ts recompress zstd(12)"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (part(columns={}), "has no statistics of ts"),
        (part(columns={"7": ColumnRange(nulls=10)}), "null in every row"),
        (part(columns={"7": ColumnRange(nulls=3)}), "newest ts is not known"),
        (part("soon"), "not a time"),
        (part(12), "not a time"),
        (part("9999-12-31T00:00:00Z"), "beyond the calendar"),
    ],
)
def test_what_is_missing_is_said(changed: Part, why: str) -> None:
    """P20."""
    (due,) = ttl.due_times(table((30, Delete())), changed)
    assert due.due is None
    assert not due.is_due(NOW)
    assert why in due.describe(NOW)


def test_a_dropped_column_is_said() -> None:
    definition = table((30, Delete()))
    rule = TtlRule(after_seconds=1, column="gone", action=Delete())
    (due,) = ttl.due_times(TableDefinition(**{**_fields(definition), "ttl": (rule,)}), part())
    assert "no column gone" in due.missing


def _fields(definition: TableDefinition) -> dict[str, Any]:
    return {name: getattr(definition, name) for name in definition.__struct_fields__}


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(days=30), "30d"),
        (timedelta(hours=36), "1d12h"),
        (timedelta(0), "0s"),
        (timedelta(days=1, seconds=61), "1d1m1s"),
    ],
)
def test_durations_are_exact(duration: timedelta, text: str) -> None:
    assert ttl.short_duration(duration) == text
