"""Who goes by what was seen of a bucket a while ago, what that costs, and what it never costs. Guards I1, I15, I18."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from disks.effects import set_hook
from disks.object_disk.cache import TableCache
from disks.object_disk.disk import ObjectDisk
from tests.homes import Home
from tests.meddling import Exchange, meddling
from tests.servers import Server
from tiering.config.reading import load
from tiering.daemon.daemon import _Daemon
from tiering.engine.store import Store

LONG_SECONDS = 100_000


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that a bucket is asked for what others committed."""
    found: list[str] = []
    catch_up = TableCache.catch_up

    def counted(self: TableCache, *arguments: object, **options: object) -> None:
        found.append("look")
        catch_up(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(TableCache, "catch_up", counted)
    return found


@pytest.fixture
def one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    """A machine with a table, which has just looked."""
    home = Home(tmp_path, "one", capsys, look_seconds=LONG_SECONDS)
    home.create()
    return home


@pytest.fixture
def two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, "two", capsys, look_seconds=LONG_SECONDS)


def opened(home: Home) -> Store:
    return Store.open(load(home.configuration))


def daemon_of(store: Store) -> _Daemon:
    return _Daemon(store, store.context.config.daemon, threading.Event())


@pytest.fixture
def server(ministack: Server) -> Iterator[tuple[Server, list[str]]]:
    """An S3 server, and what is asked of it."""
    asked: list[str] = []

    def note(exchange: Exchange) -> None:
        asked.append(f"{exchange.method} {exchange.path}")

    with meddling(ministack, answer=note) as proxy:
        yield proxy, asked


