"""Objects of buckets as sources of inserts: every format and compression, globs, what breaks off or changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disks.stores.base import ByteRange
from disks.stores.s3.store import S3Store
from oplog.errors import Transient
from tests.command_line import Frostline
from tests.servers import Server
from tests.unit.tiering.insert.bucket_objects import OBJECTS, csv_text, everything
from tests.unit.tiering.insert.bucket_objects import frostline as frostline
from tiering.insert.inputs import bucket_sources
from tiering.insert.inputs.bucket_sources import _regular


def put(server: Server, bucket: str, key: str, data: bytes) -> str:
    server.client().put_object(Bucket=bucket, Key=key, Body=data)
    return f"s3://{bucket}/{key}"


@pytest.mark.in_turn
@pytest.mark.parametrize("name", OBJECTS)
def test_every_format_and_compression(frostline: Frostline, s3_environment: Server, bucket: str, name: str) -> None:
    url = put(s3_environment, bucket, f"in/deep é/{name}", OBJECTS[name]())
    assert frostline.json("insert", "db.t", url)["rows"] == 1000
    assert everything(frostline) == (1000, 499_500, "é999")
    assert frostline.json("insert", "db.t", url)["rows"] == 0


@pytest.mark.in_turn
def test_a_glob_names_matching_keys_and_a_disk_how_to_reach_them(
    frostline: Frostline, s3_environment: Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, key in enumerate(("2026/01/a.csv", "2026/02/b.csv", "2026/02/c.txt", "2026/x.csv", "2025/01/d.csv")):
        put(s3_environment, bucket, key, f"k,text\n{10**number},x\n".encode())
    environment = s3_environment.environment()
    for name in environment:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/store/")
    monkeypatch.setenv("FROSTLINE_DISKS__S3__ENDPOINT_URL", s3_environment.endpoint_url)
    monkeypatch.setenv("FROSTLINE_DISKS__S3__ACCESS_KEY_ID", environment["AWS_ACCESS_KEY_ID"])
    monkeypatch.setenv("FROSTLINE_DISKS__S3__SECRET_ACCESS_KEY", environment["AWS_SECRET_ACCESS_KEY"])
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "other"))
    frostline("table", "create", "db.t", "--column", "k:int64", "--column", "text:string", "--order-by", "k")
    assert frostline.json("insert", "db.t", f"s3://{bucket}/2026/*/*.csv", "-n")["rows"] == 2
    frostline("insert", "db.t", f"s3://{bucket}/2026/**/*.csv", "--dedup-by", "file")
    assert everything(frostline)[:2] == (3, 1011)


def test_a_range_that_breaks_off_is_asked_for_again(
    frostline: Frostline, s3_environment: Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what was read before it."""
    monkeypatch.setattr(bucket_sources, "_MOST_RANGE_BYTES", 4096)
    url = put(s3_environment, bucket, "a.csv", csv_text())
    asked: list[ByteRange | None] = []
    get = S3Store.get

    def breaking(self: S3Store, key: str, byte_range: ByteRange | None = None) -> bytes:
        if key != "a.csv":
            return get(self, key, byte_range)
        asked.append(byte_range)
        if len(asked) == 2:
            raise Transient("the connection was reset")
        return get(self, key, byte_range)

    monkeypatch.setattr(S3Store, "get", breaking)
    assert frostline.json("insert", "db.t", url)["rows"] == 1000
    assert asked[1] == asked[2], "only the one that broke off"
    assert len(asked) == len(set(asked)) + 1
    assert everything(frostline)[0] == 1000


