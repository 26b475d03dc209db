"""The fence on the shared disk: a file beside the table's that every commit of a mover requires.

    <table>/mover-<n>.json   whose moves are let in; the next one takes its place, in one commit

Numbers only grow, and the bucket's log accepts one commit a number. So the replica that raises the next fence knows
that no commit under an older one follows, however late its mover wakes up; and a mover that stood still while it was
replaced cannot put one up either, for the one that it would replace is gone.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import msgspec

from disks.base import Disk
from oplog.documents import Document
from oplog.errors import Conflict, NotFound
from oplog.kinds import TableAltered
from tiering.table.schema import TableDefinition
from zerocopy.replica.replica import Replica

_FENCE = re.compile(r"mover-(\d{1,18})\.json\Z", re.ASCII)
_ATTEMPTS = 20


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    replica: str
    token: str
    """The replica's own, as Keeper has it."""


_document = Document("fence of the replica that moves", Fence)


def current(disk: Disk, definition: TableDefinition) -> str | None:
    """The path of the fence that stands; None where there never was one."""
    found = [name for name in disk.list(definition.directory) if _FENCE.match(name)]
    last = max(found, key=_number, default=None)
    return f"{definition.directory}/{last}" if last is not None else None


def hold(replica: Replica, disk: Disk) -> str:
    """The path of a fence of this replica's own: the one that stands, where it is, else a new one."""
    disk.refresh()
    path = current(disk, replica.definition)
    if path is not None and _is_own(replica, disk, path):
        return path
    return replace(replica, disk)


def replaced_by(replica: Replica, disk: Disk, path: str) -> str:
    """The replica whose fence took this one's place; empty where it stands, or another of this replica's does."""
    disk.refresh()
    standing = current(disk, replica.definition)
    if standing is None or standing == path:
        return ""
    try:
        found = _document.decode(disk.read(standing))
    except (msgspec.DecodeError, NotFound):
        return ""
    return "" if found.token == replica.token else found.replica


def replace(replica: Replica, disk: Disk) -> str:
    """Put up the next fence; returns its path. What was to be committed under an older one is in or never will be."""
    definition = replica.definition
    content = _document.encode(Fence(replica=replica.name, token=replica.token))
    for _ in range(_ATTEMPTS):
        disk.refresh()
        last = current(disk, definition)
        number = _number(PurePosixPath(last).name) + 1 if last is not None else 1
        path = f"{definition.directory}/mover-{number}.json"
        reason = f"replica {replica.name} moves parts of {definition.full_name} from now on"
        try:
            with disk.transaction(TableAltered(), reason=reason, actor=replica.context.actor) as transaction:
                transaction.require(present=(definition.path,), absent=(path,))
                if last is not None:
                    transaction.remove(last)
                transaction.create(path, content)
                transaction.commit()
        except Conflict:
            continue
        return path
    raise Conflict(f"the fence of {definition.full_name} on {disk.name} keeps changing", hint="run it again")


def _is_own(replica: Replica, disk: Disk, path: str) -> bool:
    try:
        return _document.decode(disk.read(path)).token == replica.token
    except msgspec.DecodeError:
        return False


def _number(name: str) -> int:
    match = _FENCE.match(name)
    assert match is not None
    return int(match[1])
