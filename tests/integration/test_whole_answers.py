"""A store that answers with the whole object, and 200, where a range was asked for: what was moved there is read right.

P54: bytes that are not those that were asked for, and a status that says all is well."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from disks.config import LocalDiskConfig, ObjectDiskConfig
from spark_tiering.arrow_types import carried_schema
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.reading.reader import Projection, read_share
from spark_tiering.reading.scan_planning import plan_scan
from tests.servers import Server
from tests.spark.stores import table, write_config
from tests.tiers import define, make_context, put_part, put_table, resolver
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.engine.store import Store
from tiering.query.filesystem import FrostlineFileSystem
from tiering.query.query import run_sql
from tiering.query.scan import scan
from tiering.table.schema import TableSettings

COUNT = 40_000
ROWS = pa.table({"k": pa.array(range(COUNT), pa.int64()), "x": [number / 7 for number in range(COUNT)]})


class Rangeless:
    """A gateway to an S3 server that knows no ranges."""

    def __init__(self, server: Server) -> None:
        self.ranges = 0
        """How often one was asked for."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.ranges += headers.pop("range", None) is not None
                body = self.rfile.read(int(headers.get("content-length", 0)))
                request = Request(server.endpoint_url + self.path, body or None, headers, method=self.command)
                try:
                    answer = urlopen(request)
                except HTTPError as error:
                    answer = error
                with answer:
                    data = answer.read()
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                            self.send_header(name, value)
                    length = answer.headers["content-length"] if self.command == "HEAD" else str(len(data))
                    self.send_header("content-length", length or "0")
                    self.end_headers()
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint_url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def gateway(ministack: Server) -> Iterator[Rangeless]:
    opened = Rangeless(ministack)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def context(ministack: Server, gateway: Rangeless, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    home = tmp_path_factory.mktemp("rangeless")
    disks = {
        "ssd": LocalDiskConfig(path=str(home / "ssd")),
        "s3": ObjectDiskConfig(
            url=f"s3://{ministack.new_bucket()}/store/",
            endpoint_url=gateway.endpoint_url,
            region="us-east-1",
            access_key_id=ministack.access_key_id,
            secret_access_key=ministack.secret_access_key,
        ),
    }
    opened = make_context(home, disks)
    yield opened
    for disk in opened.disks.values():
        disk.close()


@pytest.fixture(scope="module")
def stored(context: Context) -> StoredPart:
    definition = define("whole.t", {"k": "int64", "x": "float64"}, ["k"], settings=TableSettings(row_group_rows=5000))
    put_table(context, definition)
    (part,) = put_part(context, definition, "s3", ROWS, 1)
    return part


def test_sql(context: Context, stored: StoredPart, gateway: Rangeless) -> None:
    before = gateway.ranges
    sql = "SELECT count(*) AS n, sum(k) AS s, max(x) AS m FROM whole.t WHERE k >= 7000 AND k < 9000"
    found = run_sql(context, sql, resolver(context)).read_all().to_pylist()
    assert found == [{"n": 2000, "s": sum(range(7000, 9000)), "m": 8999 / 7}]
    assert gateway.ranges > before


def test_scans(context: Context, stored: StoredPart) -> None:
    assert scan(context, stored.definition, [stored]).read_all().sort_by("k").equals(ROWS)
    some = scan(context, stored.definition, [stored], columns=["x"], filter=pc.field("k") < 10).read_all()
    assert some.column("x").to_pylist() == [number / 7 for number in range(10)]


def test_files(context: Context, stored: StoredPart) -> None:
    files = FrostlineFileSystem(context)
    (path,) = files.find("whole.t")
    assert pq.read_table(path, filesystem=files, columns=["x"]).equals(ROWS.select(["x"]))


def test_a_share_of_spark(tmp_path: Path, ministack: Server, gateway: Rangeless) -> None:
    config = write_config(tmp_path, ministack, hot=False, endpoint_url=gateway.endpoint_url)
    columns = {"k": "int64", "x": "float64", "y": "float64", "z": "float64"}
    definition = table("db.t", columns, ["k"], row_group_rows=5000)
    rows = ROWS.append_column("y", ROWS["x"]).append_column("z", ROWS["x"])
    with Store.open(config) as store:
        store.create_table(definition)
        store.table("db.t").insert(rows.to_batches())
    read = plan_scan(ReadOptions("db.t", config))
    schema = carried_schema([definition.column("x")])
    before = gateway.ranges
    batches = read_share(
        read.shares[0], Projection(read.definition, ("x",), schema), datetime.now(UTC) + timedelta(hours=1)
    )
    assert pa.Table.from_batches(list(batches)).column("x").to_pylist() == ROWS.column("x").to_pylist()
    assert gateway.ranges > before
