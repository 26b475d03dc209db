"""What `part.json` alone proves about a filter: pruned where it must be, kept where it must not be."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tests.tiers import define
from tiering.table.part import ColumnRange, DataFile, Part
from tiering.table.pruning import (
    TRUE,
    And,
    Compare,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    Unknown,
    domain_value,
    matching_files,
    may_match,
)
from tiering.table.schema import PartitionField

COLUMNS = {
    "i": "int64",
    "f": "float64",
    "s": "string",
    "ts": "timestamp[us, UTC]",
    "tn": "timestamp[ns]",
    "d": "decimal(10, 2)",
    "day": "date",
    "o": 'struct<a: int64, "a.b": int64, a2: struct<b: decimal(12, 2), t: timestamp[ns, UTC]>>',
}
IDS = {name: str(number) for number, name in enumerate(COLUMNS, 1)}


def part(ranges: dict[str, ColumnRange], *, rows: int = 10, files: tuple[DataFile, ...] = (), **more: Any) -> Part:
    columns = {IDS[name]: known for name, known in ranges.items()}
    file = DataFile(name="data-0000.parquet", rows=rows, size_bytes=1, sha256="", columns=columns)
    return Part(
        table="t",
        name="all_1_1_0",
        rows=rows,
        size_bytes=1,
        created=datetime(2026, 1, 1, tzinfo=UTC),
        files=files or (file,),
        columns=columns,
        **more,
    )


def matches(predicate: Predicate, *, partition_by: tuple[PartitionField, ...] = (), **known: Any) -> bool:
    values = known.pop("partition_values", ())
    definition = define("u.t", COLUMNS, ["i"], partition_by=partition_by)
    ranges = {name: value if isinstance(value, ColumnRange) else ColumnRange(*value) for name, value in known.items()}
    return may_match(predicate, part(ranges, partition_values=values), definition)


def time(text: str) -> Any:
    return domain_value("timestamp[us, UTC]", text)


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        ("=", 4, False), ("=", 5, True), ("=", 9, True), ("=", 10, False),
        ("<", 5, False), ("<", 6, True), ("<=", 4, False), ("<=", 5, True),
        (">", 9, False), (">", 8, True), (">=", 10, False), (">=", 9, True),
        ("!=", 5, True), ("=", 5.5, True), ("<", 4.9, False), (">", None, False),
    ],
)  # fmt: skip
def test_numbers(operator: Any, value: Any, expected: bool) -> None:
    assert matches(Compare("i", operator, value), i=(5, 9)) is expected


def test_a_single_value_is_not_another() -> None:
    assert not matches(Compare("i", "!=", 5), i=(5, 5))
    assert not matches(In("i", (5,), negated=True), i=(5, 5))
    assert not matches(In("i", (1, 2, 10)), i=(5, 9))
    assert matches(In("i", (1, 7)), i=(5, 9))
    assert not matches(In("i", (1, None), negated=True), i=(5, 9))  # NOT IN with a null is never true


def test_nulls() -> None:
    assert not matches(IsNull("i"), i=(5, 9, 0))
    assert matches(IsNull("i"), i=(5, 9, 1))
    assert matches(IsNull("i", negated=True), i=(5, 9, 9))
    assert not matches(IsNull("i", negated=True), i=(None, None, 10))
    assert not matches(Compare("i", "!=", 1), i=(None, None, 10))
    assert not matches(Not(Compare("i", "=", 1)), i=(None, None, 10))


def test_what_is_not_known_may_match() -> None:
    assert matches(Compare("i", "=", 1))
    assert matches(Compare("nope", "=", 1), i=(5, 9))
    assert matches(Unknown(), i=(5, 9))
    assert matches(Not(Unknown()), i=(5, 9))
    assert matches(Compare("i", ">", 100), i=(5, None))
    assert not matches(Compare("i", "<", 5), i=(5, None))
    assert matches(Compare("i", ">", "text"), i=(5, 9))
    assert matches(TRUE)
    assert not matches(Or(()))


def test_logic() -> None:
    low, high = Compare("i", "<", 5), Compare("s", "=", "b")
    known: dict[str, Any] = {"i": (5, 9), "s": ("a", "c")}
    assert not matches(And((low, high)), **known)
    assert matches(Or((low, high)), **known)
    assert matches(Not(And((low, high))), **known)
    assert not matches(Not(Or((Not(low), high))), **known)
    assert not matches(Not(Compare("i", ">=", 5)), **known)
    assert matches(Not(And((Unknown(), Compare("i", ">=", 5)))), **known)


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "!="])
def test_not_a_number_hides_outside_every_range(operator: Any) -> None:
    # NaN sorts above or, with the sign bit set, below all numbers and is not in the statistics.
    beyond = {"<": -100.0, "<=": -100.0, ">": 100.0, ">=": 100.0, "!=": 5.0}[operator]
    assert matches(Compare("f", operator, beyond), f=(5.0, 5.0))
    assert matches(Compare("f", "=", math.nan), f=(5.0, 5.0))
    assert not matches(Compare("f", "=", 6.0), f=(5.0, 5.0))


def test_bounds_on_both_sides_exclude_not_a_number() -> None:
    between = And((Compare("f", ">=", 10.0), Compare("f", "<", 20.0)))
    assert not matches(between, f=(1.0, 9.0))
    assert not matches(And((Compare("i", "=", 1), between)), f=(1.0, 9.0))
    assert matches(between, f=(1.0, 10.0))


def test_texts() -> None:
    assert not matches(StartsWith("s", "b"), s=("ca", "cz"))
    assert not matches(StartsWith("s", "d"), s=("ca", "cz"))
    assert matches(StartsWith("s", "cz9"), s=("ca", "cz"))  # the maximum may be a beginning
    assert matches(StartsWith("s", "c"), s=("ca", "cz"))
    assert matches(StartsWith("s", ""), s=("ca", "cz"))
    assert not matches(StartsWith("s", "c", negated=True), s=("ca", "cz"))
    assert matches(StartsWith("s", "c", negated=True), s=("ca", "da"))
    assert matches(Compare("s", "=", "czzz"), s=("ca", "cz"))
    assert matches(Compare("s", ">", "cz"), s=("ca", "cz"))
    assert not matches(Compare("s", "=", "d"), s=("ca", "cz"))


def test_times_compare_as_instants() -> None:
    known: dict[str, Any] = {"ts": ("2026-01-01T10:00:00Z", "2026-01-01T10:59:59.999999Z")}
    assert matches(Compare("ts", "=", time("2026-01-01T12:30:00+02:00")), **known)
    assert not matches(Compare("ts", ">", time("2026-01-01T10:59:59.999999Z")), **known)
    assert not matches(Compare("ts", "<", time("2026-01-01T10:00:00")), **known)
    assert not matches(Compare("ts", ">=", time("2026-01-02")), **known)


def test_nanoseconds_cut_to_microseconds_stay_inside() -> None:
    known: dict[str, Any] = {"tn": ("2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:00.000005Z")}
    assert matches(Compare("tn", ">", domain_value("timestamp[ns]", "2026-01-01T00:00:00.000005001")), **known)
    assert not matches(Compare("tn", ">", domain_value("timestamp[ns]", "2026-01-01T00:00:00.000006")), **known)


def test_decimals_and_days() -> None:
    assert not matches(Compare("d", ">", domain_value("decimal(10, 2)", "9.99")), d=("-1.00", "9.99"))
    assert matches(Compare("d", ">=", domain_value("decimal(10, 2)", "9.99")), d=("-1.00", "9.99"))
    assert not matches(Compare("day", "=", domain_value("date", "2026-01-02")), day=("2026-01-03", "2026-01-04"))
    assert domain_value("date", "2026-01-02T12:00:00") is None


@pytest.mark.parametrize(
    ("transform", "stored", "first", "last"),
    [
        ("month", 672, "2026-01-01", "2026-01-31T23:59:59.999999"),
        ("month", 673, "2026-02-01", "2026-02-28T23:59:59.999999"),
        ("month", -1, "1969-12-01", "1969-12-31T23:59:59.999999"),
        ("year", 56, "2026-01-01", "2026-12-31T23:59:59.999999"),
        ("day", 20454, "2026-01-01", "2026-01-01T23:59:59.999999"),
        ("hour", 490896, "2026-01-01T00:00:00", "2026-01-01T00:59:59.999999"),
    ],
)
def test_partitions_of_times(transform: Any, stored: int, first: str, last: str) -> None:
    by = (PartitionField(transform, "ts"),)

    def may(operator: Any, nanoseconds: int) -> bool:
        return matches(Compare("ts", operator, nanoseconds), partition_by=by, partition_values=(stored,))

    assert may("=", time(first))
    assert may("=", time(last))
    assert not may("<", time(first))
    assert not may(">", time(last) + 999)


def test_partitions_of_values() -> None:
    by = (PartitionField("identity", "s"), PartitionField("bucket", "i", 4), PartitionField("truncate", "i", 10))
    values = ("AA", 3, 20)
    assert not matches(Compare("s", "=", "BB"), partition_by=by, partition_values=values)
    assert matches(Compare("s", "=", "AA"), partition_by=by, partition_values=values)
    assert matches(Compare("i", "=", 29), partition_by=by, partition_values=values)
    assert not matches(Compare("i", "=", 30), partition_by=by, partition_values=values)
    assert not matches(Compare("s", "=", "AA"), partition_by=by, partition_values=(None, 3, 20))
    assert matches(IsNull("s"), partition_by=by, partition_values=(None, 3, 20))


def test_files_of_a_part() -> None:
    definition = define("u.t", COLUMNS, ["i"])
    files = tuple(
        DataFile(
            name=f"data-{number:04d}.parquet",
            rows=5,
            size_bytes=1,
            sha256="",
            columns={IDS["i"]: ColumnRange(number * 10, number * 10 + 9)},
        )
        for number in range(3)
    )
    whole = part({"i": ColumnRange(0, 29)}, files=files)
    kept = matching_files(Compare("i", ">=", 12), whole, definition)
    assert [file.name for file in kept] == ["data-0001.parquet", "data-0002.parquet"]
    assert matching_files(Compare("i", ">", 29), whole, definition) == ()
    assert not may_match(TRUE, part({}, rows=0), definition)


def test_a_column_of_a_later_schema_may_match() -> None:
    # The part was written before the column existed: its rows hold the default, which is not looked at here.
    assert matches(Compare("s", "=", "x"), i=(5, 9))


def field_matches(predicate: Predicate, ranges: dict[str, ColumnRange]) -> bool:
    """Of a part whose `part.json` says this of the column o."""
    whole = part({}, rows=10)
    known = {IDS["o"] + key: found for key, found in ranges.items()}
    return may_match(predicate, msgspec.structs.replace(whole, columns=known), define("u.t", COLUMNS, ["i"]))


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (Compare("o", ">", 9, ("a",)), False),
        (Compare("o", ">", 8, ("a",)), True),
        (Compare("o", ">", 9, ("a.b",)), True),  # another field than a2.b, a and b
        (Compare("o", ">", 9, ("a2", "other")), True),
        (IsNull("o", fields=("a",)), False),
        (IsNull("o", fields=("a2",)), True),
        (IsNull("o"), True),  # nothing is known of the struct by its fields
        (In("o", (1, 2), fields=("a",)), False),
        (In("o", (5, 6, 7, 8, 9), negated=True, fields=("a",)), True),
        (And((Compare("o", ">", 3, ("a",)), Compare("o", "<", 5, ("a",)))), False),
        # Written when b was decimal(5, 2) or int32, and t of seconds: compared as the values that they are today.
        (Compare("o", "<", Decimal(5), ("a2", "b")), False),
        (Compare("o", ">", Decimal(10), ("a2", "b")), True),
        (Compare("o", "<", time("2026-01-01T00:00:00Z"), ("a2", "t")), False),
        (Compare("o", ">", time("2026-01-01T00:00:00.000500Z"), ("a2", "t")), True),
        (Not(IsNull("o", fields=("a2", "t"))), True),
    ],
)
def test_fields_go_by_their_own_ranges(predicate: Predicate, expected: bool) -> None:
    ranges = {
        ".a": ColumnRange(5, 9),
        ".a2": ColumnRange(nulls=1),
        ".a2.b": ColumnRange(9, "10.50", 1),
        ".a2.t": ColumnRange("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.0009Z", 9),
    }
    assert field_matches(predicate, ranges) is expected


def test_a_part_that_says_nothing_of_its_fields_may_match() -> None:
    for predicate in (Compare("o", "=", 1, ("a",)), IsNull("o", fields=("a",)), StartsWith("o", "x", fields=("a",))):
        assert field_matches(predicate, {"": ColumnRange()})
