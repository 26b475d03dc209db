"""`backup init`, `create`, `delete`."""

from typing import Annotated, Any, Literal

import typer

from backup.verbs.options import Partitions, Tables, To, opened
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session


def init(
    session: Session,
    repository: Annotated[
        str | None, typer.Argument(metavar="REPO", help="file:///path or s3://bucket/prefix, empty so far")
    ] = None,
) -> None:
    """Make a place for backups: an empty directory or prefix, apart from every disk."""
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
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="else the time")] = None,
    to: To = None,
    table: Tables = None,
    partition: Partitions = None,
    cold: Annotated[
        Literal["pin", "copy"],
        typer.Option(help="cold data: copy it into the repository, or pin it where it is (no byte moves)"),
    ] = "copy",
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="T", help="a word to keep with it")] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="though a table has no parts and had some in the backup before")
    ] = False,
) -> None:
    """Back up tables as of one instant: schema, rules, policies, pins, and every part on every disk.

    Every backup is complete by itself, and sends only what the repository lacks: a part that moved from the SSD to a
    bucket is not new. Inserts, merges and moves go on meanwhile. Every byte is hashed as it is sent; a damaged part
    fails the backup and is named. Killed on the way, it is run again and sends nothing twice.

    With --cold pin what lies in a bucket stays there, kept by a pin in that bucket: such a backup needs the bucket.
    """
    from backup.create.request import CreateRequest
    from backup.scope import scope_of
    from oplog.errors import PartlyDone

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
            session.output.document(made.document())
        else:
            _print_created(session, made.document(), repository.name)
    if made.left_out:
        named = ", ".join(table.table for table in made.left_out)
        raise PartlyDone(
            f"backup {made.name} lacks {named}: {made.left_out[0].why}",
            hint="'frostline doctor' says how the table can be read again; then back it up",
        )


def _print_created(session: Session, made: dict[str, Any], where: str) -> None:
    from tiering.config.units import format_size

    line, done = session.output.line, not made["dry_run"]
    tables, parts, files = (
        counted(made["tables"], "table"),
        counted(made["parts"], "part"),
        counted(made["files"], "file"),
    )
    line(f"backup {made['name']}: {tables}, {parts}, {files}, {format_size(made['bytes'])}")
    line(f"  {'sent     ' if done else 'to send  '}  {format_size(made['new_bytes'])} that {where} lacked")
    if made["copied_server_side"]:
        line(f"  of that    {format_size(made['copied_server_side'])} copied inside the store")
    if made["pinned"]:
        line(f"  pinned     {format_size(made['pinned'])} that stay where they are")
    for table in made["left_out"]:
        line(f"  LACKS      {table['table']}, which cannot be read")
    for other in made["not_held"]:
        line(f"  NOT HELD   what {other['owner']} has of {other['table']} on disks of its own")
    line(f"Made in {made['seconds']:.1f} s." if done else "A preview: nothing was sent.")


def delete(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="a backup, or its id")],
    to: To = None,
) -> None:
    """Delete a backup, or what is left of one that was never completed. What only it held stays until a prune."""
    store = session.store()
    with opened(session, to) as repository:
        session.confirm(f"Delete backup {name} from {repository.name}? It cannot be restored any more.")
        found = [header.id for header in repository.find(name)] if session.dry_run else repository.delete(name, store)
    if session.options.json:
        session.output.document({"name": name, "deleted": found, "dry_run": session.dry_run})
        return
    session.output.line(f"backup {name}: {'to be deleted' if session.dry_run else 'deleted'}, {', '.join(found)}")
