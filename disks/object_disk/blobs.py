"""How the bytes of a file become an object: one place for transactions and for processes that upload for one. And which
objects there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from disks.stores.base import ObjectStore
from oplog.revision import BLOBS_PREFIX, blob_key, parse_blob_key


def put_blob(
    store: ObjectStore, path: str, data: bytes | Path, sha256: str, *, revision: int, key: str | None = None
) -> str:
    """Upload the bytes under a fresh key, which is returned, or the one that is kept for them. Nothing names the object
    until a commit does.

    `path` is the file's place on the disk: the object carries it as its second copy. `revision` is the newest commit
    when the upload begins. Raises `Damaged` when the bytes that arrive are not those of the digest (hex).
    """
    key = key or blob_key(revision + 1)
    store.put(key, data, sha256=bytes.fromhex(sha256), metadata={"path": quote(path, safe="/=+,@ ")})
    return key


class BlobListing:
    """The blobs of a bucket (key, size) in key order, counted while they are listed."""

    def __init__(self, store: ObjectStore) -> None:
        self.objects = 0
        self._store = store

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for item in self._store.list(BLOBS_PREFIX):
            if parse_blob_key(item.key) is not None:
                self.objects += 1
                yield item.key, item.size_bytes
