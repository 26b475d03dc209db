"""A bucket that refuses, or breaks off, behind a proxy: the command line says so, and nothing is lost (I15, P55)."""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from disks.stores.wrappers.retry import Backoff
from tests.integration.bad_inputs import FEBRUARY, GOOD, JANUARY, TABLE, Cli, create, csv
from tests.servers import Server

pytestmark = pytest.mark.in_turn

KEYS = sum(int(line.split(",")[1]) for line in GOOD)

_HOP = frozenset({"connection", "transfer-encoding", "date", "server", "keep-alive"})


@dataclass
class Fault:
    """What the proxy answers to requests of these methods; empty `status` passes them on and cuts the body."""

    status: int = 0
    code: str = ""
    methods: tuple[str, ...] = ("GET", "PUT", "HEAD", "POST", "DELETE")
    hits: int = 0


@dataclass
class Proxy:
    """A server in front of the real one that gives wrong answers while `fault` is set."""

    port: int
    upstream: int
    fault: Fault | None = None
    paths: list[str] = field(default_factory=list)


@pytest.fixture
def proxy(s3_environment: Server) -> Iterator[Proxy]:
    upstream = int(s3_environment.endpoint_url.rpartition(":")[2].strip("/"))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            pass

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = state.fault if state.fault and self.command in state.fault.methods else None
            if fault and fault.status:
                fault.hits += 1
                text = f"<Error><Code>{fault.code}</Code><Message>no</Message></Error>".encode()
                self._reply(fault.status, {}, b"" if self.command == "HEAD" else text)
                return
            connection = http.client.HTTPConnection("127.0.0.1", upstream)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            data = answer.read()
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
            cut = fault is not None and "-file-" in self.path and len(data) > 10
            if fault and cut:
                fault.hits += 1
            self._reply(answer.status, headers, data, cut=cut)

        def _reply(self, status: int, headers: dict[str, str], data: bytes, *, cut: bool = False) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            if cut:
                self.close_connection = True

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _any  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state = Proxy(server.server_address[1], upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def cold(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    proxy: Proxy,
    bucket: str,
) -> Cli:
    """A store on an S3 server behind the proxy; January is cold. Retries do not wait."""
    for name in [name for name in os.environ if name.startswith("FROSTLINE_")]:
        monkeypatch.delenv(name)
    config = tmp_path / "s3.yaml"
    config.write_text(
        f"state_path: {tmp_path / 'home' / 'state'}\n"
        "disks:\n"
        f"  ssd: {{type: local, path: {tmp_path / 'home' / 'ssd'}}}\n"
        f"  s3: {{type: object_disk, url: 's3://{bucket}/p/', endpoint_url: 'http://127.0.0.1:{proxy.port}'}}\n"
        "policies:\n  hot_cold:\n    volumes:\n      - {name: hot, disks: [ssd]}\n      - {name: cold, disks: [s3]}\n"
    )
    monkeypatch.setenv("FROSTLINE_CONFIG", str(config))
    monkeypatch.setattr(Backoff, "pause_seconds", lambda self, failures, chance: 0.0)
    cli = Cli(tmp_path / "home", capsys)
    create(cli)
    cli.ok("insert", TABLE, csv(tmp_path / "good.csv", *GOOD))
    cli.ok("move", TABLE, "--partition", JANUARY, "--to-volume", "cold")
    return cli


FAULTS = [
    pytest.param(Fault(403, "AccessDenied"), (12,), id="403"),
    pytest.param(Fault(503, "SlowDown"), (5,), id="503"),
    pytest.param(Fault(404, "NoSuchBucket"), (10,), id="404"),
]


@pytest.mark.parametrize(("fault", "codes"), FAULTS)
def test_a_bucket_that_refuses(cold: Cli, proxy: Proxy, fault: Fault, codes: tuple[int, ...]) -> None:
    """Each verb says what the bucket said, with the code of its kind; afterwards everything is there."""
    parts = cold.parts()
    fault = Fault(fault.status, fault.code)
    proxy.fault = fault
    for command in (
        ("query", f"select sum(key) from {TABLE}"),
        ("table", "alter", TABLE, "--add-column", "more:int64"),
        ("gc", "s3"),
        ("restore", "s3"),
    ):
        answer = cold(*command)
        assert answer.code in codes, (command, answer)
        assert answer.err.strip(), command
    assert fault.hits
    proxy.fault = None
    assert cold.parts() == parts
    assert cold.rows() == len(GOOD)
    cold.is_sound()


@pytest.mark.parametrize(("fault", "codes"), FAULTS)
def test_a_bucket_that_refuses_writes(cold: Cli, proxy: Proxy, fault: Fault, codes: tuple[int, ...]) -> None:
    """A move to a bucket that can be read and not written fails, and the part stays where it is."""
    parts = cold.parts()
    proxy.fault = Fault(fault.status, fault.code, methods=("PUT", "POST"))
    answer = cold("move", TABLE, "--partition", FEBRUARY, "--to-volume", "cold")
    assert answer.code in (1, 3, *codes), answer
    assert answer.err.strip()
    proxy.fault = None
    assert cold.parts() == parts
    assert cold.rows() == len(GOOD)
    cold.ok("move", TABLE, "--partition", FEBRUARY, "--to-volume", "cold")
    assert cold.rows() == len(GOOD)
    cold.is_sound()


def test_a_truncated_body(cold: Cli, proxy: Proxy) -> None:
    """A body that ends early is never taken for the file."""
    fault = Fault(methods=("GET",))
    proxy.fault = fault
    answer = cold("move", TABLE, "--partition", JANUARY, "--to-volume", "hot")
    assert answer.code in (1, 3, 5), answer
    assert fault.hits
    query = cold("--json", "query", f"select sum(key) from {TABLE}")  # it may go on where the body ended
    assert query.code != 0 or query.document["rows"] == [[KEYS]], query
    proxy.fault = None
    assert cold.parts()[f"{JANUARY}_1_1_0"] == "s3"
    assert cold.rows() == len(GOOD)
    cold.is_sound()


def test_a_drop_while_the_bucket_refuses(cold: Cli, proxy: Proxy) -> None:
    """I2: the drop fails, yet nobody sees half a table, other tables can be used, and the next start finishes it."""
    cold.ok("table", "create", "demo.other", "--column", "key:int64", "--order-by", "key")
    proxy.fault = Fault(403, "AccessDenied", methods=("PUT", "POST", "DELETE"))
    cold.fails(12, "-y", "table", "drop", TABLE, says=("AccessDenied",))
    tables = cold.ok("--json", "table", "list").document["tables"]
    assert [table.get("table") or table.get("name") for table in tables] == ["demo.other"]
    cold.ok("query", "select count(*) from demo.other")
    proxy.fault = None
    cold.fails(10, "query", f"select count(*) from {TABLE}", says=(TABLE,))
    assert cold.ok("--json", "parts").document["parts"] == []
    cold.is_sound()
    create(cold)
