"""`tick`, `merge`, `snapshot`, `fsck`, `gc`."""

from typing import Annotated, Any

import typer

from oplog.errors import Refused, UsageError
from tiering.cli.reports import print_merges, print_report, tick_document
from tiering.cli.session import Session, fail_if_partly
from tiering.cli.tables import TableName
from tiering.cli.verb import verb

ONLY = ("moves", "merges", "gc", "snapshots")
Disks = Annotated[list[str] | None, typer.Argument(metavar="[DISK…]", help="default: every one it applies to")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, changes=True)(tick)
    verb(app, changes=True)(merge)
    verb(app, changes=True)(snapshot)
    verb(app)(fsck)
    verb(app, changes=True)(gc)


def tick(
    session: Session,
    only: Annotated[str | None, typer.Option(metavar="WHAT", help="moves, merges, gc or snapshots")] = None,
) -> None:
    """Do one pass of the daemon in the foreground: merges, TTL deletes, moves, snapshots."""
    if only is not None and only not in ONLY:
        raise UsageError(f"unknown kind of work: {only}", hint=f"one of: {', '.join(ONLY)}")
    store = session.store()
    if session.dry_run:
        from tiering.cli.moves import plan_document

        planned = plan_document(session, store.plan())
        moved = [{**item, "seconds": 0, "requests": 0} for item in planned["moves"]]
        document: dict[str, Any] = {"moved": moved, "failed": [], "skipped": [], "merges": []}
        document["deleted"] = planned["deletes"]
    else:
        document = tick_document(store.tick(only=only))
    if session.options.json:
        session.output.document({**document, "dry_run": session.dry_run})
    else:
        if session.dry_run:
            session.output.line("Dry run: these parts would move; nothing was changed.")
        print_merges(session.output, document["merges"])
        print_report(session.output, document)
    if not (document["moved"] or document["merges"] or document["deleted"] or document["failed"]):
        session.nothing_to_do("Nothing was due.")
    fail_if_partly(len(document["failed"]), len(document["moved"]), "moves")


def merge(
    session: Session,
    table: TableName,
    partition: Annotated[str | None, typer.Option(metavar="P", help="only this partition")] = None,
    final: Annotated[bool, typer.Option("--final", help="down to one part a partition")] = False,
) -> None:
    """Merge parts into larger ones. Queries give the same rows before and after."""
    from tiering.cli.reports import merge_document

    results = session.store().merge(table, partition=partition, final=final, dry_run=session.dry_run)
    documents = [merge_document(result) for result in results]
    if session.options.json:
        session.output.document({"merges": documents, "dry_run": session.dry_run})
    else:
        if session.dry_run:
            session.output.line("Dry run: these parts would be merged; nothing was changed.")
        print_merges(session.output, documents)
    if not results:
        session.nothing_to_do("Nothing to merge.")


def snapshot(session: Session, disk: Annotated[str, typer.Argument(metavar="DISK", help="an object disk")]) -> None:
    """Write the file table to the bucket, so that a rebuild starts there."""
    chosen = session.store().object_disk(disk)
    revision = chosen.revision if session.dry_run else chosen.write_snapshot()
    if session.options.json:
        session.output.document({"disk": disk, "revision": revision, "dry_run": session.dry_run})
    elif session.dry_run:
        session.output.line(f"Dry run: would write a snapshot of {disk} at revision {revision}.")
    else:
        session.output.line(f"Wrote a snapshot of {disk} at revision {revision}.")


