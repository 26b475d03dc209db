"""A bucket of which listings, times and answers can be wrong, and a disk in it that is collected."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from disks.garbage import collect as garbage
from disks.garbage.collect import GcReport
from disks.garbage.listing import cut_ranges
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ObjectInfo, ObjectStore, Upload
from disks.stores.memory import MemoryStore
from disks.workers.runner import Remote, threads
from oplog.errors import FrostlineError
from oplog.revision import parse_blob_key

NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=3)
"""When everything written by a test is older than guard and retention."""


class Bucket(MemoryStore):
    """A memory store whose clock, listings and answers a test can bend."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Callable[[int, str], bool] = lambda listing, key: False
        self.listings = 0
        self.on_list: Callable[[str], None] = lambda prefix: None
        self.refuses: dict[str, FrostlineError] = {}
        self.unreadable: dict[str, FrostlineError] = {}
        self.uploads: list[Upload] = []

    def date(self, key: str, modified: datetime) -> None:
        data, info = self._objects[key]
        self._objects[key] = (data, ObjectInfo(info.key, info.size_bytes, modified, info.metadata))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.on_list(prefix)
        if prefix == "":
            self.listings += 1
        shown = list(super().list(prefix, start_after=start_after))
        return iter([info for info in shown if not self.hidden(self.listings, info.key)])

    def get(self, key: str, byte_range: Any = None) -> bytes:
        if key in self.unreadable:
            raise self.unreadable[key]
        return super().get(key, byte_range)

    def delete(self, keys: Any) -> dict[str, FrostlineError | None]:
        wanted = tuple(keys)
        refused: dict[str, FrostlineError | None] = {key: self.refuses[key] for key in wanted if key in self.refuses}
        return super().delete([key for key in wanted if key not in refused]) | refused

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        return iter(list(self.uploads))

    def abort_upload(self, upload: Upload) -> None:
        self.uploads.remove(upload)

    @property
    def keys(self) -> set[str]:
        return set(self._objects)

    @property
    def blobs(self) -> set[str]:
        return {key for key in self._objects if parse_blob_key(key) is not None}

    def spoil(self, key: str, data: bytes = b"{not json") -> None:
        _, info = self._objects[key]
        self._objects[key] = (data, ObjectInfo(key, len(data), info.modified))


class Here:
    """A store of this process, described by itself."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def open(self) -> ObjectStore:
        return self._store


in_ranges = False
"""Whether the bucket is listed in ranges of two keys, by others, or whole, here: every rule holds for both."""


@pytest.fixture(autouse=True, params=["whole", "ranges"])
def _who_lists(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "in_ranges", request.param == "ranges")
    monkeypatch.setitem(cut_ranges.__kwdefaults__, "keys", 2)


def collect(disk: ObjectDisk, *, now: datetime | None = None, **options: Any) -> GcReport:
    remote = Remote(threads(), Here(disk.store)) if in_ranges else None
    return garbage.collect(disk, GcRules(**options), now=now, remote=remote)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def disk(bucket: Bucket, tmp_path: Path) -> ObjectDisk:
    return ObjectDisk("cold", bucket, tmp_path / "state", snapshot_every_commits=0)


def run(disk: ObjectDisk, *, now: datetime | None = LATER, **options: Any) -> GcReport:
    """A collection three days later, with no cap on the share."""
    return collect(disk, now=now, **{"delete": True, "max_delete_fraction": 1.0, **options})
