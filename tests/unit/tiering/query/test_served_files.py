"""The server on loopback that the engine reads through: it answers whoever knows its bucket, and nobody else."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from datafusion import SessionContext

from disks.stores.base import ByteRange
from oplog.errors import Transient
from tiering.parquet.checked_file import CheckedFile
from tiering.parquet.part_files import write_part_files
from tiering.query.engine_files import _columns_in
from tiering.query.served_files import ServedFiles
from tiering.table.definitions import define_table
from tiering.table.types import arrow_schema


@pytest.fixture
def served() -> Iterator[ServedFiles]:
    opened = ServedFiles()
    yield opened
    opened.close()


class Data:
    def __init__(self, directory: Path) -> None:
        definition = define_table("a.b", columns=["k:int64"], order_by="k", policy="p")
        (self.file,) = write_part_files([pa.table({"k": range(100)}, arrow_schema(definition))], definition, directory)
        self.bytes = (directory / self.file.name).read_bytes()
        self.error: Exception | None = None

    def fetch(self, wanted: ByteRange) -> bytes:
        if self.error is not None:
            raise self.error
        return self.bytes[wanted.start : wanted.stop]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path)


@pytest.fixture
def path(served: ServedFiles, data: Data) -> str:
    return f"/{served.bucket}/{served.add(CheckedFile(data.file, data.fetch, label='it', hint=''))}"


def ask(
    served: ServedFiles, path: str, wanted: str | None = None, *, method: str = "GET"
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.request(method, path, headers={"Range": wanted} if wanted else {})
    answer = connection.getresponse()
    found = answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    connection.close()
    return found


def test_ranges_and_whole_files(served: ServedFiles, data: Data, path: str) -> None:
    size = len(data.bytes)
    assert ask(served, path)[:2] == (200, data.bytes)
    status, body, headers = ask(served, path, f"bytes=10-{size + 100}")
    assert (status, body, headers["content-range"]) == (206, data.bytes[10:], f"bytes 10-{size - 1}/{size}")
    assert ask(served, path, "bytes=4-7")[:2] == (206, data.bytes[4:8])
    assert ask(served, path, "bytes=4-")[:2] == (206, data.bytes[4:])
    status, body, headers = ask(served, path, method="HEAD")
    assert (status, body, headers["content-length"]) == (200, b"", str(size))
    for wanted in (f"bytes={size}-", "bytes=-5", "bytes=9-3", "lines=1-2"):
        assert ask(served, path, wanted)[0] == 416


def test_nobody_else_is_answered(served: ServedFiles, path: str) -> None:
    for other in ("/", path[:-1], "/" + "0" * 32 + path[33:], path + "/../x", "*"):
        assert ask(served, other)[:2] == (403, b"")
    for method in ("PUT", "DELETE", "POST", "OPTIONS"):
        assert ask(served, path, method=method)[0] == 403
    assert len(served.bucket) == 32


def test_no_line_of_a_request_is_without_end(served: ServedFiles, path: str) -> None:
    assert ask(served, path + "x" * 10_000)[0] == 403
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(served, path + "x" * 100_000)
    assert ask(served, path, "bytes=0-3")[1] == b"PAR1"


def test_why_a_read_failed_is_kept(served: ServedFiles, data: Data, path: str) -> None:
    data.error = Transient("the first")
    assert ask(served, path, "bytes=0-3")[:2] == (400, b"")
    data.error = Transient("another")
    assert ask(served, path, "bytes=0-3")[0] == 400
    assert str(served.failure) == "the first"


def test_when_it_is_closed_nothing_answers(served: ServedFiles, path: str) -> None:
    kept = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    kept.request("GET", path)
    kept.getresponse().read()
    served.close()
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(served, path)
    with pytest.raises((http.client.HTTPException, OSError)):
        kept.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        kept.getresponse()


def test_the_engine_reads_past_proxies_and_settings_of_the_environment(
    served: ServedFiles, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    session = SessionContext()
    session.register_object_store("s3://", served.engine_store(), served.bucket)
    session.sql(f"CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3:/{path}'").collect()
    assert session.sql("SELECT sum(k) AS s FROM t").to_pydict() == {"s": [4950]}


def test_which_columns_a_plan_reads() -> None:
    """Of all scans together, those in subqueries too; all columns when a scan is written otherwise."""
    plan = "Join\n  TableScan: ?table? projection=[k, x], partial_filters=[?table?.x > 1]"
    plan += "\n  TableScan: ?table? projection=[a]"
    assert _columns_in(plan, ["k", "a", "b", "x"]) == [0, 1, 3]
    assert _columns_in("TableScan: ?table? projection=[]", ["k"]) == []
    assert _columns_in(plan + "\n  TableScan: ?table?", ["k"]) is None
    assert _columns_in(plan + "\n  TableScan: other projection=[k]", ["k"]) is None
    assert _columns_in('TableScan: ?table? projection=[a, b", c]', ["a", 'b"', 'a, b"', "c", "b"]) == [0, 1, 2, 3]
