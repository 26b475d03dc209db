"""From the configuration of a disk to the disk: a table of what `type` may say, and how each is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from disks.base import Disk
from disks.config import DiskConfig, LocalDiskConfig, ObjectDiskConfig
from oplog.errors import UsageError
from oplog.revision import LOGS_PREFIX

if TYPE_CHECKING:
    from disks.stores.wrappers.limit import Limiter

C = TypeVar("C", bound=DiskConfig)

LOOK_SECONDS = 60.0
"""Between two looks at a bucket on S3 by who need not be exact."""

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class DiskLocation(msgspec.Struct, frozen=True):
    """Where a disk lies: a directory of this machine, or a prefix of a bucket."""

    space: str
    """Directories are in one space, the keys of each bucket in another."""
    steps: tuple[str, ...]
    directory: Path | None = None
    log: str | None = None
    """Which of several logs of the location is meant."""

    @property
    def text(self) -> str:
        """For messages and for the journal: without credentials, the same however it was written."""
        whole = str(self.directory) if self.directory is not None else f"{self.space}{'/'.join(self.steps)}"
        return whole if self.log is None else f"{whole}/{LOGS_PREFIX}{self.log}"

    def overlaps(self, other: DiskLocation) -> bool:
        """Whether one of them is the other, or lies within it. Several logs of one place are several
        locations."""
        if self.log and other.log and self.log != other.log and replace(self, log=other.log) == other:
            return False
        if self.space != other.space:
            return False
        shared = min(len(self.steps), len(other.steps))
        if self.steps[:shared] == other.steps[:shared]:
            return True
        if self.directory is None or other.directory is None:
            return False
        return _is_within(self.directory, other.directory) or _is_within(other.directory, self.directory)


def bucket_location(disk: ObjectDiskConfig, environment: Mapping[str, str]) -> DiskLocation:
    """The location of a disk in a bucket. The environment may name the endpoint."""
    parts = urlsplit(disk.url)
    if parts.scheme == "file":
        return replace(directory_location(unquote(parts.path)), log=disk.log)
    if parts.scheme != "s3":  # in memory, where names do not nest
        return DiskLocation(disk.url.rstrip("/"), (), log=disk.log)
    steps = tuple(step for step in unquote(parts.path).split("/") if step)
    endpoint = disk.endpoint_url or next((environment[name] for name in _ENDPOINTS if environment.get(name)), "")
    return DiskLocation(f"{_without_credentials(endpoint)}s3://{parts.netloc}/", steps, log=disk.log)


def directory_location(path: str) -> DiskLocation:
    """The location of a directory, or a file, of this machine. Symbolic links are followed."""
    real = Path(os.path.realpath(Path(path).expanduser()))
    return DiskLocation("", real.parts, real)


def _without_credentials(endpoint: str) -> str:
    """Scheme, host and port, in one form: an endpoint may hold a password."""
    if not endpoint:
        return ""
    parts = urlsplit(endpoint)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    try:
        port = parts.port or default
    except ValueError:  # not a number: opening the store reports it
        port = default
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port} "


def _is_within(inner: Path, outer: Path) -> bool:
    """Whether the inner directory, or one above it, is the outer one under another name (a bind mount)."""
    try:
        expected = _identity(outer)
    except OSError:
        return False
    return any(identity == expected for identity in _identities(inner))


def _identities(path: Path) -> Iterator[tuple[int, int]]:
    for directory in (path, *path.parents):
        try:
            yield _identity(directory)
        except OSError:
            continue


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


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
