"""Restore a disk, or some of its tables, from another bucket, which is only read.

What the target has already (the same path with the same bytes) stays as it is. The rest is copied under fresh keys and
committed; files of the same tables that the source does not have go. Tables that the source does not know, and what
lies outside the scope, stay byte for byte. A killed restore is run again and goes on where it was.
"""

from __future__ import annotations

import hashlib
import secrets
import time as clock
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from datetime import UTC, datetime
from functools import partial

import msgspec
from msgspec.structs import replace

from disks.contracts.bucket_disk import LoggedDisk
from disks.effects import make_directory
from disks.file_table.table import FileTable
from disks.host.locks import file_lock
from disks.object_disk.history import past_at
from disks.object_disk.pending_deletes import announced
from disks.stores.base import ObjectStore
from disks.workers.counting import RequestCount, add_requests
from disks.workers.parallel import Askers, ask
from disks.workers.progress import SILENT, Progress
from oplog.errors import Conflict, Refused
from oplog.kinds import Restored
from oplog.replay import FileRow
from restore.rebuild.allowed import check_arrivals, check_names, check_writable, objection_of
from restore.rebuild.duplicates import Look, nothing_known
from restore.rebuild.held_revision import require_clock
from restore.rebuild.plan import (
    by_path,
    matched,
)
from restore.rebuild.rebuild import log_inventory, requests_so_far
from restore.rebuild.request import RebuildRequest
from restore.rebuild.result import RebuildResult
from restore.rebuild.scope import scope_of
from restore.transfer.blob_copies import (
    BlobCopier,
    CopiedBlobs,
    CopyAttempt,
    RemoteCopying,
    SourceChanged,
    begin_copy_journal,
    digest_of,
    end,
)
from restore.transfer.changes import TransferBatch, TransferChanges, lost_here
from restore.transfer.source import SourceTree, read_source

WORKERS = 16
_DIGESTS_EACH = 20
_ATTEMPTS = 5


def restore_from(
    disk: LoggedDisk,
    source: ObjectStore,
    request: RebuildRequest,
    *,
    workers: int = WORKERS,
    progress: Progress = SILENT,
    elsewhere: RemoteCopying | None = None,
    look: Look = nothing_known,
) -> RebuildResult:
    """Compare the disk with the source at a revision or a time (by default the newest), and with `apply` restore it.
    `look`: what the other disks of this machine hold, asked before each decision.

    Tables are named as in the source. With `elsewhere` others copy, compare and ask the objects of a ClickHouse server
    for their paths; what is decided and committed is so here. Raises `NotFound` for a revision that the source does not
    keep, `Refused` when the source and the disk overlap or objects are missing, `Locked` when another restore of this
    disk runs here.
    """
    _check_apart(disk.store, source)
    if request.apply:
        check_writable(disk)
    started = clock.monotonic()
    before = [requests_so_far(disk.store), requests_so_far(source)]
    counting = None
    if elsewhere is not None:
        counting = RequestCount(elsewhere.target, elsewhere.source)
        elsewhere = RemoteCopying(elsewhere.runner.hooked(counting), elsewhere.target, elsewhere.source)
    transfer = _Transfer(disk, source, request, workers, progress, elsewhere, look)
    result = transfer.carry_out() if request.apply else transfer.preview()
    for store, earlier in zip((disk.store, source), before, strict=True):
        sent = {verb: count - earlier.get(verb, 0) for verb, count in requests_so_far(store).items()}
        add_requests(result.requests, sent)
    add_requests(result.requests, counting.requests if counting is not None else {})
    result.seconds = clock.monotonic() - started
    return result


def _check_apart(target: ObjectStore, source: ObjectStore) -> None:
    """A store within the other one would show up in its listings."""
    if target.name.startswith(source.name) or source.name.startswith(target.name):
        raise Refused(
            f"{source.name} and {target.name} overlap: a disk is not restored from itself",
            hint="without --from the disk returns to its own older revision; otherwise choose another prefix",
        )


