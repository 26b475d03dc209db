"""`restore`: an object disk from its bucket, as it is or as it was."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import FrostlineError, PartlyDone, UsageError
from tiering.cli.frame.location import location, open_read_only
from tiering.cli.frame.output import counted
from tiering.cli.frame.remote_work import Master, Spark, SparkWork, wanted
from tiering.cli.frame.session import Session, actor
from tiering.cli.frame.verb import verb
from tiering.config.units import format_size, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from disks.contracts.bucket_disk import ClickHouseLogDisk, LoggedDisk
    from restore.rebuild.duplicates import Look
    from restore.rebuild.request import RebuildRequest
    from restore.rebuild.result import RebuildResult
    from restore.transfer.blob_copies import RemoteCopying


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, changes=True)(restore)


def restore(
    session: Session,
    disk: Annotated[str, typer.Argument(metavar="DISK", help="an object disk")],
    revision: Annotated[int | None, typer.Option(metavar="N", help="state at this revision")] = None,
    time: Annotated[str | None, typer.Option(metavar="T", help="state at this time")] = None,
    table: Annotated[list[str] | None, typer.Option(metavar="T", help="only this table; repeatable")] = None,
    partition: Annotated[
        list[str] | None, typer.Option(metavar="P", help="only this partition of the table; repeatable")
    ] = None,
    path: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="only this file or directory; repeatable")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="URL", help="source bucket; only read; run again, it removes what came here since"
        ),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="apply; otherwise only preview")] = False,
    spark: Spark = False,
    master: Master = None,
) -> None:
    """Rebuild a disk from its bucket, return it to an older revision, or fill it from another bucket.

    A preview unless --apply. Asks for confirmation before deleting files. Run an interrupted restore again to continue
    it. Exit 3: parts were left out because their rows exist elsewhere. Exit 4: objects are missing.
    """
    from disks.contracts.bucket_disk import ClickHouseLogDisk
    from disks.kinds import as_disk, with_commits
    from restore.rebuild.request import RebuildRequest

    if revision is not None and time is not None:
        raise UsageError("use either --revision or --time")
    request = RebuildRequest(
        revision=revision,
        time=_end_of_second(time) if time else None,
        tables=table or (),
        partitions=partition or (),
        paths=path or (),
        apply=apply,
        actor=actor(),
        reason=f"restore {_named(table, partition, path)}",
    )
    start = partial(SparkWork, session, "restore", master) if wanted(spark, master) else None
    if apply:
        session.begin()
    opened = session.disk(disk)
    if (clickhouse := as_disk(opened, ClickHouseLogDisk)) is not None:
        if path or source or partition:
            raise UsageError(f"disk {disk} has ClickHouse's log, which is restored as a whole and in place")
        if time is not None or table:
            what = "--time" if time is not None else "--table"
            raise UsageError(
                f"disk {disk} has ClickHouse's log, which knows no {what}", hint="use --revision, or nothing"
            )
        _restore_clickhouse(session, clickhouse, request, start)
    elif source is not None:
        _restore_from(session, with_commits(opened), source, request, start)
    else:
        _restore_here(session, with_commits(opened), request, start)


def _restore_here(
    session: Session, disk: "LoggedDisk", request: "RebuildRequest", start: "Callable[[], SparkWork] | None"
) -> None:
    from msgspec.structs import replace

    from restore.rebuild.rebuild import located
    from restore.rebuild.rebuild import restore as restore_disk

    work = start() if start is not None else None
    remote = work.remote(session.loaded.config.bucket(disk.name), shown=True) if work is not None else None
    request, look = located(disk, request), _look(session)
    if request.apply and (request.revision is not None or request.time is not None):
        preview = restore_disk(disk, replace(request, apply=False), look=look, remote=remote)
        if removed := preview.removed:
            for note in preview.notes:
                session.output.note(f"WARNING: {note}")
            files = counted(removed, "file")
            session.confirm(f"Put disk {disk.name} back to revision {preview.revision}? {files} will go.")
    effective = _effective(session, request)
    result = restore_disk(disk, effective, progress=session.progress(), look=look, remote=remote)
    if work is not None:
        work.report()
    _tell_other_disks(session, result)
    _show(session, result)


def _look(session: Session) -> "Look":
    """What all disks of this machine hold, looked at without changing anything. Where the store cannot be opened, as
    may be after a disaster, the disk is restored by itself, and that is said."""
    from restore.rebuild.duplicates import Elsewhere
    from restore.rebuild.elsewhere import look_around

    def look() -> Elsewhere:
        try:
            return look_around(session.unrecovered().context)
        except FrostlineError as error:
            return Elsewhere(notes=[f"what other disks hold is unknown: {error.message}"])

    return look


def _tell_other_disks(session: Session, result: "RebuildResult") -> None:
    """Definitions that came back are written to the other disks, as each verb does that opens the store."""
    if result.applied and result.commit is not None:
        try:
            session.store()
        except FrostlineError as error:  # the restore is done; what is wrong elsewhere was so before
            session.output.note(error.message)


def _end_of_second(time: str) -> "datetime":
    """A time as the log shows it, in whole seconds, means the whole of its second."""
    from datetime import timedelta

    moment = parse_time(time)
    whole = len(time.strip()) > len("2026-01-31") and "." not in time
    return moment + timedelta(seconds=1, microseconds=-1) if whole else moment


def _effective(session: Session, request: "RebuildRequest") -> "RebuildRequest":
    """The request as it is carried out: a dry run applies nothing."""
    from msgspec.structs import replace

    return replace(request, apply=request.apply and not session.dry_run)


def _named(table: list[str] | None, partition: list[str] | None, path: list[str] | None) -> str:
    partitions = [f"partition {name}" for name in partition or []]
    return " ".join([*(table or []), *partitions, *(path or [])]) or "everything"


def _show(session: Session, result: "RebuildResult") -> None:
    document = result.document()
    if session.options.json:
        session.output.document({**document, "dry_run": session.dry_run})
    else:
        _print_restore(session, result, document)
    if result.missing_objects or result.problems:
        session.found_something()
    if result.applied and result.left_out:
        raise PartlyDone(
            f"{counted(len(result.left_out), 'part')} were left out because their rows exist: "
            f"{result.left_out[0].text}",
            hint=result.left_out[0].hint(result.disk),
        )
    if result.applied and result.difference.empty:
        session.nothing_to_do(f"Nothing to do: disk {result.disk} is up to date.")


def _restore_from(
    session: Session,
    disk: "LoggedDisk",
    url: str,
    request: "RebuildRequest",
    start: "Callable[[], SparkWork] | None",
) -> None:
    from msgspec.structs import replace

    from restore.transfer.source import has_our_log
    from restore.transfer.transfer import WORKERS, restore_from

    with open_read_only(session, url) as store:
        if start is not None and not request.apply and has_our_log(store):
            raise UsageError(
                f"a preview of a restore from {url} copies nothing: Spark does nothing for that",
                hint="add --apply, or leave --spark out",
            )
        work = start() if start is not None else None
        request = _effective(session, replace(request, reason=f"{request.reason} from {store.name}"))
        run = partial(
            restore_from,
            disk,
            store,
            workers=session.options.workers or WORKERS,
            progress=session.progress(),
            elsewhere=_elsewhere(session, work, disk.name, url) if work is not None else None,
            look=_look(session),
        )
        if request.apply and not session.options.yes and (removed := run(replace(request, apply=False)).removed):
            session.confirm(f"Restore disk {disk.name} from {url}? {counted(removed, 'file')} of it will go.")
        result = run(request)
    if work is not None:
        work.report()
    _tell_other_disks(session, result)
    _show(session, result)


def _elsewhere(session: Session, work: SparkWork, disk: str, url: str) -> "RemoteCopying":
    from restore.transfer.blob_copies import RemoteCopying

    target = work.remote(session.loaded.config.bucket(disk))
    return RemoteCopying(target.runner, target.store, work.remote(location(session, url)).store)


def _restore_clickhouse(
    session: Session,
    disk: "ClickHouseLogDisk",
    request: "RebuildRequest",
    start: "Callable[[], SparkWork] | None",
) -> None:
    from disks.workers.parallel import Askers
    from restore.clickhouse.rebuild import rebuild

    work = start() if start is not None else None
    remote = work.remote(session.loaded.config.bucket(disk.name)) if work is not None else None
    askers = Askers(progress=session.progress(), remote=remote)
    apply = _effective(session, request).apply
    result = rebuild(disk, revision=request.revision, apply=apply, askers=askers)
    if work is not None:
        work.report()
    _show(session, result)


def _print_restore(session: Session, result: "RebuildResult", document: dict[str, Any]) -> None:
    from restore.rebuild.naming import in_words

    line = session.output.line
    done = document["applied"]
    size = format_size(document["bytes"])
    if "source" in document:
        line(f"{document['source']} at revision {document['revision']}: {counted(document['files'], 'file')}, {size}")
        line(f"  to disk    {document['disk']}")
    else:
        line(
            f"disk {document['disk']} at revision {document['revision']}: {counted(document['files'], 'file')}, {size}"
        )
    line(f"  {'created  ' if done else 'to create'}  {document['created']:,}")
    line(f"  {'removed  ' if done else 'to remove'}  {document['removed']:,}")
    line(f"  unchanged  {document['unchanged']:,}")
    if (total := document["created"] + document["unchanged"]) != document["files"]:
        why = (
            "definitions and names that were given since stay" if total > document["files"] else "some parts stay away"
        )
        line(
            f"  in all     {counted(total, 'file')}, created and unchanged; revision {document['revision']} had "
            f"{document['files']:,}: {why}"
        )
    if copy := document.get("copy"):
        how = {True: ", inside the store", False: ", through this machine"}.get(copy["server_side"], "")
        objects = copy["copied"] if done else copy["objects"]
        moved = f"of {counted(copy['objects'], 'object')}" if done else "objects"
        line(f"  {'copied   ' if done else 'to copy  '}  {objects:,} {moved}, {format_size(copy['bytes'])}{how}")
    for missing in result.missing_objects:
        what = f"object {missing.key}, {format_size(missing.size_bytes)}"
        line(f"  MISSING    {in_words(missing.path, result.names)} ({what})")
    for one in result.left_out:
        line(f"  stays away {one.text}")
    for note in document.get("notes", ()):
        line(f"  note       {note}")
    shown = ", ".join(f"{count} {verb}" for verb, count in document["requests"].items() if count)
    line(f"  requests   {shown or 'none'}, {document['seconds']:.2f} s")
    if lost := len(document.get("problems", ())):
        line(f"NOT WHOLE: {counted(lost, 'loss', 'losses')} in the source, as told above.")
    if objection := document.get("objection"):
        line(f"A preview: nothing was changed, and it would be refused: {objection}")
        return
    if result.difference.empty and not result.left_out:
        if not done:
            line(f"A preview: there is nothing to do, disk {result.disk} is up to date.")
        return  # the common code reports what was done
    line(
        ("Restored, but for what stays away." if result.left_out else "Restored.")
        if done
        else "A preview: nothing was changed. Add --apply to do it."
    )
