"""`insert`, `query`, `parts`, `disks`, `policies`."""

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oplog.errors import UsageError
from tiering.catalog.freshness import Freshness
from tiering.cli.commands.tables import TableName
from tiering.cli.frame import process
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb
from tiering.cli.reports.inserts import tell_replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiering.catalog.rows import PartRow
    from tiering.engine.store import Store
    from tiering.insert.bad_rows import BadRows
    from tiering.insert.inputs.source_files import InputSource

OptionalTable = Annotated[str | None, typer.Argument(metavar="DB.TABLE", help="only this table")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, changes=True)(insert)
    verb(app)(query)
    verb(app)(parts)
    verb(app)(disks)
    verb(app)(policies)


def insert(
    session: Session,
    table: TableName,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="files, s3://bucket/key, globs, https://…; '-': stdin"),
    ] = None,
    format: Annotated[  # noqa: A002  the flag is called so
        str | None, typer.Option(metavar="FORMAT", help="parquet, csv, json, arrow or orc; default: from the file name")
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(metavar="'A,B.C as D'", help="columns and struct fields; without files: an SQL query"),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename-column", "--rename", metavar="A:B", help="insert column A as B; repeatable"),
    ] = None,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="skip columns the table does not have")
    ] = False,
    flatten: Annotated[
        bool, typer.Option("--flatten", help="turn struct fields into columns such as user.name")
    ] = False,
    default: Annotated[
        list[str] | None,
        typer.Option(metavar="C=V", help="value for missing or null input; repeatable"),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="the text that means null in CSV; repeatable"),
    ] = None,
    skip_bad_rows: Annotated[
        tuple[int, str] | None,
        typer.Option(metavar="N FILE", help="write up to N bad rows to FILE; more: exit 8"),
    ] = None,
    no_hive: Annotated[
        bool, typer.Option("--no-hive", help="do not read columns from directories such as region=eu")
    ] = False,
    dedup_by: Annotated[
        Literal["block", "file", "none"],
        typer.Option(help="file: deduplicate each file on its own; none: allow duplicates"),
    ] = "block",
    quorum: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="wait until N replicas have the rows; auto: a majority"),
    ] = None,
    quorum_timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="how long to wait for the quorum (exit 5 on timeout)")
    ] = "60s",
    replace_partitions: Annotated[
        bool,
        typer.Option(
            "--replace-partitions",
            help="replace the partitions the rows belong to",
        ),
    ] = False,
) -> None:
    """Insert files, or the rows of an SQL query, into a table.

    Repeating an insert skips parts that exist and counts them as duplicates. Compressed files are read directly.
    Exit 5: the quorum was not reached. Exit 13: a partition to replace has changed or is on several disks.
    """
    from contextlib import nullcontext

    from msgspec.structs import replace

    from tiering.config.units import format_size, parse_duration
    from tiering.engine.replication import Quorum
    from tiering.facts.inserts import InsertDocument
    from tiering.insert.inputs.source_files import find_sources
    from tiering.insert.inputs.sources import read_each, total_bytes, typed_rows
    from tiering.insert.reshaping import parse_reshaping

    if not files and (select is None or format or skip_bad_rows):
        raise UsageError("no file is named", hint="name files, or write --select 'SELECT … FROM db.table' alone")
    if replace_partitions and quorum is not None:
        raise UsageError("--quorum is for replicated tables, whose partitions --replace-partitions cannot replace")
    if dedup_by != "block" and (replace_partitions or (dedup_by == "file" and not files)):
        why = "the inserted rows replace themselves" if replace_partitions else "no file is named"
        raise UsageError(f"--dedup-by {dedup_by} has no effect here: {why}", hint="leave it out")
    patience = parse_duration(quorum_timeout).total_seconds()  # wrong without --quorum, too
    wanted = Quorum.parse(quorum, patience) if quorum is not None else None
    process.keep_freed_blocks()
    store = session.store(Freshness.LAST_ANSWER if files else Freshness.EVERY_FILE)
    handle = store.table(table)
    begun = handle.begin_replacing() if replace_partitions else None  # before the rows are read: SQL may read the table
    reshaping = parse_reshaping(
        handle.definition,
        select=select if files else None,
        rename=rename or (),
        ignore_unknown=ignore_unknown,
        default=default or (),
        flatten=flatten,
        null=null,
        hive=not no_hive,
    )
    sources = find_sources(files, format, session.bucket_sources()) if files else []
    size_bytes = total_bytes(sources) if files else None
    what = sources[0].label if len(sources) == 1 else counted(len(sources), "file")
    bars = store.context.progress
    reading = bars.task(f"reading {what}", size_bytes=size_bytes) if size_bytes else nullcontext()
    with _bad_rows(session, skip_bad_rows, sources) if skip_bad_rows else nullcontext() as bad, reading as task:
        if files:
            streams = read_each(sources, reshaping, bad=bad, task=task)
        else:
            answer = store.query(select or "")
            session.tell_set_aside(answer.set_aside)
            streams = iter([typed_rows(answer.batches(), reshaping, label="the query")])
        batches = chain.from_iterable(streams)
        if begun is not None:
            replaced = handle.replace_partitions(batches, begun=begun, dry_run=session.dry_run)
            document = InsertDocument.of_replaced(table, replaced, dry_run=session.dry_run)
        elif session.dry_run:
            rows = sum(batch.num_rows for batch in batches)
            document = InsertDocument(table=table, rows=rows, dry_run=True)
        else:
            each = streams if dedup_by == "file" else [batches]
            result = handle.insert_each(each, quorum=wanted, again=dedup_by == "none")
            document = replace(InsertDocument.of(result, dry_run=False), table=table)
    if skip_bad_rows and bad is not None:
        document = replace(document, bad_rows=bad.count)
        if bad.count:
            kept = "would be kept in" if session.dry_run else "kept in"
            session.output.note(f"{counted(bad.count, 'row')} could not be inserted, {kept} {skip_bad_rows[1]}")
    if session.options.json:
        session.output.document(document)
    elif session.dry_run:
        session.output.line(f"Dry run: would insert {counted(document.rows, 'row')} into {table}.")
        tell_replaced(session, document, "would replace")
    else:
        again = counted(document.duplicates, "part")
        skipped = f"; skipped {again} that an earlier insert wrote" if document.duplicates else ""
        session.output.report(
            f"Inserted {counted(document.rows, 'row')} into {table}: {counted(len(document.parts), 'part')},"
            f" {format_size(document.bytes)}{skipped}."
        )
        for name in document.parts:
            session.output.report(f"  {name}")
        tell_replaced(session, document, "replaced")
    if not document.rows:
        session.nothing_to_do("No new rows.")


