"""Files of web servers as sources of inserts and samples: with ranges and without, what breaks off, changes or is not
there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.command_line import Frostline
from tests.unit.tiering.insert.bucket_objects import OBJECTS, csv_text, everything
from tiering.insert.inputs import web_sources


class Web(ThreadingHTTPServer):
    """A server of files in memory."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files: dict[str, bytes] = {}
        self.version = 1
        self.ranges = self.lengths = True
        self.fails: list[int] = []
        """What the next requests are answered with instead; 0: half of the bytes, and no more."""
        self.changes_after = 0
        self.asked: list[str | None] = []

    def url(self, name: str, data: bytes) -> str:
        self.files[f"/{name}"] = data
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Answers(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        wanted, web = self.headers.get("Range"), self.server
        web.asked.append(wanted)
        data = web.files.get(self.path.partition("?")[0])
        failure = web.fails.pop(0) if web.fails else None
        if failure or data is None:
            self.send_error(failure or 404)
            return
        if web.changes_after and len(web.asked) > web.changes_after:
            web.version = 2
        ranged = wanted is not None and web.ranges
        self.send_response(206 if ranged else 200)
        self.send_header("ETag", f'"{web.version}"')
        if ranged and wanted is not None:
            first, last = wanted.removeprefix("bytes=").split("-")
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            data = data[int(first) : int(last) + 1]
        if web.lengths:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if failure == 0 else data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the library's name
        """Nothing on stderr."""


@pytest.fixture
def web() -> Iterator[Web]:
    server = Web()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    monkeypatch.setattr(web_sources.time, "sleep", lambda seconds: None)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return Frostline(capsys)


def make(frostline: Frostline, *like: str) -> None:
    columns = like or ("--column", "k:int64", "--column", "text:string")
    frostline("table", "create", "db.t", *columns, "--order-by", "k")


@pytest.mark.in_turn
@pytest.mark.parametrize(("ranges", "lengths"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("name", OBJECTS)
def test_every_format_is_a_sample_and_goes_in(
    frostline: Frostline, web: Web, name: str, ranges: bool, lengths: bool
) -> None:
    web.ranges, web.lengths = ranges, lengths
    url = web.url(f"deep/{name}", OBJECTS[name]())
    make(frostline, "--like", f"{url}?token=secret.json")
    assert "secret" not in frostline.error
    assert frostline.json("insert", "db.t", f"{url}?token=secret.json")["rows"] == 1000
    assert everything(frostline) == (1000, 499_500, "é999")
    assert frostline.json("insert", "db.t", url)["rows"] == 0


def test_a_range_that_breaks_off_is_asked_for_again(
    frostline: Frostline, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_sources, "_MOST_RANGE_BYTES", 4096)
    make(frostline)
    url = web.url("a.csv", csv_text())
    web.fails = [503]
    assert frostline.json("insert", "db.t", url)["rows"] == 1000
    assert web.asked[:2] == ["bytes=0-0", "bytes=0-0"]
    ranges = len(web.asked)
    web.asked.clear()
    read = web_sources.WebFile._range

    def breaking(self: web_sources.WebFile, start: int, stop: int) -> bytes:
        web.fails = [0] if start == 4096 else []
        return read(self, start, stop)

    monkeypatch.setattr(web_sources.WebFile, "_range", breaking)
    assert frostline.json("insert", "db.t", url)["rows"] == 0
    assert len(web.asked) == ranges  # one more, without the one that was answered with 503
    assert web.asked.count("bytes=4096-8191") == 2


def test_what_breaks_off_for_good_is_an_error_no_shorter_table(frostline: Frostline, web: Web) -> None:
    make(frostline)
    web.ranges = False
    url = web.url("a.csv", csv_text())
    web.fails = [0, 0]
    frostline("insert", "db.t", url, code=5)
    assert "broke off" in frostline.error
    assert everything(frostline)[0] == 0


def test_a_file_that_is_written_anew_meanwhile_is_an_error(
    frostline: Frostline, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(frostline)
    url = web.url("a.csv", csv_text())
    for after in (1, 2):  # its first range, and after the last
        web.version, web.changes_after = 1, after
        web.asked.clear()
        frostline("insert", "db.t", url, code=2)
        assert f"{url} was written again" in frostline.error
    assert everything(frostline)[0] == 0


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("status", "code", "problem"),
    [(404, 10, "404"), (403, 12, "403"), (500, 5, "500"), (400, 2, "400")],
)
def test_what_the_server_refuses_is_said(frostline: Frostline, web: Web, status: int, code: int, problem: str) -> None:
    make(frostline)
    url = web.url("a.csv", csv_text())
    web.fails = [status] * 10
    frostline("insert", "db.t", f"{url}?signature=secret", code=code)
    assert f"{url}: the server says {problem}" in frostline.error
    assert "secret" not in frostline.error


@pytest.mark.parametrize(
    ("url", "code", "problem"),
    [
        ("https://me:secret@host/a.csv", 2, "names no file"),
        ("http:///a.csv", 2, "names no file"),
        ("http://127.0.0.1:1/a.csv", 5, "cannot be read"),
        ("http://127.0.0.1:1/data?x=a.csv", 2, "the format is not clear"),
    ],
)
def test_what_is_no_file_of_a_server(frostline: Frostline, url: str, code: int, problem: str) -> None:
    make(frostline)
    frostline("insert", "db.t", url, code=code)
    assert problem in frostline.error
    assert "secret" not in frostline.error
