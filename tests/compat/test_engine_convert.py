"""`clickhouse convert` with a real ClickHouse, which writes the table and reads its parts. Needs chdb: see
`test_clickhouse_engine`. Guards I1, I13."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.compat.buckets import captured, put_on_server
from tests.compat.captures import KEY_PREFIX
from tests.compat.engines import ANSWER, WIDE, disk_of, engines, run, version_of
from tests.servers import Server
from tiering.cli import main as cli

pytestmark = [
    pytest.mark.clickhouse,
    pytest.mark.skipif(not engines(), reason="chdb is missing: name a Python that has it in FROSTLINE_CHDB"),
]

COLUMNS = {
    "k": ("UInt64", "number"),
    "b": ("Bool", "number % 2"),
    "i": ("Int8", "number % 100 - 50"),
    "f": ("Float64", "number / 2"),
    "s": ("String", "concat('grün ', toString(number))"),
    "ls": ("LowCardinality(String)", "toString(number % 3)"),
    "ns": ("Nullable(String)", "if(number % 2 = 0, NULL, 'x')"),
    "d": ("Date", "toDate('2024-01-01') + number % 28"),
    "d32": ("Date32", "toDate32('1950-01-01')"),
    "t": ("DateTime('Europe/Berlin')", "toDateTime('2024-01-01 00:00:00', 'UTC') + number"),
    "t6": ("DateTime64(6, 'UTC')", "toDateTime64('2024-01-01 00:00:00.000007', 6, 'UTC')"),
    "dec": ("Decimal(18, 4)", "toDecimal64(number, 4) / 8"),
    "fs": ("FixedString(4)", "'ab'"),
    "e": ("Enum8('a' = 1, 'b, c' = 2)", "number % 2 + 1"),
    "u": ("UUID", "toUUID('00000000-0000-4000-8000-000000000001')"),
    "ip": ("IPv4", "toIPv4('10.0.0.1')"),
    "an": ("Array(Nullable(Int32))", "[1, NULL, 3]"),
    "ad": ("Array(Date)", "[toDate('2024-01-01')]"),
    "em": ("Array(String)", "[]"),
}


def row(number: int) -> dict[str, Any]:
    """The row as a table here has it."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    return {
        "k": number,
        "b": number % 2 == 1,
        "i": number % 100 - 50,
        "f": number / 2,
        "s": f"grün {number}",
        "ls": str(number % 3),
        "ns": None if number % 2 == 0 else "x",
        "d": date(2024, 1, 1 + number % 28),
        "d32": date(1950, 1, 1),
        "t": begin + timedelta(seconds=number),
        "t6": begin + timedelta(microseconds=7),
        "dec": Decimal(number * 10000 // 8).scaleb(-4),
        "fs": b"ab\0\0",
        "e": "a" if number % 2 == 0 else "b, c",
        "u": "00000000-0000-4000-8000-000000000001",
        "ip": "10.0.0.1",
        "an": [1, None, 3],
        "ad": [date(2024, 1, 1)],
        "em": [],
    }


class Source:
    """A real server's table in a bucket, and a command line beside it."""

    def __init__(self, python: str, server: Server, bucket: str, place: Path) -> None:
        self.python, self.place = python, place
        self.version = version_of(python, place)
        self.writes_log = self.version < (26, 0)
        self.url = f"s3://{bucket}/ch/"
        self.disk = disk_of(server, bucket, place / "metadata", send_metadata=self.writes_log)

    def write(self, columns: str, *queries: str, key: str = "k") -> None:
        """In one query: chdb 2.1.1 starts the engine anew for the next one, and with it the counter."""
        create = f"CREATE TABLE db.t ({columns}) ENGINE = MergeTree PARTITION BY {key} % 2 ORDER BY {key}"
        settings = f"SETTINGS disk = {self.disk}, {WIDE}"
        together = "; ".join(["CREATE DATABASE db ENGINE = Atomic", f"{create} {settings}", *queries])
        run(self.python, self.place / "clickhouse", [together])

    def convert(self, *more: str) -> int:
        known = [] if self.writes_log else ["--metadata", str(self.place / "metadata")]
        return cli.run(["--json", "clickhouse", "convert", self.url, "db.t", *known, *more])


