"""The buckets that backups pin their cold data in: whether the pins and the objects are there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from backup.completeness import Flaw, NamedFile
from backup.format.header import BackupHeader, PinnedDisk
from backup.format.lists import InBucket
from disks.stores.base import ObjectStore
from oplog import pins
from oplog.errors import FrostlineError, Refused
from oplog.pins import Pin
from oplog.revision import BLOBS_PREFIX


class PinnedBuckets:
    """Opens each bucket once. `open_bucket` makes a read-only store of a URL and an endpoint."""

    def __init__(self, open_bucket: Callable[[str, str | None], ObjectStore]) -> None:
        self._open = open_bucket
        self._stores: dict[str, ObjectStore] = {}
        self._sizes: dict[str, dict[str, int]] = {}
        self._kept: dict[PinnedDisk, bool] = {}
        self._lock = threading.Lock()

    def store(self, url: str) -> ObjectStore:
        """The bucket at a URL that a header named."""
        return self._stores[url]

    def opened(self, pinned: PinnedDisk) -> ObjectStore:
        """The bucket of a pinned disk."""
        if pinned.url not in self._stores:
            self._stores[pinned.url] = self._open(pinned.url, pinned.endpoint_url)
        return self._stores[pinned.url]

    def keeps(self, pinned: PinnedDisk, key: str, size_bytes: int) -> bool:
        """Whether the object is there with its size, and the pin, which keeps it. Each bucket is listed once."""
        with self._lock:
            if pinned not in self._kept:
                self._kept[pinned] = self._is_pinned(pinned)
                self._list(pinned)
            return self._kept[pinned] and self._sizes[pinned.url].get(key) == size_bytes

    def check_kept(self) -> None:
        """Raise `Refused` when a pin that `keeps` counted on was let go since."""
        for pinned, kept in self._kept.items():
            if kept and not self._is_pinned(pinned):
                raise Refused(
                    f"the pin {pinned.pin} in {pinned.url} was let go during the restore: its objects may go",
                    hint="no table was created; run it again to copy what is still there",
                )

    def _is_pinned(self, pinned: PinnedDisk) -> bool:
        return _fault(pinned, pins.list_pins(self.opened(pinned))) is None

    def _list(self, pinned: PinnedDisk) -> None:
        if pinned.url not in self._sizes:
            objects = self.opened(pinned).list(BLOBS_PREFIX)
            self._sizes[pinned.url] = {item.key: item.size_bytes for item in objects}

    def of(self, header: BackupHeader, named: NamedFile) -> str:
        """The URL of the bucket that the file stayed in; empty for one in the repository."""
        if not isinstance(named.file.at, InBucket):
            return ""
        disk = named.file.at.disk
        return next((pinned.url for pinned in header.pinned if pinned.disk == disk), "")

    def flaws(self, header: BackupHeader, named: Sequence[NamedFile]) -> list[Flaw]:
        """Pins that are gone, and objects that a listing of the bucket lacks or shows with another size."""
        stayed = [(file, file.file.at) for file in named if isinstance(file.file.at, InBucket)]
        if not stayed:
            return []
        found: list[Flaw] = []
        by_disk = {pinned.disk: pinned for pinned in header.pinned}
        unusable: set[str] = set()
        for pinned in header.pinned:
            if (what := self._wrong(pinned)) is not None:
                found.append(Flaw(f"{pinned.url} pins/{pinned.pin}.json", what, header.tables[0].name))
                unusable.update({pinned.disk} if pinned.url not in self._sizes else ())
        for file, at in stayed:
            if at.disk not in by_disk:
                found.append(file.flaw(f"is on disk {at.disk}, which the backup does not pin"))
            elif at.disk not in unusable:
                size_bytes = self._sizes[by_disk[at.disk].url].get(at.key)
                if size_bytes != file.file.size_bytes:
                    what = "is gone" if size_bytes is None else f"has {size_bytes} bytes"
                    found.append(file.flaw(f"in {by_disk[at.disk].url} {what} instead of {file.file.size_bytes}"))
        return found

    def _wrong(self, pinned: PinnedDisk) -> str | None:
        """What is wrong with the pin; the bucket is listed on the way."""
        try:
            store = self.opened(pinned)
            self._list(pinned)
            return _fault(pinned, pins.list_pins(store))
        except FrostlineError as error:
            if error.retryable:  # nothing is known
                raise
            return f"cannot be looked at: {error.message}"

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


def _fault(pinned: PinnedDisk, held: Sequence[Pin]) -> str | None:
    """Why the pin does not keep what the backup names; None when it does."""
    why = pins.why_not_kept(held, pinned.pin, pinned.revision)
    return None if why is None else f"{why}: nothing keeps the objects from being collected"
