"""The rows that benchmarks use: events with a time, a low-cardinality key, ids and measurements; the same every run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy
import pyarrow as pa
import pyarrow.parquet as pq

from tiering.table.schema import Column, PartitionField, TableDefinition, TableSettings

SERVICES = 200


def events(rows: int, *, start: datetime, days: float, seed: int = 1) -> pa.Table:
    """Rows in arrival order: time grows with a little disorder, everything else is random."""
    random = numpy.random.default_rng(seed)
    span = days * 86400e6
    moments = numpy.sort(random.random(rows)) * span + random.normal(0, 1e6, rows).clip(-3e6, 3e6)
    micros = (numpy.clip(moments, 0, span - 1) + start.timestamp() * 1e6).astype("int64")
    services = pa.array([f"service-{i:03d}" for i in range(SERVICES)])
    codes = pa.array(random.zipf(1.3, rows) % SERVICES, pa.int64())
    return pa.table(
        {
            "ts": pa.array(micros).cast(pa.timestamp("us", tz="UTC")),
            "service": services.take(codes),
            "trace": pa.array(random.integers(0, 2**62, rows)),
            "status": pa.array(random.choice([200, 200, 200, 404, 500], rows).astype("int32")),
            "latency_ms": pa.array(random.gamma(2.0, 15.0, rows).round(2)),
            "size": pa.array(random.integers(100, 100_000, rows)),
        }
    )


def definition(name: str, *, partition_by: tuple[PartitionField, ...] = (), **settings: int) -> TableDefinition:
    """A table of these events, sorted by (service, ts)."""
    types = {
        "ts": "timestamp[us, UTC]",
        "service": "string",
        "trace": "int64",
        "status": "int32",
        "latency_ms": "float64",
        "size": "int64",
    }
    return TableDefinition(
        uuid=f"5f0e8b1c-0000-4000-8000-{sum(map(ord, name)):012d}",
        database="bench",
        name=name,
        columns=tuple(Column(i, column, kind) for i, (column, kind) in enumerate(types.items(), 1)),
        order_by=("service", "ts"),
        partition_by=partition_by,
        policy="hot_cold",
        settings=TableSettings(**settings),
        last_column_id=len(types),
    )


def write(table: pa.Table, path: Path) -> Path:
    """As an uncompressed Parquet file, so that reading it costs everyone the same and little."""
    pq.write_table(table, path, compression="none", row_group_size=1_000_000)
    return path


START = datetime(2026, 1, 1, tzinfo=UTC)
