"""`disk adopt|replace|forget|retire-log|drain`: what a person who knows says of a disk that is not what it was, of a
machine that is gone, or of a disk that is to go."""

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from oplog.errors import FrostlineError, NotFound, PartlyDone, Refused, UsageError
from tiering.catalog.freshness import Freshness
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session, actor, fail_if_partly
from tiering.cli.frame.verb import new_app, verb
from tiering.cli.reports.adoption import Adoption
from tiering.cli.reports.moves import print_moves, print_report

if TYPE_CHECKING:
    from tiering.catalog.identities.identity import Identities
    from tiering.engine.draining import DetachedThere, DrainPlan, StaysThere
    from tiering.engine.retiring import Asked
    from tiering.facts.disk_decisions import DiskDecision, RetiredLog
    from tiering.journal.known_disks import Holdings, KnownDisk

Name = Annotated[str, typer.Argument(metavar="NAME", help="name in the configuration")]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Resolve disk identity problems, drain disks.")
    app.add_typer(group, name="disk")
    verb(group, changes=True)(adopt)
    verb(group, changes=True)(replace)
    verb(group, changes=True)(forget)
    verb(group, changes=True)(retire_log)
    verb(group, changes=True)(drain)


def adopt(session: Session, name: Name) -> None:
    """Accept the disk at the configured path as the one of this name.

    Duplicate and dropped parts move to detached/; nothing is deleted. Exit 13: the disk has no tables, or two names.
    Exit 5: a bucket needed for the comparison is unavailable.
    """
    identities, known = _configured(session, name)
    found = identities.shown(name)
    for fault in identities.faults:
        if fault.disk == name and (fault.kind == "twice" or (fault.kind == "other" and found is None)):
            raise fault.error
    if found is None and known is not None and known.id and not identities.has_tables(name):
        raise Refused(
            f"{identities.location(name)} holds no disk to adopt: no id and no tables",
            hint=f"mount it; if the path is new on purpose: 'frostline disk replace {name}'",
        )
    identities.compare_ages()  # how far have the logs seen it
    is_back = any(fault.disk == name and fault.kind == "given_up" for fault in identities.faults)
    adoption = Adoption.of(session, identities, name) if known is not None or is_back else None
    identities.compare_ages()  # what the buckets said meanwhile
    _decide(session, "adopt", name, identities, known, found, adoption)


def replace(session: Session, name: Name) -> None:
    """Give up the data of a lost disk, and use its path for a new one. Exit 13: the path is not empty."""
    identities, known = _configured(session, name)
    found = identities.at_place(name)
    if found is not None or not identities.is_empty(name):
        hint = f"'frostline disk adopt {name}' accepts it unchanged"
        what = f"disk {found}" if found is not None else "tables"
        if found is None and not identities.has_tables(name):
            hint, what = f"move them elsewhere, then 'frostline disk replace {name}'", "files that are no disk's"
        raise Refused(f"{identities.location(name)} is not empty: it holds {what}", hint=hint)
    _decide(session, "replace", name, identities, known, found)


def forget(session: Session, name: Name) -> None:
    """Give up the data of a disk that is no longer configured. Exit 13: it is configured."""
    if name in session.loaded.config.disks:
        raise Refused(f"disk {name} is configured", hint=f"remove it first, or 'frostline disk replace {name}'")
    identities = session.identities(list(session.loaded.config.disks))  # the disk may be there under another name
    known = identities.record(name)
    if known is None:
        raise NotFound(f"this machine has no record of disk {name}", hint="'frostline disks' lists them")
    _decide(session, "forget", name, identities, known, None)


LogName = Annotated[str, typer.Argument(metavar="LOG", help="name of the other log")]
GiveUp = Annotated[bool, typer.Option("--give-up", help="retire it even if it has data no other log has")]


