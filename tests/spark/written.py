"""A store that Spark writes to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.servers import Server
from tests.spark.stores import opened, table, write_config
from tiering.table.schema import PartitionField, TableDefinition

if TYPE_CHECKING:
    pass


COLUMNS = {"service": "string", "ts": "timestamp[us, UTC]", "count": "uint64", "note": "string"}
START = datetime(2026, 1, 1, tzinfo=UTC)


def logs(**settings: int) -> TableDefinition:
    return table("db.logs", COLUMNS, ["service", "ts"], PartitionField("day", "ts"), **settings)


@pytest.fixture
def config(ministack: Server, tmp_path: Path) -> Path:
    file = write_config(tmp_path, ministack)
    with opened(file) as store:
        store.create_table(logs())
    return file


def counts(config: Path) -> list[int]:
    """[rows, distinct, sum] of the table."""
    with opened(config) as store:
        found = store.query('SELECT count(*), count(distinct count), sum("count") FROM db.logs').read_all()
    return [int(column[0].as_py() or 0) for column in found.columns]


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch(
        {
            "service": [f"s{number % 7}" for number in range(rows)],
            "ts": pa.array([START + timedelta(seconds=number) for number in range(rows)], pa.timestamp("us", "UTC")),
            "count": range(rows),
        }
    )
