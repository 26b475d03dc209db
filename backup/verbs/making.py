"""`backup init`, `create`, `delete`."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from backup.verbs.options import Partitions, Tables, To, opened
from oplog.errors import PartlyDone
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.config.units import format_size

if TYPE_CHECKING:
    from backup.create.request import CreateResult


def init(
    session: Session,
    repository: Annotated[
        str | None, typer.Argument(metavar="REPO", help="an empty file:///path or s3://bucket/prefix")
    ] = None,
) -> None:
    """Create a backup repository in an empty directory or prefix, outside every disk."""
    from backup.repository import Repository
    from backup.repository_location import repository_config, repository_url

    config = session.loaded.config
    url = repository_url(config, repository)
    wanted = repository_config(config, url)
    if session.dry_run:
        session.output.line(f"{wanted.url} would become a backup repository.")
        if session.options.json:
            session.output.document({"repository": wanted.url, "id": None, "dry_run": True})
        return
    with Repository.init(url, config=config, limiter=session.limiter()) as made:
        if session.options.json:
            session.output.document({"repository": made.name, "id": made.storage.id, "dry_run": False})
        session.output.line(f"{made.name} is a backup repository now.")


def create(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="default: the current time")] = None,
    to: To = None,
    table: Tables = None,
    partition: Partitions = None,
    cold: Annotated[
        Literal["pin", "copy"],
        typer.Option(help="copy cold data, or pin it in its bucket"),
    ] = "copy",
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="T", help="label for 'backup prune --keep-tag'")
    ] = None,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="accept a table that lost all its parts")] = False,
) -> None:
    """Back up tables at one instant: definitions, rules, pins and all parts.

    Each backup is complete and sends only data the repository lacks. A damaged part fails the backup. Run an
    interrupted backup again to continue it.
    """
    from backup.create.request import CreateRequest
    from backup.scope import scope_of

    store = session.store()
    with opened(session, to) as repository:
        request = CreateRequest(
            name=name,
            scope=scope_of(table, partition),
            cold=cold,
            tags=tuple(tag or ()),
            allow_empty=allow_empty,
            dry_run=session.dry_run,
        )
        made = repository.create(store, request)
        if session.options.json:
            session.output.document(made)
        else:
            _print_created(session, made, repository.name)
    if made.left_out:
        named = ", ".join(table.table for table in made.left_out)
        raise PartlyDone(
            f"backup {made.name} lacks {named}: {made.left_out[0].why}",
            hint="'frostline doctor' shows how the table can be read again; then back it up",
        )


def _print_created(session: Session, made: "CreateResult", where: str) -> None:
    line, done = session.output.line, not made.dry_run
    tables, parts, files = (
        counted(made.tables, "table"),
        counted(made.parts, "part"),
        counted(made.files, "file"),
    )
    line(f"backup {made.name}: {tables}, {parts}, {files}, {format_size(made.bytes)}")
    line(f"  {'sent     ' if done else 'to send  '}  {format_size(made.new_bytes)} that {where} lacked")
    if made.copied_server_side:
        line(f"  of that    {format_size(made.copied_server_side)} copied inside the store")
    if made.pinned:
        line(f"  pinned     {format_size(made.pinned)} that stay where they are")
    for table in made.left_out:
        line(f"  LACKS      {table.table}, which cannot be read")
    for other in made.not_held:
        line(f"  NOT HELD   what {other.owner} has of {other.table} on disks of its own")
    line(f"Made in {made.seconds:.1f} s." if done else "A preview: nothing was sent.")


def delete(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="a backup, or its id")],
    to: To = None,
) -> None:
    """Delete a backup, or an incomplete one. 'backup prune' or 'backup gc' frees the space."""
    store = session.store()
    with opened(session, to) as repository:
        session.confirm(f"Delete backup {name} from {repository.name}? It cannot be restored any more.")
        found = [header.id for header in repository.find(name)] if session.dry_run else repository.delete(name, store)
    if session.options.json:
        session.output.document({"name": name, "deleted": found, "dry_run": session.dry_run})
        return
    session.output.line(f"backup {name}: {'to be deleted' if session.dry_run else 'deleted'}, {', '.join(found)}")
