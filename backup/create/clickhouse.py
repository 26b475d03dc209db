"""Directories of files that ClickHouse wrote, on an adopted disk (`log_format: 1`) or in a tree that was brought to one
of ours: backed up whole, file by file.

Their log may know no digests. Then each object is read and hashed once; its name, which is never used again, tells the
next backup what is in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from backup.create.instant import SourceFile
from backup.create.known import Known, Place
from backup.create.sending import NewFile, Sender
from backup.create.tree import PlacedFile, TreePart, listed_parts
from backup.format import packs
from backup.format.lists import TreeList
from backup.scope import Scope
from disks.contracts.bucket_disk import BucketDisk
from disks.effects import op, remove_file
from disks.kinds import as_disk
from disks.stores.base import ByteRange
from disks.workers.parallel import in_parallel
from oplog.clickhouse.replay import is_leftover
from oplog.errors import Conflict, NotFound
from oplog.replay import FileRow
from tiering.catalog.context import Context
from tiering.table.part import PART_FILE
from tiering.table.paths import locate
from tiering.table.schema import TABLE_FILE

_OWN = (TABLE_FILE, PART_FILE)
_THEIRS = ("checksums.txt", "format_version.txt")
_PIECE_BYTES = 16 * 1024 * 1024
_BATCH_BYTES = 256 * 1024 * 1024
_BATCH_FILES = 1000
_TRIES = 3


class Tree(msgspec.Struct, frozen=True):
    """One directory of a disk, with its files as they were when somebody looked."""

    disk: str
    directory: str
    rows: tuple[FileRow, ...]

    @property
    def name(self) -> str:
        """What a user calls it: of a table its uuid."""
        return self.directory.rpartition("/")[2]

    @property
    def parts(self) -> int:
        return len({_part_of(self.directory, row.path) for row in self.rows} - {""})


def trees_of(context: Context, scope: Scope | None = None) -> list[Tree]:
    """The directories that ClickHouse wrote, on all disks that lie in a bucket; those of the scope."""
    found: list[Tree] = []
    for name, disk in context.disks.items():
        if (bucket := as_disk(disk, BucketDisk)) is not None and disk.broken is None:
            for directory, rows in _directories(bucket):
                tree = Tree(name, directory, rows)
                found += [tree] if scope is None or scope.has_tree(tree.name) else []
    return found


def with_trees(scope: Scope, trees: Sequence[Tree]) -> Scope:
    """The scope, whose globs may mean the trees as well."""
    return replace(scope, others=tuple(tree.name for tree in trees))


def _directories(disk: BucketDisk) -> Iterator[tuple[str, tuple[FileRow, ...]]]:
    """What a table's directory, or another one at the top, holds; without what is ours."""
    if not disk.file_table.has_named(_THEIRS):
        return
    found: dict[str, list[FileRow]] = {}
    for row in disk.file_table.rows():
        if is_leftover(row.path):  # what a server had begun to delete: no replay of the log brings it back
            continue
        found.setdefault(_directory_of(row.path), []).append(row)
    for directory in sorted(found):
        names = {row.path.rpartition("/")[2] for row in found[directory]}
        if directory and not names.intersection(_OWN) and names.intersection(_THEIRS):
            yield directory, tuple(sorted(found[directory], key=lambda row: row.path))


def _directory_of(path: str) -> str:
    if locate(path) is not None:
        return "/".join(path.split("/")[:3])
    return path.partition("/")[0] if "/" in path else ""


