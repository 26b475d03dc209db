"""What one home of a store notes for the others on its disks. No drop, undo or restore removes the notes.

`given-up/<id>.json`: the disk with this id was given up. The journal knows it, too. The notes tell a machine whose
journal is lost, and every other machine that has one of these disks; they stay until somebody adopts the disk.

`cloned/<id>/<token>.json`: two homes go by one identity: a machine was cloned with its disks and its state, and both
live. Both would give the same names. Each transaction of a local disk has a random token: of one number another token
shows that two copies of the disk were written to (`identities.ages`). The home that finds it leaves a mark on the other
disks, with the token of its own last transaction, so that the other one finds it too. `disk adopt` gives a home an
identity of its own.

`older/<id>/<number>-<token>.json`: a log has seen a later transaction of the disk than the home that left this mark,
whose last one this is. Nothing shows there whether the home was set back or cloned. A home with another transaction of
the number knows: both copies were written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.stores.time_budget import time_budget
from oplog.documents import Document
from oplog.errors import AlreadyExists, Conflict, FrostlineError
from oplog.kinds import DiskGivenUp
from oplog.stamps import CommitStamp, KeptStamp
from tiering.table.paths import clone_mark, given_up_path, older_mark

_PATIENCE_SECONDS = 4.0
"""For a bucket that this machine has a table of, and has to catch up with."""


class _GivenUp(msgspec.Struct, frozen=True):
    actor: str


_given_up = Document("note of a disk that was given up", _GivenUp)


def is_given_up(disks: Iterable[Disk], identity: str) -> bool | None:
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


def note_given_up(disks: Iterable[Disk], identity: str, actor: str) -> list[str]:
    """Write it down on each of the disks. In sentences, where that failed."""
    path, failures = given_up_path(identity), list[str]()
    for disk in disks:
        try:
            with disk.transaction(DiskGivenUp(disk=identity), reason="a disk was given up", actor=actor) as transaction:
                transaction.require(absent=(path,))
                transaction.create(path, _given_up.encode(_GivenUp(actor)))
                transaction.commit()
        except (AlreadyExists, Conflict):
            continue
        except (FrostlineError, OSError) as error:
            failures.append(f"disk {disk.name} does not know it: {error}")
    return failures


def withdraw_given_up(disks: Iterable[Disk], identity: str, actor: str) -> list[str]:
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


class _Clone(msgspec.Struct, frozen=True):
    actor: str


_clone = Document("mark of a home that was cloned", _Clone)


def is_cloned(disks: Iterable[Disk], identity: str, stamps: Sequence[KeptStamp]) -> str:
    """The name of a disk on which another home that goes by this id has left its mark; empty where none has, as far as
    they can be read."""
    own = {f"{kept.stamp.token}.json" for kept in stamps}
    numbers = {str(kept.stamp.number) for kept in stamps}
    own_older = {f"{kept.stamp.number}-{kept.stamp.token}.json" for kept in stamps}
    for disk in disks:
        try:
            names, older = disk.list(clone_mark(identity)), disk.list(older_mark(identity))
        except FrostlineError:  # its own fault, which says why
            continue
        # Of a number that is not kept here any more nothing is known.
        if any(name not in own for name in names) or any(
            name not in own_older and name.partition("-")[0] in numbers for name in older
        ):
            return disk.name
    return ""


def mark_clone(disks: Iterable[Disk], identity: str, stamp: CommitStamp, actor: str, *, is_older: bool) -> list[str]:
    """Leave the mark of this home on each of the disks. In sentences, where that failed."""
    path, failures = clone_mark(identity, stamp.token), list[str]()
    reason = "another home uses the id of a disk"
    if is_older:
        path = older_mark(identity, stamp.number, stamp.token)
        reason = "a log has seen a later transaction of a disk"
    for disk in disks:
        if disk.list(path.rpartition("/")[0]) and disk.exists(path):
            continue
        try:
            with disk.transaction(DiskGivenUp(disk=identity, cloned=True), reason=reason, actor=actor) as transaction:
                transaction.require(absent=(path,))
                transaction.create(path, _clone.encode(_Clone(actor)))
                transaction.commit()
        except (AlreadyExists, Conflict):
            continue
        except (FrostlineError, OSError) as error:
            failures.append(f"disk {disk.name} has no mark of this home: {error}")
    return failures
