"""Partitions that a user drops, detaches (which keeps them in `detached/` of the table) and attaches.

A disk changes by one commit, several disks by one each. A crash between two leaves whole parts here and whole parts
there: the same call again does the rest. Before a part comes back, all disks are asked whether its rows are there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.object_disk.references import DETACHED_DIRECTORY
from oplog.errors import Damaged, NotFound, PartlyDone, Refused
from oplog.kinds import SetAside
from restore.check.set_aside import fault_in_files
from restore.rebuild.duplicates import Presence, PresentPart, presence
from restore.rebuild.elsewhere import present_parts
from tiering.catalog import reachability, tables
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.copies.set_aside import part_aside
from tiering.catalog.new_parts import DIGEST_CLAIM
from tiering.catalog.retained_drops import kept_part
from tiering.engine import recovery, replication
from tiering.table import part as part_format
from tiering.table.part import PART_FILE, Part
from tiering.table.paths import directory_of, part_name
from tiering.table.schema import TableDefinition

logger = logging.getLogger(__name__)


class DetachedPart(msgspec.Struct, frozen=True):
    """A part that lies in `detached/`: under its own name, or under the one that a repair set it aside by."""

    disk: str
    part: Part
    path: str
    is_repaired: bool = False
    """A repair set it aside: its files may be gone, or have other bytes."""
    is_kept: bool = False
    """A drop of a replicated table took it, and keeps it for a while."""

    @property
    def partition(self) -> str:
        return self.part.part_name.partition


class PartitionCommits(msgspec.Struct, frozen=True):
    """What was changed: the parts, and of each disk with a log that was changed the revision that did it."""

    parts: tuple[tuple[str, Part], ...]
    """(disk, part)."""
    revisions: Mapping[str, int]


def detached_parts(context: Context, definition: TableDefinition) -> list[DetachedPart]:
    """The parts that were detached or set aside. Raises `Damaged` for a detached one that cannot be read; one that was
    set aside may be so."""
    found: list[DetachedPart] = []
    top = directory_of(definition.uuid, DETACHED_DIRECTORY)
    for disk in context.disks.values():
        if disk.unreachable or disk.broken is not None:
            continue
        for child in disk.list(top):
            name, path = child.rstrip("/"), f"{top}/{child}".rstrip("/")
            kept = kept_part(name)
            aside = part_aside(name) or kept
            if (aside is None and part_name(name) is None) or PART_FILE not in disk.list(path):
                continue
            try:
                part = part_format.decode(disk.read(f"{path}/{PART_FILE}"), path=f"{disk.name}:{path}/{PART_FILE}")
            except (Damaged, NotFound):
                if aside is None:
                    raise
                continue
            if part.name in (name, aside):
                is_kept = part.name == kept
                is_repaired = part.name != name and not is_kept
                found.append(DetachedPart(disk.name, part, path, is_repaired=is_repaired, is_kept=is_kept))
    return found


def parts_of(context: Context, definition: TableDefinition, partition: str) -> list[StoredPart]:
    """The parts of the partition that answer, with every copy of them. Raises `NotFound` when there are none."""
    everything = context.catalog.parts(definition, include_outdated=True)
    found = [stored for stored in everything if stored.name.partition == partition and stored.state != "outdated"]
    if not found:
        known = sorted({stored.name.partition for stored in everything})
        raise NotFound(
            f"table {definition.full_name} has no partition {partition!r}",
            hint=f"its partitions are: {', '.join(known[:20]) or 'none'}; 'frostline partition list' shows them",
        )
    return found


def drop(context: Context, definition: TableDefinition, partition: str) -> PartitionCommits:
    """Drop all parts of the partition on every disk; a crash half way is finished on open.

    What lay in a bucket comes back by `undo` of the revision there, while the retention lasts; what lay elsewhere
    does not. Of a replicated table it is agreed upon, and done here; the other replicas follow.
    """
    why = f"drop partition {partition} of {definition.full_name}"
    if definition.is_replicated:
        to_delete = parts_of(context, definition, partition)
        replication.work().drop_partition(context, definition, partition, why)
        # No revisions: a drop that replicas agreed on cannot be undone by `undo`.
        return PartitionCommits(tuple((stored.disk, stored.part) for stored in to_delete), {})
    to_delete = _begin(context, definition, partition, "dropping partitions of")
    before = _revisions(context)
    tables.drop_parts(context, to_delete, reason=why)
    return PartitionCommits(tuple((stored.disk, stored.part) for stored in to_delete), _changed(context, before, why))


def detach(context: Context, definition: TableDefinition, partition: str) -> PartitionCommits:
    """Rename all parts of the partition into `detached/`, where no answer, rule or merge sees them, one commit a disk.

    Copies that these parts have replaced are dropped first: they would answer in their place.
    """
    parts = _begin(context, definition, partition, "detaching partitions of")
    names = {stored.name for stored in parts}
    before, why = _revisions(context), f"detach partition {partition} of {definition.full_name}"
    replaced = [
        stored
        for stored in context.catalog.parts(definition, include_outdated=True)
        if stored.state == "outdated" and stored.name.partition == partition and stored.name not in names
    ]
    tables.drop_parts(context, replaced, reason=f"{why}: copies that were replaced")
    moves = [
        (stored.disk, directory_of(definition.uuid, stored.facts.name), _aside(definition.uuid, stored.facts.name))
        for stored in parts
    ]
    with context.journal.claim(definition.uuid, [stored.facts.name for stored in parts], "detach"):
        _rename(context, definition, moves, why)
    return PartitionCommits(tuple((stored.disk, stored.part) for stored in parts), _changed(context, before, why))


def attach(context: Context, definition: TableDefinition, partition: str) -> PartitionCommits:
    """Bring all detached parts of the partition back under their names, one commit a disk.

    What a repair set aside is among them once all of its files have the bytes that were written. Raises `NotFound` when
    there are none, `Refused` when some row of them is in the table already, or may be, or files are still not back. Of
    a replicated table what a drop took comes back as new parts, while it is kept; the other replicas follow.
    """
    if definition.is_replicated:
        reachability.check_whole(context, definition, f"attaching partitions of {definition.full_name}")
        recovery.begin_disks(context)
        again = replication.work().attach_partition(context, definition, partition)
        return PartitionCommits(tuple(again), {})
    _check_changing(context, definition, "attaching partitions of")
    before, why = _revisions(context), f"attach partition {partition} of {definition.full_name}"
    coming = attachable(context, definition, partition)
    with context.journal.claim(definition.uuid, _claims(coming), "attach"):
        context.catalog.refresh()
        coming = attachable(context, definition, partition)  # again, now that no insert brings the same rows
        uuid = definition.uuid
        coming = sound(context, definition, partition, coming)
        moves = [(found.disk, found.path, directory_of(uuid, found.part.name)) for found in coming]
        _rename(context, definition, moves, why)
    return PartitionCommits(tuple((found.disk, found.part) for found in coming), _changed(context, before, why))


def _claims(coming: Iterable[DetachedPart]) -> set[str]:
    """The parts, and what an insert of the same rows would claim."""
    digests = {f"{DIGEST_CLAIM}{found.partition}-{digest}" for found in coming for digest in found.part.digests}
    return {found.part.name for found in coming} | digests


def sound(
    context: Context, definition: TableDefinition, partition: str, coming: Iterable[DetachedPart]
) -> list[DetachedPart]:
    """Those whose files are what was written, each once on a disk. Raises `Refused` when there are none."""
    once: dict[tuple[str, str], DetachedPart] = {}
    faults: list[str] = []
    for part in sorted(coming, key=lambda part: part.is_repaired):
        if (part.disk, part.part.name) in once:
            continue
        is_doubtful = part.is_repaired or part.is_kept
        fault = fault_in_files(context.disk(part.disk), part.path, part.part) if is_doubtful else None
        if fault is None:
            once[part.disk, part.part.name] = part
        else:
            faults.append(fault)
    if not once:
        raise Refused(
            f"partition {partition} of {definition.full_name} cannot be attached: {'; '.join(faults[:3])}",
            hint="bring the file or its object back under the same name, and run it again; or insert the rows again",
        )
    for fault in faults:
        logger.warning("a part stays set aside: %s", fault)
    return list(once.values())


def attachable(context: Context, definition: TableDefinition, partition: str) -> list[DetachedPart]:
    """The detached parts of the partition that may come back: all of them, or of a replicated table those that
    no objection of `check_none_left_out` is about. Raises as `attach` does; changes nothing."""
    fit, objections = _judged(context, definition, partition)
    if objections and not (fit and definition.is_replicated):
        raise Refused(
            f"partition {partition} of {definition.full_name} cannot be attached: {'; '.join(objections[:3])}",
            hint="its rows would be there twice; nothing was changed, and it stays detached",
        )
    if not fit:
        raise NotFound(
            f"all of partition {partition} of {definition.full_name} is attached already",
            hint="only duplicate copies of it are detached",
        )
    return fit


def check_none_left_out(context: Context, definition: TableDefinition, partition: str) -> None:
    """Raise `PartlyDone` for kept parts of a replicated table that do not come back with the others: what is kept goes
    when its time is over, so nothing waits for them."""
    objections: list[str] = []
    with suppress(NotFound):  # nothing stays
        _, objections = _judged(context, definition, partition)
    if objections:
        raise PartlyDone(
            f"of partition {partition} of {definition.full_name} some parts stay detached: {'; '.join(objections[:3])}",
            hint="their rows would be there twice; all others are attached",
        )


def _judged(context: Context, definition: TableDefinition, partition: str) -> tuple[list[DetachedPart], list[str]]:
    """The detached parts of the partition that may come back, and what speaks against others: of a replicated table,
    of those that a drop took, and of no other table."""
    everything = detached_parts(context, definition)
    detached = [part for part in everything if part.is_kept == definition.is_replicated]
    coming = [part for part in detached if part.partition == partition]
    if not coming:
        partitions = sorted({part.partition for part in detached})
        raise NotFound(
            f"nothing of partition {partition!r} of {definition.full_name} is detached",
            hint=f"detached are: {', '.join(partitions) or 'no partitions'}"
            if not definition.is_replicated or len(everything) == len(detached)
            else f"what else is in {directory_of(definition.uuid, DETACHED_DIRECTORY)} can be attached as files: "
            f"'frostline partition attach {definition.full_name} FILE'",
        )
    context.catalog.check_readable(definition)
    staying, window = list(present_parts(context, definition)), definition.settings.deduplication_window
    objections: list[str] = []
    fit: list[DetachedPart] = []
    beside: list[PresentPart] = []
    # What others were made into comes before them, and what they came back as.
    for part in sorted(coming, key=lambda part: (-part.part.rows, -part.part.part_name.max_block)):
        if (duplicate := presence(part.part, staying)) is not None:
            is_back = part.is_kept and duplicate.has_all_rows  # it goes when its time is over
            if not (is_back or _is_copy(duplicate)):  # else a copy of what is attached already
                objections.append(duplicate.text(definition.full_name))
            continue
        duplicate = presence(part.part, beside)
        if duplicate is None or _is_copy(duplicate):
            fit.append(part)
            beside.append(PresentPart(definition.uuid, part.part, part.disk, window=window))
        elif duplicate.kind == "copy" or not duplicate.has_all_rows:
            objections.append(duplicate.text(definition.full_name))
        # Else it was detached twice, as files of it were attached in between: one of both stays where it is.
    return fit, objections


def _is_copy(duplicate: Presence) -> bool:
    return duplicate.kind == "copy" and duplicate.other.part == duplicate.part


def _begin(context: Context, definition: TableDefinition, partition: str, operation: str) -> list[StoredPart]:
    _check_changing(context, definition, operation)
    return parts_of(context, definition, partition)


def _check_changing(context: Context, definition: TableDefinition, operation: str) -> None:
    replication.refuse(definition, operation, "nothing was changed")
    reachability.check_whole(context, definition, f"{operation} {definition.full_name}")
    reachability.require(
        map(context.disk, context.catalog.policy_disks(definition)), f"{operation} {definition.full_name}"
    )
    recovery.begin_disks(context)


def _rename(context: Context, definition: TableDefinition, moves: Iterable[tuple[str, str, str]], why: str) -> None:
    """Carry out (disk, source, target): one commit a disk, buckets first."""
    by_disk: dict[str, list[tuple[str, str]]] = {}
    for name, source, target in moves:
        by_disk.setdefault(name, []).append((source, target))
    for disk in sorted(map(context.disk, by_disk), key=_buckets_first):
        with disk.transaction(SetAside(), reason=why, actor=context.actor) as transaction:
            transaction.require(present=(definition.path,), absent=definition.barred_by)
            for source, target in by_disk[disk.name]:
                transaction.rename(source, target)
            transaction.commit()
    context.catalog.refresh()


def _buckets_first(disk: Disk) -> bool:
    return not disk.capabilities.remote


def _aside(uuid: str, name: str) -> str:
    return directory_of(uuid, f"{DETACHED_DIRECTORY}/{name}")


def _revisions(context: Context) -> dict[str, int]:
    """Of each disk with a log."""
    return {name: disk.revision or 0 for name, disk in context.disks.items() if as_disk(disk, LoggedDisk) is not None}


def _changed(context: Context, before: Mapping[str, int], why: str) -> dict[str, int]:
    """Of each disk with a log the newest revision since that was made by this machine and for this reason."""
    found: dict[str, int] = {}
    for name, since in before.items():
        logged = as_disk(context.disk(name), LoggedDisk)
        for entry in logged.entries(since) if logged is not None and (logged.revision or 0) > since else ():
            if (entry.commit.actor, entry.commit.reason) == (context.actor, why):
                found[name] = entry.commit.revision
    return found
