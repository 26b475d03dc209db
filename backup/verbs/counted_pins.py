"""Which pins of this store's buckets the backups of the configured repository count on: `fsck` looks for them (I12)."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence

from backup.repository import Repository
from backup.repository_location import VARIABLE, repository_url
from disks.config import ObjectDiskConfig
from disks.stores.wrappers.limit import Limiter
from oplog.errors import FrostlineError
from restore.check.options import CountedPin
from tiering.config.settings import Config

logger = logging.getLogger(__name__)


def counted_pins(config: Config, limiter: Limiter | None = None) -> Mapping[str, Sequence[CountedPin]]:
    """By disk, the pins of all complete backups; nothing without a repository, or when it cannot be read, which is
    said. One listing, and a request a backup."""
    if not (os.environ.get(VARIABLE) or config.backup.repository):
        return {}
    found: dict[str, list[CountedPin]] = defaultdict(list)
    disks = {_place(disk.url): name for name, disk in config.disks.items() if isinstance(disk, ObjectDiskConfig)}
    try:
        with Repository.open(repository_url(config, None), config=config, limiter=limiter) as repository:
            headers, _ = repository.storage.headers()
    except FrostlineError as error:
        logger.warning("pins of backups are not looked for: %s", error.message)
        return {}
    for header in headers:
        for pinned in header.pinned:
            if (disk := disks.get(_place(pinned.url))) is not None:
                found[disk].append(CountedPin(pinned.pin, pinned.revision, f"backup {header.name}"))
    return found


def _place(url: str) -> str:
    return url.rstrip("/")