class SentTree:
    """One tree on its way."""

    def __init__(
        self,
        context: Context,
        tree: Tree,
        stored: Known,
        places: dict[tuple[str, int], Place],
        sender: Sender,
        scratch: Path,
    ) -> None:
        self._context, self._tree, self._stored = context, tree, stored
        self._places, self._sender, self._scratch = places, sender, scratch
        bucket = as_disk(context.disk(tree.disk), BucketDisk)
        assert bucket is not None
        self._disk = bucket
        self._contents: dict[str, tuple[str, int]] = {}
        """Path -> SHA-256 and size."""

    def run(self) -> TreeList:
        """Send what the repository lacks; the list of all. Raises `Conflict` when the directory never stood still."""
        rows = self._tree.rows
        for _ in range(_TRIES):
            missing = None
            try:
                self._send(rows)
            except NotFound as error:  # collected meanwhile; or missing for good
                missing = error
            now = self._now()
            if now == rows:
                if missing is not None:
                    raise missing
                return self._listed(rows)
            rows = now
        raise Conflict(
            f"{self._tree.disk}:{self._tree.directory} changed again and again while it was backed up",
            hint="stop the program that writes to it, then run it again",
        )

    def _now(self) -> tuple[FileRow, ...]:
        self._disk.refresh()
        return dict(_directories(self._disk)).get(self._tree.directory, ())

    def _send(self, rows: Collection[FileRow]) -> None:
        unread: list[FileRow] = []
        for row in rows:
            content = _content(self._disk, row, self._stored)
            if content is not None and content in self._places:
                self._contents[row.path] = content
            else:
                unread.append(row)
        for batch in _batches(unread):
            self._send_batch(batch)

    def _send_batch(self, batch: Sequence[FileRow]) -> None:
        new: list[NewFile | None] = [None] * len(batch)

        def work(number: int) -> None:
            new[number] = self._read(batch[number], self._scratch / f"tree-{number}")

        in_parallel(work, len(batch), self._context.workers)
        sending = [item for item in new if item is not None and item.content not in self._places]
        sent = self._sender.send(sending, self._context.workers, self._context.progress)
        self._places.update(sent.places)
        for row, item in zip(batch, new, strict=True):
            assert item is not None
            self._contents[row.path] = item.content
            if not row.sha256:
                self._stored.sources[self._source(row)] = item.content
            if isinstance(item.file.source, Path):
                remove_file(item.file.source, missing_ok=True)

    def _read(self, row: FileRow, scratch: Path) -> NewFile:
        """The file, hashed: in memory when it is small, else on its way through a scratch file."""
        label = f"{self._tree.disk}:{row.path}"
        read = self._disk.reader(row.path)
        if row.size_bytes < packs.PACKED_FILE_BYTES:
            data = read(ByteRange(0, row.size_bytes)) if row.size_bytes else b""
            digest = hashlib.sha256(data)
            return NewFile(None, SourceFile(label, len(data), self._same(row, digest.hexdigest()), None), data, label)
        digest = hashlib.sha256()
        with op("fs.write", scratch), scratch.open("wb") as output:
            for start in range(0, row.size_bytes, _PIECE_BYTES):
                piece = read(ByteRange(start, min(start + _PIECE_BYTES, row.size_bytes)))
                digest.update(piece)
                output.write(piece)
        source = SourceFile(label, row.size_bytes, self._same(row, digest.hexdigest()), scratch)
        return NewFile(None, source, label=label)

    def _same(self, row: FileRow, sha256: str) -> str:
        """The digest to send it under: that which the log knows, where it knows one, and other bytes are refused."""
        return row.sha256 or sha256

    def _source(self, row: FileRow) -> str:
        return _source(self._disk, row)

    def _listed(self, rows: Collection[FileRow]) -> TreeList:
        parts: dict[str, list[PlacedFile]] = {}
        sources: dict[str, tuple[str, int]] = {}
        for row in rows:
            content = self._contents[row.path]
            name = row.path.removeprefix(f"{self._tree.directory}/")
            part = _part_of(self._tree.directory, row.path)
            parts.setdefault(part, []).append(PlacedFile(name, content[1], content[0], self._places[content]))
            if not row.sha256 and row.blobs:
                sources[self._source(row)] = content
        named, entries = listed_parts(
            [TreePart(name, "", self._tree.disk, 0, tuple(files)) for name, files in sorted(parts.items())]
        )
        listed = tuple((source, *sources[source]) for source in sorted(sources))
        return TreeList(directory=self._tree.directory, packs=named, parts=entries, sources=listed)


def unknown_content(context: Context, tree: Tree, stored: Known) -> dict[tuple[str, str | int], int]:
    """What of it the repository lacks, with its size; files whose digest nobody knows count one by one."""
    lacking: dict[tuple[str, str | int], int] = {}
    bucket = as_disk(context.disk(tree.disk), BucketDisk)
    assert bucket is not None
    for row in tree.rows:
        content = _content(bucket, row, stored)
        if content is None:
            lacking[tree.disk, row.path] = row.size_bytes
        elif content not in stored.files:
            lacking[content] = row.size_bytes
    return lacking


def _content(disk: BucketDisk, row: FileRow, stored: Known) -> tuple[str, int] | None:
    """What is in the file, where that is known without reading an object."""
    if row.sha256:
        return row.sha256, row.size_bytes
    if row.blobs:
        content = stored.sources.get(_source(disk, row))
        return content if content is not None and content[1] == row.size_bytes else None
    return hashlib.sha256(row.inline or b"").hexdigest(), len(row.inline or b"")


def _source(disk: BucketDisk, row: FileRow) -> str:
    """The names of the file's objects as one digest; empty where it has none."""
    named = [disk.store.name, *(f"{key} {size}" for key, size in row.blobs)]
    return hashlib.sha256("\n".join(named).encode()).hexdigest() if row.blobs else ""


def _part_of(directory: str, path: str) -> str:
    """The part, or other directory, that a file lies in; empty for one beside them."""
    return path.removeprefix(f"{directory}/").rpartition("/")[0].partition("/")[0]


def _batches(rows: Sequence[FileRow]) -> Iterator[list[FileRow]]:
    batch: list[FileRow] = []
    size_bytes = 0
    for row in rows:
        batch.append(row)
        size_bytes += row.size_bytes
        if size_bytes >= _BATCH_BYTES or len(batch) >= _BATCH_FILES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch
