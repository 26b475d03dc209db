"""Putting the nodes of a table back into Keeper, which lost them, out of what the replicas have. The order, and what a
crash after each step leaves:

    begun     one multi: the table's nodes and its definition; `restoring`: the replicas that are        nobody may
              waited for, as far as the first one knows them                                             write yet
    said      of each replica: its nodes, home, parts with digests, the digests of inserted blocks       the same
    joined    one multi: `restoring` waits for it no more                                                the same
    decided     by a replica that need not wait: what counts (`agreement`), numbers past all that were given,
              an entry of the log for each part that somebody lacks                                      the same
    whole     one multi: `restoring` goes, each replica is known by its token       <- the commit point

All of it may be repeated. Until the end every replica can be read, and none of them written: who inserted before the
last one has said what it has would give numbers that are given already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from oplog.documents import Document
from oplog.errors import AlreadyExists, Conflict, Damaged, NotFound, ReadOnly, Refused, Transient
from tiering.catalog import reachability
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.lineage import content_digest
from tiering.table import schema
from tiering.table.part import PartName
from tiering.table.schema import TableDefinition
from zerocopy.keeper.client import Keeper, Node, Witness
from zerocopy.keeper.operations import CreateNode, DeleteNode, Operation, Set, portions
from zerocopy.rebuilding.agreement import Agreement, agree
from zerocopy.replica import entries, identity, shared
from zerocopy.replica.connections import connections
from zerocopy.replica.entries import Alter, Get
from zerocopy.replica.history import SetBack
from zerocopy.replica.identity import ReplicaIdentity
from zerocopy.replica.nodes import ANY_POLICY, TableNodes
from zerocopy.replica.replica import Replica, restoring_token

_NUMBERS_AT_ONCE = 200
_MOST_NUMBERS = 20_000_000
"""A name with a higher one is no part of ours: a counter is brought there by as many requests."""


class Restoring(msgspec.Struct, frozen=True, kw_only=True):
    """What `restoring` holds."""

    waits_for: tuple[str, ...] = ()


_document = Document("node that says who a table waits for", Restoring)


def restoring(names: Collection[str]) -> bytes:
    """What `restoring` holds while these replicas are waited for."""
    return _document.encode(Restoring(waits_for=tuple(sorted(names))))


def _decode(nodes: TableNodes, data: bytes) -> Restoring:
    try:
        return _document.decode(data)
    except msgspec.DecodeError as error:
        raise Damaged(
            f"{nodes.restoring} in Keeper cannot be read: {error}", hint="remove the node, then retry"
        ) from error


class Rebuilt(msgspec.Struct, frozen=True):
    """What was put back."""

    replicas: tuple[str, ...]
    """Who has said what it has."""
    waits_for: tuple[str, ...]
    """Who has not; while there is one, the table can only be read."""
    parts: int
    """Of this replica."""
    lacking: int = 0
    """Parts that a replica has to fetch."""
    refused: int = 0
    """Parts of replicas that do not count."""
    came_late: bool = False
    """The table was whole already: what this replica alone has goes to `detached/`."""


def rebuild(
    context: Context, definition: TableDefinition, *, without: Collection[str] = (), from_parts: bool = False
) -> Rebuilt | None:
    """Say in Keeper what this replica has, and make the table whole when nobody is waited for but `without`. None
    where Keeper has lost nothing of it. `from_parts`: also when it was set back to an older state; what it has goes.

    Raises `ReadOnly` on a machine that is no replica, or whose name is another one's, `NotFound` where there is no
    replica of a name in `without`."""
    known = identity.read(context, definition)
    if known is None:
        raise ReadOnly(
            f"this machine is no replica of {definition.full_name}: nothing can be put back out of it",
            hint="run it on a replica; if this machine was one and lost its disks: 'frostline replica drop "
            f"{definition.full_name} NAME' on another one, then here 'frostline table create {definition.full_name} "
            "--replicated' and 'replica sync'",
        )
    keeper, nodes = connections(context).keeper, TableNodes(str(definition.keeper))
    keeper.sync(nodes.path)
    names = _names(context, definition, keeper, nodes) | {known.replica}
    if unknown := sorted(set(without) - names):  # it may be misspelt
        raise NotFound(
            f"{definition.full_name} has no replica {', '.join(unknown)}", hint=f"it has {', '.join(sorted(names))}"
        )
    if from_parts:
        _clear(context, definition, keeper, nodes)
    if not keeper.exists(nodes.metadata):
        begin(context, definition, keeper, nodes, names)
    check_place(definition, keeper, nodes)
    own = keeper.find(nodes.replica(known.replica).path)
    if own is not None and own.data not in (known.token.encode(), restoring_token(known.token)):
        raise ReadOnly(
            f"replica {known.replica} of {definition.full_name} is another machine's in Keeper",
            hint="drop the table here, and join by another name",
        )
    if keeper.find(nodes.restoring) is None:
        if own is not None and own.data == known.token.encode():
            if keeper.exists(nodes.replica(known.replica).home):
                identity.claim(context, keeper, nodes.replica(known.replica))
            return None
        keeper.delete_tree(nodes.replica(known.replica).path)
        return _come_late(context, definition, keeper, nodes, known)
    replica = Replica(context, definition, known.replica, keeper, nodes, nodes.replica(known.replica), known.token)
    parts = _parts(context, definition)
    _say(replica, parts)
    try:
        if waiting := _join(replica, without):
            return Rebuilt(tuple(keeper.children(nodes.replicas)), waiting, len(parts))
        return _decide(replica, len(parts))
    except (Conflict, NotFound) as error:
        raise Transient(
            f"another replica puts {definition.full_name} back into Keeper as well", hint="run it again"
        ) from error


def _names(context: Context, definition: TableDefinition, keeper: Keeper, nodes: TableNodes) -> frozenset[str]:
    """The replicas of the table, as far as this machine and Keeper know."""
    said = keeper.children(nodes.replicas) if keeper.exists(nodes.replicas) else ()
    return context.journal.replicas.record(definition.uuid).names.union(said, waits_for(keeper, nodes) or ())


def _parts(context: Context, definition: TableDefinition) -> list[StoredPart]:
    """What this replica has. Raises what is wrong with a disk that may have more of it."""
    context.catalog.refresh()
    reachability.check_whole(context, definition, f"saying what is here of {definition.full_name}")
    disk = shared.disk_of(context, definition)
    if disk is not None:
        reachability.require([disk], f"saying what is here of {definition.full_name}")
    return context.catalog.parts(definition)


def _clear(context: Context, definition: TableDefinition, keeper: Keeper, nodes: TableNodes) -> None:
    """Take away what an older Keeper has of the table, or what is left of it. Raises `Refused` where it is not
    older."""
    if keeper.exists(nodes.restoring):
        return
    if keeper.exists(nodes.metadata):
        try:
            Replica.open(context, definition)
        except SetBack:
            pass
        else:
            raise Refused(
                f"Keeper has lost nothing of {definition.full_name}: its nodes are not removed",
                hint="without --from-parts this replica becomes what Keeper and the others say",
            )
    names = keeper.children(nodes.replicas) if keeper.exists(nodes.replicas) else []
    journal = context.journal.replicas
    journal.note_names(definition.uuid, journal.record(definition.uuid).names | set(names))
    keeper.delete_tree(nodes.path)


def check_place(definition: TableDefinition, keeper: Keeper, nodes: TableNodes) -> None:
    """Raise `Refused` where another table is at this place in Keeper."""
    node = keeper.find(nodes.metadata)
    if node is None:
        return
    found = schema.decode(node.data, path=f"keeper:{nodes.metadata}")
    if found.uuid != definition.uuid:
        raise Refused(
            f"{nodes.path} in Keeper is the place of another table, {found.full_name} ({found.uuid})",
            hint="choose another path: --keeper-path PATH",
        )


def waits_for(keeper: Keeper, nodes: TableNodes) -> tuple[str, ...] | None:
    """Which replicas have not said yet what they have, while the table's nodes are put back; None when they are not."""
    node = keeper.find(nodes.restoring)
    return None if node is None else _decode(nodes, node.data).waits_for


