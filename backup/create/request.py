"""What somebody asks of a new backup, what is refused before anything is sent, and what it came to."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from itertools import count

import msgspec

from backup.create.instant import TableNow, chosen_tables
from backup.format import names
from backup.format.header import BackupHeader, Cold, LeftOut, NotHeld, UnfinishedBackup
from backup.scope import Scope
from backup.storage import Storage
from disks.contracts.bucket_disk import ClickHouseLogDisk
from disks.kinds import as_disk
from oplog.entry import now
from oplog.errors import AlreadyExists, NotFound, Refused
from tiering.catalog import blocks
from tiering.catalog.context import Context


class CreateRequest(msgspec.Struct, frozen=True):
    """What somebody asks for."""

    name: str | None = None
    """None: the time of its making."""
    scope: Scope = msgspec.field(default_factory=Scope)
    cold: Cold = "copy"
    tags: tuple[str, ...] = ()
    allow_empty: bool = False
    """Tables that had parts in the backup before may have none now."""
    dry_run: bool = False


class CreateResult(msgspec.Struct, frozen=True):
    """What was done, or with a dry run would be. `copied_server_side` and `pinned` count bytes."""

    name: str
    id: str
    tables: int
    parts: int
    files: int
    bytes: int
    new_bytes: int
    copied_server_side: int
    pinned: int
    seconds: float
    verified: bool
    """Every object that it names was asked for before it was complete."""
    not_held: tuple[NotHeld, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    """Tables that cannot be read: what was made lacks them."""
    dry_run: bool = False


def machine_of(context: Context) -> str:
    """What this machine is called in a repository."""
    return names.machine_word(socket.gethostname(), str(context.config.state_directory.absolute()))


def begun(storage: Storage, context: Context, request: CreateRequest) -> UnfinishedBackup:
    """The mark of the backup that is to be made. Raises `AlreadyExists` for a name that this machine has used."""
    machine, moment = machine_of(context), now()
    if request.name is None:
        name = _free_name(storage, machine, names.name_at(moment))
    else:
        name = names.check_name(request.name)
        if storage.is_taken(name, machine):
            hint = "choose another name, or give none"
            raise AlreadyExists(f"this machine has made a backup named {name}", hint=hint)
    return UnfinishedBackup(id=names.fresh_nonce(), name=name, machine=machine, actor=context.actor, started=moment)


def _free_name(storage: Storage, machine: str, name: str) -> str:
    """The name, or with a number the first that is free: two backups of one second are two."""
    for number in count(2):
        if not storage.is_taken(name, machine):
            break
        name = f"{name.partition('Z')[0]}Z-{number}"
    return name


def table_words(context: Context, scope: Scope) -> set[str]:
    """The names and uuids of the chosen tables, as they were last looked at; again when a name is not known."""
    try:
        return _words(context, scope)
    except NotFound:
        context.catalog.refresh()
        return _words(context, scope)


def _words(context: Context, scope: Scope) -> set[str]:
    return {word for table in chosen_tables(context, scope) for word in (table.full_name, table.uuid)}


def check_tiers(context: Context, request: CreateRequest) -> None:
    """Raise `Refused` for what cannot be pinned: a bucket with ClickHouse's log has no pins."""
    for name, disk in context.disks.items() if request.cold == "pin" else ():
        if as_disk(disk, ClickHouseLogDisk) is not None:
            raise Refused(
                f"disk {name} has ClickHouse's log, which knows no pins: nothing would keep its objects",
                hint="copy them: --cold copy",
            )


def check_not_empty(
    tables: Sequence[TableNow], headers: Sequence[BackupHeader], machine: str, request: CreateRequest
) -> None:
    """A table that had parts in the newest backup before and has none now: its disk may be an empty mount point."""
    if request.allow_empty:
        return
    for table in tables:
        before = [
            entry
            for header in headers
            if header.machine == machine
            for entry in header.tables
            if entry.uuid == table.definition.uuid
        ]
        if before and before[-1].parts and not table.parts and not request.scope.partitions:
            raise Refused(
                f"table {table.definition.full_name} has no parts, and had {before[-1].parts} in the backup before",
                hint="check that all disks are mounted; if its rows were deleted on purpose, add --allow-empty",
            )


class Ranges(msgspec.Struct, frozen=True):
    """The ranges of a table's block numbers: whose each is."""

    own: frozenset[int]
    owners: Mapping[int, str]


def ranges_of(context: Context, tables: Sequence[TableNow]) -> dict[str, Ranges]:
    """Those of each table by its uuid. Asks the disks."""
    definitions = [table.definition for table in tables]
    return {
        definition.uuid: Ranges(frozenset(blocks.owned(context, definition)), blocks.owners(context, definition))
        for definition in definitions
    }


def not_held(tables: Sequence[TableNow], ranges: Mapping[str, Ranges]) -> tuple[NotHeld, ...]:
    """Who else writes the tables: what lies on the SSDs of others is in no backup of this machine."""
    found: set[tuple[str, str]] = set()
    for table in tables:
        known = ranges[table.definition.uuid]
        for index, owner in known.owners.items():
            if index not in known.own:
                found.add((table.definition.full_name, owner or f"the machine of block range {index}"))
    return tuple(NotHeld(table=name, owner=owner) for name, owner in sorted(found))
