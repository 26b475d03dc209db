"""What a disk is besides a tree of files: asked of the disk, also through wrappers, never of its class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from disks.base import Disk
from disks.contracts.bucket_disk import BucketDisk, ClickHouseLogDisk, LoggedDisk
from disks.contracts.identified_disk import IdentifiedDisk
from disks.wrappers.wrapped import WrappedDisk
from oplog.errors import UsageError
from oplog.stamps import KeptStamp

K = TypeVar("K", bound=Disk)


def as_disk(disk: Disk, kind: type[K]) -> K | None:
    """The disk as one of this kind, such as `LoggedDisk`; None when it is none. A wrapper is what its inner disk is."""
    if isinstance(disk, kind):
        return disk
    view = disk.view if isinstance(disk, WrappedDisk) else disk
    return view if isinstance(view, kind) else None


def check_holds_parts(disk: Disk) -> None:
    """Raise `UsageError` for a disk that nothing recognizes: where it is missing, its parts would be gone without a
    word. A bucket has its log."""
    if as_disk(disk, IdentifiedDisk) is None and as_disk(disk, BucketDisk) is None:
        raise UsageError(
            f"disk {disk.name} is {disk.kind}: it has no id, so a missing disk would look like an empty one",
            hint=f"remove {disk.name} from the configuration: parts need disks with an id",
        )


def with_commits(disk: Disk) -> LoggedDisk:
    """The disk with its log of commits. Raises `UsageError` that says what it has instead."""
    if (logged := as_disk(disk, LoggedDisk)) is not None:
        return logged
    if as_disk(disk, ClickHouseLogDisk) is not None:
        raise UsageError(
            f"disk {disk.name} has ClickHouse's log, which records files and renames, not commits",
            hint="'frostline clickhouse inspect' shows what is in it, 'frostline restore' rebuilds from it",
        )
    raise UsageError(f"disk {disk.name} is {disk.kind}: it has no operations log", hint="name an object disk")


def identity_of(disk: Disk) -> str | None:
    """The id that the disk shows; None when it has none."""
    identified = as_disk(disk, IdentifiedDisk)
    return identified.identity() if identified is not None else None


def stamps_of(disk: Disk) -> Sequence[KeptStamp]:
    """The stamps of the newest transactions of the disk, the oldest first."""
    identified = as_disk(disk, IdentifiedDisk)
    return identified.stamps() if identified is not None else ()
