"""`inbox run | status | retry`: files that land in a directory become rows."""

import threading
from typing import Annotated

import typer

from oplog.errors import FrostlineError, PartlyDone, UsageError
from tiering.cli.commands.daemon import stop_on_signals
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import new_app, verb
from tiering.config.units import format_size


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Insert files that arrive in a directory.")
    app.add_typer(group, name="inbox")
    verb(group, changes=True, instead_of_dry_run="'frostline inbox status' shows what waits")(run)
    verb(group)(status)
    verb(group, changes=True)(retry)


def run(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="take every complete file, then exit")] = False,
) -> None:
    """Insert the files that arrived in the inbox. The daemon does this on its own."""
    from tiering.daemon.inbox.inbox import Inbox
    from tiering.daemon.inbox.status import InboxFile, InboxProblem, InboxRun

    if not once:
        raise UsageError("use --once", hint="'frostline daemon run' inserts files as they arrive")
    stop = threading.Event()
    stop_on_signals(stop)
    settings = session.loaded.config.inbox
    inbox = Inbox(session.store(), settings, stop)
    with inbox.alone():
        done = inbox.once()
    problems = [InboxProblem(item.table, item.file, item.what) for item in done.problems]
    if session.options.json:
        files = [InboxFile(file.table, file.file, file.state, file.rows, file.error) for file in done.files]
        session.output.document(InboxRun(files, done.rows, done.parts, problems))
    else:
        for file in done.files:
            what = file.error or (counted(file.rows, "row") if file.state == "done" else "already inserted")
            session.output.line(f"{file.state:<9}  {file.table}/{file.file}: {what}")
        session.output.line(
            f"{counted(len(done.files), 'file')}, {counted(done.rows, 'row')} in {counted(len(done.parts), 'part')}."
        )
    for item in problems:
        session.output.note(f"left alone: {'/'.join(filter(None, (item.table, item.file)))}: {item.what}")
    failed = len(done.failed) + sum(not item.file for item in done.problems)
    if failed:
        error = PartlyDone if len(done.files) > len(done.failed) else FrostlineError
        raise error(
            f"{counted(failed, 'file or table', 'files or tables')} failed",
            hint="fix the files in failed/ and run 'frostline inbox retry'; the next run inserts those in .taken",
        )
    if not done.files:
        session.nothing_to_do("Nothing was whole.")


def status(session: Session) -> None:
    """Show waiting, failed and ignored files with reasons."""
    from tiering.daemon.inbox.inbox import root_of
    from tiering.daemon.inbox.status import inbox_status

    root = root_of(session.loaded.config.inbox)
    document = inbox_status(root, {definition.full_name for definition in session.store().definitions()})
    if session.options.json:
        session.output.document(document)
        return
    session.output.line(
        f"inbox    {root}, {'process ' + str(document.pid) if document.running else 'no process'} at work"
    )
    session.output.table(
        ["table", "waiting", "size", "taken", "done", "failed"],
        [
            (
                item.table,
                len(item.waiting),
                format_size(sum(file.bytes for file in item.waiting)),
                item.taken,
                item.done,
                len(item.failed),
            )
            for item in document.tables
        ],
        empty="No directory of a table.",
    )
    for item in document.tables:
        for file in item.failed:
            session.output.line(f"failed   {item.table}/{file.file}: {file.error}")
    for problem in document.problems:
        where = "/".join(filter(None, (problem.table, problem.file)))
        session.output.line(f"alone    {where}: {problem.what}")


def retry(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="DB.TABLE/FILE", help="as shown by 'inbox status'")],
) -> None:
    """Retry a failed file as if it had just arrived."""
    from tiering.daemon.inbox.inbox import root_of
    from tiering.daemon.inbox.table_inbox import TableInbox, tables_of

    table, _, name = file.partition("/")
    root = root_of(session.loaded.config.inbox)
    places = {place.name: place for place in tables_of(root)[0]}
    if not name:
        raise UsageError(f"not a file of the inbox: {file}", hint="write DB.TABLE/FILE")
    place = places.get(table, TableInbox(root, table))
    place.retry(name, dry_run=session.dry_run)
    if session.options.json:
        session.output.document({"table": table, "file": name, "dry_run": session.dry_run})
    else:
        session.output.line(f"{'Would wait' if session.dry_run else 'Waits'} again: {file}")
