"""Checks of what ClickHouse wrote: a disk with its log, and parts of its tables on any disk (I1, I3, I15).

A part of a MergeTree table has no `part.json`; its own `checksums.txt` says which files it has and how large they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from disks.contracts.bucket_disk import ClickHouseLogDisk
from disks.file_table.row_bytes import read_row
from disks.stores.base import ByteRange
from oplog.clickhouse.checksums import FILE_NAME as CHECKSUMS
from oplog.clickhouse.checksums import parse
from oplog.clickhouse.names import is_numbered
from oplog.errors import Damaged, NotFound
from oplog.replay import FileRow
from oplog.revision import SCHEMA_VERSION_KEY
from restore.check.findings import Checked, FileTree, Findings, Problem
from tiering.table.part import PART_FILE
from tiering.table.paths import directory_of, locate

_MARKS = (CHECKSUMS, "columns.txt", "default_compression_codec.txt")
_PROJECTION = ".proj"
_SECOND_LOOK_THREADS = 16


class ClickHouseFiles:
    """The files of a disk with ClickHouse's log as its own table has them, beside one listing of its bucket."""

    def __init__(self, disk: ClickHouseLogDisk, sizes: Mapping[str, int]) -> None:
        self.disk = disk.name
        self._source = disk
        self._sizes = sizes

    def sweep(self, findings: Findings) -> Iterator[FileRow]:
        lost: list[tuple[FileRow, str, int]] = []
        for row in self.rows():
            lost += [(row, key, size) for key, size in row.blobs if self._sizes.get(key) != size]
            yield row
        self._tell(lost, findings)

    def rows(self) -> Iterator[FileRow]:
        return self._source.file_table.rows()

    def find(self, path: str) -> FileRow | None:
        return self._source.file_table.get(path)

    def content(self, row: FileRow, byte_range: ByteRange | None = None) -> bytes:
        return read_row(self._source.store, row, byte_range, disk=self.disk)

    def close(self) -> None:
        return None

    def _tell(self, lost: list[tuple[FileRow, str, int]], findings: Findings) -> None:
        """A missing object is looked at again: files may have been written while the bucket was listed."""
        keys = list(dict.fromkeys(key for _, key, _ in lost))
        with ThreadPoolExecutor(_SECOND_LOOK_THREADS, thread_name_prefix="fsck") as pool:
            found = dict(zip(keys, pool.map(self._size, keys), strict=True))
        for row, key, size in lost:
            if found[key] == size:
                continue
            there = found[key]
            what = (
                f"object {key} is missing"
                if there is None
                else f"object {key} has {there} bytes and the file table says {size}"
            )
            place = locate(row.path)
            table, part = (place.uuid, place.part) if place else (None, None)
            findings.add(Problem("I3", what, self.disk, table, part, row.path, key))

    def _size(self, key: str) -> int | None:
        try:
            return self._source.store.head(key).size_bytes
        except NotFound:
            return None


def clickhouse_files(disk: ClickHouseLogDisk, findings: Findings, checked: Checked) -> FileTree:
    """The disk's files, and whether the bucket says which log it has."""
    sizes = {item.key: item.size_bytes for item in disk.store.list()}
    checked.objects += len(sizes)
    if not disk.check_schema() and any(map(is_numbered, sizes)):  # a disk without send_metadata has no log to mark
        what = f"{disk.store.name} does not say which format its log has: ClickHouse refuses to restore from it"
        findings.add(Problem("I15", what, disk.name, object=SCHEMA_VERSION_KEY))
    return ClickHouseFiles(disk, sizes)


def is_clickhouse_part(files: Mapping[str, FileRow]) -> bool:
    """Whether a part's directory is one of ClickHouse's."""
    return PART_FILE not in files and any(name in files for name in _MARKS)


def check_part(tree: FileTree, findings: Findings, uuid: str, name: str, files: Mapping[str, FileRow]) -> None:
    """Compare the part, and each of its projections, with its own checksums. What is found is reported only: a repair
    leaves foreign parts alone."""
    directory = directory_of(uuid, name)

    def report(invariant: str, message: str, file: str) -> None:
        row = files.get(file)
        key = row.key if row is not None else None
        findings.add(Problem(invariant, message, tree.disk, uuid, name, f"{directory}/{file}", key))

    for file in (CHECKSUMS, "columns.txt"):
        if file not in files:
            report("I1", f"part {name} of a ClickHouse table lacks {file}", file)
    if (row := files.get(CHECKSUMS)) is None:
        return
    listed = _listed(tree, row, report, CHECKSUMS)
    for projection in [file for file in listed if file.endswith(_PROJECTION)]:
        own = f"{projection}/{CHECKSUMS}"
        if (row := files.get(own)) is None:
            report("I1", f"projection {projection} of part {name} lacks {CHECKSUMS}: that of the part lists it", own)
        else:
            sizes = _listed(tree, row, report, own)
            listed.update((f"{projection}/{file}", size) for file, size in sizes.items())
    for file, size in listed.items():
        there = files.get(file)
        if file.endswith(_PROJECTION):
            continue
        if there is None and size:  # empty files have no object, from 25.5 on
            report("I1", f"file {file} of part {name} is missing: {CHECKSUMS} lists it", file)
        elif there is not None and there.size_bytes != size:
            report("I1", f"file has {there.size_bytes} bytes and {CHECKSUMS} says {size}", file)


def _listed(tree: FileTree, row: FileRow, report: Callable[[str, str, str], None], file: str) -> dict[str, int]:
    """What the checksums say; nothing, and told, where they cannot be read."""
    try:
        return parse(tree.content(row), name=f"{tree.disk}:{row.path}")
    except (Damaged, NotFound) as error:
        report("I15", error.message, file)
        return {}
