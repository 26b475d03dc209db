"""What a collection says in the bucket before it deletes: `gc/<id>.json`; `gc/condemned-<id>.json` for a quarantine.

An intent binds for an hour: a restore that needs one of its objects waits. A list of condemned objects binds nobody: it
only proves to a later collection that an earlier one, long enough ago, had found them orphaned.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from disks.object_disk.references import INTENTS_PREFIX, sane_time
from disks.stores.base import ObjectInfo, ObjectStore
from oplog.errors import Damaged, NotFound, Retained

INTENT_LIFETIME = timedelta(hours=1)
"""An announcement older than this binds nobody: its collector stops long before."""

_ENDED = "+ended.json"
_CONDEMNED = f"{INTENTS_PREFIX}condemned-"
_KEYS_A_LIST = 50_000


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """An announcement: these objects are about to go."""

    time: datetime
    keys: tuple[str, ...]


class Announcer(Protocol):
    """A disk, as far as this is concerned."""

    @property
    def store(self) -> ObjectStore: ...


def announce(store: ObjectStore, keys: Sequence[str], now: datetime) -> str:
    """Put an intent; its key."""
    return _put(store, f"{INTENTS_PREFIX}{secrets.token_hex(16)}.json", keys, now)


def withdraw(store: ObjectStore, intent: str) -> None:
    """Take the announcement back. One that a lock keeps gets a mark that it is over, until both are stale."""
    if isinstance(store.delete([intent])[intent], Retained):
        store.put(_end_of(intent), b"{}", sha256=hashlib.sha256(b"{}").digest())


def announced(disk: Announcer, *, now: datetime) -> set[str]:
    """The objects that a running collection is about to delete. Raises `Damaged` for an unreadable announcement."""
    keys: set[str] = set()
    found = list(disk.store.list(INTENTS_PREFIX))
    over = {item.key for item in found if item.key.endswith(_ENDED)}
    for item in found:
        stale = now - item.modified > INTENT_LIFETIME
        if stale or item.key.startswith(_CONDEMNED) or item.key in over or _end_of(item.key) in over:
            continue
        keys.update(_read(disk.store, item.key).keys)
    return keys


def remove_stale(store: ObjectStore, intents: Iterable[ObjectInfo], now: datetime) -> None:
    """Take away the intents of collections that are long over."""
    store.delete(
        [
            intent.key
            for intent in intents
            if not intent.key.startswith(_CONDEMNED)
            and sane_time(intent.modified, now)
            and now - intent.modified > INTENT_LIFETIME
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
            if not item.key.startswith(_CONDEMNED) or not sane_time(item.modified, now):
                continue
            try:
                self._lists[item.key] = _read(store, item.key).keys
            except NotFound:
                continue  # another collection is done with it
            for key in self._lists[item.key]:
                self.since[key] = min(item.modified, self.since.get(key, item.modified))

    def add(self, keys: Sequence[str], now: datetime) -> None:
        """Write down what is condemned now."""
        for start in range(0, len(keys), _KEYS_A_LIST):
            name = f"{_CONDEMNED}{secrets.token_hex(16)}.json"
            self._lists[name] = tuple(keys[start : start + _KEYS_A_LIST])
            _put(self._store, name, self._lists[name], now)

    def forget(self, remaining: set[str]) -> None:
        """Take away the lists of which nothing remains."""
        self._store.delete([name for name, keys in self._lists.items() if remaining.isdisjoint(keys)])


def batches(keys: Sequence[str], size: int) -> Iterator[list[str]]:
    """The keys, so many at a time."""
    for start in range(0, len(keys), size):
        yield list(keys[start : start + size])


def _end_of(intent: str) -> str:
    return intent.removesuffix(".json") + _ENDED


def _put(store: ObjectStore, key: str, keys: Sequence[str], now: datetime) -> str:
    data = msgspec.json.encode(Announcement(time=now, keys=tuple(keys)))
    store.put(key, data, sha256=hashlib.sha256(data).digest())
    return key


def _read(store: ObjectStore, key: str) -> Announcement:
    try:
        return msgspec.json.decode(store.get(key), type=Announcement)
    except msgspec.DecodeError as error:
        raise Damaged(f"{store.name}{key} cannot be read: {error}", hint="delete it if no gc runs") from error
