"""Random work, and then every revision that has to be restorable is: rebuilt, queried, and gone back to.

Guards I4 (gc takes nothing a retained revision needs), I6, I7 and P38, P42, on two stores. Time is the store's, and a
number here: a day passes in no time.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import DiskAsOf, ObjectDisk
from disks.stores.base import ObjectStore
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from oplog import pins
from oplog.errors import AlreadyExists, Conflict
from oplog.kinds import OtherKind
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from restore.transfer.transfer import restore_from
from tests.crash import mutants
from tests.property.ageing import START, Ageing
from tests.property.disk_operations import Operations, content, draw_operations, fill
from tests.turns import examples

RETENTION = timedelta(hours=72)
"""Longer than the guard interval of gc, which would keep young blobs by itself."""


class RestoreMachine(RuleBasedStateMachine):
    """One disk, and what it held at every revision."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="frostline-restore-"))
        self.store = Ageing(self.bucket())
        self.machines = 0
        self.disk = self.open()
        self.history: dict[int, dict[str, bytes]] = {0: {}}
        self.committed: dict[int, datetime] = {0: START}
        self.pinned: set[int] = set()

    def bucket(self) -> ObjectStore:
        raise NotImplementedError

    def open(self) -> ObjectDisk:
        self.machines += 1
        return ObjectDisk("s3", self.store, self.directory / str(self.machines), snapshot_every_commits=5)

    def teardown(self) -> None:
        self.disk.close()
        shutil.rmtree(self.directory)

    def record(self) -> None:
        if self.disk.revision not in self.history:
            self.history[self.disk.revision] = content(self.disk)
            self.committed[self.disk.revision] = self.store.now

    def record_fences(self) -> None:
        """Those that a collection has committed: they change no file."""
        self.disk.refresh()
        newest = max(self.history)
        for revision in range(newest + 1, self.disk.revision + 1):
            self.history[revision] = self.history[newest]
            self.committed[revision] = self.store.now

    def kept(self) -> list[int]:
        """Revisions that were current within the retention, and pinned ones. An empty log keeps none."""
        horizon = self.store.now - RETENTION
        newest = max(self.history)
        current = [one for one in self.history if one == newest or self._followed(one) > horizon]
        return sorted({*current, *self.pinned})

    def _followed(self, revision: int) -> datetime:
        """When the next one came."""
        return self.committed[revision + 1]

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.change(data)

    @rule(data=st.data(), hours=st.integers(0, 20))
    def change(self, data: st.DataObject, hours: int = 0) -> None:
        self.store.now += timedelta(hours=hours)
        operations: Operations = draw_operations(data, self.history[max(self.history)])
        with contextlib.suppress(Conflict), self.disk.transaction(OtherKind("work")) as transaction:
            fill(transaction, operations)
            transaction.commit()
        self.record()

    @rule()
    def snapshot(self) -> None:
        self.disk.write_snapshot()

    @rule()
    def lose_the_local_state(self) -> None:
        self.disk.close()
        self.disk = self.open()

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        revision = data.draw(st.sampled_from(self.kept()))
        if revision > 0:
            with contextlib.suppress(AlreadyExists):
                pins.create(self.store, f"user-{revision}", revision, holder="test")
            self.pinned.add(revision)

    @rule(hours=st.integers(0, 60))
    def gc(self, hours: int) -> None:
        self.store.now += timedelta(hours=hours)
        report = collect(
            self.disk,
            GcRules(delete=True, retention=RETENTION, max_delete_fraction=1.0, compact_after_commits=1),
            now=self.store.now,
        )
        assert report.refused is None or "no log entry" in report.refused
        self.record_fences()

    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        revision = data.draw(st.sampled_from(self.kept()))
        restore(self.disk, RebuildRequest(revision=revision, apply=True))
        self.record()
        assert self.history[self.disk.revision] == self.history[revision]

    @rule(data=st.data())
    def come_over(self, data: st.DataObject) -> None:
        """Into another bucket, at any revision that is kept."""
        revision = data.draw(st.sampled_from(self.kept()))
        if revision == 0:
            return
        elsewhere = ObjectDisk("copy", MemoryStore("copy"), self.directory / f"copy{self.machines}-{revision}")
        restore_from(elsewhere, self.store, RebuildRequest(revision=revision, apply=True))
        assert content(elsewhere) == self.history[revision]
        elsewhere.close()
        shutil.rmtree(elsewhere.state_path)

    @invariant()
    def a_kept_revision_is_as_it_was(self) -> None:
        """A new machine rebuilds the newest; the past gives an older one, with its bytes."""
        kept = self.kept()
        fresh = self.open()
        try:
            assert content(fresh) == self.history[kept[-1]]
            for revision in {kept[0], kept[len(kept) // 2]} - {0}:
                wanted = self.history[revision]
                past = DiskAsOf(self.disk, revision)
                assert content(past) == wanted
                past.close()
                preview = restore(self.disk, RebuildRequest(revision=revision))
                assert (preview.files, preview.missing_objects) == (len(wanted), [])
        finally:
            fresh.close()
            shutil.rmtree(fresh.state_path, ignore_errors=True)

    @invariant()
    def revisions_are_dense(self) -> None:
        """I6, P39: whatever was restored, every revision is there once."""
        assert sorted(self.history) == list(range(len(self.history)))


class InMemory(RestoreMachine):
    def bucket(self) -> ObjectStore:
        return MemoryStore("history")


class InDirectory(RestoreMachine):
    def bucket(self) -> ObjectStore:
        return DirectoryStore(self.directory / "bucket")


def _settings(most: int) -> settings:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    phases = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain) or not mutants.active()]
    return settings(
        max_examples=examples(most) if not mutants.active() else 50,
        stateful_step_count=15,
        deadline=None,
        suppress_health_check=checks,
        phases=phases,
    )


