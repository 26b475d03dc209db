"""What a collection found, as JSON and for people."""

from typing import TYPE_CHECKING, Any

from tiering.cli.frame.session import Session
from tiering.config.units import counted

if TYPE_CHECKING:
    from disks.garbage.collect import GcReport

GC_AGAIN = "fix the cause and run it again: it continues; without --delete it only reports"


def gc_document(report: "GcReport") -> dict[str, Any]:
    """A report as JSON: the counts, and the names of what needs somebody's eye."""
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(report)
    for name in ("orphans", "delete"):
        del document[name]
    return document


def print_gc(session: Session, document: dict[str, Any]) -> None:
    """The report for people."""
    from tiering.config.units import format_size

    line = session.output.line
    line(f"disk {document['disk']}")
    if document["refused"] and not any(document[name] for name in ("referenced", "pending", "orphaned", "deleted")):
        line("  nothing was counted")
        print_rest(session, document)
        return
    line(f"  referenced  {counted(document['referenced'], 'object')}: in use, or restorable within the retention")
    line(f"  pending     {counted(document['pending'], 'object')}: nothing names them yet, but they are recent")
    line(f"  orphaned    {counted(document['orphaned'], 'object')}, {format_size(document['orphaned_bytes'])}")
    if document["quarantined"]:
        line(f"  quarantined {document['quarantined']:,} of them: deleted when their quarantine ends")
    line(f"  deleted     {counted(document['deleted'], 'object')}, {format_size(document['deleted_bytes'])}")
    if document["log_deleted"] or document["log_collectable"]:
        old = counted(document["log_collectable"], "entry or snapshot", "entries and snapshots")
        line(f"  old log     {old}, {document['log_deleted']:,} deleted")
    if document["kept"]:
        until = max((moment for moment in document["kept"].values() if moment), default="")
        when = f", until {until[:16].replace('T', ' ')}Z at the latest" if until else ""
        kept = counted(len(document["kept"]), "object")
        line(f"  locked      {kept} that the store keeps{when}: for a later gc")
    if document["versioning"]:
        size = format_size(document["old_version_bytes"])
        line(f"  versions    {document['old_versions']:,} old ones, {size}, in no listing: see docs/integrity.md")
    print_rest(session, document)


def print_rest(session: Session, document: dict[str, Any]) -> None:
    """What a collection, of a disk or of backups, found beside what it deletes, and why it did not go on."""
    line = session.output.line
    if document["uploads"]:
        line(f"  uploads     {document['uploads']:,} unfinished, {document['uploads_aborted']:,} aborted")
    for name, what in (("foreign", "not Frostline's, never touched"), ("suspicious", "with an impossible time, kept")):
        if document[name]:
            line(f"  {name:<11} {counted(len(document[name]), 'object')} {what}, such as {document[name][0]}")
    if document["failed"]:
        key, why = next(iter(document["failed"].items()))
        line(f"  failed      {counted(len(document['failed']), 'object')}, such as {key}: {why}")
    if document["refused"]:
        line(f"  refused     {document['refused']}")
