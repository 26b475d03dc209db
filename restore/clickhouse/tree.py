"""The tree of local metadata files below a ClickHouse disk's directory: written from a file table, read into one.

Files that share their objects are hard links of one inode, as ClickHouse makes them; its `ref_count` counts the others.
A tree is written file by file, each under its name only when its bytes are durable, so that a killed export goes on
where it was. `shadow/<name>/revision.txt` is no metadata: a plain file that lies there as it is.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from disks.effects import fsync_directory, hard_link, make_directory, remove_file, rename, write_new_file
from disks.stores.base import ObjectStore
from disks.workers.progress import SILENT, Progress
from oplog.clickhouse.metadata import Metadata, decode, encode
from oplog.clickhouse.names import parse_key
from oplog.clickhouse.replay import File
from oplog.errors import Damaged, FrostlineError, Refused
from oplog.paths import is_safe
from oplog.replay import FileRow
from tiering.config.units import counted

_PLAIN = re.compile(r"shadow/(?:[^/]+/revision|increment)\.txt\Z")
_TEMPORARY = ".frostline-export.tmp"
_SIZE_LIMIT_BYTES = 64 << 20
"""A metadata file of a million objects is smaller."""

Blobs = tuple[tuple[str, int], ...]
Inode = Blobs | str
"""What the hard links of one file have in common: its objects, or a word where it has none."""


class ExportResult(msgspec.Struct):
    """What an export did, or would do."""

    files: int = 0
    written: int = 0
    linked: int = 0
    """Of `written`: further names of a file that has its objects already."""
    unchanged: int = 0
    """Files that an earlier run had written."""
    bytes: int = 0
    """Of the data that the tree stands for; what several names share counts once."""


class MetadataTree(msgspec.Struct):
    """What lies in a directory. A file that cannot be read is in `problems` and nowhere else."""

    rows: dict[str, FileRow] = msgspec.field(default_factory=dict)
    """In path order. The digests are unknown; `revision` is the number in the key of the first object, or 0."""
    versions: Counter[int] = msgspec.field(default_factory=Counter)
    problems: list[Damaged] = msgspec.field(default_factory=list)
    miscounted: list[str] = msgspec.field(default_factory=list)
    """Paths whose `ref_count` is not the number of the other names of their objects in this tree."""


# Writing


def write_tree(
    directory: Path,
    rows: Sequence[FileRow],
    *,
    version: int,
    key_prefix: str,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> ExportResult:
    """Write the tree of these rows (in path order) below the directory, durably; existing files of it stay.

    Raises `Refused`, before anything is written, when the directory holds anything else; `Damaged` when two files that
    are not the same share an object; `UsageError` when the version has no place for a file's own bytes.
    """
    names = _names(rows)
    result = ExportResult(files=len(rows), bytes=sum(row.size_bytes for row in _first_of_each(rows)))
    try:
        there = _there(directory, clean=not dry_run)
        firsts = {inode_of(row): row.path for row in _first_of_each(rows)}
        wanted = {row.path: _content(row, len(names[inode_of(row)]), version, key_prefix) for row in rows}
        _check_foreign(directory, there, wanted, firsts, rows)
        with progress.task("writing metadata files", items=len(rows)) as task:
            for row in rows:
                source = firsts[inode_of(row)]
                if row.path in there:
                    result.unchanged += 1
                else:
                    result.written += 1
                    result.linked += source != row.path
                    if not dry_run:
                        _write(directory, row.path, wanted[row.path], None if source == row.path else source)
                task.advance(items=1)
        if not dry_run:
            _make_durable(directory, rows)
    except OSError as error:
        raise FrostlineError(
            f"cannot write the tree to {error.filename or directory}: {error.strerror}",
            hint="what is there stays; the same command continues it",
        ) from error
    return result


def inode_of(row: FileRow) -> Inode:
    """Equal for the hard links of one file, and for no other."""
    return row.blobs or (row.blob_set if row.blob_set is not None else f"\0{row.path}")


def is_plain(row: FileRow) -> bool:
    """Whether the file lies in the tree as it is, instead of metadata."""
    return row.key is None and _PLAIN.match(row.path) is not None


def _names(rows: Iterable[FileRow]) -> dict[Inode, list[str]]:
    """Inode -> its paths. Raises `Damaged` when an object belongs to two different files: the
    server would delete it with the one, while the other needs it."""
    names: dict[Inode, list[str]] = {}
    owner: dict[str, Blobs] = {}
    for row in rows:
        names.setdefault(inode_of(row), []).append(row.path)
        for key, _ in row.blobs:
            if owner.setdefault(key, row.blobs) != row.blobs:
                other = names[owner[key]][0]
                raise Damaged(
                    f"object {key} belongs to {other} and to {row.path}, which are different files",
                    hint="a server that attaches this tree would delete the object with the first of them",
                )
    return names


def _first_of_each(rows: Iterable[FileRow]) -> Iterator[FileRow]:
    """The rows without those that are further names of an earlier one."""
    seen: set[Inode] = set()
    for row in rows:
        if inode_of(row) not in seen:
            seen.add(inode_of(row))
            yield row


def _content(row: FileRow, names: int, version: int, key_prefix: str) -> bytes:
    if is_plain(row):
        return row.inline or b""
    return encode(Metadata(row.blobs, names - 1, row.read_only, row.inline or b""), version, key_prefix=key_prefix)


def _there(directory: Path, *, clean: bool) -> set[str]:
    """The files below the directory; what a killed run left half written does not count, and is removed to `clean`."""
    found: set[str] = set()
    for path in _files(directory):
        if path.name != _TEMPORARY:
            found.add(path.relative_to(directory).as_posix())
        elif clean:
            remove_file(path)
    return found


def _files(directory: Path) -> Iterator[Path]:
    """Everything below the directory that is no directory, in path order."""
    for parent, directories, names in os.walk(directory, onerror=_raise):
        links = [name for name in directories if Path(parent, name).is_symlink()]
        directories[:] = sorted(set(directories) - set(links))
        yield from (Path(parent, name) for name in sorted([*names, *links]))


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _check_foreign(
    directory: Path, there: set[str], contents: dict[str, bytes], firsts: dict[Inode, str], rows: Sequence[FileRow]
) -> None:
    foreign = sorted(path for path in there if path not in contents)
    for row in rows:
        if row.path not in there:
            continue
        first = firsts[inode_of(row)]
        path = directory / row.path
        shared = first not in there or path.samefile(directory / first)
        if path.is_symlink() or not path.is_file() or path.read_bytes() != contents[row.path] or not shared:
            foreign.append(row.path)
    if foreign:
        raise Refused(
            f"{directory} holds {counted(len(foreign), 'file')} that are not of this tree, such as {foreign[0]}",
            hint="choose an empty or new directory",
        )


def _write(directory: Path, path: str, data: bytes, source: str | None) -> None:
    target = directory / path
    make_directory(target.parent)
    if source is not None:
        hard_link(directory / source, target)
        return
    temporary = target.parent / _TEMPORARY
    write_new_file(temporary, data)
    rename(temporary, target)


def _make_durable(directory: Path, rows: Iterable[FileRow]) -> None:
    make_directory(directory)
    for parent in sorted({row.path.rpartition("/")[0] for row in rows}):
        fsync_directory(directory / parent)


# Reading


def read_tree(directory: Path, *, key_prefix: str, progress: Progress = SILENT) -> MetadataTree:
    """Every metadata file below the directory. A file that is damaged is a problem that names it, and the line.

    Raises `FrostlineError` when the directory cannot be read.
    """
    tree = MetadataTree()
    counts: dict[str, int] = {}
    links: dict[tuple[int, int], str] = {}
    """Of files without an object: the first name of each inode."""
    try:
        if not directory.is_dir():
            raise FrostlineError(f"{directory} is no directory", hint="name the directory of the disk's metadata")
        with progress.task("reading metadata files") as task:
            for path in _files(directory):
                _read(directory, path, key_prefix, tree, counts, links)
                task.advance(items=1)
    except OSError as error:
        raise FrostlineError(
            f"cannot read {error.filename or directory}: {error.strerror}", hint="read it as the server's user"
        ) from error
    tree.rows = {path: tree.rows[path] for path in sorted(tree.rows, key=str.encode)}
    names = Counter(inode_of(row) for row in tree.rows.values())
    tree.miscounted = [path for path, count in counts.items() if names[inode_of(tree.rows[path])] != count + 1]
    return tree


def _read(
    directory: Path,
    path: Path,
    key_prefix: str,
    tree: MetadataTree,
    counts: dict[str, int],
    links: dict[tuple[int, int], str],
) -> None:
    name = path.relative_to(directory).as_posix()
    try:
        if path.is_symlink() or not path.is_file():
            raise Damaged(f"{path} is no ordinary file", hint="a disk of ClickHouse has none of those")
        if not is_safe(name):
            raise Damaged(f"{path!r} has an unsafe name", hint="rename it or leave it out")
        if path.stat().st_size > _SIZE_LIMIT_BYTES:
            raise Damaged(f"{path} is too large for a metadata file", hint="is this the disk's metadata directory?")
        data = path.read_bytes()
        if _PLAIN.match(name):
            tree.rows[name] = FileRow(name, len(data), "", None, data, None, 0)
            return
        metadata, version = decode(data, key_prefix=key_prefix, name=str(path))
        row = _row(name, metadata, str(path))
    except Damaged as error:
        tree.problems.append(error)
        return
    if not row.blobs and (status := path.stat()).st_nlink > 1:
        row = msgspec.structs.replace(row, blob_set=links.setdefault((status.st_dev, status.st_ino), name))
    tree.rows[name] = row
    tree.versions[version] += 1
    counts[name] = metadata.ref_count


def _row(name: str, metadata: Metadata, shown: str) -> FileRow:
    if metadata.blobs and metadata.inline:
        raise Damaged(f"{shown} has objects and bytes of its own", hint="no version of ClickHouse writes that")
    for key, _ in metadata.blobs:
        if not is_safe(key):
            raise Damaged(f"{shown} names an unsafe key: {key!r}", hint="was the file tampered with?")
    if not metadata.blobs:
        inline = metadata.inline
        return FileRow(name, len(inline), "", None, inline, None, 0, (), metadata.read_only)
    key = metadata.blobs[0][0]
    numbered = parse_key(key)
    revision = numbered.revision if numbered else 0
    return FileRow(name, metadata.size_bytes, "", key, None, None, revision, metadata.blobs[1:], metadata.read_only)


# From a tree that was read to the rows of a file table


def rows_of(files: Iterable[File]) -> Iterator[FileRow]:
    """Their rows, in the same order. A file without an object is empty; what its hard links share is the path of the
    first of them, as `blob_set`. No digest is known."""
    first: dict[int, str] = {}
    for file in files:
        if file.blobs:
            key = file.blobs[0][0]
            yield FileRow(file.path, file.size_bytes, "", key, None, None, file.revision, file.blobs[1:])
        else:
            shared = first.setdefault(file.inode, file.path) if file.links > 1 else None
            yield FileRow(file.path, 0, "", None, b"", shared, file.revision)


def key_prefix(store: ObjectStore) -> str:
    """What stands before the disk's keys in its bucket, with the final slash: versions 1 and 5 of ClickHouse's metadata
    hold it. Empty for a directory that stands for a bucket."""
    url = store.url("x")
    return url.partition("://")[2].partition("/")[2].removesuffix("x") if url.startswith("s3://") else ""
