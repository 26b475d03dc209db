"""Under which uuid a table is restored: that of the backup, where nothing of it is here and nobody else restores it.

The bucket is the arbiter, as for names: of several machines that restore one backup at the same moment the one whose
transaction creates `restoring.json` has the uuid, and the others take new ones. The file goes with the transaction that
creates `table.json`.

<table's directory>/restoring.json   which restore on which machine brings the table
"""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

import msgspec

from backup.format import names
from backup.recover import unfinished_restores
from backup.recover.unfinished_restores import Unrevealed
from disks.base import Disk
from disks.effects import replace_file
from oplog.documents import Document
from oplog.errors import Conflict
from oplog.kinds import Restored
from tiering.catalog.context import Context
from tiering.catalog.definitions import table_names
from tiering.table import tombstones
from tiering.table.schema import TableDefinition

_FILE = "restoring.json"


class Reservation(msgspec.Struct, frozen=True):
    """`restoring.json`: which restore of which machine has the uuid."""

    machine: str
    restore: str


_reservation = Document("reservation of a uuid by a restore", Reservation)


def reservation_path(definition: TableDefinition) -> str:
    """Where it is said who restores the table."""
    return f"{definition.directory}/{_FILE}"


def reserved_uuid(context: Context, definition: TableDefinition, record: Path, source: str) -> str:
    """The uuid of the table here, which `record` keeps: the one of a restore that was killed, else that of the backup
    (the definition's), else a new one. `source` names the backup, for the logs."""
    begun = unfinished_restores.noted(record)
    if begun is not None and begun.reserved and not any(_was_dropped(disk, begun.uuid) for disk in _whole(context)):
        return begun.uuid
    arbiter = table_names.arbiter(context, definition)
    own = _own(context, record)
    ours = arbiter is not None and _said(arbiter, definition) == own
    chosen = str(uuid.uuid4())
    if ours or not any(_has_seen(disk, definition) for disk in _whole(context)):
        _note(context, definition, definition.uuid, record, reserved=False)
        if ours or arbiter is None or _reserve(context, arbiter, definition, own, source):
            chosen = definition.uuid
    _note(context, definition, chosen, record, reserved=True)
    return chosen


def recorded(record: Path) -> str | None:
    """The uuid that a restore which did not end works under."""
    note = unfinished_restores.noted(record)
    return note.uuid if note is not None and note.reserved else None


def _note(context: Context, definition: TableDefinition, chosen: str, record: Path, *, reserved: bool) -> None:
    note = Unrevealed(chosen, definition.full_name, context.actor, context.clock(), reserved)
    replace_file(record, unfinished_restores.document.encode(note))


def _own(context: Context, record: Path) -> bytes:
    """What only this restore of this machine says."""
    machine = names.machine_word(socket.gethostname(), str(context.config.state_directory.absolute()))
    return _reservation.encode(Reservation(machine, record.stem))


def _said(disk: Disk, definition: TableDefinition) -> bytes | None:
    path = reservation_path(definition)
    return disk.read(path) if disk.exists(path) else None


def _reserve(context: Context, disk: Disk, definition: TableDefinition, own: bytes, source: str) -> bool:
    """Whether nobody else has the uuid, nor had it before us: then it is ours."""
    kind, path, reason = Restored(source=source), reservation_path(definition), f"restore from {source}"
    try:
        with disk.transaction(kind, reason=reason, actor=context.actor) as transaction:
            transaction.create(path, own)
            transaction.commit()
    except Conflict:
        return False
    if list(disk.list(definition.directory)) == [_FILE]:
        return True
    with disk.transaction(kind, reason=reason, actor=context.actor) as transaction:
        transaction.remove(path)  # the table has appeared since we looked
        transaction.commit()
    return False


def _whole(context: Context) -> list[Disk]:
    return [disk for disk in context.disks.values() if disk.broken is None]


def _has_seen(disk: Disk, definition: TableDefinition) -> bool:
    """Whether a table of this uuid is on the disk, or was dropped there: another machine may still have parts of it."""
    return bool(disk.list(definition.directory)) or _was_dropped(disk, definition.uuid)


def _was_dropped(disk: Disk, table_uuid: str) -> bool:
    return disk.exists(tombstones.path_of(table_uuid))