def take_away(keeper: Keeper, nodes: TableNodes) -> None:
    """Take the nodes of a table away that are being put back; whose they are goes last, so that it can be repeated."""
    last = [nodes.restoring, nodes.metadata]
    for name in keeper.children(nodes.path):
        if (path := f"{nodes.path}/{name}") not in last:
            keeper.delete_tree(path)
    keeper.multi([DeleteNode(path) for path in (*last, nodes.path)])


def begin(
    context: Context, definition: TableDefinition, keeper: Keeper, nodes: TableNodes, names: Collection[str]
) -> None:
    """Make the table's nodes; these replicas are waited for, and another one may be first. The log and its numbers
    begin with 1: who comes later finds that something is gone, and takes over what another replica has."""
    keeper.make_path(nodes.path.rpartition("/")[0] or "/")
    data = schema.encode(msgspec.structs.replace(definition, policy=ANY_POLICY))
    common = nodes.common(shared_disk=shared.disk_of(context, definition) is not None)
    made: list[Operation] = [CreateNode(nodes.path), CreateNode(nodes.metadata, data), *map(CreateNode, common)]
    made += [CreateNode(f"{nodes.log}/begin"), DeleteNode(f"{nodes.log}/begin")]
    made.append(CreateNode(nodes.restoring, restoring(names)))
    try:
        keeper.multi(made, witness=Witness(nodes.metadata, data))
    except AlreadyExists as error:
        if not keeper.exists(nodes.metadata):
            raise Conflict(
                f"{nodes.path} in Keeper is no table's, and is not empty",
                hint="check with 'frostline keeper ls'; you can remove what is left there",
            ) from error


