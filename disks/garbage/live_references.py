"""What names the blobs of an object disk: read whole from log, snapshots, pins and the live table, or not at all.

The listing comes first and the references are read after it, so a blob that appears in between is not judged. Any
source that cannot be read raises: a collection without all of its references deletes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.garbage.kept_revisions import tables_at
from disks.garbage.publications import published_revisions
from disks.object_disk.history import TableAsOf, contradicted_by, named_blobs, named_in
from disks.object_disk.references import FUTURE_TOLERANCE, Inventory, is_set_aside, retained_from
from disks.stores.checks import WrongAnswer, check_listed
from oplog import pins
from oplog.errors import Damaged, NotFound
from oplog.pins import Pin
from oplog.revision import commit_key, snapshot_key

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class LiveReferences(msgspec.Struct, frozen=True):
    """The references of a disk at one moment, and how far they reach."""

    keys: frozenset[str]
    """Every blob that a retained revision, a pin or the live table names; of a listing that was compared with the
    table already, or a log that was asked only of some, those of the doubtful ones."""
    base: int
    """The oldest revision that the retention keeps; all later ones are covered by `keys`."""
    head: int
    """The revision the references were read up to."""
    digest: str
    pinned: tuple[int, ...]
    """Revisions below `base` that live pins keep."""
    expired_pins: tuple[str, ...]
    proved: frozenset[int]
    """The snapshots that were read whole for this, and 0 for a log that was read from its beginning."""
    pins: tuple[str, ...] = ()
    """The keys of the pins that were read."""


def is_live(pin: Pin, now: datetime) -> bool:
    """Whether the pin still counts. One that ran out a moment ago does: clocks differ."""
    return pin.until is None or pin.until + FUTURE_TOLERANCE > now


class Reach(msgspec.Struct, frozen=True):
    """How far back a disk's references go."""

    base: int
    """The oldest revision that the retention keeps."""
    pinned: tuple[int, ...]
    """Revisions below it that live pins keep, ascending."""
    expired: tuple[str, ...]
    live: tuple[Pin, ...]
    pins: tuple[str, ...]
    """The keys of all pins that were listed."""

    @property
    def stops(self) -> tuple[int, ...]:
        """The revisions whose tables count, ascending; and all that came after the last."""
        return (*self.pinned, self.base)

    def check(self, head: int, name: str) -> None:
        """Raise `Damaged` for a pin beyond the log's end."""
        for pin in self.live:
            if pin.revision > head:
                raise Damaged(f"pin {pin.name} of {name} names revision {pin.revision}; the log ends at {head}")


def reach(disk: LoggedDisk, inventory: Inventory, *, now: datetime, retention: timedelta) -> Reach:
    """What pins and retention keep. Raises `Damaged` for a listing without a log."""
    if inventory.head == 0:
        raise Damaged(f"{disk.store.name} holds no log entry, so garbage cannot be determined", hint="check the prefix")
    listed, known_pins = _pins(disk, [info.key for info in inventory.pins])
    base = retained_from(inventory.commits, now=now, retention=retention)
    live = tuple(pin for pin in known_pins if is_live(pin, now))
    pinned = tuple(sorted({pin.revision for pin in live if pin.revision < base}))
    return Reach(base, pinned, tuple(pin.name for pin in known_pins if not is_live(pin, now)), live, listed)


def _pins(disk: LoggedDisk, seen: Iterable[str]) -> tuple[tuple[str, ...], list[Pin]]:
    """The pins, with one for each revision that a publication shows, and the keys that say so. Raises `WrongAnswer`
    when a key that was seen before is there and not listed, `Damaged` for what cannot be read."""
    items = pins.listed(disk.store)
    published = published_revisions(disk.store) if disk.log_name is None else {}
    keys = (*(item.key for item in items), *published)
    check_listed(disk.store, seen, keys)
    live = [pin for item in items for pin in pins.read_listed(disk.store, item)]
    for key, revisions in published.items():
        live += [
            Pin(name=key, revision=revision, holder="publication", created=_LONG_AGO) for revision in sorted(revisions)
        ]
    return keys, live


