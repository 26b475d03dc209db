"""The small objects that tell what a prefix is: `.SCHEMA_VERSION` and `.frostline-disk`."""

from __future__ import annotations

from typing import Protocol

from oplog import bounds


class MarkStore(Protocol):
    """The part of an object store that reads a mark."""

    name: str

    def get(self, key: str) -> bytes: ...


def read_mark(store: MarkStore, key: str) -> bytes:
    """The object, by one request. Raises `NotFound`; `Damaged` for one that is larger than a mark can be, and reads
    nothing of it: it may be anything that somebody put there."""
    with bounds.at_most(bounds.LARGEST_MARK_BYTES, f"{store.name}{key}"):
        return store.get(key)
