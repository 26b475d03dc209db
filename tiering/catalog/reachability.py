"""What may be done, and what may be answered, while a disk cannot be reached.

The catalog then shows what the disk's file table said last. That table holds everything this machine ever committed to
the disk, so an answer from the other disks is the one that a reachable disk would give, unless another machine changed
the table meanwhile. Tables that others write, as far as is known, are therefore not answered from the cache.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from disks.base import Disk
from oplog.errors import DiskUnreachable
from tiering.catalog import blocks
from tiering.catalog.catalog import Catalog
from tiering.catalog.context import Context
from tiering.catalog.identities.faults import Fault
from tiering.journal.known_disks import Holding
from tiering.table.paths import locate
from tiering.table.schema import TableDefinition


def unreachable(context: Context) -> list[str]:
    """The names of the disks that cannot be reached now. Broken ones are in `Context.faults`."""
    return sorted(name for name, disk in context.disks.items() if disk.unreachable and disk.broken is None)


def fault_of(context: Context, definition: TableDefinition) -> Fault | None:
    """The disk that the table needs and that is not what it was; None when the table is whole."""
    known = definition.policy in context.config.policies
    disks = set(context.catalog.policy_disks(definition)) if known else set()
    for fault in context.faults:
        if fault.any_table or definition.uuid in fault.tables or (fault.whole_disk and fault.disk in disks):
            return fault
    return None


def check_whole(context: Context, definition: TableDefinition, operation: str) -> None:
    """Raise the fault of a disk that the operation needs, before it changes anything: working over a hole would hide
    rows."""
    if (fault := fault_of(context, definition)) is not None:
        raise type(fault.error)(f"{operation}: {fault.error.message}", hint=fault.error.hint)


def whole_tables(context: Context) -> list[TableDefinition]:
    """The tables that automatic work may touch."""
    return [definition for definition in context.catalog.tables() if fault_of(context, definition) is None]


def compare(context: Context) -> None:
    """Compare what the catalog read with what was known to be on each disk."""
    if context.identities is None:
        return
    if context.identities.compare_ages():  # a disk was taken out, which the catalog has read
        context.catalog.refresh()
    found = holdings(context.catalog)
    dropping = {unfinished.drop.table_uuid for unfinished in context.journal.drops()}
    places = (locate(broken.path) for broken in context.catalog.broken)
    context.identities.compare(found, dropping | {place.uuid for place in places if place is not None})


def holdings(catalog: Catalog) -> dict[str, dict[str, Holding]]:
    """What the catalog read of each table, by disk and the table's uuid."""
    found: dict[str, dict[str, Holding]] = defaultdict(dict)
    dropped = [table.definition for table in catalog.dropped()]
    for definition in (*catalog.tables(), *dropped):
        if (sums := catalog.sums(definition)) is not None:
            for disk, whole in sums.items():
                if whole.parts:
                    found[disk][definition.uuid] = Holding(definition.full_name, whole.parts, whole.rows)
            continue
        parts: Counter[str] = Counter()
        rows: Counter[str] = Counter()
        for stored in catalog.parts(definition, include_outdated=True):
            parts[stored.disk] += 1
            rows[stored.disk] += stored.facts.rows
        for disk, number in parts.items():
            found[disk][definition.uuid] = Holding(definition.full_name, number, rows[disk])
    return found


def check_answer(context: Context, definition: TableDefinition) -> None:
    """Raise the fault of a disk that an answer needs, unless answers with gaps are asked for."""
    fault = fault_of(context, definition)
    if fault is not None and not context.partial:
        hint = f"{fault.error.hint}; --partial answers without it"
        raise type(fault.error)(f"rows of {definition.full_name} would be missing: {fault.error.message}", hint=hint)


def require(disks: Iterable[Disk], operation: str) -> None:
    """Raise `DiskUnreachable` when a disk that the operation needs cannot be reached, before it changes anything."""
    for disk in disks:
        if disk.unreachable:
            if disk.broken is not None:
                raise type(disk.broken)(f"{operation}: {disk.broken.message}", hint=disk.broken.hint)
            raise DiskUnreachable(
                f"{operation} needs disk {disk.name}: {disk.unreachable}", hint="try again when the bucket answers"
            )


def check_certain(context: Context, definition: TableDefinition) -> None:
    """Raise `DiskUnreachable` when what is known of the table may be out of date: another machine writes it, too, and
    the disk that would tell what it committed cannot be reached. Raises the fault of a disk that is not what it was."""
    check_answer(context, definition)
    if definition.policy not in context.config.policies:
        return
    for name in context.catalog.policy_disks(definition):
        disk = context.disks.get(name)  # the past has one disk only
        if disk is None or disk.broken is not None:  # told above
            continue
        if disk.unreachable and (disk.read_only or blocks.foreign(context, definition, disk)):
            raise DiskUnreachable(
                f"another machine writes {definition.full_name} as well, and what it wrote since is unknown: "
                f"{disk.unreachable}",
                hint="try again when the bucket answers; no answer is better than one that lacks rows",
            )
