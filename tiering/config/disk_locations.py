"""Two disks of one place would be one disk under two names: a move between them would delete the only copy.

Checks that need no request are made here: directories by their real paths and inodes, buckets by endpoint, name
and prefix. That two endpoints lead to one bucket, only the ids of the disks tell.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from disks.config import DiskConfig, LocalDiskConfig, ObjectDiskConfig
from oplog.errors import UsageError
from oplog.revision import LOGS_PREFIX
from tiering.config.settings import Config

Complain = Callable[[tuple[str | int, ...], str, str], UsageError]
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class DiskLocation(msgspec.Struct, frozen=True):
    """Where a disk lies: a directory of this machine, or a prefix of a bucket."""

    space: str
    """Directories are in one space, the keys of each bucket in another."""
    steps: tuple[str, ...]
    directory: Path | None = None
    log: str | None = None
    """Which of several logs of the place is meant."""

    @property
    def text(self) -> str:
        """For messages and for the journal: without credentials, the same however it was written."""
        whole = str(self.directory) if self.directory is not None else f"{self.space}{'/'.join(self.steps)}"
        return whole if self.log is None else f"{whole}/{LOGS_PREFIX}{self.log}"

    def overlaps(self, other: DiskLocation) -> bool:
        """Whether one of them is the other, or lies within it. Several logs of one place are several places."""
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


def check_locations(config: Config, environment: Mapping[str, str], complain: Complain) -> None:
    """Raise what `complain(key path, problem, hint)` makes of the first two disks that share a place."""
    places = {name: place_of(disk, environment) for name, disk in config.disks.items()}
    for (name, place), (other, other_place) in combinations(places.items(), 2):
        if place.overlaps(other_place):
            same = place.steps == other_place.steps and place.log == other_place.log
            raise complain(
                ("disks", other),
                f"{other_place.text} {'is' if same else 'overlaps'} the place of disks.{name}"
                + ("" if same else f", {place.text}"),
                "two disks of one place are one disk under two names: give each a directory or prefix of its own",
            )


def place_of(disk: DiskConfig, environment: Mapping[str, str]) -> DiskLocation:
    """The place of a disk. Symbolic links are followed; nothing is asked of a bucket."""
    if isinstance(disk, LocalDiskConfig):
        return _directory(Path(disk.path))
    assert isinstance(disk, ObjectDiskConfig)
    parts = urlsplit(disk.url)
    if parts.scheme == "file":
        return replace(_directory(Path(unquote(parts.path))), log=disk.log)
    if parts.scheme != "s3":  # in memory, where names do not nest
        return DiskLocation(disk.url.rstrip("/"), (), log=disk.log)
    steps = tuple(step for step in unquote(parts.path).split("/") if step)
    endpoint = disk.endpoint_url or next((environment[name] for name in _ENDPOINTS if environment.get(name)), "")
    return DiskLocation(f"{_without_credentials(endpoint)}s3://{parts.netloc}/", steps, log=disk.log)


def bucket_at(config: Config, url: str) -> ObjectDiskConfig:
    """A read-only disk at a URL that is not configured. Endpoint, region and keys of an S3 bucket are those of the
    configured disk in the same bucket, else of the only S3 endpoint that the configuration names, else of the
    environment."""
    alone = ObjectDiskConfig(url=url, read_only=True)
    bucket = urlsplit(url)
    known = [disk for disk in config.buckets().values() if disk.url.startswith("s3://")]
    if bucket.scheme != "s3" or not known:
        return alone
    same = [disk for disk in known if urlsplit(disk.url).netloc == bucket.netloc]
    endpoints = {disk.endpoint_url for disk in known}
    if not same and len(endpoints) > 1:
        return alone
    return msgspec.structs.replace((same or known)[0], url=url, log=None, read_only=True, max_size_bytes=None)


def _directory(path: Path) -> DiskLocation:
    real = Path(os.path.realpath(path.expanduser()))
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
        wanted = _identity(outer)
    except OSError:
        return False
    return any(found == wanted for found in _identities(inner))


def _identities(path: Path) -> Iterator[tuple[int, int]]:
    for directory in (path, *path.parents):
        try:
            yield _identity(directory)
        except OSError:
            continue


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
