"""The tree of a backup: from where its files are to the lists that name them. Pure; the caller puts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from backup.create.known import Place, StayedInBucket, StoredBlob, StoredInPack
from backup.format.lists import FileEntry, InBlob, InBucket, InPack, PartEntry, PartitionList
from backup.format.names import Ref
from tiering.table.part import PART_FILE


class PlacedFile(msgspec.Struct, frozen=True):
    """A file and where its bytes are."""

    name: str
    size_bytes: int
    sha256: str
    location: Place


class TreePart(msgspec.Struct, frozen=True):
    """A part whose files are all in place."""

    name: str
    partition: str
    disk: str
    rows: int
    files: tuple[PlacedFile, ...]


def partition_lists(parts: Iterable[TreePart]) -> Iterator[PartitionList]:
    """The list of each partition, in the order of their names. Equal parts in equal places give equal lists."""
    by_partition: dict[str, list[TreePart]] = {}
    for part in parts:
        by_partition.setdefault(part.partition, []).append(part)
    for partition in sorted(by_partition):
        yield _partition_list(partition, sorted(by_partition[partition], key=lambda part: part.name))


def _partition_list(partition: str, parts: list[TreePart]) -> PartitionList:
    packs, entries = listed_parts(parts)
    return PartitionList(partition=partition, packs=packs, parts=entries)


def listed_parts(parts: list[TreePart]) -> tuple[tuple[Ref, ...], tuple[PartEntry, ...]]:
    """The packs that hold files of the parts, and the parts as a list names them."""
    packs = sorted(
        {file.location.pack for part in parts for file in part.files if isinstance(file.location, StoredInPack)},
        key=lambda pack: (pack.sha256, pack.nonce),
    )
    numbers = {pack: number for number, pack in enumerate(packs)}
    entries = tuple(
        PartEntry(part.name, part.disk, part.rows, tuple(_entry(file, numbers) for file in part.files))
        for part in parts
    )
    return tuple(packs), entries


def _entry(file: PlacedFile, numbers: dict[Ref, int]) -> FileEntry:
    match file.location:
        case StoredBlob(nonce):
            at: InBlob | InPack | InBucket = InBlob(nonce)
        case StoredInPack(pack, offset, length, compressed):
            at = InPack(numbers[pack], offset, length, compressed)
        case StayedInBucket(disk, key):
            at = InBucket(disk, key)
    return FileEntry(file.name, file.size_bytes, file.sha256, at)


def totals(parts: Iterable[PartEntry]) -> tuple[int, int, int, int]:
    """Parts, rows, files, and bytes of the data files."""
    listed = list(parts)
    size_bytes = sum(file.size_bytes for part in listed for file in part.files if file.name != PART_FILE)
    return len(listed), sum(part.rows for part in listed), sum(len(part.files) for part in listed), size_bytes
