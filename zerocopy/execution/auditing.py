"""Comparing the marks of a prefix with all of its logs and with the bucket, and putting back what is missing.

    begin     the node says that an audit goes on        nothing is collected here until the next clean audit
    compare   every log to its end, marks, listing       the same
    repair    a set's node and its marks, together       marks of what a log names
    again     the logs that got marks are read again     marks too many
    end       the verdict, here and in the node          done

No object is ever deleted, and no mark of another machine's log that was not retired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.blob_sets import BlobReference
from disks.garbage.rules import GcRules
from disks.kinds import as_disk
from disks.object_disk.pending_deletes import announced
from disks.object_disk.sharing import recorded_keeper
from disks.object_disk.sharing.other_log import OtherLog, other_logs
from disks.object_disk.sharing.prefix import store_identity
from disks.object_disk.sharing.retiring import heeded_logs
from disks.stores.wrappers.named_log import whole_prefix
from oplog.errors import AlreadyExists, UsageError
from oplog.revision import BLOBS_PREFIX, is_blob_key
from tiering.catalog.context import Context
from tiering.config.units import counted
from zerocopy.keeper.operations import Set
from zerocopy.marks import audit, audit_result, census, marks_keeper
from zerocopy.marks.audit import MarkDifference, Marked, Named, Repair
from zerocopy.marks.audit_result import AuditResult, MarkReferences
from zerocopy.marks.marks import Gone, Marks
from zerocopy.marks.nodes import Holder, encode_keys
from zerocopy.replica.connections import connections

_SETTLED = timedelta(hours=24)
"""A mark that its log does not name may be one of a commit that is on its way, if it is no older."""

_SHOWN = 20
"""How many differences the report lists one by one."""


class Audited(msgspec.Struct):
    """What an audit of one disk found."""

    disk: str
    logs: dict[str, int]
    """Name -> how many uses of blob sets its newest table has."""
    sets: int = 0
    marks: int = 0
    objects: int = 0
    differences: list[MarkDifference] = msgspec.field(default_factory=list)
    """Those that are left."""
    repaired: int = 0
    clean: bool = False
    elsewhere: str = ""
    """Why the marks in this Keeper do not count, where they do not."""
    collects_from: datetime | None = None
    """When gc may collect here, where that is not now: the marks were in another Keeper before."""

    def lines(self) -> Iterator[str]:
        """The report, not yet escaped: the first differences, how many more, and what they mean for gc."""
        logs = ", ".join(f"{name} ({counted(uses, 'part')})" for name, uses in sorted(self.logs.items()))
        sets, marks = counted(self.sets, "set"), counted(self.marks, "mark")
        yield f"disk {self.disk}: {counted(self.objects, 'object')}, {sets}, {marks}; logs: {logs}"
        for one in self.differences[:_SHOWN]:
            yield f"{one.kind}  {one.what}"
        if len(self.differences) > _SHOWN:
            yield f"… and {len(self.differences) - _SHOWN:,} more: --json lists them all"
        if self.elsewhere:
            yield f"{self.elsewhere[0].upper()}{self.elsewhere[1:]}."
        if self.repaired:
            yield f"{counted(self.repaired, 'difference')} repaired."
        begins = f" from {self.collects_from:%Y-%m-%d %H:%M} UTC on" if self.collects_from is not None else ""
        yield f"Clean: gc may collect here{begins}." if self.clean else "Not clean: gc collects nothing here."
        if not self.repaired and any(one.is_mended for one in self.differences):
            yield "'frostline replica audit --repair' puts back the marks that are missing, and deletes nothing."


def disks(context: Context, name: str | None) -> Iterator[LoggedDisk]:
    """The disks with one of several logs, or the one of this name. Raises `UsageError` when it has none of several."""
    for disk in [context.disk(name)] if name is not None else context.disks.values():
        logged = as_disk(disk, LoggedDisk)
        if logged is not None and logged.log_name is not None and disk.broken is None:
            yield logged
        elif name is not None:
            raise UsageError(
                f"disk {name} has its prefix for itself: no other machine shares its objects",
                hint="an audit is for a disk with `log: NAME` in the configuration",
            )


def references(context: Context, disk: LoggedDisk) -> MarkReferences | None:
    """What the marks say to a collection on this disk; None where nobody has written to its prefix yet."""
    identity = store_identity(disk)
    if identity is None:
        return None
    return MarkReferences(connections(context).keeper, identity, str(disk.log_name), disk.state_path)


def objection(context: Context, disk: LoggedDisk) -> str | None:
    """Why gc may collect nothing on the disk with its default rules, as far as marks go; None where it may. Raises
    `FrostlineError` where that cannot be read."""
    if (marks := references(context, disk)) is None:
        return None
    found = recorded_keeper.recorded_keepers(whole_prefix(disk.store))
    in_place = recorded_keeper.objection(found, marks.keeper(), at=context.clock(), guard=GcRules().guard)
    return in_place or marks.objection()


def run(context: Context, disk: LoggedDisk, *, repairs: bool, dry_run: bool = False) -> Audited:
    """Audit the disk's prefix; with `dry_run` nothing is written, also not what was found. Raises `FrostlineError`
    where anything cannot be read whole: then nothing is collected."""
    log, now = str(disk.log_name), context.clock()
    identity = store_identity(disk)
    if identity is None:
        return Audited(disk.name, {log: 0}, clean=True)
    marks = Marks(connections(context).keeper, identity, log)
    elsewhere = marks_keeper.elsewhere(marks.keeper, disk)
    if not dry_run and (repairs or elsewhere is None):
        marks_keeper.keep_here(marks.keeper, disk)
        elsewhere = None
    begun = "" if dry_run else audit_result.begin(marks.keeper, marks.nodes, log, now)
    with ExitStack() as stack:
        logs: dict[str, LoggedDisk] = {log: disk}
        heeded = heeded_logs(disk, now=now)
        retired = {*other_logs(disk)}.difference(heeded)
        for name in heeded:
            other = OtherLog(disk, name)
            stack.callback(other.close)
            logs[name] = other
        named, marked, sizes = _read(logs, marks, now)
        found = audit.differences(named, marked, sizes)
        repaired = 0
        if repairs and found and not dry_run:
            _repair(logs, marks, audit.repair(named, marked, found, log, retired=retired))
            named, marked, sizes = _read(logs, marks, now)
            left = audit.differences(named, marked, sizes)
            repaired, found = len({*found} - {*left}), left
    clean = elsewhere is None and all(one.is_harmless for one in found)
    if not dry_run:
        said = AuditResult(id=begun, clean=clean, time=now)
        audit_result.end(marks.keeper, marks.nodes, log, said, disk.state_path)
    records = recorded_keeper.recorded_keepers(whole_prefix(disk.store))
    begins = recorded_keeper.collects_from(records, guard=GcRules().guard)
    held = sum(map(len, marked.holders.values()))
    return Audited(
        disk=disk.name,
        logs={name: len(uses) for name, uses in named.items()},
        sets=len(marked.sets),
        marks=held,
        objects=len(sizes),
        differences=found,
        repaired=repaired,
        clean=clean,
        elsewhere=elsewhere or "",
        collects_from=begins if begins is not None and begins > now else None,
    )


def _read(
    logs: Mapping[str, LoggedDisk], marks: Marks, now: datetime
) -> tuple[dict[str, Named], Marked, dict[str, int]]:
    """The marks, then every log to its end, then the bucket: what a log names must be marked by then, and be there."""
    everything = {one.name: one for one in census.sets(marks.keeper, marks.nodes)}
    holders = {name: tuple(found) for name, found in census.holders(marks.keeper, marks.nodes, list(everything))}
    named = {name: _named(disk) for name, disk in logs.items()}
    settled = _settled(named, holders, marks, now)
    own = next(iter(logs.values()))
    sizes = {one.key: one.size_bytes for one in own.store.list(BLOBS_PREFIX) if is_blob_key(one.key)}
    return named, Marked(everything, holders, settled), sizes


def _settled(
    named: Mapping[str, Named], holders: Mapping[str, tuple[Holder, ...]], marks: Marks, now: datetime
) -> frozenset[tuple[str, BlobReference]]:
    """The marks that their logs do not name and that are too old to be of a commit on its way. Only these are asked
    for when they were written: mostly there are none."""
    unnamed = [
        (holder.log, reference)
        for name, held in holders.items()
        for holder in held
        if holder.log in named and (reference := BlobReference(name, holder.directory)) not in named[holder.log]
    ]
    horizon = (now - _SETTLED).timestamp() * 1000
    nodes = marks.keeper.find_all([marks.nodes.mark(reference, log) for log, reference in unnamed])
    pairs = zip(unnamed, nodes, strict=True)
    return frozenset(one for one, node in pairs if node is not None and node.written_milliseconds < horizon)


def _named(disk: LoggedDisk) -> Named:
    """What the log's newest table names."""
    disk.refresh()
    found: dict[BlobReference, set[str]] = defaultdict(set)
    last, keys = ("", ""), set[str]()
    for info in disk.walk():
        if info.key is not None and info.blob_set is not None:
            use = info.blob_set, info.path.rpartition("/")[0]
            if use != last:  # the files of a directory come together, and most are of one set
                last, keys = use, found[BlobReference(*use)]
            keys.add(info.key)
    return {reference: frozenset(keys) for reference, keys in found.items()}


