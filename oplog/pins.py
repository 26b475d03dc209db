"""Pins: revisions that must stay restorable, each with a holder and an end. `pins/<name>.json`, never changed once put.

Whoever is going to read an old revision for long (a restore, a backup, a user) pins it; gc keeps what a live pin needs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from oplog.entry import now
from oplog.errors import AlreadyExists, Damaged, FrostlineError, NotFound, OutcomeUnknown, UsageError
from oplog.log import LogStore
from oplog.revision import PINS_PREFIX

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


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Pin)


def create(
    store: LogStore, name: str, revision: int, *, holder: str, until: datetime | None = None, reason: str = ""
) -> Pin:
    """Pin the revision. Raises `AlreadyExists` when another pin has this name; asking again for the same is fine."""
    pin = Pin(name=name, revision=revision, holder=holder, created=now(), until=until, reason=reason)
    data = _encoder.encode(pin)
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
    found: list[Pin] = []
    for item in store.list(PINS_PREFIX):
        try:
            found.append(_read(store, item.key))
        except NotFound:
            continue  # released since the listing
    return found


def release(store: PinStore, name: str) -> bool:
    """Take the pin away; whether there was one. Its revision then goes when its retention has run out."""
    try:
        store.get(_key(name))
    except NotFound:
        return False
    for error in store.delete([_key(name)]).values():
        if error is not None:
            raise error
    return True


def _read(store: LogStore, key: str) -> Pin:
    data = store.get(key)
    try:
        pin = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"pin {store.name}{key} cannot be read: {error}", hint="delete it if nobody needs it") from error
    if pin.revision < 1 or _key(pin.name) != key or (pin.until is not None and pin.until.tzinfo is None):
        raise Damaged(f"pin {store.name}{key} does not say what its name says", hint="delete it if nobody needs it")
    return pin


def _key(name: str) -> str:
    if not _NAME.match(name):
        raise UsageError(f"not a name for a pin: {name!r}", hint="letters, digits, '.', '_' and '-', at most 100")
    return f"{PINS_PREFIX}{name}.json"
