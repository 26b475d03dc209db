"""`replica list | status | queue | sync | drop | restore | audit`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from oplog.errors import PartlyDone, UsageError
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session, fail_if_partly
from tiering.cli.frame.verb import new_app, verb

if TYPE_CHECKING:
    from tiering.table.schema import TableDefinition
    from zerocopy.execution.auditing import Audited
    from zerocopy.rebuilding.rebuilding import Rebuilt
    from zerocopy.replica.status import OwnReplica, ReplicaStatus


TableName = Annotated[str, typer.Argument(metavar="DB.TABLE", help="the table")]
OptionalTable = Annotated[str | None, typer.Argument(metavar="DB.TABLE", help="only this table")]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Inspect and repair replicas of tables.")
    app.add_typer(group, name="replica")
    verb(group, "list")(list_replicas)
    verb(group)(status)
    verb(group)(queue)
    verb(group, changes=True, instead_of_dry_run="'frostline replica queue' and 'replica status' change nothing")(sync)
    verb(group, changes=True)(drop)
    verb(group, changes=True, instead_of_dry_run="'frostline fsck' shows what it would repair")(restore)
    verb(group, changes=True)(audit)


def list_replicas(session: Session) -> None:
    """List the replicated tables of this machine and whether they are writable."""
    from zerocopy.replica.status import own_replicas

    found = own_replicas(session.store().context)
    if session.options.json:
        session.output.document({"replicas": found})
        return
    session.output.table(
        ["table", "replica", "keeper path", "lag", "read-only because"],
        [(one.table, one.replica or "-", one.keeper_path, _lag(one.lag_seconds), one.read_only) for one in found],
        empty="No replicated tables here: 'frostline table create … --replicated' makes one.",
    )
    _tell_troubles(session, found)


def status(session: Session, table: OptionalTable = None) -> None:
    """Show every replica of each table and its lag.

    Exit 4: a replica is inactive or behind. Exit 3: the state of some tables is unknown.
    """
    from zerocopy.replica.status import statuses
    from zerocopy.verbs.each_table import EachTable

    store = session.store()
    tables = EachTable()
    each = tables.answers(_replicated(session, table), lambda definition: statuses(store.context, definition))
    found = [one for replicas in each for one in replicas]
    tables.raise_alone()
    if session.options.json:
        session.output.document({"replicas": found, "failed": tables.failed})
    else:
        session.output.table(
            ["table", "replica", "", "state", "parts", "queue", "behind", "lag", "address"],
            [
                (
                    *(one.table, one.replica, "here" if one.here else "", _state(one.active, one.lost)),
                    *(one.parts, one.queue, one.behind, _lag(one.lag_seconds), one.host or "-"),
                )
                for one in found
            ],
            empty="No replicated tables here.",
        )
        _tell_troubles(session, found)
        for name in store.context.config.replicas.merge_workers:
            for one in {one.table for one in found} - {one.table for one in found if one.replica == name}:
                session.output.note(f"{one}: it has no replica {name}, which replicas.merge_workers names")
    tables.tell(session, "its replicas are not known")
    if any(one.queue or one.behind or one.lost or not one.active for one in found):
        session.found_something()


def _lag(seconds: int | None) -> str:
    return "-" if seconds is None else f"{seconds} s"


def _tell_troubles(session: Session, statuses: "Sequence[OwnReplica | ReplicaStatus]") -> None:
    for status in statuses:
        if status.last_error:
            session.output.note(f"{status.table}: {status.last_error}; the next try is {_next(status.next_try)}")


def _next(at: str | None) -> str:
    return f"at {at}" if at is not None else "the next 'frostline replica sync': no daemon runs here"


def _state(active: bool, lost: bool) -> str:
    return "lost" if lost else "active" if active else "silent"


def queue(session: Session, table: TableName) -> None:
    """Show the pending entries of this machine's replica and recent fetches of shared parts, with reasons."""
    import msgspec

    from tiering.facts.replicas import replica_trouble
    from zerocopy.execution import queue as queues
    from zerocopy.replica.replica import Replica

    context = session.store().context
    (definition,) = _replicated(session, table)
    waiting = queues.queue(Replica.open(context, definition))
    failed = {one.node: one for one in context.journal.replicas.failures(definition.uuid)}
    next_try = replica_trouble(context.config, context.journal, definition).next_try
    whole = context.journal.replicas.whole(definition.uuid)
    if session.options.json:
        documents = []
        for one in waiting:
            known = failed.get(one.node)
            tried = {"reason": known.reason, "tries": known.tries, "last_try": known.last} if known else {"tries": 0}
            # What the entry itself says goes first: a merge has a reason of its own.
            said = {"number": one.number, **msgspec.to_builtins(one.entry)}
            documents.append({**said, "waits": {"reason": "", "last_try": None, **tried, "next_try": next_try}})
        came = [{"part": one.part, "reason": one.reason, "time": one.at} for one in whole]
        session.output.document({"table": table, "entries": documents, "whole": came})
        return
    session.output.table(
        ["number", "what", "part", "by", "time", "tries", "waits because"],
        [
            (
                *(one.number, str(one.entry.__struct_config__.tag), one.entry.brings, one.entry.replica),
                one.entry.time.isoformat(timespec="seconds"),
                *((failed[one.node].tries, failed[one.node].reason) if one.node in failed else (0, "")),
            )
            for one in waiting
        ],
        empty=f"Nothing waits for the replica of {table} here.",
    )
    if any(one.node in failed for one in waiting):
        session.output.note(f"the next try is {_next(next_try)}")
    for came_whole in whole:
        session.output.note(f"{came_whole.at}: {came_whole.part} was fetched whole: {came_whole.reason}")


