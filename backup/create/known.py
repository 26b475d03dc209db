"""What the repository holds already, by SHA-256: so a backup sends only what is new, wherever a part lies now.

What earlier backups name counts while a listing shows it with its size. What no backup names counts only while it is
young: a backup that was killed had sent it, and nobody collects it yet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from backup.copies import CopiesSeen
from backup.format import names, packs
from backup.format.encoding import UnknownBackupFormat
from backup.format.header import BackupHeader
from backup.format.lists import FileList, InBlob, InPack, PartitionList, TableList
from backup.format.names import Ref
from backup.objects import Holdings
from backup.storage import Storage
from disks.stores.base import ByteRange
from oplog.errors import Damaged, NotFound

REUSE_WITHIN = timedelta(hours=12)
"""Half of the time for which an object that no backup names is left alone."""


class StoredBlob(msgspec.Struct, frozen=True):
    """A file that is an object of the repository."""

    nonce: str


class StoredInPack(msgspec.Struct, frozen=True):
    """A file that is a stretch of a pack."""

    pack: Ref
    offset: int
    length: int
    compressed: bool


class StayedInBucket(msgspec.Struct, frozen=True):
    """A file whose object stays in the bucket of a disk."""

    disk: str
    key: str


Place = StoredBlob | StoredInPack | StayedInBucket


class Known(msgspec.Struct):
    """Files by (SHA-256, size), and lists by their digest."""

    files: dict[tuple[str, int], Place] = msgspec.field(default_factory=dict)
    lists: dict[str, Ref] = msgspec.field(default_factory=dict)
    sources: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)
    """Content by the digest of the names of its objects, of files whose digest a disk does not know."""


def known_content(storage: Storage, headers: Sequence[BackupHeader], tables: Collection[str], now: datetime) -> Known:
    """What is there of these tables (uuids and names), as a listing made now shows it."""
    holdings = storage.holdings(to_count_on=True)
    known = Known()
    named_packs: set[tuple[str, str]] = set()
    entries = [table for header in headers for table in header.tables if {table.uuid, table.name} & set(tables)]
    with storage.copies.of(names.LISTS_PREFIX, holdings.objects) as copied:
        whole_tables = _readable(storage, {table.list for table in entries}, holdings, known, copied, tables=True)
        refs = {entry.list for listed in whole_tables if isinstance(listed, TableList) for entry in listed.partitions}
        for partition in _readable(storage, refs, holdings, known, copied, tables=False):
            assert isinstance(partition, PartitionList)
            named_packs.update((pack.sha256, pack.nonce) for pack in partition.packs)
            _add(known, partition, holdings)
    _add_trees(storage, known, headers, holdings)
    _add_young(storage, known, holdings, named_packs, now)
    return known


def _add_trees(storage: Storage, stored: Known, headers: Sequence[BackupHeader], holdings: Holdings) -> None:
    """What is there of the directories that ClickHouse wrote, as their newest backups name it."""
    newest = {(tree.disk, tree.directory): tree.list for header in headers for tree in header.trees}
    for ref in newest.values():
        if holdings.has(names.LISTS_PREFIX, ref):
            with suppress(Damaged, NotFound, UnknownBackupFormat):
                listed = storage.tree_list(ref)
                stored.lists[ref.sha256] = ref
                stored.sources.update({source: (sha256, size) for source, sha256, size in listed.sources})
                _add(stored, listed, holdings)


def _readable(
    storage: Storage, refs: set[Ref], holdings: Holdings, stored: Known, copied: CopiesSeen, *, tables: bool
) -> list[TableList | PartitionList]:
    """The lists that are there and sound; what others name is sent again, and `verify` tells of them."""

    def read(ref: Ref) -> TableList | PartitionList | None:
        modified = holdings.objects[names.content_key(names.LISTS_PREFIX, ref.sha256, ref.nonce)].modified
        try:
            return storage.copied_list(ref, modified, copied, table=tables)
        except (Damaged, NotFound, UnknownBackupFormat):
            return None

    fresh = [ref for ref in sorted(refs, key=lambda ref: ref.sha256) if holdings.has(names.LISTS_PREFIX, ref)]
    answers = list(zip(fresh, storage.each(read, fresh), strict=True))
    stored.lists.update({ref.sha256: ref for ref, answer in answers if answer is not None})
    for ref, answer in answers:
        if answer is None:  # young or not, nothing counts on it any more
            holdings.objects.pop(names.content_key(names.LISTS_PREFIX, ref.sha256, ref.nonce), None)
    return [answer for _, answer in answers if answer is not None]


def _add(stored: Known, partition: FileList, holdings: Holdings) -> None:
    whole = [holdings.has(names.PACKS_PREFIX, pack) for pack in partition.packs]
    for part in partition.parts:
        for file in part.files:
            content = (file.sha256, file.size_bytes)
            match file.at:
                case InBlob(nonce):
                    if holdings.has(names.BLOBS_PREFIX, Ref(file.sha256, nonce, file.size_bytes)):
                        stored.files[content] = StoredBlob(nonce)
                case InPack(pack, offset, length, compressed) if whole[pack]:
                    stored.files[content] = StoredInPack(partition.packs[pack], offset, length, compressed)
                case _:
                    pass


def _add_young(
    storage: Storage, stored: Known, holdings: Holdings, named_packs: set[tuple[str, str]], now: datetime
) -> None:
    young = {key: info for key, info in holdings.objects.items() if abs(now - info.modified) < REUSE_WITHIN}
    packs_left: list[Ref] = []
    for key, info in young.items():
        content = names.parse_content_key(key)
        if content is None:
            continue
        sha256, nonce = content
        if key.startswith(names.BLOBS_PREFIX):
            stored.files.setdefault((sha256, info.size_bytes), StoredBlob(nonce))
        elif key.startswith(names.LISTS_PREFIX):
            stored.lists.setdefault(sha256, Ref(sha256, nonce, info.size_bytes))
        elif content not in named_packs:
            packs_left.append(Ref(sha256, nonce, info.size_bytes))
    for ref, entries in zip(packs_left, storage.each(lambda ref: _index_of(storage, ref), packs_left), strict=True):
        for entry in entries:
            location = StoredInPack(ref, entry.offset, entry.length, entry.compressed)
            stored.files.setdefault((entry.sha256, entry.size_bytes), location)


def _index_of(storage: Storage, ref: Ref) -> list[packs.Packed]:
    """The files of a pack, from its own index; none when it is gone or damaged."""
    key = names.content_key(names.PACKS_PREFIX, ref.sha256, ref.nonce)
    where = f"{storage.name}{key}"
    end = ref.size_bytes - packs.TAIL_BYTES
    try:
        length = packs.index_length(storage.store.get(key, ByteRange(max(end, 0), ref.size_bytes)), where)
        start = end - length
        if start < 0:
            return []
        return packs.read_index(storage.store.get(key, ByteRange(start, end)), ref.size_bytes, where)
    except (Damaged, NotFound):
        return []
