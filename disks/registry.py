"""From the configuration of a disk to the disk. The one place that knows which classes there are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from disks.base import Disk
from disks.config import DiskConfig
from disks.local.disk import LocalDisk
from disks.object_disk.disk import ObjectDisk
from oplog.errors import UsageError

if TYPE_CHECKING:
    from disks.stores.wrappers.limit import Limiter


def open_disk(name: str, config: DiskConfig, state_directory: Path, *, limiter: Limiter | None = None) -> Disk:
    """The disk `name`; sends no request. An object disk keeps its cache in `state_directory/disks/<name>/`."""
    if config.type == "local":
        if config.path is None:
            raise UsageError(f"disk {name} is local and has no path", hint="add 'path: /some/directory' to it")
        return LocalDisk(
            name,
            Path(config.path),
            keep_free_space_bytes=config.keep_free_space_bytes,
            max_size_bytes=config.max_size_bytes,
            read_only=config.read_only,
        )
    from disks.stores.open import open_store  # here, so that a store of local disks loads no S3 client

    store = open_store(config, limiter=limiter)
    if config.log_format == 1:
        from disks.clickhouse.disk import ClickHouseDisk

        return ClickHouseDisk(
            name,
            store,
            state_directory / "disks" / name,
            retention_seconds=config.retention_seconds,
            read_only=config.read_only,
            max_size_bytes=config.max_size_bytes,
        )
    return ObjectDisk(
        name,
        store,
        state_directory / "disks" / name,
        snapshot_every_commits=config.snapshot_every_commits,
        retention_seconds=config.retention_seconds,
        read_only=config.read_only,
        max_size_bytes=config.max_size_bytes,
    )