def test_the_requests_of_inserts_and_idle_passes(
    tmp_path: Path,
    server: tuple[Server, list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By default, on S3: none for an insert to the SSD, and of passes that find nothing the first one alone looks."""
    proxy, asked = server
    for name, value in proxy.environment().items():
        monkeypatch.setenv(name, value)
    home = Home(tmp_path, "one", capsys)
    bucket = f"s3://{proxy.new_bucket()}/store/"
    home.configuration.write_text(home.configuration.read_text().replace(f"{(tmp_path / 's3').as_uri()}/", bucket))
    home.create()
    asked.clear()
    for key in (1, 2, 2):
        home.insert(key)
    assert asked == []
    with opened(home) as store:
        daemon = daemon_of(store)
        asked.clear()
        for _ in range(5):
            daemon.tick()
        daemon.end()
    assert [request for request in asked if not request.startswith("HEAD ")] == []
    assert len(asked) <= 1  # what the time is
    assert home.keys() == [1, 2]


def test_an_insert_looks_when_nobody_has_lately(one: Home, looks: list[str]) -> None:
    one.insert(1)
    assert looks == []
    (one.path / "state" / "disks" / "s3" / "looked").unlink()
    one.insert(2)
    assert looks == ["look"]
    one.insert(3)
    assert looks == ["look"]
    one.configuration.write_text(one.configuration.read_text().replace(f"look_seconds: {LONG_SECONDS}", ""))
    one.insert(4)
    assert len(looks) == 3  # when it opens, and before it begins
    assert one.keys() == [1, 2, 3, 4]


def test_rows_that_went_into_a_dropped_table_stay(one: Home, two: Home) -> None:
    """Nobody has told who inserted them that the table was gone: a drop does not take them, and says where they are."""
    one.insert(1)
    one.keys()
    two("table", "drop", "d.t")
    one.insert(2)
    for _ in range(2):
        assert one.tables() == []
        assert "its parts on ssd are hidden" in one.error
        assert len(one.on_ssd()) == 1
    two("undo", "s3", str(two.head()))
    assert one.keys() == [1, 2]
    two("table", "drop", "d.t")
    assert one.tables() == []  # a look has seen all that went in
    assert one.on_ssd() == set()


def test_what_went_in_before_a_look_goes_with_the_table(one: Home, two: Home) -> None:
    one.insert(1)
    assert one.keys() == [1]
    two("table", "drop", "d.t")
    assert one.tables() == []
    assert one.on_ssd() == set()


def test_a_table_that_others_insert_into_is_looked_at(one: Home, two: Home) -> None:
    one.insert(1)
    two.insert(2)
    assert one.keys() == [1]
    two("table", "drop", "d.t")
    one("insert", "d.t", str(one.path / "rows.csv"), code=10)
    assert "No such table: d.t" in one.error


def test_a_table_that_was_made_elsewhere_is_found(one: Home, two: Home) -> None:
    one.insert(1)
    two.create("d.other")
    one.insert(2, table="d.other")
    assert one.keys("d.other") == [2]


def go_to_the_bucket(home: Home) -> None:
    """What is inserted from now on."""
    home("table", "alter", "d.t", "--add-column", "ts:timestamp")
    home("table", "alter", "d.t", "--ttl", "1d on ts to volume cold_s3")


def insert_cold(home: Home, key: int) -> int:
    """A row that goes to the bucket at once; how many parts were there already."""
    rows = home.path / "cold.csv"
    rows.write_text(f"k,ts\n{key},2020-01-01T00:00:00Z\n")
    duplicates: int = home.json("insert", "d.t", str(rows))["duplicates"]
    return duplicates


def test_an_insert_that_died_after_its_commit_counts_once(one: Home) -> None:
    """It went to the bucket, and this machine did not get to note it."""
    go_to_the_bucket(one)
    committed: list[object] = []

    def die(when: str, name: str, arguments: tuple[object, ...]) -> None:
        if when == "after" and name == "store.put" and "operations/" in str(arguments):
            committed.append(arguments)
        elif committed:
            raise OSError("killed")

    set_hook(die)
    try:
        with pytest.raises(AssertionError, match="exit"):
            insert_cold(one, 1)
    finally:
        set_hook(None)
    assert committed
    assert insert_cold(one, 1) == 1
    assert one.keys() == [1]


def test_what_goes_to_the_bucket_is_compared_with_what_is_there(one: Home, two: Home) -> None:
    go_to_the_bucket(one)
    assert one.keys() == []
    insert_cold(two, 1)
    assert insert_cold(one, 1) == 1
    assert one.keys() == [1]


def test_a_pass_looks_before_it_acts(one: Home, two: Home, looks: list[str]) -> None:
    """Nothing is deleted by a rule that another machine has taken back."""
    one("table", "alter", "d.t", "--add-column", "ts:timestamp")
    rows = one.path / "old.csv"
    rows.write_text("k,ts\n1,2020-01-01T00:00:00Z\n")
    one("insert", "d.t", str(rows))
    one("table", "alter", "d.t", "--ttl", "1d on ts delete")
    with opened(one) as store:
        store.believe_clock()
        daemon = daemon_of(store)
        two("table", "alter", "d.t", "--ttl", "")
        for _ in range(2):  # the second one writes the new definition to the SSD
            daemon.tick()
        looks.clear()
        daemon.tick()
        daemon.end()
        assert looks == []
    assert one.keys() == [1]


def test_a_state_from_a_copy_does_not_count(one: Home, looks: list[str]) -> None:
    state, copy = one.path / "state", one.path / "copy"
    one.insert(1)
    shutil.copytree(state, copy)
    one.insert(2)
    one.to_bucket()
    shutil.rmtree(state)
    copy.rename(state)
    looks.clear()
    one.insert(3)
    assert looks
    assert one.keys() == [1, 2, 3]


def test_a_commit_ends_it(one: Home) -> None:
    with opened(one) as store:
        disk = store.disk("s3")
        assert isinstance(disk, ObjectDisk)
        assert disk.cache.looked_within(LONG_SECONDS)
        disk.fence("test")
        assert not disk.cache.looked_within(LONG_SECONDS)
        disk.refresh()
        assert disk.cache.looked_within(LONG_SECONDS)
        assert not disk.cache.looked_within(0)
