"""Pins that backups left in buckets of this machine when they went: who dropped one was stopped before it let go."""

from __future__ import annotations

from collections.abc import Iterable

from backup.create.attempts import pin_name
from backup.storage import Storage
from disks.stores.base import ObjectStore
from oplog import pins


def release_left(storage: Storage, buckets: Iterable[ObjectStore]) -> None:
    """Release the pins of this repository's backups that are neither there nor being made."""
    here = f" in {storage.name}"
    found = [
        (bucket, pin.name)
        for bucket in buckets
        for pin in pins.list_pins(bucket)
        if pin.until is None and pin.holder.endswith(here)
    ]
    if not found:
        return
    # In this order: a backup is marked before it pins, and its mark stays until its header is there.
    begun = {mark.id for mark in storage.unfinished(())}
    headers, broken = storage.headers()
    known = {pin_name(backup) for backup in (*begun, *(header.id for header in headers))}
    unreadable = [item.key for item in broken]
    for bucket, name in found:
        if name not in known and not any(name.removeprefix(pin_name("")) in key for key in unreadable):
            pins.release(bucket, name)
