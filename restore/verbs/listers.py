"""Processes of this machine that list a large bucket for `fsck` and `gc`."""

import os
from contextlib import closing
from typing import TYPE_CHECKING

from tiering.cli.frame.remote_work import remote
from tiering.cli.frame.session import Session

if TYPE_CHECKING:
    from disks.base import Disk
    from disks.workers.runner import Remote

LARGE_FILES = 50_000
"""A bucket with more files is listed by several processes; a smaller one before they would have started."""
_MOST_PROCESSES = 8


def lister(session: Session, disk: "Disk", *, shown: bool = False) -> "Remote | None":
    """Processes that list the disk's bucket in ranges of keys, where that is worth it; else None."""
    from disks.contracts.bucket_disk import LoggedDisk
    from disks.kinds import as_disk
    from disks.workers.process_runner import processes
    from restore.check.cache import CachedTable

    config = session.loaded.config.buckets().get(disk.name)
    workers = min(os.cpu_count() or 1, _MOST_PROCESSES)
    logged = as_disk(disk, LoggedDisk)
    if logged is None or config is None or not config.url.startswith("s3:") or workers < 2:
        return None
    with closing(CachedTable(logged)) as cache:
        if cache.count() <= LARGE_FILES:
            return None
    try:
        runner = processes(workers)
    except (OSError, NotImplementedError):  # a system without shared memory: one process does it, too
        return None
    return remote(session, runner, config, slots=workers, shown=shown)