TestInMemory = InMemory.TestCase
TestInMemory.settings = _settings(8)
TestInDirectory = InDirectory.TestCase
TestInDirectory.settings = _settings(4)


def test_the_revision_that_the_retention_began_with_is_kept(tmp_path: Path) -> None:
    """I4: it was current for two hours of the retention, though it was committed, and is the oldest, before."""
    store = Ageing(MemoryStore("edge"))
    disk = ObjectDisk("s3", store, tmp_path)
    with disk.transaction(OtherKind("work")) as first:
        first.create("table/data", b"early")
        first.commit()
    store.now += timedelta(hours=10)
    with disk.transaction(OtherKind("work")) as second:
        second.remove("table/data")
        second.create("table/other", b"late")
        second.commit()
    store.now += RETENTION - timedelta(hours=2)
    collect(disk, GcRules(delete=True, retention=RETENTION, max_delete_fraction=1.0), now=store.now)
    past = DiskAsOf(disk, 1)
    assert content(past) == {"table/data": b"early"}
    past.close()
    disk.close()


def test_what_came_and_went_within_the_retention_is_kept(tmp_path: Path) -> None:
    """I4: neither the oldest revision that is kept nor the newest names it."""
    store = Ageing(MemoryStore("edge"))
    disk = ObjectDisk("s3", store, tmp_path)
    for removed, made in ((None, "table/first"), ("table/first", "table/between"), ("table/between", "table/last")):
        with disk.transaction(OtherKind("work")) as transaction:
            if removed:
                transaction.remove(removed)
            transaction.create(made, made.encode())
            transaction.commit()
        store.now += timedelta(hours=1)
    store.now = START + RETENTION
    collect(disk, GcRules(delete=True, retention=RETENTION, max_delete_fraction=1.0), now=store.now)
    past = DiskAsOf(disk, 2)
    assert content(past) == {"table/between": b"table/between"}
    past.close()
    disk.close()
