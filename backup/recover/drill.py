"""A drill: restore a backup into a scratch store, prove that it is what the backup's lists say, and take it away.

<state>/backup/<repository>/drills/<random>   the scratch store; a killed drill's is swept when the store opens, and by
the next drill
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from backup import records
from backup.completeness import object_key
from backup.format.header import BackupHeader, DrillRecord, TreeEntry
from backup.format.lists import PartEntry
from backup.recover import unfinished_restores
from backup.recover.reading import BackupReader
from backup.recover.recover import restore
from backup.recover.request import RestoreRequest
from backup.recover.trees import newest_trees, restore_tree
from backup.scope import Scope
from backup.storage import DeletedMeanwhile, Storage
from backup.verify.buckets import PinnedBuckets
from disks.config import LocalDiskConfig
from disks.effects import nearest_directory
from disks.host.locks import OwnedDirectory, sweep
from disks.workers.progress import Progress
from oplog.entry import now
from oplog.errors import Damaged, FrostlineError, NoSpace, NotFound, UsageError
from restore.check.check import CheckOptions, check
from tiering.config.settings import Config, PolicyConfig, VolumeConfig
from tiering.config.units import counted, format_size
from tiering.engine.store import Store
from tiering.table import part as part_format
from tiering.table.part import PartName

KEPT_PROBLEMS = 100
"""How many a record keeps; the report has all."""
_DISK = "scratch"
_NAMED_PARTS = 3
"""So many of those that lost a file with a pack are named."""


class DrillRequest(msgspec.Struct, frozen=True):
    """What somebody asks for. `max_bytes`: restore no more than this, other partitions each time."""

    max_bytes: int | None = None
    actor: str = ""
    dry_run: bool = False


class DrilledTable(msgspec.Struct, frozen=True):
    """What was restored of a table."""

    table: str
    partitions: list[str]
    parts: int
    rows: int
    bytes: int


class DrillDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`backup drill --json`."""

    name: str
    backups: tuple[str, ...]
    tables: tuple[DrilledTable, ...]
    bytes: int
    whole: bool
    problems: tuple[str, ...]
    seconds: float
    dry_run: bool
    parts: int
    rows: int
    ok: bool


class DrillResult(msgspec.Struct, frozen=True):
    """What was restored, and what was wrong with it; with a dry run, what would be restored."""

    name: str
    backups: tuple[str, ...]
    """The ids of the backups that were drilled."""
    tables: tuple[DrilledTable, ...]
    """Each with the partitions that were restored, their parts, rows and bytes."""
    bytes: int
    whole: bool
    """Everything that the backup holds was restored."""
    problems: tuple[str, ...]
    seconds: float
    dry_run: bool

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def parts(self) -> int:
        return sum(table.parts for table in self.tables)

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def document(self) -> DrillDocument:
        return DrillDocument(**asdict(self), parts=self.parts, rows=self.rows, ok=self.ok)


class _Table(msgspec.Struct):
    """One table, and what of it is restored."""

    name: str
    partitions: list[str] = msgspec.field(default_factory=list)
    parts: dict[str, PartEntry] = msgspec.field(default_factory=dict)
    objects: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """The parts that an object of the repository holds files of."""

    @property
    def row(self) -> DrilledTable:
        parts = self.parts.values()
        rows, size_bytes = sum(part.rows for part in parts), sum(part.size_bytes for part in parts)
        return DrilledTable(self.name, self.partitions, len(parts), rows, size_bytes)