def test_an_object_that_is_written_anew_meanwhile_is_an_error(
    frostline: Frostline, s3_environment: Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put(s3_environment, bucket, "a.csv", csv_text())
    read = bucket_sources.BucketFile._bytes

    def late(self: bucket_sources.BucketFile, start: int, stop: int) -> bytes:
        data = read(self, start, stop)
        put(s3_environment, bucket, "a.csv", b"k,text\n1,x\n")
        return data

    monkeypatch.setattr(bucket_sources.BucketFile, "_bytes", late)
    frostline("insert", "db.t", url, code=2)
    assert f"{url} was written again" in frostline.error
    assert everything(frostline)[0] == 0


@pytest.mark.parametrize(
    ("url", "code", "problem"),
    [
        ("s3://{bucket}/none.csv", 10, "no such object: s3://{bucket}/none.csv"),
        ("s3://{bucket}/none/*.csv", 10, "no such object"),
        ("s3://{bucket}/none/", 2, "is a prefix"),
        ("s3://{bucket}", 2, "names no object"),
        ("s3://{bucket}/data", 2, "the format is not clear from the name"),
        ("s3://no-such-bucket-of-anybody/a.csv", 10, "no-such-bucket-of-anybody"),
    ],
)
def test_what_is_not_there_is_named(frostline: Frostline, bucket: str, url: str, code: int, problem: str) -> None:
    frostline("insert", "db.t", url.format(bucket=bucket), code=code)
    assert problem.format(bucket=bucket) in frostline.error


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["q?.csv", "data[1].csv", "[z-a].csv", "*.csv", "hour=10%3A00/x?#.csv"])
def test_a_key_that_exists_is_meant(frostline: Frostline, s3_environment: Server, bucket: str, name: str) -> None:
    """As the name of a file is, also of a sample."""
    url = put(s3_environment, bucket, f"in/{name}", b"k,text\n1,x\n")
    for other in ("q1.csv", "data1.csv", "hour=10:00/x1#.csv", "hour=10%3A00/x1#.csv"):
        put(s3_environment, bucket, f"in/{other}", b"k,text,more\n2,y,z\n")
    assert frostline.json("insert", "db.t", url)["rows"] == 1
    assert everything(frostline) == (1, 1, "x")
    frostline("table", "create", "db.like", "--like", url, "--order-by", "k")
    assert f"Columns by {url}: k int64, text string" in frostline.error


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("in//b.csv", "'in//b.csv'"),
        ("in/tab\tc.csv", r"'in/tab\tc.csv'"),
        ("in/line\nc.csv", r"'in/line\nc.csv'"),
    ],
)
def test_objects_that_a_glob_cannot_read_are_named(
    frostline: Frostline, s3_environment: Server, bucket: str, key: str, problem: str
) -> None:
    """They were left out, with exit 0."""
    put(s3_environment, bucket, "in/a.csv", b"k,text\n1,x\n")
    put(s3_environment, bucket, "in/sub/", b"")
    url = put(s3_environment, bucket, key, b"k,text\n2,y\n")
    for named in (f"s3://{bucket}/in/**/*.csv", url):
        frostline("insert", "db.t", named, code=2)
        assert f"objects of s3://{bucket}/ cannot be read" in frostline.error
        assert problem in frostline.error
    frostline("table", "create", "db.like", "--like", f"s3://{bucket}/in/**/*.csv", "--order-by", "k", code=2)
    assert frostline.json("insert", "db.t", f"s3://{bucket}/in/a*.csv")["rows"] == 1
    frostline("insert", "db.t", f"s3://{bucket}/in/sub/**", "--format", "csv", code=10)
    assert everything(frostline)[0] == 1


@pytest.mark.parametrize(
    "url", ["s3://[b/x/", "s3://b/pre/a//b", "s3://b/pre/%2e%2e/b", "s3://b/a%00b", "file:///a%00b"]
)
def test_an_address_that_is_none_is_a_usage_error(
    frostline: Frostline, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", url)
    frostline("query", "SELECT 1 FROM db.t", code=2)
    assert "unexpected" not in frostline.error
    monkeypatch.delenv("FROSTLINE_DISKS__S3__URL")
    frostline("backup", "create", "--to", url, code=2)
    assert "unexpected" not in frostline.error


def test_what_is_damaged_is_named(frostline: Frostline, s3_environment: Server, bucket: str) -> None:
    url = put(s3_environment, bucket, "a.parquet", OBJECTS["a.parquet"]()[:-100])
    frostline("insert", "db.t", url, code=2)
    assert f"{url} cannot be read as parquet" in frostline.error
    bad = put(s3_environment, bucket, "b.csv", b"k,text\n1,x\ny,z\n")
    done = frostline.json("insert", "db.t", bad, "--skip-bad-rows", "1", "bad.jsonl")
    assert (done["rows"], done["bad_rows"]) == (1, 1)
    assert json.loads(Path("bad.jsonl").read_text())["source"] == bad


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a/*.csv", ["a/b.csv", "a/.csv"], ["a/b/c.csv", "a/b.csv.gz"]),
        ("a/**/*.csv", ["a/b.csv", "a/b/c/d.csv"], ["b.csv"]),
        ("a/**", ["a/b", "a/b/c"], ["ab"]),
        ("a?[0-9][!x].csv", ["ab1y.csv"], ["a/1y.csv", "ab1x.csv"]),
        ("a+(b).*", ["a+(b).csv"], ["aab.csv"]),
    ],
)
def test_globs(pattern: str, yes: list[str], no: list[str]) -> None:
    import re

    matches = re.compile(_regular(pattern)).fullmatch
    assert all(matches(key) for key in yes)
    assert not any(matches(key) for key in no)


def test_an_object_is_a_sample(frostline: Frostline, s3_environment: Server, bucket: str) -> None:
    put(s3_environment, bucket, "in/a.csv", b"when,n\n2026-01-01 00:00:00,1\n")
    put(s3_environment, bucket, "in/b.csv", b"when,n\n2026-01-02 00:00:00,2\n")
    for table, name in (("db.one", "a.csv"), ("db.all", "*.csv")):
        frostline("table", "create", table, "--like", f"s3://{bucket}/in/{name}", "--order-by", "n")
        assert "when timestamp[us], n int64" in frostline.error
        assert "--partition-by 'day(when)'" in frostline.error
    frostline("table", "create", "db.none", "--like", f"s3://{bucket}/none.csv", "--order-by", "n", code=10)
