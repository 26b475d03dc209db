"""`backup prune`, `gc`: which backups stay, and what nothing names any more."""

from typing import TYPE_CHECKING, Annotated

import typer

from backup.verbs.options import To, opened
from oplog.errors import Refused
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session, actor
from tiering.cli.reports.garbage import GC_AGAIN, print_rest
from tiering.config.units import format_size, parse_duration, parse_percent, parse_size

if TYPE_CHECKING:
    from backup.retention.prune import PruneDocument, PruneResult, RepositoryGc
    from disks.garbage.report import GcReport, GcRow
    from disks.garbage.rules import GcRules

Guard = Annotated[str, typer.Option("--guard-interval", metavar="24h", help="keep younger objects")]
MostBytes = Annotated[str | None, typer.Option("--max-delete-bytes", metavar="N", help="stop after N bytes")]
Quarantine = Annotated[str, typer.Option(metavar="0s", help="delete only what an earlier run marked this long ago")]
ShortGuard = Annotated[
    bool,
    typer.Option("--allow-short-guard-interval", help="allow less than 1h; only if no backup runs meanwhile"),
]


def prune(
    session: Session,
    keep_last: Annotated[int | None, typer.Option(metavar="N", help="the newest N backups")] = None,
    keep_hourly: Annotated[int | None, typer.Option(metavar="N", help="the newest backup of each of N hours")] = None,
    keep_daily: Annotated[int | None, typer.Option(metavar="N", help="the newest backup of each of N days")] = None,
    keep_weekly: Annotated[int | None, typer.Option(metavar="N", help="the newest backup of each of N weeks")] = None,
    keep_monthly: Annotated[int | None, typer.Option(metavar="N", help="the newest backup of each of N months")] = None,
    keep_yearly: Annotated[int | None, typer.Option(metavar="N", help="the newest backup of each of N years")] = None,
    keep_within: Annotated[
        str | None, typer.Option(metavar="30d", help="backups at most this much older than the newest")
    ] = None,
    keep_tag: Annotated[list[str] | None, typer.Option(metavar="T", help="backups with this tag")] = None,
    guard_interval: Guard = "24h",
    max_delete_bytes: MostBytes = None,
    max_delete_fraction: Annotated[
        str, typer.Option(metavar="0.1", help="as in 'backup gc', besides data of the pruned backups")
    ] = "0.1",
    quarantine: Quarantine = "0s",
    allow_short_guard_interval: ShortGuard = False,
    to: To = None,
) -> None:
    """Delete backups that no --keep rule selects, and the data only they hold.

    Rules apply per machine and set of tables, in UTC. The newest verified backup always stays. -n shows the reasons and
    the bytes to be freed.
    """
    from backup.retention.prune import PruneRequest, retained
    from backup.retention.rules import KeepRules

    keep = KeepRules(
        last=keep_last,
        hourly=keep_hourly,
        daily=keep_daily,
        weekly=keep_weekly,
        monthly=keep_monthly,
        yearly=keep_yearly,
        within=parse_duration(keep_within) if keep_within is not None else None,
        tags=frozenset(keep_tag or ()),
    )
    keep.check()
    rules = _rules(guard_interval, max_delete_bytes, max_delete_fraction, quarantine, allow_short_guard_interval, True)
    store = session.store()
    with opened(session, to) as repository:
        preview = repository.prune(PruneRequest(keep, rules, actor(), dry_run=True))
        if not session.options.json or session.dry_run:
            _print_choices(session, preview)
        done = preview
        if not session.dry_run:
            if preview.dropped:
                names = counted(len(preview.dropped), "backup")
                session.confirm(f"Drop {names} from {repository.name}? They cannot be restored any more.")
            done = repository.prune(PruneRequest(keep, rules, actor()), store)
    if session.options.json:
        session.output.document(_prune_document(repository.name, done))
    elif session.dry_run:
        session.output.line("A preview: nothing was changed.")
    else:
        assert done.gc is not None
        _print_gc(session, done.gc)
    if not session.dry_run:
        _fail_where_needed(done.gc, delete=True)
        if done.locked:
            raise retained(repository.name, done.locked)


