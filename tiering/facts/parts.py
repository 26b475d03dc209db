"""Parts and tables as documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tiering.catalog.catalog import Catalog, StoredPart
    from tiering.engine.store import Store
    from tiering.table.schema import TableDefinition


def part_document(stored: StoredPart) -> dict[str, Any]:
    """One line of `parts --json`."""
    first, last = time_range(stored)
    return {
        "table": stored.definition.full_name,
        "part": stored.facts.name,
        "partition": stored.name.partition,
        "disk": stored.disk,
        "volume": stored.volume,
        "rows": stored.facts.rows,
        "bytes": stored.facts.size_bytes,
        "level": stored.name.level,
        "state": stored.state,
        "min_time": first,
        "max_time": last,
        "revision": stored.revision,
    }


def time_range(stored: StoredPart) -> tuple[Any, Any]:
    """The range of the column that tells the part's age: of the TTL, else of the partition, else the first time."""
    name = time_column(stored.definition)
    known = stored.facts.columns.get(name) if name is not None else None
    return (known.min, known.max) if known else (None, None)


def time_column(definition: TableDefinition) -> str | None:
    """The id of that column; None where no column is a time."""
    wanted = [rule.column for rule in definition.ttl] + [field.column for field in definition.partition_by]
    timed = {item.name: item for item in definition.columns if item.type.startswith(("timestamp", "date"))}
    return next((str(timed[name].id) for name in (*wanted, *timed) if name in timed), None)


class Summed(msgspec.Struct, frozen=True):
    """The parts of a partition on a disk."""

    definition: TableDefinition
    disk: str
    partition: str
    parts: int
    rows: int
    """Outdated parts hold none."""
    bytes: int


def summed(store: Store, definitions: Iterable[TableDefinition], *, include_outdated: bool = False) -> list[Summed]:
    """What the parts of the tables are together, by table, disk and partition. Goes through the parts only where
    nothing else tells."""
    return [
        item
        for definition in definitions
        for item in _summed(store.context.catalog, definition, include_outdated=include_outdated)
    ]


def _summed(catalog: Catalog, definition: TableDefinition, *, include_outdated: bool) -> list[Summed]:
    sums = catalog.sums(definition)
    if sums is not None:
        return [
            Summed(definition, disk, partition, found.parts, found.rows, found.bytes)
            for disk, whole in sums.items()
            for partition, found in whole.partitions.items()
        ]
    totals: dict[tuple[str, str], list[int]] = {}
    for stored in catalog.parts(definition, include_outdated=include_outdated):
        entry = totals.setdefault((stored.disk, stored.name.partition), [0, 0, 0])
        entry[0] += 1
        entry[1] += stored.facts.rows if stored.state == "active" else 0
        entry[2] += stored.facts.size_bytes
    return [Summed(definition, disk, partition, *entry) for (disk, partition), entry in totals.items()]


def table_documents(store: Store) -> list[dict[str, Any]]:
    """`table list --json`."""
    documents: list[dict[str, Any]] = []
    for definition in store.definitions():
        sums = summed(store, [definition])
        by_disk: dict[str, int] = {}
        for item in sums:
            by_disk[item.disk] = by_disk.get(item.disk, 0) + item.bytes
        documents.append(
            {
                "table": definition.full_name,
                "uuid": definition.uuid,
                "policy": definition.policy,
                "parts": sum(item.parts for item in sums),
                "rows": sum(item.rows for item in sums),
                "bytes": sum(by_disk.values()),
                "bytes_by_disk": by_disk,
            }
        )
    return documents


def usage_documents(store: Store, table: str | None = None) -> list[dict[str, Any]]:
    """`du --json`: what each partition of each table takes on each disk. Outdated parts take room and hold no rows."""
    definitions = store.definitions() if table is None else [store.definition(table)]
    documents = [
        {
            "table": usage.definition.full_name,
            "disk": usage.disk,
            "partition": usage.partition,
            "parts": usage.parts,
            "rows": usage.rows,
            "bytes": usage.bytes,
        }
        for usage in summed(store, definitions, include_outdated=True)
    ]
    return sorted(documents, key=lambda document: (document["table"], document["disk"], document["partition"]))


def bytes_by_disk(disks: Iterable[str], sums: Iterable[Summed]) -> dict[str, int]:
    """What the parts take on each of the disks."""
    result = dict.fromkeys(disks, 0)
    for item in sums:
        result[item.disk] += item.bytes
    return result
