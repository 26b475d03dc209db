"""What may be done, and what may be answered, while a disk cannot be reached.

The catalog then shows what the disk's file table said last. That table holds everything this machine ever committed to
the disk, so an answer from the other disks is the one that a reachable disk would give, unless another machine changed
the table meanwhile. Tables that others write, as far as is known, are therefore not answered from the cache.
"""

from __future__ import annotations

from collections.abc import Iterable

from disks.base import Disk
from oplog.errors import DiskUnreachable
from tiering.catalog import blocks
from tiering.catalog.context import Context
from tiering.table.schema import TableDefinition


def unreachable(context: Context) -> list[str]:
    """The names of the disks that cannot be reached now."""
    return sorted(name for name, disk in context.disks.items() if disk.unreachable)


def require(disks: Iterable[Disk], what: str) -> None:
    """Raise `DiskUnreachable` when one of the disks that `what` needs cannot be reached, before anything is changed."""
    for disk in disks:
        if disk.unreachable:
            raise DiskUnreachable(
                f"{what} needs disk {disk.name}: {disk.unreachable}", hint="try again when the bucket answers"
            )


def check_certain(context: Context, definition: TableDefinition) -> None:
    """Raise `DiskUnreachable` when what is known of the table may be out of date: another machine writes it, too, and
    the disk that would tell what it committed cannot be reached."""
    if definition.policy not in context.config.policies:
        return
    for name in context.catalog.policy_disks(definition):
        disk = context.disks.get(name)  # the past has one disk only
        if disk is not None and disk.unreachable and (disk.read_only or blocks.foreign(context, definition, disk)):
            raise DiskUnreachable(
                f"another machine writes {definition.full_name} as well, and what it wrote since is not known: "
                f"{disk.unreachable}",
                hint="try again when the bucket answers; no answer is better than one that lacks rows",
            )
