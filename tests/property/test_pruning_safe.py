"""Pruning never loses a row: whatever part holds a row that a filter selects may match (a wrong No would be a query
that silently leaves rows out). Rows, statistics as inserts write them, and filters are random; the rows are judged by a
plain evaluator of SQL's three-valued logic."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.tiers import define
from tests.turns import examples
from tiering.parquet.column_ranges import FileRanges, column_range, combine_ranges
from tiering.table.columns.type_texts import arrow_type
from tiering.table.part import DataFile, Part
from tiering.table.pruning import (
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
from tiering.table.schema import PartitionField, TableDefinition
from tiering.table.transforms import apply_transform, partition_values_json

NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000000))[0]
TYPES = {
    "i": "int32",
    "u": "uint64",
    "f": "float64",
    "d": "decimal(12, 3)",
    "s": "string",
    "x": "binary",
    "b": "bool",
    "day": "date",
    "ts": "timestamp[us, UTC]",
    "tn": "timestamp[ns]",
    "tz": "timestamp[ms, Europe/Berlin]",
}
_words = st.one_of(
    st.sampled_from(["", "a", "ab", "abc", "b", "\U0010ffff", "\ud7ff", "é"]),
    st.text(max_size=4),
    st.builds(lambda head, tail: "k" * 62 + head + tail, st.text(max_size=3), st.text(max_size=3)),
)
_times = st.datetimes(datetime(1960, 1, 1), datetime(2040, 1, 1))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-5, 5),
    "u": st.one_of(st.integers(0, 5), st.integers(2**64 - 4, 2**64 - 1)),
    "f": st.one_of(st.integers(-4, 4).map(float), st.sampled_from([math.nan, NEGATIVE_NAN, math.inf, -math.inf, -0.0])),
    "d": st.integers(-4000, 4000).map(lambda number: Decimal(number).scaleb(-3)),
    "s": _words.filter(lambda word: not any(0xD800 <= ord(letter) <= 0xDFFF for letter in word)),
    "x": st.binary(max_size=40),
    "b": st.booleans(),
    "day": _times.map(lambda time: time.date()),
    "ts": _times.map(lambda time: time.replace(tzinfo=UTC)),
    "tn": st.integers(-10_000, 10_000).map(lambda count: pa.scalar(count, pa.timestamp("ns"))),
    "tz": _times.map(lambda time: time.replace(microsecond=0, tzinfo=timezone(timedelta(hours=1)))),
}


def _in_domain(name: str, value: Any) -> Any:
    """The value as `tiering.table.pruning` compares it."""
    if isinstance(value, pa.Scalar):
        return value.value
    return domain_value(TYPES[name], value)


def _filters(names: list[str]) -> st.SearchStrategy[Predicate]:
    def leaf(name: str) -> st.SearchStrategy[Predicate]:
        value = VALUES[name].map(lambda made: _in_domain(name, made))
        kinds: list[st.SearchStrategy[Predicate]] = [
            st.builds(Compare, st.just(name), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), value | st.none()),
            st.builds(In, st.just(name), st.lists(value | st.none(), max_size=3).map(tuple), st.booleans()),
            st.builds(IsNull, st.just(name), st.booleans()),
        ]
        if name == "s":
            kinds.append(st.builds(StartsWith, st.just(name), VALUES["s"], st.booleans()))
        return st.one_of(kinds)

    leaves = st.sampled_from(names).flatmap(leaf) | st.just(Unknown())
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.builds(And, st.lists(inner, max_size=3).map(tuple)),
            st.builds(Or, st.lists(inner, max_size=3).map(tuple)),
        ),
        max_leaves=6,
    )


def _order(value: Any) -> Any:
    """A total order as SQL engines have it: NaN above everything, and below with the sign bit set."""
    if isinstance(value, float) and math.isnan(value):
        return (-1, 0) if math.copysign(1, value) < 0 else (1, 0)
    return (0, value)


def _true(predicate: Predicate, row: dict[str, Any]) -> bool | None:
    match predicate:
        case And(children):
            answers = [_true(child, row) for child in children]
            return False if False in answers else None if None in answers else True
        case Or(children):
            answers = [_true(child, row) for child in children]
            return True if True in answers else None if None in answers else False
        case Not(child):
            answer = _true(child, row)
            return None if answer is None else not answer
        case IsNull(column, negated):
            return (row[column] is None) != negated
        case Compare(column, operator, value):
            if row[column] is None or value is None:
                return None
            left, right = _order(row[column]), _order(value)
            return {
                "=": left == right,
                "!=": left != right,
                "<": left < right,
                "<=": left <= right,
                ">": left > right,
                ">=": left >= right,
            }[operator]
        case In(column, values, negated):
            return _true(
                Not(Or(tuple(Compare(column, "=", value) for value in values)))
                if negated
                else Or(tuple(Compare(column, "=", value) for value in values)),
                row,
            )
        case StartsWith(column, prefix, negated):
            return None if row[column] is None else row[column].startswith(prefix) != negated
        case Unknown():
            return True
    raise AssertionError(predicate)


def _file(name: str, definition: TableDefinition, columns: dict[str, pa.ChunkedArray], rows: int) -> DataFile:
    return DataFile(
        name=name,
        rows=rows,
        size_bytes=1,
        sha256="",
        columns={str(column.id): column_range(columns[column.name]) for column in definition.columns},
    )


def _part(definition: TableDefinition, files: tuple[DataFile, ...], whole: DataFile, values: tuple[Any, ...]) -> Part:
    return Part(
        table=definition.uuid,
        name="all_1_1_0",
        rows=whole.rows,
        size_bytes=len(files),
        created=datetime(2026, 1, 1, tzinfo=UTC),
        partition_values=partition_values_json(values),
        files=files,
        columns=whole.columns,
    )


def _columns(names: list[str], rows: list[dict[str, Any]]) -> dict[str, pa.ChunkedArray]:
    return {name: pa.chunked_array([pa.array([row[name] for row in rows], arrow_type(TYPES[name]))]) for name in names}


_names = st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3, unique=True)


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), _names)
def test_a_part_with_a_selected_row_may_match(data: st.DataObject, names: list[str]) -> None:
    definition = define("p.t", {name: TYPES[name] for name in names}, names[:1])
    row = st.fixed_dictionaries({name: VALUES[name] | st.none() for name in names})
    rows = data.draw(st.lists(row, min_size=1, max_size=5))
    predicate = data.draw(_filters(names))
    whole = _file("data-0000.parquet", definition, _columns(names, rows), len(rows))
    files = tuple(
        _file(f"data-{number:04d}.parquet", definition, _columns(names, [one]), 1) for number, one in enumerate(rows)
    )
    part = _part(definition, files, whole, ())
    selected = [
        _true(predicate, {name: _in_domain(name, one[name]) for name in names}) is True for one in rows
    ]  # fmt: skip
    if any(selected):
        assert may_match(predicate, part, definition)
    kept = {file.name for file in matching_files(predicate, part, definition)}
    lost = [file.name for file, wanted in zip(files, selected, strict=True) if wanted and file.name not in kept]
    assert not lost


@settings(max_examples=examples(100))
@given(st.data(), _names)
def test_a_part_with_a_selected_field_may_match(data: st.DataObject, names: list[str]) -> None:
    """Of fields of structs, which may be null at each level, by the ranges that inserts write."""
    fields = ", ".join(f"{name}: {TYPES[name]}" for name in names)
    definition = define("p.t", {"k": "int64", "o": f"struct<other: int64, w: struct<{fields}>>"}, ["k"])
    inner = st.fixed_dictionaries({name: VALUES[name] | st.none() for name in names}) | st.none()
    drawn = data.draw(st.lists(st.tuples(st.booleans(), inner), min_size=1, max_size=5))
    predicate = _within(data.draw(_filters(names)), ("w",))

    def ranges(rows: list[tuple[bool, dict[str, Any] | None]]) -> dict[str, Any]:
        held = {
            name: pa.array([row and row[name] for _, row in rows], arrow_type(TYPES[name])) for name in names
        }  # fmt: skip
        inside = pa.StructArray.from_arrays(
            list(held.values()), names=names, mask=pa.array([row is None for _, row in rows])
        )
        numbers = pa.array([7] * len(rows))
        # What lies beneath a struct that is null is there, and no value.
        whole = pa.StructArray.from_arrays(
            [numbers, inside], names=["other", "w"], mask=pa.array([is_null for is_null, _ in rows])
        )
        found = FileRanges(definition)
        found.add(pa.table({"k": numbers, "o": whole}))
        return found.result()

    files = tuple(
        DataFile(name=f"data-{number:04d}.parquet", rows=1, size_bytes=1, sha256="", columns=ranges([row]))
        for number, row in enumerate(drawn)
    )
    whole = DataFile(name="w", rows=len(drawn), size_bytes=1, sha256="", columns=ranges(drawn))
    assert combine_ranges(files, definition).keys() == whole.columns.keys()
    for columns in (whole.columns, combine_ranges(files, definition)):
        part = msgspec.structs.replace(_part(definition, files, whole, ()), columns=columns)
        kept = {file.name for file in matching_files(predicate, part, definition)}
        for file, (is_null, row) in zip(files, drawn, strict=True):
            values = {name: None if is_null or row is None else _in_domain(name, row[name]) for name in names}
            if _true(_within(predicate, ()), values) is True:
                assert file.name in kept


def _within(predicate: Predicate, fields: tuple[str, ...]) -> Predicate:
    """The filter of fields of the column o, within so many structs; of none: as it was."""
    match predicate:
        case And(children) | Or(children):
            return replace(predicate, children=tuple(_within(child, fields) for child in children))
        case Not(child):
            return Not(_within(child, fields))
        case Unknown():
            return predicate
    if fields:
        return replace(predicate, column="o", fields=(*fields, predicate.column))
    return replace(predicate, column=predicate.fields[-1], fields=())


_PARTITIONED = st.sampled_from(
    [("i", "identity", None), ("s", "identity", None), ("s", "truncate", 2), ("i", "truncate", 3), ("i", "bucket", 4)]
    + [(name, transform, None) for name in ("day", "ts", "tz", "tn") for transform in ("year", "month", "day")]
    + [(name, "hour", None) for name in ("ts", "tz", "tn")]
    + [("d", "truncate", 10), ("d", "identity", None), ("b", "identity", None), ("x", "truncate", 2)]
)


@settings(max_examples=examples(120), deadline=None)
@given(st.data(), _PARTITIONED)
def test_the_partition_of_a_selected_row_may_match(data: st.DataObject, by: tuple[str, Any, int | None]) -> None:
    name, transform, parameter = by
    field = PartitionField(transform, name, parameter)
    definition = define("p.t", {name: TYPES[name]}, [name], partition_by=(field,))
    value = data.draw(VALUES[name] | st.none())
    predicate = data.draw(_filters([name]))
    stored = apply_transform(field, pa.array([value], arrow_type(TYPES[name]))).to_pylist()
    empty = DataFile(name="data-0000.parquet", rows=1, size_bytes=1, sha256="")  # no statistics: the partition alone
    part = _part(definition, (empty,), empty, tuple(stored))
    if _true(predicate, {name: _in_domain(name, value)}) is True:
        assert may_match(predicate, part, definition)
