"""What every disk promises (disks/base.py). Guards I2 all or nothing, I8 links, P37 to P40, P61 hostile paths."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.base import Disk, FileInfo, list_each, read_each
from disks.contracts.bucket_disk import BucketDisk, BucketTransaction, ClickHouseLogDisk, LoggedDisk
from disks.contracts.directory_disk import DirectoryDisk
from disks.contracts.identified_disk import IdentifiedDisk
from disks.kinds import as_disk, identity_of
from disks.stores.base import ByteRange
from disks.wrappers.wrapped import WrappedDisk
from oplog.errors import Damaged, FrostlineError, NotFound, Refused, UsageError
from oplog.kinds import Dropped, Inserted, Merged, Restored
from oplog.replay import FileRow
from tests.contract.disks import Open, content, put
from tests.contract.disks import disk as disk
from tests.contract.disks import open_again as open_again


@pytest.mark.in_turn
def test_an_empty_disk_has_nothing(disk: Disk) -> None:
    assert disk.list() == []
    assert disk.list("no/such") == []
    assert list(disk.walk()) == []
    assert not disk.exists("x")
    assert disk.recover() == []
    with pytest.raises(NotFound, match="x/y"):
        disk.stat("x/y")
    with pytest.raises(NotFound, match="x/y"):
        disk.read("x/y")


def test_listing_is_one_level_sorted_with_slashes(disk: Disk) -> None:
    put(disk, {"t/b/1": b"", "t/a-1/x": b"", "t/a/x": b"", "t/c": b"", "t/a0": b"", "u": b""})
    assert disk.list() == ["t/", "u"]
    assert disk.list("t") == ["a-1/", "a/", "a0", "b/", "c"]
    assert [info.path for info in disk.walk("t")] == ["t/a-1/x", "t/a/x", "t/a0", "t/b/1", "t/c"]
    assert disk.list("t/c") == []


@pytest.mark.in_turn
def test_many_directories_are_listed_as_one_is(disk: Disk) -> None:
    put(disk, {"t/a/x": b"", "t/a/b/y": b"", **{f"t/p{number}/{number}": b"" for number in range(450)}})
    asked = ["t/a", "t/none", *(f"t/p{number}" for number in range(450)), "t"]
    assert list(list_each(disk, asked)) == [disk.list(directory) for directory in asked]
    assert list(list_each(disk, [])) == []


def test_all_directories_are_among_those_that_may_show_something(disk: Disk) -> None:
    put(disk, {"t/a/x": b"", "t/a/b/y": b"", "t/c-d/z": b"", "t/c/z": b"", "t/file": b""})
    assert sorted(disk.directories("t")) == ["a", "c", "c-d"]
    assert disk.directories("none") == []
    assert disk.files_in("t") == [name for name in disk.list("t") if not name.endswith("/")]
    assert disk.files_in("none") == []


def test_the_files_in_a_directory_that_begin_so(disk: Disk) -> None:
    names = ["blocks-", "blocks-0.json", "blocks-10.json", "blocks-\U0001f600", "blocks.json", "table.json", "blocks"]
    put(disk, {**{f"t/{name}": b"" for name in names}, "t/blocks-x/y": b"", "t/a/blocks-1.json": b"", "blocks-9": b""})
    for begin in ("", "blocks-", "blocks-1", "table.json", "none", "blocks-\U0001f600"):
        assert disk.files_in("t", begin) == sorted(name for name in names if name.startswith(begin))
    assert disk.files_in("", "blocks-") == ["blocks-9"]
    assert disk.files_in("none", "blocks-") == []


def test_only_what_is_below_some_names_is_looked_over(disk: Disk) -> None:
    put(disk, {f"t/{name}/f": name.encode() for name in ("a", "a-b", "a0", "b", "c")})
    for among in (["a"], ["a0", "a"], ["a-b", "none"], ["c", "a"], []):
        found = disk.look_over("t", "f", {}, among)
        assert [(file.path, file.data) for file in found] == [
            (f"t/{name}/f", name.encode()) for name in ("a-b", "a", "a0", "b", "c") if name in among
        ]


def test_a_directory_is_there_while_a_file_is_below_it(disk: Disk) -> None:
    put(disk, {"a/b/c": b"1", "a/d": b"2"})
    with disk.transaction(Dropped()) as transaction:
        transaction.remove("a/b/c")
        transaction.commit()
    assert disk.list("a") == ["d"]
    assert not disk.exists("a/b")
    put(disk, {"a/b": b"now a file"})
    assert content(disk) == {"a/b": b"now a file", "a/d": b"2"}


def test_small_files_one_directory_down(disk: Disk) -> None:
    put(
        disk,
        {
            "t/p1/part.json": b"1",
            "t/p2/part.json": b"2" * 10_000,
            "t/p2/x": b"",
            "t/p3/x": b"",
            "t/part.json": b"above",
            "t/p1/deep/part.json": b"below",
            "t0/p1/part.json": b"beside",
        },
    )
    assert read_each(disk, "t", "part.json") == {"t/p1/part.json": b"1", "t/p2/part.json": b"2" * 10_000}
    assert list(read_each(disk, "t", "x")) == ["t/p2/x", "t/p3/x"]


def test_of_small_files_that_are_known_none_is_read(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a disk has marks is its own business: one that has none gives the bytes."""
    monkeypatch.setattr("disks.local.disk.SETTLED_NS", 0)
    put(disk, {"t/p1/part.json": b"1", "t/p2/part.json": b"2", "t/p3/x": b"", "t/p1/deep/part.json": b"below"})
    first = disk.look_over("t", "part.json", {})
    assert [(file.path, file.data) for file in first] == [("t/p1/part.json", b"1"), ("t/p2/part.json", b"2")]
    assert [file.revision for file in first] == [disk.stat(file.path).revision for file in first]
    known = {file.path: file.fingerprint for file in first if file.fingerprint is not None}
    assert len(known) in (0, 2)
    with disk.transaction(Merged()) as transaction:
        transaction.remove("t/p1")
        transaction.create("t/p4/part.json", b"4")
        transaction.commit()
    put(disk, {"t/p1/part.json": b"7"})
    again = disk.look_over("t", "part.json", known)
    assert [file.path for file in again] == ["t/p1/part.json", "t/p2/part.json", "t/p4/part.json"]
    assert [file.data for file in again] == [b"7", None if known else b"2", b"4"]
    assert [file.fingerprint for file in again][1] == known.get("t/p2/part.json")


