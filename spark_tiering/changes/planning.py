"""Plans the read of what came into a table since a revision: the parts as they came, whatever became of them.

A part that was merged or moved away since is read from its own objects, which the bucket keeps as long as its retention
says; they are looked for here, so that a read that cannot be whole is refused before it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from disks.contracts.bucket_disk import LoggedDisk
from oplog.errors import NotFound, Refused
from spark_tiering.changes.added_commits import ArrivedPart, arrivals, check_kept
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.reading.scan_planning import (
    Piece,
    PlannedScan,
    asked_revision,
    divide,
    hold_revision,
    opened_store,
    piece_of,
    shared_store,
)
from tiering.config.units import counted
from tiering.engine import replication
from tiering.engine.store import Store
from tiering.query.sql_filter import parse_filter
from tiering.table.pruning import Predicate, matching_files
from tiering.table.schema import TableDefinition

_HEAD_THREADS = 16
_WHAT = "reading the changes of"
_IDLE_SHARE = 4
"""An idle stream has to go on at the latest after this share of the time that the log is kept."""


class Until(msgspec.Struct, frozen=True):
    """How far a batch of a stream goes."""

    table: str
    """Its uuid: a table that was created again is another one."""
    revision: int


def check_changes(options: ReadOptions) -> TableDefinition:
    """The table as it is, where the log tells what came since. Raises `Refused` where it does not."""
    with opened_store(options) as store:
        disk, definition = _source(store, options)
        check_kept(disk, definition, options.changes_since or 0)
        return definition


def plan_changes(options: ReadOptions) -> PlannedScan:
    """The rows after `changes_since`, up to the revision that was asked for, or now."""
    with opened_store(options) as store:
        disk, definition = _source(store, options)
        until = asked_revision(store, options) or disk.revision or 0
        return _scan(store, disk, definition, options, until)


def plan_batch(options: ReadOptions, until: Until) -> PlannedScan:
    """The rows after `changes_since`, up to the revision. Raises `Refused` when the table is not the one it was."""
    with opened_store(options) as store:
        disk, definition = _source(store, options)
        if definition.uuid != until.table:
            raise Refused(
                f"{definition.full_name} is not the table that this stream began with: it was dropped and recreated",
                hint="begin the stream with a new checkpoint",
            )
        return _scan(store, disk, definition, options, until.revision)


def latest(options: ReadOptions, since: Until | None, most_commits: int | None, limit: int | None) -> Until:
    """How far the next batch goes: not above `limit`, and so many commits that brought rows. Where there are none it
    goes nowhere, but for a while without any: then to the end, so that the log may be cut behind it."""
    with opened_store(options) as store:
        disk, definition = _source(store, options)
        head = min(disk.revision or 0, limit if limit is not None else disk.revision or 0)
        begin = since.revision if since is not None else options.changes_since or 0
        if head <= begin:
            return Until(definition.uuid, begin)
        check_kept(disk, definition, begin)
        last, commits = begin, 0
        for arrival in arrivals(disk, definition, begin, head, skip_deletes=options.skip_deletes):
            if arrival.revision != last:
                if commits == most_commits:
                    return Until(definition.uuid, last)
                last, commits = arrival.revision, commits + 1
        if commits or limit is not None or _is_long_ago(disk, begin + 1):
            return Until(definition.uuid, head)
        return Until(definition.uuid, begin)


def _is_long_ago(disk: LoggedDisk, revision: int) -> bool:
    found = disk.commits().read([revision]).get(revision)
    age = timedelta(seconds=disk.retention_seconds / _IDLE_SHARE)
    return found is None or datetime.now(UTC) - found.commit.time > age


def _source(store: Store, options: ReadOptions) -> tuple[LoggedDisk, TableDefinition]:
    definition = store.context.catalog.table(options.table)
    replication.refuse(definition, _WHAT, "each replica has a log of its own; read the table as a whole")
    names = store.context.catalog.policy_disks(definition)
    logged = [disk for disk in store.object_disks() if disk.name in names]
    if len(logged) != 1:
        found = ", ".join(disk.name for disk in logged) or "none"
        raise Refused(
            f"{_WHAT} {definition.full_name} needs one disk with an operations log in its policy; there are: {found}",
            hint="read the table as a whole",
        )
    return logged[0], definition


def _scan(
    store: Store, disk: LoggedDisk, definition: TableDefinition, options: ReadOptions, until_revision: int
) -> PlannedScan:
    since = options.changes_since or 0
    check_kept(disk, definition, since)
    until = datetime.now(UTC) + options.lease
    hold_revision(store, None, until)
    predicate = parse_filter(options.filter, definition)
    came = list(arrivals(disk, definition, since, until_revision, skip_deletes=options.skip_deletes))
    pieces = list(_pieces(store, disk, definition, came, predicate))
    _check_there(disk, definition, pieces)
    return PlannedScan(definition, divide(pieces, options.partition_bytes, options.cores), until, predicate)


def _pieces(
    store: Store, disk: LoggedDisk, definition: TableDefinition, came: Sequence[ArrivedPart], predicate: Predicate
) -> Iterator[Piece]:
    address = shared_store(store.context, disk.name)
    for arrival in came:
        for file in matching_files(predicate, arrival.part, definition):
            path = arrival.path(definition, file.name)
            piece = piece_of(file, definition, predicate, f"{disk.name}:{path}", arrival.part.schema_version)
            if piece is None:
                continue
            yield replace(piece, store=address, key=arrival.keys[file.name])


def _check_there(disk: LoggedDisk, definition: TableDefinition, pieces: Sequence[Piece]) -> None:
    """Objects that the disk's files name are there; others may have been collected."""
    gone = [piece for piece in pieces if not _is_named(disk, piece)]

    def look(piece: Piece) -> Piece | None:
        try:
            disk.store.head(piece.key)
        except NotFound:
            return piece
        return None

    with ThreadPoolExecutor(_HEAD_THREADS, thread_name_prefix="head") as pool:
        lost = [piece for piece in pool.map(look, gone) if piece is not None]
    if lost:
        raise Refused(
            f"{counted(len(lost), 'file')} with rows that came into {definition.full_name} were collected, such as "
            f"{lost[0].label}: their parts were merged longer ago than the bucket keeps what was removed",
            hint=f"read the table as a whole, and go on with changes_since={disk.revision}; retention_seconds of disk "
            f"{disk.name} keeps more",
        )


def _is_named(disk: LoggedDisk, piece: Piece) -> bool:
    try:
        return disk.stat(piece.label.partition(":")[2]).key == piece.key
    except NotFound:
        return False
