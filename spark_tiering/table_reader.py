"""Reads a table, or the rows that came into it, as Spark asks a data source: plans on the driver, reads in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_tiering.error_hints import errors_with_hints
from spark_tiering.reading.read_options import ReadOptions
from tiering.table.pruning import Predicate
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql.types import StructType

    from spark_tiering.reading.scan_planning import Piece, PlannedScan


@dataclass
class Share(InputPartition):
    """What one task reads."""

    pieces: tuple[Piece, ...]
    until: datetime
    predicate: Predicate

    def __init__(self, pieces: tuple[Piece, ...], until: datetime, predicate: Predicate) -> None:
        super().__init__(None)
        self.pieces, self.until, self.predicate = pieces, until, predicate

    def __repr__(self) -> str:
        return f"Share({len(self.pieces)} pieces)"


class FrostlineReader(DataSourceReader):
    """Plans on the driver, reads in the tasks."""

    def __init__(self, asked: ReadOptions, definition: TableDefinition, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._asked = asked
        self._definition = definition
        self._columns = tuple(schema.fieldNames())
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        from spark_tiering.changes.planning import plan_changes
        from spark_tiering.reading.scan_planning import plan_scan

        with errors_with_hints():
            plan = plan_scan if self._asked.changes_since is None else plan_changes
            return shares_of(plan(self._asked)) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from spark_tiering.reading.reader import Projection, read_share

        if not isinstance(partition, Share):
            return
        asked, definition = self._asked, self._definition
        wanted = Projection(definition, self._columns, self._schema, partition.predicate, asked.truncate_nanoseconds)
        with errors_with_hints(planning=False):
            yield from read_share(partition.pieces, wanted, partition.until)


def shares_of(scan: PlannedScan) -> list[InputPartition]:
    """What each task reads."""
    return [Share(pieces, scan.until, scan.predicate) for pieces in scan.shares]