def drill(
    storage: Storage,
    config: Config,
    headers: Sequence[BackupHeader],
    buckets: PinnedBuckets,
    request: DrillRequest,
    *,
    workers: int,
    progress: Progress,
) -> DrillResult:
    """Drill a backup, or the set of several machines. What was found is kept in the repository unless it is a dry run.

    Raises `UsageError` when no partition is as small as `max_bytes`, `NoSpace` before anything is restored when there
    is no room for it, and what is no finding about the backup: a repository that cannot be reached.
    """
    began = time.monotonic()
    problems: list[str] = []
    held = _held(storage, headers, problems)
    wanted, unread = list(held), len(problems)
    if request.max_bytes is not None:
        drilled = records.keys(storage, DrillRecord)
        wanted = _within(held, request.max_bytes, sum(len(drilled.get(header.id, ())) for header in headers))
    tables = _tables(headers, held, wanted, problems)
    size_bytes = sum(part.size_bytes for table in tables for part in table.parts.values())
    trees = newest_trees(headers) if request.max_bytes is None else []
    size_bytes += sum(tree.size_bytes for _, tree in trees)
    drills = unfinished_restores.drills(config, storage.id)
    _check_room(drills, size_bytes)
    if not request.dry_run:
        sweep(drills)
        scratch = OwnedDirectory(drills)
        try:
            problems += _restored(
                storage, headers, buckets, tables, trees, scratch.path, request.actor, workers, progress
            )
        finally:
            scratch.remove()
    result = DrillResult(
        name=headers[0].name,
        backups=tuple(header.id for header in headers),
        tables=(
            *(table.row for table in tables),
            *(DrilledTable(tree.name, [], tree.parts, 0, tree.size_bytes) for _, tree in trees),
        ),
        bytes=size_bytes,
        whole=len(wanted) == len(held) and not unread and len(trees) == len(newest_trees(headers)),
        problems=tuple(problems),
        seconds=round(time.monotonic() - began, 3),
        dry_run=request.dry_run,
    )
    for header in () if request.dry_run else headers:
        records.put(storage, _record(result, header, request.actor))
    return result


_Held = Mapping[tuple[str, str], tuple[Mapping[str, PartEntry], Mapping[str, list[str]]]]
"""(table, partition) -> its parts by name, and by the key of an object the parts that it holds files of."""


def _held(storage: Storage, headers: Sequence[BackupHeader], problems: list[str]) -> _Held:
    """All that the backups hold; lists that cannot be read are problems."""
    held: dict[tuple[str, str], tuple[dict[str, PartEntry], dict[str, list[str]]]] = {}
    for header in headers:
        for table in header.tables:
            try:
                for entry in storage.table(table).partitions:
                    listed = storage.partition_list(entry.list)
                    parts, objects = held.setdefault((table.name, entry.partition), ({}, {}))
                    for part in listed.parts:
                        parts[part.name] = part
                        for key in {object_key(listed, file) for file in part.files}:
                            objects.setdefault(key, []).append(part.name)
            except (Damaged, NotFound) as error:
                problems.append(f"table {table.name}: {error.message}")
    return held


def _within(held: _Held, limit: int, turn: int) -> list[tuple[str, str]]:
    """As many partitions as fit into the limit, in another order at each turn."""
    sizes = {partition: sum(part.size_bytes for part in parts.values()) for partition, (parts, _) in held.items()}
    if sizes and min(sizes.values()) > limit:
        raise UsageError(
            f"no partition of the backup is as small as {format_size(limit)}",
            hint=f"the smallest has {format_size(min(sizes.values()))}",
        )
    chosen: list[tuple[str, str]] = []
    for partition in sorted(
        sizes, key=lambda partition: hashlib.sha256("\n".join((str(turn), *partition)).encode()).digest()
    ):
        if sizes[partition] <= limit:
            limit -= sizes[partition]
            chosen.append(partition)
    return chosen


def _tables(
    headers: Sequence[BackupHeader], held: _Held, partitions: Sequence[tuple[str, str]], problems: Sequence[str]
) -> list[_Table]:
    """What is restored of each table; one without parts, too. A table whose list cannot be read is left out."""
    tables = {table.name: _Table(table.name) for header in headers for table in header.tables}
    parts: dict[str, dict[str, PartEntry]] = {name: {} for name in tables}
    for name, partition in sorted(partitions):
        listed, objects = held[name, partition]
        tables[name].partitions.append(partition)
        for key, holding in objects.items():
            tables[name].objects.setdefault(key, []).extend(holding)
        parts[name].update(listed)
    for name, table in tables.items():  # parts of one machine may cover those of another
        active = part_format.active([PartName.parse(part) for part in parts[name]])
        table.parts = {part: entry for part, entry in parts[name].items() if PartName.parse(part) in active}
    whole = len(partitions) == len(held)
    unread = {name for name in tables if any(problem.startswith(f"table {name}: ") for problem in problems)}
    return [table for name, table in tables.items() if table.partitions or (whole and name not in unread)]


