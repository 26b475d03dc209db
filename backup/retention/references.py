"""What the backups of a repository name, complete ones and those that are about to be: read whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from backup.completeness import object_key
from backup.format import names
from backup.format.header import BackupHeader
from backup.format.lists import FileList, InBucket
from backup.format.names import Ref
from backup.storage import BrokenBackup, Storage
from disks.stores.checks import check_listed
from oplog.errors import Damaged, NotFound

_L = TypeVar("_L")


class Named(msgspec.Struct):
    """The objects that backups name."""

    sizes: dict[str, int] = msgspec.field(default_factory=dict)
    """Key -> the size that the lists give it. Each object once, however many backups name it."""
    backups: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    """The ids of those that were read, each with the keys that its header and its claim have."""


def named_by(storage: Storage, headers: Iterable[BackupHeader], *, strict: bool = True) -> Named:
    """The repository's objects that these backups name; each list is read once. With `strict` raises `Damaged` when a
    list cannot be read; else what it names is left out."""
    found, headers = Named(), list(headers)
    tables: dict[Ref, BackupHeader] = {}
    for header in headers:
        found.backups[header.id] = (header.key, names.claim_key(header.id))
        tables.update({table.list: header for table in header.tables})
    partitions: dict[Ref, BackupHeader] = {}
    trees = {tree.list: header for header in headers for tree in header.trees}
    for listed, header in _read(storage, storage.table_list, tables, strict, found):
        partitions.update({entry.list: header for entry in listed.partitions})
    files: list[tuple[FileList, BackupHeader]] = [*_read(storage, storage.partition_list, partitions, strict, found)]
    files += _read(storage, storage.tree_list, trees, strict, found)
    for partition, _ in files:
        found.sizes.update(
            {
                names.content_key(names.PACKS_PREFIX, pack.sha256, pack.nonce): pack.size_bytes
                for pack in partition.packs
            }
        )
        for part in partition.parts:
            for file in part.files:
                if (key := object_key(partition, file)) not in found.sizes and not isinstance(file.at, InBucket):
                    found.sizes[key] = file.size_bytes
    return found


def _read(
    storage: Storage, read: Callable[[Ref], _L], backups: Mapping[Ref, BackupHeader], strict: bool, named: Named
) -> list[tuple[_L, BackupHeader]]:
    def answer(ref: Ref) -> _L | None:
        key = names.content_key(names.LISTS_PREFIX, ref.sha256, ref.nonce)
        try:
            return read(ref)
        except (Damaged, NotFound) as error:
            if not strict:
                return None
            backup = backups[ref]
            raise Damaged(
                f"what backup {backup.name} ({backup.id}) names is unknown: {key} cannot be read: {error.message}",
                hint="bring the list back, or delete that backup ('frostline backup delete')",
            ) from error

    refs = sorted(backups, key=lambda ref: (ref.sha256, ref.nonce))
    named.sizes.update({names.content_key(names.LISTS_PREFIX, ref.sha256, ref.nonce): ref.size_bytes for ref in refs})
    answers = zip(refs, storage.each(answer, refs), strict=True)
    return [(listed, backups[ref]) for ref, listed in answers if listed is not None]


def roots(storage: Storage) -> list[BackupHeader]:
    """All backups that are complete, or have claimed what they are about to name. Raises `Damaged` when one cannot be
    read."""
    claims = storage.claims()  # before the headers: a claim stays until its header is there
    headers, broken = storage.headers()
    found: dict[str, BackupHeader] = {}
    for root in (*claims, *headers, *broken):
        if isinstance(root, BrokenBackup):
            backup_id = root.key.removesuffix(".json")[-16:]
            raise Damaged(
                f"what {storage.name}{root.key} names is unknown: {root.error.message}",
                hint=f"use a newer frostline where that wrote it; else 'frostline backup delete {backup_id}'",
            )
        found[root.id] = root
    return list(found.values())


def check_roots(storage: Storage, seen: Iterable[tuple[str, str]], headers: Iterable[BackupHeader]) -> None:
    """Raise `WrongAnswer` when a backup that was seen before, by its header or its claim, is not among those that were
    found, and is still there. A header that was given up, and all that is gone, need not be."""
    ids = {root.id for root in headers}
    missing = [(backup, key) for backup, key in seen if backup not in ids]
    check_listed(storage.store, [key for _, key in missing if not storage.is_given_up(key)], ())
