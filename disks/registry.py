"""From the configuration of a disk to the disk: a table of what `type` may say, and how each is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from disks.base import Disk
from disks.config import DiskConfig, LocalDiskConfig, ObjectDiskConfig

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


class DiskType(msgspec.Struct, Generic[C], frozen=True):
    """One kind of disk. `open` sends no request."""

    config: type[C]
    open: Callable[[Opening, C], Disk]


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


_LOG_FORMATS: dict[int, Callable[[Opening, ObjectDiskConfig], Disk]] = {
    1: _open_clickhouse_disk,
    2: _open_object_disk,
}

DISK_TYPES: dict[str, DiskType[Any]] = {
    "local": DiskType(LocalDiskConfig, _open_local),
    "object_disk": DiskType(ObjectDiskConfig, _open_in_bucket),
}
"""By what `type` says in the file."""
