"""Random work of three machines with a log each on one prefix, against a replay: what a log names within its machine's
retention, what a pin keeps, what a mark holds, and what is younger than the guard interval is never deleted.

Guards I4, I5, P1, P5, P13. Time is the store's, and a number here."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from disks.garbage.candidate_references import references_among
from disks.garbage.collect import collect
from disks.garbage.live_references import collect_references
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.references import inventory
from disks.object_disk.sharing.other_log import OtherLog, other_logs
from disks.object_disk.sharing.recorded_keeper import say
from disks.object_disk.sharing.writers import take_over
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.named_log import NamedLogStore
from oplog import pins
from oplog.errors import NotFound, Refused
from oplog.kinds import OtherKind
from oplog.revision import OPERATIONS_PREFIX, SNAPSHOTS_PREFIX, is_blob_key
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tests.crash import mutants
from tests.property.ageing import START, Ageing
from tests.turns import examples

RETENTION = {"a": timedelta(hours=30), "b": timedelta(hours=72), "c": timedelta(hours=300)}
GUARD = timedelta(hours=24)
KEEPER = "5" * 32
PATHS = ("t/p/x", "t/p/y", "t/q/x", "t/r/x")

Names = dict[str, str]


class Marks:
    """What replicas hold beside their logs."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def objection(self) -> str | None:
        return None

    def keeper(self) -> str:
        return KEEPER

    def held(self) -> Collection[str]:
        return set(self.keys)

    def release(self, keys: Collection[str]) -> Collection[str]:
        assert self.keys.isdisjoint(keys)
        return keys


@dataclass
class Replayed:
    """One log: path -> object at every revision, and when it was committed."""

    at: dict[int, Names] = field(default_factory=lambda: {0: {}})
    committed: dict[int, datetime] = field(default_factory=lambda: {0: START})
    pinned: dict[int, str] = field(default_factory=dict)
    """The pin's name by its revision. No name comes twice: a store that is written once keeps what was released."""

    @property
    def head(self) -> int:
        return max(self.at)

    def kept(self, now: datetime, retention: timedelta) -> list[int]:
        current = [one for one in self.at if one == self.head or self.committed[one + 1] > now - retention]
        return sorted({*current, *self.pinned})


