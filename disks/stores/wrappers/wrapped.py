"""A store round another store. Each wrapper overrides what it changes; everything else goes straight through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import NoReturn

from disks.stores.base import ByteRange, ObjectInfo, ObjectStore, Payload, S3Connection, StoreCapabilities, Upload
from disks.stores.bucket_settings import BucketSettings, OldVersion
from oplog.errors import FrostlineError, Refused


class WrappedStore(ObjectStore):
    """Passes every call to `inner`: the base of the wrappers, and itself a store that keeps the contract."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.name = inner.name

    @property
    def capabilities(self) -> StoreCapabilities:
        return self.inner.capabilities

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        self.inner.put(key, payload, sha256=sha256, metadata=metadata)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        return self.inner.get(key, byte_range)

    def head(self, key: str) -> ObjectInfo:
        return self.inner.head(key)

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        return self.inner.get_with_info(key)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, start_after=start_after)

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        return self.inner.delete(keys)

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        self.inner.copy(source_key, target_key, source=source)

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        return self.inner.list_uploads(prefix)

    def abort_upload(self, upload: Upload) -> None:
        self.inner.abort_upload(upload)

    def url(self, key: str) -> str:
        return self.inner.url(key)

    @property
    def s3_connection(self) -> S3Connection | None:
        return self.inner.s3_connection

    def clock_skew(self) -> timedelta | None:
        return self.inner.clock_skew()

    def bucket_settings(self) -> BucketSettings | None:
        return self.inner.bucket_settings()

    def old_versions(self, prefix: str = "") -> Iterator[OldVersion]:
        return self.inner.old_versions(prefix)

    def renew_credentials(self) -> bool:
        return self.inner.renew_credentials()

    def close(self) -> None:
        self.inner.close()


def unwrapped(store: ObjectStore) -> ObjectStore:
    """The store below all wrappers."""
    while isinstance(store, WrappedStore):
        store = store.inner
    return store


class ReadOnlyStore(WrappedStore):
    """For disks with `read_only: true`: foreign buckets, backups, a bucket that is looked at after an accident."""

    def _refuse(self, operation: str) -> NoReturn:
        raise Refused(
            f"{self.name} is read-only: {operation} refused", hint="set `read_only: false` for the disk to write"
        )

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        self._refuse(f"put of {key}")

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        self._refuse(f"put of {key}")

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        self._refuse("delete")

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        self._refuse(f"copy to {target_key}")

    def abort_upload(self, upload: Upload) -> None:
        self._refuse(f"abort of the upload of {upload.key}")
