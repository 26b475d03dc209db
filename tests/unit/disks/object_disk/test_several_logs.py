"""Several logs on one prefix: what lies where, who may write, and who refuses whom (docs/decisions/0014).

Guards I6 (a log has one writer that it knows), P9 and P10 (a set of blobs has one name, wherever its files go)."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path

import pytest

from disks.object_disk.disk import ObjectDisk
from disks.object_disk.sharing.other_log import OtherLog, other_logs
from disks.object_disk.sharing.prefix import has_several_logs, store_identity
from disks.object_disk.sharing.writers import newest_writer, take_over
from disks.stores.base import ObjectStore
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.named_log import NamedLogStore, check_log_name, log_names
from oplog import entry
from oplog.errors import Conflict, NotFound, Refused, UsageError
from oplog.kinds import Inserted, Moved
from oplog.log import UnknownLogFormat
from oplog.revision import SCHEMA_VERSION_KEY, is_blob_key

BLOB = b"x" * 20_000


@pytest.fixture
def prefix() -> MemoryStore:
    return MemoryStore("shared", keep_for=timedelta(days=1))


def open_log(prefix: ObjectStore, state: Path, log: str, **options: int) -> ObjectDisk:
    return ObjectDisk(log, NamedLogStore(prefix, log), state / log, **options)


def put(disk: ObjectDisk, *paths: str) -> None:
    with disk.transaction(Inserted()) as transaction:
        for path in paths:
            transaction.create(path, BLOB)
        transaction.commit()


def keys(prefix: ObjectStore) -> list[str]:
    return [info.key for info in prefix.list()]


def test_blobs_lie_together_and_all_else_below_its_log(prefix: MemoryStore, tmp_path: Path) -> None:
    """Guards I3: readers find the blobs where they always were."""
    a, b = open_log(prefix, tmp_path, "a"), open_log(prefix, tmp_path, "b")
    put(a, "t/p/data.parquet")
    put(b, "t/p/data.parquet")
    own = {key for key in keys(prefix) if not is_blob_key(key)}
    assert {key.split("/")[0] for key in own} == {".SCHEMA_VERSION", ".frostline-disk", "logs", "marks"}
    assert prefix.get(SCHEMA_VERSION_KEY) == prefix.get(f"logs/a/{SCHEMA_VERSION_KEY}") == b"3"
    assert {key.split("/")[2] for key in own if key.startswith("logs/a/")} == {
        ".SCHEMA_VERSION",
        ".frostline-disk",
        "operations",
        "snapshots",
        "writers",
    }
    assert sum(map(is_blob_key, keys(prefix))) == 2
    assert a.read("t/p/data.parquet") == BLOB
    assert a.location("t/p/data.parquet").url == prefix.url(a.stat("t/p/data.parquet").key or "")
    assert a.revision == b.revision == 1, "each log counts for itself"


def test_a_view_shows_its_own_log_and_no_other_in_key_order(prefix: MemoryStore, tmp_path: Path) -> None:
    """Guards I6. Names of logs of which one begins as the other, and what lies before, between and behind them."""
    names = ["a", "a-b", "a.b", "a0", "ab"]
    for name in names:
        put(open_log(prefix, tmp_path, name), "t/x.parquet")
    for foreign in ("alpha", "logs/README", "logs/a0", "logs~", "zeta", "operations/theirs"):
        prefix.put(foreign, b"?", sha256=hashlib.sha256(b"?").digest())
    assert log_names(prefix) == names
    view = NamedLogStore(prefix, "a")
    shown = [info.key for info in view.list()]
    assert shown == sorted(shown)
    assert {"alpha", "logs~", "zeta"} <= set(shown)
    assert not [key for key in shown if key.startswith("logs/")], "other logs are not shown"
    assert "operations/theirs" not in shown, "what no log owns is none of this one's"
    assert sum(key.startswith("operations/") for key in shown) == 1
    for start in (*shown, "b", "logs/", "logs/zz", "s", "~"):
        assert [info.key for info in view.list(start_after=start)] == [key for key in shown if key > start]
    for text in ("o", "operations/", "r", "gc/", "l", "snapshots/r", "."):
        assert [info.key for info in view.list(text)] == [key for key in shown if key.startswith(text)]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "ä", "x" * 65, "a\n"])
def test_names_that_no_log_has(name: str) -> None:
    with pytest.raises(UsageError, match="not a name for a log"):
        check_log_name(name)


def test_a_prefix_is_of_one_log_or_of_several(tmp_path: Path) -> None:
    """Guards I6, P46: neither is taken for the other, and nothing is written by who is refused."""
    one, several = MemoryStore("one"), MemoryStore("several")
    put(ObjectDisk("s3", one, tmp_path / "one"), "t/x.parquet")
    put(open_log(several, tmp_path, "a"), "t/x.parquet")
    before = keys(one), keys(several)
    for wrong, match in (
        (open_log(one, tmp_path / "new", "a"), "has one log"),
        (ObjectDisk("s3", several, tmp_path / "new" / "s3"), "several logs"),
    ):
        with pytest.raises(UnknownLogFormat, match=match):
            wrong.list()
        with pytest.raises(UnknownLogFormat, match=match), wrong.transaction(Inserted()) as transaction:
            transaction.create("t/part.json", b"{}")
            transaction.commit()
    assert (keys(one), keys(several)) == before
    assert has_several_logs(several)
    assert not has_several_logs(one)
    assert not has_several_logs(MemoryStore("empty"))


def test_a_log_is_no_prefix(prefix: MemoryStore, tmp_path: Path) -> None:
    """Whoever takes `logs/<NAME>/` for a prefix would miss all blobs."""
    put(open_log(prefix, tmp_path, "a"), "t/x.parquet")

    class Below(MemoryStore):
        def get(self, key: str, byte_range: object = None) -> bytes:
            return prefix.get(f"logs/a/{key}")

        def list(self, text: str = "", *, start_after: str = ""):  # type: ignore[no-untyped-def]
            for info in NamedLogStore(prefix, "a").list(text, start_after=start_after):
                if not is_blob_key(info.key):
                    yield info

    with pytest.raises(UnknownLogFormat, match="several logs"):
        ObjectDisk("s3", Below(), tmp_path / "wrong").list()


def test_versions_that_know_one_log_a_prefix_refuse_it(
    prefix: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards P46: the mark is another one, and so is the format of every entry, also of those of a collection."""
    a, b = open_log(prefix, tmp_path, "a"), open_log(prefix, tmp_path, "b")
    put(a, "t/x.parquet")
    put(b, "t/x.parquet")
    OtherLog(a, "b").fence("gc/x.json")
    entries = [prefix.get(key) for key in keys(prefix) if "/operations/" in key]
    assert len(entries) == 3
    assert all(data.startswith(b'{"format":4,') for data in entries)
    monkeypatch.setattr(entry, "READABLE", frozenset((2, 3)))
    with pytest.raises(UsageError, match="has format 4"):
        entry.decode(entries[0], name="x")


