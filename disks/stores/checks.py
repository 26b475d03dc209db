"""What every store checks of what it is given, and the errors that say so: digests, ranges, metadata, connections."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable, Mapping

from disks.stores.base import ByteRange, ObjectStore
from oplog.errors import Damaged, NotFound, Transient

_METADATA_NAME = re.compile("[a-z0-9-]+")
_CLICKHOUSE_NAMES = frozenset({"from_path", "to_path", "src_path", "dst_path"})


def check_sha256(name: str, key: str, view: memoryview, sha256: bytes) -> None:
    """Raise `Damaged` unless the bytes have the digest their writer knows them by."""
    if hashlib.sha256(view).digest() != sha256:
        raise wrong_sha256(name, key)


def wrong_sha256(name: str, key: str) -> Damaged:
    """The error of a store that refused a body."""
    return Damaged(
        f"{name}{key}: the bytes to write do not match their SHA-256; nothing was written",
        hint="the source was damaged or changed while it was read, or the network or a proxy altered the bytes: "
        "try again, then check the local disk and what is in between",
    )


def check_digest_length(sha256: bytes) -> None:
    """A digest is 32 raw bytes, not hex: a mistake of the caller, never of the user."""
    if len(sha256) != 32:
        raise ValueError(f"sha256 must be the 32 raw bytes of the digest, got {len(sha256)}")


def check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """User metadata that every S3 server gives back as sent: names of a-z, 0-9 and dashes, values of visible ASCII.

    Names with `_` are refused: Ceph gives them back with `-`, and some servers drop them. Those of ClickHouse's log are
    let through; their writer knows.
    """
    checked = dict(metadata or {})
    for name, value in checked.items():
        if not _METADATA_NAME.fullmatch(name) and name not in _CLICKHOUSE_NAMES:
            raise ValueError(f"metadata name must be lower-case letters, digits and dashes: {name!r}")
        if not (value.isascii() and value.isprintable()) or value != value.strip():
            raise ValueError(f"metadata value of {name!r} must be visible ASCII without outer spaces: {value[:80]!r}")
    return checked


def check_range(name: str, key: str, byte_range: ByteRange, available_bytes: int) -> None:
    """Raise `Damaged` when the range reaches past the object's end."""
    if byte_range.start < 0 or byte_range.stop < byte_range.start:
        raise ValueError(f"not a byte range: {byte_range}")
    if byte_range.stop > available_bytes:
        raise past_the_end(name, key, byte_range)


def past_the_end(name: str, key: str, byte_range: ByteRange) -> Damaged:
    """The error of a range that the object does not have."""
    return Damaged(
        f"{name}{key}: bytes {byte_range.start} to {byte_range.stop} reach past the end of the object",
        hint="the object is shorter than the metadata says: run fsck",
    )


class Unreachable(Transient):
    """No connection was made, so the request cannot have taken effect. Waited for, but not as long as a busy server."""


class Untrusted(Unreachable):
    """The server's certificate is not accepted, so nothing was sent. No second try: that changes no certificate."""


class Truncated(Transient):
    """A body that ended early. Tried again like any `Transient`; when it stays so, the retry layer says `Damaged`."""


class WrongAnswer(Transient):
    """An answer that is not one to what was asked: a proxy's page, another request's, one that contradicts itself.
    Nothing of it is used."""


def check_listed(store: ObjectStore, seen: Iterable[str], listed: Container[str]) -> None:
    """Raise `WrongAnswer` when a listing does not show an object that another one showed, and that is still there. One
    request for each object that is missing."""
    for key in seen:
        if key in listed:
            continue
        try:
            store.head(key)
        except NotFound:
            continue
        raise WrongAnswer(
            f"{store.name}{key} is there, and a listing of {store.name} does not show it",
            hint="listings of this store cannot be relied on now: run the command again; 'frostline doctor' tries the "
            "store out",
        )
