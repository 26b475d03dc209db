"""A disk with ClickHouse's log: what it writes is what ClickHouse writes, and its numbers never repeat.

Guards I6 (numbers), I7 (a rebuild gives what the disk shows), I8 (links and frozen parts), P40 (lost answers), and the
first two of ClickHouse's defects: the counter that starts at 1 again, and the objects that only a FREEZE holds."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from disks.base import Disk
from disks.clickhouse.disk import ClickHouseDisk, NoLocalMetadata
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.clickhouse.names import parse_key
from oplog.clickhouse.writing import header_value, host_word
from oplog.errors import (
    AccessDenied,
    AlreadyExists,
    Conflict,
    FrostlineError,
    Locked,
    OutcomeUnknown,
    Refused,
    UsageError,
)
from oplog.kinds import Dropped, Inserted, Merged, OtherKind
from oplog.log import UnknownLogFormat
from restore.clickhouse.bucket import read_bucket
from restore.clickhouse.rebuild import rebuild

PART = "store/abc/abc00000-0000-4000-8000-000000000001/202401_1_1_0"
TABLE = PART.rpartition("/")[0]


def opened(store: MemoryStore | WrappedStore, state: Path) -> ClickHouseDisk:
    return ClickHouseDisk("s3", store, state, lease_settle_seconds=0.0)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("clickhouse")


@pytest.fixture
def disk(store: MemoryStore, tmp_path: Path) -> ClickHouseDisk:
    return opened(store, tmp_path / "state")


def put(disk: Disk, files: Mapping[str, bytes]) -> int | None:
    with disk.transaction(Inserted()) as transaction:
        for path, data in files.items():
            transaction.create(path, data)
        return transaction.commit()


def content(disk: Disk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


def written(store: MemoryStore, prefix: str = "") -> dict[str, ObjectInfo]:
    return {item.key: store.head(item.key) for item in store.list(prefix) if not item.key.startswith("lease/")}


def numbers(store: MemoryStore) -> list[int]:
    names = [parse_key(key) for key in written(store)]
    return sorted(name.revision for name in names if name is not None)


def rebuilt(store: MemoryStore, state: Path) -> ClickHouseDisk:
    """The disk of another machine, which has the bucket only; the lease of the first one has run out."""
    store.delete([item.key for item in store.list("lease/")])
    disk = opened(store, state)
    rebuild(disk, apply=True)
    return disk


# What is written


def test_the_objects_are_named_and_marked_as_clickhouse_does(disk: ClickHouseDisk, store: MemoryStore) -> None:
    put(disk, {f"{PART}/k.bin": b"12345", f"{PART}/empty": b""})
    assert store.get(".SCHEMA_VERSION") == b"1"
    objects = written(store)
    files = {key: info for key, info in objects.items() if key.startswith("r")}
    assert len(files) == 2
    for key, info in files.items():
        assert re.fullmatch(r"r[01]{64}-file-[a-z]{3}/[a-z]{29}", key)
        assert re.fullmatch(rf"tmp_frostline_[0-9a-f]{{16}}/0/{PART}/(k\.bin|empty)", info.metadata["path"])
    (operation,) = (key for key in objects if key.startswith("operations/"))
    assert re.fullmatch(r"operations/r[01]{64}-[A-Za-z0-9-]+-rename", operation)
    assert store.get(operation) == b"0"
    moved = objects[operation].metadata
    assert moved["to_path"] == "store/"
    assert re.fullmatch(r"tmp_frostline_[0-9a-f]{16}/0/store/", moved["from_path"])
    names = [parse_key(key) for key in (operation, *files)]
    revisions = [name.revision for name in names if name is not None]
    assert revisions[0] > max(revisions[1:]) >= 1


def test_renames_links_and_removals_are_logged(disk: ClickHouseDisk, store: MemoryStore) -> None:
    put(disk, {f"{PART}/k.bin": b"1", f"{PART}/v.bin": b"2"})
    with disk.transaction(Merged()) as transaction:
        transaction.rename(PART, f"{TABLE}/p")
        transaction.link(f"{TABLE}/p/k.bin", f"{TABLE}/q/k.bin")
        transaction.rename(f"{TABLE}/q/k.bin", f"{TABLE}/q/n.bin")
        transaction.link(f"{TABLE}/q/n.bin", f"shadow/f1/{TABLE}/q/n.bin")
        transaction.remove(f"{TABLE}/p/v.bin")
        transaction.remove(f"{TABLE}/p")
        transaction.commit()
    logged = [
        (key.rpartition("-")[2], *(info.metadata[name] for name in ("source", "target")))
        for key, info in sorted(written(store, "operations/").items())
    ][1:]
    trash = r"delete_tmp_[0-9a-f]{16}_\d"
    assert logged[:4] == [
        ("rename", f"{PART}/", f"{TABLE}/p/"),
        ("hardlink", f"{TABLE}/p/k.bin", f"{TABLE}/q/k.bin"),
        ("rename", f"{TABLE}/q/k.bin", f"{TABLE}/q/n.bin"),
        ("shadowlink", f"{TABLE}/q/n.bin", f"shadow/f1/{TABLE}/q/n.bin"),
    ]
    assert logged[4][:2] == ("rename", f"{TABLE}/p/v.bin")
    assert re.fullmatch(rf"{TABLE}/p/{trash}", logged[4][2])
    assert logged[5][:2] == ("rename", f"{TABLE}/p/")
    assert re.fullmatch(rf"{TABLE}/{trash}/", logged[5][2])
    assert set(content(disk)) == {f"{TABLE}/q/n.bin", f"shadow/f1/{TABLE}/q/n.bin"}


def test_a_rename_into_a_new_directory_is_made_of_links(
    disk: ClickHouseDisk, store: MemoryStore, tmp_path: Path
) -> None:
    """ClickHouse's restore makes no directory for the target of a rename: it would stop at it, with everything."""
    put(disk, {f"{PART}/k.bin": b"1", f"{PART}/v.bin": b"2", "a/f": b"3"})
    with disk.transaction(OtherKind("detach")) as transaction:
        transaction.rename(PART, f"{TABLE}/detached/p")
        transaction.rename("a/f", "b/c/f")
        transaction.commit()
    words = [key.rpartition("-")[2] for key in sorted(written(store, "operations/"))]
    assert words == ["rename", "rename", "hardlink", "hardlink", "rename", "hardlink", "rename"]
    assert content(rebuilt(store, tmp_path / "other")) == content(disk)
    assert set(content(disk)) == {f"{TABLE}/detached/p/k.bin", f"{TABLE}/detached/p/v.bin", "b/c/f"}


