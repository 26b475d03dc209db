"""Bulk ingest: files that tasks read, or Spark, and parts that tasks write, with a table's partitions and sort order.

Files are taken in batches of bytes, each of which is one commit with a mark of its files: what was stopped goes on
after the last commit. Tasks read Parquet and ORC that they can open themselves, and write what they read. What Spark
reads, and files that mix the partitions, come by ranges of partition and sort key, so that a task writes few parts and
none has much more than its share. A task sorts by blocks and merges, so its memory is that of a block, also where all
rows have one key.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec.structs import replace

from oplog.errors import FrostlineError, NotFound, Refused, Transient, UsageError
from spark_tiering.references import quoted
from spark_tiering.writing.file_shares import FileShare, IngestFile, rows_of, shares_of
from spark_tiering.writing.mixed_files import are_mixed
from spark_tiering.writing.path_columns import spark_type, with_path_columns
from spark_tiering.writing.ranges import are_carried, in_ranges, read_by_tasks, rows_or_error
from tiering.config.units import counted
from tiering.insert.inputs.hive import path_columns
from tiering.insert.inputs.source_files import find_sources, source_of
from tiering.insert.reshaping import NULLS, Reshaping
from tiering.insert.uploaded.part_writer import WriteJob, WrittenPart, write_parts
from tiering.table.columns.type_texts import arrow_type
from tiering.table.schema import Column, TableDefinition

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES = 128 * 1024 * 1024
"""What a task writes, in bytes of the files."""
_LEAST_TASK_BYTES = 16 * 1024 * 1024
"""Less is not divided, however many tasks could run."""
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # a value that does not fit is an error, and no null
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.caseSensitive": "true",  # a column goes by its name as the file has it, as an insert takes it
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # A record that lacks a field is malformed, whichever columns are chosen.
    "spark.sql.csv.parser.columnPruning.enabled": "false",
}
_READERS: dict[str, dict[str, str]] = {
    "parquet": {"mergeSchema": "true"},
    "orc": {"mergeSchema": "true"},
    "json": {"mode": "FAILFAST"},
    # A quote within quotes is written twice (RFC 4180), and a backslash is one: else Spark takes that for the sign.
    "csv": {"mode": "FAILFAST", "header": "true", "inferSchema": "false", "enforceSchema": "false", "escape": '"'},
}
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_PASSED_OVER = re.compile(r"/[_.][^/]*\Z|\._COPYING_\Z")
"""Names of files that Spark takes for no data."""
_ANSWER = "answer binary"


def is_url(path: str) -> bool:
    """Whether Spark has to be asked which files that is."""
    return _URL.match(path) is not None


def find_files(paths: Sequence[str], file_format: str | None, session: SparkSession | None) -> list[IngestFile]:
    """The files of paths and globs of this machine, and of URLs, in their order, each once. Raises `NotFound` where
    there are none, `UsageError` for a format that Spark does not read. Without URLs `session` is not needed."""
    found: dict[str, IngestFile] = {}
    for path in paths:
        for file in _of_url(path, file_format, session) if is_url(path) else _of_path(path, file_format):
            found.setdefault(file.url, file)
    return list(found.values())


def batches_of(files: Iterable[IngestFile], batch_bytes: int) -> list[tuple[IngestFile, ...]]:
    """The files in their order, so many bytes together, of one format each and read by one way; a larger file is a
    batch of its own."""
    batches: list[tuple[IngestFile, ...]] = []
    pending: list[IngestFile] = []
    for file in files:
        alike = not pending or _kind(pending[0]) == _kind(file)
        if pending and (not alike or sum(one.size_bytes for one in pending) + file.size_bytes > batch_bytes):
            batches.append(tuple(pending))
            pending = []
        pending.append(file)
    return [*batches, tuple(pending)] if pending else batches


def _kind(file: IngestFile) -> tuple[str, str, bool]:
    return file.format, file.delimiter, file.is_read_by_tasks


def left_of(
    files: Sequence[IngestFile], marks: Mapping[str, str], *, takes_changed: bool, table: str
) -> list[IngestFile]:
    """The files that the marks do not name. Raises `Refused` for one that was another when it went in."""
    left: list[IngestFile] = []
    for file in files:
        path, state = file.fingerprint
        if path in marks and marks[path] != state and not takes_changed:
            raise Refused(
                f"{file.url} has changed since it went into {table}: rows may be inserted twice",
                hint="--take-changed takes what it holds now for new rows; 'frostline insert --replace-partitions' "
                "replaces partitions",
            )
        if marks.get(path) != state:
            left.append(file)
    return left


def ingest_session(session: SparkSession) -> SparkSession:
    """A session of the same Spark with the settings that let values arrive unchanged."""
    if getattr(session, "_sc", None) is None:
        raise Refused("ingest needs a session of Spark itself, and not Spark Connect", hint="unset SPARK_REMOTE")
    own = session.newSession()
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    return own


def frame_of(
    session: SparkSession,
    files: Sequence[IngestFile],
    reshaping: Reshaping,
    *,
    slots: int,
) -> DataFrame:
    """The rows of a batch with columns of the table's names, in ranges of partition and sort key."""
    from spark_tiering.writing.write_job import check_columns

    definition, select = reshaping.definition, reshaping.select
    for file in files:
        if file.source.compression == ".xz":  # it would be read as if it were plain
            raise UsageError(f"{file.url}: Spark cannot read .xz", hint="'frostline insert' reads it")
    reader = session.read.format(files[0].format).options(**_READERS[files[0].format])
    if files[0].format == "csv":
        reader = reader.option("sep", files[0].delimiter)
    # Spark takes a path for a glob.
    rows = reader.load([re.sub(r"([{}\[\]*?\\])", r"\\\1", file.url) for file in files])
    _check_seen(rows, files)
    said = {file.url: path_columns(file.source, reshaping) for file in files}
    rows = with_path_columns(session, rows, said, is_json=files[0].format == "json")
    done = {one.column.name for columns in said.values() for one in columns.values()}
    rows = _selected(rows, select) if select else rows
    rows = _typed(rows, definition, is_text=files[0].format == "csv", done=done)
    check_columns(rows.schema, definition)
    tasks = tasks_for(sum(file.size_bytes for file in files), slots)
    return in_ranges(rows, definition, tasks)


