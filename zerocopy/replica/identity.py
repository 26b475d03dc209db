"""Which replica of a table this machine is: `replica.json` beside `table.json`, on every local disk of its policy.

It lies where the parts lie: who brings back an older copy of the disks is the replica that had them then. The token
is in Keeper as well, so that neither another machine of the same name nor a replica that was dropped goes for this one.

A copied home has the same token. Of one home one daemon runs at a time, so what an earlier session of it left in Keeper
is nobody's; of another home nothing tells whether it lives but that its session lasts: while it does, this one may only
read.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterator

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.host.processes import boot_id
from disks.kinds import as_disk
from oplog.documents import Document
from oplog.errors import Damaged, ReadOnly
from oplog.kinds import TableAltered
from tiering.catalog.context import Context
from tiering.table.schema import TableDefinition
from zerocopy.keeper.client import Keeper, Node, Witness
from zerocopy.keeper.operations import CreateNode
from zerocopy.replica.connections import KnownTable
from zerocopy.replica.nodes import ReplicaNodes


class ReplicaIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    format: int = 1
    replica: str
    token: str


class LivingOwner(msgspec.Struct, frozen=True, kw_only=True):
    """What `is_active` holds."""

    format: int = 1
    home: str
    """The state directory, by what no copy of it has."""
    host: str
    pid: int
    session: int


living_owner = Document("node of a replica that is at work", LivingOwner)
_document = Document("replica.json", ReplicaIdentity)


def path_of(definition: TableDefinition) -> str:
    """Where the file lies."""
    return definition.replica_path


def read(context: Context, definition: TableDefinition) -> ReplicaIdentity | None:
    """Who this machine is; None when no disk says so. Raises `Damaged`."""
    path = path_of(definition)
    for disk in _disks(context, definition):
        if disk.exists(path):
            try:
                return _document.decode(disk.read(path))
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
            transaction.create(path, _document.encode(identity))
            transaction.commit()


def erase(context: Context, definition: TableDefinition) -> None:
    """This machine is no replica of the table: of a plain one, what an earlier conversion left."""
    path = path_of(definition)
    for disk in _disks(context, definition):
        if not disk.read_only and not disk.unreachable and disk.exists(path):
            reason = f"no replica of {definition.full_name}"
            with disk.transaction(TableAltered(), reason=reason, actor=context.actor) as transaction:
                transaction.remove(path)
                transaction.commit()


def _disks(context: Context, definition: TableDefinition) -> Iterator[Disk]:
    for name in context.catalog.policy_disks(definition):
        disk = context.disk(name)
        if not disk.capabilities.shared and disk.broken is None:
            yield disk


def check_alone(
    context: Context, definition: TableDefinition, keeper: Keeper, own: ReplicaNodes, kept: KnownTable
) -> None:
    """Raise `ReadOnly` where another home lives by the replica's name. Asked once, and when that changed."""
    if kept.active_changed is None or kept.active_changed.is_set():
        changed = threading.Event()
        node = keeper.watch_node(own.is_active, changed.set)
        if node is None or node.owner != keeper.session:
            check_owner(context, definition, own.path.rpartition("/")[2], node)
            check_home(context, definition, keeper, own)
        kept.active_changed = changed


def home_of(context: Context) -> str:
    """The state directory as no copy of it has it: by its place on its file system and the start of its machine."""
    place = context.config.state_directory.stat()
    return hashlib.sha256(f"{boot_id()}:{place.st_dev}:{place.st_ino}".encode()).hexdigest()[:32]


def owner_here(context: Context, session: int) -> LivingOwner:
    """This process, as the daemon of its home."""
    return LivingOwner(home=home_of(context), host=socket.gethostname(), pid=os.getpid(), session=session)


def check_owner(context: Context, definition: TableDefinition, name: str, node: Node | None) -> None:
    """Raise `ReadOnly` where the `is_active` of the replica of this name is another home's."""
    if node is None or not node.owner:  # somebody created one without a session
        return
    who = "a daemon with an unknown state directory,"
    try:
        owner = living_owner.decode(node.data)
    except msgspec.DecodeError:
        pass
    else:
        if owner.home == home_of(context):
            return
        who = f"the daemon of another home, process {owner.pid} on {owner.host},"
    table = definition.full_name
    raise ReadOnly(
        f"{table} can only be read here: {who} is at work as replica {name}",
        hint="was this home copied, or the machine restarted just now? A daemon that ended is forgotten within "
        f"{context.config.keeper.session_timeout_seconds:g} seconds. {_way_to_keep_both(context, definition)}",
    )


def claim(context: Context, keeper: Keeper, own: ReplicaNodes) -> None:
    """Say that this home put the replica's nodes back: until its daemon is there nothing else tells it from a copy."""
    home = home_of(context).encode()
    node = keeper.find(own.home)
    if node is None:
        keeper.multi([CreateNode(own.home, home)], witness=Witness(own.home, home))
    elif node.data != home:
        keeper.set(own.home, home, node.version)


def check_home(context: Context, definition: TableDefinition, keeper: Keeper, own: ReplicaNodes) -> None:
    """Raise `ReadOnly` where another home put the replica's nodes back, and its daemon was not there since."""
    node = keeper.find(own.home)
    if node is None or node.data == home_of(context).encode():
        return
    table = definition.full_name
    raise ReadOnly(
        f"{table} can only be read here: another home put replica {own.path.rpartition('/')[2]} back into Keeper, and "
        "its daemon was not there since",
        hint=f"start that daemon, if this home is a copy. {_way_to_keep_both(context, definition)}. If there is no "
        f"other home, or the machine was started since: 'frostline replica restore {table}' here",
    )


def _way_to_keep_both(context: Context, definition: TableDefinition) -> str:
    table = definition.full_name
    join = f"'frostline table create {table} --replicated --replica NAME'"
    if any(as_disk(context.disk(name), LoggedDisk) for name in context.catalog.policy_disks(definition)):
        return f"To keep both, delete this home, and let an empty one join by a name of its own: {join}"
    return f"To keep both, let this one join by a name of its own: 'frostline table drop {table}', then {join}"
