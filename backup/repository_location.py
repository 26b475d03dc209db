"""Where a repository is: which URL counts, how its bucket is reached, and that it lies apart from every disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from disks.config import ObjectDiskConfig
from oplog.errors import Refused, UsageError
from tiering.config.disk_locations import bucket_at, place_of
from tiering.config.settings import Config

VARIABLE = "FROSTLINE_BACKUP"
APART = "a backup next to the data is lost with it: use a separate repository"
"""What to do where a disk is in the same place."""
_SCHEMES = ("s3", "file", "memory")


def repository_url(config: Config, given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The URL of the repository: the given one, else `$FROSTLINE_BACKUP`, else that of the configuration."""
    found = given if given is not None else environment.get(VARIABLE) or config.backup.repository
    if not found:
        raise UsageError(
            "no backup repository is named" if given is None else "the name of the repository is empty",
            hint=f"use --to file:///path or s3://bucket/prefix, or set {VARIABLE} or backup.repository",
        )
    return found


def repository_config(config: Config, url: str) -> ObjectDiskConfig:
    """How the repository's bucket is reached: as the disk in the same bucket, unless the configuration says more.

    Raises `UsageError` for what is no place, and `Refused` for a place that is a disk's, or that all of a bucket or of
    the file system is.
    """
    wanted = bucket_at(config, url)
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or parts.query or parts.fragment:
        raise UsageError(f"cannot use {url!r} as a backup repository", hint="file:///path or s3://bucket/prefix")
    if parts.scheme != "memory" and not unquote(parts.path).strip("/"):
        raise Refused(
            f"{url} is {'the root of the file system' if parts.scheme == 'file' else 'a whole bucket'}",
            hint="give the repository a directory or prefix of its own",
        )
    if config.backup.endpoint_url is not None and parts.scheme == "s3":
        wanted = ObjectDiskConfig(url=url, endpoint_url=config.backup.endpoint_url, region=config.backup.region)
    wanted = msgspec.structs.replace(wanted, read_only=False, url=url if url.endswith("/") else f"{url}/")
    _check_apart(config, wanted)
    return wanted


def _check_apart(config: Config, repository: ObjectDiskConfig) -> None:
    location = place_of(repository, os.environ)
    for name, disk in config.disks.items():
        other = place_of(disk, os.environ)
        if location.overlaps(other):
            same = location.steps == other.steps
            raise Refused(
                f"{repository.url} {'is' if same else 'overlaps'} the place of disk {name}, {other.text}",
                hint=APART,
            )
