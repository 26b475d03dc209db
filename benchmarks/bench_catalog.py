"""What commands cost when a store has many parts, of which they need few: 100,000 by default, or as many as are said.

    python -m benchmarks.bench_catalog [PARTS]

The parts are descriptions without data. Processor time decides where two stores are compared: it is what is left of a
figure when other programs are busy too.

ext4 goes past each inode that was deleted in the last five minutes when it makes a file: what was deleted there before
the twenty commits makes these slow, and the copy after them less.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.measure import Figure, Run, bound_figure, ratio_figure, report, run, scratch, timed
from disks.local.disk import SETTLED_NS
from oplog.kinds import Inserted
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.table import part as part_format
from tiering.table import schema
from tiering.table.part import PART_FILE, ColumnRange, DataFile, Part, RowGroup
from tiering.table.schema import MoveToVolume, PartitionField, TtlRule

COLUMNS = 10
DAYS = 1000
COMMITS = 20
LATER_COMMITS = 5
COMMITTED = 100_000
FIRST = datetime(2024, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TABLE = schema.TableDefinition(
    uuid="5f0e8b1c-0000-4000-8000-000000000003",
    database="bench",
    name="many",
    columns=tuple(schema.Column(i + 1, f"c{i}", "timestamp[us, UTC]" if i == 0 else "int64") for i in range(COLUMNS)),
    order_by=("c0",),
    partition_by=(PartitionField("day", "c0"),),
    ttl=(TtlRule(36500 * 86400, "c0", MoveToVolume("cold")),),
    policy="hot_cold",
    last_column_id=COLUMNS,
)
PARTITION = f"{FIRST + timedelta(days=4):%Y%m%d}"
DUE = FIRST + timedelta(days=36500, hours=1)
"""Then the parts of one day are due, and no others."""
COMMANDS = (
    ("status",),
    ("parts", "bench.many", "--partition", PARTITION),
    ("plan",),
    ("explain", "bench.many", f"{PARTITION}_4_4_0"),
    ("plan", "--at", f"{DUE:%Y-%m-%dT%H:%M:%SZ}"),
    ("disks",),
    ("du",),
    ("query", f"SELECT count(*) FROM bench.many WHERE c0 >= '{FIRST + timedelta(days=DAYS):%Y-%m-%d}'"),
    ("metrics",),
)


def part(number: int, days: int = DAYS) -> Part:
    """A part as an insert leaves it: one data file, four row groups, ranges of every column. Of one of so many days."""
    day = FIRST + timedelta(days=number % days)
    moment = day.isoformat().replace("+00:00", "Z")
    ranges = {str(i + 1): ColumnRange(moment if i == 0 else 0, moment if i == 0 else number) for i in range(COLUMNS)}
    groups = tuple(RowGroup(100_000, 4_000_000 * i, 4_000_000, (moment,)) for i in range(4))
    file = DataFile("data-0000.parquet", 400_000, 16_000_000, f"{number:064x}", groups, ranges)
    return Part(
        table=TABLE.uuid,
        name=f"{day:%Y%m%d}_{number}_{number}_0",
        rows=400_000,
        size_bytes=16_000_000,
        created=FIRST,
        files=(file,),
        columns=ranges,
        digests=(f"{number:064x}",),
        partition_values=((day - _EPOCH).days,),
    )


def fill(home: Path, parts: int, days: int = DAYS) -> float:
    """A store with so many parts of so many days, by 20 commits; the seconds of these. What is beyond 100,000 parts is
    written beside them, by no commit and without waiting for the disk."""
    committed = min(parts, COMMITTED)
    seconds = _committed(home, committed, days)
    directory = home / "ssd" / TABLE.directory
    for number in range(committed + 1, parts + 1):
        one = part(number, days)
        (directory / one.name).mkdir()
        (directory / one.name / PART_FILE).write_bytes(part_format.encode(one))
    if parts > committed:
        time.sleep(2 * SETTLED_NS / 1e9)  # of what a hand changed just now no look can be kept
    return seconds


def fill_bucket(home: Path, parts: int) -> int:
    """The same in a bucket, and then five commits that bring a hundred parts each and take one away; the revision."""
    _committed(home, parts, DAYS, "s3")
    with Store.open(embedded(home)) as store:
        disk = store.object_disk("s3")
        for turn in range(LATER_COMMITS):
            with disk.transaction(Inserted()) as transaction:
                for number in range(parts + 1 + 100 * turn, parts + 101 + 100 * turn):
                    one = part(number)
                    transaction.create(f"{TABLE.part_directory(one.name)}/{PART_FILE}", part_format.encode(one))
                transaction.remove(TABLE.part_directory(part(1 + turn * (parts // 10)).name))
                transaction.commit()
        return disk.revision or 0


def past(home: Path, parts: int) -> list[Figure]:
    """A query of one partition in a bucket, as it is, a commit ago, and before half of the parts came."""
    head = fill_bucket(home, parts)
    frostline(home, "status")
    asked = next(command for command in COMMANDS if command[0] == "query")
    near, far = head - 1, head - LATER_COMMITS - COMMITS // 2
    figures = []
    for name, options, at_most in (
        ("query, bucket", (), 0.75),
        ("query --revision, a commit ago", ("--revision", str(near)), 1.0),
        ("query --revision, half of the parts ago", ("--revision", str(far)), 8.0),
    ):
        runs = [frostline(home, *asked, *options) for _ in range(3)]
        megabytes = f"({max(item.peak_bytes for item in runs) / 1e6:.0f} MB)"
        cpu = min(item.cpu_seconds for item in runs)
        figures.append(bound_figure(name, cpu, at_most=at_most, unit="s of processor time", detail=megabytes))
    return figures


def _committed(home: Path, parts: int, days: int, name: str = "ssd") -> float:
    with Store.open(embedded(home)) as store:
        store.create_table(TABLE)
        disk = store.disk(name)

        def commit_all() -> None:
            for first in range(1, parts + 1, max(parts // COMMITS, 1)):
                with disk.transaction(Inserted()) as transaction:
                    for number in range(first, min(first + max(parts // COMMITS, 1), parts + 1)):
                        one = part(number, days)
                        path = f"{TABLE.part_directory(one.name)}/{PART_FILE}"
                        transaction.create(path, part_format.encode(one))
                    transaction.commit()

        return timed(commit_all)


def copied(home: Path, target: Path) -> float:
    """The seconds that the system takes to copy the same files and make them durable."""

    def copy() -> None:
        subprocess.run(["cp", "-r", str(home / "ssd" / "store"), str(target)], check=True)
        subprocess.run(["sync", "-f", str(target)], check=True)

    return timed(copy)


def frostline(home: Path, *arguments: str) -> Run:
    command = [str(Path(sys.executable).with_name("frostline")), "--json", *arguments]
    return run(command, environment={"FROSTLINE_HOME": str(home)})


def inserted(home: Path, number: int) -> Run:
    """An insert of one row into the day of `number`."""
    file = home / f"{number}.csv"
    names = ",".join(f"c{i}" for i in range(COLUMNS))
    values = ",".join([f"{FIRST + timedelta(days=number):%Y-%m-%dT00:00:00Z}", *map(str, range(1, COLUMNS))])
    file.write_text(f"{names}\n{values}\n")
    return frostline(home, "insert", "bench.many", str(file))


def main() -> None:
    parts = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    figures: list[Figure] = []
    with scratch() as base:
        many, empty = base / "many", base / "empty"
        seconds = fill(many, parts)
        fill(empty, 0)
        if parts <= COMMITTED:
            cp = copied(many, base / "copy")
            name = f"{parts} parts in {COMMITS} commits"
            figures.append(ratio_figure(name, seconds, cp, at_most=2, baseline_name="cp and sync"))
            shutil.rmtree(base / "copy")
        first = frostline(many, "status")
        looked = f"({first.peak_bytes / 1e6:.0f} MB)"
        at_most = 15 * max(parts / 100_000, 1)
        figures.append(
            bound_figure("first look", first.cpu_seconds, at_most=at_most, unit="s of processor time", detail=looked)
        )
        for arguments in COMMANDS:
            runs = [frostline(many, *arguments) for _ in range(3)]
            cpu = min(item.cpu_seconds for item in runs)
            megabytes = max(item.peak_bytes for item in runs) / 1e6
            figures.append(
                bound_figure(
                    " ".join(arguments[:2]),
                    cpu,
                    at_most=0.5,
                    unit="s of processor time",
                    detail=f"({megabytes:.0f} MB)",
                )
            )
        for name, work in (
            ("insert", inserted),
            ("idle pass", lambda home, number: frostline(home, "tick", "--only", "moves")),
        ):
            ours = min(work(many, 2000 + turn).cpu_seconds for turn in range(3))
            theirs = min(work(empty, 2000 + turn).cpu_seconds for turn in range(3))
            figures.append(ratio_figure(name, ours, theirs, at_most=1.5, baseline_name="an empty store"))
        figures += past(base / "bucket", min(parts, COMMITTED))
    report(figures)


if __name__ == "__main__":
    main()
