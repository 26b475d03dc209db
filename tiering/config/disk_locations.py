"""Two disks of one place would be one disk under two names: a move between them would delete the only copy.

Checks that need no request are made here: directories by their real paths and inodes, buckets by endpoint, name
and prefix. That two endpoints lead to one bucket, only the ids of the disks tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from urllib.parse import urlsplit

import msgspec

from disks.config import DiskConfig, ObjectDiskConfig
from disks.registry import DISK_TYPES, DiskLocation
from oplog.errors import UsageError
from tiering.config.settings import Config

Complain = Callable[[tuple[str | int, ...], str, str], UsageError]


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
    """The place of a disk, as its type says. Symbolic links are followed; nothing is asked of a bucket."""
    return DISK_TYPES[disk.type].location(disk, environment)


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
