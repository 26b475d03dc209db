"""`restore`: an object disk from its bucket, as it is or as it was."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import NotFound, UsageError
from tiering.cli.output import counted
from tiering.cli.session import Session, actor
from tiering.cli.verb import verb

if TYPE_CHECKING:
    from datetime import datetime

    from disks.object_disk import ObjectDisk


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, changes=True)(restore)


def restore(
    session: Session,
    disk: Annotated[str, typer.Argument(metavar="DISK", help="an object disk")],
    revision: Annotated[int | None, typer.Option(metavar="N", help="as it was at this revision")] = None,
    time: Annotated[str | None, typer.Option(metavar="T", help="as it was at this time")] = None,
    table: Annotated[list[str] | None, typer.Option(metavar="T", help="only this table; may be repeated")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="do it; without it this is a preview")] = False,
) -> None:
    """Rebuild a disk from its bucket, or put it back to an older revision.

    A preview unless --apply. Without --revision and --time it rebuilds the local metadata from the bucket, which loses
    nothing and asks nothing. With them the disk is put back: a new revision makes it as it was then, the newer ones
    stay in the log. Where that takes files away, the question needs a yes.

    Exit 4: objects are missing from the bucket.
    """
    from restore.rebuild import restore as restore_disk
    from tiering.units import parse_time

    if revision is not None and time is not None:
        raise UsageError("say either --revision or --time")
    moment = parse_time(time) if time else None
    if _has_clickhouse_log(session, disk):
        _restore_clickhouse(session, disk, revision, time, table, apply=apply and not session.dry_run)
        return
    chosen = session.object_disk(disk)
    scope = _directories(chosen, table, revision, moment) if table else None
    if apply and (revision is not None or moment is not None):
        preview = restore_disk(chosen, revision=revision, time=moment, scope=scope)
        if removed := preview.removed:
            for note in preview.notes:
                session.output.note(f"WARNING: {note}")
            session.confirm(f"Put disk {disk} back to revision {preview.revision}? {counted(removed, 'file')} will go.")
    result = restore_disk(
        chosen,
        revision=revision,
        time=moment,
        scope=scope,
        apply=apply and not session.dry_run,
        actor=actor(),
        reason=f"restore {' '.join(table or ['everything'])}",
    )
    document = result.document()
    if session.options.json:
        session.output.document({**document, "dry_run": session.dry_run})
    else:
        _print_restore(session, document)
    if result.missing_objects:
        session.found_something()


def _has_clickhouse_log(session: Session, name: str) -> bool:
    config = session.loaded.config.disks.get(name)
    return config is not None and config.type == "object_disk" and config.log_format == 1


def _restore_clickhouse(
    session: Session, name: str, revision: int | None, time: str | None, table: list[str] | None, *, apply: bool
) -> None:
    from typing import cast

    from disks.clickhouse_disk import ClickHouseDisk
    from restore.clickhouse_rebuild import rebuild

    if time is not None or table:
        what = "--time" if time is not None else "--table"
        raise UsageError(f"disk {name} has ClickHouse's log, which knows no {what}", hint="say --revision, or nothing")
    disk = cast(ClickHouseDisk, session.disk(name))
    result = rebuild(disk, revision=revision, apply=apply, progress=session.progress())
    if session.options.json:
        session.output.document({**result.document(), "dry_run": session.dry_run})
    else:
        _print_restore(session, result.document())
    if result.missing_objects:
        session.found_something()


def _directories(disk: "ObjectDisk", tables: list[str], revision: int | None, moment: "datetime | None") -> list[str]:
    """Where the tables lie, by their names at that revision: a dropped table is found in the past."""
    from restore.rebuild import restore as restore_disk
    from tiering import schema

    wanted = restore_disk(disk, revision=revision, time=moment).revision
    directories: dict[str, str] = {}
    with closing(disk.table_at(wanted)) as past:
        for row in past.rows():
            if row.path.endswith(f"/{schema.TABLE_FILE}") and row.inline is not None:
                definition = schema.decode(row.inline, path=f"{disk.name}:{row.path}")
                directories[definition.full_name] = definition.directory
    for name in tables:
        if name not in directories:
            known = ", ".join(sorted(directories)) or "none"
            raise NotFound(
                f"No such table: {name} on disk {disk.name} at revision {wanted}", hint=f"there were: {known}"
            )
    return [directories[name] for name in tables]


def _print_restore(session: Session, document: dict[str, Any]) -> None:
    from tiering.units import format_size

    line = session.output.line
    done = document["applied"]
    size = format_size(document["bytes"])
    line(f"disk {document['disk']} at revision {document['revision']}: {document['files']:,} files, {size}")
    line(f"  {'created  ' if done else 'to create'}  {document['created']:,}")
    line(f"  {'removed  ' if done else 'to remove'}  {document['removed']:,}")
    line(f"  unchanged  {document['unchanged']:,}")
    for item in document["missing_objects"]:
        line(f"  MISSING    {item['path']} (object {item['object']}, {format_size(item['bytes'])})")
    for note in document.get("notes", ()):
        line(f"  note       {note}")
    shown = ", ".join(f"{count} {verb}" for verb, count in document["requests"].items() if count)
    line(f"  requests   {shown or 'none'}, {document['seconds']:.2f} s")
    line("Restored." if done else "A preview: nothing was changed. Add --apply to do it.")
