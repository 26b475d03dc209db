"""Which machine writes a log that is one of several: `logs/<NAME>/writers/<number>.json`, only ever added.

    {"writer": "9f…", "holder": "machine-a", "time": "2026-11-23T16:00:00Z", "retention_seconds": 86400}

The one with the highest number counts. `writer` is a random word of the machine's state of this disk, so that a second
machine that is configured with the name of another's log is refused before it writes anything. One that takes the place
of a lost machine says so (`take_over`). Several processes with one state are one writer. What cannot be seen: copies of
a state directory. One with `retired` ends the log (`disks.object_disk.sharing.retiring`).

The record tells how long the log's owner wants what was removed to stay: the collections of other logs go by it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import socket
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.effects import fsync_directory, hard_link, make_directory, write_new_file
from disks.host.locks import OwnedDirectory
from disks.host.moment import Moment
from disks.stores.base import ObjectStore
from oplog import bounds
from oplog.documents import Document
from oplog.entry import now
from oplog.errors import AlreadyExists, Damaged, FrostlineError, OutcomeUnknown, Refused
from oplog.revision import WRITERS_PREFIX

_LOOK_SECONDS = 60.0
"""A machine whose place was taken learns it so late."""
_ATTEMPTS = 5
_TAKEN_BACK_WITHIN = timedelta(hours=12)
"""A log that was retired can be written again so long: half the time after which collections heed it no more."""
_KEY = re.compile(rf"{WRITERS_PREFIX}([0-9]{{10}})\.json\Z")


class Writer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record."""

    writer: str
    holder: str
    time: datetime
    retention_seconds: int
    retired: bool = False
    """Nobody writes the log any more; `holder` is who said so."""


class Retired(NamedTuple):
    """Since when a log is no longer written, by the store's clock, and the machine that said so."""

    since: datetime
    holder: str


def _fault_in(writer: Writer) -> str | None:
    fault = bounds.fault_in_time("time", writer.time)
    return fault or bounds.fault_in_count("retention_seconds", writer.retention_seconds)


_document = Document("record of who writes a log", Writer, fault=_fault_in)


class WriterClaim:
    """The right of one state directory to write a log. Used by one thread at a time."""

    def __init__(self, store: ObjectStore, disk: str, state_path: Path, retention_seconds: int) -> None:
        self._store = store
        self._disk = disk
        self._file = state_path / "writer"
        self._retention_seconds = retention_seconds
        self._looked: Moment | None = None

    def check(self) -> None:
        """Raise `Refused` when another machine writes the log. Claims one that nobody does. One listing and a request,
        now and then."""
        if self._looked is not None and self._looked.age_seconds < _LOOK_SECONDS:
            return
        for _ in range(_ATTEMPTS):
            number, newest = newest_writer(self._store)
            if (objection := self._objection_to(newest, self._own)) is not None:
                raise objection
            if newest is not None and newest.retention_seconds == self._retention_seconds:
                self._looked = Moment()
                return
            self._put(number + 1)

    def objection(self) -> Refused | None:
        """The error that `check` would raise. Claims and writes nothing."""
        _, newest = newest_writer(self._store)
        return self._objection_to(newest, lambda: self._file.read_text() if self._file.exists() else "")

    def _objection_to(self, newest: Writer | None, own: Callable[[], str]) -> Refused | None:
        if newest is None:
            return None
        if newest.retired:
            return self._is_retired(newest)
        if newest.writer == own():
            return None
        return Refused(
            f"the log of disk {self._disk}, {self._store.name}, is written by another machine: "
            f"{newest.holder}, since {newest.time:%Y-%m-%d %H:%M} UTC",
            hint="give each machine a log of its own (`log:`); if that one is gone for good and this one takes "
            f"its place: 'frostline disk adopt {self._disk}'",
        )

    def take_over(self) -> None:
        """From now on this machine writes the log, and no other."""
        for _ in range(_ATTEMPTS):
            number, newest = newest_writer(self._store)
            if newest is not None and newest.writer == self._own():
                return
            found = retired(self._store)
            if newest is not None and found is not None and now() - found.since > _TAKEN_BACK_WITHIN:
                raise self._is_retired(newest, is_too_late=True)
            self._put(number + 1)

    def _is_retired(self, newest: Writer, *, is_too_late: bool = False) -> Refused:
        way_back = f"within 12 hours 'frostline disk adopt {self._disk}' takes it back; later "
        return Refused(
            f"the log of disk {self._disk}, {self._store.name}, was retired by {newest.holder} at "
            f"{newest.time:%Y-%m-%d %H:%M} UTC: what it alone names is being collected, or will be",
            hint=f"{'it is too late to take it back: ' if is_too_late else way_back}give this machine another log "
            "(`log:`), and bring back what it had from a backup",
        )

    def _put(self, number: int) -> None:
        """Where another one was first, the next look finds it."""
        record = Writer(
            writer=self._own(),
            holder=socket.gethostname(),
            time=now(),
            retention_seconds=self._retention_seconds,
        )
        try:
            _put_record(self._store, number, record)
        except (AlreadyExists, OutcomeUnknown):
            return

    def _own(self) -> str:
        """The word of this state, durable before the record: whichever process is first gives it."""
        if not self._file.exists():
            make_directory(self._file.parent)
            staging = OwnedDirectory(self._file.parent / "scratch")
            try:
                write_new_file(staging.path / "writer", secrets.token_hex(16).encode())
                hard_link(staging.path / "writer", self._file)
            except FileExistsError:
                pass
            finally:
                staging.remove()
            fsync_directory(self._file.parent)
        return self._file.read_text()