def test_what_clickhouse_would_not_read_is_ours_alone(disk: ClickHouseDisk, store: MemoryStore) -> None:
    """A link into shadow/ is a word that ClickHouse's restore passes over, so it restores without it."""
    put(disk, {f"{PART}/k.bin": b"1"})
    with disk.transaction(OtherKind("freeze")) as transaction:
        transaction.link(f"{PART}/k.bin", "shadow/f1/k.bin")
        transaction.commit()
    clickhouse = re.compile(r".*/r(\d+)(-[\w\d\-\.]+)?-(\w+)$")
    words = [found[3] for key in written(store, "operations/") if (found := clickhouse.match(key))]
    assert sorted(words) == ["rename", "shadowlink"]


def test_several_directories_appear_by_one_rename(disk: ClickHouseDisk, store: MemoryStore) -> None:
    """I2, in the bucket too: whoever rebuilds sees all of a batch or nothing."""
    put(disk, {f"{TABLE}/p{number}/k.bin": b"x" for number in range(3)})
    put(disk, {f"{TABLE}/p9/k.bin": b"x"})
    assert len(written(store, "operations/")) == 2
    put(disk, {"at-the-root": b"1", "other/file": b"2"})
    assert len(written(store, "operations/")) == 4


@pytest.mark.parametrize("path", ["delete_tmp_x/f", "a/delete_tmp_1/f", "tmp_frostline_1/f", "a/" * 500 + "f"])
def test_paths_that_a_replay_would_drop_are_refused(disk: ClickHouseDisk, path: str) -> None:
    put(disk, {"f": b""})
    with disk.transaction(Inserted()) as transaction:
        for call in (
            lambda: transaction.create(path, b""),
            lambda: transaction.link("f", path),
            lambda: transaction.rename("f", path),
        ):
            with pytest.raises(UsageError, match="unsafe path"):
                call()


