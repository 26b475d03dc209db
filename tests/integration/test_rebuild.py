"""restore.rebuild.rebuild over real stores: lose the local state, get it back; go to any revision; never lose a thing.

Guards I6, I7, I8 and P37, P38, P39, P42, P45 against a directory and an S3 server.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.config import ObjectDiskConfig
from disks.garbage import listing
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.references import inventory
from disks.registry import open_disk
from disks.stores.address import StoreAddress
from disks.stores.wrappers.metered import MeteredStore
from disks.workers.runner import Remote, threads
from oplog.errors import UsageError
from oplog.kinds import Moved, OtherKind, Restored
from oplog.table_digest import TableDigest
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tests.integration.rebuilding import Opener, digest, lose_local_state, objects, put, remove, rows, work
from tests.integration.rebuilding import local as local
from tests.integration.rebuilding import opened as opened
from tests.integration.rebuilding import server as server


def test_everything_local_is_lost_and_comes_back(opened: Opener) -> None:
    """P38, I7: preview writes nothing; apply gives the same table and the same bytes; the counter goes on."""
    disk = opened("a")
    history = work(disk, random.Random(1), 20)
    content = {info.path: disk.read(info.path) for info in disk.walk()}
    before = objects(disk)
    lose_local_state(disk)

    again = opened("a")
    preview = restore(again, RebuildRequest())
    assert (preview.applied, preview.created, preview.removed) == (False, len(content), 0)
    assert preview.digest == history[20]
    assert not again.state_path.exists()

    result = restore(again, RebuildRequest(apply=True))
    assert (result.applied, result.revision, result.files) == (True, 20, len(content))
    assert result.missing_objects == []
    assert objects(again) == before
    assert digest(again) == history[20]
    assert {info.path: again.read(info.path) for info in again.walk()} == content
    put(again, "store/t0/next/file")
    assert again.revision == 21
    assert restore(again, RebuildRequest()).difference.empty


def test_others_list_and_the_same_is_rebuilt(
    local: ObjectDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7, I15: every row, every loss and every count, of random histories with links; also of old revisions."""
    monkeypatch.setitem(listing.cut_ranges.__kwdefaults__, "keys", 3)
    address = StoreAddress.of(ObjectDiskConfig(url=f"file://{tmp_path}/bucket/"))
    remote = Remote(threads(2), address)
    dice = random.Random(5)
    work(local, dice, 15)
    local.write_snapshot()
    work(local, dice, 6)
    named = sorted({row.key for row in rows(local).values() if row.key is not None})
    local.store.delete(named[1:3])
    torn = local.store.get(named[4])[:-1]
    local.store.delete([named[4]])
    local.store.put(named[4], torn, sha256=hashlib.sha256(torn).digest())
    local.store.put("r-notes", b"mine", sha256=hashlib.sha256(b"mine").digest())
    scopes: tuple[tuple[str, ...], ...] = ((), ("store/t1",))
    for revision, paths in itertools.product((None, 9, 21), scopes):
        request = RebuildRequest(revision=revision, paths=paths)
        here, there = restore(local, request), restore(local, request, remote=remote)
        assert there.requests.keys() == here.requests.keys()
        here.requests, here.seconds = there.requests, there.seconds
        assert there == here
        assert there.missing_objects or paths
    here = restore(local, RebuildRequest())
    assert {one.found_bytes is None for one in here.missing_objects} == {True, False}
    before = list(local.file_table.stored())
    lose_local_state(local)
    again = open_disk("cold", ObjectDiskConfig(url=f"file://{tmp_path}/bucket/"), tmp_path / "home")
    assert isinstance(again, ObjectDisk)
    assert restore(again, RebuildRequest(apply=True), remote=remote).missing_objects == here.missing_objects
    assert list(again.file_table.stored()) == before
    again.close()