def collect_references(
    disk: LoggedDisk, inventory: Inventory, *, now: datetime, retention: timedelta
) -> LiveReferences:
    """Read every reference. Raises `FrostlineError` when a source cannot be read whole, or contradicts another."""
    name = disk.store.name
    asked = reach(disk, inventory, now=now, retention=retention)
    keys: set[str] = set()
    proved: set[int] = set()
    before: TableAsOf | None = None
    end: tuple[int, str] | None = None
    with closing(tables_at(disk.log, inventory, asked.stops, open_end=True)) as tables:
        for past in tables:
            keys |= named_anew(past, inventory, gone_on=past is before)
            proved.add(past.start)
            before = past
            if past.revision < asked.base:
                check_start(disk, inventory, past)
                continue
            past.balance = None
            past.advance(inventory.head)
            check_start(disk, inventory, past)
            _check_present(inventory, past, name)
            past.advance()
            keys |= _among(past.named, inventory)
            end = past.revision, past.digest
    if end is None or end[0] < inventory.head:
        raise WrongAnswer(
            f"a listing of {name} shows log entry {inventory.head}, and another one does not",
            hint="listings of this store cannot be relied on now: run the command again",
        )
    head, digest = end
    ends_at(disk, head)  # what is committed from now on, the look before each batch will see
    keys |= _live_keys(disk, inventory, head)
    asked.check(head, name)
    return LiveReferences(
        frozenset(keys), asked.base, head, digest, asked.pinned, asked.expired, frozenset(proved), asked.pins
    )


def named_anew(past: TableAsOf, inventory: Inventory, *, gone_on: bool) -> set[str]:
    """The blobs that the table names and did not at the revision it stopped at before: those that more files name now.
    What was named there already may be among them. Its counts start over."""
    gained = past.balance or {}
    past.balance = {}
    past.named.clear()
    if not gone_on:
        return past.keys(inventory.blobs.doubtful)
    return _among({key for key, more in gained.items() if more > 0}, inventory)


def check_start(disk: LoggedDisk, inventory: Inventory, past: TableAsOf) -> None:
    """The log must say the same from an older start. Reads it only where no entry tells what the table is, as those of
    older versions; what no older start is left of is all there is. Raises `Damaged`."""
    older = contradicted_by(disk.log, inventory, past, strict=True)
    if older is None:
        return
    older.close()
    raise Damaged(
        f"{disk.store.name}{snapshot_key(past.start)} contradicts the log: from revision {older.start} on it "
        f"gives another file table at revision {past.revision}",
        hint="run 'frostline fsck'; gc deletes nothing until they agree",
    )


def _among(keys: set[str], inventory: Inventory) -> set[str]:
    among = inventory.blobs.doubtful
    return keys if among is None else keys.intersection(among)


def _check_present(inventory: Inventory, past: TableAsOf, name: str) -> None:
    """Every blob of the table at the listed head must be in the listing: else it is not the listing of this disk."""
    missing = inventory.blobs.lacking(past)
    if missing:  # which is rare: then every row is looked at
        live = {key for row in past.rows() if not is_set_aside(row.path) for key, _ in row.blobs}
        missing &= live
    if missing:
        raise Damaged(
            f"{len(missing)} objects that the file table names are not among the {len(inventory.blobs)} in the listing "
            f"of {name}, such as {min(missing)}: the listing is incomplete, or objects were lost",
            hint="run 'frostline fsck'; gc deletes nothing until they are back or their parts are dropped",
        )


def ends_at(disk: LoggedDisk, head: int) -> bool:
    """Whether the next entry, asked for by name, is not there; False when one was committed meanwhile. Raises `Damaged`
    when it exists and no listing shows it."""
    try:
        disk.store.get(commit_key(head + 1))
    except NotFound:
        return True
    if next(disk.log.revisions(head), None) == head + 1:
        return False
    raise Damaged(f"{disk.store.name} holds log entry {head + 1}, which its listing does not show")


def _live_keys(disk: LoggedDisk, inventory: Inventory, head: int) -> set[str]:
    """The keys of the cached table, a second witness that must not know of later revisions than the bucket shows."""
    disk.refresh()
    with disk.file_table.read() as view:
        revision, _ = view.head()
        keys = named_in(view, inventory.blobs.doubtful)
    if revision < inventory.head or revision < head:
        raise Damaged(
            f"the cache of disk {disk.name} ends at revision {revision} and the log at {max(inventory.head, head)}"
        )
    return keys


def renewed(disk: LoggedDisk, evidence: LiveReferences, *, now: datetime) -> set[str]:
    """What has come to be named since: the blobs of later commits. Raises `Damaged` when a pin appeared that the
    evidence does not cover, or when the log does not end where it seems to."""
    for pin in _pins(disk, evidence.pins)[1]:
        if is_live(pin, now) and pin.revision < evidence.base and pin.revision not in evidence.pinned:
            raise Damaged(f"pin {pin.name} at revision {pin.revision} was taken while the collection ran")
    keys: set[str] = set()
    head, digest = evidence.head, evidence.digest
    while True:
        for entry in disk.log.entries(after=head, previous=digest):
            head, digest = entry.commit.revision, entry.digest
            keys |= named_blobs(entry.commit)
        if ends_at(disk, head):
            return keys
