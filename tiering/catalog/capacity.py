"""How much lies on each disk, noted for who looks later."""

from __future__ import annotations

from contextlib import suppress

from oplog.errors import FrostlineError
from tiering.catalog.context import Context


def note(context: Context) -> None:
    """Note what the parts on each disk take, of the disks that can be looked at. A journal that cannot be written is
    no reason to fail."""
    sizes = {name: 0 for name, disk in context.disks.items() if disk.broken is None and not disk.unreachable}
    for table in context.catalog.tables():
        for stored in context.catalog.parts(table, include_outdated=True):
            if stored.disk in sizes:
                sizes[stored.disk] += stored.facts.size_bytes
    with suppress(FrostlineError):
        context.journal.capacity.note(sizes, context.clock())
