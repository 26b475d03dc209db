"""`spark.readStream.format("frostline")`: the rows that come into a table, a batch a trigger.

An offset is a revision of the table's bucket. Spark keeps offsets in its checkpoint and asks for the same batch again
after a restart: the log gives the same rows for it, whatever was merged or moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from spark_tiering.changes.planning import Until, latest, plan_batch
from spark_tiering.error_hints import errors_with_hints
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.table_reader import FrostlineReader, shares_of
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Offset = dict[str, Any]
"""What Spark keeps of a stream in its checkpoint, as JSON: `table` and `revision`."""


class FrostlineStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batch after batch on the driver; tasks read as those of a data frame do."""

    def __init__(self, asked: ReadOptions, definition: TableDefinition, schema: StructType) -> None:
        self._asked = asked
        self._table = definition.uuid
        self._reader = FrostlineReader(asked, definition, schema)
        self._last: int | None = None
        """With the trigger `availableNow`: where the stream ends."""

    def initialOffset(self) -> Offset:  # noqa: N802
        return {"table": self._table, "revision": self._asked.changes_since or 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._asked.revisions_per_trigger
        return ReadMaxFiles(most) if most is not None else ReadAllAvailable()  # Spark has no word for revisions

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        with errors_with_hints():
            found = latest(self._asked, _until(start), most, self._last)
        return {"table": start["table"], "revision": found.revision}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with errors_with_hints():
            self._last = latest(self._asked, None, None, None).revision

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if start["revision"] >= end["revision"]:
            return []
        asked = replace(self._asked, changes_since=start["revision"])
        with errors_with_hints():
            return shares_of(plan_batch(asked, _until(end)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._reader.read(partition)


def _until(offset: Offset) -> Until:
    return Until(str(offset["table"]), int(offset["revision"]))
