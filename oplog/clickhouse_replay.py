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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from oplog import paths
from oplog.clickhouse import FILE, HARDLINK, RENAME, SHADOW_LINK, Record

DELETING = "delete_tmp_"
STAGING = "tmp_frostline_"
"""What a directory at the disk's root begins with in which a transaction of ours collects its new files."""
_PART = re.compile(r"[^/]+_\d+_\d+_\d+(?:_\d+)?\Z")
"""A part's directory, also with a prefix such as `tmp_insert_`."""
_REWRITTEN = re.compile(r"(?:format_version|mutation_\d+|tmp_mutation_\d+|metadata_version)\.txt\Z|sizes\.json\Z")
_APPENDED_IN_PARTS = ("txn_version.txt", "txn_version.txt.tmp")


@dataclass(frozen=True, slots=True)
class File:
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


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the bucket that is not as it should be. `kind` is a stable word; `what` a sentence that names it."""

    kind: str
    what: str
    path: str | None = None
    object: str | None = None
    revision: int | None = None


@dataclass(slots=True)
class Replayed:
    """The tree, what its log did, and what is wrong with it."""

    files: dict[str, File] = field(default_factory=dict)
    """In path order (UTF-8 bytes)."""
    being_deleted: tuple[str, ...] = ()
    """Paths below a `delete_tmp_…` directory, or of a transaction that never ended: no part of `files`."""
    missing: tuple[str, ...] = ()
    """Paths that a hard link should have made, in a directory that has other files, while its source was gone."""
    renames: int = 0
    links: int = 0
    without_source: int = 0
    """Renames and links that found no source. Ordinary: objects of deleted parts are gone, their operations stay."""
    merged: tuple[str, ...] = ()
    """Directories that a rename found to exist already, and filled up."""
    findings: list[Finding] = field(default_factory=list)

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


def replay(records: Iterable[Record]) -> Replayed:
    """The tree after these records, which stand in the order they were written (`Epochs.until`)."""
    tree = _Tree()
    for record in records:
        tree.apply(record)
    return tree.finish()


# The tree: directories are dicts, so that a rename of a directory moves one entry, however much lies below it


class _Inode:
    """A file's blobs. Without blobs and with `missing`, the place of a file whose bytes are gone."""

    __slots__ = ("blobs", "created_at", "missing", "revision")

    def __init__(self, path: str, revision: int, *, missing: bool = False) -> None:
        self.blobs: list[tuple[str, int]] = []
        self.created_at = path
        self.revision = revision
        self.missing = missing

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.blobs)


class _Directory(dict[str, "_Directory | _Inode"]):
    """Names to what they stand for."""


