"""`fsck` and `gc`: is everything there that must be, and is anything there that need not be."""

import os
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import AccessDenied, QuotaReached, Refused, UsageError
from tiering.cli.frame.output import counted
from tiering.cli.frame.remote_work import Master, Spark, SparkWork, remote, wanted
from tiering.cli.frame.session import BEGIN_OR_FIND, Session, actor
from tiering.cli.frame.verb import verb
from tiering.cli.reports.garbage import GC_AGAIN, print_gc
from tiering.config.units import format_size, parse_duration, parse_percent, parse_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from disks.base import Disk
    from disks.garbage.report import GcRow
    from disks.garbage.rules import GcRules
    from disks.workers.runner import Remote
    from restore.check.check import CheckOptions, CheckResult, Problem
    from restore.verbs.documents import CheckDocument, GcDocument, GcSum
    from tiering.catalog.identities.faults import Fault
    from tiering.catalog.identities.identity import Identities
    from tiering.config.settings import Config
    from tiering.engine.store import Store
    from tiering.journal.journal import Journal


Disks = Annotated[list[str] | None, typer.Argument(metavar="DISK", help="default: all that apply")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, changes=True)(fsck)
    verb(app, changes=True)(gc)


def fsck(
    session: Session,
    disk: Disks = None,
    read_data: Annotated[bool, typer.Option("--read-data", help="read all data and compare SHA-256")] = False,
    read_data_subset: Annotated[
        str | None, typer.Option(metavar="5%", help="read a rotating share; 3/20: the third of twenty")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="rebuild derived files, set unreadable parts aside; never deletes")
    ] = False,
    spark: Spark = False,
    master: Master = None,
) -> None:
    """Check tables, parts, files and objects, and if configured pins of backups and Keeper.

    Exit 4: problems found.
    """
    from contextlib import ExitStack

    from oplog.entry import now
    from restore.check.check import CheckOptions, Problem, check
    from restore.check.compared import backup_pins, replica_comparison
    from restore.check.share_history import parse_subset
    from tiering.engine.recovery import unfinished_restores

    if read_data and read_data_subset:
        raise UsageError("use either --read-data or --read-data-subset")
    config = session.config
    names = disk or list(config.disks)
    identities = session.identities(names)
    for fault in identities.faults:
        if isinstance(fault.error, AccessDenied | QuotaReached):  # nothing is wrong with what the disk holds
            raise fault.error
    disks = {name: one for name, one in identities.disks.items() if one.broken is None}
    listed = _disks_for_spark(disks, reading=read_data or bool(read_data_subset)) if wanted(spark, master) else []
    work = SparkWork(session, "fsck", master) if listed else None
    bringing = unfinished_restores().under_way(config, now())
    how = CheckOptions(
        read_data=read_data,
        subset=parse_subset(read_data_subset) if read_data_subset else None,
        repair=repair,
        dry_run=session.dry_run,
        memory=None if session.dry_run else config.state_directory,
        kept=config.state_directory / "catalog.db",
        workers=session.options.workers or config.limits.workers,
        actor=actor(),
        remote={name: work.remote(config.bucket(name)) for name in listed} if work is not None else {},
        listers={} if work is not None else _listers(session, disks.values()),
        pins=backup_pins().counted_pins(config, session.limiter()),
        unfinished_restores=bringing,
    )
    with ExitStack() as stack:
        journal = stack.enter_context(_journal(session))
        result = check(
            disks,
            how,
            moving=session.parts_under_way(),
            policies=_policy_disks(config, identities) if len(names) == len(config.disks) else None,
            claim=journal.claim,
            merges=lambda uuid: journal.work.merges(table_uuid=uuid),
            progress=session.progress(),
        )
        identities.compare_ages()
        faults = [*identities.faults, *_lacking(identities, result, journal)]
    result.problems[:0] = [Problem("I16", fault.error.message, fault.disk) for fault in faults]
    result.problems[:0] = _not_written(disks)
    if identities.behind:
        result.problems.insert(0, Problem("I18", identities.behind, names[0]))
    if len(names) == len(config.disks) and not identities.is_begun:
        session.output.note(BEGIN_OR_FIND)
        result.problems.insert(0, Problem("I16", session.no_store(), names[0]))
    if config.keeper.hosts and len(names) == len(config.disks):
        compared = replica_comparison().compare(config, everywhere=read_data)
        result.problems += compared.problems
        for sentence in compared.skipped:
            session.output.note(sentence)
    for uuid, table in bringing.items():
        if any(uuid in tables for tables in result.held.values()):
            session.output.note(
                f"a restore of {table} has not ended: the same command continues it; "
                "what it brought is removed a day after it began"
            )
    if work is not None:
        work.report()
    if session.options.json:
        session.output.document(_check_document(result, dry_run=session.dry_run))
    else:
        _print_check(session, result, how)
    if not result.ok:
        session.found_something()


