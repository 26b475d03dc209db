"""`backup restore`."""

from typing import TYPE_CHECKING, Annotated

import typer

from backup.verbs.options import Partitions, Tables, To, opened
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.config.units import format_size

if TYPE_CHECKING:
    from backup.recover.request import RestoreRequest, RestoreResult
    from backup.repository import Repository


def restore(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="a backup, its id, or latest")],
    table: Tables = None,
    partition: Partitions = None,
    map_table: Annotated[
        list[str] | None,
        typer.Option(
            "--map-table",
            metavar="A:B",
            help="rename tables; globs ('db.*:other.*'); repeatable; restores only these without -t",
        ),
    ] = None,
    schema_only: Annotated[bool, typer.Option("--schema-only", help="restore definitions without rows")] = False,
    drop_existing: Annotated[
        bool, typer.Option("--drop-existing", help="replace existing tables of the same name")
    ] = False,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="P", help="policy for tables whose own is not configured")
    ] = None,
    to: To = None,
) -> None:
    """Restore tables from a backup, each with all its parts or not at all.

    Parts return to their disks, or to one of similar temperature. Run an interrupted restore again to continue it.
    """
    from backup.recover.request import Renaming, RestoreRequest
    from backup.scope import scope_of

    renamings = tuple(Renaming.parse(text) for text in map_table or ())
    request = RestoreRequest(
        name=name,
        scope=scope_of(table or [renaming.source for renaming in renamings], partition),
        renamings=renamings,
        schema_only=schema_only,
        drop_existing=drop_existing,
        policy=policy,
        dry_run=session.dry_run,
    )
    with opened(session, to) as repository:
        session.begin()  # onto a machine that has nothing, too
        store = session.store()
        if drop_existing:
            _confirm_drop(session, repository, request)
        result = repository.restore(store, request)
    if session.options.json:
        session.output.document(result.document)
    else:
        _print_restored(session, result)


def _confirm_drop(session: Session, repository: "Repository", request: "RestoreRequest") -> None:
    from msgspec.structs import replace

    preview = repository.restore(session.store(), replace(request, dry_run=True))
    known = {definition.full_name for definition in session.store().definitions()}
    to_delete = [table.table for table in preview.tables if table.table in known]
    if to_delete:
        session.confirm(f"Restore backup {preview.name}? {', '.join(to_delete)} will be dropped for it.")


def _print_restored(session: Session, result: "RestoreResult") -> None:
    line, done = session.output.line, not result.dry_run
    line(f"backup {result.name}: {counted(len(result.tables), 'table')} {'restored' if done else 'to restore'}")
    for item in result.tables:
        name = item.table if item.table == item.source else f"{item.table} (from {item.source})"
        where = ", ".join(f"{count} to {disk}" for disk, count in item.disks.items())
        size = format_size(item.bytes)
        counts = f"{counted(item.parts, 'part')}, {size}"
        if item.table != item.uuid:  # whose rows nobody here can count
            counts = f"{counted(item.rows, 'row')}, {counts}"
        line(f"  {name}: {counts}{': ' + where if where else ''}")
    for note in result.notes:
        line(f"  note: {note}")
    line(f"Restored in {result.seconds:.1f} s." if done else "A preview: nothing was changed.")