class SeveralLogs(RuleBasedStateMachine):
    """Machines a, b and c."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="frostline-logs-"))
        self.memory = MemoryStore("shared")
        self.store = Ageing(self.memory)
        self.opened = 0
        say(self.store, KEEPER, "zk:2181/frostline")
        self.disks = {name: self.open(name) for name in RETENTION}
        self.logs = {name: Replayed() for name in RETENTION}
        self.marks = Marks()
        self.pins = 0

    def open(self, name: str) -> ObjectDisk:
        self.opened += 1
        return ObjectDisk(
            name,
            NamedLogStore(self.store, name),
            self.directory / str(self.opened),
            snapshot_every_commits=4,
            retention_seconds=int(RETENTION[name].total_seconds()),
        )

    def teardown(self) -> None:
        for disk in self.disks.values():
            disk.close()
        shutil.rmtree(self.directory)

    def note(self, name: str) -> None:
        """What the log names now; fences of any machine's collections change nothing."""
        log, disk = self.logs[name], self.disks[name]
        disk.refresh()
        for revision in range(log.head + 1, disk.revision + 1):
            rows = {info.path: info.key or "" for info in disk.walk()} if revision == disk.revision else {}
            log.at[revision] = rows if revision == disk.revision else log.at[revision - 1]
            log.committed[revision] = self.store.now

    names = st.sampled_from(sorted(RETENTION))

    @rule(name=names, path=st.sampled_from(PATHS), hours=st.integers(0, 20))
    def write(self, name: str, path: str, hours: int) -> None:
        self.store.now += timedelta(hours=hours)
        with self.disks[name].transaction(OtherKind("work")) as transaction:
            if self.disks[name].exists(path):
                transaction.remove(path)
            transaction.create(path, b"x" * 100)
            transaction.commit()
        self.note(name)

    @rule(name=names, path=st.sampled_from(PATHS))
    def remove(self, name: str, path: str) -> None:
        if self.disks[name].exists(path):
            with self.disks[name].transaction(OtherKind("work")) as transaction:
                transaction.remove(path)
                transaction.commit()
            self.note(name)

    @rule(data=st.data(), name=names, source=names)
    def adopt(self, data: st.DataObject, name: str, source: str) -> None:
        """As a fetch does: the source names it now, so it is there."""
        disk, rows = self.disks[name], list(self.disks[source].file_table.rows())
        if not rows or name == source:
            return
        row = data.draw(st.sampled_from(rows))
        with disk.transaction(OtherKind("work")) as transaction:
            if disk.exists(row.path):
                transaction.remove(row.path)
            transaction.adopt(row)
            transaction.commit()
        assert disk.stat(row.path).blob_set == row.blob_set
        self.note(name)

    @rule(data=st.data(), name=names)
    def mark(self, data: st.DataObject, name: str) -> None:
        """Somebody has held it since it was named; or holds it no more."""
        there = sorted({key for key in self.logs[name].at[self.logs[name].head].values() if key} | self.marks.keys)
        if there:
            self.marks.keys ^= {data.draw(st.sampled_from(there))}

    @rule(name=names)
    def abandon(self, name: str) -> None:
        transaction = self.disks[name].transaction(OtherKind("work"))
        transaction.create("never", b"abandoned")
        transaction.abandon()

    def one_kept(self, data: st.DataObject, name: str) -> int:
        """One of the revisions that the log keeps. What is drawn does not depend on how many there are, so that an
        example is the same when it is run again."""
        kept = self.logs[name].kept(self.store.now, RETENTION[name])
        return kept[data.draw(st.integers(0, 255)) % len(kept)]

    @rule(data=st.data(), name=names)
    def pin(self, data: st.DataObject, name: str) -> None:
        log, store = self.logs[name], self.disks[name].store
        revision = self.one_kept(data, name)
        if revision in log.pinned:
            pins.release(store, log.pinned.pop(revision))
        elif revision > 0:
            self.pins += 1
            log.pinned[revision] = f"user-{self.pins}"
            pins.create(store, log.pinned[revision], revision, holder="test")

    @rule(data=st.data(), name=names)
    def go_back(self, data: st.DataObject, name: str) -> None:
        log = self.logs[name]
        revision = self.one_kept(data, name)
        with contextlib.suppress(NotFound, Refused) if revision == 0 else contextlib.nullcontext():
            restore(self.disks[name], RebuildRequest(revision=revision, apply=True))
            self.note(name)
            assert log.at[log.head] == log.at[revision]

    @rule(name=names)
    def lose_the_machine(self, name: str) -> None:
        """Another one takes its place, and has the log."""
        self.disks[name].close()
        self.disks[name] = self.open(name)
        take_over(self.disks[name])

    @rule(name=names, source=st.sampled_from((*PATHS, "t/p", "t/q")), links=st.booleans())
    def link_or_rename(self, name: str, source: str, links: bool) -> None:
        disk = self.disks[name]
        target = f"u/{disk.revision}/{source}"
        if disk.exists(source):
            with disk.transaction(OtherKind("work")) as transaction:
                if links and source in PATHS:
                    transaction.link(source, target)
                else:
                    transaction.rename(source, target)
                transaction.commit()
            self.note(name)

    @rule(data=st.data(), name=names, hours=st.integers(0, 90))
    def ask_of_some(self, data: st.DataObject, name: str, hours: int) -> None:
        """What a log says of some objects is what its tables say of them."""
        disk, now = self.disks[name], self.store.now + timedelta(hours=hours)
        everything = inventory(disk.store.list())
        keys = sorted(blob.key for blob in everything.blobs.outside(()))
        asked = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
        for other in other_logs(disk):
            with contextlib.closing(OtherLog(disk, other)) as log:
                listed = [*log.store.list(OPERATIONS_PREFIX), *log.store.list(SNAPSHOTS_PREFIX)]
                found = replace(inventory(listed), blobs=everything.blobs)
                if not found.head:
                    continue
                whole = collect_references(log, found, now=now, retention=RETENTION[other])
                narrow = references_among(log, found, asked, now=now, retention=RETENTION[other])
                if narrow is not None:
                    assert narrow.keys == whole.keys & asked
                    assert replace(narrow, keys=whole.keys, proved=whole.proved) == whole

    @rule(name=names, hours=st.integers(0, 90))
    def gc(self, name: str, hours: int) -> None:
        self.store.now += timedelta(hours=hours)
        rules = GcRules(delete=True, guard=GUARD, max_delete_fraction=1.0, compact_after_commits=1)
        report = collect(self.disks[name], rules, now=self.store.now, references=self.marks)
        assert report.refused is None or "no log entry" in report.refused
        for other in RETENTION:
            self.note(other)

    @invariant()
    def all_that_anybody_needs_is_there(self) -> None:
        there = {key for key in self.memory._objects if is_blob_key(key)}
        needed = {key for key, put in self.store.times.items() if is_blob_key(key) and put > self.store.now - GUARD}
        for name, log in self.logs.items():
            for revision in log.kept(self.store.now, RETENTION[name]):
                needed |= {key for key in log.at[revision].values() if key}
        assert not needed - there, f"I4: {len(needed - there)} objects were deleted that somebody needs"
        assert not self.marks.keys - there, "I4: an object was deleted that a mark holds"
        # every log reads what it has
        for name, log in self.logs.items():
            assert {info.path: info.key or "" for info in self.disks[name].walk()} == log.at[log.head]


TestSeveralLogs = SeveralLogs.TestCase
TestSeveralLogs.settings = settings(
    max_examples=examples(60) if not mutants.active() else 600,  # until one finds it
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
