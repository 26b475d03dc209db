"""What tests of the index of parts share: a table, its parts, and a process that dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from disks import effects
from tiering.table.part import ColumnRange, DataFile, Part
from tiering.table.schema import Column, PartitionField, TableDefinition

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TABLE = TableDefinition(
    uuid="5f0e8b1c-0000-4000-8000-000000000004",
    database="d",
    name="t",
    columns=(Column(1, "ts", "timestamp[us, UTC]"), Column(2, "seen", "timestamp[us, UTC]"), Column(3, "k", "int64")),
    order_by=("ts",),
    partition_by=(PartitionField("day", "ts"),),
    policy="hot_cold",
    last_column_id=3,
)


def part(partition: int, block: int, level: int, rows: int, replaces: tuple[str, ...] = ()) -> Part:
    """A part of these rows."""
    moment = (BEGIN + timedelta(days=partition, hours=rows)).isoformat().replace("+00:00", "Z")
    later = (BEGIN + timedelta(days=partition + rows)).isoformat().replace("+00:00", "Z")
    ranges = {"1": ColumnRange(moment, moment), "2": ColumnRange(moment, later), "3": ColumnRange(0, rows)}
    file = DataFile("data-0000.parquet", rows, 10 * rows, f"{rows:064x}", (), ranges)
    return Part(
        table=TABLE.uuid,
        name=f"2026010{partition}_{block}_{block + level}_{level}",
        rows=rows,
        size_bytes=10 * rows,
        created=BEGIN + timedelta(minutes=rows),
        files=(file,),
        columns=ranges,
        digests=(f"{rows:064x}",),
        replaces=replaces,
        partition_values=(partition,),
    )


@contextmanager
def dying(at: int) -> Iterator[None]:
    """The process dies at this commit to the index, before it or after it."""
    left = at

    def hook(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if name == "sqlite.commit" and str(arguments[0]).endswith("index.db"):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

    effects.set_hook(hook)
    try:
        yield
    finally:
        effects.set_hook(None)
