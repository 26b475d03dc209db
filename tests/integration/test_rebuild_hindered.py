"""restore.rebuild.rebuild with something in its way: lost objects, other writers, wrong clocks, its own death.

Guards I6, I7, I8 and P37, P38, P39, P42, P45 against a directory and an S3 server.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.config import ObjectDiskConfig
from disks.effects import set_hook
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.pending_deletes import Announcement
from disks.object_disk.references import INTENTS_PREFIX, inventory
from disks.registry import open_disk
from oplog import pins
from oplog.errors import Locked, NotFound, Refused
from restore.rebuild.held_revision import pinned
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tests.integration.rebuilding import Opener, digest, lose_local_state, objects, put, remove, rows
from tests.integration.rebuilding import local as local
from tests.integration.rebuilding import opened as opened
from tests.integration.rebuilding import server as server


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
    with pytest.raises(Refused, match="the store differ by 2:00:00"):
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
