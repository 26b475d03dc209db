"""What a collection says in the bucket before it deletes: `gc/<id>.json`; `gc/condemned-<id>.json` for a quarantine.

An intent binds for an hour: a restore that needs one of its objects waits. A list of condemned objects binds nobody: it
only proves to a later collection that an earlier one, long enough ago, had found them orphaned.

The collections of disks and of backup repositories announce and delete by these same functions.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from disks.garbage.report import GcReport, SafetyStop
from disks.object_disk.pending_deletes import (
    CONDEMNED,
    INTENT_LIFETIME,
    Announcement,
    announcement,
    end_of,
    read_announcement,
)
from disks.object_disk.references import INTENTS_PREFIX, clock_objection, sane_time
from disks.stores.base import ObjectInfo, ObjectStore
from disks.stores.wrappers.named_log import log_of
from oplog.errors import UNDELETABLE, NotFound

BATCH_KEYS = 5_000
_BATCH_SECONDS = 600.0
"""A collector that was held up longer than this after its last look does not delete on it."""
_KEYS_A_LIST = 50_000


def announce(store: ObjectStore, keys: Sequence[str], now: datetime) -> str:
    """Put an intent; its key."""
    return _put(store, f"{INTENTS_PREFIX}{secrets.token_hex(16)}.json", keys, now)


def withdraw(store: ObjectStore, intent: str) -> None:
    """Take the announcement back. One that cannot be deleted gets a mark that it is over, until both are stale."""
    if isinstance(store.delete([intent])[intent], UNDELETABLE):
        store.put(end_of(intent), b"{}", sha256=hashlib.sha256(b"{}").digest())


def delete_announced(
    store: ObjectStore,
    keys: Sequence[str],
    look_again: Callable[[str], Collection[str]],
    report: GcReport,
    now: datetime,
    *,
    batch_keys: int = BATCH_KEYS,
    before_each: Callable[[], None] = lambda: None,
    all_or_stop: bool = False,
    release: Callable[[Sequence[str]], Collection[str]] = lambda keys: keys,
) -> list[str]:
    """Delete in batches, each announced before `look_again` says, given the announcement, what of it has come to be
    named, and `release`, given the others, which of them may go. Returns the keys that are gone. With `all_or_stop` a
    batch of which something stays is the last one."""
    gone: list[str] = []
    for batch in batches(keys, batch_keys):
        unable = len(report.failed) + len(report.kept)
        intent = announce(store, batch, now)
        looked_at = time.monotonic()
        try:
            named = look_again(intent)
            if time.monotonic() - looked_at > _BATCH_SECONDS:
                raise SafetyStop("looking at the references once more took too long; run it again")
            to_delete = release([key for key in batch if key not in named])
        except SafetyStop:
            withdraw(store, intent)
            raise
        before_each()
        for key, error in store.delete(to_delete).items():
            if error is None:
                gone.append(key)
            else:
                report.stays(key, error)
        stays = len(report.failed) + len(report.kept) > unable
        # Only now: a delete whose answer was lost may still arrive, so its announcement stays until it is stale.
        withdraw(store, intent)
        if all_or_stop and stays:
            break
    return gone


def check_clocks(store: ObjectStore, clock: Callable[[], datetime]) -> None:
    """Raise `SafetyStop` when the store's clock and ours differ too much to judge ages."""
    skew = store.clock_skew()
    if skew is None:  # then the date of an object tells
        probe = announce(store, (), clock())
        skew = store.head(probe).modified - clock()
        withdraw(store, probe)
    if objection := clock_objection(skew):
        raise SafetyStop(objection)


def remove_stale(
    store: ObjectStore, intents: Iterable[ObjectInfo], now: datetime, *, after: timedelta = INTENT_LIFETIME
) -> None:
    """Take away the intents of collections that are long over."""
    store.delete(
        [
            intent.key
            for intent in intents
            if not intent.key.startswith(CONDEMNED)
            and sane_time(intent.modified, now)
            and now - intent.modified > after
        ]
    )


class Announced:
    """The lists of condemned objects. A list's age is what the store says, not what it says itself."""

    def __init__(self, store: ObjectStore, intents: Iterable[ObjectInfo], now: datetime) -> None:
        """Raises `Damaged` for a list that cannot be read."""
        self._store = store
        self._lists: dict[str, tuple[str, ...]] = {}
        self.since: dict[str, datetime] = {}
        """Object -> when it was condemned first."""
        for item in intents:
            if not item.key.startswith(CONDEMNED) or not sane_time(item.modified, now):
                continue
            try:
                self._lists[item.key] = read_announcement(store, item).keys
            except NotFound:
                continue  # another collection is done with it
            for key in self._lists[item.key]:
                self.since[key] = min(item.modified, self.since.get(key, item.modified))

    def add(self, keys: Sequence[str], now: datetime) -> None:
        """Write down what is condemned now."""
        for start in range(0, len(keys), _KEYS_A_LIST):
            name = f"{CONDEMNED}{secrets.token_hex(16)}.json"
            self._lists[name] = tuple(keys[start : start + _KEYS_A_LIST])
            _put(self._store, name, self._lists[name], now)

    def forget(self, remaining: set[str]) -> None:
        """Take away the lists of which nothing remains."""
        self._store.delete([name for name, keys in self._lists.items() if remaining.isdisjoint(keys)])


def batches(keys: Sequence[str], size: int) -> Iterator[list[str]]:
    """The keys, so many at a time."""
    for start in range(0, len(keys), size):
        yield list(keys[start : start + size])


def _put(store: ObjectStore, key: str, keys: Sequence[str], now: datetime) -> str:
    data = announcement.encode(Announcement(time=now, keys=tuple(keys), log=log_of(store) or ""))
    store.put(key, data, sha256=hashlib.sha256(data).digest())
    return key
