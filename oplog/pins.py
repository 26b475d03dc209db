"""Pins: revisions that must stay restorable, each with a holder and an end. `pins/<name>.json`, never changed once put.

A long reader of an old revision (a restore, a backup, a user) pins it; gc keeps what a live pin needs.
Releasing a pin deletes it. Where Object Lock or the credentials forbid that, `pins/<name>+released.json` is put beside
it, and gc deletes both once it may: first the pin, for without its mark it would come back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from oplog import bounds
from oplog.documents import Document
from oplog.entry import now
from oplog.errors import UNDELETABLE, AlreadyExists, Damaged, FrostlineError, NotFound, OutcomeUnknown, UsageError
from oplog.log_end import ListedEntry, LogStore
from oplog.revision import PINS_PREFIX

_RELEASED = "+released.json"
"""No pin's own name holds a `+`."""
_RELEASE = b"{}"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


class PinStore(LogStore, Protocol):
    """The part of an object store that pins use."""

    def delete(self, keys: Iterable[str]) -> Mapping[str, FrostlineError | None]: ...


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """One revision to keep. `until` None: until it is released."""

    name: str
    revision: int
    holder: str
    created: datetime
    until: datetime | None = None
    reason: str = ""


def _fault_in(pin: Pin) -> str | None:
    fault = (
        bounds.fault_in_revision("revision", pin.revision)
        or bounds.fault_in_time("created", pin.created)
        or (bounds.fault_in_time("until", pin.until) if pin.until is not None else None)
    )
    return fault or (None if _NAME.match(pin.name) else "its name is none")


_document = Document("pin", Pin, fault=_fault_in, order="deterministic")


def why_not_kept(held: Iterable[Pin], name: str, revision: int) -> str | None:
    """Why no pin of this name keeps the revision now; None when one does."""
    pin = next((pin for pin in held if pin.name == name), None)
    if pin is None:
        return "is gone"
    if pin.revision != revision:
        return f"holds revision {pin.revision} instead of {revision}"
    if pin.until is not None and pin.until <= now():
        return f"ran out at {pin.until:%Y-%m-%d %H:%M} UTC"
    return None


def create(
    store: LogStore, name: str, revision: int, *, holder: str, until: datetime | None = None, reason: str = ""
) -> Pin:
    """Pin the revision. Raises `AlreadyExists` when another pin has this name; asking again for the same is fine."""
    pin = Pin(name=name, revision=revision, holder=holder, created=now(), until=until, reason=reason)
    marks = _mark_of(_key(name))
    data = _document.encode(pin)
    if any(store.list(marks)):
        raise AlreadyExists(f"a released pin named {name} could not be deleted yet", hint="choose another name")
    try:
        store.put_if_absent(_key(name), data, sha256=hashlib.sha256(data).digest())
    except (AlreadyExists, OutcomeUnknown) as error:
        there = _read(store, _key(name))
        if (there.revision, there.holder, there.until) != (revision, holder, until):
            raise AlreadyExists(
                f"a pin named {name} holds revision {there.revision} for {there.holder}",
                hint="choose another name, or release that pin first",
            ) from error
        return there
    return pin


def list_pins(store: LogStore) -> list[Pin]:
    """All pins, by name, also those that ran out. Raises `Damaged` when one cannot be read: it may keep anything."""
    return [pin for item in listed(store) for pin in read_listed(store, item)]


def listed(store: LogStore) -> list[ListedEntry]:
    """The objects of all pins, by name."""
    found = {item.key: item for item in store.list(PINS_PREFIX)}
    return [found[key] for key in unreleased(found)]


def read_listed(store: LogStore, listed: ListedEntry) -> list[Pin]:
    """The pin that a listing shows; none when it was released since. Raises `Damaged`."""
    if listed.size_bytes > bounds.LARGEST_NOTE_BYTES:
        raise _damaged(f"{store.name}{listed.key}", f"it has {listed.size_bytes} bytes")
    try:
        return [_read(store, listed.key)]
    except NotFound:
        return []


def unreleased(keys: Iterable[str]) -> list[str]:
    """Of the keys below `pins/` those of pins that nobody has released."""
    listed = list(keys)
    released = {_pin_of(key) for key in listed if key.endswith(_RELEASED)}
    return [key for key in listed if not key.endswith(_RELEASED) and key not in released]


def release(store: PinStore, name: str) -> bool:
    """Take the pin away; whether there was one. Its revision then goes when its retention has run out."""
    key = _key(name)
    try:
        store.get(key)
    except NotFound:
        return False
    error = store.delete([key])[key]
    if isinstance(error, UNDELETABLE):
        return _mark_released(store, key)
    if error is not None:
        raise error
    return True


def _mark_released(store: PinStore, key: str) -> bool:
    try:
        store.put_if_absent(_mark_of(key), _RELEASE, sha256=hashlib.sha256(_RELEASE).digest())
    except AlreadyExists:
        return False  # released before
    except OutcomeUnknown:
        store.get(_mark_of(key))  # raises when it is not there
    return True


def sweep(store: PinStore) -> None:
    """Delete released pins that could not be deleted before; those that still cannot wait for the next time."""
    for mark in [item.key for item in store.list(PINS_PREFIX) if item.key.endswith(_RELEASED)]:
        pin = _pin_of(mark)
        if store.delete([pin])[pin] is None:
            store.delete([mark])


def _mark_of(key: str) -> str:
    return key.removesuffix(".json") + _RELEASED


def _pin_of(mark: str) -> str:
    return mark.removesuffix(_RELEASED) + ".json"


def _read(store: LogStore, key: str) -> Pin:
    pin = _decode(store.get(key), f"{store.name}{key}")
    if _key(pin.name) != key:
        raise Damaged(f"pin {store.name}{key} does not say what its name says", hint="delete it if it is not needed")
    return pin


def _decode(data: bytes, name: str) -> Pin:
    try:
        return _document.decode(data)
    except bounds.UNREADABLE as error:
        raise _damaged(name, str(error)) from error


def _damaged(name: str, why: str) -> Damaged:
    return Damaged(f"pin {name} cannot be read: {why}", hint="delete it if it is not needed")


def _key(name: str) -> str:
    if not _NAME.match(name):
        raise UsageError(f"not a name for a pin: {name!r}", hint="letters, digits, '.', '_' and '-', at most 100")
    return f"{PINS_PREFIX}{name}.json"
