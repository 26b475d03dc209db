"""Tables as a whole: create, change, drop; and dropping parts.

A table lives on several disks that share no transaction. Creating and altering need none: `table.json` carries a
version, the first disk that has the new one decides, the others are repaired on open. Dropping writes its intent to the
journal first, so that a crash half way is finished on open and never leaves half a table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from disks.base import Disk, Transaction
from disks.kinds import identity_of
from oplog.errors import AlreadyExists, Conflict, Damaged, NotFound, ReadOnly, Refused, Transient, UsageError
from oplog.kinds import Dropped, TableAltered, TableCreated
from tiering.catalog import blocks, reachability, retained_drops
from tiering.catalog.catalog import DroppedTable, StoredPart
from tiering.catalog.context import Context
from tiering.catalog.definitions import table_names
from tiering.catalog.definitions.unreadable import UnreadableTable, last_definition, version_of
from tiering.config.settings import PolicyConfig
from tiering.journal.records import Drop, PartsDrop, TableDrop
from tiering.table import schema, tombstones
from tiering.table.names import alike, check_told_apart
from tiering.table.paths import is_reservation, part_name, table_directory
from tiering.table.schema import (
    CONVERTED_FILE,
    TABLE_FILE,
    MoveToDisk,
    MoveToVolume,
    TableDefinition,
    is_of_replicas,
)

_ATTEMPTS = 5


def create(context: Context, definition: TableDefinition, *, if_not_exists: bool = False) -> TableDefinition:
    """Create the table on every disk of its policy. Raises `AlreadyExists` unless `if_not_exists`."""
    check(context, definition)
    check_told_apart((column.name for column in definition.columns), "columns", "give one of them another name")
    with context.journal.claim("tables", [definition.full_name], "create table"):
        context.catalog.refresh()
        _require_policy_disks(context, definition, f"creating {definition.full_name}")
        try:
            existing = context.catalog.table(definition.full_name)
        except NotFound:
            if _create(context, definition):
                return definition
            table_names.require_not_hidden(context, definition)
            existing = context.catalog.table(definition.full_name)
    if if_not_exists:
        return existing
    raise AlreadyExists(
        f"table {definition.full_name} exists already", hint="drop it first, or use --if-not-exists to keep it"
    )


def _create(context: Context, definition: TableDefinition) -> bool:
    """Whether the table was created; False when another machine took its name first: nothing is changed then."""
    arbiter = table_names.arbiter(context, definition)
    first = [] if arbiter is None else [arbiter.name]
    others = [name for name in context.catalog.policy_disks(definition) if name not in first]
    blocks.take(context, definition, 0)  # no other machine knows of the table yet
    disks = [*first, *others]
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            write_definition(
                context,
                definition,
                kind=TableCreated(),
                reason=f"create table {definition.full_name}",
                disks=disks,
                beside={blocks.mark_path(definition, 0): blocks.mark(context, 0)},
                name_on=arbiter,
            )
            break
        except Conflict as error:
            context.catalog.refresh()
            owner = table_names.owner_of(arbiter, definition.full_name) if arbiter is not None else None
            if owner not in (None, definition.uuid):
                return False
            shown = [identity for name in disks if (identity := identity_of(context.disk(name))) is not None]
            if len({*shown}) < len(shown):
                raise  # two names of one place: what is there is this process's own
            if attempt == _ATTEMPTS:
                raise Transient(
                    f"other processes changed the store while table {definition.full_name} was created",
                    hint="run the command again with --if-not-exists",
                ) from error
            # Another process opened the store, and copied the definition to a disk before this one came to it.
            disks = [name for name in disks if not context.disk(name).exists(definition.path)]
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
    """Put a changed definition in the place of the old one; its version is one higher. `kind` goes into the log. Raises
    `AlreadyExists` where somebody else altered it meanwhile, or has the name that it is to have."""
    check_change(context, old, new)
    new = msgspec.structs.replace(new, version=old.version + 1)
    with context.journal.claim("tables", sorted({old.full_name, new.full_name}), "alter table"):
        context.catalog.refresh()
        _require_policy_disks(context, new, f"altering {old.full_name}")
        if context.catalog.table_to_change(old.uuid).version != old.version:
            raise AlreadyExists(f"table {old.full_name} was altered meanwhile", hint="check it again, then retry")
        renamed = old.full_name != new.full_name
        if renamed:
            table_names.require_free(context, new)
        try:
            # Buckets first: another machine may alter the table there, too. The mark of a version exists once, so one
            # of the two finds it taken before it has changed anything.
            names = sorted(
                context.catalog.policy_disks(new), key=lambda name: not context.disk(name).capabilities.remote
            )
            mark = tombstones.mark_of(new)
            write_definition(
                context,
                new,
                kind=kind,
                reason=reason,
                disks=names,
                beside={mark: tombstones.mark(new)},
                name_on=table_names.arbiter(context, new) if renamed else None,
                name_from=new.uuid,
                instead_of=table_names.path_where_owned(context, old) if renamed else None,
            )
        except Conflict as error:
            context.catalog.refresh()
            if renamed:
                table_names.require_free(context, new)
            raise AlreadyExists(
                f"table {old.full_name} was altered meanwhile by another machine", hint="check it again, then retry"
            ) from error
        finally:
            context.catalog.refresh()
    return new


def drop(context: Context, definition: TableDefinition, *, here_only: bool = False) -> None:
    """Drop the table and all its parts from every disk. Objects go with the next gc after the retention. `here_only`:
    from the disks that no other machine has."""
    names = [stored.facts.name for stored in context.catalog.parts(definition, include_outdated=True)]
    _require_holders(context, [definition.directory], f"dropping {definition.full_name}", here_only=here_only)
    decided = TableDrop(
        table=definition.full_name,
        table_uuid=definition.uuid,
        reason=f"drop table {definition.full_name}",
        directories=(definition.directory,),
        version=definition.version,
        here_only=here_only,
        barred_by=definition.barred_by,
    )
    _carry_out(context, decided, names)


def drop_unreadable(context: Context, table: UnreadableTable) -> int:
    """Drop a table of which nothing says how it is defined; how many directories of parts it had. Raises `Damaged`
    where a bucket has it, for other machines go by what a tombstone says of it."""
    directory = table_directory(table.uuid)
    if table.is_newer or any(
        disk.capabilities.shared and disk.exists(tombstones.definition_path(table.uuid))
        for disk in context.disks.values()
    ):
        raise table.error()
    _require_holders(context, [directory], f"dropping {table.called}")
    names = {
        name for disk in context.disks.values() for name in disk.directories(directory) if part_name(name) is not None
    }
    decided = TableDrop(
        table=table.called,
        table_uuid=table.uuid,
        reason=f"drop table {table.called}, whose definition cannot be read",
        directories=(directory,),
        version=table.version,
    )
    _carry_out(context, decided, sorted(names))
    return len(names)


def _carry_out(context: Context, decided: Drop, names: Iterable[str]) -> None:
    """Raises `Transient` where a disk knows by now that the table is replicated: what is there stays. What cannot be
    written raises before the intent is, which hides what is to go."""
    if isinstance(decided, TableDrop):
        for disk in context.disks.values():
            _tombstone(context, disk, decided)
    what = "drop table" if isinstance(decided, TableDrop) else "drop parts"
    with context.journal.file.rescue(), context.journal.claim(decided.table_uuid, names, what):
        intent = context.journal.begin_drop(decided)
        is_done = _drop_everywhere(context, decided, now=True)
        if is_done and isinstance(decided, TableDrop):
            context.journal.forget_table(decided.table_uuid)
        context.journal.finish_drop(intent)
    context.catalog.refresh()
    if not is_done:
        raise Transient(
            f"{decided.table} was made a replicated table meanwhile: it keeps what it has",
            hint="check 'frostline parts', and drop it again if you still want to",
        )


def drop_what_is_left(context: Context, gone: DroppedTable, *, reason: str) -> None:
    """Take a table that is dropped from the disks that still have it. Raises `Locked` when a part is in use here."""
    definition = gone.definition
    names = [stored.facts.name for stored in context.catalog.parts(definition, include_outdated=True)]
    _require_holders(context, [definition.directory], f"dropping {definition.full_name}")
    decided = TableDrop(
        table=definition.full_name,
        table_uuid=definition.uuid,
        reason=reason,
        directories=(definition.directory,),
        version=max(definition.version, gone.tombstone.version if gone.tombstone is not None else 0),
        barred_by=definition.barred_by,
    )
    _carry_out(context, decided, names)


def drop_parts(
    context: Context,
    to_delete: list[StoredPart],
    *,
    reason: str,
    by_ttl: bool = False,
    here_only: bool = False,
    keep: bool = False,
) -> None:
    """Drop parts of one table, with every other copy of them and everything they cover: nothing comes back to life.
    `by_ttl`: a TTL rule says so, for the log. `here_only`: from the disks that no other machine has.
    `keep`: local disks keep aside for a while what answers."""
    if not to_delete:
        return
    definition = to_delete[0].definition
    names = {stored.name for stored in to_delete}
    lineage = context.catalog.lineage
    everything = [
        stored
        for stored in context.catalog.parts(definition, include_outdated=True)
        if stored.name in names or (stored.state == "outdated" and any(lineage.hides(one, stored) for one in to_delete))
    ]
    what = f"dropping parts of {definition.full_name}"
    _require_holders(context, [stored.directory for stored in everything], what, here_only=here_only)
    decided = PartsDrop(
        table=definition.full_name,
        table_uuid=definition.uuid,
        reason=reason,
        directories=tuple(sorted({stored.directory for stored in everything})),
        by_ttl=by_ttl,
        here_only=here_only,
        barred_by=definition.barred_by,
        kept=tuple(sorted({stored.directory for stored in to_delete if keep and stored.state != "outdated"})),
    )
    _carry_out(context, decided, [stored.facts.name for stored in to_delete])


def _require_policy_disks(context: Context, definition: TableDefinition, operation: str) -> None:
    reachability.require(map(context.disk, context.catalog.policy_disks(definition)), operation)


def _require_holders(context: Context, directories: list[str], operation: str, *, here_only: bool = False) -> None:
    """Before the intent is written: a drop that a disk cannot take part in is refused, not left half done."""
    disks = [disk for disk in context.disks.values() if not (here_only and disk.capabilities.shared)]
    holders = [disk for disk in disks if disk.unreachable and any(map(disk.list, directories))]
    reachability.require(holders, operation)
    for disk in disks:
        if disk.read_only and any(map(disk.list, directories)):
            raise ReadOnly(
                f"{operation}: disk {disk.name} is read-only and holds some of it",
                hint="set read_only: false in its configuration, or remount it for writing; nothing was changed",
            )


def finish_drop(context: Context, decided: Drop) -> bool:
    """Carry out a drop's intent that was left; what is gone already is skipped, so it can be repeated after a crash.
    False: somebody altered the table, brought it back or made it a replicated one since it was decided, so it stays,
    with all that lies here."""
    if isinstance(decided, TableDrop) and any(_came_back(disk, decided) for disk in context.disks.values()):
        return False
    return _drop_everywhere(context, decided, now=False)


def _drop_everywhere(context: Context, decided: Drop, *, now: bool) -> bool:
    """Buckets first: the tombstone there is what other machines go by. `now`: somebody asked for it now, and it takes
    the table as it is when it is committed, altered by another machine or not. False: a disk bars it, and it ended."""
    disks = [disk for disk in context.disks.values() if not (decided.here_only and disk.capabilities.shared)]
    if any(_is_barred(disk, decided) for disk in disks):
        return False
    return all(
        _drop_from(context, disk, decided, now=now)
        for disk in sorted(disks, key=lambda disk: not disk.capabilities.remote)
        if not disk.read_only
    )


def _is_barred(disk: Disk, decided: Drop) -> bool:
    """Whether the table is a replicated one by now, whose parts go by an entry of its log alone."""
    return any(map(disk.exists, decided.barred_by))


def _drop_from(context: Context, disk: Disk, decided: Drop, *, now: bool) -> bool:
    kind = Dropped(by_ttl=isinstance(decided, PartsDrop) and decided.by_ttl)
    kept = decided.kept if isinstance(decided, PartsDrop) and retained_drops.keeps(disk) else ()
    while present := _still_there(disk, decided, now=now):
        if _is_barred(disk, decided):
            return False
        revision = disk.revision
        marks = _marks_below(disk, decided, present)
        try:
            with disk.transaction(kind, reason=decided.reason, actor=context.actor) as transaction:
                transaction.require(absent=decided.barred_by)
                for path in present:
                    if path in kept:
                        transaction.rename(path, retained_drops.place_for(disk, path, context.clock()))
                    else:
                        transaction.remove(path)
                if isinstance(decided, TableDrop) and disk.capabilities.shared:
                    if (tombstone := _tombstone(context, disk, decided)) is not None:
                        path = tombstones.path_of(decided.table_uuid)
                        if disk.exists(path):
                            transaction.remove(path)
                        transaction.create(path, tombstone)
                    # A tombstone below the version that another machine altered the table to would count for nothing.
                    transaction.made_from(revision, [tombstones.definition_path(decided.table_uuid)])
                for path, content in marks.items():
                    transaction.create(path, content)
                transaction.commit()
        except Conflict:  # another process removed some of them, altered or converted the table, first: look again
            disk.refresh()
    return True


def _tombstone(context: Context, disk: Disk, decided: TableDrop) -> bytes | None:
    """Where the disk has the table's definition: that it is gone, at no lower a version than any disk has. Raises
    `Damaged` where nothing says how the table is defined, `Refused` where that cannot be stored."""
    there = tombstones.definition_path(decided.table_uuid)
    if not (disk.capabilities.shared and disk.exists(there)):
        return None
    try:
        definition = schema.decode(disk.read(there), path=f"{disk.name}:{there}")
    except Damaged:  # the table may be hidden by now, so what the disks say counts, and not the catalog
        definition = last_definition(context.disks, decided.table_uuid)
    last = msgspec.structs.replace(definition, version=max(definition.version, decided.version))
    return tombstones.encode(tombstones.Tombstone(by="drop", actor=context.actor, definition=last))


def _still_there(disk: Disk, decided: Drop, *, now: bool) -> list[str]:
    """What the drop has to remove from the disk: directories, and the table's name unless another one has it now."""
    if isinstance(decided, TableDrop) and not now and _came_back(disk, decided):
        return []
    present = [directory for directory in decided.directories if not all(map(is_reservation, disk.list(directory)))]
    if isinstance(decided, TableDrop) and table_names.owner_of(disk, decided.table) == decided.table_uuid:
        present.append(table_names.path_of(decided.table))
    return present