def _check_room(drills: Path, size_bytes: int) -> None:
    status = os.statvfs(nearest_directory(drills))
    free_bytes = status.f_bavail * status.f_frsize
    if size_bytes > free_bytes:
        raise NoSpace(
            f"{drills} has room for {format_size(free_bytes)}, and what is to be restored there has "
            f"{format_size(size_bytes)}; nothing was begun",
            hint="--max-bytes N restores a share, another one each time; or free space",
        )


def _restored(
    storage: Storage,
    headers: Sequence[BackupHeader],
    buckets: PinnedBuckets,
    tables: Sequence[_Table],
    trees: Sequence[tuple[BackupHeader, TreeEntry]],
    scratch: Path,
    actor: str,
    workers: int,
    progress: Progress,
) -> list[str]:
    """Restore them into the scratch directory. What was wrong with it."""
    config = Config(
        state_path=str(scratch / "state"),
        disks={_DISK: LocalDiskConfig(path=str(scratch / _DISK), reserve_bytes=0)},
        policies={_DISK: PolicyConfig(volumes=(VolumeConfig(name=_DISK, disks=(_DISK,)),))},
    )
    problems: list[str] = []
    with Store.open(config, actor=actor, workers=workers, progress=progress) as store:
        for table in tables:
            scope = Scope((table.name,), tuple(table.partitions))
            try:
                request = RestoreRequest(headers[0].name, scope=scope, policy=_DISK)
                restore(storage, store.context, headers, buckets, request)
                problems += _compared(store, table)
            except DeletedMeanwhile:
                raise
            except (Damaged, NotFound) as error:
                problems.append(_named(table, error))
        for header, tree in trees:
            try:
                reader = BackupReader(storage, buckets)
                with storage.reading([header]):
                    restore_tree(storage, store.context, reader, store.context.disk(_DISK), header, tree)
            except DeletedMeanwhile:
                raise
            except (Damaged, NotFound) as error:
                problems.append(f"table {tree.name}: {error.message}")
        found = check(store.context.disks, CheckOptions(read_data=True, workers=workers), progress=progress)
    problems += [f"{problem.invariant} {problem.path or problem.part}: {problem.what}" for problem in found.problems]
    return problems


def _named(table: _Table, error: FrostlineError) -> str:
    """What stopped the restore of a table, with the parts that it is about where the error names their object."""
    parts = next((parts for key, parts in table.objects.items() if key in error.message), [])
    shown = ", ".join(parts[:_NAMED_PARTS]) + (f" and {len(parts) - _NAMED_PARTS} more" * (len(parts) > _NAMED_PARTS))
    about = f", {'part' if len(parts) == 1 else 'parts'} {shown}" if parts else ""
    return f"table {table.name}{about}: {error.message}"


def _compared(store: Store, table: _Table) -> list[str]:
    """Where the table is not what the lists say: its parts, their files' digests, the rows that are read from it."""
    there = {stored.part.name: stored.part for stored in store.parts(table.name)}
    problems = [f"table {table.name}: part {name} is not there" for name in sorted(table.parts.keys() - there.keys())]
    problems += [f"table {table.name}: part {name} is in no list" for name in sorted(there.keys() - table.parts.keys())]
    for name in sorted(there.keys() & table.parts.keys()):
        listed = {(file.name, file.size_bytes, file.sha256) for file in table.parts[name].files}
        if not {(file.name, file.size_bytes, file.sha256) for file in there[name].files} <= listed:
            problems.append(f"table {table.name}: the files of part {name} are not those of the list")
    wanted = sum(part.rows for part in table.parts.values())
    with store.table(table.name).scan() as reader:
        rows = sum(batch.num_rows for batch in reader)
    if rows != wanted:
        problems.append(f"table {table.name}: {counted(rows, 'row')} are read, and the lists say {wanted}")
    return problems


def _record(result: DrillResult, header: BackupHeader, actor: str) -> DrillRecord:
    return DrillRecord(
        backup=header.id,
        time=now(),
        actor=actor,
        whole=result.whole,
        parts=result.parts,
        rows=result.rows,
        size_bytes=result.bytes,
        problems=result.problems[:KEPT_PROBLEMS],
        problem_count=len(result.problems),
    )
