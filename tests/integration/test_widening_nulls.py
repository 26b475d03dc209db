"""A column that took no nulls takes them now: parts of before and after are one table, wherever they are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import frostline
from tests.homes import Home
from tests.servers import Server

ROWS = 6
BEFORE = [[n, n] for n in range(ROWS)]
AFTER = [[100 + n, None if n % 2 else n] for n in range(ROWS)]
SELECTED = "SELECT k, v FROM d.t ORDER BY k"
QUESTIONS = {
    "SELECT count(*), count(v), sum(v) FROM d.t": [[12, 9, 21]],
    "SELECT k FROM d.t WHERE v IS NULL ORDER BY k": [[101], [103], [105]],
    "SELECT count(*) FROM d.t WHERE v IS NOT NULL": [[9]],
    "SELECT count(*) FROM d.t WHERE v >= 0 OR v IS NULL": [[12]],
}


def _begin(home: Home) -> None:
    home("table", "create", "d.t", "--column", "k:int64", "--column", "v:int64 not null", "--order-by", "k")
    _insert(home, BEFORE)


def _insert(home: Home, rows: list[list[int | None]], code: int = 0) -> None:
    source = home.path / "rows.parquet"
    pq.write_table(pa.table({"k": [row[0] for row in rows], "v": [row[1] for row in rows]}), source)
    home("insert", "d.t", str(source), code=code)


def _same(home: Home) -> None:
    assert home.json("query", SELECTED)["rows"] == BEFORE + AFTER
    for sql, rows in QUESTIONS.items():
        assert home.json("query", sql)["rows"] == rows, sql
    with frostline.open(home.configuration) as store:
        for found in (store.table("d.t").scan().read_all(), store.table("d.t").dataset().to_table()):
            rows = found.sort_by("k").to_pydict()
            assert [list(row) for row in zip(rows["k"], rows["v"], strict=True)] == BEFORE + AFTER


@pytest.mark.in_turn
def test_through_s3_merges_and_a_rebuild(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ministack: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ministack.environment().items():
        monkeypatch.setenv(name, value)
    home = Home(tmp_path, "one", capsys)
    document = yaml.safe_load(home.configuration.read_text())
    document["disks"]["s3"]["url"] = f"s3://{ministack.new_bucket()}/store/"
    home.configuration.write_text(yaml.safe_dump(document))
    _begin(home)
    home.to_bucket()
    _insert(home, AFTER, code=2)
    assert "null" in home.error
    home("table", "alter", "d.t", "--widen-column", "v:int64 null")
    _insert(home, AFTER)
    _same(home)  # before in the bucket, after on the SSD
    home.to_bucket()
    _same(home)
    shutil.rmtree(home.path / "state")
    shutil.rmtree(home.path / "ssd")
    home("restore", "s3", "--apply")
    _same(home)
    home("merge", "d.t", "--final", "--cold")
    assert len(home.json("parts", "d.t")["parts"]) == 1
    _same(home)
    home("fsck", "--read-data")


def test_the_past_takes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path, "one", capsys)
    _begin(home)
    home.to_bucket()
    then = home.head()
    home("table", "alter", "d.t", "--widen-column", "v:int64 null")
    altered = home.head()
    _insert(home, AFTER)
    home.to_bucket()
    assert altered > then
    assert home.json("query", SELECTED, "--revision", str(then))["rows"] == BEFORE
    assert home.json("query", SELECTED, "--revision", str(altered))["rows"] == BEFORE
    columns = "SELECT nullable FROM system.columns WHERE name = 'v'"
    assert home.json("query", columns, "--revision", str(then))["rows"] == [[False]]
    assert home.json("query", columns)["rows"] == [[True]]
    _same(home)


def test_parts_on_the_ssd_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path, "one", capsys)
    _begin(home)
    home("table", "alter", "d.t", "--widen-column", "v:int64 null")
    _insert(home, AFTER)
    home("merge", "d.t", "--final")
    assert len(home.json("parts", "d.t")["parts"]) == 1
    _same(home)


@pytest.mark.in_turn
def test_a_disk_with_the_log_of_clickhouse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its state is lost, and comes back from the bucket; what is exported is what is there."""
    home = Home(tmp_path, "one", capsys)
    document = yaml.safe_load(home.configuration.read_text())
    document["disks"]["s3"]["log_format"] = 1
    home.configuration.write_text(yaml.safe_dump(document))
    _begin(home)
    home.to_bucket()
    home("table", "alter", "d.t", "--widen-column", "v:int64 null")
    _insert(home, AFTER)
    home.to_bucket()
    shutil.rmtree(home.path / "state" / "disks" / "s3")
    restored = home.json("restore", "s3", "--apply")
    _same(home)
    out = home.path / "out"
    home("clickhouse", "export", "s3", str(out))
    assert home.json("clickhouse", "import", "s3", str(out))["unchanged"] == restored["files"]
    home("merge", "d.t", "--final", "--cold")
    _same(home)


def test_the_same_type_is_refused_with_what_to_say_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path, "one", capsys)
    _begin(home)
    home("table", "alter", "d.t", "--widen-column", "v:int64", code=2)
    assert "takes no nulls" in home.error
    assert "--widen-column 'v:int64 null'" in home.error
    home("table", "alter", "d.t", "--widen-column", "v:int64 null")
    home("table", "alter", "d.t", "--widen-column", "v:int64", code=2)
    assert "column v is int64 already" in home.error
    home("table", "create", "d.u", "--column", '"a b":int64 not null', "--column", "k:int64", "--order-by", "k")
    home("table", "alter", "d.u", "--widen-column", '"a b":int64', code=2)
    assert "--widen-column '\"a b\":int64 null'" in home.error
