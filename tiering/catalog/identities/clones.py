"""Two homes that go by one identity: a machine was cloned with its disks and its state, and both live.

Both would give the same names. Each transaction of a local disk has a random token: of one number another token shows
that two copies of the disk were written to (`identities.ages`). The home that finds it leaves a mark on the other
disks, with the token of its own last transaction, so that the other one finds it too: `cloned/<id>/<token>.json`.
No drop, undo or restore removes marks. `disk adopt` gives a home an identity of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from disks.base import Disk
from oplog.documents import Document
from oplog.errors import AlreadyExists, Conflict, FrostlineError
from oplog.kinds import DiskGivenUp
from oplog.stamps import KeptStamp
from tiering.table.paths import clone_mark


class _Clone(msgspec.Struct, frozen=True):
    actor: str


_document = Document("mark of a home that was cloned", _Clone)


def is_marked(disks: Iterable[Disk], identity: str, stamps: Sequence[KeptStamp]) -> str:
    """The name of a disk on which another home that goes by this id has left its mark; empty where none has, as far as
    they can be read."""
    own = {f"{kept.stamp.token}.json" for kept in stamps}
    for disk in disks:
        try:
            names = disk.list(clone_mark(identity))
        except FrostlineError:  # its own fault, which says why
            continue
        if any(name not in own for name in names):
            return disk.name
    return ""


def mark(disks: Iterable[Disk], identity: str, token: str, actor: str) -> list[str]:
    """Leave the mark of this home on each of the disks. In sentences, where that failed."""
    path, failures = clone_mark(identity, token), list[str]()
    for disk in disks:
        if disk.list(clone_mark(identity)) and disk.exists(path):
            continue
        reason = "another home uses the id of a disk"
        try:
            with disk.transaction(DiskGivenUp(disk=identity, cloned=True), reason=reason, actor=actor) as transaction:
                transaction.require(absent=(path,))
                transaction.create(path, _document.encode(_Clone(actor)))
                transaction.commit()
        except (AlreadyExists, Conflict):
            continue
        except (FrostlineError, OSError) as error:
            failures.append(f"disk {disk.name} has no mark of this home: {error}")
    return failures
