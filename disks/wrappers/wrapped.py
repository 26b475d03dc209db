"""A disk around another disk. Each wrapper overrides what it changes; all other calls go to the inner disk.

What the inner disk is besides a tree of files (`disks.kinds.as_disk`), the wrapper is, too. What a wrapper changes
holds for `undo` and `gc` as it does for a query: its own methods come first.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache, cached_property
from inspect import get_annotations
from typing import Any, Self

from disks.base import (
    Disk,
    DiskCapabilities,
    DiskUsage,
    FileInfo,
    Fingerprint,
    Leftover,
    Location,
    SmallFile,
    Transaction,
)
from disks.contracts.bucket_disk import BucketDisk, ClickHouseLogDisk, LoggedDisk
from disks.contracts.directory_disk import DirectoryDisk
from disks.contracts.identified_disk import IdentifiedDisk
from disks.stores.base import ByteRange
from oplog.errors import FrostlineError
from oplog.kinds import CommitKind

_KINDS = (LoggedDisk, ClickHouseLogDisk, BucketDisk, DirectoryDisk, IdentifiedDisk)


class WrappedDisk(Disk):
    """Passes every call to `inner`: the base of the wrappers, and itself a disk that keeps the contract."""

    def __init__(self, inner: Disk) -> None:
        self.inner = inner
        self.name = inner.name
        self.kind = inner.kind

    def around(self, inner: Disk) -> Self:
        """The same wrapper around another disk, such as a past state of this one."""
        return type(self)(inner)

    @cached_property
    def view(self) -> Disk:
        """This disk as one of all kinds that the inner disk is of."""
        inner = self.inner.view if isinstance(self.inner, WrappedDisk) else self.inner
        made: Disk = _view_class(tuple(kind for kind in _KINDS if isinstance(inner, kind)))(self, inner)
        return made

    @property
    def read_only(self) -> bool:  # type: ignore[override]
        return self.inner.read_only

    @property
    def capabilities(self) -> DiskCapabilities:  # type: ignore[override]
        return self.inner.capabilities

    @property
    def revision(self) -> int | None:  # type: ignore[override]
        return self.inner.revision

    @property
    def unreachable(self) -> str:  # type: ignore[override]
        return self.inner.unreachable

    @property
    def broken(self) -> FrostlineError | None:  # type: ignore[override]
        return self.inner.broken

    # Reading

    def usage(self) -> DiskUsage:
        return self.inner.usage()

    def list(self, directory: str = "") -> builtins.list[str]:
        return self.inner.list(directory)

    def directories(self, directory: str) -> builtins.list[str]:
        return self.inner.directories(directory)

    def files_in(self, directory: str, begin: str = "") -> builtins.list[str]:
        return self.inner.files_in(directory, begin)

    def walk(self, directory: str = "") -> Iterator[FileInfo]:
        return self.inner.walk(directory)

    def stat(self, path: str) -> FileInfo:
        return self.inner.stat(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        return self.inner.read(path, byte_range)

    def reader(self, path: str) -> Callable[[ByteRange], bytes]:
        return self.inner.reader(path)

    def location(self, path: str) -> Location | None:
        return self.inner.location(path)

    def look_over(
        self, directory: str, name: str, fingerprints: Mapping[str, Fingerprint], among: Collection[str] | None = None
    ) -> builtins.list[SmallFile]:
        return self.inner.look_over(directory, name, fingerprints, among)

    def state_of(self, directory: str) -> Fingerprint | None:
        return self.inner.state_of(directory)

    def changed_between(self, directory: str, before: Fingerprint, after: Fingerprint) -> set[str] | None:
        return self.inner.changed_between(directory, before, after)

    def read_lease(self) -> AbstractContextManager[None]:
        return self.inner.read_lease()

    def steady(self) -> AbstractContextManager[None]:
        return self.inner.steady()

    # Writing, and what keeps a disk in order

    def transaction(self, kind: CommitKind, *, reason: str = "", actor: str = "") -> Transaction:
        return self.inner.transaction(kind, reason=reason, actor=actor)

    def refresh(self) -> None:
        self.inner.refresh()

    def recover(self, *, only_here: bool = False) -> builtins.list[str]:
        return self.inner.recover(only_here=only_here)

    def leftovers(self) -> builtins.list[Leftover]:
        return self.inner.leftovers()

    def close(self) -> None:
        self.inner.close()


@cache
def _view_class(kinds: tuple[type[Disk], ...]) -> type[Any]:
    """A class of these kinds whose members are those of a wrapper, or else of its inner disk."""

    def begin(view: Any, wrapper: WrappedDisk, inner: Disk) -> None:
        view._wrapper, view._inner = wrapper, inner

    members: dict[str, Any] = {"__init__": begin}
    bases: tuple[type[Disk], ...] = kinds or (Disk,)
    for base in bases:
        for ancestor in base.mro()[:-1]:
            names = (name for name in {**vars(ancestor), **get_annotations(ancestor)} if not name.startswith("_"))
            members |= {name: _passed_on(name) for name in names}
    if LoggedDisk in kinds:
        members["at"] = _at
    return type("WrapperView", bases, members)


def _passed_on(name: str) -> property:
    def target(view: Any) -> Disk:
        wrapper: Disk = view._wrapper
        return wrapper if hasattr(type(wrapper), name) or name in vars(wrapper) else view._inner

    return property(lambda view: getattr(target(view), name), lambda view, value: setattr(target(view), name, value))


def _at(view: Any, revision: int, *, briefly: bool = False) -> Disk:
    past: Disk = view._wrapper.around(view._inner.at(revision, briefly=briefly))
    return past
