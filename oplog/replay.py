"""Applying commits to a file table: the one meaning of create, link, rename and remove. Pure; no I/O of its own.

`apply` trusts the commit (its writer checked it) and is what a rebuild uses; `execute` checks every rule first and is
what a writer uses. Both raise `Conflict` and may leave the table half changed: callers work in a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Protocol

import msgspec

from oplog import paths
from oplog.entry import Commit, Create, Link, Operation, Remove, Rename
from oplog.errors import Conflict, Damaged


class FileRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One file of the table. `revision` is the commit that gave the file this path.

    The bytes are the object `key` and those of `more`, one after the other, or `inline`. In format 2 a file has one
    object at most and its digest is known; files that ClickHouse wrote need the rest.
    """

    path: str
    size_bytes: int
    sha256: str
    """Hex digest of the whole file; empty when nobody knows it."""
    key: str | None
    inline: bytes | None
    blob_set: str | None
    """On a disk that ClickHouse wrote: what the hard links of an empty file without an object have in common."""
    revision: int
    more: tuple[tuple[str, int], ...] = ()
    """The objects after the first, with their sizes in bytes."""
    read_only: bool = False
    """ClickHouse's flag of a frozen file: its bytes are never added to. Kept for an export; it changes nothing here."""

    @property
    def blobs(self) -> tuple[tuple[str, int], ...]:
        """Every object with its size in bytes, in the order of the file."""
        if self.key is None:
            return ()
        if not self.more:
            return ((self.key, self.size_bytes),)
        return (self.key, self.size_bytes - sum(size for _, size in self.more)), *self.more

    def at(self, path: str, revision: int) -> FileRow:
        """The same bytes under another path."""
        return msgspec.structs.replace(self, path=path, revision=revision)


class ReplayTable(Protocol):
    """What a file table offers to replay: a map from path to row, in path order."""

    def get(self, path: str) -> FileRow | None:
        """The file of this path."""

    def exists(self, path: str) -> bool:
        """Whether a file has this path or lies below it."""

    def insert(self, rows: Sequence[FileRow]) -> None:
        """Add files. Raises `Conflict` when a path is taken."""

    def rename(self, source: str, target: str, revision: int) -> int:
        """Move a file, or all files below a directory; how many. Raises `Conflict` when a target is taken."""

    def remove(self, path: str) -> int:
        """Take a file, or all files below a directory, out of the table; how many."""

    def rows(self, directory: str = "") -> Iterator[FileRow]:
        """The files below the directory, in path order."""


def check_preconditions(table: ReplayTable, commit: Commit) -> None:
    """Raise `Conflict` naming the first path that is not as the commit requires."""
    for path in commit.present:
        if not table.exists(path):
            raise Conflict(f"{path} is gone: another writer changed it first", hint="run the command again")
    for path in commit.absent:
        if table.exists(path):
            raise Conflict(f"{path} exists already: another writer created it first", hint="run the command again")


def execute(table: ReplayTable, commit: Commit) -> None:
    """Check the preconditions and every operation, and apply them in order. Raises `Conflict`."""
    check_preconditions(table, commit)
    empty = frozenset(commit.absent)
    for are_new, operations in groupby(commit.operations, lambda operation: isinstance(operation, Create)):
        if are_new:
            created = [operation for operation in operations if isinstance(operation, Create)]
            _check_new(table, [operation.path for operation in created], empty)
            table.insert([_row(operation, commit.revision) for operation in created])
        else:
            for operation in operations:
                _check_operation(table, operation)
                _apply_others(table, operation, commit)
        empty = frozenset()  # from here on the preconditions say nothing any more


def apply(table: ReplayTable, commit: Commit) -> None:
    """Apply a commit of the log, in which every path is checked for safety. Raises `Damaged` when it does not fit."""
    created: list[FileRow] = []
    try:
        for operation in commit.operations:
            _check_paths(operation, commit)
            if isinstance(operation, Create):
                created.append(_row(operation, commit.revision))
                continue
            if created:
                table.insert(created)
                created = []
            _apply_others(table, operation, commit)
        if created:
            table.insert(created)
    except Conflict as error:
        raise Damaged(
            f"log entry {commit.revision} does not fit the entries before it: {error.message}",
            hint="run 'frostline fsck' on the disk",
        ) from error