def test_a_second_machine_with_the_name_of_a_log_is_refused(prefix: MemoryStore, tmp_path: Path) -> None:
    """Guards I6: it reads, and writes nothing. Who takes the place of a lost machine says so."""
    first = open_log(prefix, tmp_path, "a")
    put(first, "t/x.parquet")
    second = open_log(prefix, tmp_path / "other", "a")
    assert second.read("t/x.parquet") == BLOB
    with pytest.raises(Refused, match=r"logs/a/, is written by another machine") as refused:
        put(second, "t/y.parquet")
    assert "disk adopt a" in refused.value.hint
    assert second.revision == 1
    take_over(second)
    put(open_log(prefix, tmp_path / "other", "a"), "t/y.parquet")
    with pytest.raises(Refused, match="written by another machine"):
        put(open_log(prefix, tmp_path, "a"), "t/z.parquet")
    assert other_logs(second) == []


def test_who_was_replaced_learns_it(prefix: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_log(prefix, tmp_path, "a")
    put(first, "t/x.parquet")
    take_over(open_log(prefix, tmp_path / "other", "a"))
    monkeypatch.setattr("disks.object_disk.sharing.writers._LOOK_SECONDS", 0.0)
    with pytest.raises(Refused, match="written by another machine"):
        put(first, "t/y.parquet")


def test_the_log_tells_how_long_its_machine_keeps_things(prefix: MemoryStore, tmp_path: Path) -> None:
    """What the collections of others go by: it follows the configuration."""
    for seconds in (100, 100, 900):
        disk = open_log(prefix, tmp_path, "a", retention_seconds=seconds)
        put(disk, f"t/{disk.revision}.parquet")
        _, writer = newest_writer(disk.store)
        assert writer is not None
        assert writer.retention_seconds == seconds
    assert newest_writer(disk.store)[0] == 2, "one record a change"


def test_all_logs_of_a_prefix_name_one_store(prefix: MemoryStore, tmp_path: Path) -> None:
    """Guards P9: by whatever name it is reached; another prefix is another one, also with the same keys."""
    a, b = open_log(prefix, tmp_path, "a"), open_log(prefix, tmp_path, "b")
    assert store_identity(a) is None, "nobody wrote yet"
    put(a, "t/x.parquet")
    put(b, "t/x.parquet")
    again = MemoryStore("another name of it")
    again._objects = prefix._objects
    assert store_identity(a) == store_identity(b) == store_identity(open_log(again, tmp_path / "x", "a"))
    assert a.identity() != b.identity(), "each log is a disk of its own"
    other = MemoryStore("shared")
    put(c := open_log(other, tmp_path / "y", "a"), "t/x.parquet")
    assert store_identity(c) not in (None, store_identity(a))
    plain = ObjectDisk("s3", MemoryStore(), tmp_path / "plain")
    put(plain, "t/x.parquet")
    assert store_identity(plain) is None
    assert plain.log_name is None
    assert a.log_name == "a"


def test_what_a_part_uploads_is_one_set_wherever_its_files_go(prefix: MemoryStore, tmp_path: Path) -> None:
    """Guards P10: kept by link, rename and adopt; each directory of a transaction has its own."""
    a, b = open_log(prefix, tmp_path, "a"), open_log(prefix, tmp_path, "b")
    put(a, "t/p/1.parquet", "t/p/2.parquet", "t/q/1.parquet")
    with a.transaction(Inserted()) as transaction:
        transaction.create("t/r/part.json", b"{}")
        transaction.create("t/r/1.parquet", BLOB, blob_set="given")
        transaction.commit()
    p, q = a.stat("t/p/1.parquet").blob_set, a.stat("t/q/1.parquet").blob_set
    assert p is not None
    assert q is not None
    assert p != q
    assert a.stat("t/p/2.parquet").blob_set == p
    assert a.stat("t/r/part.json").blob_set is None, "it has no object"
    assert a.stat("t/r/1.parquet").blob_set == "given"
    with a.transaction(Moved(moved_to="x")) as transaction:
        transaction.link("t/p/1.parquet", "t/s/1.parquet")
        transaction.rename("t/p", "u/p")
        transaction.commit()
    assert a.stat("t/s/1.parquet").blob_set == a.stat("u/p/2.parquet").blob_set == p
    row = a.file_table.get("u/p/1.parquet")
    assert row is not None
    with b.transaction(Inserted()) as transaction:
        transaction.adopt(row)
        transaction.commit()
    assert b.stat("u/p/1.parquet").blob_set == p
    assert b.read("u/p/1.parquet") == BLOB
    again = open_log(prefix, tmp_path / "rebuilt", "b")
    assert again.stat("u/p/1.parquet").blob_set == p


def test_a_disk_with_a_prefix_for_itself_shares_nothing(tmp_path: Path) -> None:
    plain = ObjectDisk("s3", MemoryStore(), tmp_path)
    put(plain, "t/p/1.parquet")
    assert plain.stat("t/p/1.parquet").blob_set is None


def test_another_log_as_this_machine_sees_it(prefix: MemoryStore, tmp_path: Path) -> None:
    """It is read like any other and stays its owner's."""
    a, b = open_log(prefix, tmp_path, "a"), open_log(prefix, tmp_path, "b")
    put(a, "t/x.parquet")
    put(b, "t/y.parquet")
    assert other_logs(a) == ["b"]
    other = OtherLog(a, "b")
    assert [info.path for info in other.walk()] == ["t/y.parquet"]
    assert other.read("t/y.parquet") == BLOB
    assert other.fence("gc/x.json") == 2
    other.close()
    put(b, "t/z.parquet")
    assert b.revision == 3
    assert a.read("t/x.parquet") == BLOB, "the store of the disk stays open"
    missing = OtherLog(a, "nobody")
    assert list(missing.walk()) == []
    with pytest.raises(NotFound):
        missing.stat("t/x.parquet")


def test_the_first_commit_of_a_log_looks_at_what_it_adopts(prefix: MemoryStore, tmp_path: Path) -> None:
    """Guards I4, P5: no fence can be met in a log that nobody knew of yet."""
    a, b = open_log(prefix, tmp_path, "a"), open_log(prefix, tmp_path, "b")
    put(a, "t/x.parquet")
    row = a.file_table.get("t/x.parquet")
    assert row is not None
    assert row.key is not None
    with b.transaction(Inserted()) as transaction:
        transaction.adopt(row)
        prefix._objects.pop(row.key)
        with pytest.raises(Refused, match="is gone"):
            transaction.commit()
    assert log_names(prefix) == ["a", "b"], "the log was seen before anybody looked"
    with pytest.raises(Conflict), a.transaction(Inserted()) as transaction:
        transaction.create("t/x.parquet", BLOB)
        transaction.commit()
