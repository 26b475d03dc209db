"""Undo where it must not, or cannot, take a commit back: bytes that are gone, doubt, and other writers.

Guards I1 (a part on exactly one disk), I2 (all or nothing), I6, I7 (the past stays as it was), P37, P39 and P42.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from disks.garbage.collect import INTENTS_PREFIX
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.pending_deletes import Announcement
from oplog import pins
from oplog.errors import Conflict, DiskUnreachable, NotFound, Refused
from oplog.kinds import OtherKind
from oplog.revision import commit_key
from restore.history.undo import preview, undo
from tests.crash.site import TABLE
from tests.unit.restore.history.undoing import config, create, drop_january, insert, keys, move, refused, take_back
from tests.unit.restore.history.undoing import disk as disk
from tests.unit.restore.history.undoing import store as store
from tiering.engine.store import Store


class TestBytes:
    def test_objects_that_are_gone(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        insert(store, 0)
        drop_january(store)
        blob = next(item.key for item in disk.store.list() if "-file-" in item.key)
        disk.store.delete([blob])
        refused(store, disk.revision, "are gone from the bucket", blob)

    def test_objects_that_gc_has_announced(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        insert(store, 0)
        drop_january(store)
        blobs = tuple(item.key for item in disk.store.list() if "-file-" in item.key)
        data = msgspec.json.encode(Announcement(time=datetime.now(UTC), keys=blobs))
        from hashlib import sha256

        disk.store.put(f"{INTENTS_PREFIX}{'0' * 32}.json", data, sha256=sha256(data).digest())
        refused(store, disk.revision, "a collection is deleting")

    def test_the_past_is_pinned_meanwhile(
        self, store: Store, disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P33: a collection that begins meanwhile keeps what is about to be named again."""
        create(store)
        insert(store, 0)
        drop_january(store)
        dropped = disk.revision
        seen: list[int] = []
        original = ObjectDisk._commit

        def commit(self: ObjectDisk, draft: object, basis: object) -> int:
            seen.extend(pin.revision for pin in pins.list_pins(self.store))
            return original(self, draft, basis)  # type: ignore[arg-type]

        monkeypatch.setattr(ObjectDisk, "_commit", commit)
        take_back(store)
        assert seen == [dropped - 1]
        live = [pin for pin in pins.list_pins(disk.store) if pin.until is None or pin.until > datetime.now(UTC)]
        assert live == [], "released"

    def test_a_revision_that_is_not_kept(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        insert(store, 0)
        insert(store, 1000)
        drop_january(store)
        assert disk.revision == 4
        disk.store.delete([commit_key(revision) for revision in (1, 2)])
        with pytest.raises(NotFound, match=r"revision 2 .* is not kept") as error:
            undo(store.context, disk, 2)
        assert "can be restored: " in error.value.hint
        with pytest.raises(NotFound, match="what it was before, revision 3") as error:
            undo(store.context, disk, 4)
        with pytest.raises(NotFound):
            undo(store.context, disk, 99)


class TestUncertain:
    def test_a_broken_part_may_hold_the_rows(self, store: Store, disk: ObjectDisk, tmp_path: Path) -> None:
        """I15: what cannot be read is not taken for absent."""
        create(store, "hot_cold")
        insert(store, 0)
        move(store, "s3")
        drop_january(store)
        dropped = disk.revision
        (other,) = insert(store, 1000)
        path = tmp_path / "one" / "ssd" / store.definition(TABLE).part_directory(other) / "part.json"
        good = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(b"")
        store.refresh()
        with pytest.raises(Refused, match="it is unknown whether"):
            undo(store.context, disk, dropped)
        path.write_bytes(good)
        store.refresh()
        take_back(store, dropped)

    def test_a_disk_that_cannot_be_reached_may_hold_them(
        self, store: Store, disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create(store, "all")
        insert(store, 0)
        move(store, "s3")
        drop_january(store)
        monkeypatch.setattr(type(store.disk("far")), "unreachable", property(lambda self: "503" * (self.name == "far")))
        with pytest.raises(DiskUnreachable, match="needs disk far"):
            undo(store.context, disk, disk.revision)

    def test_a_disk_that_is_read_only(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        insert(store, 0)
        disk.read_only = True
        assert preview(store.context, disk, disk.revision).parts_removed
        with pytest.raises(Refused, match="read-only"):
            undo(store.context, disk, disk.revision)
        assert list(pins.list_pins(disk.store)) == []


class TestOtherWriters:
    def test_one_that_comes_between(
        self, store: Store, disk: ObjectDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """I6: the plan was made for a revision that is not the newest any more; unrelated commits are taken in."""
        create(store)
        insert(store, 0)
        revision = disk.revision
        with Store.open(config(tmp_path, "two"), actor="bob@there") as other:
            original = ObjectDisk._commit
            waiting = [True]

            def commit(self: ObjectDisk, draft: object, basis: object) -> int:
                if self is disk and waiting:
                    waiting.clear()
                    insert(other, 1000)
                return original(self, draft, basis)  # type: ignore[arg-type]

            monkeypatch.setattr(ObjectDisk, "_commit", commit)
            take_back(store, revision)
        store.refresh()
        assert keys(store) == list(range(1000, 1040))

    def test_one_that_changes_the_same_part(
        self, store: Store, disk: ObjectDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever comes first wins; the undo looks again and finds nothing, or an objection."""
        create(store)
        insert(store, 0)
        revision = disk.revision
        with Store.open(config(tmp_path, "two"), actor="bob@there") as other:
            original = ObjectDisk._commit
            waiting = [True]

            def commit(self: ObjectDisk, draft: object, basis: object) -> int:
                if self is disk and waiting:
                    waiting.clear()
                    drop_january(other)
                return original(self, draft, basis)  # type: ignore[arg-type]

            monkeypatch.setattr(ObjectDisk, "_commit", commit)
            planned, done = undo(store.context, disk, revision)
        assert done is None
        assert "nothing to undo" in planned.done

    def test_ever_new_writers_end_in_a_conflict(
        self, store: Store, disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create(store)
        insert(store, 0)
        revision = disk.revision
        committing = ObjectDisk._commit

        def commit(self: ObjectDisk, draft: Any, basis: Any) -> int:
            with monkeypatch.context() as patch:  # the others' commits go through
                patch.setattr(ObjectDisk, "_commit", committing)
                with disk.transaction(OtherKind("work")) as transaction:
                    transaction.create(f"elsewhere/{disk.revision}", b"x")
                    transaction.commit()
            raise Conflict("another writer")

        monkeypatch.setattr(ObjectDisk, "_commit", commit)
        with pytest.raises(Conflict, match="kept changing"):
            undo(store.context, disk, revision)

    def test_a_conflict_with_nobody_is_no_reason_to_run_it_again(
        self, store: Store, disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create(store)
        insert(store, 0)

        def commit(self: ObjectDisk, draft: object, basis: object) -> int:
            raise Conflict("store/x does not exist")

        monkeypatch.setattr(ObjectDisk, "_commit", commit)
        with pytest.raises(Refused, match="cannot be undone: store/x does not exist"):
            undo(store.context, disk, disk.revision)
