"""Tables as a whole: create, change, drop; and dropping parts.

A table lives on several disks that share no transaction. Creating and altering need none: `table.json` carries a
version, the first disk that has the new one decides, the others are repaired on open. Dropping writes its intent to the
journal first, so that a crash half way is finished on open and never leaves half a table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from disks.base import Disk
from oplog.errors import AlreadyExists, Conflict, NotFound, Refused, UsageError
from oplog.kinds import Dropped, TableAltered, TableCreated, Tidied
from tiering.catalog import blocks, reachability, table_names
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.config.settings import PolicyConfig
from tiering.journal.journal import Journal
from tiering.journal.records import Drop, PartsDrop, TableDrop
from tiering.table import schema
from tiering.table.schema import TABLE_FILE, Delete, MoveToDisk, MoveToVolume, TableDefinition


def create(context: Context, definition: TableDefinition, *, if_not_exists: bool = False) -> TableDefinition:
    """Create the table on every disk of its policy. Raises `AlreadyExists` unless `if_not_exists`."""
    check(context, definition)
    with context.journal.claim("tables", [definition.full_name], "create table"):
        context.catalog.refresh()
        _require_policy_disks(context, definition, f"creating {definition.full_name}")
        try:
            existing = context.catalog.table(definition.full_name)
        except NotFound:
            if _create(context, definition):
                return definition
            existing = context.catalog.table(definition.full_name)
    if if_not_exists:
        return existing
    raise AlreadyExists(
        f"table {definition.full_name} exists already", hint="drop it first, or say --if-not-exists to keep it"
    )


def _create(context: Context, definition: TableDefinition) -> bool:
    """Whether the table was created; False when another machine took its name first: nothing is changed then."""
    arbiter = table_names.arbiter(context, definition)
    first = [] if arbiter is None else [arbiter.name]
    others = [name for name in context.catalog.policy_disks(definition) if name not in first]
    try:
        write_definition(
            context,
            definition,
            kind=TableCreated(),
            reason=f"create table {definition.full_name}",
            disks=[*first, *others],
            beside={blocks.mark_path(definition, 0): blocks.mark(context, 0)},
            name_on=arbiter,
        )
    except Conflict:
        context.catalog.refresh()
        if arbiter is None or table_names.owner_of(arbiter, definition.full_name) in (None, definition.uuid):
            raise
        return False
    context.journal.add_block_range(definition.uuid, 0)
    context.catalog.refresh()
    return True


def replace(
    context: Context,
    old: TableDefinition,
    new: TableDefinition,
    *,
    reason: str,
    kind: TableAltered,
) -> TableDefinition:
    """Put a changed definition in the place of the old one; its version is one higher. `kind` goes into the log."""
    check_change(context, old, new)
    new = msgspec.structs.replace(new, version=old.version + 1)
    with context.journal.claim("tables", [old.full_name], "alter table"):
        context.catalog.refresh()
        _require_policy_disks(context, new, f"altering {old.full_name}")
        if context.catalog.table(old.uuid).version != old.version:
            raise AlreadyExists(f"table {old.full_name} was altered meanwhile", hint="look at it again, then retry")
        try:
            # Buckets first: another machine may alter the table there, too. The mark of a version exists once, so one
            # of the two finds it taken before it has changed anything.
            names = sorted(
                context.catalog.policy_disks(new), key=lambda name: not context.disk(name).capabilities.remote
            )
            mark = f"{new.directory}/altered-{new.version}.json"
            write_definition(context, new, kind=kind, reason=reason, disks=names, beside={mark: b"{}"})
        except Conflict as error:
            raise AlreadyExists(
                f"table {old.full_name} was altered meanwhile by another machine", hint="look at it again, then retry"
            ) from error
        finally:
            context.catalog.refresh()
    return new


def drop(context: Context, definition: TableDefinition) -> None:
    """Drop the table and all its parts from every disk. Objects go with the next gc after the retention."""
    names = [stored.part.name for stored in context.catalog.parts(definition, include_outdated=True)]
    _require_holders(context, [definition.directory], f"dropping {definition.full_name}")
    decided = TableDrop(
        table=definition.full_name,
        table_uuid=definition.uuid,
        reason=f"drop table {definition.full_name}",
        directories=(definition.directory,),
    )
    with context.journal.claim(definition.uuid, names, "drop table"):
        intent = context.journal.begin_drop(decided)
        finish_drop(context, decided)
        context.journal.forget_table(definition.uuid)
        context.journal.finish_drop(intent)
    context.catalog.refresh()


def drop_parts(context: Context, doomed: list[StoredPart], *, reason: str, by_ttl: bool = False) -> None:
    """Drop parts of one table, with every other copy of them and everything they cover: nothing comes back to life.
    `by_ttl`: a TTL rule says so, for the log."""
    if not doomed:
        return
    definition = doomed[0].definition
    names = {stored.name for stored in doomed}
    replaced = {name for stored in doomed for name in stored.part.replaces}
    everything = [
        stored
        for stored in context.catalog.parts(definition, include_outdated=True)
        if stored.name in names or stored.part.name in replaced or any(name.covers(stored.name) for name in names)
    ]
    _require_holders(context, [stored.directory for stored in everything], f"dropping parts of {definition.full_name}")
    decided = PartsDrop(
        table=definition.full_name,
        table_uuid=definition.uuid,
        reason=reason,
        directories=tuple(sorted({stored.directory for stored in everything})),
        by_ttl=by_ttl,
    )
    with context.journal.claim(definition.uuid, [stored.part.name for stored in doomed], "drop parts"):
        intent = context.journal.begin_drop(decided)
        finish_drop(context, decided)
        context.journal.finish_drop(intent)
    context.catalog.refresh()


def _require_policy_disks(context: Context, definition: TableDefinition, what: str) -> None:
    reachability.require(map(context.disk, context.catalog.policy_disks(definition)), what)


def _require_holders(context: Context, directories: list[str], what: str) -> None:
    """Before the intent is written: a drop that a disk cannot take part in is refused, not left half done."""
    holders = [disk for disk in context.disks.values() if disk.unreachable and any(map(disk.list, directories))]
    reachability.require(holders, what)


def being_dropped(journal: Journal) -> set[str]:
    """The directories of every drop whose intent is written: the decision, whatever the disks still hold."""
    return {directory for unfinished in journal.drops() for directory in unfinished.drop.directories}


def finish_drop(context: Context, decided: Drop) -> None:
    """Carry out a drop's intent; what is gone already is skipped, so it can be repeated after a crash."""
    for disk in context.disks.values():
        if not disk.read_only:
            _drop_from(context, disk, decided)


