"""Which tables the disks define, read from all of them at once: the part of a catalog's look that is about no part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from disks.base import Disk, existing, read_each
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import Damaged, FrostlineError
from tiering.catalog.definitions.unreadable import UnreadableCopy, UnreadableTable, unreadable
from tiering.catalog.index.table import IndexedTable
from tiering.catalog.stored import Broken
from tiering.table import schema, tombstones
from tiering.table.paths import STORE_DIRECTORY, locate
from tiering.table.schema import TABLE_FILE, TableDefinition
from tiering.table.tombstones import Tombstone


class DroppedTable(msgspec.Struct, frozen=True):
    """A table that a bucket says is gone, and some disk still has: no verb sees it."""

    definition: TableDefinition
    tombstone: Tombstone | None
    """None when it cannot be read: then nobody knows who took the table away."""
    disks: tuple[str, ...]
    """Those that have it."""


class Snapshot(msgspec.Struct):
    """All that a catalog knows, replaced as a whole by its `refresh`."""

    tables: dict[str, TableDefinition] = msgspec.field(default_factory=dict)
    """by uuid"""
    copies: dict[str, set[str]] = msgspec.field(default_factory=dict)
    """uuid -> disks that hold the newest table.json"""
    holders: dict[str, set[str]] = msgspec.field(default_factory=dict)
    """uuid -> disks that hold any"""
    dropped: dict[str, DroppedTable] = msgspec.field(default_factory=dict)
    """by uuid"""
    unreadable: dict[str, UnreadableTable] = msgspec.field(default_factory=dict)
    """by uuid"""
    parts: dict[str, IndexedTable] = msgspec.field(default_factory=dict)
    """by uuid"""
    broken: list[Broken] = msgspec.field(default_factory=list)
    """But for parts."""
    dropping: frozenset[str] = frozenset()
    """Directories of tables and parts whose drop is decided and not finished."""


def read_tables(disks: Mapping[str, Disk], dropping: frozenset[str]) -> Snapshot:
    """The tables, without their parts."""
    snapshot = Snapshot(dropping=dropping)
    copies: dict[str, list[UnreadableCopy]] = {}
    for disk in disks.values():
        _read_tables(disk, snapshot, copies)
    for found in copies.values():
        _take_out_unreadable(disks, snapshot, found)
    _take_out_dropped(disks, snapshot)
    return snapshot


def _read_tables(disk: Disk, snapshot: Snapshot, copies: dict[str, list[UnreadableCopy]]) -> None:
    for shard in disk.list(STORE_DIRECTORY):
        for path, data in read_each(disk, f"{STORE_DIRECTORY}/{shard.rstrip('/')}", TABLE_FILE).items():
            try:
                definition = schema.decode(data, path=f"{disk.name}:{path}")
                if definition.directory != path.rpartition("/")[0]:
                    raise Damaged(f"{disk.name}:{path} describes another table: {definition.uuid}")
            except FrostlineError as error:
                snapshot.broken.append(broken := Broken(disk.name, path, error.message))
                if path.rpartition("/")[0] not in snapshot.dropping:
                    copies.setdefault(path, []).append(UnreadableCopy(broken, data))
                continue
            if definition.directory in snapshot.dropping:
                continue
            snapshot.holders.setdefault(definition.uuid, set()).add(disk.name)
            known = snapshot.tables.get(definition.uuid)
            if known is None or definition.version > known.version:
                snapshot.tables[definition.uuid] = definition
                snapshot.copies[definition.uuid] = {disk.name}
            elif definition.version == known.version:
                _take_copy(disk, snapshot, definition, known)


def _take_copy(disk: Disk, snapshot: Snapshot, definition: TableDefinition, other: TableDefinition) -> None:
    """One more copy of a version. Of two that differ the one of a log counts, whose digests tell what was written."""
    uuid = definition.uuid
    holders = snapshot.copies[uuid]
    if msgspec.structs.replace(definition, policy=other.policy) == other:
        holders.add(disk.name)
        return
    others = " and ".join(sorted(holders))
    differing = [disk.name]
    if as_disk(disk, LoggedDisk) is not None:
        differing, snapshot.tables[uuid], snapshot.copies[uuid] = sorted(holders), definition, {disk.name}
        others = disk.name
    for name in differing:
        message = f"{name}:{definition.path} differs from that of {others}, which has the same version"
        snapshot.broken.append(Broken(name, definition.path, message))


def _take_out_unreadable(disks: Mapping[str, Disk], snapshot: Snapshot, copies: Sequence[UnreadableCopy]) -> None:
    """Where the newest definition of a table cannot be read, no older one takes its place."""
    located = locate(copies[0].broken.path)
    readable = snapshot.tables.get(located.uuid) if located is not None else None
    table = unreadable(disks, copies, readable)
    if table is None:
        return
    if isinstance(table, TableDefinition):
        snapshot.tables[table.uuid] = table
        snapshot.holders.setdefault(table.uuid, set()).update(copy.broken.disk for copy in copies)
        if table is not readable:
            snapshot.copies[table.uuid] = set()
        return
    snapshot.tables.pop(table.uuid, None)
    stones = (_tombstone(disk, table.uuid) for disk in disks.values() if disk.capabilities.shared)
    stone = max(filter(None, stones), key=lambda tombstone: tombstone.version, default=None)
    if stone is None or stone.version < table.version:
        snapshot.unreadable[table.uuid] = table
        return
    holders = {*snapshot.holders.get(table.uuid, ()), *(copy.broken.disk for copy in copies)}
    snapshot.dropped[table.uuid] = DroppedTable(stone.definition, stone, tuple(sorted(holders)))


def _tombstone(disk: Disk, uuid: str) -> Tombstone | None:
    path = tombstones.path_of(uuid)
    if disk.exists(tombstones.definition_path(uuid)) or not disk.exists(path):
        return None
    with suppress(FrostlineError):
        return tombstones.decode(disk.read(path), path=f"{disk.name}:{path}")
    return None


def _take_out_dropped(disks: Mapping[str, Disk], snapshot: Snapshot) -> None:
    """Where the newest that any disk says of a table is a tombstone, there is no table."""
    for disk in disks.values():
        if not disk.capabilities.shared:
            continue
        lacking = {
            tombstones.path_of(uuid): table
            for uuid, table in snapshot.tables.items()
            if disk.name not in snapshot.holders[uuid]
        }
        for path in sorted(existing(disk, lacking)):
            table = lacking[path]
            try:
                tombstone = tombstones.decode(disk.read(path), path=f"{disk.name}:{path}")
            except FrostlineError as error:  # somebody dropped it: who, only a person can find out
                snapshot.broken.append(Broken(disk.name, path, error.message))
                tombstone = None
            if tombstone is None or tombstone.version >= table.version:
                holders = tuple(sorted(snapshot.holders[table.uuid]))
                snapshot.dropped[table.uuid] = DroppedTable(table, tombstone, holders)
                del snapshot.tables[table.uuid]
