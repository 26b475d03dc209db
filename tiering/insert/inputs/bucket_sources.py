"""Objects of buckets as what an insert reads: `s3://bucket/key`, and globs of keys.

Read by our own client, with the keys and endpoint of a disk in the same bucket (`disk_locations.bucket_at`), in ranges:
a range whose answer breaks off is asked for again, and what came before it is not.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from disks.host.ranged_file import RangedFile
from disks.stores.base import ByteRange, check_key
from disks.stores.open import open_store
from disks.stores.wrappers.limit import Limiter
from disks.stores.wrappers.metered import MeteredStore
from disks.stores.wrappers.wrapped import unwrapped
from oplog.errors import NotFound, UsageError
from tiering.config.disk_locations import bucket_at
from tiering.config.settings import Config, LimitsConfig

if TYPE_CHECKING:
    from disks.stores.s3.requests import ListedKey

SCHEME = "s3://"
_MOST_RANGE_BYTES = 32 * 1024 * 1024
_MOST_NAMED = 5
_SPECIAL = re.compile(r"[*?\[]")
_GLOB = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_MEANS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class BucketSources:
    """What the buckets of a configuration have, and those that only the environment knows."""

    def __init__(self, config: Config, limiter: Limiter | None = None) -> None:
        self._config = config
        self._limiter = limiter

    @property
    def limits(self) -> LimitsConfig:
        """What the configuration says of large inputs."""
        return self._config.limits

    def find(self, url: str) -> list[tuple[str, Callable[[], BucketFile]]]:
        """The objects that a URL or a glob of keys names, in the order of their keys, each with what opens it. A key
        that exists is meant, also where it looks like a pattern, as is the name of a file.

        Raises `NotFound` where there is none, and `UsageError` for an object that cannot be read; asks the bucket for
        globs only.
        """
        bucket, _, pattern = url.removeprefix(SCHEME).partition("/")
        if not bucket or not pattern:
            raise UsageError(f"{url} names no object", hint="write s3://bucket/key.parquet or s3://bucket/prefix/*.csv")
        if pattern.endswith("/"):
            raise UsageError(f"{url} is a prefix", hint=f"name its objects, such as '{url}*.parquet'")
        special = _SPECIAL.search(pattern)
        keys = self._matching(bucket, pattern, pattern[: special.start()]) if special else [pattern]
        if not keys:
            raise NotFound(
                f"no such object: {url}", hint="check the keys; quote globs, so that the shell does not expand them"
            )
        _check_keys(bucket, keys)
        return [(f"{SCHEME}{bucket}/{key}", partial(self._open, bucket, key)) for key in keys]

    def _matching(self, bucket: str, pattern: str, start: str) -> list[str]:
        """Every key that the glob means, also those of objects that cannot be read."""
        from disks.stores.s3.store import S3Store

        foreign: list[ListedKey] = []
        with self._store(bucket) as store:
            if isinstance(s3 := unwrapped(store), S3Store):
                s3.tell_foreign = foreign.append
            keys = {info.key for info in store.list(start)}
        # An empty object whose key ends in "/" is the marker of a directory, which consoles make.
        keys |= {one.key for one in foreign if one.size_bytes or not one.key.endswith("/")}
        if pattern in keys:
            return [pattern]
        try:
            matches = re.compile(_regular(pattern), re.DOTALL).fullmatch
        except re.error as error:
            raise UsageError(f"not a glob of keys: {pattern!r}: {error}", hint="quote `[` as `[[]`") from error
        return sorted(key for key in keys if matches(key))

    def _open(self, bucket: str, key: str) -> BucketFile:
        return BucketFile(self._store(bucket), key, f"{SCHEME}{bucket}/{key}")

    def _store(self, bucket: str) -> MeteredStore:
        """The whole bucket: a key is no URL, and no part of one."""
        return open_store(bucket_at(self._config, f"{SCHEME}{bucket}/"), limiter=self._limiter)


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
            raise UsageError(f"{self._label} was written again while it was read", hint="insert it again")

    def close(self) -> None:
        if not self.closed:
            self._store.close()
        super().close()

    def _bytes(self, start: int, stop: int) -> bytes:
        starts = range(start, stop, _MOST_RANGE_BYTES)
        return b"".join(self._store.get(self._key, ByteRange(at, min(at + _MOST_RANGE_BYTES, stop))) for at in starts)


def _check_keys(bucket: str, keys: Sequence[str]) -> None:
    """Raise `UsageError`, with their names, for keys by which objects cannot be read."""
    problems: list[str] = []
    for key in keys:
        try:
            check_key(key)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        more = f"; and {len(problems) - _MOST_NAMED:,} more" if len(problems) > _MOST_NAMED else ""
        raise UsageError(
            f"objects of {SCHEME}{bucket}/ cannot be read: {'; '.join(problems[:_MOST_NAMED])}{more}",
            hint="copy them to other keys, or name the objects that are meant without them",
        )


def _regular(pattern: str) -> str:
    """The glob as a regular expression: `*` stays within a segment of a key, `**` does not."""
    return "".join(_MEANS.get(piece) or _characters(piece) for piece in _GLOB.findall(pattern))


def _characters(piece: str) -> str:
    is_set = piece.startswith("[") and len(piece) > 1
    return piece.replace("\\", "\\\\").replace("[!", "[^", 1) if is_set else re.escape(piece)
