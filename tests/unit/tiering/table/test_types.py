"""Column types: texts and Arrow types are inverse; casting takes what fits and names what does not."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from oplog.errors import UsageError
from tiering.table.columns.type_texts import arrow_type, type_text
from tiering.table.columns.types import arrow_schema, as_json, cast_batch, default_array, field_ids, from_json
from tiering.table.definitions import columns_like, define_table, parse_column
from tiering.table.names import listed
from tiering.table.schema import Column

CANONICAL = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "string",
    "binary", "date", "timestamp[s]", "timestamp[ms]", "timestamp[us, UTC]", "timestamp[ns, Europe/Berlin]",
    "decimal(10, 2)", "decimal(38, 0)", "list<string>", "list<list<int64>>",
]  # fmt: skip


@pytest.mark.parametrize("text", CANONICAL)
def test_text_and_type_are_inverse(text: str) -> None:
    assert type_text(arrow_type(text)) == text


def test_aliases_and_variants() -> None:
    assert arrow_type("timestamp") == pa.timestamp("us", "UTC")
    assert arrow_type(" Double ") == pa.float64()
    assert type_text(pa.large_string()) == "string"
    assert type_text(pa.dictionary(pa.int8(), pa.string())) == "string"
    assert type_text(pa.date64()) == "date"
    assert type_text(pa.decimal64(9, 3)) == "decimal(9, 3)"


@pytest.mark.parametrize(
    "text", ["", "int128", "timestamp[h]", "decimal(39, 0)", "decimal(5, 9)", "list<>", "map<a,b>"]
)
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(UsageError):
        arrow_type(text)


@pytest.mark.parametrize(
    "zone", ["Nowhere/Land", "+25:00", "+24:00", "+5:30", "+05:60", "CEST", "Europe", "/etc/localtime", "GMT+1"]
)
@pytest.mark.parametrize("form", ["{}", "list<{}>", "map<string, {}>", "struct<a: list<{}>>"])
def test_a_zone_that_nobody_knows_is_refused(zone: str, form: str) -> None:
    """By what makes columns alone: a table that has one is read as before."""
    text = form.format(f"timestamp[us, {zone}]")
    with pytest.raises(UsageError, match=r"no such time zone|not a column type"):
        parse_column(f"x:{text}")
    with pytest.raises(UsageError, match="column x: no such time zone"):
        columns_like(pa.schema([("x", pa.list_(pa.timestamp("us", zone)))]))
    if zone[0] not in "/":
        assert type_text(arrow_type(text)) == text


@pytest.mark.parametrize(
    ("zone", "stored"),
    [("Z", "UTC"), ("utc", "UTC"), ("+0530", "+05:30"), ("-08:00", "-08:00"), ("Europe/Berlin", "Europe/Berlin")],
)
def test_zones_of_other_spelling_are_stored_as_known(zone: str, stored: str) -> None:
    assert parse_column(f"x:list<timestamp[us, {zone}]>").type == f"list<timestamp[us, {stored}]>"
    (column,) = columns_like(pa.schema([("x", pa.dictionary(pa.int8(), pa.timestamp("ns", zone)))]))
    assert column.type == f"timestamp[ns, {stored}]"
    assert pa.array([0], arrow_type(column.type))[0].as_py() is not None  # which asks for the zone


def test_long_lists_of_names_are_cut() -> None:
    assert listed([]) == ""
    assert listed(["a"] * 20) == ", ".join(["a"] * 20)
    assert listed(["a"] * 21) == f"{', '.join(['a'] * 19)} and 2 more"
    assert listed(["a", "b", "c", "d", "e"], 4) == "a, b, c and 2 more"


def test_field_ids_travel_in_the_schema() -> None:
    table = define_table("a.b", columns=["x:int64", "y:string not null"], order_by="x", policy="p")
    assert field_ids(arrow_schema(table)) == {1: "x", 2: "y"}
    assert not arrow_schema(table).field("y").nullable


TABLE = define_table(
    "a.b",
    columns=["k:int64", "ts:timestamp[us, UTC]", "s:string", "d:decimal(8,2)", "need:int32 not null"],
    order_by="k",
    policy="p",
)


def batch(**columns: Any) -> pa.RecordBatch:
    filled = {"k": [1, 2], "need": pa.array([1, 1], pa.int32()), **columns}
    return pa.RecordBatch.from_pydict({name: value for name, value in filled.items() if value is not None})


def test_columns_are_matched_by_name_and_missing_ones_are_null() -> None:
    cast = cast_batch(batch(s=["a", None]), TABLE)
    assert cast.schema.names == ["k", "ts", "s", "d", "need"]
    assert cast.column("ts").null_count == 2
    assert cast.schema.equals(arrow_schema(TABLE), check_metadata=True)


def test_times_without_a_zone_are_utc() -> None:
    expected = datetime(2013, 1, 1, 5, tzinfo=UTC)
    naive = pa.array([datetime(2013, 1, 1, 5)] * 2, pa.timestamp("ns"))
    for values in (naive, ["2013-01-01 05:00:00"] * 2, ["2013-01-01T05:00:00Z"] * 2, ["2013-01-01T07:00:00+02:00"] * 2):
        assert cast_batch(batch(ts=values), TABLE).column("ts")[0].as_py() == expected
    assert cast_batch(batch(ts=[date(2013, 1, 1)] * 2), TABLE).column("ts")[0].as_py() == datetime(
        2013, 1, 1, tzinfo=UTC
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"k": ["1", "x"]}, "file.csv: column k must be int64, but row 12 has 'x'"),
        ({"k": [1.0, 2.5]}, "row 12 has 2.5"),
        ({"s": [1, 2]}, "column s is int64 in the input, but string in the table"),
        ({"ts": [1, 2]}, "column ts is int64"),
        ({"ts": ["2013-01-01", "soon"]}, "row 12 has 'soon'"),
        ({"d": [Decimal("1.001"), Decimal("2")]}, "column d must be decimal"),
        ({"k": None}, "the sort column k is missing"),
        ({"need": None}, "the column need is missing"),
        ({"need": pa.array([1, None], pa.int32())}, "column need is null in row 12"),
        ({"other": [1, 2], "more": [3, 4]}, "unknown columns: other, more"),
    ],
)
def test_what_does_not_fit_is_named(columns: dict[str, Any], message: str) -> None:
    """Bad input: wrong types, a missing sort column, unknown columns."""
    with pytest.raises(UsageError) as error:
        cast_batch(batch(**columns), TABLE, source="file.csv", first_row=10)
    assert message in error.value.message


def test_defaults_fill_missing_columns() -> None:
    column = Column(id=9, name="n", type="timestamp[us, UTC]", default="2026-01-01T00:00:00Z")
    assert default_array(column, 2).to_pylist() == [datetime(2026, 1, 1, tzinfo=UTC)] * 2
    with pytest.raises(UsageError, match="does not fit column n"):
        default_array(Column(id=9, name="n", type="int32", default="x"), 1)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=UTC), "timestamp[us, UTC]"),
        (datetime(2026, 1, 1), "timestamp[s]"),
        (date(2026, 1, 1), "date"),
        (Decimal("-1.50"), "decimal(8, 2)"),
        (b"\x00\xff", "binary"),
        ("é", "string"),
        (2**63, "uint64"),
        (True, "bool"),
        (1.5, "float64"),
        (None, "date"),
    ],
)
def test_json_values_read_back(value: Any, kind: str) -> None:
    assert from_json(as_json(value), arrow_type(kind)) == value


def test_what_bounds_nothing_is_none() -> None:
    assert [as_json(value) for value in (float("nan"), float("inf"))] == [None, None]


_FAR = {
    "date": (pa.int32(), -719_162, 2_932_896),
    "timestamp[s]": (pa.int64(), -62_135_596_800, 253_402_300_799),
    "timestamp[us, UTC]": (pa.int64(), -62_135_596_800_000_000, 253_402_300_799_999_999),
}
"""Type -> how it is counted, and the first and the last of what Python has."""


@pytest.mark.parametrize("kind", _FAR)
@pytest.mark.parametrize("within", ["", "struct"])
def test_moments_that_no_bound_can_be_kept_of_are_refused_by_row(kind: str, within: str) -> None:
    counted, first, last = _FAR[kind]
    table = define_table(
        "a.b", columns=["k:int64", f"m:struct<at: {kind}>" if within else f"m:{kind}"], order_by="k", policy="p"
    )

    def cast(*counts: int | None) -> pa.RecordBatch:
        moments = pa.array(counts, counted).cast(arrow_type(kind))
        column = pa.StructArray.from_arrays([moments], ["at"]) if within else moments
        return cast_batch(pa.record_batch({"k": range(len(counts)), "m": column}), table, source="f", first_row=10)

    assert cast(None).num_rows == 1
    batch = cast(None, first, last)
    batch.to_pylist()  # which Python has
    endless = (1 << (counted.bit_width - 1)) - 1
    for count in (first - 1, last + 1, endless, -endless):
        with pytest.raises(UsageError, match=r"f: column m .* infinite in row 13"):
            cast(first, last, count, None)