def _come_late(
    context: Context, definition: TableDefinition, keeper: Keeper, nodes: TableNodes, own_replica: ReplicaIdentity
) -> Rebuilt:
    """The table is whole without this replica: it comes as one that fell behind the log."""
    own = nodes.replica(own_replica.replica)
    token = own_replica.token.encode()
    context.journal.replicas.forget_entry(definition.uuid)
    keeper.multi(own.made(token, definition.version, is_lost=True), witness=Witness(own.path, token))
    identity.claim(context, keeper, own)
    return Rebuilt(tuple(keeper.children(nodes.replicas)), (), 0, came_late=True)


def _say(replica: Replica, parts: Sequence[StoredPart]) -> None:
    """Say what this replica has."""
    context, definition, keeper, own = replica.context, replica.definition, replica.keeper, replica.own
    context.journal.replicas.forget_entry(definition.uuid)
    token = restoring_token(replica.token)
    if not keeper.exists(own.path):
        made = own.made(token, definition.version, pointer=1)
        keeper.multi(made, witness=Witness(own.path, token))
    identity.claim(context, keeper, own)
    digests = {stored.facts.name: content_digest(stored.part).encode() for stored in parts}
    said = set(keeper.children(own.parts))
    gone = [[DeleteNode(own.part(name))] for name in sorted(said - digests.keys())]
    come = [[CreateNode(own.part(name), digests[name])] for name in sorted(digests.keys() - said)]
    _in_portions(keeper, [*gone, *come])
    _say_blocks(replica, parts)
    node = keeper.get(replica.table.metadata)
    if schema.decode(node.data, path=f"keeper:{replica.table.metadata}").version < definition.version:
        data = schema.encode(msgspec.structs.replace(definition, policy=ANY_POLICY))
        keeper.set(replica.table.metadata, data, node.version)


def _say_blocks(replica: Replica, parts: Sequence[StoredPart]) -> None:
    """The blocks that were inserted into these parts, as far as they remember them."""
    keeper, window = replica.keeper, replica.definition.settings.deduplication_window
    by_partition: dict[str, list[CreateNode]] = {}
    for stored in sorted(parts, key=lambda stored: stored.name):
        partition = stored.name.partition
        for digest in stored.part.digests:
            path = replica.table.block(partition, digest, 0)
            by_partition.setdefault(partition, []).append(CreateNode(path, stored.facts.name.encode()))
    while True:
        there = set(keeper.children(f"{replica.table.path}/blocks"))
        lacking = {
            one.path: [one]
            for blocks in by_partition.values()
            for one in (blocks[-window:] if window else ())
            if one.path.rpartition("/")[2] not in there
        }
        try:
            _in_portions(keeper, lacking.values())
            return
        except AlreadyExists:  # another replica says the same just now
            continue


def _join(replica: Replica, without: Collection[str]) -> tuple[str, ...]:
    """Record that this replica has reported everything; returns who has not. A decision at the same time is refused."""
    keeper, path = replica.keeper, replica.table.restoring
    while True:
        node = keeper.get(path)
        waiting = _decode(replica.table, node.data).waits_for
        left = tuple(name for name in waiting if name != replica.name and name not in without)
        for name in set(waiting) & set(without) - {replica.name}:  # what it has said may be half of it
            keeper.delete_tree(replica.table.replica(name).path)
        data = restoring(left)
        try:
            keeper.set(path, data, node.version)
            return left
        except Conflict:
            continue


