"""What the engine asks of replicated tables: this module is its `tiering.engine.replication.Replication`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.blob_sets import BlobMarks
from tiering.catalog.context import Context
from tiering.config.settings import Config
from tiering.engine.replication import Conversion, OpenMarks, OpenStore
from tiering.table.schema import TableDefinition
from zerocopy.execution.auditing import references
from zerocopy.execution.work import (
    alter,
    attach_partition,
    delete_due,
    drop_partition,
    inserting,
    is_announced,
    merge,
    move,
    read_all,
    spread_identity,
    tick,
)
from zerocopy.keeper.opening import open_keeper
from zerocopy.marks.marks import marks_of
from zerocopy.replica.connections import connections
from zerocopy.replica.lifecycle import create, drop

if TYPE_CHECKING:  # kazoo may be missing
    from zerocopy.keeper.client import Keeper

__all__ = [
    "alter",
    "attach_partition",
    "create",
    "delete_due",
    "drop",
    "drop_partition",
    "inserting",
    "is_announced",
    "merge",
    "move",
    "open_marks",
    "read_all",
    "references",
    "serve",
    "spread_identity",
    "tick",
    "to_plain",
    "to_replicated",
]


def to_replicated(
    context: Context, definition: TableDefinition, keeper_path: str | None, replica: str | None, *, dry_run: bool
) -> Conversion:
    """Make a plain table a replicated one, or finish that."""
    from zerocopy.conversion.to_replicated import convert  # most stores convert no table

    return convert(context, definition, keeper_path, replica, dry_run=dry_run)


def to_plain(
    context: Context, definition: TableDefinition, keeper_path: str | None, replica: str | None, *, dry_run: bool
) -> Conversion:
    """Make the last replica of a table a plain table, or finish that."""
    from zerocopy.conversion.to_plain import convert

    return convert(context, definition, keeper_path, replica, dry_run=dry_run)


def serve(context: Context, beside: Callable[[], OpenStore] | None, pass_due: Callable[[], object]) -> str:
    """Give parts to other replicas, and follow them, until the store is closed."""
    from zerocopy.execution import following  # only daemons do

    return following.serve(context, beside, pass_due)


def open_marks(config: Config, context: Context | None) -> OpenMarks:
    """The marks of replicas, by the session of the `context`, else by one of their own."""
    if context is not None:
        return _Marks(lambda: connections(context).keeper)
    keeper = open_keeper(config.keeper)
    return _Marks(lambda: keeper, keeper.close)


class _Marks:
    def __init__(self, session: Callable[[], Keeper], end: Callable[[], None] = lambda: None) -> None:
        self._session, self._end = session, end

    def of(self, logged: LoggedDisk) -> BlobMarks:
        """Those of the disk's log."""
        return marks_of(self._session(), logged)

    def close(self) -> None:
        """End a session of its own."""
        self._end()
