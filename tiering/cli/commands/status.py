"""`status` and `du`: the store at a glance."""

from typing import TYPE_CHECKING

import typer

from tiering.catalog.freshness import Freshness
from tiering.cli.commands.cache import cache_lines
from tiering.cli.commands.data import OptionalTable
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb
from tiering.cli.reports.backups import newest_backups
from tiering.config.units import counted, format_size

if TYPE_CHECKING:
    from tiering.facts.sharing import SharingRow, UnknownSharing
    from tiering.facts.status import StoreStatus

NOT_A_BACKUP = "Tiering is not a backup: each part is stored once. Keep copies of data you cannot lose."


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app)(status)
    verb(app)(du)


def status(session: Session) -> None:
    """Show disks, tables, unfinished and failed work, pauses, pins, and the last backup of each table."""
    from tiering.facts.growth import stranded
    from tiering.facts.status import store_status

    store = session.store(Freshness.CHANGES)
    session.tell_set_aside(store.set_aside())
    backups = newest_backups()
    names = {definition.uuid: definition.full_name for definition in store.definitions()}
    document = store_status(store, backups=backups.backups_status(session.config, names))
    if session.options.json:
        session.output.document(document)
        return
    _print_status(session, document)
    for text in backups.status_lines(document.backups) if document.backups is not None else ():
        session.output.line(f"backups        {text}")
    for one in stranded(store):
        session.output.note(f"{one.subject}: {one.what}; {one.hint}")
    session.output.note(NOT_A_BACKUP)


def du(session: Session, table: OptionalTable = None) -> None:
    """Show the space of each table by disk and partition, and how much of it other machines share."""
    from tiering.catalog.rows import usage
    from tiering.facts.sharing import sharing_rows

    store = session.store(Freshness.CHANGES)
    store.check_answer(table)
    session.tell_set_aside(store.set_aside(table))
    rows = usage(store.context.catalog, store.definitions() if table is None else [store.definition(table)])
    size_bytes = sum(row.bytes for row in rows)
    sharing = sharing_rows(store, table)
    if session.options.json:
        session.output.document({"usage": rows, "bytes": size_bytes, "shared": sharing})
        return
    session.output.table(
        ["table", "disk", "partition", "parts", "rows", "size"],
        [(row.table, row.disk, row.partition, row.parts, f"{row.rows:,}", format_size(row.bytes)) for row in rows],
        empty="No parts.",
    )
    for item in sharing:
        session.output.line(f"{item.disk}: {_sharing_text(item)}")
    session.output.note(f"{format_size(size_bytes)} in all")


def _print_status(session: Session, document: "StoreStatus") -> None:
    from msgspec import UNSET

    from tiering.facts.status import crowded_text

    line = session.output.line
    for fault in session.output.beside.get("broken_disks", ()):
        line(f"BROKEN DISK    {fault['what']}")
    for refused in document.not_written:
        line(f"NOT WRITTEN    {refused.what}; {refused.hint}")
    where = ", ".join(f"{disk} {format_size(size)}" for disk, size in document.bytes_by_disk.items())
    for table in session.output.beside.get("unreadable_tables", ()):
        line(f"UNREADABLE     {table['what']}")
    line(f"tables         {document.tables}")
    if document.replicated:
        line(f"replicated     {', '.join(document.replicated)}: see 'frostline replica status'")
    for replica in document.replicas:
        if replica.last_error:
            lag = f", {replica.lag_seconds} s behind" if replica.lag_seconds else ""
            line(f"replica waits  {replica.table}{lag}: {replica.last_error}")
    rows, size = counted(document.rows, "row"), format_size(document.bytes)
    line(f"parts          {document.parts:,} with {rows}, {size}")
    line(f"on disks       {where}")
    under_way, due, failed = document.active_moves, document.planned_moves, document.failed_moves
    kept = ", ".join(f"{kind} {parts}" for kind, parts in document.waiting_moves.items())
    line(
        f"moves          {under_way} under way, {due} due, {failed} failed" + (f"; cannot move: {kept}" if kept else "")
    )
    line(f"merges         {document.active_merges} under way")
    daemon = document.daemon
    line(f"daemon         {'running, process ' + str(daemon.pid) if daemon.running else 'not running'}")
    for text in cache_lines(document.cache) if document.cache else ():
        line(text)
    for pause in document.pauses:
        line(f"paused         {pause.kind} of {pause.table or 'all tables'}")
    for pin in document.pins:
        pinned = f"partition {pin.partition}" if pin.part is UNSET else f"part {pin.part}"
        line(f"pinned         {pinned} of {pin.table}")
    for partition in document.crowded:
        line(f"many parts     {crowded_text(partition)}: 'frostline merge {partition.table} --cold'")
    if (garbage := document.garbage) and garbage["orphaned"]:
        objects, size = counted(garbage["orphaned"], "object"), format_size(garbage["orphaned_bytes"])
        line(f"garbage        {objects}, {size}, that nothing names: 'frostline gc --delete'")
    for name in session.output.beside.get("unreachable", ()):
        line(f"unreachable    disk {name}")
    for item in document.broken:
        line(f"broken         {item.disk}:{item.path}: {item.what}")
    for pair in document.repeated:
        first, second = pair.parts
        line(f"repeated       {first} and {second} of {pair.table}: two machines inserted the same data")


def _sharing_text(sharing: "SharingRow | UnknownSharing") -> str:
    from tiering.facts.sharing import UnknownSharing

    if isinstance(sharing, UnknownSharing):
        return f"how much other machines share is unknown: {sharing.error}"
    text = (
        f"objects of {format_size(sharing.bytes)} ({sharing.price_month:.2f} {sharing.currency} a month),"
        f" {format_size(sharing.alone_bytes)} of them ({sharing.alone_price_month:.2f}) this machine's alone"
    )
    if not sharing.shared_bytes:
        return text
    others = ", ".join(f"{log} {format_size(size)}" for log, size in sharing.by_log.items() if size)
    shared = format_size(sharing.shared_bytes)
    return f"{text}; {shared} other machines use as well ({others}): they stay until unused"
