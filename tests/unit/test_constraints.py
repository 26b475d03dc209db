"""The versions for users, and what `make audit` says of them: a database of advisories on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests import constraints
from tests.servers import free_port


@contextmanager
def database(answer: bytes | None = None, **known: list[str]) -> Iterator[str]:
    """One that knows these advisories by package, or answers with these bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            names = [query["package"]["name"] for query in queries]
            results = [{"vulns": [{"id": one} for one in known[name]]} if name in known else {} for name in names]
            body = json.dumps({"results": results}).encode() if answer is None else answer
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1/querybatch"
        finally:
            server.shutdown()


def test_the_constraints_are_those_of_the_lock_file() -> None:
    """Every package that users install is there, and no tool of developers."""
    text = constraints.FILE.read_text()
    assert text == constraints.constraints()
    names = {pin.name for pin in constraints.locked(text)}
    assert {"boto3", "botocore", "duckdb", "pyarrow", "kazoo", "aiohttp", "pyspark", "watchdog"} <= names
    assert names.isdisjoint({"pytest", "mypy", "ruff", "ministack", "hypothesis"})


def test_a_package_with_a_version_for_each_python_has_both() -> None:
    pins = constraints.locked(
        "a-b==1 ; python_version < '3.12' \\\n    --hash=x\na_B==2 ; python_version >= '3.12' \\\n"
    )
    assert [(pin.name, pin.version, pin.marker) for pin in pins] == [
        ("a-b", "1", " ; python_version < '3.12'"),
        ("a-b", "2", " ; python_version >= '3.12'"),
    ]


def test_advisories_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with database(boto3=["GHSA-1"]) as url:
        monkeypatch.setenv("FROSTLINE_ADVISORIES_URL", url)
        assert constraints.main(["--advisories"]) == constraints.KNOWN
    out = capsys.readouterr().out
    assert "boto3 " in out
    assert "GHSA-1" in out
    assert "1 with known advisories" in out
    with database() as url:
        monkeypatch.setenv("FROSTLINE_ADVISORIES_URL", url)
        assert constraints.main(["--advisories"]) == 0


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"results": []}', b'{"results": null}', None])
def test_no_answer_is_no_clean_one(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with database(answer or b"") as url:
        where = url if answer is not None else f"http://127.0.0.1:{free_port()}/"
        monkeypatch.setenv("FROSTLINE_ADVISORIES_URL", where)
        assert constraints.main(["--advisories"]) == constraints.UNREACHABLE
    assert "did not answer" in capsys.readouterr().err
