"""What `insert` says of the rows that went in, and of the parts that they replaced."""

from typing import TYPE_CHECKING

from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.config.units import format_size

if TYPE_CHECKING:
    from tiering.facts.inserts import InsertDocument


def report_inserted(session: Session, inserted: "InsertDocument", *, bad_rows_file: str = "") -> None:
    """Print it. `bad_rows_file`: the file with the rows that could not be inserted."""
    table, rows = inserted.table, counted(inserted.rows, "row")
    if inserted.bad_rows:
        kept = "would be kept in" if inserted.dry_run else "kept in"
        session.output.note(f"{counted(inserted.bad_rows, 'row')} could not be inserted, {kept} {bad_rows_file}")
    if session.options.json:
        session.output.document(inserted)
    elif inserted.dry_run:
        session.output.line(f"Dry run: would insert {rows} into {table}.")
        _report_replaced(session, inserted, "would replace")
    else:
        again = counted(inserted.duplicates, "part")
        skipped = f"; skipped {again} that an earlier insert wrote" if inserted.duplicates else ""
        session.output.report(
            f"Inserted {rows} into {table}: {counted(len(inserted.parts), 'part')}, "
            f"{format_size(inserted.bytes)}{skipped}."
        )
        for name in inserted.parts:
            session.output.report(f"  {name}")
        _report_replaced(session, inserted, "replaced")
    if not inserted.rows:
        session.nothing_to_do("No new rows.")


def _report_replaced(session: Session, inserted: "InsertDocument", action: str) -> None:
    if inserted.replaced:
        session.output.report(f"{action} {counted(len(inserted.replaced), 'part')}: {', '.join(inserted.replaced)}")
    if isinstance(inserted.revision, int):
        session.output.note(f"'frostline undo {inserted.disk} {inserted.revision}' reverts this")
