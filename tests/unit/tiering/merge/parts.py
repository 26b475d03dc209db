"""Parts that may be merged."""

from __future__ import annotations

from datetime import UTC, datetime

from tiering.catalog.catalog import StoredPart
from tiering.table.definitions import define_table
from tiering.table.part import Part, PartName

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEFINITION = define_table("a.b", columns=["k:int64"], order_by="k", policy="p")
MIB = 1024**2


def part(
    block: int, size: int, *, last: int | None = None, level: int = 0, partition: str = "all", volume: str = "hot",
    created: datetime = NOW,
) -> StoredPart:  # fmt: skip
    name = PartName(partition, block, last or block, level)
    described = Part(table="t", name=str(name), rows=1, size_bytes=size, created=created)
    return StoredPart(DEFINITION, described, name, volume, volume, None)
