"""Objects of publications that no reader needs any more, for garbage collection."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from disks.contracts.bucket_disk import LoggedDisk
from disks.garbage.publications import version_of
from disks.stores.base import ObjectInfo
from oplog.errors import Damaged, NotFound
from oplog.revision import PUBLICATIONS_PREFIX
from tiering.iceberg import metadata as format_
from tiering.table import tombstones

if TYPE_CHECKING:
    from tiering.engine.store import Store


def stale_objects(store: Store, disk: LoggedDisk, *, now: datetime, guard: timedelta) -> list[ObjectInfo]:
    """The objects of publications on the disk that are older than the guard interval and that no metadata names which
    is the newest, or younger than that; and all of a table that is dropped or not published any more.

    Raises `Damaged` for metadata that cannot be read: then nothing of the disk's publications is stale.
    """
    tables: defaultdict[str, list[ObjectInfo]] = defaultdict(list)
    for info in disk.store.list(PUBLICATIONS_PREFIX):
        tables[info.key.split("/")[1]].append(info)
    definitions = {definition.uuid: definition for definition in store.definitions()}
    stale: list[ObjectInfo] = []
    for uuid, objects in tables.items():
        old = [info for info in objects if info.modified < now - guard]
        definition = definitions.get(uuid)
        is_over = not definition.is_published if definition is not None else disk.exists(tombstones.path_of(uuid))
        if is_over:
            stale += old
        elif old and definition is not None:
            needed = _needed(disk, objects, now - guard)
            stale += [info for info in old if info.key not in needed]
    return stale


def _needed(disk: LoggedDisk, objects: list[ObjectInfo], since: datetime) -> set[str]:
    """The keys that the newest metadata needs, and metadata since then: readers may have opened that. Of metadata that
    is not the newest, what cannot be read counts for nothing: no reader can read it either."""
    versions = {version: info for info in objects if (version := version_of(info.key)) is not None}
    newest = max(versions, default=0)
    needed = {info.key for info in objects if info.key.endswith("/version-hint.text")}
    for version, info in versions.items():
        if version != newest and info.modified < since:
            continue
        needed.add(info.key)
        try:
            _add_named(disk, info.key, needed)
        except Damaged:
            if version == newest:
                raise
    return needed


def _add_named(disk: LoggedDisk, key: str, needed: set[str]) -> None:
    """Add the keys that this metadata names. Raises `Damaged` where it, or a manifest list of it, cannot be read."""
    from tiering.iceberg.manifests import read_list

    directory = key.rpartition("/")[0]
    metadata = format_.decode(disk.store.get(key), path=disk.store.url(key))
    for snapshot in metadata.snapshots:
        listed = f"{directory}/{snapshot.manifest_list.rpartition('/')[2]}"
        if listed in needed:
            continue
        try:
            rows = read_list(disk.store.get(listed), url=snapshot.manifest_list)
        except NotFound:
            raise Damaged(
                f"{snapshot.manifest_list} is gone, and {disk.store.url(key)} names it",
                hint=format_.WRITE_AGAIN,
            ) from None
        needed |= {listed, *(f"{directory}/{row.manifest_path.rpartition('/')[2]}" for row in rows)}
