"""Where a disk lies, by its configuration alone: no request is made."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from disks.config import ObjectDiskConfig
from oplog.revision import LOGS_PREFIX

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
