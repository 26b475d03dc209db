"""Open a store with 10,000 parts, half on SSD, half in the bucket, and plan it, start-up included: at most 0.4 s. Also
while the parts came less than two seconds ago: of what changed just now no look can be kept."""

from __future__ import annotations

import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measure import Figure, Run, bound_figure, report, run, scratch
from disks.local.disk import SETTLED_NS
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
        frostline_plan(home)
        figures = [figure(home, f"open {PARTS} parts of just now and plan", at_most=0.5)]
        time.sleep(2 * SETTLED_NS / 1e9)
        frostline_plan(home)
        figures.append(figure(home, f"open {PARTS} parts and plan", at_most=0.4))
        report(figures)


def figure(home: Path, name: str, *, at_most: float) -> Figure:
    """The median of five."""
    runs = [frostline_plan(home) for _ in range(5)]
    megabytes = f"({max(one.peak_bytes for one in runs) / 1e6:.0f} MB)"
    return bound_figure(
        name, statistics.median(one.seconds for one in runs), at_most=at_most, unit="s", detail=megabytes
    )


def frostline_plan(home: Path) -> Run:
    """Once, from the command line."""
    command = [str(Path(sys.executable).with_name("frostline")), "--json", "plan"]
    return run(command, environment={"FROSTLINE_HOME": str(home)})


if __name__ == "__main__":
    main()
