"""What a partition says of its rows is so, for every transform of every type at its limits (I21).

Transforms and types are those of the code's own tables, so a new one is covered as soon as it is there. What values
should be comes from an implementation of its own, with whole numbers and decimals of any size.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, get_args, get_type_hints

import pyarrow as pa
import pytest

from oplog.errors import UsageError
from tiering.parquet.column_ranges import FileRanges, combine_ranges
from tiering.table.columns.type_texts import SIMPLE_TYPES, arrow_type
from tiering.table.definitions import define_table
from tiering.table.part import DataFile, Part, PartName
from tiering.table.part import decode as decode_part
from tiering.table.part import encode as encode_part
from tiering.table.pruning import Compare, In, Operator, Predicate, may_match, partition_may_match
from tiering.table.schema import PartitionField, TableDefinition
from tiering.table.transforms import Partition, partition_rows, partition_values_json

TRANSFORMS = get_args(get_type_hints(PartitionField)["transform"])
WIDTHS = {"bucket": (1, 97), "truncate": (1, 10, 128, 1000, 1024, 2**31 - 1)}
ZONES = {"s": (", Asia/Tokyo",), "ms": ("",), "us": ("", ", UTC", ", America/New_York"), "ns": ("", ", Asia/Tokyo")}
TYPES = (
    *SIMPLE_TYPES,
    *(f"timestamp[{unit}{zone}]" for unit, zones in ZONES.items() for zone in zones),
    *(f"decimal({precision}, {scale})" for precision, scale in ((1, 0), (4, 2), (28, 3), (38, 0), (38, 38))),
)
_DAYS = (date.min, date(999, 12, 31), date(1969, 12, 31), date(1970, 1, 1), date(2000, 2, 29), date.max)
_NANOSECONDS = (-(2**63) + 1, -86_400 * 10**9, -3600 * 10**9 - 1, -1, 0, 1, 999, 1000, 1001, 3600 * 10**9, 2**63 - 1)
_TEXTS = (
    "", "null", "all", "true", "-", "=", ".", "..", "/", "\\", "a", "A", "ab", "aB", "a.b", "a_1_1_0", " a", "a ",
    "CON", "a\0", "null=", "é", unicodedata.normalize("NFD", "é"), "\ud7ff", "\ue000", "\U0001f600", "\U0010ffff", "-1",
    "k" * 48, "k" * 49, "k" * 300, "k" * 299 + "l", "20260131",
)  # fmt: skip
_EXACT = Context(prec=200)


def limits(text: str) -> list[Any]:
    """The values of a type at its limits, as whole numbers where Python has no such value."""
    kind = arrow_type(text)
    if pa.types.is_integer(kind):
        bits, is_unsigned = kind.bit_width, pa.types.is_unsigned_integer(kind)
        low, high = (0, 2**bits - 1) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        near = {low, low + 1, low + 9, low + 10, high, high - 1, high - 9, high // 2, -1024, -129, -128, -10, -1, 0, 5}
        return sorted(value for value in near if low <= value <= high)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        near = {most, most - 1, most // 10, most // 3, 10, 5, 1, 0}
        return sorted(
            Decimal(sign * value).scaleb(-kind.scale, _EXACT) for value in near for sign in (1, -1) if value <= most
        )
    if pa.types.is_timestamp(kind):
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        if kind.unit == "ns":
            return list(_NANOSECONDS)
        days = [(day.toordinal() - date(1970, 1, 1).toordinal()) * 86_400 * per_second for day in _DAYS]
        return sorted({*days, days[-1] + 86_400 * per_second - 1, days[0] + 1, days[0] + 3600 * per_second, -1, 1, 999})
    if pa.types.is_date(kind):
        return list(_DAYS)
    if pa.types.is_string(kind):
        return sorted(_TEXTS)
    if pa.types.is_binary(kind):
        return sorted({b"", b"\0", b"\xff", b"null", b"k" * 20, b"k" * 21, b"k" * 300, *(t.encode() for t in _TEXTS)})
    if pa.types.is_boolean(kind):
        return [False, True]
    return []


def tables() -> Iterator[tuple[str, str, int | None]]:
    """Every transform of every type that takes it."""
    for transform in TRANSFORMS:
        for text in TYPES:
            for width in WIDTHS.get(transform, (None,)):
                try:
                    table(transform, text, width)
                except UsageError:
                    continue
                yield transform, text, width


def table(transform: str, text: str, width: int | None) -> TableDefinition:
    inside = "v" if width is None else f"{width}, v"
    columns = ["k:int64", f"v:{text}"]
    return define_table("a.b", columns=columns, order_by="k", partition_by=f"{transform}({inside})", policy="p")


CASES = list(tables())


def expected(transform: str, text: str, width: int | None, value: Any) -> Any:
    """The partition of a value, by the definition of the transform; None where only equality is asked."""
    kind = arrow_type(text)
    if transform == "truncate" and isinstance(value, str | bytes):
        return value[:width]
    width = width or 1
    if transform == "truncate" and isinstance(value, Decimal):
        unscaled = int(value.scaleb(kind.scale, _EXACT))
        return Decimal(unscaled - unscaled % width).scaleb(-kind.scale, _EXACT)
    if transform == "truncate":
        return max(value - value % width, -(2**63))
    if transform in ("year", "month", "day", "hour"):
        if isinstance(value, date):
            moment = datetime(value.year, value.month, value.day)
        else:
            seconds = value // {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
            moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
        years, days = moment.year - 1970, (moment - datetime(1970, 1, 1)).days
        by = {"year": years, "month": years * 12 + moment.month - 1, "day": days, "hour": days * 24 + moment.hour}
        return by[transform]
    if transform == "identity" and pa.types.is_timestamp(kind) and kind.unit == "ns":
        return value // 1000
    return value if transform == "identity" else None


def domain(text: str, value: Any) -> Any:
    """As pruning compares it."""
    kind = arrow_type(text)
    if pa.types.is_timestamp(kind):
        return value * {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def parts_of(definition: TableDefinition, values: list[Any]) -> list[tuple[Any, Partition, Part]]:
    """For each value its partition and a part of it alone, which went through its file."""
    found = []
    for value in values:
        rows = pa.table(
            {"k": pa.array([1], pa.int64()), "v": pa.array([value], arrow_type(definition.columns[1].type))}
        )
        (partition,) = partition_rows(rows, definition)[1]
        ranges = FileRanges(definition)
        ranges.add(rows)
        files = (DataFile(name="data", rows=1, size_bytes=1, sha256="0" * 64, columns=ranges.result()),)
        part = Part(
            table=definition.uuid,
            name=str(PartName(partition.id, 1, 1, 0)),
            rows=1,
            size_bytes=1,
            created=datetime(2026, 1, 1, tzinfo=UTC),
            partition_values=partition_values_json(partition.values),
            files=files,
            columns=combine_ranges(files, definition),
        )
        found.append((value, partition, decode_part(encode_part(part), path="part.json")))
    return found


@pytest.mark.in_turn
@pytest.mark.parametrize(("transform", "text", "width"), CASES)
def test_partitions_tell_the_truth(transform: str, text: str, width: int | None) -> None:
    """Guards I21: the partition of a value is that of the definition; one id each; and no filter that selects a row
    leaves its part out, with the ranges of part.json or without."""
    definition = table(transform, text, width)
    values = limits(text)
    assert values, f"no limits of {text}"
    found = parts_of(definition, values)
    together = pa.table({"k": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, arrow_type(text))})
    ids: dict[Any, str] = {}
    for value, partition, _ in found:
        want = expected(transform, text, width, value)
        key = partition.values[0] if want is None else want
        assert ids.setdefault(key, partition.id) == partition.id, f"{value!r} has two ids"
        assert re.fullmatch(r"[A-Za-z0-9.=-]+", partition.id)
        if transform == "truncate":
            assert partition.values == (want,)
            assert want <= value
        if transform == "bucket":
            assert 0 <= partition.values[0] < width
    assert len(set(ids.values())) == len(ids), "two partitions of one id"
    assert {one.id for one in partition_rows(together, definition)[1]} == set(ids.values())
    for value, _, part in found:
        mine = domain(text, value)
        for other in values:
            theirs = domain(text, other)
            holds: dict[Operator, bool] = {"=": mine == theirs, "<": mine < theirs, ">": mine > theirs}
            holds |= {"!=": not holds["="], "<=": not holds[">"], ">=": not holds["<"]}
            filters: list[Predicate] = [
                Compare("v", operator, theirs) for operator, is_true in holds.items() if is_true
            ]
            filters += [In("v", (theirs,), negated=not holds["="]), Compare("v", "<", math.nan)]
            for one in filters:
                assert may_match(one, part, definition), (one, part.partition_values)
                assert partition_may_match(one, part.partition_values, definition), (one, part.partition_values)


@pytest.mark.parametrize(("transform", "text", "width"), CASES)
def test_nulls_have_a_partition_of_their_own(transform: str, text: str, width: int | None) -> None:
    """Guards I21."""
    definition = table(transform, text, width)
    rows = pa.table({"k": pa.array([1, 2], pa.int64()), "v": pa.array([None, limits(text)[0]], arrow_type(text))})
    one, other = partition_rows(rows, definition)[1]
    assert (one.id, one.values) == ("null", (None,))
    assert other.id != "null"
