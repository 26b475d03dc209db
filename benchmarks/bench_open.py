"""Open a store with 10,000 parts, half on SSD, half in the bucket, and plan it: at most 2 s, start-up included."""

from __future__ import annotations

import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measure import bound_figure, report, run, scratch
from oplog.kinds import Inserted
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.table import part as part_format
from tiering.table import schema
from tiering.table.part import ColumnRange, DataFile, Part, RowGroup
from tiering.table.schema import MoveToVolume, TtlRule

PARTS = 10_000
COLUMNS = 10

TABLE = schema.TableDefinition(
    uuid="5f0e8b1c-0000-4000-8000-000000000002",
    database="bench",
    name="many",
    columns=tuple(schema.Column(i + 1, f"c{i}", "timestamp[us, UTC]" if i == 0 else "int64") for i in range(COLUMNS)),
    order_by=("c0",),
    ttl=(TtlRule(30 * 86400, "c0", MoveToVolume("cold")),),
    policy="hot_cold",
    last_column_id=COLUMNS,
)


def part(number: int) -> Part:
    """A part as an insert leaves it: one data file, four row groups, ranges of every column."""
    moment = datetime(2026, 1 + number % 12, 1 + number % 28, tzinfo=UTC).isoformat().replace("+00:00", "Z")
    ranges = {str(i + 1): ColumnRange(moment if i == 0 else 0, moment if i == 0 else number) for i in range(COLUMNS)}
    groups = tuple(RowGroup(100_000, 4_000_000 * i, 4_000_000, (moment,)) for i in range(4))
    file = DataFile("data-0000.parquet", 400_000, 16_000_000, f"{number:064x}", groups, ranges)
    return Part(
        table=TABLE.uuid,
        name=f"all_{number}_{number}_0",
        rows=400_000,
        size_bytes=16_000_000,
        created=datetime(2026, 1, 1, tzinfo=UTC),
        files=(file,),
        columns=ranges,
        digests=(f"{number:064x}",),
    )


def main() -> None:
    with scratch() as home:
        with Store.open(embedded(home)) as store:
            store.create_table(TABLE)
            for disk, first in (("ssd", 1), ("s3", PARTS // 2 + 1)):
                with store.disk(disk).transaction(Inserted()) as transaction:
                    for number in range(first, first + PARTS // 2):
                        directory = TABLE.part_directory(f"all_{number}_{number}_0")
                        transaction.create(f"{directory}/part.json", part_format.encode(part(number)))
                    transaction.commit()
        command = [str(Path(sys.executable).with_name("frostline")), "--json", "plan"]
        environment = {"FROSTLINE_HOME": str(home)}
        run(command, environment=environment)
        runs = [run(command, environment=environment) for _ in range(5)]
        seconds = statistics.median(item.seconds for item in runs)
        memory = max(item.peak_bytes for item in runs) / 1e6
        report(
            [bound_figure(f"open {PARTS} parts and plan", seconds, at_most=2, unit="s", detail=f"({memory:.0f} MB)")]
        )


if __name__ == "__main__":
    main()
