"""A transaction of a disk with ClickHouse's log: blobs go up below a staging directory, which a rename empties."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from disks.base import FileInfo, check_path
from disks.object_disk.transaction import ObjectTransaction, Target
from oplog import paths
from oplog.clickhouse.names import file_key
from oplog.clickhouse.replay import STAGING, is_leftover
from oplog.clickhouse.writing import file_metadata, fits, staged
from oplog.entry import Operation
from oplog.errors import Conflict, Damaged, Refused, UsageError
from oplog.kinds import CommitKind
from oplog.replay import FileRow

_LETTERS = bytes(ord("a") + byte % 26 for byte in range(256))


class ClickHouseTransaction(ObjectTransaction):
    """Blobs of an abandoned transaction stay until gc: the file table does not name them, and a replay drops them.

    New files come in groups: those that follow one another, with no other operation between them, appear by one rename.
    """

    inline_limit_bytes = -1

    def __init__(
        self,
        target: Target,
        next_number: Callable[[], int],
        kind: CommitKind,
        *,
        reason: str,
        actor: str,
    ) -> None:
        super().__init__(target, kind, reason=reason, actor=actor)
        self._next_number = next_number
        self.staging = f"{STAGING}{secrets.token_hex(8)}"
        self._group = 0
        self._groups: dict[str, int] = {}
        self._group_of: dict[str, int] = {}
        self._in_doubt = ""
        self._staged: set[str] = set()
        self._staged_directories: set[str] = set()

    @property
    def groups(self) -> Mapping[str, int]:
        """Blob -> the group of its file."""
        return self._groups

    def create(
        self, path: str, data: bytes | Path, *, sha256: str | None = None, blob_set: str | None = None
    ) -> FileInfo:
        """As ever; `blob_set` is not kept, for this log has no word for it. What cannot lie beside the other new files
        is refused at once: the objects' own paths would not fit together, also when the transaction is abandoned."""
        self._take_place(_check(path))
        try:
            return super().create(path, data, sha256=sha256)
        except Damaged:  # nothing was uploaded: the path may be created with the right bytes
            self._begin_group()
            raise

    def adopt(self, row: FileRow, *, copied: bool = False) -> None:
        raise Refused(
            f"{row.path} cannot be taken over: its object says where it belongs, and nothing else does",
            hint="create the file again",
        )

    def link(self, source: str, target: str) -> None:
        super().link(source, _check(target))

    def rename(self, source: str, target: str) -> None:
        super().rename(source, _check(target))

    def _put(self, path: str, data: bytes | Path, sha256: str, key: str | None = None) -> str:
        group = self._group_of[path]
        key = file_key(self._next_number(), secrets.token_bytes(32).translate(_LETTERS).decode())
        metadata = file_metadata(staged(self.staging, group, path))
        try:
            self._target.store.put(key, data, sha256=bytes.fromhex(sha256), metadata=metadata)
        except Damaged:
            raise
        except BaseException:
            self._in_doubt = path
            raise
        with self._lock:
            self._groups[key] = group
        return key

    def commit(self) -> int | None:
        if self._in_doubt:
            raise Refused(
                f"the upload of {self._in_doubt} failed, but its object may be there and would appear with the rest",
                hint="nothing was changed; try again",
            )
        return super().commit()

    def _take_place(self, path: str) -> None:
        above = set(paths.ancestors(path))
        with self._lock:
            if path in self._staged or path in self._staged_directories or above & self._staged:
                raise Conflict(f"{path} cannot exist beside the other files of this transaction")
            self._staged.add(path)
            self._staged_directories |= above
            self._group_of[path] = self._group

    def _add(self, operation: Operation) -> None:
        super()._add(operation)
        self._begin_group()

    def _begin_group(self) -> None:
        with self._lock:
            self._group += 1
            self._staged.clear()
            self._staged_directories.clear()


def _check(path: str) -> str:
    check_path(path)
    if is_leftover(path):
        raise UsageError(
            f"unsafe path: {path!r}", hint="names like this mark leftovers, which are dropped: choose another name"
        )
    if not fits(path):
        raise UsageError(
            f"unsafe path: {path[:80]!r}… is too long",
            hint="use a shorter path: it is stored in the object's metadata, which holds 2 KiB",
        )
    return path
