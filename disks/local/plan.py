"""What a local transaction will do to the directory tree: ordered operations turned into steps that can be repeated.

Operations are checked one after the other against the tree as the ones before leave it, without touching it. What
remains is a record of two lists: moves of what is there now, each known by its inode so that a step done before is
recognised, and then staged files that take their final paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec

from oplog import paths
from oplog.documents import Document
from oplog.errors import Conflict


class LocalRename(msgspec.Struct, frozen=True, array_like=True):
    """What has this inode at `source` goes to `target`, or away when that is None."""

    source: str
    target: str | None
    inode: int


class LocalArrival(msgspec.Struct, frozen=True, array_like=True):
    """The staged file of this number takes its path."""

    number: int
    path: str


class CommitRecord(msgspec.Struct, frozen=True):
    """A committed transaction, as written before its commit point."""

    kind: str
    reason: str
    moves: tuple[LocalRename, ...]
    arrivals: tuple[LocalArrival, ...]

    def moved_paths(self) -> Iterator[str]:
        """All that it touches, but for where staged files arrive."""
        for move in self.moves:
            yield move.source
            if move.target is not None:
                yield move.target


commit_record = Document("record of a transaction on a local disk", CommitRecord)


def has_chains(moves: tuple[LocalRename, ...]) -> bool:
    """Whether one move touches the names of another. Then an inode found at a source does not prove that the move has
    not been done: it may have come back there."""
    names = sorted(f"{name}/" for move in moves for name in (move.source, move.target) if name is not None)
    return any(after.startswith(before) for before, after in pairwise(names))


class VisibleFiles(Protocol):
    """What the plan asks of the disk: the files visible now."""

    def is_file(self, path: str) -> bool:
        """Whether a visible file has this path."""

    def files(self, directory: str) -> Iterator[str]:
        """Visible files below the directory."""

    def inode(self, path: str) -> int | None:
        """The inode of the file or directory; None when there is none."""

    def absolute(self, path: str) -> Path:
        """Where the path is in the file system."""


class CommitPlan:
    """The tree as it will be: the tree as it is, with moves and arrivals on top."""

    def __init__(self, tree: VisibleFiles) -> None:
        self._tree = tree
        self._moves: list[LocalRename] = []
        self._removed: set[str] | None = set()
        """The sources of all moves while each is a removal, so that thousands of them stay cheap; then None."""
        self._landed: set[str] = set()
        """Where everything that was renamed lies now: also below a directory that was renamed after it."""
        self._arrivals: dict[str, int] = {}
        self._above: set[str] | None = set()
        """The directories above the arrivals, so that thousands stay cheap; None where they must be read again."""

    def record(self, kind: str, reason: str) -> CommitRecord:
        """The steps so far."""
        arrivals = tuple(LocalArrival(number, path) for path, number in sorted(self._arrivals.items()))
        return CommitRecord(kind, reason, tuple(self._moves), arrivals)

    def exists(self, path: str) -> bool:
        """Whether a file or directory will have this path."""
        return self._arriving(path) or self._moving(path)

    def staged_number(self, path: str) -> int | None:
        """The number of the staged file that arrives at this path."""
        return self._arrivals.get(path)

    def present_file(self, path: str) -> Path | None:
        """Where the bytes of the file that will have this path are now, if they are in the tree already."""
        present = self.present_path(path)
        return self._tree.absolute(present) if present is not None and self._tree.is_file(present) else None

    def present_path(self, path: str) -> str | None:
        """Where the file or directory that will have this path is now; None when it is not in the tree yet."""
        if self._removed is not None:
            return None if self._is_removed(path) else path
        for move in reversed(self._moves):
            if move.target is not None and _within(path, move.target):
                path = move.source + path[len(move.target) :]
            elif _within(path, move.source):
                return None
        return path

    def create(self, number: int, path: str) -> None:
        """A staged file arrives. Raises `Conflict` when the path is taken."""
        self._check_free(path)
        self._arrivals[path] = number
        if self._above is not None:
            self._above.update(paths.ancestors(path))

    def rename(self, source: str, target: str) -> None:
        """Raises `Conflict` when there is no source, or the target is taken."""
        self._check_exists(source)
        self._check_free(target)
        present = self._moving(source)
        self._above = None
        self._arrivals = {
            target + path[len(source) :] if _within(path, source) else path: number
            for path, number in self._arrivals.items()
        }
        if present:
            self._move(source, target)

    def remove(self, path: str) -> None:
        """Raises `Conflict` when there is nothing."""
        present = self._moving(path)
        if not present and not self._arriving(path):
            raise Conflict(f"{path} does not exist")
        if self._arriving(path):
            self._above = None
            self._arrivals = {name: number for name, number in self._arrivals.items() if not _within(name, path)}
        if present:
            self._move(path, None)

    def require(self, present: list[str], absent: list[str]) -> None:
        """Raises `Conflict` naming the first path that is not as required."""
        for path in present:
            if not self.exists(path):
                raise Conflict(f"{path} is gone: another writer changed it first", hint="run the command again")
        for path in absent:
            if self.exists(path):
                raise Conflict(f"{path} exists already: another writer created it first", hint="run the command again")

    def _move(self, source: str, target: str | None) -> None:
        """Move the directory as a whole; where it is only made of things that moved in, move those."""
        for root in self._roots(source):
            present = self.present_path(root)
            inode = None if present is None else self._tree.inode(present)
            if inode is not None:
                goal = None if target is None else target + root[len(source) :]
                self._moves.append(LocalRename(root, goal, inode))
                after = (_after(place, root, goal) for place in self._landed)
                self._landed = {place for place in (*after, goal) if place is not None}
                if target is not None:
                    self._removed = None
                elif self._removed is not None:
                    self._removed.add(root)

    def _is_removed(self, path: str) -> bool:
        removed = self._removed
        while removed and path:
            if path in removed:
                return True
            path = path.rpartition("/")[0]
        return False

    def _roots(self, path: str) -> list[str]:
        if self._removed is not None:
            return [path]
        inside = (place for place in self._landed if place.startswith(f"{path}/"))
        return [path, *sorted(inside, key=len)]  # a directory before what is in it, which goes with it

    def _arriving(self, path: str) -> bool:
        if self._above is None:
            self._above = {above for name in self._arrivals for above in paths.ancestors(name)}
        return path in self._arrivals or path in self._above

    def _moving(self, path: str) -> bool:
        """Whether something that is in the tree now will be at or below this path."""
        for root in self._roots(path):
            present = self.present_path(root)
            if present is None:
                continue
            if self._tree.inode(present) is None:
                continue
            if self._tree.is_file(present):
                return True
            for file in self._tree.files(present):
                future = self._future_path(file)
                if future is not None and _within(future, path):
                    return True
        return False

    def _future_path(self, path: str) -> str | None:
        if self._removed is not None:
            return None if self._is_removed(path) else path
        future: str | None = path
        for move in self._moves:
            if future is not None:
                future = _after(future, move.source, move.target)
        return future

    def _is_file(self, path: str) -> bool:
        present = self.present_path(path)
        return path in self._arrivals or (present is not None and self._tree.is_file(present))

    def _check_exists(self, path: str) -> None:
        if not self.exists(path):
            raise Conflict(f"{path} does not exist")

    def _check_free(self, path: str) -> None:
        if self.exists(path):
            raise Conflict(f"{path} exists already")
        for directory in paths.ancestors(path):
            if self._above is not None and directory in self._above:
                continue  # something arrives below it: it was looked at then, and nothing takes its place
            if self._is_file(directory):
                raise Conflict(f"{path} cannot exist: {directory} is a file")


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def _after(path: str, source: str, target: str | None) -> str | None:
    """Where the path is once `source` has become `target`, or is removed."""
    if not _within(path, source):
        return path
    return None if target is None else target + path[len(source) :]
