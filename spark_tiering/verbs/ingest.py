"""`ingest`: many files into a table, by Spark."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import FrostlineError, UsageError
from tiering.cli.commands.tables import TableName
from tiering.cli.frame.output import counted
from tiering.cli.frame.remote_work import Master, SparkWork, wanted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb
from tiering.config.units import format_size, parse_size

if TYPE_CHECKING:
    from spark_tiering.running.spark_runner import SparkRunner
    from spark_tiering.writing.file_shares import IngestFile
    from tiering.engine.store import Store
    from tiering.engine.write_job import WriteResult
    from tiering.insert.reshaping import Reshaping

_BAD_VALUES = ("CAST_INVALID_INPUT", "Malformed", "another value in column")
"""How Spark calls a text that is no value of its column; and what a row is called that its file's path contradicts."""
_FILES_SHOWN = 3


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app, changes=True)(ingest)


def ingest(
    session: Session,
    table: TableName,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="files, globs or URLs")],
    format: Annotated[  # noqa: A002  the flag is called so
        str | None, typer.Option(metavar="FORMAT", help="parquet, csv, json or orc; default: from the file name")
    ] = None,
    select: Annotated[
        str | None, typer.Option(metavar="'A,B.C as D'", help="only these columns and struct fields")
    ] = None,
    no_hive: Annotated[
        bool, typer.Option("--no-hive", help="do not read columns from directories such as region=eu")
    ] = False,
    batch_bytes: Annotated[str, typer.Option("--batch-bytes", metavar="SIZE", help="input bytes per commit")] = "4GiB",
    take_changed: Annotated[bool, typer.Option("--take-changed", help="load changed files again, as new rows")] = False,
    spark: Annotated[bool, typer.Option("--spark", help="run on Spark (required)")] = False,
    master: Master = None,
) -> None:
    """Ingest many files into a table with Spark, each file once.

    Run an interrupted ingest again to continue it. Exit 13: a file has changed, or another ingest took it.
    """
    from functools import partial

    from spark_tiering.writing.ingest import batches_of, find_files, is_url, left_of
    from tiering.engine import write_job
    from tiering.insert.inputs.hive import path_columns
    from tiering.insert.reshaping import parse_reshaping
    from tiering.insert.uploaded.once_files import taken

    if not wanted(spark, master):
        raise UsageError("ingest is work for Spark", hint=f"add --spark, or 'frostline insert {table} FILE…'")
    store = session.store()
    definition = store.definition(table)
    reshaping = parse_reshaping(definition, select=select, hive=not no_hive)
    disk = write_job.target(store.context, definition, write_job.WriteOptions(table, by="ingest"))
    start = partial(SparkWork, session, f"ingest {table}", master)
    work = start() if any(map(is_url, files)) else None
    runner: Any = work.runner if work is not None else None
    found = find_files(files, format, runner.session if runner is not None else None)
    left = left_of(found, taken(disk, definition), takes_changed=take_changed, table=table)
    for file in left:
        path_columns(file.source, reshaping)
    batches = batches_of(left, parse_size(batch_bytes))
    document: dict[str, Any] = {
        "table": table,
        "files": len(left),
        "skipped": len(found) - len(left),
        "file_bytes": sum(file.size_bytes for file in left),
        "batches": len(batches),
    }
    done: list[WriteResult] = []
    if batches and not session.dry_run:  # what is done needs no Spark
        work = work or start()
        runner = work.runner
        done = _ingest(session, store, table, runner, batches, reshaping)
        work.report()
    else:
        document["spark"] = None
    document |= {
        "rows": sum(result.rows for result in done),
        "parts": [name for result in done for name in result.parts],
        "bytes": sum(result.bytes for result in done),
        "revisions": [result.revision for result in done if result.revision is not None],
        "dry_run": session.dry_run,
    }
    if session.options.json:
        session.output.document(document)
    else:
        known = f"; {counted(document['skipped'], 'file')} went in before" if document["skipped"] else ""
        what = f"{counted(len(left), 'file')} of {format_size(document['file_bytes'])}"
        if session.dry_run:
            session.output.line(f"Dry run: would take {what} into {table}, {counted(len(batches), 'commit')}{known}.")
        else:
            session.output.line(
                f"Took {what} into {table}: {counted(document['rows'], 'row')}, "
                f"{counted(len(document['parts']), 'part')}, {format_size(document['bytes'])}, "
                f"{counted(len(document['revisions']), 'commit')}{known}."
            )
    if not left:
        session.nothing_to_do("No new files.")


def _ingest(
    session: Session,
    store: "Store",
    table: str,
    runner: "SparkRunner",
    batches: "list[tuple[IngestFile, ...]]",
    reshaping: "Reshaping",
) -> "list[WriteResult]":
    """Each batch one commit. Raises for the first that fails, and says what went in before."""
    from functools import partial

    from spark_tiering.writing.ingest import ingest_session, parts_of, write_files
    from tiering.engine import write_job
    from tiering.insert.uploaded.once_files import OnceFiles

    own, done = ingest_session(runner.session), list[write_job.WriteResult]()
    size_bytes = sum(file.size_bytes for batch in batches for file in batch)
    progress, batch = session.progress(), batches[0] if batches else ()
    try:
        with progress.task(f"ingesting rows into {table}", size_bytes=size_bytes) as task:
            for batch in batches:
                options = write_job.WriteOptions(
                    table, once=OnceFiles(dict(file.fingerprint for file in batch)), by="ingest"
                )
                _, job = write_job.begin(store.context, options)
                if job is None:  # another ingest was first
                    continue
                written = own.sparkContext.accumulator(0)
                seen = 0

                def show() -> None:
                    nonlocal seen
                    task.advance(items=written.value - seen)  # noqa: B023  called while this batch is worked on
                    seen = written.value  # noqa: B023

                answers = runner.collect(
                    partial(
                        write_files,
                        own,
                        batch,
                        reshaping,
                        job,
                        written,
                        slots=runner.slots,
                        last_attempt=runner.last_attempt,
                    ),
                    title=f"ingesting into {table}",
                    show=show,
                    stop=store.context.stop,
                )
                done.append(write_job.commit(store.context, options, job, parts_of(answers)))
                task.advance(size_bytes=sum(file.size_bytes for file in batch))
    except FrostlineError as caught:
        error = caught
        if type(caught) is FrostlineError and any(word in caught.message for word in _BAD_VALUES):
            files = ", ".join(file.url.removeprefix("file:") for file in batch[:_FILES_SHOWN])
            more = f" and {len(batch) - _FILES_SHOWN} more" if len(batch) > _FILES_SHOWN else ""
            hint = f"it is in {files}{more}; 'frostline insert {table} FILE --dry-run' names its line and column"
            error = UsageError(caught.message, hint=hint)
        if done:
            rows = sum(result.rows for result in done)
            before = f"{counted(rows, 'row')} went in before by {counted(len(done), 'commit')}"
            error.message += f" ({before}; run it again to continue)"
            error.args = (error.message,)
        raise error from caught.__cause__
    return done
