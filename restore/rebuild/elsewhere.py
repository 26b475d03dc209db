"""What the disks of this machine hold, needed before one is taken back: a disk's log knows its own parts only."""

from __future__ import annotations

from collections.abc import Iterator

from restore.rebuild.duplicates import Elsewhere, PresentPart
from tiering.catalog.context import Context
from tiering.table import tombstones
from tiering.table.schema import TableDefinition


def look_around(context: Context) -> Elsewhere:
    """What all disks hold now; those that are not there, or cannot be reached, with what is known of them."""
    context.catalog.refresh()
    tables = context.catalog.tables()
    hidden = [gone.definition for gone in context.catalog.dropped()]
    parts = {table.uuid: tuple(present_parts(context, table)) for table in (*tables, *hidden)}
    notes = [f"what is on disk {fault.disk} is unknown: {fault.error.message}" for fault in context.faults]
    notes += [f"{broken.text}; it is unknown whether its rows are those restored" for broken in context.catalog.broken]
    stones = {table.uuid: ways_back_of(context, table.uuid) for table in hidden}
    return Elsewhere(parts, tables, notes, stones)


def ways_back_of(context: Context, uuid: str) -> dict[str, int]:
    """The disks that a way back took the table from, each with the version of its tombstone, which hides what other
    disks have of that version or an older one."""
    path, found = tombstones.path_of(uuid), dict[str, int]()
    for disk in context.disks.values():
        if not disk.capabilities.shared or not disk.exists(path) or disk.exists(tombstones.definition_path(uuid)):
            continue
        stone = tombstones.decode(disk.read(path), path=f"{disk.name}:{path}")
        if stone.by != "drop":
            found[disk.name] = stone.version
    return found


def present_parts(context: Context, table: TableDefinition) -> Iterator[PresentPart]:
    """All parts of a table, also those that do not answer; but for copies of what a commit took off a bucket."""
    window = table.settings.deduplication_window
    for stored in context.catalog.parts(table, include_outdated=True):
        if stored.state == "outdated" and context.catalog.copies.is_outdated(table, stored.label):
            continue
        yield PresentPart(table.uuid, stored.part, stored.disk, stored.state != "outdated", window)
