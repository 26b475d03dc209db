"""What a bucket is, as far as a listing tells. Pure: no request, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from disks.object_disk.references import INTENTS_PREFIX
from disks.stores.base import ObjectInfo
from oplog.clickhouse.names import ListedObject, is_numbered, parse_key
from oplog.revision import (
    LEASES_PREFIX,
    PINS_PREFIX,
    SCHEMA_VERSION_KEY,
    SNAPSHOTS_PREFIX,
    parse_commit_key,
    parse_snapshot_key,
)

DIRECTORY_OBJECT = re.compile(r"__meta/([a-z]{32})/prefix\.path\Z")
"""plain_rewritable: the object whose body is the path of a directory."""
DIRECTORY_FILE = re.compile(r"([a-z]{32}|__root)/([^/]+)\Z")
"""plain_rewritable: a file of the directory with this token; `__root` is the disk's own."""
FROSTLINE_SCHEMA = "2"
_OUR_PREFIXES = (LEASES_PREFIX, PINS_PREFIX, INTENTS_PREFIX)
"""A disk of ours with ClickHouse's log has these beside it."""
_PLAIN_FILE = re.compile(r"(?:store/[0-9a-f]{3}/[0-9a-f-]{36}|data/[^/]+/[^/]+)/.+\Z")


class Kind(StrEnum):
    """What wrote the bucket."""

    SEND_METADATA = "send_metadata"
    """ClickHouse with `send_metadata` on, or a disk of ours with `log_format: 1`: it can be rebuilt."""
    FROSTLINE = "frostline"
    """Our own log, format 2."""
    PLAIN = "plain"
    PLAIN_REWRITABLE = "plain_rewritable"
    WITHOUT_METADATA = "without_metadata"
    """ClickHouse without `send_metadata`: blobs whose paths only the server's own disk knew."""
    UNKNOWN = "unknown"
    EMPTY = "empty"


class Contents(msgspec.Struct, frozen=True):
    """A listing, sorted by what the names mean for this kind of bucket."""

    kind: Kind
    objects: int
    size_bytes: int
    schema_version: str | None = None
    """The body of `.SCHEMA_VERSION`; None when there is none."""
    log: tuple[ListedObject, ...] = ()
    """send_metadata: files and operations. without_metadata: the blobs."""
    files: tuple[ObjectInfo, ...] = ()
    """plain and plain_rewritable: the objects that are files, or name directories."""
    foreign: tuple[str, ...] = ()
    """Names that this kind of bucket does not have."""
    below: str | None = None
    """unknown: the directory of the bucket in which a disk was found after all."""


def sort_listing(listing: Iterable[ObjectInfo], schema_version: str | None = None) -> Contents:
    """Recognise the bucket and sort its objects."""
    objects = tuple(listing)
    kind = recognise(objects, schema_version)
    size = sum(info.size_bytes for info in objects)
    others = [info for info in objects if info.key != SCHEMA_VERSION_KEY]
    if kind in (Kind.SEND_METADATA, Kind.WITHOUT_METADATA):
        log: list[ListedObject] = []
        foreign: list[str] = []
        for info in others:
            name = parse_key(info.key)
            if name is not None:
                log.append(ListedObject(info.key, name, info.size_bytes, info.modified))
            elif not info.key.startswith(_OUR_PREFIXES):
                foreign.append(info.key)
        return Contents(kind, len(objects), size, schema_version, tuple(log), (), tuple(foreign))
    if kind is Kind.PLAIN_REWRITABLE:
        files = tuple(info for info in others if DIRECTORY_OBJECT.match(info.key) or DIRECTORY_FILE.match(info.key))
        foreign = [
            info.key for info in others if not (DIRECTORY_OBJECT.match(info.key) or DIRECTORY_FILE.match(info.key))
        ]
        return Contents(kind, len(objects), size, schema_version, (), files, tuple(foreign))
    if kind is Kind.PLAIN:
        return Contents(kind, len(objects), size, schema_version, (), tuple(others))
    return Contents(kind, len(objects), size, schema_version, below=_below(objects) if kind is Kind.UNKNOWN else None)


def recognise(objects: Sequence[ObjectInfo], schema_version: str | None = None) -> Kind:
    """The kind of the bucket, from its marker and the names of all its objects."""
    if not objects:
        return Kind.EMPTY
    keys = [info.key for info in objects]
    if schema_version == FROSTLINE_SCHEMA or any(
        parse_commit_key(key) or (key.startswith(SNAPSHOTS_PREFIX) and parse_snapshot_key(key)) for key in keys
    ):
        return Kind.FROSTLINE
    if any(map(is_numbered, keys)) or keys == [SCHEMA_VERSION_KEY]:
        return Kind.SEND_METADATA
    if any(map(DIRECTORY_OBJECT.match, keys)):
        return Kind.PLAIN_REWRITABLE
    if any(parse_key(key) is not None for key in keys):
        return Kind.SEND_METADATA if SCHEMA_VERSION_KEY in keys else Kind.WITHOUT_METADATA
    if any(map(_PLAIN_FILE.match, keys)):
        return Kind.PLAIN
    return Kind.UNKNOWN


def _below(objects: Sequence[ObjectInfo]) -> str | None:
    """The first directory, at most three levels down, whose own listing would be a disk."""
    for depth in (1, 2, 3):
        groups: dict[str, list[ObjectInfo]] = {}
        for info in objects:
            segments = info.key.split("/", depth)
            if len(segments) == depth + 1:
                prefix = "/".join(segments[:depth])
                groups.setdefault(prefix, []).append(ObjectInfo(segments[depth], info.size_bytes, info.modified))
        for prefix, inside in groups.items():
            if recognise(inside) is not Kind.UNKNOWN:
                return f"{prefix}/"
    return None