class _Tree:
    def __init__(self) -> None:
        self._root = _Directory()
        self._created: dict[str, _Inode] = {}
        self._again: list[tuple[_Inode, _Inode]] = []
        """Inodes created at the path of an earlier one that had been renamed away, with that one."""
        self._merged: list[str] = []
        self._result = Replayed()

    def apply(self, record: Record) -> None:
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
        alive: dict[str, _Inode] = {}
        missing: list[str] = []
        deleted: list[str] = []
        for path, inode, whole in _walk(self._root):
            if not paths.is_safe(path):  # renames into one another have made it too long
                self._report_too_long(path, inode)
            elif is_leftover(path):
                deleted.append(path)
            elif not inode.missing:
                alive[path] = inode
            elif whole:
                missing.append(path)
        self._report_copies(alive)
        alive = dict(sorted(alive.items(), key=lambda item: item[0].encode()))
        links = Counter(id(inode) for inode in alive.values())
        numbers = {key: number for number, key in enumerate(dict.fromkeys(id(inode) for inode in alive.values()), 1)}
        result.files = {
            path: File(path, tuple(inode.blobs), numbers[id(inode)], links[id(inode)], inode.revision)
            for path, inode in alive.items()
        }
        result.being_deleted = tuple(sorted(deleted))
        result.missing = tuple(sorted(missing))
        result.merged = tuple(self._merged)
        return result

    # -- the three operations

    def _create(self, record: Record, path: str) -> None:
        listed = record.listed
        directory = self._directory(record, path)
        if directory is None:
            return
        name = path.rpartition("/")[2]
        found = directory.get(name)
        if isinstance(found, _Directory) and _holds_files(found):
            self._find(
                "not_a_file", f"object {listed.key} names {path} as its path, which is a directory", record, path
            )
            return
        there = found if isinstance(found, _Inode) and not found.missing else None
        if there is not None and may_append(path):
            there.blobs.append((listed.key, listed.size_bytes))
            return
        inode = _Inode(path, listed.revision)
        inode.blobs.append((listed.key, listed.size_bytes))
        if there is not None:
            self._report_claim(record, path, there)
        elif (earlier := self._created.get(path)) is not None:
            self._again.append((inode, earlier))
        self._created[path] = inode
        directory[name] = inode

    def _rename(self, record: Record, source: str, target: str) -> None:
        parent = self._parent(source)
        name = source.rpartition("/")[2]
        moved = parent.get(name) if parent is not None else None
        if parent is None or moved is None:
            self._result.without_source += 1
            return
        real = _holds_files(moved)
        self._result.without_source += not real
        if f"{target}/".startswith(f"{source}/"):
            if source != target and real:
                self._find("unusable_rename", f"{source} is renamed to {target}, which lies in it", record, source)
            return
        directory = self._directory(record, target) if real else self._parent(target)
        if directory is None:
            return
        final = target.rpartition("/")[2]
        existing = directory.get(final)
        if isinstance(existing, _Directory) and isinstance(moved, _Directory):
            if real and _holds_files(existing):
                self._merged.append(target)
            _merge(moved, existing)
        elif existing is None or not _holds_files(existing):
            directory[final] = moved
        elif not real:
            return
        elif isinstance(existing, _Directory) or isinstance(moved, _Directory):
            self._find("unusable_rename", f"{source} is renamed to {target}, which is of another kind", record, target)
            return
        else:
            directory[final] = moved
        del parent[name]

    def _link(self, record: Record, source: str, target: str) -> None:
        parent = self._parent(source)
        inode = parent.get(source.rpartition("/")[2]) if parent is not None else None
        if inode is None or not _holds_files(inode):
            self._result.without_source += 1
            inode = _Inode(target, record.listed.revision, missing=True)
        directory = self._parent(target) if isinstance(inode, _Inode) and inode.missing else None
        directory = directory if directory is not None else self._directory(record, target)
        if directory is None:
            return
        name = target.rpartition("/")[2]
        existing = directory.get(name)
        taken = existing is not None and _holds_files(existing)
        if isinstance(inode, _Directory) or (taken and isinstance(existing, _Directory)):
            if not isinstance(inode, _Inode) or not inode.missing:
                self._find(
                    "unusable_link", f"{source} is linked to {target}: directories have no links", record, target
                )
        elif not taken:
            directory[name] = inode
        elif not inode.missing and existing is not inode:
            self._find("unusable_link", f"{source} is linked to {target}, which exists already", record, target)
            directory[name] = inode

    # -- places

    def _parent(self, path: str) -> _Directory | None:
        """The directory that the path lies in, if it is there."""
        directory = self._root
        for segment in path.split("/")[:-1]:
            below = directory.get(segment)
            if not isinstance(below, _Directory):
                return None
            directory = below
        return directory

    def _directory(self, record: Record, path: str) -> _Directory | None:
        """The directory for the path, made where it is missing; None, and a finding, where a file is in the way."""
        directory = self._root
        for segment in path.split("/")[:-1]:
            below = directory.get(segment)
            if below is None or (isinstance(below, _Inode) and below.missing):
                below = directory[segment] = _Directory()
            elif isinstance(below, _Inode):
                self._find("not_a_directory", f"{path} cannot be there: {segment} is a file", record, path)
                return None
            directory = below
        return directory

    # -- findings

    def _usable(self, record: Record) -> bool:
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

    def _report_claim(self, record: Record, path: str, earlier: _Inode) -> None:
        older = ", ".join(key for key, _ in earlier.blobs)
        same = earlier.size_bytes == record.listed.size_bytes
        why = "both have the same size, as copies made inside the store have" if same else "their sizes differ"
        self._find(
            "path_claimed_twice",
            f"{path} is claimed by {older} and again by {record.listed.key}: {why}; the newer one counts",
            record,
            path,
        )

    def _report_copies(self, alive: dict[str, _Inode]) -> None:
        for inode, earlier in self._again:
            if alive.get(inode.created_at) is inode and inode.size_bytes == earlier.size_bytes:
                key = inode.blobs[0][0]
                self._result.findings.append(
                    Finding(
                        "path_claimed_twice",
                        f"object {key} says that it was created as {inode.created_at}, as {earlier.blobs[0][0]} was, "
                        "which has been renamed since: a copy made inside the store, whose own path nobody knows",
                        inode.created_at,
                        key,
                        inode.revision,
                    )
                )

    def _report_too_long(self, path: str, inode: _Inode) -> None:
        if not inode.missing:
            key = inode.blobs[0][0]
            what = f"object {key} came to a path that no disk can have: {path[:200]}…"
            self._result.findings.append(Finding("unsafe_path", what, None, key, inode.revision))

    def _find(self, kind: str, what: str, record: Record, path: str | None) -> None:
        self._result.findings.append(Finding(kind, what, path, record.listed.key, record.listed.revision))


_LOST = "the store or a proxy in front of it drops names with '_', or it never had one"


def _holds_files(entry: _Directory | _Inode) -> bool:
    """Whether it is a file, or has one below it. Directories are never removed, so there are empty ones."""
    waiting: list[_Directory | _Inode] = [entry]
    while waiting:
        found = waiting.pop()
        if isinstance(found, _Directory):
            waiting.extend(found.values())
        elif not found.missing:
            return True
    return False


def _merge(source: _Directory, target: _Directory) -> None:
    """Put everything of one directory into another; a file of the source takes the place of what is in the target."""
    waiting = [(source, target)]
    while waiting:
        one, other = waiting.pop()
        for name, moved in one.items():
            existing = other.get(name)
            if isinstance(moved, _Directory) and isinstance(existing, _Directory):
                waiting.append((moved, existing))
            elif existing is None or _holds_files(moved):
                other[name] = moved


def _walk(root: _Directory) -> Iterator[tuple[str, _Inode, bool]]:
    """Every file with its path, and whether its directory holds a file that is not missing."""
    waiting = [(root, "")]
    while waiting:
        directory, prefix = waiting.pop()
        whole = any(isinstance(entry, _Inode) and not entry.missing for entry in directory.values())
        for name, entry in directory.items():
            if isinstance(entry, _Inode):
                yield f"{prefix}{name}", entry, whole
            else:
                waiting.append((entry, f"{prefix}{name}/"))