def _not_written(disks: "dict[str, Disk]") -> "list[Problem]":
    """The logs among several that this machine may not write: one that was retired is collected."""
    from disks.contracts.bucket_disk import LoggedDisk
    from disks.kinds import as_disk
    from disks.object_disk.sharing.writers import refusal
    from restore.check.check import Problem

    logged = {name: one for name, disk in disks.items() if (one := as_disk(disk, LoggedDisk)) is not None}
    refused = {name: error for name, disk in logged.items() if (error := refusal(disk)) is not None}
    return [Problem("I6", f"{error.message}; {error.hint}", name) for name, error in refused.items()]


def _lacking(identities: "Identities", result: "CheckResult", journal: "Journal") -> "list[Fault]":
    """The disks that hold less than was counted there."""
    from tiering.journal.known_disks import Holding

    held = {
        disk: {uuid: Holding("", parts, rows) for uuid, (parts, rows) in tables.items()}
        for disk, tables in result.held.items()
    }
    dropping = {unfinished.drop.table_uuid for unfinished in journal.drops()}
    return list(identities.lacking(held, result.unsure | dropping))


def _listers(session: Session, disks: "Iterable[Disk]") -> "dict[str, Remote]":
    found = ((disk.name, lister(session, disk)) for disk in disks)
    return {name: remote for name, remote in found if remote is not None}


def _disks_for_spark(disks: "Mapping[str, Disk]", *, reading: bool) -> list[str]:
    """Those that Spark can do something for. Raises `UsageError` when there is none."""
    from disks.contracts.bucket_disk import BucketDisk, LoggedDisk
    from disks.kinds import as_disk

    names = [name for name, disk in disks.items() if as_disk(disk, BucketDisk) is not None]
    listed = [name for name in names if reading or as_disk(disks[name], LoggedDisk) is not None]
    if not names:
        raise UsageError(f"--spark checks buckets, and {', '.join(disks)} is none", hint="check it without --spark")
    if not listed:
        raise UsageError(
            f"disk {names[0]} has ClickHouse's log: Spark reads its data, and does nothing for a check without",
            hint="add --read-data, or leave --spark out",
        )
    return listed


def _journal(session: Session) -> Any:
    from contextlib import closing

    from tiering.journal.journal import Journal

    return closing(Journal(session.config.state_directory))


def _policy_disks(config: "Config", identities: "Identities") -> dict[str, list[str]]:
    """The disks of each policy that must hold its tables: all but those that nobody has written to yet."""
    begun = [name for name in config.disks if not identities.is_fresh(name)]
    return {
        name: [disk for volume in policy.volumes for disk in volume.disks if disk in begun]
        for name, policy in config.policies.items()
    }


def _check_document(result: "CheckResult", *, dry_run: bool) -> "CheckDocument":
    from restore.verbs.documents import AttachablePart, CheckDocument

    return CheckDocument(
        checked=result.checked,
        problems=result.problems,
        repaired=result.repaired,
        set_aside=result.set_aside,
        attachable=[AttachablePart(path, *where) for path, where in result.attachable.items()],
        shares=result.shares,
        ok=result.ok,
        dry_run=dry_run,
    )