class ChangedPath(msgspec.Struct, frozen=True):
    """One path that differs between two tables: `before` is None for an added file, `after` for a removed one."""

    path: str
    before: FileRow | None
    after: FileRow | None


class Rows(Protocol):
    """What can be read in path order."""

    def rows(self, directory: str = "") -> Iterator[FileRow]:
        """The files below the directory, in path order."""


def diff(before: Rows, after: Rows) -> Iterator[ChangedPath]:
    """The paths whose bytes (size, digest, blob) differ, in path order. Both tables are read once, in step."""
    left, right = before.rows(), after.rows()
    one, two = next(left, None), next(right, None)
    while one is not None or two is not None:
        if two is None or (one is not None and one.path.encode() < two.path.encode()):
            assert one is not None
            yield ChangedPath(one.path, one, None)
            one = next(left, None)
        elif one is None or two.path.encode() < one.path.encode():
            yield ChangedPath(two.path, None, two)
            two = next(right, None)
        else:
            if (one.size_bytes, one.sha256, one.blobs) != (two.size_bytes, two.sha256, two.blobs):
                yield ChangedPath(one.path, one, two)
            one, two = next(left, None), next(right, None)


def _row(operation: Create, revision: int) -> FileRow:
    return FileRow(
        operation.path,
        operation.size_bytes,
        operation.sha256,
        operation.key,
        operation.inline,
        operation.blob_set,
        revision,
    )


def _apply_others(table: ReplayTable, operation: Operation, commit: Commit) -> None:
    match operation:
        case Link(source=source, target=target):
            row = table.get(source)
            if row is None:
                raise Conflict(f"{source} does not exist")
            table.insert([row.at(target, commit.revision)])
        case Rename(source=source, target=target):
            if not table.rename(source, target, commit.revision):
                raise Conflict(f"{source} does not exist")
        case Remove(path=path):
            if not table.remove(path):
                raise Conflict(f"{path} does not exist")


def _check_operation(table: ReplayTable, operation: Operation) -> None:
    match operation:
        case Link(source=source, target=target):
            if table.get(source) is None:
                raise Conflict(f"{source} does not exist")
            _check_new(table, [target])
        case Rename(source=source, target=target):
            if not table.exists(source):
                raise Conflict(f"{source} does not exist")
            _check_new(table, [target])
        case Remove(path=path):
            if not table.exists(path):
                raise Conflict(f"{path} does not exist")


def _check_new(table: ReplayTable, new: Sequence[str], empty: frozenset[str] = frozenset()) -> None:
    """Raise `Conflict` unless files may get these paths, together. The table is asked nothing about what is at or below
    the directories that are `empty`, and once about every directory above: a commit may create thousands of files."""
    files: set[str] = set()
    directories: dict[str, bool] = {}
    """With whether nothing is below: the directory, or one above it, is empty."""

    def enter(directory: str, path: str) -> bool:
        known = directories.get(directory)
        if known is None:
            above = directory.rpartition("/")[0]
            known = (enter(above, path) if above else False) or directory in empty
            if directory in files or (not known and table.get(directory) is not None):
                raise Conflict(f"{path} cannot exist: {directory} is a file")
            directories[directory] = known
        return known

    for path in new:
        above = path.rpartition("/")[0]
        inside = enter(above, path) if above else False
        if path in files or path in directories or (not inside and table.exists(path)):
            raise Conflict(f"{path} exists already")
        files.add(path)


def _check_paths(operation: Operation, commit: Commit) -> None:
    match operation:
        case Create(path=path) | Remove(path=path):
            named: tuple[str, ...] = (path,)
        case Link(source=source, target=target) | Rename(source=source, target=target):
            named = (source, target)
    for path in named:
        if not paths.is_safe(path):
            raise Damaged(
                f"log entry {commit.revision} names an unsafe path: {path!r}",
                hint="something other than Frostline changed the bucket",
            )
