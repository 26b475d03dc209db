"""Marks: what tells the other logs of a prefix that this one uses objects. Kept elsewhere, and set by transactions.

    before the first byte        a set with its first mark: the keys of all its objects
    before the log entry         marks of sets that are there already: a link, a rename, what is taken over
    after the entry is durable   marks that no file of their directory needs any more go

So whatever dies, and whenever, there is a mark too many and never one too few. Who deletes anything asks for marks; no
verb knows of them.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from disks.file_table.blob_sets import BlobMarks, BlobReference, NewSet
from oplog.entry import Create, Link, Operation, Remove, Rename
from oplog.errors import FrostlineError, Transient
from oplog.replay import FileRow, ReplayTable
from oplog.revision import blob_key

logger = logging.getLogger(__name__)


class LateMarks:
    """Marks that are opened with their first use."""

    def __init__(self, opened: Callable[[], BlobMarks]) -> None:
        self._open = opened
        self._marks: BlobMarks | None = None
        self._lock = threading.Lock()

    def _opened(self) -> BlobMarks:
        with self._lock:
            if self._marks is None:
                self._marks = self._open()
            return self._marks

    def create(self, sets: Sequence[NewSet]) -> None:
        self._opened().create(sets)

    def add(self, references: Collection[BlobReference]) -> None:
        self._opened().add(references)

    def missing(self, references: Collection[BlobReference], log: str | None = None) -> Collection[BlobReference]:
        return self._opened().missing(references, log)

    def seen(self, references: Collection[BlobReference]) -> Mapping[BlobReference, int]:
        return self._opened().seen(references)

    def remove(self, seen: Mapping[BlobReference, int]) -> None:
        self._opened().remove(seen)


class Marking:
    """What one transaction does with marks. `reserve` and `take` from several threads, the rest from one."""

    def __init__(self, marks: BlobMarks) -> None:
        self._marks = marks
        self._reserved: dict[str, tuple[str, str]] = {}
        """Path -> the key and the set of what is uploaded for it."""
        self._made: set[BlobReference] = set()
        """Sets that are this transaction's: nobody else can have marked them."""
        self._held: set[BlobReference] = set()
        """Sets of others that it has marked."""
        self._arrived: dict[BlobReference, list[str]] = defaultdict(list)
        """What is in the bucket already, for sets that are made before the commit looks at it."""
        self._old: set[BlobReference] = set()
        self._ended: Mapping[BlobReference, int] = {}

    def reserve(self, paths: Iterable[str], revision: int) -> None:
        """Make a set for the files of each directory: all in one request, if they are not too many."""
        by_directory: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            by_directory[directory_of(path)].append(path)
        sets = []
        reserved: dict[str, tuple[str, str]] = {}
        for directory, files in by_directory.items():
            name = secrets.token_hex(16)
            keys = tuple(blob_key(revision + 1) for _ in files)
            reserved.update({path: (key, name) for path, key in zip(files, keys, strict=True)})
            sets.append(NewSet(name, keys, directory))
        self._create(sets)
        self._reserved.update(reserved)

    def take(self, path: str, revision: int) -> tuple[str, str]:
        """The key and the set of the object that is uploaded for the path now. One that nobody reserved is a set."""
        if path not in self._reserved:
            self.reserve([path], revision)
        return self._reserved.pop(path)

    def arrived(self, path: str, key: str, blob_set: str) -> None:
        """Another process uploaded it, or copied it: its set is made before the commit looks at the object."""
        self._arrived[BlobReference(blob_set, directory_of(path))].append(key)

    def mark(self, references: Collection[BlobReference]) -> None:
        """Mark sets of others now, before the caller looks at their objects. Raises `NotFound`."""
        self._marks.add(references)
        self._held.update(references)

    def begin(self) -> None:
        """The commit begins."""
        sets = [NewSet(one.blob_set, tuple(keys), one.directory) for one, keys in self._arrived.items()]
        self._create(sets)
        self._arrived.clear()

    def _create(self, sets: Sequence[NewSet]) -> None:
        references = {one.reference for one in sets}
        try:
            if sets:
                self._marks.create(sets)
        except Transient:  # nothing was sent
            raise
        except BaseException:
            self._made |= references
            raise
        self._made |= references

    def look(self, table: ReplayTable, operations: Iterable[Operation]) -> None:
        """See what the operations take away; before they are applied."""
        self._old = set()
        for operation in operations:
            if isinstance(operation, Remove | Rename):
                path = operation.source if isinstance(operation, Rename) else operation.path
                self._old.update(_references(_rows(table, path)))

    def hold(self, table: ReplayTable, operations: Iterable[Operation]) -> None:
        """Mark what the operations have brought, and see the marks that they have ended; before the entry is put, with
        every attempt again. Raises `NotFound` when a set is gone."""
        coming: set[BlobReference] = set()
        for operation in operations:
            match operation:
                case Create(path=path) | Link(target=path) | Rename(target=path):
                    coming.update(_references(_rows(table, path)))
        if new := coming - self._made - self._held:
            self._marks.add(new)
        self._ended = {}
        if ended := {one for one in self._old | self._made | self._held if not names(table, one)}:
            try:
                self._ended = self._marks.seen(ended)
            except FrostlineError as error:
                _left(error)

    def end(self) -> None:
        """The entry is durable: what it ended goes. Where nobody answers, an audit finds it."""
        self._made.clear()
        self._take_away(self._ended)

    def abandon(self) -> None:
        """Nothing was committed, and nothing will be."""
        if self._made:
            try:
                self._take_away(self._marks.seen(self._made))
            except FrostlineError as error:
                _left(error)
        self._made.clear()

    def leave(self) -> None:
        """Nobody knows what was committed: all marks stay."""
        self._made.clear()

    def _take_away(self, seen: Mapping[BlobReference, int]) -> None:
        try:
            if seen:
                self._marks.remove(seen)
        except FrostlineError as error:
            _left(error)


def names(table: ReplayTable, reference: BlobReference) -> bool:
    """Whether a file of the directory is of the set."""
    return any(one == reference for one in _references(_rows(table, reference.directory)))


def directory_of(path: str) -> str:
    """Where the file lies."""
    return path.rpartition("/")[0]


def _rows(table: ReplayTable, path: str) -> Iterable[FileRow]:
    file = table.get(path)
    return [file] if file is not None else table.rows(path)


def _references(rows: Iterable[FileRow]) -> Iterable[BlobReference]:
    return (BlobReference(row.blob_set, directory_of(row.path)) for row in rows if row.key and row.blob_set is not None)


def _left(error: FrostlineError) -> None:
    logger.warning("marks of removed files stay until the next audit: %s", error.message)
