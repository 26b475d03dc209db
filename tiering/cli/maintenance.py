"""`tick`, `merge`, `snapshot`, `fsck`, `gc`."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from oplog.errors import Refused, UsageError
from tiering.cli.output import counted
from tiering.cli.reports import print_merges, print_report, tick_document
from tiering.cli.session import Session, fail_if_partly
from tiering.cli.tables import TableName
from tiering.cli.verb import verb

if TYPE_CHECKING:
    from tiering.maintenance import TickStep
    from tiering.settings import Config

STEPS = ("moves", "merges", "gc", "snapshots")
Disks = Annotated[list[str] | None, typer.Argument(metavar="DISK", help="default: every one it applies to")]


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
    """Do one pass of the daemon: merges, TTL deletes, moves, snapshots."""
    if only is not None and only not in STEPS:
        raise UsageError(f"unknown kind of work: {only}", hint=f"one of: {', '.join(STEPS)}")
    document = _preview(session, only) if session.dry_run else _pass(session, cast("TickStep | None", only))
    if session.options.json:
        session.output.document({**document, "dry_run": session.dry_run})
    else:
        if session.dry_run:
            session.output.line("Dry run: this is what would be done; nothing was changed.")
        print_merges(session.output, document["merges"])
        for item in document["deleted"]:
            session.output.line(f"deleted  {item['table']} {item['part']}  {item['reason']['detail']}")
        print_report(session.output, document)
        for report in document["gc"]:
            _print_gc(session, report)
    for problem in document["problems"]:
        session.output.note(f"not done: {problem}")
    done = sum(len(document[name]) for name in ("moved", "merges", "deleted", "snapshots", "gc"))
    failed = len(document["failed"]) + len(document["problems"])
    if not done and not failed:
        session.nothing_to_do("Nothing was due.")
    fail_if_partly(failed, done, "steps")


def _pass(session: Session, only: "TickStep | None") -> dict[str, Any]:
    document = tick_document(session.store().tick(only=only))
    delete = session.loaded.config.daemon.gc_delete
    return {**document, "gc": _collect(session, delete=delete) if only == "gc" else []}


def _preview(session: Session, only: str | None) -> dict[str, Any]:
    """What a pass would begin with: merges that come before moves may change what moves."""
    from tiering.cli.moves import plan_document
    from tiering.cli.reports import merge_plan_document

    store = session.store()
    document: dict[str, Any] = {"moved": [], "failed": [], "skipped": [], "merges": [], "deleted": [], "snapshots": {}}
    document.update(problems=[], gc=_collect(session, delete=False) if only == "gc" else [])
    if only in (None, "moves"):
        planned = plan_document(session, store.plan())
        document["moved"] = [{**item, "seconds": 0, "requests": 0} for item in planned["moves"]]
        document["deleted"] = planned["deletes"]
    if only in (None, "merges"):
        document["merges"] = [
            merge_plan_document(definition.full_name, plan.parts)
            for definition in store.definitions()
            if "merges" not in store.context.journal.paused(definition.uuid)
            for plan in store.plan_merges(definition.full_name)
        ]
    return document


def _collect(session: Session, *, delete: bool) -> list[dict[str, Any]]:
    """What the daemon's own collection does: of every bucket, with the default guard and caps."""
    store = session.store()
    return [
        {"disk": disk.name, **_gc_document(store.gc(disk.name, guard=timedelta(hours=24), delete=delete))}
        for disk in store.object_disks()
        if not disk.read_only
    ]


def merge(
    session: Session,
    table: TableName,
    partition: Annotated[str | None, typer.Option(metavar="P", help="only this partition")] = None,
    final: Annotated[bool, typer.Option("--final", help="down to one part a partition")] = False,
) -> None:
    """Merge parts into larger ones. Queries give the same rows before and after."""
    from tiering.cli.reports import merge_document, merge_plan_document

    store = session.store()
    if session.dry_run:
        plans = store.plan_merges(table, partition=partition, final=final)
        documents = [merge_plan_document(table, plan.parts) for plan in plans]
    else:
        documents = [merge_document(result) for result in store.merge(table, partition=partition, final=final)]
    if session.options.json:
        session.output.document({"merges": documents, "dry_run": session.dry_run})
    else:
        if session.dry_run:
            session.output.line("Dry run: these parts would be merged; nothing was changed.")
        print_merges(session.output, documents)
    if not documents:
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

    if read_data and read_data_subset:
        raise UsageError("say either --read-data or --read-data-subset")
    config = session.loaded.config
    names = disk or list(config.disks)
    with session.progress().task("checking"):
        result = check(
            {name: session.disk(name) for name in names},
            read_data=read_data,
            subset=parse_percent(read_data_subset) if read_data_subset else None,
            repair=repair and not session.dry_run,
            moving=session.parts_under_way(),
            policies=_policy_disks(config) if len(names) == len(config.disks) else None,
            workers=session.options.workers or config.limits.workers,
        )
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
            what = problem.what.removeprefix(f"{problem.disk}:{problem.path} ")
            session.output.line(f"{problem.invariant}  {problem.disk}  {where}{': ' if where else ''}{what}")
        for sentence in result.repaired:
            session.output.line(f"repaired: {sentence}")
        checked = result.checked
        size = format_size(checked.bytes_read if read_data or read_data_subset else checked.bytes)
        how = "every byte compared" if read_data else "read and compared" if read_data_subset else "data not read"
        session.output.line(
            f"Checked {counted(checked.parts, 'part')}, {counted(checked.files, 'file')},"
            f" {counted(checked.objects, 'object')}, {size} ({how}):"
            f" {'no problems' if result.ok else counted(len(result.problems), 'problem')}."
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

    Exit 4: the report found orphans, or a reason not to delete. Exit 13: a safety rule refused to delete.
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
    if any(document["orphaned"] or document["refused"] for document in documents) and not delete:
        session.found_something()


def _policy_disks(config: "Config") -> dict[str, list[str]]:
    return {
        name: [disk for volume in policy.volumes for disk in volume.disks] for name, policy in config.policies.items()
    }


def _gc_document(report: Any) -> dict[str, Any]:
    names = ("referenced", "pending", "orphaned", "orphaned_bytes", "deleted", "deleted_bytes", "refused")
    until = [moment for moment in report.kept.values() if moment is not None]
    kept = {"kept": len(report.kept), "kept_until": max(until, default=None), "failed": report.failed}
    return {name: getattr(report, name) for name in names} | kept


def _sum(documents: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = ("referenced", "pending", "orphaned", "orphaned_bytes", "deleted", "deleted_bytes")
    total: dict[str, Any] = {name: sum(document[name] for document in documents) for name in numbers}
    total["kept"] = sum(document["kept"] for document in documents)
    total["kept_until"] = max(
        (document["kept_until"] for document in documents if document["kept_until"]), default=None
    )
    total["failed"] = {key: why for document in documents for key, why in document["failed"].items()}
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
    if document["kept"]:
        until = document["kept_until"]
        when = f"until {until:%Y-%m-%d %H:%M}Z at the latest; gc then deletes them" if until else "for now"
        line(f"  kept        {document['kept']:,} objects by Object Lock, {when}")
    if document["failed"]:
        key, why = next(iter(document["failed"].items()))
        line(f"  failed      {len(document['failed']):,} objects, such as {key}: {why}; the next gc tries again")
    if document["refused"]:
        line(f"  refused     {document['refused']}")
