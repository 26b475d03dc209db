"""What has to change on a disk for it to hold what another bucket holds: read, compared and checked; the commits that
bring it there, in batches. Changes nothing itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.table import FileTable
from oplog import paths
from oplog.errors import Refused
from oplog.replay import FileRow
from oplog.revision import BLOBS_PREFIX
from restore.clickhouse.findings import losses, sentences
from restore.rebuild.allowed import check_arrivals, check_replicas
from restore.rebuild.definitions import reservations_coming, settle
from restore.rebuild.duplicates import Elsewhere
from restore.rebuild.given_since import keep_reservations, level_marks, levels_going
from restore.rebuild.naming import table_names
from restore.rebuild.plan import (
    MissingObject,
    TableDifference,
    Tally,
    by_path,
    compare,
    in_scope,
    leaves_frozen,
    lost_objects,
)
from restore.rebuild.rebuild import arriving
from restore.rebuild.result import CopyCounts, RebuildResult
from restore.transfer.source import SourceTree
from tiering.config.units import counted
from tiering.table.schema import TABLE_FILE
from tiering.table.tombstones import uuid_of

BATCH_FILES = 20_000
BATCH_BYTES = 64 << 30
"""A restore that is larger commits on the way what is of no table that the disk has already, and each `table.json`
last: copies must be named by a commit before gc takes them for garbage, and a commit must fit in memory. Tables that
the disk has already go back in one commit, however large."""


def lost_here(disk: LoggedDisk, files: FileTable) -> set[str]:
    """The paths of the disk's files whose objects are not in its bucket, or not with their size."""
    listed = ((item.key, item.size_bytes) for item in disk.store.list(BLOBS_PREFIX))
    with files.read() as view:
        return {lost.path for lost in lost_objects(view.blobs_by_key(), listed)}


class TransferBatch(msgspec.Struct, frozen=True):
    """What one commit does. Only the last one removes anything."""

    rows: list[FileRow]
    removed: Sequence[str]
    last: bool
    scope: Sequence[str] | None


