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
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import Locked, OutcomeUnknown
from oplog.kinds import Inserted
from tests.command_line import Frostline
from tests.crash.harness import Failpoints, hooked
from tests.hostile.identities import COUNT, count, files_below, refused
from tests.hostile.identities import store as store
from tests.servers import Server


class Unconditional(WrappedStore):
    """A store that overwrites: conditional writes are a look followed by a put."""

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(conditional_put=False, checks_sha256=True)


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


@pytest.mark.in_turn
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

    @pytest.mark.in_turn
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
    @pytest.mark.in_turn
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


def test_a_disk_may_be_renamed_and_moved(home: Path, store: Frostline) -> None:
    (home / "ssd").rename(home / "elsewhere")
    Path("frostline.yaml").write_text(
        f"disks:\n  fast: {{type: local, path: {home}/elsewhere}}\n"
        f"  s3: {{type: object_disk, url: 'file://{home}/bucket/store/'}}\n"
        "policies: {hot_cold: {volumes: [{name: hot, disks: [fast]}, {name: cold, disks: [s3]}]}}\n"
    )
    assert count(store) == 300


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
        frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n", code=1)
        for verb in (["query", COUNT], ["insert", "d.t", "rows.csv"], ["gc"]):
            Path("rows.csv").write_text("n\n1\n")
            frostline(*verb, code=13)
        assert "two names" in frostline.error


def test_a_reading_verb_begins_no_disk(home: Path, frostline: Frostline) -> None:
    for verb in (["status"], ["parts"], ["disks"], ["fsck"], ["table", "list"], ["log", "s3"], ["gc"]):
        frostline(*verb, code=4 if verb == ["fsck"] else 0)
        assert not (home / "ssd").exists(), verb
        assert files_below(home / "bucket") == [], verb


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

    @pytest.mark.in_turn
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
