"""The disk that all replicas of a table have: a prefix of a bucket, where its cold parts lie once for all of them.

A part comes there by a move of one replica (`moving`). The others find it by the bucket's own log, and take their copy
off their disks when the one there was proved: the digest in Keeper is that of both, the log was read to its end, and
every object is there. A part there is never merged, and never leaves for a disk of one machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import Conflict, FrostlineError, Locked, Refused, Transient
from oplog.kinds import Moved
from tiering.catalog import reachability
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.copies import copying
from tiering.catalog.freshness import Freshness
from tiering.catalog.lineage import content_digest
from tiering.policy.placement import ordered_volumes
from tiering.table.part import PartName
from tiering.table.schema import TableDefinition
from zerocopy.replica.replica import Replica


def disk_of(context: Context, definition: TableDefinition) -> Disk | None:
    """The table's shared disk; None where its policy has disks of this machine only."""
    disks = map(context.disk, context.catalog.policy_disks(definition))
    return next((disk for disk in disks if disk.capabilities.shared), None)


def check_policy(context: Context, policy: str) -> Disk | None:
    """The shared disk of a policy that a replicated table may have. Raises `Refused` for one that it may not."""
    disks = [context.disk(name) for volume in ordered_volumes(context.config.policy(policy)) for name in volume.disks]
    remote = [disk for disk in disks if disk.capabilities.remote]
    shared = [disk for disk in remote if (logged := as_disk(disk, LoggedDisk)) is None or logged.log_name is None]
    if not remote:
        return None
    reachability.require(remote, f"a replicated table of policy {policy}")
    what, hint = f"policy {policy} cannot be a replicated table's", "give it another one: --policy P"
    if not shared and disks[0].capabilities.remote:
        raise Refused(f"{what}: new parts come to disks of the machine, and {disks[0].name} is the first", hint=hint)
    if not shared:
        return None
    if len(shared) > 1:
        names = " and ".join(disk.name for disk in shared)
        raise Refused(f"{what}: it has the buckets {names}, and replicas share one at most", hint=hint)
    (disk,) = shared
    if disk is not disks[-1] or len(disks) == 1:
        raise Refused(
            f"{what}: new parts come to disks of the machine, and {disk.name} is not the last of several", hint=hint
        )
    logged = as_disk(disk, LoggedDisk)
    if logged is None or not logged.store.capabilities.conditional_put or disk.capabilities.writers != "many":
        raise Refused(
            f"{what}: on {disk.name} one machine at a time may write, and replicas on several machines do", hint=hint
        )
    return disk


def refresh(context: Context, *, looked_since: float = -math.inf, freshness: Freshness = Freshness.EVERY_FILE) -> None:
    """Read all disks again, and ask those that other machines write, or that did not answer lately, for what is new. A
    log of this machine's own has nothing new: its commits are known here. It is asked only where nobody looked at it
    since then (seconds since 1970), to see whether it is still the one that is known."""
    asked = []
    for name, disk in context.disks.items():
        logged = as_disk(disk, LoggedDisk)
        if logged is None or logged.log_name is None or disk.unreachable or (logged.looked or -math.inf) < looked_since:
            asked.append(name)
    context.catalog.refresh(freshness, disks=asked)


def covering(replica: Replica, name: PartName) -> StoredPart | None:
    """The part on the shared disk that this one went into, if one is there."""
    disk = disk_of(replica.context, replica.definition)
    if disk is None:
        return None
    for stored in replica.context.catalog.parts(replica.definition):
        if stored.disk == disk.name and stored.name.covers(name) and stored.part.was_made_from(name):
            return stored
    return None