def test_what_is_rebuilt_is_what_was_kept_row_by_row(opened: Opener) -> None:
    """I7: every column of every row, and the digest beside them, which commits after it go on from."""
    disk = opened("a")
    work(disk, random.Random(3), 12)
    disk.write_snapshot()
    work(disk, random.Random(4), 8)
    before = list(disk.file_table.stored())
    with disk.file_table.write() as view:
        view.count_digest()
        assert view.digest is not None
        expected = view.digest.hex
    lose_local_state(disk)

    again = opened("a")
    assert restore(again, RebuildRequest(apply=True)).applied
    assert list(again.file_table.stored()) == before
    with again.file_table.read() as table:
        remembered = table.state()["table_digest"]
    counted = TableDigest()
    for row in again.file_table.rows():
        counted.add(row)
    assert remembered == f"{again.revision} {expected}"
    assert counted.hex == expected


def test_the_budget_of_requests(opened: Opener) -> None:
    """At most ceil(objects / 1000) + commits since the snapshot + 5."""
    disk = opened("a")
    work(disk, random.Random(2), 18)
    lose_local_state(disk)
    again = opened("a")
    result = restore(again, RebuildRequest(apply=True))
    assert isinstance(again.store, MeteredStore)
    since_snapshot = 18 % 7
    assert sum(result.requests.values()) <= 1 + since_snapshot + 5
    assert result.requests["HEAD"] == 0
    assert result.requests["PUT"] == 0


def test_every_revision_comes_back_as_it_was(opened: Opener) -> None:
    """I7, P42: drops, renames and links included."""
    disk = opened("a")
    history = work(disk, random.Random(3), 16)
    before = objects(disk)
    for revision, wanted in history.items():
        assert restore(disk, RebuildRequest(revision=revision)).digest == wanted, revision
    assert objects(disk) == before
    assert disk.revision == 16

    dice = random.Random(4)
    for revision in (*dice.sample(range(1, 16), 4), 16):
        result = restore(disk, RebuildRequest(revision=revision, apply=True, actor="test", reason="as it was"))
        assert digest(disk) == history[revision]
        assert result.applied
        for info in disk.walk():
            assert len(disk.read(info.path)) == info.size_bytes
    assert disk.revision > 16

    fresh = opened("b")
    assert digest(fresh) == history[16]
    entry = list(fresh.entries())[-1].commit
    assert isinstance(entry.kind, Restored)
    assert (entry.kind.word, entry.actor, entry.reason) == ("restore", "test", "as it was")
    assert entry.kind.revision == 16
    epochs = [found.commit.kind.epoch for found in fresh.entries() if isinstance(found.commit.kind, Restored)]
    assert all(epochs)
    assert len(set(epochs)) == len(epochs) == 5
    assert [found.commit.revision for found in fresh.entries()] == list(range(1, fresh.revision + 1))
    assert inventory(fresh.store.list()).pins == ()


def test_one_table_goes_back_and_the_others_stay(opened: Opener) -> None:
    """P37."""
    disk = opened("a")
    put(disk, "store/t0/p1/f", "store/t1/p1/f")
    put(disk, "store/t0/p2/f", "store/t1/p2/f")
    remove(disk, "store/t0/p1", "store/t1/p1")
    result = restore(disk, RebuildRequest(revision=1, paths=["store/t0"], apply=True))
    assert (result.created, result.removed, result.unchanged, result.files) == (1, 1, 0, 1)
    assert sorted(rows(disk)) == ["store/t0/p1/f", "store/t1/p2/f"]


def test_going_back_twice_and_forward_again(local: ObjectDisk) -> None:
    """P39: no revision appears twice, and going back is itself undone by going back."""
    put(local, "a/1")
    put(local, "a/2")
    restore(local, RebuildRequest(revision=1, apply=True))
    put(local, "a/3")
    restore(local, RebuildRequest(revision=2, apply=True))
    assert sorted(rows(local)) == ["a/1", "a/2"]
    restore(local, RebuildRequest(revision=4, apply=True))
    assert sorted(rows(local)) == ["a/1", "a/3"]
    assert local.revision == 6
    assert restore(local, RebuildRequest(revision=4, apply=True)).commit is None
    assert local.revision == 6


def test_parts_that_were_moved_here_later_are_pointed_out(local: ObjectDisk) -> None:
    """I1: going back takes away the only copy of a part that lay on another disk at the time."""
    put(local, "t/p1/f")
    with local.transaction(Moved()) as transaction:
        transaction.create("t/p2/f", b"x")
        transaction.commit()
    put(local, "t/p3/f")
    preview = restore(local, RebuildRequest(revision=1))
    assert preview.moved_in == ["t/p2"]
    assert "revision 3 still has them" in preview.notes[0]
    assert restore(local, RebuildRequest(revision=2)).moved_in == []


