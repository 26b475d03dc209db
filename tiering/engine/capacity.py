"""How much lies on each disk, noted for who looks later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from oplog.errors import FrostlineError
from tiering.catalog.context import Context
from tiering.config.units import format_size


def note(context: Context) -> None:
    """Note what the parts on each disk take, of the disks that can be looked at. A journal that cannot be written is
    no reason to fail."""
    sizes = {name: 0 for name, disk in context.disks.items() if disk.broken is None and not disk.unreachable}
    for table in context.catalog.tables():
        sums = context.catalog.sums(table)
        everything = context.catalog.parts(table, include_outdated=True) if sums is None else ()
        for disk, whole in (sums or {}).items():
            if disk in sizes:
                sizes[disk] += whole.bytes
        for stored in everything:
            if stored.disk in sizes:
                sizes[stored.disk] += stored.facts.size_bytes
    with suppress(FrostlineError):
        context.journal.capacity.note(sizes, context.clock())


def low(context: Context, ratio: float) -> Iterator[tuple[str, list[str]]]:
    """Each disk that has a size and can be used, with what is to be said when less than this share of it is free."""
    for name, state in context.reservations.states().items():
        if state.total_bytes and state.free_bytes is not None and not state.broken and not state.unreachable:
            is_low = state.free_bytes < state.total_bytes * ratio
            what = f"disk {name} has {format_size(state.free_bytes)} of {format_size(state.total_bytes)} free"
            yield name, [what] if is_low else []
