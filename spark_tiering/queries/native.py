"""A table as Spark's own Parquet reader sees it, where its executors can open the files: vectorised, with push-down.

Spark is given the list of files that planning left, with their sizes, so that it looks at no directory: a file that
belongs to no part any more is not seen, and one that is gone is an error. Files are grouped by the table's schema when
they were written and read by the names that they had then; today's names, types and defaults are put on top. Footers
are compared here with what was written, pages by Spark's reader with their own checksums.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from disks.contracts.directory_disk import DirectoryDisk
from disks.kinds import as_disk
from oplog.errors import Refused
from spark_tiering.arrow_types import carried_type, has_nanoseconds, spark_schema
from spark_tiering.queries.files import Obstacle, check_bucket, check_footers, check_reach, file_url, schema_of
from spark_tiering.queries.required import Need
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.reading.scan_planning import Piece, choose_files, places
from spark_tiering.references import quoted
from tiering.config.units import counted
from tiering.engine.store import Store
from tiering.table.columns.nested_ids import is_current
from tiering.table.columns.type_texts import arrow_type, type_text
from tiering.table.columns.types import default_scalar, field_ids
from tiering.table.schema import Column, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

Native = Literal["auto", "always", "never"]
_OPTIONS = {
    # Whatever the session says: never fewer rows, and no other values.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
_FEW_FILES = 64
_SAME_KIND = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


class _Group(msgspec.Struct, frozen=True):
    """Files of one schema: what their columns are called there, and of which types they are, by field id."""

    names: Mapping[int, str]
    types: Mapping[int, pa.DataType]
    files: tuple[tuple[str, int], ...]
    """Their URLs and sizes in bytes."""


def native_frame(
    session: SparkSession, store: Store, definition: TableDefinition, asked: ReadOptions, need: Need, native: Native
) -> tuple[DataFrame | None, str]:
    """All columns of the table, of the files that can hold rows of the need; None where its rows have to come through
    the data source. And what was taken, and why, which the log says too. With `always` that is `Refused`.

    The files stay readable as those of the data source do.
    """
    name = definition.full_name
    if native == "never":
        return None, _told(f"{name} is read through the data source, as native='never' says")
    try:
        asked = replace(asked, filter=need.filter)
        _check(session, store, definition, asked)
        pieces = choose_files(store, asked).pieces
        check_reach(session, pieces)
        check_footers(pieces)
        groups = _groups(definition, pieces)
        frame = _union([_frame_of(session, definition, group) for group in groups])
    except Obstacle as error:
        if native == "always":
            raise Refused(f"Spark's own reader cannot read {name}: {error}", hint="native='auto' reads it") from None
        return None, _told(f"{name} is read through the data source: {error}")
    return frame, _told(f"{name} by Spark's own reader: {counted(len(pieces), 'file')}")


def _told(taken: str) -> str:
    logger.info("%s", taken)
    return taken


def reads_few_files(
    session: SparkSession, store: Store, definition: TableDefinition, asked: ReadOptions, native: Native
) -> bool:
    """Whether Spark's own reader can read the whole table, and it is of so few files that to leave some of them out
    gains less than to find out which a query needs. False where the whole table may lie out of reach of executors."""
    try:
        return (
            native != "never" and _shares_directories(asked) and _check(session, store, definition, asked) <= _FEW_FILES
        )
    except Obstacle:
        return False


# -- what stands against it ----------------------------------------------------------------------------------------


def _check(session: SparkSession, store: Store, definition: TableDefinition, asked: ReadOptions) -> int:
    """How many files it would be; nothing is held. Raises `Obstacle`."""
    if asked.changes_since is not None:
        raise Obstacle("the rows since a revision come from parts that may have been merged")
    for column in definition.columns:
        kind = arrow_type(column.type)
        if has_nanoseconds(kind):
            raise Obstacle(f"it reads no nanoseconds, as those of column {column.name}")
        if pa.types.is_time(kind) or pa.types.is_duration(kind) or kind == pa.uuid():
            raise Obstacle(f"it reads no {column.type}, as column {column.name} is")
    context = store.context
    limits = context.config.limits
    found = places(store, asked)
    for name in sorted(found):
        remote = context.disk(name).capabilities.remote
        if not remote and as_disk(context.disk(name), DirectoryDisk) is None:
            raise Obstacle(f"the files of disk {name} are in no directory and no bucket")
        url = context.config.bucket(name).url if remote else "file://"
        if url.startswith("file://") and not _shares_directories(asked):
            raise Obstacle("the executors may run on other machines (local_disks='shared' says that all see the files)")
        check_bucket(session, name, url)
        if remote and (limits.bytes_per_second or limits.requests_per_second):
            raise Obstacle(f"it would not keep the limits of bytes and requests a second of {name}")
    return found.total()


def _shares_directories(asked: ReadOptions) -> bool:
    """Whether the executors see the directories of this machine."""
    return asked.on_this_machine or asked.local_disks == "shared"


def _groups(definition: TableDefinition, pieces: Sequence[Piece]) -> list[_Group]:
    """The files by schema; one group without files when there are none."""
    today = {column.id: column.name for column in definition.columns}
    members: dict[int, list[Piece]] = {}
    for piece in pieces:
        members.setdefault(piece.schema_version, []).append(piece)
    found = []
    for version, group in (members or {definition.schema_version: []}).items():
        names, types = today, {column.id: arrow_type(column.type) for column in definition.columns}
        if version != definition.schema_version:
            stored = schema_of(group[0])
            names = field_ids(stored)
            types = {number: stored.field(name).type for number, name in names.items()}
            for column in definition.columns:
                if column.id in types and not is_current(types[column.id], column, definition):
                    raise Obstacle(f"its files have other fields within column {column.name} than the table")
        lowered = [name.lower() for name in names.values()]
        if len(set(lowered)) < len(lowered):
            raise Obstacle("columns of its files differ in the case of their letters only")
        found.append(_Group(names, types, tuple((file_url(piece), piece.size_bytes) for piece in group)))
    return found


# -- frames --------------------------------------------------------------------------------------------------------


def _frame_of(session: SparkSession, definition: TableDefinition, group: _Group) -> DataFrame:
    """The files' rows with today's columns."""
    from pyspark.sql import functions

    held = [
        msgspec.structs.replace(
            column, name=group.names[column.id], type=type_text(group.types[column.id]), nullable=True
        )
        for column in definition.columns
        if column.id in group.names
    ]
    frame = _files_frame(session, spark_schema(held), group.files)
    if group.names == {column.id: column.name for column in definition.columns} and all(
        _carried(column, group.types[column.id]) == carried_type(column) for column in definition.columns
    ):
        return frame
    selected = []
    for column, field in zip(definition.columns, spark_schema(definition.columns), strict=True):
        if column.id not in group.names:
            value = _default(column).cast(field.dataType)
        else:
            value = functions.col(quoted(group.names[column.id]))
            stored, kind = group.types[column.id], arrow_type(column.type)
            if _carried(column, stored) != carried_type(column):
                _check_widened(column, stored, kind)
                value = value.cast(field.dataType)
        selected.append(value.alias(column.name))
    return frame.select(*selected)


def _carried(column: Column, kind: pa.DataType) -> pa.DataType:
    return carried_type(msgspec.structs.replace(column, type=type_text(kind)))


def _check_widened(column: Column, stored: pa.DataType, kind: pa.DataType) -> None:
    """Between numbers of one kind Spark's cast changes no value."""
    if not any(same(stored) and same(kind) for same in _SAME_KIND):
        raise Obstacle(f"column {column.name} was {stored} and is {kind}")