def test_values_that_no_header_carries_are_encoded() -> None:
    assert header_value("store/a%20b/k.bin") == "store/a%20b/k.bin"
    assert header_value("t/größe") == "=?utf-8?b?dC9ncsO2w59l?="
    assert header_value(" x").startswith("=?utf-8?b?")
    assert header_value("=?x?=").startswith("=?utf-8?b?")
    assert [host_word(name) for name in ("vm", "node-1.example.org", "a_b", "", "ü")] == [
        "vm",
        "node-1",
        "a-b",
        "frostline",
        "frostline",
    ]


# Numbers


def test_numbers_never_repeat_over_restarts(store: MemoryStore, tmp_path: Path) -> None:
    """I6 and the first defect: inserts of the same shape after each start overwrote one another's operations."""
    for start in range(4):
        disk = opened(store, tmp_path / "state")
        put(disk, {f"{TABLE}/p{start}/k.bin": b"%d" % start})
        disk.close()
    assert len(numbers(store)) == len(set(numbers(store))) == 8
    assert len(content(rebuilt(store, tmp_path / "other"))) == 4


def test_numbers_go_on_above_the_bucket_after_a_loss(store: MemoryStore, tmp_path: Path) -> None:
    """The counter is found by listing: the highest number may be a file's that no operation followed."""
    disk = opened(store, tmp_path / "state")
    put(disk, {f"{PART}/k.bin": b"1"})
    with disk.transaction(OtherKind("abandoned")) as transaction:
        for number in range(70):
            transaction.create(f"{TABLE}/x/{number}", b"")
    highest = max(numbers(store))
    disk.close()
    again = rebuilt(store, tmp_path / "lost")
    assert content(again) == {f"{PART}/k.bin": b"1"}
    put(again, {f"{TABLE}/p2/k.bin": b"2"})
    assert [number for number in numbers(store) if number > highest] == sorted(set(numbers(store)))[-2:]
    assert len(numbers(store)) == len(set(numbers(store)))


def test_numbers_given_once_are_never_given_again(store: MemoryStore, tmp_path: Path) -> None:
    """Also when gc has deleted the object that bore the highest one."""
    disk = opened(store, tmp_path / "state")
    with disk.transaction(OtherKind("abandoned")) as transaction:
        transaction.create("a", b"1")
    store.delete([key for key in written(store) if key.startswith("r")])
    disk.close()
    again = opened(store, tmp_path / "state")
    put(again, {"a": b"2"})
    assert min(numbers(store)) > 1


def test_two_processes_of_one_machine_share_the_numbers(store: MemoryStore, tmp_path: Path) -> None:
    one, two = opened(store, tmp_path / "state"), opened(store, tmp_path / "state")
    for number in range(5):
        put(one, {f"a/{number}": b""})
        put(two, {f"b/{number}": b""})
    assert len(numbers(store)) == len(set(numbers(store))) == 20
    assert content(one) == content(two) == content(rebuilt(store, tmp_path / "other"))


