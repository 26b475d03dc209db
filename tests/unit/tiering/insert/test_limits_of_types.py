"""The least and the greatest value of every type go in from every format as they are, or are refused where no answer
has them (I23)."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oplog.errors import UsageError
from tests.unit.tiering.insert.foreign_tables import inserted, refused, table_of
from tiering.table.columns.type_texts import SIMPLE_TYPES, arrow_type
from tiering.table.columns.types import cast_batch

_WHOLE = {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for bits in (8, 16, 32, 64)
    for sign in ("", "u")
}
_FLOATS = {"float32": (3.4028234663852886e38, 1.401298464324817e-45), "float64": (1.7976931348623157e308, 5e-324)}
_TEXTS: dict[str, tuple[str, ...]] = {
    "date": ("0001-01-01", "9999-12-31"),
    "time": ("00:00:00", "23:59:59.999999"),
    "duration": (str(-((2**63 - 1) // 1000)), str((2**63 - 1) // 1000)),
    "uuid": (f"{'0' * 8}-0000-0000-0000-{'0' * 12}", f"{'f' * 8}-ffff-ffff-ffff-{'f' * 12}"),
    "decimal(38, 0)": ("9" * 38, "-" + "9" * 38),
    "decimal(38, 38)": ("0." + "9" * 38, "-0." + "9" * 38),
    "timestamp[s]": ("0001-01-01T00:00:00", "9999-12-31T23:59:59"),
    "timestamp[ms]": ("0001-01-01T00:00:00", "9999-12-31T23:59:59.999"),
    "timestamp[us]": ("0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"),
    "timestamp[ns]": (
        *("1677-09-21T00:12:43.145224194", "1677-09-21T00:12:43.145225", "1677-09-21T00:12:43.2"),
        *("1677-09-21T00:12:44", "2262-04-11T23:47:16.854775806", "2262-04-11T23:47:16.9"[:-2]),
    ),
}
_TEXTS |= {f"{kind[:-1]}, UTC]": texts for kind, texts in _TEXTS.items() if kind.startswith("timestamp")}
LIMITS = [
    *((kind, repr(number)) for kind, numbers in _WHOLE.items() for number in numbers),
    *((kind, repr(sign * number)) for kind, numbers in _FLOATS.items() for number in numbers for sign in (1, -1)),
    *((kind, text) for kind, texts in _TEXTS.items() for text in texts),
    *(("bool", text) for text in ("true", "false")),
]


def count_of(kind: str, text: str) -> Any:
    """What the text says, by whole numbers: of a moment the count of its unit since 1970."""
    if kind.startswith("timestamp"):
        unit = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.removeprefix("timestamp[").rstrip("]").split(",")[0]]
        whole, _, fraction = text.partition(".")
        day, clock = whole.split("T")
        days = pa.scalar(day).cast(pa.date32()).cast(pa.int32()).as_py()
        hours, minutes, seconds = map(int, clock.split(":"))
        second = days * 86_400 + hours * 3600 + minutes * 60 + seconds
        return second * 10**unit + int((fraction or "0").ljust(unit, "0")[:unit] or 0)
    return text


def test_every_type_has_limits() -> None:
    assert {kind for kind, _ in LIMITS} >= set(SIMPLE_TYPES) - {"string", "binary"}


@pytest.mark.in_turn
@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
@pytest.mark.parametrize(("kind", "text"), LIMITS)
def test_the_least_and_the_greatest_value_go_in(tmp_path: Path, kind: str, text: str, form: str) -> None:
    path = tmp_path / f"v.{form}"
    spelled = f"{text}Z" if "UTC" in kind else text
    if form == "csv":
        path.write_text(f"k,v\n1,{spelled}\n")
    elif form == "parquet":
        pq.write_table(pa.table({"k": [1], "v": [spelled]}), path)
    else:
        plain = kind == "bool" or "int" in kind or kind.startswith("float")
        path.write_text(f'{{"k":1,"v":{spelled if plain else json.dumps(spelled)}}}\n')
    (value,) = inserted_counts(path, kind) if kind.startswith("timestamp") else inserted(path, table_of(kind))
    if kind.startswith(("timestamp", "uint", "int")):
        assert value == (count_of(kind, text) if kind.startswith("timestamp") else int(text))
    elif kind.startswith("float"):
        assert value == float(text)
    elif kind.startswith("decimal"):
        assert value == Decimal(text)
    elif kind == "duration":
        assert value.days * 86_400_000_000 + value.seconds * 1_000_000 + value.microseconds == int(text)
    else:
        assert str(value).lower() == text


def inserted_counts(path: Path, kind: str) -> list[int]:
    """Moments of nanoseconds are more than Python has."""
    from tiering.insert.inputs.source_files import find_sources
    from tiering.insert.inputs.sources import read_each
    from tiering.insert.reshaping import Reshaping

    streams = read_each(find_sources([str(path)]), Reshaping(table_of(kind)))
    return [n for stream in streams for batch in stream for n in batch.column("v").cast(pa.int64()).to_pylist()]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("timestamp[ns]", text) for text in ("1677-09-21T00:12:43.145224193", "2262-04-11T23:47:16.854775807")),
        *(("duration", str(count)) for count in (2**63 - 1, -(2**63), (2**63 - 1) // 1000 + 1)),
    ],
)
def test_what_no_answer_has_is_refused(tmp_path: Path, kind: str, text: str) -> None:
    (tmp_path / "v.csv").write_text(f"k,v\n1,{text}\n")
    assert "infinite in row 1" in refused(tmp_path / "v.csv", table_of(kind))


@pytest.mark.parametrize("text", ["1677-09-21T00:12:43.1452241", "1677-09-21T00:12:42.9", "2262-04-11T23:47:17"])
def test_what_nanoseconds_do_not_reach_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "v.csv").write_text(f"k,v\n1,{text}\n")
    refused(tmp_path / "v.csv", table_of("timestamp[ns]"))


def test_the_first_second_has_zones_and_nulls() -> None:
    texts = pa.array(["1677-09-21T00:12:43.5Z", None, "1970-01-01T00:00:00Z", "1969-12-31T23:59:59.999999999Z"])
    batch = pa.record_batch({"k": range(4), "v": texts})
    counts = cast_batch(batch, table_of("timestamp[ns, UTC]")).column("v").cast(pa.int64()).to_pylist()
    assert counts == [-9_223_372_037_000_000_000 + 500_000_000, None, 0, -1]
    assert arrow_type("timestamp[ns, UTC]").unit == "ns"
    with pytest.raises(UsageError):
        cast_batch(pa.record_batch({"k": [1], "v": ["1677-09-21T00:12:43.x"]}), table_of("timestamp[ns]"))