def test_ranges_and_never_short(disk: Disk) -> None:
    data = bytes(range(256)) * 100
    put(disk, {"small.json": data[:100], "large": data})
    for path in ("small.json", "large"):
        assert disk.read(path, ByteRange(10, 20)) == data[10:20]
        assert disk.read(path, ByteRange(5, 5)) == b""
    with pytest.raises(Damaged):
        disk.read("large", ByteRange(0, len(data) + 1))
    with pytest.raises(Damaged):
        disk.read("small.json", ByteRange(90, 101))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "path",
    ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\x00b", "a\nb", "x" * 256, "d/" * 600 + "x", ".frostline/x"],
)
def test_hostile_paths_are_refused(disk: Disk, path: str) -> None:
    with disk.transaction(Inserted()) as transaction:
        for call in (
            lambda: transaction.create(path, b""),
            lambda: transaction.link("a", path),
            lambda: transaction.rename("a", path),
            lambda: transaction.remove(path),
            lambda: transaction.require(absent=(path,)),
        ):
            with pytest.raises(UsageError, match="unsafe"):
                call()
    with pytest.raises(FrostlineError):
        disk.read(path)


def test_names_in_any_script(disk: Disk, open_again: Open) -> None:
    files = {"t/größe=1/часть": b"1" * 9_000, "t/日本/a b+c%20": b"2", "t/e\u0301": b"3"}
    put(disk, files)
    assert content(disk) == files
    assert content(open_again()) == files


@pytest.mark.in_turn
def test_the_same_after_opening_again(disk: Disk, open_again: Open) -> None:
    for number in range(7):
        put(disk, {f"t/p{number}/part.json": b"%d" % number})
    again = open_again()
    assert content(again) == content(disk)
    assert again.revision == disk.revision
    assert again.recover() == []
    put(again, {"t/p7/part.json": b"7"})
    disk.refresh()
    assert content(disk) == content(again)


def test_locations_open_while_a_reader_holds_its_lease(disk: Disk) -> None:
    data = b"PAR1" * 5_000
    put(disk, {"t/p/x.parquet": data, "t/q/tiny.parquet": b"PAR1"})
    with disk.read_lease():
        location = disk.location("t/p/x.parquet")
        tiny = disk.location("t/q/tiny.parquet")
        with disk.transaction(Dropped()) as transaction:
            transaction.remove("t/p")
            transaction.commit()
        assert not disk.exists("t/p")
        with pytest.raises(NotFound):
            disk.location("t/p/x.parquet")
        if location is not None and tiny is not None and location.url.startswith("file://"):
            assert Path(location.url.removeprefix("file://")).read_bytes() == data
            assert Path(tiny.url.removeprefix("file://")).read_bytes() == b"PAR1"


def test_a_reader_reads_the_file_as_it_was(disk: Disk) -> None:
    """Also when its path is removed, or names another file: whoever reads piece by piece sees one file."""
    data = bytes(range(256)) * 100
    put(disk, {"t/p/x": data, "t/q/y": b"stays"})
    with pytest.raises(NotFound):
        disk.reader("t/p/none")
    with disk.read_lease():
        read = disk.reader("t/p/x")
        assert read(ByteRange(3, 300)) == data[3:300]
        with disk.transaction(Dropped()) as transaction:
            transaction.remove("t/p")
            transaction.commit()
        assert read(ByteRange(len(data) - 1, len(data))) == data[-1:]
        with pytest.raises(Damaged):
            read(ByteRange(0, len(data) + 1))


