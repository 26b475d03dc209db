"""A store that is only read: every change is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from disks.stores.base import ObjectStore, Payload, Upload
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import FrostlineError, Refused


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
