"""What every store does with the bytes it is given or hands out: size, digest, range."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from disks.stores.base import ByteRange, Payload
from oplog.errors import Damaged, NotFound, Transient

_METADATA_NAME = re.compile("[a-z0-9-]+")
_CLICKHOUSE_NAMES = frozenset({"from_path", "to_path", "src_path", "dst_path"})
_READ_BYTES = 1 << 20
"""Files up to this size are read: cheaper than the page faults of a mapping."""


def size_bytes(payload: Payload) -> int:
    """How many bytes a put will send."""
    if isinstance(payload, Path):
        try:
            return payload.stat().st_size
        except FileNotFoundError as error:
            raise NotFound(f"file to upload does not exist: {payload}") from error
    return memoryview(payload).nbytes


@contextmanager
def opened(payload: Payload) -> Iterator[memoryview]:
    """The payload as one buffer. A large file is mapped, never read into memory as a whole."""
    if not isinstance(payload, Path):
        yield memoryview(payload).cast("B")
        return
    try:
        descriptor = os.open(payload, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound(f"file to upload does not exist: {payload}") from error
    try:
        size = os.fstat(descriptor).st_size
        if size <= _READ_BYTES and len(data := os.read(descriptor, size)) == size:
            yield memoryview(data)
            return
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    view = memoryview(mapped)
    try:
        yield view
    finally:
        view.release()
        try:
            mapped.close()
        except BufferError:
            pass  # an error on its way up still holds a slice in its frames: the file is unmapped with it


def check_sha256(name: str, key: str, view: memoryview, sha256: bytes) -> None:
    """Raise `Damaged` unless the bytes have the digest their writer knows them by."""
    if hashlib.sha256(view).digest() != sha256:
        raise wrong_sha256(name, key)


def wrong_sha256(name: str, key: str) -> Damaged:
    """The error of a store that refused a body."""
    return Damaged(
        f"{name}{key}: the bytes to write do not match their SHA-256; nothing was written",
        hint="the source changed or was damaged while it was read: check the local disk, then try again",
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


class Truncated(Transient):
    """A body that ended early. Tried again like any `Transient`; when it stays so, the retry layer says `Damaged`."""