def _drop_from(context: Context, disk: Disk, decided: Drop) -> None:
    kind = Dropped(by_ttl=isinstance(decided, PartsDrop) and decided.by_ttl)
    while present := _still_there(disk, decided):
        try:
            with disk.transaction(kind, reason=decided.reason, actor=context.actor) as transaction:
                for path in present:
                    transaction.remove(path)
                transaction.commit()
        except Conflict:  # another process removed some of them first: look again
            disk.refresh()


def _still_there(disk: Disk, decided: Drop) -> list[str]:
    """What the drop has to remove from the disk: directories, and the table's name unless another one has it now."""
    present = [directory for directory in decided.directories if disk.list(directory)]
    if isinstance(decided, TableDrop) and table_names.owner_of(disk, decided.table) == decided.table_uuid:
        present.append(table_names.path_of(decided.table))
    return present


def remove_copies(context: Context, copies: Iterable[StoredPart], *, reason: str) -> None:
    """Remove outdated or duplicate copies, one transaction a disk. The caller has proved that they are not needed."""
    by_disk: dict[str, list[StoredPart]] = defaultdict(list)
    for copy in copies:
        by_disk[copy.disk].append(copy)
    for name, group in by_disk.items():
        with context.disk(name).transaction(Tidied(), reason=reason, actor=context.actor) as transaction:
            for copy in group:
                transaction.remove(copy.directory)
            transaction.commit()


