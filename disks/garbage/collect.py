"""The garbage collector: the only code that deletes objects of an object disk. No proof, no delete.

A blob goes when two agreeing listings show it, nothing that was read after them names it, and it is older than the
guard interval. Before each batch the collector announces it (`gc/<id>.json`) and looks for new pins and commits; a
restore does the reverse, it takes its pin and then looks for announcements. So one of the two always sees the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from disks.base import Disk, LoggedDisk, with_commits
from disks.garbage.announcements import Announced, announce, announced, batches, remove_stale, withdraw
from disks.garbage.clickhouse import collect_clickhouse
from disks.garbage.listing import cut_ranges, in_key_order, list_ranges, list_whole
from disks.garbage.live_references import LiveReferences, collect_references, renewed
from disks.garbage.report import GcReport, SafetyStop
from disks.garbage.rules import GcRules, check_caps, count_verdict, is_root, out_of_quarantine, within_limit
from disks.object_disk.history import past_at
from disks.object_disk.references import (
    FUTURE_TOLERANCE,
    INTENTS_PREFIX,
    Inventory,
    Verdict,
    classify,
    collectable_log,
    sane_time,
)
from disks.stores.base import Upload
from disks.workers.runner import Remote
from oplog import pins, snapshot
from oplog.errors import FrostlineError, Refused, Retained, UsageError
from oplog.revision import (
    commit_key,
    is_blob_key,
    is_scratch_key,
    parse_blob_key,
    parse_commit_key,
    parse_snapshot_key,
    snapshot_key,
)

__all__ = ["GUARD_FLOOR_SECONDS", "INTENTS_PREFIX", "GcReport", "announced", "collect", "is_root"]

logger = logging.getLogger(__name__)

GUARD_FLOOR_SECONDS = 3600
"""No operation may run longer than the guard between its first upload and its commit, so it cannot be short."""

_BATCH_KEYS = 5_000
_LOG_BATCH_KEYS = 1_000
"""One request of S3's."""

_BATCH_SECONDS = 600.0
"""A collector that was held up longer than this after its last look does not delete on it."""


def collect(disk: Disk, rules: GcRules, *, now: datetime | None = None, remote: Remote | None = None) -> GcReport:
    """Report what could go, and with `rules.delete` delete it. Repeating it after a crash finishes the work.

    `now` None reads the wall clock and, before anything goes, checks it against the store's. Raises `Refused` for a
    guard interval below an hour, and for a disk that is a whole bucket, unless the rules allow it. Safety rules that
    speak later are told in `refused` of the report, and nothing is deleted: a reference that cannot be read, listings
    that disagree, too large a share of the blobs. Errors of the first listing are raised. With `remote` others list
    the bucket; all that is decided and deleted is decided and deleted here.
    """
    short = rules.guard.total_seconds() < GUARD_FLOOR_SECONDS
    if short and not rules.allow_short_guard:
        raise Refused(
            f"a guard interval of {rules.guard.total_seconds():g} s is too short: work under way would look like "
            "garbage",
            hint=f"use at least {GUARD_FLOOR_SECONDS} s",
        )
    bucket = disk.bucket or with_commits(disk)
    if rules.delete and disk.read_only:
        raise Refused(f"disk {disk.name} is read-only", hint="collect without --delete to get a report")
    if rules.delete and not rules.allow_bucket_root and is_root(bucket.store.name):
        raise Refused(
            f"disk {disk.name} is all of {bucket.store.name}: a prefix that was forgotten looks like this",
            hint="give the disk a prefix of its own; or, if the whole bucket is meant, say --allow-bucket-root",
        )
    if short:
        logger.warning("disk %s: collecting with a guard interval of only %g s", disk.name, rules.guard.total_seconds())
    report = GcReport(disk.name, rules.delete)
    if (clickhouse := disk.clickhouse) is None:
        _Collection(with_commits(disk), rules, report, now=now, remote=remote).run()
        return report
    if remote is not None:
        raise UsageError(f"disk {disk.name} has ClickHouse's log: its bucket is listed here, and by nobody else")
    collect_clickhouse(clickhouse, rules, now or datetime.now(UTC), report, check_clock=now is None)
    return report


