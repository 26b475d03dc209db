"""Whether a restore may be done as things are: the same questions in its preview."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.table import FileTable
from disks.object_disk.pending_deletes import announced
from disks.object_disk.references import INTENTS_PREFIX, Inventory, is_set_aside
from oplog.errors import Damaged, Locked, Refused
from oplog.replay import FileRow
from restore.rebuild.definitions import SettledDefinition
from restore.rebuild.duplicates import Elsewhere, name_taken
from restore.rebuild.held_revision import require_clock
from restore.rebuild.moments import nothing_yet
from restore.rebuild.plan import in_scope
from restore.rebuild.request import RebuildRequest
from restore.rebuild.result import RebuildResult
from tiering.config.units import counted
from tiering.engine import replication
from tiering.table import schema, tombstones
from tiering.table.paths import locate
from tiering.table.schema import TABLE_FILE, TableDefinition


def check_writable(disk: LoggedDisk) -> None:
    """Raise `Refused` for a disk that nothing may be committed to."""
    if disk.read_only:
        raise Refused(f"disk {disk.name} is read-only", hint="a preview is allowed")


def objection_of(*checks: Callable[[], None]) -> str:
    """What a preview says: why it would be refused as things are; empty when it would not."""
    try:
        for check in checks:
            check()
    except (Refused, Locked) as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return ""


def check_arrivals(result: RebuildResult) -> None:
    """Raise `Refused` for a part of which some rows are there, or that would hide one of another disk."""
    for one in result.in_the_way[:1]:
        more = f" (and {len(result.in_the_way) - 1} more)" if len(result.in_the_way) > 1 else ""
        raise Refused(f"{one.text}{more}", hint=one.hint(result.disk))


OF_ANOTHER_TIME = "name partitions, or a revision since it became plain"
"""What to do instead of putting a table back to when it was replicated."""


def check_replicas(
    disk: LoggedDisk,
    result: RebuildResult,
    settled: SettledDefinition,
    target: FileTable,
    newest: FileTable,
    *,
    instead: str,
) -> None:
    """Raise `Refused` for tables that are replicated now, whose replicas would not know, and for those that would be
    by the definition that comes; of the latter, `instead` says what else to do. Asks the log alone: the store need not
    open."""
    difference, operation = result.difference, f"putting disk {disk.name} back with"
    by_name = "restore other tables by name: --table; or restore a backup beside it"
    touched = {located.uuid for path in (*difference.removed, *difference.created) if (located := locate(path))}
    for uuid in sorted(touched):
        row = newest.get(tombstones.definition_path(uuid))
        if row is not None and (now := _definition(row)) is not None:
            replication.refuse(now, operation, by_name)
    for path in difference.created:
        row = settled.get(target, path) if tombstones.is_definition(path) else None
        if row is not None and (then := _definition(row)) is not None:
            replication.refuse_return(then, operation, instead)


def check_names(
    disk: LoggedDisk, result: RebuildResult, target: FileTable, elsewhere: Elsewhere, *, hidden: Collection[str] = ()
) -> None:
    """A table that comes back must not bear the name of one that stays, here or on another disk. Those `hidden`, by
    uuid, come back for nobody to see."""
    tables = [path for path in result.difference.created if path.endswith(f"/{TABLE_FILE}")]
    coming = [
        table
        for path in tables
        if (row := target.get(path)) and (table := _definition(row)) and table.uuid not in hidden
    ]
    if not coming:
        return
    gone = {*result.difference.removed, *result.difference.created}
    with disk.file_table.read() as view:
        here = [row for row in view.documents(f"*/{TABLE_FILE}") if row.path not in gone]
    there = [table for table in elsewhere.tables if table.path not in gone]
    if (taken := name_taken(coming, [*filter(None, map(_definition, here)), *there, *coming])) is not None:
        raise Refused(
            f"revision {result.revision} of disk {disk.name} brings back a table {taken.full_name}, and another one "
            "has that name now",
            hint="drop the new one first, or name the tables to restore with --table",
        )


def _definition(row: FileRow) -> TableDefinition | None:
    try:
        return schema.decode(row.inline or b"", path=row.path)
    except Damaged:
        return None


def check_revision(disk: LoggedDisk, inventory: Inventory, request: RebuildRequest, result: RebuildResult) -> None:
    """Raise `Refused` for a time that the empty disk would be restored of, and where a pin would end at a time that
    others do not know."""
    if request.time is not None and result.revision == 0:
        raise nothing_yet(disk.log, inventory, request.time, f"disk {disk.name}")
    if result.revision:
        require_clock(disk.store)


def check_objects(disk: LoggedDisk, result: RebuildResult, target: FileTable, scope: Sequence[str] | None) -> None:
    """Raise `Refused` where objects are gone, `Locked` where a collection deletes them."""
    missing = [lost for lost in result.missing_objects if not is_set_aside(lost.path)]
    if missing:
        raise Refused(
            f"revision {result.revision} of disk {disk.name} needs {counted(len(missing), 'object')} that "
            f"{'is' if len(missing) == 1 else 'are'} gone, such as {result.lacks(missing[0])}",
            hint="the preview lists them; choose another revision, or the tables that are whole",
        )
    if next(iter(disk.store.list(INTENTS_PREFIX)), None) is None:
        return
    going = announced(disk, now=datetime.now(UTC))
    with target.read() as view:
        needed = any(key in going and in_scope(path, scope) for key, _, path in view.blobs_by_key())
    if needed:
        raise Locked(
            f"a collection is deleting objects that revision {result.revision} of disk {disk.name} needs",
            hint="wait until it has ended and check the preview again; an abandoned one counts for an hour",
        )
