"""From the configuration of a disk to the disk: a table of what `type` may say, and how each is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from disks.base import Disk
from disks.config import DiskConfig, LocalDiskConfig, ObjectDiskConfig
from disks.disk_location import DiskLocation, bucket_location, directory_location
from oplog.errors import UsageError

if TYPE_CHECKING:
    from disks.stores.wrappers.limit import Limiter

C = TypeVar("C", bound=DiskConfig)

LOOK_SECONDS = 60.0
"""Between two looks at a bucket on S3 by who need not be exact."""


class Opening(msgspec.Struct, frozen=True):
    """What a disk is opened with besides its own keys."""

    name: str
    state_path: Path
    """Where the disk keeps what this machine knows of it; nothing is there the first time."""
    limiter: Limiter | None = None
    """What all stores of the process share."""


class KeyFault(msgspec.Struct, frozen=True):
    """What is wrong with a configuration whose keys have the right types."""

    problem: str
    hint: str = ""
    key: str | None = None
    """None: the disk as a whole."""


class DiskType(msgspec.Struct, Generic[C], frozen=True):
    """One kind of disk: how a configuration of it is opened, where such a disk lies, and what its keys get wrong. None
    of them sends a request."""

    config: type[C]
    open: Callable[[Opening, C], Disk]
    location: Callable[[C, Mapping[str, str]], DiskLocation]
    """By the configuration and the environment. Two disks whose locations overlap are refused."""
    fault: Callable[[C], KeyFault | None]


class _HasPath(Protocol):
    @property
    def path(self) -> str: ...

    @property
    def type(self) -> str: ...


def at_path(config: _HasPath, environment: Mapping[str, str]) -> DiskLocation:
    """The location of a disk that is the directory, or the file, of its key `path`."""
    return directory_location(config.path)


def fault_in_path(config: _HasPath) -> KeyFault | None:
    """The fault of a disk whose key `path` is empty."""
    return None if config.path else KeyFault(f"a disk of type {config.type} needs the key 'path'")


def open_disk(name: str, config: DiskConfig, state_directory: Path, *, limiter: Limiter | None = None) -> Disk:
    """The disk `name`; sends no request. What it keeps on this machine lies in `state_directory/disks/<name>/`."""
    return DISK_TYPES[config.type].open(Opening(name, state_directory / "disks" / name, limiter), config)


def _open_local(opening: Opening, config: LocalDiskConfig) -> Disk:
    from disks.local.disk import LocalDisk  # here, so that the table of types needs no database

    return LocalDisk(
        opening.name,
        Path(config.path),
        keep_free_space_bytes=config.keep_free_space_bytes,
        max_size_bytes=config.max_size_bytes,
        read_only=config.read_only,
        reserve_bytes=config.reserve_bytes,
    )


def _open_in_bucket(opening: Opening, config: ObjectDiskConfig) -> Disk:
    return _LOG_FORMATS[config.log_format](opening, config)


def _open_object_disk(opening: Opening, config: ObjectDiskConfig) -> Disk:
    from disks.object_disk.disk import ObjectDisk
    from disks.stores.open import open_store  # here, so that a store of local disks loads no S3 client

    return ObjectDisk(
        opening.name,
        open_store(config, limiter=opening.limiter),
        opening.state_path,
        snapshot_every_commits=config.snapshot_every_commits,
        retention_seconds=config.retention_seconds,
        read_only=config.read_only,
        max_size_bytes=config.max_size_bytes,
        look_seconds=_look_seconds(config),
        check_place=_check_place(opening, config),
    )


def _look_seconds(config: ObjectDiskConfig) -> float:
    if config.look_seconds is not None:
        return config.look_seconds
    return LOOK_SECONDS if config.url.startswith("s3:") else 0.0


def _open_clickhouse_disk(opening: Opening, config: ObjectDiskConfig) -> Disk:
    from disks.clickhouse.disk import ClickHouseDisk
    from disks.stores.open import open_store

    return ClickHouseDisk(
        opening.name,
        open_store(config, limiter=opening.limiter),
        opening.state_path,
        retention_seconds=config.retention_seconds,
        read_only=config.read_only,
        max_size_bytes=config.max_size_bytes,
        check_place=_check_place(opening, config),
    )


def _check_place(opening: Opening, config: ObjectDiskConfig) -> Callable[[], None]:
    def check() -> None:
        from disks.stores.enclosing import check_no_disk_around
        from disks.stores.open import open_store

        check_no_disk_around(
            config,
            lambda above: open_store(above, limiter=opening.limiter),
            itself=False,
            hint=f"each would take the other's objects for its own: give disk {opening.name} a prefix of its own",
        )

    return check


def _fault_in_bucket(config: ObjectDiskConfig) -> KeyFault | None:
    from disks.stores.schemes import SCHEMES  # here, so that a disk type of another kind loads no log
    from disks.stores.wrappers.named_log import check_log_name

    if not config.url:
        return KeyFault("a disk of type object_disk needs the key 'url'")
    scheme, _, rest = config.url.partition("://")
    if scheme not in SCHEMES or (scheme == "file" and not rest.startswith("/")):
        hint = "s3://bucket/prefix/, file:///directory/ or file:directory/"
        return KeyFault(f"unknown kind of URL: {config.url}", hint, "url")
    if scheme == "s3" and not rest.strip("/"):
        return KeyFault(f"the URL names no bucket: {config.url}", "s3://bucket/prefix/", "url")
    if config.log is not None:
        try:
            check_log_name(config.log)
        except UsageError as error:
            return KeyFault(error.message, error.hint, "log")
        if config.log_format != 2:
            return KeyFault("ClickHouse's log (log_format: 1) has its prefix for itself", key="log")
    if bool(config.access_key_id) != bool(config.secret_access_key):
        return KeyFault("access_key_id and secret_access_key belong together")
    return None


_LOG_FORMATS: dict[int, Callable[[Opening, ObjectDiskConfig], Disk]] = {
    1: _open_clickhouse_disk,
    2: _open_object_disk,
}

DISK_TYPES: dict[str, DiskType[Any]] = {
    "local": DiskType(LocalDiskConfig, _open_local, at_path, fault_in_path),
    "object_disk": DiskType(ObjectDiskConfig, _open_in_bucket, bucket_location, _fault_in_bucket),
}
"""By what `type` says in the file."""
