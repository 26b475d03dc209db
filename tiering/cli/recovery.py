"""`log` and `restore`: the past of an object disk, and the way back to it."""

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
    from oplog.entry import Commit


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app)(log)
    verb(app, changes=True)(restore)


def log(
    session: Session,
    target: Annotated[str, typer.Argument(metavar="DISK|DB.TABLE", help="an object disk, or a table")],
    since: Annotated[int, typer.Option(metavar="REV", help="only after this revision")] = 0,
    until: Annotated[int | None, typer.Option(metavar="REV", help="only up to this revision")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="the newest so many")] = None,
) -> None:
    """Show the operations log of a bucket: who changed what, when and why."""
    disk, directory = _log_target(session, target)
    commits = [
        entry.commit
        for entry in disk.entries(since=since, until=until, limit=limit if directory is None else None)
        if directory is None or _touches(entry.commit, directory)
    ]
    if directory is not None and limit is not None:
        commits = commits[-limit:] if limit else []
    documents = [
        {
            "revision": commit.revision,
            "time": commit.time,
            "kind": commit.kind,
            "actor": commit.actor,
            "reason": commit.reason,
            "operations": len(commit.operations),
            "bytes": commit.size_bytes,
        }
        for commit in commits
    ]
    if session.options.json:
        session.output.document({"disk": disk.name, "entries": documents})
        return
    from tiering.units import format_size

    session.output.table(
        ["revision", "time", "kind", "operations", "size", "actor", "reason"],
        [
            (
                commit.revision,
                f"{commit.time:%Y-%m-%d %H:%M:%S}",
                commit.kind,
                len(commit.operations),
                format_size(commit.size_bytes),
                commit.actor,
                commit.reason,
            )
            for commit in commits
        ],
        empty="No entries.",
    )


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


def _log_target(session: Session, target: str) -> "tuple[ObjectDisk, str | None]":
    store = session.store()
    if "." not in target:
        return store.object_disk(target), None
    definition = store.definition(target)
    known = {disk.name: disk for disk in store.object_disks()}
    for name in store.context.catalog.policy_disks(definition):
        if name in known:
            return known[name], definition.directory
    raise UsageError(f"no disk of {target} has an operations log", hint="its policy has local disks only")


def _touches(commit: "Commit", directory: str) -> bool:
    names = (
        getattr(operation, attribute, "")
        for operation in commit.operations
        for attribute in ("path", "source", "target")
    )
    return any(name == directory or name.startswith(f"{directory}/") for name in names)


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