def _print_check(session: Session, result: "CheckResult", how: "CheckOptions") -> None:
    line = session.output.line
    if how.repair and how.dry_run:
        line("Dry run: nothing was changed.")
    for problem in result.problems:
        where = problem.path or problem.object or problem.part or ""
        what = problem.what.removeprefix(f"{problem.disk}:{problem.path} ")
        table = f"  {problem.table}" if problem.table else ""
        line(f"{problem.invariant}  {problem.disk}{table}  {where}{': ' if where else ''}{what}")
    for sentence in result.repaired:
        line(f"repair: {sentence}")
    for path in result.set_aside:
        line(f"set aside earlier, not read: {path}")
        if path in result.attachable:
            table, partition = result.attachable[path]
            line(f"  its files are there again: 'frostline partition attach {table} {partition}' brings it back")
    if how.repair and not (how.read_data or how.subset):
        session.output.note("no data was read: what has other bytes of the same size, --read-data --repair sets aside")
    for share in result.shares:
        size = format_size(share.bytes)
        line(
            f"{share.disk}: read share {share.share} of {share.shares} ({counted(share.files, 'file')}, {size});"
            f" {share.read_lately} of the {share.filled} that hold data are read in this round"
        )
    checked = result.checked
    if checked.parts_without_nested_ids:
        line(
            f"{counted(checked.parts_without_nested_ids, 'part')} without ids of nested fields: Frostline reads them; "
            "for other engines 'frostline table rewrite T' writes them again"
        )
    size, read = format_size(checked.bytes), format_size(checked.bytes_read)
    done = "data not read"
    if how.read_data:
        done = f"every byte of data, {read}, compared"
    elif how.subset is not None:
        done = f"{read} of it read and compared"
    line(
        f"Checked {counted(checked.parts, 'part')}, {counted(checked.files, 'file')},"
        f" {counted(checked.objects, 'object')}, {size} ({done}):"
        f" {'no problems' if result.ok else counted(len(result.problems), 'problem')}."
    )


def gc(
    session: Session,
    disk: Disks = None,
    delete: Annotated[bool, typer.Option("--delete", help="delete; otherwise only report")] = False,
    guard_interval: Annotated[str, typer.Option(metavar="24h", help="keep younger objects")] = "24h",
    max_delete_bytes: Annotated[str | None, typer.Option(metavar="N", help="stop after N bytes")] = None,
    max_delete_fraction: Annotated[
        str, typer.Option(metavar="0.1", help="delete nothing if more than this share would go")
    ] = "0.1",
    quarantine: Annotated[
        str, typer.Option(metavar="0s", help="delete only what an earlier run marked this long ago")
    ] = "0s",
    allow_short_guard_interval: Annotated[
        bool,
        typer.Option(
            "--allow-short-guard-interval",
            help="allow less than 1h; only if nothing else writes there",
        ),
    ] = False,
    allow_bucket_root: Annotated[
        bool, typer.Option("--allow-bucket-root", help="allow deletes on a disk without a prefix")
    ] = False,
    without_marks: Annotated[
        bool,
        typer.Option("--without-marks", help="record that no machine sharing this prefix uses Keeper"),
    ] = False,
    spark: Spark = False,
    master: Master = None,
) -> None:
    """Report unreferenced objects, or delete them with --delete.

    Exit 4: the report found some, or a reason not to delete. Exit 13: a safety rule refused.
    """
    from disks.garbage.rules import GcRules

    store = session.store()
    remote = [item for item in store.context.disks.values() if item.capabilities.remote]
    names = list(disk) if disk else [item.name for item in remote if not item.read_only]
    rules = GcRules(
        guard=parse_duration(guard_interval),
        delete=delete and not session.dry_run,
        max_delete_bytes=parse_size(max_delete_bytes) if max_delete_bytes else None,
        max_delete_fraction=parse_percent(max_delete_fraction),
        quarantine=parse_duration(quarantine),
        allow_short_guard=allow_short_guard_interval,
        allow_bucket_root=allow_bucket_root,
    )
    with_spark = wanted(spark, master) and _collected_with_spark(store, names)
    if delete:
        session.confirm(f"Delete orphaned objects of {', '.join(names)} older than {guard_interval}?")
    if without_marks and not session.dry_run:
        for name in names:
            _say_without_marks(session, store.disk(name))
    work = SparkWork(session, "gc", master) if with_spark else None
    reports = [store.gc(name, rules, remote=_remote(session, work, store.disk(name))) for name in names]
    rows = [report.row for report in reports]
    _collect_publications(session, store, [row.disk for row in rows if not row.refused], rules)
    if work is not None:
        work.report()
    if session.options.json:
        session.output.document(_gc_document(rows, dry_run=session.dry_run))
    else:
        for row in rows:
            print_gc(session, row)
    refusals = [row for row in rows if row.refused]
    if refusals and delete:
        raise Refused(f"gc deleted nothing more on {refusals[0].disk}: {refusals[0].refused}", hint=GC_AGAIN)
    for report in reports:
        if (failure := report.failure()) is not None:
            raise failure
    if any(row.orphaned or row.refused for row in rows) and not delete:
        session.found_something()