class _Collection:
    """One run. Fills the report as it goes."""

    def __init__(
        self, disk: LoggedDisk, rules: GcRules, report: GcReport, *, now: datetime | None, remote: Remote | None
    ) -> None:
        self._disk = disk
        self._store = disk.store
        self._rules = rules
        self._report = report
        self._now = now or datetime.now(UTC)
        self._check_clock = now is None
        self._remote = remote

    def run(self) -> None:
        try:
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
        return list_ranges(self._remote, ranges, what=f"listing disk {self._disk.name}")

    def _check_never_written(self) -> None:
        """A prefix without an object of ours was never written to; unless the cache knows better."""
        if self._disk.local_state_exists():
            try:
                self._disk.refresh()
            except FrostlineError as error:
                raise SafetyStop(f"the listing shows nothing, and the cache knows better: {error.message}") from error

    def _require(self, objection: str | None) -> None:
        if objection is not None:
            raise SafetyStop(objection)

    def _gather(self, found: Inventory) -> LiveReferences:
        try:
            return collect_references(self._disk, found, now=self._now, retention=self._rules.retention_on(self._disk))
        except FrostlineError as error:
            raise SafetyStop(f"the references cannot be read whole: {error.message}") from error

    def _judge(self, found: Inventory, evidence: LiveReferences) -> Verdict:
        # The next entry was asked for by name and is not there: what was uploaded for it waits for nothing but its age.
        head = found.head + 1
        verdict = classify(found.blobs, evidence.keys, head=head, now=self._now, guard=self._rules.guard)
        report = self._report
        count_verdict(verdict, report)
        report.pins_expired = list(evidence.expired_pins)
        report.oldest_revision = evidence.base
        report.log_collectable = len(self._collectable(found, set(found.snapshots), evidence))
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

    def _delete(self, found: Inventory, evidence: LiveReferences, verdict: Verdict, uploads: Sequence[Upload]) -> None:
        check_caps(found.blobs, verdict, self._rules)
        remove_stale(self._store, found.intents, self._now)
        log_keys = self._log_keys(found, evidence)
        log_gone = self._delete_announced(log_keys, evidence, in_order=True)
        self._report.log_deleted = len(log_gone)
        self._forget_commits(log_gone)
        condemned = self._condemned(found)
        due = out_of_quarantine(verdict.orphaned, condemned, self._rules, self._now, self._report)
        doomed = within_limit(due, self._rules, self._report)
        sizes = {blob.key: blob.size_bytes for blob in doomed}
        gone = self._delete_announced(list(sizes), evidence)
        condemned.forget({blob.key for blob in verdict.orphaned}.difference(gone))
        self._report.deleted = len(gone)
        self._report.deleted_bytes = sum(sizes[key] for key in gone)
        for upload in uploads:
            self._store.abort_upload(upload)
            self._report.uploads_aborted += 1
        for name in evidence.expired_pins:
            pins.release(self._store, name)
        pins.sweep(self._store)
        self._remove_scratch(found)

    def _forget_commits(self, gone: Iterable[str]) -> None:
        """The local index of the log grows with it, and shrinks with it."""
        revisions = [revision for key in gone if (revision := parse_commit_key(key)) is not None]
        if revisions:
            self._disk.forget_commits(max(revisions) + 1)

    def _condemned(self, found: Inventory) -> Announced:
        try:
            return Announced(self._store, found.intents, self._now)
        except FrostlineError as error:
            raise SafetyStop(f"what earlier runs condemned cannot be read: {error.message}") from error

    def _log_keys(self, found: Inventory, evidence: LiveReferences) -> list[str]:
        """The commits and snapshots to delete. Writes the snapshots that make older entries superfluous, when that is
        worth it: one at the oldest revision of the retention, and one at each older pinned revision."""
        snapshots = set(found.snapshots)
        wanted = {revision for revision in (*evidence.pinned, evidence.base) if revision > 0} - snapshots
        now = self._collectable(found, snapshots, evidence)
        possible = self._collectable(found, snapshots | wanted, evidence)
        if wanted and len(possible) - len(now) >= self._rules.compact_after_commits:
            for revision in sorted(wanted):
                self._write_snapshot(found, revision)
            now = possible
        return now

    @staticmethod
    def _collectable(found: Inventory, snapshots: set[int], evidence: LiveReferences) -> list[str]:
        commits, old = collectable_log(found.commits, snapshots, base=evidence.base, pinned=evidence.pinned)
        return [*map(commit_key, commits), *map(snapshot_key, old)]

    def _write_snapshot(self, found: Inventory, revision: int) -> None:
        """Write it and read it back whole: entries go only when what replaces them is proved to be readable."""
        past = past_at(self._disk.log, found, revision, until=revision, strict=True)
        try:
            snapshot.write(self._store, revision, past.digest, past.rows())
            header, rows = snapshot.read(self._store, revision)
            if header.digest != past.digest or not past.holds(rows):
                raise SafetyStop(f"the snapshot of revision {revision} does not hold what the log says")
        finally:
            past.close()
        self._report.snapshots_written.append(revision)

    def _delete_announced(self, keys: Sequence[str], evidence: LiveReferences, *, in_order: bool = False) -> list[str]:
        """Delete in batches, each announced and checked once more. Returns the keys that are gone. With `in_order` a
        batch of which something stays is the last one: what is left of a log shall have no gaps."""
        gone: list[str] = []
        for batch in batches(keys, _LOG_BATCH_KEYS if in_order else _BATCH_KEYS):
            unable = len(self._report.failed) + len(self._report.kept)
            intent = self._announce(batch)
            looked_at = time.monotonic()
            try:
                named = self._renewed(evidence)
                if time.monotonic() - looked_at > _BATCH_SECONDS:
                    raise SafetyStop("looking at the references once more took too long; run it again")
            except SafetyStop:
                withdraw(self._store, intent)
                raise
            for key, error in self._store.delete([key for key in batch if key not in named]).items():
                if error is None:
                    gone.append(key)
                elif isinstance(error, Retained):
                    self._report.kept[key] = error.until
                else:
                    self._report.failed[key] = error.message
            stays = len(self._report.failed) + len(self._report.kept) > unable
            # Only now: a delete whose answer was lost may still arrive, so its announcement stays until it is stale.
            withdraw(self._store, intent)
            if in_order and stays:
                break
        return gone

    def _announce(self, batch: Sequence[str]) -> str:
        key = announce(self._store, batch, self._now)
        if self._check_clock:
            skew = abs(datetime.now(UTC) - self._store.head(key).modified)
            if skew > FUTURE_TOLERANCE:
                withdraw(self._store, key)
                raise SafetyStop(f"the clocks of this machine and of the store differ by {skew}: ages cannot be judged")
            self._check_clock = False
        return key

    def _renewed(self, evidence: LiveReferences) -> set[str]:
        try:
            return renewed(self._disk, evidence, now=self._now)
        except FrostlineError as error:
            raise SafetyStop(f"the references changed or cannot be read again: {error.message}") from error

    def _remove_scratch(self, found: Inventory) -> None:
        old = [
            item.key
            for item in found.scratch
            if sane_time(item.modified, self._now) and self._now - item.modified >= self._rules.guard
        ]
        self._report.scratch_deleted = sum(error is None for error in self._store.delete(old).values())
