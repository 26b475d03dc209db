"""What the lists of a backup name, and what of that a listing of the repository lacks. Reads lists, and no data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from backup.format import names
from backup.format.encoding import UnknownBackupFormat
from backup.format.header import BackupHeader, TableEntry, TreeEntry
from backup.format.lists import FileEntry, FileList, InBlob, InBucket, InPack, PartitionEntry, PartitionList
from backup.format.names import Ref
from backup.objects import Holdings
from backup.storage import Storage
from oplog.errors import Damaged, FrostlineError, NotFound

_UNREADABLE = (Damaged, NotFound, UnknownBackupFormat)


class Flaw(msgspec.Struct, frozen=True):
    """Something that is not as the backup says; what it is about is as narrow as is known."""

    key: str
    what: str
    table: str
    partition: str = ""
    part: str = ""
    file: str = ""
    unread: bool = False
    """The object did not come, though a listing shows it: it may the next time."""

    @property
    def text(self) -> str:
        about = [f"table {self.table}"]
        about += [f"partition {self.partition}"] if self.partition and not self.part else []
        about += [f"part {self.part}"] if self.part else []
        about += [f"file {self.file}"] if self.file else []
        return f"{', '.join(about)}: {self.key} {self.what}"


class NamedFile(msgspec.Struct, frozen=True):
    """One file that a backup names, with the partition's list that names it."""

    table: str
    partition: FileList
    part: str
    file: FileEntry

    @property
    def key(self) -> str:
        """The object that holds it: in the repository, or in the bucket of a disk."""
        return object_key(self.partition, self.file)

    def flaw(self, fault: str) -> Flaw:
        return Flaw(self.key, fault, self.table, self.partition.partition, self.part, self.file.name)


def object_key(partition: FileList, file: FileEntry) -> str:
    """The key of the object that holds the file."""
    match file.at:
        case InBlob(nonce):
            return names.content_key(names.BLOBS_PREFIX, file.sha256, nonce)
        case InPack(pack, _, _, _):
            ref = partition.packs[pack]
            return names.content_key(names.PACKS_PREFIX, ref.sha256, ref.nonce)
        case InBucket(_, key):
            return key


def walk(
    storage: Storage,
    holdings: Holdings | None,
    tables: Iterable[TableEntry],
    flaws: list[Flaw],
    trees: Iterable[TreeEntry] = (),
) -> Iterator[NamedFile]:
    """Every file that the lists of tables, and of what ClickHouse wrote, name. Lists that are gone or damaged go into
    `flaws`; without `holdings` they are read and not looked for in a listing."""
    for table in tables:
        listed = _tables_list(storage, holdings, table, flaws)
        for entry in listed:
            partition = _partitions_list(storage, holdings, table.name, entry.partition, entry.list, flaws)
            if partition is None:
                continue
            for part in partition.parts:
                for file in part.files:
                    yield NamedFile(table.name, partition, part.name, file)
    for tree in trees:
        key = names.content_key(names.LISTS_PREFIX, tree.list.sha256, tree.list.nonce)
        try:
            _require(holdings, tree.list)
            files = storage.tree(tree)
        except _UNREADABLE as error:
            flaws.append(Flaw(key, _what(error, key), tree.name))
            continue
        for part in files.parts:
            for file in part.files:
                yield NamedFile(tree.name, files, part.name, file)


def walk_backup(
    storage: Storage, holdings: Holdings | None, header: BackupHeader, flaws: list[Flaw]
) -> Iterator[NamedFile]:
    """Every file that a backup names."""
    return walk(storage, holdings, header.tables, flaws, header.trees)


def missing(holdings: Holdings, named: NamedFile) -> Flaw | None:
    """The flaw, when the listing lacks the file's object or shows another size. What lies in a disk's bucket is not
    looked for."""
    match named.file.at:
        case InBucket():
            return None
        case InBlob():
            wanted = named.file.size_bytes
        case InPack(pack, _, _, _):
            wanted = named.partition.packs[pack].size_bytes
    found = holdings.size_of(named.key)
    if found == wanted:
        return None
    if named.key in holdings.damaged:
        return named.flaw("is damaged, as an earlier verification found")
    if named.key in holdings.to_delete:
        return named.flaw("is being collected")
    if found is None:
        return named.flaw("is gone")
    return named.flaw(f"has {found} bytes instead of {wanted}")


def _tables_list(
    storage: Storage, holdings: Holdings | None, table: TableEntry, flaws: list[Flaw]
) -> tuple[PartitionEntry, ...]:
    key = names.content_key(names.LISTS_PREFIX, table.list.sha256, table.list.nonce)
    try:
        _require(holdings, table.list)
        return storage.table(table).partitions
    except _UNREADABLE as error:
        flaws.append(Flaw(key, _what(error, key), table.name))
        return ()


def _partitions_list(
    storage: Storage, holdings: Holdings | None, table: str, partition: str, ref: Ref, flaws: list[Flaw]
) -> PartitionList | None:
    key = names.content_key(names.LISTS_PREFIX, ref.sha256, ref.nonce)
    try:
        _require(holdings, ref)
        return storage.partition_list(ref)
    except _UNREADABLE as error:
        flaws.append(Flaw(key, _what(error, key), table, partition))
        return None


def _require(holdings: Holdings | None, ref: Ref) -> None:
    if holdings is not None and not holdings.has(names.LISTS_PREFIX, ref):
        key = names.content_key(names.LISTS_PREFIX, ref.sha256, ref.nonce)
        found = holdings.size_of(key)
        raise NotFound("is gone" if found is None else f"has {found} bytes instead of {ref.size_bytes}")


def _what(error: FrostlineError, key: str) -> str:
    """The message as what follows the key."""
    return error.message.rpartition(key)[2].strip(" :") or "cannot be read"
