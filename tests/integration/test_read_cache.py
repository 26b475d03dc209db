"""The read cache from the command line, over an S3 server: what queries ask for, and what the verbs say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import Home
from tests.integration.cached_homes import cached_home, gets
from tests.servers import Server
from tiering.config.reading import load
from tiering.engine.store import Store

ROWS = 2000
ALL = "SELECT count(*), sum(k) FROM d.t"
ANSWER = [[ROWS, ROWS * (ROWS - 1) // 2]]


@pytest.fixture
def asked() -> list[str]:
    """What is asked of the server."""
    return []


@pytest.fixture
def home(
    tmp_path: Path,
    asked: list[str],
    ministack: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Home]:
    """A machine whose table lies in a bucket, in two parts, with a cache of 10 MB."""
    with cached_home(tmp_path, ministack, capsys, monkeypatch, asked, max_bytes="10MB") as home:
        home.create()
        home.insert(*range(0, ROWS, 2))
        home.insert(*range(1, ROWS, 2))
        home.to_bucket()
        yield home


def kept(home: Home) -> list[Path]:
    return sorted((home.path / "state" / "read-cache").glob("*/*"))


def test_a_second_query_asks_the_bucket_for_nothing(home: Home, asked: list[str]) -> None:
    asked.clear()
    assert home.json("query", ALL)["rows"] == ANSWER
    assert gets(asked) > 0
    assert home.json("query", ALL)["rows"] == ANSWER
    assert home.json("query", "SELECT k FROM d.t WHERE k = 7")["rows"] == [[7]]
    assert gets(asked) == 0
    figures = home.json("cache", "stats")
    assert figures["files"] == len(kept(home)) > 0
    assert 0 < figures["bytes"] <= figures["max_bytes"] == 10_000_000
    assert figures["again_bytes"] == figures["bytes"]
    assert 0.5 < figures["hit_rate"] < 1
    assert home.json("status")["cache"] == figures
    assert f"{figures['hit_rate']:.0%} hits" in home("status")
    assert "read cache" in home("cache", "stats")


def test_kept_bytes_that_changed_are_read_again(home: Home, asked: list[str]) -> None:
    home("query", ALL)
    for path in kept(home):
        data = bytearray(path.read_bytes())
        for place in range(0, len(data), 64):
            data[place] ^= 1
        path.write_bytes(data)
    asked.clear()
    assert home.json("query", ALL)["rows"] == ANSWER
    assert gets(asked) > 0
    assert home.json("query", ALL)["rows"] == ANSWER
    assert gets(asked) == 0


def test_a_table_is_read_beforehand(home: Home, asked: list[str]) -> None:
    assert "would read" in home("warmup", "d.t", "--dry-run")
    assert kept(home) == []
    asked.clear()
    told = home.json("warmup", "d.t")
    assert (told["table"], told["files"], told["dry_run"]) == ("d.t", len(kept(home)), False)
    assert told["fetched_bytes"] == told["bytes"] > 0
    assert gets(asked) > 0
    assert home.json("query", ALL)["rows"] == ANSWER
    with Store.open(load(home.configuration)) as store:
        assert store.table("d.t").scan(filter=[("k", "<", 10)]).read_all().num_rows == 10
    assert home.json("warmup", "d.t")["fetched_bytes"] == 0
    assert gets(asked) == 0
    assert home.json("cache", "stats")["again_bytes"] > 0
    assert "in a bucket" in _said(home, "warmup", "d.t", "--partition", "no")
    home("warmup", "d.t", "--partition", "no", "--error-on-nothing", code=9)


def _said(home: Home, *arguments: str) -> str:
    home(*arguments)
    return home.error


def test_what_does_not_fit_is_refused_before_it_is_read(home: Home, asked: list[str]) -> None:
    home.configuration.write_text(home.configuration.read_text().replace("10MB", "1KB"))
    asked.clear()
    home("warmup", "d.t", code=8)
    assert "--partition" in home.error
    assert gets(asked) == 0
    assert home.json("query", ALL)["rows"] == ANSWER


def test_dropped_it_is_empty(home: Home, asked: list[str]) -> None:
    home("query", ALL)
    files = len(kept(home))
    assert home.json("cache", "drop", "--dry-run") == {**home.json("cache", "drop", "--dry-run"), "files": files}
    assert len(kept(home)) == files
    assert home.json("cache", "drop")["files"] == files
    assert kept(home) == []
    assert home.json("cache", "stats")["hit_rate"] is None
    asked.clear()
    assert home.json("query", ALL)["rows"] == ANSWER
    assert gets(asked) > 0


def test_without_one_the_verbs_say_how_to_have_one(home: Home) -> None:
    home.configuration.write_text(home.configuration.read_text().replace("10MB", "0"))
    assert home.json("query", ALL)["rows"] == ANSWER
    assert kept(home) == []
    assert home.json("status")["cache"] is None
    for arguments in (["warmup", "d.t"], ["cache", "stats"], ["cache", "drop"]):
        home(*arguments, code=2)
        assert "read_cache.max_bytes" in home.error


def test_another_place_can_be_chosen(home: Home, tmp_path: Path) -> None:
    text = home.configuration.read_text()
    home.configuration.write_text(text.replace("max_bytes: 10MB", f"max_bytes: 10MB\n  path: {tmp_path / 'fast'}"))
    home("query", ALL)
    assert kept(home) == []
    assert list((tmp_path / "fast").glob("once/*"))