def fsck(
    session: Session,
    disk: Disks = None,
    read_data: Annotated[bool, typer.Option("--read-data", help="read everything, compare SHA-256")] = False,
    read_data_subset: Annotated[
        str | None, typer.Option(metavar="5%", help="read a share of the data, others each time")
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="put right what can be without loss")] = False,
) -> None:
    """Check the invariants: tables, parts, files, objects. Exit 4 when something is wrong."""
    import msgspec
    from restore.check import check

    from tiering.units import format_size, parse_percent

    store = session.store()
    for name in disk or ():
        store.disk(name)
    if read_data and read_data_subset:
        raise UsageError("say either --read-data or --read-data-subset")
    share = 1.0 if read_data else parse_percent(read_data_subset) if read_data_subset else 0.0
    result = check(store.context, disks=disk or None, read_share=share, repair=repair and not session.dry_run)
    document = {
        "checked": msgspec.to_builtins(result.checked),
        "problems": [msgspec.to_builtins(problem) for problem in result.problems],
        "repaired": list(result.repaired),
        "ok": result.ok,
    }
    if session.options.json:
        session.output.document(document)
    else:
        for problem in result.problems:
            where = problem.path or problem.object or problem.part or ""
            session.output.line(f"{problem.invariant}  {problem.disk}  {where}: {problem.what}")
        for sentence in result.repaired:
            session.output.line(f"repaired: {sentence}")
        checked = result.checked
        read = f", {format_size(checked.bytes)} read" if checked.bytes else ""
        session.output.line(
            f"Checked {checked.parts} parts, {checked.files} files, {checked.objects} objects{read}:"
            f" {'no problems' if result.ok else f'{len(result.problems)} problems'}."
        )
    if not result.ok:
        session.found_something()


def gc(
    session: Session,
    disk: Disks = None,
    delete: Annotated[bool, typer.Option("--delete", help="delete; without it gc only reports")] = False,
    guard_interval: Annotated[str, typer.Option(metavar="24h", help="younger objects stay")] = "24h",
    max_delete_bytes: Annotated[str | None, typer.Option(metavar="N", help="stop there")] = None,
    max_delete_fraction: Annotated[str, typer.Option(metavar="0.1", help="refuse to delete a larger share")] = "0.1",
) -> None:
    """Report, or with --delete remove, objects that no retained revision, pin or reader names.

    Exit 4: the report found orphans. Exit 13: a safety rule refused to delete.
    """
    from tiering.units import parse_duration, parse_percent, parse_size

    store = session.store()
    names = list(disk) if disk else [item.name for item in store.object_disks() if not item.read_only]
    guard = parse_duration(guard_interval)
    if delete:
        session.confirm(f"Delete orphaned objects of {', '.join(names)} older than {guard_interval}?")
    documents = []
    for name in names:
        report = store.gc(
            name,
            guard=guard,
            delete=delete and not session.dry_run,
            max_delete_bytes=parse_size(max_delete_bytes) if max_delete_bytes else None,
            max_delete_fraction=parse_percent(max_delete_fraction),
        )
        documents.append({"disk": name, **_gc_document(report)})
    if session.options.json:
        total = documents[0] if len(documents) == 1 else {**_sum(documents), "disks": documents}
        session.output.document({**total, "dry_run": session.dry_run})
    else:
        for document in documents:
            _print_gc(session, document)
    refusals = [document for document in documents if document["refused"]]
    if refusals and delete:
        raise Refused(f"gc deleted nothing more on {refusals[0]['disk']}: {refusals[0]['refused']}")
    if any(document["orphaned"] for document in documents) and not delete:
        session.found_something()


def _gc_document(report: Any) -> dict[str, Any]:
    names = ("referenced", "pending", "orphaned", "orphaned_bytes", "deleted", "deleted_bytes", "refused")
    return {name: getattr(report, name) for name in names}


def _sum(documents: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = ("referenced", "pending", "orphaned", "orphaned_bytes", "deleted", "deleted_bytes")
    total: dict[str, Any] = {name: sum(document[name] for document in documents) for name in numbers}
    total["refused"] = next((document["refused"] for document in documents if document["refused"]), None)
    return total


def _print_gc(session: Session, document: dict[str, Any]) -> None:
    from tiering.units import format_size

    line = session.output.line
    line(f"disk {document['disk']}")
    line(f"  referenced  {document['referenced']:,} objects: in use, or restorable within the retention")
    line(f"  pending     {document['pending']:,} objects: nothing names them yet, but they are young")
    line(f"  orphaned    {document['orphaned']:,} objects, {format_size(document['orphaned_bytes'])}")
    line(f"  deleted     {document['deleted']:,} objects, {format_size(document['deleted_bytes'])}")
    if document["refused"]:
        line(f"  refused     {document['refused']}")
