"""All who may say that an object of a disk's prefix is in use: its own log, every other log of the prefix, and the
marks of replicas, which come in from above.

Each log is a witness by what its retained revisions, its pins and its newest table name. What any witness names stays;
one that cannot be read whole means that nothing goes. Before a batch goes, a fence is put into every log, and all are
asked again (docs/design.md, L5 and L8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
from msgspec.structs import replace

from disks.contracts.bucket_disk import LoggedDisk
from disks.garbage.candidate_references import references_among
from disks.garbage.live_references import LiveReferences, collect_references, renewed
from disks.object_disk.references import Inventory, inventory
from disks.object_disk.sharing import recorded_keeper
from disks.object_disk.sharing.other_log import OtherLog, other_logs
from disks.object_disk.sharing.retiring import heeded_logs
from disks.object_disk.sharing.writers import newest_writer
from disks.stores.checks import check_listed
from disks.stores.wrappers.named_log import whole_prefix
from oplog.entry import GENESIS_DIGEST
from oplog.errors import Damaged
from oplog.revision import LOGS_PREFIX, OPERATIONS_PREFIX, SCHEMA_VERSION_KEY, SNAPSHOTS_PREFIX

_EVERYTHING = timedelta(days=100 * 365)
_EMPTY = LiveReferences(frozenset(), 0, 0, GENESIS_DIGEST, (), (), frozenset())
"""Of a log without an entry."""


class References(Protocol):
    """What names objects beside the logs. Every method may raise `FrostlineError`: then nothing goes."""

    def objection(self) -> str | None:
        """Why nothing may go at all now; None when something may."""

    def keeper(self) -> str:
        """The id of where they are; empty where it has none."""

    def held(self) -> Collection[str]:
        """Every key that is named there now: all of them."""

    def release(self, keys: Collection[str]) -> Collection[str]:
        """Right before they are deleted: those of the keys that may go. Nobody can come to hold them any more."""


class _Witness(msgspec.Struct, frozen=True):
    log: LoggedDisk
    evidence: LiveReferences


class ReferenceSources:
    """Those of one collection. Gathered once; then asked again before each batch."""

    def __init__(self, disk: LoggedDisk, references: References | None, *, now: datetime, guard: timedelta) -> None:
        """`references` counts where the prefix has several logs. None: none are configured here, which is to be so on
        every machine of the prefix."""
        self._disk = disk
        self._references = references if disk.log_name is not None else None
        self._now = now
        self._guard = guard
        self._own: LiveReferences | None = None
        self._others: dict[str, _Witness] = {}
        self._held: Collection[str] = ()
        self._begun: dict[str, Inventory] = {}
        """The other logs as they were before the objects were listed."""
        self._ended_at = 0
        """The highest revision of the logs that count no more: objects were uploaded for them, too."""

    def begin(self) -> None:
        """Before the objects are listed: what the other logs name by now must be among them; what they come to name
        meanwhile need not be, and counts as well. Raises `FrostlineError`."""
        for name in other_logs(self._disk):
            with closing(OtherLog(self._disk, name)) as log:
                self._begun[name] = _entries_of(log)

    def gather(self, listing: Inventory, *, retention: timedelta) -> LiveReferences:
        """Ask all of them, after the objects were listed; what the disk's own log says. Raises `FrostlineError`."""
        self._check_place()
        if self._references is not None and (objection := self._references.objection()) is not None:
            raise Damaged(objection)
        self._own = collect_references(self._disk, listing, now=self._now, retention=retention)
        names = heeded_logs(self._disk, now=self._now)
        self._check_logs()
        for name in set(other_logs(self._disk)).difference(names):
            with closing(OtherLog(self._disk, name)) as log:
                self._ended_at = max(self._ended_at, inventory(log.store.list(OPERATIONS_PREFIX)).head)
        doubtful = _doubtful(listing, self._own.keys) if names else frozenset()
        for name in names:
            log = OtherLog(self._disk, name)
            self._others[name] = _Witness(log, _EMPTY)  # which closes it, whatever happens
            self._others[name] = _Witness(log, self._evidence_of(log, listing, doubtful))
        if self._references is not None:
            self._held = frozenset(self._references.held())
        return self._own

    def _check_logs(self) -> None:
        """Raise `WrongAnswer` when a log that was there before has its mark still, and is not listed."""
        prefix = whole_prefix(self._disk.store)
        marks = {name: f"{LOGS_PREFIX}{name}/{SCHEMA_VERSION_KEY}" for name in self._begun}
        check_listed(prefix, marks.values(), {marks.get(name, "") for name in other_logs(self._disk)})

    def _check_place(self) -> None:
        """Raise `Damaged` where objects may be held by marks that are not looked at here."""
        if self._disk.log_name is None:
            return
        found = recorded_keeper.recorded_keepers(whole_prefix(self._disk.store))
        keeper = None if self._references is None else self._references.keeper()
        if (objection := recorded_keeper.objection(found, keeper, at=self._now, guard=self._guard)) is not None:
            raise Damaged(objection)

    def _evidence_of(self, log: OtherLog, inventory: Inventory, doubtful: Collection[str]) -> LiveReferences:
        listed = self._begun.get(str(log.log_name))
        if listed is None or (not listed.head and not listed.snapshots):
            listed = _entries_of(log)
        if not listed.head and not listed.snapshots:
            return _EMPTY
        _, writer = newest_writer(log.store)
        retention = _EVERYTHING if writer is None else timedelta(seconds=writer.retention_seconds)
        listed = replace(listed, blobs=inventory.blobs)
        narrow = references_among(log, listed, doubtful, now=self._now, retention=retention)
        return narrow or collect_references(log, listed, now=self._now, retention=retention)

    @property
    def named(self) -> Collection[str]:
        """All that anybody named."""
        if not self._others and not self._held:
            return self._own.keys if self._own is not None else ()
        return frozenset().union(*(one.evidence.keys for one in self._all()), self._held)

    @property
    def head(self) -> int:
        """The highest revision of any log."""
        return max(self._ended_at, *(one.evidence.head for one in self._all()), 0)

    def fence(self, announcement: str) -> None:
        """Every commit from now on, in any log, checks its objects again. Raises `FrostlineError`."""
        for one in self._all():
            one.log.fence(announcement)

    def renewed_own(self) -> set[str]:
        """What has come to be named in the disk's own log. Raises as `renewed` does."""
        assert self._own is not None
        return renewed(self._disk, self._own, now=self._now)

    def renewed(self) -> set[str]:
        """What has come to be named since. Raises `FrostlineError`; `Damaged` when a log began that was not asked."""
        self._check_place()
        self._check_logs()
        keys: set[str] = set()
        for one in self._all():
            keys |= renewed(one.log, one.evidence, now=self._now)
        if self._references is not None:
            keys.update(self._references.held())
        if new := set(heeded_logs(self._disk, now=self._now)).difference(self._others):
            raise Damaged(
                f"log {min(new)} of {self._disk.store.name} began, or was taken back, while the collection ran"
            )
        return keys

    def release(self, keys: Sequence[str]) -> Collection[str]:
        """Those of the keys that may go now."""
        return keys if self._references is None else self._references.release(keys)

    def close(self) -> None:
        """Let go of the other logs."""
        for one in self._others.values():
            one.log.close()

    def _all(self) -> Iterator[_Witness]:
        if self._own is not None:
            yield _Witness(self._disk, self._own)
        yield from self._others.values()


def _entries_of(log: OtherLog) -> Inventory:
    """What the log's own listing shows, without objects."""
    return inventory([*log.store.list(OPERATIONS_PREFIX), *log.store.list(SNAPSHOTS_PREFIX)])


def _doubtful(inventory: Inventory, named: Collection[str]) -> Collection[str]:
    """The listed objects that the disk's own log does not name: of these alone the others are asked."""
    return frozenset(blob.key for blob in inventory.blobs.outside(named))
