"""No disk or repository begins within the prefix of another disk, also one of another configuration.

The outer disk would take the inner one's objects below `operations/` or `pins/` for its own, and could not be read.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from msgspec.structs import replace

from disks.config import ObjectDiskConfig
from disks.stores.base import ObjectStore
from oplog.errors import AccessDenied, NotFound, Refused
from oplog.revision import DISK_KEY

_SCHEMES = ("s3", "file")


def check_no_disk_around(
    location: ObjectDiskConfig, opened: Callable[[ObjectDiskConfig], ObjectStore], *, itself: bool, hint: str
) -> None:
    """Raise `Refused` where a prefix or directory above the location has the mark of a disk; with `itself`, also where
    the location has it. One request for each step of its path. What may not be asked is passed over."""
    parts = urlsplit(location.url)
    if parts.scheme not in _SCHEMES:
        return
    steps = [step for step in parts.path.split("/") if step]
    for count in range(len(steps) + itself):
        url = f"{parts.scheme}://{parts.netloc}/{'/'.join([*steps[:count], ''])}"
        store = opened(replace(location, url=url, log=None, read_only=True))
        try:
            store.head(DISK_KEY)
        except (NotFound, AccessDenied):
            continue
        finally:
            store.close()
        raise Refused(f"{location.url} is within a disk: {url}{DISK_KEY} is its mark", hint=hint)