def write_definition(
    context: Context,
    definition: TableDefinition,
    *,
    kind: TableCreated | TableAltered,
    reason: str,
    disks: list[str] | None = None,
    beside: Mapping[str, bytes] | None = None,
    name_on: Disk | None = None,
) -> None:
    """Write `table.json`, and files `beside` it, to the disks (default: all of the policy that can be written). A new
    table takes its name on the disk `name_on`."""
    data = schema.encode(definition)
    path = f"{definition.directory}/{TABLE_FILE}"
    for name in disks if disks is not None else context.catalog.policy_disks(definition):
        disk = context.disk(name)
        if disk.read_only:
            continue
        with disk.transaction(kind, reason=reason, actor=context.actor) as transaction:
            if TABLE_FILE in disk.list(definition.directory):
                transaction.remove(path)
            transaction.create(path, data)
            for other, content in (beside or {}).items():
                transaction.create(other, content)
            if disk is name_on:
                table_names.claim(transaction, disk, definition)
            transaction.commit()


def check(context: Context, definition: TableDefinition) -> None:
    """Whether the definition fits itself and the configuration. Raises `UsageError` or `NotFound`."""
    policy = context.config.policy(definition.policy)
    names = [column.name for column in definition.columns]
    if len(set(names)) != len(names):
        raise UsageError(f"table {definition.full_name} names a column twice", hint=f"columns: {', '.join(names)}")
    if not definition.order_by:
        raise UsageError(f"table {definition.full_name} has no sort order", hint="say --order-by COLUMN[,COLUMN]")
    for name in (*definition.order_by, *(field.column for field in definition.partition_by)):
        definition.column(name)
    for rule in definition.ttl:
        column = definition.column(rule.column)
        if not column.type.startswith(("timestamp", "date")):
            raise UsageError(
                f"TTL of {definition.full_name}: column {rule.column} is {column.type}, not a date or timestamp",
                hint="choose the column that says when a row happened",
            )
        _check_target(definition, policy, rule.action, set(context.disks))
    if all(context.disk(name).read_only for volume in policy.volumes for name in volume.disks):
        raise Refused(f"every disk of policy {definition.policy} is read-only")


def check_change(context: Context, old: TableDefinition, new: TableDefinition) -> None:
    """Whether the new definition may take the old one's place. Raises as `check` does, and `Refused` for a policy
    without a disk that holds parts of the table: no rule could move them, and nothing would say so."""
    check(context, new)
    if new.policy == old.policy:
        return
    disks = {disk for volume in context.config.policy(new.policy).volumes for disk in volume.disks}
    stranded = sorted({stored.disk for stored in context.catalog.parts(old, include_outdated=True)} - disks)
    if stranded:
        raise Refused(
            f"policy {new.policy} does not include the disk {', '.join(stranded)}, "
            f"which holds parts of {old.full_name}",
            hint=f"move them first: frostline move {old.full_name} --partition P --to-disk D",
        )


def _check_target(definition: TableDefinition, policy: PolicyConfig, action: object, disks: set[str]) -> None:
    match action:
        case MoveToVolume(volume=volume) if volume not in {known.name for known in policy.volumes}:
            known_names = ", ".join(known.name for known in policy.volumes)
            raise NotFound(
                f"No such volume: {volume} (TTL of {definition.full_name})",
                hint=f"policy {definition.policy} has the volumes: {known_names}",
            )
        case MoveToDisk(disk=disk, if_exists=False) if disk not in {d for v in policy.volumes for d in v.disks}:
            raise NotFound(
                f"No such disk: {disk} in policy {definition.policy} (TTL of {definition.full_name})",
                hint=f"the disks are: {', '.join(sorted(disks))}",
            )
        case Delete() | _:
            return