def test_a_process_of_this_machine_is_no_stranger(store: MemoryStore, tmp_path: Path) -> None:
    """It may take numbers and upload between our look at the counter and our look at the bucket."""
    one, two = opened(store, tmp_path / "state"), opened(store, tmp_path / "state")
    put(one, {"a": b"1"})
    look = one._log.highest_number

    def meanwhile(known: int) -> int:
        with two.transaction(OtherKind("abandoned")) as transaction:
            for number in range(100):
                transaction.create(f"b{number}", b"")
        return look(known)

    one._log.highest_number = meanwhile  # type: ignore[method-assign]
    assert one.numbers_of_others() is None
    one._looked = float("-inf")
    put(one, {"c": b"2"})


def test_another_machine_is_noticed_before_anything_is_written(store: MemoryStore, tmp_path: Path) -> None:
    """The table of this machine would be wrong: a file that the other one removed would be there again."""
    disk = opened(store, tmp_path / "state")
    put(disk, {"a": b"1"})
    disk.close()
    other = rebuilt(store, tmp_path / "other")
    put(other, {"b": b"2"})
    before = written(store)
    again = opened(store, tmp_path / "state")
    with pytest.raises(Refused, match="another writer wrote"):
        put(again, {"c": b"3"})
    assert written(store).keys() == before.keys()
    rebuild(again, apply=True)
    assert content(again) == {"a": b"1", "b": b"2"}
    put(again, {"c": b"3"})


# Opening


def test_a_disk_is_not_empty_because_this_machine_is_new(store: MemoryStore, tmp_path: Path) -> None:
    put(opened(store, tmp_path / "state"), {"a": b"1"})
    new = opened(store, tmp_path / "new")
    for use in (new.list, lambda: put(new, {"b": b""}), lambda: list(new.kept_keys())):
        with pytest.raises(NoLocalMetadata, match="no local metadata") as caught:
            use()
        assert "restore s3" in caught.value.hint
    assert new.known_rows() is None


def test_other_logs_and_other_buckets_are_refused(tmp_path: Path, store: MemoryStore) -> None:
    ours = MemoryStore("format-2")
    put(ObjectDisk("s3", ours, tmp_path / "two"), {"a": b"1"})
    with pytest.raises(UnknownLogFormat, match="format 2, not 1"):
        opened(ours, tmp_path / "one").list()
    put(opened(store, tmp_path / "state"), {"a": b"1"})
    with pytest.raises(UnknownLogFormat):
        ObjectDisk("s3", store, tmp_path / "x").list()
    with pytest.raises(Refused, match="that of memory://clickhouse/, not of memory://elsewhere/"):
        opened(MemoryStore("elsewhere"), tmp_path / "state").list()


def test_a_read_only_disk_writes_nothing(store: MemoryStore, tmp_path: Path) -> None:
    put(opened(store, tmp_path / "state"), {"a": b"1"})
    before = written(store)
    reader = ClickHouseDisk("s3", store, tmp_path / "reader", read_only=True)
    rebuild(reader, apply=True)
    assert content(reader) == {"a": b"1"}
    with pytest.raises(Refused, match="read-only"):
        reader.transaction(Inserted())
    reader.recover()
    assert written(store).keys() == before.keys()


# Rebuild


