"""Which replica of a table this machine is: `replica.json` beside `table.json`, on every local disk of its policy.

It lies where the parts lie: who brings back an older copy of the disks is the replica that had them then. The token
is in Keeper as well, so that neither another machine of the same name nor a replica that was dropped goes for this one.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from disks.base import Disk
from oplog.errors import Damaged
from oplog.kinds import TableAltered
from tiering.catalog.context import Context
from tiering.table.schema import TableDefinition

REPLICA_FILE = "replica.json"


class ReplicaIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    format: int = 1
    replica: str
    token: str


_decoder = msgspec.json.Decoder(ReplicaIdentity)


def path_of(definition: TableDefinition) -> str:
    """Where the file lies."""
    return f"{definition.directory}/{REPLICA_FILE}"


def read(context: Context, definition: TableDefinition) -> ReplicaIdentity | None:
    """Who this machine is; None when no disk says so. Raises `Damaged`."""
    path = path_of(definition)
    for disk in _disks(context, definition):
        if disk.exists(path):
            try:
                return _decoder.decode(disk.read(path))
            except msgspec.DecodeError as error:
                raise Damaged(
                    f"{disk.name}:{path} cannot be read: {error}", hint="bring it back from another disk of the policy"
                ) from error
    return None


def spread(context: Context, definition: TableDefinition) -> None:
    """Note it on the disks that came to the policy since: the others may go. Nothing on a machine that is no
    replica."""
    known = read(context, definition)
    if known is not None:
        write(context, definition, known)


def write(context: Context, definition: TableDefinition, identity: ReplicaIdentity) -> None:
    """Note on every disk that has not, who this machine is."""
    path = path_of(definition)
    for disk in _disks(context, definition):
        if disk.read_only or disk.unreachable or disk.exists(path) or not disk.exists(definition.path):
            continue
        reason = f"replica {identity.replica} of {definition.full_name}"
        with disk.transaction(TableAltered(), reason=reason, actor=context.actor) as transaction:
            transaction.require(present=(definition.path,), absent=(path,))
            transaction.create(path, msgspec.json.encode(identity))
            transaction.commit()


def _disks(context: Context, definition: TableDefinition) -> Iterator[Disk]:
    for name in context.catalog.policy_disks(definition):
        disk = context.disk(name)
        if not disk.capabilities.shared and disk.broken is None:
            yield disk
