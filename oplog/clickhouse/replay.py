"""Replay of a ClickHouse log (format 1) into the tree of files it describes. Pure; the counterpart of `oplog.replay`.

As ClickHouse's own restore did it: a file appears at the path its object names, a rename moves what is there, a hard
link adds a path to the same inode, and an operation whose source is not there does nothing. With three differences:
* Files and operations are replayed together in the order they were written, not files first. A later file that names
  the path of an earlier one is then not swept up by the earlier one's rename.
* Blobs are joined to one file only where ClickHouse appends (`may_append`); elsewhere the newer one counts, and both
  are reported.
* Deletions are not in the log, but a part is renamed to `delete_tmp_…` before it is deleted: what lies there is gone.

A hard link whose source is not there leaves a mark, so that a part that lacks a file for it can be named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from oplog import paths
from oplog.clickhouse.directory import Directory, Inode, holds_files, merge, walk
from oplog.clickhouse.names import FILE, HARDLINK, RENAME, SHADOW_LINK, LogObject

DELETING = "delete_tmp_"
LOST = "tmp_lost_"
"""Before the name of a temporary directory that an earlier run of the server filled and a later one uses again."""
STAGING = "tmp_frostline_"
"""What a directory at the disk's root begins with in which a transaction of ours collects its new files."""
_UNLINKED = re.compile(r"(?:.*/)?tmp_(?:move|replace)_from_[^/]+/(?:metadata_version|txn_version)\.txt\Z", re.DOTALL)
"""What a server links into the copy of a part for another table with all the rest, and removes at once."""
_PART = re.compile(r"[^/]+_\d+_\d+_\d+(?:_\d+)?\Z", re.ASCII)
"""A part's directory, also with a prefix such as `tmp_insert_`."""
_REWRITTEN = re.compile(r"(?:format_version|mutation_\d+|tmp_mutation_\d+|metadata_version)\.txt\Z|sizes\.json\Z")
_APPENDED_IN_PARTS = ("txn_version.txt", "txn_version.txt.tmp")


class File(msgspec.Struct, frozen=True):
    """A file of the tree. Files with the same `inode` share their blobs: they are hard links of one another."""

    path: str
    blobs: tuple[tuple[str, int], ...]
    """Key (below the disk's prefix) and size in bytes of each object, in the order of the file."""
    inode: int
    """A number within this tree, from 1 on in path order."""
    links: int
    """Paths of this inode in the tree, at least 1. ClickHouse's metadata holds one less."""
    revision: int
    """Of the file's first object; 0 when it has none."""

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.blobs)

    @property
    def ref_count(self) -> int:
        """As ClickHouse's local metadata counts it."""
        return self.links - 1


class LogProblem(msgspec.Struct, frozen=True):
    """Something in the bucket that is not as it should be. `kind` is a stable word; `what` a sentence that names it."""

    kind: str
    what: str
    path: str | None = None
    object: str | None = None
    revision: int | None = None
    claims: tuple[str, ...] = ()
    """Objects that bear a path which another one has: once each has its own place, nothing is wrong."""


