"""`backup drill`."""

from typing import TYPE_CHECKING, Annotated

import typer

from backup.verbs.options import To, opened
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session, actor

if TYPE_CHECKING:
    from backup.recover.drill import DrillResult


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
    from tiering.config.units import parse_size

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
    from tiering.config.units import format_size

    line, done = session.output.line, not result.dry_run
    verdict = "FAILED" if not result.ok else "ok" if done else "to be restored"
    line(f"backup {result.name}: {format_size(result.bytes)}{'' if result.whole else ', a share'}: {verdict}")
    for table in result.tables:
        counts = f"{counted(table.rows, 'row')}, {counted(table.parts, 'part')}, {format_size(table.bytes)}"
        line(f"  {table.table}: {counts}")
    for problem in result.problems:
        line(f"  {problem}")
    line(f"Restored, compared and removed in {result.seconds:.1f} s." if done else "A preview: nothing was restored.")
