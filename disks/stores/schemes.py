"""What the URL of a bucket may begin with, and which store is behind it: a table. Imports each store when it is asked
for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from disks.config import ObjectDiskConfig
from oplog.errors import UsageError

if TYPE_CHECKING:
    from disks.stores.base import ObjectStore
    from disks.stores.memory import MemoryStore
    from disks.stores.wrappers.metered import Meter

_memory: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


class Scheme(msgspec.Struct, frozen=True):
    """One kind of store. `open` sends no request and writes nothing."""

    open: Callable[[ObjectDiskConfig, Meter], ObjectStore]
    meters_itself: bool = False
    """The store counts its requests in the meter; else `MeteredStore` counts the calls."""


def _open_s3(config: ObjectDiskConfig, meter: Meter) -> ObjectStore:
    from disks.stores.s3.store import S3Store  # boto3 takes a quarter of a second to import

    parts = urlsplit(config.url)
    return S3Store.from_config(config, parts.netloc, unquote(parts.path.lstrip("/")), meter)


def _open_directory(config: ObjectDiskConfig, meter: Meter) -> ObjectStore:
    from disks.stores.directory import DirectoryStore

    parts = urlsplit(config.url)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise UsageError(f"a directory needs an absolute path: {config.url}", hint="file:///path/to/bucket/")
    return DirectoryStore(path, read_only=config.read_only, conditional_put=config.conditional_put != "no")


def _open_memory(config: ObjectDiskConfig, meter: Meter) -> ObjectStore:
    """One store a name and process, so that a disk that is opened again finds its objects."""
    from disks.stores.memory import MemoryStore

    parts = urlsplit(config.url)
    name = parts.netloc + parts.path.rstrip("/")
    with _memory_lock:
        return _memory.setdefault(name, MemoryStore(name))


SCHEMES = {
    "s3": Scheme(_open_s3, meters_itself=True),
    "file": Scheme(_open_directory),
    "memory": Scheme(_open_memory),
}
"""By what stands before `://`."""