def test_a_rebuild_gives_what_the_disk_shows(store: MemoryStore, tmp_path: Path) -> None:
    """I7, with removals, frozen parts and names that no header carries as they are."""
    disk = opened(store, tmp_path / "state")
    put(disk, {f"{TABLE}/p{number}/k.bin": b"%d" % number for number in range(4)} | {"t/größe=1/часть": b"!"})
    with disk.transaction(OtherKind("freeze")) as transaction:
        transaction.link(f"{TABLE}/p1/k.bin", "shadow/f1/p1/k.bin")
        transaction.remove(f"{TABLE}/p1")
        transaction.rename(f"{TABLE}/p2", f"{TABLE}/p1")
        transaction.commit()
    with disk.transaction(OtherKind("unfreeze")) as transaction:
        transaction.link(f"{TABLE}/p3/k.bin", "shadow/f2/p3/k.bin")
        transaction.commit()
    with disk.transaction(OtherKind("unfreeze")) as transaction:
        transaction.remove("shadow/f2")
        transaction.commit()
    with disk.transaction(OtherKind("abandoned")) as transaction:
        transaction.create(f"{TABLE}/never/k.bin", b"")
    expected = content(disk)
    assert set(expected) == {
        f"{TABLE}/p0/k.bin",
        f"{TABLE}/p1/k.bin",
        f"{TABLE}/p3/k.bin",
        "shadow/f1/p1/k.bin",
        "t/größe=1/часть",
    }
    assert content(rebuilt(store, tmp_path / "other")) == expected
    preview = rebuild(disk)
    assert (preview.created, preview.removed, preview.unchanged, preview.applied) == (0, 0, 5, False)
    assert disk.stat(f"{TABLE}/p0/k.bin").sha256 is not None
    rebuild(disk, apply=True)
    assert disk.stat(f"{TABLE}/p0/k.bin").sha256 is not None, "what the table knows and the log does not, stays"


def test_an_older_revision_is_read_and_not_put_in_place(store: MemoryStore, tmp_path: Path) -> None:
    disk = opened(store, tmp_path / "state")
    first = put(disk, {"a/x": b"1"})
    put(disk, {"a/y": b"2"})
    with disk.transaction(Dropped()) as transaction:
        transaction.remove("a/x")
        transaction.commit()
    assert first is not None
    assert set(read_bucket(store, revision=first).files) == {"a/x"}
    with pytest.raises(UsageError, match="cannot go back"):
        rebuild(disk, revision=first, apply=True)
    reader = ClickHouseDisk("s3", store, tmp_path / "reader", read_only=True)
    rebuild(reader, revision=first, apply=True)
    assert content(reader) == {"a/x": b"1"}


def test_a_damaged_table_is_rebuilt_when_told(store: MemoryStore, tmp_path: Path) -> None:
    disk = opened(store, tmp_path / "state")
    put(disk, {"a": b"1"})
    disk.close()
    disk.table_path.write_bytes(b"not a database")
    with pytest.raises(FrostlineError) as caught:
        opened(store, tmp_path / "state").list()
    assert "restore s3 --apply" in caught.value.hint
    again = rebuilt(store, tmp_path / "state")
    assert content(again) == {"a": b"1"}
    assert [note for note in again.recover() if "set aside" in note]


# When the bucket fails


