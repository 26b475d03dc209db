"""An object disk as it was at an earlier revision: read-only, in memory, over the same objects."""

from __future__ import annotations

from disks.object_disk.disk import ObjectDisk


class DiskAsOf(ObjectDisk):
    """The disk right after `revision`. Raises `NotFound` when the revision does not exist or is no longer kept.

    Objects named by a retained revision are there: gc keeps them as long as the revision can be restored.
    """

    def __init__(self, disk: ObjectDisk, revision: int) -> None:
        super().__init__(disk.name, disk.store, disk.state_path, read_only=True)
        self.cache.hold(disk.table_at(revision))

    def refresh(self) -> None:
        return  # the past does not change

    def recover(self) -> list[str]:
        return []

    def close(self) -> None:
        """Release the table; the store belongs to the disk of the present."""
        self.cache.close()