def gc(
    session: Session,
    delete: Annotated[bool, typer.Option("--delete", help="delete; otherwise only report")] = False,
    guard_interval: Guard = "24h",
    max_delete_bytes: MostBytes = None,
    max_delete_fraction: Annotated[
        str, typer.Option(metavar="0.1", help="delete nothing if more than this share would go")
    ] = "0.1",
    quarantine: Quarantine = "0s",
    allow_short_guard_interval: ShortGuard = False,
    to: To = None,
) -> None:
    """Report unreferenced objects of the repository, or delete them with --delete.

    Exit 4: the report found some, or a reason not to delete. Exit 13: a safety rule refused.
    """
    delete = delete and not session.dry_run
    rules = _rules(
        guard_interval, max_delete_bytes, max_delete_fraction, quarantine, allow_short_guard_interval, delete
    )
    with opened(session, to) as repository:
        if delete:
            session.confirm(f"Delete what no backup of {repository.name} names, older than {guard_interval}?")
        report = repository.gc(rules, actor=actor())
    if session.options.json:
        from msgspec.structs import asdict

        from backup.retention.prune import RepositoryGcDocument

        row = asdict(_gc_row(report))
        session.output.document(RepositoryGcDocument(repository.name, **row, dry_run=session.dry_run))
    else:
        _print_gc(session, report)
    _fail_where_needed(report, delete=delete)
    if not delete and (report.orphaned or report.refused):
        session.found_something()


def _rules(guard: str, most: str | None, fraction: str, quarantine: str, short: bool, delete: bool) -> "GcRules":
    from disks.garbage.rules import GcRules

    return GcRules(
        guard=parse_duration(guard),
        delete=delete,
        max_delete_bytes=parse_size(most) if most else None,
        max_delete_fraction=parse_percent(fraction),
        quarantine=parse_duration(quarantine),
        allow_short_guard=short,
    )


def _gc_row(report: "GcReport") -> "RepositoryGc":
    from backup.retention.prune import RepositoryGc

    names = set(RepositoryGc.__struct_fields__) - {"leftovers_deleted"}
    fields = {name: getattr(report, name) for name in names}
    return RepositoryGc(**fields, leftovers_deleted=report.scratch_deleted)


def _prune_document(repository: str, done: "PruneResult") -> "PruneDocument":
    from msgspec import UNSET

    from backup.retention.prune import PruneDocument

    return PruneDocument(
        repository=repository,
        kept=done.kept_rows,
        dropped=done.dropped_rows,
        freed_bytes=done.freed_bytes,
        locked={key: until.isoformat() if until else None for key, until in done.locked.items()},
        dry_run=done.dry_run,
        gc=_gc_row(done.gc) if done.gc is not None and not done.dry_run else UNSET,
    )


def _fail_where_needed(report: "GcReport | None", *, delete: bool) -> None:
    assert report is not None
    if report.refused and delete:
        raise Refused(f"nothing more was deleted from {report.disk}: {report.refused}", hint=GC_AGAIN)
    if (failure := report.failure()) is not None:
        raise failure


def _print_choices(session: Session, preview: "PruneResult") -> None:
    both = [(row, "keep") for row in preview.kept_rows] + [(row, "drop") for row in preview.dropped_rows]
    rows = [
        [row.name, row.machine, row.taken, verdict, "; ".join(row.reasons)]
        for row, verdict in sorted(both, key=lambda pair: (pair[0].taken, pair[0].id))
    ]
    session.output.table(["backup", "machine", "taken", "", "why"], rows, empty="no backups yet")
    dropped = len(preview.dropped)
    kept, size = counted(len(both) - dropped, "backup"), format_size(preview.freed_bytes)
    session.output.line(f"{kept} kept, {dropped} dropped; {size} that nothing else names")


def _print_gc(session: Session, row: "GcRow") -> None:
    line = session.output.line
    line(f"  referenced  {counted(row.referenced, 'object')} that backups name")
    line(f"  pending     {counted(row.pending, 'object')}: nothing names them yet, but they are recent")
    line(f"  orphaned    {counted(row.orphaned, 'object')}, {format_size(row.orphaned_bytes)}")
    if row.quarantined:
        line(f"  quarantined {row.quarantined:,} of them: deleted when their quarantine ends")
    line(f"  deleted     {counted(row.deleted, 'object')}, {format_size(row.deleted_bytes)}")
    if row.kept:
        line(f"  locked      {counted(len(row.kept), 'object')} that the store keeps; a later gc deletes them")
    print_rest(session, row)
