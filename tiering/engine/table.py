"""One table of an open store, as programs use it: rows go in as Arrow, and come out as Arrow or as the data frame, lazy
frame or relation of another library. `tiering.engine.store.Store.table` gives it."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disks.workers.progress import Task
from oplog.errors import UsageError
from tiering.catalog import reachability
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.copies.set_aside import find_set_aside
from tiering.engine import recovery as recovering
from tiering.engine import replication
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow as pa

    from tiering.catalog.data_files import FileOfTable
    from tiering.engine.write_job import WriteResult
    from tiering.insert.insert import InsertResult
    from tiering.insert.uploaded.part_writer import WriteJob


logger = logging.getLogger(__name__)


class Table:
    """One table: insert Arrow, scan Arrow, hand the table to another library."""

    def __init__(self, context: Context, definition: TableDefinition) -> None:
        self._context = context
        self.definition = definition

    def insert(
        self, batches: Iterable[pa.RecordBatch], *, quorum: replication.Quorum | None = None, again: bool = False
    ) -> InsertResult:
        """Insert Arrow batches; what an earlier identical insert wrote already is skipped, unless it shall go in
        `again`. With a quorum, return when so many replicas have them.

        Raises `OutcomeUnknown` when that is not known in time: then the rows are in the table."""
        return self.insert_each([batches], quorum=quorum, again=again)

    def insert_each(
        self,
        streams: Iterable[Iterable[pa.RecordBatch]],
        *,
        quorum: replication.Quorum | None = None,
        again: bool = False,
    ) -> InsertResult:
        """The same of several, such as files: each is known by itself, whatever an earlier insert had beside it."""
        from tiering.insert import insert

        reachability.check_whole(self._context, self.definition, f"inserting into {self.definition.full_name}")
        recovering.begin_disks(self._context)
        how = replication.inserting(self._context, self.definition, quorum)
        result = insert.insert(self._context, self.definition, streams, how, again=again)
        self._context.catalog.refresh_later()  # few look again at once
        return result

    def attach_files(
        self, paths: Iterable[Path], *, quorum: replication.Quorum | None = None, dry_run: bool = False
    ) -> InsertResult:
        """Take in data files of parts unchanged, each as a part: all of them are looked at before the first goes in.
        What is there already is skipped. Raises `UsageError` for a file that does not fit the table as it is."""
        from tiering.insert import attach_files

        reachability.check_whole(self._context, self.definition, f"attaching files to {self.definition.full_name}")
        recovering.begin_disks(self._context)
        how = replication.inserting(self._context, self.definition, quorum)
        most_bytes = self._context.config.limits.decoded_bytes
        files = [attach_files.look_at(path, self.definition, most_bytes) for path in paths]
        if dry_run:
            return attach_files.to_attach(self.definition, files)
        result = attach_files.attach_files(self._context, self.definition, files, how)
        self._context.catalog.refresh_later()
        return result

    def begin_replacing(self) -> WriteJob:
        """Note what the table holds now, before the rows are read that take its place: what comes later stops
        `replace_partitions`. Raises `Refused` where no undo could bring rows of the table back."""
        from tiering.engine import write_job

        job = write_job.begin(self._context, write_job.replacing(self.definition))[1]
        assert job is not None  # there is no mark to find it by
        return job

    def replace_partitions(
        self, batches: Iterable[pa.RecordBatch], *, begun: WriteJob | None = None, dry_run: bool = False
    ) -> WriteResult:
        """Insert Arrow batches in the place of all rows of the partitions that they are in, by one commit in the
        bucket of the table's policy, which `undo` takes back. `begun`: default, now.

        Raises `Refused` where a partition got rows since it began, or has some on another disk: nothing changed then.
        """
        from tiering.engine import write_job

        job = begun or self.begin_replacing()
        with self._context.progress.task(f"replacing partitions of {self.definition.full_name}") as task:
            options = write_job.replacing(self.definition)
            return write_job.replace_partitions(self._context, options, job, counted(batches, task), dry_run=dry_run)

    def parts(self) -> list[StoredPart]:
        """The active parts."""
        return self._context.catalog.parts(self.definition)

    def files(self) -> list[FileOfTable]:
        """The data files of the active parts, with URL and SHA-256, for any reader of Parquet. Raises `Damaged` when a
        part cannot be read."""
        from tiering.catalog.data_files import files_of

        self._check_complete()
        return [*files_of(self._context, self.parts())]

    def scan(self, *, columns: Sequence[str] | None = None, filter: object = None) -> pa.RecordBatchReader:  # noqa: A002
        """Stream the rows of all tiers as Arrow; parts, row groups and columns that cannot matter are not read.

        Raises `Damaged` when a part cannot be read; what others move or merge before it is opened is looked for again.
        A warning names the rows of parts that a repair set aside.
        """
        from tiering.query import scan
        from tiering.query.selection import begin_again

        def begin() -> pa.RecordBatchReader:
            self._check_complete()
            return scan.scan(self._context, self.definition, self.parts(), columns=columns, filter=filter)

        return begin_again(self._context, begin)

    def dataset(self) -> pa.dataset.Dataset:
        """The table as a pyarrow dataset, which pandas, Polars and DuckDB can read. Raises `Damaged` as `scan` does."""
        from tiering.query import dataset
        from tiering.query.selection import begin_again

        def begin() -> pa.dataset.Dataset:
            self._check_complete()
            return dataset.table_dataset(self._context, self.definition, self.parts())

        return begin_again(self._context, begin)

    def to_polars(self) -> polars.LazyFrame:
        """The table as a lazy Polars frame: what is collected of it reads only the parts and columns that can matter.

        It is the table as it is now, and keeps removed parts on the SSD while it lives, as `dataset` does.
        Raises `UsageError` where Polars is not installed.
        """
        return polars_frame(self.dataset())

    def to_pandas(self, *, columns: Sequence[str] | None = None, filter: object = None) -> pandas.DataFrame:  # noqa: A002
        """The rows of `scan` in memory as a pandas frame. Raises `UsageError` where pandas is not installed."""
        check_installed("pandas")
        return self.scan(columns=columns, filter=filter).read_all().to_pandas()

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """The table as a relation of the connection, which reads only the parts and columns that its query needs.

        It is the table as it is now, and keeps removed parts on the SSD while it lives, as `dataset` does. Raises
        `UsageError` where columns differ in case alone.
        """
        from tiering.query.sql.planning import check_columns

        check_columns(self.definition)
        return connection.from_arrow(self.dataset())

    def _check_complete(self) -> None:
        reachability.check_certain(self._context, self.definition)
        self._context.catalog.check_readable(self.definition)
        for gap in find_set_aside(self._context.disks, self.definition, self.parts):
            where = f"{gap.disk}:{gap.path}"
            logger.warning("rows of part %s of %s are missing: it was set aside as %s", gap.part, gap.table, where)


def counted(batches: Iterable[pa.RecordBatch], task: Task) -> Iterator[pa.RecordBatch]:
    """The batches; the task shows how far they were read."""
    for batch in batches:
        yield batch
        task.advance(size_bytes=batch.nbytes, items=batch.num_rows)


def polars_frame(dataset: pa.dataset.Dataset) -> polars.LazyFrame:
    """The dataset as a lazy frame; filters and chosen columns reach the dataset. Raises `UsageError` without Polars."""
    check_installed("polars")
    import polars

    return polars.scan_pyarrow_dataset(dataset)


def check_installed(name: str) -> None:
    """Raise `UsageError` unless the library is there. Imports nothing."""
    if importlib.util.find_spec(name) is None:
        raise UsageError(
            f"{name} is not installed", hint=f"python -m pip install {name}; scan() gives Arrow without it"
        )
