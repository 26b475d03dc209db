"""I16: a disk that is not there is no empty disk, and another one in its place is not taken for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from disks.identity import put_object
from disks.stores.directory import DirectoryStore
from oplog.errors import DiskUnreachable
from oplog.kinds import Inserted
from tests.command_line import Frostline
from tests.hostile.identities import COUNT, count, files_below, refused
from tests.hostile.identities import store as store
from tests.servers import Server
from tiering.config.reading import load
from tiering.engine.store import Store


class TestNotMounted:
    @pytest.fixture
    def away(self, home: Path, store: Frostline, request: pytest.FixtureRequest) -> Path:
        away = home / "ssd.away"
        (home / "ssd").rename(away)
        return away

    @pytest.mark.parametrize("mount_point", [True, False])
    def test_is_not_an_empty_disk(self, home: Path, store: Frostline, away: Path, mount_point: bool) -> None:
        if mount_point:
            (home / "ssd").mkdir()
        refused(store, 5)
        store("tick", code=5)
        store("daemon", "run", "--once", code=5)
        assert "not done: disk ssd is missing" in store.error
        assert files_below(home / "ssd") == []
        (home / "ssd").rmdir() if mount_point else None
        away.rename(home / "ssd")
        assert count(store) == 300
        assert store.json("fsck")["ok"]

    def test_a_gap_is_answered_when_it_is_asked_for_and_is_told(self, store: Frostline, away: Path) -> None:
        document = store.json("query", COUNT, "--partial")
        assert document["rows"] == [[100]]
        assert [(item["disk"], item["kind"]) for item in document["broken_disks"]] == [("ssd", "missing")]
        assert "ssd" in store.error
        assert {part["disk"] for part in store.json("parts", "--partial")["parts"]} == {"s3"}
        states = {disk["name"]: disk["broken"] for disk in store.json("disks")["disks"]}
        assert states["s3"] is False
        assert "missing" in states["ssd"]

    def test_a_disk_that_is_gone_is_given_up(self, home: Path, store: Frostline, away: Path) -> None:
        store("disk", "adopt", "ssd", "-y", code=13)
        store("disk", "replace", "ssd", code=13)
        preview = store.json("disk", "replace", "ssd", "-n")
        assert [(held["table"], held["parts"], held["rows"]) for held in preview["known"]["tables"]] == [
            ("d.t", 2, 200)
        ]
        refused(store, 5)
        store("disk", "replace", "ssd", "-y")
        assert count(store) == 100
        assert files_below(home / "ssd") == []
        store("insert", "d.t", "rows.csv")
        assert count(store) == 300
        assert store.json("fsck")["ok"]

    def test_a_new_state_directory_takes_the_disks_as_they_are(self, home: Path, store: Frostline, away: Path) -> None:
        away.rename(home / "ssd")
        shutil.rmtree(home / "state")
        assert count(store) == 300
        (home / "ssd").rename(away)
        refused(store, 5)


def test_a_bucket_that_is_gone_is_given_up(home: Path, store: Frostline) -> None:
    """What this machine kept of the bucket is not taken for what lies there, before and after."""
    store("disk", "replace", "s3", "-y", code=13)
    shutil.rmtree(home / "bucket")
    store("query", COUNT, code=5)
    preview = store.json("disk", "replace", "s3", "-n")
    assert [(held["table"], held["parts"]) for held in preview["known"]["tables"]] == [("d.t", 1)]
    store("query", COUNT, code=5)
    store("disk", "replace", "s3", "-y")
    assert count(store) == 200
    store("move", "d.t", "--partition", "202602", "--to-disk", "s3")
    assert count(store) == 200
    assert store.json("fsck", "--read-data")["ok"]


def test_what_was_written_since_the_last_look_is_given_up_openly(home: Path, store: Frostline) -> None:
    """Nobody has opened the store since the last move and the last insert: the bucket is read from what is kept of it;
    of an SSD nobody can know, and that is said."""
    store("move", "d.t", "--partition", "202602", "--to-disk", "s3")
    shutil.rmtree(home / "bucket")
    known = store.json("disk", "replace", "s3", "-n")["known"]
    assert [(held["table"], held["parts"], held["rows"]) for held in known["tables"]] == [("d.t", 2, 200)]
    assert known["counted"]
    store("disk", "replace", "s3", code=13)
    assert "Give up 2 parts of disk s3" in store.error
    store("disk", "replace", "s3", "-y")
    assert count(store) == 100

    Path("more.csv").write_text("ts,n\n2026-05-01T00:00:00Z,1000\n")
    store("insert", "d.t", "more.csv")
    (home / "ssd").rename(home / "ssd.away")
    known = store.json("disk", "replace", "ssd", "-n")["known"]
    assert [(held["table"], held["parts"]) for held in known["tables"]] == [("d.t", 1)]
    assert not known["counted"]
    assert "written to since" in store("disk", "replace", "ssd", "-n")
    store("disk", "replace", "ssd", code=13)
    assert "1 part of disk ssd, and data" in store.error


class TestInsertsAndTheColdDisk:
    """Hot space is there in each of these. Whether an insert is a repetition, only the parts on all disks can say."""

    @pytest.mark.in_turn
    def test_an_outage_stops_no_insert(
        self, frostline: Frostline, bucket: str, ministack: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/p/")
        Path("one.csv").write_text("n\n1\n2\n")
        Path("two.csv").write_text("n\n3\n")
        frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
        frostline("insert", "d.t", "one.csv")
        frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        assert frostline.json("insert", "d.t", "two.csv")["rows"] == 1
        repeated = frostline.json("insert", "d.t", "one.csv")
        assert (repeated["rows"], repeated["duplicates"]) == (0, 1)
        monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.endpoint_url)
        assert count(frostline) == 3

    def test_an_unmounted_directory_is_an_outage(self, home: Path, store: Frostline) -> None:
        (home / "bucket").rename(home / "away")
        repeated = store.json("insert", "d.t", "rows.csv")
        assert (repeated["duplicates"], repeated["unreachable"]) == (3, ["s3"])
        Path("more.csv").write_text("ts,n\n2026-02-01T00:00:00Z,300\n")
        store("insert", "d.t", "more.csv")
        store("query", "select sum(n) from d.t", code=5)
        store("move", "d.t", "--partition", "202602", "--to-disk", "s3", code=5)
        store("restore", "s3", "--apply", "-y", code=13)
        store("fsck", "--repair", code=5)  # leaves the table that says what was there
        assert store.json("insert", "d.t", "rows.csv")["duplicates"] == 3
        assert files_below(home / "bucket") == []
        (home / "away").rename(home / "bucket")
        assert count(store) == 301
        assert store.json("fsck")["ok"]

    def test_a_missing_or_wrong_one_does(self, home: Path, store: Frostline) -> None:
        shutil.rmtree(home / "state" / "disks")  # with it, what is known of the parts there
        (home / "bucket").rename(home / "away")
        store("insert", "d.t", "rows.csv", code=5)
        shutil.copytree(home / "away", home / "bucket")
        (home / "bucket" / "store" / ".frostline-disk").unlink()
        put_object(DirectoryStore(home / "bucket" / "store"))
        store("insert", "d.t", "rows.csv", code=13)
        shutil.rmtree(home / "bucket")
        (home / "away").rename(home / "bucket")
        assert store.json("insert", "d.t", "rows.csv")["duplicates"] == 3
        assert count(store) == 300


def test_parts_that_are_gone_are_missed(home: Path, store: Frostline) -> None:
    (part,) = (home / "ssd" / "store").glob("*/*/202602_*")
    part.rename(home / "part")
    store("query", COUNT, code=5)
    assert "1 of 2 of d.t" in store.error
    assert "1 of 2 of d.t" in store.json("fsck", code=4)["problems"][0]["what"]
    (home / "part").rename(part)
    assert count(store) == 300
    part.rename(home / "part")
    store("query", COUNT, code=5)
    store("disk", "adopt", "ssd", "-y")
    assert count(store) == 200


@pytest.mark.parametrize("merged_before", [False, True], ids=["more parts", "as many parts"])
def test_an_older_copy_of_a_disk_is_missed(home: Path, frostline: Frostline, merged_before: bool) -> None:
    """A machine's disk goes back to what it was, and the state does not: rows were gone with exit 0, where merges had
    left no more parts than the copy has."""

    def insert(first: int) -> None:
        Path("rows.csv").write_text("n\n" + "\n".join(str(first + number) for number in range(100)))
        frostline("insert", "d.t", "rows.csv")

    frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
    for first in (0, 100):
        insert(first)
    if merged_before:
        frostline("merge", "d.t", "--final")
    assert count(frostline) == 200
    shutil.copytree(home / "ssd", home / "copy")
    insert(200)
    frostline("merge", "d.t", "--final")
    assert count(frostline) == 300
    (home / "ssd").rename(home / "ssd.newer")
    (home / "copy").rename(home / "ssd")
    for verb in (("query", COUNT), ("merge", "d.t", "--final"), ("tick",)):
        frostline(*verb, code=5)
        assert "older copy" in frostline.error
    found = frostline.json("fsck", code=4)["problems"]
    assert [(one["invariant"], one["disk"]) for one in found] == [("I16", "ssd")]
    assert frostline.json("--partial", "query", COUNT)["rows"] == [[0]]
    shutil.rmtree(home / "ssd")
    (home / "ssd.newer").rename(home / "ssd")
    assert count(frostline) == 300


def test_a_disk_that_goes_while_a_store_is_open(home: Path, store: Frostline) -> None:
    with Store.open(load()) as opened:
        (home / "ssd").rename(home / "ssd.away")
        with pytest.raises(DiskUnreachable):
            opened.disk("ssd").transaction(Inserted())
        assert not (home / "ssd").exists()
        opened.refresh()
        assert [fault.kind for fault in opened.faults()] == ["missing"]
        with pytest.raises(DiskUnreachable):
            opened.query(COUNT)
        (home / "ssd.away").rename(home / "ssd")
        opened.refresh()
        assert opened.query(COUNT).read_all().to_pylist()[0].popitem()[1] == 300