class _Transfer(msgspec.Struct, frozen=True):
    """One restore from another bucket: what is asked for, of whom, and who does it."""

    disk: LoggedDisk
    source: ObjectStore
    request: RebuildRequest
    workers: int
    progress: Progress
    elsewhere: RemoteCopying | None
    look: Look

    def preview(self) -> RebuildResult:
        """What would come over and what would go."""
        with ExitStack() as stack:
            tree = stack.enter_context(self._read())
            found = log_inventory(self.disk.store)
            newest = stack.enter_context(closing(past_at(self.disk.log, found, found.head)))
            around = self.look()
            scope = self._scope(tree, newest.table)
            plan = TransferChanges(self.disk, tree, newest.table, scope, self.request.actor, around)
            result = plan.read_result()
            result.objection = objection_of(
                partial(check_writable, self.disk),
                partial(require_clock, self.disk.store),
                partial(plan.check, result),
                partial(check_names, self.disk, result, tree.table, around),
            )
            return result

    def _read(self) -> AbstractContextManager[SourceTree]:
        request = self.request
        return read_source(self.source, revision=request.revision, time=request.time, askers=self._askers)

    @property
    def _askers(self) -> Askers:
        """Who reads the source."""
        return Askers(self.workers, self.progress, self.elsewhere.reading if self.elsewhere is not None else None)

    def _scope(self, tree: SourceTree, newest: FileTable) -> Sequence[str] | None:
        """Directories and files; None for everything."""
        request = self.request
        if request.whole:
            return None
        where = f"in {tree.store.name} at revision {tree.revision}"
        return [*scope_of(request.tables, request.partitions, tree.table, newest, where), *request.paths]

    def carry_out(self) -> RebuildResult:
        """Copy and commit; once more when the source's log has moved on meanwhile."""
        require_clock(self.disk.store)
        make_directory(self.disk.state_path)
        with file_lock(self.disk.state_path / "restore.lock", timeout_seconds=0):
            for attempt in range(_ATTEMPTS):
                try:
                    with self._read() as tree:
                        return self._copy_and_commit(tree)
                except SourceChanged:
                    if attempt + 1 == _ATTEMPTS:
                        raise
            raise AssertionError("unreachable")

    def _copy_and_commit(self, tree: SourceTree) -> RebuildResult:
        """Batch after batch, each planned against the newest table."""
        disk = self.disk
        result: RebuildResult | None = None
        proved: dict[str, str] = {}
        lost: Collection[str] = ()
        fresh = False
        conflicts = 0
        while True:
            disk.refresh()
            revision = disk.revision
            if result is None:
                proved, lost = self._proved_alike(tree), lost_here(disk, disk.file_table)
            scope = self._scope(tree, disk.file_table)
            around = self.look()
            plan = TransferChanges(disk, tree, disk.file_table, scope, self.request.actor, around, proved, lost)
            if result is None:
                result = plan.read_result()
                plan.check(result)
                check_names(disk, result, tree.table, around)
            result.left_out, result.in_the_way = plan.arrivals.stay_away, plan.arrivals.forbid
            plan.check_replicas(result)
            check_arrivals(result)
            if plan.difference.empty:
                break
            batch = plan.batch()
            attempt, resumed = begin_copy_journal(disk, tree.store.name, fresh=fresh)
            copier = BlobCopier(
                disk,
                tree.store,
                attempt,
                resumed=resumed,
                workers=self.workers,
                progress=self.progress,
                elsewhere=self.elsewhere,
            )
            copied = copier.bring([row for row in batch.rows if row.inline is None])
            _note(result, copier)
            if fresh := _is_going(disk, copied):
                continue
            try:
                result.commit = self._commit(tree, batch, copied, attempt, revision)
            except Conflict:
                conflicts += 1
                if conflicts == _ATTEMPTS:
                    raise
                continue
            proved.update({row.path: copied[row.blobs].key for row in batch.rows if row.blobs in copied})
            fresh, lost = True, set(lost).difference(row.path for row in batch.rows)
            if batch.last:
                break
        end(disk)
        result.applied = True
        return result

    def _proved_alike(self, tree: SourceTree) -> dict[str, str]:
        """Paths, with their keys here, whose bytes are those of the source, read there because it keeps no digests."""
        candidates: list[tuple[FileRow, FileRow]] = []
        for _, there, row in matched(by_path(self.disk.file_table), by_path(tree.table)):
            if there is None or row is None or row.sha256 or row.key is None or there.key is None:
                continue
            if there.sha256 and there.size_bytes == row.size_bytes:
                candidates.append((there, row))
        rows = [row for _, row in candidates]
        what = f"comparing files with {tree.store.name}"
        with self.progress.task("comparing files without a digest", items=len(rows)) as task:
            digests = ask(
                tree.store,
                digest_of,
                rows,
                self._askers,
                title=what,
                task=task,
                each=_DIGESTS_EACH,
            )
        alike: dict[str, str] = {}
        for (there, row), digest in zip(candidates, digests, strict=True):
            if there.key is not None and digest == there.sha256:
                alike[row.path] = there.key
        return alike

    def _commit(
        self, tree: SourceTree, batch: TransferBatch, copied: CopiedBlobs, attempt: CopyAttempt, revision: int
    ) -> int | None:
        kind = Restored(
            source=tree.store.name,
            source_revision=tree.revision,
            epoch=attempt.epoch,
            scope=" ".join(batch.scope) if batch.scope is not None else None,
        )
        with self.disk.transaction(kind, reason=self.request.reason, actor=self.request.actor) as transaction:
            if batch.last:  # which makes the disk what was asked for; those before it only add
                transaction.made_from(revision, batch.scope)
            for path in batch.removed:
                transaction.remove(path)
            rows = (_held_here(row, copied) for row in batch.rows)
            for row in rows if self.disk.log_name is None else _in_new_sets(rows):
                transaction.adopt(row, copied=True)
            return transaction.commit()


def _note(result: RebuildResult, copier: BlobCopier) -> None:
    assert result.copy is not None
    result.copy.done += copier.done
    if copier.inside_store is not None:
        result.copy.inside_store = copier.inside_store


def _is_going(disk: LoggedDisk, copied: CopiedBlobs) -> bool:
    """Whether a collection is deleting copies of an interrupted restore: then they are made again, under other keys."""
    going = announced(disk, now=datetime.now(UTC))
    return any(copy.key in going for copy in copied.values())


def _in_new_sets(rows: Iterable[FileRow]) -> Iterator[FileRow]:
    """The rows of copies: a set is what was uploaded together for a directory, and its name is used once."""
    names: dict[str, str] = {}
    for row in rows:
        name = None if row.key is None else names.setdefault(row.path.rpartition("/")[0], secrets.token_hex(16))
        yield replace(row, blob_set=name)


def _held_here(row: FileRow, copied: CopiedBlobs) -> FileRow:
    """The same file over the target's own object."""
    if row.inline is not None:
        sha256 = row.sha256 or hashlib.sha256(row.inline).hexdigest()
        return FileRow(row.path, row.size_bytes, sha256, None, row.inline, row.blob_set, 0)
    copy = copied[row.blobs]
    return FileRow(row.path, row.size_bytes, copy.sha256, copy.key, None, row.blob_set, 0)
