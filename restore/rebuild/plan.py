"""What a restore would change: pure functions over file tables. No I/O, no clock.

A file table is a series of (path, file) in path order. Two files are the same when size, SHA-256 and blob are; the
revision that made a path does not count, for a restore makes paths again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from oplog.replay import FileRow
from tiering.table.paths import is_reservation

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


class TableDifference(msgspec.Struct, frozen=True):
    """How two file tables differ within a scope. A path whose file changed counts as created and as removed."""

    created: tuple[str, ...]
    """In path order; empty when only the counts were asked for."""
    removed: tuple[str, ...]
    unchanged: int
    created_files: int
    removed_files: int

    @property
    def empty(self) -> bool:
        return not self.created_files and not self.removed_files


class MissingObject(msgspec.Struct, frozen=True):
    """A blob the wanted table names and the bucket does not hold (`found_bytes` None), or not with its size."""

    key: str
    path: str
    size_bytes: int
    found_bytes: int | None = None

    def document(self) -> dict[str, object]:
        """The JSON of the command line."""
        return {"object": self.key, "path": self.path, "bytes": self.size_bytes, "found_bytes": self.found_bytes}


def by_path(rows: Iterable[FileRow]) -> Iterator[tuple[str, FileRow]]:
    """Rows of a table as the pure functions take them."""
    return ((row.path, row) for row in rows)


def in_scope(path: str, scope: Sequence[str] | None) -> bool:
    """Whether the path is one of the scope's directories or files, or lies below one. None is everything."""
    if scope is None:
        return True
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in (entry.rstrip("/") for entry in scope))


FROZEN = "shadow/"
"""Below it lie hard links that keep files as they were: a backup, or ClickHouse's FREEZE."""


def leaves_frozen(scope: Sequence[str] | None) -> Callable[[str], bool]:
    """Which files may go: what somebody froze stays, whatever the rest of the disk goes back to, unless it is asked for
    by name."""
    if scope is not None and any(entry.startswith(FROZEN.rstrip("/")) for entry in scope):
        return lambda path: True
    return lambda path: not path.startswith(FROZEN)


def same_file(file: StoredFile, other: StoredFile) -> bool:
    """Whether both are the same bytes held the same way."""
    return (file.size_bytes, file.sha256, file.blobs, file.blob_set) == (
        other.size_bytes,
        other.sha256,
        other.blobs,
        other.blob_set,
    )


def matched(
    current: Iterable[tuple[str, Row]], target: Iterable[tuple[str, Row]]
) -> Iterator[tuple[str, Row | None, Row | None]]:
    """Every path of two tables with its file in each, in path order. Both come in path order and are read in step, so
    tables of any size take no memory."""
    left, right = iter(current), iter(target)
    old, new = next(left, None), next(right, None)
    while old is not None and new is not None:
        if old[0] == new[0]:
            yield old[0], old[1], new[1]
            old, new = next(left, None), next(right, None)
        elif old[0] < new[0]:
            yield old[0], old[1], None
            old = next(left, None)
        else:
            yield new[0], None, new[1]
            new = next(right, None)
    while old is not None:
        yield old[0], old[1], None
        old = next(left, None)
    while new is not None:
        yield new[0], None, new[1]
        new = next(right, None)


def compare(
    current: Iterable[tuple[str, Row]],
    target: Iterable[tuple[str, Row]],
    scope: Sequence[str] | None = None,
    *,
    paths: bool = True,
    same: Callable[[Row, Row], bool] | None = None,
    goes: Callable[[str], bool] | None = None,
) -> TableDifference:
    """What turns `current` into `target` within the scope: first everything removed, then everything created.

    Both tables come in path order. Files go one by one, never with their directory: a file that another writer adds
    meanwhile is not swept away. Without `paths` they are only counted. `same` says whether the file there will do, by
    default when it is held the same way; `goes` whether a file that the target lacks is removed, by default always.
    """
    same = same or same_file
    created: list[str] = []
    removed: list[str] = []
    unchanged = created_files = removed_files = 0
    for path, there, file in matched(current, target):
        if scope is not None and not in_scope(path, scope):
            continue
        if there is not None and file is not None and same(there, file):
            unchanged += 1
            continue
        if file is None and goes is not None and not goes(path):
            continue
        if file is not None:
            created_files += 1
            if paths:
                created.append(path)
        if there is not None:
            removed_files += 1
            if paths:
                removed.append(path)
    return TableDifference(tuple(created), tuple(removed), unchanged, created_files, removed_files)


def kept_reservations(newest: Iterable[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
    """What the newest table says of names that were given (`is_reservation`), also to parts of tables that are gone.

    Who took a range goes on numbering parts in it: a restore that freed it would let two machines give one name.
    """
    return ((path, file) for path, file in newest if is_reservation(path))


def lost_objects(blobs: Iterable[tuple[str, int, str]], listed: Iterable[tuple[str, int]]) -> Iterator[MissingObject]:
    """The blobs (key, size, path) that a listing (key, size) does not prove to exist. Both come in key order."""
    listing = iter(listed)
    there = next(listing, None)
    for key, size_bytes, path in blobs:
        while there is not None and there[0] < key:
            there = next(listing, None)
        found = there[1] if there is not None and there[0] == key else None
        if found != size_bytes:
            yield MissingObject(key, path, size_bytes, found)


def with_paths(
    sizes: Mapping[str, int | None], rows: Iterable[FileRow], scope: Sequence[str] | None
) -> list[MissingObject]:
    """The files of the scope whose objects are lost (`sizes` has None for them) or have another size than they should:
    in the order of the rows."""
    return [
        MissingObject(key, row.path, size_bytes, sizes[key])
        for row in (rows if sizes else ())
        if in_scope(row.path, scope)
        for key, size_bytes in row.blobs
        if key in sizes and sizes[key] != size_bytes
    ]


def missing_objects(
    files: Mapping[str, StoredFile], sizes: Mapping[str, int], scope: Sequence[str] | None = None
) -> tuple[MissingObject, ...]:
    """The blobs within the scope that the listing (`sizes`: key -> bytes) does not prove to exist with their size."""
    missing = [
        MissingObject(key, path, size_bytes, sizes.get(key))
        for path, file in files.items()
        for key, size_bytes in file.blobs
        if sizes.get(key) != size_bytes and in_scope(path, scope)
    ]
    return tuple(sorted(missing, key=lambda entry: entry.path))


class Tally:
    """What a table holds within a scope, counted while its rows go by in path order."""

    def __init__(self, scope: Sequence[str] | None = None) -> None:
        self.files = 0
        self.bytes = 0
        self._scope = scope
        self._state = hashlib.sha256()

    def counting(self, table: Iterable[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
        """The same rows, counted."""
        for path, file in table:
            if self._scope is None or in_scope(path, self._scope):
                self.files += 1
                self.bytes += file.size_bytes
                keys = file.key or "" if len(file.blobs) < 2 else " ".join(key for key, _ in file.blobs)
                line = f"{path}\0{file.size_bytes}\0{file.sha256 or ''}\0{keys}\0{file.blob_set or ''}\n"
                self._state.update(line.encode())
            yield path, file

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over every path with its size, SHA-256 and blobs: equal tables have equal digests."""
        return self._state.hexdigest()


def table_digest(table: Mapping[str, StoredFile], scope: Sequence[str] | None = None) -> str:
    """The digest of a table that fits in memory."""
    tally = Tally(scope)
    for _ in tally.counting(sorted(table.items())):
        pass
    return tally.digest
