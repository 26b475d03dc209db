"""`query`, `parts`, `disks`, `policies`."""

from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer

from oplog.errors import PartlyDone, UsageError
from tiering.catalog.freshness import Freshness
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb
from tiering.config.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiering.catalog.rows import PartRow
    from tiering.cli.frame.output import Cell
    from tiering.engine.store import Store

OptionalTable = Annotated[str | None, typer.Argument(metavar="DB.TABLE", help="only this table")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app)(query)
    verb(app)(parts)
    verb(app)(disks)
    verb(app)(policies)


def query(
    session: Session,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="a SELECT over DB.TABLE")],
    output_format: Annotated[str, typer.Option(metavar="FORMAT", help="table, csv, json or parquet")] = "table",
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="write to FILE")] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="[DISK:]N", help="read the buckets as of this revision")
    ] = None,
    sequential: Annotated[
        bool, typer.Option("--sequential", help="replicated: include every earlier quorum insert")
    ] = False,
    allow_files: Annotated[
        bool, typer.Option("--allow-files", help="allow read_csv('F'), read_parquet and read_json")
    ] = False,
) -> None:
    """Run read-only SQL over all tiers. system.* tables describe the store.

    Exit 3: a part is unreadable and left out. Exit 5: with --sequential, a quorum insert cannot be fetched now.
    """
    from tiering.cli.reports import query as query_output

    chosen = query_output.choose(output_format, json=session.options.json, to_file=output is not None)
    if sequential and revision is not None:
        raise UsageError("--sequential and --revision exclude each other", hint="use one of them")
    disk, number = parse_revision(revision)
    from tiering.query.sql.engine import engine_ahead

    with engine_ahead():
        store = session.store(Freshness.CHANGES)
        result = store.query(  # broken parts are reported below, with exit code 3
            sql, revision=number, disk=disk, skip_broken=True, sequential=sequential, allow_files=allow_files
        )
        session.tell_set_aside(result.set_aside)
        if revision is None:
            query_output.tell_behind(session.output, store, sql)
        query_output.write(result, chosen, output, session.output, session.progress())
    _refuse_to_be_silent(store, sql)


def parse_revision(text: str | None) -> tuple[str | None, int | None]:
    """The disk, where one is named, and the number of `N` or `DISK:N`. Raises `UsageError`."""
    if text is None:
        return None, None
    disk, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdecimal()):
        raise UsageError(f"not a revision: {text!r}", hint="write 12, or s3:12 where several disks have a log")
    return disk or None, int(number)


def parts(
    session: Session,
    table: OptionalTable = None,
    partition: Annotated[str | None, typer.Option(metavar="P", help="only this partition")] = None,
    disk: Annotated[str | None, typer.Option(metavar="D", help="only this disk")] = None,
    all: Annotated[bool, typer.Option("--all", help="include outdated and duplicate parts")] = False,  # noqa: A002
) -> None:
    """List parts with their disk, size and time range."""
    from tiering.catalog.rows import timed_rows

    store = session.store(Freshness.CHANGES)
    if disk is not None:
        store.disk(disk)
    store.check_answer(table)
    session.tell_set_aside(store.set_aside(table))
    chosen = [
        stored
        for stored in store.parts(table, partition=partition, include_outdated=all)
        if disk in (None, stored.disk)
    ]
    rows = list(timed_rows(chosen))
    if session.options.json:
        session.output.document({"parts": rows})
        return
    _print_parts(session, rows, with_table=table is None, with_state=all)


def disks(session: Session) -> None:
    """List disks with space, parts and revision."""
    from msgspec import UNSET

    from tiering.catalog.rows import disk_rows

    rows = [*disk_rows(session.store(Freshness.CHANGES).context)]
    for row in rows:
        if row.problem is not UNSET:
            session.output.note(f"disk {row.name}: {row.problem}")
    if session.options.json:
        session.output.document({"disks": rows})
        return
    size = _size_or_dash
    session.output.table(
        ["disk", "kind", "volume", "total", "free", "used", "parts", "revision", "state"],
        [
            (
                row.name,
                row.kind,
                row.volume,
                size(row.total_bytes),
                size(row.free_bytes),
                size(row.used_bytes),
                row.parts,
                row.revision,
                row.state,
            )
            for row in rows
        ],
    )


def policies(session: Session) -> None:
    """List storage policies and their volumes."""
    from tiering.facts.policies import PolicyRow

    config = session.loaded.config
    rows = [PolicyRow.of(name, policy) for name, policy in config.policies.items()]
    if session.options.json:
        session.output.document({"policies": rows})
        return
    cells = [
        (
            policy.name,
            volume.name,
            ", ".join(volume.disks),
            policy.move_factor,
            _size_or_dash(volume.max_data_part_size_bytes),
            "no" if volume.prefer_not_to_merge else "yes",
        )
        for policy in rows
        for volume in policy.volumes
    ]
    session.output.table(["policy", "volume", "disks", "move factor", "max part", "merges"], cells)


def _refuse_to_be_silent(store: "Store", sql: str) -> None:
    """Raise `PartlyDone` when the answer may lack rows, because a part's own record cannot be read (I15)."""
    tables = {table.directory: table.name.lower() for table in store.definitions()}
    for broken in store.context.catalog.broken:
        name = next((name for place, name in tables.items() if broken.path.startswith(f"{place}/")), None)
        if name is not None and name in sql.lower():
            raise PartlyDone(
                f"the answer leaves out a part that cannot be read: {broken.text}",
                hint=f"'frostline fsck {broken.disk}' names all that is damaged",
            )


def _print_parts(session: Session, parts: "list[PartRow]", *, with_table: bool, with_state: bool) -> None:
    columns = ["part", "disk", "volume", "rows", "size", "level", "from", "to", "revision"]
    columns = (["table"] if with_table else []) + columns + (["state"] if with_state else [])
    shown: dict[str, Callable[[PartRow], Cell]] = {
        "size": lambda row: format_size(row.bytes),
        "rows": lambda row: f"{row.rows:,}",
        "from": lambda row: _minute(row.min_time),
        "to": lambda row: _minute(row.max_time),
    }
    by_column = [[*map(shown.get(column) or attrgetter(column), parts)] for column in columns]
    rows = list(zip(*by_column, strict=True))
    session.output.table(columns, rows, empty="No parts.")
    if rows:
        count, total = sum(row.rows for row in parts), sum(row.bytes for row in parts)
        session.output.note(f"{counted(len(rows), 'part')}, {counted(count, 'row')}, {format_size(total)}")


def _minute(moment: str | None) -> str:
    return str(moment or "")[:16].replace("T", " ")


def _size_or_dash(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_size(size_bytes)
