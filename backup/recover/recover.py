"""Restore tables of a backup into this store.

The parts are brought to their disks first; then one transaction, on the disk that decides about the name, creates
`table.json`: the table is there with all of its parts, or not at all. A killed restore is run again and goes on: under
which uuid it works is written down before the first part. What nobody goes on with is swept when a store opens.

<state>/backup/<repository>/restores/<what>.json   the uuid of a table that is being restored
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from backup.format.header import BackupHeader, TableEntry
from backup.format.lists import PinnedPart
from backup.recover import unfinished_restores
from backup.recover.plan import BackupTable, TablePlan, plan_table
from backup.recover.reading import BackupReader
from backup.recover.request import RestoredTable, RestoreRequest, RestoreResult
from backup.recover.reserved import recorded, reservation_path, reserved_uuid
from backup.recover.staging import bring
from backup.recover.trees import check_trees, chosen_trees, restore_tree, restored_tree
from backup.storage import DeletedMeanwhile, Storage
from backup.verify.buckets import PinnedBuckets
from disks.effects import make_directory, remove_file
from disks.host.locks import file_lock
from oplog.errors import AlreadyExists, Conflict, Damaged, NoSpace, NotFound, Refused, UsageError
from oplog.kinds import TableCreated
from tiering.catalog import blocks, reachability, tables
from tiering.catalog.context import Context
from tiering.catalog.definitions import table_names
from tiering.config.units import counted
from tiering.engine import replication
from tiering.journal.records import PAUSE_KINDS
from tiering.table.merge_modes import depends_on_order
from tiering.table.part import PartName, range_of
from tiering.table.schema import TableDefinition

_WHAT_EACH_LACKS = "'frostline backup list' shows what each backup lacks"


def restore(
    storage: Storage, context: Context, headers: Sequence[BackupHeader], buckets: PinnedBuckets, request: RestoreRequest
) -> RestoreResult:
    """Restore the chosen tables of these backups, which are one or a set. Tables are restored one after the other, each
    whole or not at all. Raises `AlreadyExists` for a name that is taken, unless `drop_existing`."""
    began = time.monotonic()
    context.catalog.refresh()
    trees, left_out = chosen_trees(headers, request)
    request = replace(request, scope=replace(request.scope, others=tuple(tree.name for _, tree in trees)))
    with storage.reading(headers):
        plans = _plans(storage, context, headers, request)
    left_out += _lacking(headers, request)
    state = unfinished_restores.folder(context.config, storage.id)
    records = {plan.source: state / f"{_word(headers, plan, request)}.json" for plan in plans}
    _check_names(context, plans, request, records)
    check_trees(context, trees)
    _check_space(context, plans)
    if not request.dry_run:
        make_directory(state)
        with file_lock(state.parent / "restore.lock"):
            for torn in state.glob(".*.tmp"):  # a record that was being written when its process ended
                remove_file(torn, missing_ok=True)
            for plan in plans:
                _restore_table(storage, context, headers, buckets, plan, records[plan.source])
            for header, tree in trees:
                with storage.reading([header]):
                    restore_tree(
                        storage, context, BackupReader(storage, buckets), context.disk(tree.disk), header, tree
                    )
    return RestoreResult(
        name=headers[0].name,
        backups=tuple(header.id for header in headers),
        tables=(
            *(_restored(context, plan, request) for plan in plans),
            *(restored_tree(tree) for _, tree in trees),
        ),
        notes=tuple(dict.fromkeys([*left_out, *(note for plan in plans for note in plan.notes)])),
        seconds=round(time.monotonic() - began, 3),
        dry_run=request.dry_run,
    )


def _plans(
    storage: Storage, context: Context, headers: Sequence[BackupHeader], request: RestoreRequest
) -> list[TablePlan]:
    known = {table.name for header in headers for table in header.tables}
    lacking = _lacking(headers, request)
    for renaming in request.renamings:
        if not any(renaming.applies(name) for name in known):
            left_out = {table.table for header in headers for table in header.left_out}
            if any(map(renaming.applies, left_out)) and lacking:
                raise NotFound(lacking[0], hint=_WHAT_EACH_LACKS)
            raise NotFound(f"No such table: {renaming.source}", hint=f"the backup has: {', '.join(sorted(known))}")
    usable = {
        name: disk.capabilities.remote
        for name, disk in context.disks.items()
        if not disk.read_only and not disk.unreachable and disk.broken is None
    }
    plans: list[TablePlan] = []
    partitions: set[str] = set()
    if lacking and not any(map(request.scope.means, (*known, *request.scope.others))):
        raise NotFound(lacking[0], hint=_WHAT_EACH_LACKS)
    for name in request.scope.chosen(known):
        found = [_source(storage, header, table) for header in headers for table in header.tables if table.name == name]
        partitions.update(item.partition for source in found for item in source.partitions)
        plans.append(plan_table(name, found, request, context.config, usable))
    request.scope.check_partitions(partitions)
    return plans


def _lacking(headers: Sequence[BackupHeader], request: RestoreRequest) -> list[str]:
    """What is asked for and could not be read when the backups were made, a sentence each."""
    held = {table.uuid for header in headers for table in header.tables}
    return [
        f"the backup of {header.machine} lacks {table.table}: {table.why}; an older one may have it"
        for header in headers
        for table in header.left_out
        if table.uuid not in held and request.scope.means(table.table)
    ]


def _source(storage: Storage, header: BackupHeader, table: TableEntry) -> BackupTable:
    listed = storage.table(table)
    partitions = storage.each(storage.partition_list, [entry.list for entry in listed.partitions])
    return BackupTable(header, listed, tuple(partitions))


def _check_names(
    context: Context, plans: Sequence[TablePlan], request: RestoreRequest, records: Mapping[str, Path]
) -> None:
    targets = Counter(plan.definition.full_name for plan in plans)
    for name, count in targets.items():
        if count > 1:
            raise UsageError(
                f"{counted(count, 'table')} would become {name}", hint="give each a name of its own (--map-table)"
            )
    for plan in plans:
        name = plan.definition.full_name
        for unreadable in context.catalog.unreadable():
            if unreadable.is_called(name):
                beside = f"or restore beside it (--map-table {plan.source}:other.name)"
                raise Damaged(unreadable.text, hint=f"drop it first ('frostline table drop {name}'), {beside}")
        tables.check(context, plan.definition)
        disks = map(context.disk, context.catalog.policy_disks(plan.definition))
        reachability.require(disks, f"restoring {name}")
        unfinished = recorded(records[plan.source])
        for table in _existing(context, name) if request.drop_existing else ():
            replication.refuse(table, "a restore in the place of", "restore it beside (--map-table), or drop it first")
        if not request.drop_existing and any(table.uuid != unfinished for table in _existing(context, name)):
            raise AlreadyExists(
                f"table {name} exists already",
                hint=f"restore beside it (--map-table {plan.source}:other.name), or in its place (--drop-existing)",
            )


def _existing(context: Context, name: str) -> list[TableDefinition]:
    return [definition for definition in context.catalog.tables() if definition.full_name == name]


def _check_space(context: Context, plans: Sequence[TablePlan]) -> None:
    needed: Counter[str] = Counter()
    for plan in plans:
        for placed in plan.parts:
            needed[placed.disk] += placed.entry.size_bytes
    for name, size_bytes in needed.items():
        free = context.disk(name).usage().free_bytes
        if free is not None and size_bytes > free:
            raise NoSpace(
                f"disk {name} has {free:,} bytes free, and the parts that go there have {size_bytes:,}",
                hint="free space, or restore fewer tables or partitions at a time (-t, --partition)",
            )


def _restore_table(
    storage: Storage,
    context: Context,
    headers: Sequence[BackupHeader],
    buckets: PinnedBuckets,
    plan: TablePlan,
    record: Path,
) -> None:
    with context.journal.claim("tables", [plan.definition.full_name], "restore table"):
        context.catalog.refresh()
        definition = msgspec.structs.replace(
            plan.definition, uuid=reserved_uuid(context, plan.definition, record, _source_text(storage, headers))
        )
        old = [table for table in _existing(context, definition.full_name) if table.uuid != definition.uuid]
        if definition.uuid not in {table.uuid for table in context.catalog.tables()}:
            _bring(storage, context, headers, buckets, plan, definition, record)
            _reveal(context, plan, definition, old[0] if old else None, _source_text(storage, headers))
        for table in old:
            tables.drop(context, table)
    for kept in plan.pins:
        _keep(context, definition, kept)
    wanted = [kind for kind in PAUSE_KINDS if kind in plan.pauses]
    if wanted:
        context.journal.overrides.pause(definition.uuid, wanted, actor=context.actor)
    remove_file(record, missing_ok=True)
    context.catalog.refresh()


def _bring(
    storage: Storage,
    context: Context,
    headers: Sequence[BackupHeader],
    buckets: PinnedBuckets,
    plan: TablePlan,
    definition: TableDefinition,
    record: Path,
) -> None:
    """Bring the parts. What can never become the table goes again: its backup was deleted meanwhile, or a pin went."""
    title, size_bytes = f"restoring {definition.full_name}", sum(placed.entry.size_bytes for placed in plan.parts)
    try:
        with (
            storage.reading(headers),
            context.progress.task(title, items=len(plan.parts), size_bytes=size_bytes) as task,
        ):
            bring(context, BackupReader(storage, buckets), plan, definition, _source_text(storage, headers), task)
            _check_kept(context, buckets, record)
    except DeletedMeanwhile:
        _take_away(context, record)
        remove_file(record, missing_ok=True)
        raise


def _check_kept(context: Context, buckets: PinnedBuckets, record: Path) -> None:
    """Raise `Refused` when a pin went while its objects were taken over; then none of them stays."""
    try:
        buckets.check_kept()
    except Refused:
        _take_away(context, record)
        raise


def _take_away(context: Context, record: Path) -> None:
    if (note := unfinished_restores.noted(record)) is not None:
        unfinished_restores.take_away(context, note)


def _source_text(storage: Storage, headers: Sequence[BackupHeader]) -> str:
    return f"backup {headers[0].name} in {storage.name}"


def _word(headers: Sequence[BackupHeader], plan: TablePlan, request: RestoreRequest) -> str:
    """Names this very restore of this table: when it is asked for again, it goes on."""
    parts = [*sorted(header.id for header in headers), plan.source, plan.definition.full_name, *request.scope.text]
    return hashlib.sha256("\n".join([*parts, str(request.schema_only)]).encode()).hexdigest()[:32]


def _reveal(
    context: Context, plan: TablePlan, definition: TableDefinition, old: TableDefinition | None, source: str
) -> None:
    """The commit point: `table.json`, its name and the marks of its block ranges, on the disk that decides first."""
    own = _own_ranges(context, plan, definition)
    marks = {blocks.mark_path(definition, index): blocks.mark(context, index) for index in sorted(own)}
    others = {
        blocks.mark_path(definition, listed.index): blocks.mark_of(listed.index, listed.owner)
        for listed in plan.ranges
        if listed.index not in own
    }
    for index in sorted(own):
        context.journal.add_block_range(definition.uuid, index)
    arbiter = table_names.arbiter(context, definition)
    first = [] if arbiter is None else [arbiter.name]
    rest = [name for name in context.catalog.policy_disks(definition) if name not in first]
    try:
        tables.write_definition(
            context,
            definition,
            kind=TableCreated(),
            reason=f"restore {definition.full_name} from {source}",
            disks=[*first, *rest],
            beside=marks,
            beside_in_buckets=others,
            name_on=arbiter,
            name_from=None if old is None else old.uuid,
            instead_of=reservation_path(definition),
        )
    except Conflict as error:
        raise AlreadyExists(
            f"another machine took the name {definition.full_name} while it was restored",
            hint="restore it under another name (--map-table)",
        ) from error
    finally:
        context.catalog.refresh()


def _own_ranges(context: Context, plan: TablePlan, definition: TableDefinition) -> set[int]:
    """The ranges that this machine takes: all, under a uuid that nobody else ever had or when nobody else had any; else
    those of the machines whose backups are restored stay theirs, and the next insert takes a new one. Parts of several
    machines stay theirs wherever merges go by the order of inserts: an adoption asks which came first."""
    used = {range_of(PartName.parse(placed.entry.name).max_block) for placed in plan.parts}
    listed = {item.index for item in plan.ranges} | used
    one_machine, own = len(plan.machines) == 1, {item.index for item in plan.ranges if item.own}
    if one_machine and all(item.own for item in plan.ranges):
        return listed or {0}
    if definition.uuid == plan.definition.uuid:
        return set()
    if not depends_on_order(definition) or (one_machine and used <= own):
        return listed or {0}
    return own if one_machine else set()


def _keep(context: Context, definition: TableDefinition, kept: PinnedPart) -> None:
    where = {"partition": kept.name} if kept.scope == "partition" else {"part": kept.name}
    context.journal.overrides.pin(definition.uuid, volume=kept.volume, actor=kept.actor, **where)


def _restored(context: Context, plan: TablePlan, request: RestoreRequest) -> RestoredTable:
    name = plan.definition.full_name
    here = next((table.uuid for table in context.catalog.tables() if table.full_name == name), plan.definition.uuid)
    return RestoredTable(
        table=name,
        source=plan.source,
        uuid=here,
        parts=len(plan.parts),
        rows=sum(placed.entry.rows for placed in plan.parts),
        files=sum(len(placed.entry.files) for placed in plan.parts),
        bytes=sum(placed.entry.size_bytes for placed in plan.parts),
        disks=dict(sorted(Counter(placed.disk for placed in plan.parts).items())),
        replaced=request.drop_existing,
    )
