"""What a restore is asked for: built once, where the question comes in, and handed through whole. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from oplog.errors import UsageError


class RebuildRequest(msgspec.Struct, frozen=True):
    """To which state, of what, and whether to do it. Raises `UsageError` for a revision and a time at once."""

    revision: int | None = None
    time: datetime | None = None
    """Neither: the newest state."""
    tables: Sequence[str] = ()
    """By the names they had then."""
    partitions: Sequence[str] = ()
    """Of the one table."""
    paths: Sequence[str] = ()
    """Directories or files. No tables, partitions or paths: everything."""
    apply: bool = False
    """Do it; else only say what it would do."""
    actor: str = ""
    reason: str = ""
    """Who restores and why, for the log."""

    def __post_init__(self) -> None:
        if self.revision is not None and self.time is not None:
            raise UsageError("give a revision or a time, not both")

    @property
    def whole(self) -> bool:
        """Whether it is about everything."""
        return not (self.tables or self.partitions or self.paths)

    @property
    def scope(self) -> Sequence[str] | None:
        """The paths; None for everything. Only once the paths of tables and partitions are in their place."""
        assert not self.tables
        assert not self.partitions
        return self.paths or None
