"""`insert`: rows of files, or of an SQL query, into a table."""

from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from oplog.errors import UsageError
from tiering.catalog.freshness import Freshness
from tiering.cli.commands.tables import TableName
from tiering.cli.frame import process
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb
from tiering.config.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from tiering.engine.replication import Quorum
    from tiering.engine.store import Store
    from tiering.facts.inserts import InsertDocument
    from tiering.insert.bad_rows import BadRows
    from tiering.insert.inputs.source_files import InputSource
    from tiering.insert.reshaping import Reshaping


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app, changes=True)(insert)


class InsertOptions(NamedTuple):
    """What a user can say of an insert."""

    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="files, s3://bucket/key, globs, https://…; '-': stdin"),
    ] = None
    format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="parquet, csv, json, arrow or orc; default: from the file name")
    ] = None
    select: Annotated[
        str | None,
        typer.Option(metavar="'A,B.C as D'", help="columns and struct fields; without files: an SQL query"),
    ] = None
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename-column", "--rename", metavar="A:B", help="insert column A as B; repeatable"),
    ] = None
    ignore_unknown: Annotated[bool, typer.Option("--ignore-unknown", help="skip columns the table does not have")] = (
        False
    )
    flatten: Annotated[bool, typer.Option("--flatten", help="turn struct fields into columns such as user.name")] = (
        False
    )
    default: Annotated[
        list[str] | None,
        typer.Option(metavar="C=V", help="value for missing or null input; repeatable"),
    ] = None
    null: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="the text that means null in CSV; repeatable"),
    ] = None
    skip_bad_rows: Annotated[
        tuple[int, str] | None,
        typer.Option(metavar="N FILE", help="write up to N bad rows to FILE; more: exit 8"),
    ] = None
    no_hive: Annotated[
        bool, typer.Option("--no-hive", help="do not read columns from directories such as region=eu")
    ] = False
    dedup_by: Annotated[
        Literal["block", "file", "none"],
        typer.Option(help="file: deduplicate each file on its own; none: allow duplicates"),
    ] = "block"
    quorum: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="wait until N replicas have the rows; auto: a majority"),
    ] = None
    quorum_timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="how long to wait for the quorum (exit 5 on timeout)")
    ] = "60s"
    replace_partitions: Annotated[
        bool,
        typer.Option(
            "--replace-partitions",
            help="replace the partitions the rows belong to",
        ),
    ] = False


def insert(session: Session, table: TableName, options: InsertOptions) -> None:
    """Insert files, or the rows of an SQL query, into a table.

    Repeating an insert skips parts that exist and counts them as duplicates. Compressed files are read directly.
    Exit 5: the quorum was not reached. Exit 13: a partition to replace has changed or is on several disks.
    """
    from tiering.cli.reports.inserts import report_inserted

    quorum = _checked(options)
    inserted = _run(session, table, options, quorum)
    report_inserted(session, inserted, bad_rows_file=options.skip_bad_rows[1] if options.skip_bad_rows else "")


def _checked(options: InsertOptions) -> "Quorum | None":
    """The quorum to wait for. Raises `UsageError` for options that do not go together."""
    from tiering.engine.replication import Quorum

    files, dedup_by, replaces = options.files, options.dedup_by, options.replace_partitions
    if not files and (options.select is None or options.format or options.skip_bad_rows):
        raise UsageError("no file is named", hint="name files, or write --select 'SELECT … FROM db.table' alone")
    if replaces and options.quorum is not None:
        raise UsageError("--quorum is for replicated tables, whose partitions --replace-partitions cannot replace")
    if dedup_by != "block" and (replaces or (dedup_by == "file" and not files)):
        why = "the inserted rows replace themselves" if replaces else "no file is named"
        raise UsageError(f"--dedup-by {dedup_by} has no effect here: {why}", hint="leave it out")
    timeout_seconds = parse_duration(options.quorum_timeout).total_seconds()  # wrong without --quorum, too
    return Quorum.parse(options.quorum, timeout_seconds) if options.quorum is not None else None


def _run(session: Session, table: str, options: InsertOptions, quorum: "Quorum | None") -> "InsertDocument":
    from msgspec.structs import replace

    from tiering.facts.inserts import InsertDocument
    from tiering.insert.reshaping import parse_reshaping

    process.keep_freed_blocks()
    session.require_configured()
    store = session.store(Freshness.LAST_ANSWER if options.files else Freshness.EVERY_FILE)
    handle = store.table(table)
    # Before the rows are read: SQL may read the table.
    begun = handle.begin_replacing() if options.replace_partitions else None
    reshaping = parse_reshaping(
        handle.definition,
        select=options.select if options.files else None,
        rename=options.rename or (),
        ignore_unknown=options.ignore_unknown,
        default=options.default or (),
        flatten=options.flatten,
        null=options.null,
        hive=not options.no_hive,
    )
    with _rows(session, store, options, reshaping) as (streams, bad):
        batches = chain.from_iterable(streams)
        if begun is not None:
            written = handle.replace_partitions(batches, begun=begun, dry_run=session.dry_run)
            inserted = InsertDocument.of_replaced(table, written, dry_run=session.dry_run)
        elif session.dry_run:
            inserted = InsertDocument(table=table, rows=sum(batch.num_rows for batch in batches), dry_run=True)
        else:
            each = streams if options.dedup_by == "file" else [batches]
            result = handle.insert_each(each, quorum=quorum, again=options.dedup_by == "none")
            inserted = replace(InsertDocument.of(result, dry_run=False), table=table)
    return inserted if bad is None else replace(inserted, bad_rows=bad.count)


@contextmanager
def _rows(
    session: Session, store: "Store", options: InsertOptions, reshaping: "Reshaping"
) -> "Iterator[tuple[Iterator[Iterable[pa.RecordBatch]], BadRows | None]]":
    """The batches to insert, those of each file apart, and where bad rows go."""
    from tiering.insert.inputs.source_files import find_sources
    from tiering.insert.inputs.sources import read_each, total_bytes, typed_rows

    if not options.files:
        answer = store.query(options.select or "")
        session.tell_set_aside(answer.set_aside)
        yield iter([typed_rows(answer.batches(), reshaping, label="the query")]), None
        return
    sources = find_sources(options.files, options.format, session.bucket_sources())
    size_bytes = total_bytes(sources)
    what = sources[0].label if len(sources) == 1 else counted(len(sources), "file")
    reading = store.context.progress.task(f"reading {what}", size_bytes=size_bytes) if size_bytes else nullcontext()
    skipping = _bad_rows(session, options.skip_bad_rows, sources) if options.skip_bad_rows else nullcontext()
    with skipping as bad, reading as task:
        yield read_each(sources, reshaping, bad=bad, task=task), bad


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
