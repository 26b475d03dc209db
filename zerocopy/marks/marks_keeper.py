"""Whether this Keeper is the one that the marks of a prefix are kept in, by its id: the data of `/zero_copy`.

the id in Keeper          before the record in the bucket names it    no mark is in it yet
the record                before the first mark                       collections elsewhere stop
a look at announcements   while the record is young                   those that looked before it have ended
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable
from datetime import datetime

from disks.contracts.bucket_disk import LoggedDisk
from disks.host.moment import Moment
from disks.object_disk.pending_deletes import announced
from disks.object_disk.sharing import recorded_keeper
from disks.object_disk.sharing.recorded_keeper import RecordedKeeper
from disks.stores.wrappers.named_log import whole_prefix
from oplog.entry import now
from oplog.errors import Conflict, Damaged, Refused, Transient
from zerocopy.keeper.client import Keeper
from zerocopy.marks.nodes import ROOT

_ATTEMPTS = 10
_LOOK_SECONDS = 60.0
"""A machine learns so late that marks are kept elsewhere: less than any guard interval."""
_ID = re.compile(rb"[0-9a-f]{32}\Z")


def known_id(keeper: Keeper) -> str:
    """The id of this Keeper; empty where it has none: no marks were ever set in it, or it lost them. Raises
    `Damaged`."""
    keeper.sync(ROOT)
    node = keeper.find(ROOT)
    if node is None or not node.data:
        return ""
    if not _ID.match(node.data):
        raise Damaged(f"{ROOT} in Keeper holds no id: something else changed it", hint="restore its former content")
    return node.data.decode()


def given_id(keeper: Keeper) -> str:
    """The same; one that has none gets one."""
    for _ in range(_ATTEMPTS):
        if identity := known_id(keeper):
            return identity
        try:
            keeper.make_path(ROOT)
            keeper.set(ROOT, secrets.token_hex(16).encode(), keeper.get(ROOT).version)
        except Conflict:
            continue
    raise Conflict(f"{ROOT} in Keeper keeps changing", hint="run it again")


def elsewhere(keeper: Keeper, disk: LoggedDisk) -> str | None:
    """What to tell where the bucket names another Keeper than this one; None where it names this one, or none."""
    counts = recorded_keeper.in_force(recorded_keeper.recorded_keepers(whole_prefix(disk.store)))
    return None if counts is None or counts.record.keeper == known_id(keeper) else recorded_keeper.elsewhere(counts)


def keep_here(keeper: Keeper, disk: LoggedDisk) -> list[RecordedKeeper]:
    """Have the bucket say that the marks of the disk's prefix are in this Keeper, whatever it said before; all that it
    says then."""
    return recorded_keeper.say(whole_prefix(disk.store), given_id(keeper), keeper.where)


class PlaceCheck:
    """Asked before marks are set: they must be where collections look for them. Thread-safe."""

    def __init__(self, keeper: Keeper, disk: LoggedDisk, clock: Callable[[], datetime] = now) -> None:
        self._keeper = keeper
        self._disk = disk
        self._clock = clock
        self._looked: Moment | None = None
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Raise `Refused` where the bucket names another Keeper, `Transient` while a collection may go on that does not
        know of this one. One that nobody has named is named. Now and then a listing and a request or two."""
        with self._lock:
            if self._looked is not None and self._looked.age_seconds < _LOOK_SECONDS:
                return
            found = recorded_keeper.recorded_keepers(whole_prefix(self._disk.store))
            counts = recorded_keeper.in_force(found)
            if counts is None:
                found = keep_here(self._keeper, self._disk)
            elif counts.record.keeper != known_id(self._keeper):
                raise Refused(
                    recorded_keeper.elsewhere(counts), hint="use the Keeper that is named there on this machine, too"
                )
            self._wait_for_collections(found)
            self._looked = Moment()

    def _wait_for_collections(self, records: list[RecordedKeeper]) -> None:
        at = self._clock()
        if recorded_keeper.is_new(records, at) and announced(self._disk, now=at):
            raise Transient(
                f"disk {self._disk.name}: a gc that began before marks were kept in this Keeper is still running",
                hint="run it again in a few minutes; one that was killed is over after an hour",
            )