def _decide(replica: Replica, parts: int) -> Rebuilt:
    """Make the table whole out of what the replicas have said."""
    keeper, table = replica.keeper, replica.table
    restoring = keeper.get(table.restoring)
    names = tuple(keeper.children(table.replicas))
    said = {name: _said(keeper, table, name) for name in names}
    agreement = agree(said)
    for name, gone in agreement.refused.items():
        _in_portions(keeper, [[DeleteNode(table.replica(name).part(str(part)))] for part in sorted(gone)])
    _raise_numbers(replica, [part for one in said.values() for part in one])
    _write_log(replica, agreement)
    done = Rebuilt(names, (), parts, len(agreement.lacking), sum(map(len, agreement.refused.values())))
    whole: list[Operation] = []
    for name in names:
        data = keeper.get(table.replica(name).path).data
        whole.append(Set(table.replica(name).path, data.removeprefix(restoring_token(""))))
        if name in agreement.refused:
            whole.append(Set(table.replica(name).is_lost, b"1"))
    whole.append(DeleteNode(table.restoring, restoring.version))
    keeper.multi(whole, witness=Witness(replica.own.path, replica.token.encode()))
    return done


def _said(keeper: Keeper, table: TableNodes, name: str) -> dict[PartName, str]:
    nodes = table.replica(name)
    parts = keeper.children(nodes.parts)
    found = keeper.find_all([nodes.part(part) for part in parts])
    return {
        PartName.parse(part): node.data.decode(errors="replace")
        for part, node in zip(parts, found, strict=True)
        if node is not None
    }


def given(node: Node | None) -> int:
    """How many numbers a partition's node has given: so many nodes were ever made there."""
    return (node.children_version + node.children) // 2 if node is not None else 0


def _raise_numbers(replica: Replica, parts: Iterable[PartName]) -> None:
    """Let the next number of each partition be one that no part has."""
    keeper, table, begin_at = replica.keeper, replica.table, replica.definition.numbers_from
    needed: dict[str, int] = {}
    for part in parts:
        needed[part.partition] = max(needed.get(part.partition, 0), part.max_block + 1 - begin_at)
    for partition, number in sorted(needed.items()):
        if number > _MOST_NUMBERS:
            raise Refused(
                f"a part of partition {partition} has the number {number - 1}: no insert gave it",
                hint="take it out of the table's directory, then retry",
            )
    _in_portions(keeper, [[CreateNode(table.numbers(one))] for one in needed if not keeper.exists(table.numbers(one))])
    partitions = sorted(needed)
    found = keeper.find_all([table.numbers(partition) for partition in partitions])
    steps: list[Sequence[Operation]] = []
    for partition, node in zip(partitions, found, strict=True):
        paths = [f"{table.numbers(partition)}/given-{number}" for number in range(given(node), needed[partition])]
        for begin in range(0, len(paths), _NUMBERS_AT_ONCE):
            some = paths[begin : begin + _NUMBERS_AT_ONCE]
            steps.append([one for path in some for one in (CreateNode(path), DeleteNode(path))])
    _in_portions(keeper, steps)


def _write_log(replica: Replica, agreement: Agreement) -> None:
    """The definition first, for one who has an older one; then what somebody lacks."""
    keeper, table, now = replica.keeper, replica.table, replica.context.clock()
    node = keeper.get(table.metadata)
    version = schema.decode(node.data, path=f"keeper:{table.metadata}").version
    reason = "the nodes in Keeper were put back"
    written: list[entries.Entry] = [Alter(time=now, replica=replica.name, version=version, reason=reason)]
    for part, source in sorted(agreement.lacking.items()):
        written.append(Get(time=now, replica=source, part=str(part), digest=agreement.digests[part]))
    _in_portions(keeper, [[CreateNode(f"{table.log}/log-", entries.encode(one), numbered=True)] for one in written])


def _in_portions(keeper: Keeper, groups: Iterable[Sequence[Operation]]) -> None:
    for portion in portions(groups):
        keeper.multi(portion)
