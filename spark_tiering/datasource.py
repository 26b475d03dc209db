"""`spark.read.format("frostline")`: tables of a store as data frames.

    import spark_tiering
    spark_tiering.register(spark)
    spark.read.format("frostline").option("config", FILE).option("columns", "service, ts").load("db.table")

    df.write.format("frostline").mode("append").option("config", FILE).save("db.table")
    df.writeStream.format("frostline").option("checkpointLocation", DIRECTORY).start("db.table")
    spark.readStream.format("frostline").option("changes_since", REVISION).load("db.table")

    spark_tiering.formats(spark)                      each table as a format, which Spark's catalogue can remember
    spark.sql("create table t using frostline.db.table")

Columns and filter are options because Spark 4.3 prunes no columns of a Python source, and its push-down of filters
leaks from one query to others of the same data frame; so nothing is pushed down here, under any setting of Spark.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from weakref import WeakSet

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)

from disks.host.scratch import task_scratch
from oplog.errors import FrostlineError, Refused, UsageError
from spark_tiering.arrow_types import spark_schema, unknown_names
from spark_tiering.error_hints import errors_with_hints
from spark_tiering.package import shares_python, ship_code
from spark_tiering.reading.read_options import (
    STREAM_HINT,
    STREAM_WITHOUT_END,
    ReadOptions,
    options_of_format,
    read_options,
)
from spark_tiering.table_reader import FrostlineReader
from tiering.table.columns.type_texts import arrow_type
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from tiering.engine.write_job import WriteOptions
    from tiering.insert.uploaded.part_writer import WriteJob, WrittenPart

NAME = "frostline"
_COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"
"""What the process in which Spark commits the batches of streams runs, and no other does."""
_registered: WeakSet[SparkSession] = WeakSet()


def is_registered(session: SparkSession) -> bool:
    """Whether this program registered the format with the session."""
    return session in _registered


def register(session: SparkSession) -> None:
    """Make `format("frostline")` known to the session, and our code to its executors where they are elsewhere.

    Spark finds formats by the session that is active in a thread. A thread that was started by the program has none:
    this makes it that one, so there it is called once more.
    """
    context = getattr(session, "_sc", None)  # a Connect session has none
    here = context is not None and shares_python(str(context.master))
    known = "PYSPARK_PYTHON" in os.environ or session.conf.get("spark.pyspark.python", None) is not None
    if context is not None and here and not known:
        context.pythonExec = sys.executable  # else whichever python3 is first on the PATH, without our packages
    if not here and session not in _registered:
        scratch = task_scratch("frostline-code")  # Spark serves the file as long as it runs
        atexit.register(scratch.remove)
        ship_code(session, scratch.path)
    _tell(session, {})
    _registered.add(session)


def register_table(session: SparkSession, table: str, config: str) -> str:
    """Make a format of one table known to a session that knows `frostline`; its name. The class holds what Spark's
    catalogue would forget."""
    return _tell(session, {"table": table, "config": config})


def _tell(session: SparkSession, facts: dict[str, Any]) -> str:
    context = getattr(session, "_sc", None)
    here = context is not None and shares_python(str(context.master))
    cores = context.defaultParallelism if context is not None else 1
    facts = {**facts, "on_this_machine": here, "cores": cores}
    source: type[FrostlineSource] = type("FrostlineSource", (FrostlineSource,), facts)
    with _active(session):
        session.dataSource.register(source)
    return source.name()


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Spark looks in the active session for a format of the same name, even if another one has it. Where none
    was active in this thread, this one is from now on."""
    java = getattr(session, "_jsparkSession", None)
    if java is None:
        yield
        return
    sessions = session._get_j_spark_session_class(session._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(java)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())


