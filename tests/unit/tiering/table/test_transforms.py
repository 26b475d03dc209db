"""Partition transforms agree with the Iceberg specification; ids are safe in a path and never collide."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.table.definitions import define_table
from tiering.table.part import PartName
from tiering.table.schema import PartitionField, TableDefinition
from tiering.table.transforms import apply_transform, murmur3, partition_id, partition_rows

MOMENT = datetime(2017, 11, 16, 22, 31, 8)


def field(transform: str, parameter: int | None = None) -> PartitionField:
    return PartitionField(transform, "c", parameter)  # type: ignore[arg-type]


def applied(transform: str, values: pa.Array, parameter: int | None = None) -> list[Any]:
    return apply_transform(field(transform, parameter), values).to_pylist()


def table(kind: str, partition_by: str) -> TableDefinition:
    return define_table("a.b", columns=[f"c:{kind}"], order_by="c", partition_by=partition_by, policy="p")


# The hash values of the specification's appendix B, as unsigned numbers modulo a bucket count that keeps them whole.
HASHES = [
    (pa.array([34], pa.int32()), 2017239379),
    (pa.array([34], pa.int64()), 2017239379),
    (pa.array([Decimal("14.20")], pa.decimal128(9, 2)), -500754589),
    (pa.array([date(2017, 11, 16)], pa.date32()), -653330422),
    (pa.array([MOMENT], pa.timestamp("us")), -2047944441),
    (pa.array([MOMENT], pa.timestamp("ms", "UTC")), -2047944441),
    (pa.array(["iceberg"]), 1210000089),
    (pa.array([b"\x00\x01\x02\x03"], pa.binary()), -188683207),
]


@pytest.mark.parametrize(("values", "expected"), HASHES)
def test_buckets_are_icebergs(values: pa.Array, expected: int) -> None:
    for count in (16, 1000, 2**31 - 1):
        assert applied("bucket", values, count) == [(expected & 0x7FFFFFFF) % count]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), max_size=20))
def test_the_vectorised_hash_is_the_plain_one(numbers: list[int | None]) -> None:
    expected = [
        None if n is None else (murmur3(n.to_bytes(8, "little", signed=True)) & 0x7FFFFFFF) % 97 for n in numbers
    ]
    assert applied("bucket", pa.array(numbers, pa.int64()), 97) == expected


def test_times_are_counted_from_1970_towards_the_past_in_utc() -> None:
    values = pa.array([MOMENT, datetime(1969, 12, 31, 23, 30), None], pa.timestamp("us", "America/New_York"))
    assert applied("year", values) == [47, -1, None]
    assert applied("month", values) == [574, -1, None]
    assert applied("day", values) == [17486, -1, None]
    assert applied("hour", values) == [419686, -1, None]
    assert applied("day", pa.array([date(2017, 11, 16)])) == [17486]


def test_truncation_goes_down() -> None:
    assert applied("truncate", pa.array([1, -1, -10, None]), 10) == [0, -10, -10, None]
    assert applied("truncate", pa.array([Decimal("10.65"), Decimal("-0.01")], pa.decimal128(9, 2)), 50) == [
        Decimal("10.50"),
        Decimal("-0.50"),
    ]
    assert applied("truncate", pa.array(["iceberg", "é€𝄞x"]), 3) == ["ice", "é€𝄞"]
    assert applied("truncate", pa.array([b"\x01\x02\x03"], pa.binary()), 2) == [b"\x01\x02"]


def test_ids_are_readable_where_they_can_be() -> None:
    stamp = pa.array([MOMENT])
    for transform, expected in (("year", "2017"), ("month", "201711"), ("day", "20171116"), ("hour", "2017111622")):
        (ordinal,) = applied(transform, stamp)
        assert partition_id(table("timestamp", f"{transform}(c)"), (ordinal,)) == expected
    assert partition_id(table("timestamp", "month(c), bucket(4, c)"), (574, 3)) == "201711.3"
    assert partition_id(table("string", "c"), ("EWR",)) == "EWR"
    assert partition_id(table("string", "c"), (None,)) == "null"
    assert partition_id(table("int64", "c"), (-5,)) == "-5"
    assert partition_id(table("string", ""), ()) == "all"


ODD = ["null", "all", "", "a_b", "a.b", "a/b", "..", "A B", "a" * 300, "b" * 300, "ä", "a=b", "x\n", "null=1"]


def test_odd_texts_get_ids_of_their_own() -> None:
    definition = table("string", "c")
    ids = [partition_id(definition, (value,)) for value in [*ODD, None, "plain"]]
    assert len(set(ids)) == len(ids)
    for text in ids:
        assert PartName.parse(f"{text}_1_1_0").partition == text


@given(st.lists(st.tuples(st.text(max_size=5) | st.none(), st.binary(max_size=5) | st.none()), max_size=30))
def test_equal_values_and_only_they_share_an_id(pairs: list[tuple[str | None, bytes | None]]) -> None:
    definition = define_table("a.b", columns=["a:string", "b:binary"], order_by="a", partition_by="a, b", policy="p")
    by_id: dict[str, set[object]] = {}
    for pair in pairs:
        by_id.setdefault(partition_id(definition, pair), set()).add(pair)
    assert all(len(values) == 1 for values in by_id.values())


def rows_by_partition(rows: pa.Table, definition: TableDefinition) -> Iterable[tuple[str, list[Any]]]:
    codes, partitions = partition_rows(rows, definition)
    for number, partition in enumerate(partitions):
        chosen = rows if codes is None else rows.filter(pa.compute.equal(codes, number))
        assert chosen.num_rows == partition.rows
        yield partition.id, chosen.to_pylist()


def test_rows_go_to_their_partition_and_none_is_lost() -> None:
    definition = define_table(
        "a.b", columns=["c:timestamp", "k:string"], order_by="c", partition_by="day(c), k", policy="p"
    )
    stamps = [datetime(2026, 1, 1 + n % 3, tzinfo=UTC) if n % 7 else None for n in range(50)]
    rows = pa.table({"c": pa.array(stamps, pa.timestamp("us", "UTC")), "k": [f"k{n % 2}" for n in range(50)]})
    seen = 0
    for name, members in rows_by_partition(rows, definition):
        seen += len(members)
        expected = {f"{row['c']:%Y%m%d}.{row['k']}" if row["c"] else f"null.{row['k']}" for row in members}
        assert expected == {name}
    assert seen == 50
    assert [name for name, _ in rows_by_partition(rows.slice(0, 0), definition)] == []
