"""`log`, `diff`, `blame`, `undo`: what happened on an object disk, who did it, and how to take it back."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import NotFound, UsageError
from tiering.cli.frame.output import Cell, counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb
from tiering.config.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from disks.contracts.bucket_disk import LoggedDisk

DiskName = Annotated[str, typer.Argument(metavar="DISK", help="an object disk")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app)(log)
    verb(app)(diff)
    verb(app)(blame)
    verb(app, changes=True)(undo)


def log(
    session: Session,
    target: Annotated[str, typer.Argument(metavar="DISK|DB.TABLE", help="an object disk, or a table")],
    since: Annotated[int, typer.Option(metavar="REV", help="after this revision")] = 0,
    until: Annotated[int | None, typer.Option(metavar="REV", help="up to this revision")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="at most N, newest first", min=0)] = None,
) -> None:
    """Show the operations log of a bucket: what changed, when, why and by which machine."""
    from restore.history.documents import log_row

    store = session.store()
    if "." not in target:
        disk, directory = store.object_disk(target), None
    else:
        disk, directory = _disk_of_table(session, target)
    with _reading(session) as reading:
        commits = disk.commits(reading)
        found = (
            commits.between(since, until, limit)
            if directory is None
            else commits.touching(directory, since, until, limit)
        )
        listed = [entry.commit for entry in found]
    documents = [log_row(commit) for commit in listed]
    if session.options.json:
        session.output.document({"disk": disk.name, "entries": documents})
        return
    session.output.table(
        ["revision", "time", "kind", "operations", "size", "actor", "reason"],
        [
            (
                commit.revision,
                f"{commit.time:%Y-%m-%d %H:%M:%S}",
                commit.kind.word,
                len(commit.operations),
                format_size(commit.size_bytes),
                commit.actor,
                commit.reason,
            )
            for commit in listed
        ],
        empty="No entries.",
    )


def diff(
    session: Session,
    disk: DiskName,
    before: Annotated[int, typer.Argument(metavar="REV", help="the older revision; 0 is the empty disk")],
    after: Annotated[int, typer.Argument(metavar="REV", help="the newer revision")],
    table: Annotated[str | None, typer.Option(metavar="T", help="only this table")] = None,
    files: Annotated[bool, typer.Option("--files", help="list the files too")] = False,
) -> None:
    """Show which tables, parts and files differ between two revisions, and the commits that changed them."""
    from restore.history.diff import diff as compare
    from restore.history.documents import diff_document, diff_lines

    chosen = session.store().object_disk(disk)
    with _reading(session) as reading:
        scope = _directory(session, chosen, table) if table is not None else None
        found = compare(chosen, before, after, scope=scope, paths=files, progress=session.progress(), reading=reading)
    if session.options.json:
        session.output.document(diff_document(found, files=files))
        return
    for line in diff_lines(found, files=files):
        session.output.line(line)
    if found.empty:
        session.nothing_to_do("The two revisions do not differ.")


def blame(
    session: Session,
    table: Annotated[str, typer.Argument(metavar="DB.TABLE", help="a table; may be dropped")],
    part: Annotated[str, typer.Argument(metavar="PART", help="a part; may be gone")],
) -> None:
    """Show the history of a part: insert, moves, merges, restores and drops, and its source parts."""
    from msgspec.structs import asdict

    from restore.history.blame import blame as inquire

    store = session.store()
    with _reading(session) as reading:
        found = inquire(store.context, table, part, reading=reading)
    if session.options.json:
        session.output.document(asdict(found))
        return
    where = f"on disk {found.disk}" if found.disk else "gone"
    into = f"; its rows are in part {found.merged_into}" if found.merged_into else ""
    session.output.line(f"part {found.part} of {found.table}: {where}{into}")
    rows: list[tuple[Cell, ...]] = [
        (
            f"{deed.time:%Y-%m-%d %H:%M:%S}",
            deed.part,
            deed.what,
            deed.disk or "-",
            deed.revision if deed.revision is not None else "-",
            deed.actor or "-",
            deed.reason or "-",
        )
        for deed in found.deeds
    ]
    session.output.table(["time", "part", "what", "disk", "revision", "actor", "reason"], rows)
    if found.left_out:
        session.output.note(f"{counted(found.left_out, 'part')} more went into it and are not shown.")


def undo(
    session: Session,
    disk: DiskName,
    revision: Annotated[int, typer.Argument(metavar="REV", help="the revision to reverse")],
) -> None:
    """Reverse one commit with a new one.

    Refused (exit 13) if later commits depend on it, rows would be lost or duplicated, or the data is gone.
    """
    from restore.history.documents import undo_document, undo_lines
    from restore.history.undo import preview, read_change
    from restore.history.undo import undo as reverse

    store = session.store()
    chosen = store.object_disk(disk)
    with session.progress().task(f"reading what revision {revision} changed"):
        change = read_change(chosen, revision)
        planned = preview(store.context, chosen, revision, change=change)
    done = None
    if not planned.done:
        if not session.options.json:
            for line in undo_lines(planned):
                session.output.line(line)
        if not planned.objections:
            session.confirm(f"Undo revision {revision} of disk {disk}?")
        if planned.objections or not session.dry_run:
            planned, done = reverse(store.context, chosen, revision, change=change)
    if session.options.json:
        session.output.document(undo_document(planned, done, dry_run=session.dry_run))
    elif done is not None:
        back = "" if planned.tables_back else f" 'frostline undo {disk} {done}' takes that back."
        session.output.line(f"Undone by revision {done}.{back}")
    elif not planned.done:
        session.output.line("Dry run: nothing was changed.")
    if planned.done:
        session.nothing_to_do(planned.done)


# Tables by name


def _disk_of_table(session: Session, table: str) -> "tuple[LoggedDisk, str]":
    """The first disk with a log in the table's policy, and the table's directory. A dropped table is found in the logs
    of all disks."""
    store = session.store()
    try:
        definition = store.definition(table)
    except NotFound:
        return _dropped(session, table)
    known = {disk.name: disk for disk in store.object_disks()}
    for name in store.context.catalog.policy_disks(definition):
        if name in known:
            return known[name], definition.directory
    raise UsageError(f"no disk of {table} has an operations log", hint="its policy has local disks only")


def _dropped(session: Session, table: str) -> "tuple[LoggedDisk, str]":
    from restore.history.blame import identities

    store = session.store()
    missing = NotFound(f"no table {table}", hint="'frostline table list' lists them; no disk has a log of dropped ones")
    for disk in store.object_disks():
        try:
            found = next(identities(store.context, {disk.name: disk.commits()}, table))
        except NotFound as error:
            missing = error
        else:
            session.output.note(f"Table {table} was dropped.")
            return disk, found.directory
    raise missing


def _directory(session: Session, disk: "LoggedDisk", table: str) -> str:
    from restore.history.blame import identities

    return next(identities(session.store().context, {disk.name: disk.commits()}, table)).directory


@contextmanager
def _reading(session: Session) -> "Iterator[Callable[[int], None]]":
    """Progress of entries that have to be read to complete the index: only then is it shown."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        task: Any = None

        def reading(count: int) -> None:
            nonlocal task
            if task is None:
                task = stack.enter_context(session.progress().task("reading the log"))
            task.advance(items=count)

        yield reading
