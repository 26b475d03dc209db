"""`warmup`, `cache stats | drop`: what queries read of buckets, kept on a local disk."""

from typing import TYPE_CHECKING, Annotated

import typer

from tiering.cli.commands.tables import TableName
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import new_app, verb
from tiering.config.units import format_size

if TYPE_CHECKING:
    from tiering.facts.status import CacheStatus


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, changes=True)(warmup)
    group = new_app("Show and empty the read cache.")
    app.add_typer(group, name="cache")
    verb(group)(stats)
    verb(group, changes=True)(drop)


def warmup(
    session: Session,
    table: TableName,
    partition: Annotated[str | None, typer.Option(metavar="P", help="only this partition")] = None,
) -> None:
    """Load a table's data from buckets into the read cache."""
    from tiering.query.warmup import warm_up

    store = session.store()
    store.check_answer(table)
    session.tell_set_aside(store.set_aside(table))
    parts = [stored for stored in store.parts(table) if partition in (None, stored.name.partition)]
    done = warm_up(store.context, store.definition(table), parts, dry_run=session.dry_run)
    if session.options.json:
        session.output.document(
            {
                "table": table,
                "partition": partition,
                "files": done.files,
                "bytes": done.bytes,
                "fetched_bytes": done.fetched_bytes,
                "dry_run": session.dry_run,
            }
        )
    elif session.dry_run:
        session.output.line(f"Dry run: would read {counted(done.files, 'file')}, {format_size(done.bytes)}.")
    elif done.files:
        session.output.line(
            f"The cache has {counted(done.files, 'file')} of {table}, {format_size(done.bytes)}: "
            f"{format_size(done.fetched_bytes)} were read now."
        )
    if not done.files:
        session.nothing_to_do("None of it is in a bucket.")


def stats(session: Session) -> None:
    """Show the size and hit rate of the read cache."""
    from tiering.facts.status import cache_status
    from tiering.query.warmup import cache_of

    document = cache_status(cache_of(session.store().context))
    if session.options.json:
        session.output.document(document)
        return
    session.output.line(f"path           {document.path}")
    for line in cache_lines(document):
        session.output.line(line)


def drop(session: Session) -> None:
    """Empty the read cache and reset its statistics. Running queries continue."""
    from tiering.query.warmup import cache_of

    cache = cache_of(session.store().context)
    before = cache.figures()
    if not session.dry_run:
        cache.drop()
    if session.options.json:
        session.output.document({"files": before.files, "bytes": before.bytes, "dry_run": session.dry_run})
        return
    said = "Dry run: would drop" if session.dry_run else "Dropped"
    session.output.line(f"{said} {counted(before.files, 'file')}, {format_size(before.bytes)}.")


def cache_lines(document: "CacheStatus") -> list[str]:
    """The figures as `cache stats` and `status` show them."""
    rate = document.rate
    read = f"{format_size(document.hit_bytes)} here, {format_size(document.missed_bytes)} from buckets"
    return [
        f"read cache     {format_size(document.bytes)} of {format_size(document.max_bytes)} in "
        f"{counted(document.files, 'file')}, {format_size(document.again_bytes)} read more than once",
        f"cache read     {read}" + (f": {rate:.0%} hits" if rate is not None else ""),
    ]
