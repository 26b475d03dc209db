"""From a disk's configuration to a store with its wrappers: the one place that stacks them."""

from __future__ import annotations

from urllib.parse import urlsplit

from disks.config import ObjectDiskConfig
from disks.stores.base import ObjectStore
from disks.stores.schemes import SCHEMES
from disks.stores.wrappers.limit import LimitedStore, Limiter
from disks.stores.wrappers.metered import Meter, MeteredStore
from disks.stores.wrappers.named_log import NamedLogStore
from disks.stores.wrappers.retry import Backoff, RetryingStore
from disks.stores.wrappers.wrapped import ReadOnlyStore
from oplog.errors import UsageError


def open_store(config: ObjectDiskConfig, *, limiter: Limiter | None = None) -> MeteredStore:
    """Open the store that `config.url` names. Sends no request and writes nothing.

    The stack, from outside: metered (what the caller sees) > the view of one log (when configured) > retrying >
    limited (each attempt takes a slot, and sees the 503 first) > read-only (when configured) > the store itself.
    Workers that share limits pass the same limiter.

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
    store = RetryingStore(store, backoff)
    if config.log is not None:
        store = NamedLogStore(store, config.log)
    return MeteredStore(store, meter=meter if meters_itself else None)


def _raw_store(config: ObjectDiskConfig, meter: Meter) -> tuple[ObjectStore, bool]:
    parts = urlsplit(config.url)
    if parts.query or parts.fragment:
        raise UsageError(f"the url of an object disk takes no '?' or '#': {config.url}")
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None:
        raise UsageError(f"cannot open {config.url!r} as a bucket", hint="use s3://, file:// or memory:// (tests)")
    return scheme.open(config, meter), scheme.meters_itself
