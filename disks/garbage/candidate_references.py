"""What a log names among objects that are in doubt already, without the table of all its files.

A collection asks its own log for everything, and the other logs of the prefix only of what that one does not name. The
bucket tells, from the newest snapshot below the oldest revision to keep on: rows and entries are read, proved to be
whole, and dropped; only files of the objects in doubt are followed from path to path. What the cached table names
besides counts as named. Where only a table tells, there is no answer, and it is read (`live_references`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from disks.contracts.bucket_disk import LoggedDisk
from disks.garbage.live_references import LiveReferences, Reach, ends_at, reach
from disks.object_disk.following import is_proved
from disks.object_disk.references import Inventory, is_set_aside, newest_at_or_below
from oplog import snapshot
from oplog.entry import GENESIS_DIGEST, Commit, Create, Link, Remove, Rename
from oplog.paths import ancestors


def references_among(
    disk: LoggedDisk, inventory: Inventory, doubtful: Collection[str], *, now: datetime, retention: timedelta
) -> LiveReferences | None:
    """The references of a disk, as `collect_references` reads them, with those keys alone that are doubtful. None where
    its table must be read. Raises as that does."""
    asked = reach(disk, inventory, now=now, retention=retention)
    start = newest_at_or_below(inventory.snapshots, min(asked.stops))
    if not all(revision in inventory.commits for revision in range(start + 1, inventory.head + 1)):
        return None
    disk.refresh()
    with disk.file_table.read() as view:
        if view.head()[0] < inventory.head or not is_proved(view.state()):
            return None
        named = {key for _, key in view.naming(doubtful)}
    past = _Past(disk, inventory, start, {key for key in doubtful if key not in named}, asked)
    missing = inventory.blobs.lacking(past)
    if past.unproved:
        return None
    if missing:
        with disk.file_table.read() as view:
            if any(not is_set_aside(path) for path, _ in view.naming(missing)):
                return None  # lost, or removed meanwhile: the table of that revision tells
    if not ends_at(disk, past.revision):
        return None
    asked.check(past.revision, disk.store.name)
    return LiveReferences(
        frozenset(named | past.named),
        asked.base,
        past.revision,
        past.digest,
        asked.pinned,
        asked.expired,
        frozenset({start}),
        asked.pins,
    )


class _Past:
    """The log from a snapshot on, gone through once."""

    def __init__(self, disk: LoggedDisk, inventory: Inventory, start: int, keys: set[str], asked: Reach) -> None:
        self.revision, self.digest = start, GENESIS_DIGEST
        self.named: set[str] = set()
        """Those of the wanted that a file has at one of the revisions that are kept."""
        self.unproved = False
        """No entry tells what the snapshot's files are."""
        self._log, self._head = disk.log, inventory.head
        self._log.listed(inventory.commits)
        self._wanted = keys
        self._stops = sorted({*asked.stops})
        self._base = asked.base
        self._files = _Files()

    def blobs(self) -> Iterator[tuple[str, int]]:
        """Every object with its size in bytes that a file had at the start, or was created with up to the revision that
        was listed. Reads on to the end of the log."""
        if self.revision:
            yield from self._snapshot()
        for entry in self._log.entries(after=self.revision, previous=self.digest):
            self._stop_before(entry.commit.revision)
            self.revision, self.digest = entry.commit.revision, entry.digest
            yield from self._created(entry.commit)
        self._stop_before(self.revision + 1)

    def _snapshot(self) -> Iterator[tuple[str, int]]:
        confirmed = snapshot.read_confirmed(self._log, self.revision, safe=False)
        self.unproved, self.digest = not confirmed.is_proved, confirmed.header.digest
        wanted = self._wanted
        for row in confirmed.rows:
            if (key := row.key) is None:
                continue
            if key in wanted:
                self._files.add(row.path, key)
            if not row.more:
                yield key, row.size_bytes
                continue
            for part, size_bytes in row.blobs:
                if part in wanted:
                    self.named.add(part)  # such files are never shared
                yield part, size_bytes

    def _stop_before(self, revision: int) -> None:
        while self._stops and self._stops[0] < revision:
            self.named.update(self._files.keys())
            del self._stops[0]

    def _created(self, commit: Commit) -> Iterator[tuple[str, int]]:
        """Apply the commit to the files that are followed."""
        wanted, listed, kept = self._wanted, self.revision <= self._head, self.revision > self._base
        for one in commit.operations:
            if isinstance(one, Create):
                if (key := one.key) in wanted:
                    assert key is not None
                    self._files.add(one.path, key)
                    if kept:
                        self.named.add(key)
                if listed and key is not None:
                    yield key, one.size_bytes
            elif self._files:
                self._follow(one)

    def _follow(self, operation: Link | Rename | Remove) -> None:
        match operation:
            case Link(source=source, target=target):
                self._files.put(target, source, self._files.at(source))
            case Rename(source=source, target=target):
                self._files.put(target, source, self._files.take(source))
            case Remove(path=path):
                self._files.take(path)


class _Files:
    """Paths with their objects, and what lies below each directory."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}
        self._below: defaultdict[str, set[str]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> Collection[str]:
        return self._keys.values()

    def add(self, path: str, key: str) -> None:
        self._keys[path] = key
        for directory in ancestors(path):
            self._below[directory].add(path)

    def at(self, path: str) -> list[tuple[str, str]]:
        """The file of this path, and all below it."""
        found = [(path, self._keys[path])] if path in self._keys else []
        return [*found, *((below, self._keys[below]) for below in self._below.get(path, ()))]

    def take(self, path: str) -> list[tuple[str, str]]:
        """The same; they are not there any more."""
        taken = self.at(path)
        for gone, _ in taken:
            del self._keys[gone]
            for directory in ancestors(gone):
                self._below[directory].discard(gone)
        return taken

    def put(self, target: str, source: str, files: list[tuple[str, str]]) -> None:
        """Add them, as they were below `source`, below `target`."""
        for path, key in files:
            self.add(target + path[len(source) :], key)
