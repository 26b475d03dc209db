"""What gives up, brings back or proves data: drops, undo, gc, backups, checks, snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from oplog.errors import Refused
from tiering.config.units import counted, format_size
from tui.actions.action import Action, Lines, NothingToDo
from tui.facts.backups import repository_of

if TYPE_CHECKING:
    from disks.garbage.collect import GcReport
    from tiering.engine.store import Store


def drop_table(table: str) -> Action:
    """`table drop DB.TABLE`."""

    def preview(store: Store) -> Lines:
        parts = store.parts(table)
        local = sum(1 for stored in parts if not store.disk(stored.disk).capabilities.remote)
        size = format_size(sum(stored.facts.size_bytes for stored in parts))
        lines = [f"drops {table} with {counted(len(parts), 'part')} ({size}), on every machine that has any"]
        if local:
            lines.append(f"Restore cannot bring back the {local:,} on local disks.")
        return lines

    def run(store: Store) -> str:
        store.drop_table(table)
        return f"Dropped {table}."

    return Action(
        title=f"Drop table {table}", commands=(("table", "drop", table),), preview=preview, run=run, name=table
    )


def undo(disk: str, revision: int) -> Action:
    """`undo DISK REV`."""

    def preview(store: Store) -> Lines:
        from restore.history import undo as history
        from restore.history.documents import undo_lines

        chosen = store.object_disk(disk)
        planned = history.preview(store.context, chosen, revision, change=history.read_change(chosen, revision))
        if planned.done:
            return NothingToDo([planned.done])
        if planned.objections:
            return NothingToDo([*(f"REFUSED: {objection}" for objection in planned.objections), *undo_lines(planned)])
        return list(undo_lines(planned))

    def run(store: Store) -> str:
        from restore.history import undo as history

        chosen = store.object_disk(disk)
        planned, done = history.undo(store.context, chosen, revision, change=history.read_change(chosen, revision))
        return planned.done if done is None else f"Undone by revision {done}."

    return Action(
        title=f"Undo revision {revision} of disk {disk}",
        commands=(("undo", disk, str(revision)),),
        preview=preview,
        run=run,
        name=str(revision),
    )


def collect(disk: str) -> Action:
    """`gc DISK --delete`."""
    from disks.garbage.rules import GcRules

    def preview(store: Store) -> Lines:
        return _gc_lines(store.gc(disk, GcRules(delete=False)))

    def run(store: Store) -> str:
        report = store.gc(disk, GcRules(delete=True))
        done = f"gc of {disk}: {counted(report.deleted, 'object')} deleted ({format_size(report.deleted_bytes)})"
        if report.refused:
            raise Refused(f"{done}: {report.refused}", hint=f"frostline gc {disk}")
        return f"{done}."

    return Action(
        title=f"Delete unreferenced objects on disk {disk}",
        commands=(("gc", disk, "--delete"),),
        preview=preview,
        run=run,
        name=disk,
    )


def _gc_lines(report: GcReport) -> Lines:
    lines = [
        f"referenced  {report.referenced:,}",
        f"pending     {report.pending:,}",
        f"orphaned    {report.orphaned:,} ({format_size(report.orphaned_bytes)})",
    ]
    return [*lines, f"REFUSED: {report.refused}"] if report.refused else lines


def snapshot(disk: str) -> Action:
    """`snapshot DISK`."""

    def run(store: Store) -> str:
        return f"Wrote a snapshot of {disk} at revision {store.object_disk(disk).write_snapshot()}."

    return Action(title=f"Write a snapshot of disk {disk}", commands=(("snapshot", disk),), run=run)


def create_backup() -> Action:
    """`backup create`."""

    def preview(store: Store) -> Lines:
        from backup.create.request import CreateRequest

        with repository_of(store) as repository:
            made = repository.create(store, CreateRequest(dry_run=True))
        return [
            f"{counted(made.tables, 'table')}, {counted(made.parts, 'part')}, {format_size(made.bytes)}",
            f"to send: {format_size(made.new_bytes)} that the repository lacks",
        ]

    def run(store: Store) -> str:
        from backup.create.request import CreateRequest

        with repository_of(store) as repository:
            made = repository.create(store, CreateRequest())
        return f"Backup {made.name}: {counted(made.parts, 'part')}, {format_size(made.new_bytes)} sent."

    return Action(title="Make a backup", commands=(("backup", "create"),), preview=preview, run=run)


def verify_backup(name: str, backup_id: str) -> Action:
    """`backup verify NAME`. What is found is kept."""

    def run(store: Store) -> str:
        from backup.verify.verify import VerifyRequest

        with repository_of(store) as repository:
            found = repository.verify(backup_id, VerifyRequest(actor=store.context.actor))
        problems = [problem for result in found for problem in result.problems]
        if problems:
            return f"Backup {name} is DAMAGED, {counted(len(problems), 'problem')}: {problems[0].text}"
        return f"Backup {name} is whole: {counted(sum(result.files for result in found), 'file')}."

    return Action(title=f"Verify backup {name}", commands=(("backup", "verify", backup_id),), run=run)


def names_beside(tables: Iterable[str], store: Store) -> tuple[str, ...]:
    """`--map-table` of the backup's tables whose names are taken: each comes back beside the one that is there."""
    taken = {definition.full_name for definition in store.definitions()}
    found: list[str] = []
    for table in tables:
        if table in taken:
            names = (f"{table}_restored", *(f"{table}_restored_{number}" for number in range(2, len(taken) + 2)))
            found.append(f"{table}:{next(name for name in names if name not in taken)}")
    return tuple(found)


def restore_backup(name: str, backup_id: str, beside: Sequence[str] = ()) -> Action:
    """`backup restore NAME`; `beside` has its `--map-table`."""
    from backup.recover.request import Renaming, RestoreRequest

    request = RestoreRequest(name=backup_id, renamings=tuple(map(Renaming.parse, beside)))

    def preview(store: Store) -> Lines:
        with repository_of(store) as repository:
            result = repository.restore(store, replace(request, dry_run=True))
        lines = [
            f"{item.table}: {counted(item.rows, 'row')}, {counted(item.parts, 'part')}, {format_size(item.bytes)}"
            for item in result.tables
        ]
        return [*lines, *(f"note: {note}" for note in result.notes)]

    def run(store: Store) -> str:
        with repository_of(store) as repository:
            result = repository.restore(store, request)
        return f"Restored {counted(len(result.tables), 'table')} from backup {name}."

    return Action(
        title=f"Restore backup {name}",
        commands=(("backup", "restore", backup_id, *(word for one in beside for word in ("--map-table", one))),),
        preview=preview,
        run=run,
        name=name,
    )
