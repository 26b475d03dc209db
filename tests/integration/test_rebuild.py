"""restore.rebuild.rebuild over real stores: lose the local state, get it back; go to any revision; never lose a thing.

Guards I6, I7, I8 and P37, P38, P39, P42, P45 against a directory and an S3 server.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.config import ObjectDiskConfig
from disks.effects import set_hook
from disks.garbage import listing
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.pending_deletes import Announcement
from disks.object_disk.references import INTENTS_PREFIX, inventory
from disks.registry import open_disk
from disks.stores.address import StoreAddress
from disks.stores.wrappers.metered import MeteredStore
from disks.workers.runner import LocalRunner, Remote
from oplog import pins
from oplog.errors import Locked, NotFound, Refused, UsageError
from oplog.kinds import Dropped, Inserted, Moved, OtherKind, Restored
from oplog.replay import FileRow
from oplog.table_digest import TableDigest
from restore.rebuild.held_revision import pinned
from restore.rebuild.plan import table_digest
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tests.servers import Server, ministack

Opener = Callable[[str], ObjectDisk]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ministack() as running:
        yield running


@pytest.fixture(params=["directory", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same bucket as seen from machines with separate local state."""
    if request.param == "directory":
        (tmp_path / "bucket").mkdir()
        config = ObjectDiskConfig(url=f"file://{tmp_path}/bucket/prefix/", snapshot_every_commits=7)
    else:
        server: Server = request.getfixturevalue("server")
        config = server.disk(f"s3://{server.new_bucket()}/prefix/", snapshot_every_commits=7)
    disks: list[ObjectDisk] = []

    def open_on(machine: str) -> ObjectDisk:
        disk = open_disk("cold", config, tmp_path / machine)
        assert isinstance(disk, ObjectDisk)
        disks.append(disk)
        return disk

    yield open_on
    for disk in disks:
        disk.close()


@pytest.fixture
def local(tmp_path: Path) -> ObjectDisk:
    """A disk in a directory, for what does not depend on the store."""
    disk = open_disk("cold", ObjectDiskConfig(url=f"file://{tmp_path}/bucket/"), tmp_path / "home")
    assert isinstance(disk, ObjectDisk)
    return disk


def rows(disk: ObjectDisk) -> dict[str, FileRow]:
    return {row.path: row for row in disk.file_table.rows()}


def digest(disk: ObjectDisk) -> str:
    return table_digest(rows(disk))


def put(disk: ObjectDisk, *paths: str) -> None:
    with disk.transaction(Inserted()) as transaction:
        for path in paths:
            transaction.create(path, f"content of {path}".encode())
        transaction.commit()


def remove(disk: ObjectDisk, *paths: str) -> None:
    with disk.transaction(Dropped()) as transaction:
        for path in paths:
            transaction.remove(path)
        transaction.commit()


def work(disk: ObjectDisk, dice: random.Random, commits: int) -> dict[int, str]:
    """Random commits of every operation; the digest of the table at each revision."""
    history = {0: table_digest({})}
    for number in range(commits):
        parts = sorted({path.rsplit("/", 1)[0] for path in rows(disk)})
        with disk.transaction(OtherKind("work")) as transaction:
            name = f"store/t{dice.randrange(3)}/p{number}"
            match dice.randrange(6) if parts else 0:
                case 3:
                    transaction.remove(dice.choice(parts))
                case 4:
                    transaction.rename(dice.choice(parts), name)
                case 5:
                    transaction.link(dice.choice(sorted(rows(disk))), f"{name}/linked.parquet")
                case _:
                    for index in range(dice.randrange(1, 4)):
                        transaction.create(f"{name}/data-{index}.parquet", dice.randbytes(dice.randrange(0, 300)))
                    transaction.create(f"{name}/part.json", b'{"number": %d}' % number)
            transaction.commit()
        history[disk.revision] = digest(disk)
    return history


def lose_local_state(disk: ObjectDisk) -> None:
    disk.close()
    shutil.rmtree(disk.state_path)


def objects(disk: ObjectDisk) -> dict[str, int]:
    return {info.key: info.size_bytes for info in disk.store.list()}


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
    remote = Remote(LocalRunner(2), address)
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


