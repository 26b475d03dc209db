"""Publications follow what was committed: after each verb that changes something, and in each pass of the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from disks.contracts.bucket_disk import LoggedDisk
from disks.effects import remove_file
from disks.garbage.publications import remove_publication
from oplog.errors import FrostlineError
from oplog.revision import PUBLICATIONS_PREFIX
from tiering.table import tombstones

if TYPE_CHECKING:
    from tiering.engine.store import Store


def publish_due(store: Store) -> list[str]:
    """Publish every table whose bucket has changed since its last publication; why those failed that did. They are
    published next time."""
    is_published = any(definition.is_published for definition in store.context.catalog.last_tables())
    if not is_published and not any(_kept(disk) for disk in store.object_disks()):
        return []  # at no cost
    problems = _end_dropped(store)
    for definition in store.definitions():
        if definition.is_published and not store.context.stop.is_set():
            from tiering.iceberg.publication import Publication

            try:
                Publication(store, definition).publish()
            except FrostlineError as error:
                hint = f"; {error.hint}" if error.hint else ""
                problems.append(f"{definition.full_name} is not published as it is now: {error.message}{hint}")
            except ValueError as error:  # of the library, about this table: no other verb fails for it
                problems.append(f"{definition.full_name} is not published as it is now: {error}"[:500])
    return problems


def _end_dropped(store: Store) -> list[str]:
    """Remove the publications of tables that were dropped, as far as this machine made them; why those failed that
    did. Garbage collection finds all others."""
    problems = []
    uuids = {definition.uuid for definition in store.definitions()}
    for disk in store.object_disks():
        for kept in _kept(disk):
            if kept.stem in uuids or not disk.exists(tombstones.path_of(kept.stem)):
                continue
            try:
                remove_publication(disk.store, f"{PUBLICATIONS_PREFIX}{kept.stem}/")
                remove_file(kept, missing_ok=True)
            except FrostlineError as error:
                problems.append(f"the publication of dropped table {kept.stem} is still there: {error.message}")
    return problems


def _kept(disk: LoggedDisk) -> list[Path]:
    """What this machine keeps of publications on the disk, in files that are named after tables."""
    return list((disk.state_path / PUBLICATIONS_PREFIX).glob("*.json"))
