"""`files`: what a table's data files are, for any program that reads Parquet."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from oplog.errors import Refused
from tiering.catalog.freshness import Freshness
from tiering.cli.commands.data import parse_revision
from tiering.cli.commands.tables import TableName
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb

if TYPE_CHECKING:
    from tiering.catalog.data_files import FilesDocument


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app)(files)


def files(
    session: Session,
    table: TableName,
    revision: Annotated[str | None, typer.Option(metavar="[DISK:]N", help="of an object disk at a revision")] = None,
    disk: Annotated[str | None, typer.Option(metavar="D", help="only this disk")] = None,
    urls: Annotated[bool, typer.Option("--urls", help="only the URLs, one per line")] = False,
) -> None:
    """List a table's Parquet files with URL and checksum, for other engines.

    Plain readers see rows that a merge has not dropped yet: replaced and expired ones.
    """
    from tiering.catalog.data_files import FilesDocument, files_of

    store = session.store(Freshness.CHANGES)
    if disk is not None:
        store.disk(disk)
    of_disk, number = parse_revision(revision)
    if number is None:
        store.check_answer(table)
        session.tell_set_aside(store.set_aside(table))
    with nullcontext(store.context) if number is None else store.past(number, of_disk) as context:
        definition = context.catalog.table(table)
        context.catalog.check_readable(definition)
        rows = [*files_of(context, context.catalog.parts(definition), disk=disk)]
    if urls and (hidden := [row for row in rows if row.url is None]):
        raise Refused(
            f"{counted(len(hidden), 'file')} of {table} cannot be opened by other engines, such as {hidden[0].file} of "
            f"part {hidden[0].part} on disk {hidden[0].disk}",
            hint="move these parts to a disk of type local or object_disk, or query them here",
        )
    _report(session, FilesDocument(definition.full_name, definition.schema_version, rows), urls=urls)


def _report(session: Session, document: "FilesDocument", *, urls: bool) -> None:
    from tiering.config.units import format_size

    rows, note = document.files, session.output.note
    if older := sum(row.schema_version != document.schema_version for row in rows):
        note(
            f"{counted(older, 'file')} older than the last change of columns: other names, other columns; "
            f"'frostline merge {document.table} --final' rewrites them"
        )
    if session.options.json:
        session.output.document(document)
        return
    if urls:
        for row in rows:
            session.output.line(row.url or "")
        return
    session.output.table(
        ["partition", "part", "rows", "bytes", "disk", "url", "sha256"],
        [(row.partition, row.part, row.rows, row.bytes, row.disk, row.url or "", row.sha256) for row in rows],
        empty="No files.",
    )
    if rows:
        count, size = sum(row.rows for row in rows), sum(row.bytes for row in rows)
        note(f"{counted(len(rows), 'file')}, {counted(count, 'row')}, {format_size(size)}")