class FrostlineSource(DataSource):
    """One table, by the options of a read. Spark makes it, asks it, and pickles it: it holds no secret."""

    on_this_machine: ClassVar[bool] = False
    """Whether tasks run where the driver does, and so see its local disks."""
    cores: ClassVar[int] = 1
    """How many tasks can run at once."""
    table: ClassVar[str] = ""
    """Of a format of one table: which; its options are those of the others, without the path."""
    config: ClassVar[str] = ""
    """Of a format of one table: the configuration's file, or as the command line finds it."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._definition: TableDefinition | None = None

    @classmethod
    def name(cls) -> str:
        return f"{NAME}.{cls.table}" if cls.table else NAME

    def schema(self) -> StructType:
        """The chosen columns with the types in which Spark gets them. Raises `UsageError` for one it cannot get, and
        for a filter that says nothing: a stream would be told when it has begun."""
        from tiering.query.sql_filter import parse_filter

        with errors_with_hints():
            asked = self._asked()
            definition = self._table(asked)
            parse_filter(asked.filter, definition)
            names = asked.columns or tuple(column.name for column in definition.columns)
            columns = [definition.column(name) for name in names]
            return spark_schema(columns, truncate_nanoseconds=asked.truncate_nanoseconds)

    def reader(self, schema: StructType) -> DataSourceReader:
        """What plans the read. A schema that the user gave names the columns."""
        with errors_with_hints():
            asked = self._asked()
            definition = self._table(asked)
            _check_names(schema, definition)
            return FrostlineReader(asked, definition, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """What plans the batches of a stream of new rows; where they cannot be told, a reader that raises why."""
        try:
            with errors_with_hints():
                return self._stream_reader(schema)
        except FrostlineError as error:
            return _RefusedStream(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            from spark_tiering.stream_reader import FrostlineStreamReader
        except ImportError as error:
            raise Refused("reading a table as a stream needs pyspark 4.2", hint="pip install -U pyspark") from error
        asked = replace(self._asked(), changes_since=self._asked().changes_since or 0)
        if asked.revision is not None or asked.timestamp is not None:
            raise UsageError(STREAM_WITHOUT_END, hint=STREAM_HINT)
        definition = self._table(asked)
        _check_names(schema, definition)
        return FrostlineStreamReader(asked, definition, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """What writes a data frame. Raises `UsageError` for columns that the table has not, `Refused` to overwrite when
        it is not said what."""
        from spark_tiering.writing.write_job import begin_job, check_columns, write_options

        with errors_with_hints():
            definition, job = begin_job(asked := write_options(self._given(), overwrite=overwrite))
            check_columns(schema, definition)
            return FrostlineWriter(asked, job)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """What writes a batch of a stream; Spark makes one for the tasks of each batch, and one for its commit, in a
        process for that. Raises as `writer` does, and `Refused` for a new checkpoint under an old name."""
        from spark_tiering.writing.stream_options import stream_options
        from spark_tiering.writing.write_job import begin_job, check_columns

        with errors_with_hints():
            asked = stream_options(self._given())
            if overwrite:
                raise Refused(f"a stream only appends to {asked.table}", hint="outputMode('append')")
            if _COMMITTING in sys.modules:
                return FrostlineStreamWriter(asked, None)
            definition, job = begin_job(asked)
            assert job is not None
            check_columns(schema, definition)
            return FrostlineStreamWriter(asked, job)

    def _given(self) -> dict[str, str]:
        return options_of_format(self.options, self.table, self.config)

    def _asked(self) -> ReadOptions:
        return read_options(self._given(), on_this_machine=self.on_this_machine, cores=self.cores)

    def _table(self, asked: ReadOptions) -> TableDefinition:
        from spark_tiering.changes.planning import check_changes
        from spark_tiering.reading.scan_planning import read_definition

        if self._definition is None:
            self._definition = read_definition(asked) if asked.changes_since is None else check_changes(asked)
        return self._definition


def _check_names(schema: StructType, definition: TableDefinition) -> None:
    """Raise `Refused` where Spark's catalogue has columns, or fields of structs, that the table has not: its `alter
    table` asks no source in Python, and changes the catalogue alone. Arrow would read such a field as null."""
    known = {column.name: arrow_type(column.type) for column in definition.columns}
    if unknown := list(unknown_names(schema, known)):
        name = definition.full_name
        raise Refused(
            f"table {name} has no column {', '.join(map(repr, unknown))}: 'alter table' of Spark "
            "changes Spark's catalogue only, and no row of the store was touched",
            hint=f"'frostline table alter {name}' changes columns (--add-column, --rename-column, …); then 'drop "
            f"table' and 'create table … using frostline.{name}' in Spark, which drops no row",
        )


class _RefusedStream(DataSourceStreamReader):
    """Raises an error when Spark first asks for something. One that `streamReader` raises itself does not arrive: Spark
    then fails to stop the reader that it did not get, and reports only that."""

    def __init__(self, error: FrostlineError) -> None:
        self._error = error

    def _raise(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = _raise  # noqa: N815
    partitions = read = _raise


@dataclass
class TaskOutput(WriterCommitMessage):
    """The parts that one task uploaded."""

    parts: list[WrittenPart]
    job: WriteJob | None = None
    """Of a stream's batch, whose commit is begun in another process than its tasks."""


class FrostlineWriter(DataSourceArrowWriter):
    """Tasks upload parts; the driver commits all of them at once."""

    def __init__(self, asked: WriteOptions, job: WriteJob | None) -> None:
        self._asked = asked
        self._job = job
        """None: the job of this id is in the table already."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._job is None:
            deque(iterator, maxlen=0)
            return TaskOutput([])
        return TaskOutput(_written(iterator, self._job))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        from spark_tiering.writing.write_job import commit_job

        with errors_with_hints():
            commit_job(self._asked, self._job, _parts_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing names what was uploaded; gc collects it."""


class FrostlineStreamWriter(DataSourceStreamArrowWriter):
    """Tasks upload the parts of a batch; the driver commits all of them at once, and once."""

    def __init__(self, asked: WriteOptions, job: WriteJob | None) -> None:
        self._asked = asked
        self._job = job
        """None in the process of commits: the tasks say what they wrote for."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        assert self._job is not None
        return TaskOutput(_written(iterator, self._job), self._job)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        from spark_tiering.writing.write_job import commit_job
        from tiering.insert.uploaded.once import OnceABatch

        assert isinstance(self._asked.once, OnceABatch)
        asked = replace(self._asked, once=self._asked.once.of(batchId))
        jobs = [message.job for message in messages if isinstance(message, TaskOutput)]
        if jobs:  # else there was no task, and so no row
            with errors_with_hints():
                commit_job(asked, jobs[0], _parts_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """As that of a job."""


def _written(iterator: Iterator[pa.RecordBatch], job: WriteJob) -> list[WrittenPart]:
    """What this task wrote."""
    from pyspark import TaskContext

    from tiering.insert.uploaded.part_writer import write_parts

    context = TaskContext.get()
    task, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
    with errors_with_hints(planning=False):
        return write_parts(iterator, job, task, attempt)


def _parts_of(messages: list[WriterCommitMessage | None]) -> list[WrittenPart]:
    return [part for message in messages if isinstance(message, TaskOutput) for part in message.parts]
