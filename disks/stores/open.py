"""From a disk's configuration to a store with its wrappers: the one place that stacks them."""

from __future__ import annotations

import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

from disks.config import DiskConfig
from disks.stores.base import ObjectStore
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.limit import LimitedStore, Limiter
from disks.stores.wrappers.metered import Meter, MeteredStore
from disks.stores.wrappers.readonly import ReadOnlyStore
from disks.stores.wrappers.retry import Backoff, RetryingStore
from oplog.errors import UsageError

_memory: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def open_store(config: DiskConfig, *, limiter: Limiter | None = None) -> MeteredStore:
    """Open the store that `config.url` names. Sends no request and writes nothing.

    The stack, from outside: metered (what the caller sees) > retrying > limited (each attempt takes a slot, and sees
    the 503 first) > read-only (when configured) > the store itself. Workers that share limits pass the same limiter.

    `s3://bucket/` without a prefix is allowed: then the whole bucket belongs to the disk, and its garbage collector
    treats every object in it as its own. Give a prefix wherever anything else lives in the bucket.
    """
    meter = Meter()
    store, meters_itself = _raw_store(config, meter)
    if config.read_only:
        store = ReadOnlyStore(store)
    if limiter is not None:
        store = LimitedStore(store, limiter)
    backoff = Backoff(attempts=max(config.retries, 1), total_seconds=config.retry_seconds)
    return MeteredStore(RetryingStore(store, backoff), meter=meter if meters_itself else None)


def _raw_store(config: DiskConfig, meter: Meter) -> tuple[ObjectStore, bool]:
    if config.url is None:
        raise UsageError("an object disk needs a url", hint="url: s3://bucket/prefix/ or file:///path/to/bucket/")
    parts = urlsplit(config.url)
    if parts.query or parts.fragment:
        raise UsageError(f"the url of an object disk takes no '?' or '#': {config.url}")
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        if parts.netloc not in ("", "localhost") or not path.is_absolute():
            raise UsageError(f"a directory needs an absolute path: {config.url}", hint="file:///path/to/bucket/")
        return DirectoryStore(path, read_only=config.read_only), False
    if parts.scheme == "memory":
        return _memory_store(parts.netloc + parts.path.rstrip("/")), False
    if parts.scheme == "s3":
        from disks.stores.s3.store import S3Store  # boto3 takes a quarter of a second to import

        return S3Store.from_config(config, parts.netloc, unquote(parts.path.lstrip("/")), meter), True
    raise UsageError(f"cannot open {config.url!r} as a bucket", hint="use s3://, file:// or memory:// (tests)")


def _memory_store(name: str) -> MemoryStore:
    """One store a name and process, so that a disk that is opened again finds its objects."""
    with _memory_lock:
        return _memory.setdefault(name, MemoryStore(name))