def take_over(disk: LoggedDisk) -> None:
    """From now on this machine writes the disk's log, and no other. Nothing where the log has no owner."""
    if disk.log_name is not None:
        WriterClaim(disk.store, disk.name, disk.state_path, disk.retention_seconds).take_over()


def refusal(disk: LoggedDisk) -> FrostlineError | None:
    """Why this machine may not write the disk's log, of one among several: another machine writes it, it was retired,
    or its record cannot be read. None also where the bucket does not answer. A listing and a request."""
    if disk.log_name is None or disk.read_only:
        return None
    try:
        return WriterClaim(disk.store, disk.name, disk.state_path, disk.retention_seconds).objection()
    except Damaged as error:
        return error
    except FrostlineError:
        return None


def newest_writer(store: ObjectStore) -> tuple[int, Writer | None]:
    """The number of the record that counts, and what it says; 0 and None where nobody ever wrote. Raises `Damaged`."""
    found = _newest(store)
    return (0, None) if found is None else found[:2]


def retired(store: ObjectStore) -> Retired | None:
    """What the record that counts says of a retirement. Raises `Damaged`."""
    found = _newest(store)
    return Retired(found[2], found[1].holder) if found is not None and found[1].retired else None


def put_retired(store: ObjectStore) -> None:
    """Say that nobody writes the log any more, unless somebody has just begun to."""
    number, _ = newest_writer(store)
    record = Writer(writer="", holder=socket.gethostname(), time=now(), retention_seconds=0, retired=True)
    _put_record(store, number + 1, record)


def _newest(store: ObjectStore) -> tuple[int, Writer, datetime] | None:
    found = [(item, match) for item in store.list(WRITERS_PREFIX) if (match := _KEY.match(item.key))]
    if not found:
        return None
    item, match = found[-1]
    name = f"{store.name}{item.key}"
    try:
        if item.size_bytes > bounds.LARGEST_NOTE_BYTES:
            raise ValueError(f"it has {item.size_bytes} bytes")
        writer = _document.decode(store.get(item.key))
    except bounds.UNREADABLE as error:
        raise Damaged(f"{name} cannot be read: {error}", hint="delete it; the log's machine puts it again") from error
    return int(match[1]), writer, item.modified


def _put_record(store: ObjectStore, number: int, record: Writer) -> None:
    data = _document.encode(record)
    store.put_if_absent(_key(number), data, sha256=hashlib.sha256(data).digest())


def _key(number: int) -> str:
    return f"{WRITERS_PREFIX}{number:010d}.json"
