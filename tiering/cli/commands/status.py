"""`status` and `du`: the store at a glance."""

from typing import Any

import typer

from tiering.cli.commands.data import OptionalTable
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb

NOT_A_BACKUP = "Tiering is not a backup: each part lies in one place. Keep copies of data you cannot lose."


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app)(status)
    verb(app)(du)


def status(session: Session) -> None:
    """Show disks, tables, unfinished and failed work, pauses and pins."""
    from tiering.catalog.new_parts import repeated

    store = session.store()
    journal = store.context.journal
    names = {definition.uuid: definition.full_name for definition in store.definitions()}
    pauses = [
        {"table": names.get(pause.table_uuid or "", pause.table_uuid), "kind": pause.kind, "since": pause.created}
        for pause in journal.wishes.pauses()
    ]
    pins = [
        {"table": names.get(pin.table_uuid, pin.table_uuid), pin.scope: pin.name, "volume": pin.volume}
        for pin in journal.wishes.pins()
    ]
    broken = [{"disk": item.disk, "path": item.path, "what": item.what} for item in store.context.catalog.broken]
    parts = store.parts()
    document: dict[str, Any] = {
        "tables": len(names),
        "parts": len(parts),
        "rows": sum(stored.part.rows for stored in parts),
        "bytes": sum(stored.part.size_bytes for stored in parts),
        "bytes_by_disk": _bytes_by_disk(store.context.disks, parts),
        "active_moves": len(journal.work.moves(active=True)),
        "failed_moves": len(journal.work.failures()),
        "active_merges": len(journal.work.merges(active=True)),
        "planned_moves": len(store.plan().moves),
        "pauses": pauses,
        "pins": pins,
        "broken": broken,
        "repeated": [
            {"table": one.definition.full_name, "parts": [one.part.name, other.part.name]}
            for one, other in repeated(parts)
        ],
        "daemon": daemon_state(session),
        "recovered": store.recovered,
    }
    if session.options.json:
        session.output.document(document)
        return
    _print_status(session, document)


def du(session: Session, table: OptionalTable = None) -> None:
    """Show the space each table takes on each disk and in each partition."""
    store = session.store()
    store.check_answer(table)
    totals: dict[tuple[str, str, str], list[int]] = {}
    for stored in store.parts(table, include_outdated=True):
        key = (stored.definition.full_name, stored.disk, stored.name.partition)
        entry = totals.setdefault(key, [0, 0, 0])
        entry[0] += 1
        entry[1] += stored.part.rows if stored.state == "active" else 0
        entry[2] += stored.part.size_bytes
    documents: list[dict[str, Any]] = [
        {"table": name, "disk": disk, "partition": partition, "parts": parts, "rows": rows, "bytes": size_bytes}
        for (name, disk, partition), (parts, rows, size_bytes) in sorted(totals.items())
    ]
    if session.options.json:
        session.output.document({"usage": documents, "bytes": sum(entry[2] for entry in totals.values())})
        return
    from tiering.config.units import format_size

    session.output.table(
        ["table", "disk", "partition", "parts", "rows", "size"],
        [
            (item["table"], item["disk"], item["partition"], item["parts"], f"{item['rows']:,}", _size(item))
            for item in documents
        ],
        empty="No parts.",
    )
    session.output.note(f"{format_size(sum(entry[2] for entry in totals.values()))} in all")


def daemon_state(session: Session) -> dict[str, Any]:
    """Whether a daemon runs on this store, and its process id."""
    import msgspec

    from tiering.daemon.daemon import status as daemon_status

    plain: dict[str, Any] = msgspec.to_builtins(daemon_status(session.loaded.config.state_directory))
    return plain


def _bytes_by_disk(disks: Any, parts: list[Any]) -> dict[str, int]:
    result = dict.fromkeys(disks, 0)
    for stored in parts:
        result[stored.disk] += stored.part.size_bytes
    return result


def _print_status(session: Session, document: dict[str, Any]) -> None:
    from tiering.config.units import format_size

    line = session.output.line
    for fault in session.output.beside.get("broken_disks", ()):
        line(f"BROKEN DISK    {fault['what']}")
    where = ", ".join(f"{disk} {format_size(size)}" for disk, size in document["bytes_by_disk"].items())
    line(f"tables         {document['tables']}")
    line(f"parts          {document['parts']} with {document['rows']:,} rows, {format_size(document['bytes'])}")
    line(f"on disks       {where}")
    under_way, due, failed = document["active_moves"], document["planned_moves"], document["failed_moves"]
    line(f"moves          {under_way} under way, {due} due, {failed} failed")
    line(f"merges         {document['active_merges']} under way")
    daemon = document["daemon"]
    line(f"daemon         {'running, process ' + str(daemon['pid']) if daemon['running'] else 'not running'}")
    for pause in document["pauses"]:
        line(f"paused         {pause['kind']} of {pause['table'] or 'all tables'}")
    for pin in document["pins"]:
        scope = "part" if "part" in pin else "partition"
        line(f"pinned         {scope} {pin[scope]} of {pin['table']}")
    for name in session.output.beside.get("unreachable", ()):
        line(f"unreachable    disk {name}")
    for item in document["broken"]:
        line(f"broken         {item['disk']}:{item['path']}: {item['what']}")
    for item in document["repeated"]:
        first, second = item["parts"]
        line(f"repeated       {first} and {second} of {item['table']}: two machines inserted the same data")
    session.output.note(NOT_A_BACKUP)


def _size(item: dict[str, Any]) -> str:
    from tiering.config.units import format_size

    return format_size(item["bytes"])
