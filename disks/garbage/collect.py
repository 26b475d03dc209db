"""The garbage collector: the only code that deletes objects of an object disk. No proof, no delete.

A blob goes when two agreeing listings show it, nothing that was read after them names it, and it is older than the
guard interval. Before each batch the collector announces it (`gc/<id>.json`) and looks for new pins and commits; a
restore does the reverse, it takes its pin and then looks for announcements. So one of the two always sees the other.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TypeVar

from disks.base import Disk
from disks.contracts.bucket_disk import BucketDisk, ClickHouseLogDisk, LoggedDisk
from disks.garbage.announcements import BATCH_KEYS, Announced, check_clocks, delete_announced, remove_stale
from disks.garbage.clickhouse import collect_clickhouse
from disks.garbage.kept_revisions import tables_at
from disks.garbage.listing import cut_ranges, in_key_order, list_ranges, list_whole
from disks.garbage.live_references import LiveReferences, check_start
from disks.garbage.reference_sources import References, ReferenceSources
from disks.garbage.report import GcReport, SafetyStop
from disks.garbage.rules import GcRules, check_caps, count_verdict, is_root, out_of_quarantine, within_limit
from disks.kinds import as_disk, with_commits
from disks.object_disk.history import TableAsOf
from disks.object_disk.references import (
    INTENTS_PREFIX,
    BlobState,
    Inventory,
    classify,
    collectable_log,
    newest_at_or_below,
    sane_time,
)
from disks.stores.base import Upload
from disks.stores.wrappers.named_log import whole_prefix
from disks.workers.runner import Remote
from oplog import pins, snapshot
from oplog.errors import AlreadyExists, FrostlineError, Refused, UsageError
from oplog.revision import (
    commit_key,
    floor_key,
    is_blob_key,
    is_scratch_key,
    parse_blob_key,
    parse_commit_key,
    parse_snapshot_key,
    snapshot_key,
)

__all__ = ["GUARD_FLOOR_SECONDS", "INTENTS_PREFIX", "GcReport", "collect", "is_root"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

GUARD_FLOOR_SECONDS = 3600
"""No operation may run longer than the guard between its first upload and its commit, so it cannot be short."""

_LOG_BATCH_KEYS = 1_000
"""One request of S3's."""


def collect(
    disk: Disk,
    rules: GcRules,
    *,
    now: datetime | None = None,
    remote: Remote | None = None,
    references: References | None = None,
) -> GcReport:
    """Report what could go, and with `rules.delete` delete it. Repeating it after a crash finishes the work.

    `now` None reads the wall clock and, before anything goes, checks it against the store's. Raises `Refused` for a
    guard interval below an hour, and for a disk that is a whole bucket, unless the rules allow it. Safety rules that
    apply later are in `refused` of the report, and nothing is deleted: a reference that cannot be read, listings
    that disagree, too large a share of the blobs. Errors of the first listing are raised. With `remote` others list
    the bucket; all that is decided and deleted is decided and deleted here. Where several logs share the prefix, what
    any of them names stays, and what `references` holds.
    """
    short = rules.guard.total_seconds() < GUARD_FLOOR_SECONDS
    if short and not rules.allow_short_guard:
        raise Refused(
            f"a guard interval of {rules.guard.total_seconds():g} s is too short: work under way would look like "
            "garbage",
            hint=f"use at least {GUARD_FLOOR_SECONDS} s",
        )
    bucket = as_disk(disk, BucketDisk) or with_commits(disk)
    if rules.delete and disk.read_only:
        raise Refused(f"disk {disk.name} is read-only", hint="run gc without --delete for a report")
    if rules.delete and not rules.allow_bucket_root and is_root(whole_prefix(bucket.store).name):
        raise Refused(
            f"disk {disk.name} is all of {bucket.store.name}: a prefix that was forgotten looks like this",
            hint="give the disk a prefix of its own; or, if the whole bucket is meant, use --allow-bucket-root",
        )
    if short:
        logger.warning("disk %s: collecting with a guard interval of only %g s", disk.name, rules.guard.total_seconds())
    report = GcReport(disk.name, delete=rules.delete)
    if (clickhouse := as_disk(disk, ClickHouseLogDisk)) is None:
        _Collection(with_commits(disk), rules, report, now=now, remote=remote, references=references).run()
        return report
    if remote is not None:
        raise UsageError(f"disk {disk.name} has ClickHouse's log: its bucket is listed here, and nowhere else")
    collect_clickhouse(clickhouse, rules, now or datetime.now(UTC), report, check_clock=now is None)
    return report


