"""`backup verify`, `drill`."""

from typing import TYPE_CHECKING, Annotated

import typer

from backup.verbs.options import To, opened
from oplog.errors import UsageError
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session, actor
from tiering.config.units import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backup.recover.drill import DrillResult
    from backup.verify.verify import VerifyDocument, VerifyResult


ReadData = Annotated[bool, typer.Option("--read-data", help="read all data and compare SHA-256")]
Subset = Annotated[
    str | None,
    typer.Option("--read-data-subset", metavar="5%", help="read this share; later runs read the rest"),
]


def verify(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="a backup, its id, or latest")] = None,
    every: Annotated[bool, typer.Option("--all", help="verify every backup")] = False,
    read_data: ReadData = False,
    read_data_subset: Subset = None,
    to: To = None,
) -> None:
    """Check that every object of a backup exists with its size, and that its lists of files are intact.

    Exit 4: something is wrong; each problem names the table, part and file, and backups that have an intact copy.
    """
    from backup.verify.verify import VerifyRequest

    if (name is None) != every:
        raise UsageError("name the backup to verify, or use --all")
    share = _share(read_data, read_data_subset)
    with opened(session, to) as repository:
        results = repository.verify(
            None if every else name, VerifyRequest(share=share, actor=actor(), dry_run=session.dry_run)
        )
    if session.options.json:
        session.output.document(_verify_document(results, name))
    else:
        for result in results:
            _print_verified(session, result)
        if not results:
            session.output.note("no backups yet: frostline backup create")
    if any(not result.ok for result in results):
        session.found_something()


def _share(read_data: bool, subset: str | None) -> float:
    if subset is None:
        return 1.0 if read_data else 0.0
    if read_data:
        raise UsageError("use either --read-data or --read-data-subset")
    number = subset.removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(f"not a share: {subset!r}", hint="--read-data-subset 5%")
    return share


def _verify_document(results: "Sequence[VerifyResult]", name: str | None) -> "VerifyDocument":
    from backup.verify.verify import VerifyDocument

    return VerifyDocument(
        name=results[0].name if name is not None else "all",
        files=sum(result.files for result in results),
        bytes=sum(result.bytes for result in results),
        problems=[problem for result in results for problem in result.problems],
        ok=all(result.ok for result in results),
        backups=[result.row for result in results],
    )


def _print_verified(session: Session, result: "VerifyResult") -> None:
    line = session.output.line
    how = {"quick": "", "data": f", {format_size(result.read_bytes)} read", "subset": ""}[result.depth]
    if result.depth == "subset":
        how = f", {format_size(result.read_bytes)} read (share {result.slice})"
    files = counted(result.files, "file")
    line(f"backup {result.name}: {files}, {format_size(result.bytes)}{how}: {'ok' if result.ok else 'DAMAGED'}")
    for problem in result.problems:
        others = f"; also in {', '.join(problem.also_in)}" if problem.also_in else ""
        line(f"  {problem.text}{others}")


def drill(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="a backup, its id, or latest")] = "latest",
    max_bytes: Annotated[
        str | None,
        typer.Option("--max-bytes", metavar="N", help="restore at most N; each drill picks other partitions"),
    ] = None,
    to: To = None,
) -> None:
    """Restore a backup into a scratch store, check all its data, and remove the store.

    Needs free space for the restored data; live tables are not touched. Exit 4: something is wrong.
    """
    from backup.recover.drill import DrillRequest

    limit = parse_size(max_bytes) if max_bytes is not None else None
    with opened(session, to) as repository:
        result = repository.drill(name, DrillRequest(limit, actor(), session.dry_run))
    if session.options.json:
        session.output.document(result.document)
    else:
        _print_drilled(session, result)
    if not result.ok:
        session.found_something()


def _print_drilled(session: Session, result: "DrillResult") -> None:
    line, done = session.output.line, not result.dry_run
    verdict = "FAILED" if not result.ok else "ok" if done else "to be restored"
    line(f"backup {result.name}: {format_size(result.bytes)}{'' if result.whole else ', a share'}: {verdict}")
    for table in result.tables:
        counts = f"{counted(table.rows, 'row')}, {counted(table.parts, 'part')}, {format_size(table.bytes)}"
        line(f"  {table.table}: {counts}")
    for problem in result.problems:
        line(f"  {problem}")
    line(f"Restored, compared and removed in {result.seconds:.1f} s." if done else "A preview: nothing was restored.")
