"""A disk that is not what its name stands for: not mounted, another one, or one that has two names.

It stands where the disk would: it holds nothing, and nothing can be asked of it or written to it.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import NoReturn

from disks.base import Disk, DiskUsage, FileInfo, Location, Transaction
from disks.stores.base import ByteRange
from oplog.errors import FrostlineError
from oplog.kinds import CommitKind


class BrokenDisk(Disk):
    """Raises its reason at everything but listings, which are empty. `inner` is never touched."""

    def __init__(self, inner: Disk, reason: FrostlineError) -> None:
        self.inner = inner
        self.name = inner.name
        self.kind = inner.kind
        self.read_only = inner.read_only
        self.capabilities = inner.capabilities
        self.reason = reason

    @property
    def broken(self) -> FrostlineError:  # type: ignore[override]
        return self.reason

    @property
    def unreachable(self) -> str:  # type: ignore[override]
        return self.reason.message

    def usage(self) -> DiskUsage:
        self._refuse()

    def list(self, directory: str = "") -> builtins.list[str]:
        return []

    def walk(self, directory: str = "") -> Iterator[FileInfo]:
        return iter(())

    def stat(self, path: str) -> FileInfo:
        self._refuse()

    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        self._refuse()

    def location(self, path: str) -> Location:
        self._refuse()

    def transaction(self, kind: CommitKind, *, reason: str = "", actor: str = "") -> Transaction:
        self._refuse()

    def close(self) -> None:
        self.inner.close()

    def _refuse(self) -> NoReturn:
        error = self.reason
        raise type(error)(error.message, hint=error.hint)
