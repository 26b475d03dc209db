"""Another log of a disk's prefix, as this machine sees it: read whole, and told what a collection deletes."""

from __future__ import annotations

from disks.contracts.bucket_disk import LoggedDisk
from disks.object_disk.disk import ObjectDisk
from disks.stores.wrappers.named_log import NamedLogStore, log_names, whole_prefix


class OtherLog(ObjectDisk):
    """A disk like any other, but not this machine's: nothing is created on it here, and its owner stays its writer."""

    def __init__(self, disk: LoggedDisk, name: str) -> None:
        """Keeps what it reads below the state of `disk`, whose store stays open when this is closed."""
        super().__init__(
            disk.name,
            NamedLogStore(whole_prefix(disk.store), name),
            disk.state_path / "logs" / name,
            snapshot_every_commits=0,
            retention_seconds=disk.retention_seconds,
            read_only=disk.read_only,
        )
        self._writer = None

    def close(self) -> None:
        if self._lease.used:
            self._lease.release()  # its owner would wait for it
        self.cache.close()


def other_logs(disk: LoggedDisk) -> list[str]:
    """The names of the other logs below the disk's prefix."""
    if disk.log_name is None:
        return []
    return [name for name in log_names(whole_prefix(disk.store)) if name != disk.log_name]