def sync(session: Session, table: OptionalTable = None) -> None:
    """Apply the changes of other replicas now. The daemon does this in each pass.

    Exit 3: some of it failed. Exit 1: all of it failed.
    """
    from zerocopy.execution import work
    from zerocopy.execution.synced import SyncedTable, synced_table
    from zerocopy.verbs.each_table import EachTable

    store = session.store()

    def synced(definition: "TableDefinition") -> SyncedTable:
        return synced_table(definition.full_name, work.sync_patiently(store.context, definition))

    tables = EachTable()
    documents = tables.answers(_replicated(session, table), synced)
    tables.raise_alone()
    failed = sum(len(one.postponed) for one in documents)
    succeeded = sum(len(one.fetched) + len(one.merged) + len(one.dropped) + one.skipped for one in documents)
    if session.options.json:
        session.output.document({"synced": documents, "failed": tables.failed})
    for one in documents:
        dropped = f" {counted(len(one.dropped), 'part')} dropped," if one.dropped else ""
        freed = f" {counted(len(one.freed), 'part')} freed," if one.freed else ""
        session.output.line(
            f"{one.table}: {counted(len(one.fetched), 'part')} fetched"
            + (f" ({len(one.adopted)} without a byte)," if one.adopted else ",")
            + f" {counted(len(one.merged), 'part')} merged,"
            f"{dropped}{freed}"
            f" {counted(len(one.postponed), 'entry', 'entries')} postponed."
        )
        for whole in one.whole:
            session.output.note(f"fetched whole: {whole.part}: {whole.reason}")
        if one.altered:
            session.output.note(f"{one.table}: its definition is version {one.altered} now")
        if one.cloned:
            session.output.note(f"the log begins after what this replica has: it takes over what {one.cloned} has")
        _tell_aside(session, one.set_aside)
        for postponed in one.postponed:
            session.output.note(f"postponed: {postponed.part}: {postponed.reason}")
    tables.tell(session, "not synced")
    fail_if_partly(failed, succeeded, "entries")


def drop(
    session: Session,
    table: TableName,
    replica: Annotated[str, typer.Argument(metavar="NAME", help="replica of the lost machine")],
    give_up_parts: Annotated[
        bool, typer.Option("--give-up-parts", help="accept losing parts only this replica has")
    ] = False,
) -> None:
    """Remove a lost replica. Use 'table drop' for this machine's own.

    Refused while the replica is active, or has parts no other one has, unless --give-up-parts.
    """
    from zerocopy.execution import work

    store = session.store()
    (definition,) = _replicated(session, table)
    more = ", and give up the parts that it alone has" if give_up_parts else ""
    work.check_dead(store.context, definition, replica)
    session.confirm(f"Forget replica {replica} of {table}{more}?")
    gone: list[str] = []
    if not session.dry_run:
        gone = work.drop_dead(store.context, definition, replica, give_up=give_up_parts)
    if session.options.json:
        document = {"table": table, "replica": replica, "given_up": gone, "dry_run": session.dry_run}
        session.output.document(document)
        return
    session.output.line(f"{'Would forget' if session.dry_run else 'Forgot'} replica {replica} of {table}.")
    for name in gone:
        session.output.line(f"  {name} is given up")


