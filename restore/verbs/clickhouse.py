"""`clickhouse …`: disks that a ClickHouse server wrote."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import UsageError
from restore.verbs import convert
from tiering.cli.frame.location import open_read_only
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import new_app, verb
from tiering.cli.frame.verb_table import verbs_of_clickhouse
from tiering.config.units import format_size

if TYPE_CHECKING:
    from disks.workers.parallel import Askers
    from restore.clickhouse.export import Exported
    from restore.clickhouse.rebuild import ImportResult
    from restore.clickhouse.report import Report

_SHOWN = 20
"""Problems and files of one kind on a terminal; --json has all of them."""


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Inspect, convert and exchange metadata with ClickHouse disks.")
    app.add_typer(group, name="clickhouse")
    verb(group)(inspect)
    verb(group, changes=True)(export)
    verb(group, "import", changes=True)(import_metadata)
    convert.register(group)
    verbs_of_clickhouse().register(group)


def inspect(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix/ of the disk")],
    revision: Annotated[int | None, typer.Option(metavar="N", help="state at this revision")] = None,
    files: Annotated[bool, typer.Option("--files", help="list files and their objects")] = False,
    attach: Annotated[bool, typer.Option("--attach", help="print ATTACH TABLE drafts")] = False,
) -> None:
    """Show what a ClickHouse bucket contains and what is wrong with it. Read-only.

    Exit 4: something is wrong. Exit 10: nothing is at the URL.
    """
    from restore.clickhouse.report import inspect as inspect_bucket

    if revision is not None and revision < 0:
        raise UsageError(f"a revision is not negative: {revision}")
    with open_read_only(session, url) as store:
        report = inspect_bucket(store, revision=revision, askers=_askers(session))
    if session.options.json:
        session.output.document(report.document(files=files))
    else:
        _print(session, report, files=files, attach=attach)
    if report.findings:
        session.found_something()


def export(
    session: Session,
    disk: Annotated[str, typer.Argument(metavar="DISK", help="an object disk")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="an empty or new directory")],
    metadata_version: Annotated[
        int | None,
        typer.Option(metavar="1..5", help="default: 3; 4 if small files have no object"),
    ] = None,
    revision: Annotated[int | None, typer.Option(metavar="N", help="state at this revision")] = None,
    key_prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="key prefix, for metadata versions 1 and 5; default: the URL's")
    ] = None,
) -> None:
    """Write a disk's metadata as a ClickHouse server stores it, so that a server can attach the bucket.

    Run it again to continue. Refuses a directory with other files. Exit 4: the export has losses or parts in detached/.
    """
    from msgspec.structs import asdict

    from restore.clickhouse.export import ExportDocument
    from restore.clickhouse.export import export as export_disk

    result = export_disk(
        session.disk(disk),
        directory,
        version=metadata_version,
        revision=revision,
        prefix=key_prefix,
        dry_run=session.dry_run,
        askers=_askers(session),
    )
    if session.options.json:
        session.output.document(ExportDocument(**asdict(result), dry_run=session.dry_run))
    else:
        _print_export(session, result)
    if result.lost_parts or result.losses:
        session.found_something()


def _askers(session: Session) -> "Askers":
    from disks.workers.parallel import WORKERS, Askers

    return Askers(session.options.workers or WORKERS, session.progress())


def _print_export(session: Session, result: "Exported") -> None:
    line = session.output.line
    for part in result.lost_parts:
        line(f"LOST NAME  {part.source} is a complete part: in this tree it is {part.target}")
    shown = "" if result.revision is None else f" at revision {result.revision}"
    line(f"disk {result.disk}{shown}: {counted(result.files, 'file')}, {format_size(result.bytes)}")
    line(f"  {'to write' if session.dry_run else 'written':<11}{result.written:,}")
    line(f"  {'of these':<11}{result.links:,} hard links")
    line(f"  {'unchanged':<11}{result.unchanged:,}")
    for directory in result.deleted_at_start[:_SHOWN]:
        session.output.note(f"note: a server deletes {directory} when it starts: it was never finished")
    for note in result.notes:
        session.output.note(f"note: {note}")
    line(
        "Dry run: nothing was changed."
        if session.dry_run
        else f"Metadata version {result.metadata_version} is in {result.directory}."
    )


def import_metadata(
    session: Session,
    disk: Annotated[str, typer.Argument(metavar="DISK", help="a disk with log_format: 1")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the server's metadata directory of the disk")],
    apply: Annotated[bool, typer.Option("--apply", help="apply; otherwise only preview")] = False,
    key_prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="key prefix, for metadata versions 1 and 5; default: the URL's")
    ] = None,
) -> None:
    """Import the local metadata of a ClickHouse server for one disk. A preview unless --apply.

    Stop the server first. Exit 4: objects are missing or files unreadable. Exit 13: nothing was imported.
    """
    from disks.contracts.bucket_disk import ClickHouseLogDisk
    from disks.kinds import as_disk
    from restore.clickhouse.rebuild import import_tree

    if apply:
        session.begin()
    chosen = as_disk(session.disk(disk), ClickHouseLogDisk)
    if chosen is None:
        raise UsageError(f"disk {disk} has no log of ClickHouse's", hint=f"set log_format: 1 for disk {disk}")
    wanted = apply and not session.dry_run
    if wanted and not session.options.yes:
        preview = import_tree(chosen, directory, prefix=key_prefix, progress=session.progress())
        if preview.removed:
            files = counted(preview.removed, "file")
            session.confirm(f"{files} that disk {disk} has now are not in {directory}, or differ. Replace them?")
    result = import_tree(chosen, directory, prefix=key_prefix, apply=wanted, progress=session.progress())
    if session.options.json:
        session.output.document({**result.document(), "dry_run": session.dry_run})
    else:
        _print_import(session, result)
    if result.missing_objects or result.problems:
        session.found_something()


def _print_import(session: Session, result: "ImportResult") -> None:
    line = session.output.line
    versions = ", ".join(str(version) for version in sorted(result.versions)) or "none"
    files = counted(result.files, "file")
    line(f"{result.directory}: {files}, {format_size(result.bytes)} (metadata version {versions})")
    line(f"  {'created' if result.applied else 'to create':<11}{result.created:,}")
    line(f"  {'removed' if result.applied else 'to remove':<11}{result.removed:,}")
    line(f"  {'unchanged':<11}{result.unchanged:,}")
    for lost in result.missing_objects:
        line(f"  MISSING    {lost.path} (object {lost.key}, {format_size(lost.size_bytes)})")
    for problem in result.problems:
        line(f"  UNREADABLE {problem}")
    for note in result.notes:
        session.output.note(f"note: {note}")
    line("Taken over." if result.applied else "A preview: nothing was changed. Add --apply to do it.")


def _print(session: Session, report: "Report", *, files: bool, attach: bool) -> None:
    from restore.clickhouse.findings import told

    line = session.output.line
    line(f"{report.store}: {report.title}")
    for name, text in report.facts():
        line(f"  {name:<12} {text}")
    if report.tables:
        line()
        session.output.table(
            ["table", "active", "covered", "detached", "unfinished", "frozen", "rows", "files", "size"],
            [
                (
                    table.uuid,
                    *report.part_counts(table),
                    report.rows_in(table),
                    table.files,
                    format_size(table.size_bytes),
                )
                for table in report.tables
            ],
        )
    for draft in report.drafts() if attach else ():
        line()
        for text in draft.splitlines():
            line(text)
    if files:
        line()
        _print_files(session, report)
    if report.findings:
        line()
    by_kind: dict[str, list[Any]] = {}
    for finding in told(report.findings):
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
