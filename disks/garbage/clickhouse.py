"""gc of a disk with ClickHouse's log (format 1), written here or taken over from a server.

The table of this machine, with what lies below `shadow/`, is the only proof of use: the bucket's log has no word for a
removal, so nothing that it says may be deleted. Operations are never touched. Whatever casts doubt on the table stops
the collection: files that a rebuild could not place, a table younger than the retention (what was removed before it is
not known), signs of another writer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from disks.contracts.bucket_disk import ClickHouseLogDisk
from disks.garbage.announcements import BATCH_KEYS, Announced, batches
from disks.garbage.report import GcReport, SafetyStop
from disks.garbage.rules import GcRules, by_age, check_caps, count_verdict, out_of_quarantine, within_limit
from disks.object_disk.references import (
    FUTURE_TOLERANCE,
    INTENTS_PREFIX,
    Blobs,
    BlobState,
    clock_objection,
    disagreement,
    is_set_aside,
)
from disks.stores.base import ObjectInfo
from oplog.clickhouse.names import FILE, parse_key
from oplog.errors import FrostlineError
from oplog.revision import LEASES_PREFIX, SCHEMA_VERSION_KEY

logger = logging.getLogger(__name__)


class _Listing(msgspec.Struct):
    """One listing, sorted by what ClickHouse's names mean."""

    files: Blobs = msgspec.field(default_factory=Blobs)
    operations: int = 0
    intents: list[ObjectInfo] = msgspec.field(default_factory=list)
    foreign: list[str] = msgspec.field(default_factory=list)
    bare: list[ObjectInfo] = msgspec.field(default_factory=list)
    """Those of `foreign` that have names as files have them without `send_metadata`, and that no table named."""


def collect_clickhouse(
    disk: ClickHouseLogDisk, rules: GcRules, now: datetime, report: GcReport, *, check_clock: bool
) -> None:
    """Fill the report; with `report.delete` delete what two agreeing listings show, the table does not name, and is
    older than guard and retention. `report.refused` names the safety rule that applies."""
    try:
        listing = _sorted(disk.store.list(), _named_ever(disk))
        report.foreign = listing.foreign
        known = _check_table(disk, listing, rules, now)
        if report.delete:
            _check_again(disk, listing)
        keys = set(disk.kept_keys())
        _check_present(disk, listing)
        verdict = by_age(listing.files, keys, rules.guard, now)
        count_verdict(verdict, report)
        if known is not None:
            raise SafetyStop(known)
        skew = disk.store.clock_skew() if check_clock and report.delete else None
        if objection := clock_objection(skew):
            raise SafetyStop(objection)
        if report.delete:
            _delete(disk, listing, verdict, rules, now, report)
    except SafetyStop as objection:
        report.refused = str(objection)
        logger.warning("disk %s: nothing more is deleted: %s", disk.name, objection)


def _named_ever(disk: ClickHouseLogDisk) -> set[str]:
    """The blobs that the table names, and those that it still knows to have named: of this disk, whatever they are
    called. Raises `SafetyStop` when it cannot be read."""
    try:
        with disk.file_table.read() as view:
            return {*(key for row in view.rows() for key, _ in row.blobs), *view.dropped_since(0)}
    except FrostlineError as error:
        raise SafetyStop(f"the local metadata cannot be read: {error.message}") from error


def _sorted(objects: Iterable[ObjectInfo], named: set[str]) -> _Listing:
    """Names without a number, from before there were any or of a disk without `send_metadata`, prove nothing of
    themselves: such an object is a file of this disk only if the table has named it."""
    listing = _Listing()
    for item in objects:
        name = parse_key(item.key)
        if name is not None and name.kind == FILE and (name.revision or item.key in named):
            listing.files.add(item)
        elif name is not None and name.kind != FILE:
            listing.operations += 1
        elif item.key.startswith(INTENTS_PREFIX):
            listing.intents.append(item)
        elif name is not None or (item.key != SCHEMA_VERSION_KEY and not item.key.startswith(LEASES_PREFIX)):
            listing.foreign.append(item.key)
            if name is not None:
                listing.bare.append(item)
    return listing