def retire_log(session: Session, disk: Name, log: LogName, give_up: GiveUp = False) -> None:
    """Retire the log of a lost machine from a prefix that several machines share (`log:`).

    Shows what only that log holds, which gc may delete after 24 hours. Exit 13: the log was written within 24 hours,
    or holds data no other log has and --give-up is missing.
    """
    from disks.contracts.bucket_disk import LoggedDisk
    from disks.kinds import as_disk
    from disks.object_disk.sharing import retiring
    from tiering.engine.retiring import look

    context = session.store().context
    logged = as_disk(context.disk(disk), LoggedDisk)
    if logged is None:
        raise UsageError(f"disk {disk} has no log of commits")
    found = look(context, logged, log)
    refusal = None
    if found.holds_something and not give_up and found.retired is None:
        refusal = f"log {log} of disk {disk} holds what no other log does: {_held_alone(found)}"
    if not session.options.json:
        _print_asked(session, found)
    if refusal is not None and not session.dry_run:
        hint = f"'disk adopt {disk}' on a machine with `log: {log}` takes it over; --give-up gives it up"
        raise Refused(refusal, hint=hint)
    if found.retired is None:
        session.confirm(f"Retire log {log} of disk {disk} for good?")
        if not session.dry_run:
            retiring.retire(logged, log)
    if session.options.json:
        session.output.document(_asked_document(session, found, refusal))
    elif found.retired is not None:
        session.nothing_to_do(f"Log {log} was retired already.")
    elif session.dry_run:
        session.output.line("Dry run: nothing was changed.")
    else:
        session.output.line("Retired: gc ignores it in 24 hours.")


Stop = Annotated[bool, typer.Option("--stop", help="allow new parts again; moved parts stay where they are")]


def drain(session: Session, name: Name, stop: Stop = False) -> None:
    """Move everything off a disk and keep new parts away from it.

    Run it again to continue. Exit 3: something is left. Exit 13: something fits nowhere; nothing was moved.
    """
    from tiering.engine import draining
    from tiering.facts.disk_decisions import DrainDocument, detached_rows

    context = session.store().context
    if name not in context.disks:
        raise NotFound(f"No such disk: {name}", hint=f"the disks are: {', '.join(sorted(context.disks))}")
    if stop:
        _end_drain(session, name)
        return
    if session.dry_run:
        _print_drain_plan(session, name, draining.plan(context, name))
        return
    report = draining.drain(context, name)
    session.end_store()
    session.store(Freshness.LAST_ANSWER)  # counts what is there: else nobody could forget the disk without a doubt
    moved, failed = report.moves.moved, report.moves.failed
    if session.options.json:
        session.output.document(
            DrainDocument(
                disk=name,
                moved=moved,
                failed=failed,
                skipped=report.moves.skipped,
                detached=detached_rows(report.detached),
                left=report.left,
                empty=not report.left,
                drained=True,
                dry_run=False,
            )
        )
    else:
        print_report(session.output, report.moves)
        _print_beside(session, report.detached, report.left)
        if not report.left:
            _say_what_next(session, name)
    fail_if_partly(len(failed), len(moved), "moves", [move.kind for move in failed])
    if report.left:
        raise PartlyDone(f"disk {name} is not empty", hint="see above for what is left and why; run it again")


def _end_drain(session: Session, name: str) -> None:
    overrides = session.store().context.journal.overrides
    drained = name in overrides.drained()
    if drained and not session.dry_run:
        overrides.end_drain(name)
    if session.options.json:
        session.output.document({"disk": name, "drained": drained and session.dry_run, "dry_run": session.dry_run})
    elif drained:
        done = f"Would allow parts on {name} again." if session.dry_run else f"{name} accepts parts again."
        session.output.line(done)
    if not drained:
        session.nothing_to_do(f"Disk {name} is not drained.")


def _print_drain_plan(session: Session, name: str, planned: "DrainPlan") -> None:
    from tiering.facts.disk_decisions import DrainDocument, detached_rows
    from tiering.facts.moves import would_move

    moves = would_move(planned.moves)
    if session.options.json:
        session.output.document(
            DrainDocument(
                disk=name,
                moved=moves,
                detached=detached_rows(planned.detached),
                left=planned.stays,
                empty=not (planned.moves or planned.detached or planned.stays),
                drained=name in session.store().context.journal.overrides.drained(),
                dry_run=True,
            )
        )
        return
    print_moves(session.output, moves)
    _print_beside(session, planned.detached, planned.stays)
    session.output.line(f"Dry run: {counted(len(planned.moves), 'part')} would move; nothing was changed.")