class TransferChanges:
    """What has to change on the disk for it to hold what the source holds."""

    def __init__(
        self,
        disk: LoggedDisk,
        tree: SourceTree,
        newest: FileTable,
        scope: Sequence[str] | None,
        actor: str,
        around: Elsewhere,
        proved: dict[str, str] | None = None,
        lost: Collection[str] | None = None,
    ) -> None:
        """`proved`: the keys that this restore has given to paths, for files whose digest nobody knew before. `lost`:
        the paths of the disk's own files whose objects are gone: they are copied again."""
        self._disk, self._tree, self._newest = disk, tree, newest
        self.scope = scope
        self._proved = proved or {}
        self._lost = lost_here(disk, newest) if lost is None else lost
        keep_reservations(tree.table, newest)
        levels = level_marks(tree.table, levels_going(tree.table, newest))
        coming = reservations_coming(tree.table, newest, scope) if scope is not None else ()
        self._settled = settle(tree.table, newest, scope, actor=actor, others_stay=True, given=levels, coming=coming)
        with tree.table.read() as view:
            tables = {row.path.rpartition("/")[0] for row in view.documents(f"*/{TABLE_FILE}")}
        self._tables = {table for table in tables if in_scope(f"{table}/{TABLE_FILE}", scope)}
        self._tally = Tally(scope)
        difference = compare(
            by_path(newest),
            self._settled.over(self._tally.counting(by_path(tree.table))),
            self._settled.scope(scope),
            same=self._same,
            goes=leaves_frozen(scope) if scope is not None else self._is_of_a_table,
        )
        self._around = around
        inside = sorted(self._tables) if scope is None else scope
        self.arrivals = arriving(disk, tree.store, difference, inside, around, tree.table, newest)
        self.difference: TableDifference = self.arrivals.difference

    def _same(self, there: FileRow, file: FileRow) -> bool:
        if there.size_bytes != file.size_bytes or there.path in self._lost:
            return False
        if file.sha256 and there.sha256:
            return there.sha256 == file.sha256
        if file.inline is not None and there.inline is not None:
            return there.inline == file.inline
        return there.key is not None and self._proved.get(file.path) == there.key

    def _is_of_a_table(self, path: str) -> bool:
        if (uuid := uuid_of(path)) is not None:
            return f"store/{uuid[:3]}/{uuid}" in self._tables
        return any(directory in self._tables for directory in paths.ancestors(path))

    def read_result(self) -> RebuildResult:
        """The plan as the command line shows it."""
        copies: dict[tuple[tuple[str, int], ...], int] = {}
        for row in self._created():
            if row.inline is None:
                copies[row.blobs] = row.size_bytes
        missing = self._missing()
        with self._newest.read() as view:
            head, _ = view.head()
        findings = [one for one in self._tree.findings if one.path is None or in_scope(one.path, self.scope)]
        result = RebuildResult(
            disk=self._disk.name,
            revision=self._tree.revision,
            head=head,
            files=self._tally.files,
            bytes=self._tally.bytes,
            difference=self.difference,
            missing_objects=missing,
            names=table_names((one.path for one in missing), self._tree.table, self._newest),
            digest=self._tally.digest,
            notes=sentences(findings),
            problems=losses(findings),
            copy=CopyCounts(self._tree.store.name, len(copies), sum(copies.values())),
        )
        result.take(self.arrivals, self._around)
        return result

    def _created(self) -> Iterator[FileRow]:
        with self._tree.table.read() as view:
            for path in self.difference.created:
                if (row := self._settled.get(view, path)) is not None:
                    yield row

    def _missing(self) -> list[MissingObject]:
        created = set(self.difference.created)
        listed = ((item.key, item.size_bytes) for item in self._tree.store.list(self._tree.blobs_prefix))
        with self._tree.table.read() as view:
            wanted = (blob for blob in view.blobs_by_key() if blob[2] in created)
            return sorted(lost_objects(wanted, listed), key=lambda lost: lost.path)

    def check_replicas(self, result: RebuildResult) -> None:
        """Raise `Refused` for tables that are replicated on the disk, or would be as they come."""
        check_replicas(
            self._disk,
            result,
            self._settled,
            self._tree.table,
            self._newest,
            instead="name others (--table), make it plain there (table alter --not-replicated), or restore a backup",
        )

    def check(self, result: RebuildResult) -> None:
        """Raise `Refused` when a table or a part must not come, or an object that has to be copied is not there."""
        self.check_replicas(result)
        check_arrivals(result)
        if result.missing_objects:
            lost = result.missing_objects
            raise Refused(
                f"revision {result.revision} of {self._tree.store.name} needs {counted(len(lost), 'object')} that "
                f"{'is' if len(lost) == 1 else 'are'} gone, such as {result.lacks(lost[0])}",
                hint="the preview lists them; choose another revision, or the tables that are whole (--table)",
            )

    def batch(self) -> TransferBatch:
        """The next commit: everything, or of a large restore the first parts of tables that are new here."""
        with self._newest.read() as view:
            known = {table for table in self._tables if view.get(f"{table}/{TABLE_FILE}") is not None}
        early: list[FileRow] = []
        full = False
        rows: list[FileRow] = []
        size_bytes = 0
        for row in self._created():
            rows.append(row)
            size_bytes += row.size_bytes
            full = full or len(rows) > BATCH_FILES or size_bytes > BATCH_BYTES
            in_known = any(directory in known for directory in paths.ancestors(row.path))
            if not in_known and not row.path.endswith(f"/{TABLE_FILE}"):
                if full and early and early[-1].path.rpartition("/")[0] != row.path.rpartition("/")[0]:
                    return TransferBatch(early, (), False, self.scope)
                early.append(row)
        return TransferBatch(rows, self.difference.removed, True, self.scope)