def test_a_revision_that_never_was_or_is_gone(local: ObjectDisk) -> None:
    """The error names what can be restored."""
    for number in range(5):
        put(local, f"a/{number}")
        if number == 3:
            local.write_snapshot()
    for revision in (6, -1):
        with pytest.raises(NotFound):
            restore(local, RebuildRequest(revision=revision))
    with pytest.raises(NotFound):
        restore(local, RebuildRequest(revision=6, apply=True))
    later = datetime.now(UTC) + timedelta(days=2)
    assert collect(local, GcRules(delete=True, compact_after_commits=1), now=later).refused is None
    with pytest.raises(NotFound) as gone:
        restore(local, RebuildRequest(revision=2))
    assert "5" in gone.value.hint
    with pytest.raises(NotFound):
        restore(local, RebuildRequest(time=datetime.now(UTC) - timedelta(days=30)))
    assert restore(local, RebuildRequest(revision=5)).files == 5
    assert inventory(local.store.list()).pins == ()


def test_missing_objects_are_listed_and_nothing_is_applied(opened: Opener) -> None:
    """I3, exit 13: what is gone is named; other tables can still go back."""
    disk = opened("a")
    put(disk, "store/t0/p1/f", "store/t1/p1/f")
    lost = disk.stat("store/t0/p1/f").key
    assert lost is not None
    remove(disk, "store/t0/p1", "store/t1/p1")
    disk.store.delete([lost])
    preview = restore(disk, RebuildRequest(revision=1))
    assert [(entry.key, entry.path) for entry in preview.missing_objects] == [(lost, "store/t0/p1/f")]
    with pytest.raises(Refused) as refused:
        restore(disk, RebuildRequest(revision=1, apply=True))
    assert lost in refused.value.message
    assert disk.revision == 2
    assert inventory(disk.store.list()).pins == ()
    assert restore(disk, RebuildRequest(revision=1, paths=["store/t1"], apply=True)).applied
    assert sorted(rows(disk)) == ["store/t1/p1/f"]


def test_a_lost_object_does_not_stop_the_cache_from_coming_back(local: ObjectDisk) -> None:
    """I15: loud, and everything else is there."""
    put(local, "a/1", "a/2")
    key = local.stat("a/1").key
    assert key is not None
    local.store.delete([key])
    lose_local_state(local)
    result = restore(local, RebuildRequest(apply=True))
    assert [(entry.key, entry.path) for entry in result.missing_objects] == [(key, "a/1")]
    assert result.applied
    assert local.read("a/2") == b"content of a/2"


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


def test_an_empty_bucket_does_not_wipe_a_cache(local: ObjectDisk, tmp_path: Path) -> None:
    """A wrong url, or a bucket that was emptied."""
    put(local, "a/1")
    for path in (tmp_path / "bucket").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(Refused):
        restore(local, RebuildRequest(apply=True))
    assert restore(local, RebuildRequest()).removed == 1


def test_a_read_only_disk_can_be_looked_at(tmp_path: Path, local: ObjectDisk) -> None:
    put(local, "a/1")
    put(local, "a/2")
    before = objects(local)
    reader = ObjectDisk("cold", local.store, tmp_path / "reader", read_only=True)
    assert restore(reader, RebuildRequest(revision=1)).removed == 1
    assert restore(reader, RebuildRequest(apply=True)).applied
    with pytest.raises(Refused):
        restore(reader, RebuildRequest(revision=1, apply=True))
    assert objects(local) == before


def test_a_collection_under_way_is_waited_for(local: ObjectDisk) -> None:
    """P33: what a running collection announced cannot be restored; an abandoned announcement counts for an hour."""
    import hashlib

    import msgspec

    put(local, "a/1")
    key = local.stat("a/1").key
    assert key is not None
    remove(local, "a/1")
    data = msgspec.json.encode(Announcement(time=datetime.now(UTC), keys=(key,)))
    local.store.put(f"{INTENTS_PREFIX}x.json", data, sha256=hashlib.sha256(data).digest())
    with pytest.raises(Locked):
        restore(local, RebuildRequest(revision=1, apply=True))
    assert inventory(local.store.list()).pins == ()
    local.store.delete([f"{INTENTS_PREFIX}x.json"])
    assert restore(local, RebuildRequest(revision=1, apply=True)).applied