def tasks_for(size_bytes: int, slots: int) -> int:
    """How many tasks take files of so many bytes, where so many run at once."""
    tasks = max(-(-size_bytes // TASK_BYTES), min(slots, -(-size_bytes // _LEAST_TASK_BYTES)), 1)
    return -(-tasks // slots) * slots if tasks > slots else tasks  # a last one alone leaves the others idle


def write_files(
    session: SparkSession,
    files: Sequence[IngestFile],
    reshaping: Reshaping,
    job: WriteJob,
    rows: Accumulator[int],
    *,
    slots: int,
    last_attempt: int,
) -> Sequence[Any]:
    """What the tasks answer when they have written the rows of a batch; `parts_of` reads it. `rows` counts them."""
    writing = _Writing(job, rows, last_attempt)
    now = replace(reshaping, definition=job.definition)
    if not files[0].is_read_by_tasks:
        frame = frame_of(session, files, now, slots=slots)
        return frame.mapInArrow(writing, _ANSWER).collect()
    tasks = tasks_for(sum(file.size_bytes for file in files), slots)
    shares = shares_of(files, tasks)
    if are_mixed(shares, now):
        shares = shares_of(files, min(tasks, slots))  # larger ones leave fewer parts
        if are_carried(job.definition) and are_mixed(shares, now):
            ranged = in_ranges(read_by_tasks(session, shares, now), job.definition, tasks)
            return ranged.mapInArrow(writing, _ANSWER).collect()
    return session.sparkContext.parallelize(shares, len(shares)).mapPartitions(_Taking(writing, now)).collect()


def parts_of(answers: Iterable[Any]) -> list[WrittenPart]:
    """The parts that were written. Raises what a task could not take."""
    parts: list[WrittenPart] = []
    for answer in answers:
        found = pickle.loads(bytes(answer[0]))
        if isinstance(found, FrostlineError):
            raise found
        parts += found
    return parts


@dataclass(frozen=True)
class _Writing:
    """What a task does: its rows in, its parts out."""

    job: WriteJob
    rows: Accumulator[int]
    last_attempt: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Of Spark's rows, or of what other tasks read."""
        answer = self.answer(rows_or_error(batches))
        for _ in batches:  # a worker with rows left over would not be used again
            pass
        yield pa.record_batch({"answer": pa.array([answer], pa.binary())})

    def answer(self, batches: Iterator[pa.RecordBatch]) -> bytes:
        """The parts, or the error that says why there are none; what Spark is to try again is raised."""
        from pyspark import TaskContext, cloudpickle

        context = TaskContext.get()
        task, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
        found: object
        try:
            found = write_parts(self._counted(batches), self.job, task, attempt)
        except FrostlineError as error:
            if isinstance(error, Transient) and context is not None and context.attemptNumber() < self.last_attempt:
                raise  # Spark tries again
            found = error
        return bytes(cloudpickle.dumps(found))

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            self.rows.add(batch.num_rows)


@dataclass(frozen=True)
class _Taking:
    """What a task does that reads its share of the files itself."""

    writing: _Writing
    reshaping: Reshaping

    def __call__(self, shares: Iterable[tuple[FileShare, ...]]) -> Iterator[tuple[bytes]]:
        for share in list(shares):
            yield (self.writing.answer(rows_of(share, self.reshaping)),)


def _of_path(path: str, file_format: str | None) -> Iterator[IngestFile]:
    for source in find_sources([path], file_format):
        file = Path(source.path).resolve()
        facts = file.stat()
        yield _checked(
            IngestFile(f"file:{file}", source.format, source.delimiter, facts.st_size, facts.st_mtime, source.path)
        )


def _of_url(path: str, file_format: str | None, session: SparkSession | None) -> Iterator[IngestFile]:
    """The files of a URL or of a glob of URLs, as Hadoop's file systems list them, which Spark reads by. A file that
    exists is meant, also where its name looks like a pattern."""
    from py4j.protocol import Py4JError

    assert session is not None
    spark: Any = session
    if not path.startswith("file:") and "//" in path.partition("://")[2]:
        raise UsageError(f"{path}: Hadoop would take the `//` in it for one `/`", hint="copy the object to another key")
    where = re.sub(r"\As3n?://", "s3a://", path)
    try:
        pattern = spark._jvm.org.apache.hadoop.fs.Path(where)
        system = pattern.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        if system.exists(pattern):
            statuses = [status for status in (system.getFileStatus(pattern),) if status.isFile()]
        else:
            statuses = [status for status in system.globStatus(pattern) or () if status.isFile()]
    except Py4JError as error:
        from spark_tiering.running.session import java_reason

        said = java_reason(error)
        hint = "see what it says"
        if "ClassNotFound" in said or "UnsupportedFileSystem" in said:
            hint = "give Spark what reads it, such as spark.jars.packages: org.apache.hadoop:hadoop-aws:VERSION"
        raise UsageError(f"Spark cannot list {path}: {said}", hint=hint) from error
    if not statuses:
        raise NotFound(
            f"no such file: {path}", hint="check the URL; quote globs, so that the shell does not expand them"
        )
    for status in sorted(statuses, key=lambda status: str(status.getPath().toString())):
        location = str(status.getPath().toString())
        source = source_of(location, file_format)
        changed = float(status.getModificationTime())
        yield _checked(IngestFile(location, source.format, source.delimiter, int(status.getLen()), changed))


def _checked(file: IngestFile) -> IngestFile:
    if file.format not in _READERS or file.url.endswith(".zip"):
        raise UsageError(
            f"{file.url}: Spark does not read it; it reads {', '.join(_READERS)}", hint="'frostline insert' takes it"
        )
    if not file.is_read_by_tasks and _PASSED_OVER.search(file.url):
        raise UsageError(
            f"{file.url}: Spark takes a file of such a name for no data, and would pass over it",
            hint="'frostline insert' takes it; or name the others, as in 'part-*'",
        )
    return file


def _check_seen(rows: DataFrame, files: Sequence[IngestFile]) -> None:
    """Raise `Refused` where Spark passes over some, which would be noted as taken."""
    if (seen := len(rows.inputFiles())) != len(files):
        raise Refused(
            f"Spark sees {seen} of {counted(len(files), 'file')}", hint="see in its log which it passes over, and why"
        )


def _selected(rows: DataFrame, select: Mapping[str, str]) -> DataFrame:
    from pyspark.sql import functions

    names = set(rows.columns)
    expressions = []
    for path, name in select.items():
        steps = path.split(".")
        first = next((n for n in range(len(steps), 0, -1) if ".".join(steps[:n]) in names), None)
        if first is None:
            raise UsageError(
                f"the files have no column {path}", hint=f"their columns are: {', '.join(sorted(names)[:20])}"
            )
        column = ".".join(map(quoted, [".".join(steps[:first]), *steps[first:]]))
        expressions.append(functions.col(column).alias(name))
    return rows.select(*expressions)


def _typed(rows: DataFrame, definition: TableDefinition, *, is_text: bool, done: Collection[str]) -> DataFrame:
    """Texts as the types of the table, but for those that are `done`; what JSON has where the table has a text, as
    JSON."""
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    known = {column.name: column for column in definition.columns}
    expressions = []
    for field in rows.schema.fields:
        column, value = known.get(field.name), functions.col(quoted(field.name))
        if column is not None and column.name not in done:
            if is_text and (column.nullable or not _is_text(column)):
                value = functions.when(value.isin(*NULLS), None).otherwise(value)
            if isinstance(field.dataType, StringType) and not _is_text(column):
                value = value.cast(spark_type(column))
            if isinstance(field.dataType, (StructType, MapType, ArrayType)) and _is_text(column):
                value = functions.to_json(value)
        expressions.append(value.alias(field.name))
    return rows.select(*expressions)


def _is_text(column: Column) -> bool:
    """Whether Spark hands its values on as texts."""
    kind = arrow_type(column.type)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_time(kind) or kind == pa.uuid()
    )