def _came_back(disk: Disk, decided: TableDrop) -> bool:
    """Whether the table was brought back since the drop was decided, as its version tells."""
    path = tombstones.definition_path(decided.table_uuid)
    if not decided.version or not disk.exists(path):
        return False
    try:
        return schema.decode(disk.read(path), path=f"{disk.name}:{path}").version > decided.version
    except Damaged:  # nobody can tell, and what is left of it is hidden until somebody can
        return version_of(disk, path) > decided.version


def _marks_below(disk: Disk, decided: Drop, going: Collection[str]) -> dict[str, bytes]:
    """What outlives a table in a bucket: which names its parts had."""
    if not isinstance(decided, TableDrop) or not disk.capabilities.shared:
        return {}
    directories = [directory for directory in decided.directories if directory in going]
    paths = [f"{directory}/{name}" for directory in directories for name in disk.list(directory)]
    return {path: disk.read(path) for path in paths if is_reservation(path)}


def write_definition(
    context: Context,
    definition: TableDefinition,
    *,
    kind: TableCreated | TableAltered,
    reason: str,
    disks: list[str] | None = None,
    beside: Mapping[str, bytes] | None = None,
    beside_in_buckets: Mapping[str, bytes] | None = None,
    name_on: Disk | None = None,
    name_from: str | None = None,
    instead_of: str | None = None,
) -> None:
    """Write `table.json`, and files `beside` it, to the disks (default: all of the policy that can be written);
    `beside_in_buckets` only where other machines see it, for what is on this machine's disks is this machine's. A new
    table takes its name on the disk `name_on`, from the table of the uuid `name_from` if that has it. A file that is
    there `instead_of` it goes."""
    data = schema.encode(definition)
    path = f"{definition.directory}/{TABLE_FILE}"
    for name in disks if disks is not None else context.catalog.policy_disks(definition):
        disk = context.disk(name)
        if disk.read_only:
            continue
        with disk.transaction(kind, reason=reason, actor=context.actor) as transaction:
            if TABLE_FILE in disk.list(definition.directory):
                transaction.remove(path)
            if disk.capabilities.shared and disk.exists(void := tombstones.path_of(definition.uuid)):
                transaction.remove(void)
            if instead_of is not None and disk.exists(instead_of):
                transaction.remove(instead_of)
            transaction.create(path, data)
            more = (beside_in_buckets or {}) if disk.capabilities.shared else {}
            for other, content in {**(beside or {}), **more}.items():
                transaction.create(other, content)
            _write_conversion(transaction, disk, definition)
            if disk is name_on:
                table_names.claim(transaction, disk, definition, taking_from=name_from)
            transaction.commit()