def _default(column: Column) -> SparkColumn:
    from pyspark.sql import functions

    value: Any = default_scalar(column).as_py()
    if isinstance(value, list) or (isinstance(value, float) and math.isnan(value)):
        raise Obstacle(f"the default of column {column.name} is no plain value")
    # As texts, which the zones of Python and of the session do not change.
    if isinstance(value, date | datetime):
        value = value.isoformat()
    return functions.lit(str(value) if isinstance(value, Decimal) or _is_large(value) else value)


def _is_large(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 63


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(lambda first, second: first.union(second), frames)


def _files_frame(session: SparkSession, schema: Any, files: Sequence[tuple[str, int]]) -> DataFrame:
    """Spark's reader over exactly these files, whose sizes are known: to let it look for them takes it tens of
    milliseconds a file, leaves out names that begin with `_`, and takes some letters for wildcards."""
    from py4j.protocol import Py4JError
    from pyspark.sql import DataFrame

    try:
        return DataFrame(_relation(session, schema, files), session)
    except (Py4JError, TypeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise Obstacle(f"this version of Spark takes no list of files ({reason})") from error


def _relation(session: SparkSession, schema: Any, files: Sequence[tuple[str, int]]) -> Any:
    jvm, gateway = session._jvm, session.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    java = session._jsparkSession
    sources = jvm.org.apache.spark.sql.execution.datasources
    python = jvm.org.apache.spark.api.python.PythonUtils
    new_path, new_status = jvm.org.apache.hadoop.fs.Path, jvm.org.apache.hadoop.fs.FileStatus
    known, paths = sources.FileStatusCache.getOrCreate(java), jvm.java.util.ArrayList()
    for url, size_bytes in files:
        file = new_path(url)
        statuses = gateway.new_array(new_status, 1)
        statuses[0] = new_status(size_bytes, False, 1, 1 << 27, 0, file)
        known.putLeafFiles(file, statuses)
        paths.add(file)
    options = jvm.java.util.HashMap()
    for name, value in _OPTIONS.items():
        options[name] = value
    given, columns = python.toScalaMap(options), jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    nothing, some = jvm.scala.Option.empty(), jvm.scala.Option.apply
    unpartitioned = some(sources.PartitionSpec.emptySpec())
    index = sources.InMemoryFileIndex(java, python.toSeq(paths), given, some(columns), known, unpartitioned, nothing)
    known.invalidateAll()
    if (seen := len(index.inputFiles())) != len(files):
        raise Obstacle(f"it sees {seen} of {counted(len(files), 'file')}")
    relation = sources.HadoopFsRelation(
        index,
        jvm.org.apache.spark.sql.types.StructType(),
        columns,
        nothing,
        sources.parquet.ParquetFileFormat(),
        given,
        java,
    )
    return java.baseRelationToDataFrame(relation)
