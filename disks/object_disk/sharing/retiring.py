"""Taking the log of a machine that is gone for good out of a prefix, so that gc may collect what it alone names.

    a record       logs/<NAME>/writers/<number>.json with `retired`    its machine commits nothing more, and reports it
    12 hours       `disk adopt` on that machine takes the log back     gc heeds it as before
    24 hours       no way back                                         gc heeds it no more; an audit drops its marks

Ages are those that the store gives the record. Nothing else is written, and nothing is deleted here.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from disks.contracts.bucket_disk import LoggedDisk
from disks.object_disk.references import inventory, sane_time
from disks.object_disk.sharing.other_log import OtherLog, other_logs
from disks.object_disk.sharing.writers import Retired, newest_writer, put_retired, retired
from disks.stores.base import ObjectStore
from disks.stores.wrappers.named_log import NamedLogStore, whole_prefix
from oplog.errors import AlreadyExists, Damaged, Refused
from oplog.kinds import Fenced
from oplog.revision import OPERATIONS_PREFIX, PINS_PREFIX, SNAPSHOTS_PREFIX, WRITERS_PREFIX

IN_EFFECT_AFTER = timedelta(hours=24)
QUIET = timedelta(hours=24)
"""So long a machine must have written nothing to its log: all that can be seen of it."""


def heeded_logs(disk: LoggedDisk, *, now: datetime) -> list[str]:
    """The names of the other logs below the disk's prefix that count: all that were not retired long enough ago. A
    listing each. Raises `Damaged` for a record that cannot be read."""
    return [name for name in other_logs(disk) if not is_over(_retired(disk, name), now)]


def is_over(retired: Retired | None, now: datetime) -> bool:
    """Whether a log counts no more. A time that cannot be believed proves nothing."""
    return retired is not None and sane_time(retired.since, now) and now - retired.since >= IN_EFFECT_AFTER


def _retired(disk: LoggedDisk, name: str) -> Retired | None:
    return retired(_store(disk, name))


def retire(disk: LoggedDisk, name: str) -> None:
    """Put the record. Repeated it changes nothing. Raises `Refused` when a machine has just begun to write the log."""
    store = _store(disk, name)
    try:
        if retired(store) is None:
            put_retired(store)
    except AlreadyExists as error:
        if retired(store) is None:
            raise Refused(
                f"a machine has just begun to write log {name} of disk {disk.name}",
                hint="it is in use: leave it, or stop that machine first",
            ) from error


def retired_log(disk: LoggedDisk, name: str) -> Retired | None:
    """When the log was retired, and by whom; None for one that is not."""
    return _retired(disk, name)


def last_sign(log: OtherLog) -> datetime | None:
    """When its machine last wrote anything: an entry that is no collection's fence, a snapshot, a pin, a record. None
    where it never did. Reads entries back to the newest that is its own; one that cannot be read counts."""
    prefixes = (SNAPSHOTS_PREFIX, PINS_PREFIX, WRITERS_PREFIX)
    signs = [item.modified for prefix in prefixes for item in log.store.list(prefix)]
    commits = inventory(log.store.list(OPERATIONS_PREFIX)).commits
    for revision in sorted(commits, reverse=True):
        try:
            if isinstance(log.log.read(revision).commit.kind, Fenced):
                continue
        except Damaged:
            pass  # it counts, no matter who wrote it
        signs.append(commits[revision].modified)
        break
    return max(signs, default=None)


def holder(log: OtherLog) -> str:
    """Which machine writes it, as it says itself."""
    _, writer = newest_writer(log.store)
    return "" if writer is None else writer.holder


def _store(disk: LoggedDisk, name: str) -> ObjectStore:
    return NamedLogStore(whole_prefix(disk.store), name)