def _write_conversion(transaction: Transaction, disk: Disk, definition: TableDefinition) -> None:
    """In the same commit as the definition: that the table is replicated by now, and of a plain one nothing that only a
    replicated one has."""
    there = [name for name in disk.files_in(definition.directory) if is_of_replicas(name)]
    if not definition.is_replicated:
        for name in there:
            transaction.remove(f"{definition.directory}/{name}")
    elif definition.first_block is not msgspec.UNSET and CONVERTED_FILE not in there:
        transaction.create(f"{definition.directory}/{CONVERTED_FILE}", b"{}")


def check(context: Context, definition: TableDefinition) -> None:
    """Whether the definition fits itself and the configuration. Raises `UsageError` or `NotFound`."""
    policy = context.config.policy(definition.policy)
    if (fault := schema.fault_in(definition)) is not None:
        raise UsageError(
            f"the definition of {definition.full_name} cannot be stored: {fault}",
            hint="nothing was changed; use another value",
        )
    names = [column.name for column in definition.columns]
    if len(set(names)) != len(names):
        raise UsageError(f"table {definition.full_name} names a column twice", hint=f"columns: {', '.join(names)}")
    if not definition.order_by:
        raise UsageError(f"table {definition.full_name} has no sort order", hint="use --order-by COLUMN[,COLUMN]")
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
        raise Refused(
            f"every disk of policy {definition.policy} is read-only",
            hint="set read_only: false for one of them, or choose another policy",
        )


def check_change(context: Context, old: TableDefinition, new: TableDefinition) -> None:
    """Whether the new definition may take the old one's place. Raises as `check` does, and `Refused` for a policy
    without a disk that holds parts of the table: no rule could move them, and nothing would say so."""
    check(context, new)
    if alike(column.name for column in old.columns) is None:  # else an older version made them: one may go
        check_told_apart((column.name for column in new.columns), "columns", "give one of them another name")
    from tiering.table.columns.widening import check_parts  # which needs Arrow, as few commands do

    check_parts(old, new, (stored.part for stored in context.catalog.parts(old, include_outdated=True)))
    if new.full_name != old.full_name and old.is_replicated:
        raise Refused(
            f"{old.full_name} is not renamed: it is replicated, and its other replicas know it by that name",
            hint="drop the replicas, and create it by the other name",
        )
    if new.policy == old.policy:
        return
    if old.is_replicated:
        raise Refused(
            f"the policy of {old.full_name} is not altered: it is replicated, and each machine has its own",
            hint="drop the replica here, and create it with the other policy",
        )
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
