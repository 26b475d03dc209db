"""The contract of an object store. A store knows keys and bytes; it knows no paths, parts or tables.

Every implementation and every wrapper passes `tests/contract/test_store.py`. Errors are those of `oplog.errors`:
`NotFound`, `AlreadyExists`, `AccessDenied`, `Transient`/`Throttled` (the retry wrapper alone catches them),
`OutcomeUnknown` and `Damaged`. Keys are UTF-8, non-empty, relative, without `..`, empty segments or control characters;
they are checked on the way in and out. A key, once written, is never written again with other bytes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from disks.stores.bucket_settings import BucketSettings, OldVersion
from oplog.errors import FrostlineError

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NO_SEGMENT = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)")

Payload = bytes | memoryview | Path
"""What a put sends: bytes in memory, or a file that is streamed."""


class ByteRange(msgspec.Struct, frozen=True):
    """The bytes [start, stop) of an object or file."""

    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


class ObjectInfo(msgspec.Struct, frozen=True):
    """One object as a listing or HEAD shows it. `metadata` is filled by `head` and `get_with_info` only."""

    key: str
    size_bytes: int
    modified: datetime
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    sha256: str | None = None
    """In hex, as the store keeps it of the object: by `head`, where it does."""


class Upload(msgspec.Struct, frozen=True):
    """An unfinished multipart upload: invisible in listings, yet paid for."""

    key: str
    upload_id: str
    started: datetime


class StoreCapabilities(msgspec.Struct, frozen=True):
    """What this store can promise. Probed once where it cannot be known, remembered and shown by `disks`."""

    conditional_put: bool
    """`put_if_absent` is atomic between writers; without it an object disk needs a lease."""
    checks_sha256: bool
    """The store itself refuses a body that does not match the SHA-256 sent with it."""
    takes_checksums: bool = True
    """Requests may carry `x-amz-checksum-*`. Where they may not, the SHA-256 in our log is the only proof."""


@dataclass(frozen=True, slots=True)
class S3Connection:
    """How an engine that speaks S3 (Arrow, Spark) reaches the same objects. Holds a secret: never printed."""

    bucket: str
    region: str
    endpoint_url: str | None
    access_key_id: str | None = field(repr=False)
    secret_access_key: str | None = field(repr=False)
    session_token: str | None = field(repr=False)
    virtual_host_style: bool = False
    ca_bundle: str | None = None
    """PEM file with the authorities of the server's certificate; None: the usual ones."""


class ObjectStore(ABC):
    """A bucket, or a prefix of one. Methods are thread-safe. Keys are relative to the store's prefix."""

    name: str
    """Short name for messages, such as `s3://bucket/prefix/` or `file:///path/`."""

    @property
    @abstractmethod
    def capabilities(self) -> StoreCapabilities:
        """What the store can promise. May send a probe the first time."""

    @abstractmethod
    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Write the object atomically and durably; it is readable when this returns.

        `sha256` is the 32-byte digest of the payload: the store refuses other bytes (`Damaged`) and writes nothing.
        A failed put leaves no object, or the whole object; never a part of it.
        """

    @abstractmethod
    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        """As `put`, but exactly one of several racing writers succeeds; the others get `AlreadyExists`.

        Raises `OutcomeUnknown` when the answer was lost: the caller reads the key and compares the writer.
        """

    @abstractmethod
    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        """The object's bytes, or those of the range. A range that reaches past the end is `Damaged`: never short; so is
        an object larger than its reader allows (`oplog.bounds.check_received`), before it takes memory."""

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Size, time and user metadata. Raises `NotFound`."""

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """The object's bytes and what `head` says of it: one request where the store can."""
        return self.get(key), self.head(key)

    @abstractmethod
    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and sorts after `start_after`, in key order (UTF-8 bytes)."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        """Delete in batches; the answer has one entry a key: None when it is gone (or never was), else the error.

        What a retention still keeps is answered with `Retained`: it stays, is listed as before and may go later.
        """

    @abstractmethod
    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        """Copy inside the store, from `source` (same endpoint) or from this store, moving no bytes through us."""

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        """Unfinished multipart uploads below the prefix. Stores without multipart have none."""
        return iter(())

    def abort_upload(self, upload: Upload) -> None:  # noqa: B027
        """Free the parts of an unfinished upload. Nothing when it is gone."""

    @abstractmethod
    def url(self, key: str) -> str:
        """Where an engine that opens URLs itself finds the object: `s3://bucket/key` or `file:///path`."""

    @property
    def s3_connection(self) -> S3Connection | None:
        """How to open `url()` when it is an S3 URL; None otherwise."""
        return None

    def clock_skew(self) -> timedelta | None:
        """How far the store's clock runs ahead of this machine's (behind: negative), by one request, to about a second.

        None for a store that dates its objects by this machine's clock.
        """
        return None

    def bucket_settings(self) -> BucketSettings | None:
        """Versioning, lifecycle rules and Object Lock, as far as the store tells them. None: it has no such thing."""
        return None

    def old_versions(self, prefix: str = "") -> Iterator[OldVersion]:
        """Versions that are no longer current, and delete markers: no listing shows them, yet they are paid for."""
        return iter(())

    def renew_credentials(self) -> bool:
        """Read the credentials again from their source; whether there may be others now."""
        return False

    def close(self) -> None:  # noqa: B027
        """Release connections and threads. The store cannot be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_key(key: str) -> str:
    """Return the key if it is safe in every store, else raise ValueError naming what is wrong with it."""
    if not key or len(key.encode()) > 1024:
        raise ValueError(f"object key is empty or longer than 1024 bytes: {key[:80]!r}")
    if _CONTROL.search(key):
        raise ValueError(f"object key holds a control character: {key!r}")
    if _NO_SEGMENT.search(key):
        raise ValueError(f"object key has an empty, '.' or '..' segment: {key!r}")
    return key
