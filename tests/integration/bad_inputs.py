"""The command line with an input that is wrong: its answer, and that nothing changed."""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from disks.stores.wrappers.retry import Backoff
from tests.servers import Server
from tiering.cli.main import run

TABLE = "demo.events"
JANUARY, FEBRUARY = "202601", "202602"
HEADER = "ts,key,text"
GOOD = [f"2026-{month:02}-0{day}T00:00:00Z,{month * 100 + day},row {day}" for month in (1, 2) for day in (1, 2, 3, 4)]


@dataclass(slots=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err.splitlines()[-1])["error"]


@dataclass(slots=True)
class Cli:
    """The command line on one store."""

    home: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Answer:
        self.capture.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = self.capture.readouterr()
        assert "Traceback" not in out + err, out + err
        return Answer(code, out, err)

    def ok(self, *arguments: str | Path) -> Answer:
        answer = self(*arguments)
        assert answer.code == 0, answer
        return answer

    def fails(self, code: int, *arguments: str | Path, says: tuple[str, ...]) -> Answer:
        """The command fails with this code, and its error contains these words; the same as JSON."""
        answer = self(*arguments)
        assert answer.code == code, answer
        for word in says:
            assert word in answer.err, answer.err
        return answer

    def rows(self) -> int:
        """How many rows a query sees, in all tiers."""
        rows = self.ok("--json", "query", f"select count(*), count(distinct key) from {TABLE}").document["rows"]
        assert rows[0][0] == rows[0][1], "a row is there twice"
        return int(rows[0][0])

    def parts(self) -> dict[str, str]:
        return {part["part"]: part["disk"] for part in self.ok("--json", "parts", TABLE).document["parts"]}

    def is_sound(self) -> None:
        answer = self("--json", "fsck", "--read-data")
        assert (answer.code, answer.document["problems"]) == (0, []), answer


def create(cli: Cli) -> None:
    cli.ok(
        *("table", "create", TABLE, "--column", "ts:timestamp[us, UTC]", "--column", "key:int64"),
        *("--column", "text:string", "--order-by", "key", "--partition-by", "month(ts)"),
    )


def csv(path: Path, *lines: str, header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A store with January in the bucket and February on the SSD."""
    for name in [name for name in os.environ if name.startswith("FROSTLINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    cli = Cli(tmp_path / "home", capsys)
    create(cli)
    cli.ok("insert", TABLE, csv(tmp_path / "good.csv", *GOOD))
    cli.ok("move", TABLE, "--partition", JANUARY, "--to-volume", "cold")
    return cli


# A bucket that misbehaves


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


_HOP = frozenset({"connection", "transfer-encoding", "date", "server", "keep-alive"})


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
