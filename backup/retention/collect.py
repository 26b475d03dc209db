"""What no backup of a repository names: deleted by the rules that hold on disks. No proof, no delete.

Two agreeing listings first, then what is named: a list that cannot be read, or a header, and nothing goes. Younger
objects than the guard interval stay, for a backup that is being made names them later. Each batch is announced
(`gc/<id>.json`), then claims and headers are read again. A backup that is being made does the reverse: it puts its
claim, then looks for announcements, then whether all is there. So one of the two always sees the other, however long
either of them is held up in between.

Backups that were begun longer ago than `ABANDONED` are given up before that, in a way that holds (`Storage.revoke`).
Announcements go as long after, and not before all backups that are older than them have ended: the delete of a
collection that was held up may still arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from backup.create import attempts
from backup.format import names
from backup.format.header import BackupHeader
from backup.retention.references import Named, check_roots, named_by, roots
from backup.storage import Storage
from disks.garbage.announcements import Announced, check_clocks, delete_announced, remove_stale
from disks.garbage.collect import GUARD_FLOOR_SECONDS
from disks.garbage.report import GcReport, SafetyStop
from disks.garbage.rules import GcRules, by_age, check_caps, count_verdict, out_of_quarantine, within_limit
from disks.object_disk.references import INTENTS_PREFIX, Blobs, BlobState, disagreement, sane_time
from disks.stores.base import ObjectInfo, Upload
from oplog.errors import FrostlineError, Refused

logger = logging.getLogger(__name__)

ABANDONED = timedelta(days=7)
"""A backup that was begun longer ago and is not complete never will be."""
_OURS = (names.BACKUPS_PREFIX, names.UNFINISHED_PREFIX, names.CLAIMS_PREFIX, names.DAMAGED_PREFIX, INTENTS_PREFIX)


def collect(
    storage: Storage,
    rules: GcRules,
    *,
    actor: str,
    expected: Collection[str] = (),
    now: datetime | None = None,
) -> GcReport:
    """Report what could go, and with `rules.delete` delete it. Repeating it after a crash finishes the work.

    `expected`: what somebody agreed to, and so counts for no cap. `now` None reads the wall clock and, before anything
    goes, checks it against the store's. Raises `Refused` for a guard interval below an hour unless the rules allow it.
    Safety rules that apply later are in `refused` of the report, and nothing is deleted.
    """
    if rules.guard.total_seconds() < GUARD_FLOOR_SECONDS and not rules.allow_short_guard:
        raise Refused(
            f"a guard interval of {rules.guard.total_seconds():g} s is too short: a backup that is being made would "
            "look like garbage",
            hint=f"use at least {GUARD_FLOOR_SECONDS} s",
        )
    report = GcReport(storage.name, delete=rules.delete)
    _Collection(storage, rules, report, actor, frozenset(expected), now).run()
    return report


class _Listing(msgspec.Struct):
    """One listing of a repository, sorted by what the names mean."""

    content: Blobs = msgspec.field(default_factory=Blobs)
    headers: dict[str, ObjectInfo] = msgspec.field(default_factory=dict)
    unfinished: dict[str, ObjectInfo] = msgspec.field(default_factory=dict)
    claims: dict[str, ObjectInfo] = msgspec.field(default_factory=dict)
    records: list[ObjectInfo] = msgspec.field(default_factory=list)
    damaged: list[ObjectInfo] = msgspec.field(default_factory=list)
    intents: list[ObjectInfo] = msgspec.field(default_factory=list)
    foreign: list[str] = msgspec.field(default_factory=list)


class _Collection:
    """One run. Fills the report as it goes."""

    def __init__(
        self,
        storage: Storage,
        rules: GcRules,
        report: GcReport,
        actor: str,
        expected: frozenset[str],
        now: datetime | None,
    ) -> None:
        self._storage, self._store = storage, storage.store
        self._rules, self._report, self._actor = rules, report, actor
        self._expected = expected
        self._now = now or datetime.now(UTC)
        self._check_clock = now is None

    def run(self) -> None:
        try:
            listing = _sorted(self._store.list())
            self._report.foreign = listing.foreign
            if self._report.delete and (
                objection := disagreement(listing.content, self._store.list(), is_blob=_is_ours)
            ):
                raise SafetyStop(objection)
            if self._report.delete:
                self._compare_clocks()
                self._give_up(listing)
            named = self._named(listing)
            verdict = by_age(listing.content, named.sizes, self._rules.guard, self._now)
            count_verdict(verdict, self._report)
            uploads = self._old_uploads()
            if self._report.delete:
                self._delete(listing, named, verdict, uploads)
        except SafetyStop as refusal:
            self._report.refused = str(refusal)
            logger.warning("%s: nothing more is deleted: %s", self._storage.name, refusal)

    def _compare_clocks(self) -> None:
        if self._check_clock:
            check_clocks(self._store, lambda: datetime.now(UTC))

    def _give_up(self, listing: _Listing) -> None:
        """Backups that were begun too long ago can never become complete from now on; then they protect nothing."""
        if not self._store.capabilities.conditional_put:
            return  # nothing would decide between their header and us: they stay
        claims = {claim.id: claim.key for claim in self._storage.claims() if isinstance(claim, BackupHeader)}
        begun = {mark.id: attempts.key_of(mark) for mark in self._storage.unfinished(())}
        for backup, key in {**begun, **claims}.items():
            seen = listing.unfinished.get(backup) or listing.claims.get(backup)
            if seen is not None and self._is_older(seen, ABANDONED):
                if names.parse_header_key(key) is None:  # the mark is damaged, and nothing was claimed
                    self._storage.forget_mark(backup)
                else:
                    self._storage.revoke(key, backup, self._actor)
                listing.unfinished.pop(backup, None)
                listing.claims.pop(backup, None)

    def _named(self, listing: _Listing) -> Named:
        """What the backups name. The whole listing showed headers and claims, too: those it shows count."""
        seen = [(backup, item.key) for found in (listing.headers, listing.claims) for backup, item in found.items()]
        try:
            found = roots(self._storage)
            check_roots(self._storage, seen, found)
            return named_by(self._storage, found)
        except FrostlineError as error:
            raise SafetyStop(f"the references cannot be read whole: {error.message}") from error

    def _old_uploads(self) -> list[Upload]:
        uploads = [
            upload
            for upload in self._store.list_uploads()
            if names.parse_content_key(upload.key) is not None
            and sane_time(upload.started, self._now)
            and self._now - upload.started >= self._rules.guard
        ]
        self._report.uploads = len(uploads)
        return uploads

    def _delete(self, listing: _Listing, named: Named, verdict: BlobState, uploads: Iterable[Upload]) -> None:
        surprising = tuple(blob for blob in verdict.orphaned if blob.key not in self._expected)
        check_caps(listing.content, replace(verdict, orphaned=surprising), self._rules)
        self._remove_stale(listing)
        try:
            condemned = Announced(self._store, listing.intents, self._now)
        except FrostlineError as error:
            raise SafetyStop(f"what earlier runs condemned cannot be read: {error.message}") from error
        due = out_of_quarantine(verdict.orphaned, condemned, self._rules, self._now, self._report)
        sizes = {blob.key: blob.size_bytes for blob in within_limit(due, self._rules, self._report)}

        def look_again(intent: str) -> Collection[str]:
            return self._named_since(named)

        gone = delete_announced(self._store, list(sizes), look_again, self._report, self._now)
        condemned.forget({blob.key for blob in verdict.orphaned}.difference(gone))
        self._report.deleted = len(gone)
        self._report.deleted_bytes = sum(sizes[key] for key in gone)
        for upload in uploads:
            self._store.abort_upload(upload)
            self._report.uploads_aborted += 1
        self._sweep(listing, named, set(gone))

    def _named_since(self, named: Named) -> Collection[str]:
        """What backups name that were claimed or completed since the references were read."""
        seen = [(backup, key) for backup, keys in named.backups.items() for key in keys]
        try:
            found = roots(self._storage)
            check_roots(self._storage, seen, found)
            fresh = [root for root in found if root.id not in named.backups]
            return named_by(self._storage, fresh).sizes
        except FrostlineError as error:
            raise SafetyStop(f"the references changed or cannot be read again: {error.message}") from error

    def _remove_stale(self, listing: _Listing) -> None:
        oldest = min((mark.modified for mark in listing.unfinished.values()), default=self._now)
        after = max(ABANDONED, self._now - oldest)
        remove_stale(self._store, listing.intents, self._now, after=after + timedelta(hours=1))

    def _sweep(self, listing: _Listing, named: Named, gone: set[str]) -> None:
        """Take away what tells of what is no more: records of backups, marks of damage, marks and claims of backups
        that are complete."""
        complete = {header.id for header in self._storage.headers()[0]}
        known = complete | named.backups.keys() | set(listing.unfinished)
        old = [
            item.key
            for item in listing.records
            if names.parse_record_key(item.key) not in known and self._is_older(item, self._rules.guard)
        ]
        old += [item.key for item in listing.damaged if self._is_over(item, listing, gone)]
        for beside in (listing.unfinished, listing.claims):
            old += [
                item.key
                for backup, item in beside.items()
                if backup in complete and self._is_older(item, self._rules.guard)
            ]
        self._report.scratch_deleted = sum(error is None for error in self._store.delete(old).values())

    def _is_over(self, info: ObjectInfo, listing: _Listing, gone: set[str]) -> bool:
        key = info.key.removeprefix(names.DAMAGED_PREFIX)
        return (listing.content.size_of(key) is None or key in gone) and self._is_older(info, self._rules.guard)

    def _is_older(self, info: ObjectInfo, than: timedelta) -> bool:
        return sane_time(info.modified, self._now) and self._now - info.modified >= than


def _is_ours(key: str) -> bool:
    return names.parse_content_key(key) is not None


def _sorted(objects: Iterable[ObjectInfo]) -> _Listing:
    listing = _Listing()
    for item in objects:
        key = item.key
        if names.parse_content_key(key) is not None:
            listing.content.add(item)
        elif (parsed := names.parse_header_key(key)) is not None:
            listing.headers[parsed[2]] = item
        elif (backup := names.parse_unfinished_key(key)) is not None:
            listing.unfinished[backup] = item
        elif (backup := names.parse_claim_key(key)) is not None:
            listing.claims[backup] = item
        elif names.parse_record_key(key) is not None:
            listing.records.append(item)
        elif key.startswith(names.DAMAGED_PREFIX):
            listing.damaged.append(item)
        elif key.startswith(INTENTS_PREFIX):
            listing.intents.append(item)
        elif key != names.MARKER_KEY and not key.startswith(_OURS):
            listing.foreign.append(key)
    return listing