def test_it_pins_what_it_restores(local: ObjectDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """P33: a collection that runs in the middle of a restore keeps everything the restore needs."""
    put(local, "a/1")
    remove(local, "a/1")
    put(local, "a/2")
    reports = []

    def collecting(disk: ObjectDisk) -> None:
        later = datetime.now(UTC) + timedelta(hours=30)
        monkeypatch.setattr("disks.garbage.live_references.is_live", lambda pin, now: True)
        reports.append(collect(disk, GcRules(delete=True, max_delete_fraction=1.0, compact_after_commits=1), now=later))
        monkeypatch.undo()

    import restore.rebuild.rebuild as module

    checked = module.check_objects

    def racing(*arguments: object) -> None:
        checked(*arguments)  # type: ignore[arg-type]
        collecting(local)

    monkeypatch.setattr(module, "check_objects", racing)
    assert restore(local, RebuildRequest(revision=1, apply=True)).applied
    assert reports[0].refused is None
    assert reports[0].deleted == 0
    assert local.read("a/1") == b"content of a/1"


def test_no_way_back_begins_with_a_wrong_clock(local: ObjectDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pin would end when others do not expect it, and an announcement of gc would look as if it were over (I4)."""
    put(local, "t/a")
    put(local, "t/b")
    before = {info.key for info in local.store.list()}
    monkeypatch.setattr(type(local.store), "clock_skew", lambda store: timedelta(hours=-2))
    with pytest.raises(Refused, match="clocks of this machine and of the store differ by 2:00:00"):
        restore(local, RebuildRequest(revision=1, apply=True))
    assert {info.key for info in local.store.list()} == before


def test_a_restore_that_outlasts_its_pin_renews_it(local: ObjectDisk) -> None:
    """P33: at every moment a live pin holds the revision, and none is left in the end."""
    put(local, "a/1")
    put(local, "a/2")
    with pinned(local, 1, "test", "slow", lifetime=timedelta(seconds=3)) as held:
        assert held is not None
        first = {pin.name for pin in pins.list_pins(local.store)}
        left = first
        while left:  # one that is not renewed would run out
            found = pins.list_pins(local.store)
            live = [pin for pin in found if pin.until is None or pin.until > datetime.now(UTC)]
            assert [pin.revision for pin in live][:1] == [1]
            left = first & {pin.name for pin in found}
            time.sleep(0.02)
        held.check()
    assert pins.list_pins(local.store) == []


def test_a_pin_that_could_not_be_renewed_stops_the_restore(local: ObjectDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """P33: what gc may have taken is not restored."""
    put(local, "a/1")
    put(local, "a/2")
    monkeypatch.setattr("restore.rebuild.held_revision.PIN_LIFETIME", timedelta(seconds=-1))
    with pytest.raises(Refused, match="ran out"):
        restore(local, RebuildRequest(revision=1, apply=True))
    assert local.revision == 2
    assert inventory(local.store.list()).pins == ()


def test_another_writer_commits_in_the_middle(
    local: ObjectDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P40, P43: its new files survive, and what it took away does not fail the restore."""
    put(local, "t/1/f", "t/2/f")
    put(local, "t/3/f")
    other = ObjectDisk("cold", local.store, tmp_path / "other")
    import restore.rebuild.rebuild as module

    compare = module.compare
    raced = []

    def racing(*arguments: object, **options: object):  # type: ignore[no-untyped-def]
        found = compare(*arguments, **options)  # type: ignore[arg-type]
        if len(raced) < 2:
            raced.append(True)
            if len(raced) == 2:
                put(other, "t/new/f")
                remove(other, "t/3/f", "t/1/f")
        return found

    monkeypatch.setattr(module, "compare", racing)
    restore(local, RebuildRequest(revision=1, paths=["t/1", "t/2", "t/3"], apply=True))
    local.refresh()
    assert sorted(rows(local)) == ["t/1/f", "t/2/f", "t/new/f"]


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("revision", [None, 2])
def test_dying_at_every_effect_and_running_again(tmp_path: Path, revision: int | None) -> None:
    """I7: a killed restore is run again, to the same result; nothing is left but a pin that runs out."""
    step = 0
    while True:
        config = ObjectDiskConfig(url=f"file://{tmp_path}/{step}/bucket/")
        disk = open_disk("cold", config, tmp_path / str(step))
        assert isinstance(disk, ObjectDisk)
        put(disk, "a/1")
        put(disk, "a/2")
        wanted = digest(disk)
        remove(disk, "a/1")
        if revision is None:
            wanted = digest(disk)
            lose_local_state(disk)
        count = 0

        def die(when: str, name: str, arguments: tuple[object, ...], step: int = step) -> None:
            nonlocal count
            if when == "before":
                count += 1
                if count > step:
                    raise Died

        set_hook(die)
        try:
            restore(disk, RebuildRequest(revision=revision, apply=True))
        except Died:
            pass
        finally:
            set_hook(None)
        again = open_disk("cold", config, tmp_path / str(step))
        assert isinstance(again, ObjectDisk)
        restore(again, RebuildRequest(revision=revision, apply=True))
        assert digest(again) == wanted
        assert again.read("a/2") == b"content of a/2"
        assert len(pins.list_pins(again.store)) <= 1
        assert [found.commit.revision for found in again.entries()] == list(range(1, again.revision + 1))
        if count <= step:
            break
        step += 1
    assert step > 3