def _collect_publications(session: Session, store: "Store", names: "list[str]", rules: "GcRules") -> None:
    """Report, or delete, metadata of publications that nobody needs any more."""
    from datetime import UTC, datetime

    from disks.contracts.bucket_disk import LoggedDisk
    from disks.garbage.publications import remove_objects
    from disks.kinds import as_disk
    from tiering.iceberg.stale import stale_objects

    for name in names:
        if (logged := as_disk(store.disk(name), LoggedDisk)) is None or logged.log_name is not None:
            continue
        stale = stale_objects(store, logged, now=datetime.now(UTC), guard=rules.guard)
        if not stale:
            continue
        if rules.delete:
            remove_objects(logged.store, [info.key for info in stale])
        session.output.beside.setdefault("publications", []).append({"disk": name, "objects": len(stale)})
        done = "deleted" if rules.delete else "can go"
        session.output.note(f"disk {name}: {counted(len(stale), 'object')} of earlier publications {done}")


def _say_without_marks(session: Session, disk: "Disk") -> None:
    from disks.contracts.bucket_disk import LoggedDisk
    from disks.kinds import as_disk
    from disks.object_disk.sharing.recorded_keeper import record_without_marks
    from disks.stores.wrappers.named_log import whole_prefix

    if session.loaded.config.keeper.hosts:
        raise Refused(
            "this machine has `keeper:`, and holds objects by marks there",
            hint="leave --without-marks out; 'frostline replica audit' shows whether gc may collect",
        )
    logged = as_disk(disk, LoggedDisk)
    if logged is None or logged.log_name is None:
        raise UsageError(f"disk {disk.name} has its prefix for itself", hint="leave --without-marks out")
    record_without_marks(whole_prefix(logged.store))


def _remote(session: Session, work: SparkWork | None, disk: "Disk") -> "Remote | None":
    """Who lists the disk's bucket, if others do."""
    return (
        lister(session, disk, shown=True)
        if work is None
        else work.remote(session.loaded.config.bucket(disk.name), shown=True)
    )


def _collected_with_spark(store: "Store", names: list[str]) -> bool:
    """Whether there is a disk to collect. Raises `UsageError` for one that Spark does nothing for."""
    from disks.contracts.bucket_disk import LoggedDisk
    from disks.kinds import as_disk

    for name in names:
        if as_disk(store.disk(name), LoggedDisk) is None:
            raise UsageError(
                f"disk {name} has no log of ours in a bucket: Spark does nothing for its collection",
                hint="leave --spark out for it",
            )
    return bool(names)


def _gc_document(rows: "list[GcRow]", *, dry_run: bool) -> "GcDocument | GcSum":
    """Of one disk its row; of several their sums and each."""
    from msgspec.structs import asdict

    from restore.verbs.documents import GcDocument, GcSum

    if len(rows) == 1:
        return GcDocument(**asdict(rows[0]), dry_run=dry_run)
    return GcSum(
        referenced=sum(row.referenced for row in rows),
        pending=sum(row.pending for row in rows),
        orphaned=sum(row.orphaned for row in rows),
        orphaned_bytes=sum(row.orphaned_bytes for row in rows),
        deleted=sum(row.deleted for row in rows),
        deleted_bytes=sum(row.deleted_bytes for row in rows),
        refused=next((row.refused for row in rows if row.refused), None),
        disks=rows,
        dry_run=dry_run,
    )


LARGE_FILES = 50_000
"""A bucket with more files is listed by several processes; a smaller one before they would have started."""
_MOST_PROCESSES = 8


def lister(session: Session, disk: "Disk", *, shown: bool = False) -> "Remote | None":
    """Processes that list the disk's bucket in ranges of keys, where that is worth it; else None."""
    from disks.contracts.bucket_disk import LoggedDisk
    from disks.kinds import as_disk
    from disks.workers.process_runner import processes
    from restore.check.cache import CachedTable

    config = session.loaded.config.buckets().get(disk.name)
    workers = min(os.cpu_count() or 1, _MOST_PROCESSES)
    logged = as_disk(disk, LoggedDisk)
    if logged is None or config is None or not config.url.startswith("s3:") or workers < 2:
        return None
    with closing(CachedTable(logged)) as cache:
        if cache.count() <= LARGE_FILES:
            return None
    try:
        runner = processes(workers)
    except (OSError, NotImplementedError):  # a system without shared memory: one process does it, too
        return None
    return remote(session, runner, config, slots=workers, shown=shown)
