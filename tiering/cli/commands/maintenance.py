"""`tick`, `snapshot`."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from oplog.errors import UsageError
from tiering.catalog.freshness import Freshness
from tiering.cli.frame.options import BelieveClock
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb
from tiering.cli.reports.garbage import print_gc
from tiering.cli.reports.moves import fail_as_the_pass_did, print_merges, print_report

if TYPE_CHECKING:
    from disks.garbage.report import GcRow
    from tiering.engine.maintenance import TickStep
    from tiering.facts.moves import PassDocument

STEPS = ("moves", "merges", "gc", "snapshots")


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, changes=True)(tick)
    verb(app, changes=True)(snapshot)


def tick(
    session: Session,
    only: Annotated[str | None, typer.Option(metavar="WHAT", help="moves, merges, gc or snapshots")] = None,
    believe_clock: BelieveClock = False,
) -> None:
    """Run one daemon pass: merges, TTL deletes, moves, snapshots."""
    if only is not None and only not in STEPS:
        raise UsageError(f"unknown kind of work: {only}", hint=f"one of: {', '.join(STEPS)}")
    if believe_clock and not session.dry_run:
        session.store().believe_clock()
    document = _preview(session, only) if session.dry_run else _pass(session, cast("TickStep | None", only))
    if session.options.json:
        session.output.document(document)
    else:
        if session.dry_run:
            session.output.line("Dry run: nothing was changed.")
        print_merges(session.output, document.merges)
        for item in document.deleted:
            session.output.line(f"deleted  {item.table} {item.part}  {item.reason.detail}")
        if document.deleted:
            would = "would be " if session.dry_run else ""
            session.output.line(f"{counted(len(document.deleted), 'part')} {would}deleted by TTL rules.")
        if document.moved or document.failed or document.skipped or not any(document.steps):
            print_report(session.output, document)
        for report in document.gc:
            print_gc(session, report)
    for sentence in document.waiting:
        session.output.note(f"waits: {sentence}")
    for problem in document.problems:
        session.output.note(f"not done: {problem}")
    for kind, count in document.held.items():
        session.output.note(f"postponed ({kind}): {counted(count, 'part')}; 'frostline plan' shows until when")
    if not any(document.steps):
        session.nothing_to_do("Nothing was done." if document.waiting or document.held else "Nothing was due.")
    fail_as_the_pass_did(document, () if session.dry_run else session.store().context.faults)


def _pass(session: Session, only: "TickStep | None") -> "PassDocument":
    from tiering.facts.moves import pass_document

    report = session.store(Freshness.CHANGES).tick(only=only)
    delete = session.loaded.config.daemon.gc_delete
    return pass_document(report, _collect(session, delete=delete) if only == "gc" else [])


def _preview(session: Session, only: str | None) -> "PassDocument":
    """What a pass would begin with: merges that come before moves may change what moves."""
    from tiering.facts.merges import MergeRow
    from tiering.facts.moves import PassDocument, plan_document, would_move
    from tiering.merge.request import MergeRequest
    from tiering.policy.plan import Plan

    store = session.store()
    gc = _collect(session, delete=False) if only == "gc" else []
    plan = store.plan(rest="none") if only in (None, "moves") else Plan(now=store.context.clock())
    merges = (
        [
            MergeRow.planned(definition.full_name, plan.parts)
            for definition in store.definitions()
            if "merges" not in store.context.journal.overrides.paused(definition.uuid)
            for plan in store.plan_merges(definition.uuid, MergeRequest())
        ]
        if only in (None, "merges")
        else []
    )
    return PassDocument(
        moved=would_move(plan_document(store, plan).moves), deleted=plan.deletes, merges=merges, gc=gc, dry_run=True
    )


def _collect(session: Session, *, delete: bool) -> "list[GcRow]":
    """What the daemon's own collection does: of every bucket, with the default guard and caps."""
    from disks.garbage.rules import GcRules

    store = session.store()
    return [
        store.gc(disk.name, GcRules(delete=delete)).row
        for disk in store.context.disks.values()
        if disk.capabilities.remote and not disk.read_only
    ]


def snapshot(session: Session, disk: Annotated[str, typer.Argument(metavar="DISK", help="an object disk")]) -> None:
    """Write a snapshot of the file table to the bucket, so that rebuilds start there."""
    chosen = session.store().object_disk(disk)
    revision = chosen.revision if session.dry_run else chosen.write_snapshot()
    if session.options.json:
        session.output.document({"disk": disk, "revision": revision, "dry_run": session.dry_run})
    elif session.dry_run:
        session.output.line(f"Dry run: would write a snapshot of {disk} at revision {revision}.")
    else:
        session.output.line(f"Wrote a snapshot of {disk} at revision {revision}.")
