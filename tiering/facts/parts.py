"""Parts and tables as documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiering.catalog.catalog import StoredPart
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


def table_documents(store: Store) -> list[dict[str, Any]]:
    """`table list --json`."""
    documents: list[dict[str, Any]] = []
    for definition in store.definitions():
        parts = store.parts(definition.uuid)
        by_disk: dict[str, int] = {}
        for stored in parts:
            by_disk[stored.disk] = by_disk.get(stored.disk, 0) + stored.facts.size_bytes
        documents.append(
            {
                "table": definition.full_name,
                "uuid": definition.uuid,
                "policy": definition.policy,
                "parts": len(parts),
                "rows": sum(stored.facts.rows for stored in parts),
                "bytes": sum(by_disk.values()),
                "bytes_by_disk": by_disk,
            }
        )
    return documents


def usage_documents(parts: Sequence[StoredPart]) -> list[dict[str, Any]]:
    """`du --json`: what each partition of each table takes on each disk. Outdated parts take room and hold no rows."""
    totals: dict[tuple[str, str, str], list[int]] = {}
    for stored in parts:
        key = (stored.definition.full_name, stored.disk, stored.name.partition)
        entry = totals.setdefault(key, [0, 0, 0])
        entry[0] += 1
        entry[1] += stored.facts.rows if stored.state == "active" else 0
        entry[2] += stored.facts.size_bytes
    return [
        {"table": name, "disk": disk, "partition": partition, "parts": count, "rows": rows, "bytes": size_bytes}
        for (name, disk, partition), (count, rows, size_bytes) in sorted(totals.items())
    ]


def bytes_by_disk(disks: Iterable[str], parts: Iterable[StoredPart]) -> dict[str, int]:
    """What the parts take on each of the disks."""
    result = dict.fromkeys(disks, 0)
    for stored in parts:
        result[stored.disk] += stored.facts.size_bytes
    return result
