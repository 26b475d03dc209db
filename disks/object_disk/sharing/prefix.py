"""The prefix that several logs share, as one place: its id, and what the names of its logs are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from msgspec.structs import replace

from disks.config import ObjectDiskConfig
from disks.contracts.bucket_disk import LoggedDisk
from disks.identity import put_object, read_object
from disks.object_disk.sharing.recorded_keeper import recorded_keepers, say
from disks.stores.base import ObjectStore
from disks.stores.wrappers.named_log import log_of, whole_prefix
from oplog.errors import NotFound
from oplog.log import OperationsLog
from oplog.mark import SHARED_SCHEMA_VERSION, damaged_format, is_format, read_mark
from oplog.revision import LOGS_PREFIX, SCHEMA_VERSION_KEY


def store_identity(disk: LoggedDisk) -> str | None:
    """Which store the blobs of this disk lie in: the same text for all logs of one prefix, by whatever names and
    endpoints it is reached, and another one for any other prefix. None where the prefix is the disk's alone, or nobody
    has written to it yet. One request.

    It is what the id object says that the first writer puts: two buckets of one name have two, and so has a prefix
    that was emptied and filled again. A copy of a whole bucket has the id of the first.
    """
    if disk.log_name is None:
        return None
    identity = read_object(whole_prefix(disk.store))
    return None if identity is None else hashlib.sha256(identity.encode()).hexdigest()[:32]


def log_in(store: ObjectStore) -> OperationsLog:
    """The log that the store is a view of, or the only one of its prefix. Sends no request."""
    return OperationsLog(store, prefix=None if log_of(store) is None else whole_prefix(store))


def has_several_logs(prefix: ObjectStore) -> bool:
    """Whether the prefix says that several logs share it. One request. Raises `Damaged` for what is no format."""
    try:
        said = read_mark(prefix, SCHEMA_VERSION_KEY).strip()
    except NotFound:
        return False
    if not is_format(said):
        raise damaged_format(f"{prefix.name}{SCHEMA_VERSION_KEY}", said)
    return said == SHARED_SCHEMA_VERSION


def log_url(config: ObjectDiskConfig) -> str:
    """The URL by which a log among several is named: `<prefix>/logs/<NAME>/`; else that of the prefix."""
    return config.url if config.log is None else f"{config.url.rstrip('/')}/{LOGS_PREFIX}{config.log}/"


def at_url(config: ObjectDiskConfig, opened: Callable[[ObjectDiskConfig], ObjectStore]) -> ObjectDiskConfig:
    """The reverse: how the log at `config.url` is reached, where that is one of several. Only for a URL that may be one
    is a request sent, by a store that is opened for it."""
    prefix, between, name = config.url.rstrip("/").rpartition(f"/{LOGS_PREFIX}")
    if not between or "/" in name:
        return config
    whole = replace(config, url=f"{prefix}/", log=None)
    with opened(whole) as store:
        return replace(whole, log=name) if has_several_logs(store) else config


def identify(prefix: ObjectStore, *, marks: bool) -> None:
    """Give the prefix an id, unless it has one. Where it had none it is new: a machine that sets no `marks` says so
    first, for collections to know that the logs alone tell what is in use."""
    if read_object(prefix) is None:
        if not marks and not recorded_keepers(prefix):
            say(prefix, "", "")
        put_object(prefix)
