"""What a disk with an id adds to the contract: the disk is recognized wherever it is, and copies of it are found out.

`disks.kinds.as_disk(disk, IdentifiedDisk)` asks for it, also through wrappers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from disks.base import Disk
from oplog.errors import Refused
from oplog.stamps import CommitStamp, KeptStamp, SeenStates, WriterState


class IdentifiedDisk(Disk):
    """A disk that its first transaction gives an id, and whose transactions carry stamps."""

    @abstractmethod
    def identity(self) -> str | None:
        """The id that the disk shows; None before its first transaction. Writes nothing."""

    @abstractmethod
    def watch(self, disk_id: str | None, begin: Callable[[str], None]) -> None:
        """From now on a transaction raises unless the disk shows the id `disk_id`. A disk without an id gets one with
        its first transaction; `begin` gets the id once, before anything else is written."""

    def stamp_commits(self, state: Callable[[], WriterState], committed: Callable[[CommitStamp], None]) -> None:
        """From now on each transaction carries what `state` says right before it; `committed` gets its stamp when it
        is durable. Nothing where the disk keeps no stamps: an older copy of it is then recognized only where it has
        fewer parts or rows of a table."""

    def stamps(self) -> Sequence[KeptStamp]:
        """Those of the newest transactions here, the oldest first; none on disks that other machines write to as well,
        and where no version that makes them has written. Writes nothing."""
        return ()

    def seen(self) -> SeenStates:
        """How far the writers of the disk have seen journals and other disks, as far as this machine knows it."""
        return SeenStates()

    def restamp(self, above: int) -> CommitStamp | None:
        """Accept the disk as newer than anything seen of it: its only stamp, durably, has a number above this one and
        above its own. None where it has none, or is read-only."""
        return None

    def renew_identity(self) -> str:
        """Give a disk of which another machine has a copy another id, durably. Raises `Refused` where it cannot."""
        raise Refused(f"disk {self.name} has no id of its own", hint="only local disks have one that can be replaced")
