"""Objects of buckets as what an insert reads: `s3://bucket/key`, and globs of keys.

Read by our own client, with the keys and endpoint of a disk in the same bucket (`tiering.config.places.bucket_at`), in
ranges: a range whose answer breaks off is asked for again, and what came before it is not.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from disks.host.ranged_file import RangedFile
from disks.stores.base import ByteRange
from disks.stores.open import open_store
from disks.stores.wrappers.limit import Limiter
from disks.stores.wrappers.metered import MeteredStore
from oplog.errors import NotFound, UsageError
from tiering.config.places import bucket_at
from tiering.config.settings import Config

SCHEME = "s3://"
_MOST_RANGE_BYTES = 32 * 1024 * 1024
_SPECIAL = re.compile(r"[*?\[]")
_GLOB = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_MEANS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class BucketSources:
    """What the buckets of a configuration have, and those that only the environment knows."""

    def __init__(self, config: Config, limiter: Limiter | None = None) -> None:
        self._config = config
        self._limiter = limiter

    def find(self, url: str) -> list[tuple[str, Callable[[], BucketFile]]]:
        """The objects that a URL or a glob of keys names, in the order of their keys, each with what opens it.

        Raises `NotFound` where there is none; asks the bucket for globs only.
        """
        bucket, _, pattern = url.removeprefix(SCHEME).partition("/")
        if not bucket or not pattern:
            raise UsageError(f"{url} names no object", hint="write s3://bucket/key.parquet or s3://bucket/prefix/*.csv")
        if pattern.endswith("/"):
            raise UsageError(f"{url} is a prefix", hint=f"name its objects, such as '{url}*.parquet'")
        special = _SPECIAL.search(pattern)
        keys = self._matching(bucket, pattern, pattern[: special.start()]) if special else [pattern]
        if not keys:
            raise NotFound(f"no such object: {url}", hint="check the keys; quote globs so that they arrive here")
        return [(f"{SCHEME}{bucket}/{key}", self._opener(bucket, key)) for key in keys]

    def _matching(self, bucket: str, pattern: str, start: str) -> list[str]:
        place = start.rpartition("/")[0]
        try:
            matches = re.compile(_regular(pattern)).fullmatch
        except re.error as error:
            raise UsageError(f"not a glob of keys: {pattern!r}: {error}", hint="quote `[` as `[[]`") from error
        with self._store(bucket, place) as store:
            keys = [f"{place}/{info.key}".lstrip("/") for info in store.list(start[len(place) :].lstrip("/"))]
        return [key for key in keys if matches(key) and not key.endswith("/")]

    def _opener(self, bucket: str, key: str) -> Callable[[], BucketFile]:
        place, _, name = key.rpartition("/")
        return lambda: BucketFile(self._store(bucket, place), name, f"{SCHEME}{bucket}/{key}")

    def _store(self, bucket: str, place: str) -> MeteredStore:
        """`place` is part of a key, which may hold what a URL reads as its own."""
        return open_store(bucket_at(self._config, f"{SCHEME}{bucket}/{quote(place)}"), limiter=self._limiter)


class RemoteFile(RangedFile):
    """A file that is elsewhere."""

    @abstractmethod
    def check_unchanged(self) -> None:
        """Raise `UsageError` where the file is another one now: parts of both may have been read."""

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class BucketFile(RemoteFile):
    """One object; closing it closes the store. Raises `NotFound` where there is none."""

    def __init__(self, store: MeteredStore, key: str, label: str) -> None:
        self._store = store
        self._key = key
        self._label = label
        try:
            self._begun = store.head(key)
        except NotFound:
            store.close()
            raise NotFound(f"no such object: {label}", hint="check the key") from None
        super().__init__(self._begun.size_bytes)

    def check_unchanged(self) -> None:
        """Raise `UsageError` where the object is another one now: parts of both may have been read."""
        now = self._store.head(self._key)
        if (now.size_bytes, now.modified) != (self._begun.size_bytes, self._begun.modified):
            raise UsageError(f"{self._label} was written anew while it was read", hint="insert it again")

    def close(self) -> None:
        if not self.closed:
            self._store.close()
        super().close()

    def _bytes(self, start: int, stop: int) -> bytes:
        starts = range(start, stop, _MOST_RANGE_BYTES)
        return b"".join(self._store.get(self._key, ByteRange(at, min(at + _MOST_RANGE_BYTES, stop))) for at in starts)


def _regular(pattern: str) -> str:
    """The glob as a regular expression: `*` stays within a segment of a key, `**` does not."""
    return "".join(_MEANS.get(piece) or _characters(piece) for piece in _GLOB.findall(pattern))


def _characters(piece: str) -> str:
    is_set = piece.startswith("[") and len(piece) > 1
    return piece.replace("\\", "\\\\").replace("[!", "[^", 1) if is_set else re.escape(piece)
