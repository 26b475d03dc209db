"""The id of a disk: a disk is what its id says, not where it lies. Written once, by the first that writes to the disk,
never by a read, and never changed.

    <root>/.frostline/disk.json     of a directory
    <prefix>/.frostline-disk        in a bucket
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from disks import effects
from disks.host.locks import OwnedDirectory
from oplog import bounds
from oplog.documents import Document
from oplog.errors import AlreadyExists, Damaged, DiskUnreachable, NotFound, OutcomeUnknown, Refused
from oplog.mark import read_mark
from oplog.revision import DISK_KEY

if TYPE_CHECKING:
    from oplog.log_end import LogStore

DISK_FILE = "disk.json"
_FORMAT = 1
_LIMIT_BYTES = 4096
_ATTEMPTS = 5
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


class _Document(msgspec.Struct, frozen=True):
    format: int
    id: str


def _fault_in(document: _Document) -> str | None:
    is_fine = document.format != _FORMAT or _ID.match(document.id)
    return None if is_fine else f"it holds no id of a disk: {document.id[:80]!r}"


_document = Document("id of a disk", _Document, fault=_fault_in)


def encode(identity: str) -> bytes:
    """The document that holds the id."""
    return _document.encode(_Document(_FORMAT, identity))


def decode(data: bytes, *, name: str) -> str:
    """The id in the document. Raises `Damaged`; `Refused` for a format that this version does not know."""
    try:
        document = _document.decode(data[:_LIMIT_BYTES])
    except bounds.UNREADABLE as error:
        raise Damaged(f"{name}, the id of the disk, cannot be read: {error}", hint=_HINT) from error
    if document.format != _FORMAT:
        raise Refused(f"{name} has format {document.format}; this version knows {_FORMAT}", hint="upgrade frostline")
    return document.id


_HINT = (
    "bring it back from a copy; 'frostline disks' shows which id this machine knows. If there is none: remove it, "
    "and 'frostline disk adopt' accepts the disk unchanged"
)


def read_file(own: Path) -> str | None:
    """The id of the disk whose own directory this is; None when there is none."""
    path = own / DISK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(descriptor, "rb") as file:
        return decode(file.read(_LIMIT_BYTES), name=str(path))


def write_file(own: Path) -> str:
    """Give the disk an id, durably; the one that it has when another process was first. Raises `Refused` where names
    that differ only in case are one."""
    path, identity = own / DISK_FILE, str(uuid.uuid4())
    effects.make_directory(own.parent, mode=effects.PRIVATE)
    staging = OwnedDirectory(own / "staging")  # what a crash leaves there, recovery removes
    try:
        effects.write_new_file(staging.path / DISK_FILE, encode(identity))
        if not tells_case_apart(staging.path / DISK_FILE):
            raise Refused(
                f"{own.parent} is on a file system that does not distinguish upper from lower case: the parts of "
                "partitions 'a' and 'A' would overwrite each other",
                hint="put the disk on a case-sensitive file system, such as ext4 or XFS without case folding",
            )
        effects.hard_link(staging.path / DISK_FILE, path)
    except FileExistsError:
        pass
    finally:
        staging.remove()
    effects.fsync_directory(own)
    return read_file(own) or identity


def tells_case_apart(file: Path) -> bool:
    """Whether the file system of this file, whose name has small letters, has no file of the same name in capitals."""
    return not file.with_name(file.name.upper()).exists()


def read_object(store: LogStore) -> str | None:
    """The id of the disk in this prefix, by one request; None when there is none."""
    try:
        return decode(read_mark(store, DISK_KEY), name=f"{store.name}{DISK_KEY}")
    except NotFound:
        return None


def put_object(store: LogStore) -> str:
    """Give the disk an id; the one that it has when another machine was first. Overwrites nothing."""
    identity = str(uuid.uuid4())
    data = encode(identity)
    for attempt in range(_ATTEMPTS):
        try:
            store.put_if_absent(DISK_KEY, data, sha256=hashlib.sha256(data).digest())
        except AlreadyExists:
            break
        except OutcomeUnknown:  # the same again: it finds out whether the first one took effect
            if attempt + 1 == _ATTEMPTS:
                raise
        else:
            return identity
    found = read_object(store)
    if found is None:
        raise Damaged(f"{store.name}{DISK_KEY} exists and cannot be read", hint=_HINT)
    return found


class IdentityGuard:
    """Keeps a disk from being written where it is not, and gives it an id before anything else is written."""

    def __init__(
        self, name: str, location: str, read: Callable[[], str | None], write: Callable[[], str], *, cheap: bool
    ) -> None:
        """`cheap`: the id is read again each time, else once."""
        self._name = name
        self._location = location
        self._read = read
        self._write = write
        self._cheap = cheap
        self._disk_id: str | None = None
        self._begin: Callable[[str], None] = lambda identity: None
        self._begun = False
        self._lock = threading.Lock()

    @property
    def is_known(self) -> bool:
        """Whether it is known which disk is meant."""
        return self._disk_id is not None

    def watch(self, disk_id: str | None, begin: Callable[[str], None]) -> None:
        """Refuse every write from now on unless the disk shows the id `disk_id`. A disk without an id gets one. `begin`
        gets the id once, before the first write. A second call with the same id changes nothing."""
        with self._lock:
            self._begun = self._begun and disk_id == self._disk_id
            self._disk_id, self._begin = disk_id, begin

    def before_writing(self) -> str:
        """The id of the disk, which it has from now on. Raises `Refused`, or `DiskUnreachable` when it has none."""
        with self._lock:
            if self._begun and not self._cheap and self._disk_id is not None:
                return self._disk_id
            found = self._read()
            if self._disk_id is not None and found != self._disk_id:
                raise not_there(self._name, self._location, self._disk_id, found)
            if found is None:
                found = self._write()
            if not self._begun:
                self._begin(found)
            self._disk_id, self._begun = found, True
            return found


def not_there(name: str, location: str, expected_id: str, actual_id: str | None) -> Refused | DiskUnreachable:
    """The error for a location that does not hold the disk this machine expects there."""
    if actual_id is None:
        return DiskUnreachable(
            f"disk {name} is missing: {location} holds no disk, and this machine knows disk {expected_id} there",
            hint=f"mount it or correct the configuration; if it is gone for good: 'frostline disk replace {name}'",
        )
    return Refused(
        f"disk {name} is another one: {location} holds disk {actual_id}, "
        f"and this machine knows disk {expected_id} there",
        hint="mount the right one or correct the configuration; if this is the right disk: "
        f"'frostline disk adopt {name}'",
    )