class Failing(WrappedStore):
    """Fails the puts of operations as told: before they reach the bucket, or after."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.before: dict[int, FrostlineError] = {}
        self.after: dict[int, FrostlineError] = {}
        self.count = 0

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.count += 1
        if error := self.before.pop(self.count, None):
            raise error
        self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)
        if error := self.after.pop(self.count, None):
            raise error


def test_a_transaction_with_a_failed_upload_is_not_committed(store: MemoryStore, tmp_path: Path) -> None:
    """The object may have arrived: the rename that publishes the others would publish it as well."""

    class Broken(WrappedStore):
        def put(self, key: str, payload: Any, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
            self.inner.put(key, payload, sha256=sha256, metadata=metadata)
            if payload == b"lost":
                raise OutcomeUnknown("no answer")

    disk = opened(Broken(store), tmp_path / "state")
    with disk.transaction(Inserted()) as transaction:
        transaction.create("a/x", b"1")
        with pytest.raises(OutcomeUnknown):
            transaction.create("a/y", b"lost")
        with pytest.raises(Refused, match="a/y failed"):
            transaction.commit()
    put(disk, {"a/z": b"2"})
    assert content(disk) == content(rebuilt(store, tmp_path / "other")) == {"a/z": b"2"}


def two_steps(disk: Disk) -> None:
    with disk.transaction(Merged()) as transaction:
        transaction.create("m", b"merged")
        transaction.remove("a")
        transaction.commit()


def test_a_commit_of_which_nothing_was_logged_never_was(store: MemoryStore, tmp_path: Path) -> None:
    failing = Failing(store)
    disk = opened(failing, tmp_path / "state")
    put(disk, {"a": b"1"})
    failing.before = {2: AccessDenied("no")}
    with pytest.raises(AccessDenied):
        two_steps(disk)
    assert content(disk) == content(rebuilt(store, tmp_path / "other")) == {"a": b"1"}
    assert disk.recover() == []
    two_steps(disk)
    assert content(disk) == {"m": b"merged"}


def test_a_commit_that_was_logged_in_part_is_finished(store: MemoryStore, tmp_path: Path) -> None:
    """I2: never half of it; the caller is told that it does not know."""
    failing = Failing(store)
    disk = opened(failing, tmp_path / "state")
    put(disk, {"a": b"1"})
    failing.before = {3: AccessDenied("no")}
    with pytest.raises(OutcomeUnknown, match="in part"):
        two_steps(disk)
    assert content(disk) == {"a": b"1"}
    kept = set(disk.kept_keys())
    assert len(kept) == 2, "gc must not take the file that is about to appear"
    disk.close()
    again = opened(store, tmp_path / "state")
    assert "finished the merge" in again.recover()[0]
    assert again.recover() == []
    assert content(again) == content(rebuilt(store, tmp_path / "other")) == {"m": b"merged"}


def test_the_next_commit_finishes_what_was_logged_in_part(store: MemoryStore, tmp_path: Path) -> None:
    failing = Failing(store)
    disk = opened(failing, tmp_path / "state")
    put(disk, {"a": b"1"})
    failing.before = {3: AccessDenied("no")}
    with pytest.raises(OutcomeUnknown):
        two_steps(disk)
    with pytest.raises(Conflict):
        two_steps(disk)
    assert content(disk) == {"m": b"merged"}
    put(disk, {"n": b"2"})
    assert content(disk) == content(rebuilt(store, tmp_path / "other"))


def test_a_lost_answer_is_looked_up(store: MemoryStore, tmp_path: Path) -> None:
    """P40."""
    failing = Failing(store)
    disk = opened(failing, tmp_path / "state")
    failing.after = {1: OutcomeUnknown("lost"), 3: OutcomeUnknown("lost")}
    put(disk, {"a": b"1"})
    two_steps(disk)
    assert content(disk) == {"m": b"merged"}
    failing.before = {4: AlreadyExists("taken")}
    store.put("x", b"", sha256=bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"))
    with pytest.raises(Locked, match="another writer"):
        put(disk, {"b": b"2"})
    assert content(disk) == {"m": b"merged"}


# gc


def test_everything_that_may_be_needed_is_kept(store: MemoryStore, tmp_path: Path) -> None:
    """I4, and the second defect: what only a frozen part holds. What was removed stays for the retention."""
    disk = ClickHouseDisk("s3", store, tmp_path / "state", retention_seconds=3600, lease_settle_seconds=0.0)
    put(disk, {f"{PART}/k.bin": b"1", f"{PART}/v.bin": b"2"})
    keys = {path: disk.stat(f"{PART}/{path}").key for path in ("k.bin", "v.bin")}
    with disk.transaction(OtherKind("freeze")) as transaction:
        transaction.link(f"{PART}/k.bin", "shadow/f1/k.bin")
        transaction.remove(PART)
        transaction.commit()
    assert set(disk.kept_keys()) == set(keys.values())
    disk.retention_seconds = 0
    assert set(disk.kept_keys()) == {keys["k.bin"]}
    assert disk.limitations


def test_a_copy_of_the_state_directory_is_noticed(store: MemoryStore, tmp_path: Path) -> None:
    disk = opened(store, tmp_path / "state")
    put(disk, {"a": b"1"})
    disk.close()
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    put(opened(store, tmp_path / "state"), {"b": b"2"})
    with pytest.raises(Refused, match="another writer"):
        put(opened(store, tmp_path / "copy"), {"c": b"3"})