def test_usage_adds_up(disk: Disk) -> None:
    put(disk, {"a": b"x" * 10_000, "b.json": b"y" * 100})
    usage = disk.usage()
    assert usage.used_bytes > 0  # a disk that packs files may use fewer bytes than they have
    if (directory := as_disk(disk, DirectoryDisk)) is not None:
        assert directory.stored_bytes() == 10_100
    if as_disk(disk, BucketDisk) is not None:
        assert usage.used_bytes == 10_100
    assert usage.free_bytes is None or usage.total_bytes is not None


def test_info_tells_blob_and_digest_where_there_is_one(disk: Disk) -> None:
    data = b"d" * 9_000
    with disk.transaction(Inserted()) as transaction:
        created = transaction.create("t/x", data, blob_set="p1")
        transaction.commit()
    info: FileInfo = disk.stat("t/x")
    assert info.sha256 in (None, hashlib.sha256(data).hexdigest())
    assert info.key == created.key
    assert info.blob_set == ("p1" if as_disk(disk, LoggedDisk) is not None else None)
    assert (info.key is None) == (as_disk(disk, BucketDisk) is None)


def test_what_a_disk_has_besides_is_the_same_disk(disk: Disk) -> None:
    """Its views show the tree that it shows, and write to it: a wrapper's stand for the wrapper."""
    put(disk, {"t/a": b"1" * 9_000})
    bucket = as_disk(disk, BucketDisk)
    assert bucket is (as_disk(disk, LoggedDisk) or as_disk(disk, ClickHouseLogDisk))
    assert (bucket is not None) == disk.capabilities.remote
    if bucket is None:
        return
    assert as_disk(bucket, BucketDisk) is bucket
    assert (bucket.name, bucket.kind, bucket.capabilities) == (disk.name, disk.kind, disk.capabilities)
    put(bucket, {"t/b": b"2"})
    assert content(bucket) == content(disk) == {"t/a": b"1" * 9_000, "t/b": b"2"}
    assert bucket.revision == disk.revision
    assert {row.path for row in bucket.file_table.rows()} == {"t/a", "t/b"}
    assert bucket.local_state_exists()
    if (logged := as_disk(disk, LoggedDisk)) is not None:
        past = logged.at(1)
        assert content(past) == {"t/a": b"1" * 9_000}
        assert type(past).__name__ == ("WrappedDisk" if isinstance(disk, WrappedDisk) else "DiskAsOf")
        past.close()
        assert content(disk) == content(bucket)


def test_the_first_transaction_gives_an_id(disk: Disk, open_again: Open) -> None:
    if (identified := as_disk(disk, IdentifiedDisk)) is None:
        return
    begun: list[str] = []
    identified.watch(None, begun.append)
    assert identified.identity() is None
    put(disk, {"t/a": b"1"})
    put(disk, {"t/b": b"2"})
    assert begun == [identified.identity()]
    assert identity_of(open_again()) == identified.identity()
    again = as_disk(open_again(), IdentifiedDisk)
    assert again is not None
    again.watch("00000000-0000-0000-0000-000000000000", begun.append)
    with pytest.raises(Refused, match="another one"):
        put(again, {"t/c": b"3"})
    assert content(disk) == {"t/a": b"1", "t/b": b"2"}


@pytest.mark.in_turn
def test_a_local_path_is_where_the_file_lies(disk: Disk) -> None:
    put(disk, {"t/a": b"1"})
    directory = as_disk(disk, DirectoryDisk)
    if directory is None:
        return
    assert directory.local_path("t/a").read_bytes() == b"1"
    files, strange = directory.inspect()
    assert ([info.path for info in files], strange) == (["t/a"], [])
    [held] = directory.hold(["t/a"], until=datetime.now(UTC) + timedelta(hours=1), process=os.getpid())
    with disk.transaction(Dropped()) as transaction:
        transaction.remove("t/a")
        transaction.commit()
    assert held.read_bytes() == b"1"


@pytest.mark.in_turn
def test_only_disks_of_objects_take_objects_over(disk: Disk) -> None:
    put(disk, {"t/a": b"1" * 9_000})
    known = disk.stat("t/a")
    row = FileRow("t/b", 9_000, hashlib.sha256(b"1" * 9_000).hexdigest(), known.key, None, None, 0)
    with disk.transaction(Restored()) as transaction:
        assert isinstance(transaction, BucketTransaction) == (as_disk(disk, BucketDisk) is not None)
        if not isinstance(transaction, BucketTransaction):
            return
        if as_disk(disk, LoggedDisk) is None:
            with pytest.raises(Refused):
                transaction.adopt(row)
            return
        transaction.adopt(row)
        transaction.commit()
    assert disk.read("t/b") == b"1" * 9_000


@pytest.mark.in_turn
def test_nothing_is_left_over_by_what_ended(disk: Disk) -> None:
    put(disk, {"t/a": b"1"})
    with disk.transaction(Inserted()) as transaction:
        transaction.create("t/b", b"2")
        transaction.scratch()
    assert disk.leftovers() == []
    assert disk.recover(only_here=True) == []
    assert content(disk) == {"t/a": b"1"}
