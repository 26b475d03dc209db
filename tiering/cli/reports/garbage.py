"""What a collection found, as JSON and for people."""

from typing import TYPE_CHECKING

from tiering.cli.frame.session import Session
from tiering.config.units import counted, format_size

if TYPE_CHECKING:
    from disks.garbage.report import GcRow

GC_AGAIN = "fix the cause and run it again: it continues; without --delete it only reports"


def print_gc(session: Session, row: "GcRow") -> None:
    """The report for people."""
    line = session.output.line
    line(f"disk {row.disk}")
    if row.refused and not any((row.referenced, row.pending, row.orphaned, row.deleted)):
        line("  nothing was counted")
        print_rest(session, row)
        return
    line(f"  referenced  {counted(row.referenced, 'object')}: in use, or restorable within the retention")
    line(f"  pending     {counted(row.pending, 'object')}: nothing names them yet, but they are recent")
    line(f"  orphaned    {counted(row.orphaned, 'object')}, {format_size(row.orphaned_bytes)}")
    if row.quarantined:
        line(f"  quarantined {row.quarantined:,} of them: deleted when their quarantine ends")
    line(f"  deleted     {counted(row.deleted, 'object')}, {format_size(row.deleted_bytes)}")
    if row.log_deleted or row.log_collectable:
        old = counted(row.log_collectable, "entry or snapshot", "entries and snapshots")
        line(f"  old log     {old}, {row.log_deleted:,} deleted")
    if row.kept:
        until = max((moment for moment in row.kept.values() if moment), default=None)
        when = f", until {until:%Y-%m-%d %H:%M}Z at the latest" if until else ""
        kept = counted(len(row.kept), "object")
        line(f"  locked      {kept} that the store keeps{when}: for a later gc")
    if row.versioning:
        size = format_size(row.old_version_bytes)
        line(f"  versions    {row.old_versions:,} old ones, {size}, in no listing: see docs/integrity.md")
    print_rest(session, row)


def print_rest(session: Session, row: "GcRow") -> None:
    """What a collection, of a disk or of backups, found beside what it deletes, and why it did not go on."""
    line = session.output.line
    if row.uploads:
        line(f"  uploads     {row.uploads:,} unfinished, {row.uploads_aborted:,} aborted")
    for name, keys, what in (
        ("foreign", row.foreign, "not Frostline's, never touched"),
        ("suspicious", row.suspicious, "with an impossible time, kept"),
    ):
        if keys:
            line(f"  {name:<11} {counted(len(keys), 'object')} {what}, such as {keys[0]}")
    if row.failed:
        key, why = next(iter(row.failed.items()))
        line(f"  failed      {counted(len(row.failed), 'object')}, such as {key}: {why}")
    if row.refused:
        line(f"  refused     {row.refused}")
