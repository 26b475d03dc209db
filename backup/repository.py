"""A backup repository, as programs and the command line use it.

with Store.open() as store, Repository.open("s3://backups/frostline", config=store.context.config) as repository:
    made = repository.create(store, CreateRequest())
    repository.verify(made.name, VerifyRequest(share=1.0))
    repository.restore(store, RestoreRequest(name=made.name, renamings=(Renaming("db.t", "db.copy"),)))
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Self

import msgspec

from backup import records
from backup.copies import RepositoryCopies
from backup.create.attempts import key_of, pin_name
from backup.create.create import create
from backup.create.request import CreateRequest, CreateResult
from backup.format import names
from backup.format.header import BackupHeader, DrillRecord, UnfinishedBackup, VerificationRecord
from backup.format.names import LATEST
from backup.recover.contents import BackupDiff, changes, one_file
from backup.recover.drill import DrillRequest, DrillResult, drill
from backup.recover.reading import BackupReader
from backup.recover.recover import restore
from backup.recover.request import RestoreRequest, RestoreResult
from backup.repository_location import APART, repository_config
from backup.retention.collect import collect
from backup.retention.prune import PruneRequest, PruneResult, drop, prune, retained
from backup.retention.rules import CLOCKS_DIFFER
from backup.storage import BrokenBackup, Storage
from backup.verify import last_seen
from backup.verify.buckets import PinnedBuckets
from backup.verify.last_seen import NONE, Proof, proof
from backup.verify.verify import VerifyRequest, VerifyResult, broken_result, verify
from disks.config import ObjectDiskConfig
from disks.garbage.report import GcReport
from disks.garbage.rules import GcRules
from disks.object_disk.sharing.prefix import at_url
from disks.stores.base import ObjectStore
from disks.stores.enclosing import check_no_disk_around
from disks.stores.open import open_store
from disks.stores.wrappers.limit import Limiter
from disks.workers.progress import SILENT, Progress
from oplog import pins
from oplog.entry import now
from oplog.errors import FrostlineError, NotFound
from tiering.config.disk_locations import bucket_at
from tiering.config.reading import load
from tiering.config.settings import Config
from tiering.engine.store import Store

logger = logging.getLogger(__name__)


class Listed(msgspec.Struct, frozen=True):
    """A backup as a listing shows it. Exactly one of `header`, `unfinished` and `broken` is there."""

    header: BackupHeader | None = None
    unfinished: UnfinishedBackup | None = None
    broken: BrokenBackup | None = None
    verified: VerificationRecord | None = None
    """The newest verification."""
    drilled: DrillRecord | None = None
    """The newest drill."""


def _warn(keys: list[str]) -> None:
    logger.warning("of the backups that 'latest' looked at these cannot be read: %s", ", ".join(keys))


class Repository:
    """An open repository. A context manager: leaving it closes the connections."""

    def __init__(
        self, storage: Storage, url: str, config: Config, limiter: Limiter | None, progress: Progress, workers: int
    ) -> None:
        self.storage = storage
        self.url = url
        self.passed_over: Callable[[list[str]], None] = _warn
        """Hears of headers that cannot be read when somebody asks for the newest backup."""
        self.config = config
        self.workers = workers
        self._limiter = limiter
        self._progress = progress

    @classmethod
    def open(
        cls,
        url: str,
        *,
        config: Config | None = None,
        limiter: Limiter | None = None,
        progress: Progress = SILENT,
        workers: int | None = None,
    ) -> Self:
        """The repository at the URL. Raises `NotFound` where there is none."""
        settings = config or load()
        wanted = repository_config(settings, url)
        storage = Storage.open(open_store(wanted, limiter=limiter))
        storage.copies = RepositoryCopies(settings.state_directory / "backup" / storage.id / "copies.sqlite")
        return cls(storage, wanted.url, settings, limiter, progress, workers or settings.limits.workers)

    @classmethod
    def init(cls, url: str, *, config: Config | None = None, limiter: Limiter | None = None) -> Self:
        """Make an empty place a repository. Raises `AlreadyExists` for one, `Refused` for what is not empty."""
        settings = config or load()
        wanted = repository_config(settings, url)
        store = open_store(wanted, limiter=limiter)
        check_no_disk_around(wanted, partial(open_store, limiter=limiter), itself=True, hint=APART)
        storage = Storage.init(store)
        return cls(storage, wanted.url, settings, limiter, SILENT, settings.limits.workers)

    @property
    def name(self) -> str:
        """Where it is."""
        return self.storage.name

    def close(self) -> None:
        """Release connections."""
        self.storage.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what is there -----------------------------------------------------------------------------------------------

    def backups(self, *, deleted: bool = False) -> list[Listed]:
        """Every backup, oldest first, then those that are not complete, then those whose header cannot be read.
        `deleted`: some were, just now."""
        headers, broken = self.storage.headers(remembered=True)
        listed = self.checked(headers)
        seen = [(item.header.name, item.verified, item.drilled) for item in listed if item.header is not None]
        self._remember(
            headers,
            {verified.backup: proof(name, verified) for name, verified, _ in seen if verified is not None},
            {drilled.backup: proof(name, drilled) for name, _, drilled in seen if drilled is not None},
            everything=True,
            deleted=deleted,
        )
        return [
            *listed,
            *(Listed(unfinished=mark) for mark in self.storage.unfinished(headers)),
            *(Listed(broken=item) for item in broken),
        ]

    def checked(self, headers: Sequence[BackupHeader]) -> list[Listed]:
        """These backups, each with its newest verification and drill."""
        ids = [header.id for header in headers]
        verified, drilled = (
            records.newest(self.storage, ids, VerificationRecord),
            records.newest(self.storage, ids, DrillRecord),
        )
        return [Listed(header, verified=verified.get(header.id), drilled=drilled.get(header.id)) for header in headers]

    def _remember(
        self,
        headers: Sequence[BackupHeader],
        verified: Mapping[str, Proof] = NONE,
        drilled: Mapping[str, Proof] = NONE,
        *,
        everything: bool = False,
        deleted: bool = False,
    ) -> None:
        """For `status`, which asks nobody."""
        repository = self.storage.id, self.url
        last_seen.remember(self.config, repository, headers, verified, drilled, everything=everything, deleted=deleted)

    def _look(self) -> None:
        """After backups went: look at those that are left. What was done is done, seen or not."""
        with suppress(FrostlineError):
            self.backups(deleted=True)

    def find(self, name: str) -> list[BackupHeader]:
        """The backup of this name or id, or the newest that can be read (`latest`, which says so where a header cannot
        be, for it may be a newer one's); several machines' backups of one name are a set.
        Raises `NotFound`, saying so when it was never completed, and the error of a header that cannot be read."""
        headers, broken = self.storage.headers()
        if name == LATEST:
            if not headers:
                raise NotFound(f"{self.name} holds no backup", hint="make one: frostline backup create")
            if broken:
                self.passed_over([item.key for item in broken])
            latest = datetime.now(UTC) + CLOCKS_DIFFER  # one from the future is the newest only where no other is
            name = max(headers, key=lambda made: (made.taken <= latest, made.taken)).name
        for item in broken:
            parsed = names.parse_header_key(item.key)
            if parsed is not None and name in (parsed[0], parsed[2]):
                raise item.error
        found = [header for header in headers if name in (header.name, header.id)]
        if found:
            return found
        if any(name in (mark.name, mark.id) for mark in self.storage.unfinished(headers)):
            raise NotFound(
                f"backup {name} was never completed: it cannot be used",
                hint="make it again with 'frostline backup create': what was sent is not sent twice",
            )
        known = ", ".join(sorted({header.name for header in headers})[-10:]) or "none yet"
        raise NotFound(f"No such backup: {name}", hint=f"the newest are: {known}")

    # -- what can be done --------------------------------------------------------------------------------------------

    def create(self, store: Store, request: CreateRequest | None = None) -> CreateResult:
        """Back up the store's tables as of one instant; inserts, merges and moves go on meanwhile."""
        return create(
            self.storage, store.context, request or CreateRequest(), made=lambda header: self._remember([header])
        )

    def verify(self, name: str | None, request: VerifyRequest | None = None) -> list[VerifyResult]:
        """Verify the backup, or with None all of them. What is found is kept, and shown by `backups`."""
        request = request or VerifyRequest()
        everything, broken = self.storage.headers()
        chosen = everything if name is None else self.find(name)
        buckets = self._buckets()
        try:
            results = verify(
                self.storage,
                chosen,
                everything,
                buckets,
                request,
                workers=self.workers,
                progress=self._progress,
            )
        finally:
            buckets.close()
        if not request.dry_run:
            proofs = {found.id: Proof(found.name, now(), found.depth, len(found.problems)) for found in results}
            self._remember(everything, proofs)
        for item in broken if name is None else ():
            parsed = names.parse_header_key(item.key) or (item.key, "", "")
            results.append(broken_result(item, *parsed))
        for item in self.storage.unreadable(records=request.share > 0) if name is None else ():
            results.append(broken_result(item, item.key, "", ""))
        return results

    def restore(self, store: Store, request: RestoreRequest) -> RestoreResult:
        """Restore the chosen tables of a backup into the store."""
        buckets = self._buckets()
        try:
            return restore(self.storage, store.context, self.find(request.name), buckets, request)
        finally:
            buckets.close()

    def drill(self, name: str = LATEST, request: DrillRequest | None = None) -> DrillResult:
        """Restore the backup into a scratch store on this machine, check and compare it, and take it away. What is
        found is kept, and shown by `backups`."""
        buckets, headers = self._buckets(), self.find(name)
        try:
            found = drill(
                self.storage,
                self.config,
                headers,
                buckets,
                request or DrillRequest(),
                workers=self.workers,
                progress=self._progress,
            )
        finally:
            buckets.close()
        if not found.dry_run:
            seen = Proof(found.name, now(), "whole" if found.whole else "share", len(found.problems))
            self._remember(headers, drilled={header.id: seen for header in headers})
        return found

    def diff(self, first: str, second: str) -> BackupDiff:
        """Tables and parts that only one of two backups has."""
        return changes(self.storage, self.find(first), self.find(second))

    def cat(self, name: str, path: str) -> bytes:
        """One file of a backup by `TABLE/PART/FILE`, compared with its digest. Raises `NotFound`, `Damaged`."""
        buckets = self._buckets()
        try:
            return one_file(self.storage, self.find(name), path, BackupReader(self.storage, buckets))
        finally:
            buckets.close()

    def delete(self, name: str, store: Store | None = None, actor: str = "") -> Sequence[str]:
        """Delete the backup, by its id also one whose header cannot be read, or what there is of one that was never
        completed, which then never will be; its pins in the store's buckets go, too. What it held stays until it is
        collected. Returns the ids."""
        broken = {
            item.key: parsed for item in self.storage.headers()[1] if (parsed := names.parse_header_key(item.key))
        }
        unreadable = {key: parsed[2] for key, parsed in broken.items() if name == parsed[2]}
        if unreadable:
            self.storage.remove(list(unreadable))
            for backup_id in unreadable.values():
                self._release(backup_id, store)
            return list(unreadable.values())
        try:
            found = self.find(name)
        except NotFound:
            marks = [mark for mark in self.storage.unfinished(()) if name in (mark.name, mark.id)]
            marks = [mark for mark in marks if self.storage.revoke(key_of(mark), mark.id, actor)]
            if not marks:
                raise
            for mark in marks:
                self._release(mark.id, store)
            return [mark.id for mark in marks]
        locked: dict[str, datetime | None] = {}
        for header in found:
            drop(self.storage, header, lambda header: self._release(header.id, store), locked)
        if len(locked) < len(found):
            self._look()
        if locked:
            raise retained(self.name, locked)
        return [header.id for header in found]

    def gc(self, rules: GcRules, *, actor: str = "", now: datetime | None = None) -> GcReport:
        """Report, or as the rules say remove, objects that no backup names."""
        return collect(self.storage, rules, actor=actor, now=now)

    def prune(self, request: PruneRequest, store: Store | None = None, *, now: datetime | None = None) -> PruneResult:
        """Drop the backups that no rule keeps, their pins in the store's buckets, and what only they named."""
        done = prune(self.storage, request, lambda header: self._release(header.id, store), now)
        if any(not choice.keep for choice in done.choices) and not request.dry_run:
            self._look()
        if store is not None and not request.dry_run:
            whole = [disk for disk in store.object_disks() if disk.broken is None and not disk.read_only]
            release_left(self.storage, [disk.store for disk in whole])
        return done

    @staticmethod
    def _release(backup_id: str, store: Store | None) -> None:
        for disk in store.object_disks() if store is not None else ():
            if disk.broken is None and not disk.read_only:
                pins.release(disk.store, pin_name(backup_id))

    def _buckets(self) -> PinnedBuckets:
        def opened(url: str, endpoint_url: str | None) -> ObjectStore:
            repository = bucket_at(self.config, url)
            if endpoint_url is not None:
                repository = msgspec.structs.replace(repository, endpoint_url=endpoint_url)
            return opened_as(at_url(repository, opened_as))

        def opened_as(repository: ObjectDiskConfig) -> ObjectStore:
            return open_store(repository, limiter=self._limiter)

        return PinnedBuckets(opened)


def release_left(storage: Storage, buckets: Iterable[ObjectStore]) -> None:
    """Release the pins of this repository's backups that are neither there nor being made."""
    here = f" in {storage.name}"
    found = [
        (bucket, pin.name)
        for bucket in buckets
        for pin in pins.list_pins(bucket)
        if pin.until is None and pin.holder.endswith(here)
    ]
    if not found:
        return
    # In this order: a backup is marked before it pins, and its mark stays until its header is there.
    begun = {mark.id for mark in storage.unfinished(())}
    headers, broken = storage.headers()
    known = {pin_name(backup) for backup in (*begun, *(header.id for header in headers))}
    unreadable = [item.key for item in broken]
    for bucket, name in found:
        if name not in known and not any(name.removeprefix(pin_name("")) in key for key in unreadable):
            pins.release(bucket, name)
