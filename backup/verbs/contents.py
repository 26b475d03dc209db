"""`backup diff`, `cat`."""

import sys
from typing import Annotated

import typer

from backup.verbs.options import To, opened
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session


def diff(
    session: Session,
    first: Annotated[str, typer.Argument(metavar="A", help="a backup, its id, or latest")],
    second: Annotated[str, typer.Argument(metavar="B", help="a backup, its id, or latest")],
    to: To = None,
) -> None:
    """Compare two backups: tables and part names. Reads no data."""
    from tiering.config.units import format_size

    with opened(session, to) as repository:
        found = repository.diff(first, second)
    if session.options.json:
        session.output.document(found)
        return
    line = session.output.line
    for table in found.tables:
        line(f"{table.table}: {table.change}")
        for part in table.parts:
            sign = "+" if part.change == "added" else "-"
            line(f"  {sign} {part.part}: {counted(part.rows, 'row')}, {format_size(part.bytes)}")
    if not found.tables:
        line(f"backups {found.first} and {found.second} hold the same parts")


def cat(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="a backup, its id, or latest")],
    path: Annotated[str, typer.Argument(metavar="PATH", help="TABLE/PART/FILE, as 'backup verify' prints it")],
    to: To = None,
) -> None:
    """Write one file of a backup to stdout, after checking its digest."""
    with opened(session, to) as repository:
        data = repository.cat(name, path)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
