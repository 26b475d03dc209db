"""`iceberg publish | unpublish | status | location`: tables that other engines read in place."""

from typing import TYPE_CHECKING, Annotated

import typer

from tiering.cli.commands.tables import TableName
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import new_app, verb

if TYPE_CHECKING:
    from datetime import datetime

    from tiering.table.schema import TableDefinition


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    group = new_app("Publish tables as Iceberg metadata, so that other engines read them in place.")
    app.add_typer(group, name="iceberg")
    verb(group, changes=True)(publish)
    verb(group, changes=True)(unpublish)
    verb(group)(status)
    verb(group)(location)


def publish(
    session: Session,
    table: TableName,
    without: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="leave this column out")] = None,
    rewrite: Annotated[bool, typer.Option("--anew", help="write all metadata again, from the log")] = False,
) -> None:
    """Publish what a table has in its bucket, and keep the publication up to date.

    Nothing is copied: the metadata names the objects that are there. Rows on local disks are not shown until they move.
    """
    from msgspec.structs import replace

    from tiering.iceberg.documents import PublishedDocument
    from tiering.iceberg.publication import Publication
    from tiering.table.schema import Publish

    store = session.store()
    definition = store.definition(table)
    left_out = definition.left_out if without is None else tuple(without)
    changed = replace(definition, publish=Publish(without=left_out))
    publication = Publication(store, changed)
    publication.check(changed)
    if not session.dry_run and changed != definition:
        definition = _alter(session, definition, changed)
        publication = Publication(store, definition)
    published = None if session.dry_run else publication.publish(rewrite=rewrite, look=True)
    document = PublishedDocument.of(publication, published or publication.newest(), dry_run=session.dry_run)
    if session.options.json:
        session.output.document(document)
    elif session.dry_run:
        session.output.line(f"Dry run: would publish {table} at {publication.url()}.")
    elif published is None:
        session.output.line(f"{table} is published already, up to revision {document.revision}: {document.location}")
    else:
        session.output.line(
            f"Published {table} at revision {document.revision}: {counted(document.rows, 'row')} in "
            f"{counted(document.files, 'file')}."
        )
        session.output.line(f"  {document.location}")
        if document.rows_elsewhere:
            until = f"; complete before {_when(document.complete_until)} UTC" if document.complete_until else ""
            session.output.line(f"  {counted(document.rows_elsewhere, 'row')} on other disks are not shown{until}.")


def unpublish(session: Session, table: TableName) -> None:
    """End a table's publication and remove its metadata. The table itself does not change."""
    from msgspec import UNSET
    from msgspec.structs import replace

    from tiering.iceberg.documents import UnpublishedDocument
    from tiering.iceberg.publication import Publication

    store = session.store()
    definition = store.definition(table)
    publication = Publication(store, definition)
    changed = replace(definition, publish=UNSET)
    objects = publication.objects()
    if changed == definition and not objects:
        session.nothing_to_do(f"{table} is not published.")
        return
    session.confirm(f"End the publication of {table} at {publication.url()}?")
    if not session.dry_run:
        if changed != definition:
            _alter(session, definition, changed)
        publication.remove()
    document = UnpublishedDocument(table=table, location=publication.url(), objects=objects, dry_run=session.dry_run)
    if session.options.json:
        session.output.document(document)
    else:
        ended = "Dry run: would end" if session.dry_run else "Ended"
        session.output.line(f"{ended} the publication of {table}: {counted(objects, 'object')} of metadata.")


def status(
    session: Session, table: Annotated[str | None, typer.Argument(metavar="TABLE", help="default: all")] = None
) -> None:
    """Show what is published, up to which revision, and what other engines do not see."""
    from tiering.iceberg.documents import PublishedDocument, StatusDocument
    from tiering.iceberg.publication import Publication

    store = session.store()
    definitions = [store.definition(table)] if table is not None else store.definitions()
    rows = []
    for definition in definitions:
        if table is not None or definition.is_published:
            publication = Publication(store, definition)
            rows.append(PublishedDocument.of(publication, publication.newest()))
    if session.options.json:
        session.output.document(StatusDocument(tables=rows))
        return
    session.output.table(
        ["table", "revision", "behind", "rows", "files", "not shown", "complete before", "snapshots", "state"],
        [
            (
                *(row.table, row.revision or "-", row.behind, row.rows, row.files, row.rows_elsewhere),
                *(_when(row.complete_until), row.snapshots, row.state),
            )
            for row in rows
        ],
        empty="No table is published: 'frostline iceberg publish TABLE' publishes one.",
    )


def location(session: Session, table: TableName) -> None:
    """Print the URL of a table's newest metadata, for engines that open it."""
    from oplog.errors import NotFound
    from tiering.iceberg.publication import Publication

    publication = Publication(session.store(), session.store().definition(table))
    newest = publication.newest()
    if newest is None:
        raise NotFound(f"{table} is not published", hint=f"'frostline iceberg publish {table}' publishes it")
    url = publication.metadata_url(newest.version)
    if session.options.json:
        session.output.document({"table": table, "location": publication.url(), "metadata": url})
    else:
        session.output.line(url)


def _alter(session: Session, old: "TableDefinition", new: "TableDefinition") -> "TableDefinition":
    from msgspec.structs import replace

    return session.store().alter_table(
        old, replace(new, version=old.version + 1), reason=f"publication of {old.full_name}"
    )


def _when(moment: "datetime | None") -> str:
    return f"{moment:%Y-%m-%d %H:%M}" if moment is not None else "-"
