"""Which disks were given up, noted on the other disks of a store: `given-up/<id>.json`.

The journal knows it, too. The notes tell a machine whose journal is lost, and every other machine that has one of these
disks. No drop, undo or restore removes them; they stay until somebody adopts the disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import msgspec

from disks.base import Disk
from disks.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.stores.time_budget import time_budget
from oplog.documents import Document
from oplog.errors import AlreadyExists, Conflict, FrostlineError
from oplog.kinds import DiskGivenUp
from tiering.table.paths import given_up_path

_PATIENCE_SECONDS = 4.0
"""For a bucket that this machine has a table of, and has to catch up with."""


class _GivenUp(msgspec.Struct, frozen=True):
    actor: str


_document = Document("note of a disk that was given up", _GivenUp)


def is_noted(disks: Iterable[Disk], identity: str) -> bool | None:
    """Whether one of the disks says that this one was given up; None when none does and some cannot be asked."""
    unsure = False
    for disk in disks:
        is_known = (logged := as_disk(disk, LoggedDisk)) is None or logged.local_state_exists()
        try:
            with time_budget(_PATIENCE_SECONDS) if is_known else nullcontext():
                if disk.exists(given_up_path(identity)):
                    return True
        except FrostlineError:
            unsure = True
    return None if unsure else False


def note(disks: Iterable[Disk], identity: str, actor: str) -> list[str]:
    """Write it down on each of the disks. In sentences, where that failed."""
    path, failures = given_up_path(identity), list[str]()
    for disk in disks:
        try:
            with disk.transaction(DiskGivenUp(disk=identity), reason="a disk was given up", actor=actor) as transaction:
                transaction.require(absent=(path,))
                transaction.create(path, _document.encode(_GivenUp(actor)))
                transaction.commit()
        except (AlreadyExists, Conflict):
            continue
        except (FrostlineError, OSError) as error:
            failures.append(f"disk {disk.name} does not know it: {error}")
    return failures


def withdraw(disks: Iterable[Disk], identity: str, actor: str) -> list[str]:
    """Take the notes away from all of the disks. In sentences, where that failed."""
    path, failures = given_up_path(identity), list[str]()
    for disk in disks:
        try:
            if not disk.exists(path):
                continue
            reason = "a disk that was given up was adopted"
            with disk.transaction(DiskGivenUp(disk=identity, adopted=True), reason=reason, actor=actor) as transaction:
                transaction.remove(path)
                transaction.commit()
        except (FrostlineError, OSError) as error:
            failures.append(f"disk {disk.name} is still marked as given up: {error}")
    return failures
