"""Partitions in buckets that have very many parts. Rows that come late leave a part each time, and each costs a request
and a look for as long as it lies there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tiering.engine.store import Store
    from tiering.table.schema import TableDefinition


_LARGE_BYTES = 64 * 1024 * 1024
"""Parts of this size on average are many because there is much, and gain little by a merge."""


class Crowded(msgspec.Struct, frozen=True):
    """A partition of a table on a disk in a bucket."""

    table: str
    disk: str
    partition: str
    parts: int


def crowded(store: Store, most_parts: int) -> list[Crowded]:
    """The partitions with more parts than that, which are small, the fullest first; none for 0. Of replicated tables
    none: what of them merges is agreed upon."""
    if not most_parts:
        return []
    partitions = [
        Crowded(definition.full_name, disk, partition, parts)
        for definition in store.definitions()
        if not definition.is_replicated
        for (disk, partition), (parts, size_bytes) in _sums(store, definition)
        if parts > most_parts and size_bytes < parts * _LARGE_BYTES and store.disk(disk).capabilities.remote
    ]
    return sorted(partitions, key=lambda partition: (-partition.parts, partition.table, partition.partition))


def _sums(store: Store, definition: TableDefinition) -> Iterator[tuple[tuple[str, str], tuple[int, int]]]:
    """How many parts and bytes each partition has on each disk. Goes through them only where nothing else tells."""
    sums = store.context.catalog.sums(definition)
    if sums is not None:
        for disk, whole in sums.items():
            for partition, held in whole.partitions.items():
                yield (disk, partition), (held.parts, held.bytes)
        return
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for stored in store.context.catalog.originals(definition):
        counts[stored.disk, stored.name.partition] += 1
        sizes[stored.disk, stored.name.partition] += stored.facts.size_bytes
    for place, parts in counts.items():
        yield place, (parts, sizes[place])