def _repair(logs: Mapping[str, LoggedDisk], own: Marks, plan: Repair) -> None:
    """Put back what is missing. A set that a collection is at stays as it is: its objects may go any moment."""
    going = announced(next(iter(logs.values())), now=None)
    lacking = {name: keys for name, keys in plan.sets.items() if not keys & going}
    for log, references_ in plan.marks.items():
        marks = Marks(own.keeper, own.nodes.store, log)
        mended = [one for one in references_ if one.blob_set not in plan.sets or one.blob_set in lacking]
        for reference in mended:
            _hold(marks, reference, lacking.get(reference.blob_set))
        still = _named(logs[log])
        marks.remove(marks.seen([one for one in mended if one not in still]))
    for name, keys in lacking.items():  # those whose marks are all there
        _list_keys(own, name, keys)
    seen = own.seen(plan.left_over)
    still = _named(logs[own.log])
    own.remove({one: version for one, version in seen.items() if one not in still})
    for log, references_ in plan.retired.items():
        marks = Marks(own.keeper, own.nodes.store, log)
        marks.remove(marks.seen(references_))


def _hold(marks: Marks, reference: BlobReference, keys: frozenset[str] | None) -> None:
    """The mark; with its set, where that has no node."""
    try:
        marks.add([reference])
    except Gone:
        if keys is None:
            return
        try:
            marks.create([audit.as_new(reference.blob_set, keys, reference)])
        except AlreadyExists:  # another machine's audit came first
            marks.add([reference])


def _list_keys(marks: Marks, name: str, keys: frozenset[str]) -> None:
    path = marks.nodes.blob_set(name)
    node = marks.keeper.find(path)
    data = encode_keys(sorted(keys))
    if node is not None and node.data != data:
        marks.keeper.multi([Set(path, data, node.version)])
