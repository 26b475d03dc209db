"""What the disks of this machine hold, for whoever takes one of them back: a disk's log knows its own parts only."""

from __future__ import annotations

from collections.abc import Iterator

from restore.rebuild.presence import Elsewhere, PresentPart
from tiering.catalog.context import Context
from tiering.table.schema import TableDefinition


def look_around(context: Context) -> Elsewhere:
    """What all disks hold now; those that are not there, or cannot be reached, with what is known of them."""
    context.catalog.refresh()
    tables = context.catalog.tables()
    hidden = [gone.definition for gone in context.catalog.dropped()]
    parts = {table.uuid: tuple(present_parts(context, table)) for table in (*tables, *hidden)}
    notes = [f"what lies on disk {fault.disk} is not known: {fault.error.message}" for fault in context.faults]
    notes += [
        f"{broken.text}; whether its rows are those that come back cannot be told" for broken in context.catalog.broken
    ]
    return Elsewhere(parts, tables, notes)


def present_parts(context: Context, table: TableDefinition) -> Iterator[PresentPart]:
    """All parts of a table, also those that do not answer."""
    for stored in context.catalog.parts(table, include_outdated=True):
        yield PresentPart(table.uuid, stored.part, stored.disk, stored.state != "outdated")