def _print_beside(session: Session, detached: "Sequence[DetachedThere]", left: "Sequence[StaysThere]") -> None:
    for one in detached:
        session.output.line(f"detached {one.definition.full_name} {one.part.name}  -> {one.target}")
    for item in left:
        session.output.line(f"left     {item.table} {item.what}: {item.why}")


def _say_what_next(session: Session, name: str) -> None:
    line = session.output.line
    line(f"Disk {name} is empty, and it gets no parts until 'frostline disk drain {name} --stop'.")
    if session.store().disk(name).capabilities.remote:
        line(f"Its objects are removed by 'frostline gc {name} --delete' when no revision needs them any more.")
    line(f"To give it up: remove it from the configuration, then 'frostline disk forget {name}'.")


def _held_alone(asked: "Asked") -> str:
    if asked.unreadable is not None:
        return f"unknown ({asked.unreadable})"
    parts = sum(len(table.parts) for table in asked.alone)
    rows = sum(table.rows for table in asked.alone)
    objects = f"{counted(asked.objects, 'object')} of {asked.size_bytes:,} bytes"
    told = f"{counted(parts, 'part')} with {counted(rows, 'row')}, {objects}"
    return f"{told}; pins: {', '.join(asked.pins)}" if asked.pins else told


def _asked_document(session: Session, asked: "Asked", refusal: str | None) -> "RetiredLog":
    from tiering.facts.disk_decisions import LoggedTable, RetiredLog

    return RetiredLog(
        disk=asked.disk,
        log=asked.log,
        holder=asked.holder,
        last_sign=asked.last_sign,
        alone=[LoggedTable(table.table, list(table.parts), table.rows, table.size_bytes) for table in asked.alone],
        objects=asked.objects,
        bytes=asked.size_bytes,
        pins=asked.pins,
        unreadable=asked.unreadable,
        refused=refusal,
        retired_since=asked.retired.since if asked.retired is not None else None,
        changed=asked.retired is None and not session.dry_run,
        dry_run=session.dry_run,
    )


def _print_asked(session: Session, asked: "Asked") -> None:
    line = session.output.line
    if asked.retired is not None:
        line(f"log {asked.log}: retired by {asked.retired.holder} at {asked.retired.since:%Y-%m-%d %H:%M} UTC")
        return
    seen = f"last wrote at {asked.last_sign:%Y-%m-%d %H:%M} UTC" if asked.last_sign is not None else "never wrote"
    line(f"log {asked.log} of disk {asked.disk}: machine {asked.holder or 'unknown'}, {seen}")
    for table in asked.alone:
        size = f"{counted(table.rows, 'row')}, {table.size_bytes:,} bytes"
        line(f"alone  {table.table}: {counted(len(table.parts), 'part')}, {size}")
        for part in table.parts:
            line(f"       {part}")
    if asked.holds_something:
        line(f"alone  in all: {_held_alone(asked)}")
    else:
        line("It holds nothing that no other log does.")


def _configured(session: Session, name: str) -> "tuple[Identities, KnownDisk | None]":
    config = session.loaded.config
    if name not in config.disks:
        hint = f"the disks are: {', '.join(sorted(config.disks))}; 'disk forget' is for those that are not configured"
        raise NotFound(f"No such disk: {name}", hint=hint)
    identities = session.identities(list(config.disks))
    return identities, identities.record(name)