def test_what_was_frozen_stays(local: ObjectDisk) -> None:
    """I4, I8: going back to before the freeze, and a collection after that, leave what only the freeze still names."""
    put(local, "t/p0/f")
    put(local, "t/p1/f")
    with local.transaction(OtherKind("freeze")) as transaction:
        transaction.link("t/p1/f", "shadow/1/t/p1/f")
        transaction.commit()
    assert restore(local, RebuildRequest(revision=1, apply=True)).removed == 1
    later = datetime.now(UTC) + timedelta(days=2)
    assert (
        collect(local, GcRules(delete=True, max_delete_fraction=1.0, compact_after_commits=1), now=later).refused
        is None
    )
    assert sorted(rows(local)) == ["shadow/1/t/p1/f", "t/p0/f"]
    assert local.read("shadow/1/t/p1/f") == b"content of t/p1/f"
    assert restore(local, RebuildRequest(revision=local.revision, paths=["shadow/1"])).removed == 0


def test_revision_zero_is_the_empty_disk(local: ObjectDisk) -> None:
    put(local, "a/1")
    restore(local, RebuildRequest(revision=0, apply=True))
    assert rows(local) == {}
    assert local.revision == 2


def test_as_it_was_at_a_time(local: ObjectDisk) -> None:
    start = datetime.now(UTC)
    put(local, "a/1")
    put(local, "a/2")
    between = datetime.now(UTC)
    put(local, "a/3")
    assert restore(local, RebuildRequest(time=between)).revision == 2
    assert restore(local, RebuildRequest(time=start)).revision == 0
    assert restore(local, RebuildRequest(time=datetime.now(UTC))).revision == 3
    assert restore(local, RebuildRequest(time=between, apply=True)).commit == 4
    assert sorted(rows(local)) == ["a/1", "a/2"]
    local.write_snapshot()
    put(local, "a/4")
    assert restore(local, RebuildRequest(time=between)).revision == 2
    assert restore(local, RebuildRequest(time=datetime.now(UTC))).revision == 5


def test_a_time_without_zone_or_both_ways_at_once_are_mistakes(local: ObjectDisk) -> None:
    put(local, "a/1")
    with pytest.raises(UsageError):
        restore(local, RebuildRequest(time=datetime(2026, 1, 1)))
    with pytest.raises(UsageError):
        restore(local, RebuildRequest(revision=1, time=datetime.now(UTC)))


@pytest.mark.parametrize("damage", ["stale", "altered", "truncated", "zero", "of another bucket", "in use"])
def test_whatever_the_cache_is_it_is_replaced(tmp_path: Path, damage: str) -> None:
    """I7, P45."""
    config = ObjectDiskConfig(url=f"file://{tmp_path}/bucket/")
    disk = open_disk("cold", config, tmp_path / "home")
    writer = open_disk("cold", config, tmp_path / "writer")
    assert isinstance(disk, ObjectDisk)
    assert isinstance(writer, ObjectDisk)
    put(disk, "a/1", "a/2")
    put(writer, "a/3")
    match damage:
        case "altered":
            with disk.file_table.write() as view:
                view.remove("a/1")
        case "of another bucket":
            with disk.file_table.write() as view:
                view.remember(store="s3://elsewhere/")
    if damage != "in use":
        disk.close()
        for name in ("files.db-wal", "files.db-shm"):
            (disk.state_path / name).unlink(missing_ok=True)
    match damage:
        case "truncated":
            with disk.table_path.open("r+b") as file:
                file.truncate(5000)
        case "zero":
            disk.table_path.write_bytes(b"")
    again = open_disk("cold", config, tmp_path / "home")
    assert isinstance(again, ObjectDisk)
    kept = again.table_path.read_bytes()
    preview = restore(again, RebuildRequest())
    assert preview.created > 0 or damage == "in use"
    assert again.table_path.read_bytes() == kept
    assert restore(again, RebuildRequest(apply=True)).applied
    assert digest(again) == digest(writer)
    assert digest(disk) == digest(writer) or damage != "in use"
    assert restore(again, RebuildRequest()).difference.empty