def free(replica: Replica) -> list[str]:
    """Take the parts off this machine's disks that are on the shared one, proved; returns which."""
    context, definition = replica.context, replica.definition
    disk = disk_of(context, definition)
    if disk is None or disk.unreachable:
        return []
    doubled = list(_doubled(context, definition, disk))
    if not doubled:
        return []
    try:
        disk.refresh()  # what is there is what the log says at its end
    except Transient:
        return []
    proved: dict[str, list[StoredPart]] = defaultdict(list)
    freed: list[str] = []
    try:
        with context.journal.claim(definition.uuid, [here.facts.name for here, _ in doubled], "move"):
            for here, there in doubled:
                if _is_proved(replica, here, there):
                    proved[here.disk].append(here)
            for name, group in proved.items():
                _take_off(context, name, disk, group)
                freed += [here.facts.name for here in group]
    except (Locked, Conflict):  # somebody of this machine is at them: the next pass looks again
        pass
    if freed:
        context.catalog.refresh(disks=())
    return freed


def free_copies(context: Context, definition: TableDefinition) -> list[str]:
    """Before this machine becomes a replica: take off its disks the copies of parts that the shared disk has, proved;
    returns which. The caller holds the parts. What becomes of a replica's parts Keeper says, not the log that copies
    went by. Raises what is wrong with a copy."""
    disk = disk_of(context, definition)
    if disk is None:
        return []
    by_disk: dict[str, list[StoredPart]] = defaultdict(list)
    everything = context.catalog.parts(definition, include_outdated=True)
    there = {stored.name for stored in everything if stored.disk == disk.name}
    for here in everything:
        if here.disk == disk.name or here.name not in there:
            continue
        _, part_bytes = copying.read_part(context.disk(here.disk), here.directory)
        if copying.is_complete(disk, here.directory, part_bytes, proof=True):
            by_disk[here.disk].append(here)
    for name, group in by_disk.items():
        _take_off(context, name, disk, group)
    if by_disk:
        context.catalog.refresh(disks=())
    return [here.facts.name for group in by_disk.values() for here in group]


def _take_off(context: Context, name: str, target: Disk, parts: list[StoredPart]) -> None:
    reason = f"on {target.name}, where all replicas have it"
    with context.disk(name).transaction(Moved(moved_to=target.name), reason=reason, actor=context.actor) as transaction:
        for stored in parts:
            transaction.remove(stored.directory)
        transaction.commit()


def leftovers(context: Context, definition: TableDefinition) -> list[PartName]:
    """Copies on this machine's disks of what was merged. Once the part that it went into is on the shared disk alone,
    nothing shows any more that it did."""
    return [
        stored.name
        for stored in context.catalog.parts(definition, include_outdated=True)
        if stored.state == "outdated" and not context.disk(stored.disk).capabilities.shared
    ]


def _doubled(context: Context, definition: TableDefinition, disk: Disk) -> Iterator[tuple[StoredPart, StoredPart]]:
    """Parts here and on the shared disk, each with the copy there."""
    everything = context.catalog.parts(definition, include_outdated=True)
    there = {stored.name: stored for stored in everything if stored.disk == disk.name}
    left = leftovers(context, definition)
    for here in everything:
        if here.disk == disk.name or here.name not in there or context.disk(here.disk).read_only:
            continue
        records = context.journal.work.moves(table_uuid=definition.uuid, part=here.facts.name, limit=1)
        if records and records[0].keep_source:
            continue
        if not any(here.name.covers(name) for name in left):
            yield here, there[here.name]


def _is_proved(replica: Replica, here: StoredPart, there: StoredPart) -> bool:
    """Whether the copy on the shared disk is the part that Keeper says this replica has, whole and durable."""
    context = replica.context
    node = replica.keeper.find(replica.own.part(here.facts.name))
    if node is None:
        return False
    digests = {node.data.decode(errors="replace"), content_digest(here.part), content_digest(there.part)}
    if len(digests) > 1:
        return False
    try:
        _, wanted = copying.read_part(context.disk(here.disk), here.directory)
        return copying.is_complete(context.disk(there.disk), there.directory, wanted, proof=True)
    except FrostlineError:
        return False
