"""I16: a disk is what its id says, not where it lies. What was done, and what is answered:

| what was done | what used to happen | what is answered |
|---|---|---|
| the SSD is not mounted | an answer without its rows, fsck clean, `table.json` below its mount point | exit 5, fsck 4 |
| another SSD is mounted there | its rows, or none | exit 13 |
| a disk with parts is taken out of the configuration | an answer without its rows | exit 13 |
| a mistyped bucket URL | `count(*)` 0, and a log begun there by a reading verb | exit 5, the place stays empty |
| two endpoints of one bucket | moves delete the only copy | exit 13 |
| parts are gone from a disk that is there | an answer without their rows | exit 5 |
| a mistyped URL of a bucket without an id | an answer without its rows | exit 5, or 13 where another bucket is |
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from disks.identity import put_object, read_file, read_object, write_file
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import StoreCapabilities
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import DiskUnreachable, Locked, OutcomeUnknown
from oplog.kinds import Inserted
from tests.command_line import Frostline
from tests.crash.harness import Failpoints, hooked
from tests.servers import Server
from tiering.config.reading import load
from tiering.engine.store import Store

COUNT = "select count(*) from d.t"


class Unconditional(WrappedStore):
    """A store that overwrites: conditional writes are a look followed by a put."""

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(conditional_put=False, checks_sha256=True)


def files_below(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*")) if directory.exists() else []


def count(frostline: Frostline, *more: str) -> int:
    return int(frostline.json("query", COUNT, *more)["rows"][0][0])


@pytest.fixture
def store(frostline: Frostline, home: Path) -> Frostline:
    """300 rows in three partitions: one is in the bucket, two are on the SSD."""
    Path("rows.csv").write_text("ts,n\n" + "".join(f"2026-0{1 + n % 3}-01T00:00:00Z,{n}\n" for n in range(300)))
    frostline(
        *("table", "create", "d.t", "--column", "ts:timestamp[us, UTC]", "--column", "n:int64"),
        *("--order-by", "n", "--partition-by", "month(ts)"),
    )
    frostline("insert", "d.t", "rows.csv")
    frostline("move", "d.t", "--partition", "202601", "--to-disk", "s3")
    assert count(frostline) == 300
    return frostline


def refused(frostline: Frostline, code: int) -> None:
    """Nothing of the table is answered or changed; what must work, works."""
    for verb in (
        ("query", COUNT),
        ("parts",),
        ("du",),
        ("cost",),
        ("insert", "d.t", "rows.csv"),
        ("merge", "d.t", "--final"),
        ("move", "d.t", "--partition", "202602", "--to-disk", "s3"),
        ("table", "drop", "d.t", "-y"),
        ("table", "alter", "d.t", "--add-column", "more:int64"),
    ):
        frostline(*verb, code=code)
    assert not frostline.json("fsck", code=4)["ok"]
    frostline("status")
    frostline("disks")


class TestWithoutItsId:
    """A disk was copied by `cp -a ssd/*`, which leaves `.frostline` out."""

    @pytest.fixture
    def copied(self, home: Path, store: Frostline) -> Frostline:
        shutil.copytree(home / "ssd" / ".frostline", home / "left out")
        shutil.rmtree(home / "ssd" / ".frostline")
        return store

    def test_it_is_adopted(self, home: Path, copied: Frostline) -> None:
        """With a new id: the one that it had is given up."""
        refused(copied, 5)
        copied("disk", "replace", "ssd", "-y", code=13)
        assert "'frostline disk adopt ssd'" in copied.error
        copied("disk", "adopt", "ssd", "-y")
        assert count(copied) == 300
        copied("partition", "drop", "d.t", "202602", "-y")
        assert read_file(home / "ssd" / ".frostline") != read_file(home / "left out")
        assert count(copied) == 200
        assert copied.json("fsck")["ok"]
        shutil.rmtree(home / "ssd" / ".frostline")
        (home / "left out").rename(home / "ssd" / ".frostline")
        copied("query", COUNT, code=13)

    def test_an_older_one_brings_nothing_back(self, home: Path, copied: Frostline) -> None:
        """It has no stamps that tell its age: its parts are compared all the same."""
        copied("disk", "adopt", "ssd", "-y")
        shutil.copytree(home / "ssd", home.with_name("older"))
        copied("move", "d.t", "--partition", "202602", "--to-disk", "s3")
        copied("partition", "drop", "d.t", "202602", "-y")
        assert count(copied) == 200
        shutil.rmtree(home / "ssd")
        shutil.copytree(home.with_name("older"), home / "ssd", ignore=shutil.ignore_patterns(".frostline"))
        copied("query", COUNT, code=5)
        copied("disk", "adopt", "ssd", "-y")
        assert count(copied) == 200

    def test_an_id_that_cannot_be_read_is_removed(self, home: Path, store: Frostline) -> None:
        own = home / "ssd" / ".frostline" / "disk.json"
        own.write_text("?")
        store("disk", "adopt", "ssd", "-y", code=1)
        assert "remove it" in store.error
        own.unlink()
        store("disk", "adopt", "ssd", "-y")
        assert count(store) == 300

    def test_files_of_somebody_else_are_no_disk(self, home: Path, store: Frostline) -> None:
        """Each verb says what to do, and none sends to the other."""
        shutil.rmtree(home / "ssd")
        (home / "ssd").mkdir()
        (home / "ssd" / "notes.txt").write_text("mine")
        store("disk", "adopt", "ssd", "-y", code=13)
        assert "no tables" in store.error
        store("disk", "replace", "ssd", "-y", code=13)
        assert "move them elsewhere" in store.error
        (home / "ssd" / "notes.txt").unlink()
        store("disk", "replace", "ssd", "-y")
        assert count(store) == 100

    def test_a_bucket_that_lost_its_id(self, home: Path, store: Frostline) -> None:
        (home / "bucket" / "store" / ".frostline-disk").unlink()
        shutil.rmtree(home / "state" / "disks")
        store("query", COUNT, code=5)
        store("disk", "replace", "s3", "-y", code=13)
        store("disk", "adopt", "s3", "-y")
        assert count(store) == 300


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
    assert "Give up 2 parts of disk s3 for good?" in store.error
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
    assert "Give up 1 part of disk ssd, and data written since, for good?" in store.error


def test_fsck_names_an_id_that_is_not_what_it_was(home: Path, store: Frostline) -> None:
    """Queries go by what is kept of the bucket; whoever knows nothing of it would not find the disk, or another one."""
    (place,) = (home / "bucket").rglob(".frostline-disk")
    written = place.read_bytes()
    another = written.replace(written[-38:-2], b"00000000-0000-4000-8000-000000000000")
    for data in (b"[" * 200_000, b"", another, None):
        place.unlink() if data is None else place.write_bytes(data)
        (problem,) = store.json("fsck", code=4)["problems"]
        assert (problem["invariant"], problem["disk"], problem["object"]) == ("I16", "s3", ".frostline-disk")
        assert count(store) == 300
    place.write_bytes(written)
    assert store.json("fsck")["ok"]


def test_another_disk_at_the_place(home: Path, store: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROSTLINE_HOME", str(home.with_name("other")))
    store("table", "create", "e.t", "--column", "n:int64", "--order-by", "n")
    monkeypatch.setenv("FROSTLINE_HOME", str(home))
    (home / "ssd").rename(home / "ssd.away")
    shutil.copytree(home.with_name("other") / "ssd", home / "ssd")
    before = files_below(home / "ssd")
    refused(store, 13)
    assert files_below(home / "ssd") == before
    store("disk", "replace", "ssd", "-y", code=13)
    store("disk", "adopt", "ssd", "-y")
    assert count(store) == 100


def test_a_copy_of_a_disk_is_not_a_second_disk(home: Path, store: Frostline) -> None:
    shutil.copytree(home / "ssd", home / "copy")
    path = Path("frostline.yaml")
    path.write_text(
        f"disks:\n  ssd: {{type: local, path: {home}/ssd}}\n  copy: {{type: local, path: {home}/copy}}\n"
        f"  s3: {{type: object_disk, url: 'file://{home}/bucket/store/'}}\n"
        "policies: {hot_cold: {volumes: [{name: hot, disks: [ssd, copy]}, {name: cold, disks: [s3]}]}}\n"
    )
    refused(store, 13)
    path.unlink()
    assert count(store) == 300


def test_a_disk_that_is_not_configured_any_more(home: Path, store: Frostline) -> None:
    path = Path("frostline.yaml")
    path.write_text(
        f"disks:\n  s3: {{type: object_disk, url: 'file://{home}/bucket/store/'}}\n"
        "policies: {hot_cold: {volumes: [{name: cold, disks: [s3]}]}}\n"
    )
    refused(store, 13)
    assert int(store.json("query", COUNT, "--partial")["rows"][0][0]) == 100
    store("disk", "forget", "s3", "-y", code=13)
    store("disk", "forget", "nobody", "-y", code=10)
    store("disk", "forget", "ssd", "-y")
    assert count(store) == 100


@pytest.mark.parametrize("gone", ["ssd", "s3"])
def test_a_disk_that_was_not_counted_since_it_was_written_to(home: Path, store: Frostline, gone: str) -> None:
    """Nobody opened the store between the last write and the change of the configuration."""
    store("move", "d.t", "--partition", "202602", "--to-disk", "s3")
    kept = {
        "ssd": f"{{type: local, path: {home}/ssd}}",
        "s3": f"{{type: object_disk, url: 'file://{home}/bucket/store/'}}",
    }
    del kept[gone]
    (name, disk), path = next(iter(kept.items())), Path("frostline.yaml")
    path.write_text(
        f"state_path: {home}/state\ndisks:\n  {name}: {disk}\n"
        f"policies: {{hot_cold: {{volumes: [{{name: all, disks: [{name}]}}]}}}}\n"
    )
    refused(store, 13)
    path.unlink()
    assert count(store) == 300


class TestWithoutAnId:
    """Disks of an earlier version, read-only ones, and those with ClickHouse's log."""

    @pytest.fixture
    def reader(self, home: Path, store: Frostline, monkeypatch: pytest.MonkeyPatch) -> Frostline:
        """Another machine, which only reads a bucket that an earlier version wrote."""
        (home / "bucket" / "store" / ".frostline-disk").unlink()
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"file://{home}/bucket/store/")
        monkeypatch.setenv("FROSTLINE_DISKS__S3__READ_ONLY", "true")
        monkeypatch.setenv("FROSTLINE_HOME", str(home.with_name("reader")))
        assert count(store) == 100
        assert count(store) == 100
        return store

    def test_a_mistyped_bucket(self, home: Path, reader: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"file://{home}/bucket/stor/")
        reader("query", COUNT, code=5)
        assert not reader.json("fsck", code=4)["ok"]
        assert files_below(home / "bucket" / "stor") == []
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"file://{home}/bucket/store/")
        assert count(reader) == 100

    def test_the_bucket_of_another_store(self, home: Path, reader: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
        other = home.with_name("other")
        with monkeypatch.context() as there:
            there.setenv("FROSTLINE_HOME", str(other))
            there.delenv("FROSTLINE_DISKS__S3__URL")
            there.delenv("FROSTLINE_DISKS__S3__READ_ONLY")
            reader("table", "create", "e.t", "--column", "n:int64", "--order-by", "n")
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"file://{other}/bucket/store/")
        reader("query", COUNT, code=13)

    def test_a_bucket_that_moved_is_the_same(
        self, home: Path, reader: Frostline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (home / "bucket").rename(home / "moved")
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"file://{home}/moved/store/")
        assert count(reader) == 100

    def test_with_clickhouses_log(self, home: Path, frostline: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its table is that of one bucket, and names objects that must be there."""
        monkeypatch.setenv("FROSTLINE_DISKS__S3__LOG_FORMAT", "1")
        Path("rows.csv").write_text("n\n1\n2\n")
        frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
        frostline("insert", "d.t", "rows.csv")
        frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"file://{home}/bucket/stor/")
        for verb in (["query", COUNT], ["fsck"], ["table", "alter", "d.t", "--add-column", "more:int64"]):
            frostline(*verb, code=13)
        assert files_below(home / "bucket" / "stor") == []
        monkeypatch.delenv("FROSTLINE_DISKS__S3__URL")
        (home / "bucket").rename(home / "away")
        for verb in (["query", COUNT], ["table", "alter", "d.t", "--add-column", "more:int64"]):
            frostline(*verb, code=1)
        assert files_below(home / "bucket") == []
        (home / "away").rename(home / "bucket")
        assert count(frostline) == 2


class TestWithoutConditionalWrites:
    def test_the_id_is_given_below_the_lease(
        self, home: Path, frostline: Frostline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FROSTLINE_DISKS__S3__CONDITIONAL_PUT", "no")
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"file://{home}/bucket/store/")
        frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
        given = (home / "bucket" / "store" / ".frostline-disk").read_bytes()
        monkeypatch.setenv("FROSTLINE_HOME", str(home.with_name("second")))
        frostline("table", "alter", "d.t", "--add-column", "more:int64", code=11)
        assert (home / "bucket" / "store" / ".frostline-disk").read_bytes() == given
        for lease in (home / "bucket" / "store" / "lease").iterdir():
            lease.unlink()
        frostline("table", "alter", "d.t", "--add-column", "more:int64")
        assert (home / "bucket" / "store" / ".frostline-disk").read_bytes() == given
        assert frostline.json("fsck")["ok"]

    def test_of_several_machines_one_gives_it(self, tmp_path: Path) -> None:
        bucket = Unconditional(MemoryStore("bucket"))
        disks = [ObjectDisk("s3", bucket, tmp_path / f"{n}", lease_settle_seconds=0.2) for n in range(4)]

        def write(disk: ObjectDisk) -> bool:
            with suppress(Locked), disk.transaction(Inserted()) as transaction:
                transaction.create(f"{disk.state_path.name}.json", b"{}")
                transaction.commit()
                return True
            return False

        with ThreadPoolExecutor(len(disks)) as pool:
            written = list(pool.map(write, disks))
        assert written.count(True) == 1
        winner = disks[written.index(True)]
        assert winner.identity() == read_object(bucket)


class TestInsertsAndTheColdDisk:
    """Hot space is there in each of these. Whether an insert is a repetition, only the parts on all disks can say."""

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


def test_a_disk_may_be_renamed_and_moved(home: Path, store: Frostline) -> None:
    (home / "ssd").rename(home / "elsewhere")
    Path("frostline.yaml").write_text(
        f"disks:\n  fast: {{type: local, path: {home}/elsewhere}}\n"
        f"  s3: {{type: object_disk, url: 'file://{home}/bucket/store/'}}\n"
        "policies: {hot_cold: {volumes: [{name: hot, disks: [fast]}, {name: cold, disks: [s3]}]}}\n"
    )
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


class TestMistypedBucket:
    def test_a_directory(self, home: Path, store: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"file://{home}/bucket/stor/")
        refused(store, 5)
        store("log", "s3", code=5)
        store("gc", code=5)
        store("restore", "s3", "--apply", code=5)
        store("tick", code=5)
        assert files_below(home / "bucket" / "stor") == []
        monkeypatch.delenv("FROSTLINE_DISKS__S3__URL")
        assert count(store) == 300
        assert store.json("fsck")["ok"]

    def test_in_s3(self, frostline: Frostline, bucket: str, ministack: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/right/")
        Path("rows.csv").write_text("n\n1\n2\n")
        frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
        frostline("insert", "d.t", "rows.csv")
        frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/rihgt/")
        frostline("query", COUNT, code=5)
        frostline("status")
        listed = ministack.client().list_objects_v2(Bucket=bucket, Prefix="rihgt/")
        assert listed["KeyCount"] == 0
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/right/")
        assert count(frostline) == 2

    def test_two_endpoints_of_one_bucket(
        self, home: Path, frostline: Frostline, bucket: str, ministack: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        port = ministack.endpoint_url.rpartition(":")[2]
        Path("frostline.yaml").write_text(
            f"disks:\n  one: {{type: object_disk, url: 's3://{bucket}/p/', endpoint_url: 'http://127.0.0.1:{port}'}}\n"
            f"  two: {{type: object_disk, url: 's3://{bucket}/p/', endpoint_url: 'http://localhost:{port}'}}\n"
            "policies: {hot_cold: {volumes: [{name: hot, disks: [one]}, {name: cold, disks: [two]}]}}\n"
        )
        frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
        for verb in (["query", COUNT], ["insert", "d.t", "rows.csv"], ["gc"]):
            Path("rows.csv").write_text("n\n1\n")
            frostline(*verb, code=13)
        assert "two names" in frostline.error


def test_a_reading_verb_begins_no_disk(home: Path, frostline: Frostline) -> None:
    for verb in (["status"], ["parts"], ["disks"], ["fsck"], ["table", "list"], ["log", "s3"], ["gc"]):
        frostline(*verb, code=4 if verb == ["fsck"] else 0)
        assert not (home / "ssd").exists(), verb
        assert files_below(home / "bucket") == [], verb


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


class TestWritingAnId:
    def test_whoever_dies_on_the_way_leaves_a_disk_that_gets_one(self, tmp_path: Path) -> None:
        """Before and after each effect; whatever is left, the next one ends with one id that stays."""
        counting = Failpoints()
        with hooked(counting):
            assert write_file(tmp_path / "first") == read_file(tmp_path / "first")
        for at in range(1, len(counting.names) + 1):
            for mode in ("raise_before", "raise_after"):
                own = tmp_path / f"{mode}-{at}"
                with hooked(Failpoints(mode, at)), suppress(OSError):
                    write_file(own)
                given = read_file(own)
                assert write_file(own) == read_file(own)
                assert given in (None, read_file(own))

    def test_of_two_machines_one_gives_it(self) -> None:
        store = MemoryStore("bucket")
        with ThreadPoolExecutor(8) as pool:
            given = set(pool.map(lambda _: put_object(store), range(32)))
        assert given == {read_object(store)}

    def test_a_lost_answer_is_resolved(self) -> None:
        class Lost(MemoryStore):
            def put_if_absent(self, *arguments: Any, **options: Any) -> None:
                super().put_if_absent(*arguments, **options)
                raise OutcomeUnknown("no answer")

        store = Lost("bucket")
        assert put_object(store) == read_object(store)

    @pytest.mark.parametrize(
        "forged", [b"", b"{", b"[" * 100_000, b'{"format": 1, "id": "../x"}', b'{"format": 1}', b"\xff\xfe"]
    )
    def test_a_forged_one_is_named(self, home: Path, store: Frostline, forged: bytes) -> None:
        (home / "ssd" / ".frostline" / "disk.json").write_bytes(forged)
        store("query", COUNT, code=1)
        assert "disk.json" in store.error
        assert not store.json("fsck", code=4)["ok"]


def test_doctor_and_status_say_it_first(home: Path, store: Frostline) -> None:
    (home / "ssd").rename(home / "ssd.away")
    first = store.json("doctor", code=4)["findings"][0]
    assert (first["subject"], first["check"], first["level"]) == ("disk ssd", "identity", "problem")
    assert "BROKEN DISK" in store("status").splitlines()[0]
    assert not (home / "ssd").exists()
