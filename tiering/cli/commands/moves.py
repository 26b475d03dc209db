"""`move`, `plan`, `apply`, `explain`, `moves list | cancel | wait`, `pause`, `resume`, `pin`, `unpin`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import NotFound, UsageError
from tiering.catalog.freshness import Freshness
from tiering.cli.commands.data import OptionalTable
from tiering.cli.commands.tables import TableName
from tiering.cli.frame.output import counted, encode
from tiering.cli.frame.session import Session, fail_if_partly
from tiering.cli.frame.verb import new_app, verb
from tiering.cli.reports.moves import move_report, print_moves
from tiering.config.units import format_size, format_time, parse_time

if TYPE_CHECKING:
    from tiering.facts.moves import PlanDocument
    from tiering.policy.decide import Move
    from tiering.policy.plan import Plan, Stay

Partition = Annotated[str | None, typer.Option(metavar="P", help="all parts of a partition")]
PartName = Annotated[str | None, typer.Option("--part", metavar="X", help="one part")]
WAIT_POLL_SECONDS = 0.5


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, changes=True)(move)
    verb(app)(plan)
    verb(app, changes=True)(apply)
    verb(app)(explain)
    group = new_app("List, cancel and wait for moves.")
    app.add_typer(group, name="moves")
    verb(group, "list")(list_moves)
    verb(group, changes=True)(cancel)
    verb(group)(wait)
    verb(app, changes=True)(pause)
    verb(app, changes=True)(resume)
    verb(app, changes=True)(pin)
    verb(app, changes=True)(unpin)


def move(
    session: Session,
    table: TableName,
    partition: Partition = None,
    part: PartName = None,
    to_volume: Annotated[str | None, typer.Option(metavar="V", help="the target volume")] = None,
    to_disk: Annotated[str | None, typer.Option(metavar="D", help="the target disk")] = None,
    keep_source: Annotated[
        bool,
        typer.Option("--keep-source", help="leave a read copy on the source disk"),
    ] = False,
) -> None:
    """Move a partition or part to a volume or disk now, overriding the policy."""
    _exactly_one("--partition", partition, "--part", part)
    _exactly_one("--to-volume", to_volume, "--to-disk", to_disk)
    from tiering.policy.change import already_there

    store = session.store()
    moves = store.plan_manual_move(
        table, partition=partition, part=part, to_volume=to_volume, to_disk=to_disk, keep_source=keep_source
    )
    there = already_there(partition=partition, part=part, to_volume=to_volume, to_disk=to_disk, keep_source=keep_source)
    _carry_out(session, moves, nothing=there)


def plan(
    session: Session,
    table: OptionalTable = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="plan for this time")] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="PLAN.json", help="save the plan for 'apply'")
    ] = None,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="exit 4 if moves are due, otherwise 0")
    ] = False,
) -> None:
    """Show what the policy would move, and why. Changes nothing."""
    from tiering.facts.moves import plan_document, why_nothing_moves

    store = session.store(Freshness.CHANGES)
    planned = store.plan(table, at=parse_time(at) if at else None, rest="next")
    document = plan_document(store, planned)
    if output:
        _write(Path(output), document)
    if session.options.json:
        session.output.document(document)
    else:
        print_moves(session.output, document.moves)
        if planned.deletes:
            size = format_size(sum(item.bytes for item in planned.deletes))
            session.output.line(
                f"{counted(len(planned.deletes), 'part')} ({size}) past their TTL; 'frostline tick' deletes them."
            )
        session.output.line(
            f"{counted(len(planned.moves), 'move')}, {format_size(planned.bytes)}, about"
            f" {counted(document.requests, 'write request')};"
            f" {counted(document.stays, 'part')} {'stays' if document.stays == 1 else 'stay'}."
        )
        for sentence in _held(planned):
            session.output.line(sentence)
        if output:
            session.output.line(f"Saved. Run it with: frostline apply {output}")
        _hint_at_next(session, planned)
    if not planned.moves and not planned.deletes:
        session.nothing_to_do(why_nothing_moves(store, planned))
    elif detailed_exitcode:
        session.found_something()


def apply(
    session: Session,
    plan: Annotated[str, typer.Argument(metavar="PLAN.json", help="a plan saved by 'plan -o'; '-': stdin")],
) -> None:
    """Run exactly the moves of a saved plan. Moves that no longer apply are skipped with a reason."""
    from tiering.cli.frame.saved_plan import read_plan

    _carry_out(session, [*read_plan(plan).moves], nothing="The plan has no moves.")


def explain(
    session: Session,
    table: TableName,
    part: Annotated[str, typer.Argument(metavar="PART", help="as shown by 'frostline parts'")],
) -> None:
    """Explain why a part moves or stays, and when it will move."""
    import msgspec

    explanation = session.store(Freshness.CHANGES).explain(table, part)
    if session.options.json:
        session.output.document(msgspec.to_builtins(explanation))
        return
    line = session.output.line
    line(f"part {explanation.part} of {explanation.table}, {format_size(explanation.bytes)}")
    line(f"  stored on   disk {explanation.disk}, volume {explanation.volume or '- (not in the policy)'}")
    target = f" to {explanation.target}" if explanation.target else ""
    line(f"  decision    {explanation.decision}{target}: {explanation.reason.detail} [{explanation.reason.kind}]")
    for rule in explanation.rules:
        line(f"  rule        {rule.rule}: {rule.detail}")
    if explanation.decision == "stay":
        due = explanation.next_due
        held = {
            "paused": "when it is resumed",
            "pin": "when it is unpinned",
            "clock": "when the clock is confirmed",
        }.get(explanation.reason.kind)
        when = format_time(due.replace(microsecond=0)) if due else held or "no rule will move it"
        line(f"  next        {when}")


def list_moves(
    session: Session,
    active: Annotated[bool, typer.Option("--active", help="only unfinished moves")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="only failed moves")] = False,
    limit: Annotated[int, typer.Option(metavar="N", help="at most N, newest first")] = 100,
) -> None:
    """List moves, newest first: state, reason, attempts."""
    records = session.store().context.journal.work.moves(active=active, failed=failed, limit=limit)
    if session.options.json:
        session.output.document({"moves": records})
        return
    session.output.table(
        ["id", "state", "table", "part", "from", "to", "size", "tries", "when", "reason"],
        [
            (
                record.id,
                record.state,
                record.table,
                record.part,
                record.source,
                record.target,
                format_size(record.bytes),
                record.attempts,
                f"{record.updated:%Y-%m-%d %H:%M}",
                record.error or record.reason_detail,
            )
            for record in records
        ],
        empty="No moves.",
    )


def cancel(session: Session, id: Annotated[int, typer.Argument(metavar="ID", help="as shown by 'moves list'")]) -> None:  # noqa: A002
    """Cancel an unfinished move at its next step and remove its copies."""
    journal = session.store().context.journal
    state = journal.work.move(id).state if session.dry_run else journal.work.request_cancel(id)
    stoppable = state in ("planned", "copying")
    if session.options.json:
        session.output.document({"id": id, "state": state, "cancel": stoppable, "dry_run": session.dry_run})
    elif stoppable:
        session.output.line(f"Move {id} was asked to stop." if not session.dry_run else f"Would stop move {id}.")
    if not stoppable:
        session.nothing_to_do(f"Move {id} is {state}: there is nothing to cancel.")


def wait(
    session: Session,
    id: Annotated[int | None, typer.Argument(metavar="ID", help="default: all unfinished moves")] = None,  # noqa: A002
) -> None:
    """Wait until a move, or every unfinished one, ends. Fails if one failed."""
    import time

    journal = session.store().context.journal
    waiting = (
        {journal.work.move(id).id} if id is not None else {record.id for record in journal.work.moves(active=True)}
    )
    while any(journal.work.move(number).state in ("planned", "copying", "committed") for number in waiting):
        time.sleep(WAIT_POLL_SECONDS)
    records = [journal.work.move(number) for number in sorted(waiting)]
    documents = [
        {"id": record.id, "part": record.part, "state": record.state, "error": record.error} for record in records
    ]
    if session.options.json:
        session.output.document({"moves": documents})
    for record in records:
        session.output.line(f"move {record.id} of {record.part}: {record.state} {record.error}".rstrip())
    bad = sum(record.state == "failed" for record in records)
    fail_if_partly(bad, len(records) - bad, "moves")


def pause(
    session: Session,
    table: OptionalTable = None,
    moves: Annotated[bool, typer.Option("--moves", help="only moves")] = False,
    merges: Annotated[bool, typer.Option("--merges", help="only merges")] = False,
    gc: Annotated[bool, typer.Option("--gc", help="only garbage collection")] = False,
) -> None:
    """Pause background moves, merges and gc, for one table or all. Manual commands still work."""
    _set_pause(session, table, _kinds(moves, merges, gc), paused=True)


def resume(
    session: Session,
    table: OptionalTable = None,
    moves: Annotated[bool, typer.Option("--moves", help="only moves")] = False,
    merges: Annotated[bool, typer.Option("--merges", help="only merges")] = False,
    gc: Annotated[bool, typer.Option("--gc", help="only garbage collection")] = False,
) -> None:
    """Resume background work."""
    _set_pause(session, table, _kinds(moves, merges, gc), paused=False)


def pin(
    session: Session,
    table: TableName,
    partition: Partition = None,
    part: PartName = None,
    to_volume: Annotated[str | None, typer.Option(metavar="V", help="move it there and keep it there")] = None,
) -> None:
    """Keep a partition or part where it is, or on a volume, regardless of the rules."""
    _exactly_one("--partition", partition, "--part", part)
    store = session.store()
    definition = store.definition(table)
    if part is not None:
        store.context.catalog.part(definition, part)
    elif partition not in (known := {stored.name.partition for stored in store.parts(table)}):
        near = ", ".join(sorted(known)[:5]) + (", …" if len(known) > 5 else "")
        raise NotFound(
            f"table {table} has no partition {partition}", hint=f"it has: {near}" if known else "it holds no parts"
        )
    if to_volume is not None:
        volumes = [volume.name for volume in session.loaded.config.policy(definition.policy).volumes]
        if to_volume not in volumes:
            raise NotFound(f"No such volume: {to_volume}", hint=f"policy {definition.policy} has: {', '.join(volumes)}")
    if not session.dry_run:
        store.context.journal.overrides.pin(
            definition.uuid, partition=partition, part=part, volume=to_volume, actor=store.context.actor
        )
    where = f"to volume {to_volume}" if to_volume else "where it is"
    _say(
        session,
        {"table": table, "partition": partition, "part": part, "volume": to_volume, "pinned": True},
        f"Pinned {part or f'partition {partition}'} of {table} {where}.",
    )


def unpin(session: Session, table: TableName, partition: Partition = None, part: PartName = None) -> None:
    """Remove a pin, so that the rules apply again."""
    _exactly_one("--partition", partition, "--part", part)
    store = session.store()
    definition = store.definition(table)
    if not session.dry_run:
        store.context.journal.overrides.unpin(definition.uuid, partition=partition, part=part)
    _say(
        session,
        {"table": table, "partition": partition, "part": part, "pinned": False},
        f"Unpinned {part or f'partition {partition}'} of {table}.",
    )


def _carry_out(session: Session, moves: "list[Move]", *, nothing: str) -> None:
    from tiering.facts.moves import MovesDocument, would_move

    store = session.store()
    if session.dry_run or not moves:
        rows = would_move(moves)
        if session.options.json:
            session.output.document(MovesDocument(moved=rows, dry_run=session.dry_run))
        else:
            print_moves(session.output, rows)
            if moves:
                session.output.line(f"Dry run: {counted(len(moves), 'part')} would move; nothing was changed.")
        if not moves:
            session.nothing_to_do(nothing)
        return
    move_report(session, store.apply(moves))


def _held(planned: "Plan") -> "list[str]":
    """A sentence for each rule that keeps due parts from moving, with the first of them."""
    from tiering.policy.plan import HELD

    by_kind: dict[str, list[Stay]] = {}
    for stay in planned.stays:
        if stay.reason.kind in HELD:
            by_kind.setdefault(stay.reason.kind, []).append(stay)
    return [
        f"Postponed ({kind}): {counted(len(stays), 'part')}; {stays[0].table} {stays[0].part}: {stays[0].reason.detail}"
        for kind, stays in by_kind.items()
    ]


def _hint_at_next(session: Session, planned: Any) -> None:
    upcoming = planned.next_due
    if upcoming is not None and not planned.moves:
        when = format_time(upcoming.replace(microsecond=0))
        session.output.note(f"The next part is due at {when}; preview with --at TIME.")


def _write(path: Path, document: "PlanDocument") -> None:
    from disks.effects import replace_file

    try:
        replace_file(path, encode(document) + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _set_pause(session: Session, table: str | None, kinds: list[Any], *, paused: bool) -> None:
    if table is None:
        session.begin()  # it is kept for the tables that will come
    store = session.store()
    uuid = store.definition(table).uuid if table else None
    journal = store.context.journal
    if not session.dry_run:
        if paused:
            journal.overrides.pause(uuid, kinds, actor=store.context.actor)
        else:
            journal.overrides.resume(uuid, kinds)
    what = f"{', '.join(kinds)} of {table or 'all tables'}"
    _say(
        session,
        {"table": table, "kinds": kinds, "paused": paused},
        f"Paused {what}. Verbs still work when you run them." if paused else f"Resumed {what}.",
    )


def _kinds(moves: bool, merges: bool, gc: bool) -> list[str]:
    chosen = [kind for kind, wanted in (("moves", moves), ("merges", merges), ("gc", gc)) if wanted]
    return chosen or ["moves", "merges", "gc"]


def _say(session: Session, document: dict[str, object], text: str) -> None:
    if session.options.json:
        session.output.document({**document, "dry_run": session.dry_run})
    else:
        session.output.line(f"Dry run, nothing was changed: {text}" if session.dry_run else text)


def _exactly_one(first: str, first_value: object, second: str, other: object) -> None:
    if (first_value is None) == (other is None):
        raise UsageError(f"use either {first} or {second}")
