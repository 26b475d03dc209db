"""The table of the Spark benchmarks: log lines of 1000 services over some days, the same every time.

    python -m benchmarks.spark_data DIR [--rows 32000000] [--parts 64] [--partitions 8] [--url s3://bucket/prefix/]

makes a store below DIR whose table `bench.logs` lies in a bucket (a directory below DIR by default) and prints the path
of its configuration. Days are partitions; a part holds some hours of a day and a quarter of an hour of the part before
it, so that the parts of a day overlap a little, as those of a day's inserts do.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pyarrow as pa

from tiering.engine.store import Store
from tiering.table.schema import Column, PartitionField, TableDefinition, TableSettings

TABLE = "bench.logs"
FIRST_DAY = 20_454
"""2026-01-01, in days since 1970."""
DAY_MICROS = 86_400_000_000
OVERLAP_MICROS = 900_000_000
_SERVICES = sorted(f"{team}-{number:03d}.{zone}" for team in "abcdefgh" for number in range(25) for zone in "vwxyz")
_LEVELS = ("debug", "error", "info", "warning")
_VERBS = ("accepted", "closed", "dropped", "fetched", "retried", "stored", "timed out", "verified")
COLUMNS = {
    "service": "string",
    "ts": "timestamp[us, UTC]",
    "level": "string",
    "host": "string",
    "status": "int32",
    "latency_ms": "float64",
    "load": "float32",
    "size": "int64",
    "trace": "int64",
    "message": "string",
}


def definition(
    *, policy: str = "cold", row_group_rows: int = 65_536, nullable: bool = False, **settings: int
) -> TableDefinition:
    """The table, sorted by (service, ts), a partition a day. One insert of any size makes one part a day. No column
    takes nulls, unless all are to be `nullable`."""
    return TableDefinition(
        uuid="5f0e8b1c-0000-4000-8000-00000000109e",
        database="bench",
        name="logs",
        columns=tuple(
            Column(number, name, kind, nullable=nullable) for number, (name, kind) in enumerate(COLUMNS.items(), 1)
        ),
        order_by=("service", "ts"),
        partition_by=(PartitionField("day", "ts"),),
        policy=policy,
        settings=TableSettings(insert_block_rows=1 << 30, row_group_rows=row_group_rows, **settings),
        last_column_id=len(COLUMNS),
    )


def parts(rows: int = 32_000_000, number: int = 64, partitions: int = 8) -> Iterator[pa.Table]:
    """The rows of each part, sorted; the parts of a day follow one another."""
    for part in range(number):
        each = number // partitions
        yield part_rows(part // each, part % each, rows // number, each)


def part_rows(day: int, slot: int, rows: int, slots: int) -> pa.Table:
    """One part: `slot` of the `slots` of a day."""
    random = numpy.random.default_rng((day, slot))
    weights = 1 / numpy.arange(1, len(_SERVICES) + 1) ** 0.8
    places = numpy.random.default_rng(7).permutation(len(_SERVICES))
    service = places[random.choice(len(_SERVICES), rows, p=weights / weights.sum())]
    width = DAY_MICROS // slots
    low = slot * width - (OVERLAP_MICROS if slot else 0)
    moments = (FIRST_DAY + day) * DAY_MICROS + random.integers(low // 1000, (slot + 1) * width // 1000, rows) * 1000
    order = numpy.lexsort((moments, service))
    service, moments = service[order], moments[order]
    verbs = random.choice(len(_VERBS), rows, p=[0.4, 0.2, 0.12, 0.1, 0.08, 0.05, 0.03, 0.02])
    return pa.table(
        {
            "service": pa.array(_SERVICES).take(pa.array(service)),
            "ts": pa.array(moments).cast(pa.timestamp("us", "UTC")),
            "level": pa.array(_LEVELS).take(pa.array(random.choice(4, rows, p=[0.1, 0.03, 0.8, 0.07]))),
            "host": _HOSTS.take(pa.array((service * 7 + random.integers(0, 4, rows)) % len(_HOSTS))),
            "status": pa.array(random.choice([200, 201, 301, 404, 500], rows, p=[0.8, 0.1, 0.03, 0.05, 0.02]), "int32"),
            "latency_ms": pa.array(random.gamma(2.0, 15.0, rows).round(2)),
            "load": pa.array(random.random(rows).round(2).astype("float32")),
            "size": pa.array(random.zipf(1.6, rows) % 50_000),
            "trace": pa.array(random.integers(0, 1 << 40, rows)),
            "message": _MESSAGES.take(pa.array(verbs * 5000 + random.zipf(1.3, rows) % 5000)),
        }
    )


_HOSTS = pa.array([f"host-{number // 20:02d}-{number:03d}.internal" for number in range(400)])
_MESSAGES = pa.array([f"request {number} {verb} by the upstream" for verb in _VERBS for number in range(5000)])


def configuration(directory: Path, url: str | None = None) -> Path:
    """Writes the configuration of a store below the directory whose policy `cold` has one volume, in a bucket."""
    disk = {"type": "object_disk", "url": url or (directory / "bucket").absolute().as_uri() + "/"}
    document = {
        "state_path": str((directory / "state").absolute()),
        "disks": {"s3": disk},
        "policies": {"cold": {"volumes": [{"name": "cold", "disks": ["s3"]}]}},
    }
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "frostline.yaml"
    file.write_text(json.dumps(document))
    return file


def fill(config: Path, *, rows: int, number: int, partitions: int, nullable: bool = False) -> None:
    """Create the table and insert its parts, one insert each."""
    table = definition(nullable=nullable)
    with Store.open(config) as store:
        store.create_table(table)
        for each in parts(rows, number, partitions):
            store.table(table.full_name).insert(each.to_batches())


def imported(module: str) -> float:
    """Imports the module, and what Arrow imports with its first array; the seconds that took."""
    began = time.perf_counter()
    importlib.import_module(module)
    pa.array([module])
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=32_000_000)
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--url")
    options = parser.parse_args()
    config = configuration(options.directory, options.url)
    fill(config, rows=options.rows, number=options.parts, partitions=options.partitions)
    print(config)


if __name__ == "__main__":
    main()