def _decide(
    session: Session,
    decision: str,
    name: str,
    identities: "Identities",
    record: "KnownDisk | None",
    shown_id: str | None,
    adoption: "Adoption | None" = None,
) -> None:
    from msgspec import UNSET

    from tiering.facts.disk_decisions import DiskDecision, DiskThere, HeldTable, RecordedDisk, SetAsideRow

    if record is None and adoption is None:
        session.nothing_to_do(f"This machine has no record of disk {name}: there is nothing to {decision}.")
        if session.options.json:
            session.output.document({"disk": name, "changed": False, "dry_run": session.dry_run})
        return
    if record is not None and adoption is None:
        holdings, is_all = _held(session, identities, record)
    else:  # what this machine keeps of a bucket is what was found there
        holdings, is_all = (record.holdings, record.counted) if record is not None else ({}, False)
    document = DiskDecision(
        disk=name,
        known=RecordedDisk(
            id=(record.id if record is not None else "") or None,
            place=record.location if record is not None else "",
            tables=[HeldTable(held.table, uuid, held.parts, held.rows) for uuid, held in holdings.items()],
            counted=is_all,
        ),
        found=DiskThere(shown_id, identities.location(name), adoption.tables if adoption is not None else UNSET),
        changed=not session.dry_run,
        dry_run=session.dry_run,
        set_aside=UNSET
        if adoption is None
        else [
            SetAsideRow(twice.part.definition.full_name, twice.part.facts.name, twice.reason, twice.text())
            for twice in adoption.doubled
        ],
    )
    if not session.options.json:
        _print(session, document)
    session.confirm(_question(decision, name, sum(holding.parts for holding in holdings.values()), is_all))
    if not session.dry_run:
        if adoption is not None:
            adoption.set_aside()
        for sentence in identities.decide(decision, name, actor()):
            session.output.note(sentence)
        if decision == "adopt" and identities.is_shared(name):
            _put_marks_back(session)
        for fault in identities.faults:
            if decision == "adopt" and fault.kind == "older" and fault.disk != name:
                session.output.note(f"not adopted: {fault.error.message}; {fault.error.hint}")
    if session.options.json:
        session.output.document(document)
    else:
        session.output.line("Dry run: nothing was changed." if session.dry_run else "Done.")


def _put_marks_back(session: Session) -> None:
    """A bucket that was set back lacks marks of this machine's block ranges: recovery writes them again before another
    machine takes the same numbers."""
    try:
        session.store()
    except FrostlineError as error:
        session.output.note(f"the next command compares block ranges with the bucket: {error.message}")


def _held(session: Session, identities: "Identities", record: "KnownDisk") -> "tuple[Holdings, bool]":
    """What lay on the disk, and whether that is all: where somebody wrote to it since it was counted, what this machine
    keeps of a bucket is read again. Of a local disk nothing else is known."""
    from tiering.catalog.catalog import Catalog
    from tiering.catalog.reachability import holdings

    if record.counted:
        return record.holdings, True
    try:
        catalog = Catalog(session.config, identities.kept(record.name))
        with closing(catalog):
            catalog.refresh(disks=())
            counted_holdings = holdings(catalog).get(record.name)
    except FrostlineError:  # nothing is kept, or the bucket is asked for some of it
        counted_holdings = None
    return (record.holdings, False) if counted_holdings is None else (counted_holdings, not catalog.broken)


def _question(decision: str, name: str, parts: int, is_all: bool) -> str:
    match decision:
        case "adopt":
            return f"Use the data that is there now as disk {name}?"
        case "replace" | "forget":
            more = "" if is_all else ", and data written since,"
            return f"Give up {counted(parts, 'part')} of disk {name}{more} for good?"
    raise UsageError(f"no such decision: {decision}")


def _print(session: Session, document: "DiskDecision") -> None:
    line = session.output.line
    known, found = document.known, document.found
    if known.place:
        line(f"known  disk {known.id or 'without an id'} at {known.place}")
    for held in known.tables:
        rows = counted(held.rows, "row")
        line(f"       {held.table}: {counted(held.parts, 'part')}, {rows} when last counted")
    if known.place and not known.counted:
        line("       and it was written to since: its parts may have changed")
    if found.place:
        line(f"found  {'disk ' + found.id if found.id else 'no disk'} at {found.place}")
    else:
        line("found  nothing: it is not in the configuration")
    for held in found.tables or ():
        line(f"       {held.table}: {counted(held.parts, 'part')}, {counted(held.rows, 'row')}")
    for one in document.set_aside or ():
        line(f"aside  {one.what}")
