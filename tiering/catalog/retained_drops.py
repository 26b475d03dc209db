"""Parts that the log of a replicated table dropped, kept for a while: an entry that somebody forged takes nothing at
once.

On a local disk the drop renames them to `detached/kept_<seconds since 1970>_<part>` of their table, in the
transaction that removes the others. (The log of a bucket keeps by itself what it drops.) `partition attach` takes them
back. They go when `replicas.keep_dropped_seconds` are over, and, the oldest first, as soon as the disk needs the room.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime

import msgspec

from disks.base import Disk, list_each
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.object_disk.references import DETACHED_DIRECTORY
from oplog.errors import Conflict, FrostlineError, NotFound
from oplog.kinds import Tidied
from tiering.table.paths import STORE_DIRECTORY, free_path, part_name
from tiering.table.schema import TableDefinition

logger = logging.getLogger(__name__)

_NAME = re.compile(r"kept_([0-9]{1,12})_(.+?)(?:_try[0-9]+)?/?\Z", re.ASCII)
"""No part's own name: the partition in one has no `_`, so it would have more numbers than a name has."""


class RetainedDrop(msgspec.Struct, frozen=True, order=True):
    """A directory that a drop keeps. The one that was dropped first comes first."""

    dropped: int
    """Seconds since 1970."""
    path: str

    def is_over(self, seconds: float, now: datetime) -> bool:
        """Whether its time is over; also where a clock that was wrong dropped it far in the future."""
        return abs(now.timestamp() - self.dropped) >= seconds


def kept_part(name: str) -> str | None:
    """The part that a directory in `detached/` keeps after a drop; None for any other name."""
    match = _NAME.fullmatch(name)
    return match[2] if match and part_name(match[2]) is not None else None


def place_for(disk: Disk, directory: str, now: datetime) -> str:
    """Where the part of this directory is kept."""
    table, _, part = directory.rpartition("/")
    return free_path(f"{table}/{DETACHED_DIRECTORY}/kept_{int(now.timestamp())}_{part}", disk.exists)


def keeps(disk: Disk) -> bool:
    """Whether the disk keeps dropped parts aside: one with a log has them anyway."""
    return as_disk(disk, LoggedDisk) is None


def let_go(
    disks: Iterable[Disk], tables: Sequence[TableDefinition], may_go: Callable[[Disk, RetainedDrop], bool], actor: str
) -> list[str]:
    """Remove what the disks keep of the tables and may go, the oldest first. One sentence a part."""
    directories = [table.directory for table in tables]
    return [
        f"disk {disk.name}: removed {kept.path}, which a drop had kept"
        for disk in filter(_can_change, disks)
        for kept in _kept(disk, directories)
        if may_go(disk, kept) and _remove(disk, kept, actor)
    ]


def give_way(disk: Disk) -> bool:
    """Remove what was dropped first of all that the disk keeps; False when there is nothing that could go."""
    if not _can_change(disk):
        return False
    tables = [
        f"{STORE_DIRECTORY}/{group}/{uuid}"
        for group in disk.directories(STORE_DIRECTORY)
        for uuid in disk.directories(f"{STORE_DIRECTORY}/{group}")
    ]
    return any(_remove(disk, kept, "reservation") for kept in _kept(disk, tables))


def _can_change(disk: Disk) -> bool:
    return not (disk.read_only or disk.unreachable or disk.broken is not None)


def _kept(disk: Disk, tables: Iterable[str]) -> list[RetainedDrop]:
    """What the disk keeps of the tables in these directories, the oldest first."""
    places = [f"{table}/{DETACHED_DIRECTORY}" for table in tables]
    return sorted(
        RetainedDrop(int(match[1]), f"{place}/{name.rstrip('/')}")
        for place, names in zip(places, list_each(disk, places), strict=True)
        for name in names
        if kept_part(name) is not None and (match := _NAME.fullmatch(name))
    )


def _remove(disk: Disk, kept: RetainedDrop, actor: str) -> bool:
    """Whether it went; what is left is looked at again by the next pass."""
    try:
        with disk.transaction(Tidied(), reason="a dropped part was kept long enough", actor=actor) as transaction:
            transaction.remove(kept.path)
            transaction.commit()
    except (Conflict, NotFound):  # somebody took it back, or another process removed it
        return False
    except (FrostlineError, OSError) as error:
        logger.warning("%s on disk %s stays for now: %s", kept.path, disk.name, error)
        return False
    return True


def forget(disk: Disk, paths: Iterable[str], actor: str) -> None:
    """Remove what was taken back, together."""
    with (
        suppress(Conflict, NotFound),  # what went meanwhile had its time
        disk.transaction(Tidied(), reason="a dropped part was taken back", actor=actor) as transaction,
    ):
        for path in paths:
            transaction.remove(path)
        transaction.commit()