def _check_table(disk: ClickHouseLogDisk, listing: _Listing, rules: GcRules, now: datetime) -> str | None:
    """Why the table proves too little to delete anything; None when it proves enough. Raises `SafetyStop` when it
    cannot be read."""
    try:
        with disk.file_table.read() as view:
            state = view.state()
    except FrostlineError as error:
        raise SafetyStop(f"the local metadata cannot be read: {error.message}") from error
    if unknown := state.get("unknown"):
        return f"the file table may lack files: {unknown}"
    if found := disk.numbers_of_others():
        return (
            f"the bucket has objects up to number {found[0]}, this machine gave {found[1]}: another writer writes to it"
        )
    if "since" not in state:
        return None
    since = datetime.fromtimestamp(float(state["since"]), UTC)
    if now - since < rules.retention_on(disk) + rules.guard:
        return (
            f"the file table was taken over at {since:%Y-%m-%d %H:%M} UTC: what had been removed before it is not "
            "known until retention and guard interval are over"
        )
    return _other_writer(listing, since)


def _other_writer(listing: _Listing, since: datetime) -> str | None:
    """A server that starts over counts from 1 again: its objects are younger than the table and their numbers older."""
    before = max((_number(blob.key) for blob in listing.files if blob.modified <= since), default=0)
    for blob in listing.files:
        if blob.modified > since + FUTURE_TOLERANCE and _number(blob.key) <= before:
            return f"object {blob.key} was written after this machine took the disk over, by another writer"
    for blob in listing.bare:
        if blob.modified > since + FUTURE_TOLERANCE:
            return f"object {blob.key} was written after this machine took the disk over, and its table never named it"
    return None


def _number(key: str) -> int:
    name = parse_key(key)
    return name.revision if name is not None else 0


def _check_again(disk: ClickHouseLogDisk, listing: _Listing) -> None:
    """A second listing agrees with the first about every file."""
    bare = {blob.key for blob in listing.bare}

    def is_file(key: str) -> bool:
        name = parse_key(key)
        return name is not None and name.kind == FILE and key not in bare

    if objection := disagreement(listing.files, disk.store.list(), is_blob=is_file):
        raise SafetyStop(objection)


def _check_present(disk: ClickHouseLogDisk, listing: _Listing) -> None:
    """The listing shows every object of the table with its size: else it is not the listing of this disk."""
    foreign = set(listing.foreign)
    with disk.file_table.read() as view:
        for row in view.rows():
            for key, size_bytes in row.blobs:
                there = listing.files.size_of(key)
                if there != size_bytes and key not in foreign and not is_set_aside(row.path):
                    raise SafetyStop(
                        f"object {key} of {row.path} is not in the listing with its {size_bytes} bytes: the listing is "
                        "incomplete, or objects were lost; run 'frostline fsck'"
                    )


def _delete(
    disk: ClickHouseLogDisk, listing: _Listing, verdict: BlobState, rules: GcRules, now: datetime, report: GcReport
) -> None:
    check_caps(listing.files, verdict, rules)
    try:
        condemned = Announced(disk.store, listing.intents, now)
    except FrostlineError as error:
        raise SafetyStop(f"what earlier runs condemned cannot be read: {error.message}") from error
    to_delete = within_limit(out_of_quarantine(verdict.orphaned, condemned, rules, now, report), rules, report)
    sizes = {blob.key: blob.size_bytes for blob in to_delete}
    gone: set[str] = set()
    for batch in batches(list(sizes), BATCH_KEYS):
        # Nobody commits meanwhile, so what the table names now is what it names while the batch goes.
        with disk.alone():
            named = set(disk.kept_keys())
            answers = disk.store.delete([key for key in batch if key not in named])
        for key, answer in answers.items():
            if answer is None:
                gone.add(key)
            else:
                report.stays(key, answer)
    condemned.forget({blob.key for blob in verdict.orphaned} - gone)
    report.deleted = len(gone)
    report.deleted_bytes = sum(sizes[key] for key in gone)