def _bad_rows(session: Session, given: tuple[int, str], sources: "list[InputSource]") -> "BadRows":
    from pathlib import Path

    from tiering.insert.bad_rows import BadRows

    most, path = given
    if most < 0:
        raise UsageError(f"not a number of rows: {most}", hint="write --skip-bad-rows 100 bad.jsonl")
    paths = [Path(source.path) for source in sources]
    if Path(path).exists() and any(known.exists() and known.samefile(path) for known in paths):
        raise UsageError(f"{path} is an input file: bad rows would overwrite it", hint="name another file")
    return BadRows(most, None if session.dry_run else Path(path))


def query(
    session: Session,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="a SELECT over DB.TABLE")],
    output_format: Annotated[str, typer.Option(metavar="FORMAT", help="table, csv, json or parquet")] = "table",
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="write to FILE")] = None,
    revision: Annotated[str | None, typer.Option(metavar="[DISK:]N", help="read an object disk at a revision")] = None,
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
    disk, number = _revision(revision)
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


def _revision(text: str | None) -> tuple[str | None, int | None]:
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
    from tiering.catalog.rows import part_row

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
    rows = [part_row(stored) for stored in chosen]
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
    from oplog.errors import PartlyDone

    tables = {table.directory: table.name.lower() for table in store.definitions()}
    for broken in store.context.catalog.broken:
        name = next((name for place, name in tables.items() if broken.path.startswith(f"{place}/")), None)
        if name is not None and name in sql.lower():
            raise PartlyDone(
                f"the answer leaves out a part that cannot be read: {broken.text}",
                hint=f"'frostline fsck {broken.disk}' names all that is damaged",
            )


def _print_parts(session: Session, parts: "list[PartRow]", *, with_table: bool, with_state: bool) -> None:
    from tiering.config.units import format_size

    columns = ["part", "disk", "volume", "rows", "size", "from", "to", "revision"]
    columns = (["table"] if with_table else []) + columns + (["state"] if with_state else [])
    shown: dict[str, Callable[[PartRow], str]] = {
        "size": lambda row: format_size(row.bytes),
        "rows": lambda row: f"{row.rows:,}",
        "from": lambda row: _minute(row.min_time),
        "to": lambda row: _minute(row.max_time),
    }
    rows = [[shown[column](row) if column in shown else getattr(row, column) for column in columns] for row in parts]
    session.output.table(columns, rows, empty="No parts.")
    if rows:
        count, total = sum(row.rows for row in parts), sum(row.bytes for row in parts)
        session.output.note(f"{counted(len(rows), 'part')}, {counted(count, 'row')}, {format_size(total)}")


def _minute(moment: str | None) -> str:
    return str(moment or "")[:16].replace("T", " ")


def _size_or_dash(size_bytes: int | None) -> str:
    from tiering.config.units import format_size

    return "-" if size_bytes is None else format_size(size_bytes)
