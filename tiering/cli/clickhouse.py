"""`clickhouse …`: disks that a ClickHouse server wrote."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import UsageError
from tiering.cli.location import open_read_only
from tiering.cli.output import counted
from tiering.cli.session import Session
from tiering.cli.verb import new_app, verb

if TYPE_CHECKING:
    from restore.clickhouse_report import Report

_SHOWN = 20
"""Problems and files of one kind on a terminal; --json has all of them."""


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Disks of ClickHouse servers: look at their buckets.")
    app.add_typer(group, name="clickhouse")
    verb(group)(inspect)


def inspect(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="the disk's bucket and prefix: s3://bucket/prefix/")],
    revision: Annotated[int | None, typer.Option(metavar="N", help="as the disk was at this revision")] = None,
    files: Annotated[bool, typer.Option("--files", help="list every file with its objects")] = False,
) -> None:
    """Say what a bucket is, which tables it holds, and what is wrong with it. Writes nothing.

    Reads the listing, the metadata of every object up to the revision, and one small file of every part.

    Exit 4: something is wrong with it. Exit 10: there is nothing at the URL.
    """
    from restore.clickhouse_report import inspect as inspect_bucket

    if revision is not None and revision < 0:
        raise UsageError(f"a revision is not negative: {revision}")
    workers = session.options.workers
    with open_read_only(session, url) as store:
        report = inspect_bucket(store, revision=revision, workers=workers, progress=session.progress())
    if session.options.json:
        session.output.document(report.document(files=files))
    else:
        _print(session, report, files=files)
    if report.findings:
        session.found_something()


def _print(session: Session, report: "Report", *, files: bool) -> None:
    from tiering.units import format_size

    line = session.output.line
    line(f"{report.store}: {report.title}")
    for name, text in report.facts():
        line(f"  {name:<12} {text}")
    if report.tables:
        line()
        session.output.table(
            ["table", "active", "covered", "detached", "unfinished", "frozen", "files", "size"],
            [
                (table.uuid, *report.part_counts(table), table.files, format_size(table.size_bytes))
                for table in report.tables
            ],
        )
    if files:
        line()
        _print_files(session, report)
    if report.findings:
        line()
    by_kind: dict[str, list[Any]] = {}
    for finding in report.findings:
        by_kind.setdefault(finding.kind, []).append(finding)
    for kind, found in by_kind.items():
        for finding in found[:_SHOWN]:
            line(f"{kind}  {finding.what}")
        if len(found) > _SHOWN:
            line(f"{kind}  … and {len(found) - _SHOWN:,} more: --json lists them all")
    for note in report.notes:
        session.output.note(f"note: {note}")
    line()
    line("No problems." if not report.findings else f"{counted(len(report.findings), 'problem')}.")


def _print_files(session: Session, report: "Report") -> None:
    session.output.table(
        ["size", "links", "path", "object"],
        [
            (file.size_bytes, file.links, file.path, " + ".join(key for key, _ in file.blobs) or "(no object)")
            for file in report.files.values()
        ],
        empty="No files.",
    )