class Replayed(msgspec.Struct):
    """The tree, what its log did, and what is wrong with it."""

    files: dict[str, File] = msgspec.field(default_factory=dict)
    """In path order (UTF-8 bytes)."""
    being_deleted: tuple[str, ...] = ()
    """Paths below a `delete_tmp_…` directory, or of a transaction that never ended: no part of `files`."""
    missing: tuple[str, ...] = ()
    """Paths that a hard link should have made, in a directory that has other files, while its source was gone, or was
    an empty file without an object: the part's checksums say which."""
    linked_without_object: dict[str, int] = msgspec.field(default_factory=dict)
    """Paths without an object that a hard link named -> a number that those of one file share."""
    filled: dict[str, str] = msgspec.field(default_factory=dict)
    """Paths whose file the log does not tell -> the object that has its size and its hash."""
    unversioned: tuple[str, ...] = ()
    """Paths that a hard link made and that the server removed at once, which the log does not tell."""
    renames: int = 0
    links: int = 0
    without_source: int = 0
    """Renames and links that found no source. Ordinary: objects of deleted parts are gone, their operations stay."""
    merged: tuple[str, ...] = ()
    """Directories that a rename found to exist already, and filled up."""
    findings: list[LogProblem] = msgspec.field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Each inode once."""
        return sum({file.inode: file.size_bytes for file in self.files.values()}.values())


def is_leftover(path: str) -> bool:
    """Whether the path lies where a file is before it is there, or after it is gone."""
    return path.startswith(STAGING) or f"/{DELETING}" in f"/{path}"


def may_append(path: str) -> bool:
    """Whether ClickHouse appends to this file, so that several objects are one file.

    The files of a MergeTree part are written once. The table engines that append (Log, StripeLog, TinyLog) keep their
    files in the table's own directory.
    """
    directory, _, name = path.rpartition("/")
    if _PART.match(directory.rpartition("/")[2]):
        return name in _APPENDED_IN_PARTS
    return _REWRITTEN.match(name) is None


def replay(records: Iterable[LogObject], restarts: Collection[str] = ()) -> Replayed:
    """The tree after these records, which stand in the order they were written (`Epochs.until`).

    `restarts` are the keys of the objects with which a new run of the counter begins.
    """
    tree = _Tree()
    for record in records:
        if record.listed.key in restarts:
            tree.run += 1
        tree.apply(record)
    return tree.finish()


class _Tree:
    def __init__(self) -> None:
        self.run = 0
        self._root = Directory(0)
        self._created: dict[str, Inode] = {}
        self._again: list[tuple[Inode, Inode]] = []
        """Inodes created at the path of an earlier one that had been renamed away, with that one. Of one run: another
        one gives the same temporary names again."""
        self._merged: list[str] = []
        self._result = Replayed()

    def apply(self, record: LogObject) -> None:
        kind = record.listed.name.kind
        if kind not in (FILE, RENAME, HARDLINK, SHADOW_LINK):
            self._find("unknown_operation", f"{record.listed.key} is an operation of an unknown kind", record, None)
            return
        if not self._usable(record):
            return
        source, target = (record.source or "").rstrip("/"), (record.target or "").rstrip("/")
        if kind == FILE:
            self._create(record, target)
        elif kind == RENAME:
            self._result.renames += 1
            self._rename(record, source, target)
        else:
            self._result.links += 1
            self._link(record, source, target)

    def finish(self) -> Replayed:
        result = self._result
        alive: dict[str, Inode] = {}
        missing: list[str] = []
        deleted: list[str] = []
        unversioned: list[str] = []
        holes: dict[str, Inode] = {}
        for path, inode, whole in walk(self._root):
            if not paths.is_safe(path):  # renames into one another have made it too long
                self._report_too_long(path, inode)
            elif is_leftover(path):
                if inode.linked or not inode.missing:
                    deleted.append(path)
            elif not inode.missing:
                alive[path] = inode
            elif inode is _REMOVED_AT_ONCE:
                unversioned.append(path)
            else:
                holes[path] = inode
                if whole and inode.linked:
                    missing.append(path)
        self._report_copies(alive)
        alive = dict(sorted(alive.items(), key=lambda entry: entry[0].encode()))
        links = Counter(id(inode) for inode in alive.values())
        numbers = {key: number for number, key in enumerate(dict.fromkeys(id(inode) for inode in alive.values()), 1)}
        result.files = {
            path: File(path, tuple(inode.blobs), numbers[id(inode)], links[id(inode)], inode.revision)
            for path, inode in alive.items()
        }
        result.being_deleted = tuple(sorted(deleted))
        result.missing = tuple(sorted(missing))
        result.unversioned = tuple(sorted(unversioned))
        shared = {
            same: number for number, same in enumerate(dict.fromkeys(id(hole.same_as) for hole in holes.values()))
        }
        result.linked_without_object = {path: shared[id(hole.same_as)] for path, hole in holes.items()}
        result.merged = tuple(self._merged)
        return result

    # -- the three operations

    def _create(self, record: LogObject, path: str) -> None:
        listed = record.listed
        directory = self._directory(record, path)
        if directory is None:
            return
        if directory.run != self.run:
            directory = self._fresh_temporary(path.rpartition("/")[0], directory)
        name = path.rpartition("/")[2]
        found = directory.get(name)
        if isinstance(found, Directory) and holds_files(found):
            self._find(
                "not_a_file", f"object {listed.key} names {path} as its path, which is a directory", record, path
            )
            return
        there = found if isinstance(found, Inode) and not found.missing else None
        if there is not None and may_append(path):
            there.blobs.append((listed.key, listed.size_bytes))
            return
        inode = Inode(path, listed.revision, run=self.run)
        inode.blobs.append((listed.key, listed.size_bytes))
        if there is not None:
            self._report_claim(record, path, there)
        elif (earlier := self._created.get(path)) is not None and earlier.run == self.run:
            self._again.append((inode, earlier))
        self._created[path] = inode
        directory[name] = inode

    def _rename(self, record: LogObject, source: str, target: str) -> None:
        parent = self._parent(source)
        name = source.rpartition("/")[2]
        moved = parent.get(name) if parent is not None else None
        if parent is None or moved is None:
            self._result.without_source += 1
            return
        real = holds_files(moved)
        self._result.without_source += not real
        if f"{target}/".startswith(f"{source}/"):
            if source != target and real:
                self._find("unusable_rename", f"{source} is renamed to {target}, which is in it", record, source)
            return
        directory = self._directory(record, target) if real else self._parent(target)
        if directory is None:
            return
        final = target.rpartition("/")[2]
        existing = directory.get(final)
        if isinstance(existing, Directory) and isinstance(moved, Directory):
            if real and holds_files(existing):
                self._merged.append(target)
            merge(moved, existing)
        elif existing is None or not holds_files(existing):
            directory[final] = moved
        elif not real:
            return
        elif isinstance(existing, Directory) or isinstance(moved, Directory):
            self._find("unusable_rename", f"{source} is renamed to {target}, which is of another kind", record, target)
            return
        else:
            directory[final] = moved
        del parent[name]

    def _link(self, record: LogObject, source: str, target: str) -> None:
        parent = self._parent(source)
        inode = parent.get(source.rpartition("/")[2]) if parent is not None else None
        if _UNLINKED.match(target):
            inode = _REMOVED_AT_ONCE
        elif inode is None or not holds_files(inode):
            self._result.without_source += 1
            inode = self._hole(record, parent, source, target)
        directory = self._parent(target) if isinstance(inode, Inode) and inode.missing else None
        directory = directory if directory is not None else self._directory(record, target)
        if directory is None:
            return
        name = target.rpartition("/")[2]
        existing = directory.get(name)
        taken = existing is not None and holds_files(existing)
        if isinstance(inode, Directory) or (taken and isinstance(existing, Directory)):
            if not isinstance(inode, Inode) or not inode.missing:
                self._find(
                    "unusable_link", f"{source} is linked to {target}: directories have no links", record, target
                )
        elif not taken:
            directory[name] = inode
        elif not inode.missing and existing is not inode:
            self._find("unusable_link", f"{source} is linked to {target}, which exists already", record, target)
            directory[name] = inode

    @staticmethod
    def _hole(record: LogObject, parent: Directory | None, source: str, target: str) -> Inode:
        """What stands for the link of a file without an object; the source gets such a place too, where it can have
        one. Whether the file is lost or empty only the checksums of its part tell."""
        revision, name = record.listed.revision, source.rpartition("/")[2]
        there = parent.get(name) if parent is not None else None
        if parent is not None and there is None:
            there = parent[name] = Inode.hole(source, revision, linked=False)
        same = there if isinstance(there, Inode) else None
        return Inode.hole(target, revision, linked=True, same_as=same)

    # -- places

    def _fresh_temporary(self, path: str, directory: Directory) -> Directory:
        """The directory itself; a new one in the place of a temporary one that an earlier run of the server filled.

        The server gives the same temporary names again. What lies there still was a part whose rename has been
        overwritten, or garbage; either way it is not what is written now. It stays, beside it.
        """
        parent, name = self._parent(path), path.rpartition("/")[2]
        if parent is None or not name.startswith("tmp_") or not holds_files(directory):
            return directory
        parent[f"{LOST}{directory.run}_{name}"] = directory
        fresh = parent[name] = Directory(self.run)
        return fresh

    def _parent(self, path: str) -> Directory | None:
        """The directory that the path lies in, if it is there."""
        directory = self._root
        for segment in path.split("/")[:-1]:
            below = directory.get(segment)
            if not isinstance(below, Directory):
                return None
            directory = below
        return directory

    def _directory(self, record: LogObject, path: str) -> Directory | None:
        """The directory for the path, made where it is missing; None, and a finding, where a file is in the way."""
        directory = self._root
        for segment in path.split("/")[:-1]:
            below = directory.get(segment)
            if below is None or (isinstance(below, Inode) and below.missing):
                below = directory[segment] = Directory(self.run)
            elif isinstance(below, Inode):
                self._find("not_a_directory", f"{path} cannot be there: {segment} is a file", record, path)
                return None
            directory = below
        return directory

    # -- findings

    def _usable(self, record: LogObject) -> bool:
        listed = record.listed
        if not record.complete:
            kind = "blob_without_path" if listed.name.kind == FILE else "operation_without_paths"
            self._find(kind, f"object {listed.key} has no path in its metadata: {_LOST}", record, None)
            return False
        for path in (record.source, record.target):
            if path is not None and not paths.is_safe(path.rstrip("/")):
                self._find("unsafe_path", f"object {listed.key} names an unsafe path: {path!r}", record, None)
                return False
        return True

    def _report_claim(self, record: LogObject, path: str, earlier: Inode) -> None:
        older = ", ".join(key for key, _ in earlier.blobs)
        same = earlier.size_bytes == record.listed.size_bytes
        why = "both have the same size, as copies made inside the store have" if same else "their sizes differ"
        what = f"{path} is claimed by {older} and again by {record.listed.key}: {why}; the newer one counts"
        key, revision = record.listed.key, record.listed.revision
        claims = tuple(key for key, _ in earlier.blobs)
        self._result.findings.append(LogProblem("path_claimed_twice", what, path, key, revision, claims))

    def _report_copies(self, alive: dict[str, Inode]) -> None:
        for inode, earlier in self._again:
            if alive.get(inode.created_at) is inode and inode.size_bytes == earlier.size_bytes:
                key = inode.blobs[0][0]
                self._result.findings.append(
                    LogProblem(
                        "path_claimed_twice",
                        f"object {key} says that it was created as {inode.created_at}, as {earlier.blobs[0][0]} was, "
                        "which has been renamed since: a copy made inside the store, whose own path is unknown",
                        inode.created_at,
                        key,
                        inode.revision,
                        (key,),
                    )
                )

    def _report_too_long(self, path: str, inode: Inode) -> None:
        if not inode.missing:
            key = inode.blobs[0][0]
            what = f"object {key} came to a path that no disk can have: {path[:200]}…"
            self._result.findings.append(LogProblem("unsafe_path", what, None, key, inode.revision))

    def _find(self, kind: str, message: str, record: LogObject, path: str | None) -> None:
        self._result.findings.append(LogProblem(kind, message, path, record.listed.key, record.listed.revision))


_REMOVED_AT_ONCE = Inode("", 0, missing=True)
"""Stands where `_UNLINKED` was linked, so that nobody misses it there."""
_LOST = "the store or a proxy in front of it drops names with '_', or it never had one"