class _Collection:
    """One run. Fills the report as it goes."""

    def __init__(
        self,
        disk: LoggedDisk,
        rules: GcRules,
        report: GcReport,
        *,
        now: datetime | None,
        remote: Remote | None,
        references: References | None,
    ) -> None:
        self._disk = disk
        self._store = disk.store
        self._rules = rules
        self._report = report
        self._now = now or datetime.now(UTC)
        self._check_clock = now is None
        self._remote = remote
        self._witnesses = ReferenceSources(disk, references, now=self._now, guard=rules.guard)

    def run(self) -> None:
        with closing(self._witnesses):
            self._run()

    def _run(self) -> None:
        try:
            self._begin()
            found, objection = self._listed()
            self._report.foreign = list(found.foreign)
            self._require(objection)
            if found.head == 0 and not found.blobs and not found.snapshots:
                self._check_never_written()
                return
            evidence = self._gather(found)
            verdict = self._judge(found, evidence)
            uploads = self._old_uploads()
            self._look_at_versions()
            if self._report.delete:
                self._delete(found, evidence, verdict, uploads)
        except SafetyStop as refusal:
            self._report.refused = str(refusal)
            logger.warning("disk %s: nothing more is deleted: %s", self._disk.name, refusal)

    def _begin(self) -> None:
        try:
            self._witnesses.begin()
        except FrostlineError as error:
            raise SafetyStop(f"the references cannot be read whole: {error.message}") from error

    def _listed(self) -> tuple[Inventory, str | None]:
        """The listing; with `delete` a second one, and why the two disagree. Others compare it with the cached table,
        which names nothing but what `gather` counts as referenced, too."""
        twice = self._report.delete
        if self._remote is None:
            return list_whole(self._store, twice=twice)
        try:
            with self._disk.file_table.read() as view:
                head, _ = view.head()
                ranges = list(cut_ranges(self._remote.store, in_key_order(view), head=head, twice=twice))
        except FrostlineError as error:
            raise SafetyStop(f"the references cannot be read whole: {error.message}") from error
        return list_ranges(self._remote, ranges, title=f"listing disk {self._disk.name}")

    def _check_never_written(self) -> None:
        """Nothing of ours was ever written here, unless the cache or the first entry knows better."""
        try:
            if self._disk.local_state_exists():
                self._disk.refresh()
            else:
                self._disk.log.first_revision()
        except FrostlineError as error:
            raise SafetyStop(f"the listing shows nothing, and something knows better: {error.message}") from error

    def _require(self, objection: str | None) -> None:
        if objection is not None:
            raise SafetyStop(objection)

    def _gather(self, inventory: Inventory) -> LiveReferences:
        try:
            return self._witnesses.gather(inventory, retention=self._rules.retention_on(self._disk))
        except FrostlineError as error:
            raise SafetyStop(f"the references cannot be read whole: {error.message}") from error

    def _judge(self, inventory: Inventory, evidence: LiveReferences) -> BlobState:
        # The next entry was asked for by name and is not there: what was uploaded for it waits for nothing but its age.
        head = max(inventory.head, self._witnesses.head) + 1
        verdict = classify(inventory.blobs, self._witnesses.named, head=head, now=self._now, guard=self._rules.guard)
        report = self._report
        count_verdict(verdict, report)
        report.pins_expired = list(evidence.expired_pins)
        report.oldest_revision = evidence.base
        report.log_collectable = len(self._collectable(inventory, set(inventory.snapshots), evidence))
        return verdict

    def _old_uploads(self) -> list[Upload]:
        """Uploads nobody will finish. Their keys are checked as objects' are: a foreign one is not ours to abort."""
        uploads = [
            upload
            for upload in self._store.list_uploads()
            if (parse_blob_key(upload.key) is not None or is_scratch_key(upload.key))
            and sane_time(upload.started, self._now)
            and self._now - upload.started >= self._rules.guard
        ]
        self._report.uploads = len(uploads)
        return uploads

    def _look_at_versions(self) -> None:
        """Count what a versioned bucket keeps of our names: no listing shows it, and somebody pays for it."""
        settings = self._store.bucket_settings()
        if settings is None or not isinstance(settings.versioning, str) or settings.versioning == "off":
            return
        self._report.versioning = settings.versioning
        for version in self._store.old_versions():
            if is_blob_key(version.key) or parse_commit_key(version.key) or parse_snapshot_key(version.key):
                self._report.old_versions += 1
                self._report.old_version_bytes += version.size_bytes

    # Deleting

    def _delete(
        self, inventory: Inventory, evidence: LiveReferences, verdict: BlobState, uploads: Sequence[Upload]
    ) -> None:
        self._compare_clocks()  # before anything is written: pins and announcements end by the clock, too
        check_caps(inventory.blobs, verdict, self._rules)
        remove_stale(self._store, inventory.intents, self._now)
        try:
            log_keys = self._log_keys(inventory, evidence)
        except FrostlineError as error:
            raise SafetyStop(f"the references cannot be read whole: {error.message}") from error
        floor = self._floor(inventory, log_keys)
        log_gone = self._delete_announced(log_keys, floor=floor)
        self._report.log_deleted = len(log_gone)
        if log_gone:
            self._store.delete([floor_key(older) for older in inventory.floors if older < floor])
        self._forget_commits(log_gone)
        condemned = self._condemned(inventory)
        due = out_of_quarantine(verdict.orphaned, condemned, self._rules, self._now, self._report)
        to_delete = within_limit(due, self._rules, self._report)
        sizes = {blob.key: blob.size_bytes for blob in to_delete}
        gone = self._delete_announced(list(sizes))
        condemned.forget({blob.key for blob in verdict.orphaned}.difference(gone))
        self._report.deleted = len(gone)
        self._report.deleted_bytes = sum(sizes[key] for key in gone)
        for upload in uploads:
            self._store.abort_upload(upload)
            self._report.uploads_aborted += 1
        for name in evidence.expired_pins:
            pins.release(self._store, name)
        pins.sweep(self._store)
        self._remove_scratch(inventory)

    def _forget_commits(self, gone: Iterable[str]) -> None:
        """The local index of the log grows with it, and shrinks with it."""
        revisions = [revision for key in gone if (revision := parse_commit_key(key)) is not None]
        if revisions:
            self._disk.forget_commits(max(revisions) + 1)

    def _condemned(self, inventory: Inventory) -> Announced:
        try:
            return Announced(self._store, inventory.intents, self._now)
        except FrostlineError as error:
            raise SafetyStop(f"what earlier runs condemned cannot be read: {error.message}") from error

    def _log_keys(self, inventory: Inventory, evidence: LiveReferences) -> list[str]:
        """The commits and snapshots to delete. Writes the snapshots that make older entries superfluous, when that is
        worth it: one at the oldest revision of the retention, and one at each older pinned revision."""
        snapshots = set(inventory.snapshots)
        needed = {revision for revision in (*evidence.pinned, evidence.base) if revision > 0} - snapshots
        now = self._collectable(inventory, snapshots, evidence)
        possible = self._collectable(inventory, snapshots | needed, evidence)
        if needed and len(possible) - len(now) >= self._rules.compact_after_commits:
            self._write_snapshots(inventory, sorted(needed))
            now = possible
        self._prove_snapshots(inventory, evidence, now)
        return now

    @staticmethod
    def _collectable(inventory: Inventory, snapshots: set[int], evidence: LiveReferences) -> list[str]:
        commits, old = collectable_log(inventory.commits, snapshots, base=evidence.base, pinned=evidence.pinned)
        return [*map(commit_key, (*inventory.leftovers, *commits)), *map(snapshot_key, old)]

    @staticmethod
    def _floor(inventory: Inventory, log_keys: Iterable[str]) -> int:
        """The first entry that is kept when these have gone."""
        going = {parse_commit_key(key) for key in log_keys}
        return min(revision for revision in inventory.commits if revision not in going)

    def _write_snapshots(self, inventory: Inventory, revisions: Sequence[int]) -> None:
        """Write them and read them back whole: entries go only when what replaces them is proved to be readable."""
        for past in tables_at(self._disk.log, inventory, revisions):
            snapshot.write(self._store, past.revision, past.digest, past.rows())
            header, rows = snapshot.read(self._store, past.revision)
            if header.digest != past.digest or not past.holds(rows):
                raise SafetyStop(f"the snapshot of revision {past.revision} does not hold what the log says")
            self._report.snapshots_written.append(past.revision)

    def _prove_snapshots(self, inventory: Inventory, evidence: LiveReferences, to_delete: Sequence[str]) -> None:
        """Read those that a revision to keep will be rebuilt from once these entries are gone, and that were not read
        yet: the references may have been read from the entries."""
        gone = max((revision for key in to_delete if (revision := parse_commit_key(key)) is not None), default=0)
        proved = {*evidence.proved, *self._report.snapshots_written}
        there = {*inventory.snapshots, *proved}
        for revision in (*evidence.pinned, evidence.base):
            if not any(min(gone, revision) <= start <= revision for start in proved):
                start = newest_at_or_below(there, revision)
                with closing(TableAsOf(self._disk.log, start, until=start, moves=False)) as past:
                    check_start(self._disk, inventory, past)
                proved.add(start)

    def _delete_announced(self, keys: Sequence[str], *, floor: int | None = None) -> list[str]:
        """Delete in batches, each announced and checked once more. Returns the keys that are gone. With a `floor` they
        are the log's: it is put before the first goes, and a batch of which something stays is the last one, so that
        what is left has no gaps."""

        def look_again(intent: str) -> set[str]:
            if floor is not None:
                return self._asked(self._witnesses.renewed_own)
            self._put_fences(intent)
            return self._asked(self._witnesses.renewed)

        def release(to_delete: Sequence[str]) -> Collection[str]:
            return to_delete if floor is not None else self._asked(lambda: self._witnesses.release(to_delete))

        def put_floor() -> None:
            if floor is not None:
                self._put_floor(floor)

        return delete_announced(
            self._store,
            keys,
            look_again,
            self._report,
            self._now,
            release=release,
            batch_keys=BATCH_KEYS if floor is None else _LOG_BATCH_KEYS,
            before_each=put_floor,
            all_or_stop=floor is not None,
        )

    def _put_fences(self, intent: str) -> None:
        """Who commits after them looks at its objects again, and finds them announced; who did before is read next."""
        try:
            self._witnesses.fence(intent)
        except FrostlineError as error:
            raise SafetyStop(f"the log could not record the deletions: {error.message}") from error

    def _put_floor(self, floor: int) -> None:
        """A writer that still stands below it learns that its next entry is none of the log's (L1)."""
        try:
            self._store.put_if_absent(floor_key(floor), b"{}", sha256=hashlib.sha256(b"{}").digest())
        except AlreadyExists:
            return

    def _compare_clocks(self) -> None:
        if self._check_clock:
            check_clocks(self._store, lambda: datetime.now(UTC))

    def _asked(self, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except FrostlineError as error:
            raise SafetyStop(f"the references changed or cannot be read again: {error.message}") from error

    def _remove_scratch(self, inventory: Inventory) -> None:
        old = [
            info.key
            for info in inventory.scratch
            if sane_time(info.modified, self._now) and self._now - info.modified >= self._rules.guard
        ]
        self._report.scratch_deleted = sum(error is None for error in self._store.delete(old).values())
