"""Keep gc away from a revision for as long as a restore takes, however long that is."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from disks.contracts.bucket_disk import LoggedDisk
from disks.host.clean_up import clean_up_owed
from disks.object_disk.references import clock_objection
from disks.stores.base import ObjectStore
from oplog import pins
from oplog.errors import FrostlineError, Refused

PIN_LIFETIME = timedelta(hours=24)
"""How long a pin that a crash left behind keeps its revision."""

logger = logging.getLogger(__name__)


class HeldRevision:
    """A pin that is renewed before it runs out. Pins never change: the next one is put before the last one goes."""

    def __init__(self, disk: LoggedDisk, revision: int, actor: str, reason: str, lifetime: timedelta) -> None:
        self._disk, self._revision = disk, revision
        self._holder, self._reason = actor or "restore", reason
        self._lifetime = lifetime
        self._name = ""
        self._until = datetime.min.replace(tzinfo=UTC)

    def renew(self) -> None:
        """Put a pin that lasts a whole lifetime from now, and let the one before go."""
        last, self_name = self._name, f"restore-{secrets.token_hex(8)}"
        until = datetime.now(UTC) + self._lifetime
        pins.create(self._disk.store, self_name, self._revision, holder=self._holder, until=until, reason=self._reason)
        self._name, self._until = self_name, until
        if last:
            pins.release(self._disk.store, last)

    def check(self) -> None:
        """Raise `Refused` when the pin has run out: gc may have taken what the revision needs."""
        if datetime.now(UTC) >= self._until:
            raise Refused(
                f"the pin on revision {self._revision} of disk {self._disk.name} ran out: the store could not be "
                "reached to renew it",
                hint="nothing was changed; run the command again",
            )

    def release(self) -> None:
        """Take the pin away."""
        pins.release(self._disk.store, self._name)


def require_clock(store: ObjectStore) -> None:
    """Raise `Refused` when this machine's clock is not the store's: a pin would end at a time that others do not know,
    and a running collection's announcement would look old."""
    if objection := clock_objection(store.clock_skew()):
        raise Refused(
            f"{store.name}: {objection}",
            hint="nothing was changed; set the clock, then run the command again",
        )


@contextmanager
def pinned(
    disk: LoggedDisk, revision: int, actor: str, reason: str, *, lifetime: timedelta | None = None
) -> Iterator[HeldRevision | None]:
    """Keep gc away from the revision while the block runs. A pin left by a crash runs out by itself."""
    if revision == 0:
        yield None  # the empty disk needs nothing
        return
    require_clock(disk.store)
    held = HeldRevision(disk, revision, actor, reason, lifetime or PIN_LIFETIME)
    held.renew()
    stop = threading.Event()
    renewer = threading.Thread(
        target=_renew, args=(held, stop, (lifetime or PIN_LIFETIME) / 3), daemon=True, name="renew-pin"
    )
    renewer.start()
    try:
        yield held
    finally:
        with clean_up_owed():
            stop.set()
            renewer.join()
            held.release()


def _renew(held: HeldRevision, stop: threading.Event, every: timedelta) -> None:
    while not stop.wait(every.total_seconds()):
        try:
            held.renew()
        except FrostlineError as error:
            # Two thirds of its lifetime are left: it is tried again, and `check` refuses when that fails too.
            logger.warning("the pin of a running restore could not be renewed: %s", error)
