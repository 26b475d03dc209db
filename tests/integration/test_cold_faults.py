"""Requests for ranges that go wrong under a query of parts in a bucket: the right answer or a clear error, never other
rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.homes import Home
from tests.meddling import Exchange, meddling
from tests.servers import Server
from tiering.query.sql import cold_reads

ROWS, PARTS = 60_000, 3
STATEMENTS = {
    "all": "SELECT count(*), sum(k), sum(a), max(b) FROM d.t",
    "by the sort key": "SELECT count(*), sum(a), max(b) FROM d.t WHERE k BETWEEN 1000 AND 31000",
    "by another column": "SELECT count(*), sum(k), max(b) FROM d.t WHERE a < 400000000000",
    "some rows": "SELECT k, a, b FROM d.t LIMIT 30000",
}
Around = Callable[[Exchange, Callable[[], None]], None]


class Faults:
    """What happens to the answers to reads of parts, in the order in which they come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.change: Callable[[int, Exchange, Callable[[], None]], None] | None = None
        self.reads = 0

    def around(self, exchange: Exchange, forward: Callable[[], None]) -> None:
        if self.change is None or exchange.method != "GET" or "-file-" not in exchange.path:
            forward()
            return
        with self._lock:
            self.reads += 1
            number = self.reads
        self.change(number, exchange, forward)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def home(
    tmp_path: Path,
    ministack: Server,
    faults: Faults,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Home]:
    with meddling(ministack, around=faults.around) as proxy:
        for name, value in proxy.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(cold_reads, "_FOOTER_BYTES", 0)
        home = Home(tmp_path, "one", capsys)
        document = yaml.safe_load(home.configuration.read_text())
        document["disks"]["s3"].update(url=f"s3://{proxy.new_bucket()}/store/", look_seconds=100_000)
        home.configuration.write_text(yaml.safe_dump(document))
        chance = np.random.default_rng(7)
        a, b = np.sort(chance.integers(0, 1 << 40, ROWS)), chance.integers(0, 1 << 40, ROWS)
        rows = pa.table({"k": np.arange(ROWS), "a": a, "b": [f"{number:x}" for number in b]})
        pq.write_table(rows, tmp_path / "rows.parquet")
        home(
            "table",
            "create",
            "d.t",
            "--like",
            str(tmp_path / "rows.parquet"),
            "--order-by",
            "k",
            "--setting",
            "row_group_rows=5000",
        )
        for start in range(0, ROWS, ROWS // PARTS):
            pq.write_table(rows.slice(start, ROWS // PARTS), tmp_path / "some.parquet")
            home("insert", "d.t", str(tmp_path / "some.parquet"))
        home.to_bucket()
        yield home


def broken(number: int, exchange: Exchange, forward: Callable[[], None]) -> None:
    """The connection ends within the body."""
    forward()
    exchange.cut = len(exchange.body) // 2 if number % 2 else None


def cut(number: int, exchange: Exchange, forward: Callable[[], None]) -> None:
    """Less than was asked for, with a length that fits it."""
    forward()
    exchange.body = exchange.body[: len(exchange.body) // 2] if number == 2 else exchange.body


def flipped(number: int, exchange: Exchange, forward: Callable[[], None]) -> None:
    forward()
    middle = len(exchange.body) // 2
    if number == 1:
        exchange.body = exchange.body[:middle] + bytes((exchange.body[middle] ^ 4,)) + exchange.body[middle + 1 :]


def always_flipped(number: int, exchange: Exchange, forward: Callable[[], None]) -> None:
    flipped(1, exchange, forward)


def refused(number: int, exchange: Exchange, forward: Callable[[], None]) -> None:
    """503 in the middle."""
    if number in (2, 3):
        exchange.status, exchange.headers = 503, {"content-type": "application/xml"}
        exchange.body = b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>"
    else:
        forward()


def another_range(number: int, exchange: Exchange, forward: Callable[[], None]) -> None:
    """Bytes that are not at the place that was asked for."""
    forward()
    exchange.body = exchange.body[1:] + exchange.body[:1] if number == 2 else exchange.body


def replaced(number: int, exchange: Exchange, forward: Callable[[], None]) -> None:
    """Another object of the same length is there since the statement was planned."""
    forward()
    exchange.body = bytes(len(exchange.body))
    exchange.headers["etag"] = '"0123456789abcdef0123456789abcdef"'


def gone(number: int, exchange: Exchange, forward: Callable[[], None]) -> None:
    if number == 1:
        forward()
    else:
        exchange.status, exchange.headers = 404, {"content-type": "application/xml"}
        exchange.body = b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"


class Late:
    """The first answer comes after the second, where there is one at the same time."""

    def __init__(self) -> None:
        self._second = threading.Event()

    def __call__(self, number: int, exchange: Exchange, forward: Callable[[], None]) -> None:
        forward()
        if number == 1:
            self._second.wait(0.3)
        else:
            self._second.set()


MENDED = {"broken": broken, "cut": cut, "flipped": flipped, "refused": refused, "another range": another_range}


def test_what_goes_wrong_once_is_asked_again(home: Home, faults: Faults) -> None:
    for statement, text in STATEMENTS.items():
        faults.change = None
        expected = home.json("query", text)["rows"]
        for name, change in [*MENDED.items(), ("late", Late())]:
            faults.change, faults.reads = change, 0
            assert home.json("query", text)["rows"] == expected, (statement, name)
            assert faults.reads > 0


@pytest.mark.parametrize("change", [always_flipped, replaced, gone], ids=lambda change: change.__name__)
def test_what_stays_wrong_is_an_error(home: Home, faults: Faults, change: Any) -> None:
    for statement, text in STATEMENTS.items():
        faults.change, faults.reads = change, 0
        home("query", text, code=1)
        assert faults.reads > 0, statement
        assert "part all_" in home.error, statement
        assert "Traceback" not in home.error, statement
    faults.change = None
    assert home.json("query", STATEMENTS["all"])["row_count"]
