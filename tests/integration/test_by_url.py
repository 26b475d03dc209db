"""A bucket that is opened by its URL alone: what a store wrote is read, nothing is written but the user's cache.

Guards I16 (reading creates nothing where nobody has written) and I20.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import frostline as library
from oplog.errors import Refused
from tests.command_line import Frostline
from tests.servers import Server

NAME = "db.t"
READING = [
    ("query", f"SELECT p, sum(k) AS k FROM {NAME} GROUP BY p ORDER BY p"),
    ("query", f"SELECT count(*) AS n FROM {NAME}", "--revision", "2"),
    ("parts", NAME),
    ("table", "list"),
    ("table", "show", NAME),
    ("du",),
    ("files", NAME, "--urls"),
]
CHANGING = [
    ("insert", NAME, "rows.parquet"),
    ("table", "drop", NAME, "--yes"),
    ("table", "alter", NAME, "--add-column", "c:int64"),
    ("table", "create", "db.new", "--column", "k:int64", "--order-by", "k"),
    ("undo", "store", "2", "--yes"),
    ("restore", "store", "--revision", "2", "--apply", "--yes"),
    ("snapshot", "store"),
]


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Frostline(capsys)


@pytest.fixture(params=["directory", "s3"])
def url(request: pytest.FixtureRequest, frostline: Frostline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """That of the bucket of a store which has everything in it, and is gone otherwise."""
    url = (tmp_path / "home/bucket/store").as_uri()
    if request.param == "s3":
        server: Server = request.getfixturevalue("s3_environment")
        url = f"s3://{server.new_bucket()}/store"
    monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"{url}/")
    rows = pa.table({"k": pa.array(range(40), pa.int64()), "p": pa.array([n // 10 for n in range(40)], pa.int64())})
    pq.write_table(rows, tmp_path / "rows.parquet")
    frostline("table", "create", NAME, "--like", "rows.parquet", "--order-by", "k", "--partition-by", "p")
    frostline("insert", NAME, "rows.parquet")
    for partition in range(4):
        frostline("move", NAME, "--partition", str(partition), "--to-volume", "cold")
    monkeypatch.delenv("FROSTLINE_DISKS__S3__URL")
    return url


def objects(home: Path) -> set[str]:
    return {f"{path} {path.stat().st_size}" for path in home.rglob("*") if path.is_file()}


def test_what_is_there_is_read(frostline: Frostline, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = frostline.json("query", f"SELECT k, p FROM {NAME} ORDER BY k") if url.startswith("file") else None
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "nowhere"))
    before = objects(tmp_path / "home")
    for verb in READING:
        frostline("--store", url, *verb)
    answer = frostline.json("--store", url, "query", f"SELECT k, p FROM {NAME} ORDER BY k")
    assert answer["rows"] == [[n, n // 10] for n in range(40)]
    assert configured is None or configured["rows"] == answer["rows"]
    assert frostline.json("--store", url, "query", f"SELECT count(*) FROM {NAME}", "--revision", "3")["rows"] == [[20]]
    assert "rows.parquet" in os.listdir(tmp_path)
    assert not (tmp_path / "nowhere").exists()
    assert objects(tmp_path / "home") == before
    assert (tmp_path / "cache/frostline/stores").is_dir()


@pytest.mark.parametrize("verb", CHANGING, ids=lambda verb: verb[0])
def test_nothing_is_changed(frostline: Frostline, url: str, tmp_path: Path, verb: tuple[str, ...]) -> None:
    before = objects(tmp_path / "home")
    frostline("--store", url, *verb, code=Refused.exit_code)
    assert objects(tmp_path / "home") == before


def test_a_program_opens_it(frostline: Frostline, url: str) -> None:
    with library.open(url) as store:
        assert store.table(NAME).scan().read_all().num_rows == 40


@pytest.mark.parametrize(
    ("url", "code"), [("file:///nothing/at/all", 10), ("/a/path", 2), ("https://host/bucket", 2), ("s3://", 2)]
)
def test_a_url_of_no_store(frostline: Frostline, url: str, code: int) -> None:
    frostline("--store", url, "parts", code=code)
    assert url.rstrip("/") in frostline.error


def test_two_stores_are_not_named(frostline: Frostline) -> None:
    frostline("--store", "file:///x", "--config", "x.yaml", "parts", code=2)
    assert "--store" in frostline.error
