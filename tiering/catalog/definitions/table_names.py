"""Who has a table's name, where several machines share a bucket.

The bucket is the arbiter: the transaction that creates a table there also creates `names/<database>.<table>.json`,
which can exist once. Of two machines that create one name at the same moment the second finds it taken, and has changed
nothing. Tables that were made before there were such files have none; their name is found in the catalog, as ever.
"""

from __future__ import annotations

import msgspec

from disks.base import Disk, Transaction
from oplog import bounds
from oplog.documents import Document
from oplog.errors import AlreadyExists, Damaged, FrostlineError, NotFound
from tiering.catalog.context import Context
from tiering.table import tombstones
from tiering.table.schema import TableDefinition


class NameOwner(msgspec.Struct, frozen=True):
    """`names/<database>.<table>.json`: the uuid of the table that has the name."""

    table: str


document = Document("owner of a table's name", NameOwner)


def path_of(full_name: str) -> str:
    """Where the owner of the name is written down."""
    return f"names/{full_name}.json"


def arbiter(context: Context, definition: TableDefinition) -> Disk | None:
    """The disk that decides who gets the name: the policy's first that several machines may write; None without one."""
    disks = [context.disk(name) for name in context.catalog.policy_disks(definition)]
    return next((disk for disk in disks if disk.capabilities.remote and not disk.read_only), None)


def is_free(context: Context, disk: Disk, definition: TableDefinition) -> bool:
    """Whether this disk decides about the table's name, and no table there has it."""
    if disk is not arbiter(context, definition):
        return False
    owner = owner_of(disk, definition.full_name)
    return owner is None or _is_gone(disk, owner)


def require_free(context: Context, definition: TableDefinition) -> None:
    """Raise `AlreadyExists` where another table has the name."""
    full_name = definition.full_name
    if any(table.full_name == full_name for table in context.catalog.tables() if table.uuid != definition.uuid):
        raise AlreadyExists(f"table {full_name} exists already", hint="choose another name, or drop that table first")
    for table in context.catalog.unreadable():
        if table.uuid != definition.uuid and table.is_called(full_name):
            raise table.error()
    require_not_hidden(context, definition)


def require_not_hidden(context: Context, definition: TableDefinition) -> None:
    """Raise `AlreadyExists` where the name belongs to a table that a way back hid: nobody sees it. Of several hidden
    ones it is the one that has the name."""
    full_name, decides = definition.full_name, arbiter(context, definition)
    owner = owner_of(decides, full_name) if decides is not None else None
    for gone in context.catalog.dropped():
        if gone.definition.full_name == full_name and owner in (None, gone.definition.uuid):
            raise AlreadyExists(
                f"the name {full_name} belongs to a removed table that {', '.join(gone.disks)} still has, hidden",
                hint=f"undo the removal, or delete it: frostline table drop {gone.definition.uuid}",
            )


def claim(transaction: Transaction, disk: Disk, definition: TableDefinition, *, taking_from: str | None = None) -> None:
    """Let the transaction take the name, from a table that is gone if need be, or from that of the uuid `taking_from`.
    Its commit raises `Conflict` when another table has it."""
    path = path_of(definition.full_name)
    owner = owner_of(disk, definition.full_name)
    if owner == "":
        raise Damaged(f"{disk.name}:{path} cannot be read: it says who has the name", hint="run 'frostline fsck'")
    if owner is not None and (owner == taking_from or _is_gone(disk, owner)):
        transaction.remove(path)
    transaction.create(path, document.encode(NameOwner(definition.uuid)))


def path_where_owned(context: Context, definition: TableDefinition) -> str | None:
    """Where it is said that the table has its name; None where nothing says so."""
    disk = arbiter(context, definition)
    owned = disk is not None and owner_of(disk, definition.full_name) == definition.uuid
    return path_of(definition.full_name) if owned else None


def _is_gone(disk: Disk, owner: str) -> bool:
    return owner != "" and not disk.exists(tombstones.definition_path(owner))


def owner_of(disk: Disk, full_name: str) -> str | None:
    """The uuid of the table that has the name on this disk; "" when the file cannot be read, None without one."""
    path = path_of(full_name)
    if not disk.exists(path):
        return None
    try:
        return document.decode(disk.read(path)).table
    except NotFound:
        return None
    except (FrostlineError, *bounds.UNREADABLE):
        return ""
