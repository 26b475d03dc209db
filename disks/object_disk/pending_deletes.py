"""What running collections are about to delete, as they have announced it in the bucket: `gc/<id>.json`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from disks.object_disk.references import INTENTS_PREFIX
from disks.stores.base import ObjectInfo, ObjectStore
from disks.stores.wrappers.named_log import log_of
from oplog import bounds
from oplog.documents import Document
from oplog.errors import Damaged
from oplog.revision import is_blob_key

INTENT_LIFETIME = timedelta(hours=1)
"""An announcement older than this binds nobody who waits for it: its collector stops long before."""

CONDEMNED = f"{INTENTS_PREFIX}condemned-"
ENDED = "+ended.json"


class Announcement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An announcement: these objects are about to go."""

    time: datetime
    keys: tuple[str, ...]
    log: str = ""
    """Whose entries and snapshots are meant, where there are several logs: theirs have the same names."""


announcement = Document("announcement of a collection", Announcement)


class Announcer(Protocol):
    """A disk, as far as this is concerned."""

    @property
    def store(self) -> ObjectStore: ...


def announced(disk: Announcer, *, now: datetime | None) -> set[str]:
    """The objects that a running collection is about to delete; with `now` None, also one that is long overdue and may
    only be stopped. Raises `Damaged` for an unreadable announcement."""
    keys: set[str] = set()
    found = list(disk.store.list(INTENTS_PREFIX))
    over = {item.key for item in found if item.key.endswith(ENDED)}
    for item in found:
        stale = now is not None and now - item.modified > INTENT_LIFETIME
        if stale or item.key.startswith(CONDEMNED) or item.key in over or end_of(item.key) in over:
            continue
        going = read_announcement(disk.store, item)
        ours = going.log == (log_of(disk.store) or "")
        keys.update(key for key in going.keys if ours or is_blob_key(key))
    return keys


def end_of(intent: str) -> str:
    """What says that the announcement is over where a lock keeps it."""
    return intent.removesuffix(".json") + ENDED


def read_announcement(store: ObjectStore, info: ObjectInfo) -> Announcement:
    """One of them. Raises `Damaged`, `NotFound`."""
    key = info.key
    try:
        if info.size_bytes > bounds.LARGEST_NOTE_BYTES:
            raise ValueError(f"it has {info.size_bytes} bytes")
        return announcement.decode(store.get(key))
    except bounds.UNREADABLE as error:
        raise Damaged(f"{store.url(key)} cannot be read: {error}", hint="delete it if no gc runs") from error