@pytest.fixture(params=engines())
def source(
    request: pytest.FixtureRequest, s3_environment: Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Source:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FROSTLINE_CHDB", request.param)
    return Source(request.param, s3_environment, bucket, tmp_path)


def rows() -> list[dict[str, Any]]:
    from tiering.config.reading import load_from
    from tiering.engine.store import Store

    with Store.open(load_from(None).config, actor="test") as store:
        found = store.table("db.t").scan().read_all().to_pylist()
    return sorted(found, key=lambda one: one["k"])


def test_every_type_comes_over_with_every_row(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    """I13, over parts, covered parts, partitions and a projection's worth of names."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    values = ", ".join(value for _, value in COLUMNS.values())
    source.write(
        columns,
        f"INSERT INTO db.t SELECT {values} FROM numbers(100)",
        f"INSERT INTO db.t SELECT {values} FROM numbers(100, 100)",
        "OPTIMIZE TABLE db.t PARTITION 1 FINAL",
    )
    assert source.convert("--order-by", "k") == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    assert (document["source_rows"], document["rows"], document["deleted_rows"]) == (200, 200, 0)
    found = rows()
    assert len(found) == 200
    for number, one in enumerate(found):
        assert {name: one[name] for name in COLUMNS} == row(number)
    assert source.convert("--order-by", "k") == 13, "what has rows already is not filled again"


def test_rows_that_are_alike_and_rows_that_were_deleted(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    """Parts with the same bytes are no repeated insert; what a lightweight DELETE marked is in the parts still."""
    source.write(
        "k UInt64",
        *["INSERT INTO db.t SELECT number FROM numbers(10) SETTINGS insert_deduplicate = 0"] * 3,
        "DELETE FROM db.t WHERE k < 2 SETTINGS lightweight_deletes_sync = 2, mutations_sync = 2",
    )
    assert source.convert("--order-by", "k") == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    assert (document["source_rows"], document["rows"], document["deleted_rows"]) == (30, 24, 6)
    assert [one["k"] for one in rows()] == sorted([*range(2, 10)] * 3)


def test_an_added_column_says_what_it_is_told_to(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    if source.version < (26, 0):
        pytest.skip("before 26.9 no column is added to a table whose own settings define its disk")
    source.write(
        "k UInt64",
        "INSERT INTO db.t SELECT number FROM numbers(2)",
        "ALTER TABLE db.t ADD COLUMN c UInt64 DEFAULT 7",
        "INSERT INTO db.t SELECT number + 2, 8 FROM numbers(2)",
    )
    assert source.convert("--order-by", "k") == 2
    assert "--default c=VALUE" in capsys.readouterr().err
    assert source.convert("--order-by", "k", "--default", "c=7") == 0
    assert [(one["k"], one["c"]) for one in rows()] == [(0, 7), (1, 7), (2, 8), (3, 8)]


def test_texts_that_are_none_are_refused_by_name(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    source.write("k UInt64, v String", "INSERT INTO db.t SELECT 1, unhex('ff')")
    assert source.convert("--order-by", "k") == 2
    assert "column v of part" in capsys.readouterr().err
    assert rows() == []


def test_the_captured_disk(
    source: Source, s3_environment: Server, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its table with all that was done to it: merges, a mutation, partitions detached, attached and dropped."""
    put_on_server(s3_environment.client(), bucket, KEY_PREFIX, captured())
    url = f"s3://{bucket}/{KEY_PREFIX}"
    uuid = "db7fa105-d417-4a64-977b-94ff5177349e"
    assert cli.run(["--json", "clickhouse", "convert", url, "db.t", "--order-by", "k"]) == 2
    assert "--uuid with one of" in capsys.readouterr().err
    told = ["--order-by", "k", "--uuid", uuid, "--default", "c=7"]
    assert cli.run(["--json", "clickhouse", "convert", url, "db.t", *told]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 3200
    wanted = "SELECT k, d, v, w, c FROM db.t"
    assert cli.run(["query", wanted, "--output-format", "parquet", "-o", "rows.parquet"]) == 0
    hashed = "SELECT count(), sum(cityHash64(k, toDate(d), v, w, c)) FROM file('{}', Parquet)"
    assert run(source.python, source.place / "judge", [hashed.format(source.place / "rows.parquet")]) == [ANSWER]
