"""Partitions at the limits of their types, by the command line: as older versions wrote them, too."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disks import identity
from tests.homes import Home
from tiering.merge.rows import live_rows
from tiering.table.definitions import define_table

LEAST = {bits: -(1 << (bits - 1)) for bits in (8, 16, 32, 64)}
MOMENT = 1_600_000_000_123_456_000


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, "one", capsys)


def _insert(home: Home, table: str, **columns: pa.Array) -> None:
    path = home.path / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    home("insert", table, str(path))


def _parts(home: Home, partition: str) -> list[Path]:
    return sorted((home.path / "ssd").glob(f"store/*/*/{partition}_*/part.json"))


def _values(path: Path) -> list[Any]:
    return list(json.loads(path.read_bytes())["partition_values"])


def _as_of_old(path: Path, *values: Any) -> None:
    """Has the part say what an older version said of its rows."""
    said = json.loads(path.read_bytes())
    path.write_text(json.dumps({**said, "partition_values": list(values)}))


def _answer(home: Home, sql: str) -> Any:
    return [row[0] for row in home.json("query", sql)["rows"]]


@pytest.mark.in_turn
@pytest.mark.parametrize(("bits", "width"), [(8, 1000), (16, 10), (32, 10), (64, 7)])
def test_wrapped_values_are_read_right_and_mended(home: Home, bits: int, width: int) -> None:
    """Guards I21. The id of the partition is what it was, so new rows and old ones are of one partition."""
    least = LEAST[bits]
    floor = least // width * width
    wrapped = (floor - least) % (1 << bits) + least
    columns = ("--column", "k:int64", "--column", f"v:int{bits}", "--order-by", "k")
    home("table", "create", "d.t", *columns, "--partition-by", f"truncate({width}, v)")
    _insert(home, "d.t", k=pa.array([1, 2]), v=pa.array([least, 5], pa.int64()))
    assert home.json("parts", "d.t")["parts"][0]["partition"] in (str(wrapped), "0")
    (old,) = _parts(home, str(wrapped))
    assert _values(old) == [max(floor, LEAST[64])]
    _as_of_old(old, wrapped)
    assert _answer(home, "select k from d.t where v < 0") == [1]
    assert _answer(home, f"select k from d.t where v = {least}") == [1]
    _insert(home, "d.t", k=pa.array([3]), v=pa.array([least], pa.int64()))
    home("merge", "d.t", "--final")
    (merged,) = _parts(home, str(wrapped))
    assert _values(merged) == [max(floor, LEAST[64])]
    assert _answer(home, "select k from d.t where v < 0 order by k") == [1, 3]


def test_a_value_that_another_partition_has_is_not_believed(home: Home) -> None:
    """Guards I21. As an older version put -5 beside 5: `truncate(1024, …)` of eight bits wrapped to 0."""
    home("table", "create", "d.t", "--column", "v:int8", "--order-by", "v", "--partition-by", "truncate(1024, v)")
    _insert(home, "d.t", v=pa.array([-5, 5], pa.int64()))
    (low,) = _parts(home, "-1024")
    _as_of_old(low, 0)
    assert _answer(home, "select v from d.t where v < 0") == [-5]
    assert _answer(home, "select v from d.t where v > 0") == [5]


def test_a_wider_type_keeps_the_ids_of_partitions(home: Home) -> None:
    """Guards I21: the id of the lowest partition is that of its type."""
    columns = ("--column", "v:int16", "--column", "w:int16", "--order-by", "v")
    home("table", "create", "d.t", *columns, "--partition-by", "truncate(10, v), truncate(10, w)")
    _insert(home, "d.t", v=pa.array([-(2**15)]), w=pa.array([-(2**15) + 8]))
    home("table", "alter", "d.t", "--widen-column", "v:int32", code=2)
    assert "truncate(10, v) would call the partition" in home.error
    home("table", "alter", "d.t", "--widen-column", "w:int64")
    _insert(home, "d.t", v=pa.array([-(2**15) + 1]), w=pa.array([-(2**15) + 9]))
    assert len({part["partition"] for part in home.json("parts", "d.t")["parts"]}) == 1


def test_decimals_are_truncated_below_their_precision(home: Home) -> None:
    columns = ("--column", "k:int64", "--column", "v:decimal(4, 2)", "--order-by", "k")
    home("table", "create", "d.t", *columns, "--partition-by", "truncate(10, v)")
    source = home.path / "rows.csv"
    source.write_text("k,v\n1,-99.99\n2,99.99\n3,-0.01\n4,0.00\n5,\n")
    home("insert", "d.t", str(source))
    assert {part["rows"] for part in home.json("parts", "d.t")["parts"]} == {1}
    for value, key in (("-99.99", 1), ("99.99", 2), ("-0.01", 3), ("0.00", 4)):
        assert _answer(home, f"select k from d.t where v = {value}") == [key]
    assert _answer(home, "select k from d.t where v < -99") == [1]


@pytest.mark.in_turn
@pytest.mark.parametrize("zone", ["", ", Europe/Berlin"])
def test_nanoseconds_of_one_microsecond_are_one_partition(home: Home, zone: str) -> None:
    """Guards I21. What older versions said of such parts held for the first of them only, once they were merged."""
    columns = ("--column", "k:int64", "--column", f"ts:timestamp[ns{zone}]", "--order-by", "k")
    home("table", "create", "d.t", *columns, "--partition-by", "ts")
    counts = [MOMENT + 789, MOMENT, MOMENT + 1, -1, -(2**63) + 2, 2**63 - 2]  # the last that are not infinite
    kind = pa.timestamp("ns", "UTC" if zone else None)
    for number, count in enumerate(counts):
        _insert(home, "d.t", k=pa.array([number]), ts=pa.array([count], kind))
    first = _parts(home, "20200913T122640-123456")[0]
    assert _values(first) == ["2020-09-13T12:26:40.123456Z"]
    _as_of_old(first, "2020-09-13T12:26:40.123456789Z")
    home("merge", "d.t", "--final")
    assert [part["rows"] for part in home.json("parts", "d.t")["parts"]] == [1, 1, 3, 1]
    (merged,) = _parts(home, "20200913T122640-123456")
    assert _values(merged) == ["2020-09-13T12:26:40.123456Z"]
    _as_of_old(merged, "2020-09-13T12:26:40.123456789Z")
    suffix = "+00" if zone else ""
    for text, keys in {"123456000": [1], "123456001": [2], "123456789": [0]}.items():
        literal = f"'2020-09-13 12:26:40.{text}{suffix}'"
        assert _answer(home, f"select k from d.t where ts = {literal}") == keys
    assert _answer(home, f"select k from d.t where ts < '1970-01-01 00:00:00{suffix}' order by k") == [3, 4]
    assert _answer(home, f"select k from d.t where ts > '2020-09-13 12:26:40.123456{suffix}' order by k") == [0, 2, 5]


def test_a_sample_of_nanoseconds_makes_a_table(home: Home) -> None:
    moments = pa.array([1, -(2**63) + 2, 2**63 - 2, None], pa.timestamp("ns"))
    sample = home.path / "sample.parquet"
    inside = pa.StructArray.from_arrays([moments], ["at"])
    pq.write_table(pa.table({"k": pa.array(range(4)), "ts": moments, "s": inside}), sample)
    home("table", "create", "d.t", "--like", str(sample), "--order-by", "k")
    assert "1677-09-21" in home.error
    home("insert", "d.t", str(sample))
    assert _answer(home, "select ts from d.t where k = 0") == ["1970-01-01T00:00:00.000000001"]


@pytest.mark.parametrize(("kind", "shown"), [(pa.time64("ns"), "'00:00:00.000000001'"), (pa.duration("ns"), "'1'")])
def test_a_finer_value_is_shown_without_pandas(home: Home, kind: pa.DataType, shown: str) -> None:
    sample = home.path / "sample.parquet"
    pq.write_table(pa.table({"k": pa.array([1, 2]), "v": pa.array([1000, 1], kind)}), sample)
    home("table", "create", "d.t", "--like", str(sample), "--order-by", "k")
    home("insert", "d.t", str(sample), code=2)
    assert f"row 2 has {shown}" in home.error
    assert "pandas" not in home.error


def test_moments_at_the_ends_of_the_calendar_in_every_zone(home: Home) -> None:
    """The first day of the year 1 is none in New York's calendar, nor the last of 9999 in Tokyo's."""
    home("table", "create", "d.t", "--column", "k:int64", "--column", "a:timestamp[us, America/New_York]", "--column",
         "b:timestamp[us, Asia/Tokyo]", "--order-by", "a, b", "--partition-by", "a, year(b)")  # fmt: skip
    source = home.path / "rows.csv"
    source.write_text("k,a,b\n1,0001-01-01T00:00:00Z,9999-12-31T23:59:59.999999Z\n2,2020-01-01T00:00:00Z,\n")
    home("insert", "d.t", str(source))
    assert {part["partition"] for part in home.json("parts", "d.t")["parts"]} == {
        "10101T000000.9999",
        "20200101T000000.null",
    }
    assert _answer(home, "select k from d.t where a < '0002-01-01 00:00:00+00'") == [1]
    assert _answer(home, "select k from d.t where b > '9999-12-31 00:00:00+00'") == [1]


def test_a_disk_must_distinguish_upper_from_lower_case(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards I21: a partition's id is the name of its directory."""
    home("table", "create", "d.t", "--column", "v:string", "--order-by", "v", "--partition-by", "v")
    _insert(home, "d.t", v=pa.array(["a", "A"]))
    small, capitals = home.path / "disk.json", home.path / "DISK.JSON"
    small.touch()
    assert identity.tells_case_apart(small)
    capitals.touch()  # as a file system without case answers
    assert not identity.tells_case_apart(small)
    other = Home(home.path.parent, "other", home.capsys)
    monkeypatch.setattr(identity, "tells_case_apart", lambda file: False)
    other("table", "create", "d.u", "--column", "v:string", "--order-by", "v", code=13)
    assert "upper from lower case" in other.error


@pytest.mark.parametrize("zone", ["", ", UTC"])
@pytest.mark.parametrize("days", [365 * 400, 365 * 3000])
def test_rules_longer_than_nanoseconds_reach_delete_nothing(zone: str, days: int) -> None:
    """A rule of 400 years wrapped to one of the future: a merge dropped every row."""
    columns = ["k:int64", f"ts:timestamp[ns{zone}]"]
    definition = define_table("d.t", columns=columns, order_by="k", policy="p", ttl=[f"{days}d on ts delete"])
    kind = pa.timestamp("ns", "UTC" if zone else None)
    rows = pa.table({"k": pa.array([1, 2]), "ts": pa.array([MOMENT, 365 * 2 * 86_400 * 10**9], kind)})
    (live,) = live_rows([rows], definition, datetime(2026, 1, 1, tzinfo=UTC))
    assert live.num_rows == 2