def restore(
    session: Session,
    table: TableName,
    give_up_parts: Annotated[
        bool, typer.Option("--give-up-parts", help="accept losing parts that no replica has")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="NAME", help="after losing Keeper: do not wait for this replica"),
    ] = None,
    from_parts: Annotated[
        bool, typer.Option("--from-parts", help="rebuild Keeper's nodes after it was set back")
    ] = False,
) -> None:
    """Make this replica match Keeper and the other replicas, or restore Keeper's nodes if they are lost.

    Missing parts are fetched; unknown parts move to detached/. Exit 3: unfinished, or it waits for other replicas.
    Exit 1: all of it failed. Exit 4: no replica has a part that the log lists.
    """
    from zerocopy.execution import work

    store = session.store()
    (definition,) = _replicated(session, table)
    session.confirm(
        f"Make the replica of {table} here match the others?", look="'frostline fsck' shows what it repairs"
    )
    restored = work.restore(
        store.context, definition, give_up=give_up_parts, without=without or (), from_parts=from_parts
    )
    done, gone, rebuilt = restored.done, restored.gone, restored.rebuilt
    if session.options.json:
        session.output.document(
            {
                "table": table,
                "cloned": done.cloned,
                "set_aside": done.set_aside,
                "fetched": done.fetched,
                "postponed": [{"part": one.queued.entry.brings, "reason": one.reason} for one in done.postponed],
                "lost": gone,
                "given_up": give_up_parts and bool(gone),
                "rebuilt": rebuilt,
            }
        )
    if rebuilt is not None:
        _tell_rebuilt(session, table, rebuilt)
        _tell_aside(session, done.set_aside)
        if rebuilt.waits_for:
            replicas = len(rebuilt.replicas) + len(rebuilt.waits_for)
            raise PartlyDone(
                f"{len(rebuilt.waits_for)} of {counted(replicas, 'replica')} of {table} have not reported their parts",
                hint="nothing is wrong here: it continues when they do",
            )
        for postponed in done.postponed:
            session.output.note(f"later: {postponed.queued.entry.brings}: {postponed.reason}")
        return
    session.output.line(f"{table}: {counted(len(done.fetched), 'part')} fetched{_like(done.cloned)}.")
    _tell_aside(session, done.set_aside)
    for name in gone:
        session.output.line(f"  {name} {'is given up' if give_up_parts else 'is on no replica: --give-up-parts'}")
    if gone and not give_up_parts:
        session.found_something()
    fail_if_partly(len(done.postponed), len(done.fetched), "entries")


def _tell_rebuilt(session: Session, table: str, rebuilt: "Rebuilt") -> None:
    if rebuilt.came_late:
        session.output.line(f"{table}: this replica is in Keeper again; what it alone had is in detached/.")
        return
    session.output.line(f"{table}: {counted(rebuilt.parts, 'part')} of this machine reported to Keeper.")
    if rebuilt.waits_for:
        session.output.line(
            f"  waits for {', '.join(rebuilt.waits_for)}: 'frostline replica restore {table}' there, or --without NAME "
            "for a machine that is gone; until then the table can only be read"
        )
        return
    session.output.line(
        f"  whole again, out of {', '.join(rebuilt.replicas)}: {counted(rebuilt.lacking, 'part')} to fetch, "
        f"{rebuilt.refused} that do not fit"
    )


def _tell_aside(session: Session, parts: Sequence[str]) -> None:
    if parts:
        session.output.note(
            f"set aside in detached/, since no other replica knows {'it' if len(parts) == 1 else 'them'}: "
            + ", ".join(parts)
        )


def _like(cloned: str) -> str:
    return f", as replica {cloned} has them" if cloned else ""


def _replicated(session: Session, table: str | None) -> "list[TableDefinition]":
    store = session.store()
    if table is None:
        return [definition for definition in store.definitions() if definition.is_replicated]
    definition = store.definition(table)
    if not definition.is_replicated:
        raise UsageError(f"{table} is not replicated", hint="'frostline replica list' shows the tables that are")
    return [definition]


DiskName = Annotated[str | None, typer.Argument(metavar="DISK", help="default: every disk with `log:`")]
Repair = Annotated[bool, typer.Option("--repair", help="restore missing marks; remove stale marks of this machine")]


def audit(session: Session, disk: DiskName = None, repair: Repair = False) -> None:
    """Compare the marks of shared objects with all logs and the bucket. Deletes no object.

    gc on shared objects needs a clean audit. Exit 4: something differs.
    """
    from zerocopy.execution import auditing

    context = session.store().context
    chosen = list(auditing.disks(context, disk))
    found = [auditing.run(context, one, repairs=repair, dry_run=session.dry_run) for one in chosen]
    if session.options.json:
        session.output.document({"audits": [_audit_document(one) for one in found]})
    else:
        for one in found:
            for line in one.lines():
                session.output.line(line)
        if not found:
            session.output.line("No disk here shares its objects: none has log: in the configuration.")
    if any(one.differences or one.elsewhere for one in found):
        session.found_something()


def _audit_document(audited: "Audited") -> dict[str, object]:
    return {
        "disk": audited.disk,
        "logs": audited.logs,
        "sets": audited.sets,
        "marks": audited.marks,
        "objects": audited.objects,
        "differences": [
            {
                "kind": difference.kind,
                "log": difference.log,
                "directory": difference.reference.directory,
                "what": difference.what,
            }
            for difference in audited.differences
        ],
        "repaired": audited.repaired,
        "clean": audited.clean,
        "elsewhere": audited.elsewhere,
        "collects_from": audited.collects_from,
    }
