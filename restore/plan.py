"""What a restore would change: pure functions over file tables. No I/O, no clock.

A file table is a mapping path -> file. Two files are the same when size, SHA-256 and blob are; the revision that made
a path does not count, for a restore makes paths anew.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

_RESERVATION = re.compile(r"/blocks-\d+\.json\Z")
Row = TypeVar("Row", bound="StoredFile")


class StoredFile(Protocol):
    """What a file table knows of one file."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def sha256(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def inline(self) -> bytes | None: ...
    @property
    def blob_set(self) -> str | None: ...
    @property
    def blobs(self) -> tuple[tuple[str, int], ...]: ...


@dataclass(frozen=True, slots=True)
class Difference:
    """How two file tables differ within a scope, in path order. A path whose file changed is in both tuples."""

    created: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int

    @property
    def empty(self) -> bool:
        return not self.created and not self.removed


@dataclass(frozen=True, slots=True)
class MissingObject:
    """A blob the wanted table names and the bucket does not hold (`found_bytes` None), or not with its size."""

    key: str
    path: str
    size_bytes: int
    found_bytes: int | None = None


def in_scope(path: str, scope: Sequence[str] | None) -> bool:
    """Whether the path is one of the scope's directories or files, or lies below one. None is everything."""
    if scope is None:
        return True
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in (entry.rstrip("/") for entry in scope))


def same_file(one: StoredFile, other: StoredFile) -> bool:
    """Whether both are the same bytes held the same way."""
    return (one.size_bytes, one.sha256, one.blobs, one.blob_set) == (
        other.size_bytes,
        other.sha256,
        other.blobs,
        other.blob_set,
    )


def compare(
    current: Mapping[str, StoredFile], wanted: Mapping[str, StoredFile], scope: Sequence[str] | None = None
) -> Difference:
    """What turns `current` into `wanted` within the scope: first everything removed, then everything created.

    Files go one by one, never with their directory: a file that another writer adds meanwhile is not swept away.
    """
    created, unchanged = [], 0
    for path, file in wanted.items():
        if not in_scope(path, scope):
            continue
        there = current.get(path)
        if there is not None and same_file(there, file):
            unchanged += 1
        else:
            created.append(path)
    changed = set(created)
    removed = [path for path in current if (path in changed or path not in wanted) and in_scope(path, scope)]
    return Difference(tuple(sorted(created)), tuple(sorted(removed)), unchanged)


def with_reservations(wanted: Mapping[str, Row], newest: Mapping[str, Row]) -> dict[str, Row]:
    """The wanted table with every range of block numbers (`blocks-<n>.json`) that was taken since in its tables.

    Who took a range goes on numbering parts in it: a restore that freed it would let two machines give one name.
    """
    kept = {
        path: file
        for path, file in newest.items()
        if (match := _RESERVATION.search(path)) and f"{path[: match.start()]}/table.json" in wanted
    }
    return {**wanted, **kept}


def missing_objects(
    wanted: Mapping[str, StoredFile], sizes: Mapping[str, int], scope: Sequence[str] | None = None
) -> tuple[MissingObject, ...]:
    """The blobs within the scope that the listing (`sizes`: key -> bytes) does not prove to exist with their size."""
    missing = [
        MissingObject(key, path, size_bytes, sizes.get(key))
        for path, file in wanted.items()
        for key, size_bytes in file.blobs
        if sizes.get(key) != size_bytes and in_scope(path, scope)
    ]
    return tuple(sorted(missing, key=lambda entry: entry.path))


def table_digest(table: Mapping[str, StoredFile], scope: Sequence[str] | None = None) -> str:
    """SHA-256 (hex) over every path with its size, SHA-256 and blob: equal tables have equal digests."""
    state = hashlib.sha256()
    for path in sorted(table):
        if not in_scope(path, scope):
            continue
        file = table[path]
        keys = " ".join(key for key, _ in file.blobs)
        fields = (path, str(file.size_bytes), file.sha256 or "", keys, file.blob_set or "")
        state.update("\0".join(fields).encode())
        state.update(b"\n")
    return state.hexdigest()
